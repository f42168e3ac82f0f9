package mcpapi

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// checkEnvelope refuses a message in which a name occurs twice around the
// arguments: who inspects it on its way may read the one, and the SDK the other.
// The arguments themselves are for the tool to refuse.
func checkEnvelope(body []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true))
	if err := walk(dec, "", 0); err != nil {
		return err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return notJSON(dec)
	}
	return nil
}

// walk reads one value; in objects it checks the names, two levels deep: those of
// the message, and those of its parameters.
func walk(dec *jsontext.Decoder, name string, depth int) error {
	kind := dec.PeekKind()
	batch := kind == '[' && depth == 0
	checked := kind == '{' && (depth == 0 || depth == 1 && name == "params")
	if !batch && !checked {
		if err := dec.SkipValue(); err != nil {
			return notJSON(dec)
		}
		return nil
	}
	if _, err := dec.ReadToken(); err != nil {
		return notJSON(dec)
	}
	seen := map[string]bool{}
	for {
		switch dec.PeekKind() {
		case '}', ']':
			if _, err := dec.ReadToken(); err != nil {
				return notJSON(dec)
			}
			return nil
		case 0: // an error, or the end
			return notJSON(dec)
		}
		if batch {
			if err := walk(dec, "", 0); err != nil {
				return err
			}
			continue
		}
		token, err := dec.ReadToken()
		if err != nil {
			return notJSON(dec)
		}
		member := token.String()
		if seen[member] {
			return (&ingest.Refusal{Code: ingest.CodeDuplicateKey}).Say("a member of the message occurs twice (at byte {at_byte})", ingest.Values{"at_byte": dec.InputOffset()})
		}
		seen[member] = true
		if err := walk(dec, member, depth+1); err != nil {
			return err
		}
	}
}

func notJSON(dec *jsontext.Decoder) error {
	return (&ingest.Refusal{Code: ingest.CodeMalformedJSON}).Say("the message is not JSON (at byte {at_byte})", ingest.Values{"at_byte": dec.InputOffset()})
}
