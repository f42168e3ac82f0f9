package httprule

import (
	"iter"
	"strings"
	"time"
)

// MaxRetryAfter caps every wait a provider asks for. A longer wait is cut to
// this; the deadline of the operation decides about the rest.
const MaxRetryAfter = 24 * time.Hour

// RetryAfter is the time before which the provider asks not to be called again.
//
// Understood: Retry-After as whole or decimal seconds or as an HTTP date in any
// of its three layouts, and retry-after-ms and x-ms-retry-after-ms as whole or
// decimal milliseconds. Where several are given, on lines of their own or by
// commas as proxies join them, the latest wins, so that no
// reading comes back too early. A date is measured against the response's own
// Date header where that can be read, since the provider's clock may differ
// from ours; else against receivedAt. A date in the past means now.
//
// Only where none of these can be read: x-ratelimit-reset as seconds since 1970
// beside an x-ratelimit-remaining of 0, as GitHub and SendGrid send it. A number
// below 10^9 is no such time: other providers mean seconds from now, or spell
// another limit's.
//
// Not a wait: OpenAI's x-ratelimit-reset-requests and -tokens, which name when a
// limit is whole again and come beside a Retry-After; Stripe's
// stripe-should-retry and x-should-retry, which say whether and not when.
//
// The result lies in [receivedAt, receivedAt+MaxRetryAfter]. ok is false when
// no header could be read; a negative number is not readable.
func RetryAfter(h map[string][]string, receivedAt time.Time) (until time.Time, ok bool) {
	var wait time.Duration
	take := func(d time.Duration, good bool) {
		if good {
			ok = true
			wait = max(wait, d)
		}
	}
	for _, name := range []string{"retry-after-ms", "x-ms-retry-after-ms"} {
		for v := range elements(h, name) {
			take(decimal(v, time.Millisecond))
		}
	}
	origin := receivedAt
	if d, good := ParseDate(first(h, "date")); good {
		origin = d
	}
	at := func(t time.Time) {
		// Sub saturates, so a date ages away cannot overflow.
		take(min(max(t.Sub(origin), 0), MaxRetryAfter), true)
	}
	for v := range elements(h, "retry-after") {
		if d, good := decimal(v, time.Second); good {
			take(d, true)
		} else if t, good := ParseDate(v); good {
			at(t)
		}
	}
	if !ok && first(h, "x-ratelimit-remaining") == "0" {
		if t, good := epoch(first(h, "x-ratelimit-reset")); good {
			at(t)
		}
	}
	if !ok {
		return time.Time{}, false
	}
	return receivedAt.Add(wait), true
}

// elements yields the members of a header that may be a list. The comma in an
// HTTP date belongs to it: a member that is a weekday goes with the next.
func elements(h map[string][]string, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range values(h, name) {
			day := ""
			for part := range strings.SplitSeq(line, ",") {
				part = strings.TrimSpace(part)
				if weekday(part) {
					day = part + ", "
					continue
				}
				if !yield(day + part) {
					return
				}
				day = ""
			}
		}
	}
}

func weekday(s string) bool {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if s == d.String() || s == d.String()[:3] {
			return true
		}
	}
	return false
}

// epoch reads seconds since 1970, from 2001 on.
func epoch(s string) (time.Time, bool) {
	if !digits(s) || len(s) < 10 || len(s) > 12 || s[0] == '0' {
		return time.Time{}, false
	}
	var n int64
	for _, c := range []byte(s) {
		n = n*10 + int64(c-'0')
	}
	return time.Unix(n, 0), true
}

// decimal reads digits with an optional fraction as a count of unit, cut to
// MaxRetryAfter, without floats. Digits below a nanosecond are dropped.
func decimal(s string, unit time.Duration) (time.Duration, bool) {
	whole, frac, hasFrac := strings.Cut(s, ".")
	if !digits(whole) || hasFrac && !digits(frac) {
		return 0, false
	}
	limit := int64(MaxRetryAfter / unit)
	var n int64
	for _, c := range []byte(whole) {
		n = n*10 + int64(c-'0')
		if n >= limit {
			return MaxRetryAfter, true
		}
	}
	d := time.Duration(n) * unit
	for _, c := range []byte(frac) {
		unit /= 10
		if unit == 0 {
			break
		}
		d += time.Duration(c-'0') * unit
	}
	return d, true
}

func digits(s string) bool {
	if s == "" {
		return false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// ParseDate reads an HTTP date in one of the three layouts of RFC 9110 §5.6.7.
// The zone must be GMT: time.Parse would take any other three letters for UTC.
func ParseDate(s string) (time.Time, bool) {
	if len(s) > 64 {
		return time.Time{}, false
	}
	for _, layout := range []string{
		"Mon, 02 Jan 2006 15:04:05 GMT",
		"Monday, 02-Jan-06 15:04:05 GMT",
		"Mon Jan _2 15:04:05 2006",
	} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
