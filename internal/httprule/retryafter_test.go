package httprule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// received is when our clock says the response came; the provider's clock runs
// ten minutes behind it in the rows that give a Date.
var received = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const providerDate = "Mon, 30 Nov 2026 11:50:00 GMT"

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		name string
		h    map[string][]string
		want time.Duration // -1: nothing readable
	}{
		{"none", nil, -1},
		{"seconds", h("Retry-After", "30"), 30 * time.Second},
		{"zero", h("Retry-After", "0"), 0},
		{"spaces around", h("Retry-After", " 7 "), 7 * time.Second},
		{"any case of name", h("retry-AFTER", "7"), 7 * time.Second},
		{"leading zeros", h("Retry-After", strings.Repeat("0", 400)+"7"), 7 * time.Second},
		{"just below cap", h("Retry-After", "86399"), 86399 * time.Second},
		{"capped", h("Retry-After", "86401"), httprule.MaxRetryAfter},
		{"400 digits", h("Retry-After", strings.Repeat("9", 400)), httprule.MaxRetryAfter},
		{"2^64+1", h("Retry-After", "18446744073709551617"), httprule.MaxRetryAfter},
		{"decimal", h("Retry-After", "1.5"), 1500 * time.Millisecond},
		{"many decimals", h("Retry-After", "0.1234567899999999999999"), 123456789},
		{"decimal at cap", h("Retry-After", "86400.9"), httprule.MaxRetryAfter},
		{"negative", h("Retry-After", "-5"), -1},
		{"plus", h("Retry-After", "+5"), -1},
		{"exponent", h("Retry-After", "1e9"), -1},
		{"unit", h("Retry-After", "5s"), -1},
		{"no whole part", h("Retry-After", ".5"), -1},
		{"no fraction", h("Retry-After", "5."), -1},
		{"empty", h("Retry-After", ""), -1},
		{"other digits", h("Retry-After", "٥"), -1},
		{"date, no Date", h("Retry-After", "Mon, 30 Nov 2026 12:02:00 GMT"), 2 * time.Minute},
		{"date against provider's clock", h("Retry-After", "Mon, 30 Nov 2026 11:52:00 GMT", "Date", providerDate), 2 * time.Minute},
		{"rfc850", h("Retry-After", "Monday, 30-Nov-26 11:52:00 GMT", "Date", providerDate), 2 * time.Minute},
		{"asctime", h("Retry-After", "Mon Nov 30 11:52:00 2026", "Date", providerDate), 2 * time.Minute},
		{"asctime, one digit day", h("Retry-After", "Tue Dec  1 11:50:00 2026", "Date", providerDate), 24 * time.Hour},
		{"past date is now", h("Retry-After", "Mon, 30 Nov 2026 11:00:00 GMT", "Date", providerDate), 0},
		{"date past for us, not for provider", h("Retry-After", "Mon, 30 Nov 2026 11:59:00 GMT", "Date", providerDate), 9 * time.Minute},
		{"far date capped", h("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), httprule.MaxRetryAfter},
		{"unreadable Date ignored", h("Retry-After", "Mon, 30 Nov 2026 12:01:00 GMT", "Date", "yesterday"), time.Minute},
		{"other zone", h("Retry-After", "Mon, 30 Nov 2026 12:02:00 PST"), -1},
		{"milliseconds", h("retry-after-ms", "450"), 450 * time.Millisecond},
		{"milliseconds, Azure", h("x-ms-retry-after-ms", "1250.5"), 1250500 * time.Microsecond},
		{"milliseconds capped", h("retry-after-ms", "86400001"), httprule.MaxRetryAfter},
		{"latest of several", h("retry-after-ms", "450", "Retry-After", "1"), time.Second},
		{"several lines", h("Retry-After", "1", "Retry-After", "7", "Retry-After", "3"), 7 * time.Second},
		{"several by commas", h("Retry-After", "1, 7 ,3"), 7 * time.Second},
		{"seconds and date by commas", h("Retry-After", "5, Mon, 30 Nov 2026 11:52:00 GMT", "Date", providerDate), 2 * time.Minute},
		{"dates by commas", h("Retry-After", "Mon, 30 Nov 2026 11:52:00 GMT, Monday, 30-Nov-26 11:53:00 GMT, Mon Nov 30 11:51:00 2026,1", "Date", providerDate), 3 * time.Minute},
		{"list with an unreadable member", h("Retry-After", "soon,,-4, 2"), 2 * time.Second},
		{"a weekday alone", h("Retry-After", "Mon"), -1},
		{"a weekday before seconds", h("Retry-After", "Mon, 5"), -1},
		{"milliseconds by commas", h("retry-after-ms", "450, 700"), 700 * time.Millisecond},
		{"two spellings of milliseconds", h("retry-after-ms", "450", "x-ms-retry-after-ms", "900", "Retry-After", "0.8"), 900 * time.Millisecond},
		{"OpenAI", h("retry-after-ms", "1500", "retry-after", "2"), 2 * time.Second},
		{"OpenAI, batches", h("retry-after", "20", "x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "20s"), 20 * time.Second},
		{"OpenAI, the reset of a limit alone", h("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "20s"), -1},
		{"GitHub", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796040060"), time.Minute},
		{"GitHub, against the provider's clock", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796040060", "Date", providerDate), 11 * time.Minute},
		{"GitHub, passed", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1790000600"), 0},
		{"GitHub, with some left", h("X-RateLimit-Remaining", "7", "X-RateLimit-Reset", "1796040060"), -1},
		{"reset alone", h("X-RateLimit-Reset", "1796040060"), -1},
		{"reset beside Retry-After", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796040060", "Retry-After", "60"), time.Minute},
		{"reset in seconds from now", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "30"), -1},
		{"reset in milliseconds since 1970", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796040060000"), -1},
		{"reset far away", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "999999999999"), httprule.MaxRetryAfter},
		{"reset, 400 digits", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strings.Repeat("9", 400)), -1},
		{"two resets", h("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796040060", "X-RateLimit-Reset", "1796040061"), -1},
		{"Stripe", h("Stripe-Should-Retry", "true"), -1},
		{"Stripe, no", h("Stripe-Should-Retry", "false", "X-Should-Retry", "false", "Retry-After", "3"), 3 * time.Second},
		{"unreadable beside readable", h("retry-after-ms", "450", "Retry-After", "soon"), 450 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			until, ok := httprule.RetryAfter(c.h, received)
			if ok != (c.want >= 0) {
				t.Fatalf("ok = %v", ok)
			}
			if ok && !until.Equal(received.Add(c.want)) {
				t.Errorf("waits %v, want %v", until.Sub(received), c.want)
			}
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"30", "1.5", "-1", "86400", strings.Repeat("9", 40), providerDate, "Monday, 30-Nov-26 11:52:00 GMT", "Mon Nov 30 11:52:00 2026"} {
		f.Add(s, providerDate, "450", "1796040060")
		f.Add("", s, s, s)
		f.Add(s+", "+s, providerDate, s+",1", "")
	}
	f.Fuzz(func(t *testing.T, ra, date, ms, reset string) {
		until, ok := httprule.RetryAfter(h("Retry-After", ra, "Date", date, "Retry-After-Ms", ms,
			"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", reset), received)
		if !ok {
			return
		}
		if d := until.Sub(received); d < 0 || d > httprule.MaxRetryAfter {
			t.Errorf("%q %q %q: waits %v", ra, date, ms, d)
		}
	})
}

// h builds headers from pairs.
func h(pairs ...string) map[string][]string {
	m := make(map[string][]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
	}
	return m
}
