// Package api is the HTTP face of the use cases: the agent API under /v1, the
// providers' way in under /hooks, /errors with what each code means, /healthz and
// /readyz.
//
// Specifications: RFC 9110 (conditional requests, 202, Retry-After), RFC 9457
// (problems), RFC 9530 (Content-Digest), RFC 7240 (Prefer: wait), RFC 8288
// (Link), draft-ietf-httpapi-idempotency-key-header-07. Every answer that is
// not a success is a problem document with a code (docs/ERRORS.md lists them), but
// that of /readyz.
//
// Guarantees: a body over the limit is refused before anything is read of it; a
// panic answers without detail; the log has the route, never the address, its
// query, a header or a body.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/webhook"
)

// Authenticator tells who calls.
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
	// Refused is told the code of every problem answered; nil tells nobody.
	Refused func(ingest.Code)
}

// answer is a success.
type answer struct {
	status int
	header map[string]string
	media  string // "" for JSON
	body   any    // []byte where media is set; nil for none
}

// call is one request on its way through a route.
type call struct {
	r         *http.Request
	w         http.ResponseWriter
	caller    ingest.Caller
	body      []byte
	trace     string // of the operation, where the answer shows it
	operation string // as named by the path; for the log once it was checked
}

// route is one line of the table of routes.
type route struct {
	method, path string
	body         bodyRule
	open         bool // no key needed
	handle       func(context.Context, *call) (answer, error)
}

// early says that it is answered before the service can do what it is asked for:
// it tells why.
func (r route) early() bool {
	return r.path == "/healthz" || r.path == "/readyz" || r.path == "/v1/doctor" || strings.HasPrefix(r.path, "/errors")
}

type bodyRule int

const (
	bodyNone bodyRule = iota // ignored
	bodyJSON
	bodyOptional // JSON or nothing
	bodyRaw
)

// handler serves the routes.
type handler struct {
	o Options
}

func (h *handler) routes() []route {
	list := []route{
		{"GET", "/healthz", bodyNone, true, h.alive},
		{"GET", "/errors", bodyNone, true, h.codes},
		{"GET", "/errors/{code}", bodyNone, true, h.code},
	}
	if h.o.Ready != nil {
		list = append(list, route{"GET", "/readyz", bodyNone, true, h.ready})
	}
	if h.o.Service != nil {
		list = append(list,
			route{"POST", "/v1/operations", bodyJSON, false, h.submit},
			route{"GET", "/v1/operations", bodyNone, false, h.list},
			route{"GET", "/v1/operations/{id}", bodyNone, false, h.get},
			route{"GET", "/v1/operations/{id}/timeline", bodyNone, false, h.timeline},
			route{"GET", "/v1/operations/{id}/result", bodyNone, false, h.result},
			route{"POST", "/v1/operations/{id}/cancel", bodyOptional, false, h.cancel},
			route{"POST", "/v1/operations/{id}/decisions", bodyJSON, false, h.decide},
			route{"POST", "/v1/operations/{id}/pause", bodyOptional, false, h.pause},
			route{"POST", "/v1/operations/{id}/resume", bodyOptional, false, h.resume},
			route{"GET", "/v1/holds", bodyNone, false, h.holds},
			route{"POST", "/v1/holds", bodyJSON, false, h.hold},
			route{"POST", "/v1/holds/release", bodyJSON, false, h.release},
			route{"GET", "/v1/capabilities", bodyNone, false, h.capabilities},
		)
	}
	if h.o.Doctor != nil {
		list = append(list, route{"GET", "/v1/doctor", bodyNone, false, h.doctor})
	}
	if h.o.Webhooks != nil {
		list = append(list,
			route{"POST", "/hooks/{provider}", bodyRaw, true, h.hook},
			route{"POST", "/hooks/{provider}/{id}", bodyRaw, true, h.hook},
		)
	}
	return list
}

// Handler serves the routes of the options.
func Handler(o Options) http.Handler {
	h := &handler{o}
	byPath := map[string][]route{}
	for _, r := range h.routes() {
		byPath[r.path] = append(byPath[r.path], r)
	}
	mux := http.NewServeMux()
	for p, routes := range byPath {
		mux.Handle(p, h.at(p, routes))
	}
	none := h.at("", nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would answer a path with dots or double slashes by a redirect,
		// and one without a route by plain text.
		if r.URL.Path != path.Clean("/"+r.URL.Path) || r.Method == http.MethodConnect {
			none.ServeHTTP(w, r)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			none.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// at serves one path: it finds the method, answers panics and logs.
func (h *handler) at(pattern string, routes []route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := h.o.Now()
		c := &call{r: r, w: w}
		out := &recorder{ResponseWriter: w}
		var err error
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
					panic(p)
				}
				// The text of a panic may quote what a caller sent.
				h.o.Log.ErrorContext(r.Context(), "request handler panicked", "route", pattern, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
				err = &ingest.Refusal{Code: ingest.CodeInternal}
				if out.status == 0 {
					writeProblem(out, r, err)
				}
			}
			h.log(c, pattern, out.status, h.o.Now().Sub(start), err)
		}()
		err = h.serve(c, out, routes)
		if err != nil && out.status == 0 {
			writeProblem(out, r, err)
		}
	})
}

func (h *handler) serve(c *call, w http.ResponseWriter, routes []route) error {
	method := c.r.Method
	if method == http.MethodHead {
		method = http.MethodGet // net/http drops the body
	}
	i := slices.IndexFunc(routes, func(r route) bool { return r.method == method })
	switch {
	case len(routes) == 0:
		return &ingest.Refusal{Code: ingest.CodeNotFound, Detail: "there is nothing at this address"}
	case i < 0:
		var allow []string
		for _, r := range routes {
			if allow = append(allow, r.method); r.method == http.MethodGet {
				allow = append(allow, http.MethodHead)
			}
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return &ingest.Refusal{Code: ingest.CodeMethodNotAllowed, Detail: "this address takes " + strings.Join(allow, ", "), Allowed: allow}
	}
	route := routes[i]
	if !route.open {
		caller, err := h.o.Keys.Authenticate(c.r.Header["Authorization"])
		if err != nil {
			return err
		}
		c.caller = caller
	}
	if !route.early() && !h.opened(c.r.Context()) {
		return &ingest.Refusal{
			Code: ingest.CodeUnavailable, RetryAfter: ingest.RetryUnavailable,
			Detail: "the service is not ready, and nothing was recorded: it starts or stops, or its store cannot write; /readyz says what is not well",
		}
	}
	c.operation = c.r.PathValue("id")
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
	switch shown := a.body.(type) {
	case ingest.View:
		c.trace = shown.Trace
	case ingest.TimelinePage:
		c.trace = shown.Trace
	}
	return a.write(w)
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

// readBody reads the whole body, or refuses it before it is kept.
func (c *call) readBody(rule bodyRule) error {
	if rule == bodyNone {
		return nil
	}
	limit := int64(ingest.MaxBody)
	tooLarge := &ingest.Refusal{Code: ingest.CodeBodyTooLarge, Detail: fmt.Sprintf("the body has more than %d bytes", limit)}
	if c.r.ContentLength > limit {
		// Under a caller who asked for the connection's end net/http resets it, and
		// the answer with it, while that caller still sends.
		_, _ = io.CopyN(io.Discard, c.r.Body, drained)
		return tooLarge
	}
	if rule == bodyJSON || rule == bodyOptional && c.r.ContentLength != 0 {
		media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
		if err != nil || media != "application/json" {
			return &ingest.Refusal{Code: ingest.CodeMediaType, Detail: "the body must be application/json"}
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case err != nil:
		return &ingest.Refusal{Code: ingest.CodeMalformedJSON, Detail: "the body ended early"}
	}
	c.body = body
	return nil
}

func (a answer) write(w http.ResponseWriter) error {
	common(w.Header())
	body, ok := a.body.([]byte)
	if !ok && a.body != nil {
		text, err := json.Marshal(a.body)
		if err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
		body, a.media = append(text, '\n'), "application/json"
	}
	if a.media != "" {
		w.Header().Set("Content-Type", a.media)
	}
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	if a.status == http.StatusNotModified || a.status == http.StatusNoContent {
		return nil
	}
	_, _ = w.Write(body) // the caller left; there is nobody to tell
	return nil
}

// common headers of every answer.
func common(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// recorder notes the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
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
func (h *handler) log(c *call, pattern string, status int, took time.Duration, err error) {
	args := []any{"method", safeMethod(c.r.Method), "route", pattern, "status", status, "ms", took.Milliseconds()}
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
	case err == nil && (c.r.Method == http.MethodGet || c.r.Method == http.MethodHead):
		// Who polls would bury the rest.
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
