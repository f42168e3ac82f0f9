package contract

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/internal/canonical"
)

// maxDepth bounds the nesting of a provider's JSON.
const maxDepth = 128

var errDepth = fmt.Errorf("nested more than %d deep", maxDepth)

// exact is a JSON number that neither an int64 nor a double holds without
// loss. Only text() and comparison with another such number take it; any
// arithmetic or ordering is an error, so no digit is lost in silence.
type exact string

var exactType = types.NewOpaqueType("number")

// ConvertToNative implements [ref.Val].
func (exact) ConvertToNative(reflect.Type) (any, error) {
	return nil, errors.New("a number beyond 64 bits has no native form")
}

// ConvertToType implements [ref.Val].
func (n exact) ConvertToType(t ref.Type) ref.Val {
	if t == types.StringType {
		return types.String(n)
	}
	return types.NewErr("the number %s does not fit; use text()", clip(string(n), 40))
}

// Equal implements [ref.Val]. A value of any other type cannot be equal: it
// would have been read as that type.
func (n exact) Equal(other ref.Val) ref.Val {
	o, ok := other.(exact)
	return types.Bool(ok && canonical.SameDecimal(string(n), string(o)))
}

// Type implements [ref.Val].
func (exact) Type() ref.Type { return exactType }

// Value implements [ref.Val].
func (n exact) Value() any { return string(n) }

// decode reads one JSON value without floats where they would lose anything:
// an integer written plainly and within int64 is an int64; a number that a
// double holds exactly enough to tell it from every other is a float64; any
// other is exact. Duplicate names are refused, invalid UTF-8 becomes U+FFFD.
func decode(body []byte) (any, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowInvalidUTF8(true))
	v, err := decodeNext(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the JSON value")
	}
	return v, nil
}

func decodeNext(dec *jsontext.Decoder) (any, error) {
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return tok.Bool(), nil
	case '"':
		return tok.String(), nil
	case '0':
		return number(tok.String()), nil
	case '{':
		if dec.StackDepth() > maxDepth {
			return nil, errDepth
		}
		m := map[string]any{}
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			if m[key], err = decodeNext(dec); err != nil {
				return nil, err
			}
		}
		_, err := dec.ReadToken()
		return m, err
	case '[':
		if dec.StackDepth() > maxDepth {
			return nil, errDepth
		}
		list := []any{}
		for dec.PeekKind() != ']' {
			v, err := decodeNext(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.ReadToken()
		return list, err
	}
	return nil, fmt.Errorf("unexpected %s", tok.Kind())
}

func number(text string) any {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(i, 10) == text {
		return i
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && canonical.SameDecimal(text, strconv.FormatFloat(f, 'e', -1, 64)) {
		if f != 0 || !math.Signbit(f) {
			return f
		}
		return int64(0)
	}
	return exact(text)
}

// asText gives a value as text. Absent are "", null and an empty optional.
// Integers keep all digits; a number with a fraction or an exponent keeps its
// value and may be spelled otherwise (1.0 as 1).
func asText(v ref.Val) (text string, err error) {
	switch v := v.(type) {
	case types.String:
		return string(v), nil
	case types.Int:
		return strconv.FormatInt(int64(v), 10), nil
	case types.Uint:
		return strconv.FormatUint(uint64(v), 10), nil
	case types.Double:
		return floatText(float64(v)), nil
	case exact:
		return string(v), nil
	case types.Null:
		return "", nil
	case *types.Optional:
		if !v.HasValue() {
			return "", nil
		}
		return asText(v.GetValue())
	}
	return "", fmt.Errorf("is of type %s, not text or a number", v.Type().TypeName())
}

func floatText(f float64) string {
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// given says whether a value is there: not null, not "", not an empty optional.
func given(v ref.Val) bool {
	switch v := v.(type) {
	case types.Null:
		return false
	case types.String:
		return v != ""
	case *types.Optional:
		return v.HasValue() && given(v.GetValue())
	}
	return true
}

// echoes says whether got shows all that was sent. Texts, numbers and truths are
// compared as text, since a form has no types; lists element by element. Members
// that were not sent, or were sent as null, do not count.
func echoes(got, sent ref.Val) bool {
	got, sent = open(got), open(sent)
	switch sent := sent.(type) {
	case types.Null:
		return true
	case traits.Lister:
		list, ok := got.(traits.Lister)
		if !ok || list.Size() != sent.Size() {
			return false
		}
		for i, n := types.Int(0), sent.Size().(types.Int); i < n; i++ {
			if !echoes(list.Get(i), sent.Get(i)) {
				return false
			}
		}
		return true
	case traits.Mapper:
		m, ok := got.(traits.Mapper)
		for it := sent.Iterator(); ok && it.HasNext() == types.True; {
			k := it.Next()
			shown, found := m.Find(k)
			if !found {
				shown = types.NullValue
			}
			ok = echoes(shown, sent.Get(k))
		}
		return ok
	}
	a, err := scalar(sent)
	b, err2 := scalar(got)
	return err == nil && err2 == nil && a == b
}

// open takes a value out of its optional; an empty one is null.
func open(v ref.Val) ref.Val {
	for {
		o, ok := v.(*types.Optional)
		switch {
		case !ok:
			return v
		case !o.HasValue():
			return types.NullValue
		}
		v = o.GetValue()
	}
}

func scalar(v ref.Val) (string, error) {
	if b, ok := v.(types.Bool); ok {
		return strconv.FormatBool(bool(b)), nil
	}
	return asText(v)
}

// encode writes a value as JSON. ok is false for an absent one.
func encode(v ref.Val, depth int) (out []byte, ok bool, err error) {
	if depth > maxDepth {
		return nil, false, errDepth
	}
	switch v := v.(type) {
	case types.Null:
		return []byte("null"), true, nil
	case types.Bool:
		return strconv.AppendBool(nil, bool(v)), true, nil
	case types.String:
		out, err = jsontext.AppendQuote(nil, string(v))
		return out, true, err
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, false, errors.New("is not a finite number")
		}
		return []byte(floatText(float64(v))), true, nil
	case types.Int, types.Uint, exact:
		s, err := asText(v)
		return []byte(s), true, err
	case *types.Optional:
		if !v.HasValue() {
			return nil, false, nil
		}
		return encode(v.GetValue(), depth)
	case traits.Lister:
		out = append(out, '[')
		for it, n := v.Iterator(), 0; it.HasNext() == types.True; n++ {
			if n > 0 {
				out = append(out, ',')
			}
			b, ok, err := encode(it.Next(), depth+1)
			if err != nil || !ok {
				return nil, false, errors.Join(errors.New("has a member that is not JSON"), err)
			}
			out = append(out, b...)
		}
		return append(out, ']'), true, nil
	case traits.Mapper:
		return encodeMap(v, depth)
	}
	return nil, false, fmt.Errorf("is of type %s, which JSON does not have", v.Type().TypeName())
}

// encodeMap sorts names, so that one value has one text.
func encodeMap(m traits.Mapper, depth int) ([]byte, bool, error) {
	members := map[string][]byte{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		k := it.Next()
		name, ok := k.(types.String)
		if !ok {
			return nil, false, errors.New("has a name that is not text")
		}
		b, ok, err := encode(m.Get(k), depth+1)
		if err != nil || !ok {
			return nil, false, errors.Join(fmt.Errorf("has a member %q that is not JSON", string(name)), err)
		}
		members[string(name)] = b
	}
	return object(members)
}

func object(members map[string][]byte) ([]byte, bool, error) {
	out := []byte{'{'}
	for i, name := range sortedKeys(members) {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = jsontext.AppendQuote(out, name); err != nil {
			return nil, false, err
		}
		out = append(append(out, ':'), members[name]...)
	}
	return append(out, '}'), true, nil
}

// validName says whether s may become a job id, a page or a state: bounded,
// one line, and not mangled by a wrong encoding.
func validName(s string, limit int) bool {
	return len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == '\ufffd'
	})
}
