package mcpapi

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// noVersion is one that no operation comes to.
const noVersion = 1 << 62

// canAsk says whether the user of the client can be asked by a form.
func canAsk(req *mcp.CallToolRequest) bool { return asksForms(req.ClientCapabilities()) }

// asksForms says whether forms are among what the client declares. One that names
// no mode of elicitation means them.
func asksForms(c *mcp.ClientCapabilities) bool {
	return c != nil && c.Elicitation != nil && (c.Elicitation.Form != nil || c.Elicitation.URL == nil)
}

// ask has the client's user decide. The question's key names the very state that
// the decision is made on, so nothing else has to be kept between the question and
// its answer, at the client or here: whoever holds another state is asked again.
func (s *server) ask(ctx context.Context, c *toolCall, a arguments) (Answer, error) {
	op, document, err := operationOf(ctx, c.caller.use, a.id)
	if err != nil {
		return Answer{}, err
	}
	key, response := answered(c.responses)
	if response == nil {
		return Answer{}, c.question(op)
	}
	if response.Action != "accept" {
		// Nothing was decided, and that is what the user wanted.
		return Answer{Document: with(document, "declined", []byte("true")), Operation: op.ID}, nil
	}
	content, err := json.Marshal(response.Content)
	if err != nil {
		return Answer{}, refuseField("/inputResponses", ingest.FieldMalformed, "cannot be read")
	}
	body, err := decisionBody(content, op)
	if err != nil {
		return Answer{}, err
	}
	version := op.Version
	if key != inputKey(op) {
		// The state has moved on. If this answer moved it, and that was not heard, the
		// decision is found by its idempotency key; it is not made on another state.
		version = noVersion
	}
	ctx, stop := storing(ctx)
	defer stop()
	answer, err := c.caller.use.Decide(ctx, a.id, a.key, version, body)
	if err == nil || codeOf(err) != ingest.CodeStale {
		return answer, err
	}
	if op, _, err = operationOf(ctx, c.caller.use, a.id); err != nil {
		return Answer{}, err
	}
	return Answer{}, c.question(op)
}

// answered finds the answer to a question of ours.
func answered(responses mcp.InputResponseMap) (string, *mcp.ElicitResult) {
	for key, r := range responses {
		if result, ok := r.(*mcp.ElicitResult); ok && strings.HasPrefix(key, inputPrefix) {
			return key, result
		}
	}
	return "", nil
}

// asking is a call that is not over: the client's user is to be asked.
type asking struct {
	operation, key string
	form           *mcp.ElicitParams
}

func (*asking) Error() string { return "the user is asked" }

// question asks for a decision on the operation as it is, or refuses where there is
// nothing to decide.
func (c *toolCall) question(op operation) error {
	decisions := op.decisions()
	if len(decisions) > 0 {
		return &asking{op.ID, inputKey(op), decisionForm(op, decisions)}
	}
	r := &ingest.Refusal{Code: ingest.CodeDecisionNotAllowed, Operation: op.ID, State: projections.Phase(op.State)}
	if op.Terminal {
		r.Code = ingest.CodeAlreadyTerminal
		return r.Say("the operation ended as {state}", nil)
	}
	return r.Say("the operation is {state} and waits for no decision", nil)
}

// kindGiven says whether the body names a decision.
func kindGiven(body []byte) bool {
	var b struct {
		Kind json.RawMessage `json:"kind"`
	}
	return json.Unmarshal(body, &b) != nil || len(b.Kind) > 0 && !slices.Contains([]string{"null", `""`}, string(b.Kind))
}
