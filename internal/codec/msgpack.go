package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// The first bytes of MessagePack values, by its specification.
const (
	codeFixMap    = 0x80 // to 0x8f
	codeFixArray  = 0x90 // to 0x9f
	codeFixString = 0xa0 // to 0xbf
	codeNil       = 0xc0
	codeNever     = 0xc1
	codeFalse     = 0xc2
	codeTrue      = 0xc3
	codeBin8      = 0xc4
	codeBin16     = 0xc5
	codeBin32     = 0xc6
	codeExt8      = 0xc7
	codeExt16     = 0xc8
	codeExt32     = 0xc9
	codeFloat32   = 0xca
	codeFloat64   = 0xcb
	codeUint8     = 0xcc
	codeUint16    = 0xcd
	codeUint32    = 0xce
	codeUint64    = 0xcf
	codeInt8      = 0xd0
	codeInt16     = 0xd1
	codeInt32     = 0xd2
	codeInt64     = 0xd3
	codeFixExt1   = 0xd4
	codeFixExt16  = 0xd8
	codeString8   = 0xd9
	codeString16  = 0xda
	codeString32  = 0xdb
	codeArray16   = 0xdc
	codeArray32   = 0xdd
	codeMap16     = 0xde
	codeMap32     = 0xdf
	codeNegative  = 0xe0 // to 0xff: -32 to -1
)

var errNotUTF8 = errors.New("not valid UTF-8")

func isString(c byte) bool {
	return c >= codeFixString && c < codeNil || c >= codeString8 && c <= codeString32
}

func isBytes(c byte) bool { return c >= codeBin8 && c <= codeBin32 }

func valid(text []byte) bool { return utf8.Valid(text) }

// appendSize writes a code and a length of so many bytes.
func appendSize(b []byte, code byte, n, bytes int) []byte {
	b = append(b, code)
	for i := bytes - 1; i >= 0; i-- {
		b = append(b, byte(n>>(8*i)))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, codeFixString|byte(n))
	case n <= math.MaxUint8:
		b = append(b, codeString8, byte(n))
	case n <= math.MaxUint16:
		b = appendSize(b, codeString16, n, 2)
	default:
		b = appendSize(b, codeString32, n, 4)
	}
	return append(b, s...)
}

// appendText writes a string that can be read again.
func appendText(b []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return appendString(b, s)
}

func appendBytes(b, s []byte) []byte {
	switch n := len(s); {
	case n <= math.MaxUint8:
		b = append(b, codeBin8, byte(n))
	case n <= math.MaxUint16:
		b = appendSize(b, codeBin16, n, 2)
	default:
		b = appendSize(b, codeBin32, n, 4)
	}
	return append(b, s...)
}

func appendListLen(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, codeFixArray|byte(n))
	case n <= math.MaxUint16:
		return appendSize(b, codeArray16, n, 2)
	}
	return appendSize(b, codeArray32, n, 4)
}

// appendUint and appendInt take the shortest form, so that a number has one.
func appendUint(b []byte, n uint64) []byte {
	switch {
	case n < 128:
		return append(b, byte(n))
	case n <= math.MaxUint8:
		return append(b, codeUint8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, codeUint16), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, codeUint32), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, codeUint64), n)
}

func appendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0:
		return appendUint(b, uint64(n))
	case n >= -32:
		return append(b, byte(n))
	case n >= math.MinInt8:
		return append(b, codeInt8, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, codeInt16), uint16(n)) //nolint:gosec // two's complement is meant
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, codeInt32), uint32(n)) //nolint:gosec // two's complement is meant
	}
	return binary.BigEndian.AppendUint64(append(b, codeInt64), uint64(n)) //nolint:gosec // two's complement is meant
}

// The readers below work on bytes that walk.skip has found well formed, so that
// no length can lead beyond them.

// big reads n bytes as a number.
func big(b []byte) uint64 {
	var n uint64
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}

// body gives where the bytes of a string or byte string begin and end.
func body(data []byte, at int) (from, end int) {
	c := data[at]
	at++
	bytes := 0
	switch c {
	case codeString8, codeBin8:
		bytes = 1
	case codeString16, codeBin16:
		bytes = 2
	case codeString32, codeBin32:
		bytes = 4
	default:
		return at, at + int(c&^codeFixString)
	}
	from = at + bytes
	return from, from + int(big(data[at:from])) //nolint:gosec // below maxRecord
}

// mapLen gives the number of a map's entries and where the first begins.
func mapLen(data []byte, at int) (n, first int, err error) {
	switch c := data[at]; {
	case c&0xf0 == codeFixMap:
		return int(c & 0x0f), at + 1, nil
	case c == codeMap16:
		return int(big(data[at+1 : at+3])), at + 3, nil //nolint:gosec // below maxEntries
	case c == codeMap32:
		return int(big(data[at+1 : at+5])), at + 5, nil //nolint:gosec // below maxEntries
	case c == codeNil:
		return 0, 0, fmt.Errorf("%w: nil instead of a map", ErrMalformed)
	default:
		return 0, 0, fmt.Errorf("%w: not a map: code 0x%02x", ErrMalformed, c)
	}
}

// listLen gives the number of a list's items and where the first begins.
func listLen(data []byte, at int) (n, first int, err error) {
	switch c := data[at]; {
	case c&0xf0 == codeFixArray:
		return int(c & 0x0f), at + 1, nil
	case c == codeArray16:
		return int(big(data[at+1 : at+3])), at + 3, nil //nolint:gosec // below maxEntries
	case c == codeArray32:
		return int(big(data[at+1 : at+5])), at + 5, nil //nolint:gosec // below maxEntries
	case c == codeNil:
		return 0, 0, errors.New("nil instead of a list")
	default:
		return 0, 0, fmt.Errorf("code 0x%02x instead of a list", c)
	}
}

// readInt reads a whole number of whatever size and gives the position behind.
func readInt(data []byte, at int) (int64, int, error) {
	c := data[at]
	at++
	switch {
	case c < 128 || c >= codeNegative:
		return int64(int8(c)), at, nil //nolint:gosec // two's complement is meant
	case c == codeUint64:
		n := binary.BigEndian.Uint64(data[at:])
		if n > math.MaxInt64 {
			return 0, 0, errors.New("number too large")
		}
		return int64(n), at + 8, nil
	case c >= codeUint8 && c <= codeUint32:
		end := at + 1<<(c-codeUint8)
		return int64(big(data[at:end])), end, nil //nolint:gosec // at most 32 bits
	case c >= codeInt8 && c <= codeInt64:
		end := at + 1<<(c-codeInt8)
		unused := 64 - 8*(end-at)
		return int64(big(data[at:end])) << unused >> unused, end, nil //nolint:gosec // two's complement is meant
	}
	return 0, 0, fmt.Errorf("code 0x%02x instead of a whole number", c)
}

// readUint reads an unsigned number and gives the position behind it.
func readUint(data []byte, at int) (uint64, int, error) {
	if data[at] == codeUint64 {
		return binary.BigEndian.Uint64(data[at+1:]), at + 9, nil
	}
	n, end, err := readInt(data, at)
	if err == nil && n < 0 {
		err = errors.New("a negative number")
	}
	return uint64(n), end, err //nolint:gosec // not negative
}

// walk goes over values and checks every length against what is left, so that a
// forged length can neither allocate nor recurse without bound.
type walk struct {
	data []byte
	text int // bytes of strings that are not keys
}

// skip gives the position behind the value.
func (w *walk) skip(at, depth int) (int, error) {
	if depth > 2*maxDepth {
		return 0, fmt.Errorf("%w: nested too deep", ErrMalformed)
	}
	if at >= len(w.data) {
		return 0, errCutShort()
	}
	c := w.data[at]
	at++
	switch {
	case c < codeFixMap || c >= codeNegative:
		return at, nil
	case c < codeFixArray:
		return w.items(at, 2*int(c&0x0f), true, depth)
	case c < codeFixString:
		return w.items(at, int(c&0x0f), false, depth)
	case c < codeNil:
		w.text += int(c & 0x1f)
		return w.bytes(at, int(c&0x1f))
	}
	switch c {
	case codeNil, codeTrue, codeFalse:
		return at, nil
	case codeUint8, codeInt8:
		return w.bytes(at, 1)
	case codeUint16, codeInt16, codeFixExt1:
		return w.bytes(at, 2)
	case codeFixExt1 + 1:
		return w.bytes(at, 3)
	case codeUint32, codeInt32, codeFloat32:
		return w.bytes(at, 4)
	case codeFixExt1 + 2:
		return w.bytes(at, 5)
	case codeUint64, codeInt64, codeFloat64:
		return w.bytes(at, 8)
	case codeFixExt1 + 3:
		return w.bytes(at, 9)
	case codeFixExt16:
		return w.bytes(at, 17)
	case codeNever:
		return 0, fmt.Errorf("%w: unknown code 0x%02x", ErrMalformed, c)
	}
	// What is left begins with a length of 1, 2 or 4 bytes.
	var length int
	switch c {
	case codeString8, codeBin8, codeExt8:
		length = 1
	case codeString16, codeBin16, codeExt16, codeArray16, codeMap16:
		length = 2
	default:
		length = 4
	}
	if len(w.data)-at < length {
		return 0, errCutShort()
	}
	size := int(big(w.data[at : at+length])) //nolint:gosec // at most 32 bits
	at += length
	switch c {
	case codeArray16, codeArray32:
		return w.items(at, size, false, depth)
	case codeMap16, codeMap32:
		return w.items(at, 2*size, true, depth)
	case codeExt8, codeExt16, codeExt32:
		return w.bytes(at, size+1)
	case codeString8, codeString16, codeString32:
		w.text += size
	}
	return w.bytes(at, size)
}

func (w *walk) bytes(at, size int) (int, error) {
	if left := len(w.data) - at; size > left {
		return 0, errLength(size, left)
	}
	return at + size, nil
}

// items goes over the items of a list, or over the keys and values of a map.
func (w *walk) items(at, n int, keys bool, depth int) (int, error) {
	most := maxEntries
	if keys {
		most *= 2
	}
	if n > most {
		return 0, errLength(n, len(w.data)-at)
	}
	for i := range n {
		text := w.text
		var err error
		if at, err = w.skip(at, depth+1); err != nil {
			return 0, err
		}
		if keys && i%2 == 0 {
			w.text = text
		}
	}
	return at, nil
}

func errCutShort() error { return fmt.Errorf("%w: cut short", ErrMalformed) }

func errLength(size, left int) error {
	return fmt.Errorf("%w: a length of %d with %d bytes left", ErrMalformed, size, left)
}
