package simulator_test

import (
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// TestCodings: coded bodies, whether asked for or not, and those that grow.
func TestCodings(t *testing.T) {
	for coding, open := range map[string]func(io.Reader) (io.Reader, error){
		"gzip":    func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"deflate": func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
	} {
		bubble(t, simulator.Config{}, func(w *world) {
			w.sim.Mount("/a", simulator.ExampleLookup,
				simulator.On(simulator.List, simulator.Nth(1), simulator.Compress{Coding: coding}),
				simulator.On(simulator.List, simulator.Nth(2), simulator.Bomb{Coding: coding, Size: 8<<20 + 1}),
				simulator.On(simulator.List, simulator.Nth(3), simulator.Compress{Coding: coding}, simulator.Truncate{Bytes: 12}))
			for i, want := range []int{0, 8<<20 + 1, -1} {
				// Naming a coding keeps the client from undoing it.
				a := w.want(200, w.call("GET", "/a/v1/jobs", "", "Accept-Encoding", "identity"))
				w.equal("coding", a.header.Get("Content-Encoding"), coding)
				var plain []byte
				r, err := open(strings.NewReader(a.body))
				if err == nil {
					plain, err = io.ReadAll(r)
				}
				if want < 0 {
					w.equal("cut", err != nil, true)
					continue
				}
				if err != nil {
					t.Fatalf("%s %d: %v", coding, i, err)
				}
				w.equal("spaces", len(plain)-len(strings.TrimLeft(string(plain), " ")), want)
				w.equal("document", json.Valid(plain), true)
				if want > 0 && len(a.body) > want/500 {
					t.Errorf("%s of %d bytes travels as %d", coding, want, len(a.body))
				}
			}
			w.equal("log", w.sim.Count(simulator.Filter{Fault: "bomb"}), 1)
		})
	}
}

// TestThrottledForAll: the first calls are refused, whichever jobs they are
// about, in each provider's form.
func TestThrottledForAll(t *testing.T) {
	for _, dialect := range []simulator.Dialect{simulator.Example, simulator.Replicate, simulator.OpenAIBatches, simulator.StripeReporting} {
		for _, after := range []string{"", "7"} {
			bubble(t, simulator.Config{}, func(w *world) {
				m := w.sim.Mount("/p", dialect)
				var ids []string
				for i := range 3 {
					ids = append(ids, m.Plant(0, "running", fmt.Appendf(nil, `{"version":"v","n":%d}`, i)).ID)
				}
				path := map[simulator.Dialect]string{
					simulator.Example: "/p/v1/jobs/", simulator.Replicate: "/p/v1/predictions/",
					simulator.OpenAIBatches: "/p/v1/batches/", simulator.StripeReporting: "/p/v1/reporting/report_runs/",
				}[dialect]
				m.Add(simulator.On(simulator.Any, simulator.First(4), simulator.Throttled(simulator.RetryAfter{Text: after})))
				var got []int
				for i := range 6 {
					a := w.call("GET", path+ids[i%3], "")
					got = append(got, a.status)
					if a.status == 429 {
						w.equal("Retry-After", a.header.Get("Retry-After"), after)
						sameShape(t, a.body, map[simulator.Dialect]string{
							simulator.Example:         `{"type":"","title":"","status":1,"code":"","detail":""}`,
							simulator.Replicate:       `{"title":"","detail":"","status":1}`,
							simulator.OpenAIBatches:   `{"error":{"message":"","type":"","param":null,"code":""}}`,
							simulator.StripeReporting: `{"error":{"type":"","code":"","message":""}}`,
						}[dialect])
					}
				}
				w.equal("answers", got, []int{429, 429, 429, 429, 200, 200})
			})
		}
	}
}

// TestOddPages: what stands between a client and a provider.
func TestOddPages(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/a", simulator.Example,
			simulator.On(simulator.Status, simulator.Nth(1), simulator.ReplyLogin()),
			simulator.On(simulator.Status, simulator.Nth(2), simulator.ReplyHTML(502)),
			simulator.On(simulator.Status, simulator.Nth(3), simulator.Redirect{To: "http://elsewhere/x"}),
			simulator.On(simulator.Status, simulator.Nth(4), simulator.HugeMessage(3<<20)),
			simulator.On(simulator.Status, simulator.Nth(5), simulator.SlowBody{Every: 2 * time.Second}))
		path := "/a/v1/jobs/" + m.Plant(0, "running", []byte(`{}`)).ID
		a := w.want(200, w.call("GET", path, ""))
		w.equal("login", []any{a.header.Get("Content-Type"), strings.Contains(a.body, "password")}, []any{"text/html; charset=utf-8", true})
		w.want(502, w.call("GET", path, ""))
		w.equal("elsewhere", w.want(302, w.call("GET", path, "")).header.Get("Location"), "http://elsewhere/x")
		w.equal("message", len(w.want(200, w.call("GET", path, "")).field("message")), 3<<20)
		a = w.want(200, w.call("GET", path, ""))
		w.equal("by the byte", a.took, time.Duration(len(a.body))*2*time.Second)
	})
}

// TestListOptions: the example list in pages, turned around, without its filter,
// and with the jobs of others in it.
func TestListOptions(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/l", simulator.ExampleLookup)
		old := m.Plant(time.Hour, "succeeded", []byte(`{"client_reference":"r"}`))
		other := m.Plant(time.Minute, "running", []byte(`{"client_reference":"q"}`))
		ours := w.want(202, w.call("POST", "/l/v1/jobs", `{"client_reference":"r"}`)).field("job_id")
		w.equal("another id", old.ID != other.ID && old.ID != ours, true)
		walk := func(o simulator.Options) (ids []string) {
			m.Configure(o)
			for next := "/l/v1/jobs?client_reference=r"; next != "(none)"; {
				a := w.want(200, w.call("GET", next, ""))
				for _, one := range strings.Split(a.field("jobs"), `"job_id":"`)[1:] {
					id, _, _ := strings.Cut(one, `"`)
					ids = append(ids, id)
				}
				next = a.field("next")
			}
			return ids
		}
		w.equal("plain", walk(simulator.Options{PageSize: 1}), []string{old.ID, ours})
		w.equal("turned", walk(simulator.Options{PageSize: 1, NewestFirst: true}), []string{ours, old.ID})
		w.equal("all", walk(simulator.Options{PageSize: 1, ListAll: true}), []string{old.ID, other.ID, ours})
		a := w.want(200, w.call("GET", "/l/v1/jobs", ""))
		if want := w.start.Add(-time.Hour).UTC().Format(time.RFC3339); !strings.Contains(a.body, `"created_at":"`+want+`"`) {
			t.Errorf("the old one's time is not in %s", a.body)
		}
		w.equal("state", m.Jobs()[0].State, "succeeded")
		time.Sleep(time.Hour)
		w.equal("stays", m.Jobs()[1].State, "running")
		w.equal("duplicates", w.sim.DuplicateCount(), 0)
		w.equal("stored", w.sim.Count(simulator.Filter{Stored: true}), 1)
	})
}
