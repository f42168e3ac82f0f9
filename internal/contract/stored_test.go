package contract

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStoredRequests(t *testing.T) {
	for name, r := range map[string]Request{
		"nothing": {},
		"everything": {
			Method: "POST", URL: "https://api.example/v1/jobs", Header: []Header{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}},
			Body: []byte(`{"a": 1}`), Credential: Credential{Place: PlaceHeader, Name: "Authorization", Before: "Bearer ", After: "."},
			MaxBody: 8 << 20, FollowRedirects: 3,
		},
		"a body as long as a caller's may be, and more": {Method: "POST", Body: bytes.Repeat([]byte("x"), 3<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			header := append([]Header(nil), r.Header...)
			stored := EncodeRequest(r)
			got, err := DecodeRequest(stored)
			if err != nil || !reflect.DeepEqual(got, r) { // cmp takes seconds over a long body
				t.Errorf("%v\n%s", err, cmp.Diff(r, got))
			}
			if !cmp.Equal(header, append([]Header(nil), r.Header...)) {
				t.Error("encoding changed its argument")
			}
			if !bytes.Equal(stored, EncodeRequest(got)) {
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
	f.Add(EncodeRequest(Request{}))
	f.Add(EncodeRequest(Request{
		Method: "POST", URL: "https://api.example", Header: []Header{{Name: "A", Value: "1"}}, Body: []byte("{}"),
		Credential: Credential{Place: PlaceQuery, Name: "key"}, MaxBody: 1, FollowRedirects: 1,
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRequest(data)
		if err != nil {
			return
		}
		again, err := DecodeRequest(EncodeRequest(r))
		if err != nil || !cmp.Equal(r, again) {
			t.Errorf("%v\n%s", err, cmp.Diff(r, again))
		}
	})
}
