package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
)

const (
	// What the issue asks for.
	nodeBound = 10 * time.Second
	lease     = 30 * time.Second
	roleBound = lease + 2*time.Second

	base     = "/example"
	patience = 3 * time.Minute // for the last operation to end
)

type options struct {
	docker, project string
	secrets, listen string
	rate            float64
	calm            time.Duration
	breaks          []string
}

// stopped before one of all says that it is told to stop, and not killed.
const stopped = "stopped "

// all are the things that can be killed: two of the nodes, and one of each role.
func all() []string {
	return []string{"nats node", "ledger leader", "ingest", "projector", "poller", "webhooks"}
}

// ingests are where compose.yaml publishes the two.
func ingests() []string { return []string{"http://127.0.0.1:7766", "http://127.0.0.1:7768"} }

// Report is what a run found. Times are in seconds.
type Report struct {
	Ops        int            `json:"ops"`
	Wall       float64        `json:"wall_s"`
	Lost       int            `json:"lost"`
	Duplicates int            `json:"duplicates"`
	Unfinished map[string]int `json:"unfinished,omitempty"`
	Retried    int            `json:"submits_retried"`
	Broken     []Broken       `json:"broken"`
}

// Broken is one thing that was killed with kill -9, or told to stop.
type Broken struct {
	What string `json:"what"` // "nats node", "ledger leader", or a role; before it "stopped "
	Name string `json:"container"`
	// Progress is when the provider got the create of an operation that was
	// submitted after the kill.
	Progress float64 `json:"progress_s"`
	// Attended is when the last of the operations that were under way had been
	// attended to again.
	Attended float64 `json:"attended_s"`
	// UnderWay is how many there were.
	UnderWay int `json:"under_way"`
}

// operation is one submission and what the caller knows of it.
type operation struct {
	n         int
	submitted time.Time
	id        string
}

type drive struct {
	o       options
	sim     *simulator.Simulator
	clients []*client.Client

	mu      sync.Mutex
	ops     []*operation // guarded by mu
	retried int          // guarded by mu
	errs    []error      // guarded by mu
}

func run(ctx context.Context, o options) (*Report, error) {
	key, err := os.ReadFile(filepath.Join(o.secrets, "api-key"))
	if err != nil {
		return nil, err
	}
	d := &drive{o: o, sim: simulator.New(simulator.Config{Seed: 1, CorrelateAlways: true})}
	defer d.sim.Close()
	d.sim.Mount(base, simulator.Example).Configure(simulator.Options{
		Plan: simulator.Plan{PerRead: true, Steps: []simulator.Step{{State: "queued"}, {State: "running"}, {State: "running"}, {State: "succeeded"}}},
		Result: func(j simulator.Job) (string, []byte) {
			return "application/json", []byte(fmt.Sprintf(`{"job":%q,"output":%q}`, j.ID, strings.Repeat(j.ID, 60)))
		},
	})
	if _, err := d.sim.Listen(o.listen); err != nil {
		return nil, fmt.Errorf("start the provider: %w", err)
	}
	for _, url := range ingests() {
		c, err := client.New(url, strings.TrimSpace(string(key)), &http.Client{Timeout: 15 * time.Second})
		if err != nil {
			return nil, err
		}
		d.clients = append(d.clients, c.Retrying(client.Retry{Tries: 1})) // it tries the next node instead
	}
	return d.run(ctx)
}

func (d *drive) run(ctx context.Context) (*Report, error) {
	begin := time.Now()
	report := &Report{}
	load, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	group.Go(func() { d.load(load, ctx, &group) })
	broken, err := d.breakAll(ctx)
	report.Broken = broken
	stop()
	group.Wait()
	if err == nil {
		err = d.finish(ctx, report)
	}
	report.Wall = seconds(time.Since(begin))
	report.Duplicates = d.sim.DuplicateCount()
	d.mu.Lock()
	defer d.mu.Unlock()
	report.Ops, report.Retried = len(d.ops), d.retried
	err = errors.Join(append([]error{err}, d.errs...)...)
	return report, errors.Join(err, report.check())
}

func (r *Report) check() (err error) {
	if r.Lost > 0 || len(r.Unfinished) > 0 {
		err = errors.Join(err, fmt.Errorf("%d operations are lost, unfinished are %v", r.Lost, r.Unfinished))
	}
	if r.Duplicates > 0 {
		err = errors.Join(err, fmt.Errorf("%d jobs were made twice", r.Duplicates))
	}
	for _, b := range r.Broken {
		bound := roleBound
		if strings.HasPrefix(b.Name, "nats") {
			bound = nodeBound
		}
		if b.Progress > bound.Seconds() {
			err = errors.Join(err, fmt.Errorf("after the end of %s new operations moved after %.1f s, bound %s", b.Name, b.Progress, bound))
		}
		// A status read is due a second after the last.
		if b.Attended > (roleBound + time.Second).Seconds() {
			err = errors.Join(err, fmt.Errorf("after the end of %s the operations under way were attended to after %.1f s, bound %s", b.Name, b.Attended, roleBound))
		}
	}
	return err
}

// load submits on a schedule until ctx ends. What was begun goes on.
func (d *drive) load(ctx, begun context.Context, group *sync.WaitGroup) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / d.o.rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		op := &operation{n: n, submitted: time.Now()}
		d.mu.Lock()
		d.ops = append(d.ops, op)
		d.mu.Unlock()
		group.Go(func() { d.submit(begun, op) })
	}
}

// maxErrors bounds what is said of submits that failed.
const maxErrors = 5

// submit asks the two ingests in turn, always with the same key.
func (d *drive) submit(ctx context.Context, op *operation) {
	params := json.RawMessage(fmt.Sprintf(`{"n":%d,"correlation":"op-%d","prompt":"a standard operation"}`, op.n, op.n))
	key := fmt.Sprintf("drive-%d", op.n)
	for try := 0; ; try++ {
		got, _, err := d.clients[(op.n+try)%len(d.clients)].Submit(ctx, key, client.Submission{Provider: "example", Params: params})
		d.mu.Lock()
		if err == nil {
			op.id = got.ID
		} else {
			d.retried++
		}
		d.mu.Unlock()
		if err == nil {
			return
		}
		if ctx.Err() != nil || time.Since(op.submitted) > patience {
			d.mu.Lock()
			if len(d.errs) < maxErrors { // one says as much as thousands
				d.errs = append(d.errs, fmt.Errorf("submit operation %d: %w", op.n, err))
			}
			d.mu.Unlock()
			return
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// breakAll kills one after the other. A node comes back before the next goes; roles
// stay away, their twins do the work.
func (d *drive) breakAll(ctx context.Context) (list []Broken, err error) {
	if err := d.warm(ctx); err != nil {
		return nil, err
	}
	for _, what := range d.o.breaks {
		thing := strings.TrimPrefix(what, stopped)
		if !slices.Contains(all(), thing) {
			return list, fmt.Errorf("nothing is called %q, want some of %q, each perhaps %q", thing, all(), stopped)
		}
		pause(ctx, d.o.calm)
		name := thing + "-1"
		if strings.Contains(thing, " ") {
			leader, err := d.leader(ctx)
			if err != nil {
				return list, err
			}
			if name = leader; thing == "nats node" {
				name = map[string]string{"nats-1": "nats-2", "nats-2": "nats-3", "nats-3": "nats-1"}[leader]
			}
		}
		b, err := d.kill(ctx, what, name)
		if err != nil {
			return list, err
		}
		list = append(list, b)
		if strings.HasPrefix(name, "nats") {
			if err := d.engine(ctx, "start", name); err != nil {
				return list, err
			}
			if err := d.healthy(ctx, name); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

// warm waits until the provider has heard of an operation.
func (d *drive) warm(ctx context.Context) error {
	for begin := time.Now(); d.sim.Count(simulator.Filter{Call: simulator.Create}) == 0; pause(ctx, 100*time.Millisecond) {
		if time.Since(begin) > time.Minute || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("no create has reached the provider within a minute"), ctx.Err())
		}
	}
	return nil
}

func (d *drive) kill(ctx context.Context, what, name string) (Broken, error) {
	b := Broken{What: what, Name: name}
	at := time.Now()
	how := []string{"kill", "--signal=KILL"}
	if strings.HasPrefix(what, stopped) {
		how = []string{"stop", "--time=15"}
	}
	if err := d.engine(ctx, how[0], how[1], name); err != nil {
		return b, err
	}
	// The engine takes its time to kill, so what counts is when the process had
	// ended; one that was told to stop is out of order from when it was told.
	end, err := d.finished(ctx, name)
	if err != nil {
		return b, err
	}
	if how[0] == "kill" {
		at = end
	}
	live := d.underWay(end)
	b.UnderWay = len(live)
	for limit := at.Add(2 * roleBound); ; pause(ctx, 100*time.Millisecond) {
		if b.Progress == 0 {
			b.Progress = d.progress(at, end)
		}
		last, all := d.attended(live, at, end)
		if !all && time.Since(end) > 3*time.Second {
			d.ended(ctx, live, end)
		}
		if b.Progress > 0 && all {
			b.Attended = last
			return b, nil
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			if b.Progress == 0 {
				b.Progress = seconds(time.Since(at))
			}
			b.Attended = seconds(time.Since(at))
			return b, ctx.Err()
		}
	}
}

// underWay are the jobs that the provider had made by then and whose result nobody
// had fetched.
func (d *drive) underWay(by time.Time) map[string]bool {
	live := map[string]bool{}
	for _, r := range d.sim.Requests(simulator.Filter{}) {
		switch {
		case r.Job == "" || r.Done.IsZero() || r.Done.After(by):
		case r.Call == simulator.Create:
			live[r.Job] = true
		case r.Call == simulator.Result && r.Status == http.StatusOK:
			delete(live, r.Job)
		}
	}
	return live
}

// progress is when the provider made a job for an operation submitted after the end,
// in seconds from at.
func (d *drive) progress(at, end time.Time) float64 {
	d.mu.Lock()
	young := map[string]bool{}
	for _, op := range d.ops {
		if op.submitted.After(end) {
			young[fmt.Sprintf(`"correlation":"op-%d"`, op.n)] = true
		}
	}
	d.mu.Unlock()
	for _, r := range d.sim.Requests(simulator.Filter{Call: simulator.Create, Stored: true}) {
		if r.At.Before(end) {
			continue
		}
		for mark := range young {
			if strings.Contains(string(r.Body), mark) {
				return seconds(r.At.Sub(at))
			}
		}
	}
	return 0
}

// attended is when the last of these jobs was asked about after the end, in seconds
// from at.
func (d *drive) attended(live map[string]bool, at, end time.Time) (last float64, all bool) {
	seen := map[string]bool{}
	for _, r := range d.sim.Requests(simulator.Filter{}) {
		if r.At.After(end) && live[r.Job] && !seen[r.Job] {
			seen[r.Job] = true
			last = max(last, seconds(r.At.Sub(at)))
		}
	}
	return last, len(seen) == len(live)
}

// mark finds an operation's number in what the provider was sent.
var mark = regexp.MustCompile(`"correlation":"op-(\d+)"`)

// ended takes those out of live that nobody has to ask about: the answer to their
// last request was under way at the time and came.
func (d *drive) ended(ctx context.Context, live map[string]bool, at time.Time) {
	asked, made := map[string]bool{}, map[string]int{}
	for _, r := range d.sim.Requests(simulator.Filter{}) {
		if r.At.After(at) {
			asked[r.Job] = true
		}
		if found := mark.FindSubmatch(r.Body); r.Call == simulator.Create && found != nil {
			made[r.Job], _ = strconv.Atoi(string(found[1])) // it is digits
		}
	}
	for job := range live {
		n, known := made[job]
		if asked[job] || !known {
			continue
		}
		d.mu.Lock()
		id := d.ops[n].id
		d.mu.Unlock()
		if op, err := d.clients[1].Get(ctx, id); err == nil && op.Terminal { // who does not know asks again
			delete(live, job)
		}
	}
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*100) / 100 }

// finish waits until every operation has succeeded, or patience is over.
func (d *drive) finish(ctx context.Context, report *Report) error {
	open := map[*operation]string{}
	d.mu.Lock()
	for _, op := range d.ops {
		open[op] = "not accepted"
	}
	d.mu.Unlock()
	for end := time.Now().Add(patience); len(open) > 0 && time.Now().Before(end) && ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		for op := range open {
			if op.id == "" {
				continue
			}
			got, err := d.clients[1].Get(ctx, op.id) // the first ingest was killed
			var problem *client.Problem
			switch {
			case errors.As(err, &problem) && problem.Status == http.StatusNotFound:
				open[op] = "lost"
			case err != nil:
				open[op] = "not read"
			case got.State == "succeeded":
				delete(open, op)
			default:
				open[op] = got.State
			}
		}
	}
	for _, state := range open {
		if state == "lost" {
			report.Lost++
			continue
		}
		if report.Unfinished == nil {
			report.Unfinished = map[string]int{}
		}
		report.Unfinished[state]++
	}
	return context.Cause(ctx)
}

// container is the id of a service's one container.
func (d *drive) container(ctx context.Context, service string) (string, error) {
	out, err := exec.CommandContext(ctx, d.o.docker, "ps", "--all", "--quiet",
		"--filter", "label=com.docker.compose.project="+d.o.project, "--filter", "label=com.docker.compose.service="+service).Output()
	if id := strings.TrimSpace(string(out)); err == nil && id != "" && !strings.Contains(id, "\n") {
		return id, nil
	}
	return "", fmt.Errorf("look for the one container of %s: %q, %w", service, out, err)
}

func (d *drive) engine(ctx context.Context, command string, rest ...string) (err error) {
	service := &rest[len(rest)-1]
	if *service, err = d.container(ctx, *service); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, d.o.docker, append([]string{command}, rest...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker %s: %w: %s", command, err, out)
	}
	return nil
}

// finished is when the service's container ended.
func (d *drive) finished(ctx context.Context, name string) (time.Time, error) {
	id, err := d.container(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	out, err := exec.CommandContext(ctx, d.o.docker, "inspect", "--format={{.State.FinishedAt}}", id).Output()
	if err != nil {
		return time.Time{}, fmt.Errorf("ask when %s ended: %w", name, err)
	}
	return time.Parse(time.RFC3339Nano, strings.TrimSpace(string(out)))
}

func (d *drive) healthy(ctx context.Context, name string) error {
	id, err := d.container(ctx, name)
	if err != nil {
		return err
	}
	for begin := time.Now(); ; pause(ctx, time.Second) {
		out, err := exec.CommandContext(ctx, d.o.docker, "inspect", "--format={{.State.Health.Status}}", id).Output()
		if err == nil && strings.TrimSpace(string(out)) == "healthy" {
			return nil
		}
		if time.Since(begin) > time.Minute || ctx.Err() != nil {
			return fmt.Errorf("%s is not healthy again after a minute: %s, %w", name, out, errors.Join(err, ctx.Err()))
		}
	}
}
