package simulator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a simulator on a memory listener inside a synctest bubble.
type world struct {
	*testing.T
	sim    *simulator.Simulator
	mem    *simulator.MemoryListener
	client *http.Client
	start  time.Time
}

// bubble runs f on fake time and closes the simulator; the bubble itself fails
// if a goroutine is left.
func bubble(t *testing.T, c simulator.Config, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if c.Seed == 0 {
			c.Seed = 7
		}
		w := &world{T: t, sim: simulator.New(c), start: time.Now()}
		defer w.sim.Close()
		w.mem = w.sim.ListenMemory()
		w.client = w.mem.Client()
		f(w)
	})
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
	took   time.Duration
}

// call makes a request on host "provider"; headers are name, value, ... A
// target that starts with a slash is a path.
func (w *world) call(method, target, body string, headers ...string) answer {
	w.Helper()
	return w.callContext(w.Context(), method, target, body, headers...)
}

func (w *world) callContext(ctx context.Context, method, target, body string, headers ...string) answer {
	w.Helper()
	if strings.HasPrefix(target, "/") {
		target = "http://provider" + target
	}
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, r)
	if err != nil {
		w.Fatalf("make request: %v", err)
	}
	req.GetBody = nil
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	began := time.Now()
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err, took: time.Since(began)}
}

// create posts a job with a token and expects an answer.
func (w *world) create(base, token string) answer {
	w.Helper()
	return w.want(202, w.call("POST", base+"/v1/jobs", `{"prompt":"x"}`, "Idempotency-Key", token))
}

func (w *world) want(status int, a answer) answer {
	w.Helper()
	if a.err != nil || a.status != status {
		w.Fatalf("answer %d %v %s, want status %d", a.status, a.err, a.body, status)
	}
	return a
}

func (w *world) wantCut(a answer) {
	w.Helper()
	if a.err == nil {
		w.Fatalf("answer %d %s, want a cut connection", a.status, a.body)
	}
}

// field reads a member of the body, path by dots, as text.
func (a answer) field(name string) string {
	d := json.NewDecoder(strings.NewReader(a.body))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return "(not JSON)"
	}
	for part := range strings.SplitSeq(name, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return "(none)"
		}
		if v, ok = m[part]; !ok {
			return "(none)"
		}
	}
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	b, _ := json.Marshal(v)
	return string(b)
}

func (w *world) field(a answer, name, want string) {
	w.Helper()
	if got := a.field(name); got != want {
		w.Errorf("%s = %q, want %q in %s", name, got, want, a.body)
	}
}

func (w *world) equal(what string, got, want any) {
	w.Helper()
	g, _ := json.Marshal(got)
	x, _ := json.Marshal(want)
	if !bytes.Equal(g, x) {
		w.Errorf("%s = %s, want %s", what, g, x)
	}
}

func TestExampleLifeByClock(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/example", simulator.Example).Configure(simulator.Options{Plan: simulator.Plan{
			Steps: []simulator.Step{
				{State: simulator.Queued},
				{State: simulator.Running, After: time.Minute},
				{State: simulator.Succeeded, After: 9 * time.Minute},
			},
		}})
		body := `{"n":9007199254740991, "f":1.0,"e":1e2,  "s":"<&>"}`
		a := w.want(202, w.call("POST", "/example/v1/jobs", body, "Idempotency-Key", "k1"))
		id := a.field("job_id")
		w.equal("Location", a.header.Get("Location"), "/example/v1/jobs/"+id)
		w.field(a, "status_url", "http://provider/example/v1/jobs/"+id)
		w.field(a, "state", "queued")
		w.field(a, "replayed", "(none)")

		at := "/example/v1/jobs/" + id
		w.equal("early result", w.call("GET", at+"/result", "").status, 404)
		for _, step := range []struct {
			sleep           time.Duration
			state, progress string
		}{
			{0, "queued", "0"},
			{time.Minute - 1, "queued", "0"},
			{1, "running", "33"},
			{9*time.Minute - 1, "running", "33"},
			{1, "succeeded", "100"},
			{time.Hour, "succeeded", "100"},
		} {
			time.Sleep(step.sleep)
			a := w.want(200, w.call("GET", at, ""))
			w.field(a, "state", step.state)
			w.field(a, "progress", step.progress)
		}
		w.field(w.call("GET", at, ""), "updated_at", w.start.Add(10*time.Minute).UTC().Format(time.RFC3339Nano))

		r := w.want(200, w.call("GET", at+"/result", ""))
		if !strings.Contains(r.body, `"request":`+body) {
			t.Errorf("result %s does not hold the request's bytes %s", r.body, body)
		}

		// The same token gets the same job, as it now stands.
		a = w.want(200, w.call("POST", "/example/v1/jobs", body, "Idempotency-Key", "k1"))
		w.field(a, "job_id", id)
		w.field(a, "replayed", "true")
		w.field(a, "state", "succeeded")
		b := w.create("/example", "k2")
		if b.field("job_id") == id {
			t.Error("another token got the same job")
		}
		w.equal("duplicates", w.sim.DuplicateCount(), 0)
		w.equal("creates on the wire", w.sim.CreatesOnWire("k1"), 2)
		w.equal("stored", w.sim.Count(simulator.Filter{Stored: true}), 2)
		w.equal("no list", w.call("GET", "/example/v1/jobs", "").status, 404)
		for _, path := range []string{"/example/v1/jobs/none", "/example/v1/jobs/", "/example/v1/files/", "/example/", "/other"} {
			w.equal(path, w.call("GET", path, "").status, 404)
		}
		w.equal("bad body", w.call("POST", "/example/v1/jobs", `[1]`, "Idempotency-Key", "k3").status, 400)
	})
}

func TestPlanPerReadAndFailure(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		plan := simulator.StepsPerRead("queued", "running", "on_hold", "failed")
		plan.Code, plan.Message = "Q1", "no room"
		w.sim.Mount("", simulator.Example).Configure(simulator.Options{Plan: plan})
		id := w.create("", "k").field("job_id")
		for _, want := range []string{"running", "on_hold", "failed", "failed"} {
			w.field(w.want(200, w.call("GET", "/v1/jobs/"+id, "")), "state", want)
		}
		a := w.call("GET", "/v1/jobs/"+id, "")
		w.field(a, "error.code", "Q1")
		w.field(a, "error.message", "no room")
		w.equal("result of a failed job", w.call("GET", "/v1/jobs/"+id+"/result", "").status, 404)
	})
}

func TestCancel(t *testing.T) {
	plan := simulator.Steps(10*time.Minute, "queued", "running", "succeeded")
	plan.CancelAfter = time.Minute
	for _, test := range []struct {
		how    simulator.OnCancel // "" is the well-behaved provider
		status int
		said   string // state in the answer to the cancel
		then   []string
	}{
		{"", 202, "cancelling", []string{"cancelling", "cancelled", "cancelled"}},
		{simulator.CancelFinishFirst, 409, "succeeded", []string{"succeeded", "succeeded", "succeeded"}},
		{simulator.CancelIgnored, 202, "cancelling", []string{"queued", "queued", "succeeded"}},
		{simulator.CancelForever, 202, "cancelling", []string{"cancelling", "cancelling", "cancelling"}},
		{simulator.CancelVanish, 202, "cancelling", []string{"gone", "gone", "gone"}},
		{simulator.CancelRefused, 409, "(none)", []string{"queued", "queued", "succeeded"}},
	} {
		t.Run(string(test.how), func(t *testing.T) {
			bubble(t, simulator.Config{}, func(w *world) {
				m := w.sim.Mount("/p", simulator.Example).Configure(simulator.Options{Plan: plan})
				if test.how != "" {
					m.Add(simulator.On(simulator.Cancel, simulator.Always(), test.how))
				}
				id := w.create("/p", "k").field("job_id")
				a := w.want(test.status, w.call("POST", "/p/v1/jobs/"+id+"/cancel", ""))
				w.field(a, "state", test.said)
				for i, sleep := range []time.Duration{0, time.Minute, time.Hour} {
					time.Sleep(sleep)
					a := w.call("GET", "/p/v1/jobs/"+id, "")
					got := a.field("state")
					if a.status == 404 {
						got = "gone"
					}
					w.equal("state", got, test.then[i])
				}
				w.equal("fault in the log", w.sim.Requests(simulator.Filter{Call: simulator.Cancel})[0].Fault, string(test.how))
				w.equal("cancels", w.sim.Jobs()[0].Cancels, 1)
			})
		})
	}

	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example)
		id := w.create("", "k").field("job_id")
		w.field(w.want(202, w.call("POST", "/v1/jobs/"+id+"/cancel", "")), "state", "cancelled")
		w.field(w.want(200, w.call("POST", "/v1/jobs/"+id+"/cancel", "")), "state", "cancelled")
		id = w.create("", "k2").field("job_id")
		time.Sleep(time.Minute)
		a := w.want(409, w.call("POST", "/v1/jobs/"+id+"/cancel", ""))
		w.field(a, "code", "too_late")
		w.field(a, "state", "succeeded")
		o := m.Options()
		o.NoCancel = true
		m.Configure(o)
		w.want(405, w.call("POST", "/v1/jobs/"+id+"/cancel", ""))
	})
}

func TestLookupPagesAndLateList(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/l", simulator.ExampleLookup,
			simulator.On(simulator.Create, simulator.Nth(3), simulator.ListLate(time.Hour)),
		).Configure(simulator.Options{PageSize: 1, ListDelay: 30 * time.Second})
		var ids []string
		for range 3 {
			// The key is not honoured.
			a := w.want(202, w.call("POST", "/l/v1/jobs", `{"client_reference":"r 1"}`, "Idempotency-Key", "same"))
			ids = append(ids, a.field("job_id"))
		}
		w.want(202, w.call("POST", "/l/v1/jobs", `{"client_reference":"r2"}`))
		list := func() (got []string) {
			next := "/l/v1/jobs?client_reference=r+1"
			for next != "" {
				a := w.want(200, w.call("GET", next, ""))
				var page struct {
					Jobs []struct {
						JobID     string    `json:"job_id"`
						State     string    `json:"state"`
						Reference string    `json:"client_reference"`
						StatusURL string    `json:"status_url"`
						CreatedAt time.Time `json:"created_at"`
					} `json:"jobs"`
					Next string `json:"next"`
				}
				if err := json.Unmarshal([]byte(a.body), &page); err != nil {
					t.Fatal(err)
				}
				for _, j := range page.Jobs {
					if j.Reference != "r 1" || !j.CreatedAt.Equal(w.start) {
						t.Errorf("row %+v", j)
					}
					w.want(200, w.call("GET", j.StatusURL, ""))
					got = append(got, j.JobID)
				}
				next = page.Next
			}
			return got
		}
		w.equal("at once", list(), []string(nil))
		time.Sleep(30 * time.Second)
		w.equal("after the delay", list(), ids[:2])
		time.Sleep(time.Hour)
		w.equal("after an hour", list(), ids)
		w.equal("bad cursor", w.call("GET", "/l/v1/jobs?cursor=-1", "").status, 400)
		w.equal("duplicates", w.sim.Duplicates()[simulator.OperationKey{Mount: "/l", Key: "r 1"}], 2)
		w.equal("duplicate count", w.sim.DuplicateCount(), 2)
	})
}

func TestAskHasNeither(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/a", simulator.ExampleAsk)
		for range 2 {
			w.want(202, w.call("POST", "/a/v1/jobs", `{"correlation":"op1"}`, "Idempotency-Key", "same"))
		}
		w.want(202, w.call("POST", "/a/v1/jobs", `{"other":1}`))
		w.equal("list", w.call("GET", "/a/v1/jobs?client_reference=x", "").status, 404)
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
	})
	bubble(t, simulator.Config{
		CorrelateAlways: true,
		Correlate:       func(b []byte) string { return string(b) },
	}, func(w *world) {
		w.sim.Mount("/e", simulator.Example)
		w.create("/e", "token-1")
		w.create("/e", "token-2") // the same operation under a new token
		w.equal("duplicates", w.sim.Duplicates()[simulator.OperationKey{Mount: "/e", Key: `{"prompt":"x"}`}], 1)
	})
}

func TestIDs(t *testing.T) {
	for style, want := range map[simulator.IDStyle]string{
		simulator.IDNumber:  `"job_id":9007199254740993,`,
		simulator.IDAwkward: `"job_id":"a/../`,
		simulator.IDPlain:   `"job_id":"job_`,
	} {
		t.Run(string(style), func(t *testing.T) {
			var ids []string
			for range 2 { // the second run gives the same ids
				bubble(t, simulator.Config{}, func(w *world) {
					w.sim.Mount("/p", simulator.Example).Configure(simulator.Options{IDs: style})
					a := w.create("/p", "k")
					if !strings.Contains(a.body, want) {
						t.Errorf("create answered %s, want %s", a.body, want)
					}
					s := w.want(200, w.call("GET", a.field("status_url"), ""))
					w.field(s, "job_id", a.field("job_id"))
					w.want(202, w.call("POST", a.field("status_url")+"/cancel", ""))
					w.equal("location", w.call("GET", "http://provider"+a.header.Get("Location"), "").status, 200)
					ids = append(ids, a.field("job_id"), w.create("/p", "k2").field("job_id"))
				})
			}
			if ids[0] != ids[2] || ids[1] != ids[3] || ids[0] == ids[1] {
				t.Errorf("ids %q", ids)
			}
		})
	}
}

func TestTokenWindowAndReplayStatus(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example).Configure(simulator.Options{TokenWindow: time.Hour, ReplayStatus: 202})
		first := w.create("", "k").field("job_id")
		time.Sleep(time.Hour - 1)
		a := w.create("", "k")
		w.field(a, "job_id", first)
		w.field(a, "replayed", "true")
		time.Sleep(time.Nanosecond)
		if again := w.create("", "k").field("job_id"); again == first {
			t.Error("the token was honoured after its window")
		}
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
	})
}

func TestAuth(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example)
		for _, test := range []struct {
			auth   simulator.Auth
			target string
			header []string
			status int
		}{
			{simulator.Auth{Bearer: "s"}, "/v1/jobs/x", nil, 401},
			{simulator.Auth{Bearer: "s"}, "/v1/jobs/x", []string{"Authorization", "Bearer t"}, 403},
			{simulator.Auth{Bearer: "s", WrongStatus: 401}, "/v1/jobs/x", []string{"Authorization", "Bearer t"}, 401},
			{simulator.Auth{Bearer: "s"}, "/v1/jobs/x", []string{"Authorization", "Bearer s"}, 404},
			{simulator.Auth{Header: "X-Api-Key", Value: "s"}, "/v1/jobs/x", nil, 401},
			{simulator.Auth{Header: "X-Api-Key", Value: "s"}, "/v1/jobs/x", []string{"X-Api-Key", "s"}, 404},
			{simulator.Auth{Query: "key", Value: "s"}, "/v1/jobs/x?key=t", nil, 403},
			{simulator.Auth{Query: "key", Value: "s"}, "/v1/jobs/x?key=s", nil, 404},
		} {
			m.Configure(simulator.Options{Auth: test.auth})
			w.equal(test.target, w.call("GET", test.target, "", test.header...).status, test.status)
		}
		m.Configure(simulator.Options{Auth: simulator.Auth{Bearer: "s"}})
		w.equal("create", w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k").status, 401)
		w.equal("jobs", len(w.sim.Jobs()), 0)
		w.equal("log", w.sim.Count(simulator.Filter{Fault: "unauthorized"}), 6)
	})
}

func TestReplicate(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		plan := simulator.Steps(5*time.Second, "queued", "running", "succeeded")
		m := w.sim.Mount("/r", simulator.Replicate).Configure(simulator.Options{Plan: plan, LinkBase: "http://delivery", PageSize: 2})
		body := `{"version":"5c7d","input":{"image":"https://example.test/in.png","n":1.0}}`
		a := w.want(201, w.call("POST", "/r/v1/predictions", body))
		id := a.field("id")
		w.field(a, "status", "starting")
		w.field(a, "output", "null")
		w.field(a, "input.n", "1.0")
		w.field(a, "urls.get", "http://provider/r/v1/predictions/"+id)
		w.equal("no version", w.call("POST", "/r/v1/predictions", `{"input":{}}`).status, 422)

		// The shape is that of the recorded answer.
		recorded := fixtureBody(t, "status_succeeded")
		time.Sleep(5 * time.Second)
		w.field(w.call("GET", a.field("urls.get"), ""), "status", "processing")
		time.Sleep(5 * time.Second)
		s := w.want(200, w.call("GET", a.field("urls.get"), ""))
		w.field(s, "status", "succeeded")
		var got map[string]any
		if err := json.Unmarshal([]byte(s.body), &got); err != nil {
			t.Fatal(err)
		}
		for name := range recorded {
			if _, ok := got[name]; !ok {
				t.Errorf("the prediction lacks %s", name)
			}
		}
		w.equal("members", len(got), len(recorded))

		link := got["output"].([]any)[0].(string)
		if !strings.HasPrefix(link, "http://delivery/r/v1/files/") {
			t.Errorf("output at %s", link)
		}
		r := w.want(200, w.call("GET", link, ""))
		if !strings.Contains(r.body, `"request":`+body) {
			t.Errorf("output %s", r.body)
		}
		w.equal("credentials at the other host", w.call("GET", link, "", "Authorization", "Bearer x").status, 400)
		w.equal("forged", w.call("GET", strings.Replace(link, "signature=", "signature=0", 1), "").status, 403)
		// Cancelled too late: the finished prediction, status 200.
		w.field(w.want(200, w.call("POST", a.field("urls.cancel"), "")), "status", "succeeded")

		time.Sleep(time.Hour)
		w.equal("expired", w.call("GET", link, "").status, 403)
		s = w.call("GET", a.field("urls.get"), "")
		w.field(s, "status", "succeeded")
		w.field(s, "data_removed", "true")
		w.field(s, "output", "null")
		w.field(s, "input", "{}")

		b := w.want(201, w.call("POST", "/r/v1/predictions", body))
		w.field(w.want(200, w.call("POST", b.field("urls.cancel"), "")), "status", "canceled")
		w.want(201, w.call("POST", "/r/v1/predictions", body))
		l := w.want(200, w.call("GET", "/r/v1/predictions", ""))
		w.field(l, "next", "http://provider/r/v1/predictions?cursor=2")
		l = w.want(200, w.call("GET", l.field("next"), ""))
		w.field(l, "next", "null")
		if !strings.Contains(l.body, id) {
			t.Errorf("the oldest prediction is not last: %s", l.body)
		}
		w.equal("duplicates", w.sim.DuplicateCount(), 2) // same body three times
		m.Forget(id)
		w.want(404, w.call("GET", a.field("urls.get"), ""))
	})
}

func TestClose(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		gate := simulator.NewGate()
		w.sim.Mount("", simulator.Example,
			simulator.On(simulator.Create, simulator.Always(), simulator.HoldBefore{Gate: gate}))
		done := make(chan answer)
		go func() { done <- w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k") }()
		synctest.Wait()
		w.sim.Close()
		if a := <-done; a.err == nil {
			t.Errorf("a held request was answered %d after Close", a.status)
		}
		w.equal("jobs", len(w.sim.Jobs()), 0)
		a := w.call("GET", "/v1/jobs/x", "")
		if a.err == nil {
			t.Errorf("answer %d after Close", a.status)
		}
		w.sim.Close()
		if _, err := w.sim.Listen("127.0.0.1:0"); err == nil {
			t.Error("Listen succeeded after Close")
		}
		after := w.sim.ListenMemory()
		if _, err := after.DialContext(w.Context(), "tcp", "x:80"); err == nil {
			t.Error("ListenMemory serves after Close")
		}
	})
}

func TestMountPanics(t *testing.T) {
	for _, base := range []string{"p", "/p/", "/twice"} {
		func() {
			sim := simulator.New(simulator.Config{})
			defer sim.Close()
			sim.Mount("/twice", simulator.Example)
			defer func() {
				if recover() == nil {
					t.Errorf("Mount(%q) did not panic", base)
				}
			}()
			sim.Mount(base, simulator.Example)
		}()
	}
}

func TestLongestMountWins(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.ExampleAsk)
		w.sim.Mount("/a", simulator.Example)
		w.sim.Mount("/a/b", simulator.ExampleLookup)
		w.create("/a/b", "k")
		w.create("/a", "k")
		w.create("", "k")
		var got []string
		for _, r := range w.sim.Requests(simulator.Filter{Call: simulator.Create}) {
			got = append(got, r.Mount+" "+string(r.Dialect)+" "+r.Path)
		}
		w.equal("mounts", got, []string{"/a/b example-lookup /a/b/v1/jobs", "/a example /a/v1/jobs", " example-ask /v1/jobs"})
	})
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
