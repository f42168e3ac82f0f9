package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// TestMatch says which of twelve creates, three by each of four tokens in turn,
// a match picks.
func TestMatch(t *testing.T) {
	for _, test := range []struct {
		name  string
		match simulator.Match
		want  string
	}{
		{"always", simulator.Always(), "123456789abc"},
		{"nth", simulator.Nth(3), "3"},
		{"first", simulator.First(2), "12"},
		{"every", simulator.EveryNth(4), "48c"},
		{"nth of token", simulator.NthOfToken(2), "5678"},
		{"first of token", simulator.FirstOfToken(2), "12345678"},
		{"one token", simulator.Match{Token: "t2"}, "26a"},
		{"from", simulator.Match{From: 11}, "bc"},
		{"never", simulator.Match{Token: "t9"}, ""},
		{"young", simulator.Young(time.Hour), ""}, // a create is about no job yet
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, simulator.Config{}, func(w *world) {
				w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, test.match, simulator.Reply(503)))
				got := ""
				for i := range 12 {
					a := w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", fmt.Sprint("t", i%4+1))
					if a.status == 503 {
						got += fmt.Sprintf("%x", i+1)
					}
				}
				w.equal("picked", got, test.want)
			})
		})
	}
}

// TestChance: which calls are picked depends on the seed and the operation, not
// on the order in which operations call.
func TestChance(t *testing.T) {
	const tokens, each = 20, 20
	run := func(seed uint64, token func(i int) int) map[string]string {
		picks := map[string]string{}
		bubble(t, simulator.Config{Seed: seed}, func(w *world) {
			w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Chance(0.25), simulator.Reply(503)))
			for i := range tokens * each {
				k := fmt.Sprint("t", token(i))
				picks[k] += fmt.Sprint(w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", k).status == 503, " ")
			}
		})
		return picks
	}
	byTurns := run(1, func(i int) int { return i % tokens })
	oneByOne := run(1, func(i int) int { return i / each })
	other := run(2, func(i int) int { return i / each })
	hits := 0
	for k, picks := range byTurns {
		if oneByOne[k] != picks {
			t.Errorf("%s: %s by turns, %s one by one", k, picks, oneByOne[k])
		}
		hits += strings.Count(picks, "true")
	}
	if hits < 60 || hits > 140 {
		t.Errorf("%d of %d calls picked with probability 0.25", hits, tokens*each)
	}
	if fmt.Sprint(other) == fmt.Sprint(oneByOne) {
		t.Error("another seed picks the same calls")
	}
}

func TestMatchOfJob(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example, simulator.On(simulator.Status, simulator.FirstOfJob(2), simulator.Reply(404)))
		a, b := w.create("", "a").field("job_id"), w.create("", "b").field("job_id")
		got := ""
		for _, id := range []string{a, a, b, a, b, b} {
			got += fmt.Sprint(w.call("GET", "/v1/jobs/"+id, "").status, " ")
		}
		w.equal("404 twice per job", got, "404 404 404 200 404 200 ")
		m.Clear()
		m.Add(simulator.On(simulator.Status, simulator.Match{Job: a}, simulator.Reply(500)),
			simulator.On(simulator.Status, simulator.Young(time.Minute), simulator.Reply(404)))
		// Both match a; the rule added later wins.
		w.equal("a young", w.call("GET", "/v1/jobs/"+a, "").status, 404)
		w.equal("b young", w.call("GET", "/v1/jobs/"+b, "").status, 404)
		time.Sleep(time.Minute)
		w.equal("a old", w.call("GET", "/v1/jobs/"+a, "").status, 500)
		w.equal("b old", w.call("GET", "/v1/jobs/"+b, "").status, 200)
	})
}

func TestRulesComeAndGo(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example)
		id := w.create("", "a").field("job_id")
		get := func() int { return w.call("GET", "/v1/jobs/"+id, "").status }
		w.equal("none", get(), 200)
		// Counts from when it was added.
		remove := m.Add(simulator.On(simulator.Any, simulator.Nth(1), simulator.Reply(500)),
			simulator.On(simulator.Status, simulator.Nth(2), simulator.Reply(502)))
		w.equal("first", get(), 500)
		w.equal("second", get(), 502)
		w.equal("third", get(), 200)
		remove()
		keep := m.Add(simulator.On(simulator.Status, simulator.Always(), simulator.Reply(504)))
		remove()
		w.equal("kept", get(), 504)
		keep()
		w.equal("removed", get(), 200)
	})
}

func TestCreateTransportFaults(t *testing.T) {
	never := simulator.NeverReceive{}
	for _, test := range []struct {
		name   string
		fault  simulator.Fault
		cut    bool
		status int // of the answer, if not cut
		took   time.Duration
		jobs   int
		logged int // status in the log
	}{
		{"never receive", never, true, 0, 0, 0, 0},
		{"never receive, reset", simulator.NeverReceive{Reset: true}, true, 0, 0, 0, 0},
		{"drop answer", simulator.DropAnswer{}, true, 0, 0, 1, 0},
		{"drop answer, reset", simulator.DropAnswer{Reset: true}, true, 0, 0, 1, 0},
		{"delay before", simulator.DelayBefore(7 * time.Minute), false, 202, 7 * time.Minute, 1, 202},
		{"delay after", simulator.DelayAfter(7 * time.Minute), false, 202, 7 * time.Minute, 1, 202},
		{"cut", simulator.CutBody{Bytes: 5}, true, 202, 0, 1, 202},
		{"truncate", simulator.Truncate{Bytes: 5}, false, 202, 0, 1, 202},
		{"500, not stored", simulator.Reply(500), false, 500, 0, 0, 500},
		{"500, stored", simulator.ReplyStored(500), false, 500, 0, 1, 500},
		{"200 with an error", simulator.ReplyError(200, "Q1", "no room"), false, 200, 0, 0, 200},
		{"html", simulator.ReplyHTML(504), false, 504, 0, 0, 504},
		{"empty", simulator.ReplyEmpty(502), false, 502, 0, 0, 502},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, simulator.Config{}, func(w *world) {
				w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Nth(1), test.fault))
				a := w.call("POST", "/v1/jobs", `{"a":1}`, "Idempotency-Key", "k")
				if test.cut != (a.err != nil) {
					t.Fatalf("answer %d %q %v, want cut: %v", a.status, a.body, a.err, test.cut)
				}
				if strings.HasSuffix(test.name, "reset") && !errors.Is(a.err, syscall.ECONNRESET) {
					t.Errorf("error %v, want a reset", a.err)
				}
				if a.status != test.status {
					t.Errorf("status %d, want %d", a.status, test.status)
				}
				w.equal("took", a.took, test.took)
				synctest.Wait()
				w.equal("jobs", len(w.sim.Jobs()), test.jobs)
				r := w.sim.Requests(simulator.Filter{})[0]
				w.equal("log status", r.Status, test.logged)
				w.equal("log stored", r.Stored, test.jobs == 1)
				w.equal("log body", string(r.Body), `{"a":1}`)
				if r.Fault == "" {
					t.Error("the log names no fault")
				}
				// Whatever happened, the same token leads to one job.
				again := w.call("POST", "/v1/jobs", `{"a":1}`, "Idempotency-Key", "k")
				w.equal("replay", again.field("replayed") == "true", test.jobs == 1)
				w.equal("jobs", len(w.sim.Jobs()), 1)
				w.equal("duplicates", w.sim.DuplicateCount(), 0)
				w.equal("on the wire", w.sim.CreatesOnWire("k"), 2)
			})
		})
	}
}

func TestBodiesOfAnswers(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example)
		id := w.create("", "k").field("job_id")
		get := func(f simulator.Fault) answer {
			defer m.Add(simulator.On(simulator.Status, simulator.Always(), f))()
			return w.call("GET", "/v1/jobs/"+id, "")
		}
		a := get(simulator.ReplyHTML(504))
		w.equal("type", a.header.Get("Content-Type"), "text/html; charset=utf-8")
		w.equal("html", strings.HasPrefix(a.body, "<html>"), true)
		w.equal("empty", get(simulator.ReplyEmpty(200)).body, "")
		w.equal("truncated", get(simulator.Truncate{Bytes: 9}).body, `{"job_id"`)
		if half := get(simulator.Truncate{}); half.err != nil || half.field("job_id") != "(not JSON)" {
			t.Errorf("half a body is %q", half.body)
		}
		cut := get(simulator.CutBody{})
		if cut.err == nil || cut.status != 200 || cut.body == "" || isTimeout(cut.err) {
			t.Errorf("cut body: %d %q %v", cut.status, cut.body, cut.err)
		}
		huge := get(simulator.HugeMessage(3 << 20))
		w.equal("huge", len(huge.field("message")), 3<<20)
		w.field(huge, "state", "queued")
		slow := get(simulator.SlowBody{Every: 3 * time.Second})
		w.want(200, slow)
		w.equal("slow", slow.took, time.Duration(len(slow.body))*3*time.Second)
		w.equal("error object", get(simulator.ReplyError(200, "Q1", "no room")).body, `{"error":{"code":"Q1","message":"no room"}}`)
		a = get(simulator.Answer{Header: http.Header{"X-A": {"1", "2"}}, Body: "plain"})
		w.equal("headers", a.header["X-A"], []string{"1", "2"})
		w.equal("default status", a.status, 200)
		w.equal("no content", get(simulator.Answer{Status: 204}).status, 204)
	})
}

// TestSlowBodyTimesOut: the headers have come, the body is too slow.
func TestSlowBodyTimesOut(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example, simulator.On(simulator.Status, simulator.Always(), simulator.SlowBody{Every: 3 * time.Second}))
		id := w.create("", "k").field("job_id")
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		a := w.callContext(ctx, "GET", "/v1/jobs/"+id, "")
		w.equal("body", a.body, `{"j`)
		w.equal("took", a.took, 10*time.Second)
		if !isTimeout(a.err) {
			t.Errorf("error %v", a.err)
		}
		synctest.Wait()
		w.equal("handler ended", w.sim.Requests(simulator.Filter{Call: simulator.Status})[0].Done.IsZero(), false)
	})
}

func TestRetryAfter(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example)
		id := w.create("", "k").field("job_id")
		get := func(a simulator.Answer) answer {
			defer m.Add(simulator.On(simulator.Status, simulator.Always(), a))()
			return w.call("GET", "/v1/jobs/"+id, "")
		}
		for _, text := range []string{"0", "8", "9999999999", "99999999999999999999", "2147483648", "-1", "soon"} {
			a := w.want(429, get(simulator.ReplyRetry(429, simulator.RetryAfter{Text: text})))
			w.equal("Retry-After", a.header.Get("Retry-After"), text)
		}
		for _, layout := range []string{simulator.IMFFixdate, simulator.RFC850, simulator.Asctime} {
			for _, in := range []time.Duration{8 * time.Second, -time.Hour, 0} {
				a := w.want(503, get(simulator.ReplyRetry(503, simulator.RetryAfter{In: in, Layout: layout})))
				at, err := http.ParseTime(a.header.Get("Retry-After"))
				if err != nil || !at.Equal(w.start.Add(in)) {
					t.Errorf("Retry-After %q is %v %v, want %v", a.header.Get("Retry-After"), at, err, w.start.Add(in))
				}
			}
		}
		a := simulator.ReplyRetry(503, simulator.RetryAfter{In: 8 * time.Second, Layout: simulator.IMFFixdate})
		a.DateSkew = -90 * time.Second
		got := get(a)
		w.equal("Date", got.header.Get("Date"), w.start.Add(-90*time.Second).UTC().Format(http.TimeFormat))
		w.equal("Retry-After", got.header.Get("Retry-After"), w.start.Add(-82*time.Second).UTC().Format(http.TimeFormat))

		o := m.Options()
		o.Skew = time.Hour
		m.Configure(o)
		got = w.want(200, w.call("GET", "/v1/jobs/"+id, ""))
		w.equal("Date", got.header.Get("Date"), w.start.Add(time.Hour).UTC().Format(http.TimeFormat))
		w.field(got, "updated_at", w.start.Add(time.Hour).UTC().Format(time.RFC3339Nano))
	})
}

func TestRepeatedCreates(t *testing.T) {
	for _, test := range []struct {
		name             string
		fault            simulator.Fault
		status           [2]int
		code             [2]string
		sameID           string // what the second answer says of the first id
		jobs, duplicates int
	}{
		{"conflict with id", simulator.Conflict{WithID: true}, [2]int{202, 409}, [2]string{"(none)", "duplicate"}, "same", 1, 0},
		{"conflict without id", simulator.Conflict{}, [2]int{202, 409}, [2]string{"(none)", "duplicate"}, "none", 1, 0},
		{"second job", simulator.SecondJob{}, [2]int{202, 202}, [2]string{"(none)", "(none)"}, "other", 2, 1},
		{"in progress", simulator.InProgress{}, [2]int{409, 409}, [2]string{"in_progress", "in_progress"}, "", 1, 0},
		{"in progress 202", simulator.InProgress{Status: 202, RetryAfter: simulator.RetryAfter{Text: "5"}}, [2]int{202, 202}, [2]string{"in_progress", "in_progress"}, "", 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, simulator.Config{}, func(w *world) {
				w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Always(), test.fault))
				a := w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k")
				b := w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k")
				w.equal("status", [2]int{a.status, b.status}, test.status)
				w.equal("code", [2]string{a.field("code"), b.field("code")}, test.code)
				switch id := b.field("job_id"); test.sameID {
				case "same":
					w.equal("id", id, a.field("job_id"))
				case "none":
					w.equal("id", id, "(none)")
				case "other":
					w.equal("another id", id != a.field("job_id") && id != "(none)", true)
				}
				w.equal("jobs", len(w.sim.Jobs()), test.jobs)
				w.equal("duplicates", w.sim.DuplicateCount(), test.duplicates)
			})
		})
	}
	// After a second job the token still leads to the first.
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Nth(2), simulator.SecondJob{}))
		first := w.create("", "k").field("job_id")
		w.create("", "k")
		w.field(w.want(200, w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k")), "job_id", first)
	})
	// A provider may refuse a second client_reference though it knows no keys.
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.ExampleLookup, simulator.On(simulator.Create, simulator.Always(), simulator.Conflict{WithID: true}))
		a := w.want(202, w.call("POST", "/v1/jobs", `{"client_reference":"r"}`))
		b := w.want(409, w.call("POST", "/v1/jobs", `{"client_reference":"r"}`))
		w.field(b, "job_id", a.field("job_id"))
	})
	// A keyed provider that can be asked by token: FC-02, variant b.
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Nth(1), simulator.ReplyStored(500)),
			simulator.On(simulator.Create, simulator.Nth(2), simulator.Conflict{}),
		).Configure(simulator.Options{WithList: true})
		w.want(500, w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k"))
		w.want(409, w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "k"))
		w.create("", "other")
		l := w.want(200, w.call("GET", "/v1/jobs?idempotency_key=k", ""))
		w.equal("found", strings.Count(l.body, `"job_id"`), 1)
		w.equal("found it", strings.Contains(l.body, w.sim.Jobs()[0].ID), true)
	})
}

func TestStateWords(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example).Configure(simulator.Options{Plan: simulator.Steps(0, "succeeded")})
		id := w.create("", "k").field("job_id")
		for want, f := range map[string]simulator.StateWord{
			"on_hold":     {To: "on_hold"},
			"SUCCEEDED":   {Upper: true},
			" SUCCEEDED ": {From: "succeeded", Upper: true, Pad: " "},
			"succeeded":   {From: "running", To: "on_hold"},
		} {
			remove := m.Add(simulator.On(simulator.Status, simulator.Always(), f))
			w.field(w.want(200, w.call("GET", "/v1/jobs/"+id, "")), "state", want)
			remove()
		}
		w.equal("the job itself", w.sim.Jobs()[0].State, "succeeded")
	})
}

func TestMovesOfJobs(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("", simulator.Example,
			simulator.On(simulator.Create, simulator.Nth(2), simulator.UsePlan{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running", After: time.Hour}}}}),
			simulator.On(simulator.Status, simulator.Nth(2), simulator.Finish{State: "failed"}),
			simulator.On(simulator.Status, simulator.Nth(4), simulator.Vanish{}),
		).Configure(simulator.Options{PlanFor: func(n int, body []byte) simulator.Plan {
			return simulator.Steps(time.Minute, "running", fmt.Sprint("step-", n))
		}})
		a := "/v1/jobs/" + w.create("", "a").field("job_id")
		b := "/v1/jobs/" + w.create("", "b").field("job_id")
		w.field(w.call("GET", a, ""), "state", "running")
		w.field(w.call("GET", a, ""), "state", "failed")
		w.field(w.call("GET", b, ""), "state", "queued") // its first step comes later
		w.equal("vanished", w.call("GET", a, "").status, 404)
		w.equal("still", w.call("GET", a, "").status, 404)
		time.Sleep(time.Hour)
		w.field(w.call("GET", b, ""), "state", "running")
		id := w.sim.Jobs()[1].ID
		w.equal("move", []bool{m.Move(id, "succeeded"), m.Move("none", "failed"), m.Forget("none")}, []bool{true, false, false})
		w.field(w.call("GET", b, ""), "state", "succeeded")
		w.equal("on the mount", len(m.Jobs()), 2)
	})
}

func TestResultFaults(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/p", simulator.Example,
			simulator.On(simulator.Result, simulator.FirstOfJob(2), simulator.Reply(404)),
			simulator.On(simulator.Result, simulator.NthOfJob(3), simulator.ReplyEmpty(200)),
			simulator.On(simulator.Result, simulator.NthOfJob(4), simulator.Redirect{To: "{link}"}),
			simulator.On(simulator.Result, simulator.NthOfJob(6), simulator.Redirect{To: "http://else/{id}", Status: 307}),
		).Configure(simulator.Options{Plan: simulator.Steps(0, "succeeded"), LinkBase: "http://files", LinkTTL: 5 * time.Second})
		id := w.create("/p", "k").field("job_id")
		at := "/p/v1/jobs/" + id + "/result"
		for _, want := range []int{404, 404} {
			w.want(want, w.call("GET", at, ""))
		}
		w.equal("zero bytes", w.want(200, w.call("GET", at, "")).body, "")
		a := w.want(302, w.call("GET", at, ""))
		link := a.header.Get("Location")
		w.equal("another host", strings.HasPrefix(link, "http://files/p/v1/files/"), true)
		w.want(200, w.call("GET", link, "")) // the fifth
		w.equal("temporary", w.want(307, w.call("GET", at, "")).header.Get("Location"), "http://else/"+id)

		s := w.want(200, w.call("GET", "/p/v1/jobs/"+id, ""))
		w.equal("credentials", w.call("GET", s.field("result_url"), "", "Cookie", "a=b").status, 400)
		time.Sleep(5 * time.Second)
		w.equal("expired", w.call("GET", s.field("result_url"), "").status, 403)
		fresh := w.call("GET", "/p/v1/jobs/"+id, "").field("result_url")
		w.want(200, w.call("GET", fresh, ""))
		w.equal("host in the log", w.sim.Count(simulator.Filter{Host: "files", Call: simulator.Result}), 4)

		o := m.Options()
		o.ExpiredStatus, o.ResultOnce = 404, true
		o.Result = func(j simulator.Job) (string, []byte) { return "text/csv", []byte("a," + j.State) }
		m.Configure(o)
		time.Sleep(5 * time.Second)
		w.equal("expired as 404", w.call("GET", fresh, "").status, 404)
		id = w.create("/p", "k2").field("job_id")
		m.Clear()
		r := w.want(200, w.call("GET", "/p/v1/jobs/"+id+"/result", ""))
		w.equal("own result", r.header.Get("Content-Type")+" "+r.body, "text/csv a,succeeded")
		w.want(410, w.call("GET", "/p/v1/jobs/"+id+"/result", ""))
	})
}

func TestLinks(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/p", simulator.Example).Configure(simulator.Options{Echo: true, PublicURL: "https://api.test:443"})
		for i, location := range []string{"{id}", "../jobs/{id}", "/p/v1/jobs/{id}?x=1%2F2", "//provider/p/v1/jobs/{id}", "http://provider:80/p/v1/jobs/{id}"} {
			remove := m.Add(simulator.On(simulator.Create, simulator.Always(), simulator.Links{Location: location, StatusURL: "{base}/s/{id}"}))
			a := w.want(202, w.call("POST", "/p/v1/jobs", "{\"a\": 1.0}", "Idempotency-Key", fmt.Sprint(i)))
			remove()
			w.equal("Location", a.header.Get("Location"), strings.ReplaceAll(location, "{id}", a.field("job_id")))
			w.field(a, "status_url", "https://api.test:443/p/s/"+a.field("job_id"))
			w.equal("echo", strings.Contains(a.body, `"request":{"a": 1.0}`), true)
			base, err := http.NewRequestWithContext(w.Context(), "GET", "http://provider/p/v1/jobs", nil)
			if err != nil {
				t.Fatal(err)
			}
			u, err := base.URL.Parse(a.header.Get("Location"))
			if err != nil {
				t.Fatal(err)
			}
			w.field(w.want(200, w.call("GET", u.String(), "")), "job_id", a.field("job_id"))
		}
		w.equal("query untouched", w.sim.Requests(simulator.Filter{Call: simulator.Status})[2].Query, "x=1%2F2")
	})
}

// TestHold: requests wait at a gate until the test opens it, before or after
// they take effect; a held one takes effect though its client has left.
func TestHold(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		before, after := simulator.NewGate(), simulator.NewGate()
		w.sim.Mount("", simulator.Example,
			simulator.On(simulator.Create, simulator.Match{Token: "before"}, simulator.HoldBefore{Gate: before}),
			simulator.On(simulator.Create, simulator.Match{Token: "after"}, simulator.HoldAfter{Gate: after}))
		got := make(chan answer, 3)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		for _, token := range []string{"before", "after"} {
			go func() { got <- w.callContext(ctx, "POST", "/v1/jobs", "{}", "Idempotency-Key", token) }()
		}
		if !before.WaitArrived(1, ctx.Done()) || !after.WaitArrived(1, ctx.Done()) {
			t.Fatal("the requests did not arrive")
		}
		synctest.Wait()
		w.equal("stored", w.sim.Count(simulator.Filter{Stored: true, Token: "after"}), 1)
		w.equal("not stored", len(w.sim.Jobs()), 1)
		time.Sleep(2 * time.Minute) // both clients give up
		w.wantCut(<-got)
		w.wantCut(<-got)
		before.Release()
		before.Release()
		synctest.Wait()
		w.equal("stored late", len(w.sim.Jobs()), 2)
		after.Release()
		go func() { got <- w.call("POST", "/v1/jobs", "{}", "Idempotency-Key", "after") }()
		w.want(200, <-got)
		w.equal("arrived", after.Arrived(), 2)
		w.equal("not again", simulator.NewGate().WaitArrived(1, ctx.Done()), false)
	})
}

// TestDelayedRequestOutlivesClient: the request that arrives late makes its job
// after the client has given up.
func TestDelayedRequestOutlivesClient(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.ExampleAsk, simulator.On(simulator.Create, simulator.Always(), simulator.DelayBefore(5*time.Minute)))
		ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
		defer cancel()
		w.wantCut(w.callContext(ctx, "POST", "/v1/jobs", "{}"))
		w.equal("at the timeout", len(w.sim.Jobs()), 0)
		time.Sleep(5*time.Minute - 30*time.Second)
		synctest.Wait()
		w.equal("later", w.sim.Jobs()[0].CreatedAt, w.start.Add(5*time.Minute))
	})
}
