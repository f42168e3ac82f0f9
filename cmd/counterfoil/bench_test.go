package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/simulator"
)

// TestBenchProviderIsTheSimulator: the calls of the standard job, and what can
// go wrong beside them, are answered by the bench's provider as by the simulator.
func TestBenchProviderIsTheSimulator(t *testing.T) {
	sim := simulator.New(simulator.Config{Now: time.Now, Seed: 1})
	t.Cleanup(sim.Close)
	states := benchStates()
	sim.Mount(benchBase, simulator.Example).Configure(simulator.Options{
		Auth:   simulator.Auth{Bearer: benchToken},
		Plan:   simulator.StepsPerRead(states[:]...),
		Result: func(j simulator.Job) (string, []byte) { return "application/json", benchDocument(j.ID) },
	})
	simURL, err := sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own, err := startProvider()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.close)
	want := playBench(t, strings.TrimPrefix(simURL, "http://"))
	got := playBench(t, strings.TrimSuffix(strings.TrimPrefix(own.url, "http://"), benchBase))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the simulator's answers (-) and the provider's (+):\n%s", diff)
	}
	seen := own.seen(make([]time.Time, 8))
	if len(seen.create) != 1 || len(seen.late) != 4 || seen.duplicates != 1 {
		t.Errorf("it saw %d creates, %d reads and %d duplicates, want 1, 4 and 1", len(seen.create), len(seen.late), seen.duplicates)
	}
	if got := own.results.Load(); got != 1 {
		t.Errorf("%d results were given out, want 1", got)
	}
}

// playBench makes the calls and gives the answers, without what differs by
// nature: addresses, job ids, times and results.
func playBench(t *testing.T, address string) []string {
	t.Helper()
	var c benchConn
	t.Cleanup(c.close)
	var lines []string
	job := ""
	varies := regexp.MustCompile(`job_[0-9a-f]{16}|20[0-9-]{8}T[0-9:.]+Z|127\.0\.0\.1:[0-9]+|"output":"[0-9a-z]+"`)
	call := func(method, path, token, key, body string) {
		header := ""
		if token != "" {
			header += "Authorization: Bearer " + token + "\r\n"
		}
		if key != "" {
			header += "Idempotency-Key: " + key + "\r\n"
		}
		status, answer, err := c.do(t.Context(), address, method, benchBase+strings.ReplaceAll(path, "JOB", job), header, body)
		if err != nil {
			t.Fatal(err)
		}
		if job == "" {
			job = regexp.MustCompile(`job_[0-9a-f]{16}`).FindString(string(answer))
		}
		lines = append(lines, fmt.Sprintf("%s %s: %d %s", method, path, status, varies.ReplaceAllString(string(answer), "·")))
	}
	body := func(n int) string { return fmt.Sprintf(`{"client_reference":"ref-%d","n":%d,"prompt":"p"}`, n, n) }
	call("POST", "/v1/jobs", "", "k1", body(3))
	call("POST", "/v1/jobs", benchToken, "k1", body(3))
	call("POST", "/v1/jobs", benchToken, "k1", body(3)) // the first job again
	call("POST", "/v1/jobs", benchToken, "k2", body(3)) // another
	call("GET", "/v1/jobs/JOB/result", benchToken, "", "")
	for range 4 {
		call("GET", "/v1/jobs/JOB", benchToken, "", "")
	}
	call("GET", "/v1/jobs/JOB/result", benchToken, "", "")
	call("GET", "/v1/jobs/job_none", benchToken, "", "")
	return lines
}

// TestQuantilesAreValuesOfTheSample: no quantile is a value that was not measured.
func TestQuantilesAreValuesOfTheSample(t *testing.T) {
	var sample []time.Duration
	for i := 200; i > 0; i-- {
		sample = append(sample, time.Duration(i)*time.Millisecond)
	}
	for _, c := range []struct {
		sample []time.Duration
		want   quantiles
	}{
		{nil, quantiles{}},
		{[]time.Duration{-time.Millisecond}, quantiles{-1, -1, -1, -1}},
		{[]time.Duration{2 * time.Millisecond, time.Millisecond}, quantiles{1, 2, 1, 2}},
		{sample, quantiles{100, 198, 1, 200}},
	} {
		if got := quantilesOf(c.sample); got != c.want {
			t.Errorf("of %d values: %+v, want %+v", len(c.sample), got, c.want)
		}
	}
}

// TestScheduleDoesNotWait: at a rate an operation's time is that of the schedule,
// also where the caller came late to it.
func TestScheduleDoesNotWait(t *testing.T) {
	l := &benchLoad{o: benchOptions{rate: 10}, start: time.Now().Add(-time.Minute), sent: make([]time.Time, 100), ids: make([]string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no call is made
	if err := l.submit(ctx, &benchConn{}, 50); err == nil {
		t.Fatal("an operation was submitted without a service")
	}
	if got := l.sent[50].Sub(l.start); got != 5*time.Second {
		t.Errorf("operation 50 at 10 a second is due %s after the start, want 5s", got)
	}
}
