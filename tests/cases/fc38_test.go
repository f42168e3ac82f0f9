package cases_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// batchAnswer is the answer to a batch, or a problem.
type batchAnswer struct {
	answer
	Items []struct {
		Index     int
		Status    int
		Replayed  bool
		Operation *struct{ ID string }
		Problem   *struct{ Code string }
	}
	Code   string
	Errors []struct{ Field string }
}

func askBatch(t *testing.T, h *harness.House, key, mode string, items ...string) batchAnswer {
	t.Helper()
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = `{"operation":` + item + `}`
	}
	return readBatch(t, ask(t, h, "POST", "/v1/operations:batch", fmt.Sprintf(`{"mode":%q,"items":[%s]}`, mode, strings.Join(list, ",")), "Idempotency-Key", key))
}

func readBatch(t *testing.T, a answer) batchAnswer {
	t.Helper()
	b := batchAnswer{answer: a}
	if err := json.Unmarshal([]byte(a.body), &b); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return b
}

// ids of the operations that an answer shows, in order.
func (b batchAnswer) ids() (list []string) {
	for _, item := range b.Items {
		if item.Operation != nil {
			list = append(list, item.Operation.ID)
		}
	}
	return list
}

func batchItem(name string) string { return `{"provider":"example","params":` + params(name) + `}` }

func operations(t *testing.T, h *harness.House) int {
	t.Helper()
	for n, cursor := 0, ""; ; {
		page, err := h.Client.List(t.Context(), client.Filter{Limit: 200, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		n += len(page.Items)
		if cursor = page.Next; cursor == "" {
			return n
		}
	}
}

// FC-38: of five items the third is invalid, and the fourth is for an unknown provider.
// What the answer says was done was done, and nothing else.
func TestFC38BatchInPart(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		variant(t, mode, func(t *testing.T) {
			h := harness.New(t, harness.Options{Correlate: true})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "succeeded")})
			items := []string{batchItem("1"), batchItem("2"), `{"provider":"example","params":"none"}`, `{"provider":"nobody","params":{}}`, batchItem("5")}
			a := askBatch(t, h, "fc38", mode, items...)
			ids := a.ids()
			if mode == "independent" {
				var statuses []int
				for _, item := range a.Items {
					statuses = append(statuses, item.Status)
				}
				if want := []int{202, 202, 422, 422, 202}; a.status != 200 || !slices.Equal(statuses, want) || a.Items[3].Problem.Code != "unknown_provider" {
					t.Errorf("%d %s", a.status, a.body)
				}
				want(t, "operations", len(ids), 3)
			} else {
				var fields []string
				for _, e := range a.Errors {
					fields = append(fields, e.Field)
				}
				if a.status != 422 || !strings.HasPrefix(fields[0], "/items/2/") || !strings.HasPrefix(fields[len(fields)-1], "/items/3/") || len(ids) > 0 {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
			for _, id := range ids {
				h.Wait(id, time.Minute, "succeeded")
			}
			want(t, "operations that are listed", operations(t, h), len(ids))
			jobs(t, h, len(ids))
			if a := askBatch(t, h, "empty", mode); a.status != 422 || a.Code != "validation_failed" {
				t.Errorf("an empty batch: %d %s", a.status, a.body)
			}
			if a := askBatch(t, h, "large", mode, slices.Repeat([]string{batchItem("x")}, 101)...); a.status != 413 || a.Code != "batch_too_large" {
				t.Errorf("a large batch: %d %s", a.status, a.body)
			}
			want(t, "operations at the end", operations(t, h), len(ids))
			if len(ids) > 0 {
				keptPromises(t, h, ids...)
			}
		})
	}
}

// FC-39: the service dies half-way through a batch, whose caller sends it again: the
// same operations, those that were missing, and none twice. Changed, the item is named.
func TestFC39BatchSentAgain(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		for _, dies := range []int{1, 3, 5} {
			variant(t, fmt.Sprintf("%s dies at write %d", mode, dies), func(t *testing.T) {
				cut := false
				intents := 0
				k := &hooks{touch: func(context.Context) error {
					if cut {
						return errCut
					}
					return nil
				}}
				k.publish = func(_ context.Context, s journal.Stream, m journal.Outgoing) error {
					if s == journal.Ledger && strings.HasPrefix(kind(m), "intent.recorded") {
						if intents++; intents == dies {
							cut = true
							return errCut
						}
					}
					return nil
				}
				h := harness.New(t, harness.Options{Correlate: true, Through: func(s journal.Store) journal.Store { return hookedStore{k, s} }})
				h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "succeeded")})
				items := []string{batchItem("1"), batchItem("2"), batchItem("3"), batchItem("4"), batchItem("5")}
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					_ = askSilently(h, "/v1/operations:batch", mode, items) // nobody hears the answer
				}()
				time.Sleep(2 * time.Second)
				h.Kill()
				<-answered
				if !cut {
					t.Fatal("it was not cut off")
				}
				cut, k.publish = false, nil
				h.Start()
				a := askBatch(t, h, "fc39", mode, items...)
				ids := a.ids()
				replays := 0
				for _, item := range a.Items {
					if item.Replayed {
						replays++
					}
				}
				if most := map[string]int{"independent": dies - 1, "atomic": 0}[mode]; len(ids) != 5 || a.status > 202 || replays > most {
					t.Fatalf("%d with %d recorded before, at most %d could be: %s", a.status, replays, most, a.body)
				}
				for _, id := range ids {
					h.Wait(id, time.Minute, "succeeded")
				}
				jobs(t, h, 5)
				again := askBatch(t, h, "fc39", mode, items...)
				if again.status != 200 || again.header.Get("Idempotent-Replayed") != "true" || !slices.Equal(again.ids(), ids) {
					t.Errorf("%d %s", again.status, again.body)
				}
				items[2] = batchItem("changed")
				changed := askBatch(t, h, "fc39", mode, items...)
				if mode == "atomic" {
					if changed.status != 422 || changed.Code != "idempotency_key_reused" || changed.Errors[0].Field != "/items/2" {
						t.Errorf("%d %s", changed.status, changed.body)
					}
				} else if changed.status != 200 || changed.Items[2].Problem == nil || changed.Items[2].Problem.Code != "idempotency_key_reused" || len(changed.ids()) != 4 {
					t.Errorf("%d %s", changed.status, changed.body)
				}
				time.Sleep(time.Second) // a list is made from the history, which follows
				want(t, "operations", operations(t, h), 5)
				jobs(t, h, 5)
				keptPromises(t, h, ids...)
			})
		}
	}
}

// askSilently sends a batch whose answer nobody waits for.
func askSilently(h *harness.House, path, mode string, items []string) error {
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = `{"operation":` + item + `}`
	}
	r, err := http.NewRequest(http.MethodPost, "http://counterfoil.test"+path, strings.NewReader(fmt.Sprintf(`{"mode":%q,"items":[%s]}`, mode, strings.Join(list, ","))))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Authorization": {"Bearer " + h.Bearer}, "Content-Type": {"application/json"}, "Idempotency-Key": {"fc39"}}
	resp, err := h.HTTP.Do(r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// FC-40: all five items of a batch fail at first, by a refusal to serve: of the first
// status read, or of the create. Each comes back at a time of its own and succeeds, also
// where the service is started anew in between.
func TestFC40BatchComesBack(t *testing.T) {
	for name, rule := range map[string]simulator.Rule{
		"status": simulator.On(simulator.Status, simulator.FirstOfJob(1), simulator.Reply(503)),
		"create": simulator.On(simulator.Create, simulator.FirstOfToken(1), simulator.Reply(503)),
	} {
		for _, restart := range []bool{false, true} {
			variant(t, fmt.Sprintf("%s restart %t", name, restart), func(t *testing.T) {
				h := harness.New(t, harness.Options{Correlate: true})
				h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")}, rule)
				ids := askBatch(t, h, "fc40", "atomic", batchItem("1"), batchItem("2"), batchItem("3"), batchItem("4"), batchItem("5")).ids()
				want(t, "operations", len(ids), 5)
				if restart {
					time.Sleep(3 * time.Second)
					h.Kill()
					h.Start()
				}
				for _, id := range ids {
					h.Wait(id, 10*time.Minute, "succeeded")
				}
				asked, times := map[string]int{}, map[time.Time]bool{} // times at which one was asked for the second time
				for _, r := range h.Sim.Requests(simulator.Filter{Call: rule.Call}) {
					if asked[r.Token]++; asked[r.Token] == 2 {
						times[r.At] = true
					}
				}
				want(t, "operations that were asked about", len(asked), 5)
				// A create is repeated when it has settled, which is no matter of spreading.
				if name == "status" {
					want(t, "times at which they came back", len(times), 5)
				}
				jobs(t, h, 5)
				want(t, "refusals", h.Sim.Count(simulator.Filter{Call: rule.Call, Status: 503}), 5)
				keptPromises(t, h, ids...)
			})
		}
	}
}
