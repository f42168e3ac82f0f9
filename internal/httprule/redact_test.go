package httprule_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

func TestAllowedHeaders(t *testing.T) {
	got := httprule.AllowedHeaders(h(
		"Content-Type", "application/json",
		"Date", providerDate,
		"Location", "https://u:pw@h:8443/v1/jobs/a%2Fb?sig=SECRET#SECRET",
		"Operation-Location", "../jobs/1?sig=SECRET",
		"Content-Location", "ht tp://%zz?SECRET",
		"Retry-After", "7",
		"X-Request-Id", "r1", "X-Request-Id", "r1",
		"Request-Id", "r1", "Request-Id", "r2",
		"Cf-Ray", strings.Repeat("x", 300),
		"Set-Cookie", "SECRET",
		"Authorization", "SECRET",
		"X-Anything", "SECRET",
	))
	want := map[string]string{
		"content-type":       "application/json",
		"date":               providerDate,
		"location":           "https://h:8443/v1/jobs/a%2Fb",
		"operation-location": "../jobs/1",
		"retry-after":        "7",
		"x-request-id":       "r1",
		"cf-ray":             strings.Repeat("x", 236) + "… (cut, 300 bytes)",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestRedactURL(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"https://h/p", "https://h/p"},
		{"https://u:SECRET@h:1/p%2Fq?token=SECRET&x=&SECRET#SECRET", "https://h:1/p%2Fq?token=...&x=...&..."},
		{"/p?k=SECRET", "/p?k=..."},
		{"data:SECRET", "data:..."},
		{"https://h/%zz?SECRET", "(unreadable URL)"},
		{"", ""},
	} {
		if got := httprule.RedactURL(c.in); got != c.want {
			t.Errorf("RedactURL(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"", 10, ""},
		{"plain", 10, "plain"},
		{"  a \n\t b\u00a0 ", 10, "a b"},
		{"<html><head><title>502 Bad Gateway</title><style>b{}</style></head><body><!-- > --><h1>502</h1><SCRIPT src=x>alert('<b>')</SCRIPT ></body>", 80, "502 Bad Gateway 502"},
		{"<html><script>a</script><p>b", 80, "b"},
		{"{\"error\":\"x < y && y > z\"}", 80, "{\"error\":\"x ‹ y && y › z\"}"},
		{"<<b>script>x", 80, "‹ script›x"},
		{"<scripty>x</scripty>", 80, "x"},
		{"a\x1b[31mred\x00\u202eb\xff", 80, "a[31mredb"},
		{"<unclosed", 80, ""},
		{"abcdefgh", 6, "abc…"},
		{"abcdef", 6, "abcdef"},
		{"ééééé", 6, "é…"},
		{"éé", 1, ""},
		{"abc", 2, "ab"},
		{"abc", 0, ""},
		{strings.Repeat(" ", 1<<20) + "x", 10, "…"},
		{strings.Repeat("a", 64), 64, strings.Repeat("a", 64)},
		{strings.Repeat("a", 65), 64, strings.Repeat("a", 45) + "… (cut, 65 bytes)"},
		{strings.Repeat("é", 40), 64, strings.Repeat("é", 22) + "… (cut, 80 bytes)"},
		{strings.Repeat("m", 3<<20), 100, strings.Repeat("m", 76) + "… (cut, 3145728 bytes)"},
		// A second cut keeps what the first one said.
		{strings.Repeat("m", 76) + "… (cut, 3145728 bytes)", 64, strings.Repeat("m", 40) + "… (cut, 3145728 bytes)"},
		{strings.Repeat("m", 100) + "… (cut,  bytes)", 64, strings.Repeat("m", 44) + "… (cut, 117 bytes)"},
	} {
		if got := httprule.Excerpt([]byte(c.in), c.max); got != c.want {
			t.Errorf("Excerpt(%.40q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add([]byte("<html><!-- x --><script>y</script>z"), 10)
	f.Add([]byte("<<b>script>\xff\u202e"), 3)
	f.Fuzz(func(t *testing.T, body []byte, limit int) {
		limit %= 4096
		got := httprule.Excerpt(body, limit)
		if len(got) > max(limit, 0) || !utf8.ValidString(got) || strings.ContainsAny(got, "<>") ||
			strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
			t.Errorf("Excerpt(%q, %d) = %q", body, limit, got)
		}
	})
}
