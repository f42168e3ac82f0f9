// Package httprule holds the HTTP rules that need no connection: when to come
// back (Retry-After in its dialects), where a Location leads (RFC 3986), how a
// job id becomes one path segment, and what of a response may be kept or shown.
//
// Specifications: RFC 9110 §5.6.7 and §10.2.3 for dates and Retry-After,
// RFC 3986 §2.3, §3 and §5 for references and escaping.
//
// Everything here is a pure function of its arguments: no clock, no network,
// no state. Input comes from providers and is never trusted; no function
// panics, and each one's work is bounded by the length of its input.
//
// Limits. Only http and https are known. Host names must be ASCII (an
// internationalised name is given in its xn-- form). A server that decodes
// %2E before it splits a path can still take EscapeSegment("..") for a dot
// segment; no spelling of those two ids prevents that.
package httprule

import (
	"iter"
	"strings"
)

// values yields the values of one header, whatever case its name has in h.
// Names from net/http are canonical, but fixtures and contracts write them freely.
func values(h map[string][]string, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k, vs := range h {
			if !strings.EqualFold(k, name) {
				continue
			}
			for _, v := range vs {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// first is the value of a header if it has exactly one distinct value, else "".
// Two different values are contradictory, and picking one would depend on map order.
func first(h map[string][]string, name string) string {
	var found string
	var have bool
	for v := range values(h, name) {
		v = strings.TrimSpace(v)
		if have && v != found {
			return ""
		}
		found, have = v, true
	}
	return found
}
