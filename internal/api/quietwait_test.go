package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
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

// TestFailingReadsAreNoNews: that another read failed in the same way is none, whatever
// port it names; that one failed in another way is.
func TestFailingReadsAreNoNews(t *testing.T) {
	for last, want := range map[events.ErrorClass]time.Duration{events.ErrorTransport: 40 * time.Second, events.ErrorThrottled: 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.clock.real = true
			h.over(h.store)
			h.submitted("alice", "k")
			for _, line := range []string{"attempted", "accepted job-1", "observed running"} {
				h.play(line)
			}
			port := 40000
			failed := func(class events.ErrorClass) {
				port++
				s, err := h.journal.Current(t.Context(), h.op)
				if err != nil {
					t.Fatal(err)
				}
				h.fact(&events.ObservationFailed{JobID: "job-1", Prompt: "due", Call: events.Call{
					AsOf: s.Sequence, LeftAt: time.Now(), Class: class, Message: fmt.Sprintf("read tcp 127.0.0.1:%d: i/o timeout", port),
				}})
			}
			failed(events.ErrorTransport)
			defer h.following()()
			start, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				h.request("alice", "GET", "/v1/operations/"+h.op+"?wait=40&after=5", nil, "")
				if took := time.Since(start); took != want {
					t.Errorf("%s last: answered after %s, want %s", last, took, want)
				}
			}()
			time.Sleep(10 * time.Second)
			failed(events.ErrorTransport)
			time.Sleep(10 * time.Second)
			failed(last)
			<-done
		})
	}
}

// TestReadsOfWhatStoppedAreNoNews: who waits for the end of an operation that is stopped,
// and has seen that, is not answered with each read of the same.
func TestReadsOfWhatStoppedAreNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		h.over(h.store)
		h.submitted("alice", "k")
		for _, line := range []string{"attempted", "accepted job-1", "observed running"} {
			h.play(line)
		}
		missed := func() {
			s, err := h.journal.Current(t.Context(), h.op)
			if err != nil {
				t.Fatal(err)
			}
			h.fact(&events.ObservationFailed{JobID: "job-1", Prompt: "due", Call: events.Call{
				AsOf: s.Sequence, LeftAt: time.Now(), Status: 404, Class: events.ErrorNotFound,
			}})
		}
		for range 3 {
			time.Sleep(10 * time.Minute)
			missed()
		}
		v := h.view("alice", h.op)
		if v.State != projections.PhaseQuarantined || !v.Done {
			t.Fatalf("it is %s", v.State)
		}
		defer h.following()()
		for _, until := range []string{"", "&until=terminal"} {
			start, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				h.request("alice", "GET", fmt.Sprintf("/v1/operations/%s?wait=40&after=%d%s", h.op, v.Version, until), nil, "")
				if took := time.Since(start); took != 40*time.Second {
					t.Errorf("%q: answered after %s", until, took)
				}
			}()
			for range 3 {
				time.Sleep(10 * time.Second)
				missed()
			}
			<-done
			v = h.view("alice", h.op)
		}
	})
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

// hanging is a store whose reads are not answered from a moment on, each for a while.
type hanging struct {
	journal.Store
	hung *atomic.Bool
}

func (s hanging) Last(ctx context.Context, stream journal.Stream, subject string) (journal.Message, error) {
	if s.hung.Load() {
		return journal.Message{}, unanswered(ctx)
	}
	return s.Store.Last(ctx, stream, subject)
}

func (s hanging) Next(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Message, error) {
	if s.hung.Load() {
		return journal.Message{}, unanswered(ctx)
	}
	return s.Store.Next(ctx, stream, subject, from)
}

func (s hanging) Read(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	c, err := s.Store.Read(ctx, stream, subject, from)
	return hangingCursor{c, s.hung}, err
}

// hangingCursor asks the store once more when none has come within the wait.
type hangingCursor struct {
	journal.Cursor
	hung *atomic.Bool
}

func (c hangingCursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	m, err := c.Cursor.Next(ctx, wait)
	if c.hung.Load() && err != nil {
		return m, unanswered(ctx)
	}
	return m, err
}

func unanswered(ctx context.Context) error {
	select {
	case <-time.After(13 * time.Second):
		return journal.ErrUnread
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Many wait for one operation while the store stops answering: each is answered when its
// own wait is over, and not one after the other.
func TestWaitsOverAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		var hung atomic.Bool
		h.over(hanging{h.store, &hung})
		h.submitted("alice", "k")
		start := time.Now()
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				var w *httptest.ResponseRecorder
				switch i % 3 {
				case 0:
					w = h.request("alice", "GET", "/v1/operations/"+h.op+"?wait=50&until=terminal", nil, "")
				case 1:
					w = h.request("alice", "GET", "/v1/operations/"+h.op+"?wait=50&after=1", nil, "")
				default:
					w = h.request("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k", "Prefer": "wait=50"}, `{"provider":"example","params":{"kind":"render"}}`)
				}
				if took := time.Since(start); took > 53*time.Second || w.Code != 200 && w.Code != 503 {
					t.Errorf("request %d: %d after %s: %.200s", i, w.Code, took, w.Body)
				}
			})
		}
		// A stream is silent for no longer than its comments are apart, and a little.
		all.Go(func() {
			w := h.request("alice", "GET", "/v1/events", nil, "")
			if took := time.Since(start); took > 18*time.Second {
				t.Errorf("the stream ends after %s: %s", took, w.Body)
			}
		})
		time.Sleep(1500 * time.Millisecond)
		hung.Store(true)
		all.Wait()
	})
}
