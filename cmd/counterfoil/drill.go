package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/simulator"
)

// drill is one failure that every contract has to survive.
type drill struct {
	name string
	// applies says which contracts can meet this failure; nil means all.
	applies func(role) bool
	rules   []simulator.Rule
	// waits: the job asks for an answer on its way.
	waits bool
	// deaf is without webhooks: one would tell what the answers did not.
	deaf bool
	// jobs is how many jobs have to be made; nil means one.
	jobs func(role) int
	// play brings the failure about and gives the operation as it ended.
	play func(ctx context.Context, r *rehearsal) (client.Operation, error)
	// verdict says what is wrong with the end; "" is a pass.
	verdict func(r *rehearsal, op client.Operation) string
}

// role is what the drills have to know of a contract.
type role struct {
	contract string
	promises events.Promises
	offers   events.Offers
	webhooks bool // the provider calls back, and the contract reads it
	prepares bool // something comes before the create
}

// asks says whether a contract that lost a create's answer would ask although a
// job exists: nothing it may do tells which job is its own.
func (r role) asks() bool {
	return r.promises.Guarantee != events.Deduplicated && r.promises.Lookup != events.LookupExact
}

// proves says whether a create that made nothing may be sent again: the token
// makes that harmless, or the absence of a job can be proved.
func (r role) proves() bool {
	return r.promises.Guarantee == events.Deduplicated || r.promises.Guarantee == events.Recoverable
}

// rehearsal is one drill of one contract, on a stage of its own.
type rehearsal struct {
	role
	stage     *stage
	gate      *simulator.Gate
	mount     *simulator.Mount
	timeline  []client.Entry
	deadlines *client.Deadlines  // of what is submitted; nil leaves them to the contract
	others    []client.Operation // those beside the one that play gives
	rested    bool               // a step waited for the credential it began with
	slowed    bool               // a step waited because the provider throttles
}

// verdict is one line of the outcome.
type verdict struct {
	Contract  string  `json:"contract"`
	Guarantee string  `json:"guarantee"`
	Drill     string  `json:"drill"`
	Passed    bool    `json:"passed"`
	Ended     string  `json:"ended"` // the operation's state
	Jobs      int     `json:"jobs"`
	Detail    string  `json:"detail,omitempty"`
	Seconds   float64 `json:"seconds"`
}

const drillLimit = 90 * time.Second // for one drill of one contract

// words gives the states of a job as each simulated provider calls them.
func words(contract string, every time.Duration) simulator.Plan {
	switch simulator.Dialect(contract) {
	case simulator.Replicate:
		return simulator.Steps(every, "starting", "processing", "succeeded")
	case simulator.OpenAIBatches:
		return simulator.Steps(every, simulator.Queued, simulator.Running, simulator.Finalizing, simulator.Succeeded)
	}
	return simulator.Steps(every, "queued", "running", "succeeded")
}

// params are what a caller might give the provider, for the n-th operation.
func params(contract string, n int) (json.RawMessage, error) {
	var p any
	switch simulator.Dialect(contract) {
	case simulator.OpenAIBatches:
		var lines []any
		for i := range 3 {
			lines = append(lines, map[string]any{
				"custom_id": fmt.Sprintf("item-%d-%d", n, i+1), "method": "POST", "url": "/v1/responses",
				"body": map[string]string{"model": "m-1", "input": "drill"},
			})
		}
		p = map[string]any{
			"requests": lines, "endpoint": "/v1/responses", "completion_window": "24h",
			"metadata": map[string]string{"purpose": "drill"},
		}
	case simulator.StripeReporting:
		p = map[string]any{"report_type": "balance.summary.1", "parameters": map[string]any{
			"interval_start": 1788220800, "interval_end": 1789430400 + 86400*n, "columns": []string{"category", "net"},
		}}
	default:
		p = map[string]any{
			"correlation": fmt.Sprint(contract, n), "version": "v1", "input": map[string]any{"text": "drill", "n": n},
		}
	}
	return json.Marshal(p)
}

func drills() []drill {
	return []drill{
		{
			name:  "create answer dropped after acceptance",
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.DropAnswer{Reset: true})},
			deaf:  true,
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				return r.submitAndWait(ctx)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				if r.asks() {
					return stopped(op)
				}
				return want(op.State == "succeeded", "the job exists and must be found")
			},
		},
		{
			name: "worker killed after the job id is saved, before the first poll",
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				saved := make(chan struct{})
				r.stage.work("1", func(kind string) bool {
					if strings.Contains(kind, "create.answered") {
						close(saved)
						return true
					}
					return false
				})
				id, err := r.submit(ctx)
				if err != nil {
					return client.Operation{}, err
				}
				select {
				case <-saved:
				case <-ctx.Done():
					return client.Operation{}, ctx.Err()
				}
				r.stage.work("2", nil)
				return r.wait(ctx, id)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				return firstOf(
					want(op.State == "succeeded", "the saved job must be followed to its end"),
					want(r.creates() == 1, "one create is on the wire"))
			},
		},
		{
			name:  "terminal result during a cancel",
			rules: []simulator.Rule{simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelFinishFirst)},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				id, err := r.submit(ctx)
				if err != nil {
					return client.Operation{}, err
				}
				for op, err := range r.stage.client.Watch(ctx, id) {
					if err != nil {
						return op, err
					}
					if op.Job != nil && op.Job.ID != "" {
						break
					}
				}
				_, err = r.stage.client.Cancel(ctx, id, "drill")
				var refused *client.Problem
				if !r.promises.Cancels && errors.As(err, &refused) && refused.Code == "cancel_unsupported" {
					err = nil // as it must be
				} else if !r.promises.Cancels {
					return client.Operation{}, fmt.Errorf("a provider without a cancel call was asked for one: %w", err)
				}
				if err != nil {
					return client.Operation{}, err
				}
				return r.wait(ctx, id)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				if !r.promises.Cancels {
					return firstOf(
						want(op.State == "succeeded", "a refused wish changes nothing"),
						want(op.Cancel == nil || !op.Cancel.Wished, "a refused wish must not be kept"))
				}
				return firstOf(
					want(op.State == "succeeded", "the job had succeeded: claiming a cancellation would be false"),
					want(op.Cancel != nil && op.Cancel.Wished && op.Cancel.TooLate, "the wish must be shown as too late"))
			},
		},
		{
			name:  "the same webhook twice",
			rules: []simulator.Rule{simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2))},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				op, err := r.submitAndWait(ctx)
				if err != nil {
					return op, err
				}
				return op, r.delivered(ctx, op.ID)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				delivered, refused, told := map[string]int{}, 0, map[string]int{}
				list := r.stage.sim.Deliveries()
				for _, d := range list {
					delivered[d.EventID]++
					if d.Err == nil && d.Status >= 300 {
						refused++
					}
				}
				for _, e := range r.timeline {
					if strings.HasPrefix(e.Type, "webhook.received") {
						told[e.Fields["event_id"]]++
					}
				}
				twice := func(counts map[string]int) bool {
					return slices.ContainsFunc(slices.Collect(maps.Values(counts)), func(n int) bool { return n > 1 })
				}
				if !r.webhooks {
					return firstOf(
						want(op.State == "succeeded", "the job succeeded, and reading tells"),
						want(refused == len(list) && len(told) == 0, "a contract that reads no webhook takes none"))
				}
				return firstOf(
					want(op.State == "succeeded", "the job succeeded"),
					want(twice(delivered), "the drill must deliver an event twice"),
					want(refused == 0, "no delivery may be refused"),
					want(len(told) > 0 && !twice(told), "each event must be one fact"))
			},
		},
		{
			name: "restart with a stale lease",
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				remove := r.mount.Add(simulator.On(simulator.Status, simulator.Always(), simulator.HoldBefore{Gate: r.gate}))
				m := r.stage.work("1", nil)
				id, err := r.submit(ctx)
				if err != nil {
					return client.Operation{}, err
				}
				// The worker holds the lease while its read hangs. It dies, and
				// the service stops and starts on the same directory.
				if !r.gate.WaitArrived(1, ctx.Done()) {
					return client.Operation{}, ctx.Err()
				}
				m.kill()
				if err := r.stage.stop(); err != nil {
					return client.Operation{}, err
				}
				remove()
				r.gate.Release()
				if err := r.stage.open(context.WithoutCancel(ctx)); err != nil {
					return client.Operation{}, err
				}
				r.stage.work("2", nil)
				return r.wait(ctx, id)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				return firstOf(
					want(op.State == "succeeded", "the operation must be attended to again"),
					want(r.creates() == 1, "one create is on the wire"))
			},
		},
		{
			name:  "create lost on its way",
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.NeverReceive{Reset: true})},
			deaf:  true,
			jobs: func(r role) int {
				if r.proves() {
					return 1
				}
				return 0
			},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				if !r.proves() {
					// It looks for its job until its deadlines have passed.
					r.deadlines = &client.Deadlines{Create: "4s", Result: "6s"}
				}
				return r.submitAndWait(ctx)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				if !r.proves() {
					return stopped(op)
				}
				return want(op.State == "succeeded", "nothing was made, and so it must be sent again")
			},
		},
		{
			name:    "upload answer dropped",
			applies: func(r role) bool { return r.prepares },
			rules:   []simulator.Rule{simulator.On(simulator.Prepare, simulator.Nth(1), simulator.DropAnswer{Reset: true})},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				return r.submitAndWait(ctx)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				return firstOf(
					want(op.State == "succeeded", "a second upload is harmless and must be made"),
					want(len(r.mount.Uploads()) == 2, "the drill must lose the answer of an upload"),
					want(r.creates() == 1, "one create is on the wire"))
			},
		},
		{
			name:    "answer to an input dropped after it was taken",
			applies: func(r role) bool { return r.offers.Input },
			rules:   []simulator.Rule{simulator.On(simulator.Input, simulator.Nth(1), simulator.DropAnswer{Reset: true})},
			waits:   true,
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				id, err := r.submit(ctx)
				if err != nil {
					return client.Operation{}, err
				}
				asks, err := r.until(ctx, id, func(op client.Operation) bool { return op.State == "input_required" || op.Done })
				if err != nil {
					return asks, err
				}
				if op, err := r.stage.client.Answer(ctx, asks, json.RawMessage(`{"answer": "drill"}`)); err != nil {
					return op, err
				}
				return r.wait(ctx, id)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				taken := 0
				for _, j := range r.stage.sim.Jobs() {
					taken += len(j.Inputs)
				}
				return firstOf(
					want(op.State == "succeeded", "the job has its answer and must be followed to its end"),
					want(taken == 1, "the job must be told once"))
			},
		},
		{
			name:    "cleanup answer dropped after the job was removed",
			applies: func(r role) bool { return r.offers.Cleanup },
			rules:   []simulator.Rule{simulator.On(simulator.Cleanup, simulator.Nth(1), simulator.DropAnswer{Reset: true})},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				op, err := r.submitAndWait(ctx)
				if err != nil {
					return op, err
				}
				if op, err := r.stage.client.Cleanup(ctx, op.ID, "", "drill"); err != nil {
					return op, err
				}
				return r.until(ctx, op.ID, func(op client.Operation) bool {
					return op.Cleanup != nil && op.Cleanup.Status != "waiting" && op.Cleanup.Status != "sending"
				})
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				ended, sent := "unknown", 1
				if r.promises.RepeatCleanup {
					ended, sent = "done", 2
				}
				return firstOf(
					want(op.State == "succeeded", "what was removed at the provider changes nothing here"),
					want(op.Cleanup.Status == ended, "claiming what was not seen would be false: "+op.Cleanup.Status),
					want(r.stage.sim.Count(simulator.Filter{Call: simulator.Cleanup}) == sent, "it is sent again only where that is safe"))
			},
		},
		{
			name: "the provider throttles everybody for a while",
			rules: []simulator.Rule{
				simulator.On(simulator.Prepare, simulator.First(2), simulator.Throttled(simulator.RetryAfter{})),
				simulator.On(simulator.Create, simulator.First(3), simulator.Throttled(simulator.RetryAfter{Text: "1"})),
				simulator.On(simulator.Status, simulator.First(5), simulator.Throttled(simulator.RetryAfter{})),
				simulator.On(simulator.Result, simulator.First(2), simulator.Throttled(simulator.RetryAfter{})),
			},
			deaf: true,
			jobs: func(role) int { return crowd },
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				var ids []string
				for n := range crowd {
					id, err := r.submitNth(ctx, n)
					if err != nil {
						return client.Operation{}, err
					}
					ids = append(ids, id)
				}
				r.stage.work("1", nil)
				for _, id := range ids[1:] {
					op, err := r.wait(ctx, id)
					if err != nil {
						return op, err
					}
					r.others = append(r.others, op)
				}
				return r.wait(ctx, ids[0])
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				refused := r.stage.sim.Count(simulator.Filter{Status: http.StatusTooManyRequests})
				for _, other := range append(r.others, op) {
					if other.State != "succeeded" {
						return "a throttled operation must succeed in the end; one is " + stateOf(other)
					}
				}
				return firstOf(
					want(refused >= 10, "the drill must refuse calls"),
					want(r.slowed, "an operation that waits for its turn must say so"))
			},
		},
		{
			name: "credential changed while a create is unknown",
			deaf: true,
			play: playRotation,
			verdict: func(r *rehearsal, op client.Operation) string {
				if call := r.leaked(); call != "" {
					return "nothing may leave under another identity while a create is unknown: " + call
				}
				// Without token and look-up there is no call that could wait.
				calls := r.promises.Guarantee == events.Deduplicated || r.promises.Lookup != events.LookupNone
				if r.rested != calls {
					return "a call that waits for its credential must say so"
				}
				if r.asks() {
					return stopped(op)
				}
				return want(op.State == "succeeded", "with its credential back it must go on")
			},
		},
	}
}

// crowd is how many operations are throttled at once.
const crowd = 5

// playRotation changes the service's credential before a create's answer is
// lost, and puts it back once a step rests for it.
func playRotation(ctx context.Context, r *rehearsal) (client.Operation, error) {
	r.mount.Add(simulator.On(simulator.Create, simulator.Nth(1), simulator.HoldAfter{Gate: r.gate}, simulator.DropAnswer{Reset: true}))
	r.stage.work("1", nil)
	id, err := r.submit(ctx)
	if err != nil {
		return client.Operation{}, err
	}
	if !r.gate.WaitArrived(1, ctx.Done()) {
		return client.Operation{}, ctx.Err()
	}
	r.stage.rotate(rotatedToken)
	r.gate.Release()
	for op, err := range r.stage.client.Watch(ctx, id) {
		if err != nil {
			return op, err
		}
		if r.timeline, err = r.stage.client.Timeline(ctx, id, 0); err != nil {
			return op, err
		}
		if r.rested = r.deferred(events.DeferTargetChanged); r.rested || r.leaked() != "" {
			break
		}
	}
	r.stage.rotate(stageToken)
	return r.wait(ctx, id)
}

// leaked names a call that left with the credential a drill put in place.
func (r *rehearsal) leaked() string {
	for _, q := range r.stage.sim.Requests(simulator.Filter{}) {
		if strings.Contains(q.Header.Get("Authorization"), rotatedToken) {
			return string(q.Call)
		}
	}
	return ""
}

// stopped is the verdict on a contract that cannot know.
func stopped(op client.Operation) string {
	return want(op.State == "quarantined" && op.Quarantine == "unknown", "a contract that cannot know must stop and ask")
}

func want(ok bool, promise string) string {
	if ok {
		return ""
	}
	return promise
}

func (r *rehearsal) submit(ctx context.Context) (string, error) { return r.submitNth(ctx, 0) }

func (r *rehearsal) submitNth(ctx context.Context, n int) (string, error) {
	p, err := params(r.contract, n)
	if err != nil {
		return "", err
	}
	op, _, err := r.stage.client.Submit(ctx, fmt.Sprintf("drill-%d", n), client.Submission{
		Provider: r.contract, Account: "drill", Params: p, Deadlines: r.deadlines,
	})
	return op.ID, err
}

func (r *rehearsal) submitAndWait(ctx context.Context) (client.Operation, error) {
	id, err := r.submit(ctx)
	if err != nil {
		return client.Operation{}, err
	}
	return r.wait(ctx, id)
}

// wait watches the operation until it is done and keeps its timeline.
func (r *rehearsal) wait(ctx context.Context, id string) (last client.Operation, err error) {
	for op, err := range r.stage.client.Watch(ctx, id) {
		if err != nil {
			return last, fmt.Errorf("still %s: %w", stateOf(last), err)
		}
		last = op
	}
	if r.timeline, err = r.stage.client.Timeline(ctx, id, 0); err != nil {
		return last, err
	}
	r.slowed = r.slowed || r.deferred(events.DeferThrottled)
	return last, nil
}

// until asks for the operation until something is so.
func (r *rehearsal) until(ctx context.Context, id string, so func(client.Operation) bool) (client.Operation, error) {
	for {
		op, err := r.stage.client.Get(ctx, id)
		if err != nil || so(op) {
			return op, err
		}
		select {
		case <-ctx.Done():
			return op, fmt.Errorf("still %s: %w", stateOf(op), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// deferred says whether a step in the timeline rests for this reason.
func (r *rehearsal) deferred(why events.DeferReason) bool {
	return slices.ContainsFunc(r.timeline, func(e client.Entry) bool { return e.Fields["reason"] == string(why) })
}

// delivered waits until the last event of the job was posted twice, and, if the
// contract reads webhooks, until one is in the timeline: an event may come after
// the read that ended the operation.
func (r *rehearsal) delivered(ctx context.Context, id string) (err error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	for {
		if r.timeline, err = r.stage.client.Timeline(ctx, id, 0); err != nil {
			return err
		}
		ends := 0
		for _, d := range r.stage.sim.Deliveries() {
			if simulator.Terminal(d.State) {
				ends++
			}
		}
		told := slices.ContainsFunc(r.timeline, func(e client.Entry) bool { return strings.HasPrefix(e.Type, "webhook.received") })
		if ends == 2 && told == r.webhooks {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // the verdict says what is missing
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *rehearsal) creates() int { return r.stage.sim.Count(simulator.Filter{Call: simulator.Create}) }

func (a *app) drillCommand() *cobra.Command {
	var only []string
	c := &cobra.Command{
		Use:   "drill [CONTRACT...]",
		Short: "Rehearse failures against the simulator, with a verdict for each contract",
		Long: `Rehearse failures with the built-in contracts (all, or those named) against
simulated providers: an answer lost after acceptance, a worker killed, a result
during a cancel, a webhook twice, a restart with a stale lease, a create and an
upload lost, an answer to a waiting job and a cleanup of which nothing is heard,
throttling, a credential changed at the wrong moment. The exit code is 1 if one
of them does not end as the contract's guarantee says. A contract that cannot
know what became of a create stops and asks; that is its pass.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.drill(cmd.Context(), args, only) },
	}
	c.Flags().StringArrayVar(&only, "only", nil, "only the drills whose name contains `TEXT`; may be repeated")
	return c
}

// chosen are the drills whose name contains one of the texts; all without texts.
func chosen(only []string) ([]drill, error) {
	list := drills()
	if len(only) == 0 {
		return list, nil
	}
	var names []string
	for _, one := range list {
		names = append(names, one.name)
	}
	for _, text := range only {
		if text == "" || !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, text) }) {
			return nil, usage("no drill's name contains %q: there are: %s", text, strings.Join(names, "; "))
		}
	}
	return slices.DeleteFunc(list, func(one drill) bool {
		return !slices.ContainsFunc(only, func(text string) bool { return strings.Contains(one.name, text) })
	}), nil
}

func (a *app) drill(ctx context.Context, names, only []string) error {
	list, err := chosen(only)
	if err != nil {
		return err
	}
	files, err := hurried()
	if err != nil {
		return err
	}
	contracts, _, err := wire.LoadContracts(files, "")
	if err != nil {
		return err
	}
	all := slices.Sorted(maps.Keys(contracts))
	if len(names) == 0 {
		names = all
	}
	for _, name := range names {
		if contracts[name] == nil {
			return usage("no built-in contract is named %q: there are %s", name, strings.Join(all, ", "))
		}
	}
	each := make([][]verdict, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		part, err := roleOf(contracts[name])
		if err != nil {
			return err
		}
		wait.Go(func() { // the drills of one contract after each other, the contracts side by side
			for _, one := range list {
				if one.applies != nil && !one.applies(part) {
					continue
				}
				start := time.Now()
				v := rehearse(ctx, part, one)
				v.Contract, v.Guarantee, v.Drill = name, string(part.promises.Guarantee), one.name
				v.Seconds = time.Since(start).Seconds()
				each[i] = append(each[i], v)
			}
		})
	}
	wait.Wait()
	results, failed := slices.Concat(each...), 0
	for _, v := range results {
		if !v.Passed {
			failed++
		}
	}
	if a.output == "json" {
		err = a.json(map[string]any{"verdicts": results, "failed": failed})
	} else {
		for _, v := range results {
			mark := "pass"
			if !v.Passed {
				mark = "FAIL"
			}
			fmt.Fprintf(a.stdout, "%s  %-16s %-63s %-12s jobs %d  %4.1fs  %s\n", mark, v.Contract, v.Drill, v.Ended, v.Jobs, v.Seconds, v.Detail)
		}
		fmt.Fprintf(a.stdout, "%d drills, %d failed\n", len(results), failed)
	}
	if err == nil && failed > 0 {
		return ended(exitFailure)
	}
	return err
}

// roleOf reads from a contract what the drills go by.
func roleOf(c *contract.Contract) (role, error) {
	p, err := params(c.Name, 0)
	if err != nil {
		return role{}, err
	}
	steps, err := c.Prepares(contract.Inputs{Params: p})
	if err != nil {
		return role{}, fmt.Errorf("what comes before a create of %s: %w", c.Name, err)
	}
	return role{contract: c.Name, promises: c.Promises(true), offers: c.Offers(), webhooks: c.Webhook != nil, prepares: steps > 0}, nil
}

// rehearse plays one drill of one contract.
func rehearse(ctx context.Context, part role, one drill) (v verdict) {
	ctx, stop := context.WithTimeout(ctx, drillLimit)
	defer stop()
	fail := func(err error) verdict { return verdict{Ended: v.Ended, Detail: err.Error()} }
	dir, remove, err := tempDir("drill")
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err := remove(); err != nil && v.Passed {
			v = fail(err)
		}
	}()
	s, err := newStage(dir, quiet())
	if err != nil {
		return fail(err)
	}
	defer s.close()
	if err := s.hurry(); err != nil {
		return fail(err)
	}
	options := simulator.Options{Plan: words(part.contract, 500*time.Millisecond), StandardWebhooks: true}
	if one.waits {
		options.Plan = simulator.Steps(500*time.Millisecond, simulator.Queued, simulator.Waiting, simulator.Running, simulator.Succeeded)
	}
	if part.webhooks && !one.deaf {
		s.hooks = map[string]string{part.contract: stageSecret}
		switch simulator.Dialect(part.contract) {
		case simulator.Replicate, simulator.OpenAIBatches:
			s.hooks[part.contract] = "whsec_" + base64.StdEncoding.EncodeToString([]byte(stageSecret))
		}
	}
	r := &rehearsal{role: part, stage: s, gate: simulator.NewGate()}
	defer r.gate.Release()
	r.mount = s.mount(part.contract, "drill", options, one.rules...)
	if err := s.open(context.WithoutCancel(ctx)); err != nil {
		return fail(err)
	}
	defer func() {
		if err := s.stop(); err != nil && v.Passed {
			v = fail(err)
		}
	}()
	if !one.deaf {
		// For a provider that is told an address once, not with each job.
		options = r.mount.Options()
		options.Callback = s.url() + "/hooks/" + part.contract
		r.mount.Configure(options)
	}
	stated, err := s.guarantee(ctx, part.contract)
	if err != nil {
		return fail(err)
	}
	op, err := one.play(ctx, r)
	v.Ended, v.Jobs = op.State, len(s.sim.Jobs())
	if err != nil {
		return fail(err)
	}
	jobs := 1
	if one.jobs != nil {
		jobs = one.jobs(part)
	}
	v.Detail = firstOf(one.verdict(r, op),
		want(v.Jobs == jobs, fmt.Sprintf("jobs to be made: %d", jobs)),
		want(s.sim.DuplicateCount() == 0, "no job may be made twice"),
		want(stated == string(part.promises.Guarantee), "the service must state the contract's guarantee"))
	v.Passed = v.Detail == ""
	if v.Passed && op.Quarantine != "" {
		v.Detail = "stopped and asks: " + op.Reason
	}
	return v
}

// guarantee is what the running service says of a provider.
func (s *stage) guarantee(ctx context.Context, provider string) (string, error) {
	raw, err := s.client.Capabilities(ctx)
	if err != nil {
		return "", err
	}
	var c struct {
		Providers []struct {
			Name      string `json:"name"`
			Guarantee struct {
				Name string `json:"name"`
			} `json:"guarantee"`
		} `json:"providers"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("read capabilities: %w", err)
	}
	for _, p := range c.Providers {
		if p.Name == provider {
			return p.Guarantee.Name, nil
		}
	}
	return "", errors.New("the service does not offer the provider")
}
