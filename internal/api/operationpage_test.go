package api

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// A person follows a link and gives the key as a password. The page shows what the
// provider said as text, whatever that is, and lets a browser run nothing.
func TestOperationPage(t *testing.T) {
	h := newHarness(t)
	op := h.submitted("alice", "k")
	h.play("attempted")
	h.play("accepted <script>alert(1)</script>")
	h.play("observed running <b>\"canary\"</b> '&")
	h.play("observed succeeded")
	h.play("collected <b>no JSON</b>")
	basic := func(name, key string) map[string]string {
		return map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+key)), "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
	}
	for _, header := range []map[string]string{basic("anybody", h.bearer["alice"]), basic("", h.bearer["alice"]), {}} {
		w := h.do("alice", "GET", "/operations/"+op, header, "")
		text := w.Body.String()
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != htmlType || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Fatalf("%d %v %s", w.Code, w.Header(), text)
		}
		for _, want := range []string{op, "result_validation_failed", "&lt;script&gt;alert(1)", "counterfoil decide " + op + " accept_result", "check json: failed", "job.observed", "create.attempted", "&rarr;"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		for _, bad := range []string{"<script", "<b>\"canary", "canary-link", "canary-query", h.bearer["alice"], "javascript:"} {
			if strings.Contains(text, bad) {
				t.Errorf("%q is in the page", bad)
			}
		}
		// The style that the policy lets in is the one that is there, and there is no other.
		styles := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(text, -1)
		if len(styles) != 1 || styles[0][1] != operationStyle || strings.Contains(text, "style=") {
			t.Errorf("%d styles", len(styles))
		}
		if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-"+styleSum()+"'") {
			t.Error(policy)
		}
	}
	// The decision's address, where somebody may decide.
	w := h.do("alice", "GET", "/v1/operations/"+op, nil, "")
	if !strings.Contains(w.Body.String(), `"decision_url":"/operations/`+op+`"`) {
		t.Error(w.Body)
	}
	if w := h.do("alice", "GET", "/v1/operations/"+h.submitted("alice", "live"), nil, ""); strings.Contains(w.Body.String(), "decision_url") {
		t.Error(w.Body)
	}
	for _, c := range []struct {
		as, target string
		header     map[string]string
		status     int
	}{
		{"", "/operations/" + op, nil, 401},
		{"", "/operations/" + op, basic("alice", "cf_wrong.key"), 401},
		{"", "/operations/" + op, map[string]string{"Authorization": "Basic !"}, 401},
		{"bob", "/operations/" + op, nil, 404},
		{"alice", "/operations/op_none", nil, 404},
		{"alice", "/operations/" + op + "?x=1", nil, 422},
	} {
		w := h.do(c.as, "GET", c.target, c.header, "")
		challenge := w.Header().Get("WWW-Authenticate")
		if w.Code != c.status || (c.status == 401) != strings.HasPrefix(challenge, "Basic ") || strings.Contains(w.Body.String(), "cf_wrong") {
			t.Errorf("%s: %d %q %s", c.target, w.Code, challenge, w.Body)
		}
	}
	// A password is for that page alone.
	if w := h.do("", "GET", "/v1/operations/"+op, basic("", h.bearer["alice"]), ""); w.Code != 401 || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer ") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	page := h.do("alice", "GET", "/operations/"+op+"?after=3", nil, "").Body.String()
	if strings.Contains(page, `id="3"`) || !strings.Contains(page, `id="4"`) {
		t.Errorf("%s", page)
	}
}
