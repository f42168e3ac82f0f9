package httprule

import (
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
// decimal milliseconds. Where several are given the latest wins, so that no
// reading comes back too early. A date is measured against the response's own
// Date header where that can be read, since the provider's clock may differ
// from ours; else against receivedAt. A date in the past means now.
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
		for v := range values(h, name) {
			take(decimal(strings.TrimSpace(v), time.Millisecond))
		}
	}
	origin := receivedAt
	if d, good := ParseDate(first(h, "date")); good {
		origin = d
	}
	for v := range values(h, "retry-after") {
		v = strings.TrimSpace(v)
		if d, good := decimal(v, time.Second); good {
			take(d, true)
		} else if at, good := ParseDate(v); good {
			// Sub saturates, so a date ages away cannot overflow.
			take(min(max(at.Sub(origin), 0), MaxRetryAfter), true)
		}
	}
	if !ok {
		return time.Time{}, false
	}
	return receivedAt.Add(wait), true
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
