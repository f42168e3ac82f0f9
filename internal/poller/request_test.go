package poller

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/internal/contract"
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
