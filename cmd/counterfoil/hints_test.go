package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// ofHTTP is what a hint of a command must not speak of.
var ofHTTP = regexp.MustCompile(`\b(GET|POST|PUT|DELETE|Idempotency-Key|If-Match|ETag|Retry-After|Authorization|Allow|header|address|errors|application/json|body|cursor for)\b|/v1/|\?unaccepted|: true`)

// A key that cannot be sent is a mistake on the command line, not a service that
// does not run.
func TestKeysThatCannotBeSent(t *testing.T) {
	for _, keys := range [][2]string{{"a\x01b", "cf_x"}, {"a\nb", "cf_x"}, {"k", "cf_\x7fx"}} {
		var stderr bytes.Buffer
		getenv := func(name string) string {
			return map[string]string{"COUNTERFOIL_KEY": keys[1], "COUNTERFOIL_SERVER": "http://127.0.0.1:1"}[name]
		}
		code := run(t.Context(), []string{"submit", "example", "--key", keys[0]}, io.Discard, &stderr, getenv)
		if text := stderr.String(); code != exitUsage || strings.Contains(text, "is the service running") || !strings.Contains(text, "control character") {
			t.Errorf("%q: exit %d, %s", keys, code, text)
		}
	}
}

// Whatever code the service has, the hint is one for somebody at a terminal.
func TestHints(t *testing.T) {
	for _, m := range ingest.Meanings() {
		switch m.Code {
		case ingest.CodeSignatureInvalid, ingest.CodeTooManyDeliveries: // for providers' webhooks
			continue
		case ingest.CodeProtocol, ingest.CodeForeignOrigin, ingest.CodeForeignHost: // for who speaks MCP
			continue
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
