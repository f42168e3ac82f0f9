package cloudevent

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
)

func whole() map[string][]string {
	return map[string][]string{
		"Content-Type": {"application/json; charset=utf-8"}, "Ce-Specversion": {"1.0"}, "ce-type": {"t"},
		"CE-SOURCE": {"/agents/caf%C3%A9%20x"}, "ce-id": {`"a%20b"`}, "ce-idempotencykey": {"k1"},
	}
}

// TestModesAgree: the same event in either mode, and with the media type in either
// header, is the same event.
func TestModesAgree(t *testing.T) {
	want := Event{
		ID: "a b", Source: "/agents/café x", Type: "t", MediaType: "application/json; charset=utf-8",
		Other: map[string]string{"idempotencykey": "k1"}, Data: []byte(`{"a": 1.0}`),
	}
	got, err := FromHeaders(whole(), []byte(`{"a": 1.0}`))
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("headers: %v %s", err, cmp.Diff(want, got))
	}
	nats := whole()
	delete(nats, "Content-Type")
	nats["ce-datacontenttype"] = []string{"application/json;%20charset=utf-8"}
	if got, err := FromHeaders(nats, []byte(`{"a": 1.0}`)); err != nil || !cmp.Equal(got, want) {
		t.Errorf("as NATS has it: %v %s", err, cmp.Diff(want, got))
	}
	for name, text := range map[string]string{
		"structured": `{"specversion":"1.0","type":"t","source":"/agents/café x","id":"a b","time":null,` +
			`"datacontenttype":"application/json; charset=utf-8","idempotencykey":"k1","data":{"a": 1.0}}`,
		"base64": `{"data_base64":"eyJhIjogMS4wfQ==","specversion":"1.0","type":"t","source":"/agents/caf\u00e9 x","id":"a b",` +
			`"datacontenttype":"application/json; charset=utf-8","idempotencykey":"k1"}`,
	} {
		if got, err := FromJSON([]byte(text)); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v %s", name, err, cmp.Diff(want, got))
		}
	}
}

func TestModeOf(t *testing.T) {
	for header, want := range map[string]Mode{
		"application/json": Binary, "text/plain": Binary, "application/cloudevents+json; charset=utf-8": Structured,
		"Application/CloudEvents+JSON": Structured, "application/cloudevents-batch+json": Batched,
		"application/cloudevents+avro": Unknown, "application/cloudevents": Unknown, "": Unknown, "a b": Unknown,
	} {
		if got := ModeOf(header); got != want {
			t.Errorf("%q is %d, want %d", header, got, want)
		}
	}
}

func TestHeadersRefused(t *testing.T) {
	for name, c := range map[string]struct {
		header, value string
		more          []string
		want          Problem
		attribute     string
	}{
		"two media types":   {"content-type", "application/json", nil, Duplicate, "content-type"},
		"no id":             {"ce-id", "", nil, Missing, "id"},
		"twice":             {"ce-id", "a", []string{"b"}, Duplicate, "id"},
		"in two spellings":  {"cE-iD", "a", nil, Duplicate, "id"},
		"bad encoding":      {"ce-subject", "100%", nil, BadValue, "subject"},
		"bad UTF-8":         {"ce-subject", "%ff", nil, BadValue, "subject"},
		"control character": {"ce-subject", "a%0Ab", nil, BadValue, "subject"},
		"name":              {"ce-a_b", "a", nil, BadName, "a_b"},
		"long name":         {"ce-" + strings.Repeat("a", 65), "a", nil, TooLong, strings.Repeat("a", 64)},
		"long value":        {"ce-subject", strings.Repeat("a", MaxValue+1), nil, TooLong, "subject"},
		"longer value":      {"ce-subject", strings.Repeat("a", 4*MaxValue), nil, TooLong, "subject"},
		"version":           {"Ce-Specversion", "0.3", nil, NotAllowed, "specversion"},
		"source":            {"CE-SOURCE", ":", nil, BadValue, "source"},
		"time":              {"ce-time", "yesterday", nil, BadValue, "time"},
	} {
		t.Run(name, func(t *testing.T) {
			header := whole()
			header[c.header] = append([]string{c.value}, c.more...)
			_, err := FromHeaders(header, nil)
			var e *Error
			if !errors.As(err, &e) || e.Problem != c.want || e.Attribute != c.attribute {
				t.Errorf("got %v, want %s of %s", err, c.want, c.attribute)
			}
		})
	}
	many := whole()
	for _, c := range "abcdefghijklmnopqrstuvwxyz0123456789" {
		many["ce-x"+string(c)], many["ce-y"+string(c)] = []string{"1"}, []string{"1"}
	}
	var e *Error
	if _, err := FromHeaders(many, nil); !errors.As(err, &e) || e.Problem != TooMany || !strings.Contains(e.Error(), "64") {
		t.Errorf("many attributes: %v", err)
	}
}

func TestJSONRefused(t *testing.T) {
	for text, want := range map[string]Problem{
		``: NotJSON, `{`: NotJSON, `{"id":"a"`: NotJSON, `{}{}`: NotJSON, "{\"id\":\"\xff\"}": NotJSON, `[]`: BadType, `null`: BadType,
		`{"id":"a","id":"a"}`: Duplicate, `{"data":{"a":1,"a":2}}`: Duplicate, `{}`: Missing, `{"id":{}}`: BadType, `{"ID":"a"}`: BadName,
		`{"specversion":"1.0","type":"t","source":"s","id":"a","data":1,"data_base64":"MQ=="}`: TwoKinds,
		`{"data_base64":"***"}`: BadValue, `{"data_base64":1}`: BadValue, `{"id":"\u0000"}`: BadValue,
	} {
		_, err := FromJSON([]byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Problem != want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

// deep is JSON that nests so deep.
func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestWhereItIsRefused: a name that is there twice is named, and what nests too deep is
// not taken for broken JSON.
func TestWhereItIsRefused(t *testing.T) {
	for text, want := range map[string]Error{
		`{"id":"a","id":"a"}`:                    {Problem: Duplicate, Pointer: "id"},
		`{"data":{"a":1,"a":2}}`:                 {Problem: Duplicate, Pointer: "/a"},
		`{"data":{"b/c":[{"a":1,"a":2}]}}`:       {Problem: Duplicate, Pointer: "/b~1c/0/a"},
		`{"extension":{"a":1,"a":2}}`:            {Problem: Duplicate, Pointer: "/extension/a"},
		`{"extension":` + deep(10_001) + `}`:     {Problem: TooDeep, Attribute: "extension", Bound: MaxDepth},
		`{"data":` + deep(10_001) + `}`:          {Problem: TooDeep, Attribute: "data", Bound: MaxDepth},
		`{"extension":` + deep(70)[:70] + `!`:    {Problem: TooDeep, Attribute: "extension", Bound: MaxDepth},
		`{"extension":` + deep(MaxDepth) + `}`:   {Problem: BadType, Attribute: "extension"},
		`{"extension":` + deep(60)[:60] + `!]]}`: {Problem: NotJSON},
	} {
		_, err := FromJSON([]byte(text))
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%.40s: got %v", text, err)
		}
		e.Detail = ""
		if *e != want {
			t.Errorf("%.40s: got %+v, want %+v", text, *e, want)
		}
	}
}

func TestSplit(t *testing.T) {
	// What is wrong with one event is that event's.
	if list, err := Split([]byte(`[{"a":1,"a":1},{"data":{"b":1,"b":2}}]`), 2); err != nil || len(list) != 2 {
		t.Errorf("names that are there twice: %q %v", list, err)
	}
	list, err := Split([]byte(` [ {"a":1} , 2 ] `), 2)
	if err != nil || len(list) != 2 || string(list[0]) != `{"a":1}` || string(list[1]) != "2" {
		t.Errorf("%q %v", list, err)
	}
	for text, want := range map[string]Problem{`{}`: BadType, `[`: NotJSON, `[1,`: NotJSON, `[1,2,3]`: TooMany, `[1]x`: NotJSON, ``: NotJSON, `[` + deep(10_001) + `]`: TooDeep} {
		var e *Error
		if _, err := Split([]byte(text), 2); !errors.As(err, &e) || e.Problem != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// FuzzHeaders: what is read is read again from what Encode makes of it.
func FuzzHeaders(f *testing.F) {
	f.Add("a b", "/café", "t", "idempotencykey", `"quoted"`)
	f.Add("%", "urn:x", "", "subject", "100%25")
	f.Fuzz(func(t *testing.T, id, source, kind, name, value string) {
		header := map[string][]string{
			"ce-specversion": {"1.0"}, "CE-ID": {Encode(id)}, "ce-source": {Encode(source)}, "ce-type": {Encode(kind)}, "ce-" + name: {value},
		}
		e, err := FromHeaders(header, nil)
		if s, i := NameInHeaders(header); err == nil && (s != e.Source || i != e.ID) || (s == "") != (i == "") {
			t.Fatalf("%v has the name %q %q, and is %+v", header, s, i, e)
		}
		if err != nil {
			var own *Error
			if !errors.As(err, &own) || len(own.Attribute) > MaxName {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {Encode(e.ID)}, "ce-source": {Encode(e.Source)}, "ce-type": {Encode(e.Type)}}
		if e.MediaType != "" {
			again["ce-datacontenttype"] = []string{Encode(e.MediaType)}
		}
		for name, v := range e.Other {
			again["ce-"+name] = []string{Encode(v)}
		}
		if back, err := FromHeaders(again, nil); err != nil || !cmp.Equal(back, e) {
			t.Fatalf("read again: %v %s", err, cmp.Diff(e, back))
		}
	})
}

// FuzzJSON holds structured mode against the library of the CloudEvents project:
// what is read here it reads, too, and as the same.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","type":"t","source":"/s","id":"1","data":{"a":1},"ext":"v","num":5,"yes":true}`))
	f.Add([]byte(`{"specversion":"1.0","type":"t","source":"/s","id":"1","data_base64":"MQ==","time":"2030-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"id":"a","id":"b"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := FromJSON(text)
		if s, i := NameInJSON(text); err == nil && (s != e.Source || i != e.ID) || (s == "") != (i == "") {
			t.Fatalf("%s has the name %q %q, and is %+v", text, s, i, e)
		}
		if err != nil {
			var own *Error
			if !errors.As(err, &own) || len(own.Attribute) > MaxName {
				t.Fatalf("error %v", err)
			}
			return
		}
		var theirs event.Event
		if err := json.Unmarshal(text, &theirs); err != nil {
			return // it knows fewer spellings of times, numbers and media types
		}
		if theirs.ID() != e.ID || theirs.Source() != e.Source || theirs.Type() != e.Type {
			t.Fatalf("%s: read as %+v, by the library as %s", text, e, theirs)
		}
		own := maps.Clone(e.Other)
		for _, optional := range []string{"time", "subject", "dataschema"} {
			delete(own, optional)
		}
		for name, v := range theirs.Extensions() {
			if s, ok := v.(string); ok && own[name] != s {
				t.Fatalf("%s: extension %s is %q, by the library %q", text, name, own[name], s)
			}
		}
	})
}
