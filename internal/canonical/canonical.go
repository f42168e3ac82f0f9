// Package canonical decides which JSON of a caller is unmistakable, gives it
// one form and one fingerprint, and takes secret links out of stored bodies.
//
// Specifications: RFC 8785 (canonical form), RFC 7493 (what is unmistakable),
// RFC 6901 (pointers in errors). The gate refuses what two readers may take for
// two things: duplicate names, invalid UTF-8, lone surrogates, data after the
// value, numbers that another number shares its double with.
//
// Guarantee: two texts that pass the gate have the same canonical form exactly
// if they denote the same value; numbers are compared as decimals, so 1.0, 1
// and 1e0 are one number, and -0 is 0. Strings are not normalised: composed and
// decomposed letters differ.
//
// Limits: Unicode noncharacters are let through, although RFC 7493 advises
// against them. Everything here is a pure function of its arguments.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/events"
)

const (
	// MaxDepth bounds nesting: the outermost object or array is depth 1.
	MaxDepth = 64
	// MaxNumber is the largest magnitude of a number, 2^53-1: beyond it
	// neighbouring integers share one double.
	MaxNumber = 1<<53 - 1
)

// Code names a reason to refuse a text. Codes are for ever.
type Code string

// The reasons.
const (
	Malformed    Code = "malformed_json"
	DuplicateKey Code = "duplicate_key"
	OutOfRange   Code = "number_out_of_range"
	TooDeep      Code = "too_deep"
	TooLarge     Code = "too_large"
)

// Error says what the gate refused and where.
type Error struct {
	Code   Code
	Field  string // JSON pointer to the value; "" is the whole text
	Bound  string // the bound that was passed, for humans; "" where there is none
	Offset int64  // byte offset in the text
	Detail string
}

func (e *Error) Error() string {
	where := "the whole text"
	if e.Field != "" {
		where = e.Field
	}
	s := fmt.Sprintf("%s: %s at byte %d: %s", e.Code, where, e.Offset, e.Detail)
	if e.Bound != "" {
		s += " (bound: " + e.Bound + ")"
	}
	return s
}

// Check is the gate: nil, or an *Error naming the first thing refused. A text
// of more than limit bytes is refused unread.
func Check(src []byte, limit int) error {
	if len(src) > limit {
		return &Error{Code: TooLarge, Bound: fmt.Sprintf("%d bytes", limit), Offset: int64(limit), Detail: fmt.Sprintf("%d bytes", len(src))}
	}
	dec := jsontext.NewDecoder(bytes.NewReader(src))
	for first := true; ; first = false {
		if !first && dec.StackDepth() == 0 {
			// The value is whole; only white space may follow.
			_, err := dec.ReadToken()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return &Error{Code: Malformed, Offset: dec.InputOffset(), Detail: "data after the end of the value"}
		}
		tok, err := dec.ReadToken()
		if err != nil {
			return syntax(dec, err)
		}
		if dec.StackDepth() > MaxDepth {
			return &Error{Code: TooDeep, Field: string(dec.StackPointer()), Bound: fmt.Sprintf("depth %d", MaxDepth), Offset: dec.InputOffset(), Detail: "nested too deeply"}
		}
		if tok.Kind() == '0' {
			if why := number(tok.String()); why != "" {
				return &Error{
					Code: OutOfRange, Field: string(dec.StackPointer()), Offset: dec.InputOffset(),
					Bound:  "±9007199254740991 and what a double tells apart",
					Detail: why + "; send it as a string",
				}
			}
		}
	}
}

// syntax turns the decoder's error into ours, without quoting the text.
func syntax(dec *jsontext.Decoder, err error) *Error {
	e := &Error{Code: Malformed, Offset: dec.InputOffset()}
	var s *jsontext.SyntacticError
	switch {
	case errors.As(err, &s):
		e.Field, e.Offset = string(s.JSONPointer), s.ByteOffset
		e.Detail = "not valid JSON"
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			e.Code, e.Detail = DuplicateKey, "the name was used before in this object"
		case errors.Is(err, io.ErrUnexpectedEOF):
			e.Detail = "the text ends before the value"
		case strings.Contains(s.Err.Error(), "UTF-8"), strings.Contains(s.Err.Error(), "surrogate"):
			e.Detail = "not valid Unicode"
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Detail = "the text ends before the value"
	default:
		e.Detail = "not valid JSON"
	}
	return e
}

// number says why a JSON number cannot be told from every other, or "".
func number(text string) string {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "the number is too large"
	}
	if f > MaxNumber || f < -MaxNumber {
		return "the number is too large to be told from its neighbours"
	}
	if !SameDecimal(text, strconv.FormatFloat(f, 'e', -1, 64)) {
		return "the number has more digits than can be told apart"
	}
	return ""
}

// SameDecimal says whether two JSON numbers denote the same value, exactly.
// A text whose exponent has more than nine digits equals only itself.
func SameDecimal(a, b string) bool {
	da, oka := decimal(a)
	db, okb := decimal(b)
	if !oka || !okb {
		return a == b
	}
	return da == db
}

// value is sign, digits without zeros at either end, and the power of ten of
// the last digit. Zero has no digits and no sign.
type value struct {
	negative bool
	digits   string
	exponent int64
}

func decimal(s string) (value, bool) {
	var v value
	s, v.negative = strings.CutPrefix(s, "-")
	mantissa, exponent := s, ""
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa, exponent = s[:i], s[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	v.digits = strings.TrimRight(digits, "0")
	if v.digits == "" {
		return value{}, true
	}
	if exponent != "" {
		if len(strings.TrimLeft(exponent, "+-0")) > 9 {
			return value{}, false
		}
		e, err := strconv.ParseInt(strings.TrimPrefix(exponent, "+"), 10, 64)
		if err != nil {
			return value{}, false
		}
		v.exponent = e
	}
	v.exponent += int64(len(digits)-len(v.digits)) - int64(len(fraction))
	return v, true
}

// Form gives the canonical form of a text that passes the gate, else the
// gate's error. src is not changed.
func Form(src []byte, limit int) ([]byte, error) {
	if err := Check(src, limit); err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(src))
	if err := v.Canonicalize(); err != nil {
		return nil, &Error{Code: Malformed, Detail: "not valid JSON"}
	}
	return v, nil
}

// Fingerprint is what a request means, whatever way it came in:
// SHA-256("fp1\n" ‖ canonical {account, kind, params, provider}). The prefix
// names this rule; another rule gets another prefix. params is refused as by
// Check. The names must be valid UTF-8.
func Fingerprint(provider, account, kind string, params []byte, limit int) (events.Digest, error) {
	p, err := Form(params, limit)
	if err != nil {
		return events.Digest{}, err
	}
	// Names in the order RFC 8785 wants, parts canonical: so is the whole.
	text := []byte("fp1\n")
	for _, m := range []struct{ name, value string }{{"account", account}, {"kind", kind}, {"params", ""}, {"provider", provider}} {
		if m.name == "account" {
			text = append(text, '{')
		} else {
			text = append(text, ',')
		}
		text = append(text, '"')
		text = append(text, m.name...)
		text = append(text, '"', ':')
		if m.name == "params" {
			text = append(text, p...)
			continue
		}
		if text, err = jsontext.AppendQuote(text, m.value); err != nil {
			return events.Digest{}, &Error{Code: Malformed, Field: "/" + m.name, Detail: "not valid UTF-8"}
		}
	}
	text = append(text, '}')
	return events.Digest(sha256.Sum256(text)), nil
}
