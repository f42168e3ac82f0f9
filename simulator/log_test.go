package simulator_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// TestMaxAtOnce: overlapping calls of one operation are counted, calls of a
// client that gave up the one before are not, though the provider still holds
// it.
func TestMaxAtOnce(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example, simulator.On(simulator.Any, simulator.Always(), simulator.DelayBefore(time.Minute)))
		for i := range 3 {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			w.wantCut(w.callContext(ctx, "POST", "/v1/jobs", "{}", "Idempotency-Key", "one"))
			cancel()
			w.equal("on the wire", w.sim.CreatesOnWire("one"), i+1)
		}
		w.equal("one after the other", w.sim.MaxAtOnce("one"), 1)

		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "two") })
		}
		time.Sleep(time.Minute + time.Second)
		id := w.sim.Jobs()[1].ID
		w.equal("job of", w.sim.Jobs()[1].Key, "two")
		for range 5 {
			all.Go(func() { w.call("POST", "/v1/jobs/"+id+"/cancel", "") }) // the same operation
		}
		all.Go(func() { w.call("GET", "/v1/jobs/"+id, "") }) // no side effect
		all.Go(func() { w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "three") })
		all.Wait()
		w.equal("together", w.sim.MaxAtOnce("two"), 5)
		w.equal("alone", w.sim.MaxAtOnce("three"), 1)
		w.equal("most", w.sim.MaxAtOnceAny(), 5)
		w.call("POST", "/v1/jobs/"+id+"/cancel", "")
		w.equal("after the end", w.sim.MaxAtOnce("two"), 5)
	})
}

// TestLateDeparture: where the connection does not tell at once that its client
// has left, the next call waits a little before it counts as overlap.
func TestLateDeparture(t *testing.T) {
	for after, want := range map[time.Duration]int{10 * time.Millisecond: 1, 30 * time.Millisecond: 2} {
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New(simulator.Config{})
			defer sim.Close()
			sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayBefore(time.Minute)))
			serve := func(ctx context.Context) {
				r := httptest.NewRequestWithContext(ctx, "POST", "/v1/jobs", strings.NewReader("{}"))
				r.Header.Set("Idempotency-Key", "k")
				sim.ServeHTTP(httptest.NewRecorder(), r)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { serve(ctx) })
			synctest.Wait()
			all.Go(func() { serve(t.Context()) })
			time.Sleep(after)
			cancel()
			all.Wait()
			if got := sim.MaxAtOnce("k"); got != want {
				t.Errorf("departure seen after %v: %d at once, want %d", after, got, want)
			}
		})
	}
}

func TestLog(t *testing.T) {
	bubble(t, simulator.Config{LogLimit: 10}, func(w *world) {
		w.sim.Mount("/p", simulator.Example, simulator.On(simulator.Status, simulator.Nth(1), simulator.DelayAfter(time.Second), simulator.Reply(503)))
		id := w.create("/p", "k").field("job_id")
		w.call("GET", "/p/v1/jobs/"+id+"?a=%2F&b", "", "X-Trace", "t1")
		r := w.sim.Requests(simulator.Filter{Call: simulator.Status})[0]
		r.Header, r.Body = map[string][]string{"X-Trace": r.Header["X-Trace"]}, nil
		w.equal("entry", r, simulator.Request{
			Seq: 2, At: w.start, Done: w.start.Add(time.Second), Mount: "/p", Dialect: simulator.Example,
			Call: simulator.Status, Method: "GET", Host: "provider", Path: "/p/v1/jobs/" + id, Query: "a=%2F&b",
			Header: map[string][]string{"X-Trace": {"t1"}}, Job: id, Token: "k", Key: "k",
			Fault: "answer,delay-after", Status: 503,
		})
		for f, want := range map[simulator.Filter]int{
			{}:                               2,
			{Mount: "/p"}:                    2,
			{Mount: "/q"}:                    0,
			{Call: simulator.Any}:            2,
			{Call: simulator.Create}:         1,
			{Job: id}:                        2,
			{Token: "k", Method: "GET"}:      1,
			{Key: "k", Status: 202}:          1,
			{Fault: "delay-after"}:           1,
			{Fault: "delay"}:                 0,
			{Host: "provider"}:               2,
			{Dialect: simulator.Example}:     2,
			{Dialect: simulator.ExampleAsk}:  0,
			{Stored: true}:                   1,
			{Stored: true, Method: "DELETE"}: 0,
		} {
			w.equal(fmt.Sprintf("%+v", f), w.sim.Count(f), want)
			w.equal(fmt.Sprintf("%+v", f), len(w.sim.Requests(f)), want)
		}
		for i := range 50 {
			w.create("/p", fmt.Sprint("more-", i))
		}
		all := w.sim.Requests(simulator.Filter{})
		if len(all) < 10 || len(all) >= 20 || all[len(all)-1].Seq != 52 {
			t.Errorf("a log of at most 10 keeps %d, the last is %d", len(all), all[len(all)-1].Seq)
		}
		w.equal("still counted", w.sim.CreatesOnWire("k"), 1)
	})
}
