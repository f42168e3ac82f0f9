package simulator

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Call is a kind of call to a provider.
type Call string

// Kinds of calls. Prepare is what comes before a create, such as the upload of
// its input. A fetch of a result link is a Result. Any stands for all HTTP
// calls in a rule. Webhook is a callback the provider sends.
const (
	Prepare Call = "prepare"
	Create  Call = "create"
	Status  Call = "status"
	List    Call = "list"
	Result  Call = "result"
	Cancel  Call = "cancel"
	Input   Call = "input"
	Cleanup Call = "cleanup"
	Other   Call = "other"
	Any     Call = "any"
	Webhook Call = "webhook"
)

// A Rule gives the calls it matches some faults.
type Rule struct {
	Call   Call
	Match  Match
	Faults []Fault
}

// On is Rule{call, match, faults}.
func On(call Call, match Match, faults ...Fault) Rule {
	return Rule{Call: call, Match: match, Faults: faults}
}

// A Match picks calls among those of the rule's kind. All set fields must hold;
// the zero Match picks every call.
type Match struct {
	// By says what calls are counted by.
	By Scope
	// From and To bound the number of the call in its scope, from 1; zero
	// means no bound. Every picks each Every-th of them.
	From, To, Every int
	// Chance between 0 and 1, if positive, picks calls by the seed: whether
	// the n-th call of an operation is picked never depends on other calls.
	Chance float64
	// Young, if positive, picks calls about jobs younger than this.
	Young time.Duration
	// Job and Token, if set, pick calls about this one only. Token is the
	// Idempotency-Key or client_reference of the job.
	Job, Token string
}

// A Scope is what the calls of a Match are counted by.
type Scope string

// Scopes. A call without job or token counts under its operation key.
const (
	Overall  Scope = ""
	PerJob   Scope = "job"
	PerToken Scope = "token"
)

// Always picks every call.
func Always() Match { return Match{} }

// Nth picks the n-th call overall.
func Nth(n int) Match { return Match{From: n, To: n} }

// First picks the first n calls overall.
func First(n int) Match { return Match{To: n} }

// EveryNth picks the n-th, 2n-th, ... call overall.
func EveryNth(n int) Match { return Match{Every: n} }

// NthOfJob picks the n-th call about each job.
func NthOfJob(n int) Match { return Match{By: PerJob, From: n, To: n} }

// FirstOfJob picks the first n calls about each job.
func FirstOfJob(n int) Match { return Match{By: PerJob, To: n} }

// NthOfToken picks the n-th call of each token.
func NthOfToken(n int) Match { return Match{By: PerToken, From: n, To: n} }

// FirstOfToken picks the first n calls of each token.
func FirstOfToken(n int) Match { return Match{By: PerToken, To: n} }

// Chance picks calls with probability p, by the seed.
func Chance(p float64) Match { return Match{Chance: p} }

// Young picks calls about jobs younger than d.
func Young(d time.Duration) Match { return Match{Young: d} }

// scope is what a Match sees of a call.
type scope struct {
	job, token, key string
	now, made       time.Time
	known           bool // made is set
}

// rule is a Rule with what it counted. Guarded by the Simulator's mutex.
type rule struct {
	Rule
	id     int
	counts map[string]int
}

// matchLocked counts the call in all rules and returns the faults it gets.
func (m *Mount) matchLocked(k Call, sc scope) []Fault {
	var fs []Fault
	for _, r := range m.rules {
		if r.Call != k && (r.Call != Any || k == Webhook) {
			continue
		}
		if r.hit(m, sc) {
			fs = append(fs, r.Faults...)
		}
	}
	return fs
}

func (r *rule) hit(m *Mount, sc scope) bool {
	p := r.Match
	if (p.Job != "" && p.Job != sc.job) || (p.Token != "" && p.Token != sc.token) {
		return false
	}
	if p.Young > 0 && (!sc.known || sc.now.Sub(sc.made) >= p.Young) {
		return false
	}
	counted := ""
	switch {
	case p.By == PerJob && sc.job != "":
		counted = "job " + sc.job
	case p.By != Overall:
		counted = "token " + sc.token
	}
	r.counts[counted]++
	n := r.counts[counted]
	if (p.From > 0 && n < p.From) || (p.To > 0 && n > p.To) || (p.Every > 0 && n%p.Every != 0) {
		return false
	}
	if p.Chance > 0 {
		own := "chance " + sc.key
		r.counts[own]++
		return m.sim.fraction("chance", m.base, fmt.Sprint(r.id), sc.key, fmt.Sprint(r.counts[own])) < p.Chance
	}
	return true
}

// fraction is a number in [0, 1) fixed by the seed and the parts.
func (s *Simulator) fraction(parts ...string) float64 {
	h := s.hash(parts...)
	return float64(binary.BigEndian.Uint64(h[:])>>11) / (1 << 53)
}

// hash is fixed by the seed and the parts; lengths keep them apart.
func (s *Simulator) hash(parts ...string) [sha256.Size]byte {
	b := binary.BigEndian.AppendUint64(nil, s.seed)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// A Fault is one deviation from the well-behaved provider. The types of this
// file are all there are.
//
//sumtype:decl
type Fault interface {
	// fault is the name shown in the log.
	fault() string
}

// find returns the last fault of type F, so that a rule added later wins.
func find[F Fault](fs []Fault) (F, bool) {
	for i := len(fs) - 1; i >= 0; i-- {
		if f, ok := fs[i].(F); ok {
			return f, true
		}
	}
	var none F
	return none, false
}

// join keeps each name once, in order, separated by commas.
func join(all, name string) string {
	if all == "" {
		return name
	}
	for n := range strings.SplitSeq(all, ",") {
		if n == name {
			return all
		}
	}
	return all + "," + name
}

// NeverReceive closes the connection before the provider looks at the request:
// nothing is stored. Reset makes it a connection reset where the listener is
// one of this package.
type NeverReceive struct{ Reset bool }

// DropAnswer lets the call take effect and closes the connection without an
// answer. Reset is as for NeverReceive.
type DropAnswer struct{ Reset bool }

// DelayBefore waits before the call takes effect, also when its client leaves:
// the request then arrives late.
type DelayBefore time.Duration

// DelayAfter waits between effect and answer.
type DelayAfter time.Duration

// HoldBefore waits at the gate before the call takes effect.
type HoldBefore struct{ *Gate }

// HoldAfter waits at the gate between effect and answer.
type HoldAfter struct{ *Gate }

// waiter is a fault that waits.
type waiter interface {
	// before says that the wait comes before the effect.
	before() bool
	// pause reports false if Close cut the wait, or left ended.
	pause(s *Simulator, left <-chan struct{}) bool
}

func (DelayBefore) before() bool { return true }
func (DelayAfter) before() bool  { return false }
func (HoldBefore) before() bool  { return true }
func (HoldAfter) before() bool   { return false }

func (d DelayBefore) pause(s *Simulator, left <-chan struct{}) bool {
	return s.wait(time.Duration(d), left)
}

func (d DelayAfter) pause(s *Simulator, left <-chan struct{}) bool {
	return s.wait(time.Duration(d), left)
}
func (h HoldBefore) pause(s *Simulator, left <-chan struct{}) bool { return h.Gate.pass(s, left) }
func (h HoldAfter) pause(s *Simulator, left <-chan struct{}) bool  { return h.Gate.pass(s, left) }

// A Gate holds requests until a test releases them.
type Gate struct {
	open chan struct{}
	once sync.Once

	mu      sync.Mutex // guards the fields below
	arrived int
	changed chan struct{} // closed and replaced when arrived grows
}

// NewGate makes a closed gate. Inside a synctest bubble make it there.
func NewGate() *Gate {
	return &Gate{open: make(chan struct{}), changed: make(chan struct{})}
}

// Release opens the gate for ever.
func (g *Gate) Release() { g.once.Do(func() { close(g.open) }) }

// Arrived is the number of requests that have reached the gate so far.
func (g *Gate) Arrived() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.arrived
}

// WaitArrived returns once n requests have reached the gate, or false when done
// ends first; done may be a context's.
func (g *Gate) WaitArrived(n int, done <-chan struct{}) bool {
	for {
		g.mu.Lock()
		arrived, changed := g.arrived, g.changed
		g.mu.Unlock()
		if arrived >= n {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

func (g *Gate) pass(s *Simulator, left <-chan struct{}) bool {
	g.mu.Lock()
	g.arrived++
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	select {
	case <-g.open:
		return true
	case <-left:
		return false
	case <-s.done:
		return false
	}
}

// SlowBody sends the headers and then one byte of the body every so often.
type SlowBody struct{ Every time.Duration }

// CutBody announces the whole body and closes the connection after Bytes of it;
// half of it if Bytes is 0.
type CutBody struct{ Bytes int }

// Truncate sends only the first Bytes of the body, as a complete answer; half
// of it if Bytes is 0.
type Truncate struct{ Bytes int }

// Answer replaces the provider's answer. Without Stored the call takes no
// effect: a create makes no job, a status read is not counted. Kept, without
// Stored, keeps the answer under the create's token all the same, for a
// provider that repeats its first answer (StripeReporting). Own makes it an
// error in the provider's form instead of Header and Body.
type Answer struct {
	Status     int
	Header     http.Header
	Body       string
	Own        bool
	RetryAfter RetryAfter
	// DateSkew is added to the provider's clock in the Date header and in a
	// Retry-After date.
	DateSkew time.Duration
	Stored   bool
	Kept     bool
}

// RetryAfter is a Retry-After header: Text verbatim, or a date In from the
// provider's clock in the given layout. The zero value sends none.
type RetryAfter struct {
	Text string
	// In may be negative or zero; the date is used when Layout is set.
	In     time.Duration
	Layout string
}

// Layouts of an HTTP date, RFC 9110 section 5.6.7.
const (
	IMFFixdate = http.TimeFormat
	RFC850     = "Monday, 02-Jan-06 15:04:05 GMT"
	Asctime    = time.ANSIC
)

func (r RetryAfter) text(clock time.Time) string {
	if r.Layout != "" {
		return clock.Add(r.In).UTC().Format(r.Layout)
	}
	return r.Text
}

// Reply is an Answer with a problem document of this status.
func Reply(status int) Answer {
	return Answer{
		Status: status,
		Header: http.Header{"Content-Type": {"application/problem+json"}},
		Body:   fmt.Sprintf(`{"type":"about:blank","title":%q,"status":%d}`, http.StatusText(status), status),
	}
}

// ReplyRetry is Reply with a Retry-After header.
func ReplyRetry(status int, after RetryAfter) Answer {
	a := Reply(status)
	a.RetryAfter = after
	return a
}

// ReplyOwn is an error of this status in the provider's form.
func ReplyOwn(status int) Answer { return Answer{Status: status, Own: true} }

// Throttled is a 429 in the provider's form; the zero RetryAfter sends none.
func Throttled(after RetryAfter) Answer {
	return Answer{Status: http.StatusTooManyRequests, Own: true, RetryAfter: after}
}

// ReplyStored is Reply after the call took effect.
func ReplyStored(status int) Answer {
	a := Reply(status)
	a.Stored = true
	return a
}

// ReplyHTML is an Answer with an error page of a proxy.
func ReplyHTML(status int) Answer {
	return Answer{
		Status: status,
		Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
		Body:   fmt.Sprintf("<html><head><title>%d</title></head><body><h1>%s</h1></body></html>", status, http.StatusText(status)),
	}
}

// ReplyLogin is the login page of something in between, with status 200.
func ReplyLogin() Answer {
	return Answer{
		Status: http.StatusOK,
		Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
		Body: `<!DOCTYPE html><html><head><title>Sign in</title></head><body><form method="post" action="/login">` +
			`<input name="user"><input name="password" type="password"><button>Sign in</button></form></body></html>`,
	}
}

// ReplyEmpty is an Answer of JSON type with zero bytes.
func ReplyEmpty(status int) Answer {
	return Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}}
}

// ReplyError is an Answer with nothing but an error object.
func ReplyError(status int, code, message string) Answer {
	var inner, doc document
	inner.set("code", code)
	inner.set("message", message)
	doc.set("error", inner)
	return Answer{
		Status: status,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   string(doc.encode()),
	}
}

func (a Answer) reply(m *Mount) reply {
	clock := m.clock().Add(a.DateSkew)
	r := reply{status: a.Status, header: a.Header.Clone(), raw: []byte(a.Body)}
	if a.Own {
		r = m.trouble(a.Status)
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.header == nil {
		r.header = http.Header{}
	}
	if t := a.RetryAfter.text(clock); t != "" {
		r.header.Set("Retry-After", t)
	}
	if a.DateSkew != 0 {
		r.header.Set("Date", clock.UTC().Format(http.TimeFormat))
	}
	return r
}

// Conflict answers 409 to a create whose token, or client_reference, already
// made a job; with the first job's id if WithID. It is of the example dialects
// and Replicate.
type Conflict struct{ WithID bool }

// SecondJob makes another job for a token that already has one.
type SecondJob struct{}

// InProgress stores the job if there is none yet and answers that this token is
// being worked on: Status, 409 if 0, code "in_progress", no job id.
type InProgress struct {
	Status     int
	RetryAfter RetryAfter
}

// UsePlan gives the job made by this create its own plan.
type UsePlan struct{ Plan Plan }

// ListLate hides the job made by this create from lists so long, more than
// Options.ListDelay says.
type ListLate time.Duration

// Vanish makes the provider forget the job: 404 from this call on.
type Vanish struct{}

// Finish moves the job to State just before the call takes effect.
type Finish struct{ State string }

// OnCancel is how a provider deals with a cancel.
type OnCancel string

// Ways to deal with a cancel.
const (
	// CancelFinishFirst lets the job succeed while the cancel is handled; it
	// comes too late then.
	CancelFinishFirst OnCancel = "cancel-finish-first"
	// CancelIgnored acknowledges; the job goes on by its plan.
	CancelIgnored OnCancel = "cancel-ignored"
	// CancelForever acknowledges; the job stays cancelling.
	CancelForever OnCancel = "cancel-forever"
	// CancelVanish acknowledges; the job is gone, 404.
	CancelVanish OnCancel = "cancel-vanish"
	// CancelRefused answers 409; the job goes on by its plan.
	CancelRefused OnCancel = "cancel-refused"
)

// StateWord changes the provider's word for a state in answers about jobs; the
// job itself is not touched. It applies to the word From, to all if empty: To
// replaces it if set, Upper makes it upper case, Pad is put on both sides.
type StateWord struct {
	From, To string
	Upper    bool
	Pad      string
}

// Links replaces the links of a create answer: Location the header, StatusURL
// the body's member. In both {id} stands for the job id as one escaped path
// segment, {base} for the mount's absolute URL. Empty leaves the link.
type Links struct{ Location, StatusURL string }

// Redirect answers a call about a job with a redirect; Status is 302 if 0. In
// To, {id} and {base} are as in Links, and {link} is a fresh result link. Result
// links themselves redirect only with Links.
type Redirect struct {
	To     string
	Status int
	Links  bool
}

// HugeMessage puts a text of so many bytes into a JSON answer, where the
// provider puts texts: a member "message", Replicate's "logs", the error of
// OpenAIBatches and StripeReporting.
type HugeMessage int

// Compress sends the body in this coding, "gzip" or "deflate", whether the
// client asked for it or not.
type Compress struct{ Coding string }

// Bomb is Compress after Size spaces in front of the body, which the coding
// makes about a thousandth of. A JSON document stays one.
type Bomb struct {
	Coding string
	Size   int64
}

// EarlyWebhook sends a callback for the new job's state and waits for its
// answer before the create is answered.
type EarlyWebhook struct{}

// WebhookDrop keeps the provider from sending this event.
type WebhookDrop struct{}

// WebhookRepeat sends the event so many times in all, same id and bytes.
type WebhookRepeat int

// WebhookReorder sends the event after the job's next one.
type WebhookReorder struct{}

// WebhookDelay sends the event late, without holding up those after it.
type WebhookDelay time.Duration

func (NeverReceive) fault() string   { return "never-receive" }
func (DropAnswer) fault() string     { return "drop-answer" }
func (DelayBefore) fault() string    { return "delay-before" }
func (DelayAfter) fault() string     { return "delay-after" }
func (HoldBefore) fault() string     { return "hold-before" }
func (HoldAfter) fault() string      { return "hold-after" }
func (SlowBody) fault() string       { return "slow-body" }
func (CutBody) fault() string        { return "cut-body" }
func (Truncate) fault() string       { return "truncate" }
func (Answer) fault() string         { return "answer" }
func (Conflict) fault() string       { return "conflict" }
func (SecondJob) fault() string      { return "second-job" }
func (InProgress) fault() string     { return "in-progress" }
func (UsePlan) fault() string        { return "use-plan" }
func (ListLate) fault() string       { return "list-late" }
func (Vanish) fault() string         { return "vanish" }
func (Finish) fault() string         { return "finish" }
func (o OnCancel) fault() string     { return string(o) }
func (StateWord) fault() string      { return "state-word" }
func (Links) fault() string          { return "links" }
func (Redirect) fault() string       { return "redirect" }
func (HugeMessage) fault() string    { return "huge-message" }
func (Compress) fault() string       { return "compress" }
func (Bomb) fault() string           { return "bomb" }
func (EarlyWebhook) fault() string   { return "early-webhook" }
func (WebhookDrop) fault() string    { return "webhook-drop" }
func (WebhookRepeat) fault() string  { return "webhook-repeat" }
func (WebhookReorder) fault() string { return "webhook-reorder" }
func (WebhookDelay) fault() string   { return "webhook-delay" }
