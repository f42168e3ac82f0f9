package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, took time.Duration) *stand.Stand {
	t.Helper()
	s, err := stand.Start(took)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// quick are the waits of tests that lose answers all the time.
var quick = client.Retry{First: time.Millisecond, Longest: 20 * time.Millisecond}

func through(t *testing.T, s *stand.Stand, f stand.Faults) (*client.Client, *stand.Proxy) {
	t.Helper()
	p, err := stand.NewProxy(s.URL, f)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		p.Close()
	})
	c, err := client.New(p.URL, s.Key, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return c.Retrying(quick), p
}

func intent(n int) client.Submission {
	return client.Submission{Provider: "example", Params: json.RawMessage(fmt.Sprintf(`{"correlation":"c-%d","n":%d}`, n, n))}
}

// Whoever is answered only every second time ends with one operation for each thing
// that was wanted, and knows how each of them stands.
func TestEverySecondAnswerIsLost(t *testing.T) {
	s := start(t, 200*time.Millisecond)
	c, p := through(t, s, stand.Faults{Lose: true, CutAfter: 2})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ids := map[string]bool{}
	const n = 4
	for i := range n {
		op, _, err := c.Submit(ctx, fmt.Sprint("key-", i), intent(i))
		if err != nil {
			t.Fatal(err)
		}
		ids[op.ID] = true
	}
	batch, err := c.SubmitBatch(ctx, "batch", client.Atomic, []client.BatchItem{{Operation: intent(10)}, {Operation: intent(11)}})
	if err != nil || len(batch.Items) != 2 || batch.Mode != client.Atomic || batch.Replayed != 2 {
		t.Fatalf("%+v: %v", batch, err)
	}
	for _, item := range batch.Items {
		ids[item.Operation.ID] = true
		if !json.Valid(item.Operation.Raw) {
			t.Errorf("raw %s", item.Operation.Raw)
		}
	}
	for id := range ids {
		op, err := c.Wait(ctx, id)
		if err != nil || op.State != "succeeded" {
			t.Errorf("%s is %s: %v", id, op.State, err)
		}
		r, err := c.Result(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		for text, err := io.ReadAll(r.Body); err != nil || len(text) == 0; text, err = io.ReadAll(r.Body) {
			_ = r.Body.Close() // cut: the bytes are the caller's to read again
			if r, err = c.Result(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		_ = r.Body.Close()
	}
	seen := map[string]bool{}
	for len(seen) < len(ids) && ctx.Err() == nil { // the list follows a little behind, and what moves can be missed
		for op, err := range c.Operations(ctx, client.Filter{Limit: 2}) {
			if err != nil {
				t.Fatal(err)
			}
			seen[op.ID] = true
		}
	}
	if len(seen) != n+2 || len(ids) != n+2 || len(s.Sim.Jobs()) != n+2 || len(s.Sim.Duplicates()) > 0 {
		t.Errorf("%d operations listed, %d submitted, %d jobs, duplicates %v", len(seen), len(ids), len(s.Sim.Jobs()), s.Sim.Duplicates())
	}
	lost, keys := 0, map[string]int{}
	for _, a := range p.Requests() {
		if a.Lost {
			lost++
		}
		if a.Method == http.MethodPost {
			keys[a.Key]++
		}
	}
	if lost < n+1 || len(keys) != n+1 {
		t.Errorf("%d answers were lost, keys %v", lost, keys)
	}
	for key, times := range keys {
		if times < 2 {
			t.Errorf("%s was sent %d times", key, times)
		}
	}
}

// Decisions, cancels and pauses are done once, with the key they are given and with
// one of their own.
func TestActsAreDoneOnce(t *testing.T) {
	s := start(t, time.Hour)
	c, p := through(t, s, stand.Faults{Lose: true})
	ctx := t.Context()
	op, _, err := c.Submit(ctx, "k", intent(1))
	if err != nil {
		t.Fatal(err)
	}
	if op, err = c.Pause(ctx, op.ID, "why"); err != nil || op.Paused == nil || op.OriginalStatus == 0 {
		t.Errorf("%+v: %v", op.Paused, err)
	}
	if op, err = c.Keyed("r").Resume(ctx, op.ID, ""); err != nil || op.Paused != nil {
		t.Errorf("%+v: %v", op.Paused, err)
	}
	if op, err = c.Keyed("c").Cancel(ctx, op.ID, ""); err != nil || op.Cancel == nil || !op.Cancel.Wished {
		t.Errorf("%+v: %v", op.Cancel, err)
	}
	lost, _, err := c.Submit(ctx, "l", client.Submission{Provider: "example-ask", Account: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	if lost, err = c.Wait(ctx, lost.ID); err != nil || lost.State != "quarantined" || lost.Terminal {
		t.Fatalf("%s: %v", lost.State, err)
	}
	decided, err := c.Decide(ctx, lost.ID, lost.Version, "d", client.Decision{Kind: "abandon"})
	if err != nil || decided.State != "abandoned" {
		t.Errorf("%s: %v", decided.State, err)
	}
	line, err := c.Timeline(ctx, op.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range line {
		counts[e.Type]++
	}
	for _, name := range []string{"operation.paused.v1", "operation.resumed.v1", "cancel.requested.v1"} {
		if counts[name] != 1 {
			t.Errorf("%s is there %d times: %v", name, counts[name], counts)
		}
	}
	for _, a := range p.Requests() {
		if a.Method == http.MethodPost && a.Key == "" {
			t.Errorf("%s has no key", a.Path)
		}
	}
	var refused *client.Problem
	if _, err := c.Cancel(ctx, lost.ID, ""); !errors.As(err, &refused) || refused.RetryWith != client.Never || client.Retryable(err) {
		t.Errorf("%v", err)
	}
}

// A stream that is cut all the time gives each fact once and in order, and a watch
// what one that is not cut gives.
func TestStreamsAreResumed(t *testing.T) {
	s := start(t, 400*time.Millisecond)
	for name, f := range map[string]stand.Faults{"whole": {}, "cut": {CutAfter: 1, Lose: true}, "slow": {CutAfter: 2, Delay: 20 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			c, p := through(t, s, f)
			op, _, err := c.Submit(t.Context(), name, intent(1))
			if err != nil {
				t.Fatal(err)
			}
			var states []string
			var last client.Operation
			for op, err := range c.Watch(t.Context(), op.ID) {
				if err != nil {
					t.Fatal(err)
				}
				if op.Version <= last.Version {
					t.Errorf("version %d behind %d", op.Version, last.Version)
				}
				states, last = append(states, op.State), op
			}
			if last.State != "succeeded" || last.Result == nil || len(states) < 2 {
				t.Errorf("watched %v", states)
			}
			line, err := c.Timeline(t.Context(), op.ID, 0)
			if err != nil {
				t.Fatal(err)
			}
			var told []uint64
			ended := false
			for e, err := range c.Events(t.Context(), op.ID, "0") {
				switch {
				case err != nil:
					t.Fatal(err)
				case e.Entry != nil:
					told = append(told, e.Entry.Sequence)
				case e.Type == "operation.ended.v1":
					ended = e.Operation.Terminal
				}
			}
			var want []uint64
			for _, e := range line {
				want = append(want, e.Sequence)
			}
			// Who comes back behind the last fact is told that it is over.
			if !slices.Equal(told, want) || !ended && name == "whole" {
				t.Errorf("told %v, ended %t, want %v", told, ended, want)
			}
			resumed := 0
			for _, a := range p.Requests() {
				if a.LastEvent != "" && a.LastEvent != "0" {
					resumed++
				}
			}
			if resumed == 0 && name != "whole" {
				t.Error("no stream was resumed")
			}
		})
	}
}

// Where streams do not come through, or too many are open, a watch does without.
func TestWatchWithoutStreams(t *testing.T) {
	for name, events := range map[string]http.HandlerFunc{
		"not let through": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotImplemented) },
		"a page instead":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"too many": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"code":"too_many_streams","retryable":true,"retry_with":"same_key"}`)
		},
		"held back": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"begun and held back": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"always cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				version := 0
				c := inBubble(t, func(w http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, "/events") {
						events(w, r)
						return
					}
					if tag := r.Header.Get("If-None-Match"); version > 0 && (tag != fmt.Sprintf(`"v%d-x"`, version) || r.Header.Get("Prefer") != "wait=55") {
						t.Errorf("asked with %q and %q at %d", tag, r.Header.Get("Prefer"), version)
					}
					version++
					w.Header().Set("ETag", fmt.Sprintf(`"v%d-x"`, version))
					fmt.Fprintf(w, `{"id":"op_1","version":%d,"done":%t}`, version, version == 3)
				})
				begun := time.Now()
				seen := 0
				for op, err := range c.Watch(t.Context(), "op_1") {
					if seen++; err != nil || op.Version != uint64(seen) {
						t.Fatalf("%d: %v", op.Version, err)
					}
				}
				if took := time.Since(begun); seen != 3 || took > 12*time.Second {
					t.Errorf("%d seen in %s", seen, took)
				}
			})
		})
	}
}

// inBubble is a client of the handler in a bubble.
func inBubble(t *testing.T, handler http.HandlerFunc) *client.Client {
	t.Helper()
	listener := simulator.NewMemoryListener()
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	hc := listener.Client()
	t.Cleanup(func() {
		hc.CloseIdleConnections()
		server.Close()
	})
	c, err := client.New("http://counterfoil.test", "cf_k", hc)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What is tried again, with which waits, and what is not.
func TestTries(t *testing.T) {
	problem := func(status int, after, code, with string, retryable bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":%q,"retryable":%t,"retry_with":%q}`, code, retryable, with)
		}
	}
	page := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, `{"id":`)
	}
	for name, one := range map[string]struct {
		answer   http.HandlerFunc
		tries    int           // 8: to the end
		at       time.Duration // at least
		deadline time.Duration
		lost     bool
	}{
		"a gateway":            {answer: page(502), tries: 8, at: 12 * time.Second},
		"told when":            {answer: problem(503, "7", "store_unavailable", "same_key", true), tries: 8, at: 7*7*time.Second - time.Millisecond},
		"told when by a date":  {answer: problem(429, "Sat, 01 Jan 2000 00:00:05 GMT", "slow", "same_key", true), tries: 8, at: 5 * time.Second},
		"told when, too late":  {answer: problem(503, "60", "storage_low", "same_key", true), tries: 1, deadline: 50 * time.Second},
		"told when, far off":   {answer: problem(503, "3600", "storage_low", "same_key", true), tries: 1},
		"never":                {answer: problem(503, "", "gone", "never", true), tries: 1},
		"with a new key":       {answer: problem(400, "", "idempotency_key_invalid", "new_key", true), tries: 1},
		"corrected":            {answer: problem(422, "", "validation_failed", "same_key", false), tries: 1},
		"how it stands":        {answer: problem(409, "", "result_not_ready", "same_key", true), tries: 1},
		"a page":               {answer: page(404), tries: 1},
		"a redirect":           {answer: page(302), tries: 1},
		"cut":                  {answer: cut, tries: 8, lost: true},
		"never answered":       {answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, tries: 8, at: 8 * time.Minute, lost: true},
		"no more time for it":  {answer: page(503), tries: 4, deadline: 2500 * time.Millisecond},
		"ended while it waits": {answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, tries: 1, deadline: time.Second, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				var mu sync.Mutex
				keys := map[string]bool{} // guarded by mu
				c := inBubble(t, func(w http.ResponseWriter, r *http.Request) {
					n.Add(1)
					_, _ = io.Copy(io.Discard, r.Body) // or the server does not see that the caller leaves
					mu.Lock()
					keys[r.Header.Get("Idempotency-Key")] = true
					mu.Unlock()
					one.answer(w, r)
				})
				ctx := t.Context()
				if one.deadline > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, one.deadline)
					defer stop()
				}
				begun := time.Now()
				_, err := c.Cancel(ctx, "op_1", "")
				var p *client.Problem
				var lost *client.LostError
				if err == nil || errors.As(err, &p) == one.lost || errors.As(err, &lost) != one.lost {
					t.Fatalf("%T %v", err, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if got := int(n.Load()); got != one.tries && (one.deadline == 0 || got < one.tries) || len(keys) != 1 || keys[""] {
					t.Errorf("%d tries with the keys %v, want %d: %v", got, keys, one.tries, err)
				}
				if lost != nil && (lost.Tries != one.tries || !keys[lost.Key]) {
					t.Errorf("lost after %d with %s", lost.Tries, lost.Key)
				}
				if took := time.Since(begun); took < one.at || one.deadline > 0 && took > one.deadline {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// What changes something and has no key is sent once, whatever its answer was.
func TestWithoutAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		c := inBubble(t, func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		for method, want := range map[string]int32{http.MethodPost: 1, http.MethodGet: 8} {
			n.Store(0)
			if _, err := c.Call(t.Context(), client.Request{Method: method, Path: "/x"}); err == nil || n.Load() != want {
				t.Errorf("%s: %v after %d", method, err, n.Load())
			}
		}
	})
}

// Whoever has one try, or as many as the context lets it, has them.
func TestBoundsOfTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := inBubble(t, func(w http.ResponseWriter, _ *http.Request) {
			n++
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		if _, err := c.Retrying(client.Retry{Tries: 1}).Get(t.Context(), "op_1"); !client.Retryable(err) || n != 1 {
			t.Errorf("%d tries: %v", n, err)
		}
		n = 0
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if _, err := c.Retrying(client.Retry{Tries: -1}).Get(ctx, "op_1"); !errors.Is(err, context.DeadlineExceeded) || n < 300 {
			t.Errorf("%d tries: %v", n, err)
		}
		for _, err := range c.Retrying(client.Retry{Tries: 2}).Watch(t.Context(), "op_1") {
			if !client.Retryable(err) {
				t.Errorf("watched: %v", err)
			}
		}
	})
}
