package mcpapi

import (
	"fmt"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// schemaOf describes a type of ours, as it is written.
func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[ingest.Fields](): {Type: "object", AdditionalProperties: &jsonschema.Schema{Type: "string"}},
	}})
	if err != nil {
		panic(fmt.Sprintf("mcpapi: schema of %s: %v", reflect.TypeFor[T](), err)) // our own types
	}
	return s
}

// input describes arguments. Those that are not listed as required may be left
// out; those that are not described are refused.
func input[T any](required ...string) *jsonschema.Schema {
	s := schemaOf[T]()
	s.Required = required
	return s
}

// output describes what a tool answers: the type, or the problem document of a
// failed call, since clients hold both against one schema. Members may be added
// later, so others than those described are allowed.
func output[T any]() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", AnyOf: []*jsonschema.Schema{open(schemaOf[T]()), open(problemSchema())}}
}

// open allows members that are not described, at every level.
func open(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil {
		return nil
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		open(p)
	}
	open(s.Items)
	return s
}
