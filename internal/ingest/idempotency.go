package ingest

// A key of a principal is looked up, for ever, where its request is recorded: one
// of a submit names an operation, one of a cancel, decision, pause or resume is
// looked up among the facts of the operation that was named, one of a hold or
// release among those of the hold. So the same key may cancel two operations,
// which are two intents, and submit a third. The ledger is the only store of keys.
// What finds its wish fulfilled already is recorded too, as a fact that the fold makes
// nothing of: the key was answered, and must never act. What is refused uses no key up,
// nor does the cancel of an operation that is cancelled, on which nothing can act.

// ParseKey reads the values of an Idempotency-Key header: one, either bare or
// as a structured-field string (RFC 9651) in quotes, as draft 07 of the header
// wants it. Both spellings of a key are the same key: 1 to 255 visible ASCII
// characters.
func ParseKey(values []string) (string, error) { return ParseKeyOf(keyHeader, values) }

const keyHeader = "Idempotency-Key"

// ParseKeyOf is [ParseKey] for values that are elsewhere than in the header: in a field
// of the name, by which a refusal calls them.
func ParseKeyOf(field string, values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", keyMissing()
	case len(values) > 1:
		return "", badKey("is there {times} times, must be there once", Values{"times": len(values)}, field)
	}
	key := values[0]
	if len(key) > 2*MaxKey+2 {
		return "", badKey("has more than {max} characters", Values{"max": MaxKey}, field)
	}
	if len(key) > 0 && key[0] == '"' {
		var err error
		if key, err = unquote(field, key); err != nil {
			return "", err
		}
	}
	if key == "" {
		return "", badKey("is empty", nil, field)
	}
	if len(key) > MaxKey {
		return "", badKey("has more than {max} characters", Values{"max": MaxKey}, field)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", badKey("has a character at position {position} that is not visible ASCII", Values{"position": i + 1}, field)
		}
	}
	return key, nil
}

// keyMissing refuses what would record something under no key. Every use case
// that changes something asks for one, so that no face can forget to.
func keyMissing() *Refusal {
	return &Refusal{Code: CodeKeyMissing, Detail: "send an Idempotency-Key header"}
}

// The status that the first answer to a request had, for its replays: HTTP's, on
// other protocols too.
const (
	statusDone      = 200
	statusCreated   = 201
	statusSubmitted = 202
)

// CancelStatus is the HTTP status of an answer to a cancel: 202 while something
// is on its way because of it.
func CancelStatus(v View) int {
	if v.Terminal || v.Cancel != nil && !v.Cancel.Possible {
		return statusDone
	}
	return statusSubmitted
}

// replayOf marks a view as the answer to a request that was recorded before, and
// did nothing now.
func replayOf(v View, original int) View {
	v.OriginalStatus = original
	return v
}

// unquote reads a structured-field string without parameters.
func unquote(field, s string) (string, error) {
	out := make([]byte, 0, len(s))
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", badKey(`has a backslash that is not before " or \`, nil, field)
			}
			out = append(out, s[i])
		case '"':
			if i != len(s)-1 {
				return "", badKey("goes on after the closing quote", nil, field)
			}
			return string(out), nil
		default:
			out = append(out, c)
		}
	}
	return "", badKey("has no closing quote", nil, field)
}

func badKey(text string, values Values, field string) *Refusal {
	wrong := Wrong(field, FieldMalformed, text, values)
	return &Refusal{Code: CodeKeyInvalid, Detail: "the " + field + " " + wrong.Message, Errors: []FieldError{wrong}}
}
