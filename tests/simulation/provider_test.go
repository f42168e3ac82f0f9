package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

const providerURL = "https://provider.test"

// provider is a model of the far side. It keeps the promises of its contract
// and no others: it answers a token again as promised, holds no request longer
// than promised, and lists a job no later than promised. Everything else it
// may do: drop answers, fail, refuse, forget, be slow, ignore a cancel.
type provider struct {
	w     *world
	jobs  []*job
	byID  map[string]*job
	token map[string]*token
	wire  []*request

	foreign []*job            // of others, older than anything here
	files   map[string]string // uploaded: by whom

	identity string // of the credential as it is now
	changes  int    // of it so far
	turns    int    // of them that came right behind an upload

	webhooks []webhook // to be delivered
	hooks    uint64

	confirmed []sighting // answers seen by an actor that lived on to record them
}

type token struct {
	job   *job
	first time.Time
	busy  time.Time // until then the token is being worked on
}

// job is one remote job.
type job struct {
	id, reference, operation string
	params                   json.RawMessage
	created                  time.Time
	listed, shown            time.Time // from when a list, or a read, knows it
	state                    string
	updated                  time.Time
	gone                     bool
	expired                  bool // its result is no longer offered
	cancels                  int
	will                     string // how it ends if nobody cancels it; "" never

	questions, asked int             // how often it waits for an answer, and did so far
	taken            map[string]bool // names of the answers it took
	answers          []string        // what they answered
	removed          bool            // by a cleanup
}

func (j *job) ended() bool {
	switch j.state {
	case "succeeded", "failed", "cancelled", "expired":
		return true
	}
	return false
}

// result is what the job made.
func (j *job) result() []byte { return fmt.Appendf(nil, `{"made_by":%q,"value":42}`, j.id) }

// sighting is an answer that named a job, delivered to an actor.
type sighting struct{ operation, job string }

// request is one call with side effects, or a read, on the wire.
type request struct {
	operation string
	actor     string
	kind      string // create, cancel, result, status, lookup
	effect    bool
	r         outbound.Request
	left      time.Time
	deadline  time.Time // of its caller
	ended     time.Time // for its caller: answered, given up, or dead
	arrived   bool
	answer    *outbound.Answer // delivered
	reset     bool             // the connection broke
	cut       bool
}

func (r *request) over(now time.Time) {
	if r.ended.IsZero() {
		r.ended = now
	}
}

func newProvider(w *world) *provider {
	p := &provider{w: w, byID: map[string]*job{}, token: map[string]*token{}, files: map[string]string{}, identity: "identity-1"}
	for n := range w.cfg.Foreign {
		at := w.began.Add(-time.Hour - time.Duration(n)*time.Second)
		j := &job{
			id: fmt.Sprintf("old-%d", n+1), params: json.RawMessage(`{"version":"v1","input":{"n":1}}`),
			created: at, updated: at, listed: at, shown: at, state: "succeeded",
		}
		p.foreign = append(p.foreign, j)
		p.byID[j.id] = j
	}
	return p
}

// lost forgets what a dead actor saw and may not have recorded.
func (p *provider) lost(a *actor) { a.saw = nil }

// caller is the outbound client as one actor has it.
type caller struct{ a *actor }

func (c *caller) CredentialIdentity(context.Context, outbound.Credential) (string, error) {
	return c.a.w.provider.identity, nil
}

func failure(class outbound.Class, sent outbound.Sent, text string) error {
	return &outbound.Failure{Class: class, Sent: sent, Method: "", Origin: providerURL, Err: errors.New(text)}
}

// Do makes one exchange as the outbound client does: the last moment for
// sending is looked at in the same instant in which the request leaves.
func (c *caller) Do(_ context.Context, r outbound.Request) (outbound.Answer, error) {
	a, w := c.a, c.a.w
	p := w.provider
	begun := w.clock.Now()
	if r.SideEffect && r.NotAfter.IsZero() {
		return outbound.Answer{}, failure(outbound.InvalidRequest, outbound.NotSent, "side effect without a last moment")
	}
	if r.Credential.Ref != "" && r.Credential.Identity != "" && r.Credential.Identity != p.identity {
		return outbound.Answer{}, failure(outbound.CredentialChanged, outbound.NotSent, "another identity")
	}
	a.point(true)
	if w.faulty(w.cfg.Dial) {
		w.logf("%s call %s %s: no connection", a.name, r.Method, r.URL)
		return outbound.Answer{}, failure(outbound.Dial, outbound.NotSent, "no connection")
	}
	// From here on to the wire nothing stops the process any more.
	now := w.clock.Now()
	switch {
	case r.SideEffect && a.Now().After(r.NotAfter):
		w.logf("%s call %s %s: too late to leave", a.name, r.Method, r.URL)
		return outbound.Answer{}, failure(outbound.NotAfter, outbound.NotSent, "too late")
	case now.Sub(begun) >= r.Timeout:
		w.logf("%s call %s %s: took too long to leave", a.name, r.Method, r.URL)
		return outbound.Answer{}, failure(outbound.Timeout, outbound.NotSent, "took too long")
	}
	sent := a.Now()
	q := &request{operation: a.attending, actor: a.name, r: r, left: now, effect: r.SideEffect}
	q.kind = p.kindOf(r)
	q.deadline = begun.Add(r.Timeout)
	w.logf("%s -> %s %s %s", a.name, q.kind, r.Method, r.URL)
	p.send(q, a.p.skew)
	a.call = q
	a.pause(q.deadline, func() bool { return q.answer != nil || q.reset })
	q.over(w.clock.Now())
	a.call = nil
	switch {
	case q.cut && q.answer != nil:
		answer := *q.answer
		answer.Truncated, answer.SentAt, answer.AnsweredAt = true, sent, a.Now()
		answer.Body = answer.Body[:len(answer.Body)/2]
		return answer, failure(outbound.BodyCut, outbound.SentUnknown, "body cut")
	case q.answer != nil:
		answer := *q.answer
		answer.SentAt, answer.AnsweredAt, answer.URL = sent, a.Now(), r.URL
		w.logf("%s <- %s %d %s", a.name, q.kind, answer.Status, answer.Body)
		if id := p.names(q, answer); id != "" {
			a.saw = append(a.saw, sighting{q.operation, id})
		}
		return answer, nil
	case q.reset:
		w.logf("%s <- %s reset", a.name, q.kind)
		return outbound.Answer{SentAt: sent}, failure(outbound.Reset, outbound.SentUnknown, "reset")
	}
	w.logf("%s <- %s timeout", a.name, q.kind)
	return outbound.Answer{SentAt: sent}, failure(outbound.Timeout, outbound.SentUnknown, "timeout")
}

// names gives the job that a create's answer names.
func (p *provider) names(q *request, a outbound.Answer) string {
	if q.kind != "create" {
		return ""
	}
	var body struct {
		JobID string `json:"job_id"`
		ID    string `json:"id"`
	}
	if a.Status >= 500 || json.Unmarshal(a.Body, &body) != nil {
		return ""
	}
	if body.JobID != "" {
		return body.JobID
	}
	return body.ID
}

func (p *provider) kindOf(r outbound.Request) string {
	u, err := url.Parse(r.URL)
	if err != nil {
		return "bad"
	}
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(u.Path, "/cancel"):
		return "cancel"
	case r.Method == http.MethodPost && strings.HasSuffix(u.Path, "/input"):
		return "input"
	case r.Method == http.MethodDelete:
		return "cleanup"
	case r.Method == http.MethodPost && u.Path == "/v1/files":
		return "prepare"
	case r.Method == http.MethodPost:
		return "create"
	case strings.HasSuffix(u.Path, "/result"):
		return "result"
	case strings.Count(u.Path, "/") == 2:
		return "lookup"
	}
	return "status"
}

// send puts a request on the wire and lets it arrive: usually soon, sometimes
// as late as the contract's settle time allows.
func (p *provider) send(q *request, skew time.Duration) {
	w, c := p.w, p.w.cfg
	p.wire = append(p.wire, q)
	w.judgeHold(q)
	arrive := w.clock.Now().Add(w.between(10*time.Millisecond, 200*time.Millisecond))
	if q.effect && w.faulty(c.LateRequest) {
		last := q.r.NotAfter.Add(-skew).Add(q.r.Timeout).Add(c.Held)
		if left := last.Sub(w.clock.Now()); left > 0 {
			d := w.between(0, left)
			if w.chance(0.3) {
				d = left - time.Millisecond
			}
			arrive = w.clock.Now().Add(d)
		}
	} else if w.faulty(c.LateRequest) && !q.effect { // a read may be held for any time
		arrive = w.clock.Now().Add(w.between(0, q.r.Timeout+10*time.Second))
	}
	if w.faulty(c.LoseRequest) {
		w.after(w.between(time.Millisecond, 10*time.Second), func() { p.breakOff(q) })
		w.logf("   request lost")
		return
	}
	w.at(arrive, func() { p.arrive(q) })
}

func (p *provider) breakOff(q *request) {
	if q.ended.IsZero() {
		q.reset = true
		q.over(p.w.clock.Now())
		p.wake(q)
	}
}

// wake lets the actor that waits for this request go on.
func (p *provider) wake(q *request) {
	for _, a := range p.w.actors {
		if a.call == q {
			a.until = time.Time{}
		}
	}
}

func (p *provider) arrive(q *request) {
	w, c := p.w, p.w.cfg
	q.arrived = true
	status, header, body := p.handle(q)
	w.logf("   provider: %s of %s -> %d %s", q.kind, q.actor, status, body)
	switch {
	case w.faulty(c.DropAnswer):
		if w.chance(0.5) {
			w.after(w.between(time.Millisecond, 5*time.Second), func() { p.breakOff(q) })
		}
		w.logf("   answer lost")
		return
	case w.faulty(c.BadAnswer):
		switch w.rng.IntN(4) {
		case 0:
			status, body = 502, []byte("<html>bad gateway</html>")
		case 1:
			status, body = 500, []byte(`{"code":"internal"}`)
		case 2:
			status, body = 200, []byte(`{"job_id":`)
		case 3:
			q.cut = true
		}
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	answer := &outbound.Answer{Status: status, Header: header, Body: body, URL: q.r.URL}
	late := w.between(time.Millisecond, 100*time.Millisecond)
	if w.faulty(c.SlowAnswer) {
		late = w.between(0, 40*time.Second)
	}
	w.after(late, func() {
		if q.ended.IsZero() && !w.clock.Now().After(q.deadline) {
			q.answer = answer
			q.over(w.clock.Now())
			p.wake(q)
		}
	})
}

func (p *provider) handle(q *request) (int, http.Header, []byte) {
	w, c := p.w, p.w.cfg
	if w.faulty(c.Throttle) {
		h := http.Header{}
		if w.chance(0.7) {
			h.Set("Retry-After", strconv.Itoa(1+w.rng.IntN(30)))
		}
		return 429, h, []byte(`{"code":"slow_down"}`)
	}
	if w.faulty(c.Unavailable) {
		return 503, nil, []byte(`{"code":"unavailable"}`)
	}
	u, err := url.Parse(q.r.URL)
	if err != nil {
		return 400, nil, []byte(`{"code":"bad_url"}`)
	}
	id := ""
	if parts := strings.Split(u.Path, "/"); len(parts) > 3 {
		id = parts[3]
	}
	switch q.kind {
	case "prepare":
		if w.faulty(c.Refuse / 4) {
			return 422, nil, []byte(`{"code":"invalid"}`)
		}
		id := fmt.Sprintf("file-%d", len(p.files)+1)
		p.files[id] = q.r.Credential.Identity
		p.turn()
		return 201, nil, fmt.Appendf(nil, `{"id":%q}`, id)
	case "create":
		if file := u.Query().Get("input"); c.Upload && (p.files[file] == "" || p.files[file] != q.r.Credential.Identity) {
			w.violate("%s: a create came as %s with the file %q, which %q uploaded", q.operation, q.r.Credential.Identity, file, p.files[file])
		}
		return p.create(q)
	case "lookup":
		return p.list(u)
	}
	j := p.byID[id]
	// Where a job that is gone counts as cancelled, only one that is gone is not found.
	stumbles := !c.GoneConfirms && q.kind != "cleanup" && w.faulty(c.NotFound)
	if j == nil || j.gone || (q.kind != "cancel" && w.clock.Now().Before(j.shown)) || stumbles {
		return 404, nil, []byte(`{"code":"not_found"}`)
	}
	switch q.kind {
	case "cancel":
		return p.cancel(j)
	case "input":
		return p.answer(q, j)
	case "cleanup":
		return p.cleanup(q, j)
	case "result":
		return p.fetch(j)
	}
	return 200, nil, p.show(j)
}

// turn changes the credential right behind an upload, for good or for a while.
func (p *provider) turn() {
	w := p.w
	if w.healthy || p.turns >= w.cfg.Turns {
		return
	}
	p.turns++
	soon := pick(w, 0, w.between(0, 200*time.Millisecond), w.between(0, 5*time.Second))
	name := fmt.Sprintf("identity-%d", 20+p.turns)
	w.after(soon, func() { w.rotate(name) })
	if w.chance(0.5) {
		w.after(soon+w.between(0, 20*time.Second), func() { w.rotate("identity-1") })
	}
}

func (p *provider) replicate() bool { return p.w.cfg.Contract == "replicate" }

func (p *provider) show(j *job) []byte {
	at := j.updated.UTC().Format(time.RFC3339Nano)
	if !p.replicate() {
		return fmt.Appendf(nil, `{"job_id":%q,"state":%q,"updated_at":%q,"progress":0.5,"client_reference":%q,"status_url":%q,"created_at":%q,"question":%q}`,
			j.id, j.state, at, j.reference, providerURL+"/v1/jobs/"+j.id, j.created.UTC().Format(time.RFC3339Nano), j.question())
	}
	word := map[string]string{
		"queued": "starting", "running": "processing", "succeeded": "succeeded", "failed": "failed", "expired": "aborted", "cancelled": "canceled",
	}[j.state]
	var in struct{ Input json.RawMessage }
	_ = json.Unmarshal(j.params, &in) // it is our own create
	output, completed := []byte("null"), []byte("null")
	if j.state == "succeeded" {
		output = j.result()
	}
	if j.ended() {
		completed = fmt.Appendf(nil, "%q", at)
	}
	return fmt.Appendf(nil, `{"id":%q,"version":"v1","status":%q,"input":%s,"output":%s,"created_at":%q,"started_at":%q,"completed_at":%s,"data_removed":%v,"urls":{"get":%q}}`,
		j.id, word, in.Input, output, j.created.UTC().Format(time.RFC3339Nano), at, completed, j.expired, providerURL+"/v1/predictions/"+j.id)
}

func (p *provider) create(q *request) (int, http.Header, []byte) {
	w, c := p.w, p.w.cfg
	now := w.clock.Now()
	key := ""
	for _, h := range q.r.Header {
		if strings.EqualFold(h.Name, "Idempotency-Key") {
			key = h.Value
		}
	}
	if c.Dedupes && key != "" {
		if t := p.token[key]; t != nil && (c.Window == 0 || now.Before(t.first.Add(c.Window))) {
			switch {
			case now.Before(t.busy):
				return 409, nil, []byte(`{"code":"in_progress"}`)
			case c.NamesFirst:
				return 409, nil, fmt.Appendf(nil, `{"code":"duplicate","job_id":%q}`, t.job.id)
			}
			return 200, http.Header{"Location": {"/v1/jobs/" + t.job.id}}, p.show(t.job)
		}
	}
	if w.faulty(c.Refuse) {
		return 422, nil, []byte(`{"code":"invalid"}`)
	}
	var body struct {
		Reference string `json:"client_reference"`
	}
	_ = json.Unmarshal(q.r.Body, &body) // it is our own create
	j := &job{
		id: fmt.Sprintf("job-%d", len(p.jobs)+1), reference: body.Reference, operation: q.operation,
		params: bytes.Clone(q.r.Body), created: now, updated: now, state: "queued", listed: now, shown: now,
	}
	if c.Late > 0 && !w.healthy {
		j.listed = now.Add(w.between(0, c.Late))
	}
	if w.faulty(c.NotFound * 3) {
		j.shown = now.Add(w.between(0, 20*time.Second))
	}
	p.jobs = append(p.jobs, j)
	p.byID[j.id] = j
	if c.Dedupes && key != "" {
		t := &token{job: j, first: now}
		if w.faulty(0.2) {
			t.busy = now.Add(w.between(0, 20*time.Second))
		}
		p.token[key] = t
	}
	p.plan(j)
	p.notify(j)
	return 202, http.Header{"Location": {"/v1/jobs/" + j.id}}, p.show(j)
}

// plan draws how the job goes on.
func (p *provider) plan(j *job) {
	w := p.w
	j.will = "succeeded"
	if !w.cfg.Plain {
		switch n := w.rng.IntN(100); {
		case n < 65:
		case n < 75:
			j.will = "failed"
		case n < 80:
			j.will = "expired"
		case n < 85:
			j.will = "cancelled"
		case n < 92:
			j.will = "gone"
		case n < 95:
			j.will = ""
		}
	}
	w.after(w.between(0, 5*time.Second), func() { p.move(j, "running") })
	if j.will == "" {
		return
	}
	last := pick(w, 3*time.Second, 30*time.Second, 2*time.Minute)
	if w.cfg.Plain {
		last = 20 * time.Second
	}
	if w.cfg.Asks > 0 && w.chance(w.cfg.Asks) {
		j.questions = 1 + w.rng.IntN(2)
	}
	w.after(w.between(time.Second, last), func() { p.goOn(j) })
}

// goOn takes a job to its next question, or to its end.
func (p *provider) goOn(j *job) {
	if j.asked == j.questions {
		p.move(j, j.will)
		return
	}
	j.asked++
	p.move(j, "waiting")
}

func (j *job) question() string {
	if j.state != "waiting" {
		return ""
	}
	return fmt.Sprintf("question %d", j.asked)
}

// answer takes an answer to the question that a job waits with, once for each name.
func (p *provider) answer(q *request, j *job) (int, http.Header, []byte) {
	w := p.w
	name := ""
	for _, h := range q.r.Header {
		if strings.EqualFold(h.Name, "Idempotency-Key") {
			name = h.Value
		}
	}
	var body struct{ To string }
	_ = json.Unmarshal(q.r.Body, &body) // it is our own
	switch {
	case j.taken[name]:
		return 200, nil, p.show(j)
	case j.state != "waiting" || body.To != j.question():
		return 409, nil, []byte(`{"code":"not_waiting"}`)
	case w.faulty(w.cfg.Refuse):
		return 422, nil, []byte(`{"code":"invalid"}`)
	}
	if j.taken == nil {
		j.taken = map[string]bool{}
	}
	j.taken[name] = true
	j.answers = append(j.answers, body.To)
	w.seen["answer taken"]++
	p.move(j, "running")
	w.after(w.between(time.Second, 20*time.Second), func() { p.goOn(j) })
	return 200, nil, p.show(j)
}

// cleanup removes a job that has ended.
func (p *provider) cleanup(q *request, j *job) (int, http.Header, []byte) {
	if op := p.w.operation(q.operation); j.operation != op.id && !op.adopted {
		p.w.violate("%s removes %s of %s", op.id, j.id, j.operation)
	}
	if !j.ended() {
		return 409, nil, []byte(`{"code":"not_ended"}`)
	}
	j.gone, j.removed = true, true
	p.w.seen["job removed"]++
	return 204, nil, nil
}

// move takes a job to a state, unless it has ended.
func (p *provider) move(j *job, state string) {
	if j.ended() || j.gone {
		return
	}
	if state == "gone" {
		j.gone = true
		p.w.logf("   provider: %s vanishes", j.id)
		return
	}
	j.state, j.updated = state, p.w.clock.Now()
	p.w.logf("   provider: %s is %s", j.id, state)
	p.notify(j)
}

func (p *provider) cancel(j *job) (int, http.Header, []byte) {
	w := p.w
	j.cancels++
	if j.ended() {
		if p.replicate() {
			return 200, nil, p.show(j)
		}
		return 409, nil, []byte(`{"code":"too_late"}`)
	}
	n := w.rng.IntN(100)
	if w.cfg.Plain {
		n = 0
	}
	switch {
	case n < 40: // in a while
		w.after(w.between(0, 20*time.Second), func() { p.move(j, "cancelled") })
		if p.replicate() {
			return 200, nil, p.show(j)
		}
		return 202, nil, fmt.Appendf(nil, `{"job_id":%q,"state":"cancelling"}`, j.id)
	case n < 60: // at once
		p.move(j, "cancelled")
		return 200, nil, p.show(j)
	case n < 70: // acknowledged, and too late
		w.after(w.between(0, 5*time.Second), func() { p.move(j, "succeeded") })
		return 202, nil, p.show(j)
	case n < 80: // acknowledged and forgotten
		return 202, nil, p.show(j)
	case n < 85 && w.cfg.GoneConfirms:
		p.move(j, "gone")
		return 202, nil, []byte(`{}`)
	case n < 95:
		return 409, nil, []byte(`{"code":"busy"}`)
	}
	return 405, nil, []byte(`{"code":"no_cancel"}`)
}

func (p *provider) fetch(j *job) (int, http.Header, []byte) {
	switch {
	case j.state != "succeeded":
		return 409, nil, []byte(`{"code":"not_ready"}`)
	case j.expired:
		return 410, nil, []byte(`{"code":"expired"}`)
	case p.w.cfg.Once:
		j.expired = true // it was handed out
	}
	return 200, nil, j.result()
}

// list answers a look-up, on two pages where there is enough to divide.
func (p *provider) list(u *url.URL) (int, http.Header, []byte) {
	reference := u.Query().Get("client_reference")
	var items [][]byte
	jobs := slices.Concat(p.foreign, p.jobs)
	slices.SortStableFunc(jobs, func(a, b *job) int {
		if p.w.cfg.Newest {
			return b.created.Compare(a.created)
		}
		return a.created.Compare(b.created)
	})
	for _, j := range jobs {
		// One that vanished is still listed: the list is promised to be complete.
		if !p.w.clock.Now().Before(j.listed) && (p.replicate() || j.reference == reference) {
			items = append(items, p.show(j))
		}
	}
	next, from := "null", 0
	size := p.w.cfg.Page
	if asked, err := strconv.Atoi(u.Query().Get("from")); err == nil {
		from = min(asked, len(items))
		if size == 0 {
			size = len(items)
		}
	} else if size == 0 {
		size = len(items) / 2
	}
	items = items[from:]
	if size > 0 && size < len(items) {
		items = items[:size]
		next = strconv.Quote(providerURL + u.Path + "?" + url.Values{"client_reference": {reference}, "from": {strconv.Itoa(from + size)}}.Encode())
	}
	name := "jobs"
	if p.replicate() {
		name = "results"
	}
	return 200, nil, fmt.Appendf(nil, `{%q:[%s],"next":%s}`, name, bytes.Join(items, []byte(",")), next)
}

// webhook is one delivery on its way.
type webhook struct {
	at             time.Time
	key            string
	operation, job string
	state          string
}

// notify sends webhooks of a job's state: late, out of order, more than once,
// and also before the create was answered.
func (p *provider) notify(j *job) {
	w := p.w
	if !w.cfg.Webhooks {
		return
	}
	p.hooks++
	copies := 1
	if !w.healthy {
		copies = w.rng.IntN(4)
	}
	for range copies {
		late := w.between(0, 500*time.Millisecond)
		if w.faulty(0.5) {
			late = w.between(0, 90*time.Second)
		}
		p.webhooks = append(p.webhooks, webhook{
			at: w.clock.Now().Add(late), key: fmt.Sprintf("hook-%d", p.hooks), operation: j.operation, job: j.id, state: j.state,
		})
	}
	slices.SortStableFunc(p.webhooks, func(a, b webhook) int { return a.at.Compare(b.at) })
	for _, a := range w.actors {
		if a.p.name == "callbacks" {
			a.until = time.Time{}
		}
	}
}
