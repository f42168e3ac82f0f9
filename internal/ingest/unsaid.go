package ingest

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// unsaid are the text members of a body that are there and say nothing, by their
// pointers, where leaving them out is how to say that. A variable that was not set must
// not be taken for "none": an empty bound would bound nothing, and the cleanup of an empty
// job would be that of the operation's own.
//
// Whoever decodes a body gets them, and refuses them once nothing older answers: what an
// earlier version recorded with one is still found by a replay.
type unsaid []string

// refused is the refusal of all of them, nil if there are none.
func (u unsaid) refused() error {
	var problems []FieldError
	for _, field := range u {
		problems = append(problems, Wrong(field, FieldNotAllowed, "must not be empty: leave it out if there is none", nil))
	}
	if len(problems) > 0 {
		return Refuse(problems...)
	}
	return nil
}

// outside leaves out those of items, which are answered each by itself.
func (u unsaid) outside(items string) unsaid {
	return slices.DeleteFunc(slices.Clone(u), func(field string) bool { return strings.HasPrefix(field, items+"/") })
}

// unsaidIn finds them in a body that was decoded into the shape. What the shape takes
// as it is (params, an input, labels) is not looked into.
func unsaidIn(body []byte, shape reflect.Type) unsaid {
	if !bytes.Contains(body, []byte(`""`)) {
		return nil
	}
	var found unsaid
	readUnsaid(jsontext.NewDecoder(bytes.NewReader(body)), shape, &found)
	return found
}

// readUnsaid reads one value. An error ends the search: the body was read before.
func readUnsaid(dec *jsontext.Decoder, t reflect.Type, found *unsaid) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind := dec.PeekKind()
	switch {
	case kind == '"' && t != nil && t.Kind() == reflect.String:
		if v, err := dec.ReadToken(); err == nil && v.String() == "" {
			*found = append(*found, clip(string(dec.StackPointer())))
		}
		return
	case kind == '{' && t != nil && t.Kind() == reflect.Struct, kind == '[' && t != nil && t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
	default:
		_ = dec.SkipValue() // the next read fails as well
		return
	}
	if _, err := dec.ReadToken(); err != nil {
		return
	}
	for k := dec.PeekKind(); k > 0 && k != '}' && k != ']'; k = dec.PeekKind() {
		if kind == '[' {
			readUnsaid(dec, t.Elem(), found)
			continue
		}
		name, err := dec.ReadToken()
		if err != nil {
			return
		}
		var member reflect.Type
		if f, ok := fieldNamed(t, name.String()); ok {
			member = f.Type
		}
		readUnsaid(dec, member, found)
	}
	_, _ = dec.ReadToken() // the end of it
}
