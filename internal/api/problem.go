package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// problemBase is where the codes are described; a code is an anchor there.
const problemBase = "https://github.com/counterfoil/counterfoil/blob/main/docs/ERRORS.md#"

const (
	maxInstance = 200 // bytes of the address that come back

	// retryUnavailable is what a caller waits while the store does not answer.
	retryUnavailable = 2 * time.Second
)

// problem is the document of RFC 9457 with our members.
type problem struct {
	Type      string              `json:"type"`
	Title     string              `json:"title"`
	Status    int                 `json:"status"`
	Detail    string              `json:"detail,omitempty"`
	Instance  string              `json:"instance"`
	Code      ingest.Code         `json:"code"`
	Retryable bool                `json:"retryable"`
	Hint      string              `json:"hint"`
	Errors    []ingest.FieldError `json:"errors,omitempty"`
	Allowed   []string            `json:"allowed,omitempty"`
	Operation string              `json:"operation_id,omitempty"`
	State     projections.Phase   `json:"state,omitempty"`
	Provider  *ingest.ProblemView `json:"problem,omitempty"`
}

// refusalOf is what a caller is told of an error. What broke stays in the log.
func refusalOf(err error) *ingest.Refusal {
	var refusal *ingest.Refusal
	var keys *ingest.KeysError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &keys):
		return &ingest.Refusal{Code: ingest.CodeKeysUnavailable}
	}
	return &ingest.Refusal{Code: ingest.CodeUnavailable, RetryAfter: retryUnavailable}
}

func writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	refusal := refusalOf(err)
	meaning := refusal.Code.Meaning()
	p := problem{
		Type: problemBase + string(refusal.Code), Title: meaning.Title, Status: meaning.Status, Detail: refusal.Detail,
		Instance: instance(r), Code: refusal.Code, Retryable: meaning.Retryable, Hint: meaning.Advice,
		Errors: refusal.Errors, Allowed: refusal.Allowed, Operation: refusal.Operation, State: refusal.State, Provider: refusal.Provider,
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("api: problem document: %v", err)) // texts and numbers always encode
	}
	common(w.Header())
	w.Header().Set("Content-Type", "application/problem+json")
	switch {
	case meaning.Status == http.StatusUnauthorized && refusal.Code == ingest.CodeUnauthenticated:
		w.Header().Set("WWW-Authenticate", `Bearer realm="counterfoil"`)
	case meaning.Status == http.StatusUnsupportedMediaType:
		w.Header().Set("Accept-Post", "application/json")
	case meaning.Status == http.StatusRequestEntityTooLarge:
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	if refusal.RetryAfter > 0 {
		w.Header().Set("Retry-After", seconds(refusal.RetryAfter))
	}
	w.WriteHeader(meaning.Status)
	_, _ = w.Write(append(body, '\n')) // the caller left; there is nobody to tell
}

// instance is the address without its query, which may hold what a caller does
// not want repeated.
func instance(r *http.Request) string {
	s := r.URL.EscapedPath()
	if len(s) > maxInstance {
		s = s[:maxInstance]
	}
	return s
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// ErrorsDocument is docs/ERRORS.md.
func ErrorsDocument() string {
	var b strings.Builder
	b.WriteString("# Problem codes\n\n" +
		"Every answer of the HTTP API that is not a success is a problem document (RFC 9457, `application/problem+json`).\n" +
		"`code` is for machines and never changes its meaning; `retryable` says whether the same request may succeed later, unchanged;\n" +
		"`errors[]` names fields (a JSON pointer into the body, or a header or parameter). This file is written by a test from the registry in `internal/ingest/codes.go`.\n\n" +
		"| code | status | title | retryable | what to do |\n|---|---|---|---|---|\n")
	for _, m := range ingest.Meanings() {
		fmt.Fprintf(&b, "| <a id=\"%[1]s\"></a>`%[1]s` | %d | %s | %s | %s |\n", m.Code, m.Status, m.Title, yesNo(m.Retryable), m.Advice)
	}
	b.WriteString("\n## Field codes\n\n| code | meaning |\n|---|---|\n")
	meanings := ingest.FieldMeanings()
	for _, code := range ingest.FieldCodes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", code, meanings[code])
	}
	b.WriteString("\nA 503 (but `storage_low`) or a lost connection after a submit leaves it open whether the operation was recorded. Send the same request with the same `Idempotency-Key`: it is recorded once, whichever it was.\n")
	return b.String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
