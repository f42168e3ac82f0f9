package poller

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

func TestStoredRequests(t *testing.T) {
	for name, r := range map[string]contract.Request{
		"nothing": {},
		"everything": {
			Method: "POST", URL: "https://api.example/v1/jobs", Header: []contract.Header{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}},
			Body: []byte(`{"a": 1}`), Credential: contract.Credential{Place: contract.PlaceHeader, Name: "Authorization", Before: "Bearer ", After: "."},
			MaxBody: 8 << 20, FollowRedirects: 3,
		},
		"a body as long as a caller's may be, and more": {Method: "POST", Body: bytes.Repeat([]byte("x"), 3<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			header := append([]contract.Header(nil), r.Header...)
			stored := encodeRequest(r)
			got, err := decodeRequest(stored)
			if err != nil || !reflect.DeepEqual(got, r) { // cmp takes seconds over a long body
				t.Errorf("%v\n%s", err, cmp.Diff(r, got))
			}
			if !cmp.Equal(header, append([]contract.Header(nil), r.Header...)) {
				t.Error("encoding changed its argument")
			}
			if !bytes.Equal(stored, encodeRequest(got)) {
				t.Error("the same request gives other bytes")
			}
		})
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte{0})
	f.Add([]byte{0x80})
	f.Add([]byte{5, 1})
	f.Add(bytes.Repeat([]byte{0xff}, 11))
	f.Add(encodeRequest(contract.Request{}))
	f.Add(encodeRequest(contract.Request{
		Method: "POST", URL: "https://api.example", Header: []contract.Header{{Name: "A", Value: "1"}}, Body: []byte("{}"),
		Credential: contract.Credential{Place: contract.PlaceQuery, Name: "key"}, MaxBody: 1, FollowRedirects: 1,
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRequest(data)
		if err != nil {
			return
		}
		again, err := decodeRequest(encodeRequest(r))
		if err != nil || !cmp.Equal(r, again) {
			t.Errorf("%v\n%s", err, cmp.Diff(r, again))
		}
	})
}

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
