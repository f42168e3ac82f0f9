package api

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// FuzzRange: what is sent for one range is what net/http would send.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-0", "bytes=2-", "bytes=-3", "bytes=5-2", "bytes=99-", "bytes=-0", "bytes=99-50", "bytes=0-99999999999999999999", "bytes=99999999999999999999-", "bytes= 1-2", "lines=1-2", "bytes=1-2,4-5", "bytes=--1", "bytes=+1-2"} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, header string, length int) {
		if length < 1 || length > 1000 {
			return
		}
		text := bytes.Repeat([]byte("0123456789"), 100)[:length]
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Range", header)
		want := httptest.NewRecorder()
		http.ServeContent(want, r, "", time.Time{}, bytes.NewReader(text))
		s, err := (&call{r: r}).part(`"x"`, int64(length))
		if s != nil && (s.from < 0 || s.from >= s.to || s.to > int64(length)) {
			t.Fatalf("%q of %d is %v", header, length, *s)
		}
		if !regexp.MustCompile(`^bytes=([0-9]{1,18}-[0-9]{0,18}|-[1-9][0-9]{0,17})$`).MatchString(header) {
			return // net/http refuses some that the RFC has ignored, and reads some that it has not
		}
		var refusal *ingest.Refusal
		switch {
		case errors.As(err, &refusal):
			if want.Code != 416 {
				t.Errorf("%q of %d is refused, and net/http answers %d", header, length, want.Code)
			}
		case s == nil:
			if want.Code != 416 { // it ends before it begins
				t.Errorf("%q of %d is not read, and net/http answers %d", header, length, want.Code)
			}
		case want.Code != 206 || want.Body.String() != string(text[s.from:s.to]):
			t.Errorf("%q of %d is %v, and net/http answers %d %s", header, length, *s, want.Code, want.Body)
		}
	})
}

// TestResultInParts: who was cut off fetches the rest, and of another result the whole.
func TestResultInParts(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	for _, line := range []string{"attempted", "accepted job-1", "observed succeeded", `collected {"ok":true}`} {
		h.play(line)
	}
	at := "/v1/operations/" + h.op + "/result"
	etag := h.do("alice", "GET", at, nil, "").Header().Get("ETag")
	for _, c := range []struct {
		name, span, ifRange string
		status              int
		body, at            string
	}{
		{"the rest", "bytes=6-", "", 206, `true}`, "bytes 6-10/11"},
		{"the rest of the same", "bytes=6-", etag, 206, `true}`, "bytes 6-10/11"},
		{"the rest of another", "bytes=6-", `"x"`, 200, `{"ok":true}`, ""},
		{"the rest by a weak tag", "bytes=6-", "W/" + etag, 200, `{"ok":true}`, ""},
		{"the middle", "bytes=1-4", "", 206, `"ok"`, "bytes 1-4/11"},
		{"the last", "bytes=-1", "", 206, `}`, "bytes 10-10/11"},
		{"beyond the end", "bytes=11-", "", 416, "", "bytes */11"},
		{"two", "bytes=0-1,3-4", "", 200, `{"ok":true}`, ""},
		{"none", "bytes", "", 200, `{"ok":true}`, ""},
	} {
		header := map[string]string{"Range": c.span}
		if c.ifRange != "" {
			header["If-Range"] = c.ifRange
		}
		w := h.do("alice", "GET", at, header, "")
		if w.Code != c.status || c.status < 400 && w.Body.String() != c.body || w.Header().Get("Content-Range") != c.at {
			t.Errorf("%s: %d %q %s", c.name, w.Code, w.Header().Get("Content-Range"), w.Body)
		}
	}
}
