package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
)

// scenario is one operation of the demonstration: what goes wrong on the way,
// and how it has to end.
type scenario struct {
	name     string // account at the provider, and the tail of the key
	provider string
	story    string
	options  simulator.Options
	rules    []simulator.Rule
	then     func(ctx context.Context, d *demo, id string) error // after the submit
	state    string                                              // how it ends
	stopped  string                                              // kind of quarantine, if it ends there
}

func steps(every time.Duration, states ...string) simulator.Options {
	return simulator.Options{Plan: simulator.Steps(every, states...)}
}

// scenarios are run side by side, after those that kill a worker.
func scenarios() []scenario {
	quick := steps(300*time.Millisecond, "queued", "running", "succeeded")
	slow := steps(1500*time.Millisecond, "queued", "running", "succeeded")
	slower := steps(4*time.Second, "queued", "running", "succeeded") // time enough to be told to stop
	long := steps(time.Hour, "running", "succeeded")
	first := simulator.NthOfToken(1)
	return []scenario{
		{name: "plain", provider: "example", story: "nothing goes wrong", options: quick, state: "succeeded"},
		{
			name: "dropped", provider: "example", story: "the job is made, the answer is lost; the token finds it", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.DropAnswer{Reset: true})}, state: "succeeded",
		},
		{
			name: "error-after", provider: "example", story: "the job is made and the answer is 500; the token finds it", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.ReplyStored(500))}, state: "succeeded",
		},
		{
			name: "never-arrived", provider: "example", story: "the request is lost on the way; the same bytes go again", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.NeverReceive{Reset: true})}, state: "succeeded",
		},
		{
			name: "too-many", provider: "example", story: "creates are throttled for a while", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.First(2), simulator.ReplyRetry(429, simulator.RetryAfter{Text: "1"}))}, state: "succeeded",
		},
		{
			name: "bad-reads", provider: "example", story: "404 just after the create, an HTML error page, a cut answer, then the truth", options: slow,
			rules: []simulator.Rule{
				simulator.On(simulator.Status, simulator.Nth(1), simulator.Reply(404)),
				simulator.On(simulator.Status, simulator.Nth(2), simulator.ReplyHTML(502)),
				simulator.On(simulator.Status, simulator.Nth(3), simulator.CutBody{}),
				simulator.On(simulator.Status, simulator.Nth(4), simulator.ReplyRetry(503, simulator.RetryAfter{Text: "1"})),
			}, state: "succeeded",
		},
		{
			name: "webhooks", provider: "example", story: "each webhook comes three times, the last ones first", options: slow,
			rules: []simulator.Rule{simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(3))}, state: "succeeded",
		},
		{
			name: "late-result", provider: "example", story: "the job has succeeded and its result is not there yet, then empty, then there", options: quick,
			rules: []simulator.Rule{
				simulator.On(simulator.Result, simulator.First(2), simulator.Reply(404)),
				simulator.On(simulator.Result, simulator.Nth(3), simulator.ReplyEmpty(200)),
			}, state: "succeeded",
		},
		{name: "cancelled", provider: "example", story: "cancelled while it runs", options: long, then: cancelIt, state: "cancelled"},
		{
			name: "cancelled-late", provider: "example", story: "cancelled, acknowledged, and finished all the same", options: slower,
			rules: []simulator.Rule{simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelIgnored)}, then: cancelIt, state: "succeeded",
		},
		{
			name: "failed", provider: "example", story: "the provider says 200 and the job failed",
			options: simulator.Options{Plan: simulator.Plan{
				Steps: simulator.Steps(300*time.Millisecond, "running", "failed").Steps, Code: "Q1", Message: "no room",
			}}, state: "failed",
		},
		{
			name: "dropped", provider: "example-lookup", story: "no token; the answer is lost; a look-up by reference finds the job", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.DropAnswer{Reset: true})}, state: "succeeded",
		},
		{
			name: "never-arrived", provider: "example-lookup", story: "no token; the request is lost; only a proved absence lets it go again", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.NeverReceive{Reset: true})}, state: "succeeded",
		},
		{
			name: "dropped", provider: "example-ask", story: "neither token nor look-up; the answer is lost; it stops and asks", options: quick,
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true})},
			state: "quarantined", stopped: "unknown",
		},
		{
			name: "outputs", provider: "replicate", story: "the output's link expires; the content is kept",
			options: simulator.Options{Plan: simulator.Steps(300*time.Millisecond, "starting", "processing", "succeeded"), LinkTTL: 2 * time.Second},
			state:   "succeeded",
		},
	}
}

// cancelIt waits until the job is known, then asks for its cancellation.
func cancelIt(ctx context.Context, d *demo, id string) error {
	for op, err := range d.stage.client.Watch(ctx, id) {
		if err != nil {
			return err
		}
		if op.Job != nil && op.Job.ID != "" {
			break
		}
	}
	_, err := d.stage.client.Cancel(ctx, id, "shown in the demonstration")
	return err
}

// demo is one demonstration.
type demo struct {
	stage *stage
	start time.Time

	mu  sync.Mutex
	out io.Writer // guarded by mu
	ids map[string]string
}

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%7.2fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (a *app) demoCommand() *cobra.Command {
	var leave bool
	var data string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch operations end well while answers are lost and workers are killed",
		Long: `Run the whole service in this process against simulated providers that lose
answers, repeat deliveries and fail, while workers are killed. Each line is a
change of one operation. The waits of the built-in contracts are shortened.

It stays up afterwards until interrupted, so that its operations can be looked
at with the other commands.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), data, leave) },
	}
	cmd.Flags().BoolVar(&leave, "exit", false, "leave when the summary is printed")
	cmd.Flags().StringVar(&data, "data", "", "keep the data in this directory")
	return cmd
}

func (a *app) demo(ctx context.Context, data string, leave bool) (err error) {
	dir := data
	if dir == "" {
		made, remove, err2 := tempDir("demo")
		if err2 != nil {
			return err2
		}
		dir = made
		defer func() { err = errors.Join(err, remove()) }()
	}
	s, err := newStage(dir, quiet())
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.hurry(); err != nil {
		return err
	}
	s.hooks = map[string]string{"example": stageSecret, "example-lookup": stageSecret}
	list := scenarios()
	for _, one := range list {
		s.mount(one.provider, one.name, one.options, one.rules...)
	}
	d := &demo{stage: s, start: time.Now(), out: a.stdout, ids: map[string]string{}}
	held := simulator.NewGate()
	defer held.Release()
	s.mount("example", "killed-in-call", steps(300*time.Millisecond, "queued", "running", "succeeded"),
		simulator.On(simulator.Create, simulator.Nth(1), simulator.HoldAfter{Gate: held}))
	s.mount("example", "killed-after-id", steps(300*time.Millisecond, "queued", "running", "succeeded"))
	if err := s.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if s.bearer == "" {
		return &coded{exitUsage, "name a new directory", errors.New("the data directory is not new: its API key was printed once and is not kept")}
	}

	limited, give := context.WithTimeout(ctx, 3*time.Minute)
	defer give()
	wrong, err := d.run(limited, list, held)
	if ctx.Err() != nil {
		fmt.Fprintln(a.stderr, "counterfoil: interrupted before the summary")
		return ended(exitInterrupted)
	}
	if err != nil {
		return fmt.Errorf("demonstration: %w", err)
	}
	failed, err := d.summary(limited, a, wrong)
	if err != nil {
		return err
	}
	if leave && data != "" {
		fmt.Fprintf(a.stdout, "data kept in %s, API key %s\n", data, s.bearer)
	}
	if !leave {
		fmt.Fprintf(a.stdout, `
The service stays up until interrupted. In another terminal:
  export COUNTERFOIL_SERVER=http://%s COUNTERFOIL_KEY=%s
  go run ./cmd/counterfoil list
  go run ./cmd/counterfoil timeline %s
  go run ./cmd/counterfoil submit example --account plain --params '{}' --wait
Only the accounts named above have a simulated provider: what is submitted to
another, such as default, rests for want of a credential.
`, s.local.listener.Addr(), s.bearer, d.ids["example/killed-in-call"])
		<-ctx.Done()
	}
	if failed {
		return ended(exitFailure)
	}
	return nil
}

// run plays the two deaths, then the rest side by side. It gives what ended
// otherwise than it should.
func (d *demo) run(ctx context.Context, list []scenario, held *simulator.Gate) ([]string, error) {
	d.say("worker 1 will be killed while its create call is under way")
	first := d.stage.work("1", nil)
	if err := d.submit(ctx, "example", "killed-in-call"); err != nil {
		return nil, err
	}
	if !held.WaitArrived(1, ctx.Done()) {
		return nil, ctx.Err()
	}
	first.kill()
	d.say("worker 1 is dead; the provider has made the job and nobody heard")
	d.say("worker 2 will be killed when it has stored a job id, before its first status read")
	saved := make(chan struct{})
	d.stage.work("2", func(kind string) bool {
		if strings.Contains(kind, "create.answered") {
			close(saved)
			return true
		}
		return false
	})
	if err := d.submit(ctx, "example", "killed-after-id"); err != nil {
		return nil, err
	}
	select {
	case <-saved:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.say("worker 2 is dead; workers 3 and 4 start")
	d.stage.work("3", nil)
	d.stage.work("4", nil)

	all := append([]scenario{
		{name: "killed-after-id", provider: "example", state: "succeeded"},
		{name: "killed-in-call", provider: "example", state: "succeeded"},
	}, list...)
	results := make([]string, len(all))
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, one := range all {
		wait.Go(func() { results[i], errs[i] = d.play(ctx, one) })
	}
	wait.Wait()
	var wrong []string
	for _, r := range results {
		if r != "" {
			wrong = append(wrong, r)
		}
	}
	return wrong, errors.Join(errs...)
}

func (d *demo) submit(ctx context.Context, provider, account string) error {
	name := provider + "/" + account
	params, err := json.Marshal(map[string]any{"correlation": name, "prompt": "a counterfoil", "version": "v1", "input": map[string]string{"text": name}})
	if err != nil {
		return err
	}
	op, _, err := d.stage.client.Submit(ctx, "demo-"+name, client.Submission{Provider: provider, Account: account, Params: params})
	if err != nil {
		return fmt.Errorf("submit %s: %w", name, err)
	}
	d.mu.Lock()
	d.ids[name] = op.ID
	d.mu.Unlock()
	return nil
}

// play submits one operation, unless it was, and watches it to its end.
func (d *demo) play(ctx context.Context, one scenario) (wrong string, err error) {
	name := one.provider + "/" + one.name
	if one.story != "" {
		d.say("%-30s %s", name, one.story)
		if err := d.submit(ctx, one.provider, one.name); err != nil {
			return "", err
		}
	}
	d.mu.Lock()
	id := d.ids[name]
	d.mu.Unlock()
	var done sync.WaitGroup
	var thenErr error
	if one.then != nil {
		done.Go(func() { thenErr = one.then(ctx, d, id) })
	}
	var last client.Operation
	shown := ""
	for op, err := range d.stage.client.Watch(ctx, id) {
		if err != nil {
			done.Wait()
			return "", fmt.Errorf("watch %s: %w", name, err)
		}
		last = op
		line := stateOf(op)
		if op.Cancel != nil && op.Cancel.TooLate {
			line += " (the cancel came too late)"
		}
		if line != shown {
			shown = line
			d.say("%-30s %s", name, line)
		}
	}
	done.Wait()
	if last.State != one.state || last.Quarantine != one.stopped {
		wrong = fmt.Sprintf("%s (%s) is %s, want %s", name, id, stateOf(last), one.state)
	}
	return wrong, thenErr
}

// summary counts what the service believes beside what the providers saw.
func (d *demo) summary(ctx context.Context, a *app, wrong []string) (failed bool, err error) {
	s := struct {
		Operations  int               `json:"operations"`
		RemoteJobs  int               `json:"remote_jobs"`
		Duplicates  int               `json:"duplicates"`
		Facts       int               `json:"facts"`
		Healed      []string          `json:"unknown_creates_healed_without_a_human"`
		Quarantined map[string]string `json:"quarantined"`
		States      map[string]int    `json:"states"`
		Wrong       []string          `json:"otherwise_than_expected"`
	}{Quarantined: map[string]string{}, States: map[string]int{}, Wrong: wrong, Healed: []string{}}
	s.RemoteJobs, s.Duplicates = len(d.stage.sim.Jobs()), d.stage.sim.DuplicateCount()
	for name, id := range d.ids {
		op, err := d.stage.client.Get(ctx, id)
		if err != nil {
			return true, fmt.Errorf("read %s: %w", name, err)
		}
		timeline, err := d.stage.client.Timeline(ctx, id, 0)
		if err != nil {
			return true, fmt.Errorf("read the timeline of %s: %w", name, err)
		}
		s.Operations++
		s.Facts += len(timeline)
		s.States[op.State]++
		unknown := false
		for _, e := range timeline {
			unknown = unknown || e.To == "create_unknown" || e.To == "reconciliation"
		}
		switch {
		case op.State == "quarantined":
			s.Quarantined[name] = firstOf(op.Quarantine, op.Reason) + ": " + op.Reason
		case unknown && op.Terminal:
			s.Healed = append(s.Healed, name)
		}
	}
	failed = s.Duplicates != 0 || len(wrong) > 0
	if a.output == "json" {
		return failed, a.json(s)
	}
	fmt.Fprintf(a.stdout, "\noperations: %d\nremote jobs: %d\nduplicates: %d\nfacts: %d\n", s.Operations, s.RemoteJobs, s.Duplicates, s.Facts)
	fmt.Fprintf(a.stdout, "unknown creates healed without a human: %d\n", len(s.Healed))
	for name, why := range s.Quarantined {
		fmt.Fprintf(a.stdout, "quarantined: %s (%s)\n", name, why)
	}
	for _, line := range wrong {
		fmt.Fprintf(a.stdout, "otherwise than expected: %s\n", line)
	}
	return failed, nil
}
