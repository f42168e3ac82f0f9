package simulator

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// batchWord is OpenAI's word for a state. Counts tell a partial batch.
func batchWord(state string) string {
	switch state {
	case Queued:
		return "validating"
	case Running:
		return "in_progress"
	case Succeeded, Partial:
		return "completed"
	}
	return state
}

// window24h is the only completion window there is.
const window24h = 24 * time.Hour

// An Upload is an input file an OpenAIBatches provider got.
type Upload struct {
	ID        string
	Filename  string
	Lines     int // requests: lines that hold anything
	Size      int
	CreatedAt time.Time
	// Flaws are the lines, from 1, at which a batch over it fails.
	Flaws []int
}

// upload is an Upload with what is behind it. Guarded by the Simulator's mutex.
type upload struct {
	Upload
	content []byte
	custom  []string // custom_id of each request
	flaws   []flaw
	entry   *Request // in the log
}

// flaw is what validation finds wrong with a line.
type flaw struct {
	line          int
	code, message string
}

// A file is something GET of a file's contents finds: one of a job's results.
type file struct {
	id     string
	job    *job
	errors bool // OpenAIBatches: the requests that did not succeed
}

// files are those a job may have once it has ended.
func (j *job) files() []file {
	name := func(kind string) string {
		h := j.mount.sim.hash(kind, j.mount.base, j.id)
		return hex.EncodeToString(h[:8])
	}
	switch j.mount.dialect {
	case OpenAIBatches:
		return []file{{id: "file-" + name("output"), job: j}, {id: "file-" + name("errors"), job: j, errors: true}}
	case StripeReporting:
		return []file{{id: "file_" + name("report"), job: j}}
	case Example, ExampleLookup, ExampleAsk, Replicate, Recorded:
	}
	return nil
}

// Uploads returns the input files the provider got, in the order they came.
func (m *Mount) Uploads() []Upload {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	var all []Upload
	for _, u := range m.uploads {
		all = append(all, u.Upload)
	}
	return all
}

// routeBatches knows the paths of OpenAIBatches.
func (m *Mount) routeBatches(seg []string, get, post bool) route {
	if len(seg) < 2 || seg[0] != "v1" {
		return route{call: Other}
	}
	seg = seg[1:]
	switch {
	case seg[0] == "files" && len(seg) == 1 && post:
		return route{call: Prepare, found: true}
	case seg[0] == "files" && len(seg) == 3 && seg[2] == "content" && get:
		r := route{call: Result, file: seg[1], found: true}
		if f, ok := m.files[seg[1]]; ok {
			r.id = f.job.id
		}
		return r
	case seg[0] != "batches":
	case len(seg) == 1 && post:
		return route{call: Create, found: true}
	case len(seg) == 1 && get:
		return route{call: List, found: true}
	case len(seg) == 2 && get:
		return route{call: Status, id: seg[1], found: true}
	case len(seg) == 3 && seg[2] == "cancel" && post:
		return route{call: Cancel, id: seg[1], found: true}
	}
	return route{call: Other}
}

// batchBody is the body of a create.
type batchBody struct {
	Input    string          `json:"input_file_id"`
	Endpoint string          `json:"endpoint"`
	Window   string          `json:"completion_window"`
	Metadata json.RawMessage `json:"metadata"`
}

// metadata reads the pairs; false means that they are not texts.
func (b batchBody) metadata() (map[string]string, bool) {
	var pairs map[string]string
	if len(b.Metadata) == 0 {
		return nil, true
	}
	return pairs, json.Unmarshal(b.Metadata, &pairs) == nil
}

// readBatch takes reference and input file from a create.
func (c *call) readBatch() {
	var b batchBody
	if json.Unmarshal(c.body, &b) != nil {
		return // refused when the call takes effect
	}
	if pairs, ok := b.metadata(); ok {
		c.reference = pairs["client_ref"]
	}
	c.token = c.reference // so that rules can count by it
	for _, u := range c.mount.uploads {
		if u.ID == b.Input {
			c.input = u
		}
	}
}

// openAIError is an error in OpenAI's envelope; param and code may be nil.
func openAIError(status int, message string, param, code any) reply {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "requests"
	case status >= http.StatusInternalServerError:
		kind = "server_error"
	}
	var inner, doc document
	inner.set("message", message)
	inner.set("type", kind)
	inner.set("param", param)
	inner.set("code", code)
	doc.set("error", inner)
	return reply{status: status, doc: doc}
}

// upload takes an input file in. The form of the file object is the published
// one; of refusals only the envelope is, their texts are the simulator's.
func (c *call) upload() reply {
	m := c.mount
	bad := func(param, format string, args ...any) reply {
		return openAIError(http.StatusBadRequest, fmt.Sprintf(format, args...), param, nil)
	}
	kind, params, err := mime.ParseMediaType(c.header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return bad("file", "The body must be multipart/form-data with a boundary.")
	}
	var purpose, name string
	var content []byte
	for form := multipart.NewReader(bytes.NewReader(c.body), params["boundary"]); ; {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		var value []byte
		if err == nil {
			value, err = io.ReadAll(part)
		}
		if err != nil {
			return bad("file", "The multipart body could not be read: %v.", err)
		}
		switch part.FormName() {
		case "purpose":
			purpose = string(value)
		case "file":
			name, content = part.FileName(), value
		}
	}
	switch {
	case purpose != "batch":
		return bad("purpose", "'%s' is not a purpose this provider knows: 'batch'.", purpose)
	case name == "":
		return bad("file", "The part 'file' must be a file with a name.")
	case len(content) == 0:
		return bad("file", "The file is empty.")
	}
	sum := c.sim.hash("input", m.base, string(content), strconv.Itoa(len(m.uploads)))
	u := &upload{content: content, entry: c.entry, Upload: Upload{
		ID: "file-" + hex.EncodeToString(sum[:8]), Filename: name, Size: len(content), CreatedAt: c.sim.now(),
	}}
	u.validate()
	m.uploads = append(m.uploads, u)
	c.entry.Stored = true
	var doc document
	doc.set("id", u.ID)
	doc.set("object", "file")
	doc.set("bytes", u.Size)
	doc.set("created_at", c.unix(u.CreatedAt))
	doc.set("filename", u.Filename)
	doc.set("purpose", "batch")
	doc.set("status", "processed")
	return reply{status: http.StatusOK, doc: doc}
}

// validate reads the lines. invalid_json_line was recorded; the other codes are
// the simulator's.
func (u *upload) validate() {
	seen := map[string]bool{}
	n := 0
	for line := range bytes.SplitSeq(u.content, []byte("\n")) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		u.Lines++
		var r struct {
			CustomID string          `json:"custom_id"`
			Method   string          `json:"method"`
			URL      string          `json:"url"`
			Body     json.RawMessage `json:"body"`
		}
		code, message := "", ""
		switch err := json.Unmarshal(line, &r); {
		case err != nil:
			code, message = "invalid_json_line", fmt.Sprintf("Line %d is not valid JSON.", n)
		case r.CustomID == "" || r.Method == "" || r.URL == "" || len(r.Body) == 0:
			code, message = "missing_required_parameter", fmt.Sprintf("Line %d lacks custom_id, method, url or body.", n)
		case seen[r.CustomID]:
			code, message = "duplicate_custom_id", fmt.Sprintf("Line %d repeats custom_id '%s'.", n, r.CustomID)
		}
		seen[r.CustomID] = true
		u.custom = append(u.custom, r.CustomID)
		if code != "" {
			u.flaws = append(u.flaws, flaw{n, code, message})
			u.Flaws = append(u.Flaws, n)
		}
	}
}

// createBatch makes a job over an input file. There is no token: the same body
// again makes another.
func (c *call) createBatch() reply {
	var b batchBody
	if err := json.Unmarshal(c.body, &b); err != nil {
		return openAIError(http.StatusBadRequest, "The body could not be parsed as JSON.", nil, nil)
	}
	bad := func(param, format string, args ...any) reply {
		return openAIError(http.StatusBadRequest, fmt.Sprintf(format, args...), param, "invalid_value")
	}
	pairs, texts := b.metadata()
	switch {
	case !slices.Contains([]string{"/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/moderations"}, b.Endpoint):
		return bad("endpoint", "Invalid value: '%s'.", b.Endpoint)
	case b.Window != "24h":
		return bad("completion_window", "Invalid value: '%s'.", b.Window)
	case c.input == nil:
		return bad("input_file_id", "No file is named '%s'.", b.Input)
	case !texts || len(pairs) > 16:
		return bad("metadata", "Metadata must be at most 16 pairs of texts.")
	}
	for name, value := range pairs {
		if len(name) > 64 || len(value) > 512 {
			return bad("metadata", "A name of metadata has at most 64 characters, a value 512.")
		}
	}
	j := c.newJob()
	c.about(j)
	j.advance(c.sim.now())
	return reply{status: http.StatusOK, doc: c.batch(j)}
}

// counts are the requests of a batch: all, those done, those failed. Both stay 0
// until the input is validated, and need not add up after an expiry or a cancel.
func (j *job) counts() (total, completed, failed int) {
	if j.input == nil {
		return 0, 0, 0
	}
	n := j.input.Lines
	if n > 0 {
		switch f := j.plan.Failures; {
		case f < 0:
			failed = n
		case f == 0 && j.state == Partial:
			failed = 1
		default:
			failed = min(f, n)
		}
	}
	switch j.state {
	case Queued, Failed:
		return 0, 0, 0
	case Succeeded, Partial, Finalizing:
		return n, n - failed, failed
	case Expired, Cancelled, Cancelling:
		return n, min(max(j.plan.Done, 0), n), 0
	}
	return n, 0, 0
}

// results are the ids of the files with outputs and errors; "" for none.
func (j *job) results() (output, failures string) {
	total, completed, failed := j.counts()
	files := j.files()
	if !Terminal(j.state) {
		return "", ""
	}
	if completed > 0 {
		output = files[0].id
	}
	// What an expiry left undone is an error of the request; so is what a
	// cancel left undone beside outputs.
	if failed > 0 || (completed < total && (j.state == Expired || completed > 0)) {
		failures = files[1].id
	}
	return output, failures
}

// batch is a job in OpenAI's form.
func (c *call) batch(j *job) document {
	var b batchBody
	// The create checked that this reads; a planted one shows what it has.
	_ = json.Unmarshal(j.body, &b)
	at := func(state string) any {
		for _, ch := range j.changes {
			if batchWord(ch.State) == state {
				return c.unix(ch.At)
			}
		}
		return nil
	}
	orNull := func(id string) any {
		if id == "" {
			return nil
		}
		return id
	}
	output, failures := j.results()
	errorFile := orNull(failures)
	if failures == "" && batchWord(j.state) == "completed" {
		errorFile = "" // as it was seen on the wire
	}
	var flaws any
	if j.state == Failed {
		var rows []document
		row := func(code, message string, line any) {
			var r document
			r.set("code", code)
			r.set("message", message)
			r.set("param", nil)
			r.set("line", line)
			rows = append(rows, r)
		}
		if j.input != nil {
			for _, f := range j.input.flaws {
				row(f.code, f.message, f.line)
			}
		}
		if len(rows) == 0 {
			row(j.plan.Code, j.plan.Message, nil)
		}
		flaws = batchErrors(rows)
	}
	total, completed, failed := j.counts()
	var counts document
	counts.set("total", total)
	counts.set("completed", completed)
	counts.set("failed", failed)
	metadata := b.Metadata
	if len(metadata) == 0 {
		metadata = json.RawMessage("null")
	}

	var doc document
	doc.set("id", j.idValue())
	doc.set("object", "batch")
	doc.set("endpoint", b.Endpoint)
	doc.set("model", nil)
	doc.set("errors", flaws)
	doc.set("input_file_id", b.Input)
	doc.set("completion_window", b.Window)
	doc.set("status", c.word(j.state))
	doc.set("output_file_id", orNull(output))
	doc.set("error_file_id", errorFile)
	doc.set("created_at", c.unix(j.created))
	doc.set("in_progress_at", at("in_progress"))
	doc.set("expires_at", c.unix(j.created.Add(window24h)))
	doc.set("finalizing_at", at(Finalizing))
	doc.set("completed_at", at("completed"))
	doc.set("failed_at", at(Failed))
	doc.set("expired_at", at(Expired))
	doc.set("cancelling_at", at(Cancelling))
	doc.set("cancelled_at", at(Cancelled))
	doc.set("request_counts", counts)
	doc.set("metadata", metadata)
	return doc
}

func batchErrors(rows []document) document {
	var list document
	list.set("object", "list")
	list.set("data", rows)
	return list
}

// listBatches answers a page, newest first: at most limit, after the batch
// named. There is no filter.
func (c *call) listBatches() reply {
	size := c.limit(20)
	if size == 0 {
		return openAIError(http.StatusBadRequest, "Invalid value for 'limit': a number from 1 to 100.", "limit", "invalid_value")
	}
	seen, from := c.listed(), 0
	if after := c.query.Get("after"); after != "" {
		from = 1 + slices.IndexFunc(seen, func(j *job) bool { return j.id == after })
		if from == 0 {
			return openAIError(http.StatusBadRequest, "No batch is named '"+after+"'.", "after", "invalid_value")
		}
	}
	page := seen[from:min(from+size, len(seen))]
	rows := make([]document, 0, len(page))
	var first, last any
	for i, j := range page {
		rows = append(rows, c.batch(j))
		if i == 0 {
			first = j.id
		}
		last = j.id
	}
	var doc document
	doc.set("object", "list")
	doc.set("data", rows)
	doc.set("first_id", first)
	doc.set("last_id", last)
	doc.set("has_more", from+len(page) < len(seen))
	return reply{status: http.StatusOK, doc: doc}
}

// batchFile gives a result file out: a line per request, not in the order of the
// input.
func (c *call) batchFile() reply {
	m, j := c.mount, c.job
	f := m.files[c.route.file]
	output, failures := j.results()
	if f.id != output && f.id != failures {
		return m.refuse(http.StatusNotFound, "not_found", "No file is named '"+c.route.file+"'.")
	}
	if m.options.ResultOnce && j.fetched[f.id] {
		return m.refuse(http.StatusGone, "result_taken", "the file was read before")
	}
	if j.fetched == nil {
		j.fetched = map[string]bool{}
	}
	j.fetched[f.id] = true
	j.fetches++
	if m.options.Result != nil && !f.errors {
		kind, body := m.options.Result(j.snapshot())
		return reply{status: http.StatusOK, raw: body}.with("Content-Type", kind)
	}
	var b bytes.Buffer
	_, completed, failed := j.counts()
	for i, custom := range slices.Backward(j.input.custom) {
		if i < completed == f.errors {
			continue
		}
		b.Write(c.line(j, i, custom, completed, failed).encode())
		b.WriteByte('\n')
	}
	return reply{status: http.StatusOK, raw: b.Bytes()}.with("Content-Type", "application/octet-stream")
}

// line is the outcome of the i-th request: the first ones are done, then come
// those that failed, then those an expiry or a cancel left. The code of the
// latter was recorded for an expiry.
func (c *call) line(j *job, i int, custom string, completed, failed int) document {
	var response, failure any
	answer := func(status int, body document) {
		var r document
		r.set("status_code", status)
		r.set("request_id", fmt.Sprintf("req_%d", i+1))
		r.set("body", body)
		response = r
	}
	switch {
	case i < completed:
		var body document
		body.set("id", fmt.Sprintf("resp_%d", i+1))
		body.set("object", "response")
		body.set("status", "completed")
		answer(http.StatusOK, body)
	case i < completed+failed:
		answer(http.StatusBadRequest, openAIError(http.StatusBadRequest, "Unsupported parameter.", "foo", "unsupported_parameter").doc)
	default:
		var e document
		e.set("code", "batch_"+j.state)
		e.set("message", "Not executed before the batch was "+j.state+".")
		failure = e
	}
	var doc document
	doc.set("id", fmt.Sprintf("batch_req_%d", i+1))
	doc.set("custom_id", custom)
	doc.set("response", response)
	doc.set("error", failure)
	return doc
}
