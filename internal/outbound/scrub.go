package outbound

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// minScrub is the shortest value looked for, in bytes: a shorter one would
// also be found where it is not meant. Not shorter than what replaces it, so
// that bounds on the answer hold.
const minScrub = len(redacted)

// secretParts gives a secret and, since it may be user and password, the password
// alone, or the user where that is the key. A user name beside a password is no
// secret, and results may hold it.
func secretParts(value string) []string {
	list := []string{value}
	if user, password, pair := strings.Cut(value, ":"); pair {
		list = append(list, orDefault(password, user))
	}
	return list
}

// scrubber replaces a credential that a provider echoes: as it is, in base64, and
// either of them as JSON, HTML and URLs may write it, also one inside another. An
// echo that is spelled otherwise (in hex, split, encrypted) stays.
type scrubber struct {
	needles [][]byte // as they stand
	// plain are the needles that are looked for through escapes. A backslash is
	// only ever passed over, so they have none.
	plain  []string
	begins *[256]bool // the bytes at which one of plain may begin; nil without any
}

func newScrubber(values ...string) scrubber {
	var s scrubber
	var needles []string
	for _, v := range values {
		forms := []string{v}
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, e.EncodeToString([]byte(v)))
		}
		needles = append(append(needles, forms...), escapes(v)...)
		for _, v := range forms {
			s.plain = append(s.plain, strings.ReplaceAll(v, `\`, ""))
		}
	}
	for _, list := range []*[]string{&needles, &s.plain} {
		// The longest first: where one begins as another does, all of it goes.
		slices.SortFunc(*list, func(a, b string) int {
			return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
		})
		*list = slices.DeleteFunc(slices.Compact(*list), func(v string) bool { return len(v) < minScrub })
	}
	for _, n := range needles {
		s.needles = append(s.needles, []byte(n))
	}
	if len(s.plain) == 0 {
		return s
	}
	s.begins = &[256]bool{}
	for _, n := range s.plain {
		s.begins[n[0]] = true
		s.begins['+'] = s.begins['+'] || n[0] == ' '
	}
	return s
}

// escapes lists how JSON, HTML and URLs usually write a text, and each of these in each:
// what escaped does not see, since the text looks as if it were escaped already, or
// since a blank or a letter stands for what is escaped. Of a text without special
// characters there are none.
func escapes(v string) (list []string) {
	inner := []string{v}
	for range 2 {
		var outer []string
		for _, v := range inner {
			outer = append(outer, url.QueryEscape(v), url.PathEscape(v), html.EscapeString(v), inJSON(v), inHTMLSafeJSON(v))
		}
		slices.Sort(outer)
		inner = slices.DeleteFunc(slices.Compact(outer), func(e string) bool { return e == v })
		list = append(list, inner...)
	}
	return list
}

// inHTMLSafeJSON is inJSON as encoders write it that escape for HTML, too.
func inHTMLSafeJSON(v string) string {
	return strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&", `\u0026`).Replace(inJSON(v))
}

// inJSON is a text as it stands in a JSON string.
func inJSON(v string) string {
	quoted, _ := jsontext.AppendQuote(nil, v) // invalid UTF-8 is replaced
	return string(quoted[1 : len(quoted)-1])
}

// text replaces the credential in a text that is whole.
func (s scrubber) text(t string, count *int) string {
	n := 0
	if clean := s.standing(s.escaped([]byte(t), false, &n), &n); n > 0 {
		*count += n
		return string(clean)
	}
	return t
}

// standing replaces the credential where it stands as it is.
func (s scrubber) standing(t []byte, count *int) []byte {
	for _, n := range s.needles {
		if c := bytes.Count(t, n); c > 0 {
			t = bytes.ReplaceAll(t, n, []byte(redacted))
			*count += c
		}
	}
	return t
}

// escaped replaces the credential where some of it is written with escapes, which
// a reader of the body undoes, perhaps one after the other: \/ and \u002b of JSON,
// also of JSON inside a JSON string, %2f of URLs, &#x2F; of HTML. All else keeps its
// bytes. A body that may be cut ends before a beginning of it.
//
// It reads each byte about once, and looks closer only where one of the needles
// may begin.
func (s scrubber) escaped(body []byte, cut bool, count *int) []byte {
	if s.begins == nil || bytes.IndexByte(body, '\\') < 0 && bytes.IndexByte(body, '%') < 0 && bytes.IndexByte(body, '&') < 0 {
		return body
	}
	var out []byte // set once something was found
	kept := 0      // of body, in out
	for i := 0; i < len(body); i++ {
		c := body[i]
		special := special(c)
		switch {
		case !special && !s.begins[c]:
			continue
		case c == '\\' && i > kept && body[i-1] == '\\':
			continue // the first of a row was looked at
		case special && !s.begin(body[i:]):
			continue
		}
		for _, n := range s.plain {
			if !special && n[0] != c && n[0] != ' ' {
				continue
			}
			length, matched := match(body[i:], n)
			switch {
			case matched == len(n):
				out = append(append(out, body[kept:i]...), redacted...)
				kept = i + length
			case cut && i+length == len(body) && matched >= max(minScrub, named(n)+1):
				*count++
				return append(out, body[kept:i]...)
			default:
				continue
			}
			*count++
			i = kept - 1
			break
		}
	}
	if kept == 0 {
		return body
	}
	return append(out, body[kept:]...)
}

// special says whether an escape may begin with the byte.
func special(c byte) bool { return c == '\\' || c == '%' || c == '&' }

// begin says whether one of the needles may begin at an escape.
func (s scrubber) begin(text []byte) bool {
	c, n, open := unslash(text)
	for range maxNested + 1 {
		switch {
		case open || s.begins[c.bytes[0]]:
			return true
		case !c.is('%') && !c.is('&'):
			return false
		}
		inner, more, short := unescape(c, text[n:])
		if more == 0 {
			return short
		}
		c, n = inner, n+more
	}
	return false
}

// match says how much of a needle is at the beginning of text, through escapes,
// and how long that is there: all of text where it ended too early to tell.
func match(text []byte, needle string) (length, matched int) {
	passed := 0 // backslashes in a row that are escaped themselves
	for matched < len(needle) {
		if length < len(text) && !special(text[length]) { // the usual, and quick
			c, want := text[length], needle[matched]
			if c != want && (c != '+' || want != ' ') {
				return length, matched
			}
			length, matched, passed = length+1, matched+1, 0
			continue
		}
		n, of, open := spelt(text[length:], needle[matched:])
		switch {
		case open:
			return len(text), matched
		case n == 0:
			return length, matched
		case of > 0:
			passed = 0
		default:
			if passed++; matched == 0 || passed > maxPassed {
				return length, matched
			}
		}
		length, matched = length+n, matched+of
	}
	return length, matched
}

const (
	// maxPassed is how many backslashes are passed over between two characters:
	// one inside four JSON strings is written with 16.
	maxPassed = 32
	// maxNested is how often a character is unescaped: / as %2F, %252F and %25252F.
	maxNested = 3
)

// char is one character, or one byte of it.
type char struct {
	bytes [utf8.UTFMax]byte
	n     int
}

func charOf(r rune) (c char) {
	c.n = utf8.EncodeRune(c.bytes[:], r)
	return c
}

func (c char) is(b byte) bool { return c.n == 1 && c.bytes[0] == b }

// spelt says how much of want (not empty) the first character of text is, and how
// long that is written: n is 0 if it is something else, of is 0 for a backslash.
// open: text ends too early to tell.
func spelt(text []byte, want string) (n, of int, open bool) {
	c, n, open := unslash(text)
	for range maxNested + 1 {
		if open || c.is('\\') {
			return n, 0, open
		}
		same := strings.HasPrefix(want, string(c.bytes[:c.n])) || c.is('+') && want[0] == ' '
		if !c.is('%') && !c.is('&') {
			if !same {
				return 0, 0, false
			}
			return n, c.n, false
		}
		inner, more, short := unescape(c, text[n:])
		if same && (more == 0 || inner != c) { // %25 is a percent sign rather than one and two digits
			return n, c.n, false
		}
		if more == 0 {
			return 0, 0, short
		}
		c, n = inner, n+more
	}
	return 0, 0, false
}

// unslash undoes the escapes of JSON, however many strings are inside each other.
func unslash(text []byte) (c char, n int, open bool) {
	for n < len(text) && text[n] == '\\' && n < maxPassed {
		n++
	}
	if n == len(text) {
		return c, n, true
	}
	if n == 0 || text[n] != 'u' {
		c.bytes[0], c.n = text[n], 1
		return c, n + 1, false
	}
	high, valid, open := unit(text[n:])
	if open || !valid {
		c.bytes[0], c.n = 'u', 1
		return c, n + 1, open
	}
	n += len("u0000")
	if !utf16.IsSurrogate(high) {
		return charOf(high), n, false
	}
	next := n
	for next < len(text) && text[next] == '\\' && next-n < maxPassed {
		next++
	}
	low, valid, open := unit(text[next:])
	if !valid {
		return charOf(high), n, open
	}
	return charOf(utf16.DecodeRune(high, low)), next + len("u0000"), false
}

// unit reads u and four digits.
func unit(text []byte) (r rune, valid, open bool) {
	for i := range len("u0000") {
		if i == len(text) {
			return 0, false, true
		}
		d, ok := hexDigit(text[i])
		if ok = ok && i > 0 || i == 0 && text[i] == 'u'; !ok {
			return 0, false, false
		}
		if i > 0 {
			r = r<<4 | rune(d)
		}
	}
	return r, true, false
}

// unescape gives the character that % or & begins, with the n bytes of text behind
// it; n is 0 if it begins none, and short says that text ended before.
func unescape(c char, text []byte) (inner char, n int, short bool) {
	const longest = len("#x0000002F")
	var name [longest]byte
	for i := range longest + 1 {
		var b byte
		if n < len(text) && text[n] != '\\' {
			b = text[n]
			n++
		} else {
			next, m, open := unslash(text[n:])
			if open || next.n > 1 {
				return char{}, 0, open
			}
			b = next.bytes[0]
			n += m
		}
		digit, isHex := hexDigit(b)
		switch {
		case c.is('%') && !isHex:
			return char{}, 0, false
		case c.is('%') && i == 1:
			high, _ := hexDigit(name[0])
			inner.bytes[0], inner.n = high<<4|digit, 1
			return inner, n, false
		case b == ';':
			r := entity(string(name[:i]))
			if r == 0 {
				n = 0
			}
			return charOf(r), n, false
		case i == longest || b != '#' && (b|0x20 < 'a' || b|0x20 > 'z') && (b < '0' || b > '9'):
			return char{}, 0, false
		}
		name[i] = b
	}
	return char{}, 0, false
}

func hexDigit(b byte) (value byte, ok bool) {
	switch low := b | 0x20; {
	case b >= '0' && b <= '9':
		return b - '0', true
	case low >= 'a' && low <= 'f':
		return low - 'a' + 10, true
	}
	return 0, false
}

// entity gives the character of HTML's name, of those that a credential may have;
// 0 for another.
func entity(name string) rune {
	if digits, numeric := strings.CutPrefix(name, "#"); numeric {
		base := 10
		if digits != "" && digits[0]|0x20 == 'x' {
			digits, base = digits[1:], 16
		}
		r, _ := strconv.ParseUint(digits, base, 21) // a mistake gives 0, or what is none
		return rune(r)
	}
	switch name {
	case "amp", "AMP":
		return '&'
	case "quot", "QUOT":
		return '"'
	case "apos":
		return '\''
	case "lt", "LT":
		return '<'
	case "gt", "GT":
		return '>'
	case "sol":
		return '/'
	case "bsol":
		return '\\'
	case "plus":
		return '+'
	case "equals":
		return '='
	case "colon":
		return ':'
	case "semi":
		return ';'
	case "percnt":
		return '%'
	case "num":
		return '#'
	case "dollar":
		return '$'
	case "excl":
		return '!'
	case "ast":
		return '*'
	case "commat":
		return '@'
	case "lowbar":
		return '_'
	case "period":
		return '.'
	case "comma":
		return ','
	case "quest":
		return '?'
	case "lpar":
		return '('
	case "rpar":
		return ')'
	case "lsqb", "lbrack":
		return '['
	case "rsqb", "rbrack":
		return ']'
	case "lcub", "lbrace":
		return '{'
	case "rcub", "rbrace":
		return '}'
	case "verbar", "vert":
		return '|'
	case "Hat":
		return '^'
	case "grave":
		return '`'
	}
	return 0
}

// tail removes the beginning of a credential at the end of a text that was cut.
func (s scrubber) tail(t []byte, count *int) []byte {
	for _, n := range s.needles {
		least := max(minScrub, named(string(n))+1)
		if least >= len(n) {
			continue
		}
		for from := max(0, len(t)-len(n)+1); ; from++ {
			at := bytes.Index(t[from:], n[:least])
			if at < 0 {
				break
			}
			if from += at; bytes.HasPrefix(n, t[from:]) {
				t = t[:from]
				*count++
				break
			}
		}
	}
	return t
}

func (s scrubber) answer(a *Answer) {
	if len(s.needles) == 0 {
		return
	}
	a.URL = s.text(a.URL, &a.Scrubbed)
	for _, vs := range a.Header {
		for i := range vs {
			vs[i] = s.text(vs[i], &a.Scrubbed)
		}
	}
	// What is escaped first: a find that stands as it is may end in an escape.
	a.Body = s.standing(s.escaped(a.Body, true, &a.Scrubbed), &a.Scrubbed)
	a.Body = s.tail(a.Body, &a.Scrubbed)
}

// named is the length of the user name a needle may start with, which alone
// is no secret.
func named(needle string) int {
	for _, colon := range [...]string{":", "%3A", "%253A"} {
		if user, _, pair := strings.Cut(needle, colon); pair {
			return len(user) + len(colon)
		}
	}
	return 0
}

// err keeps the chain unless its text shows the credential.
func (s scrubber) err(err error) error {
	var n int
	if text := s.text(err.Error(), &n); n > 0 {
		return errors.New(text)
	}
	return err
}
