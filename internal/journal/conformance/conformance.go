// Package conformance is the suite that every [journal.Store] passes: what the
// journal's own logic relies on, as far as it can be shown from outside.
//
// Each test runs in a testing/synctest bubble, the server over JetStream
// included, so that leases and schedules are tested to the millisecond.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Run runs the suite. open gives a new, empty, provisioned store; it is called
// inside the bubble and cleans up by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) journal.Store) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.test(t, open(t)) })
		})
	}
}

// RunLive runs in real time, for a store that no bubble can hold, what does not
// hang on it: all but cursors and queues that wait, schedules and expiry. Nor the
// other cases of queues: with several replicas a new one can be asked, and what
// was acknowledged is gone, a moment later.
func RunLive(t *testing.T, open func(t *testing.T) journal.Store) {
	for _, c := range cases() {
		if c.live {
			t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
		}
	}
}

type testCase struct {
	name string
	test func(*testing.T, journal.Store)
	live bool // it needs no bubble
}

func cases() []testCase {
	return []testCase{
		{"message survives unchanged", messageSurvives, true},
		{"last and next", lastAndNext, true},
		{"newest of each subject", newest, true},
		{"guards", guards, true},
		{"run in order", runInOrder, true},
		{"run and its guard", runGuard, true},
		{"run of wake-ups", runWakes, true},
		{"where no run goes", runNowhere, true},
		{"each stream takes its subjects", subjects, true},
		{"one message per subject", onePerSubject, true},
		{"a webhook is refused the second time", webhookOnce, false},
		{"control keeps everything", controlKeeps, true},
		{"index entries expire", indexExpires, false},
		{"cursor", cursor, false},
		{"cursor waits", cursorWaits, false},
		{"queue leases", queueLeases, false},
		{"queue waits", queueWaits, false},
		{"queue over kept messages", queueKept, false},
		{"release", release, false},
		{"intents are handed out until they are acknowledged", intentQueue, false},
		{"two queues share nothing", twoQueues, false},
		{"schedule fires once and not early", scheduleFires, false},
		{"schedule in the past", schedulePast, false},
		{"schedule is replaced", scheduleReplaced, false},
		{"schedule is cancelled by a due message", cancelledByDue, false},
		{"schedule is cancelled by an epoch", cancelledByEpoch, false},
		{"guard on the epoch", epochGuard, false},
		{"malformed schedules are refused", scheduleMalformed, true},
		{"replacing a leased due message", replaceLeased, false},
		{"acknowledgement after the lease", lateAck, false},
		{"ended context", endedContext, true},
	}
}

// sleep lets the bubble's time pass and the store do what became due.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func put(t *testing.T, s journal.Store, name journal.Stream, m journal.Outgoing) uint64 {
	t.Helper()
	sequence, err := s.Publish(t.Context(), name, m)
	if err != nil {
		t.Fatal(err)
	}
	return sequence
}

func text(subject, data string) journal.Outgoing {
	return journal.Outgoing{Subject: subject, Data: []byte(data)}
}

func guarded(m journal.Outgoing, subject string, sequence uint64) journal.Outgoing {
	m.Guard = &journal.Guard{Subject: subject, Sequence: sequence}
	return m
}

func refused(t *testing.T, s journal.Store, name journal.Stream, m journal.Outgoing, want error) {
	t.Helper()
	if _, err := s.Publish(t.Context(), name, m); err == nil || want != nil && !errors.Is(err, want) {
		t.Fatalf("publish on %s: got %v, want %v", m.Subject, err, want)
	}
}

func last(t *testing.T, s journal.Store, name journal.Stream, subject string) journal.Message {
	t.Helper()
	m, err := s.Last(t.Context(), name, subject)
	if err != nil {
		t.Fatalf("last of %s: %v", subject, err)
	}
	return m
}

func absent(t *testing.T, s journal.Store, name journal.Stream, subject string) {
	t.Helper()
	if m, err := s.Last(t.Context(), name, subject); !errors.Is(err, journal.ErrNoMessage) {
		t.Fatalf("last of %s: %+v, %v; want none", subject, m, err)
	}
}

func messageSurvives(t *testing.T, s journal.Store) {
	header := map[string][]string{"ce-id": {"a%20b"}, "ce-source": {"/x"}, "Upper-Case": {"1"}}
	before := time.Now()
	sequence := put(t, s, journal.Ledger, journal.Outgoing{
		Subject: "facts.0.01.op_a", Header: header, Data: []byte{0, 1, 0xff, '\r', '\n'},
		Guard: &journal.Guard{},
	})
	if len(header) != 3 {
		t.Fatalf("the caller's header was changed: %v", header)
	}
	m := last(t, s, journal.Ledger, "facts.0.01.op_a")
	if m.Subject != "facts.0.01.op_a" || m.Sequence != sequence || sequence != 1 ||
		!slices.Equal(m.Data, []byte{0, 1, 0xff, '\r', '\n'}) {
		t.Fatalf("got %+v", m)
	}
	if m.Time.Before(before) || m.Time.After(time.Now()) || m.Time.Location() != time.UTC {
		t.Fatalf("time %s, stored between %s and %s", m.Time, before, time.Now())
	}
	for name, want := range header {
		if !slices.Equal(m.Header[name], want) {
			t.Fatalf("header %s is %q, want %q", name, m.Header[name], want)
		}
	}
	empty := put(t, s, journal.Ledger, journal.Outgoing{Subject: "facts.0.01.op_b"})
	if m := last(t, s, journal.Ledger, "facts.0.01.op_b"); m.Sequence != empty || len(m.Data) != 0 {
		t.Fatalf("empty message: %+v", m)
	}
}

func lastAndNext(t *testing.T, s journal.Store) {
	absent(t, s, journal.Ledger, "facts.0.01.op_a")
	absent(t, s, journal.Ledger, "facts.0.01.*")
	for i, subject := range []string{"facts.0.01.op_a", "facts.0.02.op_b", "facts.0.01.op_c", "facts.0.01.op_a"} {
		if got := put(t, s, journal.Ledger, text(subject, subject)); got != uint64(i)+1 {
			t.Fatalf("sequence %d, want %d", got, i+1)
		}
		time.Sleep(time.Millisecond)
	}
	for subject, want := range map[string]uint64{
		"facts.0.01.op_a": 4, "facts.0.02.op_b": 2, "facts.0.01.*": 4, "facts.0.02.*": 2, "facts.0.*.op_c": 3, "facts.>": 4,
	} {
		if m := last(t, s, journal.Ledger, subject); m.Sequence != want {
			t.Errorf("last of %s is %d, want %d", subject, m.Sequence, want)
		}
	}
	for _, c := range []struct {
		subject string
		from    uint64
		want    uint64
	}{
		{"facts.0.01.op_a", 0, 1},
		{"facts.0.01.op_a", 1, 1},
		{"facts.0.01.op_a", 2, 4},
		{"facts.0.01.op_a", 5, 0},
		{"facts.0.01.*", 2, 3},
		{"facts.0.02.*", 3, 0},
		{"facts.0.01.op_x", 1, 0},
		{"facts.0.01.op_a", 99, 0},
		{"facts.>", 2, 2},
	} {
		m, err := s.Next(t.Context(), journal.Ledger, c.subject, c.from)
		if c.want == 0 && !errors.Is(err, journal.ErrNoMessage) || m.Sequence != c.want || c.want != 0 && err != nil {
			t.Errorf("next of %s from %d is %d, %v; want %d", c.subject, c.from, m.Sequence, err, c.want)
		}
	}
	first, second := mustNext(t, s, "facts.>", 1), mustNext(t, s, "facts.>", 2)
	if !second.Time.After(first.Time) {
		t.Fatalf("times %s, %s", first.Time, second.Time)
	}
}

func mustNext(t *testing.T, s journal.Store, subject string, from uint64) journal.Message {
	t.Helper()
	m, err := s.Next(t.Context(), journal.Ledger, subject, from)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func guards(t *testing.T, s journal.Store) {
	a, b := text("facts.0.01.op_a", "1"), text("facts.0.01.op_b", "1")
	put(t, s, journal.Ledger, guarded(a, "", 0))
	refused(t, s, journal.Ledger, guarded(a, "", 0), journal.ErrWrongSequence)
	refused(t, s, journal.Ledger, guarded(a, "", 7), journal.ErrWrongSequence)
	put(t, s, journal.Ledger, guarded(b, "", 0))
	put(t, s, journal.Ledger, guarded(a, "", 1))
	refused(t, s, journal.Ledger, guarded(a, "", 1), journal.ErrWrongSequence)
	if m := last(t, s, journal.Ledger, "facts.>"); m.Sequence != 3 {
		t.Fatalf("a refused message was stored: last is %d", m.Sequence)
	}

	// A wildcard guards all the subjects it matches.
	x, y := text("history.1.07.op_x", "1"), text("history.1.07.op_y", "1")
	other := text("history.1.08.op_z", "1")
	put(t, s, journal.History, guarded(x, "history.1.07.*", 0))
	refused(t, s, journal.History, guarded(y, "history.1.07.*", 0), journal.ErrWrongSequence)
	put(t, s, journal.History, guarded(other, "history.1.08.*", 0))
	put(t, s, journal.History, guarded(y, "history.1.07.*", 1))
	refused(t, s, journal.History, guarded(x, "history.1.07.*", 2), journal.ErrWrongSequence)
	put(t, s, journal.History, guarded(x, "history.1.07.*", 3))
}

func subjects(t *testing.T, s journal.Store) {
	for name, list := range map[journal.Stream][]string{
		journal.Ledger:   {"facts.0.31.op_a"},
		journal.History:  {"history.1.31.op_a", "history.1.31.takeover"},
		journal.Wakeups:  {"wake.op_a", "due.example.op_a", "epoch.31"},
		journal.Index:    {"job.example.main.h", "ref.example.h", "client.alice.h", "parked.example.h.k"},
		journal.Webhooks: {"webhooks.example.k"},
		journal.Control:  {"control.principal"},
		journal.Payloads: {"payloads.abc"},
		journal.Slots:    {"slot.example.main.0"},
		journal.Intents:  {"intents.alice.k1"},
		journal.Verdicts: {"verdicts.alice.h", "rejected.alice.7"},
	} {
		for _, subject := range list {
			put(t, s, name, text(subject, subject))
			if m := last(t, s, name, subject); string(m.Data) != subject {
				t.Fatalf("%s holds %q", subject, m.Data)
			}
		}
	}
	for name, subject := range map[journal.Stream]string{
		journal.Ledger: "facts.0.31", journal.History: "history.1.31.op.a", journal.Wakeups: "due.example", journal.Index: "other.a",
	} {
		refused(t, s, name, text(subject, ""), journal.ErrUnanswered)
	}
}

func onePerSubject(t *testing.T, s journal.Store) {
	for _, c := range []struct {
		stream  journal.Stream
		subject string
	}{{journal.Index, "job.example.main.h"}, {journal.Wakeups, "epoch.01"}, {journal.Payloads, "payloads.abc"}, {journal.Slots, "slot.example.main.0"}, {journal.Verdicts, "verdicts.alice.h"}} {
		first := put(t, s, c.stream, text(c.subject, "1"))
		put(t, s, c.stream, guarded(text(c.subject, "2"), "", first))
		refused(t, s, c.stream, guarded(text(c.subject, "3"), "", first), journal.ErrWrongSequence)
		refused(t, s, c.stream, guarded(text(c.subject, "3"), "", 0), journal.ErrWrongSequence)
		m, err := s.Next(t.Context(), c.stream, c.subject, first)
		if err != nil || string(m.Data) != "2" {
			t.Fatalf("%s: first is %q, %v", c.subject, m.Data, err)
		}
	}
}

// newest holds for streams that keep everything, that keep one message for each
// subject, and that are work queues.
func newest(t *testing.T, s journal.Store) {
	if err := s.Newest(t.Context(), journal.History, "history.>", func(journal.Message) error { return nil }); errors.Is(err, journal.ErrPiecemeal) {
		return // the store has replicas
	}
	at := time.Now().Add(time.Hour)
	scheduled := func(operation, data string) journal.Outgoing {
		m := text("wake."+operation, data)
		m.Header = map[string][]string{
			journal.ScheduleHeader: {journal.ScheduleAt(at)}, journal.TargetHeader: {"due.example." + operation},
		}
		return m
	}
	for _, c := range []struct {
		stream      journal.Stream
		filter      string
		a, b, other string
	}{
		{journal.History, "history.1.01.*", "history.1.01.a", "history.1.01.b", "history.1.02.a"},
		{journal.Index, "job.example.*.*", "job.example.main.a", "job.example.main.b", "ref.example.a"},
		{journal.Wakeups, "wake.*", "wake.a", "wake.b", "due.example.c"},
	} {
		got := func() map[string]string {
			out := map[string]string{}
			err := s.Newest(t.Context(), c.stream, c.filter, func(m journal.Message) error {
				held := last(t, s, c.stream, m.Subject) // the store can be used meanwhile
				if held.Sequence != m.Sequence || !held.Time.Equal(m.Time) || fmt.Sprint(held.Header) != fmt.Sprint(m.Header) {
					t.Errorf("newest of %s is %+v, last is %+v", m.Subject, m, held)
				}
				out[m.Subject] = string(m.Data)
				return nil
			})
			if err != nil {
				t.Fatalf("newest of %s: %v", c.filter, err)
			}
			return out
		}
		if list := got(); len(list) != 0 {
			t.Fatalf("%s: %v, want none", c.filter, list)
		}
		write := text
		if c.stream == journal.Wakeups {
			write = func(subject, data string) journal.Outgoing { return scheduled(subject[len("wake."):], data) }
		}
		put(t, s, c.stream, write(c.a, "1"))
		put(t, s, c.stream, write(c.b, "2"))
		put(t, s, c.stream, text(c.other, "3"))
		put(t, s, c.stream, write(c.a, "4"))
		if list := got(); len(list) != 2 || list[c.a] != "4" || list[c.b] != "2" {
			t.Fatalf("%s: %v", c.filter, list)
		}
		enough := errors.New("enough")
		n := 0
		if err := s.Newest(t.Context(), c.stream, c.filter, func(journal.Message) error { n++; return enough }); !errors.Is(err, enough) || n != 1 {
			t.Fatalf("%s: %v after %d, want it to end at the first", c.filter, err, n)
		}
	}
	n := 0
	for i := range 1500 {
		put(t, s, journal.Index, text(fmt.Sprintf("ref.many.%d", i), "x"))
		put(t, s, journal.Wakeups, scheduled(fmt.Sprintf("many%d", i), "x"))
	}
	for stream, filter := range map[journal.Stream]string{journal.Index: "ref.many.*", journal.Wakeups: "wake.*"} {
		n = 0
		if err := s.Newest(t.Context(), stream, filter, func(journal.Message) error { n++; return nil }); err != nil || n < 1500 || n > 1502 {
			t.Fatalf("%s: %d of 1500, %v", filter, n, err)
		}
	}
}

func webhookOnce(t *testing.T, s journal.Store) {
	put(t, s, journal.Webhooks, text("webhooks.example.k", "1"))
	refused(t, s, journal.Webhooks, text("webhooks.example.k", "1"), journal.ErrSubjectFull)
	sleep(quiet)
	refused(t, s, journal.Webhooks, text("webhooks.example.k", "2"), journal.ErrSubjectFull)
	put(t, s, journal.Webhooks, text("webhooks.other.k", "1"))
	if m := last(t, s, journal.Webhooks, "webhooks.example.k"); string(m.Data) != "1" {
		t.Fatalf("holds %q", m.Data)
	}
}

func indexExpires(t *testing.T, s journal.Store) {
	expiring := func(subject, data string, d time.Duration) journal.Outgoing {
		m := text(subject, data)
		m.Header = map[string][]string{journal.ExpiresHeader: {journal.Expires(d)}}
		return m
	}
	const a, b, c = "parked.example.h.a", "parked.example.h.b", "parked.example.h.c"
	first := put(t, s, journal.Index, expiring(a, "1", 30*24*time.Hour))
	put(t, s, journal.Index, expiring(b, "1", 3*time.Second))
	put(t, s, journal.Index, text(c, "1"))
	for _, bad := range []string{"0s", "-1s", "x", "999ms"} {
		m := text("parked.example.h.d", "")
		m.Header = map[string][]string{journal.ExpiresHeader: {bad}}
		refused(t, s, journal.Index, m, nil)
	}
	for stream, subject := range map[journal.Stream]string{
		journal.Ledger: "facts.0.01.op_a", journal.History: "history.1.01.op_a", journal.Webhooks: "webhooks.example.k",
		journal.Payloads: "payloads.abc", journal.Control: "control.x", journal.Wakeups: "due.example.op_a",
	} {
		refused(t, s, stream, expiring(subject, "", time.Hour), nil)
	}
	sleep(3*time.Second - time.Millisecond)
	last(t, s, journal.Index, b)
	sleep(2 * time.Second)
	absent(t, s, journal.Index, b)
	put(t, s, journal.Index, guarded(expiring(b, "2", time.Minute), "", 0)) // as if it had never been there

	// Replacing is how an entry is taken out: the new one's life counts.
	put(t, s, journal.Index, guarded(expiring(a, "", time.Second), "", first))
	sleep(3 * time.Second)
	absent(t, s, journal.Index, a)
	last(t, s, journal.Index, b)
	sleep(time.Minute)
	absent(t, s, journal.Index, b)
	// And one that expired is replaced by one that stays.
	put(t, s, journal.Index, expiring(a, "3", time.Second))
	put(t, s, journal.Index, text(a, "4"))
	sleep(quiet)
	if m := last(t, s, journal.Index, a); string(m.Data) != "4" {
		t.Fatalf("holds %q", m.Data)
	}
	last(t, s, journal.Index, c)
}

func read(t *testing.T, s journal.Store, name journal.Stream, filter string, from uint64) journal.Cursor {
	t.Helper()
	c, err := s.Read(t.Context(), name, filter, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// want reads one message and fails unless it has this sequence; 0 is none.
func want(t *testing.T, c journal.Cursor, wait time.Duration, sequence uint64) {
	t.Helper()
	m, err := c.Next(t.Context(), wait)
	if sequence == 0 && !errors.Is(err, journal.ErrNoMessage) || sequence != 0 && err != nil || m.Sequence != sequence {
		t.Fatalf("cursor gave %d, %v; want %d", m.Sequence, err, sequence)
	}
}

func cursor(t *testing.T, s journal.Store) {
	const n = 700 // more than the batches of any implementation
	c := read(t, s, journal.Ledger, "facts.0.01.*", 1)
	want(t, c, 0, 0)
	for i := range n {
		put(t, s, journal.Ledger, text(fmt.Sprintf("facts.0.%02d.op_%d", i%2, i), fmt.Sprint(i)))
	}
	for i := 1; i < n; i += 2 {
		// Both ways of asking give the same order.
		wait := time.Duration(i%3) * time.Second
		m, err := c.Next(t.Context(), wait)
		if err != nil || m.Sequence != uint64(i)+1 || string(m.Data) != fmt.Sprint(i) || m.Subject != fmt.Sprintf("facts.0.01.op_%d", i) {
			t.Fatalf("message %d: %+v, %v", i, m, err)
		}
	}
	want(t, c, 0, 0)
	want(t, c, time.Second, 0)

	middle := read(t, s, journal.Ledger, "facts.>", 600)
	for i := uint64(600); i <= n; i++ {
		want(t, middle, time.Second, i)
	}
	want(t, read(t, s, journal.Ledger, "facts.>", n+1), 0, 0)

	// Far longer than a server keeps an unused reader.
	sleep(quiet)
	put(t, s, journal.Ledger, text("facts.0.01.op_late", ""))
	want(t, middle, time.Minute, n+1)
	want(t, c, 0, n+1)
}

func cursorWaits(t *testing.T, s journal.Store) {
	c := read(t, s, journal.Ledger, "facts.0.01.*", 1)
	begin := time.Now()
	want(t, c, 90*time.Second, 0)
	if waited := time.Since(begin); waited != 90*time.Second {
		t.Fatalf("waited %s", waited)
	}
	time.AfterFunc(40*time.Second, func() {
		_, _ = s.Publish(context.WithoutCancel(t.Context()), journal.Ledger, text("facts.0.01.op_a", "")) // the wait below shows it
	})
	begin = time.Now()
	want(t, c, time.Hour, 1)
	if waited := time.Since(begin); waited != 40*time.Second {
		t.Fatalf("woken after %s", waited)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Next(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ended context: %v", err)
	}
	put(t, s, journal.Ledger, text("facts.0.01.op_a", ""))
	want(t, c, time.Second, 2)
}

const (
	ackWait = 30 * time.Second
	// slack is how much later than a lease's end a server may notice it.
	slack = 100 * time.Millisecond
	// hearing is how long a queue may take to hear of a message.
	hearing = 10 * time.Millisecond
	// quiet is longer than any lease, and than a server keeps an unused reader.
	// Fake time is not free: an hour costs the server's own timers two seconds.
	quiet = 3 * time.Minute
)

func join(t *testing.T, s journal.Store, provider string) journal.Queue {
	t.Helper()
	q, err := s.Queue(t.Context(), journal.QueueConfig{
		Stream: journal.Wakeups, Durable: "due-" + provider, Filter: "due." + provider + ".>", AckWait: ackWait,
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// fetch takes what is there and fails unless it is these messages in order. It
// waits a little: a server's queue hears of a message just after its writer.
func fetch(t *testing.T, q journal.Queue, limit int, want ...string) []journal.Delivery {
	t.Helper()
	var list []journal.Delivery
	for {
		more, err := q.Fetch(t.Context(), limit-len(list), hearing)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, more...)
		if len(more) == 0 || len(list) >= limit || len(want) > 0 && len(list) >= len(want) {
			break
		}
	}
	var got []string
	for _, d := range list {
		got = append(got, string(d.Message().Data))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("fetched %q, want %q", got, want)
	}
	return list
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func intentQueue(t *testing.T, s journal.Store) {
	q, err := s.Queue(t.Context(), journal.QueueConfig{Stream: journal.Intents, Durable: "intents", Filter: "intents.*.*", AckWait: ackWait})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, journal.Intents, text("intents.alice.k1", "a"))
	put(t, s, journal.Intents, text("intents.alice.k1", "b")) // one does not replace the other
	list := fetch(t, q, 5, "a", "b")
	must(t, list[0].Ack(t.Context()))
	sleep(ackWait + slack)
	again := fetch(t, q, 5, "b")
	must(t, again[0].Ack(t.Context()))
	absent(t, s, journal.Intents, "intents.*.*")
}

func queueLeases(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	fetch(t, q, 5)
	put(t, s, journal.Wakeups, text("due.example.op_a", "a"))
	put(t, s, journal.Wakeups, text("due.other.op_o", "o"))
	put(t, s, journal.Wakeups, text("due.example.op_b", "b"))
	put(t, s, journal.Wakeups, text("due.example.op_c", "c"))
	list := fetch(t, q, 2, "a", "b")
	a, b := list[0], list[1]
	c := fetch(t, q, 2, "c")[0]
	fetch(t, q, 2)
	if a.Delivered() != 1 || a.Message().Subject != "due.example.op_a" {
		t.Fatalf("%+v delivered %d", a.Message(), a.Delivered())
	}
	// A second handle on the same durable shares its leases.
	fetch(t, join(t, s, "example"), 2)

	sleep(ackWait - time.Second)
	must(t, a.Extend(t.Context()))
	must(t, c.Ack(t.Context()))
	absent(t, s, journal.Wakeups, "due.example.op_c")
	fetch(t, q, 5)
	sleep(time.Second + slack)
	b2 := fetch(t, q, 5, "b")[0]
	if b2.Delivered() != 2 || b2.Message().Sequence != b.Message().Sequence {
		t.Fatalf("second delivery: %+v, %d", b2.Message(), b2.Delivered())
	}
	sleep(ackWait - time.Second) // a's extension is over, b's second lease is not
	fetch(t, q, 5, "a")
	must(t, b2.Ack(t.Context()))
	must(t, b2.Ack(t.Context()))
	sleep(quiet)
	fetch(t, q, 5, "a")
	last(t, s, journal.Wakeups, "due.example.op_a")
}

func queueWaits(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	begin := time.Now()
	list, err := q.Fetch(t.Context(), 5, 10*time.Second)
	if err != nil || len(list) != 0 || time.Since(begin) < 9*time.Second || time.Since(begin) > 11*time.Second {
		t.Fatalf("%d messages, %v after %s", len(list), err, time.Since(begin))
	}
	time.AfterFunc(3*time.Second, func() {
		_, _ = s.Publish(context.WithoutCancel(t.Context()), journal.Wakeups, text("due.example.op_a", "a")) // the wait below shows it
	})
	begin = time.Now()
	list, err = q.Fetch(t.Context(), 5, time.Minute)
	if err != nil || len(list) != 1 || time.Since(begin) != 3*time.Second {
		t.Fatalf("%d messages, %v after %s", len(list), err, time.Since(begin))
	}
	// Nothing that comes after the return is leased to nobody.
	put(t, s, journal.Wakeups, text("due.example.op_b", "b"))
	fetch(t, q, 5, "b")
	// The end of a lease wakes as well.
	begin = time.Now()
	list, err = q.Fetch(t.Context(), 5, time.Minute)
	if waited := time.Since(begin); err != nil || len(list) == 0 || waited < ackWait-time.Second || waited > ackWait+time.Second {
		t.Fatalf("%d messages, %v after %s", len(list), err, waited)
	}
}

func queueKept(t *testing.T, s journal.Store) {
	put(t, s, journal.Webhooks, text("webhooks.example.a", "a"))
	put(t, s, journal.Webhooks, text("webhooks.example.b", "b"))
	all, err := s.Queue(t.Context(), journal.QueueConfig{Stream: journal.Webhooks, Durable: "all", Filter: "webhooks.>", AckWait: ackWait})
	must(t, err)
	for _, d := range fetch(t, all, 5, "a", "b") {
		must(t, d.Ack(t.Context()))
	}
	last(t, s, journal.Webhooks, "webhooks.example.a") // acknowledged and kept
	sleep(quiet)
	fetch(t, all, 5)
	refused(t, s, journal.Webhooks, text("webhooks.example.a", "a"), journal.ErrSubjectFull)
	tail, err := s.Queue(t.Context(), journal.QueueConfig{Stream: journal.Webhooks, Durable: "tail", Filter: "webhooks.>", AckWait: ackWait, From: 2})
	must(t, err)
	fetch(t, tail, 5, "b")
}

func release(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	put(t, s, journal.Wakeups, text("due.example.op_a", "a"))
	d := fetch(t, q, 1, "a")[0]
	must(t, d.Release(t.Context()))
	if d := fetch(t, q, 1, "a")[0]; d.Delivered() != 2 {
		t.Fatalf("delivered %d", d.Delivered())
	}
	fetch(t, q, 1)
}

func twoQueues(t *testing.T, s journal.Store) {
	a, b := join(t, s, "a"), join(t, s, "b")
	put(t, s, journal.Wakeups, text("due.b.op", "b"))
	fetch(t, a, 1)
	must(t, fetch(t, b, 1, "b")[0].Ack(t.Context()))
	absent(t, s, journal.Wakeups, "due.b.op")
}

func schedule(operation string, at time.Time, data string) journal.Outgoing {
	return journal.Outgoing{
		Subject: "wake." + operation,
		Header: map[string][]string{
			journal.ScheduleHeader: {journal.ScheduleAt(at)}, journal.TargetHeader: {"due.example." + operation}, "Own": {"kept"},
		},
		Data: []byte(data),
	}
}

func cancels(m journal.Outgoing, operation string) journal.Outgoing {
	m.Header = map[string][]string{journal.SchedulerHeader: {"wake." + operation}, journal.NextHeader: {journal.NextPurge}}
	return m
}

func scheduleFires(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	at := time.Now().Add(5*time.Minute + 123456789*time.Nanosecond)
	sequence := put(t, s, journal.Wakeups, schedule("op_a", at, "a"))
	put(t, s, journal.Wakeups, schedule("op_b", at.Add(time.Minute), "b"))
	put(t, s, journal.Wakeups, schedule("op_c", at.Add(time.Second), "c"))
	sleep(time.Until(at) - 2*hearing)
	fetch(t, q, 5)
	if m := last(t, s, journal.Wakeups, "wake.op_a"); m.Sequence != sequence {
		t.Fatalf("pending schedule has sequence %d", m.Sequence)
	}
	sleep(journal.ScheduleFloor + slack)
	d := fetch(t, q, 5, "a")[0]
	m := d.Message()
	if late := m.Time.Sub(at); late < 0 || late > journal.ScheduleFloor+time.Millisecond {
		t.Fatalf("fired %s after its time", late)
	}
	for name, want := range map[string]string{
		"Own": "kept", journal.SchedulerHeader: "wake.op_a", journal.NextHeader: journal.NextPurge,
		journal.ScheduleHeader: "", journal.TargetHeader: "",
	} {
		if got := m.Header[name]; want == "" && len(got) != 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("fired message has %s %q, want %q", name, got, want)
		}
	}
	absent(t, s, journal.Wakeups, "wake.op_a") // gone with its message
	must(t, d.Ack(t.Context()))
	sleep(2 * time.Second)
	must(t, fetch(t, q, 5, "c")[0].Ack(t.Context()))
	sleep(time.Minute)
	must(t, fetch(t, q, 5, "b")[0].Ack(t.Context()))
	sleep(quiet)
	fetch(t, q, 5)
	absent(t, s, journal.Wakeups, "due.>")
}

func schedulePast(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	begin := time.Now()
	put(t, s, journal.Wakeups, schedule("op_a", begin.Add(-time.Hour), "a"))
	fetch(t, q, 5)
	sleep(journal.ScheduleFloor + slack)
	d := fetch(t, q, 5, "a")[0]
	if after := d.Message().Time.Sub(begin); after < journal.ScheduleFloor || after > journal.ScheduleFloor+time.Millisecond {
		t.Fatalf("fired after %s, want the floor", after)
	}
}

func scheduleReplaced(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	first := put(t, s, journal.Wakeups, schedule("op_a", time.Now().Add(time.Minute), "old"))
	put(t, s, journal.Wakeups, guarded(schedule("op_a", time.Now().Add(2*time.Minute), "new"), "", first))
	refused(t, s, journal.Wakeups, guarded(schedule("op_a", time.Now(), "stale"), "", first), journal.ErrWrongSequence)
	sleep(time.Minute + time.Second)
	fetch(t, q, 5)
	sleep(time.Minute)
	must(t, fetch(t, q, 5, "new")[0].Ack(t.Context()))
	// Sooner works as well.
	put(t, s, journal.Wakeups, schedule("op_a", time.Now().Add(2*time.Minute), "later"))
	put(t, s, journal.Wakeups, schedule("op_a", time.Now().Add(time.Minute), "sooner"))
	sleep(time.Minute + time.Second)
	must(t, fetch(t, q, 5, "sooner")[0].Ack(t.Context()))
	sleep(quiet)
	fetch(t, q, 5)
}

func cancelledByDue(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	put(t, s, journal.Wakeups, schedule("op_a", time.Now().Add(time.Minute), "later"))
	put(t, s, journal.Wakeups, schedule("op_b", time.Now().Add(time.Minute), "other"))
	put(t, s, journal.Wakeups, cancels(text("due.example.op_a", "now"), "op_a"))
	absent(t, s, journal.Wakeups, "wake.op_a")
	must(t, fetch(t, q, 5, "now")[0].Ack(t.Context()))
	// And when there is no schedule.
	put(t, s, journal.Wakeups, cancels(text("due.example.op_a", "again"), "op_a"))
	must(t, fetch(t, q, 5, "again")[0].Ack(t.Context()))
	sleep(quiet)
	fetch(t, q, 5, "other")
}

func cancelledByEpoch(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	epoch := put(t, s, journal.Wakeups, text("epoch.01", "me"))
	put(t, s, journal.Wakeups, schedule("op_a", time.Now().Add(time.Minute), "a"))
	refused(t, s, journal.Wakeups, guarded(cancels(text("epoch.01", "other"), "op_a"), "", epoch+7), journal.ErrWrongSequence)
	last(t, s, journal.Wakeups, "wake.op_a") // a refused write cancels nothing
	put(t, s, journal.Wakeups, guarded(cancels(text("epoch.01", "me"), "op_a"), "", epoch))
	absent(t, s, journal.Wakeups, "wake.op_a")
	sleep(quiet)
	fetch(t, q, 5)
	if m := last(t, s, journal.Wakeups, "epoch.01"); string(m.Data) != "me" {
		t.Fatalf("epoch holds %q", m.Data)
	}
}

func epochGuard(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	first := put(t, s, journal.Wakeups, guarded(text("epoch.01", "one"), "", 0))
	put(t, s, journal.Wakeups, guarded(schedule("op_a", time.Now().Add(time.Minute), "a"), "epoch.01", first))
	second := put(t, s, journal.Wakeups, guarded(text("epoch.01", "two"), "", first))
	refused(t, s, journal.Wakeups, guarded(schedule("op_a", time.Now().Add(time.Second), "stale"), "epoch.01", first), journal.ErrWrongSequence)
	refused(t, s, journal.Wakeups, guarded(cancels(text("due.example.op_a", "stale"), "op_a"), "epoch.01", first), journal.ErrWrongSequence)
	sleep(2 * time.Second)
	fetch(t, q, 5)
	last(t, s, journal.Wakeups, "wake.op_a")
	// The firing itself is not guarded, and the guard does not look at the
	// schedule's own subject.
	sleep(time.Minute)
	fetch(t, q, 5, "a")
	put(t, s, journal.Wakeups, guarded(schedule("op_a", time.Now().Add(time.Minute), "b"), "epoch.01", second))
}

func scheduleMalformed(t *testing.T, s journal.Store) {
	now := time.Now()
	change := func(name, value string) journal.Outgoing {
		m := schedule("op_a", now.Add(time.Minute), "a")
		if value == "" {
			delete(m.Header, name)
		} else {
			m.Header[name] = []string{value}
		}
		return m
	}
	for name, m := range map[string]journal.Outgoing{
		"no target":        change(journal.TargetHeader, ""),
		"foreign target":   change(journal.TargetHeader, "elsewhere.op_a"),
		"target is itself": change(journal.TargetHeader, "wake.op_a"),
		"time":             change(journal.ScheduleHeader, "@at tomorrow"),
		"purges itself":    cancels(text("wake.op_a", ""), "op_a"),
		"not a purge":      {Subject: "due.example.op_a", Header: map[string][]string{journal.SchedulerHeader: {"wake.op_a"}, journal.NextHeader: {"keep"}}},
		"scheduler alone":  {Subject: "due.example.op_a", Header: map[string][]string{journal.SchedulerHeader: {"wake.op_a"}}},
	} {
		if _, err := s.Publish(t.Context(), journal.Wakeups, m); err == nil || errors.Is(err, journal.ErrUnanswered) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	absent(t, s, journal.Wakeups, "due.>")
	absent(t, s, journal.Wakeups, "wake.>")
	refused(t, s, journal.Ledger, journal.Outgoing{
		Subject: "facts.0.01.op_a",
		Header:  map[string][]string{journal.ScheduleHeader: {journal.ScheduleAt(now)}, journal.TargetHeader: {"facts.0.01.op_b"}},
	}, nil)
	// What is purged must be a schedule.
	put(t, s, journal.Wakeups, text("epoch.01", ""))
	m := text("due.example.op_a", "")
	m.Header = map[string][]string{journal.SchedulerHeader: {"epoch.01"}, journal.NextHeader: {journal.NextPurge}}
	refused(t, s, journal.Wakeups, m, nil)
	last(t, s, journal.Wakeups, "epoch.01")
}

func replaceLeased(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	put(t, s, journal.Wakeups, text("due.example.op_a", "old"))
	old := fetch(t, q, 5, "old")[0]
	put(t, s, journal.Wakeups, cancels(text("due.example.op_a", "new"), "op_a"))
	synctest.Wait()
	young := fetch(t, q, 5, "new")[0] // at once, while the old one is leased
	if young.Delivered() != 1 {
		t.Fatalf("delivered %d", young.Delivered())
	}
	must(t, old.Extend(t.Context()))
	must(t, old.Ack(t.Context())) // succeeds, does nothing
	last(t, s, journal.Wakeups, "due.example.op_a")
	sleep(ackWait + slack)
	young = fetch(t, q, 5, "new")[0] // not extended by the old holder
	must(t, young.Ack(t.Context()))
	absent(t, s, journal.Wakeups, "due.>")
	sleep(quiet)
	fetch(t, q, 5)
}

func lateAck(t *testing.T, s journal.Store) {
	q := join(t, s, "example")
	put(t, s, journal.Wakeups, text("due.example.op_a", "a"))
	first := fetch(t, q, 5, "a")[0]
	sleep(ackWait + slack)
	second := fetch(t, q, 5, "a")[0]
	must(t, first.Ack(t.Context()))
	absent(t, s, journal.Wakeups, "due.>") // it counts although the lease is another's
	must(t, second.Ack(t.Context()))
	sleep(quiet)
	fetch(t, q, 5)
}

func endedContext(t *testing.T, s journal.Store) {
	put(t, s, journal.Ledger, text("facts.0.01.op_a", ""))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Publish(ctx, journal.Ledger, text("facts.0.01.op_a", "")); !errors.Is(err, journal.ErrUnanswered) || !errors.Is(err, context.Canceled) {
		t.Errorf("publish: %v", err)
	}
	if _, err := s.Last(ctx, journal.Ledger, "facts.>"); !errors.Is(err, context.Canceled) {
		t.Errorf("last: %v", err)
	}
	if _, err := s.Next(ctx, journal.Ledger, "facts.>", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("next: %v", err)
	}
}
