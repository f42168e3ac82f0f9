package mcpapi

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// maxBatch is how many messages one request may hold. Old revisions of the protocol
// have batches, and each of its calls may wait for a minute.
const maxBatch = 32

// mostID is the largest whole number that every reader of JSON takes for what it is.
const mostID = 1 << 53

// validID says whether the id of a message is a string or a whole number. The SDK takes
// others too, answers 1.5 under 1, and a request without an id not at all.
func validID(raw []byte) bool {
	if len(raw) == 0 {
		return false
	}
	if raw[0] == '"' {
		return true
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return err == nil && n >= -mostID && n <= mostID && strconv.FormatInt(n, 10) == string(raw)
}

// checkEnvelope refuses a message in which a name occurs twice around the
// arguments: who inspects it on its way may read the one, and the SDK the other. So it
// does an id that would come back as another. The arguments themselves are for the tool
// to refuse.
func checkEnvelope(body []byte) error {
	dec := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true))
	if err := walkMessages(dec); err != nil {
		return err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return notJSON(dec)
	}
	return nil
}

// walkMessages reads one message, or a batch of them.
func walkMessages(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return walk(dec, "", 0)
	}
	if _, err := dec.ReadToken(); err != nil {
		return notJSON(dec)
	}
	for n := 0; dec.PeekKind() != ']'; n++ {
		if n == maxBatch {
			return (&ingest.Refusal{Code: ingest.CodeProtocol}).Say("a batch has more than {max} messages", ingest.Values{"max": maxBatch})
		}
		if err := walk(dec, "", 0); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return notJSON(dec)
	}
	return nil
}

// walk reads one value; in objects it checks the names, two levels deep: those of
// the message, and those of its parameters.
func walk(dec *jsontext.Decoder, name string, depth int) error {
	if dec.PeekKind() != '{' || depth > 0 && (depth > 1 || name != "params") {
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
		case '}':
			if _, err := dec.ReadToken(); err != nil {
				return notJSON(dec)
			}
			return nil
		case 0: // an error, or the end
			return notJSON(dec)
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
		if member == "id" && depth == 0 {
			id, err := dec.ReadValue()
			if err != nil {
				return notJSON(dec)
			}
			if !validID(id) {
				return (&ingest.Refusal{Code: ingest.CodeProtocol}).Say("the id of a message is a string, or a whole number of at most {max} (at byte {at_byte})", ingest.Values{"max": mostID, "at_byte": dec.InputOffset()})
			}
			continue
		}
		if err := walk(dec, member, depth+1); err != nil {
			return err
		}
	}
}

func notJSON(dec *jsontext.Decoder) error {
	return (&ingest.Refusal{Code: ingest.CodeMalformedJSON}).Say("the message is not JSON (at byte {at_byte})", ingest.Values{"at_byte": dec.InputOffset()})
}
