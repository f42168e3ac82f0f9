package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// The standard job: a create, three status reads, each due benchPoll after the
// last answer, and a result of benchResult bytes that is collected and checked.
const (
	benchPoll    = time.Second
	benchReads   = 3
	benchResult  = 1 << 10
	benchWaiting = benchReads * benchPoll // of an operation that waits for nothing else

	benchStall = 2 * time.Minute // without news from the provider the run has failed
)

// benchOptions is what a bench is asked for.
type benchOptions struct {
	ops      int
	rate     float64 // operations a second; 0: all at once
	sync     string
	provider string // URL of a provider elsewhere; "": the simulator in this process
	data     string // "": a temporary directory
	workers  int    // of the service; 0: what serve has by itself
	clients  int    // connections to the service
	profile  string // directory for profiles of the service; "": none
	open     int    // operations that wait beside

	bearer string        // of a service that was started before; "": it says
	limit  time.Duration // for its start; at least benchReady
}

// benchReport is what a bench found, with the names that stand for good.
type benchReport struct {
	Ops             int       `json:"ops"`
	Wall            float64   `json:"wall_s"`
	PerSecond       float64   `json:"ops_per_s"`
	Sustained       float64   `json:"sustained_ops_per_s"`
	Create          quantiles `json:"create_ms"`
	Late            quantiles `json:"late_ms"`
	CPU             float64   `json:"cpu_ms_per_op"`
	RSS             float64   `json:"peak_rss_mib"`
	Disk            float64   `json:"disk_bytes_per_op"`
	Fsyncs          float64   `json:"fsyncs_per_op"`
	Duplicates      *int      `json:"duplicates"` // nil: a provider elsewhere cannot be looked into
	FsyncsPerSecond float64   `json:"fsyncs_per_s"`
	Sync            string    `json:"sync"`
	Machine         string    `json:"machine"`

	*benchGrowth // with --open

	own float64 // processor time of the bench itself, ms an operation
}

func (a *app) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the service on this machine with a standard job",
		Long: `Run the standard job and say what it took. The job is so many operations, each
of them a create, three status reads, each due one second after the last answer,
and a result of 1 KiB that is collected and checked, with every step stored as
--sync says.

The service runs in a process of its own, on an embedded store in a temporary
directory ($TMPDIR) or in --data; processor time, memory, disk and fsyncs are that
process's alone. The provider and the callers run in this one, on the same
processors. The command fails if an operation is lost, does not succeed, or made
a second job. With --open it begins with so many operations that wait, and says how
long the service takes to start on them. docs/PERFORMANCE.md says what each figure is.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bench(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.IntVar(&o.ops, "ops", 1000, "operations, 1 to 1000000")
	flags.Float64Var(&o.rate, "rate", 0, "operations a second, on a fixed schedule from which latencies are counted; 0 submits all as fast as they are taken")
	flags.StringVar(&o.sync, "sync", "always", "always or interval, as of serve")
	flags.StringVar(&o.provider, "provider-url", "", "base URL of a provider elsewhere that the contract example fits, and that takes the credential "+benchToken+"; duplicates cannot be counted there")
	flags.StringVar(&o.data, "data", "", "keep the data in this directory, which must be empty or new")
	flags.IntVar(&o.workers, "workers", 0, "workers of the service; 0 for what serve has")
	flags.IntVar(&o.clients, "clients", 32, "connections to the service at once, 1 to 1024")
	flags.IntVar(&o.open, "open", 0, "operations that wait at the provider beside, 0 to 1000000; what they cost is told too")
	flags.StringVar(&o.profile, "profile", "", "directory for a CPU and an allocation profile of the service")
	_ = flags.MarkHidden("profile") // it is defined just above
	return cmd
}

func (o benchOptions) check() error {
	switch {
	case o.ops < 1 || o.ops > 1_000_000:
		return usage("--ops is %d: want 1 to 1000000", o.ops)
	case o.rate < 0 || o.rate > 1e6:
		return usage("--rate is %g: want 0 to 1000000", o.rate)
	case o.sync != "always" && o.sync != "interval":
		return usage("--sync is %q: want always or interval", o.sync)
	case o.clients < 1 || o.clients > 1024:
		return usage("--clients is %d: want 1 to 1024", o.clients)
	case o.open < 0 || o.open > 1_000_000:
		return usage("--open is %d: want 0 to 1000000", o.open)
	case o.workers < 0 || o.workers > 1024:
		return usage("--workers is %d: want 0 to 1024", o.workers)
	}
	return nil
}

func (a *app) bench(ctx context.Context, o benchOptions) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.data == "" {
		dir, remove, err2 := tempDir("bench")
		if err2 != nil {
			return err2
		}
		o.data = dir
		defer func() { err = errors.Join(err, remove()) }()
	}
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	report := benchReport{Ops: o.ops, Sync: o.sync, Machine: machine(o.data)}
	if report.FsyncsPerSecond, err = fsyncRate(o.data, time.Second); err != nil {
		return err
	}
	failed, err := a.measure(ctx, o, &report)
	if err != nil {
		return err
	}
	if err := a.showBench(report); err != nil {
		return err
	}
	return failed
}

// measure runs the job and fills the report. failed says what was wrong with an
// operation; the figures of the others stand.
func (a *app) measure(ctx context.Context, o benchOptions, report *benchReport) (failed, err error) {
	url, provider := o.provider, (*benchProvider)(nil)
	if url == "" {
		if provider, err = startProvider(); err != nil {
			return nil, err
		}
		defer provider.close()
		url = provider.url
	}
	var child *benchService
	if o.open > 0 {
		child, report.benchGrowth, err = a.grow(ctx, o, url)
	} else {
		child, err = a.startService(ctx, o, url)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, child.stop()) }()
	before, err := child.usage()
	if err != nil {
		return nil, err
	}
	load := newLoad(o, child)
	load.beside = o.open
	// One processor is enough for callers and provider, and waking threads of ours
	// beside the service's costs both.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	own := ownTime()
	ended, err := load.run(ctx, provider)
	own = ownTime() - own
	if err != nil {
		return nil, child.explain(err)
	}
	after, err := child.usage()
	if err != nil {
		return nil, child.explain(err)
	}
	if err := child.flushProfile(ctx); err != nil {
		return nil, child.explain(err)
	}
	n := float64(o.ops)
	wall := ended.Sub(load.start)
	report.Wall = round(wall.Seconds(), 3)
	report.PerSecond = round(n/wall.Seconds(), 1)
	report.Sustained = round(n/max(wall-benchWaiting, time.Millisecond).Seconds(), 1)
	report.CPU = round((after.cpu-before.cpu).Seconds()*1000/n, 3)
	report.own = round(own.Seconds()*1000/n, 3)
	report.RSS = round(float64(after.peak)/(1<<20), 1)
	report.Fsyncs = round((after.syncs-before.syncs)/n, 2)
	if o.sync != "always" {
		report.Fsyncs = 0 // acknowledged before they are synced
	}
	failed, err = load.verify(ctx)
	if err != nil {
		return nil, child.explain(err)
	}
	if provider == nil {
		create, late, err := load.latencies(ctx)
		if err != nil {
			return nil, child.explain(err)
		}
		report.Create, report.Late = quantilesOf(create), quantilesOf(late)
	} else {
		seen := provider.seen(load.sent)
		report.Create, report.Late, report.Duplicates = quantilesOf(seen.create), quantilesOf(seen.late), &seen.duplicates
		if seen.duplicates > 0 {
			failed = errors.Join(failed, fmt.Errorf("%d jobs were made twice", seen.duplicates))
		}
	}
	if err := child.stop(); err != nil {
		return nil, child.explain(err)
	}
	size, err := allocated(o.data)
	if err != nil {
		return nil, err
	}
	report.Disk = round(float64(size)/n, 0)
	return failed, nil
}

func (a *app) showBench(r benchReport) error {
	if a.output == "json" {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n", line)
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("machine", "%s", printable(r.Machine))
	row("disk can do", "%.0f fsyncs/s", r.FsyncsPerSecond)
	row("operations", "%d, sync %s", r.Ops, r.Sync)
	if g := r.benchGrowth; g != nil {
		row("waiting beside", "%d operations", g.Open)
		row("ready after", "%.2f s; %.2f s where it was killed before", g.Clean, g.Killed)
		row("derived at first", "%.0f facts a second", g.Derived)
		row("memory at rest", "%.0f MiB; %.0f at most until then", g.Rest, g.Peak)
		row("an operation read", "%s", g.Get)
		row("fifty listed", "%s", g.List)
	}
	row("took", "%.1f s: %.0f a second, %.0f less the waits", r.Wall, r.PerSecond, r.Sustained)
	if r.Duplicates == nil {
		row("duplicates", "not known: the provider is not ours to look into")
	} else {
		row("duplicates", "%d", *r.Duplicates)
	}
	row("submit to create", "%s", r.Create)
	row("status read late", "%s", r.Late)
	row("processor", "%.2f ms an operation; callers and provider took %.2f beside it", r.CPU, r.own)
	row("memory", "%.0f MiB at most", r.RSS)
	row("disk", "%.0f bytes an operation", r.Disk)
	row("synced writes", "%.2f an operation", r.Fsyncs)
	return w.Flush()
}

// together runs n of do and gives the first error; the others see ctx end.
func together(ctx context.Context, n int, do func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for range n {
		group.Go(func() error { return do(ctx) })
	}
	return group.Wait()
}
