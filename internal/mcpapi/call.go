package mcpapi

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Bounds of what tools answer where the caller names none, smaller than those of
// the HTTP API: what reads them pays by the word.
const (
	defaultWait     = 25 * time.Second
	defaultPage     = 10
	defaultTimeline = 50
	maxTimeline     = 200
	defaultInline   = 64 << 10 // bytes of a result
	maxInline       = 1 << 20
)

// toolCall is one call on its way.
type toolCall struct {
	caller *caller
	raw    []byte // the arguments
	trace  string // W3C
	notify func(context.Context, operation)
	// forms says that the client's user can be asked, and responses are what it said.
	forms     bool
	responses mcp.InputResponseMap
}

// operation is what is needed here of the JSON of an operation.
type operation struct {
	ID         string    `json:"id"`
	State      string    `json:"state"`
	Terminal   bool      `json:"terminal"`
	Done       bool      `json:"done"`
	Because    string    `json:"because"`
	WaitingFor string    `json:"waiting_for"`
	Started    time.Time `json:"started"`
	Since      time.Time `json:"since"`
	Candidates []string  `json:"candidates"`
	Allowed    []struct {
		Action    string   `json:"action"`
		Decisions []string `json:"decisions"`
	} `json:"allowed"`
	Approval struct {
		State  string `json:"state"`
		Digest string `json:"digest"`
	} `json:"approval"`
	Version  uint64 `json:"version"`
	Sequence uint64 `json:"sequence"`
	NextPoll int    `json:"next_poll_after"`
	// Validation says that nothing was recorded, and the operation is what would be.
	Validation json.RawMessage `json:"validation"`
}

func operationIn(document json.RawMessage) (operation, error) {
	var op operation
	if err := json.Unmarshal(document, &op); err != nil {
		return op, fmt.Errorf("read an operation: %w", err)
	}
	return op, nil
}

// decisions lists what may be decided now.
func (op *operation) decisions() []string {
	for _, a := range op.Allowed {
		if a.Action == "decide" {
			return a.Decisions
		}
	}
	return nil
}

// handler makes a tool of the SDK.
func (s *server) handler(t tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (result *mcp.CallToolResult, err error) {
		start := s.o.Now()
		c := &toolCall{
			caller: callerOf(ctx), raw: req.Params.Arguments, notify: progress(req),
			forms: canAsk(req), responses: req.Params.InputResponses,
		}
		c.trace = traceParent(req, c.caller)
		answer, err := t.call(ctx, c)
		var question *asking
		if errors.As(err, &question) {
			s.log(ctx, t, c, Answer{Operation: question.operation}, nil, s.o.Now().Sub(start))
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{question.key: question.form}}, nil
		}
		s.log(ctx, t, c, answer, err, s.o.Now().Sub(start))
		if err != nil {
			return s.failed(err, t.name), nil
		}
		return succeeded(answer), nil
	}
}

// succeeded is the answer as a result: as structured content, and repeated as text
// for clients that know none.
func succeeded(a Answer) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(a.Document)}}, StructuredContent: a.Document}
}

// with adds a member to a JSON object.
func with(object json.RawMessage, name string, value []byte) json.RawMessage {
	inner := strings.TrimSpace(string(object))
	inner = strings.TrimSpace(inner[1 : len(inner)-1])
	if inner != "" {
		inner += ","
	}
	return json.RawMessage("{" + inner + `"` + name + `":` + string(value) + "}")
}

// failed is a refusal as a result, so that whoever called can read it and act.
func (s *server) failed(err error, tool string) *mcp.CallToolResult {
	document := s.problemOf(err, tool)
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: string(document)}}, StructuredContent: document, IsError: true,
	}
}

// log writes one line for each call. Who polls would bury the rest.
func (s *server) log(ctx context.Context, t tool, c *toolCall, a Answer, err error, took time.Duration) {
	args := []any{"tool", t.name, "ms", took.Milliseconds()}
	if c.caller.principal != "" {
		args = append(args, "principal", c.caller.principal, "key", c.caller.keyID)
	}
	operation, trace := a.Operation, a.Trace
	var refusal *ingest.Refusal
	var refused *Refused
	switch {
	case errors.As(err, &refusal):
		operation, trace = refusal.Operation, refusal.Trace
		args = append(args, "code", refusal.Code)
		s.refused(refusal.Code)
	case errors.As(err, &refused):
		args = append(args, "code", refused.Code)
		s.refused(refused.Code)
	case err != nil:
		s.refused(ingest.CodeUnavailable)
	}
	if operation != "" {
		args = append(args, "operation", operation)
	}
	if trace != "" {
		args = append(args, "trace", trace)
	}
	switch {
	case err != nil && refusal == nil && refused == nil && ctx.Err() == nil:
		s.o.Log.ErrorContext(ctx, "MCP call failed", append(args, "error", err)...)
	case err == nil && t.effect == reads:
		s.o.Log.DebugContext(ctx, "MCP call", args...)
	default:
		s.o.Log.InfoContext(ctx, "MCP call", args...)
	}
}

// internalError is what a defect of ours answers.
func internalError() error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "something went wrong here; try again with the same idempotency_key"}
}

// traceParent is the trace the caller is in: of the message, else of the HTTP
// request that carried it.
func traceParent(req *mcp.CallToolRequest, c *caller) string {
	if text, ok := req.Params.GetMeta()["traceparent"].(string); ok && text != "" {
		return plainTrace(text)
	}
	return plainTrace(c.trace)
}

// plainTrace lets through what looks like W3C trace context and nothing else.
func plainTrace(s string) string {
	if len(s) != 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || strings.ToLower(s) != s {
		return ""
	}
	if _, err := hex.DecodeString(strings.ReplaceAll(s, "-", "")); err != nil {
		return ""
	}
	return s
}

// progress tells the client of news within its own call, if it gave a token for
// that; nil if it did not.
func progress(req *mcp.CallToolRequest) func(context.Context, operation) {
	token := req.Params.GetProgressToken()
	if token == nil || req.Session == nil {
		return nil
	}
	return func(ctx context.Context, op operation) {
		// A client that cannot be told is not told: the answer follows.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(op.Version), Message: statusOf(op),
		})
	}
}

// statusOf is how the operation stands, on a line.
func statusOf(op operation) string {
	text := op.State
	if op.Because != "" {
		text += ": " + op.Because
	}
	return text
}

// storing bounds a call that stores.
func storing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, storeTime)
}

// idGiven refuses no id at all; any other is for the service to look up.
func idGiven(id string) error {
	if id == "" {
		return refuseField("/id", ingest.FieldRequired, "must be given")
	}
	return nil
}

func (s *server) submit(ctx context.Context, c *toolCall) (Answer, error) {
	a, err := readArguments(c.raw, "idempotency_key")
	if err != nil {
		return Answer{}, err
	}
	ctx, stop := storing(ctx)
	defer stop()
	return c.caller.use.Submit(ctx, a.key, a.body, c.trace)
}

func (s *server) get(ctx context.Context, c *toolCall) (Answer, error) {
	var a idArguments
	if err := decodeArguments(c.raw, &a); err != nil {
		return Answer{}, err
	}
	if err := idGiven(a.ID); err != nil {
		return Answer{}, err
	}
	return c.caller.use.Get(ctx, a.ID)
}

func (s *server) wait(ctx context.Context, c *toolCall) (Answer, error) {
	var a waitArguments
	if err := decodeArguments(c.raw, &a); err != nil {
		return Answer{}, err
	}
	if err := idGiven(a.ID); err != nil {
		return Answer{}, err
	}
	wait := defaultWait
	if a.Wait != nil {
		most := uint64(ingest.MaxWait / time.Second)
		if *a.Wait > most {
			return Answer{}, outOfBounds("/wait_seconds", 0, int(most))
		}
		wait = time.Duration(*a.Wait) * time.Second
	}
	ctx, stop := s.untilStopping(ctx)
	defer stop()
	if c.notify == nil {
		return c.caller.use.Wait(ctx, a.ID, a.After, wait, a.After == 0)
	}
	// With every change the client hears of it; the wait goes on until what it was for.
	end := s.o.Now().Add(wait)
	version := a.After
	for {
		answer, err := c.caller.use.Wait(ctx, a.ID, version, max(end.Sub(s.o.Now()), 0), false)
		if err != nil {
			return Answer{}, err
		}
		op, err := operationIn(answer.Document)
		if err != nil {
			return Answer{}, err
		}
		over := op.Done || op.Version == version || a.After != 0 || ctx.Err() != nil || !s.o.Now().Before(end)
		version = op.Version
		if over {
			return answer, nil
		}
		c.notify(ctx, op)
	}
}

// untilStopping gives a context that also ends when the process begins to stop:
// for those who only wait.
func (s *server) untilStopping(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if s.o.Stopping == nil {
		return ctx, cancel
	}
	forget := context.AfterFunc(s.o.Stopping, cancel)
	return ctx, func() { forget(); cancel() }
}

func (s *server) list(ctx context.Context, c *toolCall) (Answer, error) {
	var a listArguments
	if err := decodeArguments(c.raw, &a); err != nil {
		return Answer{}, err
	}
	q := ListQuery{Of: a.Of, State: a.State, Provider: a.Provider, Session: a.Session, Reference: a.Reference, Tags: a.Tags, Limit: defaultPage, Cursor: a.Cursor}
	if a.Limit != 0 {
		if a.Limit > ingest.MaxPage {
			return Answer{}, outOfBounds("/limit", 1, ingest.MaxPage)
		}
		q.Limit = int(a.Limit)
	}
	return c.caller.use.List(ctx, q)
}

func (s *server) cancel(ctx context.Context, c *toolCall) (Answer, error) {
	a, err := readArguments(c.raw, "id", "idempotency_key", "version")
	if err != nil {
		return Answer{}, err
	}
	ctx, stop := storing(ctx)
	defer stop()
	return c.caller.use.Cancel(ctx, a.id, a.key, a.version, a.body)
}

func (s *server) decide(ctx context.Context, c *toolCall) (Answer, error) {
	a, err := readArguments(c.raw, "id", "idempotency_key", "version")
	if err != nil {
		return Answer{}, err
	}
	if !kindGiven(a.body) {
		if !c.forms {
			return Answer{}, refuseField("/kind", ingest.FieldRequired, "must be given: your client cannot ask its user")
		}
		return s.ask(ctx, c, a)
	}
	if a.version == 0 {
		return Answer{}, &ingest.Refusal{
			Code: ingest.CodePrecondition, Detail: "give version: that of the operation you decide on",
			Errors: []ingest.FieldError{{Field: "/version", Code: ingest.FieldRequired, Message: "must be given"}},
		}
	}
	ctx, stop := storing(ctx)
	defer stop()
	return c.caller.use.Decide(ctx, a.id, a.key, a.version, a.body)
}

func (s *server) timeline(ctx context.Context, c *toolCall) (Answer, error) {
	var a timelineArguments
	if err := decodeArguments(c.raw, &a); err != nil {
		return Answer{}, err
	}
	if err := idGiven(a.ID); err != nil {
		return Answer{}, err
	}
	if a.Limit > maxTimeline {
		return Answer{}, outOfBounds("/limit", 1, maxTimeline)
	}
	if a.Limit == 0 {
		a.Limit = defaultTimeline
	}
	return c.caller.use.Timeline(ctx, a.ID, a.After, int(a.Limit))
}

func (s *server) capabilities(ctx context.Context, c *toolCall) (Answer, error) {
	if err := decodeArguments(c.raw, &noArguments{}); err != nil {
		return Answer{}, err
	}
	return c.caller.use.Capabilities(ctx)
}

func (s *server) result(ctx context.Context, c *toolCall) (Answer, error) {
	var a resultArguments
	if err := decodeArguments(c.raw, &a); err != nil {
		return Answer{}, err
	}
	if err := idGiven(a.ID); err != nil {
		return Answer{}, err
	}
	if a.MaxBytes > maxInline {
		return Answer{}, outOfBounds("/max_bytes", 1, maxInline)
	}
	if a.MaxBytes == 0 {
		a.MaxBytes = defaultInline
	}
	view, err := s.readResult(ctx, c.caller.use, ResultQuery{a.ID, a.File, a.Unaccepted}, int(a.MaxBytes))
	if err != nil {
		return Answer{}, err
	}
	answer, err := shown(view)
	answer.Operation = a.ID
	return answer, err
}

func (s *server) readResult(ctx context.Context, use UseCases, q ResultQuery, limit int) (resultView, error) {
	r, err := use.Result(ctx, q, limit)
	if err != nil {
		return resultView{}, err
	}
	view := resultView{
		Operation: q.ID, File: q.File, MediaType: r.MediaType, Size: r.Size, SHA256: r.SHA256, Included: r.Whole,
		Href: s.o.Base + "/v1/operations/" + url.PathEscape(q.ID) + "/result",
	}
	if query := q.Parameters(); len(query) > 0 {
		view.Href += "?" + query.Encode()
	}
	switch {
	case !r.Whole:
	case utf8.Valid(r.Data):
		view.Text = string(r.Data)
	default:
		view.Base64 = base64.StdEncoding.EncodeToString(r.Data)
	}
	return view, nil
}
