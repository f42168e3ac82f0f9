package index_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// TestSession lists what a caller began under a label of its own, the newest
// that one entry names.
func TestSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{})
		submit := func(key, session string) string {
			op, _, err := h.Client.Submit(t.Context(), key, client.Submission{Provider: "example", Session: session, Params: json.RawMessage(`{}`)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return op.ID
		}
		list := func(f client.Filter) (ids []string, more bool) {
			page, err := h.Client.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range page.Items {
				ids = append(ids, op.ID)
			}
			return ids, page.LeftOut
		}
		var ids []string
		for i := range journal.MaxLabelled + 2 {
			ids = append([]string{submit(fmt.Sprint("mine-", i), "mine")}, ids...)
			if i == 1 {
				submit("other", "another session")
				submit("none", "")
				if got, more := list(client.Filter{Session: "mine"}); !slices.Equal(got, ids) || more {
					t.Errorf("%v, %v, want %v", got, more, ids)
				}
				if got, more := list(client.Filter{Session: "mine", Limit: 1}); !slices.Equal(got, ids[:1]) || !more {
					t.Errorf("%v, %v, want the newest and more", got, more)
				}
			}
		}
		if got, more := list(client.Filter{Session: "mine", Limit: 100}); !slices.Equal(got, ids[:journal.MaxLabelled]) || !more {
			t.Errorf("%d, %v, want the newest %d and more", len(got), more, journal.MaxLabelled)
		}
		if got, _ := list(client.Filter{Session: "mine", Provider: "example-ask"}); len(got) != 0 {
			t.Errorf("of another provider: %v", got)
		}
		if got, more := list(client.Filter{Session: "nobody's"}); len(got) != 0 || more {
			t.Errorf("%v, %v", got, more)
		}
		if _, err := h.Client.List(t.Context(), client.Filter{Session: "mine", Cursor: "x"}); err == nil {
			t.Error("a cursor goes with a session")
		}
	})
}

// Lists by tags and by the caller's own reference find what has them, alone and together.
func TestTagsAndReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{})
		var ids []string
		for i := range 4 {
			op, _, err := h.Client.Submit(t.Context(), fmt.Sprint(i), client.Submission{
				Provider: "example", Params: json.RawMessage(`{}`), Reference: fmt.Sprint("order ", i/2),
				Tags: map[string]string{"team": "billing", "run": fmt.Sprint("a:", i%2)},
			})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, op.ID)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		for _, c := range []struct {
			f    client.Filter
			want []int
		}{
			{client.Filter{Tags: map[string]string{"team": "billing"}}, []int{0, 1, 2, 3}},
			{client.Filter{Tags: map[string]string{"team": "billing", "run": "a:1"}}, []int{1, 3}},
			{client.Filter{Tags: map[string]string{"team": "billing", "run": "a:2"}}, nil},
			{client.Filter{Tags: map[string]string{"run": "a"}}, nil},
			{client.Filter{Reference: "order 1"}, []int{2, 3}},
			{client.Filter{Reference: "order 1", Tags: map[string]string{"run": "a:0"}}, []int{2}},
			{client.Filter{Limit: 1, Tags: map[string]string{"run": "a:0"}}, []int{0, 2}},
		} {
			var got, want []string
			for op, err := range h.Client.Operations(t.Context(), c.f) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, op.ID)
			}
			for _, i := range c.want {
				want = append(want, ids[i])
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %v, want %v", c.f, got, want)
			}
		}
	})
}
