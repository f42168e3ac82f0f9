// Package api is the HTTP face of the use cases: the agent API under /v1, the
// providers' way in under /hooks, /errors with what each code means, /healthz and
// /readyz.
//
// Specifications: RFC 9110 (conditional requests, 202, Retry-After), RFC 9457
// (problems), RFC 9530 (Content-Digest), RFC 7240 (Prefer: wait), RFC 8288
// (Link), draft-ietf-httpapi-idempotency-key-header-07. Every answer that is
// not a success is a problem document with a code (docs/ERRORS.md lists them), but
// that of /readyz. GET /openapi.json describes the routes of the table, all of them
// and no others.
//
// What net/http refuses before a handler runs is a problem, too (see refusingConn).
//
// Guarantees: a body over the limit is refused before anything is read of it; a
// panic answers without detail; the log has the route, never the address, its
// query, a header or a body.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/webhook"
)

// Authenticator tells who calls. That of API keys is [ingest.Keys]; another, for
// tokens or certificates, must give
//
//   - a principal, 1 to 64 of a-z, 0-9, _ and -, that names the same caller for ever,
//     also with the next token: operations and idempotency keys are its own. One that
//     two callers can come by makes them one;
//   - a key id, which facts record beside the principal: it tells tokens apart and is
//     no secret;
//   - scopes, from what its issuer says and not from what the caller asks for. Without
//     any the caller may do nothing;
//   - the teams, as they are now, if scopes among them go by teams;
//   - for whoever is nobody [ingest.Unauthenticated], in the same words whatever the
//     reason; and [ingest.KeysError] where it cannot tell.
//
// It is asked before anything else and for every request, while the store may not
// answer, so it needs neither the store nor the network for it.
type Authenticator interface {
	// Authenticate reads the values of the Authorization header.
	Authenticate(header []string) (ingest.Caller, error)
}

// Options of a handler. Webhooks may be nil: there is no way in for providers
// then. Service and Keys may be nil together: there is no agent API then.
type Options struct {
	Service  *ingest.Service
	Keys     Authenticator
	Webhooks *webhook.Receiver
	// Doctor looks at the service for operators. Nil: nobody can ask.
	Doctor *doctor.Doctor
	Log    *slog.Logger
	// Now measures how long a request took.
	Now func() time.Time
	// Ready says whether the service can do its work, and what /readyz shows of
	// it to anybody; nil means that there is no such page.
	Ready func(context.Context) (ready bool, report any)
	// Open is closed once the service can do what it is asked for. Whoever comes before
	// waits for it, but not for ever. Nil: it can.
	Open <-chan struct{}
	// Build is the program's version, for the description of the API.
	Build string
	// MCP answers at /mcp, for callers of Keys. Nil: there is no such address.
	MCP MCP
	// Hosts are what a Host header may say, beside names of this machine, of a
	// message to MCP that came in on a loopback address: through a proxy here.
	Hosts []string
	// Intents says that agents can publish intents by NATS.
	Intents bool
	// Refused is told the code of every problem answered; nil tells nobody.
	Refused func(ingest.Code)
}

// answer is a success.
type answer struct {
	status int
	header map[string]string
	media  string // "" for JSON
	body   any    // []byte where media is set; nil for none
	// written says that the route has answered by itself.
	written bool
	// stream writes the body until it ends. What it fails with comes too late for an
	// answer.
	stream func(http.ResponseWriter) error
	// later gives the answer instead of this after a wait.
	later func() (answer, error)
}

// call is one request on its way through a route.
type call struct {
	r         *http.Request
	w         http.ResponseWriter
	out       *recorder // w, and the status is noted
	pattern   string    // of the route
	began     time.Time
	caller    ingest.Caller
	q         query // the parameters, where the route is strict about them
	body      []byte
	trace     string    // of the operation, where the answer shows it
	operation string    // as named by the path; for the log once it was checked
	delivery  *delivery // nil but for those who call without a key and send a body
}

// route is one line of the table of routes.
type route struct {
	method, path string
	body         bodyRule
	open         bool // no key needed
	either       bool // with a key it says more than without
	person       bool // a browser may give the key as a password
	begins       bool // it begins operations, so that its answers tell what quotas leave
	handle       func(context.Context, *call) (answer, error)
	sheet        sheet
	query        []string // parameters it takes
	media        []string // types it answers with, where a caller may be refused for them
}

// strict says that a parameter that the route does not know is refused. Those who
// call without a key are providers, load balancers and browsers, which add some.
func (r route) strict() bool { return !r.open }

// beginning is the route as one that begins operations.
func (r route) beginning() route {
	r.begins = true
	return r
}

// early says that it is answered before the service can do what it is asked for:
// pages that are always the same, and what tells how the service is.
func (r route) early() bool {
	return r.open && r.body != bodyRaw || r.path == "/v1/doctor"
}

type bodyRule int

const (
	bodyNone bodyRule = iota // ignored
	bodyJSON
	bodyOptional // JSON or nothing
	bodyRaw
	bodyMessage // JSON, with room for what stands around a body
	bodyEvent   // a CloudEvent in one of its modes
)

// handler serves the routes.
type handler struct {
	o   Options
	mux *http.ServeMux
	// described gives what the routes are, and document that as it is sent. Most
	// processes are never asked for it, so it is made when one is.
	described func() *huma.OpenAPI
	document  func() page
	// eventsDocument gives what is told as it happens.
	eventsDocument func() page
	// For capabilities: which routes there are, "GET /v1/holds", and those that say
	// more without a key.
	serves    map[string]bool
	documents []string

	room room // of deliveries
}

func (h *handler) routes() []route {
	get := func(path string, open bool, handle func(context.Context, *call) (answer, error), s sheet) route {
		return route{method: http.MethodGet, path: path, open: open, handle: handle, sheet: s}
	}
	post := func(path string, body bodyRule, handle func(context.Context, *call) (answer, error), s sheet) route {
		return route{method: http.MethodPost, path: path, body: body, open: body == bodyRaw, handle: handle, sheet: s}
	}
	list := []route{
		get(indexPath, true, h.index, indexSheet()),
		get("/healthz", true, h.alive, aliveSheet()),
		get("/openapi.json", true, h.openapi, openapiSheet()),
		get(guidePath, true, h.llms, guideSheet()),
		get("/errors", true, h.codes, codesSheet()),
		get("/errors/{code}", true, h.code, codeSheet()),
	}
	if h.o.Ready != nil {
		list = append(list, get("/readyz", true, h.ready, readySheet()))
	}
	if h.o.Service != nil {
		list = append(list,
			get(eventsPath, true, h.asyncapi, asyncapiSheet()),
			get(catalogPath, true, h.catalog, catalogSheet()),
			post("/v1/operations", bodyJSON, h.submit, submitSheet()).beginning(),
			post("/v1/operations:batch", bodyJSON, h.batch, batchSheet()).beginning(),
			post("/v1/operations:cancel", bodyJSON, h.cancelBatch, cancelBatchSheet()),
			get("/v1/operations", false, h.list, listSheet()),
			get("/v1/operations/{id}", false, h.get, getSheet()),
			get("/v1/operations/{id}/events", false, h.watch, watchSheet()),
			get(eventPath, false, h.feed, feedSheet()),
			post(eventPath, bodyEvent, h.event, eventSheet()).beginning(),
			get("/v1/operations/{id}/timeline", false, h.timeline, timelineSheet()),
			get("/v1/operations/{id}/params", false, h.params, paramsSheet()),
			get("/v1/operations/{id}/result", false, h.result, resultSheet()),
			post("/v1/operations/{id}/cancel", bodyOptional, h.cancel, cancelSheet()),
			post("/v1/operations/{id}/decisions", bodyJSON, h.decide, decideSheet()),
			post("/v1/operations/{id}/input", bodyJSON, h.input, inputSheet()),
			post("/v1/operations/{id}/cleanup", bodyOptional, h.cleanup, cleanupSheet()),
			post("/v1/operations/{id}/pause", bodyOptional, h.pause, pauseSheet()),
			post("/v1/operations/{id}/resume", bodyOptional, h.resume, resumeSheet()),
			get("/v1/holds", false, h.holds, holdsSheet()),
			post("/v1/holds", bodyJSON, h.hold, holdSheet()),
			post("/v1/holds/release", bodyJSON, h.release, releaseSheet()),
			get("/v1/capabilities", false, h.capabilities, capabilitiesSheet()),
		)
		list[len(list)-1].either = true
		page := get("/operations/{id}", false, h.person, personSheet())
		page.person = true
		list = append(list, page)
	}
	if h.o.Doctor != nil {
		list = append(list, get("/v1/doctor", false, h.doctor, doctorSheet()))
	}
	if h.o.Webhooks != nil {
		list = append(list,
			post("/hooks/{provider}", bodyRaw, h.hook, hookSheet()),
			post("/hooks/{provider}/{id}", bodyRaw, h.hook, operationHookSheet()),
		)
	}
	return list
}

// pattern is how the mux writes a path. What ends in a slash is everything below it there.
func pattern(path string) string {
	if path == indexPath {
		return path + "{$}"
	}
	return path
}

// Handler serves the routes of the options.
func Handler(o Options) http.Handler { return newHandler(o) }

func newHandler(o Options) *handler {
	h := &handler{o: o, mux: http.NewServeMux(), serves: map[string]bool{}}
	api := newAPI(h.mux, o.Build)
	doc := api.OpenAPI()
	methods := map[string][]string{}
	routes := h.routes()
	for _, r := range routes {
		h.serves[r.method+" "+r.path] = true
		if r.open && r.method == http.MethodGet && !strings.Contains(r.path, "{") {
			h.documents = append(h.documents, r.path)
		}
		r.query, r.media = queryOf(r.sheet, doc.Components.Parameters), r.offers()
		serve := h.at(r.path, func(c *call) error { return h.serve(c, r) })
		api.Adapter().Handle(&huma.Operation{Method: r.method, Path: pattern(r.path), OperationID: r.sheet.id}, func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			serve(w, r)
		})
		if methods[r.path] = append(methods[r.path], r.method); r.method == http.MethodGet {
			methods[r.path] = append(methods[r.path], http.MethodHead)
		}
	}
	if h.o.MCP != nil {
		// It describes itself, to those who speak it.
		r := route{method: http.MethodPost, path: mcpPath, body: bodyMessage, handle: h.mcp}
		h.mux.Handle("POST "+mcpPath, h.at(mcpPath, func(c *call) error { return h.serve(c, r) }))
		methods[mcpPath] = []string{http.MethodPost}
	}
	// What the mux would answer by plain text is ours, too.
	for path, allow := range methods {
		h.mux.Handle(pattern(path), h.at(path, func(c *call) error {
			list := strings.Join(allow, ", ")
			c.out.Header().Set("Allow", list)
			return (&ingest.Refusal{Code: ingest.CodeMethodNotAllowed, Allowed: allow}).Say("this address takes {allowed}", nil)
		}))
	}
	h.mux.Handle("/", h.nothing())
	h.described = sync.OnceValue(func() *huma.OpenAPI {
		for _, r := range routes {
			doc.AddOperation(r.describe(doc))
		}
		tidy(doc)
		return doc
	})
	h.document = sync.OnceValue(func() page { return newPage(jsonType, written(h.described())) })
	h.eventsDocument = sync.OnceValue(func() page { return newPage(jsonType, asyncDocument(doc.Info.Version, h.o.Intents)) })
	return h
}

func noAddress() *ingest.Refusal {
	return &ingest.Refusal{Code: ingest.CodeNotFound, Detail: "there is nothing at this address"}
}

// nothing answers where there is no route.
func (h *handler) nothing() http.HandlerFunc {
	return h.at("", func(*call) error {
		return noAddress()
	})
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &recorder{ResponseWriter: w}
	h.route(out, r)
	for out.rest != nil {
		rest := out.rest
		out.rest = nil
		rest()
	}
}

func (h *handler) route(out *recorder, r *http.Request) {
	if r.ProtoMajor != 1 {
		// The preface of HTTP/2, which net/http hands on.
		h.at("", func(*call) error { return otherVersion() })(out, r)
		return
	}
	// The mux would answer a path with dots or double slashes by a redirect.
	if r.URL.Path != path.Clean("/"+r.URL.Path) || r.Method == http.MethodConnect {
		h.nothing()(out, r)
		return
	}
	h.mux.ServeHTTP(out, r)
}

// at serves one path.
func (h *handler) at(pattern string, serve func(*call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, ok := w.(*recorder)
		if !ok {
			panic("not what ServeHTTP hands on")
		}
		c := &call{r: r, w: out.ResponseWriter, out: out, pattern: pattern, began: h.o.Now()}
		h.do(c, serve)
	}
}

// do does a part of a request. It answers what that fails with, also by a panic, and logs
// unless there is a rest.
func (h *handler) do(c *call, part func(*call) error) {
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = h.panicked(c, p)
		}
		if c.out.rest == nil {
			h.log(c, err)
		}
	}()
	if err = part(c); err != nil && c.out.status == 0 {
		writeProblem(c.out, c.r, err)
	}
}

// panicked answers after a panic.
func (h *handler) panicked(c *call, p any) error {
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(p)
	}
	// The text of a panic may quote what a caller sent.
	h.o.Log.ErrorContext(c.r.Context(), "request handler panicked", "route", c.pattern, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	c.out.rest = nil
	err := &ingest.Refusal{Code: ingest.CodeInternal}
	if c.out.status == 0 {
		writeProblem(c.out, c.r, err)
	}
	return err
}

// rest leaves a part of a request to be done when what was called for it has returned. A
// stack is as large for as long as it was needed once, so whoever waits does it there.
func (h *handler) rest(c *call, part func(*call) error) {
	c.out.rest = func() { h.do(c, part) }
}

func (h *handler) serve(c *call, route route) (err error) {
	if !route.open && (!route.either || len(c.r.Header["Authorization"]) > 0) {
		header := c.r.Header["Authorization"]
		if route.person {
			header = asBearer(header)
		}
		caller, err := h.o.Keys.Authenticate(header)
		if err != nil {
			if route.person {
				c.out.Header().Set("WWW-Authenticate", `Basic realm="counterfoil: any name, and a key as password", charset="UTF-8"`)
			}
			return err
		}
		c.caller = caller
	}
	if route.begins {
		defer func() {
			if err != nil { // it is answered behind this
				rateLimit(c.out.Header(), h.o.Service.Quotas(c.caller))
			}
		}()
	}
	if !route.early() && !h.opened(c.r.Context()) {
		return &ingest.Refusal{
			Code: ingest.CodeUnavailable, RetryAfter: ingest.RetryUnavailable,
			Detail: "the service is not ready, and nothing was recorded: it starts or stops, or its store cannot write; /readyz says what is not well",
		}
	}
	c.operation = c.r.PathValue("id")
	if err := c.accepts(route.media); err != nil {
		return err
	}
	if route.strict() {
		q, err := c.query(route.query...)
		if err != nil {
			return err
		}
		c.q = q
	}
	if route.body == bodyRaw {
		if !h.o.Webhooks.Takes(c.r.PathValue("provider")) {
			return noAddress() // whoever calls needs no key, so no body of theirs is kept for nothing
		}
		d, err := h.room.enter()
		if err != nil {
			return err
		}
		defer d.leave()
		c.delivery = d
		_ = http.NewResponseController(c.w).SetReadDeadline(h.o.Now().Add(deliveryTime)) // not every writer has one
	}
	if err := c.readBody(route.body); err != nil {
		return err
	}
	// From here on the connection is watched for the caller's leaving, and the
	// server's limit on reading must not be taken for it.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // not every writer has one
	ctx := c.r.Context()
	if route.method == http.MethodPost {
		// A store that does not answer is tried for as long as ctx lives. The
		// caller repeats with the same key, which is safe.
		limited, stop := context.WithTimeout(ctx, storeTime)
		defer stop()
		ctx = limited
	}
	a, err := route.handle(ctx, c)
	if err != nil {
		return err
	}
	return h.finish(c, a, route.begins)
}

// finish writes an answer, or leaves a rest.
func (h *handler) finish(c *call, a answer, begins bool) error {
	if a.later != nil {
		h.rest(c, func(c *call) error {
			a, err := a.later()
			if err != nil {
				return err
			}
			return h.finish(c, a, begins)
		})
		return nil
	}
	if begins {
		rateLimit(c.out.Header(), h.o.Service.Quotas(c.caller))
	}
	if err := a.write(c.out); err != nil {
		return err
	}
	if a.stream != nil {
		h.rest(c, func(c *call) error { return a.stream(c.out) })
	}
	return nil
}

// opened waits until the service can do what it is asked for, and says whether it
// came to that within openTime, and before it was stopped.
func (h *handler) opened(ctx context.Context) bool {
	if h.o.Open == nil {
		return true
	}
	select { // a timer for each request would be wasted
	case <-h.o.Open:
		return true
	default:
	}
	ctx, stop := untilStopping(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	select {
	case <-h.o.Open:
		return true
	case <-ctx.Done():
		return false
	}
}

// drained is how many bytes of a body that is refused are read and thrown away,
// so that its sender comes to read the refusal.
const drained = 4 << 20

// unwanted bounds a body where none is taken.
const unwanted = 64 << 10

// readBody reads the whole body, or refuses it before it is kept.
func (c *call) readBody(rule bodyRule) error {
	if rule == bodyNone {
		return c.passOver()
	}
	limit := int64(ingest.MaxBody)
	switch rule {
	case bodyMessage:
		limit += mcpEnvelope
	case bodyEvent:
		limit += cloudevent.Envelope
	case bodyNone, bodyJSON, bodyOptional, bodyRaw:
	}
	if types := len(c.r.Header["Content-Type"]); types > 1 && rule != bodyRaw {
		return &ingest.Refusal{
			Code: ingest.CodeRequestMalformed, Detail: "there are several Content-Type headers, of which each reader may take another",
			Errors: []ingest.FieldError{ingest.Wrong("Content-Type", ingest.FieldDuplicate, "must be there once", nil)},
		}
	}
	if c.r.ContentLength > limit {
		// Under a caller who asked for the connection's end net/http resets it, and
		// the answer with it, while that caller still sends.
		_, _ = io.CopyN(io.Discard, c.r.Body, drained)
		return bodyTooLarge(limit)
	}
	if rule == bodyJSON || rule == bodyMessage || rule == bodyOptional && c.r.ContentLength != 0 {
		media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
		if err != nil || media != jsonType {
			return (&ingest.Refusal{Code: ingest.CodeMediaType, Allowed: []string{jsonType}}).Say("the body must be {allowed}", nil)
		}
	}
	if rule == bodyEvent {
		media := c.r.Header.Get("Content-Type")
		mode := cloudevent.ModeOf(media)
		if name, _, err := mime.ParseMediaType(media); mode == cloudevent.Unknown || mode == cloudevent.Binary && (err != nil || name != jsonType) {
			return (&ingest.Refusal{Code: ingest.CodeMediaType, Allowed: eventForms()}).Say("the body must be one of {allowed}", nil)
		}
	}
	var source io.Reader = http.MaxBytesReader(c.w, c.r.Body, limit)
	seconds := readTime.Seconds()
	if c.delivery != nil {
		source, seconds = c.delivery.reading(source), deliveryTime.Seconds()
	}
	body, err := io.ReadAll(source)
	if err := unread(err, limit, seconds); err != nil {
		return err
	}
	c.body = body
	return nil
}

// passOver reads a body that nobody asked for. Left alone, net/http would read it
// before it writes the answer, and by then nothing limits how long that takes.
func (c *call) passOver() error {
	if c.r.ContentLength == 0 {
		return nil
	}
	if c.r.ContentLength > unwanted {
		return bodyTooLarge(unwanted)
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(c.w, c.r.Body, unwanted))
	return unread(err, unwanted, readTime.Seconds())
}

// unread is the problem with a body that could not be read to its end; nil if it
// could.
func unread(err error, limit int64, seconds float64) error {
	var over *http.MaxBytesError
	var broken net.Error
	switch {
	case errors.As(err, &over):
		return bodyTooLarge(limit)
	case errors.Is(err, errNoRoom):
		return noRoom().Say("deliveries under way hold {max_bytes} bytes together, which is the most", ingest.Values{"max_bytes": mostDelivered})
	case errors.Is(err, os.ErrDeadlineExceeded):
		return (&ingest.Refusal{Code: ingest.CodeRequestTimeout}).Say("the whole request must have come within {seconds} seconds", ingest.Values{"seconds": int(seconds)})
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken):
		return &ingest.Refusal{Code: ingest.CodeBodyIncomplete, Detail: "the connection ended, or the caller stopped sending, before the body's end"}
	case err != nil:
		return &ingest.Refusal{Code: ingest.CodeRequestMalformed, Detail: "the chunks of the body, or what follows them, cannot be read"}
	}
	return nil
}

func bodyTooLarge(limit int64) *ingest.Refusal {
	return (&ingest.Refusal{Code: ingest.CodeBodyTooLarge}).Say("the body has more than {max_bytes} bytes", ingest.Values{"max_bytes": limit})
}

// write writes the answer, of a stream what stands before it.
func (a answer) write(w http.ResponseWriter) error {
	if a.written {
		return nil
	}
	common(w.Header())
	body, ok := a.body.([]byte)
	if !ok && a.body != nil {
		text, err := encode(a.body)
		if err != nil {
			return err
		}
		body, a.media = text, jsonType
	}
	if a.media != "" {
		w.Header().Set("Content-Type", a.media)
	}
	for name, value := range a.header {
		if name == "Link" {
			w.Header().Add(name, value)
			continue
		}
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	if a.stream != nil {
		return nil
	}
	if a.status == http.StatusNotModified || a.status == http.StatusNoContent {
		return nil
	}
	_, _ = w.Write(body) // the caller left; there is nobody to tell
	return nil
}

// serviceLinks lead every caller from any answer to what describes the service
// (RFC 8631).
func serviceLinks() []string {
	return []string{`</openapi.json>; rel="service-desc"`, `<` + guidePath + `>; rel="service-doc"`}
}

// common headers of every answer.
func common(h http.Header) {
	h["Link"] = serviceLinks()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// recorder notes the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
	rest   func() // what is left to do; see handler.rest
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// log writes one line for each request: the route and not the address, since
// people put secrets into addresses.
func (h *handler) log(c *call, err error) {
	args := []any{"method", safeMethod(c.r.Method), "route", c.pattern, "status", c.out.status, "ms", h.o.Now().Sub(c.began).Milliseconds()}
	if c.caller.Principal != "" {
		args = append(args, "principal", c.caller.Principal, "key", c.caller.KeyID)
	}
	if err != nil && h.o.Refused != nil {
		h.o.Refused(ingest.RefusalOf(err).Code)
	}
	var refusal *ingest.Refusal
	switch {
	case errors.As(err, &refusal):
		args = append(args, "code", refusal.Code)
		if refusal.Key != "" {
			args = append(args, "key", refusal.Key, "key_state", refusal.KeyState)
		}
		if refusal.Operation != "" {
			args = append(args, "operation", refusal.Operation)
		}
		if refusal.Trace != "" {
			args = append(args, "trace", refusal.Trace)
		}
	case err == nil && c.operation != "": // it was found, so it is an id and nothing else
		args = append(args, "operation", c.operation)
		if c.trace != "" {
			args = append(args, "trace", c.trace)
		}
	}
	ctx := c.r.Context()
	switch {
	case err != nil && refusal == nil:
		h.o.Log.ErrorContext(ctx, "request failed", append(args, "error", err)...)
	case err == nil && (c.r.Method == http.MethodGet || c.r.Method == http.MethodHead || c.pattern == mcpPath):
		// Who polls would bury the rest. A message to MCP has a line of its own.
		h.o.Log.DebugContext(ctx, "request", args...)
	default:
		h.o.Log.InfoContext(ctx, "request", args...)
	}
}

// safeMethod keeps a caller's invention out of the log.
func safeMethod(m string) string {
	if slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}, m) {
		return m
	}
	return "other"
}
