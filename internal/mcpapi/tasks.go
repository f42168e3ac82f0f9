package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// The Tasks extension, as of 2026-07-28. The SDK has none of it. A task is an
// operation: its id is the operation's, and there is no other store.
const (
	tasksExtension = "io.modelcontextprotocol/tasks"
	tasksVersion   = "2026-07-28" // the first protocol version with the extension

	// stoppedPoll is how often a client should look whether a stopped operation goes
	// on: somebody else may decide, or late evidence come in.
	stoppedPoll = 30 * time.Second

	inputPrefix = "q-" // of the keys of input requests
)

// Statuses of a task.
const (
	taskWorking       = "working"
	taskInputRequired = "input_required"
	taskCompleted     = "completed"
	taskCancelled     = "cancelled"
)

// task is an operation as the extension shows it, and the result of tasks/get.
type task struct {
	mcp.ResultBase
	ResultType    string                  `json:"resultType"`
	ID            string                  `json:"taskId"`
	Status        string                  `json:"status"`
	StatusMessage string                  `json:"statusMessage,omitempty"`
	Created       time.Time               `json:"createdAt"`
	Updated       time.Time               `json:"lastUpdatedAt"`
	TTL           *int64                  `json:"ttlMs"` // null: for ever
	Poll          int64                   `json:"pollIntervalMs,omitempty"`
	Result        *taskResult             `json:"result,omitempty"`
	Inputs        map[string]inputRequest `json:"inputRequests,omitempty"`
}

// taskResult is what submit_operation would have answered at the end.
type taskResult struct {
	// ResultType stands here too: clients hold the inlined result against the schema
	// of results, which demands it.
	ResultType string            `json:"resultType"`
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structuredContent"`
	IsError    bool              `json:"isError,omitempty"`
}

type inputRequest struct {
	Method string            `json:"method"`
	Params *mcp.ElicitParams `json:"params"`
}

// acknowledged is the empty result of tasks/update and tasks/cancel.
type acknowledged struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

type taskParams struct {
	mcp.ParamsBase
	ID string `json:"taskId"`
}

type taskUpdate struct {
	mcp.ParamsBase
	ID        string                   `json:"taskId"`
	Responses map[string]inputResponse `json:"inputResponses"`
}

type inputResponse struct {
	Action  string          `json:"action"`
	Content json.RawMessage `json:"content"`
}

// addTasks adds the extension's methods, and has submit_operation answer with a
// task for whoever declares the extension.
func (s *server) addTasks() {
	for _, err := range []error{
		mcp.AddReceivingCustomMethod(s.sdk, "tasks/get", func(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*task, error) {
			return s.getTask(ctx, p)
		}),
		mcp.AddReceivingCustomMethod(s.sdk, "tasks/update", func(ctx context.Context, _ *mcp.ServerSession, p *taskUpdate) (*acknowledged, error) {
			return s.updateTask(ctx, p)
		}),
		mcp.AddReceivingCustomMethod(s.sdk, "tasks/cancel", func(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*acknowledged, error) {
			return s.cancelTask(ctx, p)
		}),
	} {
		if err != nil {
			panic(err) // the names are ours, and none of the SDK's
		}
	}
	s.sdk.AddReceivingMiddleware(s.answerWithTasks)
}

// declared says which of the extension and of forms a request declares. Each
// request stands for itself.
type declared struct{ tasks, forms bool }

// declarer is a request of the SDK, whatever its parameters are.
type declarer interface {
	ClientCapabilities() *mcp.ClientCapabilities
	ProtocolVersion() string
}

func declaredBy(req mcp.Request) declared {
	r, ok := req.(declarer)
	if !ok || r.ProtocolVersion() < tasksVersion {
		return declared{}
	}
	c := r.ClientCapabilities()
	if c == nil {
		return declared{}
	}
	_, tasks := c.Extensions[tasksExtension]
	return declared{tasks, asksForms(c)}
}

type declaredKey struct{}

func (s *server) answerWithTasks(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		can := declaredBy(req)
		if strings.HasPrefix(method, "tasks/") {
			if !can.tasks {
				return nil, missingExtension()
			}
			return next(context.WithValue(ctx, declaredKey{}, can), method, req)
		}
		result, err := next(ctx, method, req)
		call, isCall := req.(*mcp.CallToolRequest)
		if err != nil || !can.tasks || !isCall || call.Params.Name != ToolSubmit {
			return result, err
		}
		// The operation is in the ledger by now, so that tasks/get finds it: who
		// crashed between the two is asked again with the same key.
		answered, ok := result.(*mcp.CallToolResult)
		if !ok || answered.IsError {
			return result, nil
		}
		document, ok := answered.StructuredContent.(json.RawMessage)
		if !ok {
			return result, nil
		}
		op, err := operationIn(document)
		if err != nil {
			return nil, err
		}
		if len(op.Validation) > 0 {
			return result, nil // there is nothing that tasks/get would find
		}
		t := s.taskOf(op, can)
		t.ResultType = "task"
		t.Inputs = nil // they are for tasks/get
		return t, nil
	}
}

// missingExtension refuses a method of the extension to whoever did not declare it.
func missingExtension() error {
	data, err := json.Marshal(map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{tasksExtension: struct{}{}}}})
	if err != nil {
		return internalError()
	}
	return &jsonrpc.Error{
		Code: mcp.CodeMissingRequiredClientCapabilities, Message: "declare the extension " + tasksExtension + " in the capabilities of this request", Data: data,
	}
}

// taskOf shows an operation as a task, without the result.
func (s *server) taskOf(op operation, can declared) *task {
	t := &task{
		ResultType: "complete", ID: op.ID, Status: taskWorking, StatusMessage: statusOf(op),
		Created: op.Started, Updated: op.Since, Poll: (time.Duration(op.NextPoll) * time.Second).Milliseconds(),
	}
	switch {
	case op.State == string(projections.PhaseCancelled):
		t.Status, t.Poll = taskCancelled, 0
	case op.Terminal:
		t.Status, t.Poll = taskCompleted, 0
	case op.Done:
		t.Poll = stoppedPoll.Milliseconds()
		decisions := op.decisions()
		switch {
		case len(decisions) == 0:
		case can.forms:
			t.Status = taskInputRequired
			t.Inputs = map[string]inputRequest{inputKey(op): {"elicitation/create", decisionForm(op, decisions)}}
		default:
			// Nobody can be asked through this client.
			t.StatusMessage += "; it waits for a decision: call " + ToolDecide + " with one of " + strings.Join(decisions, ", ")
		}
	case t.Poll == 0:
		t.Poll = stoppedPoll.Milliseconds()
	}
	return t
}

// inputKey names the request for a decision on the very state that is shown: the
// ledger never gives a sequence twice, so the key never comes back for another.
func inputKey(op operation) string { return inputPrefix + strconv.FormatUint(op.Sequence, 10) }

// taskError is what tasks/get and the others answer: unknown and foreign ids are
// told in the same words.
func (s *server) taskError(ctx context.Context, method string, err error) error {
	code := codeOf(err)
	s.refused(code)
	switch code { //nolint:exhaustive // every other code is a failure here
	case ingest.CodeNotFound, ingest.CodeInvalidID:
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "there is no such task of yours"}
	case ingest.CodeUnavailable, ingest.CodeInternal, ingest.CodeKeysUnavailable:
		if ctx.Err() == nil {
			s.o.Log.ErrorContext(ctx, "MCP task request failed", "method", method, "error", err)
		}
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the store does not answer; try again", Data: s.problemOf(err, method)}
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: string(code), Data: s.problemOf(err, method)}
}

func codeOf(err error) ingest.Code {
	var refused *Refused
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ingest.RefusalOf(err).Code
}

func operationOf(ctx context.Context, use UseCases, id string) (operation, json.RawMessage, error) {
	a, err := use.Get(ctx, id)
	if err != nil {
		return operation{}, nil, err
	}
	op, err := operationIn(a.Document)
	return op, a.Document, err
}

func (s *server) getTask(ctx context.Context, p *taskParams) (*task, error) {
	if p == nil {
		p = &taskParams{}
	}
	op, document, err := operationOf(ctx, callerOf(ctx).use, p.ID)
	if err != nil {
		return nil, s.taskError(ctx, "tasks/get", err)
	}
	can, _ := ctx.Value(declaredKey{}).(declared)
	t := s.taskOf(op, can)
	if t.Status != taskCompleted {
		return t, nil
	}
	view, err := s.readResult(ctx, callerOf(ctx).use, ResultQuery{ID: op.ID}, defaultInline)
	switch {
	case err == nil:
		text, err := json.Marshal(view)
		if err != nil {
			return nil, s.taskError(ctx, "tasks/get", err)
		}
		t.Result = resultOf(with(document, "output", text), false)
	case op.State == string(projections.PhaseSucceeded) && codeOf(err) == ingest.CodeNoResult:
		t.Result = resultOf(document, false) // the job leaves none
	case slices.Contains([]ingest.Code{ingest.CodeNoResult, ingest.CodeResultUnavailable, ingest.CodeResultNotAccepted}, codeOf(err)):
		// What the provider failed is an outcome, and no fault of the protocol.
		t.Result = resultOf(s.problemOf(err, ToolResult), true)
	default:
		return nil, s.taskError(ctx, "tasks/get", err)
	}
	return t, nil
}

func resultOf(document json.RawMessage, failed bool) *taskResult {
	text, err := json.Marshal(&mcp.TextContent{Text: string(document)})
	if err != nil {
		text = []byte(`{"type":"text","text":""}`) // text always encodes
	}
	return &taskResult{ResultType: "complete", Content: []json.RawMessage{text}, Structured: document, IsError: failed}
}

// decisionForm asks for a decision in flat fields, with those that the allowed
// decisions have a use for.
func decisionForm(op operation, decisions []string) *mcp.ElicitParams {
	type field map[string]any
	fields := field{
		"decision": field{"type": "string", "enum": decisions, "title": "Decision"},
		"why":      field{"type": "string", "title": "Reason", "maxLength": ingest.MaxWhy},
	}
	for _, extra := range []struct {
		decision, name string
		field          field
	}{
		{"adopt", "job_id", field{"type": "string", "title": "Job", "description": "adopt: the provider's job. " + candidates(op)}},
		{"extend", "deadline", field{"type": "string", "title": "Deadline", "description": "extend: which", "enum": []string{"approval", "create", "result", "cancel", "collect"}}},
		{"extend", "until", field{"type": "string", "title": "Until", "description": "extend: a length of time such as 2h, or an RFC 3339 time"}},
		{"mark_cancelled", "evidence", field{"type": "string", "title": "Evidence", "description": "mark_cancelled: what shows that it is cancelled", "maxLength": ingest.MaxWhy}},
		{"retry_create", "accept_risk", field{"type": "boolean", "title": "A second job is acceptable", "description": "retry_create: a second job cannot be excluded", "default": false}},
	} {
		if slices.Contains(decisions, extra.decision) {
			fields[extra.name] = extra.field
		}
	}
	message := fmt.Sprintf("Operation %s stopped and waits for a decision. %s", op.ID, statusOf(op))
	if op.State == string(projections.PhaseApprovalPending) {
		message = fmt.Sprintf("Operation %s waits for an approval. %s. What is approved has the digest %s", op.ID, statusOf(op), op.Approval.Digest)
	}
	return &mcp.ElicitParams{
		Mode:            "form",
		Message:         message,
		RequestedSchema: map[string]any{"type": "object", "properties": fields, "required": []string{"decision"}},
	}
}

func candidates(op operation) string {
	const most = 10
	if len(op.Candidates) == 0 {
		return "No candidate is known."
	}
	return "Candidates: " + strings.Join(op.Candidates[:min(len(op.Candidates), most)], ", ")
}

// decisionBody turns a filled form into the body of a decision. An approval is over what
// the form showed, which never changes in the life of the operation.
func decisionBody(content json.RawMessage, op operation) ([]byte, error) {
	if err := ingest.CheckJSON(content, maxArguments); err != nil {
		return nil, err
	}
	var form map[string]json.RawMessage
	if err := json.Unmarshal(content, &form); err != nil || form == nil {
		return nil, refuseField("/content", ingest.FieldWrongType, "must be of JSON type object")
	}
	if kind, ok := form["decision"]; ok {
		form["kind"] = kind
		delete(form, "decision")
	}
	for name, value := range form {
		// Forms give back what was left empty.
		if string(value) == `""` || string(value) == "null" || name == "accept_risk" && string(value) == "false" {
			delete(form, name)
		}
	}
	if kind := string(form["kind"]); form["digest"] == nil && (kind == `"`+string(ingest.Approve)+`"` || kind == `"`+string(ingest.Deny)+`"`) {
		form["digest"] = json.RawMessage(strconv.Quote(op.Approval.Digest))
	}
	return json.Marshal(form)
}

// updateTask records a decision that a form gave, if the task still waits for that
// very one. Whatever is answered too late, or to nothing, is ignored, as the
// extension says: tasks/get shows how it stands.
func (s *server) updateTask(ctx context.Context, p *taskUpdate) (*acknowledged, error) {
	if p == nil {
		p = &taskUpdate{}
	}
	op, _, err := operationOf(ctx, callerOf(ctx).use, p.ID)
	if err != nil {
		return nil, s.taskError(ctx, "tasks/update", err)
	}
	response, ok := p.Responses[inputKey(op)]
	if !ok || !op.Done || op.Terminal || response.Action != "accept" {
		return &acknowledged{ResultType: "complete"}, nil
	}
	body, err := decisionBody(response.Content, op)
	if err != nil {
		return nil, s.taskError(ctx, "tasks/update", err)
	}
	ctx, stop := storing(ctx)
	defer stop()
	// The key is the question's, so that an update whose answer was lost decides once.
	_, err = callerOf(ctx).use.Decide(ctx, op.ID, "task-"+inputKey(op), op.Version, body)
	if err != nil && codeOf(err) != ingest.CodeStale {
		return nil, s.taskError(ctx, "tasks/update", err)
	}
	return &acknowledged{ResultType: "complete"}, nil
}

// cancelTask records the wish to cancel. Where nothing can be cancelled any more
// the wish is heard and changes nothing.
func (s *server) cancelTask(ctx context.Context, p *taskParams) (*acknowledged, error) {
	if p == nil {
		p = &taskParams{}
	}
	ctx, stop := storing(ctx)
	defer stop()
	_, err := callerOf(ctx).use.Cancel(ctx, p.ID, "task-cancel", 0, nil)
	if err != nil && !slices.Contains([]ingest.Code{ingest.CodeAlreadyTerminal, ingest.CodeCancelUnsupported}, codeOf(err)) {
		return nil, s.taskError(ctx, "tasks/cancel", err)
	}
	return &acknowledged{ResultType: "complete"}, nil
}
