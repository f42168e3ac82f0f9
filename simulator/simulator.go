// Package simulator is a scripted provider of asynchronous jobs over HTTP. It
// stands where a real provider would stand in demos, drills, benchmarks and
// tests, does what its rules say (accepts a job and drops the answer, answers
// twice, finishes while it is being cancelled), and keeps a log from which the
// caller can prove how many jobs each operation made.
//
//	sim := simulator.New(simulator.Config{Now: time.Now, Seed: 1})
//	defer sim.Close()
//	sim.Mount("/example", simulator.Example,
//		simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.DropAnswer{}))
//	url, err := sim.Listen("127.0.0.1:0") // or sim.ListenMemory()
//
// # Providers
//
// One Simulator serves any number of providers, each mounted on a base path
// with a [Dialect], its [Options] and its rules. A job follows a [Plan]: a list
// of states with the time after which each follows, or one step per status read.
//
// # Rules
//
// A [Rule] is data: which kind of call, which of those calls, and the faults
// these calls get. All rules that match a call apply, in the order they were
// added. The n of a [Match] counts calls since the rule was added, so a rule
// added in the middle of a run with Nth(1) hits the very next call.
//
//	On(Status, FirstOfJob(3), Reply(404))                     // 404 three times after create
//	On(Status, Young(5*time.Second), Reply(404))              // 404 while the job is younger
//	On(Create, EveryNth(2), DelayAfter(time.Minute))          // half of the creates answer late
//	On(Cancel, Always(), CancelIgnored)                       // acknowledged, succeeds all the same
//	On(Webhook, NthOfJob(1), WebhookRepeat(3))                // the first event three times
//
// A call passes these stations; a fault acts at one of them: arrival
// ([NeverReceive]); credentials ([Auth]); waits before the call takes effect
// ([DelayBefore], [HoldBefore]); the effect itself ([Answer] replaces it unless
// it says Stored; [Conflict], [SecondJob], [InProgress], [OnCancel], [UsePlan],
// [ListLate], [Vanish], [Finish] change it); the early webhook; waits before
// the answer ([DelayAfter], [HoldAfter]); the answer ([DropAnswer], [Truncate],
// [CutBody], [SlowBody], [StateWord], [Links], [Redirect], [HugeMessage],
// [Compress], [Bomb]).
//
// # Guarantees
//
// Ids depend on the seed, the mount, the operation's key and how many jobs that
// key made before, not on the interleaving of calls (numeric ids count up and
// do depend on it). A request that waits
// is in the provider's hands: it takes effect even when its client has left.
// Every request that reached a handler is in the log. All goroutines belong to
// the Simulator and end with Close. Nothing is kept on disk.
//
// # Limits
//
// Delays and webhooks run on the timers of package time. Config.Now must run at
// their pace: time.Now, also inside a synctest bubble, or time.Now plus an
// offset. Inside a bubble make the Simulator there and use the memory listener:
// a goroutine that waits on a real socket stops the fake clock.
package simulator

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// maxBody bounds what is read of a request, in bytes.
const maxBody = 64 << 20

// Config holds what a Simulator needs from outside. The zero value works.
type Config struct {
	// Now is the provider's clock; nil means time.Now.
	Now func() time.Time

	// Seed fixes ids, link signatures and the outcome of Chance.
	Seed uint64

	// Webhooks sends the callbacks; nil means that none is ever sent. Its
	// idle connections belong to the caller.
	Webhooks *http.Client

	// WebhookSecret signs callbacks.
	WebhookSecret []byte

	// Correlate tells which operation a create belongs to, from its body, on
	// dialects that have neither token nor reference. nil means the SHA-256
	// of the body's member "correlation", or of the whole body without one.
	// For OpenAIBatches it gets the contents of the input file in place of
	// the body, so that a second upload hides no second job.
	Correlate func(body []byte) string

	// CorrelateAlways uses Correlate for dialects with a token or a reference
	// too, so that a client which changes its token between two attempts is
	// caught by Duplicates.
	CorrelateAlways bool

	// LogLimit is the number of newest requests kept; 0 keeps all. Counts
	// (duplicates, creates on the wire, calls at once) never forget.
	LogLimit int
}

// A Simulator is a set of scripted providers behind one http.Handler. Its
// methods may be called from any goroutine.
type Simulator struct {
	now             func() time.Time
	seed            uint64
	hooks           *http.Client
	secret          []byte
	correlate       func([]byte) string
	correlateAlways bool
	logLimit        int

	// done is closed by Close; every wait ends with it.
	done chan struct{}
	// work counts handlers, couriers and serve loops. Added to under mu while
	// closed is false, so never after Close began to wait.
	work sync.WaitGroup

	mu         sync.Mutex // guards everything below, all mounts and all jobs
	closed     bool
	mounts     []*Mount
	stoppers   []func()
	log        []*Request
	seq        int
	wire       map[string]int
	flights    map[string][]*flight
	maxFlights map[string]int
	deliveries []Delivery
}

// New makes a Simulator without providers.
func New(c Config) *Simulator {
	s := &Simulator{
		now:             c.Now,
		seed:            c.Seed,
		hooks:           c.Webhooks,
		secret:          bytes.Clone(c.WebhookSecret),
		correlate:       c.Correlate,
		correlateAlways: c.CorrelateAlways,
		logLimit:        c.LogLimit,
		done:            make(chan struct{}),
		wire:            map[string]int{},
		flights:         map[string][]*flight{},
		maxFlights:      map[string]int{},
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.correlate == nil {
		s.correlate = correlation
	}
	return s
}

// correlation is the default of Config.Correlate.
func correlation(body []byte) string {
	var b struct {
		Correlation json.RawMessage `json:"correlation"`
	}
	if json.Unmarshal(body, &b) == nil && len(b.Correlation) > 0 {
		body = b.Correlation
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Close ends all waits, listeners and webhooks and returns when no goroutine of
// the Simulator is left. Requests still held are cut without an answer.
func (s *Simulator) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	stoppers := s.stoppers
	s.stoppers = nil
	s.mu.Unlock()
	for _, stop := range stoppers {
		stop()
	}
	s.work.Wait()
}

// begin registers one goroutine of work, unless the Simulator is closed.
func (s *Simulator) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beginLocked()
}

func (s *Simulator) beginLocked() bool {
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// wait returns false when the wait was cut short by Close or by left.
func (s *Simulator) wait(d time.Duration, left <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-left:
		return false
	case <-s.done:
		return false
	}
}

// A Mount is one provider: a dialect on a base path.
type Mount struct {
	sim     *Simulator
	base    string
	dialect Dialect

	// Guarded by sim.mu.
	options   Options
	rules     []*rule
	ruleCount int
	jobs      map[string]*job
	order     []*job
	byToken   map[string]*job
	byKey     map[string][]*job
	planted   int
	uploads   []*upload       // OpenAIBatches: input files, oldest first
	files     map[string]file // by the id of a file
	answers   map[string]kept // StripeReporting: first answers, by token
	busy      map[string]int  // StripeReporting: the call that holds a token
	script    *script
}

// Options are the knobs of one provider. The zero value is a well-behaved one.
// Jobs take what they need from it when they are made, answers when they are
// written.
type Options struct {
	// Plan of new jobs; without steps the default plan: queued, running after
	// 1 s, succeeded 2 s later.
	Plan Plan
	// PlanFor, if set, chooses the plan instead; n counts the mount's jobs
	// from 0. It is called with the Simulator locked and must not call it.
	PlanFor func(n int, body []byte) Plan
	// IDs is the form of job ids.
	IDs IDStyle
	// PageSize of lists; 0 means 20. A request's own limit counts where it is
	// smaller.
	PageSize int
	// ListDelay is the age at which a job first appears in lists.
	ListDelay time.Duration
	// NewestFirst turns the lists of the example dialects around; those of
	// the others are newest first always.
	NewestFirst bool
	// ListAll ignores the filter of a list request.
	ListAll bool
	// WithList adds the list route to Example and ExampleAsk; it filters by
	// client_reference or idempotency_key.
	WithList bool
	// ReplayStatus answers a repeated token; 0 means 200.
	ReplayStatus int
	// TokenWindow is how long a token is remembered; 0 means for ever, for
	// StripeReporting 24 hours.
	TokenWindow time.Duration
	// NoCancel answers 405 to every cancel.
	NoCancel bool
	// Echo adds the request's exact bytes to create and status answers, as
	// member "request".
	Echo bool
	// Result makes the result document; nil means the echo document (see
	// Job). It is called with the Simulator locked and must not call it.
	Result func(Job) (contentType string, body []byte)
	// ResultOnce answers 410 from the second successful result read on.
	ResultOnce bool
	// LinkTTL, if positive, gives answers about finished jobs of the example
	// dialects a result_url, valid so long from that answer on. For Replicate
	// it bounds the life of an output URL further than Retention does.
	LinkTTL time.Duration
	// LinkBase puts result links on another host: scheme and authority, no
	// path. That host answers 400 to requests that bring credentials, except
	// StripeReporting's, which demands them (see FilesOpen).
	LinkBase string
	// FilesOpen makes the result files of StripeReporting such as need no
	// credential.
	FilesOpen bool
	// Retention is how long after its end a Replicate prediction keeps
	// input, output and logs; 0 means one hour.
	Retention time.Duration
	// ExpiredStatus answers a result link after its time; 0 means 403.
	ExpiredStatus int
	// Auth is the credential demanded of all calls but signed links.
	Auth Auth
	// Skew is added to Now in the Date header and in all times reported.
	Skew time.Duration
	// PublicURL replaces scheme and authority of the links in answers; empty
	// means those of the request.
	PublicURL string
	// Callback gets the webhooks of new jobs that bring no address of their
	// own, as providers do that are told one address per account.
	Callback string
	// StandardWebhooks sends Replicate callbacks in their real form: the
	// prediction as body, signed with webhook-id, webhook-timestamp and
	// webhook-signature headers too.
	StandardWebhooks bool
}

// Auth is a credential demanded by a provider: one of Bearer, Header or Query.
// The zero value demands none. A request without it is answered 401, one with a
// wrong value WrongStatus.
type Auth struct {
	Bearer string
	// Header or Query names the header or the query parameter that must hold
	// Value.
	Header, Query, Value string
	// WrongStatus is 403 if zero.
	WrongStatus int
}

// refusal returns the status to refuse a request with, or 0.
func (a Auth) refusal(h http.Header, q url.Values) int {
	var got, want string
	switch {
	case a.Bearer != "":
		got, want = h.Get("Authorization"), "Bearer "+a.Bearer
	case a.Header != "":
		got, want = h.Get(a.Header), a.Value
	case a.Query != "":
		got, want = q.Get(a.Query), a.Value
	default:
		return 0
	}
	switch {
	case got == want:
		return 0
	case got == "":
		return http.StatusUnauthorized
	case a.WrongStatus != 0:
		return a.WrongStatus
	}
	return http.StatusForbidden
}

// Mount adds a provider under a base path, which starts with a slash and does
// not end with one; "" mounts it at the root. It panics on a base in use.
// The longest base that fits a request serves it.
func (s *Simulator) Mount(base string, d Dialect, rules ...Rule) *Mount {
	if base != "" && (!strings.HasPrefix(base, "/") || strings.HasSuffix(base, "/")) {
		panic(fmt.Sprintf("simulator: base path %q must start with a slash and not end with one", base))
	}
	if !d.valid() {
		panic(fmt.Sprintf("simulator: unknown dialect %q", d))
	}
	m := &Mount{
		sim:     s,
		base:    base,
		dialect: d,
		jobs:    map[string]*job{},
		byToken: map[string]*job{},
		byKey:   map[string][]*job{},
		files:   map[string]file{},
		answers: map[string]kept{},
		busy:    map[string]int{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.mounts {
		if other.base == base {
			panic(fmt.Sprintf("simulator: base path %q is mounted twice", base))
		}
	}
	s.mounts = append(s.mounts, m)
	m.addLocked(rules)
	return m
}

// Base is the path the provider is mounted on.
func (m *Mount) Base() string { return m.base }

// Options returns a copy of the knobs as they stand.
func (m *Mount) Options() Options {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.options
}

// Configure replaces all knobs and returns m.
func (m *Mount) Configure(o Options) *Mount {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	m.options = o
	return m
}

// Add appends rules; remove takes exactly these away again and may be called
// more than once.
func (m *Mount) Add(rules ...Rule) (remove func()) {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	ids := m.addLocked(rules)
	return func() {
		m.sim.mu.Lock()
		defer m.sim.mu.Unlock()
		// A fresh slice: a call in progress may still hold the old one.
		var kept []*rule
		for _, r := range m.rules {
			if !ids[r.id] {
				kept = append(kept, r)
			}
		}
		m.rules = kept
	}
}

// Clear removes all rules.
func (m *Mount) Clear() {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	m.rules = nil
}

func (m *Mount) addLocked(rules []Rule) map[int]bool {
	ids := map[int]bool{}
	for _, r := range rules {
		m.ruleCount++
		m.rules = append(m.rules, &rule{Rule: r, id: m.ruleCount, counts: map[string]int{}})
		ids[m.ruleCount] = true
	}
	return ids
}

// A call is one request on its way through the stations of the package comment.
type call struct {
	sim   *Simulator
	mount *Mount
	entry *Request // in the log; written under sim.mu
	route route

	header    http.Header
	query     url.Values
	body      []byte
	token     string
	reference string
	callback  string
	events    []string // Replicate's webhook_events_filter
	input     *upload  // the input file an OpenAIBatches create names
	keep      bool     // the answer is to be kept under the token
	origin    string   // scheme and authority for links in answers
	faults    []Fault
	job       *job
	flightKey string // in Simulator.flights, of a call with side effects
}

// ServeHTTP serves all mounts. To close a connection without an answer it
// panics with http.ErrAbortHandler, as net/http provides for.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()

	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	c := s.arrive(r, body)
	defer s.leave(c)
	if readErr != nil {
		// The client was cut off, or sent too much: no provider would act.
		s.note(c, "body-unread")
		panic(http.ErrAbortHandler)
	}
	if c.mount == nil {
		s.write(w, r, c, problem(http.StatusNotFound, "not_found", "no provider is mounted here"))
		return
	}
	if f, ok := find[NeverReceive](c.faults); ok {
		s.note(c, f.fault())
		abort(r, f.Reset)
	}

	rep, refused := s.authorize(c)
	if !refused {
		s.claim(c)
		for _, f := range c.faults {
			w, ok := f.(waiter)
			if !ok || !w.before() {
				continue
			}
			s.note(c, f.fault())
			if !w.pause(s, nil) {
				panic(http.ErrAbortHandler) // closed while held: never took effect
			}
		}
		rep = s.act(c)
		if f, ok := find[EarlyWebhook](c.faults); ok && s.deliverEarly(c) {
			s.note(c, f.fault())
		}
	}
	for _, f := range c.faults {
		w, ok := f.(waiter)
		if !ok || w.before() {
			continue
		}
		s.note(c, f.fault())
		if !w.pause(s, r.Context().Done()) {
			panic(http.ErrAbortHandler) // nobody is left to answer
		}
	}
	if f, ok := find[DropAnswer](c.faults); ok {
		s.note(c, f.fault())
		abort(r, f.Reset)
	}
	s.write(w, r, c, rep)
}

// arrive logs a request and finds its mount, call, job, token, key and faults.
func (s *Simulator) arrive(r *http.Request, body []byte) *call {
	c := &call{sim: s, header: r.Header, query: r.URL.Query(), body: body}
	c.entry = &Request{
		Method: r.Method,
		Host:   r.Host,
		Path:   r.URL.EscapedPath(),
		Query:  r.URL.RawQuery,
		Header: r.Header.Clone(),
		Body:   body,
		Call:   Other,
	}
	c.origin = "http://" + r.Host
	if r.TLS != nil {
		c.origin = "https://" + r.Host
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	c.entry.At = s.now()
	s.logLocked(c.entry)
	c.mount = s.mountOfLocked(c.entry.Path)
	if c.mount == nil {
		return c
	}
	m := c.mount
	if m.options.PublicURL != "" {
		c.origin = m.options.PublicURL
	}
	c.entry.Mount, c.entry.Dialect = m.base, m.dialect
	c.route = m.route(c)
	c.entry.Call = c.route.call
	c.read()
	if c.route.id != "" {
		c.entry.Job = c.route.id
		if j := m.jobs[c.route.id]; j != nil {
			c.job = j
			c.token = j.token
			c.entry.Key = j.key
		}
	}
	if c.route.call == Create || c.route.call == List {
		c.entry.Key = c.key()
	}
	c.entry.Token = c.token
	c.faults = m.matchLocked(c.route.call, c.scope())
	if c.route.call == Create {
		s.wire[c.entry.Key]++
		if c.input != nil && c.input.entry.Key == "" {
			c.input.entry.Key = c.entry.Key // now it is known whose upload that was
		}
	}
	if c.route.call == Create || c.route.call == Cancel {
		s.departLocked(c, r)
	}
	return c
}

// read takes token, reference and callback from the request.
func (c *call) read() {
	switch c.mount.dialect {
	case Example, StripeReporting, Recorded:
		c.token = c.header.Get("Idempotency-Key")
	case ExampleLookup, ExampleAsk, Replicate, OpenAIBatches:
	}
	switch c.route.call {
	case Create:
		if c.mount.dialect == OpenAIBatches {
			c.readBatch()
			return
		}
		var b struct {
			Reference  string   `json:"client_reference"`
			WebhookURL string   `json:"webhook_url"`
			Webhook    string   `json:"webhook"`
			Events     []string `json:"webhook_events_filter"`
		}
		if json.Unmarshal(c.body, &b) != nil {
			return // refused when the call takes effect
		}
		c.reference, c.callback = b.Reference, b.WebhookURL
		if c.mount.dialect == Replicate {
			c.callback, c.events = b.Webhook, b.Events
		}
		if c.token == "" {
			c.token = c.reference // so that rules can count by it
		}
	case List:
		c.reference = c.query.Get("client_reference")
		if k := c.query.Get("idempotency_key"); k != "" {
			c.token = k
		}
	}
}

// key names the operation a create or a look-up belongs to.
func (c *call) key() string {
	if c.route.call == List {
		if c.reference != "" {
			return c.reference
		}
		return c.token
	}
	if !c.sim.correlateAlways {
		switch c.mount.dialect {
		case Example, StripeReporting, Recorded:
			if k := c.header.Get("Idempotency-Key"); k != "" {
				return k
			}
		case ExampleLookup, OpenAIBatches:
			if c.reference != "" {
				return c.reference
			}
		case ExampleAsk, Replicate:
		}
	}
	if c.input != nil {
		return c.sim.correlate(c.input.content)
	}
	return c.sim.correlate(c.body)
}

func (c *call) scope() scope {
	sc := scope{job: c.entry.Job, token: c.token, key: c.entry.Key, now: c.sim.now()}
	if c.token == "" {
		sc.token = c.entry.Key
	}
	if c.job != nil {
		sc.made, sc.known = c.job.created, true
	}
	return sc
}

func (s *Simulator) mountOfLocked(path string) *Mount {
	var best *Mount
	for _, m := range s.mounts {
		if strings.HasPrefix(path, m.base+"/") && (best == nil || len(m.base) > len(best.base)) {
			best = m
		}
	}
	return best
}

// authorize answers a request that lacks the credential.
func (s *Simulator) authorize(c *call) (reply, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.route.link {
		return reply{}, false
	}
	status := c.mount.options.Auth.refusal(c.header, c.query)
	if status == 0 {
		return reply{}, false
	}
	c.noteLocked("unauthorized")
	return c.mount.refuse(status, "unauthorized", "the credential is missing or wrong"), true
}

// act lets the call take effect and makes its answer.
func (s *Simulator) act(c *call) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A create of the same token may have been stored during the wait.
	if c.job == nil && c.route.id != "" {
		c.job = c.mount.jobs[c.route.id]
	}
	a, replaced := find[Answer](c.faults)
	if replaced {
		c.noteLocked(a.fault())
		if !a.Stored {
			rep := a.reply(c.mount)
			c.keep = a.Kept && c.tokened()
			c.keepAnswer(rep)
			return rep
		}
	}
	if c.job != nil {
		c.job.advance(s.now())
		if f, ok := find[Finish](c.faults); ok {
			c.noteLocked(f.fault())
			c.job.enter(f.State, s.now())
		}
		if f, ok := find[Vanish](c.faults); ok {
			c.noteLocked(f.fault())
			c.job.gone = true
		}
	}
	rep := c.perform()
	if replaced {
		rep = a.reply(c.mount)
	}
	c.keepAnswer(rep)
	return rep
}

// clock is the provider's own time, skew included.
func (m *Mount) clock() time.Time { return m.sim.now().Add(m.options.Skew) }
