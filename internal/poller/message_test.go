package poller

import (
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

func TestMessage(t *testing.T) {
	long := httprule.Excerpt([]byte(strings.Repeat("word ", 1000)), messageLimit)
	for _, c := range []struct {
		name string
		f    contract.Failure
		want string
	}{
		{"nothing", contract.Failure{Class: events.ErrorServer}, ""},
		{"words", contract.Failure{Class: events.ErrorRefused, Message: "no room"}, "no room"},
		{"a reason alone", contract.Failure{Class: events.ErrorUnreadable, Detail: "the body is empty"}, "the body is empty"},
		{"cut", contract.Failure{Class: events.ErrorUnreadable, Detail: "the body was cut", Message: `{"job`}, `the body was cut: {"job`},
		{"too large", contract.Failure{Class: events.ErrorTooLarge, Detail: "the body has more than 9 bytes", Message: "x"}, "the body has more than 9 bytes: x"},
		{"a field beside the words", contract.Failure{Class: events.ErrorRefused, Detail: "status.read.progress: no such key", Message: "no room"}, "no room"},
		{"cut, of an error", contract.Failure{Class: events.ErrorServer, Cut: "the body was cut", Message: "<p>no ro"}, "the body was cut: no ro"},
		{"cut, of an error, beside a field", contract.Failure{Class: events.ErrorServer, Cut: "the body was cut", Detail: "errors.code: no such key", Message: "no ro"}, "the body was cut: no ro"},
		{"cut before it began", contract.Failure{Class: events.ErrorServer, Cut: "the body was cut"}, "the body was cut"},
		{"a field of a good answer", contract.Failure{Detail: "status.read.progress: no such key"}, "status.read.progress: no such key"},
	} {
		if got := message(c.f); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, detail := range []string{"the body was cut", strings.Repeat("detail ", 100)} {
		got := message(contract.Failure{Class: events.ErrorUnreadable, Detail: detail, Message: long})
		if len(got) > messageLimit || !strings.HasPrefix(got, detail[:16]) || !strings.HasSuffix(got, "(cut, 5000 bytes)") || !strings.Contains(got, ": word word") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}
