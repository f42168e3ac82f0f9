package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// shared remembers what each entity tag of an address stood for, so that a test
// fails when one stands for two things.
type shared struct {
	mu   sync.Mutex
	seen map[string]string // guarded by mu
}

// differs gives what the tag stood for before, where that was something else. The
// one member that moves with the clock does not count, see conditional.go.
func (s *shared) differs(target, etag string, body []byte) string {
	var v map[string]any
	if json.Unmarshal(body, &v) != nil {
		return ""
	}
	delete(v, "next_poll_after")
	if quotas, ok := v["quotas"].([]any); ok {
		for _, q := range quotas {
			delete(q.(map[string]any), "remaining")
			delete(q.(map[string]any), "more_in_s")
			delete(q.(map[string]any), "amount_left")
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]string{}
	}
	if before, ok := s.seen[target+etag]; ok && before != string(text) {
		return before
	}
	s.seen[target+etag] = string(text)
	return ""
}

// TestClockMemberIsLast: what is cut off before an operation's sum is made is one
// number and no more.
func TestClockMemberIsLast(t *testing.T) {
	body, err := encode(ingest.View{NextPollAfter: 7})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(body, []byte(clockMember+"7}\n")) {
		t.Errorf("next_poll_after is not the last member: %s", body)
	}
}

// TestIfNoneMatch: every form of a tag that is current gives 304, none of another,
// and a change of what is shown makes another, be it of the operation or of the
// caller's rights.
func TestIfNoneMatch(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	at := "/v1/operations/" + h.op
	get := func(as, have string) (int, string) {
		t.Helper()
		header := map[string]string{}
		if have != "" {
			header["If-None-Match"] = have
		}
		w := h.do(as, "GET", at, header, "")
		return w.Code, w.Header().Get("ETag")
	}
	forms := func(etag string) []string {
		return []string{etag, "W/" + etag, `"v0-0", W/"x", ` + etag, "*", strings.Trim(etag, `"`)}
	}
	before := map[string]string{}
	for _, step := range []string{"", "attempted", "accepted job-1", "advance 2s", "observed running", "observed succeeded", `collected {"ok":true}`} {
		if step != "" {
			h.play(step)
		}
		_, etag := get("alice", "")
		for _, form := range forms(etag) {
			if code, now := get("alice", form); code != 304 || now != etag {
				t.Errorf("after %q: If-None-Match %s answers %d with %s, want 304 with %s", step, form, code, now, etag)
			}
		}
		if strings.HasPrefix(step, "advance") {
			if before[etag] == "" {
				t.Errorf("the clock alone changed the tag to %s", etag)
			}
			continue
		}
		if before[etag] != "" {
			t.Errorf("after %q the tag %s is that of after %q", step, etag, before[etag])
		}
		for old := range before {
			for _, form := range append(forms(old), strings.ToUpper(etag), `""`, ",") {
				if code, _ := get("alice", form); code != 200 && form != "*" {
					t.Errorf("after %q: If-None-Match %s, which is of before, answers %d", step, form, code)
				}
			}
		}
		before[etag] = "step " + step
	}
	// The auditor is shown no action that it may not do.
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k2"}, `{"provider":"example","params":{}}`)
	at = "/v1/operations/" + h.op
	_, own := get("alice", "")
	code, others := get("auditor", own)
	if code != 200 || others == own {
		t.Errorf("two callers who are shown different things have the tags %s and %s (%d)", own, others, code)
	}
	start := h.clock.Now()
	if w := h.do("auditor", "GET", at+"?wait=30", map[string]string{"If-None-Match": own}, ""); w.Code != 200 || h.clock.Now() != start {
		t.Errorf("who has what another is shown is answered %d after %s, want 200 at once", w.Code, h.clock.Now().Sub(start))
	}
	// A version said by hand.
	if code, _ := get("auditor", `"v1"`); code != 304 {
		t.Errorf("the version alone: %d", code)
	}
}

// TestFreshPages: what else has a tag is not sent to who has it.
func TestFreshPages(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	for _, at := range []string{"/v1/operations/" + h.op + "/timeline", "/v1/capabilities"} {
		etag := h.do("alice", "GET", at, nil, "").Header().Get("ETag")
		if w := h.do("alice", "GET", at, map[string]string{"If-None-Match": "W/" + etag}, ""); w.Code != 304 || w.Header().Get("ETag") != etag || w.Body.Len() > 0 {
			t.Errorf("%s: %d %v", at, w.Code, w.Header())
		}
	}
	// What history says of a fact may come later, with no new version.
	at := "/v1/operations/" + h.op + "/timeline"
	etag := h.do("alice", "GET", at, nil, "").Header().Get("ETag")
	h.project()
	if w := h.do("alice", "GET", at, map[string]string{"If-None-Match": etag}, ""); w.Code != 200 {
		t.Errorf("the timeline has news, and the answer is %d", w.Code)
	}
}

// TestWaits plays who waits how against an operation that moves after 3 s and ends
// after 6.
func TestWaits(t *testing.T) {
	for _, c := range []struct {
		name   string
		target string
		header map[string]string
		status int
		after  time.Duration
		state  string
		says   string // Preference-Applied
	}{
		{"no condition", "?wait=20", nil, 200, 0, "create_pending", ""},
		{"a tag and a wait", "?wait=20", map[string]string{"If-None-Match": "{etag}"}, 200, 3 * time.Second, "accepted", ""},
		{"a version and a wait", "?wait=20&after=1", nil, 200, 3 * time.Second, "accepted", ""},
		{"a tag and a preference", "", map[string]string{"If-None-Match": "{etag}", "Prefer": "respond-async, wait=20"}, 200, 3 * time.Second, "accepted", "wait=20"},
		{"a short wait", "?wait=2", map[string]string{"If-None-Match": "{etag}"}, 304, 2 * time.Second, "", ""},
		{"a short preference", "", map[string]string{"If-None-Match": "W/{etag}", "Prefer": "wait=2"}, 304, 2 * time.Second, "", "wait=2"},
		{"until the end", "?wait=20&until=terminal", nil, 200, 6 * time.Second, "cancelled", ""},
		{"until the end, with a tag", "?wait=20&until=done", map[string]string{"If-None-Match": "{etag}"}, 200, 6 * time.Second, "cancelled", ""},
		{"until the end, too short", "?wait=4&until=terminal", map[string]string{"If-None-Match": "{etag}"}, 200, 4 * time.Second, "accepted", ""},
		{"until the end, nothing new", "?wait=2&until=terminal", map[string]string{"If-None-Match": "{etag}"}, 304, 2 * time.Second, "", ""},
		{"longer than there is", "?until=terminal", map[string]string{"Prefer": "wait=600"}, 200, 6 * time.Second, "cancelled", "wait=55"},
		{"another tag", "?wait=20", map[string]string{"If-None-Match": `"v1-00"`}, 200, 0, "create_pending", ""},
		{"a query before a preference", "?wait=2&after=1", map[string]string{"Prefer": "wait=20"}, 304, 2 * time.Second, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.clock.real = true
				h.over(h.store)
				etag := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`).Header().Get("ETag")
				header := map[string]string{}
				for name, value := range c.header {
					header[name] = strings.ReplaceAll(value, "{etag}", etag)
				}
				var moved sync.WaitGroup
				moved.Go(func() {
					time.Sleep(3 * time.Second)
					h.play("attempted")
					h.play("accepted job-1")
					time.Sleep(3 * time.Second)
					h.play("observed cancelled")
				})
				start := time.Now()
				w := h.request("alice", "GET", "/v1/operations/"+h.op+c.target, header, "")
				// The service looks again after at most a second.
				if took := time.Since(start); w.Code != c.status || took < c.after || took > c.after+time.Second || c.after == 0 && took != 0 {
					t.Errorf("%d after %s, want %d after %s: %s", w.Code, took, c.status, c.after, w.Body)
				}
				var v ingest.View
				if c.status == 200 && (json.Unmarshal(w.Body.Bytes(), &v) != nil || string(v.State) != c.state || v.Phase != v.State) {
					t.Errorf("state %s, phase %s, want %s", v.State, v.Phase, c.state)
				}
				if says := w.Header().Get("Preference-Applied"); says != c.says || w.Header().Get("Vary") != "Prefer" {
					t.Errorf("Preference-Applied %q, Vary %q, want %q", says, w.Header().Get("Vary"), c.says)
				}
				moved.Wait()
			})
		})
	}
}

// TestSubmitWaits: a submit may be answered with the end.
func TestSubmitWaits(t *testing.T) {
	for _, c := range []struct {
		name, as, prefer string
		status           int
		after            time.Duration
		applied          string
	}{
		{"it ends in time", "alice", "wait=20", 200, 3 * time.Second, "wait=20"},
		{"it does not", "alice", "wait=2", 202, 2 * time.Second, "wait=2"},
		{"no wait", "alice", "respond-async", 202, 0, ""},
		{"a key that may not read", "submitter", "wait=20", 202, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.clock.real = true
				h.over(h.store)
				ask := func() (int, string, string) {
					w := h.request(c.as, "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k", "Prefer": c.prefer}, `{"provider":"example","params":{}}`)
					return w.Code, w.Header().Get("Preference-Applied"), w.Body.String()
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					time.Sleep(3 * time.Second)
					if c.as != "alice" {
						return
					}
					id := ingest.OperationID("in_test", "alice", "k")
					h.request("alice", "POST", "/v1/operations/"+id+"/decisions", map[string]string{"Idempotency-Key": "d", "If-Match": `"v1"`}, `{"kind":"abandon"}`)
				}()
				start := time.Now()
				code, applied, body := ask()
				if took := time.Since(start); code != c.status || applied != c.applied || took < c.after || took > c.after+time.Second {
					t.Errorf("%d after %s with %q: %s", code, took, applied, body)
				}
				if want := fmt.Sprintf(`"terminal":%t`, c.status == 200); !strings.Contains(body, want) {
					t.Errorf("the answer has no %s: %s", want, body)
				}
				<-ended
				// Sent again it is a replay, whether it waits or not, and says what the first
				// answer could have been at once.
				if code, _, body := ask(); code != 200 || !strings.Contains(body, `"original_status":202`) {
					t.Errorf("the replay: %d %s", code, body)
				}
			})
		})
	}
}

// TestPreferredWait: parameters of a preference, and what is in a quoted string, are no
// preference (RFC 7240, section 2).
func TestPreferredWait(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "wait=9": 9, "WAIT = 9": 9, `wait="9"`: 9, "respond-async, wait=9": 9, "wait=9;foo=1": 9, "wait=9, wait=5": 9,
		"foo;wait=9": 0, "respond-async; wait=9": 0, "foo=1;wait=9, wait=4": 4, `foo="a, wait=9"`: 0, `foo="a\", wait=9"`: 0, `foo="a"; b=", wait=9", wait=3`: 3,
		"wait": 0, "wait=": 0, "wait=-1": 0, "wait=x, wait=5": 0, "wait=99999999999": longestWish, "wait=99999999999999999999999": longestWish,
	} {
		if got := preferredWait([]string{text}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := preferredWait([]string{"respond-async", "wait=7"}); got != 7 {
		t.Errorf("two headers: %d", got)
	}
}

// FuzzConditions: whatever else a header has, the tag is found in it where it is named,
// and what is not named is not found. A wait is never longer than it was asked for.
func FuzzConditions(f *testing.F) {
	for _, s := range []string{"", `"v7"`, `W/"v7-0a"`, `"a", "b"`, "*", "wait=5", "wait=99999999999", `respond-async; wait="7"`, "wait=-1", "W/", `"`} {
		f.Add(s)
	}
	const etag = `"v7-1f8a0c5be4d2aa03"`
	f.Fuzz(func(t *testing.T, text string) {
		for _, values := range [][]string{{text, etag}, {etag, text}, {text + ", W/" + etag}} {
			if !matches(values, etag) || !has(values, etag, 7) {
				t.Errorf("%q does not name %s", values, etag)
			}
		}
		if matches([]string{text}, etag) && !strings.Contains(text, "*") && !strings.Contains(text, strings.Trim(etag, `"`)) {
			t.Errorf("%q names %s", text, etag)
		}
		if v, err := ingest.ParseVersion(text); err == nil && !strings.Contains(text, "v"+strings.TrimLeft(fmt.Sprint(v), "0")) && v != 0 && !strings.Contains(text, "v0") {
			t.Errorf("%q is version %d", text, v)
		}
		if n := preferredWait([]string{text}); n > 0 && n != longestWish && !strings.Contains(text, fmt.Sprint(n)) {
			t.Errorf("%q waits %d s", text, n)
		}
		acceptable([]string{text}, jsonType)
	})
}
