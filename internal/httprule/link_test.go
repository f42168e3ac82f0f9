package httprule_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

func TestResolveLink(t *testing.T) {
	const create = "https://api.example.com/v1/jobs"
	for _, c := range []struct{ base, ref, want string }{
		// FC-15.
		{create, "abc", "https://api.example.com/v1/abc"},
		{create, "../jobs/abc", "https://api.example.com/jobs/abc"},
		{create + "/", "../jobs/abc", "https://api.example.com/v1/jobs/abc"},
		{create, "/v1/jobs/abc?x=1%2F2", "https://api.example.com/v1/jobs/abc?x=1%2F2"},
		{create, "//api.example.com/v1/jobs/abc", "https://api.example.com/v1/jobs/abc"},
		{create, "https://api.example.com:443/v1/jobs/abc", "https://api.example.com:443/v1/jobs/abc"},
		// What a query may hold stays as it is.
		{create, "abc?a=b+c&;d=%zz&sig=A%2b/=?x", "https://api.example.com/v1/abc?a=b+c&;d=%zz&sig=A%2b/=?x"},
		{create, "abc?", "https://api.example.com/v1/abc?"},
		{create, "abc?q=a b\u00e9", "https://api.example.com/v1/abc?q=a%20b%C3%A9"},
		// An escaped slash in a path stays escaped.
		{create, "jobs/a%2Fb", "https://api.example.com/v1/jobs/a%2Fb"},
		{create, "jobs/abc#part", "https://api.example.com/v1/jobs/abc"},
		{"http://[::1]:8080/a", "b", "http://[::1]:8080/b"},
		{"http://h:/a", "b", "http://h/b"},
		// RFC 3986 §5.4.1, those with an http result.
		{rfc, "g", "http://a/b/c/g"},
		{rfc, "./g", "http://a/b/c/g"},
		{rfc, "g/", "http://a/b/c/g/"},
		{rfc, "/g", "http://a/g"},
		{rfc, "//g", "http://g"},
		{rfc, "?y", "http://a/b/c/d;p?y"},
		{rfc, "g?y", "http://a/b/c/g?y"},
		{rfc, "#s", "http://a/b/c/d;p?q"},
		{rfc, ";x", "http://a/b/c/;x"},
		{rfc, "g;x?y#s", "http://a/b/c/g;x?y"},
		{rfc, ".", "http://a/b/c/"},
		{rfc, "..", "http://a/b/"},
		{rfc, "../g", "http://a/b/g"},
		{rfc, "../..", "http://a/"},
		{rfc, "../../g", "http://a/g"},
		// RFC 3986 §5.4.2.
		{rfc, "../../../g", "http://a/g"},
		{rfc, "../../../../g", "http://a/g"},
		{rfc, "/./g", "http://a/g"},
		{rfc, "/../g", "http://a/g"},
		{rfc, "g.", "http://a/b/c/g."},
		{rfc, "..g", "http://a/b/c/..g"},
		{rfc, "./../g", "http://a/b/g"},
		{rfc, "g/../h", "http://a/b/c/h"},
		{rfc, "g;x=1/../y", "http://a/b/c/y"},
		{rfc, "g?y/../x", "http://a/b/c/g?y/../x"},
		// Refused.
		{create, "", ""},
		{create, "ftp://h/x", ""},
		{create, "javascript:alert(1)", ""},
		{create, "https:abc", ""},
		{create, "https:///x", ""},
		{create, "https://user:pw@h/x", ""},
		{create, "//user@h/x", ""},
		{create, "https://h:0/", ""},
		{create, "https://h:65536/", ""},
		{create, "https://h:1:2/", ""},
		{create, "https://[fe80::1%25eth0]/", ""},
		{create, "https://b\u00fccher.example/", ""},
		{create, "https://h%41/", ""},
		{create, "abc\r\nX: y", ""},
		{create, "/" + strings.Repeat("a", httprule.MaxURL), ""},
		{"/v1/jobs", "abc", ""},
		{"https://u@h/", "abc", ""},
	} {
		got, err := httprule.ResolveLink(c.base, c.ref)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("ResolveLink(%q, %.60q) = %q, %v; want %q", c.base, c.ref, got, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "pw") || strings.Contains(err.Error(), "user:")) {
			t.Errorf("error quotes the link: %v", err)
		}
	}
}

const rfc = "http://a/b/c/d;p?q"

func TestOrigin(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"https://API.example.com/x?y", "https://api.example.com"},
		{"https://api.example.com:443", "https://api.example.com"},
		{"https://api.example.com:0443", "https://api.example.com"},
		{"https://api.example.com:80", "https://api.example.com:80"},
		{"HTTP://api.example.com:80/", "http://api.example.com"},
		{"http://[::1]:8080/", "http://[::1]:8080"},
		{"http://[::1]/", "http://[::1]"},
		{"mailto:a@b", ""},
		{"/x", ""},
	} {
		if got, err := httprule.Origin(c.in); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Origin(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func FuzzResolveLink(f *testing.F) {
	for _, s := range []string{"abc", "../jobs/abc", "/v1/jobs/abc?x=1%2F2", "//same-host/v1", "https://h:443/x#y", "?a b", "a%2Fb?%zz", "http://[::1]:80/", "./a:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		got, err := httprule.ResolveLink("https://api.example.com/v1/jobs?q=1", ref)
		if err != nil {
			return
		}
		again, err := httprule.ResolveLink("https://other.example/", got)
		if err != nil || again != got {
			t.Errorf("%q gives %q, which gives %q, %v", ref, got, again, err)
		}
		for _, c := range []byte(got) {
			if c <= ' ' || c >= 0x7f {
				t.Errorf("%q gives %q: not fit for a request line", ref, got)
			}
		}
		u, err := url.Parse(got)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
			t.Errorf("%q gives %q (%v)", ref, got, err)
		}
		noFragment, _, _ := strings.Cut(ref, "#")
		if _, q, ok := strings.Cut(noFragment, "?"); ok && plain(q) && q != u.RawQuery {
			t.Errorf("%q gives query %q", ref, u.RawQuery)
		}
	})
}

// Absolute is three other functions in one.
func FuzzAbsolute(f *testing.F) {
	for _, s := range []string{
		rfc, "https://API.example.com:0443/a/../b?x=1%2F2", "HTTP://h:/", "https://h/a b?c d#e", "http://[::1]:80/", "https://h?",
		"https://h/%zz", "https://h/a%2fb/./", "https://u:pw@h/", "/v1", "https://h/\u00e9?\u00e9", "https://h:65536/", "mailto:a@b", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, link, origin, err := httprule.Absolute(raw)
		want, refused := httprule.ResolveLink(raw, raw)
		if (err == nil) != (refused == nil) || link != want {
			t.Fatalf("Absolute(%q) = %q, %v; ResolveLink gives %q, %v", raw, link, err, want, refused)
		}
		if err != nil {
			if u != nil || origin != "" || strings.Contains(err.Error(), "pw") {
				t.Errorf("Absolute(%q) = %v, %q, %v", raw, u, origin, err)
			}
			return
		}
		parsed, err := url.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := httprule.Origin(link); err != nil || o != origin || *u != *parsed {
			t.Errorf("Absolute(%q) = %#v, %q; %q gives %#v, %q, %v", raw, u, origin, link, parsed, o, err)
		}
	})
}

func plain(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

func TestEscapeSegment(t *testing.T) {
	for _, c := range []struct{ id, want string }{
		{"abc-1_2.3~4", "abc-1_2.3~4"},
		{"a/b", "a%2Fb"},
		{"a?b", "a%3Fb"},
		{".", "%2E"},
		{"..", "%2E%2E"},
		{"...", "..."},
		{"../x", "..%2Fx"},
		{"a%2Fb", "a%252Fb"},
		{"a b#c;d:e@f\\g", "a%20b%23c%3Bd%3Ae%40f%5Cg"},
		{"\u00e9\x00\xff", "%C3%A9%00%FF"},
		{"", ""},
	} {
		if got := httprule.EscapeSegment(c.id); got != c.want {
			t.Errorf("EscapeSegment(%q) = %q, want %q", c.id, got, c.want)
		}
	}
}

// Whatever the id, the URL keeps its shape: one segment, which reads back as the id.
func FuzzEscapeSegment(f *testing.F) {
	for _, s := range []string{"abc", "a/b", "..", ".", "a?b#c", "%2e%2e", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if id == "" || len(id) > 1000 {
			return
		}
		seg := httprule.EscapeSegment(id)
		got, err := httprule.ResolveLink("https://h/", "https://h/v1/jobs/"+seg+"/result?x")
		if err != nil || got != "https://h/v1/jobs/"+seg+"/result?x" {
			t.Errorf("%q: %q, %v", id, got, err)
		}
		if back, err := url.PathUnescape(seg); err != nil || back != id || strings.ContainsAny(seg, "/?#") {
			t.Errorf("%q: segment %q reads back as %q, %v", id, seg, back, err)
		}
	})
}

func TestBase(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"https://API.example:443/", "https://api.example"},
		{"https://api.example", "https://api.example"},
		{"https://api.example/team-a/", "https://api.example/team-a"},
		{"http://api.example:8080/a/b", "http://api.example:8080/a/b"},
		{"https://api.example/a%2Fb", "https://api.example/a%2Fb"},
		{"ftp://api.example/a", ""},
		{"", ""},
	} {
		got, from, err := httprule.Base(c.url)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: %q, %v, want %q", c.url, got, err, c.want)
		}
		if origin, _ := httprule.Origin(c.url); from != origin {
			t.Errorf("%q: origin %q, want %q", c.url, from, origin)
		}
	}
}
