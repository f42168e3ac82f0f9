package intake_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is the bubble's.
type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func (c clock) Sleep(ctx context.Context, d time.Duration) error { return c.SleepOr(ctx, d, nil) }

func (clock) SleepOr(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
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

type directory map[string]*contract.Contract

func (d directory) Current(name string) (*contract.Contract, bool) { c, ok := d[name]; return c, ok }

func (d directory) HasAccount(_, account string) bool  { return account == ingest.DefaultAccount }
func (d directory) Reachable(string, string) bool      { return false }
func (d directory) Providers() []string                { return []string{"example"} }
func (d directory) MayUse(string, string, string) bool { return true }
func (d directory) AccountsOf(string, string) []string { return []string{ingest.DefaultAccount} }

// house is the role over a memory store whose calls may go wrong.
type house struct {
	t       *testing.T
	store   *memory.Store
	service *ingest.Service
	role    *intake.Role
	caller  func(principal, key string) (ingest.Caller, error)

	mu     sync.Mutex
	counts map[intake.Outcome]int // guarded by mu
	log    bytes.Buffer

	quotas ingest.Quotas
}

func parsed(t testing.TB) *contract.Contract {
	t.Helper()
	src, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	example, err := contract.Parse("example.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	return example
}

func newHouse(t *testing.T, decide func(memory.Call) memory.Fault) *house {
	t.Helper()
	return houseOf(t, parsed(t), decide)
}

func houseOf(t *testing.T, example *contract.Contract, decide func(memory.Call) memory.Fault) *house {
	t.Helper()
	h := &house{t: t, store: memory.New(memory.Config{Now: time.Now}), counts: map[intake.Outcome]int{}}
	n := 0
	var mu sync.Mutex
	newID := func() string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return fmt.Sprintf("id%04d", n)
	}
	j := journal.New(journal.Options{Store: memory.Inject(h.store, decide), Now: time.Now, Sleep: clock{}.Sleep, NewID: newID})
	h.service = ingest.New(ingest.Config{
		Journal: j, Directory: directory{"example": example}, Clock: clock{}, NewID: newID,
		Installation: "in_test", Key: bytes.Repeat([]byte("k"), 32), Source: "/ingest/1",
		Quotas: func(string) ingest.Quotas { return h.quotas },
	})
	h.caller = func(principal, key string) (ingest.Caller, error) {
		if key == "revoked" {
			return ingest.Caller{}, ingest.Unauthenticated()
		}
		return ingest.Caller{Principal: principal, KeyID: key, Scopes: ingest.UnstatedScopes()}, nil
	}
	h.role = intake.New(intake.Config{
		Journal: j, Service: h.service, Clock: clock{}, Log: slog.New(slog.NewTextHandler(&h.log, nil)), Source: "/ingest/1",
		Caller: func(principal, key string) (ingest.Caller, error) { return h.caller(principal, key) },
		Count: func(o intake.Outcome) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.counts[o]++
		},
	})
	return h
}

func event(id string, more ...string) map[string][]string {
	header := map[string][]string{"ce-specversion": {"1.0"}, "Ce-Type": {ingest.EventSubmit}, "ce-source": {"/a"}, "ce-id": {id}}
	for i := 0; i < len(more); i += 2 {
		header[more[i]] = []string{more[i+1]}
	}
	return header
}

// publish stores a message as the server does for an agent.
func (h *house) publish(subject string, header map[string][]string, data string) uint64 {
	h.t.Helper()
	sequence, err := h.store.Publish(h.t.Context(), journal.Intents, journal.Outgoing{Subject: subject, Header: header, Data: []byte(data)})
	if err != nil {
		h.t.Fatal(err)
	}
	return sequence
}

// run runs the role for so long.
func (h *house) run(d time.Duration) {
	ctx, stop := context.WithTimeout(h.t.Context(), d)
	defer stop()
	if err := h.role.Run(ctx); err != nil {
		h.t.Error(err)
	}
}

func (h *house) verdict(principal, token string) ingest.IntentVerdict {
	h.t.Helper()
	m, err := h.store.Last(h.t.Context(), journal.Verdicts, "verdicts."+principal+"."+token)
	if err != nil {
		h.t.Fatalf("verdict %s of %s: %v\n%s", token, principal, err, h.log.String())
	}
	var v ingest.IntentVerdict
	if err := json.Unmarshal(m.Data, &v); err != nil {
		h.t.Fatal(err)
	}
	if m.Header["ce-type"][0] != ingest.EventVerdict || m.Header["ce-source"][0] != "/ingest/1" {
		h.t.Errorf("header %v", m.Header)
	}
	return v
}

func (h *house) count(s journal.Stream) int {
	n := 0
	for from := uint64(1); ; n++ {
		m, err := h.store.Next(context.Background(), s, ">", from)
		if err != nil {
			return n
		}
		from = m.Sequence + 1
	}
}

const (
	body  = `{"provider":"example","params":{"n":1}}`
	other = `{"provider":"example","params":{"n":2}}`
)

func sound(memory.Call) memory.Fault { return memory.Fault{} }

// TestVerdicts: every intent is answered, as by HTTP, and none holds up another.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		structured := fmt.Sprintf(`{"specversion":"1.0","type":%q,"source":"/a","id":"s","idempotencykey":"k1","data":%s}`, ingest.EventSubmit, body)
		asJSON := map[string][]string{"content-type": {"application/cloudevents+json; charset=utf-8"}}
		for _, c := range []struct {
			name, key, data, token string
			header                 map[string][]string
			status                 int
			code                   ingest.Code
			outcome                intake.Outcome
		}{
			{"binary", "k1", body, intake.Token("/a", "1"), event("1", "ce-idempotencykey", "k1"), 202, "", intake.Accepted},
			{"the same event", "k1", body, intake.Token("/a", "1"), event("1", "ce-idempotencykey", "k1"), 200, "", intake.Replayed},
			{"the same key, structured", "k1", structured, intake.Token("/a", "s"), asJSON, 200, "", intake.Replayed},
			{"another intent under the key", "k1", other, intake.Token("/a", "2"), event("2", "ce-idempotencykey", "k1"), 422, ingest.CodeKeyReused, intake.Refused},
			{"without a key", "k1", body, intake.Token("/a", "a b.>*"), event("a%20b.>*"), 202, "", intake.Accepted},
			{"data refused", "k1", `{"provider":"nobody","params":{}}`, intake.Token("/a", "3"), event("3"), 422, ingest.CodeUnknownProvider, intake.Refused},
			{"data is no JSON", "k1", `{`, intake.Token("/a", "4"), event("4"), 400, ingest.CodeMalformedJSON, intake.Refused},
			{"validate only", "k1", body[:len(body)-1] + `,"validate_only":true}`, intake.Token("/a", "7"), event("7"), 200, "", intake.Validated},
			{"a revoked key", "revoked", body, intake.Token("/a", "5"), event("5"), 401, ingest.CodeUnauthenticated, intake.Refused},
			{"no event", "k1", body, "", nil, 422, ingest.CodeInvalid, intake.Malformed},
			{"no envelope", "k1", "{", "", asJSON, 400, ingest.CodeMalformedJSON, intake.Malformed},
			{"a batch", "k1", "[]", "", map[string][]string{"Content-Type": {"application/cloudevents-batch+json"}}, 422, ingest.CodeInvalid, intake.Malformed},
			{"another version", "k1", body, intake.Token("/a", "v"), event("v", "ce-specversion", "0.3"), 422, ingest.CodeInvalid, intake.Malformed},
			{"no version", "k1", body, intake.Token("/a", "w"), event("w", "ce-specversion", ""), 422, ingest.CodeInvalid, intake.Malformed},
			{"a bad attribute", "k1", body, intake.Token("/a", "x"), event("x", "ce-b_d", "1"), 422, ingest.CodeInvalid, intake.Malformed},
			{"two ids", "k1", body, "", event("y", "CE-ID", "z"), 422, ingest.CodeInvalid, intake.Malformed},
			{"another version, structured", "k1", `{"specversion":"0.3","id":"t","source":"/a"}`, intake.Token("/a", "t"), asJSON, 422, ingest.CodeInvalid, intake.Malformed},
			{"a name twice, structured", "k1", `{"specversion":"1.0","id":"u","source":"/a","x":1,"x":2}`, intake.Token("/a", "u"), asJSON, 400, ingest.CodeDuplicateKey, intake.Malformed},
			{"two ids, structured", "k1", `{"specversion":"1.0","id":"u","id":"v","source":"/a"}`, "", asJSON, 400, ingest.CodeDuplicateKey, intake.Malformed},
			{"another event", "k1", body, intake.Token("/a", "6"), event("6", "Ce-Type", "com.example.other"), 422, ingest.CodeInvalid, intake.Malformed},
		} {
			before, aside := h.counts[c.outcome], h.count(journal.Verdicts)
			sequence := h.publish("intents.alice."+c.key, c.header, c.data)
			h.run(time.Second)
			token := c.token
			if token == "" {
				token = intake.SequenceToken(sequence)
			}
			v := h.verdict("alice", token)
			if v.Sequence != sequence || v.Status != c.status || (v.Operation == nil) == (v.Problem == nil) || v.Problem != nil && (v.Problem.Code != c.code || v.Problem.Status != c.status) {
				t.Errorf("%s: %+v, want %d %s", c.name, v, c.status, c.code)
			}
			if h.counts[c.outcome] != before+1 {
				t.Errorf("%s: counted %v, want one %s more", c.name, h.counts, c.outcome)
			}
			if n := h.count(journal.Verdicts) - aside; c.outcome == intake.Malformed && n != 2 {
				t.Errorf("%s: %d messages in VERDICTS, want the verdict and what was kept aside", c.name, n)
			}
			if n := h.count(journal.Intents); n != 0 {
				t.Fatalf("%s: %d intents are left", c.name, n)
			}
		}
		if n := h.count(journal.Ledger); n != 2 {
			t.Errorf("%d facts, want one for each of two intents", n)
		}
		// What is kept aside is bounded.
		for range 3 * journal.RejectedMost {
			h.publish("intents.alice.k1", nil, "x")
		}
		h.run(10 * time.Second)
		n := 0
		if err := h.store.Newest(t.Context(), journal.Verdicts, "rejected.alice.*", func(journal.Message) error { n++; return nil }); err != nil || n != journal.RejectedMost {
			t.Errorf("%d are kept aside, %v", n, err)
		}
	})
}

// TestPrincipalsAreApart: the same event of two agents is two operations, whatever
// the event says of who made it.
func TestPrincipalsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		h.publish("intents.alice.k1", event("1", "ce-principal", "bob"), body)
		h.publish("intents.bob.k2", event("1", "ce-principal", "alice"), body)
		h.run(time.Second)
		a, b := h.verdict("alice", intake.Token("/a", "1")), h.verdict("bob", intake.Token("/a", "1"))
		if a.Operation == nil || b.Operation == nil || a.Operation.ID == b.Operation.ID {
			t.Errorf("alice has %+v, bob %+v", a, b)
		}
	})
}

// TestEveryCall makes each call to the store go wrong in turn, undone and done: the
// intent is answered in the end, it is one operation, and nothing is left.
func TestEveryCall(t *testing.T) {
	type step struct {
		call memory.Call
		n    int
	}
	for name, message := range map[string]struct {
		header map[string][]string
		facts  int
	}{"an intent": {event("1"), 1}, "no intent": {nil, 0}} {
		play := func(t *testing.T, at int, kind memory.Kind) (calls []step) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				h := newHouse(t, func(c memory.Call) memory.Fault {
					mu.Lock()
					defer mu.Unlock()
					calls = append(calls, step{c, len(calls)})
					if len(calls)-1 == at {
						return memory.Fault{Kind: kind}
					}
					return memory.Fault{}
				})
				sequence := h.publish("intents.alice.k1", message.header, body)
				h.run(3 * time.Minute)
				token := intake.Token("/a", "1")
				if message.facts == 0 {
					token = intake.SequenceToken(sequence)
				}
				v := h.verdict("alice", token)
				if facts := h.count(journal.Ledger); facts != message.facts || message.facts > 0 && (v.Operation == nil || v.Status != 202 && !v.Replayed) {
					t.Errorf("%d facts, verdict %+v\n%s", facts, v, h.log.String())
				}
				if n := h.count(journal.Intents); n != 0 {
					t.Errorf("%d intents are left", n)
				}
			})
			return calls
		}
		var clean []step
		t.Run(name+"/clean", func(t *testing.T) { clean = play(t, -1, memory.None) })
		last := 0
		for i, s := range clean {
			if s.call.Op == memory.OpAck {
				last = i
			}
		}
		if last < 3 {
			t.Fatalf("%s: only %d calls: %v", name, last, clean)
		}
		for kind, word := range map[memory.Kind]string{memory.Unavailable: "refused", memory.Undone: "undone", memory.Done: "done", memory.Late: "late"} {
			for _, s := range clean[:last+1] {
				t.Run(fmt.Sprintf("%s/%d %s %s %s", name, s.n, s.call.Op, s.call.Stream, word), func(t *testing.T) { play(t, s.n, kind) })
			}
		}
	}
}

// TestPanic: an intent that breaks our own code is tried again and then answered.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		good := h.caller
		h.caller = func(principal, key string) (ingest.Caller, error) {
			if key == "k0" {
				panic("canary-panic")
			}
			return good(principal, key)
		}
		h.publish("intents.alice.k0", event("1"), body)
		h.publish("intents.alice.k1", event("2"), body)
		h.run(5 * time.Minute)
		if v := h.verdict("alice", intake.Token("/a", "1")); v.Problem == nil || v.Problem.Code != ingest.CodeInternal {
			t.Errorf("got %+v", v)
		}
		if v := h.verdict("alice", intake.Token("/a", "2")); v.Status != 202 {
			t.Errorf("the other intent: %+v", v)
		}
		if strings.Contains(h.log.String(), "canary") {
			t.Error("the log has the text of the panic")
		}
	})
}

// While it is not known what was spent of a quota, an intent waits in the queue: that is no
// verdict on it.
func TestIntentsWaitUntilCostsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		limit, _ := contract.ParseDecimal("10")
		h.quotas = ingest.Quotas{Costs: map[string]contract.Decimal{"USD": limit}}
		h.publish("intents.alice.k1", event("1"), `{"provider":"example","params":{"copies":4}}`)
		h.run(time.Minute)
		if n := h.count(journal.Intents); n != 1 || h.counts[intake.Postponed] == 0 || h.counts[intake.Refused] != 0 {
			t.Fatalf("%d intents wait, %v", n, h.counts)
		}
		ctx, stop := context.WithCancel(t.Context())
		counted := make(chan struct{})
		go func() { defer close(counted); h.service.RunCosts(ctx) }()
		defer func() { stop(); <-counted }()
		h.run(time.Minute)
		if v := h.verdict("alice", intake.Token("/a", "1")); v.Status != 202 {
			t.Errorf("%+v", v)
		}
	})
}

// TestKeysFileBroken: while keys cannot be checked nothing is answered, and nothing
// lost.
func TestKeysFileBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		good := h.caller
		h.caller = func(string, string) (ingest.Caller, error) {
			return ingest.Caller{}, &ingest.KeysError{Cause: errors.New("no such file")}
		}
		h.publish("intents.alice.k1", event("1"), body)
		h.run(time.Minute)
		if n := h.count(journal.Intents); n != 1 || h.counts[intake.Postponed] == 0 {
			t.Fatalf("%d intents are left, %v", n, h.counts)
		}
		h.caller = good
		h.run(time.Minute)
		if v := h.verdict("alice", intake.Token("/a", "1")); v.Status != 202 {
			t.Errorf("got %+v", v)
		}
	})
}

// FuzzMessage: whatever an agent stores is answered, and leaves the queue.
func FuzzMessage(f *testing.F) {
	f.Add("ce-id", "1", "content-type", "application/json", []byte(body))
	f.Add("CE-ID", "%ff", "Content-Type", "application/cloudevents+json", []byte(`{"specversion":"1.0"}`))
	example := parsed(f) // takes longer than all the rest
	f.Fuzz(func(t *testing.T, name, value, name2, value2 string, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			h := houseOf(t, example, sound)
			header := event("1")
			header[name], header[name2] = []string{value}, []string{value2}
			h.publish("intents.alice.k1", header, string(data))
			h.run(time.Second)
			if n := h.count(journal.Intents); n != 0 || h.count(journal.Verdicts) == 0 {
				t.Errorf("%d intents are left, %d verdicts\n%s", n, h.count(journal.Verdicts), h.log.String())
			}
		})
	})
}

// TestToken holds the token against what docs/NATS.md says: printf '%s\n%s' | sha256sum.
func TestToken(t *testing.T) {
	if got, want := intake.Token("/agents/a", "1"), "3218726533bde07a6573267537399d4d"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An intent that a quota refuses is answered like any other refusal, and done with: it does
// not wait in the queue. Published again it is the same intent, under the same key, and goes
// through once there is room.
func TestQuotaRefusalIsAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, sound)
		h.quotas = ingest.Quotas{Submits: 1}
		h.publish("intents.alice.k1", event("1"), body)
		h.run(time.Second)
		h.publish("intents.alice.k1", event("2"), body)
		h.run(time.Second)
		v := h.verdict("alice", intake.Token("/a", "2"))
		if p := v.Problem; v.Status != 429 || p == nil || p.Code != ingest.CodeRateExceeded || p.RetryAfter < 1 || p.RetryWith != ingest.RetrySameKey || p.Violated[0] != ingest.PolicySubmit {
			t.Fatalf("%+v", v)
		}
		if n := h.count(journal.Intents); n != 0 || h.counts[intake.Refused] != 1 || h.counts[intake.Postponed] != 0 {
			t.Errorf("%d intents wait, %v", n, h.counts)
		}
		h.publish("intents.alice.k1", event("1"), body)
		h.run(time.Second)
		if v := h.verdict("alice", intake.Token("/a", "1")); v.Status != 200 || !v.Replayed {
			t.Errorf("a replay is refused: %+v", v)
		}
		time.Sleep(time.Duration(v.Problem.RetryAfter) * time.Second)
		h.publish("intents.alice.k1", event("2"), body)
		h.run(time.Second)
		if v := h.verdict("alice", intake.Token("/a", "2")); v.Status != 202 {
			t.Errorf("%+v", v.Problem)
		}
	})
}
