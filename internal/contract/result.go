package contract

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

// maxChecked bounds the bytes of a body that expressions look into. Checks with
// expressions fail on a larger result.
const maxChecked = 8 << 20

// ResultReading is what an answer with a result, or to a status read that leads
// to one, says. Class none means that there is a result: Body, or Links to
// files that are read one by one, with the value that names them in Body.
type ResultReading struct {
	Body      []byte // text unchanged from what came; beside Links it holds their secrets
	MediaType string // "application/json", without parameters
	Links     []Link
	// NotReady: the provider has not got it yet; ask again after a while.
	NotReady bool
	Checks   []events.Check // each with its verdict; failing ones do not undo Body
	Failure
}

// Link is one file of a result. Its URL may be a secret and is never stored.
type Link struct {
	URL  string
	Name string // the contract's name for it, "output"; "" if it has none
}

type resultRead struct {
	shared
	ok, notReady, expired, links *expression
	value                        jsontext.Pointer
	hasValue                     bool
	checks, linkChecks           []check
	mediaTypes, linkMediaTypes   []string
}

// check is one validation of a result. Exactly one of the kinds is set.
type check struct {
	name  string
	link  string      // for the file of that name only; "" for all
	when  *expression // it is made only where this is true; nil for always
	json  bool        // the body is one JSON value
	jsonl bool        // each line of the body that is not empty is one JSON value
	lines *expression // so many lines of the body are not empty
	size  *expression // so many bytes
	expr  *expression // true for a result that passes
}

func (p *parser) checks(s section, name string) []check {
	n := s.value[name]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.d.addf(n, s.at(name), "must be a list of name and one of json, jsonl, lines, size, expr")
		return nil
	}
	var list []check
	for i, item := range n.Content {
		known := []string{"name", "when", "json", "jsonl", "lines", "size", "expr"}
		if name == "link_checks" {
			known = append(known, "link")
		}
		c := p.d.section(item, fmt.Sprintf("%s[%d]", s.at(name), i), known...)
		env := p.env.answer
		k := check{
			name: c.text("name"), link: c.text("link"), when: c.expression(env, "when", boolean), json: c.flag("json"), jsonl: c.flag("jsonl"),
			lines: c.expression(env, "lines", count), size: c.expression(env, "size", count), expr: c.expression(env, "expr", boolean),
		}
		if c.node == nil {
			continue
		}
		c.need("name", "")
		kinds := 0
		for _, is := range []bool{k.json, k.jsonl, c.has("lines"), c.has("size"), c.has("expr")} {
			if is {
				kinds++
			}
		}
		if kinds != 1 {
			p.d.addf(item, c.field, "give exactly one of json: true, jsonl: true, lines, size and expr")
		}
		if c.has("link") && !validLinkName(k.link) {
			p.d.addf(c.value["link"], c.at("link"), "must be 1 to 64 letters, digits, _, - and .")
		}
		if slices.ContainsFunc(list, func(o check) bool { return o.name == k.name }) || slices.Contains([]string{"not_empty", "media_type", "ended"}, k.name) {
			p.d.addf(item, c.at("name"), "is used already: %q", clip(k.name, 40))
		}
		list = append(list, k)
	}
	return list
}

func (p *parser) mediaTypes(s section, name string) []string {
	var list []string
	for i, t := range s.texts(name) {
		t = strings.ToLower(t)
		if strings.Count(t, "/") != 1 || strings.ContainsAny(t, " ;,") {
			p.d.addf(s.value[name], fmt.Sprintf("%s[%d]", s.at(name), i), "must be a media type without parameters, like application/json or image/*")
		}
		list = append(list, t)
	}
	return list
}

// ReadResult reads the answer to the request Result made. An empty body is never
// a result.
func (c *Contract) ReadResult(a Answer, in Inputs) ResultReading {
	r, v := c.resultRead, c.view(a, in)
	failed := func(class events.ErrorClass, detail string) ResultReading {
		return ResultReading{Failure: r.fail(v, class, detail)}
	}
	ended := func() (out ResultReading, yes bool) {
		switch gone, err := r.expired.bool(v.vars); {
		case err != nil && success(a.Status) && (v.json || v.empty):
			return failed(events.ErrorUnreadable, cause(err)), true
		case err == nil && gone:
			return failed(events.ErrorExpired, ""), true
		}
		switch wait, err := r.notReady.bool(v.vars); {
		case err != nil && success(a.Status) && (v.json || v.empty):
			return failed(events.ErrorUnreadable, cause(err)), true
		case err == nil && wait:
			out = failed(notReadyClass(a.Status), "")
			out.NotReady = true
			return out, true
		}
		return out, false
	}
	if c.ResultSource == ResultFromStatus {
		if s := c.ReadStatus(a, in); s.Class != events.ErrorNone {
			return ResultReading{Failure: s.Failure}
		}
		if out, yes := ended(); yes {
			return out
		}
		return c.fromStatus(v)
	}
	if a.part() == "" { // of a part only its head is true
		if out, yes := ended(); yes {
			return out
		}
	}
	return c.file(v, r.ok, r.checks, r.mediaTypes)
}

// notReadyClass keeps the class of the status, as a wait is no error of its own.
func notReadyClass(status int) events.ErrorClass {
	if success(status) {
		return events.ErrorNotFound
	}
	return byStatus(status)
}

// fromStatus takes links and value out of a status answer.
func (c *Contract) fromStatus(v view) ResultReading {
	r := c.resultRead
	links, err := c.links(v)
	if err != nil {
		return ResultReading{Failure: r.fail(v, events.ErrorUnreadable, cause(err))}
	}
	out := ResultReading{Failure: r.about(v)}
	out.Links = links
	if r.hasValue {
		if body, ok := cutOut(v.a.Body, r.value); ok {
			out.Body, out.MediaType = body, "application/json"
			out.Checks = c.verdicts(v, body, r.checks)
		}
	}
	if len(out.Links) > 0 || len(out.Body) > 0 {
		return out
	}
	return ResultReading{
		NotReady: true,
		Failure:  r.fail(v, events.ErrorNotFound, "result: the status answer has neither a link nor a value"),
	}
}

// ReadLink reads the answer for one of the links; in has its name, and the
// status answer that gave it as LastBody, since checks may compare them. 401, 403, 404 and 410 mean
// that the link has run out: a fresh status read may give another.
func (c *Contract) ReadLink(a Answer, in Inputs) ResultReading {
	v := c.view(a, in)
	var checks []check
	for _, k := range c.resultRead.linkChecks {
		if k.link == "" || k.link == in.Link {
			checks = append(checks, k)
		}
	}
	out := c.file(v, nil, checks, c.resultRead.linkMediaTypes)
	if out.Class == events.ErrorUnauthorized || out.Class == events.ErrorNotFound {
		out.Class = events.ErrorExpired
	}
	return out
}

// file reads a body that is the result itself.
func (c *Contract) file(v view, ok *expression, checks []check, mediaTypes []string) ResultReading {
	r := c.resultRead
	failed := func(class events.ErrorClass, detail string) ResultReading {
		return ResultReading{Failure: r.fail(v, class, detail)}
	}
	if v.a.Truncated && success(v.a.Status) {
		return failed(v.cut(c.Limits.Result))
	}
	if part := v.a.part(); part != "" {
		return failed(events.ErrorUnreadable, part)
	}
	if v.a.Status == 429 {
		return failed(events.ErrorThrottled, "")
	}
	good := success(v.a.Status)
	if ok != nil {
		var err error
		if good, err = ok.bool(v.vars); err != nil {
			return failed(events.ErrorUnreadable, cause(err))
		}
	}
	switch {
	case !good && success(v.a.Status):
		return failed(events.ErrorRefused, "")
	case !good:
		return failed(byStatus(v.a.Status), "")
	case !expectsHTML(checks, mediaTypes) && looksHTML(v.a) && mediaType(v.a) == "text/html":
		// A proxy's page, not the provider's answer.
		return failed(events.ErrorUnreadable, "the body is an HTML page")
	case len(v.a.Body) == 0:
		// Status and result are not one step at the provider: it may come yet.
		out := failed(events.ErrorUnreadable, "the body is empty")
		out.NotReady = true
		return out
	}
	out := ResultReading{Body: v.a.Body, MediaType: mediaType(v.a), Failure: Failure{}}
	if len(mediaTypes) > 0 {
		fits := slices.ContainsFunc(mediaTypes, func(t string) bool { return matches(t, out.MediaType) })
		k := events.Check{Name: "media_type", Passed: fits}
		if !fits {
			k.Detail = fmt.Sprintf("is %q, not %s", clip(out.MediaType, 80), strings.Join(mediaTypes, " or "))
		}
		out.Checks = append(out.Checks, k)
	}
	verdicts := c.verdicts(v, v.a.Body, checks)
	out.Checks = append(out.Checks, verdicts...)
	if v.a.Unended {
		out.Checks = append(out.Checks, endShown(v, out.MediaType, checks, verdicts))
	}
	return out
}

// endShown is the check of a body whose end only the connection showed: half of it
// would have come the same way. It passes where the body itself shows that
// nothing lacks: by a size or by a number of lines that was told elsewhere, or
// because it is one JSON document that closes. Lines of JSON without their number
// and bytes of any other kind do not show it.
func endShown(v view, mediaType string, checks []check, verdicts []events.Check) events.Check {
	out := events.Check{Name: "ended"}
	body, terminated := bytes.CutSuffix(v.a.Body, []byte{'\n'})
	body = bytes.TrimSpace(body)
	lines, document := false, mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	for _, k := range checks {
		at := slices.IndexFunc(verdicts, func(e events.Check) bool { return e.Name == k.name })
		passed := at >= 0 && verdicts[at].Passed
		document = document || k.json && passed
		lines = lines || k.jsonl || k.lines != nil
		switch {
		case k.size != nil && passed:
			out.Passed = true
		case k.lines != nil && passed: // the last of them may be cut, but not behind its end
			out.Passed = out.Passed || terminated || closes(bytes.TrimSpace(body[bytes.LastIndexByte(body, '\n')+1:]))
		}
	}
	if document && !lines {
		out.Passed = out.Passed || closes(body)
	}
	if !out.Passed {
		out.Detail = "the body ended with the connection, and nothing shows that it is whole"
	}
	return out
}

// closes says whether JSON is such that no beginning of it is JSON too, as one of
// a number is.
func closes(body []byte) bool {
	return len(body) > 0 && bytes.IndexByte([]byte(`{["`), body[0]) >= 0 && validJSON(body)
}

// expectsHTML says whether a page could be a result: nothing says that results
// are of another kind.
func expectsHTML(checks []check, mediaTypes []string) bool {
	if len(mediaTypes) > 0 {
		return slices.ContainsFunc(mediaTypes, func(t string) bool { return matches(t, "text/html") })
	}
	return !slices.ContainsFunc(checks, func(k check) bool { return k.json || k.jsonl })
}

// verdicts runs the checks over a body. A check that cannot be evaluated fails
// and says why.
func (c *Contract) verdicts(v view, body []byte, checks []check) []events.Check {
	list := []events.Check{{Name: "not_empty", Passed: len(body) > 0}}
	for _, k := range checks {
		if k.when != nil {
			switch due, err := k.when.bool(v.vars); {
			case err != nil:
				list = append(list, events.Check{Name: k.name, Detail: cause(err)})
				continue
			case !due:
				continue
			}
		}
		list = append(list, k.verdict(v, body))
	}
	return list
}

func (k check) verdict(v view, body []byte) events.Check {
	out := events.Check{Name: k.name}
	switch {
	case k.json:
		if out.Passed = validJSON(body); !out.Passed {
			out.Detail = "the body is not one JSON value"
		}
	case k.jsonl:
		out.Detail = badLine(body)
		out.Passed = out.Detail == ""
	case k.lines != nil:
		out.Passed, out.Detail = equals(k.lines, v, lines(body), "lines")
	case k.size != nil:
		out.Passed, out.Detail = equals(k.size, v, int64(len(body)), "bytes")
	case len(body) > maxChecked:
		out.Detail = fmt.Sprintf("the body has more than %d bytes and was not looked into", maxChecked)
	default:
		passed, err := k.expr.bool(v.vars)
		if out.Passed = passed; err != nil {
			out.Detail = cause(err)
		} else if !passed {
			out.Detail = "does not hold: " + clip(k.expr.source, 200)
		}
	}
	return out
}

// equals compares what was counted with what the expression expects.
func equals(e *expression, v view, got int64, what string) (passed bool, detail string) {
	switch want, ok, err := e.number(v.vars); {
	case err != nil:
		return false, cause(err)
	case !ok:
		return false, "the number to compare with is absent: " + clip(e.source, 200)
	case want != got:
		return false, fmt.Sprintf("has %d %s, expected %d", got, what, want)
	}
	return true, ""
}

// badLine names the first line that is neither empty nor one JSON value.
func badLine(body []byte) string {
	n := 0
	for line := range bytes.Lines(body) {
		n++
		if line = bytes.TrimSpace(line); len(line) > 0 && !validJSON(line) {
			return fmt.Sprintf("line %d is not one JSON value", n)
		}
	}
	return ""
}

// mediaType is the type without parameters, in lower case. A provider that gives
// ours for a list of files gets it for JSON: who reads such a list follows its
// digests, and they must be of files we stored for this very result.
func mediaType(a Answer) string {
	kept := httprule.AllowedHeaders(a.Header)["content-type"]
	t, _, _ := strings.Cut(kept, ";")
	if t = strings.ToLower(strings.TrimSpace(t)); t == FilesType {
		return "application/json"
	}
	return t
}

func matches(pattern, t string) bool {
	if kind, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(t, kind+"/")
	}
	return pattern == t
}

// cutOut cuts a value out of JSON without changing its text. A null or "" is
// no value.
func cutOut(body []byte, pointer jsontext.Pointer) ([]byte, bool) {
	v, err := find(body, pointer)
	if err != nil {
		return nil, false
	}
	switch strings.TrimSpace(string(v)) {
	case "null", `""`, "":
		return nil, false
	}
	return v, true
}

var errNoMember = errors.New("no such member")

// find walks to the value a pointer names.
func find(body []byte, pointer jsontext.Pointer) ([]byte, error) {
	for step := range pointer.Tokens() {
		dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowInvalidUTF8(true))
		open, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		if open.Kind() != '{' {
			return nil, errNoMember
		}
		var next []byte
		for dec.PeekKind() == '"' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			text := name.String()
			v, err := dec.ReadValue()
			if err != nil {
				return nil, err
			}
			if text == step {
				next = v.Clone()
				break
			}
		}
		if next == nil {
			return nil, errNoMember
		}
		body = next
	}
	return body, nil
}
