package journal

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes, leaves and ends in whatever order: each write comes out once
// or was taken out, a subject is never under way twice, writes of one subject
// come out in order, batches keep their bounds, and nothing waits for ever.
func TestLineupKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := GroupPolicy{
			Least:  rapid.IntRange(0, 6).Draw(t, "least"),
			Most:   rapid.IntRange(2, 12).Draw(t, "most"),
			Bytes:  rapid.IntRange(10, 200).Draw(t, "bytes"),
			Linger: time.Duration(rapid.IntRange(-1, 20).Draw(t, "linger")) * time.Millisecond,
		}
		l := newLineup(policy)
		now := time.Unix(1_000_000, 0)
		sequence := uint64(100)
		var batch []*appending
		var alone []*appending
		waiting := map[string][]*appending{} // by subject, in order of arrival
		under := map[string]*appending{}
		joined, out := 0, 0
		outstanding := func() int {
			n := 0
			for _, list := range waiting {
				n += len(list)
			}
			return n
		}
		came := func(a *appending) {
			subject := a.m.Subject
			if under[subject] != nil {
				t.Fatalf("%s is under way twice", subject)
			}
			if list := waiting[subject]; len(list) == 0 || list[0] != a {
				t.Fatalf("%s: another was first", subject)
			}
			waiting[subject] = waiting[subject][1:]
			under[subject] = a
			out++
		}
		pump := func() {
			for range 100 {
				b, single, again := l.next(now)
				for _, a := range append(slices.Clone(b), single...) {
					came(a)
				}
				if len(b) > 0 {
					if batch != nil {
						t.Fatal("two batches are under way")
					}
					bytes := 0
					for _, a := range b {
						bytes += a.size
					}
					if len(b) < 2 || len(b) > policy.Most || len(single) > 0 || bytes > policy.Bytes {
						t.Fatalf("batch of %d writes, %d bytes, beside %d alone", len(b), bytes, len(single))
					}
					batch = b
				}
				alone = append(alone, single...)
				if len(alone) > inFlight {
					t.Fatalf("%d alone at once", len(alone))
				}
				if again < 0 || again > max(policy.Linger, groupLinger) {
					t.Fatalf("ask again after %s", again)
				}
				if again > 0 && len(b)+len(single) > 0 {
					t.Fatal("it sends and waits")
				}
				if again == 0 {
					if batch == nil && len(alone) == 0 && outstanding() > 0 {
						t.Fatal("writes wait and nothing is under way")
					}
					return
				}
				if rapid.Bool().Draw(t, "let it linger") {
					return
				}
				now = now.Add(again)
			}
			t.Fatal("it lingers for ever")
		}
		end := func(a *appending, single bool) {
			stored := uint64(0)
			if rapid.Bool().Draw(t, "stored") {
				sequence++
				stored = sequence
			}
			delete(under, a.m.Subject)
			var beaten []*appending
			if single {
				beaten = l.endedAlone(a, stored, now)
			} else {
				beaten = l.ended(a, stored)
			}
			for _, b := range beaten {
				if stored == 0 || b.m.Guard == nil || b.m.Guard.Sequence >= stored || b.m.Subject != a.m.Subject {
					t.Fatal("one was told that it is beaten and is not")
				}
				waiting[b.m.Subject] = slices.DeleteFunc(waiting[b.m.Subject], func(o *appending) bool { return o == b })
				out++
			}
		}
		// Skip says that an action makes no sense in this state: rapid then draws
		// another one, and the test goes on.
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "after µs")) * time.Microsecond)
				a := &appending{size: rapid.IntRange(1, 50).Draw(t, "size"), out: make(chan verdict, 1)}
				a.m.Subject = fmt.Sprint("s", rapid.IntRange(0, 9).Draw(t, "subject"))
				if rapid.Bool().Draw(t, "guarded") {
					a.m.Guard = &Guard{Sequence: sequence + uint64(rapid.IntRange(0, 2).Draw(t, "ahead"))}
				}
				waiting[a.m.Subject] = append(waiting[a.m.Subject], a)
				joined++
				l.join(a, now)
				pump()
			},
			"leave": func(t *rapid.T) {
				var all []*appending
				for _, subject := range slices.Sorted(maps.Keys(waiting)) {
					all = append(all, waiting[subject]...)
				}
				if len(all) == 0 {
					t.Skip() // of rapid: the action does not apply now, and it draws another
				}
				a := rapid.SampledFrom(all).Draw(t, "who")
				if !l.leave(a) {
					t.Fatal("it waits and could not leave")
				}
				waiting[a.m.Subject] = slices.DeleteFunc(waiting[a.m.Subject], func(o *appending) bool { return o == a })
				out++
				pump()
			},
			"end alone": func(t *rapid.T) {
				if len(alone) == 0 {
					t.Skip() // of rapid: the action does not apply now, and it draws another
				}
				i := rapid.IntRange(0, len(alone)-1).Draw(t, "which")
				a := alone[i]
				alone = slices.Delete(alone, i, i+1)
				now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "after µs")) * time.Microsecond)
				end(a, true)
				pump()
			},
			"end batch": func(t *rapid.T) {
				if batch == nil {
					t.Skip() // of rapid: the action does not apply now, and it draws another
				}
				sent := now
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "after ms")) * time.Millisecond)
				if rapid.Bool().Draw(t, "good") {
					l.committed(len(batch), sent, now)
				} else {
					l.failed()
				}
				for _, a := range batch {
					if l.leave(a) {
						t.Fatal("it is under way and left")
					}
					end(a, false)
				}
				batch = nil
				l.over()
				pump()
			},
			"": func(t *rapid.T) {
				if joined-out != outstanding() {
					t.Fatalf("%d joined, %d came out, %d wait", joined, out, outstanding())
				}
				if l.idle() != (outstanding() == 0 && len(under) == 0) {
					t.Fatal("idle is wrong")
				}
			},
		})
	})
}

// A steady stream of writes, each answered after what its way costs: the lineup
// comes to batch where the disk is slow and goes singly where nobody waits.
func TestLineupAdapts(t *testing.T) {
	const single = 250 * time.Microsecond
	const files, memory = 3200 * time.Microsecond, 500 * time.Microsecond // M5: where a batch is staged
	for _, c := range []struct {
		name     string
		clients  int
		pause    time.Duration // of a client between two writes
		grouped  time.Duration
		batches  bool
		mostWait time.Duration // of the median write
	}{
		{"one client", 1, 0, files, false, time.Millisecond},
		{"a few clients", 3, 0, files, false, 2 * time.Millisecond},
		{"64 clients", 64, 0, files, true, 12 * time.Millisecond},
		{"256 clients", 256, 0, files, true, 30 * time.Millisecond},
		{"350 writes a second", 35, 100 * time.Millisecond, files, false, time.Millisecond},
		{"4,200 writes a second", 420, 100 * time.Millisecond, files, true, 20 * time.Millisecond},
		// A batch as cheap as two writes is no reason to wait for the second.
		{"350 writes a second, in memory", 35, 100 * time.Millisecond, memory, false, time.Millisecond},
		{"4,200 writes a second, in memory", 420, 100 * time.Millisecond, memory, true, 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			share, median := simulate(c.clients, c.pause, single, c.grouped)
			if c.batches != (share > 0.9) || !c.batches && share > 0.1 {
				t.Errorf("%.0f %% of the writes went in batches", 100*share)
			}
			if median > c.mostWait {
				t.Errorf("the median write took %s", median)
			}
		})
	}
}

// simulate plays clients against a server that takes one thing after the other.
func simulate(clients int, pause, single, grouped time.Duration) (share float64, median time.Duration) {
	type happening struct {
		at time.Time
		do func()
	}
	start := time.Unix(1_000_000, 0)
	now, free := start, start
	var agenda []happening
	after := func(at time.Time, do func()) { agenda = append(agenda, happening{at, do}) }
	l := newLineup(GroupPolicy{})
	l.committed(firstLeast, start.Add(-grouped-firstLeast*batchEach), start)
	var took []time.Duration
	inBatch, n := 0, 0
	var pump func()
	join := func(client int) {
		n++
		l.join(&appending{m: Outgoing{Subject: fmt.Sprint(client, " ", n)}, size: 300}, now)
		pump()
	}
	over := func(a *appending) {
		took = append(took, now.Sub(a.came))
		var client int
		_, _ = fmt.Sscan(a.m.Subject, &client)
		after(now.Add(pause+time.Duration(client)*time.Nanosecond), func() { join(client) })
	}
	busy := func(d time.Duration) time.Time {
		if free.Before(now) {
			free = now
		}
		free = free.Add(d)
		return free
	}
	pump = func() {
		batch, alone, again := l.next(now)
		for _, a := range alone {
			after(busy(single), func() {
				over(a)
				l.endedAlone(a, 1, now)
				pump()
			})
		}
		if len(batch) > 0 {
			sent := now
			inBatch += len(batch)
			after(busy(grouped+time.Duration(len(batch))*batchEach), func() {
				l.committed(len(batch), sent, now)
				for _, a := range batch {
					over(a)
					l.ended(a, 1)
				}
				l.over()
				pump()
			})
		}
		if again > 0 {
			after(now.Add(again), pump)
		}
	}
	for client := range clients {
		after(start.Add(time.Duration(client)*pause/time.Duration(clients)), func() { join(client) })
	}
	for now.Before(start.Add(2 * time.Second)) {
		first := 0
		for i, h := range agenda {
			if h.at.Before(agenda[first].at) {
				first = i
			}
		}
		h := agenda[first]
		agenda = slices.Delete(agenda, first, first+1)
		now = h.at
		h.do()
	}
	slices.Sort(took)
	return float64(inBatch) / float64(n), took[len(took)/2]
}
