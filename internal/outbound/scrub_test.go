package outbound

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
)

// jsonText is text as a JSON string, without its quotes.
func jsonText(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted[1 : len(quoted)-1])
}

// A credential that comes back in the escapes that JSON, HTML and URLs allow, or in
// base64, is taken out before anybody undoes them.
func TestScrubsEscapedEchoes(t *testing.T) {
	const secret = `ab/cd+efghijkl"mnop\qr&st 'v==`
	php := strings.ReplaceAll(jsonText(secret), "/", `\/`)
	for name, text := range map[string]string{
		"as it is":                 secret,
		"JSON":                     jsonText(secret),
		"JSON with slashes":        php,
		"JSON with code points":    `\u0061b/cd\u002befghijkl\u0022mnop\u005cqr\u0026st\u0020'v=\u003d`,
		"JSON in a string":         jsonText(php),
		"JSON in strings":          jsonText(jsonText(jsonText(php))),
		"HTML":                     html.EscapeString(secret),
		"HTML with numbers":        `ab&#x2F;cd&#43;efghijkl&#x22;mnop&#92;qr&#038;st&#x20;&#x27;v&#X3d;&#61;`,
		"HTML with names":          `ab&sol;cd&plus;efghijkl&quot;mnop&bsol;qr&amp;st &apos;v&equals;=`,
		"HTML twice":               html.EscapeString(html.EscapeString(secret)),
		"HTML in a JSON string":    jsonText(html.EscapeString(secret)),
		"a query":                  url.QueryEscape(secret),
		"a path":                   url.PathEscape(secret),
		"a query in small letters": `ab%2fcd%2befghijkl%22mnop%5cqr%26st+%27v%3d%3d`,
		"a query in a query":       url.QueryEscape(url.QueryEscape(secret)),
		"a query in a JSON string": `ab\u00252fcd%2befghijkl%22mnop%5cqr%26st%20%27v%3d%3d`,
		"a query three times":      url.QueryEscape(url.QueryEscape(url.QueryEscape(secret))),
		"HTML in a query":          url.QueryEscape(html.EscapeString(secret)),
		"JSON in a query":          url.QueryEscape(jsonText(secret)),
		"safe JSON in a query":     url.QueryEscape(strings.ReplaceAll(jsonText(secret), "&", `\u0026`)),
		"a query in HTML":          html.EscapeString(url.QueryEscape(secret)),
		"base64":                   base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 for URLs":          base64.URLEncoding.EncodeToString([]byte(secret)),
		"base64 as it was sent":    base64.StdEncoding.EncodeToString([]byte("Token " + secret)),
		"base64 in a query":        url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(secret))),
	} {
		s := newScrubber(secret, "Token "+secret)
		a := Answer{
			URL: "http://h.test/?x=" + text, Header: map[string][]string{"X-Key": {text}},
			Body: []byte(`{"message":"bad key: ` + text + `","more":[1.50,"\/"]}`),
		}
		s.answer(&a)
		shown := fmt.Sprint(a.URL, a.Header, string(a.Body))
		if a.Scrubbed != 3 || strings.Contains(shown, "efghijkl") || !bytes.HasSuffix(a.Body, []byte(`","more":[1.50,"\/"]}`)) {
			t.Errorf("%s: %d replaced, %s", name, a.Scrubbed, shown)
		}
		for _, form := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			if strings.Contains(shown, form.EncodeToString([]byte(secret))[:12]) {
				t.Errorf("%s: %s", name, shown)
			}
		}
	}
	for _, body := range []string{
		`{"path":"a\/b","n":1.50, "u":"\u00e9"}`, `\`, `"\`, `"\u12`, `{"a":"\ud800"}`, ``, `ab\ud800`, `ab&`, `ab%`, `ab%2`, `ab&#`, `ab&#x2F`, `&#x1000000000;`, `%zz&nope;&;`,
		`ab/cd+efghijkX`, `https://h.test/a?b=c&d=%2F&e=ab%2fcd`, strings.Repeat(`\`, 100) + `"`,
	} {
		s := newScrubber(secret)
		a := Answer{Body: []byte(body)}
		if s.answer(&a); string(a.Body) != body || a.Scrubbed != 0 {
			t.Errorf("%q became %q", body, a.Body)
		}
	}
}

// A credential that looks as if it were escaped is found as it is, and escaped.
func TestScrubsWhatLooksEscaped(t *testing.T) {
	const secret = `k%2fey&amp%41&#x2f;\u0041z%`
	for _, text := range []string{
		secret, inJSON(secret), url.QueryEscape(secret), strings.ToLower(url.PathEscape(secret)), html.EscapeString(secret), inJSON(url.QueryEscape(secret)),
	} {
		s := newScrubber(secret)
		a := Answer{Body: []byte("<" + text + ">")}
		if s.answer(&a); a.Scrubbed != 1 {
			t.Errorf("%q became %q", text, a.Body)
		}
	}
}

// An echo is found however each of its characters is written.
func FuzzScrubSpelled(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, uint8(0))
	f.Add([]byte{6, 6, 6, 6}, uint8(2))
	f.Fuzz(func(t *testing.T, ways []byte, layers uint8) {
		const secret = `0123/56+89"ab=de-_.~`
		var text []byte
		for i := range len(secret) {
			way := byte(0)
			if i < len(ways) {
				way = ways[i] % 11
			}
			c := secret[i]
			if way == 0 && c == '"' {
				way = 7
			}
			text = fmt.Appendf(text, []string{"%[2]s", "%%%02[1]x", "%%%02[1]X", "%%25%02[1]x", "&#%[1]d;", "&#x%[1]x;", `\u%04[1]x`, `\%[2]s`, `\\u%04[1]X`, `&amp;#%[1]d;`, `\u0026#%[1]d;`}[way], c, string(c))
			if way == 7 && c != '"' && c != '/' { // no escape of JSON's
				text = append(text[:len(text)-2], c)
			}
		}
		body := `{"a": "` + string(text) + `"}`
		for range layers % 3 {
			quoted, _ := json.Marshal(body)
			body = string(quoted)
		}
		s := newScrubber(secret)
		a := Answer{Body: []byte(body)}
		if s.answer(&a); a.Scrubbed != 1 || json.Valid([]byte(body)) && !json.Valid(a.Body) {
			t.Errorf("%s became %s", body, a.Body)
		}
	})
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte(`{"a":"\u0061b\/cd"}`))
	f.Add([]byte(`"\\\"`))
	f.Add([]byte(`"\u0030123456789ab\/cdef"`))
	f.Add([]byte(`"0123456789ab&#47;\\u0063d%65f"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		const secret = "0123456789ab/cdef"
		s := newScrubber(secret)
		a := Answer{Body: bytes.Clone(body)}
		s.answer(&a)
		if a.Scrubbed == 0 && !bytes.Equal(a.Body, body) || len(a.Body) > len(body) {
			t.Errorf("%q became %q", body, a.Body)
		}
		var v any
		if json.Unmarshal(a.Body, &v) == nil && strings.Contains(fmt.Sprint(v), secret) {
			t.Errorf("%q still shows it: %q", body, a.Body)
		}
		if text, err := url.QueryUnescape(string(a.Body)); err == nil && strings.Contains(text, secret) {
			t.Errorf("%q still shows it: %q", body, a.Body)
		}
	})
}

// BenchmarkScrub looks through answers that show nothing of the credential.
func BenchmarkScrub(b *testing.B) {
	s := newScrubber("sk-proj-4Kp/9Zq+sc0123456789", "Bearer sk-proj-4Kp/9Zq+sc0123456789")
	small := `{"id":"job_123","status":"running","progress":0.5}`
	for _, c := range []struct{ name, body string }{
		{"small", small},
		{"small with a link", small[:len(small)-1] + `,"url":"https:\/\/h.test\/a?b=c&d=%2F"}`},
		{"1 MiB plain", strings.Repeat(small, 1<<20/len(small))},
		{"1 MiB of prose", strings.Repeat(`{"content":"It said \"so\" \u2013 and\n then some more & more"}`, 1<<20/62)},
		{"1 MiB of entities", strings.Repeat(`&amp;`, 1<<20/5)},
		{"1 MiB of nested entities", strings.Repeat(`&amp;amp;amp;`, 1<<20/13)},
		{"1 MiB of percent", strings.Repeat(`%25`, 1<<20/3)},
		{"1 MiB of backslashes", strings.Repeat(`\`, 1<<20)},
		{"1 MiB of beginnings", strings.Repeat(`sk-proj-\u0034Kp%2f9Zq+sc012345678`, 1<<20/34)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				a := Answer{Body: []byte(c.body)}
				s.answer(&a)
			}
		})
	}
}

// Nothing in these looks like an escape.
func TestScrubsWhatStandsForABlank(t *testing.T) {
	for secret, text := range map[string]string{
		"correct horse battery": "correct+horse+battery",
		"tab\tinside a secret":  `tab\tinside a secret`,
		"line\nof a secret":     `line\nof a secret`,
	} {
		s := newScrubber(secret)
		a := Answer{Body: []byte("no: " + text + ".")}
		if s.answer(&a); a.Scrubbed != 1 || string(a.Body) != "no: "+redacted+"." {
			t.Errorf("%q: %d replaced, %s", secret, a.Scrubbed, a.Body)
		}
	}
}

// One credential more than are remembered makes one forgotten, not all.
func TestFormerValuesAmongMany(t *testing.T) {
	var b spellbook
	for i := range maxSpelled + 10 {
		b.keep(Credential{Ref: fmt.Sprint("env:", i)}, &spelled{value: "v", former: []string{"old"}})
	}
	if len(b.last) != maxSpelled {
		t.Errorf("%d are remembered, want %d", len(b.last), maxSpelled)
	}
}
