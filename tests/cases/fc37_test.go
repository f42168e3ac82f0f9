package cases_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-37: a validator that does not survive how clients write it. Every form of the
// current tag is "as you have it", none of another is, and no two states that look
// different share one.
func TestFC37Validators(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(20*time.Second, "queued", "running", "succeeded")})
		id := h.Submit("fc37", "example", params("fc37")).ID
		at := "/v1/operations/" + id
		shown := map[string]string{} // by tag
		var order []string
		look := func() string {
			t.Helper()
			a := ask(t, h, "GET", at, "")
			etag := a.header.Get("ETag")
			var v map[string]any
			if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != 200 || etag == "" || strings.HasPrefix(etag, "W/") {
				t.Fatalf("%d %v %s: %v", a.status, a.header, a.body, err)
			}
			delete(v, "next_poll_after") // a hint that moves with the clock
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if before, ok := shown[etag]; ok && before != string(text) {
				t.Errorf("the tag %s stands for two states:\n%s\n%s", etag, before, text)
			}
			for other, what := range shown {
				if other != etag && what == string(text) {
					t.Errorf("one state has the tags %s and %s", other, etag)
				}
			}
			if shown[etag] = string(text); !slices.Contains(order, etag) {
				order = append(order, etag)
			}
			return etag
		}
		for range 40 {
			synctest.Wait() // between two steps of the service nothing moves
			etag := look()
			for _, have := range []string{etag, "W/" + etag, `"other", W/"x", ` + etag, `"other",` + etag + `,"x"`, "*"} {
				for _, coding := range []string{"identity", "gzip"} {
					a := ask(t, h, "GET", at, "", "If-None-Match", have, "Accept-Encoding", coding)
					if a.status != 304 || a.header.Get("ETag") != etag || a.body != "" {
						t.Errorf("If-None-Match %s (%s): %d with %s", have, coding, a.status, a.header.Get("ETag"))
					}
				}
			}
			for _, old := range order[:slices.Index(order, etag)] {
				for _, have := range []string{old, "W/" + old, `"x", ` + old, strings.Trim(old, `"`), strings.TrimSuffix(old, `"`)} {
					if a := ask(t, h, "GET", at, "", "If-None-Match", have); a.status != 200 {
						t.Errorf("If-None-Match %s is of before %s and gives %d", have, etag, a.status)
					}
				}
			}
			time.Sleep(2 * time.Second)
		}
		was(t, h, id, "succeeded")
		if len(order) < 4 {
			t.Errorf("only %d tags were seen", len(order))
		}
		keptPromises(t, h, id)
	})
}
