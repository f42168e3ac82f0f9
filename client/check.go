package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// What a request that was checked would do.
const (
	WouldRecord = "record" // a new operation
	WouldReplay = "replay" // nothing: its key named an operation before
)

// Validation says what a submit would do. Nothing was recorded.
type Validation struct {
	Would    string    `json:"would"`
	Status   int       `json:"status"` // that it would be answered with
	Warnings []Warning `json:"warnings"`
	// Operation is as it would be recorded, or the one that the key names.
	Operation Operation `json:"-"`
}

// Warning is worth knowing before a submit, and keeps nobody from it.
type Warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// errRecorded says that an answer to a check does not say that it was one.
var errRecorded = errors.New("the answer does not say that nothing was recorded: read the list, and look what stands between")

// Check says what [Client.Submit] would do with the same key and submission. Everything
// is checked as it would be, the key too; nothing is recorded, and the key is as unused
// as before. What would be refused is a [*Problem], the one that Submit would give.
func (c *Client) Check(ctx context.Context, key string, s Submission) (Validation, error) {
	body, err := s.encode(true)
	if err != nil {
		return Validation{}, fmt.Errorf("check: %w", err)
	}
	r, err := c.do(ctx, http.MethodPost, "/v1/operations", body, map[string]string{idempotencyKey: quote(key)}) //nolint:bodyclose // readOperation closes it
	if err != nil {
		return Validation{}, err
	}
	op, err := readOperation(r)
	if err != nil {
		return Validation{}, err
	}
	v, err := validationOf(op)
	if err != nil {
		return Validation{}, fmt.Errorf("check: %w", err)
	}
	return v, nil
}

// CheckBatch says what [Client.SubmitBatch] would do: Valid of the answer counts what
// would be recorded, and Validation of each item that would not be refused says more.
func (c *Client) CheckBatch(ctx context.Context, key, mode string, items []BatchItem) (Batch, error) {
	b, err := c.submitBatch(ctx, key, mode, items, true)
	if err != nil {
		return Batch{}, err
	}
	for i := range b.Items {
		item := &b.Items[i]
		if item.Operation == nil {
			continue
		}
		v, err := validationOf(*item.Operation)
		if err != nil {
			return Batch{}, fmt.Errorf("check item %d: %w", i, err)
		}
		item.Validation = &v
	}
	return b, nil
}

func validationOf(op Operation) (Validation, error) {
	var said struct {
		Validation *Validation `json:"validation"`
	}
	if err := json.Unmarshal(op.Raw, &said); err != nil {
		return Validation{}, fmt.Errorf("read the answer: %w", err)
	}
	if said.Validation == nil {
		return Validation{}, errRecorded
	}
	said.Validation.Operation = op
	return *said.Validation, nil
}
