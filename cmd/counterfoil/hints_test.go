package main

import (
	"regexp"
	"testing"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// ofHTTP is what a hint of a command must not speak of.
var ofHTTP = regexp.MustCompile(`\b(GET|POST|PUT|DELETE|Idempotency-Key|If-Match|ETag|Retry-After|Authorization|Allow|header|address|errors|application/json|body|cursor for)\b|/v1/|\?unaccepted|: true`)

// Whatever code the service has, the hint is one for somebody at a terminal.
func TestHints(t *testing.T) {
	for _, m := range ingest.Meanings() {
		if m.Code == ingest.CodeSignatureInvalid {
			continue // for providers' webhooks
		}
		h := hint(&client.Problem{Code: string(m.Code), Hint: m.Advice})
		if found := ofHTTP.FindString(h); found != "" || h == "" {
			t.Errorf("%s: %q speaks of %q", m.Code, h, found)
		}
	}
	// One of a later service is shown as it came.
	if h := hint(&client.Problem{Code: "of_tomorrow", Hint: "Do so."}); h != "Do so." {
		t.Error(h)
	}
}
