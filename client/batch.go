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

// Batch is what became of several submissions, or of several cancels.
type Batch struct {
	Mode        string `json:"mode"`
	Transaction string `json:"transaction"` // what the mode means, in words
	// Counts of the items by what became of them.
	Recorded int `json:"recorded"` // by this request
	Replayed int `json:"replayed"` // before it
	Refused  int `json:"refused"`
	Valid    int `json:"valid"` // of a check: they would be recorded
	// Items are in the order of the request.
	Items []BatchOutcome `json:"items"`
}

// BatchOutcome is what became of one item: it has an operation or a problem.
type BatchOutcome struct {
	Index      int         `json:"index"`           // in the request, from 0
	Key        string      `json:"idempotency_key"` // the item's own, of a cancel that has one
	Status     int         `json:"status"`          // of the answer to the same request alone
	Replayed   bool        `json:"replayed"`
	Operation  *Operation  `json:"operation"`
	Problem    *Problem    `json:"problem"`
	Validation *Validation `json:"-"` // of a check
}

// SubmitBatch asks for up to 100 operations at once; mode "" is [Independent]. The key
// names the whole: sent again with it, what is recorded is answered as it stands, and
// what was refused may be corrected. Items that were refused are no error; a batch
// that was refused whole is a [*Problem].
func (c *Client) SubmitBatch(ctx context.Context, key, mode string, items []BatchItem) (Batch, error) {
	return c.submitBatch(ctx, key, mode, items, false)
}

func (c *Client) submitBatch(ctx context.Context, key, mode string, items []BatchItem, check bool) (Batch, error) {
	var body bytes.Buffer
	body.WriteString("{")
	if mode != "" {
		encoded, _ := json.Marshal(mode) // a string always can be
		fmt.Fprintf(&body, `"mode":%s,`, encoded)
	}
	if check {
		body.WriteString(`"validate_only":true,`)
	}
	body.WriteString(`"items":[`)
	for i, item := range items {
		if i > 0 {
			body.WriteByte(',')
		}
		encoded, err := item.Operation.encode(false)
		if err != nil {
			return Batch{}, fmt.Errorf("submit item %d: %w", i, err)
		}
		fmt.Fprintf(&body, `{"operation":%s}`, encoded)
	}
	body.WriteString("]}")
	return c.batch(ctx, "/v1/operations:batch", body.Bytes(), map[string]string{idempotencyKey: quote(key)})
}

// CancelItem is one operation whose cancellation is asked for with others.
type CancelItem struct {
	ID string
	// Key is the item's own idempotency key; "" takes that of the whole.
	Key string
	// Version is the one that the operation must still have; 0 takes any.
	Version uint64
}

// CancelBatch asks for the cancellation of up to 100 operations at once; mode "" is
// [Independent]. As with [Client.Cancel], that it was asked for does not mean that they
// will be cancelled, and the key is that of [Client.Keyed]. Items that were refused are
// no error; a batch that was refused whole is a [*Problem].
func (c *Client) CancelBatch(ctx context.Context, mode, why string, items []CancelItem) (Batch, error) {
	type element struct {
		ID    string `json:"id"`
		Key   string `json:"idempotency_key,omitempty"`
		Match string `json:"if_match,omitempty"`
	}
	elements := make([]element, 0, len(items))
	for _, item := range items {
		e := element{ID: item.ID, Key: item.Key}
		if item.Version != 0 {
			e.Match = versionTag(item.Version)
		}
		elements = append(elements, e)
	}
	body, err := json.Marshal(struct {
		Mode  string    `json:"mode,omitempty"`
		Items []element `json:"items"`
		Why   string    `json:"why,omitempty"`
	}{mode, elements, why})
	if err != nil {
		return Batch{}, fmt.Errorf("cancel %d operations: %w", len(items), err)
	}
	return c.batch(ctx, "/v1/operations:cancel", body, c.onceKey())
}

func (c *Client) batch(ctx context.Context, path string, body []byte, header map[string]string) (Batch, error) {
	r, err := c.do(ctx, http.MethodPost, path, body, header) //nolint:bodyclose // decode closes it
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
