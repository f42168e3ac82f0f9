package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/projections"
)

const (
	// ProblemBase stands before the code in the type of a problem. The service
	// answers there what the code means.
	ProblemBase = "/errors/"

	// ManualURL is where people read of all of it.
	ManualURL = "https://github.com/counterfoil/counterfoil/blob/main/docs/API.md"
	// problemDocs is where people read of it; a code is an anchor there.
	problemDocs = "https://github.com/counterfoil/counterfoil/blob/main/docs/ERRORS.md#"
)

// RetryUnavailable is what a caller waits while the store does not answer.
const RetryUnavailable = 2 * time.Second

// Problem is the document of RFC 9457 with our members. Every face answers a
// refusal with it, whatever the protocol: what a caller knows of a code is the
// same everywhere.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"` // HTTP's, on other protocols too
	Detail    string `json:"detail,omitempty"`
	Instance  string `json:"instance"`
	Code      Code   `json:"code"`
	Retryable bool   `json:"retryable"`
	// RetryAfter is in seconds, and what the Retry-After header says; 0: none to name.
	RetryAfter int          `json:"retry_after_s,omitempty"`
	RetryWith  RetryWith    `json:"retry_with"`
	Hint       string       `json:"hint"`
	Values     Values       `json:"values,omitempty"` // those in the detail that no other member has
	Errors     []FieldError `json:"errors,omitempty"`
	Allowed    []string     `json:"allowed,omitempty"`
	Requires   Scope        `json:"requires,omitempty"` // the scope that the caller's key lacks
	// Violated names the quotas that do not allow it, as RateLimit fields do; the member's
	// name is that of the registered problem type quota-exceeded.
	Violated  []Policy          `json:"violated-policies,omitempty"`
	Operation string            `json:"operation_id,omitempty"`
	State     projections.Phase `json:"state,omitempty"`
	Provider  *ProblemView      `json:"problem,omitempty"`
	Docs      string            `json:"docs"`
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
		Instance: instance, Code: refusal.Code, Retryable: meaning.Retryable,
		RetryAfter: wholeSeconds(refusal.RetryAfter), RetryWith: meaning.RetryWith, Hint: meaning.Advice,
		Values: refusal.Values, Errors: refusal.Errors, Allowed: refusal.Allowed, Requires: refusal.Requires, Violated: refusal.Violated, Operation: refusal.Operation, State: refusal.State, Provider: refusal.Provider,
		Docs: problemDocs + string(refusal.Code),
	}
}

// wholeSeconds rounds up: nobody is told to come before it is of use.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// JSON is the document as bytes, the same on every protocol.
func (p Problem) JSON() []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("ingest: problem document: %v", err)) // texts and numbers always encode
	}
	return text
}

// CodeEntry is what the registry says of a code, in the words of the document.
type CodeEntry struct {
	Type      string    `json:"type"`
	Code      Code      `json:"code"`
	Title     string    `json:"title"`
	Status    int       `json:"status"`
	Retryable bool      `json:"retryable"`
	RetryWith RetryWith `json:"retry_with"`
	Hint      string    `json:"hint"`
	Docs      string    `json:"docs"`
}

// Registry lists every code, in the order of [Meanings].
func Registry() []CodeEntry {
	var list []CodeEntry
	for _, m := range Meanings() {
		list = append(list, CodeEntry{
			Type: ProblemBase + string(m.Code), Code: m.Code, Title: m.Title, Status: m.Status,
			Retryable: m.Retryable, RetryWith: m.RetryWith, Hint: m.Advice, Docs: problemDocs + string(m.Code),
		})
	}
	return list
}
