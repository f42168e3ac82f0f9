package contract

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

const (
	maxID      = 1024 // bytes of a job id or a page
	maxWord    = 256  // bytes of a state word or a code
	maxMessage = 500  // bytes of a message or an excerpt
)

// Answer is what came back for a Request.
type Answer struct {
	Status     int
	Header     map[string][]string // names in any case
	Body       []byte
	URL        string // that answered, after redirects; links are resolved against it
	ReceivedAt time.Time
	Truncated  bool // the body was cut, by MaxBody or by the connection
	// Cut says, for people, why else a truncated body is not the whole one.
	Cut string
	// Unended: the body ended with the connection and nothing said how long it
	// is. It may be whole or cut.
	Unended bool
}

// part says that the provider calls this success a part of what was asked for,
// and why; "" if it does not. No request of ours asks for a part.
func (a Answer) part() string {
	if !success(a.Status) {
		return ""
	}
	if a.Status == 206 {
		return "the answer is a part of what was asked for: status 206"
	}
	for name := range a.Header {
		if strings.EqualFold(name, "Content-Range") {
			return "the answer is a part of what was asked for: it has a Content-Range"
		}
	}
	return ""
}

// Failure says why an answer did not give what was asked for, or adds to one
// that did.
type Failure struct {
	Class   events.ErrorClass
	Code    string    // the provider's, cut
	Message string    // the provider's words, cut, without markup or secrets of links
	RetryAt time.Time // not to be asked again before; zero if the answer does not say
	Detail  string    // which part of the contract could not be read and why; ours
	Cut     string    // how the body was cut, where class and detail say something else; ours
}

// shared is what every call reads from an answer that is not what was hoped
// for. What a call leaves out is taken from the contract's errors section.
type shared struct{ code, message, throttled *expression }

var sharedFields = []string{"code", "message", "throttled"}

func (p *parser) shared(s section, env *cel.Env) shared {
	sh := shared{s.expression(env, "code", text), s.expression(env, "message", text), s.expression(env, "throttled", boolean)}
	if sh.code == nil {
		sh.code = p.c.errors.code
	}
	if sh.message == nil {
		sh.message = p.c.errors.message
	}
	if sh.throttled == nil {
		sh.throttled = p.c.errors.throttled
	}
	return sh
}

// view is an answer made ready for expressions.
type view struct {
	a          Answer
	vars       *names
	json       bool   // the body is JSON
	empty      bool   // the body is white space at most
	unreadable string // why the body is not JSON
}

// view parses the body once. A body that is empty or not JSON reads as {}, so
// that body.?x is absent and body.x an error.
func (c *Contract) view(a Answer, in Inputs) view {
	v := view{a: a}
	vars, err := c.requestVars(in)
	if err != nil {
		// The parameters passed the gate when they were stored. If they do not
		// read now, expressions that need them fail and say so.
		in.Params, in.Input = nil, nil
		vars, _ = c.requestVars(in)
	}
	v.vars = vars
	headers := make(map[string]string, len(a.Header))
	for name, values := range a.Header {
		name = strings.ToLower(name)
		joined := strings.Join(values, ", ")
		if have, ok := headers[name]; ok {
			joined = min(have, joined) + ", " + max(have, joined) // not by map order
		}
		headers[name] = joined
	}
	vars.status, vars.headers, vars.url = a.Status, headers, a.URL
	vars.body = map[string]any{}
	v.empty = len(bytes.TrimSpace(a.Body)) == 0
	switch {
	case v.empty || a.Truncated:
		return v
	case len(a.Body) > maxChecked:
		v.unreadable = fmt.Sprintf("the body has more than %d bytes and was not looked into", maxChecked)
		return v
	}
	body, err := decode(a.Body)
	if err != nil {
		v.unreadable = "the body is not JSON"
		if looksHTML(a) {
			v.unreadable = "the body is an HTML page"
		} else if !looksCut(err) {
			v.unreadable = "the body is not JSON that can be read: " + clip(reason(err), 100)
		}
		return v
	}
	v.json = true
	vars.body = body
	return v
}

func looksHTML(a Answer) bool {
	return bytes.HasPrefix(bytes.TrimSpace(a.Body[:min(len(a.Body), 200)]), []byte("<"))
}

func looksCut(err error) bool { return strings.Contains(err.Error(), "EOF") }

// reason is the decoder's complaint without the text it is about.
func reason(err error) string {
	s := strings.TrimPrefix(err.Error(), "jsontext: ")
	if i := strings.IndexAny(s, "\"'`"); i > 0 {
		s = strings.TrimSpace(s[:i])
	}
	return s
}

// cut says how a cut body counts: over the limit, or ended by the connection.
func (v view) cut(limit int64) (events.ErrorClass, string) {
	if int64(len(v.a.Body)) >= limit {
		return events.ErrorTooLarge, fmt.Sprintf("the body has more than %d bytes", limit)
	}
	return events.ErrorUnreadable, cmp.Or(v.a.Cut, "the body was cut")
}

// about reads code, message and the time to come back. An expression that
// fails leaves its part empty and is recorded in Detail.
func (sh shared) about(v view) Failure {
	var f Failure
	f.RetryAt, _ = httprule.RetryAfter(v.a.Header, v.a.ReceivedAt)
	if !v.json {
		return f
	}
	for _, part := range []struct {
		e    *expression
		into *string
	}{{sh.code, &f.Code}, {sh.message, &f.Message}} {
		s, err := part.e.text(v.vars)
		if err != nil && f.Detail == "" {
			f.Detail = cause(err)
		}
		*part.into = s
	}
	f.Code = clean(f.Code, maxWord)
	f.Message = clean(f.Message, maxMessage)
	return f
}

// clean makes a provider's words fit for a fact.
func clean(s string, limit int) string {
	return httprule.Excerpt(canonical.RedactLinks([]byte(s)), limit)
}

// fail completes a Failure for an answer that is not what was asked for.
func (sh shared) fail(v view, class events.ErrorClass, detail string) Failure {
	f := sh.about(v)
	f.Class = class
	if detail != "" {
		f.Detail = detail
	}
	if f.Message == "" && !v.json {
		f.Message = clean(string(v.a.Body), maxMessage)
	}
	return f
}

// slow says whether the provider asks to slow down: by the contract's
// expression, else by status 429. An expression that cannot be evaluated does
// not hide a 429.
func (sh shared) slow(v view) (bool, error) {
	if v.a.Status == 429 || sh.throttled == nil {
		return v.a.Status == 429, nil
	}
	return sh.throttled.bool(v.vars)
}

// byStatus is the class of an HTTP status that is not success.
func byStatus(status int) events.ErrorClass {
	switch {
	case status == 401 || status == 403:
		return events.ErrorUnauthorized
	case status == 404 || status == 410:
		return events.ErrorNotFound
	case status == 408:
		return events.ErrorTimeout
	case status == 429:
		return events.ErrorThrottled
	case status >= 500 && status <= 599:
		return events.ErrorServer
	case status >= 400 && status <= 499:
		return events.ErrorRefused
	}
	return events.ErrorUnreadable
}

func success(status int) bool { return status >= 200 && status <= 299 }

// gate is the part all reads of state share: cut, a part, throttled, refused by
// status, not JSON. failed is nil if the body may be read.
func (c *Contract) gate(sh shared, ok *expression, v view, limit int64) (failed *Failure) {
	give := func(class events.ErrorClass, detail string) *Failure {
		f := sh.fail(v, class, detail)
		if v.a.Truncated {
			if _, f.Cut = v.cut(limit); f.Cut == detail {
				f.Cut = ""
			}
		}
		return &f
	}
	if v.a.Truncated && success(v.a.Status) {
		return give(v.cut(limit))
	}
	if part := v.a.part(); part != "" {
		return give(events.ErrorUnreadable, part)
	}
	if slow, err := sh.slow(v); err != nil && success(v.a.Status) && (v.json || v.empty) {
		return give(events.ErrorUnreadable, cause(err))
	} else if slow {
		return give(events.ErrorThrottled, "")
	}
	good := success(v.a.Status)
	if ok != nil {
		var err error
		if good, err = ok.bool(v.vars); err != nil {
			if class := byStatus(v.a.Status); class != events.ErrorUnreadable {
				return give(class, cause(err))
			}
			return give(events.ErrorUnreadable, firstOf(v.unreadable, cause(err)))
		}
	}
	switch {
	case !good && success(v.a.Status) && v.unreadable != "":
		return give(events.ErrorUnreadable, v.unreadable)
	case !good && success(v.a.Status):
		return give(events.ErrorRefused, "")
	case !good:
		return give(byStatus(v.a.Status), "")
	case v.a.Truncated:
		return give(v.cut(limit))
	case v.unreadable != "":
		return give(events.ErrorUnreadable, v.unreadable)
	}
	return nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// id reads a job id and refuses one that could not be sent back unchanged.
func (e *expression) id(vars *names) (string, error) {
	s, err := e.text(vars)
	if err != nil {
		return "", err
	}
	if !validName(s, maxID) {
		return "", e.errorf("the id has a control character, invalid text, or more than %d bytes", maxID)
	}
	return s, nil
}

// link reads a link and resolves it against the URL that answered.
func (e *expression) link(v view) (string, error) {
	s, err := e.text(v.vars)
	if err != nil || s == "" {
		return "", err
	}
	out, err := httprule.ResolveLink(v.a.URL, s)
	if err != nil {
		return "", e.errorf("%v", err)
	}
	return out, nil
}

// CreateReading is what a create answer says.
type CreateReading struct {
	Outcome    events.CreateOutcome // accepted, completed, rejected, conflict, in_progress, ambiguous
	JobID      string
	StatusURL  string
	Remote     string       // the provider's word, verbatim
	State      events.Class // our reading of it; "" if the answer has no word
	EchoDiffer bool
	// Failure.Class is none for accepted, completed, conflict and in_progress.
	// A rejected answer has throttled if the provider asks to come back: no job
	// was made, and the same request may be made again after RetryAt.
	Failure
}

type createRead struct {
	shared
	accepted, jobID, statusURL, state, completed, conflict, inProgress, rejected, echoDiffer *expression
}

// ReadCreate reads the answer to a create. A job id in an answer the contract
// accepts is the strongest evidence and wins; after that the contract's other
// rules are asked, in the order conflict, in_progress, rejected; what none of
// them claims, what is cut or not JSON, and whatever a rule could not be
// evaluated on is ambiguous.
func (c *Contract) ReadCreate(a Answer, in Inputs) CreateReading {
	r, v := c.createRead, c.view(a, in)
	ambiguous := func(class events.ErrorClass, detail string) CreateReading {
		return CreateReading{Outcome: events.CreateAmbiguous, Failure: r.fail(v, class, detail)}
	}
	switch {
	case a.Truncated:
		return ambiguous(v.cut(c.Limits.Response))
	case v.unreadable != "":
		class := byStatus(a.Status)
		if success(a.Status) {
			class = events.ErrorUnreadable
		}
		return ambiguous(class, v.unreadable)
	}
	out := CreateReading{Failure: r.about(v)}
	accepted, err := r.accepted.bool(v.vars)
	if err != nil {
		return ambiguous(events.ErrorUnreadable, cause(err))
	}
	var missing string // why an accepted answer gave no id
	if accepted {
		done, err := r.completed.bool(v.vars)
		if err != nil {
			return ambiguous(events.ErrorUnreadable, cause(err))
		}
		id, err := r.jobID.id(v.vars)
		if err != nil {
			missing = cause(err)
		}
		if id != "" || done && err == nil {
			out.Outcome, out.JobID = events.CreateAccepted, id
			if done {
				out.Outcome = events.CreateCompleted
			}
			c.extras(&out, v)
			return out
		}
		missing = firstOf(missing, "create.read.job_id: the answer was accepted and names no job")
	}
	for _, rule := range []struct {
		e       *expression
		outcome events.CreateOutcome
	}{{r.conflict, events.CreateConflict}, {r.inProgress, events.CreateInProgress}, {r.rejected, events.CreateRejected}} {
		yes, err := rule.e.bool(v.vars)
		if err != nil {
			return ambiguous(events.ErrorUnreadable, firstOf(missing, cause(err)))
		}
		if !yes {
			continue
		}
		out.Outcome = rule.outcome
		return c.refused(out, v, missing)
	}
	class := byStatus(a.Status)
	if slow, err := r.slow(v); err == nil && slow {
		class = events.ErrorThrottled
	}
	return ambiguous(class, firstOf(missing, a.part()))
}

// refused completes a conflict, an in_progress or a rejection.
func (c *Contract) refused(out CreateReading, v view, missing string) CreateReading {
	r := c.createRead
	id, err := r.jobID.id(v.vars)
	switch out.Outcome {
	case events.CreateConflict:
		// A conflict may name the job or not; a missing id is no defect here.
		if err == nil {
			out.JobID = id
			c.extras(&out, v)
			if id == "" {
				out.StatusURL = "" // a link without a job is of no use, and may hold a secret
			}
		}
	case events.CreateRejected:
		if err == nil && id != "" {
			// It says that no job was made and names one.
			f := r.fail(v, events.ErrorUnreadable, "create.read.rejected: the answer proves that no job was made, yet names one")
			return CreateReading{Outcome: events.CreateAmbiguous, Failure: f}
		}
		out.Class = events.ErrorRefused
		if class := byStatus(v.a.Status); !success(v.a.Status) && class != events.ErrorUnreadable {
			out.Class = class
		}
		if slow, err := r.slow(v); err == nil && slow {
			out.Class = events.ErrorThrottled
		}
		out.Detail = firstOf(missing, out.Detail)
	case events.CreateAccepted, events.CreateCompleted, events.CreateInProgress,
		events.CreateNotSent, events.CreateAmbiguous, events.CreatePresumed:
	}
	return out
}

// extras reads what an accepted answer may carry besides the id. A part that
// cannot be read is recorded and does not undo the id.
func (c *Contract) extras(out *CreateReading, v view) {
	r := c.createRead
	note := func(err error) {
		if err != nil && out.Detail == "" {
			out.Detail = cause(err)
		}
	}
	var err error
	out.StatusURL, err = r.statusURL.link(v)
	note(err)
	out.Remote, err = r.state.text(v.vars)
	note(err)
	if out.Remote = clip(out.Remote, maxWord); out.Remote != "" {
		out.State = c.classOf(out.Remote)
	}
	out.EchoDiffer, err = r.echoDiffer.bool(v.vars)
	note(err)
}

// classOf gives the class of a state word.
func (c *Contract) classOf(word string) events.Class {
	if class, ok := c.classes[fold(word)]; ok {
		return class
	}
	return c.otherwise
}

// StatusReading is what a status answer says: an observed state, or a Failure
// whose Class is not none.
type StatusReading struct {
	JobID        string       // the one the answer names, else the one asked for
	Remote       string       // the provider's word, verbatim
	State        events.Class // our reading of it
	ProviderTime time.Time
	Progress     string
	Results      []Link // of a job that has ended; secrets, never to be stored
	// NoResult: the job has ended and the answer proves that it left nothing to
	// collect. Set for no other job.
	NoResult bool
	// InputURL and InputText say where a person gives what the job waits for, whole,
	// and what that is. Set with input_required only.
	InputURL, InputText string
	// Failure.Class none: observed. Code and Message may then say why the job
	// failed, and RetryAt when to come back.
	Failure
}

type statusRead struct {
	shared
	ok, jobID, state, class, updatedAt, progress, noResult, inputURL, inputText *expression
}

// ReadStatus reads a status answer. Trouble with reading is never the job's
// outcome.
func (c *Contract) ReadStatus(a Answer, in Inputs) StatusReading {
	r, v := c.statusRead, c.view(a, in)
	if f := c.gate(r.shared, r.ok, v, c.Limits.Response); f != nil {
		return StatusReading{Failure: *f}
	}
	unreadable := func(err error) StatusReading {
		return StatusReading{Failure: r.fail(v, events.ErrorUnreadable, cause(err))}
	}
	out := StatusReading{JobID: in.JobID, Failure: r.about(v)}
	word, err := r.state.text(v.vars)
	if err == nil && word == "" {
		err = r.state.errorf("the state is empty")
	}
	if err != nil {
		return unreadable(err)
	}
	if r.jobID != nil {
		id, err := r.jobID.id(v.vars)
		if err == nil && id == "" {
			err = r.jobID.errorf("the id is empty")
		}
		if err != nil {
			return unreadable(err)
		}
		out.JobID = id
	}
	out.Remote = clip(word, maxWord)
	out.State = c.classOf(word)
	class, err := r.class.text(v.vars)
	if err != nil {
		return unreadable(err)
	}
	if class != "" {
		out.State = events.ClassUnknown
		for _, k := range knownClasses {
			if string(k) == class {
				out.State = k
			}
		}
	}
	note := func(err error) {
		if err != nil && out.Detail == "" {
			out.Detail = cause(err)
		}
	}
	out.ProviderTime, err = r.updatedAt.time(v.vars)
	note(err)
	progress, err := r.progress.text(v.vars)
	note(err)
	out.Progress = clip(progress, 64)
	switch out.State {
	case events.ClassSucceeded, events.ClassPartial, events.ClassFailed, events.ClassCancelled, events.ClassExpired:
		if c.ResultSource == ResultFromStatus {
			out.Results, err = c.links(v)
			note(err)
		}
		// What cannot be evaluated proves nothing: the result is asked for.
		out.NoResult, err = r.noResult.bool(v.vars)
		note(err)
	case events.ClassInputRequired:
		out.InputURL, err = r.inputURL.link(v)
		note(err)
		words, err := r.inputText.text(v.vars)
		note(err)
		out.InputText = clip(words, maxWord)
	case events.ClassQueued, events.ClassRunning, events.ClassUnknown:
	}
	return out
}

// links reads the links to result files. One without a value is left out.
func (c *Contract) links(v view) ([]Link, error) {
	e := c.resultRead.links
	names, values, err := e.pairs(v.vars)
	if err != nil {
		return nil, err
	}
	var out []Link
	for i, value := range values {
		s, err := asText(value)
		if err != nil {
			return nil, e.errorf("an item %s", err)
		}
		if s == "" {
			continue
		}
		link, err := httprule.ResolveLink(v.a.URL, s)
		if err != nil {
			return nil, e.errorf("%v", err)
		}
		out = append(out, Link{URL: link, Name: names[i]})
	}
	return out, nil
}

// LookupReading is one page of a look-up.
type LookupReading struct {
	Outcome events.LookupOutcome // of this page alone: found, absent, failed
	Jobs    []events.FoundJob    // without claims
	Next    string               // to be given as Inputs.Page; "" for the last page
	Failure

	oldest time.Time // see Older
}

// Older says whether every job on the pages that follow was created before t,
// so that a look-up for jobs made since t may stop here. It is true only if the
// contract says that the list is newest first, every item of this page shows
// when it was created, the page keeps that order, and its last item is older
// than t. By how much clocks may differ is for the caller to take off t.
func (r LookupReading) Older(t time.Time) bool {
	return !r.oldest.IsZero() && r.oldest.Before(t)
}

type lookupRead struct {
	shared
	ok, absent, items, next, nextPage         *expression
	jobID, statusURL, createdAt, exact, match *expression
	newestFirst                               bool
}

// ReadLookup reads one page of a look-up. Items that do not carry our reference
// (exact) or cannot be ours (match) are left out. One item that cannot be read
// fails the page, since nothing can be said to be absent from it; nor can it from
// a part, or from nothing where the connection may have taken what there was.
func (c *Contract) ReadLookup(a Answer, in Inputs) LookupReading {
	r, v := c.lookupRead, c.view(a, in)
	failed := func(f Failure) LookupReading {
		return LookupReading{Outcome: events.LookupFailed, Failure: f}
	}
	if absent, err := r.absent.bool(v.vars); err != nil && (v.json || v.empty) {
		return failed(r.fail(v, events.ErrorUnreadable, cause(err)))
	} else if absent && v.unreadable == "" && !a.Truncated && a.part() == "" && !(a.Unended && v.empty && success(a.Status)) {
		return LookupReading{Outcome: events.LookupAbsent, Failure: r.about(v)}
	}
	if f := c.gate(r.shared, r.ok, v, c.Limits.Response); f != nil {
		return failed(*f)
	}
	unreadable := func(err error) LookupReading {
		return failed(r.fail(v, events.ErrorUnreadable, cause(err)))
	}
	out := LookupReading{Outcome: events.LookupAbsent, Failure: r.about(v)}
	items, err := r.items.list(v.vars)
	if err != nil {
		return unreadable(err)
	}
	ordered := r.newestFirst
	for _, item := range items {
		v.vars.item = item
		if ordered {
			created, err := r.createdAt.time(v.vars)
			ordered = err == nil && !created.IsZero() && (out.oldest.IsZero() || !created.After(out.oldest))
			out.oldest = created
		}
		job, ours, err := c.found(v)
		if err != nil {
			return unreadable(err)
		}
		if ours {
			out.Outcome = events.LookupFound
			out.Jobs = append(out.Jobs, job)
		}
	}
	if !ordered {
		out.oldest = time.Time{}
	}
	if out.Next, err = c.nextPage(v); err != nil {
		return unreadable(err)
	}
	if _, origins, err := c.base(in); r.next != nil && out.Next != "" && (err != nil || !allowed(out.Next, origins)) {
		// The rest of the list cannot be read, so nothing is proved absent.
		return failed(r.fail(v, events.ErrorPolicy, "lookup.read.next: "+ErrOrigin.Error()))
	}
	return out
}

func (c *Contract) nextPage(v view) (string, error) {
	r := c.lookupRead
	if r.next != nil {
		return r.next.link(v)
	}
	s, err := r.nextPage.text(v.vars)
	if err == nil && !validName(s, maxID) {
		err = r.nextPage.errorf("the page has a control character or more than %d bytes", maxID)
	}
	return s, err
}

// found reads one item and says whether it may be ours.
func (c *Contract) found(v view) (job events.FoundJob, ours bool, err error) {
	r := c.lookupRead
	if _, object := v.vars.item.(traits.Mapper); !object && c.promises.Lookup == events.LookupExact {
		// A look into it would find no reference, which proves nothing.
		return job, false, r.items.errorf("an item is no object")
	}
	if r.match != nil {
		if ours, err = r.match.bool(v.vars); err != nil || !ours {
			return job, false, err
		}
	}
	if c.promises.Lookup == events.LookupExact {
		if job.Exact, err = r.exact.bool(v.vars); err != nil || !job.Exact {
			return job, false, err
		}
	}
	if job.ID, err = r.jobID.id(v.vars); err != nil {
		return job, false, err
	}
	if job.ID == "" {
		return job, false, r.jobID.errorf("the id is empty")
	}
	if job.StatusURL, err = r.statusURL.link(v); err != nil {
		return job, false, err
	}
	job.CreatedAt, err = r.createdAt.time(v.vars)
	return job, true, err
}

// CancelReading is what a cancel answer says.
type CancelReading struct {
	Outcome events.CancelOutcome // confirmed, too_late, acknowledged, unsupported, refused, ambiguous
	Remote  string               // the provider's word, verbatim
	State   events.Class         // our reading of it; "" if the answer has no word
	Failure
}

type cancelRead struct {
	shared
	confirmed, acknowledged, tooLate, refused, unsupported, state *expression
}

// ReadCancel reads the answer to a cancel. The contract's rules are asked in the
// order confirmed, too_late, acknowledged, unsupported, refused; anything else
// is ambiguous, and a status read tells. A confirmed answer whose own state word
// is not of class cancelled counts as acknowledged only.
func (c *Contract) ReadCancel(a Answer, in Inputs) CancelReading {
	r, v := c.cancelRead, c.view(a, in)
	ambiguous := func(class events.ErrorClass, detail string) CancelReading {
		return CancelReading{Outcome: events.CancelAmbiguous, Failure: r.fail(v, class, detail)}
	}
	class := byStatus(a.Status)
	switch {
	case a.Truncated:
		return ambiguous(v.cut(c.Limits.Response))
	case v.unreadable != "":
		return ambiguous(class, v.unreadable)
	}
	out := CancelReading{Failure: r.about(v)}
	word, err := r.state.text(v.vars)
	if err != nil && success(a.Status) {
		return ambiguous(events.ErrorUnreadable, cause(err))
	}
	if err == nil && word != "" {
		out.Remote, out.State = clip(word, maxWord), c.classOf(word)
	}
	for _, rule := range []struct {
		e       *expression
		outcome events.CancelOutcome
	}{
		{r.confirmed, events.CancelConfirmed},
		{r.tooLate, events.CancelTooLate},
		{r.acknowledged, events.CancelAcknowledged},
		{r.unsupported, events.CancelUnsupported},
		{r.refused, events.CancelRefused},
	} {
		yes, err := rule.e.bool(v.vars)
		if err != nil {
			return ambiguous(events.ErrorUnreadable, cause(err))
		}
		if !yes {
			continue
		}
		out.Outcome = rule.outcome
		if out.Outcome == events.CancelConfirmed && out.State != "" && out.State != events.ClassCancelled {
			out.Outcome = events.CancelAcknowledged
			out.Detail = "cancel.read.confirmed: the answer's state is " + string(out.State)
		}
		if out.Outcome == events.CancelRefused || out.Outcome == events.CancelUnsupported {
			out.Class = class
		}
		return out
	}
	if slow, err := r.slow(v); err == nil && slow {
		class = events.ErrorThrottled
	}
	return ambiguous(class, a.part())
}

// WebhookReading is what a verified delivery claims.
type WebhookReading struct {
	EventID   string // "" if it has none: the digest of the body names it then
	Type      string
	JobID     string
	Remote    string // the claimed state, verbatim
	Reference string // ours, if the body carries it
	Detail    string // what could not be read; the rest stands
}

// ReadWebhook reads a delivery whose signature was verified over these very
// bytes. It fails only if the body is not JSON. ErrNoCall if the contract has no
// webhook.
func (c *Contract) ReadWebhook(body []byte, header map[string][]string) (WebhookReading, error) {
	if c.Webhook == nil {
		return WebhookReading{}, ErrNoCall
	}
	v := c.view(Answer{Body: body, Header: header}, Inputs{})
	if !v.json {
		return WebhookReading{}, fmt.Errorf("read webhook: %s", firstOf(v.unreadable, "the body is empty"))
	}
	w := c.Webhook
	vars := v.vars
	var out WebhookReading
	for _, part := range []struct {
		e     *expression
		into  *string
		limit int
	}{{w.eventID, &out.EventID, maxID}, {w.kind, &out.Type, maxWord}, {w.jobID, &out.JobID, maxID}, {w.state, &out.Remote, maxWord}, {w.reference, &out.Reference, maxID}} {
		s, err := part.e.text(vars)
		if err == nil && !validName(s, part.limit) {
			err = part.e.errorf("the text has a control character or more than %d bytes", part.limit)
		}
		if err != nil {
			out.Detail = firstOf(out.Detail, cause(err))
			continue
		}
		*part.into = s
	}
	return out, nil
}

// validJSON says whether a result is one JSON value.
func validJSON(body []byte) bool {
	return jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true))
}
