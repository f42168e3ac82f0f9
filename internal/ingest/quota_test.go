package ingest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

func orders(ids ...string) (list []order) {
	for _, id := range ids {
		list = append(list, order{operation: id})
	}
	return list
}

func quotasOf(q *Quotas, now *time.Time) *quotas {
	return newQuotas(func(string) Quotas { return *q }, func() time.Time { return *now })
}

// Whatever is asked for and given back, no more than the limit is begun at once, nor more
// than twice the limit in any window; and who waits as long as it is told is let in.
func TestRateIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := Quotas{Submits: rapid.IntRange(1, 50).Draw(t, "limit"), Open: MaxOpen}
		now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
		q := quotasOf(&have, &now)
		var begun []time.Time // each operation that was recorded
		n := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			ids := make([]string, rapid.IntRange(1, have.Submits).Draw(t, "items"))
			for i := range ids {
				n++
				ids[i] = fmt.Sprint(n)
			}
			before := *q.views("p")[0].Remaining
			settle, refusal := q.begin("p", orders(ids...)...)
			if (refusal == nil) != (len(ids) <= before) {
				t.Fatalf("%d of %d: %v", len(ids), before, refusal)
			}
			if refusal != nil {
				if *q.views("p")[0].Remaining != before {
					t.Fatal("a refusal took something")
				}
				if refusal.RetryAfter < time.Duration(q.views("p")[0].More-1)*time.Second {
					t.Fatalf("told to come back after %s, before there is one more", refusal.RetryAfter)
				}
				now = now.Add(refusal.RetryAfter)
				if settle, refusal = q.begin("p", orders(ids...)...); refusal != nil {
					t.Fatalf("refused after the wait that was named: %v", refusal)
				}
				settle(false)
				continue
			}
			recorded := rapid.Bool().Draw(t, "recorded")
			if settle(recorded); !recorded {
				if *q.views("p")[0].Remaining != before {
					t.Fatal("what was not recorded was not given back")
				}
				continue
			}
			for range ids {
				begun = append(begun, now)
			}
		}
		for i := range begun {
			in := 0
			for _, at := range begun[i:] {
				if at.Sub(begun[i]) < SubmitWindow {
					in++
				}
			}
			if in > 2*have.Submits {
				t.Fatalf("%d in a window, limit %d", in, have.Submits)
			}
		}
	})
}

// A limit that is changed counts at once, and a clock that is set back gives nothing back.
func TestRateFollowsTheConfiguration(t *testing.T) {
	have, now := Quotas{Submits: 2}, time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	q := quotasOf(&have, &now)
	left := func() int { return *q.views("p")[0].Remaining }
	for i := range 2 {
		if _, refusal := q.begin("p", order{operation: fmt.Sprint(i)}); refusal != nil {
			t.Fatal(refusal)
		}
	}
	if left() != 0 {
		t.Errorf("%d left", left())
	}
	have.Submits = 10
	if left() != 8 {
		t.Errorf("%d left of 10", left())
	}
	have.Submits = 1
	if left() != 0 {
		t.Errorf("%d left of 1", left())
	}
	now = now.Add(-time.Hour)
	if left() != 0 {
		t.Errorf("%d left after the clock was set back", left())
	}
	have = Quotas{}
	if v := q.views("p"); v[0].Limit != DefaultSubmits || v[1].Limit != DefaultOpen || v[1].Remaining != nil {
		t.Errorf("%+v", v)
	}
}

// However the history is told, and in whatever order with what this process begins, the
// count is that of the operations that have not ended.
func TestOpenIsCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, now := Quotas{}, time.Now()
		q := quotasOf(&have, &now)
		v := &Service{quotas: q}
		part := func(id int) string { return journal.PartitionName(id % journal.Partitions) }
		states := map[int]projections.Phase{} // as the history has them; "" is on its way
		owner := func(id int) string { return fmt.Sprint("p", id%3) }
		recount := func(p string) {
			by := map[string]int{}
			for id, phase := range states {
				if part(id) == p && phase != "" && !phase.Terminal() {
					by[owner(id)]++
				}
			}
			v.OpenCounted(p, by)
		}
		for p := range journal.Partitions {
			recount(journal.PartitionName(p))
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			id := rapid.IntRange(0, 40).Draw(t, "operation")
			phase, known := states[id]
			switch what := rapid.IntRange(0, 4).Draw(t, "what"); {
			case !known && what < 2: // begun here
				settle, refusal := q.begin(owner(id), order{operation: fmt.Sprint(id)})
				if refusal != nil {
					t.Fatal(refusal)
				}
				if settle(what == 0); what == 0 {
					states[id] = ""
				}
			case !known && what == 2: // begun elsewhere
				states[id] = projections.PhaseCreatePending
				v.OpenMoved(part(id), "", projections.PhaseCreatePending, fmt.Sprint(id), owner(id))
			case known && !phase.Terminal():
				next := []projections.Phase{projections.PhaseCreatePending, projections.PhaseObserving, projections.PhaseSucceeded, projections.PhaseQuarantined, projections.PhaseFailed}[what]
				states[id] = next
				v.OpenMoved(part(id), phase, next, fmt.Sprint(id), owner(id))
			case what == 4:
				recount(part(id))
			}
			want := map[string]int{}
			for id, phase := range states {
				if !phase.Terminal() {
					want[owner(id)]++
				}
			}
			for p := range 3 {
				if n, known := q.open.count(fmt.Sprint("p", p)); n != want[fmt.Sprint("p", p)] || !known {
					t.Fatalf("p%d has %d open, want %d", p, n, want[fmt.Sprint("p", p)])
				}
			}
		}
		v.OpenLeft(part(7))
		if _, known := q.open.count("p0"); known {
			t.Fatal("a partition that nobody tells of counts as known")
		}
	})
}

// Of two requests for the same operation the one that comes second takes nothing back of
// what the first has begun.
func TestOpenCountsAnOperationOnce(t *testing.T) {
	have, now := Quotas{}, time.Now()
	q := quotasOf(&have, &now)
	first, _ := q.begin("p", order{operation: "op"})
	second, _ := q.begin("p", order{operation: "op"})
	second(false)
	first(true)
	if n, _ := q.open.count("p"); n != 1 {
		t.Errorf("%d open", n)
	}
	third, _ := q.begin("p", order{operation: "other"})
	if third(false); q.open.by["p"] != 1 {
		t.Errorf("%d open", q.open.by["p"])
	}
}

// What was spent leaves the sum within the window and a grain, is counted once whoever tells
// of it, and is not known before the ledger was read.
func TestCostsAreSummed(t *testing.T) {
	have, now := Quotas{Costs: map[string]contract.Decimal{"USD": decimal(t, "10")}}, time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	q := quotasOf(&have, &now)
	buy := func(id, cost string) (settle func(bool), refusal *Refusal) {
		return q.begin("p", order{id, cost, "USD"})
	}
	intent := func(cost string) *events.IntentRecorded {
		return &events.IntentRecorded{Principal: "p", Cost: cost, CostUnit: "USD"}
	}
	left := func(want string) {
		t.Helper()
		if v := q.views("p"); len(v) != 3 || v[2].Policy != "cost-USD" || v[2].Left != want {
			t.Errorf("%+v, want %s left", v[2:], want)
		}
	}
	left("")
	if _, refusal := buy("a", "1"); refusal == nil || refusal.Code != CodeUnavailable || refusal.Violated != nil || refusal.RetryAfter != retryCounting {
		t.Errorf("%v", refusal)
	}
	if _, refusal := q.begin("p", order{"free", "", ""}, order{"other", "99", "EUR"}); refusal != nil {
		t.Errorf("what is not bounded: %v", refusal)
	}
	q.spent.learn()
	left("10")
	settle, refusal := buy("a", "4.5")
	if refusal != nil {
		t.Fatal(refusal)
	}
	again, _ := buy("a", "4.5") // the same request at the same time
	left("5.5")
	again(false)
	settle(true)
	left("5.5")
	q.spent.add("a", intent("4.5"), now) // the ledger has it
	left("5.5")
	q.spent.add("of another process", intent("0.000001"), now.Add(time.Minute))
	left("5.499999")
	if failed, _ := buy("b", "5"); failed != nil {
		failed(false)
	}
	left("5.499999")
	if _, refusal := buy("c", "11"); refusal == nil || refusal.Code != CodeCostAboveQuota || refusal.RetryAfter != 0 {
		t.Errorf("%v", refusal)
	}
	_, refusal = buy("c", "6")
	if refusal == nil || refusal.Code != CodeCostQuota || refusal.Violated[0] != "cost-USD" {
		t.Fatalf("%v", refusal)
	}
	now = now.Add(refusal.RetryAfter - time.Nanosecond)
	if _, early := buy("c", "6"); early == nil {
		t.Error("let in before it was told to come back")
	}
	now = now.Add(time.Nanosecond)
	if _, refusal := buy("c", "6"); refusal != nil {
		t.Error(refusal)
	}
	if refusal.RetryAfter > CostWindow+costGrain || refusal.RetryAfter < CostWindow-costGrain {
		t.Errorf("told to come back after %s", refusal.RetryAfter)
	}
}

func decimal(t *testing.T, text string) contract.Decimal {
	t.Helper()
	d, ok := contract.ParseDecimal(text)
	if !ok {
		t.Fatal(text)
	}
	return d
}
