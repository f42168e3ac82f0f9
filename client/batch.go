package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Modes of a batch.
const (
	Independent = "independent" // each item is recorded or refused by itself
	Atomic      = "atomic"      // all are recorded in one write, or none
)

// BatchItem is one operation that is asked for with others.
type BatchItem struct {
	Operation Submission
}

// Batch is what became of several submissions.
type Batch struct {
	Mode        string `json:"mode"`
	Transaction string `json:"transaction"` // what the mode means, in words
	// Counts of the items by what became of them.
	Recorded int `json:"recorded"` // by this request
	Replayed int `json:"replayed"` // before it
	Refused  int `json:"refused"`
	// Items are in the order of the request.
	Items []BatchOutcome `json:"items"`
}

// BatchOutcome is what became of one item: it has an operation or a problem.
type BatchOutcome struct {
	Index     int        `json:"index"`  // in the request, from 0
	Status    int        `json:"status"` // of the answer to the same request alone
	Replayed  bool       `json:"replayed"`
	Operation *Operation `json:"operation"`
	Problem   *Problem   `json:"problem"`
}

// SubmitBatch asks for up to 100 operations at once; mode "" is [Independent]. The key
// names the whole: sent again with it, what is recorded is answered as it stands, and
// what was refused may be corrected. Items that were refused are no error; a batch
// that was refused whole is a [*Problem].
func (c *Client) SubmitBatch(ctx context.Context, key, mode string, items []BatchItem) (Batch, error) {
	var body bytes.Buffer
	body.WriteString("{")
	text := func(name, value string) {
		encoded, _ := json.Marshal(value) // a string always can be
		fmt.Fprintf(&body, `%q:%s,`, name, encoded)
	}
	if mode != "" {
		text("mode", mode)
	}
	body.WriteString(`"items":[`)
	for i, item := range items {
		if i > 0 {
			body.WriteByte(',')
		}
		encoded, err := item.Operation.encode()
		if err != nil {
			return Batch{}, fmt.Errorf("submit item %d: %w", i, err)
		}
		fmt.Fprintf(&body, `{"operation":%s}`, encoded)
	}
	body.WriteString("]}")
	r, err := c.do(ctx, http.MethodPost, "/v1/operations:batch", body.Bytes(), map[string]string{idempotencyKey: quote(key)}) //nolint:bodyclose // decode closes it
	if err != nil {
		return Batch{}, err
	}
	var b Batch
	raw, err := decode(r, &b)
	if err != nil {
		return Batch{}, err
	}
	var whole struct {
		Items []struct {
			Operation, Problem json.RawMessage
		}
	}
	if err := json.Unmarshal(raw, &whole); err != nil {
		return Batch{}, fmt.Errorf("read the answer: %w", err)
	}
	for i, item := range whole.Items {
		if op := b.Items[i].Operation; op != nil {
			op.Raw = item.Operation
		}
		if p := b.Items[i].Problem; p != nil {
			p.raw = item.Problem
		}
	}
	return b, nil
}
