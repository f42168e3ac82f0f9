package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

// A feed that is cut before its first event, and all the time behind it, tells every
// fact of all operations once and in order.
func TestFeedIsResumed(t *testing.T) {
	s := start(t, 200*time.Millisecond)
	c, p := through(t, s, stand.Faults{LoseFirst: true, CutAfter: 2, Lose: true})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	// What is lost first is a fact of one of these: the feed is open before it comes.
	ids := map[string]bool{}
	submit := func(n int) {
		op, _, err := c.Submit(ctx, fmt.Sprint("k-", n), intent(n))
		if err != nil {
			t.Error(err)
		}
		ids[op.ID] = true
	}
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		for i := 0; len(p.LostFirst()) == 0 && ctx.Err() == nil; i++ {
			submit(i)
		}
		submit(1000)
	}()
	told, ended := map[string][]uint64{}, map[string]bool{}
	first := ""
	last := uint64(0)
	for e, err := range c.Feed(ctx, client.FeedFilter{}, "") {
		if err != nil {
			t.Fatal(err)
		}
		at, err := strconv.ParseUint(e.ID, 10, 64)
		if err != nil || at <= last || e.Standing == nil || e.Entry != nil {
			t.Fatalf("%q %+v behind %d: %v", e.ID, e, last, err)
		}
		if last = at; first == "" {
			first = e.ID
		}
		told[e.Standing.ID] = append(told[e.Standing.ID], at)
		if ended[e.Standing.ID] = e.Standing.Terminal; !e.Standing.Terminal {
			continue
		}
		select {
		case <-begun:
		default:
			continue
		}
		all := true
		for id := range ids {
			if _, known := told[id]; known {
				all = all && ended[id]
			}
		}
		if all {
			break
		}
	}
	if lost := p.LostFirst(); len(lost) != 1 || lost[0] != first {
		t.Errorf("events %q did not arrive, and the first that was told is %q", lost, first)
	}
	// Behind the first fact nothing was missed.
	from, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for id := range ids {
		line, err := c.Timeline(ctx, id, from-1)
		if err != nil {
			t.Fatal(err)
		}
		var want []uint64
		for _, e := range line {
			if e.Sequence <= last {
				want = append(want, e.Sequence)
			}
		}
		if !slices.Equal(told[id], want) {
			t.Errorf("of %s it told %v, and there are %v", id, told[id], want)
		}
	}
	// From an id on it tells what came since, of those that the filter names.
	for e, err := range c.Feed(ctx, client.FeedFilter{Provider: "example", Of: "own"}, strconv.FormatUint(from-1, 10)) {
		if err != nil || e.ID != first {
			t.Errorf("from before the first on it tells %q: %v", e.ID, err)
		}
		break
	}
}

// What a feed goes on with, event by event, and when it gives up.
func TestFeedCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		event := func(id int) string {
			return fmt.Sprintf("id: %d\nevent: dev.counterfoil.job.observed.v1\ndata: {\"data\":{\"operation\":{\"id\":\"op_1\",\"version\":%d}}}\n\n", id, id)
		}
		// Each stream is cut at its end.
		streams := []string{
			"retry: 2000\nid: 41\n\n",                               // before the first event
			"retry: 2000\nid: 41\n\n" + event(42) + "id: 43\nevent", // within an event
			"id: 42\n\n" + event(42) + event(43) + "id: 5",          // told again, and an id in part
			": hb\n\nid: 99\n\n: hb\n\nid: 7\n\n",                   // others' facts, and one that goes back
		}
		var asked []string
		c := inBubble(t, func(w http.ResponseWriter, r *http.Request) {
			if asked = append(asked, r.Header.Get("Last-Event-ID")); r.URL.RequestURI() != "/v1/events?of=team&provider=example" {
				t.Errorf("asked for %s", r.URL)
			}
			if len(asked) > len(streams) {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusGone)
				fmt.Fprint(w, `{"code":"cursor_expired","retryable":false,"retry_with":"same_key"}`)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, streams[len(asked)-1])
		})
		var told []string
		var problem *client.Problem
		for e, err := range c.Feed(t.Context(), client.FeedFilter{Of: "team", Provider: "example"}, "") {
			if err != nil {
				errors.As(err, &problem)
				break
			}
			told = append(told, e.ID+" "+e.Type)
		}
		if got, want := strings.Join(told, ", "), "42 job.observed.v1, 43 job.observed.v1"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		if got, want := strings.Join(asked, " "), " 41 42 43 99"; got != want {
			t.Errorf("resumed at%s, want%s", got, want)
		}
		if problem == nil || problem.Code != "cursor_expired" {
			t.Errorf("it ended with %v", problem)
		}
	})
}
