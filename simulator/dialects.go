package simulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Dialect is the API a provider speaks.
type Dialect string

// Dialects. Paths are below the mount's base path; an id is one escaped path
// segment.
//
// The example dialects have POST /v1/jobs (202, Location, {job_id, state,
// status_url}; 400 unless the body is a JSON object), GET /v1/jobs/{id}
// ({job_id, state, updated_at, progress}, error {code, message} if failed), GET
// /v1/jobs/{id}/result (404 before the job succeeded) and POST
// /v1/jobs/{id}/cancel (202 {job_id, state}, 200 if it is cancelled already,
// 409 if it has ended otherwise). Errors are problem documents with a code. A GET
// of any other path whose last segment is a job id reads its status, so that
// relative links may lead anywhere.
const (
	// Example honours the header Idempotency-Key: a second create with it
	// gets the first job, replayed:true. A create without it makes a job. A job
	// that is waiting shows a question and goes on with POST /v1/jobs/{id}/input
	// (200 {job_id, state}, again for a key it has taken, else 409 not_waiting);
	// DELETE /v1/jobs/{id} removes one that has ended (204, else 409 not_ended).
	Example Dialect = "example"
	// ExampleLookup ignores keys. GET /v1/jobs?client_reference=R gives
	// {jobs:[{job_id, state, created_at, client_reference, status_url}]} and
	// next, an absolute URL, while there are more pages.
	ExampleLookup Dialect = "example-lookup"
	// ExampleAsk has neither keys nor a list.
	ExampleAsk Dialect = "example-ask"
	// Replicate is Replicate's predictions API: POST and GET /v1/predictions,
	// GET /v1/predictions/{id}, POST /v1/predictions/{id}/cancel. Outputs are
	// links below /v1/files that end with Options.Retention after the job.
	Replicate Dialect = "replicate"
	// OpenAIBatches is OpenAI's batches with their files: POST /v1/files, POST
	// and GET /v1/batches, GET /v1/batches/{id}, POST /v1/batches/{id}/cancel,
	// GET /v1/files/{id}/content. It has no token; the reference of a job is
	// metadata.client_ref, by which its list does not filter.
	OpenAIBatches Dialect = "openai-batches"
	// StripeReporting is Stripe's report runs: POST and GET
	// /v1/reporting/report_runs, GET /v1/reporting/report_runs/{id}, and the
	// result file's GET /v1/files/{id}/contents, on Options.LinkBase if set.
	// It keeps the first answer of an Idempotency-Key and repeats it.
	StripeReporting Dialect = "stripe-reporting"
	// Recorded answers from fixtures; see MountFixtures.
	Recorded Dialect = "recorded"
)

func (d Dialect) valid() bool {
	switch d {
	case Example, ExampleLookup, ExampleAsk, Replicate, OpenAIBatches, StripeReporting, Recorded:
		return true
	}
	return false
}

// route is what a path means to a provider.
type route struct {
	call  Call
	id    string // the job id in the path, unescaped
	link  bool   // a result link that needs no credential
	file  string // the id of a file
	found bool
}

// route reads the path. Segments are split before they are unescaped, so that
// an id may hold a slash.
func (m *Mount) route(c *call) route {
	if m.script != nil {
		return m.script.route(c)
	}
	seg := strings.Split(strings.TrimPrefix(c.entry.Path, m.base+"/"), "/")
	for i := range seg {
		s, err := url.PathUnescape(seg[i])
		if err != nil {
			return route{call: Other}
		}
		seg[i] = s
	}
	get, post := c.entry.Method == http.MethodGet, c.entry.Method == http.MethodPost
	switch m.dialect {
	case OpenAIBatches:
		return m.routeBatches(seg, get, post)
	case StripeReporting:
		return m.routeReporting(seg, get, post, c.entry.Host)
	case Example, ExampleLookup, ExampleAsk, Replicate, Recorded:
	}
	if r := m.routeV1(seg, c.entry.Method, get, post); r.found || r.call == List {
		return r
	}
	if last := seg[len(seg)-1]; get && m.jobs[last] != nil {
		return route{call: Status, id: last, found: true}
	}
	return route{call: Other}
}

// routeV1 knows the documented paths.
func (m *Mount) routeV1(seg []string, method string, get, post bool) route {
	if len(seg) < 2 || seg[0] != "v1" {
		return route{call: Other}
	}
	seg = seg[1:]
	collection := "jobs"
	if m.dialect == Replicate {
		collection = "predictions"
	}
	switch {
	case len(seg) == 1 && seg[0] == collection && post:
		return route{call: Create, found: true}
	case len(seg) == 1 && seg[0] == collection && get:
		list := m.dialect == ExampleLookup || m.dialect == Replicate || m.options.WithList
		return route{call: List, found: list}
	case len(seg) >= 2 && seg[0] == "files" && get:
		return route{call: Result, id: seg[1], link: true, found: true}
	case len(seg) == 2 && seg[0] == collection && get:
		return route{call: Status, id: seg[1], found: true}
	case len(seg) == 3 && seg[0] == collection && seg[2] == "cancel" && post:
		return route{call: Cancel, id: seg[1], found: true}
	case len(seg) == 3 && seg[0] == collection && seg[2] == "input" && post && m.dialect == Example:
		return route{call: Input, id: seg[1], found: true}
	case len(seg) == 2 && seg[0] == collection && method == http.MethodDelete && m.dialect == Example:
		return route{call: Cleanup, id: seg[1], found: true}
	case len(seg) == 3 && seg[0] == collection && seg[2] == "result" && get && m.dialect != Replicate:
		return route{call: Result, id: seg[1], found: true}
	}
	return route{call: Other}
}

// reply is an answer before it is written: a document, or raw bytes.
type reply struct {
	status int
	header http.Header
	doc    document
	raw    []byte
}

func (r reply) with(name, value string) reply {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// perform lets the call take effect. The Simulator is locked.
func (c *call) perform() reply {
	m := c.mount
	if m.script != nil {
		return m.script.play(c)
	}
	if !c.route.found {
		return m.refuse(http.StatusNotFound, "not_found", "there is nothing at this path")
	}
	one := slices.Contains([]Call{Status, Cancel, Input, Cleanup, Result}, c.route.call)
	if one && (c.job == nil || c.job.gone) {
		return m.refuse(http.StatusNotFound, "job_not_found", "no such job")
	}
	if f, ok := find[Redirect](c.faults); ok && (f.Links || !c.route.link) {
		c.noteLocked(f.fault())
		status := f.Status
		if status == 0 {
			status = http.StatusFound
		}
		return reply{status: status}.with("Location", c.fill(f.To))
	}
	switch c.route.call {
	case Prepare:
		return c.upload()
	case Create:
		switch m.dialect {
		case OpenAIBatches:
			return c.createBatch()
		case StripeReporting:
			return c.createRun()
		case Example, ExampleLookup, ExampleAsk, Replicate, Recorded:
		}
		return c.create()
	case Status:
		return c.status()
	case List:
		return c.list()
	case Cancel:
		return c.cancel()
	case Input:
		return c.answer()
	case Cleanup:
		return c.cleanup()
	case Result:
		switch {
		case m.dialect == OpenAIBatches:
			return c.batchFile()
		case m.dialect == StripeReporting:
			return c.reportFile()
		case c.route.link:
			return c.file()
		}
		return c.result()
	}
	return m.refuse(http.StatusNotFound, "not_found", "there is nothing at this path")
}

// create makes a job, or finds the one its token made.
func (c *call) create() reply {
	m := c.mount
	if rep, bad := c.invalid(); bad {
		return rep
	}
	first := m.byToken[c.token]
	if w := m.options.TokenWindow; first != nil && w > 0 && c.sim.now().Sub(first.created) >= w {
		delete(m.byToken, c.token) // forgotten: the next job takes the token over
		first = nil
	}
	if first != nil {
		if f, ok := find[Conflict](c.faults); ok {
			c.noteLocked(f.fault())
			rep := m.refuse(http.StatusConflict, "duplicate", "this request was made before")
			if f.WithID {
				rep.doc.set("job_id", first.idValue())
				c.about(first)
			}
			return rep
		}
	}
	if f, ok := find[InProgress](c.faults); ok {
		c.noteLocked(f.fault())
		if first == nil {
			first = c.newJob()
		}
		c.about(first)
		status := f.Status
		if status == 0 {
			status = http.StatusConflict
		}
		rep := m.refuse(status, "in_progress", "this request is being worked on")
		if t := f.RetryAfter.text(m.clock()); t != "" {
			rep = rep.with("Retry-After", t)
		}
		return rep
	}
	j, replayed := first, first != nil && m.dialect == Example && c.header.Get("Idempotency-Key") != ""
	if f, ok := find[SecondJob](c.faults); ok && replayed {
		c.noteLocked(f.fault())
		replayed = false
	}
	if !replayed {
		j = c.newJob()
	}
	c.about(j)
	j.advance(c.sim.now())
	c.entry.Replayed = replayed
	return c.created(j, replayed)
}

// about notes the job a create turned out to be about.
func (c *call) about(j *job) {
	c.job = j
	c.entry.Job = j.id
}

// invalid refuses a create body the provider would refuse.
func (c *call) invalid() (reply, bool) {
	var b struct {
		Version string `json:"version"`
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(c.body, &object) != nil || object == nil {
		return c.mount.refuse(http.StatusBadRequest, "invalid_body", "the body must be a JSON object"), true
	}
	if c.mount.dialect != Replicate {
		return reply{}, false
	}
	if json.Unmarshal(c.body, &b) != nil || b.Version == "" {
		var doc document
		doc.set("title", "Invalid version or not permitted")
		doc.set("detail", "The specified version does not exist (or perhaps you do not have permission to use it?)")
		doc.set("status", http.StatusUnprocessableEntity)
		doc.set("type", "about:blank")
		return reply{status: http.StatusUnprocessableEntity, doc: doc}, true
	}
	return reply{}, false
}

func (c *call) created(j *job, replayed bool) reply {
	m := c.mount
	if m.dialect == Replicate {
		return reply{status: http.StatusCreated, doc: c.prediction(j)}
	}
	location, status := c.path(j), c.base()+"/v1/jobs/"+url.PathEscape(j.id)
	if f, ok := find[Links](c.faults); ok {
		c.noteLocked(f.fault())
		if f.Location != "" {
			location = c.fill(f.Location)
		}
		if f.StatusURL != "" {
			status = c.fill(f.StatusURL)
		}
	}
	var doc document
	doc.set("job_id", j.idValue())
	doc.set("state", c.word(j.state))
	doc.set("status_url", status)
	if replayed {
		doc.set("replayed", true)
	}
	c.echo(&doc, j)
	code := http.StatusAccepted
	if replayed {
		code = http.StatusOK
		if m.options.ReplayStatus != 0 {
			code = m.options.ReplayStatus
		}
	}
	return reply{status: code, doc: doc}.with("Location", location)
}

func (c *call) status() reply {
	j := c.job
	j.reads++
	if j.plan.PerRead {
		j.take(c.sim.now())
	}
	return reply{status: http.StatusOK, doc: c.view(j)}
}

// view is a job as a status read shows it.
func (c *call) view(j *job) document {
	switch c.mount.dialect {
	case Replicate:
		return c.prediction(j)
	case OpenAIBatches:
		return c.batch(j)
	case StripeReporting:
		return c.reportRun(j)
	case Example, ExampleLookup, ExampleAsk, Recorded:
	}
	var doc document
	doc.set("job_id", j.idValue())
	doc.set("state", c.word(j.state))
	doc.set("updated_at", c.stamp(j.updated()))
	doc.set("progress", j.progress())
	if j.reference != "" {
		doc.set("client_reference", j.reference)
	}
	if j.waits() {
		doc.set("question", fmt.Sprintf("Go on? (question %d)", len(j.inputs)+1))
	}
	if j.state == Failed {
		var e document
		e.set("code", j.plan.Code)
		e.set("message", j.plan.Message)
		doc.set("error", e)
	}
	if c.mount.options.LinkTTL > 0 && hasResult(j.state) {
		doc.set("result_url", c.link(j))
	}
	c.echo(&doc, j)
	return doc
}

func hasResult(state string) bool { return state == Succeeded || state == Partial }

func (c *call) echo(doc *document, j *job) {
	if c.mount.options.Echo {
		doc.set("request", json.RawMessage(j.body))
	}
}

// cancel does what the dialect or the rule says.
func (c *call) cancel() reply {
	m, j, now := c.mount, c.job, c.sim.now()
	if m.options.NoCancel {
		return m.refuse(http.StatusMethodNotAllowed, "cancel_unsupported", "jobs cannot be cancelled")
	}
	j.cancels++
	how, special := find[OnCancel](c.faults)
	if special && !Terminal(j.state) {
		c.noteLocked(how.fault())
		switch how {
		case CancelFinishFirst:
			j.enter(Succeeded, now)
		case CancelIgnored:
			return c.acknowledged(j, Cancelling)
		case CancelForever:
			j.frozen = true
			j.cancelAt = time.Time{}
			if j.state != Cancelling {
				j.enter(Cancelling, now)
			}
			return c.acknowledged(j, Cancelling)
		case CancelVanish:
			j.gone = true
			return c.acknowledged(j, Cancelling)
		case CancelRefused:
			return m.refuse(http.StatusConflict, "cancel_refused", "this job cannot be cancelled")
		}
	}
	switch {
	case j.state == Cancelled: // again
		rep := c.acknowledged(j, Cancelled)
		rep.status = http.StatusOK
		return rep
	case Terminal(j.state) && m.dialect == Replicate:
		return c.acknowledged(j, j.state)
	case Terminal(j.state) && m.dialect == OpenAIBatches:
		return openAIError(http.StatusConflict, fmt.Sprintf("Cannot cancel a batch with status '%s'.", c.word(j.state)), nil, nil)
	case Terminal(j.state):
		rep := m.refuse(http.StatusConflict, "too_late", "the job has ended")
		rep.doc.set("job_id", j.idValue())
		rep.doc.set("state", c.word(j.state))
		return rep
	case j.state == Cancelling:
		return c.acknowledged(j, Cancelling)
	case j.plan.CancelAfter <= 0:
		j.enter(Cancelled, now)
		return c.acknowledged(j, Cancelled)
	}
	j.cancelAt = now.Add(j.plan.CancelAfter)
	j.enter(Cancelling, now)
	return c.acknowledged(j, Cancelling)
}

// acknowledged answers a cancel; real providers answer with the job. A cancel
// that OpenAIBatches ignores shows the state it has all the same.
func (c *call) acknowledged(j *job, state string) reply {
	switch c.mount.dialect {
	case Replicate, OpenAIBatches, StripeReporting:
		return reply{status: http.StatusOK, doc: c.view(j)}
	case Example, ExampleLookup, ExampleAsk, Recorded:
	}
	var doc document
	doc.set("job_id", j.idValue())
	doc.set("state", c.word(state))
	return reply{status: http.StatusAccepted, doc: doc}
}

func (c *call) result() reply {
	m, j := c.mount, c.job
	if !hasResult(j.state) {
		return m.refuse(http.StatusNotFound, "no_result", "the job has no result")
	}
	return c.content(j)
}

// content gives the result document out.
func (c *call) content(j *job) reply {
	m := c.mount
	if m.options.ResultOnce && j.fetches > 0 {
		return m.refuse(http.StatusGone, "result_taken", "the result was read before")
	}
	j.fetches++
	if m.options.Result != nil {
		kind, body := m.options.Result(j.snapshot())
		return reply{status: http.StatusOK, raw: body}.with("Content-Type", kind)
	}
	var doc document
	doc.set("job_id", j.idValue())
	doc.set("output", "done")
	if json.Valid(j.body) {
		doc.set("request", json.RawMessage(j.body))
	} else {
		doc.set("request_base64", j.body)
	}
	return reply{status: http.StatusOK, doc: doc}
}

// listed are the jobs old enough to be seen that fit the filter, which only the
// example dialects have; in the order of the list.
func (c *call) listed() []*job {
	m, now := c.mount, c.sim.now()
	example := m.dialect == Example || m.dialect == ExampleLookup || m.dialect == ExampleAsk
	filter := example && !m.options.ListAll
	var seen []*job
	for _, j := range m.order {
		j.advance(now)
		if j.gone || now.Before(j.visible) ||
			(filter && c.reference != "" && j.reference != c.reference) ||
			(filter && c.query.Get("idempotency_key") != "" && j.token != c.token) {
			continue
		}
		seen = append(seen, j)
	}
	if !example || m.options.NewestFirst {
		slices.Reverse(seen)
	}
	return seen
}

// limit is the size of a page: what the request asks for, or the provider's
// usual size, and no more than Options.PageSize. It is 0 if the request asks for
// something else than a number from 1 to 100.
func (c *call) limit(usual int) int {
	size := usual
	if text := c.query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return 0
		}
		size = n
	}
	if most := c.mount.options.PageSize; most > 0 {
		size = min(size, most)
	}
	return size
}

// list answers a page of jobs. The example dialects and Replicate count by
// position, so that a page may repeat what the one before it had.
func (c *call) list() reply {
	m := c.mount
	switch m.dialect {
	case OpenAIBatches:
		return c.listBatches()
	case StripeReporting:
		return c.listRuns()
	case Example, ExampleLookup, ExampleAsk, Replicate, Recorded:
	}
	seen := c.listed()
	size := m.options.PageSize
	if size <= 0 {
		size = 20
	}
	from, err := strconv.Atoi(c.query.Get("cursor"))
	if c.query.Get("cursor") == "" {
		from, err = 0, nil
	}
	if err != nil || from < 0 {
		return m.refuse(http.StatusBadRequest, "invalid_cursor", "the cursor is not one of this list")
	}
	from = min(from, len(seen))
	to := min(from+size, len(seen))
	rows := make([]document, 0, to-from)
	for _, j := range seen[from:to] {
		if m.dialect == Replicate {
			rows = append(rows, c.prediction(j))
			continue
		}
		var row document
		row.set("job_id", j.idValue())
		row.set("state", c.word(j.state))
		row.set("created_at", c.stamp(j.created))
		if j.reference != "" {
			row.set("client_reference", j.reference)
		}
		row.set("status_url", c.base()+"/v1/jobs/"+url.PathEscape(j.id))
		rows = append(rows, row)
	}
	next := ""
	if to < len(seen) {
		q := url.Values{}
		for k, v := range c.query {
			q[k] = v
		}
		q.Set("cursor", strconv.Itoa(to))
		next = c.origin + c.entry.Path + "?" + q.Encode()
	}
	var doc document
	if m.dialect == Replicate {
		doc.set("previous", nil)
		doc.set("next", nil)
		if next != "" {
			doc.set("next", next)
		}
		doc.set("results", rows)
		return reply{status: http.StatusOK, doc: doc}
	}
	doc.set("jobs", rows)
	if next != "" {
		doc.set("next", next)
	}
	return reply{status: http.StatusOK, doc: doc}
}

// answer lets a job that waits go on, once for each key.
func (c *call) answer() reply {
	m, j, now := c.mount, c.job, c.sim.now()
	key := c.header.Get("Idempotency-Key")
	var object map[string]json.RawMessage
	switch {
	case key != "" && j.keys[key]:
		c.entry.Replayed = true
		rep := c.acknowledged(j, j.state)
		rep.status = http.StatusOK
		return rep
	case json.Unmarshal(c.body, &object) != nil || object == nil:
		return m.refuse(http.StatusBadRequest, "invalid_body", "the body must be a JSON object")
	case j.state != Waiting:
		return m.refuse(http.StatusConflict, "not_waiting", "the job waits for nothing")
	}
	if j.keys == nil {
		j.keys = map[string]bool{}
	}
	j.keys[key] = true
	j.inputs = append(j.inputs, string(c.body))
	if j.step+1 < len(j.plan.Steps) {
		j.step++
		j.enter(j.plan.Steps[j.step].State, now)
	}
	rep := c.acknowledged(j, j.state)
	rep.status = http.StatusOK
	return rep
}

// cleanup removes a job that has ended, with its result.
func (c *call) cleanup() reply {
	if !Terminal(c.job.state) {
		return c.mount.refuse(http.StatusConflict, "not_ended", "the job has not ended")
	}
	c.job.gone = true
	c.job.cleanups++
	return reply{status: http.StatusNoContent}
}

// refuse is an error in the provider's form.
func (m *Mount) refuse(status int, code, detail string) reply {
	switch m.dialect {
	case OpenAIBatches:
		return openAIError(status, detail, nil, code)
	case StripeReporting:
		return stripeError(status, "invalid_request_error", code, "", detail)
	case Example, ExampleLookup, ExampleAsk, Recorded:
		return problem(status, code, detail)
	case Replicate:
	}
	var doc document
	doc.set("title", http.StatusText(status))
	doc.set("detail", detail)
	doc.set("status", status)
	return reply{status: status, doc: doc}
}

// trouble is an error the provider gives without looking at the call, in its
// form.
func (m *Mount) trouble(status int) reply {
	limited := status == http.StatusTooManyRequests
	switch m.dialect {
	case OpenAIBatches:
		if limited {
			return openAIError(status, "Rate limit reached.", nil, "rate_limit_exceeded").with("X-Ratelimit-Remaining-Requests", "0")
		}
		return openAIError(status, "The server had an error while processing your request.", nil, nil)
	case StripeReporting:
		if limited {
			return stripeError(status, "invalid_request_error", "rate_limit", "", "Request rate limit exceeded").with("Stripe-Should-Retry", "true")
		}
		return stripeError(status, "api_error", "", "", "An unknown error occurred")
	case Example, ExampleLookup, ExampleAsk, Replicate, Recorded:
	}
	if limited {
		return m.refuse(status, "throttled", "too many requests")
	}
	return m.refuse(status, "trouble", "something went wrong here")
}

func problem(status int, code, detail string) reply {
	var doc document
	doc.set("type", "about:blank")
	doc.set("title", http.StatusText(status))
	doc.set("status", status)
	doc.set("code", code)
	doc.set("detail", detail)
	return reply{status: status, doc: doc}.with("Content-Type", "application/problem+json")
}

// word is the provider's word for a state in this answer.
func (c *call) word(state string) string {
	word := state
	switch c.mount.dialect {
	case Replicate:
		word = replicateWord(state)
	case OpenAIBatches:
		word = batchWord(state)
	case StripeReporting:
		word = reportWord(state)
	case Example, ExampleLookup, ExampleAsk, Recorded:
	}
	f, ok := find[StateWord](c.faults)
	if !ok || (f.From != "" && f.From != word) {
		return word
	}
	c.noteLocked(f.fault())
	if f.To != "" {
		word = f.To
	}
	if f.Upper {
		word = strings.ToUpper(word)
	}
	return f.Pad + word + f.Pad
}

func (c *call) base() string { return c.origin + c.mount.base }

func (c *call) path(j *job) string { return c.mount.base + "/v1/jobs/" + url.PathEscape(j.id) }

// fill replaces the placeholders of Links and Redirect.
func (c *call) fill(text string) string {
	id, link := "", ""
	if c.job != nil {
		id, link = url.PathEscape(c.job.id), c.link(c.job)
	}
	return strings.NewReplacer("{id}", id, "{base}", c.base(), "{link}", link).Replace(text)
}

// stamp writes a time by the provider's clock.
func (c *call) stamp(t time.Time) string {
	return t.Add(c.mount.options.Skew).UTC().Format(time.RFC3339Nano)
}

// unix is stamp in seconds.
func (c *call) unix(t time.Time) int64 { return t.Add(c.mount.options.Skew).Unix() }

func (c *call) milli(t time.Time) string {
	return t.Add(c.mount.options.Skew).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// idValue is the id as a JSON value.
func (j *job) idValue() any {
	if j.number {
		return json.RawMessage(j.id)
	}
	return j.id
}
