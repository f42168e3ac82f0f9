package simulator

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reportWord is Stripe's word for a state. Any other is shown as it is.
func reportWord(state string) string {
	switch state {
	case Queued, Running:
		return "pending"
	}
	return state
}

// kept is the first answer to a token. Guarded by the Simulator's mutex.
type kept struct {
	params  string // of the request
	request string // its id
	at      time.Time
	job     *job // nil if none was made
	status  int
	header  http.Header
	body    []byte
}

// tokenWindow is how long a token is remembered.
func (m *Mount) tokenWindow() time.Duration {
	if m.options.TokenWindow > 0 {
		return m.options.TokenWindow
	}
	return 24 * time.Hour
}

// routeReporting knows the paths of StripeReporting. Result files are on
// another host if Options.LinkBase names one, and nothing else is there.
func (m *Mount) routeReporting(seg []string, get, post bool, host string) route {
	if len(seg) < 2 || seg[0] != "v1" {
		return route{call: Other}
	}
	seg = seg[1:]
	other, elsewhere := m.linkHost()
	if elsewhere && (seg[0] == "files") != (host == other) {
		return route{call: Other}
	}
	switch {
	case seg[0] == "files" && len(seg) == 3 && seg[2] == "contents" && get:
		r := route{call: Result, file: seg[1], link: m.options.FilesOpen, found: true}
		if f, ok := m.files[seg[1]]; ok {
			r.id = f.job.id
		}
		return r
	case seg[0] != "reporting" || len(seg) < 2 || seg[1] != "report_runs":
	case len(seg) == 2 && post:
		return route{call: Create, found: true}
	case len(seg) == 2 && get:
		return route{call: List, found: true}
	case len(seg) == 3 && get:
		return route{call: Status, id: seg[2], found: true}
	}
	return route{call: Other}
}

// stripeError is an error in Stripe's envelope; code and param may be empty.
func stripeError(status int, kind, code, param, message string) reply {
	var inner, doc document
	inner.set("type", kind)
	if code != "" {
		inner.set("code", code)
	}
	if param != "" {
		inner.set("param", param)
	}
	inner.set("message", message)
	doc.set("error", inner)
	return reply{status: status, doc: doc}
}

// tokened says whether the call is a create under a token that answers are kept
// for.
func (c *call) tokened() bool {
	return c.mount.dialect == StripeReporting && c.route.call == Create && c.token != ""
}

// claim holds the token from here until the call is over, so that another create
// under it finds it in use.
func (s *Simulator) claim(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := c.mount.busy[c.token]; c.tokened() && !busy {
		c.mount.busy[c.token] = c.entry.Seq
	}
}

// keepAnswer files an answer that is to be kept.
func (c *call) keepAnswer(rep reply) {
	if !c.keep {
		return
	}
	body := rep.raw
	if rep.doc != nil {
		body = rep.doc.encode()
	}
	c.mount.answers[c.token] = kept{
		params: c.params(), request: c.requestID(), at: c.sim.now(), job: c.job,
		status: rep.status, header: rep.header.Clone(), body: body,
	}
}

// params are the parameters in an order of their own.
func (c *call) params() string {
	form, err := url.ParseQuery(string(c.body))
	if err != nil {
		return string(c.body)
	}
	return form.Encode()
}

func (c *call) requestID() string {
	h := c.sim.hash("request", c.mount.base, strconv.Itoa(c.entry.Seq))
	return "req_" + hex.EncodeToString(h[:6])
}

// named adds the headers by which an answer is told from a repeated one.
func (c *call) named(rep reply, original string) reply {
	rep = rep.with("Request-Id", c.requestID())
	if c.token != "" {
		rep = rep.with("Idempotency-Key", c.token).with("Original-Request", original)
	}
	return rep
}

// createRun makes a job, or repeats the first answer to its token, whatever that
// was. Refusals are not kept.
func (c *call) createRun() reply {
	m, now := c.mount, c.sim.now()
	if len(c.token) > 255 {
		return stripeError(http.StatusBadRequest, "invalid_request_error", "", "", "An idempotency key has at most 255 characters.")
	}
	inUse := stripeError(http.StatusConflict, "invalid_request_error", "idempotency_key_in_use", "",
		"There is currently another in-progress request using this Idempotent Key.")
	if holder, busy := m.busy[c.token]; c.tokened() && busy && holder != c.entry.Seq {
		return inUse
	}
	first, again := m.answers[c.token]
	if again = again && now.Sub(first.at) < m.tokenWindow(); again {
		if _, ok := find[SecondJob](c.faults); ok {
			c.noteLocked(SecondJob{}.fault())
			again = false
		}
	}
	if again {
		if first.params != c.params() {
			return c.named(stripeError(http.StatusBadRequest, "idempotency_error", "", "",
				"Keys for idempotent requests can only be used with the same parameters they were first used with."), first.request)
		}
		if first.job != nil {
			c.about(first.job)
		}
		c.entry.Replayed = true
		rep := reply{status: first.status, header: first.header.Clone(), raw: first.body}
		if first.status >= http.StatusInternalServerError {
			rep = rep.with("Stripe-Should-Retry", "false")
		}
		return c.named(rep, first.request).with("Idempotent-Replayed", "true")
	}
	form, err := url.ParseQuery(string(c.body))
	kind := form.Get("report_type")
	switch {
	case err != nil:
		return c.named(stripeError(http.StatusBadRequest, "invalid_request_error", "", "", "The body must be a form."), c.requestID())
	case !reportType(kind):
		return c.named(stripeError(http.StatusBadRequest, "invalid_request_error", "", "report_type", "Unrecognized report type"), c.requestID())
	}
	j := c.newJob()
	c.about(j)
	j.advance(now)
	rep := c.named(reply{status: http.StatusOK, doc: c.reportRun(j)}, c.requestID())
	c.keep = c.token != ""
	if f, ok := find[InProgress](c.faults); ok {
		c.noteLocked(f.fault())
		c.keepAnswer(rep)
		c.keep = false
		if f.Status != 0 {
			inUse.status = f.Status
		}
		if t := f.RetryAfter.text(m.clock()); t != "" {
			inUse = inUse.with("Retry-After", t)
		}
		return inUse
	}
	return rep
}

// reportType says whether this is the name of a report, such as
// balance.summary.1.
func reportType(name string) bool {
	parts := strings.Split(name, ".")
	_, err := strconv.Atoi(parts[len(parts)-1])
	return len(parts) > 2 && err == nil && !slices.Contains(parts, "")
}

// reportRun is a job in Stripe's form.
func (c *call) reportRun(j *job) document {
	// The create checked that this reads.
	form, _ := url.ParseQuery(string(j.body))
	params := reportParams(form)
	var failure, result, succeeded any
	if j.state == Failed {
		failure = j.plan.Message
	}
	if j.state == Succeeded {
		succeeded = c.unix(j.updated())
		result = c.report(j)
	}
	var doc document
	doc.set("id", j.idValue())
	doc.set("object", "reporting.report_run")
	doc.set("created", c.unix(j.created))
	doc.set("error", failure)
	doc.set("livemode", false)
	doc.set("parameters", params)
	doc.set("report_type", form.Get("report_type"))
	doc.set("result", result)
	doc.set("status", c.word(j.state))
	doc.set("succeeded_at", succeeded)
	return doc
}

// reportParams reads parameters[NAME], and lists of texts as parameters[NAME][]
// or with a number in the last brackets. Times are numbers, all else is text.
func reportParams(form url.Values) document {
	var params document
	lists := map[string]map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(form)) {
		inner, ok := strings.CutPrefix(name, "parameters[")
		if !ok {
			continue
		}
		inner, index, _ := strings.Cut(inner, "]")
		text := form.Get(name)
		switch n, err := strconv.ParseInt(text, 10, 64); {
		case index == "[]":
			params.set(inner, form[name])
		case index != "":
			at, err := strconv.Atoi(strings.Trim(index, "[]"))
			if err != nil {
				continue // nothing this provider knows
			}
			if lists[inner] == nil {
				lists[inner] = map[int]string{}
			}
			lists[inner][at] = text
		case err == nil && strings.HasPrefix(inner, "interval_"):
			params.set(inner, n)
		default:
			params.set(inner, text)
		}
	}
	for _, inner := range slices.Sorted(maps.Keys(lists)) {
		var list []string
		for _, at := range slices.Sorted(maps.Keys(lists[inner])) {
			list = append(list, lists[inner][at])
		}
		params.set(inner, list)
	}
	return params
}

// report is the file object of a run's result.
func (c *call) report(j *job) document {
	m := c.mount
	_, body := m.reportBody(j)
	origin := c.origin
	if m.options.LinkBase != "" {
		origin = m.options.LinkBase
	}
	id := j.files()[0].id
	var doc document
	doc.set("id", id)
	doc.set("object", "file")
	doc.set("created", c.unix(j.updated()))
	doc.set("expires_at", c.unix(j.updated().Add(365*24*time.Hour)))
	doc.set("filename", j.id+".csv")
	doc.set("purpose", "finance_report_run")
	doc.set("size", len(body))
	doc.set("type", "csv")
	doc.set("url", fmt.Sprintf("%s%s/v1/files/%s/contents", origin, m.base, id))
	return doc
}

func (m *Mount) reportBody(j *job) (kind string, body []byte) {
	if m.options.Result != nil {
		return m.options.Result(j.snapshot())
	}
	return "text/csv", []byte("category,net\ncharge,100\n")
}

// listRuns answers a page, newest first, of the runs made in the time asked for.
func (c *call) listRuns() reply {
	bad := func(param, message string) reply {
		return stripeError(http.StatusBadRequest, "invalid_request_error", "", param, message)
	}
	size := c.limit(10)
	if size == 0 {
		return bad("limit", "This value must be from 1 to 100.")
	}
	keep := func(int64) bool { return true }
	for _, by := range []struct {
		name string
		fits func(made, bound int64) bool
	}{
		{"created[gte]", func(a, b int64) bool { return a >= b }},
		{"created[gt]", func(a, b int64) bool { return a > b }},
		{"created[lte]", func(a, b int64) bool { return a <= b }},
		{"created[lt]", func(a, b int64) bool { return a < b }},
	} {
		text := c.query.Get(by.name)
		if text == "" {
			continue
		}
		bound, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return bad("created", "Invalid timestamp: must be an integer Unix timestamp.")
		}
		before := keep
		keep = func(made int64) bool { return before(made) && by.fits(made, bound) }
	}
	seen := slices.DeleteFunc(c.listed(), func(j *job) bool { return !keep(c.unix(j.created)) })
	from := 0
	if after := c.query.Get("starting_after"); after != "" {
		from = 1 + slices.IndexFunc(seen, func(j *job) bool { return j.id == after })
		if from == 0 {
			return stripeError(http.StatusBadRequest, "invalid_request_error", "resource_missing", "starting_after", "No such report run: '"+after+"'")
		}
	}
	page := seen[from:min(from+size, len(seen))]
	rows := make([]document, 0, len(page))
	for _, j := range page {
		rows = append(rows, c.reportRun(j))
	}
	var doc document
	doc.set("object", "list")
	doc.set("url", "/v1/reporting/report_runs")
	doc.set("has_more", from+len(page) < len(seen))
	doc.set("data", rows)
	return reply{status: http.StatusOK, doc: doc}
}

// reportFile gives the result file out.
func (c *call) reportFile() reply {
	m, j := c.mount, c.job
	if m.options.FilesOpen {
		if rep, refused := c.credentialed(); refused {
			return rep
		}
	}
	switch {
	case j.state != Succeeded:
		return stripeError(http.StatusNotFound, "invalid_request_error", "resource_missing", "file", "No such file")
	case m.options.ResultOnce && j.fetches > 0:
		return m.refuse(http.StatusGone, "result_taken", "the result was read before")
	}
	j.fetches++
	kind, body := m.reportBody(j)
	return reply{status: http.StatusOK, raw: body}.with("Content-Type", kind)
}

// runEvent is a webhook's body.
func (c *call) runEvent(j *job, id, state string, at time.Time) []byte {
	var request, data, doc document
	request.set("id", nil)
	request.set("idempotency_key", nil)
	data.set("object", c.reportRun(j))
	doc.set("id", id)
	doc.set("object", "event")
	doc.set("api_version", "2026-09-30")
	doc.set("created", c.unix(at))
	doc.set("type", "reporting.report_run."+reportWord(state))
	doc.set("livemode", false)
	doc.set("pending_webhooks", 1)
	doc.set("request", request)
	doc.set("data", data)
	return indented(doc)
}

// indented writes a document as Stripe sends its events. Signatures are over
// these bytes.
func indented(doc document) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, doc.encode(), "", "  "); err != nil {
		panic(fmt.Sprintf("simulator: indent an event: %v", err)) // only our own documents come here
	}
	return b.Bytes()
}
