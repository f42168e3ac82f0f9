package api

import (
	"bytes"
	"encoding/base64"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// fuzzed is a house with an operation in it.
func fuzzed(f *testing.F) (*harness, *handler) {
	f.Helper()
	h := newHarness(f)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "first"}, intentBody)
	keys, err := ingest.OpenKeys(h.keys, h.clock.Now)
	if err != nil {
		f.Fatal(err)
	}
	return h, newHandler(Options{Service: h.service, Keys: keys, Log: slog.New(slog.DiscardHandler), Now: h.clock.Now})
}

// holdsTo answers the request and holds the answer against the document.
func holdsTo(t *testing.T, h *handler, r *http.Request, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	for _, problem := range h.judge(r, []byte(body), w.Code, w.Header(), w.Body.Bytes()) {
		if strings.HasSuffix(r.URL.Path, ":batch") && strings.HasPrefix(problem, "request: ") {
			continue // an item that is none is refused by itself, in an answer that is a success
		}
		t.Errorf("%s %s: the document does not allow the answer %d: %s", r.Method, r.URL, w.Code, problem)
	}
	if w.Code >= 500 {
		t.Errorf("%s %s: %d %s", r.Method, r.URL, w.Code, w.Body)
	}
	return w
}

// FuzzBody: whatever is posted where JSON is taken gets an answer that the document
// allows, and what is refused stores nothing.
func FuzzBody(f *testing.F) {
	paths := []string{
		"/v1/operations", "/v1/operations:batch", "/v1/operations:cancel", "/v1/operations/{id}/cancel", "/v1/operations/{id}/decisions",
		"/v1/operations/{id}/pause", "/v1/operations/{id}/resume", "/v1/holds", "/v1/holds/release",
	}
	for path, body := range []string{
		intentBody, `{"items":[{"operation":` + intentBody + `},{}]}`, `{"items":[{"id":"op_x"}],"mode":"atomic"}`, `{"why":"r"}`,
		`{"kind":"abandon","why":"r"}`, `{"why":"r"}`, ``, `{"scope":"creates","why":"r"}`, `{}`,
	} {
		f.Add(uint8(path), "k", `"v1"`, body)
	}
	h, handler := fuzzed(f)
	f.Fuzz(func(t *testing.T, path uint8, key, version, body string) {
		h.t = t
		before := h.stored()
		target := strings.ReplaceAll(paths[int(path)%len(paths)], "{id}", h.op)
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
		r.Header = http.Header{
			"Authorization": {"Bearer " + h.bearer["admin"]}, "Content-Type": {"application/json"}, "Idempotency-Key": {key}, "If-Match": {version},
		}
		if path&0x80 == 0 {
			r.Header["Authorization"] = []string{"Bearer " + h.bearer["alice"]}
		}
		if w := holdsTo(t, handler, r, body); w.Code >= 400 && h.stored() != before {
			t.Errorf("refused with %d, and something was stored", w.Code)
		}
	})
}

// FuzzQuery: whatever is asked for in a query or by a header gets an answer that the
// document allows, and stores nothing.
func FuzzQuery(f *testing.F) {
	paths := []string{
		"/v1/operations", "/v1/operations/{id}", "/v1/operations/{id}/timeline", "/v1/operations/{id}/result", "/v1/operations/{id}/events", "/v1/events",
		"/v1/capabilities", "/v1/holds",
	}
	names := []string{"If-None-Match", "Prefer", "Last-Event-Id", "Accept", "Range", "Traceparent"}
	f.Add(uint8(0), uint8(0), "limit=1&cursor=AAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAA", `"v1"`)
	f.Add(uint8(1), uint8(1), "after=1", "respond-async, wait=0")
	f.Add(uint8(2), uint8(3), "after=0&limit=2", "application/json;q=0, */*")
	f.Add(uint8(3), uint8(4), "unaccepted=true", "bytes=1-")
	f.Add(uint8(4), uint8(2), "", "-1")
	f.Add(uint8(5), uint8(2), "of=all&after=x", "99999999999999999999")
	h, handler := fuzzed(f)
	f.Fuzz(func(t *testing.T, path, name uint8, query, value string) {
		if strings.ContainsAny(query, "\r\n") || strings.Contains(query, "wait=") || preferredWait([]string{value}) > 0 {
			return // a wait lasts until there is news
		}
		h.t = t
		before := h.stored()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		// HEAD of a stream is its beginning and no more.
		if target := paths[int(path)%len(paths)]; strings.HasSuffix(target, "/events") {
			r.Method = http.MethodHead
		}
		r.URL = &url.URL{Path: strings.ReplaceAll(paths[int(path)%len(paths)], "{id}", h.op), RawQuery: query}
		r.Header = http.Header{"Authorization": {"Bearer " + h.bearer["alice"]}}
		r.Header[names[int(name)%len(names)]] = []string{value}
		holdsTo(t, handler, r, "")
		if h.stored() != before {
			t.Error("something was stored")
		}
	})
}

// FuzzAuthorization: nobody gets in by what does not hold a key, and whatever is sent is
// refused in the same words.
func FuzzAuthorization(f *testing.F) {
	h, handler := fuzzed(f)
	_, secret, _ := strings.Cut(h.bearer["alice"], ".")
	for _, text := range []string{
		"", "Bearer", "Bearer " + h.bearer["alice"], "bearer  " + h.bearer["alice"], "Bearer cf_x.y", "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+h.bearer["alice"])),
		"Basic eDp5", "Basic ====", "Digest a=b", strings.TrimSuffix("Bearer "+h.bearer["alice"], secret),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h.t = t
		holds := text
		if _, encoded, ok := strings.Cut(text, " "); ok {
			plain, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
			holds += string(plain)
		}
		for _, target := range []string{"/v1/operations", "/operations/" + h.op} {
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Header["Authorization"] = []string{text}
			w := holdsTo(t, handler, r, "")
			if !strings.Contains(holds, secret) && w.Code != http.StatusUnauthorized {
				t.Errorf("%s: %q got in: %d", target, text, w.Code)
			}
		}
	})
}

// stutter is a connection that gives what was sent in pieces.
type stutter struct {
	net.Conn
	text []byte
	size int
}

func (s *stutter) Read(b []byte) (int, error) {
	if len(s.text) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.text[:min(s.size, len(s.text))])
	s.text = s.text[n:]
	return n, nil
}

// FuzzLength: a length that is named is noticed, in whichever pieces it comes, and
// nothing else is.
func FuzzLength(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\ncontent-LENGTH: 2\r\n\r\n{}"), uint8(3))
	f.Add([]byte("-content-content-length"), uint8(1))
	f.Add([]byte("a-b-content-lengt"), uint8(200))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		c := &refusingConn{Conn: &stutter{text: text, size: int(size) + 1}}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, text) {
			t.Fatalf("read %q %v, sent %q", got, err, text)
		}
		ascii := bytes.Map(func(r rune) rune {
			if r >= 'A' && r <= 'Z' {
				return r + 'a' - 'A'
			}
			return r
		}, text)
		if want := bytes.Contains(ascii, []byte(lengthName)); c.length.Load() != want {
			t.Errorf("%q in pieces of %d: %t, want %t", text, int(size)+1, c.length.Load(), want)
		}
	})
}

// FuzzPreferences: cutting a header's value loses nothing, and the first preference counts.
func FuzzPreferences(f *testing.F) {
	for _, s := range []string{`wait=5`, `foo;wait=9`, `a="b, c", wait=7`, `"\",`, `,,;`, `wait="7"; x`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got := strings.Join(unquotedFields(text, ','), ","); got != text {
			t.Errorf("%q became %q", text, got)
		}
		// A first preference without quotes is the one that counts, whatever follows.
		if n := preferredWait([]string{"wait=3", text}); n != 3 {
			t.Errorf("before %q: %d", text, n)
		}
	})
}
