package simulator_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// hooks is a receiver of webhooks on a memory listener of its own.
type hooks struct {
	mu     sync.Mutex
	got    []string // "state event-id seconds-since-start"
	bodies []string
	header http.Header
	status int
}

// hooked runs f in a bubble with a simulator that posts to a receiver.
func hooked(t *testing.T, f func(w *world, h *hooks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h := &hooks{status: 204}
		l := simulator.NewMemoryListener()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			mac := hmac.New(sha256.New, []byte("secret"))
			mac.Write(b)
			if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); r.Header.Get("X-Signature") != want {
				t.Errorf("signature %q, want %q", r.Header.Get("X-Signature"), want)
			}
			a := answer{body: string(b)}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.got = append(h.got, fmt.Sprintf("%s %.0fs", a.field("state"), time.Since(start).Seconds()))
			h.bodies = append(h.bodies, a.body)
			h.header = r.Header
			w.WriteHeader(h.status)
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(l) })
		defer serving.Wait()
		defer func() { _ = srv.Close() }()

		w := &world{T: t, start: start, sim: simulator.New(simulator.Config{
			Seed: 7, Webhooks: l.Client(), WebhookSecret: []byte("secret"),
		})}
		defer w.sim.Close()
		w.mem = w.sim.ListenMemory()
		w.client = w.mem.Client()
		f(w, h)
	})
}

func (h *hooks) list() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.got, ", ")
}

const hookBody = `{"webhook_url":"http://ingest/hooks/p/op1","client_reference":"r1"}`

func TestWebhooks(t *testing.T) {
	plan := simulator.Steps(10*time.Minute, "queued", "running", "succeeded")
	for _, test := range []struct {
		name  string
		rules []simulator.Rule
		want  string
	}{
		{"plain", nil, "running 600s, succeeded 1200s"},
		{
			"any is no webhook",
			[]simulator.Rule{simulator.On(simulator.Any, simulator.Always(), simulator.WebhookDrop{})},
			"running 600s, succeeded 1200s",
		},
		{
			"repeat",
			[]simulator.Rule{simulator.On(simulator.Webhook, simulator.NthOfJob(1), simulator.WebhookRepeat(3))},
			"running 600s, running 600s, running 600s, succeeded 1200s",
		},
		{"drop", []simulator.Rule{simulator.On(simulator.Webhook, simulator.NthOfJob(2), simulator.WebhookDrop{})}, "running 600s"},
		{
			"reorder",
			[]simulator.Rule{simulator.On(simulator.Webhook, simulator.NthOfJob(1), simulator.WebhookReorder{})},
			"succeeded 1200s, running 1200s",
		},
		{
			"reorder the last",
			[]simulator.Rule{simulator.On(simulator.Webhook, simulator.NthOfJob(2), simulator.WebhookReorder{})},
			"running 600s, succeeded 1200s",
		},
		{
			"delay",
			[]simulator.Rule{simulator.On(simulator.Webhook, simulator.NthOfJob(1), simulator.WebhookDelay(20*time.Minute))},
			"succeeded 1200s, running 1800s",
		},
		{
			"early",
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.EarlyWebhook{}, simulator.DelayAfter(time.Minute))},
			"queued 0s, running 600s, succeeded 1200s",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			hooked(t, func(w *world, h *hooks) {
				w.sim.Mount("/p", simulator.Example, test.rules...).Configure(simulator.Options{Plan: plan})
				a := w.want(202, w.call("POST", "/p/v1/jobs", hookBody, "Idempotency-Key", "k"))
				if test.name == "early" {
					w.equal("before the answer", h.list(), "queued 0s")
					w.equal("took", a.took, time.Minute)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				w.equal("received", h.list(), test.want)
				first := answer{body: h.bodies[0]}
				w.field(first, "job_id", a.field("job_id"))
				w.field(first, "client_reference", "r1")
				w.field(first, "type", "job."+first.field("state"))
				if test.name == "repeat" {
					w.equal("same bytes", h.bodies[0] == h.bodies[1] && h.bodies[1] == h.bodies[2], true)
					w.equal("another event", first.field("event_id") != answer{body: h.bodies[3]}.field("event_id"), true)
				}
			})
		})
	}
}

func TestWebhookOfCancelAndNotify(t *testing.T) {
	hooked(t, func(w *world, h *hooks) {
		h.status = 500
		plan := simulator.Steps(time.Hour, "queued", "succeeded")
		plan.CancelAfter = time.Minute
		m := w.sim.Mount("", simulator.Example).Configure(simulator.Options{Plan: plan})
		id := w.want(202, w.call("POST", "/v1/jobs", hookBody, "Idempotency-Key", "k")).field("job_id")
		w.want(202, w.call("POST", "/v1/jobs/"+id+"/cancel", ""))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.equal("received", h.list(), "cancelling 0s, cancelled 60s")
		w.equal("notify", []bool{m.Notify(id), m.Notify("none")}, []bool{true, false})
		synctest.Wait()
		w.equal("received", h.list(), "cancelling 0s, cancelled 60s, cancelled 120s")
		for _, d := range w.sim.Deliveries() {
			if d.Status != 500 || d.Err != nil || d.URL != "http://ingest/hooks/p/op1" || d.Job != id {
				t.Errorf("delivery %+v", d)
			}
		}
		w.equal("deliveries", len(w.sim.Deliveries()), 3)
	})
}

func TestWebhookPerRead(t *testing.T) {
	hooked(t, func(w *world, h *hooks) {
		w.sim.Mount("", simulator.Example).Configure(simulator.Options{Plan: simulator.StepsPerRead("queued", "running", "succeeded")})
		id := w.want(202, w.call("POST", "/v1/jobs", hookBody, "Idempotency-Key", "k")).field("job_id")
		for range 3 {
			time.Sleep(time.Minute)
			w.want(200, w.call("GET", "/v1/jobs/"+id, ""))
		}
		synctest.Wait()
		w.equal("received", h.list(), "running 60s, succeeded 120s")
	})
}

func TestReplicateWebhook(t *testing.T) {
	hooked(t, func(w *world, h *hooks) {
		m := w.sim.Mount("/r", simulator.Replicate)
		w.want(201, w.call("POST", "/r/v1/predictions", `{"version":"v","webhook":"http://ingest/h","webhook_events_filter":["completed"]}`))
		time.Sleep(time.Minute)
		synctest.Wait()
		w.equal("received", h.list(), "succeeded 3s")

		m.Configure(simulator.Options{StandardWebhooks: true})
		w.want(201, w.call("POST", "/r/v1/predictions", `{"version":"v","webhook":"http://ingest/h","webhook_events_filter":["start"]}`))
		time.Sleep(time.Minute)
		synctest.Wait()
		last := answer{body: h.bodies[len(h.bodies)-1]}
		w.equal("received", len(h.bodies), 2)
		w.field(last, "status", "processing")
		w.field(last, "urls.get", "http://provider/r/v1/predictions/"+last.field("id"))
		mac := hmac.New(sha256.New, []byte("secret"))
		fmt.Fprintf(mac, "%s.%s.%s", h.header.Get("Webhook-Id"), h.header.Get("Webhook-Timestamp"), last.body)
		w.equal("signature", h.header.Get("Webhook-Signature"), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	})
}

// TestWebhookEndsWithClose: neither a pending event nor a delivery under way
// keeps Close waiting.
func TestWebhookEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Nobody accepts on this listener, so a delivery hangs in its dial.
		nobody := simulator.NewMemoryListener()
		// net/http lets a dial go on after its request has ended.
		defer func() { _ = nobody.Close() }()
		w := &world{T: t, sim: simulator.New(simulator.Config{Webhooks: nobody.Client()})}
		w.client = w.sim.ListenMemory().Client()
		w.sim.Mount("", simulator.Example,
			simulator.On(simulator.Webhook, simulator.Match{Token: "late"}, simulator.WebhookDelay(time.Hour)),
		).Configure(simulator.Options{Plan: simulator.Steps(time.Second, "queued", "running", "succeeded")})
		for _, token := range []string{"hangs", "late"} {
			w.want(202, w.call("POST", "/v1/jobs", `{"webhook_url":"http://nobody/"}`, "Idempotency-Key", token))
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		began := time.Now()
		w.sim.Close()
		w.equal("close took", time.Since(began), time.Duration(0))
		d := w.sim.Deliveries()
		if len(d) != 1 || d[0].Err == nil {
			t.Errorf("deliveries %+v", d)
		}
	})
}
