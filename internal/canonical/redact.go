package canonical

import "strings"

// mark stands where a part of a link was taken out.
const mark = "redacted"

// RedactLinks takes the secret parts out of every absolute URL in a body:
// user information, query and fragment are each replaced by "redacted". All
// other bytes stay as they are, so numbers keep their text, and a body that
// was valid JSON still is. It works on any text, whole or cut: JSON, JSON
// lines, HTML, logs, JSON inside JSON strings.
//
// A URL is "scheme://" up to white space, a quote or an angle bracket. Escapes
// as JSON writes them (\/ \u003f) are read at any depth of nesting. Names of
// object members are treated like values, so two names that differ only in a
// query become equal. Running it twice changes nothing more.
//
// Limits: secrets in paths, in relative links and in percent-encoded links
// outside a query are not found.
func RedactLinks(body []byte) []byte {
	s := string(body)
	var out strings.Builder
	kept := 0 // s[:kept] is written or dropped
	drop := func(from, to int) {
		if s[from:to] == mark || from == to {
			return
		}
		out.WriteString(s[kept:from])
		out.WriteString(mark)
		kept = to
	}
	for i := 0; i < len(s); {
		c, n := unit(s, i)
		switch {
		case c == ':' && i > 0 && schemeEnd(s[i-1]):
			start, ok := slashes(s, i+n)
			if !ok {
				i += n
				continue
			}
			i = authority(s, start, drop)
			// The path follows; what ends it or starts another URL is found here.
			path := true
			for path && i < len(s) {
				c, n := unit(s, i)
				switch {
				case c == '?' || c == '#':
					end := i + n
					for end < len(s) {
						c, n := unit(s, end)
						if ends(c) {
							break
						}
						end += n
					}
					drop(i+n, end)
					i, path = end, false
				case ends(c), c == ':':
					path = false
				default:
					i += n
				}
			}
		default:
			i += n
		}
	}
	if kept == 0 {
		return body
	}
	out.WriteString(s[kept:])
	return []byte(out.String())
}

// authority drops the user information that starts at i and gives the end of
// the authority.
func authority(s string, i int, drop func(from, to int)) int {
	start, at := i, -1
	for i < len(s) {
		c, n := unit(s, i)
		if ends(c) || c == '/' || c == '?' || c == '#' || c == '\\' {
			break
		}
		if c == '@' {
			at = i
		}
		i += n
	}
	if at >= 0 {
		drop(start, at)
	}
	return i
}

// slashes gives the place after the two slashes that start at i.
func slashes(s string, i int) (int, bool) {
	for range 2 {
		if i >= len(s) {
			return 0, false
		}
		c, n := unit(s, i)
		if c != '/' {
			return 0, false
		}
		i += n
	}
	return i, true
}

// unit reads one character at i, escaped as JSON does at any depth or not, and
// its length. A run of backslashes belongs to the escape that follows it and is
// never split, so a cut between units leaves valid JSON valid. Characters
// beyond ASCII are given as 0x80.
func unit(s string, i int) (byte, int) {
	if s[i] != '\\' {
		return min(s[i], 0x80), 1
	}
	j := i
	for j < len(s) && s[j] == '\\' {
		j++
	}
	if j == len(s) {
		return '\\', j - i
	}
	switch c := s[j]; c {
	case '/', '"':
		return c, j + 1 - i
	case 'b', 'f', 'n', 'r', 't':
		return ' ', j + 1 - i
	case 'u':
		if j+5 > len(s) {
			break
		}
		var r rune
		for _, h := range []byte(s[j+1 : j+5]) {
			switch {
			case h >= '0' && h <= '9':
				h -= '0'
			case h >= 'a' && h <= 'f':
				h -= 'a' - 10
			case h >= 'A' && h <= 'F':
				h -= 'A' - 10
			default:
				return '\\', j - i
			}
			r = r<<4 | rune(h)
		}
		return byte(min(r, 0x80)), j + 5 - i
	}
	return '\\', j - i
}

func ends(c byte) bool {
	return c <= ' ' || c == '"' || c == '<' || c == '>' || c == 0x7f
}

func schemeEnd(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '.' || c == '-'
}
