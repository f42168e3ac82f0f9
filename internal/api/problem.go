package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

const maxInstance = 200 // bytes of the address that come back

// writeProblem answers with the document for the error, and the headers that go
// with its code.
func writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := ingest.ProblemOf(err, instance(r), ingest.ProblemBase)
	common(w.Header())
	w.Header().Set("Content-Type", "application/problem+json")
	switch {
	case p.Code == ingest.CodeUnauthenticated:
		w.Header().Set("WWW-Authenticate", `Bearer realm="counterfoil"`)
	case p.Status == http.StatusUnsupportedMediaType:
		w.Header().Set("Accept-Post", "application/json")
	case p.Status == http.StatusRequestEntityTooLarge:
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	if wait := ingest.RefusalOf(err).RetryAfter; wait > 0 {
		w.Header().Set("Retry-After", seconds(wait))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(p.JSON(), '\n')) // the caller left; there is nobody to tell
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
