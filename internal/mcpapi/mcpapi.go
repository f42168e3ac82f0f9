// Package mcpapi is the face of the use cases for agents that speak the Model
// Context Protocol: the same operations as the HTTP API, as tools.
//
// One set of tools serves two ways in: /mcp of the service ([Handler]), and
// standard input and output of a process beside the agent ([Serve]), which talks
// to a running service. What they need of the service is [UseCases].
//
// Specifications: MCP revisions 2026-07-28 (stateless) back to 2024-11-05, as the
// official SDK negotiates them; extension io.modelcontextprotocol/tasks of
// 2026-07-28; RFC 9457 for what a failed call answers as structured content.
//
// Guarantees. The arguments of a tool are read by the service's own strict parser:
// what submit_operation gets, less its idempotency_key, is the body of
// POST /v1/operations, byte for byte, and has the same fingerprint. A refusal is a
// result with isError and the problem document; JSON-RPC errors are for requests
// that are none of ours. A panic in a tool answers without detail. The log has
// the tool, never its arguments.
package mcpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

const (
	// toolsTime is how long a client may keep the list of tools: a caller's rights
	// change seldom.
	toolsTime = time.Minute

	// storeTime bounds what a tool stores, as the HTTP API bounds a POST. The
	// caller repeats with the same key, which is safe.
	storeTime = 20 * time.Second
)

const instructions = `Counterfoil runs jobs at providers and writes every intent down before acting on it.
1. get_capabilities: providers, their parameters, and what you may do.
2. submit_operation with an idempotency_key of your own: keep it, and after a lost answer call again with the same key and arguments. It never starts a second job.
3. wait_operation until done is true, then get_result.
4. done without terminal means that a person or you must decide: read because and allowed, then decide_operation.
A failed call has isError and a problem document: retryable says whether the same call may succeed later; hint says what to do.`

// Options of the tools. Log and Now are required.
type Options struct {
	Build string // program version
	Log   *slog.Logger
	Now   func() time.Time // measures how long a call took
	// Base stands before addresses of the service in answers, "http://host:port";
	// "" leaves them relative to where the caller found it.
	Base string
	// Stopping ends when those who only wait must stop; nil means never.
	Stopping context.Context //nolint:containedctx // the process's, not a call's
	// Refused is told the code of every problem answered; nil tells nobody.
	Refused func(ingest.Code)
}

// caller is who a session of the protocol acts for.
type caller struct {
	use       UseCases
	principal string // "" where the service knows, and we do not
	keyID     string
	trace     string // W3C trace context of the request; "" if it has none
	// may gives what says whether the tool is one the caller can use.
	may func(context.Context) func(tool string) bool
}

type callerKey struct{}

func withCaller(ctx context.Context, c *caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf gives the caller whom [Handler] or [Serve] put there.
func callerOf(ctx context.Context) *caller { return ctx.Value(callerKey{}).(*caller) }

// server is the tools as the SDK serves them. It is safe for concurrent use.
type server struct {
	o     Options
	sdk   *mcp.Server
	tools []tool
}

func newServer(o Options) *server {
	s := &server{o: o}
	capabilities := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}
	capabilities.AddExtension(tasksExtension, map[string]any{})
	s.sdk = mcp.NewServer(&mcp.Implementation{Name: "counterfoil", Title: "Counterfoil", Version: o.Build}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: capabilities,
		// What a caller may use is its own business: no intermediary may give one
		// caller's list to another.
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.CacheScope, c.TTLMs = "private", int(toolsTime.Milliseconds())
		},
	})
	s.tools = s.table()
	for _, t := range s.tools {
		s.sdk.AddTool(t.described(), s.handler(t))
	}
	s.addTasks()
	s.sdk.AddReceivingMiddleware(s.filterTools, refuseSubscriptions)
	s.sdk.AddReceivingMiddleware(s.recoverPanics) // the last one added is the outermost
	return s
}

// filterTools leaves out of the list what the caller cannot use. Whoever calls
// such a tool nevertheless is refused by the use case, which says what it takes.
func (s *server) filterTools(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		list, ok := result.(*mcp.ListToolsResult)
		if err != nil || !ok {
			return result, err
		}
		may := callerOf(ctx).may(ctx)
		kept := []*mcp.Tool{}
		for _, t := range list.Tools {
			if may(t.Name) {
				kept = append(kept, t)
			}
		}
		list.Tools = kept
		return list, nil
	}
}

// refuseSubscriptions answers who wants to be told of changes: nothing here sends any,
// and a stream that stays open for nothing would keep the service from stopping.
func refuseSubscriptions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "subscriptions/listen" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "there is nothing to subscribe to: call " + ToolWait}
		}
		return next(ctx, method, req)
	}
}

// recoverPanics keeps a panic in one call from ending the process: the SDK runs
// calls on goroutines of its own.
func (s *server) recoverPanics(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				// The text of a panic may quote what a caller sent.
				s.o.Log.ErrorContext(ctx, "MCP call panicked", "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
				s.refused(ingest.CodeInternal)
				result, err = nil, internalError()
			}
		}()
		return next(ctx, method, req)
	}
}

func (s *server) refused(code ingest.Code) {
	if s.o.Refused != nil {
		s.o.Refused(code)
	}
}

// Handler serves the tools over streamable HTTP, without sessions: each request
// stands for itself. It is safe for concurrent use.
type Handler struct {
	server  *server
	http    http.Handler
	service *ingest.Service
}

// NewHandler makes a Handler over the service in this process.
func NewHandler(o Options, service *ingest.Service) *Handler {
	h := &Handler{server: newServer(o), service: service}
	h.http = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return h.server.sdk }, &mcp.StreamableHTTPOptions{
		Stateless: true,
		// Whoever left cannot be answered, and may repeat what it asked with its key.
		PropagateRequestCancellation: true,
		// Who serves us checks the Host header and the size of bodies.
		DisableLocalhostProtection: true,
		MaxRequestBodyBytes:        -1,
	})
	return h
}

// ServeCaller answers one POST of an authenticated caller. Whoever serves it has
// bounded the body. An error is a refusal that is still to be answered: nothing was
// written then.
func (h *Handler) ServeCaller(w http.ResponseWriter, r *http.Request, c ingest.Caller) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return &ingest.Refusal{Code: ingest.CodeProtocol, Detail: "the body ended early"}
	}
	if err := checkEnvelope(body); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	who := &caller{
		use: InProcess(h.service, c), principal: c.Principal, keyID: c.KeyID,
		trace: r.Header.Get("Traceparent"),
		may: func(context.Context) func(string) bool {
			return func(tool string) bool {
				actions := rightsFor(tool)
				return len(actions) == 0 || slices.ContainsFunc(actions, func(a ingest.Action) bool {
					return h.service.May(c, ingest.Right{Action: a}) == nil
				})
			}
		},
	}
	held := &heldBack{ResponseWriter: w}
	h.http.ServeHTTP(held, r.WithContext(withCaller(r.Context(), who)))
	if held.status == 0 {
		return nil
	}
	return (&ingest.Refusal{Code: ingest.CodeProtocol}).Say("{cause}", ingest.Values{"cause": clip(strings.TrimSpace(held.text.String()))})
}

// heldBack keeps what the SDK answers in plain text, so that it can be answered as
// a problem.
type heldBack struct {
	http.ResponseWriter
	status int // of what is kept; 0: nothing is
	text   strings.Builder
}

func (w *heldBack) WriteHeader(status int) {
	if status >= http.StatusBadRequest && strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		w.status = status
		for _, name := range []string{"Content-Type", "X-Content-Type-Options"} {
			w.Header().Del(name)
		}
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *heldBack) Write(b []byte) (int, error) {
	if w.status != 0 {
		return w.text.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// clip bounds what the SDK says of a message, which may quote it.
func clip(s string) string {
	const most = 200 // bytes
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// Unwrap is for http.ResponseController.
func (w *heldBack) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Serve serves the tools over one client's input and output, a message a line,
// until ctx ends, or the input does and what was asked in it is answered. A line that is
// no message is answered and left out. Both are closed then.
func Serve(ctx context.Context, o Options, use UseCases, in io.ReadCloser, out io.WriteCloser) error {
	ctx = withCaller(ctx, &caller{use: use, may: func(ctx context.Context) func(string) bool { return mayBySaying(ctx, use) }})
	from, into := io.Pipe()
	l := newLines(in, out)
	reading := make(chan struct{})
	heard, stop := context.WithCancel(ctx)
	go func() { defer close(reading); l.run(heard, into) }()
	err := newServer(o).sdk.Run(ctx, &mcp.IOTransport{Reader: from, Writer: l})
	stop()
	_ = in.Close() // it is given up
	<-reading
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) {
		return nil
	}
	return fmt.Errorf("speak MCP: %w", err)
}
