package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the golden files")

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// ledger is a journal that holds what a test puts in.
type ledger struct {
	newest    time.Time
	providers []string
	holds     projections.Holds
	states    []projections.State // newest first
	moved     map[string]projections.State
	pages     int // scans made
	endless   bool
	err       error
}

func (l *ledger) LedgerTime(context.Context) (time.Time, bool, error) {
	return l.newest, !l.newest.IsZero(), l.err
}
func (l *ledger) Holds(context.Context) (projections.Holds, error) { return l.holds, l.err }
func (l *ledger) Providers(context.Context) ([]string, error)      { return l.providers, l.err }

func (l *ledger) Records(_ context.Context, _ journal.Place, limit int, keep func(*projections.Record) bool) (journal.Page, error) {
	l.pages++
	var page journal.Page
	for _, s := range l.states {
		r := projections.Record{State: s}
		if len(page.Records) < limit && keep(&r) {
			page.Records = append(page.Records, r)
		}
	}
	if l.endless {
		page.Next.Before = 7
	}
	return page, l.err
}

func (l *ledger) Current(_ context.Context, id string) (projections.State, error) {
	if s, ok := l.moved[id]; ok {
		return s, nil
	}
	for _, s := range l.states {
		if s.Operation == id {
			return s, nil
		}
	}
	return projections.State{}, journal.ErrNoOperation
}

// provider answers every call alike.
type provider struct {
	answer   outbound.Answer
	err      error
	missing  map[string]bool // references that lead to nothing
	mu       sync.Mutex
	requests []outbound.Request // guarded by mu
}

func (p *provider) Do(_ context.Context, r outbound.Request) (outbound.Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r)
	a := p.answer
	a.URL = r.URL
	return a, p.err
}

func (p *provider) CredentialIdentity(_ context.Context, cr outbound.Credential) (string, error) {
	ref := cr.Ref
	if p.missing[ref] {
		return "", &outbound.Failure{Class: outbound.CredentialMissing, Sent: outbound.NotSent, Err: fmt.Errorf("credential %s: not set", ref)}
	}
	return "0123", nil
}

func builtin(t testing.TB, name string, edit ...string) *contract.Contract {
	t.Helper()
	text, err := contracts.FS.ReadFile(name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := contract.Parse(name+".yaml", []byte(strings.NewReplacer(edit...).Replace(string(text))))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// world is a healthy service, to be spoilt by a test.
type world struct {
	ledger   ledger
	provider provider
	accounts []Account
	config   Config
}

func healthy(t testing.TB) *world {
	w := &world{
		ledger: ledger{newest: noon.Add(-time.Minute), providers: []string{"example-lookup", "replicate"}},
		accounts: []Account{
			{Provider: "example-lookup", Account: "default", BaseURL: "https://lookup.test", Credential: "env:LOOKUP", Contract: builtin(t, "example-lookup")},
			{Provider: "replicate", Account: "default", Credential: "env:REPLICATE", Contract: builtin(t, "replicate")},
		},
	}
	w.provider.answer = outbound.Answer{Body: []byte(`{"jobs": [], "results": []}`), Status: 200, SentAt: noon.Add(-time.Second), AnsweredAt: noon, Date: noon.Add(-time.Second), Header: http.Header{}}
	w.config = Config{
		Build: "test", Now: func() time.Time { return noon }, Journal: &w.ledger, Clocks: NewClocks(), Sync: "always",
		Streams:   func(context.Context) error { return nil },
		StoreTime: func(context.Context) (time.Time, error) { return noon, nil },
		Disk:      func() (uint64, uint64, bool, error) { return 9 << 30, 1 << 30, false, nil },
		Accounts:  func(context.Context) []Account { return w.accounts },
		Contract:  func(context.Context, events.Digest) (*contract.Contract, error) { return w.accounts[0].Contract, nil },
	}
	return w
}

func (w *world) look(t *testing.T, probe bool) Report {
	t.Helper()
	w.config.Call = w.config.Clocks.Through(&w.provider)
	report, err := New(w.config).Look(t.Context(), Request{Probe: probe})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func text(r Report) string {
	var b strings.Builder
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-6s %s", c.Status, c.Name)
		if c.Subject != "" {
			fmt.Fprintf(&b, " %s", c.Subject)
		}
		fmt.Fprintf(&b, ": %s\n", c.Seen)
		for _, do := range c.Do {
			fmt.Fprintf(&b, "         %s\n", do)
		}
		if c.Runbook != "" {
			fmt.Fprintf(&b, "         see %s\n", c.Runbook)
		}
	}
	for _, cut := range r.Cut {
		fmt.Fprintf(&b, "cut: %s\n", cut)
	}
	return b.String()
}

func state(n int, phase projections.Phase, change ...func(*projections.State)) projections.State {
	s := projections.State{Operation: fmt.Sprintf("op_%d", n), Phase: phase, Since: noon.Add(-time.Hour)}
	if !phase.Terminal() {
		s.NextLook = noon.Add(time.Minute)
	}
	s.Intent.Provider, s.Intent.Account, s.Intent.Principal, s.Intent.Rules = "replicate", "default", "alice", projections.Rules
	for _, f := range change {
		f(&s)
	}
	return s
}

// Every check is shown healthy, and failing in each of its ways.
func TestEachCheck(t *testing.T) {
	quarantined := func(kind projections.Quarantine, why projections.Reason) func(*projections.State) {
		return func(s *projections.State) { s.Quarantine, s.Reason = kind, why }
	}
	deferred := func(why events.DeferReason) func(*projections.State) {
		return func(s *projections.State) { s.Pace.Deferred, s.Pace.DeferUntil = why, noon.Add(time.Hour) }
	}
	cases := []struct {
		name  string
		probe bool
		spoil func(w *world)
	}{
		{"healthy", false, func(*world) {}},
		{"healthy, probed", true, func(*world) {}},
		{"power loss may take a second", false, func(w *world) { w.config.Sync = "interval" }},
		{"what cannot be seen", false, func(w *world) {
			w.config.Sync, w.config.Streams, w.config.StoreTime, w.config.Disk = "", nil, nil, nil
			w.ledger.newest = time.Time{}
		}},
		{"streams have drifted", false, func(w *world) {
			w.config.Streams = func(context.Context) error {
				return errors.Join(
					&journal.DriftError{Stream: "LEDGER", Field: "deny_delete", Want: "true", Have: "not set"},
					errors.Join(&journal.DriftError{Stream: "INDEX", Field: "max_msgs", Want: "-1", Have: "5"}),
				)
			}
		}},
		{"streams cannot be read", false, func(w *world) {
			w.config.Streams = func(context.Context) error { return errors.New("read configuration of stream LEDGER: timeout") }
		}},
		{"the disk is low", false, func(w *world) {
			w.config.Disk = func() (uint64, uint64, bool, error) { return 200 << 20, 1 << 30, true, nil }
		}},
		{"the disk is nearly low", false, func(w *world) {
			w.config.Disk = func() (uint64, uint64, bool, error) { return 1500 << 20, 1 << 30, false, nil }
		}},
		{"the disk cannot be asked", false, func(w *world) {
			w.config.Disk = func() (uint64, uint64, bool, error) {
				return 9 << 30, 1 << 30, false, errors.New("no such directory")
			}
		}},
		{"holds", false, func(w *world) {
			w.ledger.holds = projections.Holds{
				{Scope: events.HoldCreates, Since: noon.Add(-time.Hour), Who: "alice"},
				{Provider: "replicate", Scope: events.HoldAll, Since: noon.Add(-time.Hour), Who: "bob"},
				{Provider: "example", Scope: events.HoldNone},
				{Provider: "example-ask", Unreadable: "it is of an unknown type"},
			}
		}},
		{"the store's clock is ahead", false, func(w *world) {
			w.config.StoreTime = func(context.Context) (time.Time, error) { return noon.Add(90 * time.Second), nil }
			w.ledger.newest = noon.Add(89 * time.Second)
		}},
		{"the store's clock is behind", false, func(w *world) {
			w.config.StoreTime = func(context.Context) (time.Time, error) { return noon.Add(-90 * time.Second), nil }
		}},
		{"the store's clock is off within what is allowed", false, func(w *world) {
			w.config.ClockDifference = 4 * time.Minute
			w.config.StoreTime = func(context.Context) (time.Time, error) { return noon.Add(90 * time.Second), nil }
		}},
		{"the store's clock is off by more than permits allow", false, func(w *world) {
			w.config.ClockDifference = 2 * time.Minute
			w.config.StoreTime = func(context.Context) (time.Time, error) { return noon.Add(90 * time.Second), nil }
		}},
		{"the store's clock cannot be read", false, func(w *world) {
			w.config.StoreTime = func(context.Context) (time.Time, error) { return time.Time{}, errors.New("no answer") }
		}},
		{"the store does not answer", false, func(w *world) { w.ledger.err = errors.New("no answer") }},
		{"a provider's clock is off", true, func(w *world) { w.provider.answer.Date = noon.Add(-20 * time.Second) }},
		{"a provider's clock is far off", true, func(w *world) { w.provider.answer.Date = noon.Add(6 * time.Minute) }},
		{"a provider's clock is off a little", true, func(w *world) { w.provider.answer.Date = noon.Add(2 * time.Second) }},
		{"answers come from a cache", true, func(w *world) { w.provider.answer.Header.Set("Age", "60") }},
		{"the credentials file is in use", false, func(w *world) {
			w.config.CredentialsFile = func() (string, time.Time, time.Time) { return "", time.Time{}, time.Time{} }
			w.config.PolicyFile = w.config.CredentialsFile
			w.config.Sync = "interval"
		}},
		{"quotas that count nothing", false, func(w *world) {
			w.accounts[0].Unbounded = []string{"*", "alice"}
			w.accounts[1].Contract, w.accounts[1].Unbounded = builtin(t, "example"), []string{"bob"}
			w.accounts = append(w.accounts, Account{Provider: "example-ask", Account: "default", Unusable: "no credential is configured", Unbounded: []string{"*"}, Contract: builtin(t, "example-ask")})
		}},
		{"a credential leads to nothing", false, func(w *world) { w.provider.missing = map[string]bool{"env:REPLICATE": true} }},
		{"the credentials file is wrong", false, func(w *world) {
			w.config.CredentialsFile = func() (string, time.Time, time.Time) {
				return "credentials.yaml:3: accounts: is given twice\ncredentials.yaml:5: unknown field", noon.Add(-time.Hour), time.Time{}
			}
		}},
		{"the credentials file is being written", false, func(w *world) {
			w.config.CredentialsFile = func() (string, time.Time, time.Time) { return "", time.Time{}, noon.Add(-3 * time.Second) }
		}},
		{"accounts are not usable", false, func(w *world) {
			w.accounts[0].Credential, w.accounts[0].Unusable = "", "no credential is configured"
			w.accounts[1].Unusable = "credential env:REPLICATE: not set"
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving)}
		}},
		{"an account in use has no credential", false, func(w *world) {
			w.accounts[1].Credential, w.accounts[1].Unusable = "", "no credential is configured"
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving)}
		}},
		{"operations wait for an approval", false, func(w *world) {
			asks := func(until time.Time) func(*projections.State) {
				return func(s *projections.State) {
					s.Intent.NeedsApproval, s.Intent.Demands = true, []events.Demand{{Rule: "production"}, {Rule: "large"}}
					s.Dates.Approval, s.NextLook = until, until
				}
			}
			w.ledger.states = []projections.State{
				state(1, projections.PhaseApprovalPending, asks(noon.Add(time.Hour))),
				state(2, projections.PhaseApprovalPending, asks(noon.Add(-time.Hour))), // nobody looks after it
			}
		}},
		{"the policy file is wrong", false, func(w *world) {
			w.config.PolicyFile = func() (string, time.Time, time.Time) {
				return "policy.yaml:3: approval[large].when: undeclared reference to 'x'", noon.Add(-time.Hour), time.Time{}
			}
		}},
		{"a credential is refused", true, func(w *world) { w.provider.answer.Status = 401 }},
		{"a credential is forbidden", true, func(w *world) { w.provider.answer.Status = 403 }},
		{"a credential is refused by a page", true, func(w *world) {
			w.provider.answer.Status, w.provider.answer.Body = 403, []byte("<html><body>Access denied by your proxy</body></html>")
		}},
		{"nothing is there, and that is an answer", true, func(w *world) {
			status(t, w)
			w.provider.answer.Status, w.provider.answer.Body = 404, []byte(`{"code": "no_job", "detail": "no such job"}`)
		}},
		{"a wrong path", true, func(w *world) {
			status(t, w)
			w.provider.answer.Status, w.provider.answer.Body = 404, []byte("404 page not found")
		}},
		{"a wrong path of a list, in the provider's form", true, func(w *world) {
			w.provider.answer.Status, w.provider.answer.Body = 404, []byte(`{"code": "no_route", "detail": "no such route", "title": "no_route"}`)
		}},
		{"a login page", true, func(w *world) {
			w.provider.answer.Body = []byte("<!DOCTYPE html><html><body>Sign in</body></html>")
		}},
		{"another service", true, func(w *world) { w.provider.answer.Body = []byte(`{"hello": "world"}`) }},
		{"a login page for a job", true, func(w *world) {
			status(t, w)
			w.provider.answer.Body = []byte("<!DOCTYPE html><html><body>Sign in</body></html>")
		}},
		{"an answer that is too long", true, func(w *world) { w.provider.answer.Truncated = true }},
		{"a redirect", true, func(w *world) { w.provider.answer.Status, w.provider.answer.Body = 302, nil }},
		{"a redirect to a login page", true, func(w *world) {
			w.provider.answer.Status, w.provider.answer.Body = 302, []byte("<html>Found</html>")
			w.provider.answer.URL = "https://p.test/v1/jobs?x=1"
			w.provider.answer.Header.Set("Location", "https://login.test/in?back=s3cret#s3cret")
		}},
		{"a redirect to another path", true, func(w *world) {
			w.provider.answer.Status, w.provider.answer.URL = 307, "https://p.test/v1/jobs"
			w.provider.answer.Header.Set("Location", "/v2/jobs?key=s3cret")
		}},
		{"a body that is not what it says", true, func(w *world) {
			w.provider.answer.Truncated, w.provider.answer.Cut = true, "the body is labelled gzip, and cannot be read as that"
		}},
		{"an answer that says nothing", true, func(w *world) { w.provider.answer.Status = 503 }},
		{"no answer", true, func(w *world) {
			w.provider.answer = outbound.Answer{}
			w.provider.err = &outbound.Failure{Class: outbound.Dial, Sent: outbound.NotSent, Err: errors.New("connection refused")}
		}},
		{"no call without effect", true, func(w *world) {
			w.accounts = w.accounts[:1]
			w.accounts[0].Contract = builtin(t, "example-ask", "url: job.status_url\n", "method: POST\n")
		}},
		{"a provider asks for no credential", true, func(w *world) {
			w.accounts = w.accounts[:1]
			w.provider.answer.Body = []byte(`{"job_id": "counterfoil-doctor-probe", "state": "queued"}`)
			w.accounts[0].Credential = ""
			w.accounts[0].Contract = builtin(t, "example-ask", "credential:\n  header: Authorization\n  format: Bearer {secret}\n", "credential: none\n")
		}},
		{"a contract is gone", false, func(w *world) {
			w.accounts = w.accounts[:1]
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving), state(2, projections.PhaseObserving)}
		}},
		{"a contract cannot be read", false, func(w *world) {
			w.config.Contract = func(context.Context, events.Digest) (*contract.Contract, error) {
				return nil, errors.New("contract 00 was written for another version of this program")
			}
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving)}
		}},
		{"operations that go on and that ended", false, func(w *world) {
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving), state(2, projections.PhaseSucceeded)}
		}},
		{"every stopped state", false, func(w *world) {
			w.ledger.states = []projections.State{
				state(1, projections.PhaseResultTimedOut, quarantined("", projections.ReasonResultDeadline)),
				state(2, projections.PhaseCancellationUnconfirmed, quarantined("", projections.ReasonCancelDeadline)),
				state(3, projections.PhaseResultUnavailable, quarantined("", projections.ReasonCollectDeadline)),
				state(4, projections.PhaseResultValidationFailed, quarantined("", projections.ReasonCheckFailed)),
				state(5, projections.PhaseQuarantined, quarantined(projections.QuarantineUnknown, projections.ReasonCreateUnknown)),
				state(6, projections.PhaseQuarantined, quarantined(projections.QuarantineUnknown, projections.ReasonCreateUnknown), func(s *projections.State) {
					s.Candidates = []string{"job-1", "job 2; rm -rf"}
				}),
				state(7, projections.PhaseQuarantined, quarantined(projections.QuarantineLost, projections.ReasonJobLost)),
				state(8, projections.PhaseQuarantined, quarantined(projections.QuarantineConflict, projections.ReasonJobConflict)),
				state(9, projections.PhaseQuarantined, quarantined(projections.QuarantineUnreadable, projections.ReasonFactUnreadable)),
			}
		}},
		{"every reason to rest", false, func(w *world) {
			w.ledger.states = []projections.State{
				state(1, projections.PhaseCreatePending, deferred(events.DeferNoCredential)),
				state(2, projections.PhaseReconciliation, deferred(events.DeferTargetChanged)),
				state(10, projections.PhaseCreatePending, deferred(events.DeferTargetChanged)),
				state(3, projections.PhaseObserving, deferred(events.DeferThrottled)),
				state(4, projections.PhaseCreatePending, deferred(events.DeferHold)),
				state(5, projections.PhaseCreatePending, deferred(events.DeferNoContract)),
				state(8, projections.PhaseCreatePending, deferred(events.DeferStorageLow)),
				state(11, projections.PhaseObserving, deferred(events.DeferLimit)),
				state(6, projections.PhaseCreatePending, deferred("of_a_later_version")),
				state(7, projections.PhaseCreatePending, func(s *projections.State) { s.Paused = true }),
				state(9, projections.PhaseCreatePending, func(s *projections.State) {
					s.Pace.RestCreates, s.Pace.Resting, s.Because = noon.Add(time.Hour), events.DeferHold, "deferred: provider_on_hold"
				}),
			}
		}},
		{"an operation is late", false, func(w *world) {
			late := func(by time.Duration) func(*projections.State) {
				return func(s *projections.State) {
					s.NextLook, s.WaitingFor, s.Because = noon.Add(-by), "read", "the job goes on"
				}
			}
			w.ledger.states = []projections.State{
				state(1, projections.PhaseObserving, late(time.Hour)),
				state(2, projections.PhaseObserving, late(lateAfter)), // may be leased right now
				state(3, projections.PhaseObserving, late(time.Hour)),
			}
			w.ledger.moved = map[string]projections.State{"op_3": state(3, projections.PhaseSucceeded)}
		}},
		{"calls after the end", false, func(w *world) {
			cleanup := func(in time.Duration) func(*projections.State) {
				return func(s *projections.State) {
					s.NextLook, s.WaitingFor, s.Because = noon.Add(in), "cleanup", "a cleanup was asked for"
				}
			}
			w.ledger.states = []projections.State{
				state(1, projections.PhaseSucceeded, cleanup(-time.Hour)),
				state(2, projections.PhaseFailed, cleanup(time.Hour), deferred(events.DeferHold)),
				state(3, projections.PhaseCancelled, cleanup(time.Minute), func(s *projections.State) {
					s.Paused = true // no cleanup rests for that
					s.Pace.Failures, s.Problem = 3, projections.Problem{Class: events.ErrorServer}
				}),
				state(4, projections.PhaseSucceeded, func(s *projections.State) { s.Paused = true }),
			}
		}},
		{"calls fail again and again", false, func(w *world) {
			failing := func(class events.ErrorClass, n uint64, words string) func(*projections.State) {
				return func(s *projections.State) {
					s.Job.ID, s.Pace.Failures = "job-1", n
					s.Problem = projections.Problem{Class: class, Message: words}
				}
			}
			w.ledger.states = []projections.State{
				state(1, projections.PhaseObserving, failing(events.ErrorUnauthorized, 1, "")), // does not heal by itself
				state(2, projections.PhaseObserving, failing(events.ErrorServer, 2, "")),       // may
				state(3, projections.PhaseObserving, failing(events.ErrorServer, 3, "answered 500, with an empty body")),
				state(4, projections.PhaseCancelling, failing(events.ErrorTransport, 3, "")),
				state(5, projections.PhaseAccepted, failing(events.ErrorUnreadable, 3, "see https://p.test/x?key=s3cret")),
				state(6, projections.PhaseObserving, failing(events.ErrorNoCredential, 3, "")),
				state(7, projections.PhaseObserving, failing(events.ErrorThrottled, 3, "")),
				state(8, projections.PhaseResultTimedOut, failing(events.ErrorUnauthorized, 40, "answered 401, with an empty body"), quarantined("", projections.ReasonResultDeadline)),
				state(9, projections.PhaseQuarantined, quarantined(projections.QuarantineUnknown, projections.ReasonCreateUnknown), func(s *projections.State) {
					s.Problem = projections.Problem{Class: events.ErrorUnreadable, Message: "answered 302, a redirect that was not followed, with an empty body"}
				}),
				state(10, projections.PhaseQuarantined, quarantined(projections.QuarantineUnknown, projections.ReasonCreateUnknown), func(s *projections.State) {
					s.Problem = projections.Problem{Class: events.ErrorUnanswered, Message: "no answer was recorded by poller-1, and the request may have arrived"}
				}),
				state(11, projections.PhaseCreatePending, func(s *projections.State) {
					s.Prepares.Streak, s.Problem = 3, projections.Problem{Class: events.ErrorUnanswered, Message: "no answer was recorded by poller-1, and the request may have arrived"}
				}),
				state(12, projections.PhaseObserving, failing(events.ErrorInternal, 3, "no contract of that digest")),
				state(13, projections.PhaseObserving, failing(events.ErrorPolicy, 3, "GET http://p.test: not sent: connect to 10.0.0.7:443: address 10.0.0.7 is not public"), func(s *projections.State) {
					s.Problem.Code = string(outbound.DestinationRefused)
				}),
				state(14, projections.PhaseObserving, failing(events.ErrorPolicy, 3, "GET https://p.test: redirect: leads to plain http"), func(s *projections.State) {
					s.Problem.Code = string(outbound.RedirectRefused)
				}),
			}
		}},
		{"a state that the contract does not know", false, func(w *world) {
			w.ledger.states = []projections.State{state(1, projections.PhaseObserving, func(s *projections.State) {
				s.Job.ID, s.Job.Remote, s.Job.Class, s.Dates.Result = "job-1", "paused_\x1b[2J", events.ClassUnknown, noon.Add(time.Hour)
			})}
		}},
		{"an operation cannot be read again", false, func(w *world) {
			s := state(1, projections.PhaseResultTimedOut)
			w.ledger.states = []projections.State{s}
			w.ledger.states[0].Operation = "op_gone"
			w.config.Journal = lost{&w.ledger}
		}},
	}
	var b strings.Builder
	base := map[bool]string{false: text(healthy(t).look(t, false)), true: text(healthy(t).look(t, true))}
	for _, c := range cases {
		w := healthy(t)
		c.spoil(w)
		got := text(w.look(t, c.probe))
		switch sound := strings.HasPrefix(c.name, "healthy"); {
		case !sound && got == base[c.probe]:
			t.Errorf("%s: the report is that of a healthy service", c.name)
		case !sound:
			got = without(got, base[c.probe])
		}
		fmt.Fprintf(&b, "== %s\n%s\n", c.name, got)
	}
	golden(t, "checks.txt", b.String())
}

// status leaves one account, whose contract can only ask for a job.
func status(t *testing.T, w *world) {
	w.accounts = w.accounts[:1]
	w.accounts[0].Contract = builtin(t, "example-ask")
}

// without leaves out the checks that are as in a healthy service.
func without(got, base string) string {
	var b strings.Builder
	for _, check := range strings.Split(strings.ReplaceAll(got, "\n         ", "\t"), "\n") {
		if check = strings.ReplaceAll(check, "\t", "\n         "); !strings.Contains(base, check) {
			b.WriteString(check + "\n")
		}
	}
	return b.String()
}

// lost reads no operation again.
type lost struct{ *ledger }

func (lost) Current(context.Context, string) (projections.State, error) {
	return projections.State{}, errors.New("no answer")
}

// A probe is one GET of each account, with the credential where the contract
// puts it, without following redirects and with a bound on everything.
func TestProbeIsHarmless(t *testing.T) {
	w := healthy(t)
	w.look(t, true)
	if len(w.provider.requests) != len(w.accounts) {
		t.Fatalf("%d requests for %d accounts", len(w.provider.requests), len(w.accounts))
	}
	for _, r := range w.provider.requests {
		if r.Method != http.MethodGet || r.SideEffect || r.FollowRedirects != 0 || len(r.Body) > 0 || r.Timeout != probeTime || r.MaxBody != probeBody {
			t.Errorf("not harmless: %+v", r)
		}
		if len(r.Trusted) != 1 || !strings.HasPrefix(r.URL, r.Trusted[0]+"/") {
			t.Errorf("%s: it trusts %v", r.URL, r.Trusted)
		}
		if r.Credential.In != outbound.InHeader || r.Credential.Name != "Authorization" || r.Credential.Format != "Bearer {}" || r.Credential.Ref == "" {
			t.Errorf("%s: credential %+v", r.URL, r.Credential)
		}
	}
	w.provider.requests = nil
	w.look(t, false)
	if len(w.provider.requests) != 0 {
		t.Error("a provider was called though nobody asked for a probe")
	}
}

// Under a hold of all calls a probe calls nobody, and says why; a hold of creates
// leaves reads alone.
func TestProbeUnderAHold(t *testing.T) {
	hold := func(provider string, scope events.HoldScope) projections.Hold {
		return projections.Hold{Provider: provider, Scope: scope, Since: noon.Add(-time.Hour), Who: "alice"}
	}
	for _, c := range []struct {
		name  string
		holds projections.Holds
		err   error
		calls int
		says  string
	}{
		{"none", nil, nil, 2, ""},
		{"of creates", projections.Holds{hold("", events.HoldCreates)}, nil, 2, ""},
		{"of all calls to one", projections.Holds{hold("replicate", events.HoldAll), hold("", events.HoldCreates)}, nil, 1, "replicate/default: not probed: all calls to replicate are held since 2026-12-01T11:00:00Z by alice"},
		{"of all calls to all", projections.Holds{hold("replicate", events.HoldCreates), hold("", events.HoldAll)}, nil, 0, "replicate/default: not probed: all calls to all providers are held since 2026-12-01T11:00:00Z by alice"},
		{"that cannot be read", projections.Holds{{Provider: "replicate", Scope: events.HoldAll, Unreadable: "version 9"}}, nil, 1, "replicate/default: not probed: a fact of the hold on replicate cannot be read"},
		{"unknown", nil, errors.New("no answer"), 0, "replicate/default: not probed: the holds could not be read: no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := healthy(t)
			w.ledger.holds, w.ledger.err = c.holds, c.err
			got := text(w.look(t, true))
			if n := len(w.provider.requests); n != c.calls {
				t.Errorf("%d calls, want %d", n, c.calls)
			}
			if !strings.Contains(got, c.says) || c.says == "" && strings.Contains(got, "not probed") {
				t.Errorf("want %q in\n%s", c.says, got)
			}
			for _, r := range w.provider.requests {
				if c.calls == 1 && !strings.HasPrefix(r.URL, "https://lookup.test/") {
					t.Errorf("%s was called", r.URL)
				}
			}
		})
	}
}

// However much there is, a look ends, and says what it left out.
func TestBounds(t *testing.T) {
	w := healthy(t)
	for n := range 3 * maxStuck {
		w.ledger.states = append(w.ledger.states, state(n, projections.PhaseResultTimedOut))
	}
	w.ledger.endless = true
	for n := range maxAccounts + 1 {
		w.accounts = append(w.accounts, Account{Provider: "example-lookup", Account: fmt.Sprintf("a%d", n), Credential: "env:X", Contract: w.accounts[0].Contract})
	}
	r := w.look(t, true)
	cut := strings.Join(r.Cut, "\n")
	for _, want := range []string{"operations: the newest part", "more that do not go on are not listed", "accounts were looked at", "accounts were probed"} {
		if !strings.Contains(cut, want) {
			t.Errorf("nothing says %q:\n%s", want, cut)
		}
	}
	if w.ledger.pages > maxPages || len(w.provider.requests) > maxProbes {
		t.Errorf("%d pages, %d probes", w.ledger.pages, len(w.provider.requests))
	}
	w = healthy(t)
	w.ledger.endless = true // much history, nothing open in it
	w.look(t, false)
	if w.ledger.pages != maxPages {
		t.Errorf("%d pages", w.ledger.pages)
	}
}

// The newest answer counts, and no more origins are remembered than the bound.
func TestClocksAreBounded(t *testing.T) {
	c := NewClocks()
	note := func(origin string, at time.Time, ahead time.Duration) {
		c.note(outbound.Answer{URL: origin + "/x?key=secret", SentAt: at, AnsweredAt: at, Date: at.Add(ahead)})
	}
	note("https://a.test", noon, time.Hour)
	note("https://a.test", noon.Add(-time.Minute), 0) // an older call that ended later
	if r, ok := c.Of("https://a.test"); !ok || r.Ahead != time.Hour {
		t.Errorf("reading %+v", r)
	}
	for n := range maxClocks {
		note(fmt.Sprintf("https://h%d.test", n), noon.Add(time.Duration(n+1)*time.Second), 0)
	}
	if _, ok := c.Of("https://a.test"); ok || len(c.readings) != maxClocks {
		t.Errorf("%d origins are remembered", len(c.readings))
	}
	c.note(outbound.Answer{URL: "https://b.test", AnsweredAt: noon})
	if _, ok := c.Of("https://b.test"); ok {
		t.Error("an answer without a date told the time")
	}
}

// A caller who leaves gets no report.
func TestLookEndsWithItsContext(t *testing.T) {
	w := healthy(t)
	w.config.Call = &w.provider
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := New(w.config).Look(ctx, Request{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s is otherwise; -update rewrites it. Got:\n%s", name, got)
	}
}
