package outbound_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"text/template"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/vmihailenco/msgpack/v5"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

const marker = "MARKER-s3cr3t-value"

func TestSecretDoesNotPrint(t *testing.T) {
	type nested struct {
		Public outbound.Secret
		hidden outbound.Secret
		Ptr    *outbound.Secret
		Any    any
		List   []outbound.Secret
		Map    map[string]outbound.Secret
	}
	s := outbound.NewSecret(marker)
	n := nested{s, s, &s, s, []outbound.Secret{s}, map[string]outbound.Secret{"k": s}}
	if s.Reveal() != marker || n.hidden.Reveal() != marker {
		t.Fatal("the secret is lost, the rest of this test shows nothing")
	}
	values := map[string]any{"secret": s, "pointer": &s, "nested": n, "pointer to nested": &n, "slice": []any{s, n}, "error": fmt.Errorf("x %v %w", s, errors.New("y"))}

	outputs := map[string]func(any) string{
		"json":    func(v any) string { b, err := json.Marshal(v); return fmt.Sprint(string(b), err) },
		"json v2": func(v any) string { b, err := jsonv2.Marshal(v); return fmt.Sprint(string(b), err) },
		"xml":     func(v any) string { b, err := xml.Marshal(v); return fmt.Sprint(string(b), err) },
		"msgpack": func(v any) string { b, err := msgpack.Marshal(v); return fmt.Sprint(string(b), err) },
		"yaml":    func(v any) string { b, err := yaml.Marshal(v); return fmt.Sprint(string(b), err) },
		"template": func(v any) string {
			var b bytes.Buffer
			err := template.Must(template.New("").Parse("{{.}} {{printf \"%#v\" .}}")).Execute(&b, v)
			return fmt.Sprint(b.String(), err)
		},
		"println": func(v any) string { return fmt.Sprintln(v) },
		"slog json": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Info("m", "v", v, slog.Group("g", "v", v))
			return b.String()
		},
		"slog text": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewTextHandler(&b, nil)).Info("m", "v", v, slog.Group("g", "v", v))
			return b.String()
		},
	}
	for _, verb := range "vTtbcdoOqxXUeEfFgGsp" {
		for _, flags := range []string{"", "+", "#", "-", " ", "0", "+#", "# 20", ".3", "20.5"} {
			format := "%" + flags + string(verb)
			outputs[format] = func(v any) string { return fmt.Sprintf(format, v) }
		}
	}
	hex := fmt.Sprintf("%x", marker)
	for how, print := range outputs {
		for what, v := range values {
			if got := print(v); strings.Contains(got, marker) || strings.Contains(strings.ToLower(got), hex) || strings.Contains(got, marker[:6]) {
				t.Errorf("%s of %s: %s", how, what, got)
			}
		}
	}
	for how, want := range map[string]string{"%v": "[redacted]", "%s": "[redacted]", "%#v": "[redacted]", "%q": "[redacted]", "json": `"[redacted]"<nil>`} {
		if got := outputs[how](s); got != want {
			t.Errorf("%s gives %q, want %q", how, got, want)
		}
	}
	var zero outbound.Secret
	if !zero.Empty() || zero.Reveal() != "" || fmt.Sprint(zero) != "[redacted]" {
		t.Error("zero secret")
	}
}

func TestReferences(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	t.Setenv("CF_TEST_KEY", marker+"\n")
	t.Setenv("CF_TEST_EMPTY", "\r\n")
	for _, c := range []struct {
		name, ref, want string
		says            string // in the error
	}{
		{"env", "env:CF_TEST_KEY", marker, ""},
		{"env empty", "env:CF_TEST_EMPTY", "", "credential env:CF_TEST_EMPTY: empty"},
		{"env missing", "env:CF_TEST_NONE", "", "credential env:CF_TEST_NONE: not set"},
		{"file", file("a", " "+marker+" \r\n\n"), " " + marker + " ", ""},
		{"file without line end", file("b", marker), marker, ""},
		{"file of two lines", file("c", marker+"\nx\n"), marker + "\nx", ""},
		{"file empty", file("d", "\n"), "", "/d: empty"},
		{"file missing", "file:" + dir + "/none", "", "/none: "},
		{"file too large", file("e", strings.Repeat("x", 64<<10+1)), "", "larger than"},
		{"directory", "file:" + dir, "", "not a regular file"},
		{"device", "file:/dev/zero", "", "not a regular file"},
		{"no path", "file:", "", "not env:NAME or file:PATH"},
		{"the value itself", marker, "", "not env:NAME or file:PATH"},
		{"the value after env", "env:" + marker, "", "not env:NAME or file:PATH"},
		{"other scheme", "vault:" + marker, "", "not env:NAME or file:PATH"},
		{"empty", "", "", "not env:NAME or file:PATH"},
	} {
		s, err := outbound.SystemReferences().Resolve(context.Background(), c.ref)
		if s.Reveal() != c.want || (err == nil) != (c.says == "") {
			t.Errorf("%s: %q, %v", c.name, s.Reveal(), err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), marker)) {
			t.Errorf("%s: error %q", c.name, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	a, b := outbound.NewSecret("one"), outbound.NewSecret("two")
	id := outbound.Identity(nil, a)
	// Facts carry it, so it may not change by accident.
	if id != "a99f12b24723dae4" {
		t.Errorf("identity %q", id)
	}
	if id != outbound.Identity(nil, outbound.NewSecret("one")) || id == outbound.Identity(nil, b) || id == outbound.Identity([]byte("k"), a) {
		t.Error("identity does not tell values and keys apart")
	}
}

func TestCredentialOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name  string
		url   string
		cr    outbound.Credential
		value string
		want  string // in the request
	}{
		{"header", "/v1", outbound.Credential{In: outbound.InHeader, Name: "x-api-key"}, marker, "\r\nX-Api-Key: " + marker + "\r\n"},
		{"bearer", "/v1", outbound.Credential{In: outbound.InHeader, Name: "Authorization", Format: "Bearer {}"}, marker, "\r\nAuthorization: Bearer " + marker + "\r\n"},
		{"basic", "/v1", outbound.Credential{In: outbound.InBasic, Format: "user:{}"}, "pass word", "\r\nAuthorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n"},
		{"query", "/v1?a=%2F&key=old&b", outbound.Credential{In: outbound.InQuery, Name: "key"}, "a b/c&d", "POST /v1?a=%2F&b&key=a+b%2Fc%26d HTTP/1.1\r\n"},
		{"only query", "/v1", outbound.Credential{In: outbound.InQuery, Name: "key"}, marker, "POST /v1?key=" + marker + " HTTP/1.1\r\n"},
		{"value with braces", "/v1", outbound.Credential{In: outbound.InHeader, Name: "K", Format: "x{}"}, "{}", "\r\nK: x{}\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(ok)}
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"KEY": c.value} })
				c.cr.Ref = "env:KEY"
				r := create("http://api.example.com" + c.url)
				r.Credential = c.cr
				a, err := client.Do(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if w := nw.wire()[0]; !strings.Contains(w, c.want) || strings.Contains(w, "key=old") {
					t.Errorf("on the wire: %q", w)
				}
				id, err := client.CredentialIdentity(t.Context(), outbound.Credential{Ref: "env:KEY"})
				if err != nil || id != a.CredentialIdentity || id == "" {
					t.Errorf("identities %q and %q, %v", id, a.CredentialIdentity, err)
				}
				if a.URL != r.URL {
					t.Errorf("URL is %s", a.URL)
				}
			})
		})
	}
}

func TestCredentialFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := secrets{"KEY": marker, "LINES": marker + "\nsecond"}
		nw := &network{t: t, serve: answering(ok)}
		c := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = values })
		r := create("http://api.example.com")
		do := func(ref, identity string) error {
			r.Credential = outbound.Credential{Ref: ref, In: outbound.InHeader, Name: "Authorization", Format: "Bearer {}", Identity: identity}
			_, err := c.Do(t.Context(), r)
			if err != nil && strings.Contains(err.Error(), marker) {
				t.Errorf("error shows the value: %v", err)
			}
			return err
		}
		for _, ref := range []string{"env:NONE", "env:LINES", marker} {
			wantFailure(t, do(ref, ""), outbound.CredentialMissing, outbound.NotSent)
		}
		_, err := c.CredentialIdentity(t.Context(), outbound.Credential{Ref: "env:NONE"})
		wantFailure(t, err, outbound.CredentialMissing, outbound.NotSent)
		// So is one that cannot be put where it goes, before anything is permitted.
		for _, place := range []outbound.Place{outbound.InHeader, outbound.InBasic, outbound.InQuery, outbound.Nowhere, ""} {
			id, err := c.CredentialIdentity(t.Context(), outbound.Credential{Ref: "env:LINES", In: place, Name: "X-Key"})
			if place == outbound.InHeader {
				wantFailure(t, err, outbound.CredentialMissing, outbound.NotSent)
			} else if err != nil || id == "" {
				t.Errorf("%s: %q, %v", place, id, err)
			}
		}
		if len(nw.addrs) != 0 {
			t.Fatal("a connection was opened")
		}

		// Rotation is seen at the next call, without a restart.
		old, err := c.CredentialIdentity(t.Context(), outbound.Credential{Ref: "env:KEY"})
		if err != nil {
			t.Fatal(err)
		}
		if err := do("env:KEY", old); err != nil {
			t.Error(err)
		}
		values["KEY"] = "rotated-value"
		wantFailure(t, do("env:KEY", old), outbound.CredentialChanged, outbound.NotSent)
		if err := do("env:KEY", ""); err != nil {
			t.Error(err)
		}
		if w := nw.wire(); len(w) != 2 || !strings.Contains(w[1], "Bearer rotated-value") {
			t.Errorf("on the wire: %q", w)
		}
	})
}

// slow is a resolver that does not come back by itself.
type slow struct{}

func (slow) Resolve(ctx context.Context, ref string) (outbound.Secret, error) {
	<-ctx.Done()
	return outbound.Secret{}, fmt.Errorf("credential %s: %w", ref, ctx.Err())
}

func TestResolvingIsInsideTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, &network{t: t}, func(cfg *outbound.Config) { cfg.Resolve = slow{} })
		r := create("http://api.example.com")
		r.Credential = outbound.Credential{Ref: "env:KEY", In: outbound.InBasic}
		begin := time.Now()
		_, err := c.Do(t.Context(), r)
		wantFailure(t, err, outbound.Timeout, outbound.NotSent)
		if d := time.Since(begin); d != r.Timeout {
			t.Errorf("took %v", d)
		}
	})
}

// Whatever the provider echoes, the credential is in no part of the answer or the error.
func TestEchoedCredentialIsReplaced(t *testing.T) {
	const secret = "s3cr3t/with+signs"
	const escaped = "s3cr3t%2Fwith%2Bsigns"
	for _, c := range []struct {
		name, raw string
		scrubbed  bool
	}{
		{"body and header", "HTTP/1.1 400 X\r\nX-Echo: Bearer " + secret + "\r\nLocation: /x?key=" + escaped + "\r\nContent-Length: 51\r\n\r\n{\"a\":\"" + secret + "\", \"b\":\"" + secret + "\"}", true},
		{"body whose length ends in the echo", "HTTP/1.1 400 X\r\nContent-Length: 20\r\n\r\nyou: " + secret, true},
		{"malformed", "Bearer " + secret + "\r\n\r\n", false},
		{"malformed, as in a URL", "POST /?key=" + escaped + " HTTP/1.1\r\n\r\n", false},
		{"body over the limit", "HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("x", 45) + secret + strings.Repeat("x", 100), true},
		{"nothing", ok, false},
	} {
		for _, place := range []outbound.Place{outbound.InHeader, outbound.InQuery, outbound.InBasic} {
			t.Run(c.name+"/"+string(place), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: once(c.raw)}
					client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"KEY": secret} })
					r := create("http://api.example.com")
					r.MaxBody = 60
					r.Credential = outbound.Credential{Ref: "env:KEY", In: place, Name: "key"}
					a, err := client.Do(t.Context(), r)
					for e := err; e != nil; e = errors.Unwrap(e) {
						if s := fmt.Sprintf("%+v %#v", e, e); strings.Contains(s, secret[:8]) {
							t.Errorf("error: %s", s)
						}
					}
					if s := fmt.Sprintf("%+v %s", a, a.Body); strings.Contains(s, secret[:10]) {
						t.Errorf("answer: %s", s)
					}
					if (a.Scrubbed > 0) != c.scrubbed || int64(len(a.Body)) > r.MaxBody {
						t.Errorf("answer: %+v", a)
					}
				})
			})
		}
	}
}

// An echo that is written with escapes, and cut anywhere: by the end of the
// connection or by the limit.
func TestEscapedEchoThatIsCut(t *testing.T) {
	const secret = "s3cr3t/with+\U0001f511signs"
	escape := regexp.MustCompile(`\\u[0-9a-fA-F]{4}`)
	for _, spelling := range []string{
		`\u00733cr3t\/with\u002b\ud83d\udd11signs`,
		`s3cr3t\/with+\ud83d\udd11signs`,
		`\u0073\u0033\u0063\u0072\u0033\u0074\u002F\u0077\u0069\u0074\u0068\u002B\uD83D\uDD11\u0073\u0069\u0067\u006E\u0073`,
	} {
		whole := `{"ok": 1, "detail": "bad \" key ` + spelling + `", "more": "` + spelling + `"}`
		for cut := 1; cut <= len(whole); cut++ {
			synctest.Test(t, func(t *testing.T) {
				raw := fmt.Sprintf("HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole[:cut])
				nw := &network{t: t, serve: once(raw)}
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"KEY": secret} })
				r := create("http://api.example.com")
				r.Credential = outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "key"}
				a, err := client.Do(t.Context(), r)
				body := string(a.Body)
				if cut < len(whole) && (err == nil || cut > 60 && body == "") {
					t.Fatalf("cut at %d: %q, %v", cut, body, err)
				}
				plain := escape.ReplaceAllStringFunc(strings.ReplaceAll(body, `\/`, "/"), func(e string) string {
					n, _ := strconv.ParseUint(e[2:], 16, 32)
					return string(rune(n))
				})
				if strings.Contains(plain, secret[:10]) {
					t.Fatalf("cut at %d: %q shows %q", cut, body, plain)
				}
			})
		}
	}
}

// A host that got no credential may know it all the same, and a password may be
// echoed without its user.
func TestEchoOfWhatWasNotSent(t *testing.T) {
	const user, password = "acme-render-prod", "correct-horse-battery"
	both := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	echoed := func(text string) string {
		return fmt.Sprintf("HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
	for _, c := range []struct{ name, secret, text, want string }{
		{"both", user + ":" + password, "you are " + user + ":" + password, "you are [redacted]"},
		{"as sent", user + ":" + password, "Basic " + both, "Basic [redacted]"},
		{"password alone", user + ":" + password, "pass " + password, "pass [redacted]"},
		{"user alone is no secret", user + ":" + password, "by " + user, "by " + user},
		{"user that is the key", user + ":", "key " + user, "key [redacted]"},
	} {
		for _, place := range []outbound.Place{outbound.InBasic, outbound.Nowhere} {
			t.Run(c.name+"/"+string(place), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: once(echoed(c.text))}
					client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"KEY": c.secret} })
					a, err := client.Do(t.Context(), outbound.Request{
						Method: "GET", URL: "http://api.example.com", Credential: outbound.Credential{Ref: "env:KEY", In: place},
					})
					if err != nil || string(a.Body) != c.want {
						t.Errorf("%q, %v, want %q", a.Body, err, c.want)
					}
					if sent := strings.Contains(strings.Join(nw.wire(), ""), "Authorization"); sent != (place == outbound.InBasic) {
						t.Errorf("credential sent: %v", sent)
					}
				})
			})
		}
	}
	t.Run("missing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client := newClient(t, &network{t: t, serve: once(ok)}, func(cfg *outbound.Config) { cfg.Resolve = secrets{} })
			if _, err := client.Do(t.Context(), outbound.Request{
				Method: "GET", URL: "http://api.example.com", Credential: outbound.Credential{Ref: "env:KEY", In: outbound.Nowhere},
			}); err != nil {
				t.Error(err)
			}
		})
	})
}

// An answer may lag behind a rotation, and show the value before.
func TestEchoOfARotatedCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := []string{"first/value-of-it", "second/value-of-it", "third/value-of-it", "fourth/value-of-it"}
		text := "no:"
		for _, v := range values {
			text += " " + strings.ReplaceAll(v, "/", `\/`)
		}
		answer := fmt.Sprintf("HTTP/1.1 403 X\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		nw := &network{t: t, serve: once(answer)}
		now := secrets{}
		client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = now })
		ask := func(c outbound.Credential) string {
			t.Helper()
			a, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com", Credential: c})
			if err != nil {
				t.Fatal(err)
			}
			return string(a.Body)
		}
		header := outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "X-Key"}
		for i, want := range []string{
			`no: [redacted] second\/value-of-it third\/value-of-it fourth\/value-of-it`,
			`no: [redacted] [redacted] third\/value-of-it fourth\/value-of-it`,
			`no: [redacted] [redacted] [redacted] fourth\/value-of-it`,
			`no: first\/value-of-it [redacted] [redacted] [redacted]`, // as many as are kept
		} {
			now["KEY"] = values[i]
			if got := ask(header); got != want {
				t.Errorf("value %d: %s", i, got)
			}
		}
		now["KEY"] = values[2] // put back
		if got := ask(header); got != `no: first\/value-of-it [redacted] [redacted] [redacted]` {
			t.Errorf("put back: %s", got)
		}
		// Where it is not sent, one that is gone is still known.
		nowhere := outbound.Credential{Ref: "env:KEY", In: outbound.Nowhere}
		ask(nowhere)
		delete(now, "KEY")
		if got := ask(nowhere); got != `no: first\/value-of-it second\/value-of-it [redacted] fourth\/value-of-it` {
			t.Errorf("gone: %s", got)
		}
	})
}

func TestClassesAreDistinctWords(t *testing.T) {
	seen := make(map[outbound.Class]bool)
	for _, c := range outbound.Classes() {
		if seen[c] || strings.Trim(string(c), "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("class %q", c)
		}
		seen[c] = true
	}
}
