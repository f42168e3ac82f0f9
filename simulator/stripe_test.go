package simulator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

const runs = "/s/v1/reporting/report_runs"

// report posts a create with a token.
func (w *world) report(token, body string) answer {
	w.Helper()
	return w.call("POST", runs, body, "Idempotency-Key", token)
}

// TestReportReplay: the first answer is kept for 24 hours and repeated as it
// was, whatever became of the run; refusals are not kept.
func TestReportReplay(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/s", simulator.StripeReporting)
		w.want(400, w.report("t", "report_type=nope"))
		m.Add(simulator.On(simulator.Create, simulator.Nth(1), simulator.Throttled(simulator.RetryAfter{})))
		a := w.want(429, w.report("t", run))
		w.equal("Retry-After", a.header.Get("Retry-After"), "")
		a = w.want(200, w.report("t", run))
		w.equal("replayed", a.header.Get("Idempotent-Replayed"), "")
		time.Sleep(24*time.Hour - time.Second)
		w.field(w.call("GET", runs+"/"+a.field("id"), ""), "status", "succeeded")
		b := w.want(200, w.report("t", run))
		w.equal("replayed", b.header.Get("Idempotent-Replayed"), "true")
		w.equal("original", b.header.Get("Original-Request"), a.header.Get("Request-Id"))
		w.equal("body", b.body, a.body)
		// The order of parameters is none.
		pairs := strings.Split(run, "&")
		w.equal("reordered", w.want(200, w.report("t", pairs[2]+"&"+pairs[0]+"&"+pairs[1])).body, a.body)
		w.field(w.want(400, w.report("t", run+"&parameters[currency]=eur")), "error.type", "idempotency_error")
		w.want(400, w.report(strings.Repeat("k", 256), run))
		w.equal("jobs", len(w.sim.Jobs()), 1)
		log := w.sim.Requests(simulator.Filter{Call: simulator.Create, Token: "t"})
		w.equal("last", []any{log[len(log)-2].Replayed, log[len(log)-2].Job}, []any{true, a.field("id")})

		time.Sleep(time.Second)
		b = w.want(200, w.report("t", run)) // forgotten
		w.equal("replayed", b.header.Get("Idempotent-Replayed"), "")
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
		m.Configure(simulator.Options{TokenWindow: time.Minute})
		time.Sleep(time.Minute)
		w.want(200, w.report("t", run))
		w.equal("duplicates", w.sim.DuplicateCount(), 2)
		m.Add(simulator.On(simulator.Create, simulator.Nth(1), simulator.SecondJob{}))
		w.want(200, w.report("t", run))
		w.equal("duplicates", w.sim.DuplicateCount(), 3)
		for range 2 {
			w.want(200, w.call("POST", runs, run)) // no token, nothing kept
		}
		w.equal("jobs", len(w.sim.Jobs()), 6)
	})
}

// TestReportStoredTrouble: an error is kept too, with a run behind it or not.
func TestReportStoredTrouble(t *testing.T) {
	for _, stored := range []bool{true, false} {
		bubble(t, simulator.Config{}, func(w *world) {
			w.sim.Mount("/s", simulator.StripeReporting, simulator.On(simulator.Create, simulator.Nth(1),
				simulator.Answer{Status: 500, Own: true, Stored: stored, Kept: true}))
			a := w.want(500, w.report("t", run))
			w.field(a, "error.type", "api_error")
			for range 2 {
				b := w.want(500, w.report("t", run))
				w.equal("body", b.body, a.body)
				w.equal("replayed", b.header.Get("Idempotent-Replayed"), "true")
				w.equal("retry", b.header.Get("Stripe-Should-Retry"), "false")
			}
			w.want(200, w.report("other", run))
			w.equal("jobs", len(w.sim.Jobs()), map[bool]int{true: 2, false: 1}[stored])
		})
	}
	// An error that is not kept leaves nothing under the token.
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/s", simulator.StripeReporting, simulator.On(simulator.Create, simulator.Nth(1), simulator.ReplyOwn(500)))
		w.want(500, w.report("t", run))
		w.want(200, w.report("t", run))
	})
}

// TestReportInUse: a second create under a token is refused until the first has
// its answer, also when the first one's client has left.
func TestReportInUse(t *testing.T) {
	for name, hold := range map[string]func(*simulator.Gate) simulator.Fault{
		"before the effect": func(g *simulator.Gate) simulator.Fault { return simulator.HoldBefore{Gate: g} },
		"after the effect":  func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, simulator.Config{}, func(w *world) {
				gate := simulator.NewGate()
				w.sim.Mount("/s", simulator.StripeReporting, simulator.On(simulator.Create, simulator.Nth(1), hold(gate)))
				first := make(chan answer)
				go func() { first <- w.report("t", run) }()
				gate.WaitArrived(1, nil)
				synctest.Wait()
				w.field(w.want(409, w.report("t", run)), "error.code", "idempotency_key_in_use")
				w.want(409, w.report("t", run+"&x=1")) // whatever it asks for
				w.want(200, w.report("u", run))
				gate.Release()
				a := w.want(200, <-first)
				w.equal("body", w.want(200, w.report("t", run)).body, a.body)
				w.equal("jobs", len(w.sim.Jobs()), 2)
			})
		})
	}
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/s", simulator.StripeReporting, simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayBefore(10*time.Second)))
		ctx, leave := context.WithTimeout(w.Context(), time.Second)
		defer leave()
		w.wantCut(w.callContext(ctx, "POST", runs, run, "Idempotency-Key", "t"))
		w.want(409, w.report("t", run))
		time.Sleep(10 * time.Second)
		w.equal("replayed", w.want(200, w.report("t", run)).header.Get("Idempotent-Replayed"), "true")
		w.equal("jobs", len(w.sim.Jobs()), 1)
	})
}

// TestReportParams: what a form can say comes back as what it means.
func TestReportParams(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/s", simulator.StripeReporting)
		for body, want := range map[string]string{
			"": `{}`,
			"&parameters[interval_end]=7&parameters[currency]=7":                           `{"currency":"7","interval_end":7}`,
			"&parameters[columns][]=b&parameters[columns][]=a":                             `{"columns":["b","a"]}`,
			"&parameters[columns][1]=a&parameters[columns][10]=c&parameters[columns][0]=b": `{"columns":["b","a","c"]}`,
			"&parameters[x][y]=1&parameters[=1":                                            `{"":"1"}`,
		} {
			w.field(w.want(200, w.call("POST", runs, "report_type=balance.summary.1"+body)), "parameters", want)
		}
	})
}

func TestReportList(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/s", simulator.StripeReporting).Configure(simulator.Options{PageSize: 2, ListDelay: time.Second})
		old := m.Plant(time.Hour, "succeeded", []byte(run)).ID
		ids := []string{old}
		for i := range 4 {
			ids = append([]string{w.want(200, w.report(fmt.Sprint(i), run)).field("id")}, ids...)
			time.Sleep(10 * time.Second)
		}
		list := func(query string) (got []string, more string) {
			a := w.want(200, w.call("GET", runs+"?"+query, ""))
			for _, one := range strings.Split(a.field("data"), `"id":"frr`)[1:] {
				id, _, _ := strings.Cut(one, `"`)
				got = append(got, "frr"+id)
			}
			return got, a.field("has_more")
		}
		start := w.start.Unix()
		var walked []string
		after := ""
		for {
			page, more := list("limit=100&created[gte]=" + fmt.Sprint(start) + after)
			walked = append(walked, page...)
			if more == "false" {
				break
			}
			after = "&starting_after=" + page[len(page)-1]
		}
		w.equal("since the start", walked, ids[:4])
		page, _ := list("limit=1&starting_after=" + ids[3])
		w.equal("the older one", page, []string{old})
		page, _ = list(fmt.Sprintf("created[gt]=%d&created[lte]=%d", start, start+10))
		w.equal("one", page, ids[2:3])
		page, _ = list(fmt.Sprintf("created[lt]=%d", start))
		w.equal("before", page, ids[4:])
		fresh := w.want(200, w.report("fresh", run)).field("id")
		page, _ = list("limit=1")
		w.equal("late", page, ids[:1])
		time.Sleep(time.Second)
		page, _ = list("limit=1")
		w.equal("then there", page, []string{fresh})
		for _, query := range []string{"limit=0", "created[gte]=x", "starting_after=frr_none"} {
			w.want(400, w.call("GET", runs+"?"+query, ""))
		}
	})
}

// TestReportFile: the result is on another listener, which asks for the
// credential, or refuses it.
func TestReportFile(t *testing.T) {
	sim := simulator.New(simulator.Config{Seed: 7})
	defer sim.Close()
	w := &world{T: t, sim: sim, client: simulator.WebhookClient(), start: time.Now()}
	api, err := sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	files, err := sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := simulator.Options{Plan: at("succeeded"), LinkBase: files, Auth: simulator.Auth{Bearer: "k"}}
	m := sim.Mount("/s", simulator.StripeReporting).Configure(o)
	key := []string{"Authorization", "Bearer k"}
	id := w.want(200, w.call("POST", api+runs, run, key...)).field("id")
	a := w.want(200, w.call("GET", api+runs+"/"+id, "", key...))
	link := a.field("result.url")
	if !strings.HasPrefix(link, files+"/s/v1/files/") {
		t.Fatalf("the result is at %s, want %s", link, files)
	}
	w.want(401, w.call("GET", link, ""))
	r := w.want(200, w.call("GET", link, "", key...))
	w.field(a, "result.size", fmt.Sprint(len(r.body)))
	w.want(404, w.call("GET", strings.Replace(link, files, api, 1), "", key...))
	w.want(404, w.call("GET", files+runs+"/"+id, "", key...))

	o.FilesOpen = true
	m.Configure(o)
	w.want(200, w.call("GET", link, ""))
	w.want(400, w.call("GET", link, "", key...))
	w.want(401, w.call("GET", api+runs, ""))
	m.Add(simulator.On(simulator.Result, simulator.Nth(1), simulator.Redirect{To: "http://192.0.2.1/x", Links: true}))
	w.equal("sent away", w.want(302, w.call("GET", link, "")).header.Get("Location"), "http://192.0.2.1/x")
	m.Move(id, simulator.Failed)
	w.want(404, w.call("GET", link, ""))
	w.equal("file host's log", sim.Count(simulator.Filter{Host: strings.TrimPrefix(files, "http://"), Call: simulator.Result}), 6)
}
