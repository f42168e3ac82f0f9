package cases_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// filed is a credentials file with accounts of one provider, each as it stands
// in the file, and what else is in it.
func filed(provider string, accounts []string, more ...string) string {
	text := "credentials: 1\nproviders:\n  " + provider + ":\n    \"*\": {base_url: \"http://provider.test/" + provider + "\"}\n"
	for _, a := range accounts {
		text += "    " + a + "\n"
	}
	return text + strings.Join(more, "")
}

// open is a simulated provider that lets every credential in; its log has what
// each call came with.
func open(h *harness.House, dialect simulator.Dialect, name string, o simulator.Options, rules ...simulator.Rule) *simulator.Mount {
	return h.Sim.Mount("/"+name, dialect, rules...).Configure(o)
}

// came lists the credentials that calls came with since the time.
func came(h *harness.House, f simulator.Filter, since time.Time) []string {
	var list []string
	for _, r := range h.Sim.Requests(f) {
		if r.At.Before(since) {
			continue
		}
		if a := r.Header.Get("Authorization"); !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	slices.Sort(list)
	return list
}

// restsOn checks that the operation rests, recorded as such with the reason.
func restsOn(t *testing.T, h *harness.House, id, reason string) {
	t.Helper()
	rests := factsOf(h, id, "step.deferred")
	if len(rests) == 0 {
		t.Fatalf("nothing is recorded as resting\n%s", h.Story(id))
	}
	for _, e := range rests {
		if e.Fields["reason"] != reason {
			t.Errorf("rests for %s, want %s", e.Fields["reason"], reason)
		}
	}
}

// While it is not known what became of a create, nothing leaves under another
// identity: another account knows nothing of our token, and its empty answer to
// a look-up would be taken for proof.
func TestRotationWhileACreateIsUnknown(t *testing.T) {
	for _, dialect := range []simulator.Dialect{simulator.Example, simulator.ExampleLookup} {
		name := string(dialect)
		lost := simulator.On(simulator.Create, simulator.Nth(1), simulator.DropAnswer{})
		// start rotates the credential while the create is unknown and sees that
		// nothing moves for ten minutes.
		start := func(t *testing.T, rotate func(h *harness.House)) (*harness.House, client.Operation) {
			h := harness.New(t, harness.Options{
				Credentials: filed(name, []string{"default: {credential: env:KEY}"}),
				Secrets:     map[string]string{"KEY": "before", "OTHER": "after"},
			})
			open(h, dialect, name, simulator.Options{}, lost)
			op := h.Submit("k", name, `{"n":1}`)
			h.Wait(op.ID, time.Minute, "create_unknown", "reconciliation")
			rotate(h)
			time.Sleep(time.Second) // the credentials file is looked at once a second
			rotated := time.Now()
			time.Sleep(10 * time.Minute)
			if list := came(h, simulator.Filter{}, rotated); len(list) != 0 {
				t.Errorf("calls left with %v", list)
			}
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			if now.State != "create_unknown" && now.State != "reconciliation" {
				t.Fatalf("it is %s (%s)\n%s", now.State, now.Reason, h.Story(op.ID))
			}
			restsOn(t, h, op.ID, "target_changed")
			return h, now
		}
		value := func(h *harness.House) { h.SetSecret("KEY", "after") }
		reference := func(h *harness.House) {
			h.SetCredentials(filed(name, []string{"default: {credential: env:OTHER}"}))
		}
		finish := func(t *testing.T, h *harness.House, id string) {
			t.Helper()
			want(t, "state", await(h, id, 10*time.Minute, time.Second).State, "succeeded")
			want(t, "jobs", len(h.Sim.Jobs()), 1)
			invariants(t, h, id)
		}
		variant(t, name+": the value changes and comes back", func(t *testing.T) {
			h, op := start(t, value)
			h.SetSecret("KEY", "before")
			finish(t, h, op.ID)
			want(t, "all came with", fmt.Sprint(came(h, simulator.Filter{}, time.Time{})), "[Bearer before]")
		})
		variant(t, name+": the reference changes and comes back", func(t *testing.T) {
			h, op := start(t, reference)
			h.SetCredentials(filed(name, []string{"default: {credential: env:KEY}"}))
			finish(t, h, op.ID)
			want(t, "all came with", fmt.Sprint(came(h, simulator.Filter{}, time.Time{})), "[Bearer before]")
		})
		variant(t, name+": the address changes and comes back", func(t *testing.T) {
			h, op := start(t, func(h *harness.House) {
				h.SetCredentials(filed(name, []string{`default: {credential: env:KEY, base_url: "http://another.test/` + name + `"}`}))
			})
			h.SetCredentials(filed(name, []string{"default: {credential: env:KEY}"}))
			finish(t, h, op.ID)
			if n := h.Sim.Count(simulator.Filter{Host: "another.test"}); n != 0 {
				t.Errorf("%d calls went to another origin", n)
			}
		})
		variant(t, name+": only the path changes and comes back", func(t *testing.T) {
			// Two teams may share a host: a list of the other's jobs proves nothing.
			h, op := start(t, func(h *harness.House) {
				h.SetCredentials(filed(name, []string{`default: {credential: env:KEY, base_url: "http://provider.test/other-team"}`}))
			})
			h.SetCredentials(filed(name, []string{"default: {credential: env:KEY}"}))
			finish(t, h, op.ID)
		})
		variant(t, name+": whoever decides adopts the job", func(t *testing.T) {
			h, op := start(t, value)
			decided := time.Now()
			if _, err := h.Client.Decide(t.Context(), op.ID, op.Version, "d", client.Decision{Kind: "adopt", JobID: h.Sim.Jobs()[0].ID}); err != nil {
				t.Fatal(err)
			}
			finish(t, h, op.ID)
			want(t, "after the decision all came with", fmt.Sprint(came(h, simulator.Filter{}, decided)), "[Bearer after]")
		})
	}
}

// A job that is known is followed with the credential as it is by now, whether
// its value, its reference or the whole file changed.
func TestRotationOfAKnownJob(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{
			Credentials: filed("example", []string{"default: {credential: env:KEY}"}),
			Secrets:     map[string]string{"KEY": "one", "OTHER": "three"},
		})
		open(h, simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "running", "running", "running", "succeeded")})
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		for _, step := range []struct {
			rotate func()
			want   string
		}{
			{func() {}, "[Bearer one]"},
			{func() { h.SetSecret("KEY", "two") }, "[Bearer two]"},
			{func() { h.SetCredentials(filed("example", []string{"default: {credential: env:OTHER}"})) }, "[Bearer three]"},
		} {
			step.rotate()
			time.Sleep(time.Second)
			since := time.Now()
			time.Sleep(45 * time.Second)
			want(t, "reads came with", fmt.Sprint(came(h, simulator.Filter{}, since)), step.want)
		}
		want(t, "state", await(h, op.ID, 5*time.Minute, time.Second).State, "succeeded")
		if len(factsOf(h, op.ID, "step.deferred"))+len(factsOf(h, op.ID, "observation.failed")) > 0 {
			t.Errorf("the rotation was noticed\n%s", h.Story(op.ID))
		}
		invariants(t, h, op.ID)
	})
}

// rotating changes the credential when a call with side effects is about to
// leave, after its permit.
type rotating struct {
	poller.Caller
	once *atomic.Bool
	do   func()
}

func (r rotating) Do(ctx context.Context, q outbound.Request) (outbound.Answer, error) {
	if q.SideEffect && r.once.CompareAndSwap(false, true) {
		r.do()
	}
	return r.Caller.Do(ctx, q)
}

// A credential that is rotated between the permit and the send keeps the
// request back, and the operation goes on by itself under the new one.
func TestRotationBetweenPermitAndSend(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var h *harness.House
		once := &atomic.Bool{}
		h = harness.New(t, harness.Options{
			Credentials: filed("example", []string{"default: {credential: env:KEY}"}), Secrets: map[string]string{"KEY": "before"},
			ThroughPoller: func(_ string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller) {
				return store, rotating{call, once, func() { h.SetSecret("KEY", "after") }}
			},
		})
		open(h, simulator.Example, "example", simulator.Options{})
		op := h.Submit("k", "example", `{"n":1}`)
		done := await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", done.State, "succeeded")
		answered := factsOf(h, op.ID, "create.answered")
		want(t, "creates", len(answered), 2)
		want(t, "the first was", answered[0].Fields["outcome"]+" "+answered[0].Fields["code"], "not_sent credential_changed")
		want(t, "the second was", answered[1].Fields["outcome"], "accepted")
		want(t, "all came with", fmt.Sprint(came(h, simulator.Filter{}, time.Time{})), "[Bearer after]")
		want(t, "creates at the provider", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
		invariants(t, h, op.ID)
	})
}

// Operations of an account that is taken out of the file rest, and nothing is
// asked under what is said for all accounts. They go on when it is back.
func TestAnAccountIsTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		log := &page.Page{}
		one := strings.Replace(filed("example", nil), "{base_url", "{credential: env:KEY, base_url", 1)
		both := one + "    research: {credential: env:RESEARCH}\n"
		h := harness.New(t, harness.Options{
			Credentials: both, Secrets: map[string]string{"KEY": "main", "RESEARCH": "research"},
			Log: slog.New(slog.NewTextHandler(log, nil)),
		})
		open(h, simulator.Example, "example", simulator.Options{Plan: simulator.Steps(20*time.Second, "running", "succeeded")})
		submit := func(key string) string {
			op, _, err := h.Client.Submit(t.Context(), key, client.Submission{
				Provider: "example", Account: "research", Params: json.RawMessage(`{"n":1}`), NotBefore: time.Now().Add(5 * time.Second).Format(time.RFC3339),
			})
			if err != nil {
				t.Fatal(err)
			}
			return op.ID
		}
		followed := submit("followed")
		h.Wait(followed, time.Minute, "observing")
		waiting := submit("waiting")
		h.SetCredentials(one)
		time.Sleep(time.Second)
		synctest.Wait() // until nobody reads the file: meanwhile the version before counts
		taken := time.Now()
		time.Sleep(10 * time.Minute)
		want(t, "calls without the account", len(came(h, simulator.Filter{}, taken)), 0)
		restsOn(t, h, waiting, "credential_missing")
		for _, id := range []string{followed, waiting} {
			now, err := h.Client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if now.Done || now.NextLook == nil {
				t.Errorf("without its account: %s", now.Raw)
			}
		}
		for _, e := range factsOf(h, followed, "observation.failed") {
			want(t, "class of the read", e.Fields["class"], "no_credential")
		}
		// A new operation cannot name it.
		_, _, err := h.Client.Submit(t.Context(), "late", client.Submission{Provider: "example", Account: "research", Params: json.RawMessage(`{}`)})
		want(t, "code", problemOf(t, err).Code, "validation_failed")

		h.SetCredentials(both)
		for _, id := range []string{followed, waiting} {
			want(t, "state", await(h, id, 5*time.Minute, time.Second).State, "succeeded")
		}
		want(t, "all came with", fmt.Sprint(came(h, simulator.Filter{}, time.Time{})), "[Bearer research]")
		invariants(t, h, followed, waiting)
	})
}

// A file that is broken while the service runs changes nothing and is told; a
// reference that leads nowhere is told and stops nothing else.
func TestABrokenCredentialsFileChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		log := &page.Page{}
		h := harness.New(t, harness.Options{
			Credentials: filed("example", []string{"default: {credential: env:KEY}", "later: {credential: env:LATER}"}),
			Secrets:     map[string]string{"KEY": "main"}, Log: slog.New(slog.NewTextHandler(log, nil)),
			Accounts: map[string]poller.Account{"example": {BaseURL: "http://provider.test/example"}}, // as by a flag
		})
		open(h, simulator.Example, "example", simulator.Options{})
		if text := `"a flag wins over an entry of the credentials file" entry=example.*.base_url`; !strings.Contains(log.String(), text) {
			t.Errorf("%s is not in the log:\n%s", text, log)
		}
		for _, part := range []string{"a reference leads to no secret", "provider=example", "account=later", "reference=env:LATER", "level=WARN"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%q is not in the log:\n%s", part, log)
			}
		}
		for _, p := range h.Service.Providers(t.Context()) {
			if p.Name == "example" && (p.Unusable == "") != (p.Account == "default") {
				t.Errorf("account %s: %q", p.Account, p.Unusable)
			}
		}
		// Callers are told as well, and not where the secret should be.
		raw, err := h.Client.Capabilities(t.Context())
		if err != nil || !strings.Contains(string(raw), `"account":"later","allowed":true,"unusable":"credential_unresolved"`) || strings.Contains(string(raw), "LATER") {
			t.Errorf("%v: capabilities %s", err, raw)
		}
		h.SetCredentials("credentials: 1\nproviders:\n  example:\n    default:\n      credential: SECR3T\n")
		time.Sleep(time.Minute)
		op := h.Submit("k", "example", `{"n":1}`)
		want(t, "state", await(h, op.ID, 5*time.Minute, time.Second).State, "succeeded")
		if n := strings.Count(log.String(), "the credentials file cannot be used"); n != 1 {
			t.Errorf("told %d times\n%s", n, log)
		}
		status := h.Service.Credentials()
		if !strings.Contains(status.Problem, ":5: providers.example.default.credential: must be env:NAME") {
			t.Errorf("status %+v", status)
		}
		if strings.Contains(log.String()+status.Problem, "SECR3T") {
			t.Error("the value is shown")
		}
		// What waits for its secret goes on when that comes.
		later, _, err := h.Client.Submit(t.Context(), "later", client.Submission{Provider: "example", Account: "later", Params: json.RawMessage(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		restsOn(t, h, later.ID, "credential_missing")
		h.SetSecret("LATER", "came")
		want(t, "state", await(h, later.ID, 5*time.Minute, time.Second).State, "succeeded")
		invariants(t, h, op.ID, later.ID)
	})
}

// A key that the file denies is refused from the next request on, in the words
// in which an unknown one is.
func TestDeniedKey(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		plain := filed("example", []string{"default: {credential: env:HARNESS_TOKEN}"})
		h := harness.New(t, harness.Options{Credentials: plain})
		open(h, simulator.Example, "example", simulator.Options{})
		c, id := h.AddKey("tester")
		unknown, err := client.New("http://counterfoil.test", "cf_nobody.secret", h.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		op := h.Submit("k", "example", `{"n":1}`)
		if _, err := c.Get(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		h.SetCredentials(plain + "denied_keys: [" + id + "]\n")
		time.Sleep(time.Second)
		synctest.Wait() // until nobody reads the file: meanwhile the version before counts
		_, err = c.Get(t.Context(), op.ID)
		denied := problemOf(t, err)
		_, err = unknown.Get(t.Context(), op.ID)
		want(t, "refusal of a denied key", fmt.Sprint(*denied), fmt.Sprint(*problemOf(t, err)))
		want(t, "code", denied.Code, "unauthenticated")
		want(t, "status", denied.Status, 401)
		if _, err := h.Client.Get(t.Context(), op.ID); err != nil {
			t.Errorf("another key of the principal: %v", err)
		}
		h.SetCredentials(plain)
		time.Sleep(time.Second)
		synctest.Wait() // until nobody reads the file: meanwhile the version before counts
		if _, err := c.Get(t.Context(), op.ID); err != nil {
			t.Errorf("no longer denied: %v", err)
		}
	})
}

// A principal uses the accounts it was given, and sees and decides on no others.
func TestPrincipalsAndAccounts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		accounts := []string{"default: {credential: env:HARNESS_TOKEN}", "research: {credential: env:HARNESS_TOKEN}"}
		grants := func(list string) string {
			return filed("example", accounts, "principals:\n  tester: {accounts: ["+list+"]}\n")
		}
		h := harness.New(t, harness.Options{Credentials: grants("example/default")})
		open(h, simulator.Example, "example", simulator.Options{})
		submit := func(c *client.Client, key, account string) (client.Operation, error) {
			op, _, err := c.Submit(t.Context(), key, client.Submission{Provider: "example", Account: account, Params: json.RawMessage(`{"n":1}`)})
			return op, err
		}
		capabilities := func(c *client.Client) string {
			raw, err := c.Capabilities(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var shown struct {
				Providers []struct {
					Name     string
					Accounts []string
				}
			}
			if err := json.Unmarshal(raw, &shown); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(shown.Providers)
		}
		mine, err := submit(h.Client, "mine", "default")
		if err != nil {
			t.Fatal(err)
		}
		h.Wait(mine.ID, time.Minute) // or its own facts would be counted
		stored := count(t, h)
		_, err = submit(h.Client, "theirs", "research")
		p := problemOf(t, err)
		want(t, "code", p.Code, "account_not_allowed")
		want(t, "status", p.Status, 403)
		// Whether there is such an account is not told either.
		_, err = submit(h.Client, "none", "nowhere")
		want(t, "code for an account that is nowhere", problemOf(t, err).Code, "account_not_allowed")
		want(t, "facts stored by the refusals", count(t, h), stored)
		want(t, "capabilities", capabilities(h.Client), "[{example [default]}]")

		stranger, _ := h.AddKey("stranger")
		want(t, "capabilities of one that is not listed", capabilities(stranger), "[]")
		_, err = submit(stranger, "k", "default")
		want(t, "code", problemOf(t, err).Code, "account_not_allowed")
		_, _, err = stranger.Submit(t.Context(), "k2", client.Submission{Provider: "nowhere", Params: json.RawMessage(`{}`)})
		p = problemOf(t, err)
		want(t, "code", p.Code, "unknown_provider")
		want(t, "providers it is told of", len(p.Allowed), 0)

		// The key was not used up by the refusal.
		h.SetCredentials(grants(`"example/*"`))
		time.Sleep(time.Second)
		synctest.Wait() // until nobody reads the file: meanwhile the version before counts
		theirs, err := submit(h.Client, "theirs", "research")
		if err != nil {
			t.Fatal(err)
		}
		want(t, "capabilities", capabilities(h.Client), "[{example [default research]}]")
		done := []string{await(h, mine.ID, 5*time.Minute, time.Second).State, await(h, theirs.ID, 5*time.Minute, time.Second).State}
		want(t, "states", fmt.Sprint(done), "[succeeded succeeded]")

		// What was recorded stays its owner's to see and to settle; what would
		// ask the provider again does not.
		stuck, err := submit(h.Client, "stuck", "research")
		if err != nil {
			t.Fatal(err)
		}
		h.SetCredentials(grants("example/default"))
		time.Sleep(time.Second)
		synctest.Wait()                                   // until nobody reads the file: meanwhile the version before counts
		for _, key := range []string{"stuck", "theirs"} { // replays
			if _, err := submit(h.Client, key, "research"); err != nil {
				t.Errorf("what is recorded under %s does not stand: %v", key, err)
			}
		}
		list, err := h.Client.List(t.Context(), client.Filter{})
		if err != nil || len(list.Items) != 3 {
			t.Errorf("%d operations listed, %v", len(list.Items), err)
		}
		now, err := h.Client.Get(t.Context(), stuck.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.Client.Decide(t.Context(), stuck.ID, now.Version, "d1", client.Decision{Kind: "adopt", JobID: "job-of-another"})
		want(t, "code of an adoption", problemOf(t, err).Code, "account_not_allowed")
		_, err = h.Client.Decide(t.Context(), stuck.ID, now.Version, "d2", client.Decision{Kind: "extend", Deadline: "result", Until: "48h"})
		want(t, "code of an extension", problemOf(t, err).Code, "account_not_allowed")
		if _, err := h.Client.Cancel(t.Context(), stuck.ID, ""); err != nil {
			t.Errorf("cancel: %v", err)
		}
		invariants(t, h, mine.ID, theirs.ID, stuck.ID)
	})
}

// count is how many facts the ledger holds.
func count(t *testing.T, h *harness.House) int {
	t.Helper()
	n := 0
	for from := uint64(1); ; n++ {
		m, err := h.Store.Next(t.Context(), journal.Ledger, ">", from)
		if err != nil {
			return n
		}
		from = m.Sequence + 1
	}
}
