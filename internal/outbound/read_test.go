package outbound_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

func TestConnectionReuse(t *testing.T) {
	for _, c := range []struct {
		name string
		raw  string
		max  int64
		want int // connections for two reads
	}{
		{"read to its end", ok, 0, 1},
		{"exactly the limit", ok, 2, 1},
		{"chunked to its end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 0, 1},
		{"over the limit", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", 5, 2},
		{"just over the limit", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n012", 2, 1}, // the one byte more was the last
		{"provider closes", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(c.raw)}
				client := newClient(t, nw, nil)
				for range 2 {
					_, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com", MaxBody: c.max})
					if err != nil && !strings.Contains(c.name, "over") {
						t.Error(err)
					}
					synctest.Wait()
				}
				if w := nw.wire(); len(w) != c.want || requests(w) != 2 {
					t.Errorf("%d connections for %d requests, want %d", len(w), requests(w), c.want)
				}
			})
		})
	}
}

// A read whose kept-alive connection dies fails and is not sent again unseen.
func TestReadOnDeadConnectionIsWrittenOnce(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = func(_ int, c net.Conn) {
			br := bufio.NewReader(c)
			if readRequest(br) {
				_, _ = io.WriteString(c, ok)
			}
			readRequest(br)
		}
		c := newClient(t, nw, secure)
		get := outbound.Request{Method: "GET", URL: base}
		if _, err := c.Do(t.Context(), get); err != nil {
			t.Fatal(err)
		}
		_, err := c.Do(t.Context(), get)
		wantFailure(t, err, outbound.Reset, outbound.SentUnknown)
		if w := nw.wire(); len(w) != 1 || requests(w) != 2 {
			t.Errorf("%d connections, %d requests, want 1 and 2", len(w), requests(w))
		}
	})
}

func TestReadWithNotAfterHasItsOwnConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering(ok)}
		c := newClient(t, nw, nil)
		for range 2 {
			if _, err := c.Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com", NotAfter: time.Now().Add(time.Minute)}); err != nil {
				t.Fatal(err)
			}
		}
		if w := nw.wire(); len(w) != 2 {
			t.Errorf("%d connections", len(w))
		}
	})
}

func TestInformationalAnswersAreSkipped(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = answering("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + ok)
		c := newClient(t, nw, secure)
		for _, r := range []outbound.Request{create(base), {Method: "GET", URL: base}} {
			a, err := c.Do(t.Context(), r)
			if err != nil || a.Status != 200 || string(a.Body) != "ok" || a.Header.Get("Link") != "" {
				t.Errorf("%+v, %v", a, err)
			}
		}
	})
}

func TestCloseDelimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: once("HTTP/1.1 200 OK\r\n\r\n{\"half\"")}
		a, err := newClient(t, nw, nil).Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com"})
		if err != nil || !a.CloseDelimited || string(a.Body) != `{"half"` {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

func TestRedirects(t *testing.T) {
	to := func(status int, location string) string {
		return fmt.Sprintf("HTTP/1.1 %d X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", status, location)
	}
	get := outbound.Request{
		Method: "GET", URL: "https://api.example.com/start?a=1", FollowRedirects: 3,
		Header:     []outbound.Header{{Name: "X-Account", Value: "acme"}, {Name: "Accept", Value: "application/json"}},
		Credential: outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "Authorization", Format: "Bearer {}"},
	}
	with := func(change func(*outbound.Request)) outbound.Request {
		r := get
		change(&r)
		return r
	}
	for _, c := range []struct {
		name string
		r    outbound.Request
		// answers by "host/path?query"
		answers map[string]string
		status  int
		url     string
		class   outbound.Class
		keyed   []string // hops that carried the credential
		account []string // hops that carried our own header
	}{
		{
			"same origin, relative, default port written", get,
			map[string]string{
				"api.example.com/start?a=1":    to(302, "/next?b=1%2F2"),
				"api.example.com/next?b=1%2F2": to(307, "https://API.example.com:443/end"),
				"api.example.com:443/end":      ok,
			},
			200, "https://API.example.com:443/end", "",
			[]string{"/start?a=1", "/next?b=1%2F2", "/end"},
			[]string{"/start?a=1", "/next?b=1%2F2", "/end"},
		},
		{
			"another origin and back", get,
			map[string]string{
				"api.example.com/start?a=1": to(301, "https://cdn.example.com/x"),
				"cdn.example.com/x":         to(303, "https://api.example.com/back"),
				"api.example.com/back":      ok,
			},
			200, "https://api.example.com/back", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"another port", get,
			map[string]string{"api.example.com/start?a=1": to(308, "https://api.example.com:8443/x"), "api.example.com:8443/x": ok},
			200, "https://api.example.com:8443/x", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"down to plain http", get,
			map[string]string{"api.example.com/start?a=1": to(302, "http://api.example.com/x")},
			302, "https://api.example.com/start?a=1", outbound.RedirectRefused,
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"with user and password", get,
			map[string]string{"api.example.com/start?a=1": to(302, "https://user:pw@api.example.com/x")},
			302, "https://api.example.com/start?a=1", outbound.RedirectRefused,
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"to another scheme", get,
			map[string]string{"api.example.com/start?a=1": to(302, "file:///etc/passwd")},
			302, "https://api.example.com/start?a=1", outbound.RedirectRefused,
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"in a circle", with(func(r *outbound.Request) { r.FollowRedirects = 2 }),
			map[string]string{"api.example.com/start?a=1": to(302, "/start?a=1")},
			302, "https://api.example.com/start?a=1", outbound.RedirectRefused,
			[]string{"/start?a=1", "/start?a=1", "/start?a=1"},
			[]string{"/start?a=1", "/start?a=1", "/start?a=1"},
		},
		{
			"not asked for", with(func(r *outbound.Request) { r.FollowRedirects = 0 }),
			map[string]string{"api.example.com/start?a=1": to(302, "/next")},
			302, "https://api.example.com/start?a=1", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"no location", get,
			map[string]string{"api.example.com/start?a=1": "HTTP/1.1 302 X\r\nContent-Length: 0\r\n\r\n"},
			302, "https://api.example.com/start?a=1", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"not a redirect", get,
			map[string]string{"api.example.com/start?a=1": to(201, "/next")},
			201, "https://api.example.com/start?a=1", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"a read by POST", with(func(r *outbound.Request) { r.Method = "POST" }),
			map[string]string{"api.example.com/start?a=1": to(303, "/next")},
			303, "https://api.example.com/start?a=1", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
		{
			"a call with side effects", with(func(r *outbound.Request) {
				r.SideEffect, r.FollowRedirects, r.NotAfter = true, 0, time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
			}),
			map[string]string{"api.example.com/start?a=1": to(302, "/next")},
			302, "https://api.example.com/start?a=1", "",
			[]string{"/start?a=1"},
			[]string{"/start?a=1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var keyed, account []string
				nw := &network{t: t}
				nw.serve = func(_ int, conn net.Conn) {
					br := bufio.NewReader(conn)
					for {
						req, err := http.ReadRequest(br)
						if err != nil {
							return
						}
						if req.Header.Get("Authorization") == "Bearer topsecretkey" {
							keyed = append(keyed, req.RequestURI)
						}
						if req.Header.Get("X-Account") != "" {
							account = append(account, req.RequestURI)
						}
						if req.Header.Get("Accept") != "application/json" {
							t.Errorf("%s: Accept is gone", req.RequestURI)
						}
						raw, known := c.answers[strings.ToLower(req.Host)+req.RequestURI]
						if !known {
							t.Errorf("unexpected request %s %s", req.Host, req.RequestURI)
						}
						_, _ = io.WriteString(conn, raw)
					}
				}
				tlsCfg := nw.secure()
				tlsCfg.ServerName = "api.example.com"
				client := newClient(t, nw, func(cfg *outbound.Config) {
					cfg.TLS, cfg.Resolve = tlsCfg, secrets{"KEY": "topsecretkey"}
				})
				a, err := client.Do(t.Context(), c.r)
				if c.class == "" && err != nil {
					t.Error(err)
				} else if c.class != "" {
					wantFailure(t, err, c.class, outbound.SentUnknown)
				}
				if a.Status != c.status || a.URL != c.url {
					t.Errorf("ends with %d at %s", a.Status, a.URL)
				}
				client.Close()
				synctest.Wait()
				if d := cmp.Diff(c.keyed, keyed); d != "" {
					t.Errorf("credential: %s", d)
				}
				if d := cmp.Diff(c.account, account); d != "" {
					t.Errorf("own header: %s", d)
				}
			})
		})
	}
}

// A second hop that cannot be dialed does not make the first one unsent.
func TestRedirectThenNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering("HTTP/1.1 302 X\r\nLocation: http://other.example.com/\r\nContent-Length: 0\r\n\r\n")}
		dials := 0
		nw.dialing = func(context.Context) error {
			if dials++; dials > 1 {
				return &net.OpError{Op: "dial", Err: io.EOF}
			}
			return nil
		}
		_, err := newClient(t, nw, nil).Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com", FollowRedirects: 1})
		wantFailure(t, err, outbound.Dial, outbound.SentUnknown)
	})
}

func TestInvalidRequests(t *testing.T) {
	key := outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "X-Api-Key"}
	for name, change := range map[string]func(*outbound.Request){
		"no method":             func(r *outbound.Request) { r.Method = "" },
		"method in lower case":  func(r *outbound.Request) { r.Method = "post" },
		"method with a space":   func(r *outbound.Request) { r.Method = "POST /" },
		"CONNECT":               func(r *outbound.Request) { r.Method = "CONNECT" },
		"relative URL":          func(r *outbound.Request) { r.URL = "/v1" },
		"user information":      func(r *outbound.Request) { r.URL = "https://u:topsecretkey@h/" },
		"plain http":            func(r *outbound.Request) { r.URL = "http://h/" },
		"other scheme":          func(r *outbound.Request) { r.URL = "gopher://h/" },
		"header name":           func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "X Y", Value: "1"}} },
		"header injection":      func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "X", Value: "1\r\nY: 2"}} },
		"own authorization":     func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "authorization", Value: "x"}} },
		"own cookie":            func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "Cookie", Value: "x"}} },
		"own host":              func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "Host", Value: "x"}} },
		"own length":            func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "Content-Length", Value: "1"}} },
		"expect":                func(r *outbound.Request) { r.Header = []outbound.Header{{Name: "Expect", Value: "100-continue"}} },
		"no last moment":        func(r *outbound.Request) { r.NotAfter = time.Time{} },
		"redirects":             func(r *outbound.Request) { r.FollowRedirects = 1 },
		"negative timeout":      func(r *outbound.Request) { r.Timeout = -1 },
		"timeout too long":      func(r *outbound.Request) { r.Timeout = outbound.MaxTimeout + 1 },
		"negative limit":        func(r *outbound.Request) { r.MaxBody = -1 },
		"credential, no ref":    func(r *outbound.Request) { r.Credential = key; r.Credential.Ref = "" },
		"credential, no place":  func(r *outbound.Request) { r.Credential = key; r.Credential.In = "body" },
		"credential, no name":   func(r *outbound.Request) { r.Credential = key; r.Credential.Name = "" },
		"credential, no value":  func(r *outbound.Request) { r.Credential = key; r.Credential.Format = "Bearer" },
		"credential, two":       func(r *outbound.Request) { r.Credential = key; r.Credential.Format = "{}{}" },
		"credential in framing": func(r *outbound.Request) { r.Credential = key; r.Credential.Name = "Host" },
		"header twice": func(r *outbound.Request) {
			r.Credential = key
			r.Header = []outbound.Header{{Name: "x-api-key", Value: "x"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(ok)}
				c := newClient(t, nw, func(cfg *outbound.Config) { cfg.AllowHTTP, cfg.Resolve = false, secrets{"KEY": "topsecretkey"} })
				r := create("https://api.example.com")
				change(&r)
				_, err := c.Do(t.Context(), r)
				wantFailure(t, err, outbound.InvalidRequest, outbound.NotSent)
				if len(nw.addrs) != 0 || strings.Contains(err.Error(), "topsecretkey") {
					t.Errorf("%v, dialed %v", err, nw.addrs)
				}
			})
		})
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	good := outbound.Config{Dial: (&network{}).dial, Clock: outbound.NewSystemClock(), Resolve: secrets{}}
	for name, change := range map[string]func(*outbound.Config){
		"no dialer":        func(c *outbound.Config) { c.Dial = nil },
		"no clock":         func(c *outbound.Config) { c.Clock = nil },
		"no resolver":      func(c *outbound.Config) { c.Resolve = nil },
		"negative timeout": func(c *outbound.Config) { c.Timeout = -1 },
		"timeout too long": func(c *outbound.Config) { c.Timeout = outbound.MaxTimeout + 1 },
		"negative bound":   func(c *outbound.Config) { c.MaxResponse = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := outbound.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestAddress(t *testing.T) {
	for url, want := range map[string]string{
		"http://h":          "h:80",
		"http://h:8080/":    "h:8080",
		"http://[::1]/":     "[::1]:80",
		"http://[::1]:81/x": "[::1]:81",
	} {
		synctest.Test(t, func(t *testing.T) {
			nw := &network{t: t, serve: answering(ok)}
			c := newClient(t, nw, nil)
			trusted := []string{"http://h", "http://h:8080", "http://[::1]", "http://[::1]:81"}
			r := create(url)
			r.Trusted = trusted
			if _, err := c.Do(t.Context(), r); err != nil {
				t.Error(err)
			}
			if _, err := c.Do(t.Context(), outbound.Request{Method: "GET", URL: url, Trusted: trusted}); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff([]string{want, want}, nw.addrs); d != "" {
				t.Error(d)
			}
		})
	}
}
