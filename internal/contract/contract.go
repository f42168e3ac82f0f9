// Package contract reads descriptions of provider endpoints and speaks their
// dialects: it builds every request to a provider and says what every answer
// means, in the ledger's own words.
//
// A contract is one YAML file per endpoint with expressions in CEL; the
// language is described in docs/CONTRACTS.md. Expressions are typed when the
// file is loaded, bounded in size, and bounded in cost when evaluated.
//
// Guarantees. A create answer counts as rejected only where the contract says
// that it proves that no job was made; everything unexpected is ambiguous. A
// missing field is an error that is recorded, never false. Numbers are read
// without floats, so a job id keeps its digits. A link from an answer is called
// with the credential only on the contract's own origins. The guarantee after a
// lost answer is computed from what the contract backs, never declared.
//
// Everything here is a pure function of its arguments: no clock, no network,
// no state. A Contract is not changed after Parse and safe for concurrent use.
//
// Limits: one call makes one job; what comes before it can be repeated safely.
package contract

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

// Version is the language this package reads.
const Version = 1

// Contract is one provider endpoint, checked.
type Contract struct {
	Name       string
	Title      string
	File       string
	Digest     events.Digest // of the file's bytes
	BaseURL    string
	Origins    []string // further origins the credential may go to
	Credential Credential
	Params     Params
	// InputParams is what an answer to a job that waits may hold.
	InputParams Params
	Token       *TokenRule // nil: the provider takes none
	Webhook     *Webhook   // nil: the provider calls nobody back
	Limits      Limits
	// Calls is what may be asked of one account at once and in a stretch of time.
	Calls budget.Limits
	// ResultSource is where a finished job's result is found.
	ResultSource ResultSource

	promises  events.Promises
	offers    events.Offers
	late      time.Duration // how long a new job may be missing from a look-up
	settle    time.Duration
	pacing    pacing
	deadlines deadlines
	second    string    // what a second create with the same token does
	cost      *costRule // nil: it does not say
	expect    *cel.Env  // of callers' expectations; made once, since it takes longer than all else of one

	prepares                               []preparation
	create, status, lookup, cancel, result *call
	input, cleanup                         *call

	errors     shared
	createRead createRead
	statusRead statusRead
	lookupRead lookupRead
	cancelRead cancelRead
	resultRead resultRead

	inputRead, cleanupRead furtherRead

	classes        map[string]events.Class // by folded word
	otherwise      events.Class
	linkRedirects  int
	linkCredential bool
}

// ResultSource is where a finished job's result is found.
type ResultSource string

// Sources.
const (
	ResultNone        ResultSource = "none"    // jobs have no result
	ResultFromRequest ResultSource = "request" // a call of its own
	ResultFromStatus  ResultSource = "status"  // a fresh status read gives links or the value
)

// Limits bound answers in bytes.
type Limits struct {
	Response int64 // create, status, look-up, cancel, input, cleanup
	Result   int64 // result and result files
}

// TokenRule is how the provider treats an idempotency token.
type TokenRule struct {
	Form   TokenForm
	Window time.Duration // how long it is honoured; 0 = for ever
}

// Webhook is how the provider signs its calls to us. Verifying is done by the
// package that receives them.
type Webhook struct {
	Scheme string // hmac-sha256-hex, standard-webhooks
	Header string // of the signature; "" where the scheme fixes it
	Prefix string // before the signature in the header
	// InURL says that our reference comes back in the address the provider
	// calls, since the create passes that address.
	InURL bool

	eventID, kind, jobID, state, reference *expression
}

// Parse reads a contract. On error it is a *ParseError with all problems found.
// file is the name shown in problems.
func Parse(file string, src []byte) (*Contract, error) {
	d := &document{file: file}
	root := d.read(src)
	if root == nil {
		return nil, d.err()
	}
	env, err := newScopes()
	if err != nil {
		// The declarations are constants: they are wrong for every file or none.
		panic(fmt.Sprintf("contract: expression scopes: %v", err))
	}
	p := &parser{d: d, env: env, c: &Contract{File: file, Digest: events.Sum(src), expect: env.expect}}
	p.contract(root)
	if err := d.err(); err != nil {
		return nil, err
	}
	return p.c, nil
}

type parser struct {
	d   *document
	env *scopes
	c   *Contract
}

func (p *parser) contract(root *yaml.Node) {
	s := p.d.section(root, "", "contract", "name", "title", "base_url", "origins", "credential", "params", "errors", "token",
		"create", "status", "classes", "lookup", "cancel", "input", "cleanup", "result", "webhook", "promises", "pacing", "deadlines", "limits", "cost")
	if len(s.order) == 0 {
		if p.d.err() == nil {
			p.d.addf(root, "", "the file is empty")
		}
		return
	}
	if s.need("contract", ": the version of the language, 1") && s.text("contract") != "1" {
		p.d.addf(s.value["contract"], "contract", "is %q; this program reads version %d", clip(s.text("contract"), 20), Version)
	}
	c := p.c
	if s.need("name", "") {
		c.Name = s.text("name")
		if !ValidName(c.Name) {
			p.d.addf(s.value["name"], "name", "is %q; must be 1 to 64 of a-z, 0-9, _ and -", clip(c.Name, 80))
		}
	}
	c.Title = s.text("title")
	p.where(s)
	c.Params = p.paramsOf(s)
	if s.has("errors") {
		c.errors = p.shared(p.d.section(s.value["errors"], "errors", sharedFields...), p.env.answer)
	}
	if s.need("create", "") {
		p.create(s.value["create"])
	}
	if s.need("status", "") {
		p.status(s.value["status"])
	}
	p.words(s)
	if s.has("lookup") && !s.none("lookup") {
		p.lookup(s.value["lookup"])
	}
	if s.need("cancel", ": write none where the provider has no cancel") && !s.none("cancel") {
		p.cancel(s.value["cancel"])
	}
	if s.has("input") && !s.none("input") {
		p.input(s)
	}
	if s.has("cleanup") && !s.none("cleanup") {
		p.cleanup(s)
	}
	c.ResultSource = ResultNone
	if s.need("result", ": write none where jobs have no result") && !s.none("result") {
		p.result(s.value["result"])
	}
	if s.has("webhook") && !s.none("webhook") {
		p.webhook(s.value["webhook"])
	}
	p.pacing(s)
	c.Limits = Limits{maxChecked, 64 << 20}
	if s.has("limits") {
		l := p.d.section(s.value["limits"], "limits", "response", "result", "concurrency", "per_second", "per_minute")
		c.Limits = Limits{l.bytes("response", maxChecked, maxChecked), l.bytes("result", 64<<20, 256<<20)}
		c.Calls = budget.Limits{Concurrency: int(l.integer("concurrency", 1, budget.MaxSlots))}
		if l.has("per_second") {
			c.Calls.Requests, c.Calls.Per = int(l.integer("per_second", 1, budget.MaxRequests)), time.Second
		}
		if l.has("per_minute") {
			c.Calls.Requests, c.Calls.Per = int(l.integer("per_minute", 1, budget.MaxRequests)), time.Minute
		}
		if l.has("per_second") && l.has("per_minute") {
			p.d.addf(l.node, "limits", "per_second and per_minute exclude each other: give the one the provider names")
		}
	}
	p.cost(s)
	p.promises(s)
}

// ValidName says whether s may name a provider, an account or a principal.
func ValidName(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

// where reads base URL, origins and credential.
func (p *parser) where(s section) {
	c := p.c
	if s.need("base_url", "") {
		c.BaseURL = s.text("base_url")
		if _, err := checkBase(c.BaseURL); err != nil {
			p.d.addf(s.value["base_url"], "base_url", "%v", err)
		}
	}
	for i, o := range s.texts("origins") {
		origin, err := httprule.Origin(o)
		if err != nil {
			p.d.addf(s.value["origins"], fmt.Sprintf("origins[%d]", i), "%v", err)
			continue
		}
		c.Origins = append(c.Origins, origin)
	}
	if !s.need("credential", ": write none where the provider asks for none") || s.none("credential") {
		return
	}
	cr := p.d.section(s.value["credential"], "credential", "header", "format", "query", "basic")
	given := 0
	for _, k := range []string{"header", "query", "basic"} {
		if cr.has(k) {
			given++
		}
	}
	if cr.node != nil && given != 1 {
		p.d.addf(cr.node, "credential", "give exactly one of header, query, basic")
		return
	}
	if cr.has("format") && !cr.has("header") {
		p.d.addf(cr.value["format"], "credential.format", "goes with header only")
	}
	switch {
	case cr.has("header"):
		c.Credential = Credential{Place: PlaceHeader, Name: cr.text("header")}
		if lower := strings.ToLower(c.Credential.Name); !validHeader(c.Credential.Name) && lower != "authorization" {
			p.d.addf(cr.value["header"], "credential.header", "is not a header a credential may go in")
		}
		if cr.has("format") {
			var ok bool
			c.Credential.Before, c.Credential.After, ok = strings.Cut(cr.text("format"), "{secret}")
			if !ok || strings.Contains(c.Credential.After, "{secret}") {
				p.d.addf(cr.value["format"], "credential.format", "must hold {secret} once, like Bearer {secret}")
			}
		}
	case cr.has("query"):
		c.Credential = Credential{Place: PlaceQuery, Name: cr.text("query")}
		if c.Credential.Name == "" {
			p.d.addf(cr.value["query"], "credential.query", "is empty")
		}
	case cr.has("basic"):
		if !cr.flag("basic") {
			p.d.addf(cr.value["basic"], "credential.basic", "must be true: the secret is user:password")
		}
		c.Credential = Credential{Place: PlaceBasic}
	}
}

// words reads the classes of the provider's state words.
func (p *parser) words(s section) {
	c := p.c
	c.otherwise = events.ClassUnknown
	c.classes = map[string]events.Class{}
	if !s.has("classes") {
		if c.statusRead.class == nil && s.has("status") {
			s.need("classes", ": give classes, or status.read.class")
		}
		return
	}
	names := make([]string, len(knownClasses))
	for i, k := range knownClasses {
		names[i] = string(k)
	}
	w := p.d.section(s.value["classes"], "classes", append(names, "otherwise")...)
	if w.has("otherwise") {
		c.otherwise = events.Class(w.oneOf("otherwise", "unknown", "running"))
	}
	for _, name := range w.order {
		if name == "otherwise" {
			continue
		}
		for i, word := range w.texts(name) {
			f := fold(word)
			field := fmt.Sprintf("classes.%s[%d]", name, i)
			switch {
			case f == "":
				p.d.addf(w.value[name], field, "is empty")
			case c.classes[f] != "" && c.classes[f] != events.Class(name):
				p.d.addf(w.value[name], field, "the word %q is in class %s already; case and blanks around a word do not count", word, c.classes[f])
			default:
				c.classes[f] = events.Class(name)
			}
		}
	}
	ended := false
	for _, class := range c.classes {
		ended = ended || class == events.ClassSucceeded || class == events.ClassPartial
	}
	if !ended && c.statusRead.class == nil && w.node != nil {
		p.d.addf(w.node, "classes", "no word is in class succeeded or partial: no job could ever succeed")
	}
}

// knownClasses are those a contract may give a word.
var knownClasses = []events.Class{
	events.ClassQueued, events.ClassRunning, events.ClassInputRequired, events.ClassSucceeded, events.ClassPartial,
	events.ClassFailed, events.ClassCancelled, events.ClassExpired,
}

// fold is how state words are compared: ASCII letters in lower case, blanks
// around the word dropped, everything else exact.
func fold(word string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, strings.Trim(word, " \t\r\n"))
}

func (p *parser) create(n *yaml.Node) {
	s := p.d.section(n, "create", append([]string{"prepare"}, callFields...)...)
	if s.has("prepare") {
		p.prepares(s.value["prepare"])
	}
	p.c.create = s.call(p.env.request, "POST")
	if s.has("url") {
		p.d.addf(s.value["url"], "create.url", "a create goes to a path of the contract, never to a link")
	}
	if !s.need("read", "") {
		return
	}
	r := p.d.section(s.value["read"], "create.read", slices.Concat(sharedFields,
		[]string{"accepted", "job_id", "status_url", "state", "completed", "conflict", "in_progress", "rejected", "echo_differs"})...)
	env := p.env.answer
	p.c.createRead = createRead{
		shared:     p.shared(r, env),
		accepted:   r.expression(env, "accepted", boolean),
		jobID:      r.expression(env, "job_id", text),
		statusURL:  r.expression(env, "status_url", text),
		state:      r.expression(env, "state", text),
		completed:  r.expression(env, "completed", boolean),
		conflict:   r.expression(env, "conflict", boolean),
		inProgress: r.expression(env, "in_progress", boolean),
		rejected:   r.expression(env, "rejected", boolean),
		echoDiffer: r.expression(env, "echo_differs", boolean),
	}
	r.need("accepted", ": which answers say that the job was made")
	r.need("job_id", ": where the job's id is")
	r.need("rejected", ": which answers prove that no job was made; write \"false\" if none do")
}

func (p *parser) status(n *yaml.Node) {
	s := p.d.section(n, "status", callFields...)
	p.c.status = s.call(p.env.request, "GET")
	if !s.need("read", "") {
		return
	}
	r := p.d.section(s.value["read"], "status.read", slices.Concat(sharedFields,
		[]string{"ok", "job_id", "state", "class", "updated_at", "progress", "no_result", "input_url", "input_text"})...)
	env := p.env.answer
	p.c.statusRead = statusRead{
		shared:    p.shared(r, env),
		ok:        r.expression(env, "ok", boolean),
		jobID:     r.expression(env, "job_id", text),
		state:     r.expression(env, "state", text),
		class:     r.expression(env, "class", text),
		updatedAt: r.expression(env, "updated_at", moment),
		progress:  r.expression(env, "progress", text),
		noResult:  r.expression(env, "no_result", boolean),
		inputURL:  r.expression(env, "input_url", text),
		inputText: r.expression(env, "input_text", text),
	}
	r.need("state", ": the provider's own word for the job's state")
}

func (p *parser) lookup(n *yaml.Node) {
	s := p.d.section(n, "lookup", append([]string{"answers", "conclusive", "late", "order"}, callFields...)...)
	c := p.c
	c.lookup = s.call(p.env.request, "GET")
	if s.need("answers", ": exact if each job carries our reference, else candidates") {
		c.promises.Lookup = events.Lookup(s.oneOf("answers", "exact", "candidates"))
	}
	c.promises.LookupConclusive = s.flag("conclusive")
	c.late = s.duration("late", 0, 24*time.Hour)
	if !s.need("read", "") {
		return
	}
	r := p.d.section(s.value["read"], "lookup.read", slices.Concat(sharedFields,
		[]string{"ok", "absent", "items", "job_id", "status_url", "created_at", "exact", "match", "next", "next_page"})...)
	env, item := p.env.answer, p.env.item
	c.lookupRead = lookupRead{
		shared:    p.shared(r, env),
		ok:        r.expression(env, "ok", boolean),
		absent:    r.expression(env, "absent", boolean),
		items:     r.expression(env, "items", list),
		next:      r.expression(env, "next", text),
		nextPage:  r.expression(env, "next_page", text),
		jobID:     r.expression(item, "job_id", text),
		statusURL: r.expression(item, "status_url", text),
		createdAt: r.expression(item, "created_at", moment),
		exact:     r.expression(item, "exact", boolean),
		match:     r.expression(item, "match", boolean),
	}
	r.need("items", ": the list of jobs in the answer")
	r.need("job_id", ": the id of one item")
	if r.has("next") && r.has("next_page") {
		p.d.addf(r.value["next_page"], "lookup.read.next_page", "give next (a link) or next_page (a token), not both")
	}
	if s.has("order") {
		c.lookupRead.newestFirst = s.oneOf("order", "newest_first") != ""
		if !r.has("created_at") {
			p.d.addf(s.value["order"], "lookup.order", "claims more than the contract backs: newest_first needs lookup.read.created_at, which tells the age of an item")
		}
	}
	if r.has("next_page") && !c.lookup.uses("page") {
		p.d.addf(r.value["next_page"], "lookup.read.next_page", "the request never uses page, so every page would be the first")
	}
}

func (p *parser) cancel(n *yaml.Node) {
	s := p.d.section(n, "cancel", append([]string{"repeat"}, callFields...)...)
	c := p.c
	c.cancel = s.call(p.env.request, "POST")
	c.promises.Cancels = true
	if s.need("repeat", ": safe or once") {
		c.promises.RepeatCancel = s.oneOf("repeat", "safe", "once") == "safe"
	}
	if !s.need("read", "") {
		return
	}
	r := p.d.section(s.value["read"], "cancel.read", slices.Concat(sharedFields,
		[]string{"confirmed", "acknowledged", "too_late", "refused", "unsupported", "state"})...)
	env := p.env.answer
	c.cancelRead = cancelRead{
		shared:       p.shared(r, env),
		confirmed:    r.expression(env, "confirmed", boolean),
		acknowledged: r.expression(env, "acknowledged", boolean),
		tooLate:      r.expression(env, "too_late", boolean),
		refused:      r.expression(env, "refused", boolean),
		unsupported:  r.expression(env, "unsupported", boolean),
		state:        r.expression(env, "state", text),
	}
	if !r.has("confirmed") {
		r.need("acknowledged", ": which answers say that the wish was taken")
	}
}

func (p *parser) result(n *yaml.Node) {
	known := append([]string{"from", "repeat", "value", "links", "link_redirects", "link_credential", "link_checks", "link_media_types", "checks", "media_types"}, callFields...)
	s := p.d.section(n, "result", known...)
	c := p.c
	c.promises.HasResult = true
	c.ResultSource = ResultFromRequest
	if s.need("from", ": request or status") {
		c.ResultSource = ResultSource(s.oneOf("from", "request", "status"))
	}
	if s.need("repeat", ": safe or once") {
		c.promises.RepeatResult = s.oneOf("repeat", "safe", "once") == "safe"
	}
	env := p.env.answer
	read := section{d: p.d, field: "result.read", value: map[string]*yaml.Node{}}
	if s.has("read") {
		read = p.d.section(s.value["read"], "result.read", slices.Concat(sharedFields, []string{"ok", "not_ready", "expired"})...)
	}
	c.resultRead = resultRead{
		shared:         p.shared(read, env),
		ok:             read.expression(env, "ok", boolean),
		notReady:       read.expression(env, "not_ready", boolean),
		expired:        read.expression(env, "expired", boolean),
		links:          s.expression(env, "links", named),
		checks:         p.checks(s, "checks"),
		linkChecks:     p.checks(s, "link_checks"),
		mediaTypes:     p.mediaTypes(s, "media_types"),
		linkMediaTypes: p.mediaTypes(s, "link_media_types"),
	}
	c.linkRedirects = 3
	if s.has("link_redirects") {
		c.linkRedirects = int(s.integer("link_redirects", 0, 10))
	}
	c.linkCredential = s.flag("link_credential")
	if s.has("value") {
		v := jsontext.Pointer(s.text("value"))
		if !v.IsValid() {
			p.d.addf(s.value["value"], "result.value", "must be a JSON pointer, like /output")
		}
		c.resultRead.value, c.resultRead.hasValue = v, true
	}
	if c.ResultSource == ResultFromRequest {
		c.result = s.call(p.env.request, "GET")
		for _, k := range []string{"value", "links"} {
			if s.has(k) {
				p.d.addf(s.value[k], s.at(k), "goes with from: status only")
			}
		}
		return
	}
	for _, k := range []string{"method", "url", "path", "query", "headers", "body", "redirects"} {
		if s.has(k) {
			p.d.addf(s.value[k], s.at(k), "goes with from: request only; a status read brings this result")
		}
	}
	if s.node != nil && !s.has("value") && !s.has("links") {
		p.d.addf(s.node, "result", "from: status needs links, value, or both")
	}
}

func (p *parser) webhook(n *yaml.Node) {
	s := p.d.section(n, "webhook", "scheme", "header", "prefix", "event_id", "type", "job_id", "state", "reference", "reference_in_url")
	w := &Webhook{Header: s.text("header"), Prefix: s.text("prefix"), InURL: s.flag("reference_in_url")}
	if s.need("scheme", "") {
		w.Scheme = s.oneOf("scheme", "hmac-sha256-hex", "standard-webhooks")
	}
	if w.Scheme == "hmac-sha256-hex" {
		s.need("header", ": the header that holds the signature")
	}
	if w.Header != "" && !validHeader(w.Header) {
		p.d.addf(s.value["header"], "webhook.header", "is not a header name")
	}
	env := p.env.hook
	w.eventID = s.expression(env, "event_id", text)
	w.kind = s.expression(env, "type", text)
	w.jobID = s.expression(env, "job_id", text)
	w.state = s.expression(env, "state", text)
	w.reference = s.expression(env, "reference", text)
	if s.node != nil && w.jobID == nil && w.reference == nil && !w.InURL {
		p.d.addf(s.node, "webhook", "names neither a job nor our reference: give job_id, reference or reference_in_url")
	}
	unclear := p.d.broken("create")
	if w.InURL && !unclear && !p.c.create.uses("callback_url") {
		p.d.addf(s.value["reference_in_url"], "webhook.reference_in_url", "claims more than the contract backs: the create never sends callback_url")
	}
	if w.reference != nil && !unclear && !p.c.sendsReference() {
		p.d.addf(s.value["reference"], "webhook.reference", "claims more than the contract backs: the create sends neither client_reference nor token")
	}
	p.c.Webhook = w
	p.c.promises.WebhookNamesJob = w.InURL || w.reference != nil
}

// sendsReference says whether the provider gets something of ours to store.
func (c *Contract) sendsReference() bool {
	return c.create.uses("client_reference") || c.create.uses("token")
}
