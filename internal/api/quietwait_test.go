package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// TestReadsAreNoNews: who waits for news is not answered with a status read that showed the
// same as the one before, whether or not the ledger is followed for it; is answered with one
// that showed something else; and has the newest version at the end of the wait.
func TestReadsAreNoNews(t *testing.T) {
	for _, c := range []struct {
		name, target, last string
		followed           bool
		after              time.Duration
		state              string
	}{
		{"a change", "?wait=40&after=4", "observed input_required", true, 30 * time.Second, "input_required"},
		{"a change, unfollowed", "?wait=40&after=4", "observed input_required", false, 30 * time.Second, "input_required"},
		{"the end", "?wait=40&after=4", "observed failed", true, 30 * time.Second, "failed"},
		{"a tag", "?wait=40", "observed failed", true, 30 * time.Second, "failed"},
		{"until the end", "?wait=40&after=4&until=terminal", "observed failed", true, 30 * time.Second, "failed"},
		{"nothing but reads", "?wait=40&after=4", "observed running", true, 40 * time.Second, "observing"},
		{"an older version", "?wait=40&after=3", "observed failed", true, 0, "observing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.clock.real = true
				h.over(h.store)
				h.submitted("alice", "k")
				for _, line := range []string{"attempted", "accepted job-1", "observed running"} {
					h.play(line)
				}
				header := map[string]string{}
				if !strings.Contains(c.target, "after=") {
					header["If-None-Match"] = h.do("alice", "GET", "/v1/operations/"+h.op, nil, "").Header().Get("ETag")
				}
				if c.followed {
					defer h.following()()
				}
				start, done := time.Now(), make(chan struct{})
				go func() {
					defer close(done)
					w := h.request("alice", "GET", "/v1/operations/"+h.op+c.target, header, "")
					var v ingest.View
					if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 || string(v.State) != c.state {
						t.Errorf("%d %s, %v", w.Code, w.Body, err)
					}
					// Where nothing is followed it is looked for every second.
					if took := time.Since(start); took < c.after || took > c.after+time.Second || c.followed && took != c.after {
						t.Errorf("answered after %s, want %s", took, c.after)
					}
					if c.last == "observed running" && (v.Version != 7 || w.Header().Get("ETag") == "") {
						t.Errorf("version %d at the end of the wait", v.Version)
					}
				}()
				for range 2 {
					time.Sleep(10 * time.Second)
					h.play("observed running")
				}
				time.Sleep(10 * time.Second)
				h.play(c.last)
				<-done
			})
		})
	}
}

// following has the ledger followed for those who wait, until stop.
func (h *harness) following() (stop func()) {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.service.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}
