package cases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// page reads one page of those for whoever runs the service.
func adminPage(t *testing.T, h *harness.House, path string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://counterfoil.test"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := h.Admin.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// series gives a metric's value as it is written, "" if it is not there.
func series(t *testing.T, h *harness.House, name string) string {
	t.Helper()
	_, body := adminPage(t, h, "/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}

// A disk below its reserve takes no new work and begins none; what is under way is
// stored to its end, and with room again everything goes on by itself.
func TestLowDisk(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var free atomic.Uint64
		free.Store(1000)
		log := &page.Page{}
		h := harness.New(t, harness.Options{
			Webhooks: true, Log: slog.New(slog.NewTextHandler(log, nil)),
			FreeSpace: func() (uint64, error) { return free.Load(), nil }, DiskReserve: 100,
		})
		m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(20*time.Second, "running", "succeeded")})
		ready := func(status int, disk string) {
			t.Helper()
			code, body := adminPage(t, h, "/readyz")
			public := ask(t, h, "GET", "/readyz", "")
			if code != status || !strings.Contains(body, `"name":"disk","status":"`+disk+`"`) || public.status != code {
				t.Errorf("ready: %d %s (public %d), want %d with the disk %s", code, body, public.status, status, disk)
			}
		}
		running := h.Submit("running", "example", params("running"))
		h.Wait(running.ID, time.Minute, "observing")
		unwanted := h.Submit("unwanted", "example", params("unwanted"))
		h.Wait(unwanted.ID, time.Minute, "observing")
		// One whose create is due in a minute, when there will be no room for it.
		later, _, err := h.Client.Submit(t.Context(), "later", client.Submission{
			Provider: "example", Params: json.RawMessage(params("later")), NotBefore: time.Now().Add(time.Minute).UTC().Format(time.RFC3339),
		})
		if err != nil {
			t.Fatal(err)
		}
		ready(200, "ok")

		free.Store(99)
		time.Sleep(disk.Every + 2*time.Second)
		ready(200, "failing") // it answers callers and providers, so it stays in service
		_, _, err = h.Client.Submit(t.Context(), "new", client.Submission{Provider: "example", Params: json.RawMessage(params("new"))})
		var problem *client.Problem
		if !errors.As(err, &problem) || problem.Code != "storage_low" || problem.Status != 503 || !problem.Retryable {
			t.Errorf("a submit without room: %v", err)
		}
		if a := ask(t, h, "POST", "/v1/operations", `{"provider":"example","params":{"n":1}}`, "Idempotency-Key", "new"); a.header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
		again, replayed, err := h.Client.Submit(t.Context(), "running", client.Submission{Provider: "example", Params: json.RawMessage(params("running"))})
		if err != nil || !replayed || again.ID != running.ID {
			t.Errorf("a replay: %v %v %s", err, replayed, again.ID)
		}
		if _, err := h.Client.Cancel(t.Context(), unwanted.ID, "no room"); err != nil {
			t.Error(err)
		}
		want(t, "the unwanted is", h.Wait(unwanted.ID, time.Minute).State, "cancelled")
		want(t, "the running is", h.Wait(running.ID, time.Minute).State, "succeeded")
		if r, err := h.Client.Result(t.Context(), running.ID); err != nil {
			t.Errorf("its result: %v", err)
		} else {
			r.Body.Close()
		}
		if len(factsOf(h, running.ID, "webhook.received")) == 0 {
			t.Error("no webhook was stored")
		}
		time.Sleep(10 * time.Minute)
		now, err := h.Client.Get(t.Context(), later.ID)
		if err != nil || now.State != "create_pending" || len(factsOf(h, later.ID, "create.attempted")) != 0 {
			t.Errorf("a create without room: %s %v\n%s", now.State, err, h.Story(later.ID))
		}
		rested := factsOf(h, later.ID, "step.deferred")
		if len(rested) == 0 || rested[0].Fields["reason"] != "storage_low" {
			t.Errorf("the rest is not recorded: %s", h.Story(later.ID))
		}
		want(t, "free", series(t, h, "counterfoil_disk_free_bytes"), "99")
		want(t, "refusals", series(t, h, `counterfoil_refusals_total{code="storage_low"}`), "2")

		free.Store(111) // not enough above it to be trusted
		time.Sleep(disk.Every + 2*time.Second)
		ready(200, "failing")
		free.Store(113)
		time.Sleep(disk.Every + 2*time.Second)
		ready(200, "ok")
		want(t, "the later is", h.Wait(later.ID, time.Minute).State, "succeeded")
		fresh := h.Submit("new", "example", params("new"))
		want(t, "the new is", h.Wait(fresh.ID, time.Minute).State, "succeeded")

		if low, room := log.With("the disk is low"), log.With("the disk has room again"); len(low) != 1 || len(room) != 1 || !strings.Contains(low[0], "level=ERROR") {
			t.Errorf("the log has %q and %q", low, room)
		}
		want(t, "jobs", len(m.Jobs()), 4)
		invariants(t, h, running.ID, unwanted.ID, later.ID, fresh.ID)
	})
}

// An operation that stops is told of at least once, also where the process is
// killed while it tells, and no more than twice. The gauge knows it after a
// restart.
func TestNoticeSurvivesAKill(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []notice.Notice
		hang := true
		log := &page.Page{}
		h := harness.New(t, harness.Options{
			Log: slog.New(slog.NewTextHandler(log, nil)),
			Tell: func(ctx context.Context, document []byte) notice.Ran {
				var n notice.Notice
				if err := json.Unmarshal(document, &n); err != nil {
					t.Error(err)
				}
				mu.Lock()
				told = append(told, n)
				stay := hang
				mu.Unlock()
				if stay {
					<-ctx.Done()
					return notice.Ran{Outcome: events.CallAmbiguous}
				}
				return notice.Ran{Outcome: events.CallDone}
			},
		})
		h.Mount(simulator.ExampleAsk, "example-ask", simulator.Options{}, simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{}))
		op := h.Submit("ask", "example-ask", params("ask"))
		for end := time.Now().Add(3 * time.Hour); ; time.Sleep(time.Second) {
			mu.Lock()
			n := len(told)
			mu.Unlock()
			if n > 0 || time.Now().After(end) {
				break
			}
		}
		h.Kill()
		mu.Lock()
		hang = false
		mu.Unlock()
		h.Start()
		time.Sleep(time.Minute)
		mu.Lock()
		var got []string
		for _, n := range told {
			got = append(got, n.Operation+" "+string(n.Phase)+" "+string(n.Kind)+" "+n.ID)
		}
		mu.Unlock()
		one := op.ID + " quarantined unknown " + op.ID + "/1"
		if !slices.Equal(got, []string{one, one}) || told[0].Attempt != 1 || told[1].Attempt != 2 {
			t.Errorf("told %q\n%s", got, h.Story(op.ID))
		}
		if told[1].Trace == "" || !strings.HasSuffix(told[1].Runbook, "/quarantined-unknown.md") || !strings.Contains(told[1].Command, op.ID) {
			t.Errorf("the notice says %+v", told[1])
		}
		// Again if the kill came before it was recorded.
		if list := log.With("operation stopped"); len(list) < 1 || len(list) > 2 || !strings.Contains(list[0], "level=ERROR") || !strings.Contains(list[0], "trace="+told[1].Trace) {
			t.Errorf("the log has %q", list)
		}
		want(t, "quarantined", series(t, h, `counterfoil_operations_open{kind="unknown",phase="quarantined"}`), "1")
		h.Stop()
		h.Start()
		time.Sleep(10 * time.Minute)
		want(t, "quarantined after another restart", series(t, h, `counterfoil_operations_open{kind="unknown",phase="quarantined"}`), "1")
		want(t, "told", len(told), 2)

		// A decision made on the state as it stands now goes through, and ends it.
		now, err := h.Client.Get(t.Context(), op.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Client.Decide(t.Context(), op.ID, now.Version, "over", client.Decision{Kind: "abandon", Why: "not worth it"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		want(t, "quarantined in the end", series(t, h, `counterfoil_operations_open{kind="unknown",phase="quarantined"}`), "0")
		if len(log.With("operation recorded")) != 1 || len(log.With("operation ended")) != 1 {
			t.Errorf("recorded %q, ended %q", log.With("operation recorded"), log.With("operation ended"))
		}
	})
}

// The pages need no key and show nothing of anybody: no operation, no principal,
// no address, no error's text.
func TestHealthPages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{})
		op := h.Submit("one", "example", params("one"))
		h.Wait(op.ID, time.Minute)
		time.Sleep(2 * time.Minute) // with nothing to do it stays ready
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			code, body := adminPage(t, h, path)
			if code != 200 || strings.Contains(body, op.ID) || strings.Contains(body, "tester") || strings.Contains(body, "provider.test") || strings.Contains(body, h.Dir()) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		want(t, "calls", series(t, h, `counterfoil_provider_calls_total{call="create",outcome="2xx",provider="example"}`), "1")
		want(t, "holds", series(t, h, `counterfoil_holds{scope="all"}`), "0")
		if a := ask(t, h, "GET", "/metrics", ""); a.status != 404 {
			t.Errorf("metrics where callers come: %d", a.status)
		}
		// A keys file that others can read lets nobody in, and shows.
		if err := os.Chmod(h.Dir()+"/keys.jsonl", 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		code, body := adminPage(t, h, "/readyz")
		if code != 503 || !strings.Contains(body, `"name":"keys","status":"failing"`) {
			t.Errorf("%d %s", code, body)
		}
		if code, body := adminPage(t, h, "/healthz"); code != 200 {
			t.Errorf("alive: %d %s", code, body)
		}
		if err := os.Chmod(h.Dir()+"/keys.jsonl", 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if code, body := adminPage(t, h, "/readyz"); code != 200 {
			t.Errorf("%d %s", code, body)
		}
	})
}

// A credentials file that is broken while it runs shows with line and field to
// whoever runs the service, and without them to callers.
func TestBrokenCredentialsShow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		good := "credentials: 1\nproviders:\n  example:\n    default: {credential: env:HARNESS_TOKEN, base_url: \"http://provider.test/example\"}\n"
		h := harness.New(t, harness.Options{Credentials: good})
		h.Mount(simulator.Example, "example", simulator.Options{})
		const place = "providers.example.default.credential"
		shows := func(failing bool, where string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			status := `{"name":"credentials","status":"` + map[bool]string{false: "ok", true: "failing"}[failing] + `"`
			code, body := adminPage(t, h, "/readyz")
			if code != 200 || !strings.Contains(body, status) || strings.Contains(body, `"where":"`) != (where != "") ||
				!strings.Contains(body, where) || strings.Contains(body, "SECR3T") || strings.Contains(body, "somebody") {
				t.Errorf("%d %s, want credentials failing %t at %q", code, body, failing, where)
			}
			if public := ask(t, h, "GET", "/readyz", ""); public.status != 200 || !strings.Contains(string(public.body), status) || strings.Contains(string(public.body), "where") {
				t.Errorf("callers see %s", public.body)
			}
		}
		told := func(texts ...string) {
			t.Helper()
			report, err := h.Client.Doctor(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			all := fmt.Sprintf("%+v", report)
			for _, text := range texts {
				if !strings.Contains(all, text) {
					t.Errorf("the doctor does not say %q: %s", text, all)
				}
			}
			if strings.Contains(all, "SECR3T") || len(texts) == 0 && strings.Contains(all, "credentials.yaml:") {
				t.Errorf("the doctor says %s", all)
			}
		}
		shows(false, "")
		told()
		h.SetCredentials(strings.Replace(good, "env:HARNESS_TOKEN", "SECR3T", 1) + "denied_keys: x\n")
		shows(true, "line 4, "+place+", and 1 more")
		told("credentials.yaml:4: " + place)
		h.SetCredentials(good + "principals:\n  somebody: {accounts: x}\n")
		shows(true, `"line 6, principals"`)
		told("credentials.yaml:6: principals.somebody.accounts")
		if err := os.Chmod(h.Dir()+"/credentials.yaml", 0o644); err != nil {
			t.Fatal(err)
		}
		shows(true, "")
		h.SetCredentials(good)
		shows(false, "")
		told()
		// In place it counts once it has been left alone.
		if err := os.WriteFile(h.Dir()+"/credentials.yaml", []byte(good+"denied_keys: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		shows(true, "being written")
		told("being written, or new, since ")
		time.Sleep(10 * time.Second)
		shows(false, "")
		told()
	})
}
