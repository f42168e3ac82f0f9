package httprule

import (
	"bytes"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxHeaderValue bounds a kept header value in bytes.
const maxHeaderValue = 256

// AllowedHeaders reduces response headers to what the ledger may keep: names in
// lower case, each value at most 256 bytes of printable text. Links
// are cut to origin and path, since their query may be a credential. A header
// with two different values is left out, as is a link that cannot be read.
// Anything not on the list, Set-Cookie above all, is dropped.
func AllowedHeaders(h map[string][]string) map[string]string {
	kept := make(map[string]string)
	for name := range h {
		name = strings.ToLower(name)
		kind := allowed(name)
		if kind == dropped {
			continue
		}
		v := first(h, name)
		if kind == link {
			v = pathOnly(v)
		}
		if v = Excerpt([]byte(v), maxHeaderValue); v != "" {
			kept[name] = v
		}
	}
	return kept
}

type headerKind int

const (
	dropped headerKind = iota
	text
	link
)

func allowed(name string) headerKind {
	switch name {
	case "content-type", "content-length", "content-encoding", "content-range", "date", "age",
		"retry-after", "retry-after-ms", "x-ms-retry-after-ms",
		"idempotent-replayed", "stripe-should-retry", "x-should-retry", "x-amzn-errortype", "x-ms-error-code",
		"request-id", "x-request-id", "x-correlation-id", "x-amzn-requestid", "x-amz-request-id",
		"x-ms-request-id", "apim-request-id", "x-fal-request-id", "x-goog-request-id", "x-trace-id", "cf-ray":
		return text
	case "location", "content-location", "operation-location", "azure-asyncoperation":
		return link
	}
	return dropped
}

// pathOnly keeps scheme, host, port and path of a link, absolute or relative.
func pathOnly(s string) string {
	u, err := parse(s)
	if err != nil || u.Opaque != "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// RedactURL makes a URL fit for a log or an error: user information, query
// values and fragment are dropped, query names stay (`?token=...`). A query
// part without "=" is dropped whole, since it may be the secret itself.
func RedactURL(s string) string {
	u, err := parse(s)
	if err != nil {
		return "(unreadable URL)"
	}
	if u.Opaque != "" {
		return u.Scheme + ":..."
	}
	out := pathOnly(s)
	if u.RawQuery == "" {
		return out
	}
	parts := strings.Split(u.RawQuery, "&")
	for i, p := range parts {
		name, _, ok := strings.Cut(p, "=")
		if ok {
			parts[i] = lineSafe(name) + "=..."
		} else {
			parts[i] = "..."
		}
	}
	return out + "?" + strings.Join(parts, "&")
}

// Excerpt is a short plain-text view of a response body for a human: HTML tags,
// comments, scripts and styles are left out, white space is collapsed, control
// and direction-changing characters and invalid UTF-8 are dropped, and angle
// brackets that remain become ‹ and ›, so that the result holds no tag. It is at most
// limit bytes and ends on a whole character. A cut is marked with "… (cut, N bytes)",
// N being the length of body, or of what body was itself cut from; below 64 bytes
// with "…", where that fits. It reads a bounded part of the body; it does not
// find secrets.
func Excerpt(body []byte, limit int) string {
	if limit <= 0 {
		return ""
	}
	mark := "…"
	if limit >= 64 {
		mark = cutMark(body)
	}
	// 32 input bytes for one of output leaves room for the head of an HTML page.
	cut := len(body) > 32*limit+16384
	if cut {
		body = body[:32*limit+16384]
	}
	var b strings.Builder
	space := false // a space is owed before the next character
	s := string(body)
	for len(s) > 0 {
		if n := markup(s); n > 0 {
			s = s[n:]
			space = true
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		s = s[n:]
		switch {
		case unicode.IsSpace(r):
			space = true
			continue
		case r == utf8.RuneError && n == 1, !unicode.IsPrint(r):
			continue
		case r == '<':
			r = '‹'
		case r == '>':
			r = '›'
		}
		if space && b.Len() > 0 {
			b.WriteByte(' ')
		}
		space = false
		b.WriteRune(r)
		if b.Len() > limit {
			cut = true
			break
		}
	}
	return clip(b.String(), limit, mark, cut)
}

// cutMark is the mark for a cut of body. One that ends in such a mark keeps its
// number, or a second cut would hide how much there was.
func cutMark(body []byte) string {
	const before, after = "… (cut, ", " bytes)"
	n := strconv.Itoa(len(body))
	if head, ok := bytes.CutSuffix(body, []byte(after)); ok {
		if i := bytes.LastIndex(head, []byte(before)); i >= 0 {
			if had := string(head[i+len(before):]); digits(had) && len(had) <= 19 {
				n = had
			}
		}
	}
	return before + n + after
}

// markup is the length of the tag, comment, script or style that s starts with,
// or 0. An unfinished one runs to the end.
func markup(s string) int {
	if len(s) < 2 || s[0] != '<' {
		return 0
	}
	c := s[1] | 0x20
	if (c < 'a' || c > 'z') && s[1] != '/' && s[1] != '!' && s[1] != '?' {
		return 0
	}
	end := ">"
	switch {
	case strings.HasPrefix(s, "<!--"):
		end = "-->"
	case hasTag(s, "script"):
		end = "</script>"
	case hasTag(s, "style"):
		end = "</style>"
	}
	if i := indexFold(s, end); i >= 0 {
		return i + len(end)
	}
	return len(s)
}

func hasTag(s, name string) bool {
	if len(s) < len(name)+2 || !strings.EqualFold(s[1:1+len(name)], name) {
		return false
	}
	switch s[1+len(name)] {
	case '>', ' ', '\t', '\n', '\r', '/':
		return true
	}
	return false
}

// indexFold is strings.Index for a needle of ASCII in any case. Each part of a
// body is looked through at most once: a hit is skipped, a miss ends the excerpt.
func indexFold(s, needle string) int {
	for i := 0; i+len(needle) <= len(s); i++ {
		if s[i] == needle[0] && strings.EqualFold(s[i:i+len(needle)], needle) {
			return i
		}
	}
	return -1
}

func clip(s string, limit int, mark string, cut bool) string {
	if !cut && len(s) <= limit {
		return s
	}
	room := limit - len(mark)
	if room < 0 {
		room, cut = limit, false
	}
	if len(s) > room {
		for room > 0 && !utf8.RuneStart(s[room]) {
			room--
		}
		s = s[:room]
	}
	if cut || limit >= len(mark) {
		return s + mark
	}
	return s
}
