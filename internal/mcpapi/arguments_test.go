package mcpapi

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is not ours reaches the service byte for byte.
func TestBodyIsWhatTheCallerWrote(t *testing.T) {
	for _, c := range []struct{ arguments, body, key string }{
		{`{"idempotency_key":"k"}`, `{}`, "k"},
		{`{"provider":"p","idempotency_key":"k","params":{"a": 1.50, "b":"\u00e9<"}}`, `{"provider":"p","params":{"a": 1.50, "b":"\u00e9<"}}`, "k"},
		{"{ \"params\" : [ 1 , 2 ] ,\n\"idempotency\\u005fkey\" : \"\\u006b\" , \"x\\ty\" : null }", `{"params":[ 1 , 2 ],"x\ty":null}`, "k"},
		{`{"idempotency_key":"\"k\\\"\"","a":1}`, `{"a":1}`, `k"`}, // as the header spells it
	} {
		a, err := readArguments([]byte(c.arguments), "idempotency_key")
		if err != nil || string(a.body) != c.body || a.key != c.key {
			t.Errorf("%s: body %s, key %s, error %v; want %s, %s", c.arguments, a.body, a.key, err, c.body, c.key)
		}
	}
}

func FuzzArguments(f *testing.F) {
	for _, seed := range []string{
		`{"idempotency_key":"k","provider":"example","params":{"n":1.50},"tags":{"a":"b"}}`,
		`{"id":"op_x","idempotency_key":"k","version":7,"kind":"abandon"}`,
		`{"id":"op_x","id":"op_y"}`, `{"version":-1,"id":"","idempotency_key":""}`, `{"a":{"b":[{},[],null,1e400]}}`, `null`, `[]`, ``, `{"\ud800":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		whole := bytes.Clone(raw)
		for _, into := range []any{&idArguments{}, &waitArguments{}, &listArguments{}, &timelineArguments{}, &resultArguments{}, &noArguments{}} {
			refusedOrNil(t, decodeArguments(raw, into))
		}
		_, _ = decisionBody(raw, operation{})
		_ = checkEnvelope(raw)
		a, err := readArguments(raw, "id", "idempotency_key", "version")
		refusedOrNil(t, err)
		if !bytes.Equal(raw, whole) {
			t.Fatal("the arguments were written to")
		}
		if err != nil {
			return
		}
		// The body and what was taken out of it are the arguments again, and nothing more.
		var have, rest map[string]jsontext.Value
		if err := errors.Join(json.Unmarshal(raw, &have), json.Unmarshal(a.body, &rest)); err != nil {
			t.Fatalf("%s became %s: %v", raw, a.body, err)
		}
		for name, value := range have {
			switch name {
			case "id", "idempotency_key", "version":
				delete(rest, name)
				continue
			}
			if !bytes.Equal(rest[name], value) {
				t.Errorf("%s is %s in the body, was %s", name, rest[name], value)
			}
			delete(rest, name)
		}
		if len(rest) > 0 {
			t.Errorf("the body has %v, and the arguments have not", rest)
		}
		if a.key == "" || len(a.key) > ingest.MaxKey {
			t.Errorf("key %q", a.key)
		}
	})
}

// TestBadKeyIsNamed as the argument that it is, and not as a header.
func TestBadKeyIsNamed(t *testing.T) {
	for _, key := range []string{"", "a b", strings.Repeat("x", 300), `\"open`} {
		_, err := readArguments([]byte(`{"idempotency_key":"`+key+`"}`), "idempotency_key")
		var refusal *ingest.Refusal
		if !errors.As(err, &refusal) || len(refusal.Errors) != 1 || refusal.Errors[0].Field != "/idempotency_key" || !strings.HasPrefix(refusal.Detail, "the idempotency_key ") {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func refusedOrNil(t *testing.T, err error) {
	t.Helper()
	var refusal *ingest.Refusal
	if err != nil && !errors.As(err, &refusal) {
		t.Fatalf("not a refusal: %v", err)
	}
}

// A text argument that is there and empty is refused by its name: an empty filter must
// not list everything.
func TestEmptyArguments(t *testing.T) {
	for _, into := range []any{&listArguments{}, &resultArguments{}, &timelineArguments{}, &waitArguments{}, &idArguments{}} {
		shape := reflect.TypeOf(into).Elem()
		for i := range shape.NumField() {
			if shape.Field(i).Type.Kind() != reflect.String {
				continue
			}
			name := shape.Field(i).Tag.Get("json")
			err := decodeArguments([]byte(`{"`+name+`":""}`), into)
			var refusal *ingest.Refusal
			if !errors.As(err, &refusal) || len(refusal.Errors) != 1 || refusal.Errors[0].Field != "/"+name {
				t.Errorf("%s of %T, empty: %v", name, into, err)
			}
		}
	}
}
