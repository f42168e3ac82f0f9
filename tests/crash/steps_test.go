package crash_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// scenario is one course of an operation whose every durable step is made to go
// wrong.
type scenario struct {
	name     string
	provider string
	house    harness.Options
	options  simulator.Options
	rules    []simulator.Rule
	// next is what the caller does on seeing the operation, again if it fails.
	next func(ctx context.Context, r *rig, op client.Operation) error
	// ends are the states the operation may end in; the first is the clean
	// run's. Each is written with its kind of quarantine.
	ends      []string
	deadlines *client.Deadlines
	// stopped lets the run end in a state that waits for a decision.
	stopped bool
	// until says that all has come of it that has to; nil: that it has ended.
	until func(op client.Operation) bool
	// judge says what is wrong with what the provider saw.
	judge func(j simulator.Job) error
	// rotates gives the provider another key when an upload is done.
	rotates bool
	// timers lets the process attend by what it knows; else by wake-ups alone.
	timers bool
}

func short(states ...string) simulator.Options {
	return simulator.Options{Plan: simulator.Steps(3*time.Second, states...)}
}

func scenarios() []scenario {
	plain := short("queued", "running", "succeeded")
	lost := []simulator.Rule{simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.DropAnswer{Reset: true})}
	large := plain
	large.Result = func(simulator.Job) (string, []byte) {
		return "application/json", []byte(`"` + strings.Repeat("x", 700<<10) + `"`)
	}
	return []scenario{
		{name: "standard", provider: "example", options: plain, ends: []string{"succeeded"}},
		{name: "standard, by timers", provider: "example", options: plain, ends: []string{"succeeded"}, timers: true},
		{name: "cancel", provider: "example", options: short("running"), next: cancelWhen("observing"), ends: []string{"cancelled"}},
		{
			name: "cancel while the job ends", provider: "example", options: plain, next: cancelWhen("observing"), ends: []string{"succeeded"},
			rules: []simulator.Rule{simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelFinishFirst)},
		},
		{
			name: "webhooks", provider: "example", options: plain, house: harness.Options{Webhooks: true}, ends: []string{"succeeded"},
			// The simulator sends once; a provider sends again what was not taken.
			rules: []simulator.Rule{simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2))},
		},
		{
			// The first event comes before the answer to the create, and says nothing
			// but the job.
			name: "webhooks to one address", provider: "example", options: plain, ends: []string{"succeeded"},
			house: harness.Options{Webhooks: true, SharedHooks: true, Edit: jobAlone},
			rules: []simulator.Rule{
				simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.EarlyWebhook{}, simulator.DelayAfter(time.Second)),
				simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2)),
			},
		},
		{
			// The answer is lost, and the event carries our reference.
			name: "webhooks to one address, answer lost", provider: "example-ask", options: plain, ends: []string{"succeeded"},
			house: harness.Options{Webhooks: true, SharedHooks: true, Edit: askWithReference},
			rules: []simulator.Rule{
				simulator.On(simulator.Create, simulator.Nth(1), simulator.EarlyWebhook{}, simulator.DropAnswer{Reset: true}),
				simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2)),
			},
		},
		{name: "lost answer, token", provider: "example", options: plain, rules: lost, ends: []string{"succeeded"}},
		{name: "lost answer, look-up", provider: "example-lookup", options: plain, rules: lost, ends: []string{"succeeded"}},
		{
			name: "lost answer, decision", provider: "example-ask", options: plain, next: adopt, ends: []string{"succeeded"},
			// Where the attempt was presumed, the question comes at the deadline.
			deadlines: &client.Deadlines{Create: "5m"},
			rules:     []simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true})},
		},
		{
			name: "result read once", provider: "example", options: plain, stopped: true,
			house: harness.Options{Edit: resultOnce},
			ends:  []string{"succeeded", "result_unavailable"},
		},
		{name: "result in parts", provider: "example", options: large, ends: []string{"succeeded"}},
		{
			name: "result deadline", provider: "example", options: simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")},
			house:   harness.Options{Edit: seldom},
			stopped: true, deadlines: &client.Deadlines{Result: "2m"}, ends: []string{"result_timed_out"},
		},
		{
			// The look-up finds the batch; that it finds none proves nothing there.
			name: "upload", provider: "openai-batches", options: plain, next: adopt,
			house: harness.Options{Builtin: []string{"openai-batches"}},
			ends:  []string{"succeeded"}, deadlines: &client.Deadlines{Create: "5m"},
		},
		{
			// The key changes behind the upload: it is made again, and the create with it.
			name: "upload, another key", provider: "openai-batches", options: plain, next: adopt, rotates: true,
			house: harness.Options{Builtin: []string{"openai-batches"}},
			ends:  []string{"succeeded"}, deadlines: &client.Deadlines{Create: "5m"},
		},
		{
			name: "input", provider: "example", options: short("running", "waiting", "running", "succeeded"), next: answerOnce, ends: []string{"succeeded"},
			rules: []simulator.Rule{simulator.On(simulator.Input, simulator.NthOfJob(1), simulator.DropAnswer{Reset: true})},
			judge: func(j simulator.Job) error {
				if len(j.Inputs) != 1 || j.Inputs[0] != answerText {
					return fmt.Errorf("the job took %q", j.Inputs)
				}
				return nil
			},
		},
		{
			name: "cleanup", provider: "example", options: short("running", "failed"), next: cleanUpOnce, ends: []string{"failed"},
			rules: []simulator.Rule{simulator.On(simulator.Cleanup, simulator.NthOfJob(1), simulator.DropAnswer{Reset: true})},
			until: func(op client.Operation) bool { return op.Cleanup != nil && op.Cleanup.Status == client.AskedDone },
			judge: func(j simulator.Job) error {
				if !j.Gone || j.Cleanups != 1 {
					return fmt.Errorf("the job is gone: %t, by %d cleanups", j.Gone, j.Cleanups)
				}
				return nil
			},
		},
		{
			name: "throttled", provider: "example", options: plain, ends: []string{"succeeded"},
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.ReplyRetry(429, simulator.RetryAfter{Text: "2"}))},
		},
	}
}

// seldom makes the example's status reads few.
func seldom(name, text string) string {
	const often = "poll_interval: {default: 2s,"
	if name == "example.yaml" && !strings.Contains(text, often) {
		panic("the example contract has changed: adjust seldom")
	}
	return strings.ReplaceAll(text, often, "poll_interval: {default: 25s,")
}

// jobAlone makes the example's webhooks say nothing of our reference.
func jobAlone(name, text string) string {
	const reference = "  reference: body.?client_reference\n"
	if name == "example.yaml" && !strings.Contains(text, reference) {
		panic("the example contract has changed: adjust jobAlone")
	}
	if name != "example.yaml" {
		return text
	}
	return strings.Replace(text, reference, "", 1)
}

// askWithReference makes the provider that can be asked for nothing store our
// reference and say it in its webhooks.
func askWithReference(name, text string) string {
	if name != "example-ask.yaml" {
		return text
	}
	const set, job = "      /webhook_url: callback_url\n", "  job_id: body.?job_id\n  state: body.?state\n"
	if !strings.Contains(text, set) || !strings.Contains(text, job) {
		panic("the example contract has changed: adjust askWithReference")
	}
	text = strings.Replace(text, set, set+"      /client_reference: client_reference\n", 1)
	return strings.Replace(text, job, job+"  reference: body.?client_reference\n", 1)
}

// resultOnce makes the example's result one that may be read once.
func resultOnce(name, text string) string {
	if name != "example.yaml" {
		return text
	}
	const safe = "  path: /v1/jobs/{job.id}/result\n  repeat: safe\n"
	if !strings.Contains(text, safe) {
		panic("the example contract has changed: adjust resultOnce")
	}
	return strings.Replace(text, safe, strings.Replace(safe, "safe", "once", 1), 1)
}

// adopt decides that the job the provider has is the operation's, or if it has
// none that the create is to be repeated.
func adopt(ctx context.Context, r *rig, op client.Operation) error {
	if op.State != "quarantined" {
		return nil
	}
	for _, j := range r.Sim.Jobs() {
		if strings.Contains(string(j.Body), `"`+r.key+`"`) {
			_, err := r.Client.Decide(ctx, op.ID, op.Version, "adopt-"+op.ID, client.Decision{Kind: "adopt", JobID: j.ID, Why: "test"})
			return err
		}
	}
	// The attempt never left; a human who has looked there lets it be repeated.
	_, err := r.Client.Decide(ctx, op.ID, op.Version, fmt.Sprintf("retry-%s-%d", op.ID, op.Version), client.Decision{
		Kind: "retry_create", AcceptRisk: true, Why: "test",
	})
	return err
}

// key names the i-th run of the scenario; 0 is the clean one.
func (s scenario) key(i int) string {
	return fmt.Sprintf("%s-%d", strings.NewReplacer(" ", "-", ",", "").Replace(s.name), i)
}

func (s scenario) submission(key string) client.Submission {
	sub := submission(s.provider, key)
	sub.Deadlines = s.deadlines
	sub.Session = s.name
	return sub
}

// cancelWhen asks for the cancellation once the operation is in the state.
func cancelWhen(state string) func(context.Context, *rig, client.Operation) error {
	return func(ctx context.Context, r *rig, op client.Operation) error {
		if op.State != state || op.Cancel != nil && op.Cancel.Wished {
			return nil
		}
		_, err := r.Client.Cancel(ctx, op.ID, "test")
		return err
	}
}

const answerText = `{"answer":"yes"}`

// answerOnce answers the first question of a job.
func answerOnce(ctx context.Context, r *rig, op client.Operation) error {
	if op.State != "input_required" || op.Input.Given != nil {
		return nil
	}
	_, err := r.Client.Keyed("answer").Answer(ctx, op, []byte(answerText))
	return err
}

// cleanUpOnce asks for a cleanup of an operation that has ended.
func cleanUpOnce(ctx context.Context, r *rig, op client.Operation) error {
	if !op.Terminal || op.Cleanup != nil {
		return nil
	}
	_, err := r.Client.Keyed("cleanup").Cleanup(ctx, op.ID, "", "test")
	return err
}

// full also repeats the steps that an earlier course or moment had.
var full = flag.Bool("full", false, "make every single step of every course go wrong, not only the first of each kind")

// TestEveryStep lets each durable step of each course of an operation fail in
// every mode. The steps are those that a clean run shows, so a new one is here
// without a line.
func TestEveryStep(t *testing.T) {
	known, labels, courses := map[string]bool{}, map[string]bool{}, 0
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			steps := s.cleanRun(t)
			courses++
			for _, one := range steps {
				labels[one.label] = true
			}
			if !*full {
				steps = slices.DeleteFunc(steps, func(one step) bool {
					kind := one.label + " before " + one.next
					seen := known[kind]
					known[kind] = true
					if s.rotates && strings.HasPrefix(one.label, "fact prepare.") {
						return false // known, and not with another key
					}
					return seen
				})
			}
			if len(steps) == 0 {
				return // all of its kinds were in the courses before
			}
			which := modes()
			if !*full && (s.name != "standard" || testing.Short()) {
				which = []mode{done, dieUndone, dieDone}
			}
			for _, m := range which {
				t.Run(strings.ReplaceAll(string(m), " ", "-"), func(t *testing.T) {
					// Not parallel: the server has one clock for the whole process.
					synctest.Test(t, func(t *testing.T) {
						r := s.open(t)
						for i, one := range steps {
							if problems := s.play(r, s.key(i+1), one, m); len(problems) > 0 {
								t.Errorf("%s at %s:\n%v", m, one, errors.Join(problems...))
							}
						}
					})
				})
			}
		})
	}
	if courses == len(scenarios()) { // not where -run picks some
		checkNamedSteps(t, labels)
	}
}

func (s scenario) open(t *testing.T) *rig {
	s.house.Woken = !s.timers
	r := newRig(t, s.house)
	r.mount = r.Mount(dialect(s.provider), s.provider, s.options, s.rules...)
	if s.rotates {
		r.rotateOnUpload(s.options)
	}
	return r
}

func dialect(provider string) simulator.Dialect {
	switch {
	case strings.HasPrefix(provider, "example-lookup"):
		return simulator.ExampleLookup
	case strings.HasPrefix(provider, "example-ask"):
		return simulator.ExampleAsk
	case provider == "openai-batches":
		return simulator.OpenAIBatches
	}
	return simulator.Example
}

// cleanRun lists the durable steps of the course when nothing goes wrong.
func (s scenario) cleanRun(t *testing.T) (steps []step) {
	synctest.Test(t, func(t *testing.T) {
		r := s.open(t)
		if problems := s.play(r, s.key(0), step{}, ""); len(problems) > 0 {
			t.Fatalf("nothing goes wrong:\n%v", errors.Join(problems...))
		}
		for _, one := range r.w.seen() {
			if one.label != "epoch" && one.label != "take-over" {
				steps = append(steps, one)
			}
		}
	})
	// A payload and a claim are known by the fact that relies on them.
	for i := len(steps) - 1; i > 0; i-- {
		if one := &steps[i-1]; one.label == "payload" || one.label == "claim" {
			if one.next = steps[i].next; strings.HasPrefix(steps[i].label, "fact ") {
				one.next = steps[i].label
			}
		}
	}
	return steps
}

// limit of one run, in the bubble's time.
const limit = 20 * time.Minute

// play makes one operation while the step goes wrong, as a caller who repeats
// what was not answered, and says what was not as it has to be.
func (s scenario) play(r *rig, key string, one step, m mode) (problems []error) {
	r.w.arm(one, m)
	r.key = key
	id, rest := "", 0
	var op client.Operation
	var err error
	start := time.Now()
	wait := time.Second
	for end := time.Now().Add(limit); ; time.Sleep(wait) {
		if time.Now().After(end) {
			problems = append(problems, fmt.Errorf("still %q (%s) after %s: %w", op.State, op.Reason, limit, err))
			if id != "" {
				problems = append(problems, errors.New(r.Story(id)))
			}
			return problems
		}
		if r.w.dead() {
			r.restart()
			rest = 0
			if id != "" {
				problems = append(problems, r.settled(id)...)
			}
		}
		var now client.Operation
		if now, err = s.ask(r, id, key); err != nil {
			continue
		}
		op, id = now, now.ID
		if !op.Terminal && !(s.stopped && op.Done) || s.until != nil && !s.until(op) {
			rest = 0
			if time.Since(start) > 20*time.Second {
				wait = 4 * time.Second
			}
			continue
		}
		// What comes after the end: the last acknowledgements, and looks owed.
		// A wake-up whose acknowledgement failed comes again when its lease ends.
		if rest++; rest > 1 && (one == step{} || r.w.wasHit()) && !r.w.dead() && len(r.audit(id)) == 0 || rest > 60 {
			break
		}
	}
	synctest.Wait()
	if one != (step{}) && !r.w.wasHit() {
		problems = append(problems, errors.New("the step never came"))
	}
	if r.w.dead() {
		problems = append(problems, errors.New("the process is dead at the end"))
	}
	state := op.State
	if op.Quarantine != "" {
		state += " " + op.Quarantine
	}
	if !slices.Contains(s.ends, state) {
		problems = append(problems, fmt.Errorf("ended %s (%s), want %v", state, op.Reason, s.ends))
	}
	if n := r.jobs(key); n != 1 {
		problems = append(problems, fmt.Errorf("%d jobs, want 1", n))
	}
	if n := r.Sim.MaxAtOnceAny(); n > 1 {
		problems = append(problems, fmt.Errorf("%d calls with side effects at once", n))
	}
	for _, j := range r.Sim.Jobs() {
		if s.judge != nil && strings.Contains(string(j.Body), `"`+key+`"`) {
			if err := s.judge(j); err != nil {
				problems = append(problems, err)
			}
		}
	}
	problems = append(problems, r.audit(id)...)
	if len(problems) > 0 {
		problems = append(problems, errors.New(r.Story(id)))
	}
	return problems
}

// ask is one request of a caller: the submit until it was answered, then a look
// and what the caller does about it. A caller waits for an answer so long.
func (s scenario) ask(r *rig, id, key string) (op client.Operation, err error) {
	ctx, stop := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer stop()
	if id == "" {
		op, _, err = r.Client.Submit(ctx, key, s.submission(key))
	} else {
		op, err = r.Client.Get(ctx, id)
	}
	if err == nil && s.next != nil {
		err = s.next(ctx, r, op)
	}
	return op, err
}

// Where one process submits and creates, it stores parameters, request and result,
// the request before the create is decided on: by then the worker has nothing to
// store.
func TestTheRequestIsStoredAtSubmit(t *testing.T) {
	for _, s := range scenarios() {
		if s.name != "standard, by timers" {
			continue
		}
		var order []string
		for _, one := range s.cleanRun(t) {
			switch one.label {
			case "payload", "fact create.attempted", "fact result.collected":
				order = append(order, one.label)
			}
		}
		want := []string{"payload", "payload", "fact create.attempted", "payload", "fact result.collected"}
		if !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
		return
	}
	t.Fatal("the course is gone")
}
