package contract

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// ErrNoCall says that the contract has no such call.
var ErrNoCall = errors.New("the contract has no such call")

// ErrOrigin says that a link an answer gave leads to an origin the contract
// does not allow for a call that carries the credential.
var ErrOrigin = errors.New("the link leads to an origin the contract does not allow")

// Inputs is what a request is made of. The same inputs give the same bytes.
type Inputs struct {
	BaseURL         string // overrides the contract's; "" keeps it
	Params          []byte // JSON as the caller sent it
	Token           string
	ClientReference string
	JobID           string
	StatusURL       string
	CallbackURL     string            // where the provider may call back; "" for none
	Page            string            // LookupReading.Next of the page before; "" for the first
	LastBody        []byte            // newest status answer, for results and files that are checked against it
	Link            string            // Link.Name of the file that is read; "" if it has none
	Prepared        map[string]string // PrepareReading.Values of all preparations so far, name to value
	Input           []byte            // JSON that a person answered to a job that waits; nil for none
	InputToken      string            // names that answer at the provider
	Since           time.Time         // nothing of ours is older, for look-ups that can say so; zero if unknown
}

// Header is one request header.
type Header struct{ Name, Value string }

// Place is where a credential goes in a request.
type Place string

// Places.
const (
	PlaceNone   Place = ""
	PlaceHeader Place = "header"
	PlaceQuery  Place = "query"
	PlaceBasic  Place = "basic" // the secret is user:password
)

// Credential says where the secret goes. The secret itself comes from
// configuration and never meets this package.
type Credential struct {
	Place  Place
	Name   string // of the header or the query parameter
	Before string // stands before the secret in a header, "Bearer "
	After  string
}

// Request is one exchange to make with the provider.
type Request struct {
	Method          string
	URL             string
	Header          []Header // without the credential
	Body            []byte
	Credential      Credential // PlaceNone: send none, the target is not trusted with it
	MaxBody         int64      // bytes of the answer to read at most
	FollowRedirects int        // redirects to follow at most; the credential stays on its origin
}

// template is text with expressions in braces; "{{" and "}}" are braces.
type template struct{ parts []part }

type part struct {
	literal string
	expr    *expression // nil for a literal
}

func (d *document) template(env *cel.Env, n *yaml.Node, field string) *template {
	src := d.scalar(n, field)
	var t template
	literal := ""
	for i := 0; i < len(src); {
		switch {
		case strings.HasPrefix(src[i:], "{{"), strings.HasPrefix(src[i:], "}}"):
			literal += src[i : i+1]
			i += 2
		case src[i] == '{':
			end := closing(src, i)
			if end < 0 {
				d.addf(n, field, "the brace at character %d is not closed", i+1)
				return nil
			}
			if literal != "" {
				t.parts = append(t.parts, part{literal: literal})
				literal = ""
			}
			e := d.compile(env, n, field, src[i+1:end], i+1, text)
			if e == nil {
				return nil
			}
			t.parts = append(t.parts, part{expr: e})
			i = end + 1
		case src[i] == '}':
			d.addf(n, field, "the brace at character %d was not opened; write }} for a brace", i+1)
			return nil
		default:
			literal += src[i : i+1]
			i++
		}
	}
	if literal != "" || len(t.parts) == 0 {
		t.parts = append(t.parts, part{literal: literal})
	}
	return &t
}

// closing finds the brace that closes the one at i, past quoted text.
func closing(s string, i int) int {
	depth := 0
	for ; i < len(s); i++ {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		case '\'', '"':
			q := s[i]
			for i++; i < len(s) && s[i] != q; i++ {
				if s[i] == '\\' {
					i++
				}
			}
		}
	}
	return -1
}

// render evaluates a template. absent is true if an expression had no value.
func (t *template) render(vars *names, escape func(string) string) (out string, absent bool, err error) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.expr == nil {
			b.WriteString(p.literal)
			continue
		}
		s, err := p.expr.text(vars)
		if err != nil {
			return "", false, err
		}
		absent = absent || s == ""
		b.WriteString(escape(s))
	}
	return b.String(), absent, nil
}

// entry is a named template: a header or a query parameter. It is left out of
// the request where one of its expressions has no value.
type entry struct {
	name  string
	value *template
}

// call is how to make one kind of request.
type call struct {
	field     string
	method    string
	address   *expression // a whole link; absent: path
	path      *template   // below the base URL
	query     []entry
	headers   []entry
	body      *payload // nil for none
	redirects int
}

// callFields are the members of a call that build the request.
var callFields = []string{"method", "url", "path", "query", "headers", "body", "redirects", "read"}

func (s section) call(env *cel.Env, method string) *call {
	c := &call{field: s.field, method: method}
	if s.has("method") {
		c.method = s.oneOf("method", "GET", "POST", "PUT", "PATCH", "DELETE")
	}
	c.address = s.expression(env, "url", text)
	if c.address != nil && c.method != "GET" {
		s.d.addf(s.value["url"], s.at("url"), "links from answers are only read: the method must be GET")
	}
	if n := s.value["path"]; n != nil {
		c.path = s.d.template(env, n, s.at("path"))
		if c.path != nil {
			first := c.path.parts[0]
			if first.expr != nil || !strings.HasPrefix(first.literal, "/") {
				s.d.addf(n, s.at("path"), "must start with /")
			}
			for _, p := range c.path.parts {
				if strings.ContainsAny(p.literal, "?# \t\r\n") {
					s.d.addf(n, s.at("path"), "must hold no ?, # or blank; use query")
				}
			}
		}
	} else if s.node != nil && !s.has("url") {
		s.d.addf(s.node, s.at("path"), "is missing: give path or url")
	}
	c.query = s.entries(env, "query")
	c.headers = s.entries(env, "headers")
	for _, h := range c.headers {
		if !validHeader(h.name) {
			s.d.addf(s.value["headers"], s.at("headers."+h.name), "is not a header a contract may set")
		}
	}
	if n := s.value["body"]; n != nil {
		c.body = s.d.payload(env, n, s.at("body"))
	} else if s.field == "create" {
		c.body = &payload{params: true}
	} else if s.field == "input" {
		c.body = &payload{input: true}
	}
	if b := c.body; b != nil && (b.form || b.parts != nil) {
		for _, h := range c.headers {
			if strings.EqualFold(h.name, "content-type") {
				s.d.addf(s.value["headers"], s.at("headers."+h.name), "is given by the body: a form or parts")
			}
		}
	}
	if c.method == "GET" {
		c.body = nil
		if s.has("body") && !s.none("body") {
			s.d.addf(s.value["body"], s.at("body"), "a GET has no body")
		}
	}
	if c.method == "GET" {
		c.redirects = 3
	}
	if s.has("redirects") {
		if c.method != "GET" {
			s.d.addf(s.value["redirects"], s.at("redirects"), "a call with side effects follows no redirect")
		}
		c.redirects = int(s.integer("redirects", 0, 10))
	}
	return c
}

func (s section) entries(env *cel.Env, name string) []entry {
	if !s.has(name) {
		return nil
	}
	m := s.d.section(s.value[name], s.at(name))
	var list []entry
	for _, k := range m.order {
		if t := s.d.template(env, m.value[k], m.at(k)); t != nil {
			list = append(list, entry{k, t})
		}
	}
	return list
}

// validHeader refuses names that are no token (RFC 9110 §5.6.2) and those the
// connection owns.
func validHeader(name string) bool {
	switch strings.ToLower(name) {
	case "", "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade",
		"proxy-authorization", "authorization", "cookie", "accept-encoding", "expect",
		"range", "if-range": // nobody here puts parts together
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r > 0x7e || r <= ' ' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// uses says whether any expression of the call names the variable.
func (k *call) uses(variable string) bool {
	if k == nil {
		return false
	}
	found := k.address != nil && k.address.uses[variable]
	see := func(t *template) {
		if t != nil {
			for _, p := range t.parts {
				found = found || p.expr != nil && p.expr.uses[variable]
			}
		}
	}
	see(k.path)
	for _, e := range k.query {
		see(e.value)
	}
	for _, e := range k.headers {
		see(e.value)
	}
	for _, e := range k.body.expressions() {
		found = found || e.uses[variable]
	}
	return found
}

// names are the variables of every scope, by name for the expressions. Those that
// a scope does not have are not asked for: the expression would not compile.
type names struct {
	in                  Inputs
	params, last, input any

	// What view adds for an answer.
	status  int
	headers map[string]string
	url     string
	body    any

	item any // of a look-up
}

// ResolveName implements [cel.Activation].
func (n *names) ResolveName(name string) (any, bool) {
	switch name {
	case "params":
		return n.params, true
	case "last":
		return n.last, true
	case "input":
		return n.input, true
	case "input_token":
		return n.in.InputToken, true
	case "token":
		return n.in.Token, true
	case "client_reference":
		return n.in.ClientReference, true
	case "callback_url":
		return n.in.CallbackURL, true
	case "job.id":
		return n.in.JobID, true
	case "job.status_url":
		return n.in.StatusURL, true
	case "page":
		return n.in.Page, true
	case "since":
		if n.in.Since.IsZero() {
			return types.OptionalNone, true
		}
		return types.OptionalOf(types.Int(n.in.Since.Unix())), true
	case "status":
		return int64(n.status), true
	case "headers":
		return n.headers, true
	case "url":
		return n.url, true
	case "body":
		return n.body, true
	case "item":
		return n.item, true
	}
	if value, ok := strings.CutPrefix(name, "prepared."); ok {
		return n.in.Prepared[value], true // "" for one that is not made yet
	}
	return nil, false
}

// Parent implements [cel.Activation].
func (*names) Parent() cel.Activation { return nil }

// requestVars are the variables of the request scope.
func (c *Contract) requestVars(in Inputs) (*names, error) {
	vars := &names{in: in, params: map[string]any{}, last: map[string]any{}, input: map[string]any{}}
	if len(in.Params) > 0 {
		v, err := decode(in.Params)
		if err != nil {
			return nil, fmt.Errorf("read parameters: %w", err)
		}
		vars.params = v
	}
	if len(in.Input) > 0 {
		v, err := decode(in.Input)
		if err != nil {
			return nil, fmt.Errorf("read the input: %w", err)
		}
		vars.input = v
	}
	if len(in.LastBody) > 0 {
		if v, err := decode(in.LastBody); err == nil {
			vars.last = v
		}
	}
	return vars, nil
}

// base is the URL calls go below, and the origins the credential may go to.
// With an override the contract's own base is no longer trusted.
func (c *Contract) base(in Inputs) (string, []string, error) {
	base := c.BaseURL
	if in.BaseURL != "" {
		base = in.BaseURL
	}
	origin, err := checkBase(base)
	if err != nil {
		return "", nil, fmt.Errorf("base URL: %w", err)
	}
	return strings.TrimRight(base, "/"), append([]string{origin}, c.Origins...), nil
}

func checkBase(base string) (origin string, err error) {
	origin, err = httprule.Origin(base)
	if strings.ContainsAny(base, "?# ") { // the other may be wrong as well
		more := errors.New("must hold no query, fragment or blank")
		if err != nil {
			more = fmt.Errorf("%w; %w", more, err)
		}
		return "", more
	}
	return origin, err
}

// allowed says whether a link may be called with the credential.
func allowed(link string, origins []string) bool {
	o, err := httprule.Origin(link)
	return err == nil && slices.Contains(origins, o)
}

func (c *Contract) build(k *call, in Inputs, limit int64) (Request, error) {
	if k == nil {
		return Request{}, ErrNoCall
	}
	vars, err := c.requestVars(in)
	if err != nil {
		return Request{}, err
	}
	base, origins, err := c.base(in)
	if err != nil {
		return Request{}, err
	}
	r := Request{Method: k.method, MaxBody: limit, FollowRedirects: k.redirects, Credential: c.Credential}
	link, err := k.address.text(vars)
	if err != nil {
		return Request{}, err
	}
	if link != "" {
		if link, err = httprule.ResolveLink(base+"/", link); err != nil {
			return Request{}, fmt.Errorf("%s.url: %w", k.field, err)
		}
		if !allowed(link, origins) {
			if r.Credential = (Credential{}); k.path != nil {
				link = "" // the documented path is trusted, the link is not
			}
		}
	}
	if r.URL = link; link == "" {
		r.Credential = c.Credential
		if r.URL, err = k.url(base, vars); err != nil {
			return Request{}, err
		}
	}
	if err := k.fill(&r, in, vars); err != nil {
		return Request{}, err
	}
	return r, nil
}

// url renders path and query.
func (k *call) url(base string, vars *names) (string, error) {
	if k.path == nil {
		return "", fmt.Errorf("%s.url: no link is known and the contract gives no path", k.field)
	}
	path, absent, err := k.path.render(vars, httprule.EscapeSegment)
	if err != nil {
		return "", err
	}
	if absent {
		// An empty segment would turn a call on one job into one on the list.
		return "", fmt.Errorf("%s.path: a part of the path has no value", k.field)
	}
	sep := "?"
	for _, q := range k.query {
		v, absent, err := q.value.render(vars, url.QueryEscape)
		if err != nil {
			return "", err
		}
		if !absent {
			path += sep + url.QueryEscape(q.name) + "=" + v
			sep = "&"
		}
	}
	if len(base)+len(path) > httprule.MaxURL {
		return "", fmt.Errorf("%s.path: the URL has more than %d bytes", k.field, httprule.MaxURL)
	}
	return base + path, nil
}

// fill adds headers and body.
func (k *call) fill(r *Request, in Inputs, vars *names) error {
	set := map[string]bool{}
	for _, h := range k.headers {
		v, absent, err := h.value.render(vars, func(s string) string { return s })
		if err != nil {
			return err
		}
		if absent {
			continue
		}
		if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return fmt.Errorf("%s.headers.%s: the value holds a control character", k.field, h.name)
		}
		r.Header = append(r.Header, Header{h.name, v})
		set[strings.ToLower(h.name)] = true
	}
	if k.body != nil {
		body, mediaType, err := k.body.bytes(in.Params, vars)
		if err != nil {
			return fmt.Errorf("%s.body: %w", k.field, err)
		}
		r.Body = body
		if !set["content-type"] {
			r.Header = append(r.Header, Header{"Content-Type", mediaType})
		}
	}
	if k.field != "result" && !set["accept"] {
		r.Header = append(r.Header, Header{"Accept", "application/json"})
	}
	return nil
}

// Create builds the request that makes the job. The same inputs give the same
// bytes, so that a repeat carries the same token and body.
func (c *Contract) Create(in Inputs) (Request, error) {
	if c.Token != nil && in.Token == "" {
		return Request{}, errors.New("create: the contract sends a token and none was given")
	}
	if c.create.uses("client_reference") && in.ClientReference == "" {
		return Request{}, errors.New("create: the contract sends a client reference and none was given")
	}
	if err := c.checkPrepared(in); err != nil {
		return Request{}, err
	}
	return c.build(c.create, in, c.Limits.Response)
}

// Status builds the request that reads the job's state.
func (c *Contract) Status(in Inputs) (Request, error) {
	return c.build(c.status, in, c.Limits.Response)
}

// Lookup builds the request that asks which jobs may be ours, or for the next
// page of that answer. ErrNoCall if the contract has no look-up, ErrOrigin if
// the page is a link to another origin.
func (c *Contract) Lookup(in Inputs) (Request, error) {
	if c.lookup == nil {
		return Request{}, ErrNoCall
	}
	if c.lookup.uses("client_reference") && in.ClientReference == "" || c.lookup.uses("token") && in.Token == "" {
		return Request{}, errors.New("lookup: the reference to look for was not given")
	}
	if in.Page == "" || c.lookupRead.next == nil {
		return c.build(c.lookup, in, c.Limits.Response)
	}
	_, origins, err := c.base(in)
	if err != nil {
		return Request{}, err
	}
	if !allowed(in.Page, origins) {
		return Request{}, fmt.Errorf("lookup: %w", ErrOrigin)
	}
	vars, err := c.requestVars(in)
	if err != nil {
		return Request{}, err
	}
	r := Request{Method: c.lookup.method, URL: in.Page, MaxBody: c.Limits.Response, FollowRedirects: c.lookup.redirects, Credential: c.Credential}
	return r, c.lookup.fill(&r, in, vars)
}

// Cancel builds the request that asks the provider to stop the job. ErrNoCall
// if the provider has none.
func (c *Contract) Cancel(in Inputs) (Request, error) {
	return c.build(c.cancel, in, c.Limits.Response)
}

// Result builds the request for the result. Where the result is found through
// the job's state (ResultFromStatus), it is a fresh status read. ErrNoCall if
// jobs have no result.
func (c *Contract) Result(in Inputs) (Request, error) {
	switch c.ResultSource {
	case ResultNone:
		return Request{}, ErrNoCall
	case ResultFromStatus:
		return c.Status(in)
	case ResultFromRequest:
	}
	return c.build(c.result, in, c.Limits.Result)
}

// ResultLink builds the request for one file a result reading named. The
// credential goes along only where the contract says that links need it and the
// link stays on an allowed origin.
func (c *Contract) ResultLink(link string, in Inputs) (Request, error) {
	_, origins, err := c.base(in)
	if err != nil {
		return Request{}, err
	}
	if _, err := httprule.Origin(link); err != nil {
		return Request{}, fmt.Errorf("result link: %w", err)
	}
	r := Request{Method: "GET", URL: link, MaxBody: c.Limits.Result, FollowRedirects: c.linkRedirects}
	if c.linkCredential && allowed(link, origins) {
		r.Credential = c.Credential
	}
	return r, nil
}
