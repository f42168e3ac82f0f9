package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

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
	case p.Code == ingest.CodeUnauthenticated && w.Header().Get("WWW-Authenticate") == "":
		w.Header().Set("WWW-Authenticate", `Bearer realm="counterfoil"`)
	case p.Status == http.StatusUnsupportedMediaType:
		takes := []string{jsonType}
		if r.URL.Path == eventPath {
			takes = eventForms()
		}
		w.Header().Set("Accept-Post", strings.Join(takes, ", "))
	case p.Status == http.StatusRequestEntityTooLarge, p.Status == http.StatusHTTPVersionNotSupported, p.Code == ingest.CodeRequestTimeout, p.Code == ingest.CodeBodyIncomplete,
		p.Code == ingest.CodeRequestMalformed:
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
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

// ErrorsDocument is docs/ERRORS.md.
func ErrorsDocument() string {
	var b strings.Builder
	b.WriteString("# Problem codes\n\n" +
		"Every answer of the HTTP API that is not a success is a problem document (RFC 9457, `application/problem+json`), and\n" +
		"every other face answers with the same object. `code` is for machines and never changes its meaning; `type` is an address on\n" +
		"the service, `/errors/<code>`, where it says what is below, without a key; `/errors` lists all of them. `retryable` says\n" +
		"whether the same request may succeed later, unchanged; `retry_after_s` is the number of the Retry-After header. `errors[]`\n" +
		"names fields (a JSON pointer into the body, or a header or parameter). Every bound, name and number in `detail` or a `message` is\n" +
		"also a member: `state`, `operation_id`, `requires`, `allowed`, or one of `values`, of the problem or of the field.\n\n" +
		"`retry_with` is the key to send the request with after that, if it is sent again:\n\n" +
		"- `same_key`: its own, unchanged if the code is retryable and corrected if not. It never acts twice, whatever became of\n" +
		"  the tries before. A request that needs no key is sent as it was, or corrected.\n" +
		"- `new_key`: another one. Only where nothing can have been recorded under the key as it was sent.\n" +
		"- `never`: there is nothing to send again. It is settled, or it belongs elsewhere.\n\n" +
		"This file is written by a test from the registry in `internal/ingest/codes.go`.\n\n" +
		"| code | status | title | retryable | retry_with | what to do |\n|---|---|---|---|---|---|\n")
	for _, m := range ingest.Meanings() {
		fmt.Fprintf(&b, "| <a id=\"%[1]s\"></a>`%[1]s` | %d | %s | %s | `%s` | %s |\n", m.Code, m.Status, m.Title, yesNo(m.Retryable), m.RetryWith, m.Advice)
	}
	b.WriteString("\n## Field codes\n\n| code | meaning |\n|---|---|\n")
	meanings := ingest.FieldMeanings()
	for _, code := range ingest.FieldCodes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", code, meanings[code])
	}
	b.WriteString("\nA 503 (but `storage_low`) or a lost connection after a submit leaves it open whether the operation was recorded. Send the same request with the same `Idempotency-Key`: it is recorded once, whichever it was.\n")
	b.WriteString("\n## Before there is a request\n\n" +
		"What cannot be read as a request is refused by a problem, too, whose `instance` is empty, and the connection is closed.\n" +
		"Without a word are closed: a connection on which no whole header came within " + headerTime.String() + ", and one whose caller does not read\n" +
		"an answer within " + writeTime.String() + " (" + resultTime.String() + " for a result). A whole request must come within " + readTime.String() + ", and the body of a\n" +
		"provider's delivery within " + deliveryTime.String() + "; a body that does not is\n" +
		"answered with `request_timeout`. The answer to HEAD has the headers of the problem and no body.\n")
	return b.String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
