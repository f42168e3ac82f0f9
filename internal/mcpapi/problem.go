package mcpapi

import (
	"encoding/json"
	"errors"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// problemOf is the problem document of a failed call: of another process as it
// gave it, of ours as the HTTP API would.
func (s *server) problemOf(err error, tool string) json.RawMessage {
	var refused *Refused
	if errors.As(err, &refused) {
		return refused.Document
	}
	return ingest.ProblemOf(err, "/mcp#"+tool, s.o.Base+ingest.ProblemBase).JSON()
}

// problemSchema describes a problem document.
func problemSchema() *jsonschema.Schema { return schemaOf[ingest.Problem]() }
