package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch is a clock that is set by hand.
type watch struct {
	mu sync.Mutex
	at time.Time
}

func newWatch() *watch { return &watch{at: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (w *watch) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

func (w *watch) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = w.at.Add(d)
}

type space struct {
	free uint64
	err  error
}

func (s *space) Free() (uint64, error) { return s.free, s.err }
func (s *space) Least() uint64         { return 100 }

// scrape gives the lines of the series that begin so.
func scrape(t *testing.T, m *Metrics, prefixes ...string) []string {
	t.Helper()
	w := httptest.NewRecorder()
	Admin(NewHealth(nil, time.Now, nil), m).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var list []string
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSpace(line)
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			list = append(list, line)
		}
	}
	return list
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

func state(p projections.Phase, q projections.Quarantine) projections.State {
	return projections.State{Phase: p, Quarantine: q}
}

// full counts every partition, so that sums are given.
func full(m *Metrics) {
	for p := range journal.Partitions {
		m.Counted(journal.PartitionName(p), nil)
	}
}

func TestOpen(t *testing.T) {
	m := New(Config{Build: "v1", Now: newWatch().now})
	m.Counted("00", map[projector.Standing]int{{Phase: projections.PhaseObserving}: 2})
	same(t, scrape(t, m, "counterfoil_operations_open"))
	full(m)
	m.Counted("00", map[projector.Standing]int{{Phase: projections.PhaseObserving}: 2})
	m.Counted("01", map[projector.Standing]int{{Phase: projections.PhaseObserving}: 1, {Phase: projections.PhaseQuarantined, Quarantine: projections.QuarantineLost}: 5})
	m.Moved("00", state("", ""), state(projections.PhaseCreatePending, ""))
	m.Moved("00", state(projections.PhaseObserving, ""), state(projections.PhaseSucceeded, ""))
	m.Moved("00", state(projections.PhaseSucceeded, ""), state(projections.PhaseSucceeded, ""))
	m.Moved("01", state(projections.PhaseQuarantined, projections.QuarantineLost), state(projections.PhaseQuarantined, projections.QuarantineConflict))
	var some []string
	all := scrape(t, m, "counterfoil_operations_open{")
	for _, line := range all {
		if !strings.HasSuffix(line, " 0") {
			some = append(some, line)
		}
	}
	same(t, some,
		`counterfoil_operations_open{kind="",phase="create_pending"} 1`,
		`counterfoil_operations_open{kind="",phase="observing"} 2`,
		`counterfoil_operations_open{kind="conflict",phase="quarantined"} 1`,
		`counterfoil_operations_open{kind="lost",phase="quarantined"} 4`,
	)
	if len(all) != 18 {
		t.Errorf("%d series, want one for each of 14 phases and 4 kinds", len(all))
	}
	// A sweep counts afresh; a partition that another has takes its sums along.
	m.Counted("01", map[projector.Standing]int{})
	m.Left("02")
	m.Moved("02", state("", ""), state(projections.PhaseCreatePending, ""))
	same(t, scrape(t, m, "counterfoil_operations_open"))
}

// Jobs in a state that no contract knows are counted by provider, and by nothing
// that a provider says.
func TestUnmapped(t *testing.T) {
	m := New(Config{Now: newWatch().now})
	s := state(projections.PhaseObserving, "")
	s.Intent.Provider, s.Job.Remote = "example", "on_hold"
	m.Unmapped(s)
	s.Job.Remote = "asleep"
	m.Unmapped(s)
	same(t, scrape(t, m, "counterfoil_unknown_states_total"), `counterfoil_unknown_states_total{provider="example"} 2`)
}

// Every phase that has not ended has its series.
func TestStandings(t *testing.T) {
	for _, s := range standings() {
		if s.Phase.Terminal() || s.Phase == projections.PhaseNone {
			t.Errorf("%v has ended", s)
		}
	}
}

func TestLag(t *testing.T) {
	w := newWatch()
	m := New(Config{Now: w.now})
	same(t, scrape(t, m, "counterfoil_projector_lag_seconds "), "counterfoil_projector_lag_seconds 0")
	m.Stalled("00")
	w.pass(3 * time.Second)
	m.Behind("01", w.now().Add(-7*time.Second))
	same(t, scrape(t, m, "counterfoil_projector_lag_seconds "), "counterfoil_projector_lag_seconds 7")
	m.Stalled("01") // at that fact
	m.Behind("00", time.Time{})
	w.pass(time.Second)
	same(t, scrape(t, m, "counterfoil_projector_lag_seconds "), "counterfoil_projector_lag_seconds 8")
	m.Left("01")
	same(t, scrape(t, m, "counterfoil_projector_lag_seconds "), "counterfoil_projector_lag_seconds 0")
}

func TestCounters(t *testing.T) {
	w := newWatch()
	disk := &space{free: 1234}
	m := New(Config{Build: "v1.2", Now: w.now, Disk: disk})
	m.Exchange(poller.Exchange{Provider: "example", Step: projections.StepCreate, Outcome: "2xx", Took: 3 * time.Second})
	m.Exchange(poller.Exchange{Provider: "example", Step: projections.StepCreate, Outcome: "timeout", Took: 30 * time.Second})
	m.Woken(w.now().Add(-2 * time.Second))
	m.Woken(w.now().Add(time.Minute)) // a worker waits out the rest
	m.Woken(time.Time{})
	m.Refused(ingest.CodeInvalid)
	m.Intent(intake.Malformed)
	same(t, scrape(t, m, "counterfoil_build", "counterfoil_disk", "counterfoil_intents", "counterfoil_provider_calls_total", "counterfoil_provider_call_seconds_sum",
		"counterfoil_refusals", "counterfoil_wakeup_lateness_seconds_sum", "counterfoil_wakeup_lateness_seconds_count"),
		`counterfoil_build_info{version="v1.2"} 1`,
		`counterfoil_disk_free_bytes 1234`,
		`counterfoil_disk_reserve_bytes 100`,
		`counterfoil_intents_total{outcome="accepted"} 0`,
		`counterfoil_intents_total{outcome="malformed"} 1`,
		`counterfoil_intents_total{outcome="postponed"} 0`,
		`counterfoil_intents_total{outcome="refused"} 0`,
		`counterfoil_intents_total{outcome="replayed"} 0`,
		`counterfoil_intents_total{outcome="validated"} 0`,
		`counterfoil_provider_call_seconds_sum{call="create",provider="example"} 33`,
		`counterfoil_provider_calls_total{call="create",outcome="2xx",provider="example"} 1`,
		`counterfoil_provider_calls_total{call="create",outcome="timeout",provider="example"} 1`,
		`counterfoil_refusals_total{code="validation_failed"} 1`,
		`counterfoil_wakeup_lateness_seconds_sum 2`,
		`counterfoil_wakeup_lateness_seconds_count 2`,
	)
	disk.err = errors.New("no answer")
	same(t, scrape(t, m, "counterfoil_disk"), "counterfoil_disk_reserve_bytes 100")

	full(m)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestLimits(t *testing.T) {
	m := New(Config{Now: newWatch().now})
	same(t, scrape(t, m, "counterfoil_account"))
	m.Limited(func() []poller.Use {
		return []poller.Use{{Provider: "example", Account: "main", Slots: 8, Held: 3, Busy: 2, Waiting: 5, Calls: 99}}
	})
	same(t, scrape(t, m, "counterfoil_account"),
		`counterfoil_account_calls_waiting{account="main",provider="example"} 5`,
		`counterfoil_account_slots{account="main",provider="example"} 8`,
		`counterfoil_account_slots_held{account="main",provider="example"} 3`)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func TestHolds(t *testing.T) {
	known := false
	m := New(Config{Now: newWatch().now, Holds: func() (int, int, bool) { return 2, 1, known }})
	same(t, scrape(t, m, "counterfoil_holds"))
	known = true
	same(t, scrape(t, m, "counterfoil_holds"), `counterfoil_holds{scope="all"} 1`, `counterfoil_holds{scope="creates"} 2`)
	full(m)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// slow takes time to store.
type slow struct {
	journal.Store
	w   *watch
	err error
}

func (s *slow) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	s.w.pass(20 * time.Millisecond)
	if s.err != nil {
		return 0, s.err
	}
	return s.Store.Publish(ctx, stream, m)
}

func TestStore(t *testing.T) {
	w := newWatch()
	m := New(Config{Now: w.now})
	inner := &slow{Store: memory.New(memory.Config{Now: w.now}), w: w}
	store := m.Store(inner)
	for stream, subject := range map[journal.Stream]string{journal.Ledger: "facts.0.00.op", journal.Payloads: "payloads.x", journal.History: "history.1.00.op"} {
		if _, err := store.Publish(t.Context(), stream, journal.Outgoing{Subject: subject}); err != nil {
			t.Fatal(err)
		}
	}
	inner.err = journal.ErrUnanswered
	if _, err := store.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: "facts.0.00.op"}); !errors.Is(err, journal.ErrUnanswered) {
		t.Error(err)
	}
	same(t, scrape(t, m, "counterfoil_store_sync_seconds_sum", "counterfoil_store_sync_seconds_count"),
		"counterfoil_store_sync_seconds_sum 0.04", "counterfoil_store_sync_seconds_count 2")
}

// get asks a health page.
func get(t *testing.T, h *Health, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	Admin(h, New(Config{Now: time.Now})).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestReady(t *testing.T) {
	var log bytes.Buffer
	w := newWatch()
	var store, disk error
	looks := 0
	h := NewHealth([]Check{
		{Name: "store", Required: true, Do: "Look at the disk.", Look: func(ctx context.Context) error {
			looks++
			if _, limited := ctx.Deadline(); !limited {
				t.Error("a check is not limited")
			}
			return store
		}},
		{Name: "disk", Do: "Make room.", Look: func(context.Context) error { return disk }},
	}, w.now, slog.New(slog.NewTextHandler(&log, nil)))
	page := func(code int, want string) {
		t.Helper()
		if got, text := get(t, h, "/readyz"); got != code || text != want {
			t.Errorf("\n got %d %s\nwant %d %s", got, text, code, want)
		}
	}
	page(200, `{"status":"ok","checks":[{"name":"store","status":"ok","required":true,"since":"2030-01-02T03:04:05Z"},{"name":"disk","status":"ok","required":false,"since":"2030-01-02T03:04:05Z"}]}`)

	disk = errors.New("canary /secret/path")
	w.pass(999 * time.Millisecond) // within the second nothing is looked at
	page(200, `{"status":"ok","checks":[{"name":"store","status":"ok","required":true,"since":"2030-01-02T03:04:05Z"},{"name":"disk","status":"ok","required":false,"since":"2030-01-02T03:04:05Z"}]}`)
	if looks != 1 {
		t.Errorf("looked %d times", looks)
	}
	w.pass(time.Second)
	page(200, `{"status":"degraded","checks":[{"name":"store","status":"ok","required":true,"since":"2030-01-02T03:04:05Z"},{"name":"disk","status":"failing","required":false,"since":"2030-01-02T03:04:06Z","do":"Make room."}]}`)
	store = errors.New("canary")
	w.pass(time.Minute)
	page(503, `{"status":"failing","checks":[{"name":"store","status":"failing","required":true,"since":"2030-01-02T03:05:06Z","do":"Look at the disk."},{"name":"disk","status":"failing","required":false,"since":"2030-01-02T03:04:06Z","do":"Make room."}]}`)
	if code, text := get(t, h, "/healthz"); code != 200 || text != `{"status":"ok"}` {
		t.Error("alive is not ready:", code, text)
	}
	store, disk = nil, nil
	w.pass(time.Minute)
	page(200, `{"status":"ok","checks":[{"name":"store","status":"ok","required":true,"since":"2030-01-02T03:06:06Z"},{"name":"disk","status":"ok","required":false,"since":"2030-01-02T03:06:06Z"}]}`)

	// Each change is one line, with what the page does not show.
	if got := strings.Count(log.String(), "\n"); got != 4 || strings.Count(log.String(), "canary") != 2 {
		t.Errorf("%d lines\n%s", got, log.String())
	}
}

// A hundred who ask at once are one look.
func TestReadyIsBounded(t *testing.T) {
	w := newWatch()
	looks := 0
	h := NewHealth([]Check{{Name: "store", Look: func(context.Context) error { looks++; return nil }}}, w.now, slog.New(slog.DiscardHandler))
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			if ready, report := h.Ready(t.Context()); !ready {
				t.Error(report)
			}
		})
	}
	wait.Wait()
	if looks != 1 {
		t.Errorf("looked %d times", looks)
	}
}

func TestAdminHasNothingElse(t *testing.T) {
	h := NewHealth(nil, time.Now, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/", "/debug/pprof/", "/v1/operations", "/metrics/x"} {
		if code, text := get(t, h, path); code != 404 {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	var report Report
	if _, text := get(t, h, "/readyz"); json.Unmarshal([]byte(text), &report) != nil || report.Status != OK {
		t.Error(text)
	}
}

// Every series is explained where people look, and nothing is that is no series.
func TestSeriesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Now: newWatch().now, Disk: &space{}, Holds: func() (int, int, bool) { return 0, 0, true }, Fsyncs: func() uint64 { return 1 }})
	full(m)
	m.Exchange(poller.Exchange{Provider: "example", Step: projections.StepRead, Outcome: "2xx"})
	m.Refused(ingest.CodeInvalid)
	m.Unmapped(state(projections.PhaseObserving, ""))
	m.Limited(func() []poller.Use { return []poller.Use{{Provider: "example", Account: "main"}} })
	series := map[string]bool{}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		series[f.GetName()] = true
		if !strings.Contains(string(text), "`"+f.GetName()+"`") {
			t.Errorf("docs/runbooks/README.md does not explain %s", f.GetName())
		}
	}
	for _, name := range regexp.MustCompile("`(counterfoil_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		if !series[name[1]] {
			t.Errorf("docs/runbooks/README.md explains %s, which there is not", name[1])
		}
	}
}
