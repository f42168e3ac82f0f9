package api

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// echo answers with what came through.
type echo struct{}

func (echo) ServeCaller(w http.ResponseWriter, r *http.Request, c ingest.Caller) error {
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return err
	case string(body) == `"panic"`:
		panic("canary-panic")
	case string(body) == `"refuse"`:
		return &ingest.Refusal{Code: ingest.CodeProtocol}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write([]byte(c.Principal + " " + string(body[:min(len(body), 100)])))
	return nil
}

type open string

func (o open) Authenticate(header []string) (ingest.Caller, error) {
	if len(header) != 1 || header[0] != string(o) {
		return ingest.Caller{}, &ingest.Refusal{Code: ingest.CodeUnauthenticated}
	}
	return ingest.Caller{Principal: "alice", KeyID: "k1"}, nil
}

// A message reaches MCP only with a key, in bounds, and from no page of another
// site; everything else is answered by a problem.
func TestMCPIsGuarded(t *testing.T) {
	log := &strings.Builder{}
	server := httptest.NewServer(Handler(Options{
		Keys: open("Bearer secret"), MCP: echo{}, Hosts: []string{"jobs.example.com"}, Now: time.Now,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}))
	defer server.Close()
	for _, c := range []struct {
		name, method, body string
		header             map[string]string
		status             int
		code               string
	}{
		{"a message", "POST", `"x"`, nil, 200, ""},
		{"a page of ours", "POST", `"x"`, map[string]string{"Origin": server.URL, "Sec-Fetch-Site": "same-origin"}, 200, ""},
		{"through a proxy here", "POST", `"x"`, map[string]string{"Host": "jobs.example.com"}, 200, ""},
		{"by name", "POST", `"x"`, map[string]string{"Host": "localhost:1"}, 200, ""},
		{"no key", "POST", `"x"`, map[string]string{"Authorization": "-"}, 401, "unauthenticated"},
		{"another site", "POST", `"x"`, map[string]string{"Origin": "https://elsewhere.example"}, 403, "foreign_origin"},
		{"another site, as browsers say", "POST", `"x"`, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "foreign_origin"},
		{"another name for this machine", "POST", `"x"`, map[string]string{"Host": "rebound.example"}, 403, "foreign_host"},
		{"a stream", "GET", "", nil, 405, "method_not_allowed"},
		{"the end of a session", "DELETE", "", nil, 405, "method_not_allowed"},
		{"no JSON", "POST", `"x"`, map[string]string{"Content-Type": "text/plain"}, 415, "unsupported_media_type"},
		{"too much", "POST", `"` + strings.Repeat("x", ingest.MaxBody+mcpEnvelope) + `"`, nil, 413, "body_too_large"},
		{"as much as a body and its envelope", "POST", `"` + strings.Repeat("x", ingest.MaxBody+mcpEnvelope-2) + `"`, nil, 200, ""},
		{"a refusal", "POST", `"refuse"`, nil, 400, "protocol_error"},
		{"a panic", "POST", `"panic"`, nil, 500, "internal_error"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+"/mcp", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("Content-Type", "application/json")
		for name, value := range c.header {
			switch {
			case name == "Host":
				r.Host = value
			case value == "-":
				r.Header.Del(name)
			default:
				r.Header.Set(name, value)
			}
		}
		a, err := server.Client().Do(r)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		body, err := io.ReadAll(a.Body)
		if err = errors.Join(err, a.Body.Close()); err != nil {
			t.Fatal(err)
		}
		var p ingest.Problem
		switch {
		case a.StatusCode != c.status:
			t.Errorf("%s: status %d, want %d: %s", c.name, a.StatusCode, c.status, body)
		case c.code == "" && !strings.HasPrefix(string(body), "alice "):
			t.Errorf("%s: %s", c.name, body)
		case c.code != "" && (json.Unmarshal(body, &p) != nil || string(p.Code) != c.code || a.Header.Get("Content-Type") != "application/problem+json"):
			t.Errorf("%s: %s, want %s: %s", c.name, p.Code, c.code, body)
		case c.status == 401 && a.Header.Get("WWW-Authenticate") == "":
			t.Errorf("%s: no WWW-Authenticate", c.name)
		case c.status == 405 && a.Header.Get("Allow") != "POST":
			t.Errorf("%s: Allow is %q", c.name, a.Header.Get("Allow"))
		}
	}
	server.Close() // the log is complete
	for _, secret := range []string{"secret", "canary", `"x"`} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s is in the log:\n%s", secret, log)
		}
	}
}
