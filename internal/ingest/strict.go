package ingest

import "github.com/counterfoil/counterfoil/internal/canonical"

// CheckJSON refuses a text that two readers could take for two things: what is not
// JSON, names that occur twice, numbers that cannot be told from their neighbours,
// nesting beyond a bound, more than limit bytes. The error is a [*Refusal].
func CheckJSON(text []byte, limit int) error {
	if err := canonical.Check(text, limit); err != nil {
		return gateRefusal(err)
	}
	return nil
}

// DecodeStrict reads a JSON object as [DecodeSubmission] reads a body: whatever
// has no place in the shape, whose tags are bare names, is refused. The error is
// a [*Refusal], also of a text that is there and empty.
func DecodeStrict(body []byte, into any) error {
	empty, err := decodeStrict(body, into)
	if err != nil {
		return err
	}
	return empty.refused()
}
