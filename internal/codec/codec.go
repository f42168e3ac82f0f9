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
//
// The bytes are handled here and not by a library: a record is written into one
// buffer and read where it lies, and that is a good part of what an operation
// costs.
package codec

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"
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
// Records inside the record are visited by the same one.
type Visitor struct {
	err error

	// Writing.
	buf   []byte
	count int // entries of the present record so far

	// Reading.
	reading bool
	depth   int
	data    []byte
	entries []entry // of the present record and those around it, innermost last
	first   int     // where the present record's entries begin
	next    int     // where the next key is expected: fields usually come in order
	keys    uint64  // a bit for each key of the present record, see bit
	texts   strings.Builder
}

// usual is enough entries for what we write ourselves.
const usual = 80

// entry is one key and value of a map: data[key:value] and data[value:end]. The
// key begins behind its header. A value of 0 says that it was visited.
type entry struct{ key, value, end uint32 }

// Marshal gives the record's bytes. It bounds neither size nor number of
// entries: authors keep to the limits, or the record cannot be read again.
func Marshal(r Record) []byte { return Append(nil, r) }

// Append writes the record's bytes behind those of b.
func Append(b []byte, r Record) []byte {
	if b == nil {
		b = make([]byte, 0, 512)
	}
	v := &Visitor{buf: b}
	v.write(r)
	return v.buf
}

// write appends one record. The header of a map says how many entries follow;
// a second and third byte for it are made room for where they are needed.
func (v *Visitor) write(r Record) {
	outer := v.count
	v.count = 0
	start := len(v.buf)
	v.buf = append(v.buf, codeFixMap)
	r.Fields(v)
	switch n := v.count; {
	case n < 16:
		v.buf[start] = codeFixMap | byte(n)
	case n <= 0xffff:
		v.buf = append(v.buf, 0, 0)
		copy(v.buf[start+3:], v.buf[start+1:])
		v.buf[start], v.buf[start+1], v.buf[start+2] = codeMap16, byte(n>>8), byte(n)
	default:
		v.buf = append(v.buf, 0, 0, 0, 0)
		copy(v.buf[start+5:], v.buf[start+1:])
		appendSize(v.buf[:start], codeMap32, n, 4)
	}
	v.count = outer
}

func (v *Visitor) key(key string) {
	v.count++
	v.buf = appendString(v.buf, key)
}

// Unmarshal reads a record. The record does not share memory with data.
// It rejects trailing bytes, duplicate keys, wrong types and broken bounds.
func Unmarshal(data []byte, r Record) error {
	if len(data) > maxRecord {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(data), maxRecord)
	}
	w := walk{data: data}
	end, err := w.skip(0, 0)
	if err != nil {
		return err
	}
	if end != len(data) {
		return fmt.Errorf("%w: %d bytes after the record", ErrMalformed, len(data)-end)
	}
	v := &Visitor{reading: true, data: data, entries: make([]entry, 0, usual)}
	v.texts.Grow(w.text) // all strings of the record share one piece of memory
	v.read(0, r)
	return v.err
}

// read visits the record that lies at the position. Its bounds were checked.
func (v *Visitor) read(at int, r Record) {
	if v.depth > maxDepth {
		v.err = fmt.Errorf("%w: nested more than %d deep", ErrMalformed, maxDepth)
		return
	}
	first, next, keys := v.first, v.next, v.keys
	v.first, v.keys = len(v.entries), 0
	v.next = v.first
	if v.err = v.split(at); v.err == nil {
		v.depth++
		r.Fields(v)
		v.depth--
	}
	v.entries = v.entries[:v.first]
	v.first, v.next, v.keys = first, next, keys
}

// split finds the entries of a map without interpreting the values.
func (v *Visitor) split(at int) error {
	n, at, err := mapLen(v.data, at)
	if err != nil {
		return err
	}
	w := walk{data: v.data}
	for range n {
		if c := v.data[at]; !isString(c) {
			return fmt.Errorf("%w: key: code 0x%02x instead of a string", ErrMalformed, c)
		}
		key, end := body(v.data, at)
		name := v.data[key:end]
		if !valid(name) {
			return fmt.Errorf("%w: key: %w", ErrMalformed, errNotUTF8)
		}
		seen := bit(name)
		if v.keys&seen != 0 && v.has(name) {
			return fmt.Errorf("%w: key %q twice", ErrMalformed, name)
		}
		v.keys |= seen
		if at, err = w.skip(end, 0); err != nil {
			return err // cannot be: the whole was walked before
		}
		v.entries = append(v.entries, entry{uint32(key), uint32(end), uint32(at)}) //nolint:gosec // below maxRecord
	}
	return nil
}

func (v *Visitor) has(key []byte) bool {
	for _, e := range v.entries[v.first:] {
		if bytes.Equal(v.data[e.key:e.value], key) {
			return true
		}
	}
	return false
}

// bit is one of 64 for each key. A key whose bit is not set is not there.
func bit[T string | []byte](key T) uint64 {
	n := len(key)
	if n == 0 {
		return 1
	}
	return 1 << ((uint(key[0])*7 + uint(key[n-1])*13 + uint(n)) % 64) //nolint:gosec // n is positive
}

func (v *Visitor) fail(key string, err error) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: field %q: %w", ErrMalformed, key, err)
	}
}

// take finds the value of key and gives the position of its first byte, or 0.
func (v *Visitor) take(key string) int {
	if v.err != nil || v.keys&bit(key) == 0 {
		return 0
	}
	for i := v.next; i < len(v.entries); i++ {
		if at := v.is(i, key); at != 0 {
			return at
		}
	}
	for i := v.first; i < v.next; i++ {
		if at := v.is(i, key); at != 0 {
			return at
		}
	}
	return 0
}

func (v *Visitor) is(i int, key string) int {
	e := &v.entries[i]
	if e.value == 0 || string(v.data[e.key:e.value]) != key {
		return 0
	}
	at := int(e.value)
	e.value = 0
	v.next = i + 1
	return at
}

// Text visits a string or a named string. Reading rejects invalid UTF-8;
// writing replaces it by U+FFFD, since text often comes from a provider and a
// record that cannot be read again would be lost.
func Text[S ~string](v *Visitor, key string, p *S) {
	if !v.reading {
		if *p != "" {
			v.key(key)
			v.buf = appendText(v.buf, string(*p))
		}
		return
	}
	if at := v.take(key); at != 0 {
		s, _, err := v.text(at)
		if err != nil {
			v.fail(key, err)
			return
		}
		*p = S(s)
	}
}

// text reads a string and gives the position behind it.
func (v *Visitor) text(at int) (string, int, error) {
	if c := v.data[at]; !isString(c) {
		return "", 0, fmt.Errorf("code 0x%02x instead of a string", c)
	}
	from, end := body(v.data, at)
	if !valid(v.data[from:end]) {
		return "", 0, errNotUTF8
	}
	start := v.texts.Len()
	v.texts.Write(v.data[from:end])
	return v.texts.String()[start:], end, nil
}

// Texts visits a list of strings.
func Texts(v *Visitor, key string, p *[]string) {
	if !v.reading {
		if len(*p) > 0 {
			v.key(key)
			v.buf = appendListLen(v.buf, len(*p))
			for _, s := range *p {
				v.buf = appendText(v.buf, s)
			}
		}
		return
	}
	n, at := v.list(key)
	if n == 0 {
		return
	}
	list := make([]string, n)
	for i := range list {
		var err error
		if list[i], at, err = v.text(at); err != nil {
			v.fail(key, err)
			return
		}
	}
	*p = list
}

// list finds the list of the key and gives its length, 0 if there is none, and
// the position of its first item.
func (v *Visitor) list(key string) (n, at int) {
	if at = v.take(key); at == 0 {
		return 0, 0
	}
	n, at, err := listLen(v.data, at)
	if err != nil {
		v.fail(key, err)
		return 0, 0
	}
	return n, at
}

// Bytes visits a byte string.
func Bytes(v *Visitor, key string, p *[]byte) {
	if !v.reading {
		if len(*p) > 0 {
			v.key(key)
			v.buf = appendBytes(v.buf, *p)
		}
		return
	}
	if b, ok := v.bytes(key); ok {
		*p = bytes.Clone(b)
	}
}

// bytes finds the byte string of the key, where it lies.
func (v *Visitor) bytes(key string) ([]byte, bool) {
	at := v.take(key)
	if at == 0 {
		return nil, false
	}
	if c := v.data[at]; !isBytes(c) {
		v.fail(key, fmt.Errorf("code 0x%02x instead of bytes", c))
		return nil, false
	}
	from, end := body(v.data, at)
	return v.data[from:end], true
}

// Digest visits a 32-byte digest; all zero means absent.
func Digest[D ~[32]byte](v *Visitor, key string, p *D) {
	if !v.reading {
		if *p != (D{}) {
			v.key(key)
			b := [32]byte(*p)
			v.buf = appendBytes(v.buf, b[:])
		}
		return
	}
	b, ok := v.bytes(key)
	switch {
	case !ok:
	case len(b) != 32:
		v.fail(key, fmt.Errorf("%d bytes instead of 32", len(b)))
	default:
		*p = D(b)
	}
}

// Uint visits an unsigned number.
func Uint[N ~uint64](v *Visitor, key string, p *N) {
	if !v.reading {
		if *p != 0 {
			v.key(key)
			v.buf = appendUint(v.buf, uint64(*p))
		}
		return
	}
	if at := v.take(key); at != 0 {
		n, _, err := readUint(v.data, at)
		if err != nil {
			v.fail(key, err)
			return
		}
		*p = N(n)
	}
}

// Uints visits a list of unsigned numbers.
func Uints(v *Visitor, key string, p *[]uint64) {
	if !v.reading {
		if len(*p) > 0 {
			v.key(key)
			v.buf = appendListLen(v.buf, len(*p))
			for _, n := range *p {
				v.buf = appendUint(v.buf, n)
			}
		}
		return
	}
	n, at := v.list(key)
	if n == 0 {
		return
	}
	list := make([]uint64, n)
	for i := range list {
		var err error
		if list[i], at, err = readUint(v.data, at); err != nil {
			v.fail(key, err)
			return
		}
	}
	*p = list
}

// Duration visits a length of time as whole nanoseconds.
func Duration(v *Visitor, key string, p *time.Duration) {
	if !v.reading {
		if *p != 0 {
			v.key(key)
			v.buf = appendInt(v.buf, int64(*p))
		}
		return
	}
	if n, ok := v.int(key); ok {
		*p = time.Duration(n)
	}
}

func (v *Visitor) int(key string) (int64, bool) {
	at := v.take(key)
	if at == 0 {
		return 0, false
	}
	n, _, err := readInt(v.data, at)
	if err != nil {
		v.fail(key, err)
		return 0, false
	}
	return n, true
}

// Time visits an instant. Writing takes one outside the years 1678 to 2261 for
// the nearest inside, since a provider may name any; reading rejects it.
func Time(v *Visitor, key string, p *time.Time) {
	if !v.reading {
		if !p.IsZero() {
			v.key(key)
			v.buf = appendInt(v.buf, nearest(*p))
		}
		return
	}
	n, ok := v.int(key)
	switch {
	case !ok:
	case n < first || n > last:
		v.fail(key, fmt.Errorf("year %d is outside %d to %d", time.Unix(0, n).UTC().Year(), firstYear, lastYear))
	default:
		*p = time.Unix(0, n).UTC()
	}
}

// The whole years that nanoseconds in 64 bits can hold, from the first moment
// of 1678 to the last of 2261: what can be read can be written.
const (
	first int64 = -9_214_560_000 * 1e9
	last  int64 = 9_214_646_400*1e9 - 1
)

func nearest(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < first/1e9:
		return first
	case s > last/1e9:
		return last
	}
	return t.UnixNano()
}

// Bool visits a flag; false means absent.
func Bool(v *Visitor, key string, p *bool) {
	if !v.reading {
		if *p {
			v.key(key)
			v.buf = append(v.buf, codeTrue)
		}
		return
	}
	at := v.take(key)
	if at == 0 {
		return
	}
	switch c := v.data[at]; c {
	case codeTrue:
		*p = true
	case codeFalse:
		*p = false
	default:
		v.fail(key, fmt.Errorf("code 0x%02x instead of a flag", c))
	}
}

// Nested visits a record inside the record. One whose fields are all zero is
// left out.
func Nested(v *Visitor, key string, r Record) {
	if v.reading {
		if at := v.take(key); at != 0 {
			v.inner(key, at, r)
		}
		return
	}
	before := len(v.buf)
	v.key(key)
	at := len(v.buf)
	v.write(r)
	if len(v.buf) == at+1 { // an empty map
		v.buf = v.buf[:before]
		v.count--
	}
}

// inner reads a record inside the present one.
func (v *Visitor) inner(key string, at int, r Record) {
	v.read(at, r)
	if err := v.err; err != nil {
		v.err = nil
		v.fail(key, err)
	}
}

// List visits a list of records.
func List[T any, P interface {
	*T
	Record
}](v *Visitor, key string, p *[]T) {
	if !v.reading {
		if len(*p) > 0 {
			v.key(key)
			v.buf = appendListLen(v.buf, len(*p))
			for i := range *p {
				v.write(P(&(*p)[i]))
			}
		}
		return
	}
	n, at := v.list(key)
	if n == 0 {
		return
	}
	list := make([]T, n)
	w := walk{data: v.data}
	for i := range list {
		v.inner(key, at, P(&list[i]))
		if v.err != nil {
			return
		}
		at, _ = w.skip(at, 0) // the whole was walked before
	}
	*p = list
}

// Rest must be the last call of a Fields method: it keeps what was not visited
// and writes it back.
func Rest(v *Visitor, p *Extra) {
	if v.reading {
		for _, e := range v.entries[v.first:] {
			if e.value != 0 {
				*p = append(*p, Field{Key: string(v.data[e.key:e.value]), Raw: bytes.Clone(v.data[e.value:e.end])})
			}
		}
		return
	}
	for _, f := range *p {
		v.key(f.Key)
		v.buf = append(v.buf, f.Raw...)
	}
}
