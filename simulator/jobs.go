package simulator

import (
	"bytes"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// States the simulator itself uses. A plan may hold any other word; it is shown
// as it is and is not an end unless listed in Terminal.
const (
	Queued     = "queued"
	Running    = "running"
	Succeeded  = "succeeded"
	Failed     = "failed"
	Cancelled  = "cancelled"
	Cancelling = "cancelling"
	Finalizing = "finalizing" // OpenAIBatches
	Partial    = "partial"
	Expired    = "expired"
	Aborted    = "aborted"
	Waiting    = "waiting" // Example: for an input, however long
)

// Terminal says whether a job in this state has ended.
func Terminal(state string) bool {
	switch state {
	case Succeeded, Failed, Cancelled, Partial, Expired, Aborted:
		return true
	}
	return false
}

// A Step is a state and the time since the step before, for the first one since
// the create.
type Step struct {
	State string
	After time.Duration
}

// A Plan is the course of a job. It ends with its last step, or with the first
// terminal state.
type Plan struct {
	Steps []Step
	// PerRead ignores After: the job is made in the first step's state and
	// each status read moves it one step before it is answered.
	PerRead bool
	// CancelAfter is how long an accepted cancel takes; 0 cancels at once,
	// for OpenAIBatches after a second. With PerRead a positive one means: at
	// the next status read.
	CancelAfter time.Duration
	// Failures is how many requests of a batch (OpenAIBatches) end failed;
	// a negative one means all of them. A partial one has at least one.
	Failures int
	// Done is how many requests of a batch an expiry or a cancel finds done.
	Done int
	// Code and Message of a failed job; "provider_failed" and "the job
	// failed" if both are empty.
	Code, Message string
}

// Steps is a plan of states that follow each other at the given interval, the
// first at once.
func Steps(every time.Duration, states ...string) Plan {
	var p Plan
	for i, s := range states {
		step := Step{State: s}
		if i > 0 {
			step.After = every
		}
		p.Steps = append(p.Steps, step)
	}
	return p
}

// StepsPerRead is a plan that moves one state per status read.
func StepsPerRead(states ...string) Plan {
	p := Steps(0, states...)
	p.PerRead = true
	return p
}

func (p Plan) orDefault(d Dialect) Plan {
	if len(p.Steps) == 0 {
		p.Steps = []Step{{Queued, 0}, {Running, time.Second}, {Succeeded, 2 * time.Second}}
		if d == OpenAIBatches {
			p.Steps = []Step{{Queued, 0}, {Running, time.Second}, {Finalizing, time.Second}, {Succeeded, time.Second}}
		}
	}
	if d == OpenAIBatches && p.CancelAfter == 0 {
		p.CancelAfter = time.Second // it never cancels at once
	}
	if p.Code == "" && p.Message == "" {
		p.Code, p.Message = "provider_failed", "the job failed"
	}
	return p
}

// IDStyle is the form of a provider's job ids.
type IDStyle string

// Forms of job ids. IDNumber counts up from 9007199254740993, which a float
// cannot hold, and writes a JSON number; IDAwkward holds '/', '?' and "..".
const (
	IDPlain   IDStyle = ""
	IDNumber  IDStyle = "number"
	IDAwkward IDStyle = "awkward"
)

// firstNumber is 2^53+1; ids are odd, so that each is lost in a float.
const firstNumber = 1<<53 + 1

// A Change is a state a job entered.
type Change struct {
	State string
	At    time.Time
}

// A Job is a snapshot of a job at a provider.
//
// Its result, unless Options.Result makes another, is the JSON document
// {"job_id", "output":"done", "request"}, with the exact bytes of the create
// request as member request if they are JSON, else in base64 as request_base64.
type Job struct {
	Mount     string
	ID        string
	Token     string // as the provider got it: Idempotency-Key or client_reference
	Reference string // client_reference
	Key       string // the operation key, see Simulator.Duplicates
	Callback  string
	Body      []byte // of the create; not to be changed
	State     string // empty for a job of a Recorded provider, whose answers are not read
	CreatedAt time.Time
	Changes   []Change // every state entered, the first at the create
	Reads     int      // status reads
	Fetches   int      // results given out
	Cancels   int      // cancels that reached the job
	Inputs    []string // answers the job has taken, in order
	Cleanups  int      // cleanups that removed the job, which is one at most
	Gone      bool     // the provider has forgotten it
	Planted   bool     // made by Plant, not by a call
}

// job is a job at a provider. All fields are guarded by the Simulator's mutex.
type job struct {
	mount     *Mount
	id        string
	number    bool // the id is a JSON number
	token     string
	reference string
	key       string
	callback  string
	origin    string // of the create, for links in webhooks
	events    []string
	body      []byte
	created   time.Time
	visible   time.Time // in lists
	plan      Plan
	step      int
	state     string
	changes   []Change
	input     *upload   // OpenAIBatches
	planted   bool      // see Mount.Plant
	frozen    bool      // the plan no longer moves it
	cancelAt  time.Time // set while an accepted cancel is under way
	gone      bool
	reads     int
	fetches   int
	fetched   map[string]bool // OpenAIBatches: the files given out
	cancels   int
	inputs    []string
	keys      map[string]bool // Idempotency-Keys of inputs
	cleanups  int

	// The courier's mailbox: state changes not yet turned into events.
	outbox   []Change
	eventSeq int
	kick     chan struct{} // capacity 1; nil without a courier
}

// newJob stores a job for a create and starts its courier.
func (c *call) newJob() *job {
	m, now := c.mount, c.sim.now()
	earlier := m.byKey[c.entry.Key]
	j := &job{
		mount:     m,
		token:     c.token,
		reference: c.reference,
		key:       c.entry.Key,
		callback:  c.callback,
		origin:    c.origin,
		events:    c.events,
		body:      c.body,
		created:   now,
		visible:   now.Add(m.options.ListDelay),
		plan:      m.options.Plan,
	}
	if m.options.PlanFor != nil {
		j.plan = m.options.PlanFor(len(m.order), c.body)
	}
	if f, ok := find[UsePlan](c.faults); ok {
		c.noteLocked(f.fault())
		j.plan = f.Plan
	}
	if f, ok := find[ListLate](c.faults); ok {
		c.noteLocked(f.fault())
		j.visible = j.visible.Add(time.Duration(f))
	}
	j.plan = j.plan.orDefault(m.dialect)
	if j.input = c.input; j.input != nil && len(j.input.flaws) > 0 {
		// What the input lacks shows while it is validated.
		j.plan.Steps = []Step{{Queued, 0}, {Failed, time.Second}}
	}
	if j.callback == "" {
		j.callback = m.options.Callback
	}
	j.id = m.newID(j.key, len(earlier))
	j.number = m.options.IDs == IDNumber
	// A plan whose first step is not at once starts out queued.
	j.state, j.step = j.plan.Steps[0].State, 0
	if j.plan.Steps[0].After > 0 && !j.plan.PerRead {
		j.state, j.step = Queued, -1
	}
	j.changes = []Change{{j.state, now}}
	m.keep(j)
	c.entry.Stored = true
	c.sim.startCourier(j)
	return j
}

// Plant puts in a job that somebody else made so long ago, from the body of a
// create (OpenAIBatches: with the input_file_id of an upload, or of none). It
// stays in its state, and it is no operation's: Duplicates leaves it out.
func (m *Mount) Plant(age time.Duration, state string, body []byte) Job {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	c := &call{
		sim: m.sim, mount: m, body: bytes.Clone(body), header: http.Header{},
		entry: &Request{}, route: route{call: Create},
	}
	c.read()
	made := m.sim.now().Add(-age)
	j := &job{
		mount: m, planted: true, frozen: true, reference: c.reference, input: c.input, body: c.body,
		created: made, visible: made, state: state, changes: []Change{{state, made}},
		plan: Plan{}.orDefault(m.dialect), number: m.options.IDs == IDNumber,
	}
	m.planted++
	j.id = m.newID("planted", m.planted)
	m.file(j)
	return j.snapshot()
}

// keep files a job under all its names.
func (m *Mount) keep(j *job) {
	m.file(j)
	m.byKey[j.key] = append(m.byKey[j.key], j)
	if j.token != "" && m.byToken[j.token] == nil {
		m.byToken[j.token] = j
	}
}

// file puts a job and its result files where calls find them; lists go by the
// time it was made.
func (m *Mount) file(j *job) {
	m.jobs[j.id] = j
	at := len(m.order)
	for at > 0 && m.order[at-1].created.After(j.created) {
		at--
	}
	m.order = slices.Insert(m.order, at, j)
	for _, f := range j.files() {
		m.files[f.id] = f
	}
}

// newID makes the id of the n-th job (from 0) of a key.
func (m *Mount) newID(key string, n int) string {
	h := m.sim.hash("job", m.base, key, strconv.Itoa(n))
	short := hex.EncodeToString(h[:8])
	switch m.options.IDs {
	case IDNumber:
		return strconv.Itoa(firstNumber + 2*len(m.order))
	case IDAwkward:
		return fmt.Sprintf("a/../%s?x=1", short)
	case IDPlain:
	}
	switch m.dialect {
	case Replicate:
		return strings.ToLower(base32.StdEncoding.EncodeToString(h[:]))[:26]
	case OpenAIBatches:
		return "batch_" + short
	case StripeReporting:
		return "frr_" + short
	case Example, ExampleLookup, ExampleAsk, Recorded:
	}
	return "job_" + short
}

// advance moves the job to where it is at now.
func (j *job) advance(now time.Time) {
	for {
		at, ok := j.next()
		if !ok || now.Before(at) {
			return
		}
		j.take(at)
	}
}

// next is the time of the next change by the clock.
func (j *job) next() (time.Time, bool) {
	switch {
	case Terminal(j.state) || j.plan.PerRead:
		return time.Time{}, false
	case !j.cancelAt.IsZero():
		return j.cancelAt, true
	case j.frozen || j.waits() || j.step+1 >= len(j.plan.Steps):
		return time.Time{}, false
	}
	return j.changes[len(j.changes)-1].At.Add(j.plan.Steps[j.step+1].After), true
}

// waits says whether the job goes on only with an input.
func (j *job) waits() bool { return j.mount.dialect == Example && j.state == Waiting }

// take makes the next change.
func (j *job) take(at time.Time) {
	switch {
	case Terminal(j.state):
	case !j.cancelAt.IsZero():
		j.enter(Cancelled, at)
	case j.frozen || j.waits() || j.step+1 >= len(j.plan.Steps):
	default:
		j.step++
		j.enter(j.plan.Steps[j.step].State, at)
	}
}

// enter moves the job to a state and tells its courier.
func (j *job) enter(state string, at time.Time) {
	j.state = state
	change := Change{state, at}
	j.changes = append(j.changes, change)
	if j.kick == nil {
		return
	}
	j.outbox = append(j.outbox, change)
	select {
	case j.kick <- struct{}{}:
	default:
	}
}

// updated is the time of the last change.
func (j *job) updated() time.Time { return j.changes[len(j.changes)-1].At }

// progress is 0 to 100.
func (j *job) progress() int {
	if Terminal(j.state) {
		return 100
	}
	return 100 * max(j.step, 0) / len(j.plan.Steps)
}

func (j *job) snapshot() Job {
	return Job{
		Mount: j.mount.base, ID: j.id, Token: j.token, Reference: j.reference, Key: j.key,
		Callback: j.callback, Body: j.body, State: j.state, CreatedAt: j.created,
		Changes: append([]Change(nil), j.changes...),
		Reads:   j.reads, Fetches: j.fetches, Cancels: j.cancels, Inputs: slices.Clone(j.inputs), Cleanups: j.cleanups, Gone: j.gone, Planted: j.planted,
	}
}

// Jobs returns all jobs of all mounts as they stand now, each mount's in the
// order they were made.
func (s *Simulator) Jobs() []Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Job
	for _, m := range s.mounts {
		all = append(all, m.snapshotsLocked()...)
	}
	return all
}

// Jobs returns the provider's jobs as they stand now, in the order they were
// made.
func (m *Mount) Jobs() []Job {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.snapshotsLocked()
}

func (m *Mount) snapshotsLocked() []Job {
	var all []Job
	for _, j := range m.order {
		j.advance(m.sim.now())
		all = append(all, j.snapshot())
	}
	return all
}

// Move puts a job into a state at once, whatever its plan says; a state that is
// not terminal then goes on by the plan. It reports whether the job exists.
func (m *Mount) Move(id, state string) bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	j := m.jobs[id]
	if j == nil {
		return false
	}
	j.advance(m.sim.now())
	j.enter(state, m.sim.now())
	return true
}

// Forget makes the provider answer 404 for a job from now on. It reports
// whether the job exists.
func (m *Mount) Forget(id string) bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	j := m.jobs[id]
	if j == nil {
		return false
	}
	j.gone = true
	return true
}

// An OperationKey names an operation as far as a provider can tell.
type OperationKey struct {
	// Mount is the base path of the provider.
	Mount string
	// Key is the Idempotency-Key or the client_reference the create carried,
	// else what Config.Correlate makes of its body.
	Key string
}

// Duplicates returns for each operation with more than one job how many jobs it
// has beyond the first. Empty means that every operation made at most one.
func (s *Simulator) Duplicates() map[OperationKey]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := map[OperationKey]int{}
	for _, m := range s.mounts {
		for key, jobs := range m.byKey {
			if len(jobs) > 1 {
				over[OperationKey{m.base, key}] = len(jobs) - 1
			}
		}
	}
	return over
}

// DuplicateCount is the sum of Duplicates.
func (s *Simulator) DuplicateCount() int {
	n := 0
	for _, over := range s.Duplicates() {
		n += over
	}
	return n
}
