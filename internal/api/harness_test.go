package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/webhook"
	"github.com/counterfoil/counterfoil/projections"
)

const hookSecret = "canary-webhook-secret"

// clock is moved by hand; who sleeps moves it.
type clock struct {
	real bool // the machine's clock instead
	mu   sync.Mutex
	now  time.Time // guarded by mu
}

func (c *clock) Now() time.Time {
	if c.real {
		return time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error { return c.SleepOr(ctx, d, nil) }

func (c *clock) SleepOr(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	if c.real {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-woken:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-woken:
		return ctx.Err()
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

// directory has the built-in contracts, one account each.
type directory map[string]*contract.Contract

func (d directory) Current(name string) (*contract.Contract, bool) { c, ok := d[name]; return c, ok }

func (d directory) HasAccount(_, account string) bool { return account == ingest.DefaultAccount }
func (d directory) Reachable(string, string) bool     { return true }

// MayUse keeps one account of one provider from one principal.
func (d directory) MayUse(principal, provider, _ string) bool {
	return principal != "guest" || provider == "example"
}

func (d directory) AccountsOf(principal, provider string) []string {
	if !d.MayUse(principal, provider, ingest.DefaultAccount) {
		return nil
	}
	return []string{ingest.DefaultAccount}
}

func (d directory) WebhookSecrets(provider string) []webhook.Secret {
	if provider != "example" {
		return nil
	}
	return []webhook.Secret{{Account: ingest.DefaultAccount, Reference: "env:HOOK"}}
}

func (d directory) Providers() []string {
	var names []string
	for name := range d {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func builtin(t testing.TB) directory {
	t.Helper()
	d := directory{}
	for _, name := range []string{"example", "example-ask", "replicate"} {
		src, err := contracts.FS.ReadFile(name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if d[name], err = contract.Parse(name+".yaml", src); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// harness is a whole service over the memory store.
type harness struct {
	t        testing.TB
	clock    *clock
	store    *memory.Store
	known    directory // the service's; a test may change what is in it
	journal  *journal.Journal
	service  *ingest.Service
	receiver *webhook.Receiver
	handler  http.Handler // checks every answer
	options  Options      // of the handler
	log      *bytes.Buffer
	bearer   map[string]string
	op       string                     // the operation answered last
	broken   bool                       // Ready fails
	full     bool                       // there is no room
	unusable map[string]ingest.Unusable // by provider/account
	refused  []ingest.Code
	skew     time.Duration
	doctor   *doctor.Doctor
	keys     string        // the keys file
	open     chan struct{} // see Options.Open
	streams  ingest.StreamLimits
	quotas   ingest.Quotas // of every principal
	ids      string        // begins the ids of facts, which no two processes share
	exceeded []ingest.Policy
	policy   *contract.Policy // nil: none
	team     string           // of keys that are made
}

type lockedWriter struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func logInto(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(&lockedWriter{b: b}, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	h := &harness{t: t, clock: &clock{now: time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)}, log: &bytes.Buffer{}, bearer: map[string]string{}}
	return h.over(h.memory())
}

func (h *harness) memory() journal.Store {
	h.store = memory.New(memory.Config{Now: h.clock.Now})
	return h.store
}

func (h *harness) over(store journal.Store) *harness {
	t := h.t
	log := logInto(h.log)
	n := 0
	var mu sync.Mutex
	newID := func() string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return fmt.Sprintf("%sid%04d", h.ids, n)
	}
	h.journal = journal.New(journal.Options{Store: store, Now: h.clock.Now, Sleep: h.clock.Sleep, NewID: newID})
	d := builtin(t)
	h.known = d
	h.service = ingest.New(ingest.Config{
		Journal: h.journal, Directory: d, Clock: h.clock, NewID: newID,
		Installation: "in_test", Key: bytes.Repeat([]byte("k"), 32), Source: "/ingest/1",
		ClockDifference: h.skew, Full: func() bool { return h.full }, Streams: h.streams,
		Quotas: func(string) ingest.Quotas { return h.quotas }, Exceeded: func(p ingest.Policy) {
			mu.Lock()
			defer mu.Unlock()
			h.exceeded = append(h.exceeded, p)
		},
		Policy: func() *contract.Policy { return h.policy },
		Unusable: func(_ context.Context, provider, account string) ingest.Unusable {
			return h.unusable[provider+"/"+account]
		},
	})
	secrets := outbound.References{LookupEnv: func(name string) (string, bool) { return hookSecret, name == "HOOK" }}
	h.receiver = webhook.New(webhook.Config{
		Journal: h.journal, Directory: d, Secrets: secrets, Clock: h.clock, Source: "/webhooks/1",
	})
	path := filepath.Join(t.TempDir(), "keys")
	h.keys = path
	random := rand.NewChaCha8([32]byte{1})
	for _, who := range []string{"alice", "bob", "guest"} {
		key, bearer, err := ingest.NewKey(random, who, who == "alice", h.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := ingest.AddKey(path, key); err != nil {
			t.Fatal(err)
		}
		h.bearer[who] = bearer
	}
	for _, who := range []struct {
		name, team string
		scopes     []ingest.Scope
	}{
		{"bob", "blue", nil}, // the team of the principal, whichever key it uses
		{"mate", "blue", []ingest.Scope{ingest.ScopeReadTeam, ingest.ScopeCancel}},
		{"auditor", "", []ingest.Scope{ingest.ScopeReadAll, ingest.ScopeAudit}},
		{"admin", "", []ingest.Scope{ingest.ScopeAdmin}},
		{"approver", "blue", []ingest.Scope{ingest.ScopeReadAll, ingest.ScopeApprove}},
		{"submitter", "", []ingest.Scope{"submit:example/*"}},
		{"nothing", "", []ingest.Scope{}},
	} {
		key, bearer, err := ingest.NewKey(random, who.name, false, h.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		key.Scopes, key.Team = who.scopes, who.team
		if err := ingest.AddKey(path, key); err != nil {
			t.Fatal(err)
		}
		h.bearer[who.name] = bearer
	}
	keys, err := ingest.OpenKeys(path, h.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	h.options = Options{
		Service: h.service, Keys: keys, Webhooks: h.receiver, Doctor: h.doctor, Log: log, Now: h.clock.Now, Open: h.open,
		Ready: func(context.Context) (bool, any) { return !h.broken, map[string]bool{"broken": h.broken} },
		Refused: func(code ingest.Code) {
			mu.Lock()
			defer mu.Unlock()
			h.refused = append(h.refused, code)
		},
	}
	h.handler = documented(t, h.options)
	return h
}

// do makes one request. as "" sends no key.
func (h *harness) do(as, method, target string, header map[string]string, body string) *httptest.ResponseRecorder {
	w := h.request(as, method, target, header, body)
	var answer struct {
		ID string `json:"id"`
	}
	if w.Code < 300 && json.Unmarshal(w.Body.Bytes(), &answer) == nil && strings.HasPrefix(answer.ID, "op_") {
		h.op = answer.ID
	}
	return w
}

// request is do for those who ask at the same time: it leaves op as it is.
func (h *harness) request(as, method, target string, header map[string]string, body string) *httptest.ResponseRecorder {
	var r *http.Request
	if body == "" {
		r = httptest.NewRequest(method, target, nil)
	} else {
		r = httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	if as != "" {
		r.Header.Set("Authorization", "Bearer "+h.bearer[as])
	}
	for name, value := range header {
		if value == "" {
			r.Header.Del(name)
			continue
		}
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	return w
}

// stored counts the messages of all streams.
func (h *harness) stored() int {
	n := 0
	for _, s := range journal.Streams() {
		for from := uint64(1); ; n++ {
			m, err := h.store.Next(h.t.Context(), s, ">", from)
			if err != nil {
				break
			}
			from = m.Sequence + 1
		}
	}
	return n
}

// fact appends what a worker would.
func (h *harness) fact(f events.Fact) {
	h.t.Helper()
	s, err := h.journal.Current(h.t.Context(), h.op)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, outcome, err := h.journal.Append(h.t.Context(), s, events.Event{Source: "/poller/1", Fact: f}); err != nil || outcome != journal.Stored {
		h.t.Fatalf("append %s: %v %v", f.Type(), outcome, err)
	}
}

// play does what a line of a script says a provider and its worker did.
func (h *harness) play(line string) {
	h.t.Helper()
	word, rest, _ := strings.Cut(line, " ")
	now := h.clock.Now()
	asOf := func() uint64 {
		s, err := h.journal.Current(h.t.Context(), h.op)
		if err != nil {
			h.t.Fatal(err)
		}
		return s.Sequence
	}
	switch word {
	case "advance":
		d, err := time.ParseDuration(rest)
		if err != nil {
			h.t.Fatal(err)
		}
		_ = h.clock.Sleep(context.Background(), d) // only moves the clock
	case "attempted":
		h.fact(&events.CreateAttempted{Attempt: events.Attempt{
			Number: 1, Origin: "http://127.0.0.1:8787", Account: "default", Credential: "env:PROVIDER_KEY", Identity: "aa",
			NotAfter: now.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "1/run",
		}})
	case "accepted":
		claim, err := h.journal.Claim(h.t.Context(), "example", "default", rest, h.op)
		if err != nil {
			h.t.Fatal(err)
		}
		h.fact(&events.CreateAnswered{
			Attempt: 1, Outcome: events.CreateAccepted, JobID: rest, Claim: claim, Remote: "queued",
			StatusURL: "http://127.0.0.1:8787/v1/jobs/" + rest + "?signature=canary-link", Call: events.Call{AsOf: asOf(), LeftAt: now, Status: 202},
		})
	case "lost":
		h.fact(&events.CreateAnswered{Attempt: 1, Outcome: events.CreateAmbiguous, Call: events.Call{
			AsOf: asOf(), LeftAt: now, Class: events.ErrorTransport, Message: "connection reset while reading https://u:canary-userinfo@host/x?token=canary-query",
		}})
	case "observed":
		s, err := h.journal.Current(h.t.Context(), h.op)
		if err != nil {
			h.t.Fatal(err)
		}
		state, message, _ := strings.Cut(rest, " ")
		h.fact(&events.JobObserved{
			JobID: s.Job.ID, Claim: events.ClaimOwn, Remote: strings.ToUpper(state), State: events.Class(state), Progress: "40%",
			RetrievedAt: now, Prompt: "due", Call: events.Call{AsOf: s.Sequence, LeftAt: now, Status: 200, Message: message},
		})
	case "collected":
		d, err := h.journal.PutPayload(h.t.Context(), []byte(rest))
		if err != nil {
			h.t.Fatal(err)
		}
		h.fact(&events.ResultCollected{
			Payload: d, Size: uint64(len(rest)), MediaType: "application/json",
			Checks: []events.Check{{Name: "json", Passed: json.Valid([]byte(rest))}}, Call: events.Call{AsOf: asOf(), LeftAt: now, Status: 200},
		})
	case "collected-files": // name=content, separated by blanks; no name where it is ""
		var files []contract.File
		for part := range strings.SplitSeq(rest, " ") {
			name, content, _ := strings.Cut(part, "=")
			d, err := h.journal.PutPayload(h.t.Context(), []byte(content))
			if err != nil {
				h.t.Fatal(err)
			}
			files = append(files, contract.File{Name: name, Digest: d, Size: int64(len(content)), MediaType: "application/jsonl"})
		}
		body := contract.WriteFiles(files)
		d, err := h.journal.PutPayload(h.t.Context(), body)
		if err != nil {
			h.t.Fatal(err)
		}
		h.fact(&events.ResultCollected{
			Payload: d, Size: uint64(len(body)), MediaType: contract.FilesType, Call: events.Call{AsOf: asOf(), LeftAt: now, Status: 200},
		})
	case "sent": // an input or a cleanup that is due, and its outcome
		h.sent(events.CallOutcome(rest))
	case "passed":
		h.fact(&events.DeadlinePassed{Which: events.Deadline(rest)})
	case "project":
		h.project()
	case "hooks":
		h.hooks()
	case "policy":
		_, when, _ := strings.Cut(rest, "'")
		when, why, _ := strings.Cut(when, "' ")
		h.policy = policyOf(h.t, fmt.Sprintf("policy: 1\napproval:\n  - {name: asked, when: '%s', why: %s}\n", when, why))
	case "broken":
		h.broken = true
	case "full":
		h.full = !h.full
	default:
		h.t.Fatalf("unknown line %q", line)
	}
}

// project derives the history of every partition.
func (h *harness) project() {
	h.t.Helper()
	ctx := h.t.Context()
	for p := range journal.Partitions {
		tenure, err := h.journal.TakeOver(ctx, p)
		if err != nil {
			h.t.Fatal(err)
		}
		facts, err := tenure.Facts(ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		states := map[string]projections.State{}
		for {
			e, err := facts.Next(ctx, 0)
			if err != nil {
				break
			}
			op := e.Event.Operation
			s, known := states[op]
			if !known {
				if r, err := h.journal.Recorded(ctx, op); err == nil {
					s = r.State
				}
			}
			s, record := projections.Fold(s, e)
			states[op] = s
			if err := tenure.CommitRun(ctx, []projections.Record{record}); err != nil {
				h.t.Fatal(err)
			}
		}
		if err := facts.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
}

// hooks runs the webhook role until its queue is empty.
func (h *harness) hooks() {
	ctx, stop := context.WithCancel(h.t.Context())
	done := make(chan error)
	go func() { done <- h.receiver.Run(ctx) }()
	for range 2000 {
		if h.hooksDone() {
			break
		}
		time.Sleep(time.Millisecond) // bounded; the role's fetch waits on the real clock
	}
	stop()
	if err := <-done; err != nil {
		h.t.Error(err)
	}
}

// hooksDone says whether every stored delivery is a fact.
func (h *harness) hooksDone() bool {
	count := func(s journal.Stream, is func(journal.Message) bool) int {
		n := 0
		for from := uint64(1); ; {
			m, err := h.store.Next(context.Background(), s, ">", from)
			if err != nil {
				return n
			}
			if is(m) {
				n++
			}
			from = m.Sequence + 1
		}
	}
	return count(journal.Webhooks, func(journal.Message) bool { return true }) <=
		count(journal.Ledger, func(m journal.Message) bool {
			return slices.Contains(m.Header["ce-type"], events.TypePrefix+string(events.TypeWebhookReceived))
		})
}
