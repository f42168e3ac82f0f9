package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// span is the bytes from one position up to, and without, another.
type span struct{ from, to int64 }

// part reads which part of a text of the length is asked for (RFC 9110, section 14);
// nil is the whole. Several ranges, and what is none, are answered with the whole, as
// the RFC allows: who asks for them can read it. net/http has this, too, and answers a
// range beyond the end by plain text.
func (c *call) part(etag string, length int64) (*span, error) {
	values := c.r.Header["Range"]
	if c.r.Method != http.MethodGet || len(values) != 1 {
		return nil, nil
	}
	if have := c.r.Header["If-Range"]; len(have) > 0 && (len(have) > 1 || have[0] != etag) {
		return nil, nil // a date names no version here, and a weak tag is none
	}
	text, ok := strings.CutPrefix(values[0], "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(text), "-")
	if !ok || !dash || !digits(first) || !digits(last) || first == "" && last == "" {
		return nil, nil
	}
	s := span{0, length}
	if first == "" {
		s.from = max(0, length-position(last, length))
	} else {
		s.from = position(first, length)
	}
	if s.from >= length {
		return nil, (&ingest.Refusal{Code: ingest.CodeRangeUnsatisfied}).Say("the range begins beyond the end of the result", nil)
	}
	if first != "" && last != "" {
		if s.to = min(position(last, length)+1, length); s.to <= s.from {
			return nil, nil // it ends before it begins
		}
	}
	return &s, nil
}

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// position reads digits; more than there are bytes is the end.
func position(s string, length int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > length {
		return length
	}
	return n
}
