package httprule

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// MaxURL bounds the length of a URL in bytes, as given and as resolved.
const MaxURL = 8192

// ResolveLink resolves a reference found in a response (a Location header, a
// status URL in a body) against the absolute URL of the request that brought it,
// as RFC 3986 §5 says. The query is kept byte for byte, except that a space or
// a byte outside ASCII is percent-encoded, since neither can stand on a request
// line. A fragment is dropped. A port is kept as written, also the default one;
// compare with Origin.
//
// Refused: schemes other than http and https, user information, a host that is
// empty or not plain ASCII, a port out of range, an empty reference, more than
// MaxURL bytes. Errors do not quote the URL, which may carry a secret.
func ResolveLink(base, ref string) (string, error) {
	if ref == "" {
		return "", errors.New("link is empty")
	}
	b, err := parse(base)
	if err != nil {
		return "", fmt.Errorf("base of link: %w", err)
	}
	if err := check(b); err != nil {
		return "", fmt.Errorf("base of link: %w", err)
	}
	r, err := parse(ref)
	if err != nil {
		return "", fmt.Errorf("link: %w", err)
	}
	return resolved(b, r)
}

// resolved expects a checked base.
func resolved(b, r *url.URL) (string, error) {
	u := b.ResolveReference(r)
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery = lineSafe(u.RawQuery)
	if err := check(u); err != nil {
		return "", fmt.Errorf("link: %w", err)
	}
	s := u.String()
	if len(s) > MaxURL {
		return "", fmt.Errorf("link: longer than %d bytes", MaxURL)
	}
	return s, nil
}

// Absolute is ResolveLink of a URL against itself, in parts: the link that it
// leads to, parsed and as text, and its Origin.
func Absolute(rawURL string) (u *url.URL, link, from string, err error) {
	given, err := parse(rawURL)
	if err != nil {
		return nil, "", "", fmt.Errorf("link: %w", err)
	}
	if err := check(given); err != nil {
		return nil, "", "", fmt.Errorf("link: %w", err)
	}
	if link, err = resolved(given, given); err != nil {
		return nil, "", "", err
	}
	if u = given; link != rawURL {
		if u, err = parse(link); err != nil {
			return nil, "", "", fmt.Errorf("link: %w", err)
		}
		if err := check(u); err != nil {
			return nil, "", "", fmt.Errorf("link: %w", err)
		}
	}
	return u, link, origin(u), nil
}

// Base is a base URL in one spelling, its origin as Origin gives it and its path
// without a slash at the end, and that origin alone. Equal strings mean the same
// place.
func Base(rawURL string) (base, from string, err error) {
	u, err := parse(rawURL)
	if err != nil {
		return "", "", err
	}
	if err := check(u); err != nil {
		return "", "", err
	}
	from = origin(u)
	return from + strings.TrimRight(u.EscapedPath(), "/"), from, nil
}

// Origin is scheme://host:port of an absolute http or https URL, in lower case
// with the default port left out, so that equal strings mean the same origin.
func Origin(rawURL string) (string, error) {
	u, err := parse(rawURL)
	if err != nil {
		return "", err
	}
	if err := check(u); err != nil {
		return "", err
	}
	return origin(u), nil
}

// origin expects a checked URL.
func origin(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	port := u.Port()
	if n, err := strconv.Atoi(port); err == nil { // "0443" is 443
		port = strconv.Itoa(n)
	}
	switch {
	case port == "", u.Scheme == "http" && port == "80", u.Scheme == "https" && port == "443":
		return u.Scheme + "://" + host
	}
	return u.Scheme + "://" + host + ":" + port
}

// parse is url.Parse with a bound and with an error that does not quote the input.
func parse(s string) (*url.URL, error) {
	if len(s) > MaxURL {
		return nil, fmt.Errorf("longer than %d bytes", MaxURL)
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	return u, nil
}

func check(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("scheme is not http or https")
	}
	if u.Opaque != "" || u.Hostname() == "" {
		return errors.New("no host")
	}
	if u.User != nil {
		return errors.New("user information in a URL is refused")
	}
	if strings.HasPrefix(u.Host, "[") {
		if a, err := netip.ParseAddr(u.Hostname()); err != nil || a.Zone() != "" {
			return errors.New("host is not an IPv6 address")
		}
	} else {
		for _, c := range []byte(u.Hostname()) {
			if !unreserved(c) {
				return errors.New("host has a character that is not allowed")
			}
		}
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return errors.New("port is not between 1 and 65535")
		}
	} else {
		u.Host = strings.TrimSuffix(u.Host, ":") // "host:" is "host", RFC 3986 §6.2.3
	}
	return nil
}

func lineSafe(query string) string {
	var b strings.Builder
	for _, c := range []byte(query) {
		if c > ' ' && c < 0x7f {
			b.WriteByte(c)
		} else {
			escape(&b, c)
		}
	}
	return b.String()
}

// EscapeSegment spells an id as exactly one path segment: every byte that is
// not unreserved (RFC 3986 §2.3) is percent-encoded, and so are the dots of the
// two ids "." and "..", which would otherwise be removed or climb. An empty id
// gives an empty segment: the caller must refuse it, or a read of one job
// becomes a read of the list.
func EscapeSegment(id string) string {
	dots := id == "." || id == ".."
	var b strings.Builder
	for _, c := range []byte(id) {
		if unreserved(c) && !dots {
			b.WriteByte(c)
		} else {
			escape(&b, c)
		}
	}
	return b.String()
}

func escape(b *strings.Builder, c byte) {
	const hex = "0123456789ABCDEF"
	b.WriteByte('%')
	b.WriteByte(hex[c>>4])
	b.WriteByte(hex[c&15])
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}
