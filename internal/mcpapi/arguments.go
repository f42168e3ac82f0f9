package mcpapi

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// maxArguments is how many bytes the arguments of one call may have: a body, and
// what stands beside it.
const maxArguments = ingest.MaxBody + 4<<10

// arguments are those of a tool that passes a body on to the service: the members
// that are ours, and the rest as the caller wrote it.
type arguments struct {
	id      string
	key     string // as [ingest.ParseKey] gives it
	version uint64 // 0: none is given
	// body is the object without the members that are ours, its other members byte
	// for byte.
	body []byte
}

// readArguments takes the named members out of the object. id and
// idempotency_key, where they are named, must be there. That the same request
// over HTTP has the same body is what gives it the same fingerprint; that a name
// occurs once is checked before anything is read, since two readers disagree about
// which of two counts.
func readArguments(raw []byte, ours ...string) (arguments, error) {
	raw, err := object(raw)
	if err != nil {
		return arguments{}, err
	}
	var a arguments
	given := map[string]jsontext.Value{}
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.ReadToken(); err != nil {
		return arguments{}, fmt.Errorf("read the arguments again: %w", err)
	}
	a.body = append(a.body, '{')
	for dec.PeekKind() == '"' {
		name, err := dec.ReadValue()
		if err != nil {
			return arguments{}, fmt.Errorf("read the arguments again: %w", err)
		}
		name = name.Clone() // the next read overwrites it
		text, err := jsontext.AppendUnquote(nil, name)
		if err != nil {
			return arguments{}, fmt.Errorf("read the arguments again: %w", err)
		}
		value, err := dec.ReadValue()
		if err != nil {
			return arguments{}, fmt.Errorf("read the arguments again: %w", err)
		}
		if slices.Contains(ours, string(text)) {
			given[string(text)] = value.Clone()
			continue
		}
		if len(a.body) > 1 {
			a.body = append(a.body, ',')
		}
		a.body = append(append(append(a.body, name...), ':'), value...)
	}
	a.body = append(a.body, '}')
	if slices.Contains(ours, "id") {
		if a.id, err = text(given, "id"); err == nil {
			err = idGiven(a.id)
		}
		if err != nil {
			return arguments{}, err
		}
	}
	if value, ok := given["version"]; ok {
		var v struct {
			Version uint64 `json:"version"`
		}
		if err := ingest.DecodeStrict([]byte(`{"version":`+string(value)+`}`), &v); err != nil {
			return arguments{}, err
		}
		a.version = v.Version
	}
	if slices.Contains(ours, "idempotency_key") {
		key, err := text(given, "idempotency_key")
		if err != nil {
			return arguments{}, err
		}
		if a.key, err = ingest.ParseKeyOf("idempotency_key", []string{key}); err != nil {
			return arguments{}, inArgument(err, "idempotency_key", "/idempotency_key")
		}
	}
	return a, nil
}

// object is the arguments, which two readers cannot take for two things.
func object(raw []byte) ([]byte, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return []byte("{}"), nil // a tool without arguments may be called without any
	}
	if err := ingest.CheckJSON(raw, maxArguments); err != nil {
		return nil, err
	}
	if jsontext.Value(raw).Kind() != '{' {
		return nil, &ingest.Refusal{
			Code: ingest.CodeInvalid, Detail: "the arguments must be a JSON object",
			Errors: []ingest.FieldError{{Field: "", Code: ingest.FieldWrongType, Message: "the arguments must be a JSON object"}},
		}
	}
	return raw, nil
}

// text reads a member that must be there.
func text(given map[string]jsontext.Value, name string) (string, error) {
	value, ok := given[name]
	if !ok || value.Kind() == 'n' {
		if name == "idempotency_key" {
			return "", &ingest.Refusal{
				Code: ingest.CodeKeyMissing, Detail: "give idempotency_key: one of your own for each intent, the same at every try",
				Errors: []ingest.FieldError{{Field: "/" + name, Code: ingest.FieldRequired, Message: "must be given"}},
			}
		}
		return "", refuseField("/"+name, ingest.FieldRequired, "must be given")
	}
	if value.Kind() != '"' {
		return "", refuseField("/"+name, ingest.FieldWrongType, "must be of JSON type string")
	}
	out, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return "", refuseField("/"+name, ingest.FieldMalformed, "cannot be read")
	}
	return string(out), nil
}

func refuseField(field string, code ingest.FieldCode, message string) *ingest.Refusal {
	return ingest.Refuse(ingest.Wrong(field, code, message, nil))
}

// outOfBounds refuses a number that must be between two.
func outOfBounds(field string, low, high int) *ingest.Refusal {
	return ingest.Refuse(ingest.Wrong(field, ingest.FieldOutOfBounds, "must be between {min} and {max}", ingest.Values{"min": low, "max": high}))
}

// inArgument names the argument where a refusal named a header or a parameter.
func inArgument(err error, was, is string) error {
	var refusal *ingest.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	changed := *refusal
	changed.Errors = nil
	for _, e := range refusal.Errors {
		if e.Field == was {
			e.Field = is
		}
		changed.Errors = append(changed.Errors, e)
	}
	return &changed
}

// decodeArguments reads arguments that are not a body of the service.
func decodeArguments(raw []byte, into any) error {
	raw, err := object(raw)
	if err != nil {
		return err
	}
	return ingest.DecodeStrict(raw, into)
}
