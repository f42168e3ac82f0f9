package journal

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzIntentHeaders: nothing that speaks to the server is stored with an intent, and
// nothing else is lost.
func FuzzIntentHeaders(f *testing.F) {
	f.Add("ce-id", "1", "Nats-Msg-Id", "x")
	f.Add("NATS-ttl", "1s", "content-type", "application/json")
	f.Add("nats-expected-stream", "INTENTS", "Nats-Expected-Stream", "LEDGER")
	f.Add("natsy", "", "", "")
	f.Fuzz(func(t *testing.T, one, first, two, second string) {
		in := nats.Header{one: {first}}
		in[two] = append(in[two], second)
		out, refusal := intentHeaders(&nats.Msg{Header: in})
		if refusal != nil {
			if out != nil || refusal.Code != codeBad || refusal.ErrorCode == 0 {
				t.Errorf("%v: %v %+v", in, out, refusal)
			}
			return
		}
		for name, values := range in {
			ours := !strings.HasPrefix(strings.ToLower(name), serverHeaders)
			if _, kept := out[name]; kept != ours || kept && !slices.Equal(out[name], values) {
				t.Errorf("%v became %v", in, out)
			}
		}
	})
}
