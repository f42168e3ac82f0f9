// Package codec writes and reads small records as MessagePack maps with
// short string keys.
//
// One Fields method per record serves both directions: it visits the fields
// in a fixed order, so the same value always gives the same bytes and those
// bytes can be kept as golden files and hashed. Zero fields are left out.
// Keys a reader does not know are kept, in order, and written back after the
// known ones. Times are whole nanoseconds since 1970 in UTC; a zero time is
// an absent field.
//
// Limits: a record is at most 1 MiB, a map or list has at most 4,096 entries,
// nesting is at most 8 deep. Reading never panics on foreign bytes.
package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

const (
	maxRecord  = 1 << 20
	maxEntries = 4096
	maxDepth   = 8

	firstYear, lastYear = 1678, 2261
)

// ErrMalformed is wrapped by every error that says the bytes are not a record.
var ErrMalformed = errors.New("malformed record")

// A Record lists its fields to a visitor, always in the same order. It is
// implemented on pointers.
type Record interface {
	Fields(v *Visitor)
}

// Extra holds fields that this version does not know, verbatim.
type Extra []Field

// Field is one unknown field: its key and its MessagePack value.
type Field struct {
	Key string
	Raw []byte
}

// A Visitor is handed to Fields. It writes or reads, whichever it was made for.
type Visitor struct {
	depth int
	err   error

	// Writing.
	enc   *msgpack.Encoder
	count int

	// Reading.
	reading bool
	entries []entry
	next    int // where the next key is expected: fields usually come in order
}

type entry struct {
	key  string
	raw  []byte
	used bool
}

// Marshal gives the record's bytes. It bounds neither size nor number of
// entries: authors keep to the limits, or the record cannot be read again.
func Marshal(r Record) []byte {
	return marshal(r, 0)
}

func marshal(r Record, depth int) []byte {
	var body bytes.Buffer
	v := &Visitor{depth: depth, enc: msgpack.NewEncoder(&body)}
	v.enc.UseCompactInts(true)
	r.Fields(v)
	if v.err != nil {
		panic(fmt.Sprintf("codec: %v", v.err))
	}
	var out bytes.Buffer
	head := msgpack.NewEncoder(&out)
	if err := head.EncodeMapLen(v.count); err != nil {
		panic(fmt.Sprintf("codec: write a map header to memory: %v", err))
	}
	out.Write(body.Bytes())
	return out.Bytes()
}

// Unmarshal reads a record. The record's slices do not share memory with data.
// It rejects trailing bytes, duplicate keys, wrong types and broken bounds.
func Unmarshal(data []byte, r Record) error {
	if len(data) > maxRecord {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(data), maxRecord)
	}
	return unmarshal(data, r, 0)
}

func unmarshal(data []byte, r Record, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested more than %d deep", ErrMalformed, maxDepth)
	}
	entries, err := split(data)
	if err != nil {
		return err
	}
	v := &Visitor{depth: depth, reading: true, entries: entries}
	r.Fields(v)
	return v.err
}

// split cuts a map into its entries without interpreting the values.
func split(data []byte) ([]entry, error) {
	if err := wellFormed(data); err != nil {
		return nil, err
	}
	src := bytes.NewReader(data)
	dec := msgpack.NewDecoder(src)
	n, err := dec.DecodeMapLen()
	if err != nil {
		return nil, fmt.Errorf("%w: not a map: %w", ErrMalformed, err)
	}
	if n < 0 {
		return nil, fmt.Errorf("%w: nil instead of a map", ErrMalformed)
	}
	entries := make([]entry, 0, n)
	seen := make(map[string]bool, n)
	for range n {
		key, err := decodeText(dec)
		if err != nil {
			return nil, fmt.Errorf("%w: key: %w", ErrMalformed, err)
		}
		if seen[key] {
			return nil, fmt.Errorf("%w: key %q twice", ErrMalformed, key)
		}
		seen[key] = true
		raw, err := dec.DecodeRaw()
		if err != nil {
			return nil, fmt.Errorf("%w: value of %q: %w", ErrMalformed, key, err)
		}
		entries = append(entries, entry{key: key, raw: bytes.Clone(raw)})
	}
	return entries, nil
}

// wellFormed walks one value and checks every length against what is left, so
// that a forged length can neither allocate nor recurse without bound.
func wellFormed(data []byte) error {
	rest, err := skip(data, 0)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after the record", ErrMalformed, len(rest))
	}
	return nil
}

func skip(b []byte, depth int) ([]byte, error) {
	if depth > 2*maxDepth {
		return nil, fmt.Errorf("%w: nested too deep", ErrMalformed)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: cut short", ErrMalformed)
	}
	c := b[0]
	b = b[1:]
	length := func(n int) (int, error) {
		if len(b) < n {
			return 0, fmt.Errorf("%w: cut short", ErrMalformed)
		}
		size := 0
		for _, x := range b[:n] {
			size = size<<8 | int(x)
		}
		b = b[n:]
		return size, nil
	}
	var size, items int
	var err error
	most := maxEntries
	switch {
	case msgpcode.IsFixedNum(c), c == msgpcode.Nil, c == msgpcode.True, c == msgpcode.False:
	case msgpcode.IsFixedString(c):
		size = int(c & msgpcode.FixedStrMask)
	case msgpcode.IsFixedMap(c):
		items, most = 2*int(c&msgpcode.FixedMapMask), 2*maxEntries
	case msgpcode.IsFixedArray(c):
		items = int(c & msgpcode.FixedArrayMask)
	case c == msgpcode.Uint8, c == msgpcode.Int8:
		size = 1
	case c == msgpcode.Uint16, c == msgpcode.Int16:
		size = 2
	case c == msgpcode.Uint32, c == msgpcode.Int32, c == msgpcode.Float:
		size = 4
	case c == msgpcode.Uint64, c == msgpcode.Int64, c == msgpcode.Double:
		size = 8
	case c == msgpcode.Str8, c == msgpcode.Bin8:
		size, err = length(1)
	case c == msgpcode.Str16, c == msgpcode.Bin16:
		size, err = length(2)
	case c == msgpcode.Str32, c == msgpcode.Bin32:
		size, err = length(4)
	case c == msgpcode.Array16:
		items, err = length(2)
	case c == msgpcode.Array32:
		items, err = length(4)
	case c == msgpcode.Map16:
		items, err = length(2)
		items, most = 2*items, 2*maxEntries
	case c == msgpcode.Map32:
		items, err = length(4)
		items, most = 2*items, 2*maxEntries
	case msgpcode.IsFixedExt(c):
		size = 1 << (c - msgpcode.FixExt1)
		size++
	case c == msgpcode.Ext8:
		size, err = length(1)
		size++
	case c == msgpcode.Ext16:
		size, err = length(2)
		size++
	case c == msgpcode.Ext32:
		size, err = length(4)
		size++
	default:
		err = fmt.Errorf("%w: unknown code 0x%02x", ErrMalformed, c)
	}
	if err != nil {
		return nil, err
	}
	if size > len(b) || items > most {
		return nil, fmt.Errorf("%w: a length of %d with %d bytes left", ErrMalformed, max(size, items), len(b))
	}
	b = b[size:]
	for range items {
		if b, err = skip(b, depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (v *Visitor) fail(key string, err error) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: field %q: %w", ErrMalformed, key, err)
	}
}

// take finds the raw value of key, or nil.
func (v *Visitor) take(key string) []byte {
	if v.err != nil {
		return nil
	}
	for i := range v.entries {
		at := (v.next + i) % len(v.entries)
		if v.entries[at].key == key && !v.entries[at].used {
			v.entries[at].used = true
			v.next = at + 1
			return v.entries[at].raw
		}
	}
	return nil
}

// scalar moves one value in the visitor's direction; zero values are not written.
func scalar[T any](v *Visitor, key string, p *T, zero bool, enc func(*msgpack.Encoder, T) error, dec func(*msgpack.Decoder) (T, error)) {
	if v.reading {
		raw := v.take(key)
		if raw == nil {
			return
		}
		got, err := dec(msgpack.NewDecoder(bytes.NewReader(raw)))
		if err != nil {
			v.fail(key, err)
			return
		}
		*p = got
		return
	}
	if zero {
		return
	}
	v.key(key)
	if err := enc(v.enc, *p); err != nil {
		v.fail(key, err)
	}
}

func (v *Visitor) key(key string) {
	v.count++
	if err := v.enc.EncodeString(key); err != nil {
		v.fail(key, err)
	}
}

// Text visits a string or a named string. Reading rejects invalid UTF-8;
// writing replaces it by U+FFFD, since text often comes from a provider and a
// record that cannot be read again would be lost.
func Text[S ~string](v *Visitor, key string, p *S) {
	scalar(v, key, p, *p == "",
		func(e *msgpack.Encoder, s S) error { return encodeText(e, string(s)) },
		func(d *msgpack.Decoder) (S, error) {
			s, err := decodeText(d)
			return S(s), err
		})
}

func encodeText(e *msgpack.Encoder, s string) error {
	return e.EncodeString(strings.ToValidUTF8(s, "\uFFFD"))
}

func decodeText(d *msgpack.Decoder) (string, error) {
	c, err := d.PeekCode()
	if err != nil {
		return "", err
	}
	if !msgpcode.IsString(c) {
		return "", fmt.Errorf("code 0x%02x instead of a string", c)
	}
	s, err := d.DecodeString()
	if err == nil && !utf8.ValidString(s) {
		err = errors.New("not valid UTF-8")
	}
	return s, err
}

// Texts visits a list of strings.
func Texts(v *Visitor, key string, p *[]string) {
	scalar(v, key, p, len(*p) == 0,
		func(e *msgpack.Encoder, list []string) error {
			if err := e.EncodeArrayLen(len(list)); err != nil {
				return err
			}
			for _, s := range list {
				if err := encodeText(e, s); err != nil {
					return err
				}
			}
			return nil
		},
		func(d *msgpack.Decoder) ([]string, error) {
			n, err := decodeLen(d)
			if err != nil || n == 0 {
				return nil, err
			}
			list := make([]string, 0, n)
			for range n {
				s, err := decodeText(d)
				if err != nil {
					return nil, err
				}
				list = append(list, s)
			}
			return list, nil
		})
}

func decodeLen(d *msgpack.Decoder) (int, error) {
	n, err := d.DecodeArrayLen()
	if err == nil && n < 0 {
		err = errors.New("nil instead of a list")
	}
	return n, err
}

// Bytes visits a byte string.
func Bytes(v *Visitor, key string, p *[]byte) {
	scalar(v, key, p, len(*p) == 0,
		func(e *msgpack.Encoder, b []byte) error { return e.EncodeBytes(b) },
		decodeBytes)
}

func decodeBytes(d *msgpack.Decoder) ([]byte, error) {
	c, err := d.PeekCode()
	if err != nil {
		return nil, err
	}
	if !msgpcode.IsBin(c) {
		return nil, fmt.Errorf("code 0x%02x instead of bytes", c)
	}
	b, err := d.DecodeBytes()
	return bytes.Clone(b), err
}

// Digest visits a 32-byte digest; all zero means absent.
func Digest[D ~[32]byte](v *Visitor, key string, p *D) {
	var none D
	scalar(v, key, p, *p == none,
		func(e *msgpack.Encoder, d D) error {
			b := [32]byte(d)
			return e.EncodeBytes(b[:])
		},
		func(d *msgpack.Decoder) (D, error) {
			b, err := decodeBytes(d)
			if err == nil && len(b) != 32 {
				err = fmt.Errorf("%d bytes instead of 32", len(b))
			}
			if err != nil {
				return none, err
			}
			return D(b), nil
		})
}

// Uint visits an unsigned number.
func Uint[N ~uint64](v *Visitor, key string, p *N) {
	scalar(v, key, p, *p == 0,
		func(e *msgpack.Encoder, n N) error { return e.EncodeUint(uint64(n)) },
		func(d *msgpack.Decoder) (N, error) {
			n, err := decodeUint(d)
			return N(n), err
		})
}

// Uints visits a list of unsigned numbers.
func Uints(v *Visitor, key string, p *[]uint64) {
	scalar(v, key, p, len(*p) == 0,
		func(e *msgpack.Encoder, list []uint64) error {
			if err := e.EncodeArrayLen(len(list)); err != nil {
				return err
			}
			for _, n := range list {
				if err := e.EncodeUint(n); err != nil {
					return err
				}
			}
			return nil
		},
		func(d *msgpack.Decoder) ([]uint64, error) {
			n, err := decodeLen(d)
			if err != nil || n == 0 {
				return nil, err
			}
			list := make([]uint64, n)
			for i := range list {
				if list[i], err = decodeUint(d); err != nil {
					return nil, err
				}
			}
			return list, nil
		})
}

// Duration visits a length of time as whole nanoseconds.
func Duration(v *Visitor, key string, p *time.Duration) {
	scalar(v, key, p, *p == 0,
		func(e *msgpack.Encoder, d time.Duration) error { return e.EncodeInt(int64(d)) },
		func(d *msgpack.Decoder) (time.Duration, error) {
			n, err := decodeInt(d)
			return time.Duration(n), err
		})
}

// Time visits an instant. Writing takes one outside the years 1678 to 2261 for
// the nearest inside, since a provider may name any; reading rejects it.
func Time(v *Visitor, key string, p *time.Time) {
	scalar(v, key, p, p.IsZero(),
		func(e *msgpack.Encoder, t time.Time) error {
			return e.EncodeInt(nearest(t).UnixNano())
		},
		func(d *msgpack.Decoder) (time.Time, error) {
			n, err := decodeInt(d)
			if err != nil {
				return time.Time{}, err
			}
			t := time.Unix(0, n).UTC()
			return t, inRange(t)
		})
}

// inRange keeps to the whole years that nanoseconds in 64 bits can hold, in
// both directions: what can be read can be written.
func inRange(t time.Time) error {
	if y := t.UTC().Year(); y < firstYear || y > lastYear {
		return fmt.Errorf("year %d is outside %d to %d", y, firstYear, lastYear)
	}
	return nil
}

func nearest(t time.Time) time.Time {
	switch y := t.UTC().Year(); {
	case y < firstYear:
		return time.Date(firstYear, time.January, 1, 0, 0, 0, 0, time.UTC)
	case y > lastYear:
		return time.Date(lastYear+1, time.January, 1, 0, 0, 0, -1, time.UTC)
	}
	return t
}

// decodeInt reads a whole number. The library's own reader would also take a
// float or nil.
func decodeInt(d *msgpack.Decoder) (int64, error) {
	c, err := d.PeekCode()
	if err != nil {
		return 0, err
	}
	switch {
	case c == msgpcode.Uint64:
		n, err := d.DecodeUint64()
		if err == nil && n > math.MaxInt64 {
			err = errors.New("number too large")
		}
		return int64(n), err
	case msgpcode.IsFixedNum(c), c == msgpcode.Uint8, c == msgpcode.Uint16, c == msgpcode.Uint32,
		c == msgpcode.Int8, c == msgpcode.Int16, c == msgpcode.Int32, c == msgpcode.Int64:
		return d.DecodeInt64()
	}
	return 0, fmt.Errorf("code 0x%02x instead of a whole number", c)
}

// decodeUint reads an unsigned number. The library's own reader would take -1
// for the largest one.
func decodeUint(d *msgpack.Decoder) (uint64, error) {
	c, err := d.PeekCode()
	if err != nil {
		return 0, err
	}
	if c == msgpcode.Uint64 {
		return d.DecodeUint64()
	}
	n, err := decodeInt(d)
	if err == nil && n < 0 {
		err = errors.New("a negative number")
	}
	return uint64(n), err
}

// Bool visits a flag; false means absent.
func Bool(v *Visitor, key string, p *bool) {
	scalar(v, key, p, !*p,
		func(e *msgpack.Encoder, b bool) error { return e.EncodeBool(b) },
		func(d *msgpack.Decoder) (bool, error) {
			c, err := d.PeekCode()
			if err == nil && c != msgpcode.True && c != msgpcode.False {
				err = fmt.Errorf("code 0x%02x instead of a flag", c)
			}
			if err != nil {
				return false, err
			}
			return d.DecodeBool()
		})
}

// Nested visits a record inside the record. One whose fields are all zero is
// left out.
func Nested(v *Visitor, key string, r Record) {
	if v.reading {
		if raw := v.take(key); raw != nil {
			if err := unmarshal(raw, r, v.depth+1); err != nil {
				v.fail(key, err)
			}
		}
		return
	}
	b := marshal(r, v.depth+1)
	if len(b) == 1 { // an empty map
		return
	}
	v.raw(key, b)
}

func (v *Visitor) raw(key string, b []byte) {
	v.key(key)
	if err := v.enc.Encode(msgpack.RawMessage(b)); err != nil {
		v.fail(key, err)
	}
}

// List visits a list of records.
func List[T any, P interface {
	*T
	Record
}](v *Visitor, key string, p *[]T) {
	if !v.reading {
		if len(*p) == 0 {
			return
		}
		v.key(key)
		if err := v.enc.EncodeArrayLen(len(*p)); err != nil {
			v.fail(key, err)
		}
		for i := range *p {
			if err := v.enc.Encode(msgpack.RawMessage(marshal(P(&(*p)[i]), v.depth+1))); err != nil {
				v.fail(key, err)
			}
		}
		return
	}
	raw := v.take(key)
	if raw == nil {
		return
	}
	d := msgpack.NewDecoder(bytes.NewReader(raw))
	n, err := decodeLen(d)
	if err != nil || n == 0 {
		if err != nil {
			v.fail(key, err)
		}
		return
	}
	list := make([]T, n)
	for i := range list {
		item, err := d.DecodeRaw()
		if err == nil {
			err = unmarshal(item, P(&list[i]), v.depth+1)
		}
		if err != nil {
			v.fail(key, err)
			return
		}
	}
	*p = list
}

// Rest must be the last call of a Fields method: it keeps what was not visited
// and writes it back.
func Rest(v *Visitor, p *Extra) {
	if v.reading {
		for _, e := range v.entries {
			if !e.used {
				*p = append(*p, Field{Key: e.key, Raw: e.raw})
			}
		}
		return
	}
	for _, f := range *p {
		v.raw(f.Key, f.Raw)
	}
}
