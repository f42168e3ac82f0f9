package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/projections"
)

// ProblemBase stands before the code in the type of a problem.
const ProblemBase = "https://github.com/counterfoil/counterfoil/blob/main/docs/ERRORS.md#"

// RetryUnavailable is what a caller waits while the store does not answer.
const RetryUnavailable = 2 * time.Second

// Problem is the document of RFC 9457 with our members. Every face answers a
// refusal with it, whatever the protocol: what a caller knows of a code is the
// same everywhere.
type Problem struct {
	Type      string            `json:"type"`
	Title     string            `json:"title"`
	Status    int               `json:"status"` // HTTP's, on other protocols too
	Detail    string            `json:"detail,omitempty"`
	Instance  string            `json:"instance"`
	Code      Code              `json:"code"`
	Retryable bool              `json:"retryable"`
	Hint      string            `json:"hint"`
	Errors    []FieldError      `json:"errors,omitempty"`
	Allowed   []string          `json:"allowed,omitempty"`
	Requires  Scope             `json:"requires,omitempty"` // the scope that the caller's key lacks
	Operation string            `json:"operation_id,omitempty"`
	State     projections.Phase `json:"state,omitempty"`
	Provider  *ProblemView      `json:"problem,omitempty"`
}

// RefusalOf is what a caller is told of an error. What broke stays in the log.
func RefusalOf(err error) *Refusal {
	var refusal *Refusal
	var keys *KeysError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &keys):
		return &Refusal{Code: CodeKeysUnavailable}
	}
	return &Refusal{Code: CodeUnavailable, RetryAfter: RetryUnavailable}
}

// ProblemOf is the document for an error. instance names what was asked for, as
// a URI reference that may be shown; base is what stands before the code in its
// type, [ProblemBase] where there is no better.
func ProblemOf(err error, instance, base string) Problem {
	refusal := RefusalOf(err)
	meaning := refusal.Code.Meaning()
	return Problem{
		Type: base + string(refusal.Code), Title: meaning.Title, Status: meaning.Status, Detail: refusal.Detail,
		Instance: instance, Code: refusal.Code, Retryable: meaning.Retryable, Hint: meaning.Advice,
		Errors: refusal.Errors, Allowed: refusal.Allowed, Requires: refusal.Requires, Operation: refusal.Operation, State: refusal.State, Provider: refusal.Provider,
	}
}

// JSON is the document as bytes, the same on every protocol.
func (p Problem) JSON() []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("ingest: problem document: %v", err)) // texts and numbers always encode
	}
	return text
}
