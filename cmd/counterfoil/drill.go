package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/simulator"
)

// drill is one failure that every contract has to survive.
type drill struct {
	name    string
	options simulator.Options
	rules   []simulator.Rule
	// play brings the failure about and gives the operation as it ended.
	play func(ctx context.Context, r *rehearsal) (client.Operation, error)
	// verdict says what is wrong with the end; "" is a pass.
	verdict func(r *rehearsal, op client.Operation) string
}

// rehearsal is one drill of one contract, on a stage of its own.
type rehearsal struct {
	stage    *stage
	contract string
	asks     bool // after a lost answer this contract can only stop and ask
	gate     *simulator.Gate
	mount    *simulator.Mount
	timeline []client.Entry
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
	if contract == "replicate" {
		return simulator.Steps(every, "starting", "processing", "succeeded")
	}
	return simulator.Steps(every, "queued", "running", "succeeded")
}

func drills() []drill {
	return []drill{
		{
			name:  "create answer dropped after acceptance",
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.DropAnswer{Reset: true})},
			play: func(ctx context.Context, r *rehearsal) (client.Operation, error) {
				r.stage.work("1", nil)
				return r.submitAndWait(ctx)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				if r.asks {
					return want(op.State == "quarantined" && op.Quarantine == "unknown", "a contract that cannot know must stop and ask")
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
				if _, err := r.stage.client.Cancel(ctx, id, "drill"); err != nil {
					return client.Operation{}, err
				}
				return r.wait(ctx, id)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
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
				return r.submitAndWait(ctx)
			},
			verdict: func(r *rehearsal, op client.Operation) string {
				delivered, refused, told := map[string]int{}, 0, map[string]int{}
				for _, d := range r.stage.sim.Deliveries() {
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
	}
}

func want(ok bool, promise string) string {
	if ok {
		return ""
	}
	return promise
}

func (r *rehearsal) submit(ctx context.Context) (string, error) {
	params, err := json.Marshal(map[string]any{"correlation": r.contract, "version": "v1", "input": map[string]string{"text": "drill"}})
	if err != nil {
		return "", err
	}
	op, _, err := r.stage.client.Submit(ctx, "drill", client.Submission{Provider: r.contract, Account: "drill", Params: params})
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
	r.timeline, err = r.stage.client.Timeline(ctx, id, 0)
	return last, err
}

func (r *rehearsal) creates() int { return r.stage.sim.Count(simulator.Filter{Call: simulator.Create}) }

func (a *app) drillCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drill [CONTRACT...]",
		Short: "Rehearse five failures against the simulator, with a verdict for each contract",
		Long: `Rehearse five failures with the built-in contracts (all, or those named) against
simulated providers: an answer lost after acceptance, a worker killed, a result
during a cancel, a webhook twice, a restart with a stale lease. The exit code is
1 if one of them does not end as the contract's guarantee says. A contract that
cannot know what became of a create stops and asks; that is its pass.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.drill(cmd.Context(), args) },
	}
}

func (a *app) drill(ctx context.Context, names []string) error {
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
	list := drills()
	results := make([]verdict, len(names)*len(list))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { // the drills of one contract after each other, the contracts side by side
			for k, one := range list {
				start := time.Now()
				v := rehearse(ctx, name, one)
				v.Contract, v.Guarantee, v.Drill = name, string(contracts[name].Guarantee()), one.name
				v.Seconds = time.Since(start).Seconds()
				results[i*len(list)+k] = v
			}
		})
	}
	wait.Wait()
	failed := 0
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
			fmt.Fprintf(a.stdout, "%s  %-15s %-63s %-12s jobs %d  %4.1fs  %s\n", mark, v.Contract, v.Drill, v.Ended, v.Jobs, v.Seconds, v.Detail)
		}
		fmt.Fprintf(a.stdout, "%d drills, %d failed\n", len(results), failed)
	}
	if err == nil && failed > 0 {
		return ended(exitFailure)
	}
	return err
}

// rehearse plays one drill of one contract.
func rehearse(ctx context.Context, contract string, one drill) (v verdict) {
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
	if s.contracts, err = hurried(); err != nil {
		return fail(err)
	}
	s.hooks = map[string]string{contract: stageSecret}
	options := one.options
	options.Plan = words(contract, 500*time.Millisecond)
	if contract == "replicate" {
		options.StandardWebhooks = true
		s.hooks[contract] = "whsec_" + base64.StdEncoding.EncodeToString([]byte(stageSecret))
	}
	if one.name == drills()[0].name {
		s.hooks = nil // a webhook would tell what the answer did not
	}
	r := &rehearsal{stage: s, contract: contract, gate: simulator.NewGate()}
	defer r.gate.Release()
	r.mount = s.mount(contract, "drill", options, one.rules...)
	if err := s.open(context.WithoutCancel(ctx)); err != nil {
		return fail(err)
	}
	defer func() {
		if err := s.stop(); err != nil && v.Passed {
			v = fail(err)
		}
	}()
	promises, err := s.guarantee(ctx, contract)
	if err != nil {
		return fail(err)
	}
	r.asks = promises == "ask_after_loss"
	op, err := one.play(ctx, r)
	v.Ended, v.Jobs = op.State, len(s.sim.Jobs())
	if err != nil {
		return fail(err)
	}
	v.Detail = firstOf(one.verdict(r, op), want(v.Jobs == 1, "one job must have been made"), want(s.sim.DuplicateCount() == 0, "no job may be made twice"))
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
