// Package telemetry is what can be seen of a running service from outside: its
// series for Prometheus, and whether it is alive and ready.
//
// The roles know nothing of it: they call small interfaces and functions of their
// own, which are met here. Names and units follow Prometheus' conventions.
//
// Guarantees. Every set of labels is bounded: by lists in this program, by the
// providers an installation has had, or by those of its accounts that have limits. No label and no check holds an operation, a
// principal, an address, an error's text or anything a caller or provider sent.
//
// Limits. What has been counted starts at zero with the process.
package telemetry

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/projections"
)

// Buckets in seconds. A call to a provider may take minutes, a wake-up may wait
// for hours behind a store that does not answer, and a write should take
// milliseconds.
var (
	callBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	lateBuckets = []float64{.01, .05, .1, .25, .5, 1, 5, 15, 60, 300, 3600}
	syncBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
)

// Config of Metrics. Disk and Holds may be nil.
type Config struct {
	Build string // program version
	Now   func() time.Time
	Disk  Disk
	// Shared says that other processes project some of the partitions: what is
	// counted here is a part, to be summed over the processes.
	Shared bool
	// Holds says how many holds are in force that rest creates, and that rest
	// all calls; known is false while nobody here can know.
	Holds func() (creates, all int, known bool)
	// Fsyncs is how often the store asked the disk to keep what callers wait for.
	// Nil where nobody here can know.
	Fsyncs func() uint64
}

// Disk says how much is free.
type Disk interface {
	Free() (bytes uint64, err error) // err: not known
	Least() uint64                   // bytes kept in reserve
}

// Metrics holds the series of one process. It is a [projector.Observer] and safe
// for concurrent use.
type Metrics struct {
	now      func() time.Time
	disk     Disk
	shared   bool
	holds    func() (creates, all int, known bool)
	registry *prometheus.Registry

	lateness prometheus.Histogram
	calls    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	exceeded *prometheus.CounterVec
	intents  *prometheus.CounterVec
	sync     prometheus.Histogram
	unmapped *prometheus.CounterVec

	open, partitions, lag, free, reserve, held, slots, mine, waiting *prometheus.Desc

	mu sync.Mutex
	// Guarded by mu, by partition: how many operations stand where, and since when
	// a fact waits to be recorded (zero: none does).
	counts map[string]map[projector.Standing]int
	behind map[string]time.Time
	uses   func() []poller.Use // nil: nobody calls here; guarded by mu
}

// New makes the series, in a registry of their own.
func New(cfg Config) *Metrics {
	m := &Metrics{
		now: cfg.Now, disk: cfg.Disk, shared: cfg.Shared, holds: cfg.Holds, registry: prometheus.NewRegistry(),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "counterfoil_wakeup_lateness_seconds", Buckets: lateBuckets,
			Help: "How long after its time a wake-up reached a worker. One that is delivered again counts again.",
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "counterfoil_provider_calls_total",
			Help: "Exchanges with providers, by the step they were made for and how they went: 2xx to 5xx, or why there was no whole answer.",
		}, []string{"provider", "call", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "counterfoil_provider_call_seconds", Buckets: callBuckets,
			Help: "How long exchanges with providers took, those without an answer included.",
		}, []string{"provider", "call"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "counterfoil_refusals_total",
			Help: "Problems answered to callers and to providers' webhooks, by code (docs/ERRORS.md).",
		}, []string{"code"}),
		exceeded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "counterfoil_quota_refusals_total",
			Help: "New operations, and batches of them for all or none, that a quota of their principal refused, whatever protocol they came by, by quota.",
		}, []string{"policy"}),
		intents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "counterfoil_intents_total",
			Help: "Intents that agents published on NATS, by how they were answered: accepted, replayed, validated, refused, malformed (no intent; kept aside), or postponed, which is not answered and comes again.",
		}, []string{"outcome"}),
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "counterfoil_store_sync_seconds", Buckets: syncBuckets,
			Help: "How long the store took to acknowledge a write to a synced stream, as its client saw it: the way there and back, the server's work and, under sync always, the disk's fsync. Writes that failed are not in it.",
		}),
		unmapped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "counterfoil_unknown_states_total",
			Help: "How often a job came to a state that its contract does not know. It is watched on.",
		}, []string{"provider"}),
		open: prometheus.NewDesc("counterfoil_operations_open",
			"Operations that have not ended, by phase, and by kind where they are quarantined, as the projectors have recorded them. Where several processes project, each gives its part.", []string{"phase", "kind"}, nil),
		partitions: prometheus.NewDesc("counterfoil_partitions",
			"Partitions that this process projects.", nil, nil),
		lag: prometheus.NewDesc("counterfoil_projector_lag_seconds",
			"Age of the oldest fact that a projector has read and not yet recorded, or how long a partition could not be projected; the largest of all partitions.", nil, nil),
		free: prometheus.NewDesc("counterfoil_disk_free_bytes",
			"Bytes that may still be written where the data directory is.", nil, nil),
		reserve: prometheus.NewDesc("counterfoil_disk_reserve_bytes",
			"Free bytes below which no new operation and no create is begun.", nil, nil),
		held: prometheus.NewDesc("counterfoil_holds",
			"Holds of operators in force, by what they rest: creates, or all calls.", []string{"scope"}, nil),
		slots: prometheus.NewDesc("counterfoil_account_slots",
			"Calls at once that the limits of an account allow, in all processes together.", []string{"provider", "account"}, nil),
		mine: prometheus.NewDesc("counterfoil_account_slots_held",
			"Of them, those that this process may make; in use or not.", []string{"provider", "account"}, nil),
		waiting: prometheus.NewDesc("counterfoil_account_calls_waiting",
			"Calls that stand in line here because of the limits of an account.", []string{"provider", "account"}, nil),
		counts: map[string]map[projector.Standing]int{}, behind: map[string]time.Time{},
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "counterfoil_build_info", Help: "Always 1; the label is the program's version.",
		ConstLabels: prometheus.Labels{"version": cfg.Build},
	})
	build.Set(1)
	for _, o := range intake.Outcomes() {
		m.intents.WithLabelValues(string(o)) // shown from the start, so that none is missed
	}
	for _, p := range ingest.Policies() {
		m.exceeded.WithLabelValues(string(p))
	}
	m.registry.MustRegister(build, m.lateness, m.calls, m.took, m.refusals, m.exceeded, m.intents, m.sync, m.unmapped, derived{m})
	if cfg.Fsyncs != nil {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "counterfoil_store_fsyncs_total",
			Help: "How often the disk was asked to keep what callers wait for: once for each single write to a synced stream and for each batch, and for a batch five times more where batches are not staged in memory.",
		}, func() float64 { return float64(cfg.Fsyncs()) }))
	}
	return m
}

// Handler serves the series.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Exchange counts one call to a provider.
func (m *Metrics) Exchange(e poller.Exchange) {
	m.calls.WithLabelValues(e.Provider, string(e.Step), e.Outcome).Inc()
	m.took.WithLabelValues(e.Provider, string(e.Step)).Observe(e.Took.Seconds())
}

// Limited says where to ask how far the limits of accounts are used.
func (m *Metrics) Limited(uses func() []poller.Use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uses = uses
}

// Woken notes that a wake-up for that time was delivered now.
func (m *Metrics) Woken(at time.Time) {
	if !at.IsZero() { // an unreadable one has no time
		m.lateness.Observe(max(m.now().Sub(at).Seconds(), 0))
	}
}

// Intent counts one intent that was taken up.
func (m *Metrics) Intent(outcome intake.Outcome) { m.intents.WithLabelValues(string(outcome)).Inc() }

// Exceeded counts one refusal by a quota.
func (m *Metrics) Exceeded(p ingest.Policy) { m.exceeded.WithLabelValues(string(p)).Inc() }

// Refused counts one problem answered.
func (m *Metrics) Refused(code ingest.Code) { m.refusals.WithLabelValues(string(code)).Inc() }

// Behind implements [projector.Observer].
func (m *Metrics) Behind(partition string, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind[partition] = since
}

// Stalled implements [projector.Observer]: the oldest fact it stalled at counts,
// or the moment it did.
func (m *Metrics) Stalled(partition string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind[partition].IsZero() {
		m.behind[partition] = m.now()
	}
}

// Left implements [projector.Observer].
func (m *Metrics) Left(partition string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.behind, partition)
	delete(m.counts, partition)
}

// Stopped implements [projector.Observer]; what stopped is among what is counted.
func (m *Metrics) Stopped(projections.State, bool) {}

// Unmapped implements [projector.Observer].
func (m *Metrics) Unmapped(s projections.State) {
	m.unmapped.WithLabelValues(s.Intent.Provider).Inc()
}

// Owned implements [projector.Observer]: no series names a principal.
func (m *Metrics) Owned(string, map[string]int) {}

// Counted implements [projector.Observer].
func (m *Metrics) Counted(partition string, open map[projector.Standing]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[partition] = maps.Clone(open)
}

// Moved implements [projector.Observer].
func (m *Metrics) Moved(partition string, before, after projections.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := m.counts[partition]
	if counts == nil {
		return
	}
	if before.Phase != projections.PhaseNone && !before.Phase.Terminal() {
		counts[projector.Standing{Phase: before.Phase, Quarantine: before.Quarantine}]--
	}
	if !after.Phase.Terminal() {
		counts[projector.Standing{Phase: after.Phase, Quarantine: after.Quarantine}]++
	}
}

// Projected says how many partitions are held and counted here, and how far the
// one that lags most is behind.
func (m *Metrics) Projected() (partitions int, lag time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, since := range m.behind {
		if !since.IsZero() {
			lag = max(lag, now.Sub(since))
		}
	}
	return len(m.counts), lag
}

// Open gives how many operations stand where; ok is false before every partition
// of so many was counted.
func (m *Metrics) Open(partitions int) (open map[projector.Standing]int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	open = map[projector.Standing]int{}
	for _, standing := range standings() {
		open[standing] = 0
	}
	for _, counts := range m.counts {
		for standing, n := range counts {
			open[standing] += n
		}
	}
	return open, len(m.counts) >= partitions
}

// standings lists where an operation that has not ended can stand.
func standings() []projector.Standing {
	var list []projector.Standing
	for _, p := range []projections.Phase{
		projections.PhaseApprovalPending, projections.PhaseCreatePending, projections.PhaseCreateUnknown, projections.PhaseReconciliation,
		projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired, projections.PhaseCancelRequested,
		projections.PhaseCancelling, projections.PhaseResultCollecting, projections.PhaseResultTimedOut, projections.PhaseCancellationUnconfirmed,
		projections.PhaseResultUnavailable, projections.PhaseResultValidationFailed,
	} {
		list = append(list, projector.Standing{Phase: p})
	}
	for _, q := range []projections.Quarantine{
		projections.QuarantineUnknown, projections.QuarantineLost, projections.QuarantineConflict, projections.QuarantineUnreadable,
	} {
		list = append(list, projector.Standing{Phase: projections.PhaseQuarantined, Quarantine: q})
	}
	return list
}

// derived are the series that are read when they are asked for.
type derived struct{ m *Metrics }

// Describe implements [prometheus.Collector].
func (d derived) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.m.open, d.m.partitions, d.m.lag, d.m.free, d.m.reserve, d.m.held, d.m.slots, d.m.mine, d.m.waiting} {
		out <- desc
	}
}

// Collect implements [prometheus.Collector]. It asks nobody: what it gives was
// told, or measured a while ago.
func (d derived) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	// Without all partitions a sum would look like operations that ended.
	if open, ok := d.m.Open(journal.Partitions); ok || d.m.shared {
		for standing, n := range open {
			gauge(d.m.open, float64(n), string(standing.Phase), string(standing.Quarantine))
		}
	}
	partitions, lag := d.m.Projected()
	gauge(d.m.partitions, float64(partitions))
	gauge(d.m.lag, lag.Seconds())
	if d.m.holds != nil {
		if creates, all, known := d.m.holds(); known {
			gauge(d.m.held, float64(creates), string(events.HoldCreates))
			gauge(d.m.held, float64(all), string(events.HoldAll))
		}
	}
	d.m.mu.Lock()
	uses := d.m.uses
	d.m.mu.Unlock()
	if uses != nil {
		for _, u := range uses() {
			gauge(d.m.slots, float64(u.Slots), u.Provider, u.Account)
			gauge(d.m.mine, float64(u.Held), u.Provider, u.Account)
			gauge(d.m.waiting, float64(u.Waiting), u.Provider, u.Account)
		}
	}
	if d.m.disk == nil {
		return
	}
	if free, err := d.m.disk.Free(); err == nil {
		gauge(d.m.free, float64(free))
	}
	gauge(d.m.reserve, float64(d.m.disk.Least()))
}

// Store measures the writes to those streams of a store that are synced.
func (m *Metrics) Store(s journal.Store) journal.Store { return measured{s, m} }

// PublishBatch implements [journal.Store]. One that is stored is one sync.
func (s measured) PublishBatch(ctx context.Context, stream journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	began := s.m.now()
	sequences, err := s.Store.PublishBatch(ctx, stream, list)
	if err == nil {
		s.m.sync.Observe(s.m.now().Sub(began).Seconds())
	}
	return sequences, err
}

type measured struct {
	journal.Store
	m *Metrics
}

// Publish implements [journal.Store].
func (s measured) Publish(ctx context.Context, stream journal.Stream, out journal.Outgoing) (uint64, error) {
	switch stream {
	case journal.History, journal.Wakeups, journal.Index:
		return s.Store.Publish(ctx, stream, out)
	case journal.Ledger, journal.Control, journal.Webhooks, journal.Payloads:
	}
	began := s.m.now()
	n, err := s.Store.Publish(ctx, stream, out)
	if err == nil {
		s.m.sync.Observe(s.m.now().Sub(began).Seconds())
	}
	return n, err
}
