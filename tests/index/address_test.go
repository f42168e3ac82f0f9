package index_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/signature"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

const (
	standardSecret = "whsec_"
	batch          = `{"requests":[{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"model":"m-1","input":"x"}}],` +
		`"endpoint":"/v1/responses","completion_window":"24h"}`
)

// addressed is a house whose providers call nobody back, so that the only
// deliveries are those of the test, and two operations, of two principals, whose
// creates made jobs and lost their answers.
type addressed struct {
	t            *testing.T
	h            *harness.House
	m            *simulator.Mount
	provider     string
	mine, theirs string
	n            int
	log          lines
}

// lines is a log that is read while others write.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func lostAnswers(t *testing.T, dialect simulator.Dialect, params string) *addressed {
	secret := harness.HookSecret
	standard := dialect == simulator.Replicate || dialect == simulator.OpenAIBatches
	if standard {
		secret = standardSecret + base64.StdEncoding.EncodeToString([]byte(secret))
	}
	a := &addressed{t: t, provider: string(dialect)}
	h := harness.New(t, harness.Options{
		Builtin: []string{a.provider}, Webhooks: true, Secrets: map[string]string{"HARNESS_HOOK": secret},
		Log: slog.New(slog.NewTextHandler(&a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	a.h = h
	a.m = h.Mount(dialect, a.provider, simulator.Options{Plan: simulator.Steps(time.Second, simulator.Queued, simulator.Running, simulator.Succeeded), StandardWebhooks: standard},
		simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}),
		simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookDrop{}),
		simulator.On(simulator.List, simulator.Always(), simulator.Reply(500)))
	bob, _ := h.AddKey("bob")
	for _, c := range []struct {
		client *client.Client
		id     *string
	}{{h.Client, &a.mine}, {bob, &a.theirs}} {
		op, _, err := c.client.Submit(t.Context(), "k", client.Submission{Provider: a.provider, Params: json.RawMessage(params)})
		if err != nil {
			t.Fatal(err)
		}
		*c.id = op.ID
		time.Sleep(time.Minute)
	}
	if n := len(h.Sim.Jobs()); n != 2 {
		t.Fatalf("%d jobs were made, want 2", n)
	}
	return a
}

// post delivers an event about the job, signed by the provider, to the address,
// and gives what it is answered.
func (a *addressed) post(event, job, address string) string {
	a.t.Helper()
	body := fmt.Sprintf(`{"event_id":%q,"id":%q,"job_id":%q,"type":"done","data":{"id":%q}}`, event, job, job, job)
	scheme := signature.Scheme{Name: signature.StandardWebhooks}
	secret := standardSecret + base64.StdEncoding.EncodeToString([]byte(harness.HookSecret))
	if a.provider == string(simulator.ExampleAsk) {
		scheme, secret = signature.Scheme{Name: signature.HMACSHA256Hex, Header: "X-Signature", Prefix: "sha256="}, harness.HookSecret
	}
	signed, err := signature.Sign(scheme, secret, []byte(body), event, time.Now())
	if err != nil {
		a.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for name, value := range signed {
		r.Header.Set(name, value)
	}
	resp, err := a.h.HTTP.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Status string }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || resp.StatusCode != http.StatusOK {
		a.t.Errorf("%s at %s is answered %d, %v", event, address, resp.StatusCode, err)
	}
	return got.Status
}

// deliver posts a new event and lets everybody do what comes of it.
func (a *addressed) deliver(job, address string) {
	a.t.Helper()
	a.n++
	if status := a.post(fmt.Sprint("e", a.n), job, address); status != "stored" {
		a.t.Errorf("%s: %q", address, status)
	}
	time.Sleep(time.Minute)
}

func (a *addressed) bare(operation string) string {
	return "http://counterfoil.test/hooks/" + a.provider + "/" + operation
}

// given is the address that the provider was given with the operation's create.
func (a *addressed) given(operation string) (job, address string) {
	a.t.Helper()
	for _, j := range a.h.Sim.Jobs() {
		if strings.HasPrefix(j.Callback, a.bare(operation)+"?key=") {
			return j.ID, j.Callback
		}
	}
	a.t.Fatalf("no job was made with the address of %s", operation)
	return "", ""
}

// untouched says that my operation knows nothing of the job, and nobody has it.
func (a *addressed) untouched(job string) {
	a.t.Helper()
	op, err := a.h.Client.Get(a.t.Context(), a.mine)
	if err != nil {
		a.t.Fatal(err)
	}
	if op.Job != nil {
		a.t.Errorf("mine is bound to %s, which is not mine", op.Job.ID)
	}
	owner, owned, err := a.h.Journal.Owner(a.t.Context(), a.provider, "default", job)
	if err != nil || owned {
		a.t.Errorf("%s belongs to %s, %v", job, owner, err)
	}
	for _, call := range []simulator.Call{simulator.Status, simulator.Result, simulator.Cancel} {
		if n := a.h.Sim.Count(simulator.Filter{Mount: a.m.Base(), Call: call, Job: job}); n > 0 {
			a.t.Errorf("%s was asked for %d times by %s", job, n, call)
		}
	}
	for _, e := range a.h.Timeline(a.mine) {
		if strings.HasPrefix(e.Type, "webhook.received") {
			a.t.Errorf("mine has noted %v", e.Fields)
		}
	}
	if a.t.Failed() {
		a.t.Log(a.h.Story(a.mine))
	}
}

// TestAddressIsNotSigned posts deliveries that the provider signed for one job
// to the address of an operation that has none. The signature does not cover the
// address, so without the key that only the provider was given it counts as
// none: the operation does not take the job, whether it is nobody's here or
// another principal's whose answer is still lost. A provider that is given no
// address has no key to send, and so has one whose contract does not say that
// our reference is in the address.
func TestAddressIsNotSigned(t *testing.T) {
	const digits = "0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		dialect simulator.Dialect
		params  string
	}{{simulator.OpenAIBatches, batch}, {simulator.Replicate, body}, {simulator.ExampleAsk, `{"n":1}`}} {
		for _, whose := range []string{"nobody's job", "another principal's job"} {
			t.Run(fmt.Sprintf("%s/%s", c.dialect, whose), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := lostAnswers(t, c.dialect, c.params)
					job := a.h.Sim.Jobs()[1].ID
					if whose == "nobody's job" {
						job = a.m.Plant(0, simulator.Succeeded, []byte(c.params)).ID
					}
					a.deliver(job, a.bare(a.mine))
					addresses := []string{a.bare(a.mine) + "?key=", a.bare(a.mine) + "?key=" + digits, a.bare(a.mine) + "?key=%zz"}
					switch c.dialect {
					case simulator.Replicate:
						_, mine := a.given(a.mine)
						_, key, _ := strings.Cut(mine, "?key=")
						_, theirs := a.given(a.theirs)
						_, other, _ := strings.Cut(theirs, "?key=")
						for _, wrong := range []string{other, key[:len(key)-1], key + "0", strings.ToUpper(key)} {
							addresses = append(addresses, a.bare(a.mine)+"?key="+wrong)
						}
					case simulator.ExampleAsk:
						_, mine := a.given(a.mine)
						addresses = append(addresses, mine)
					}
					for _, address := range addresses {
						a.deliver(job, address)
					}
					a.untouched(job)
					// The address is no part of the event, unless it counts.
					for _, address := range addresses {
						if status := a.post("e1", job, address); status != "stored before" {
							t.Errorf("the first event at %s: %q", address, status)
						}
					}
				})
			})
		}
	}
}

// TestAddressAsGiven: a delivery at the address that the provider was given is
// about its operation, though nothing else names it; and the key that makes it so
// shows nowhere.
func TestAddressAsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := lostAnswers(t, simulator.Replicate, body)
		job, address := a.given(a.mine)
		// Somebody else posts it first; the true one is not kept out.
		a.post("e1", job, a.bare(a.mine))
		time.Sleep(time.Minute)
		a.untouched(job)
		if status := a.post("e1", job, address); status != "stored" {
			t.Errorf("at the address as given: %q", status)
		}
		op := a.h.Wait(a.mine, 10*time.Minute)
		if op.State != "succeeded" || op.Job == nil || op.Job.ID != job {
			t.Errorf("%s with job %+v\n%s", op.State, op.Job, a.h.Story(a.mine))
		}
		_, key, _ := strings.Cut(address, "?key=")
		if len(key) != 32 {
			t.Errorf("a key of %d digits", len(key))
		}
		timeline, err := json.Marshal(a.h.Timeline(a.mine))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.log.String(), "/hooks/{provider}/{id}") {
			t.Error("the log does not have the delivery, so it shows nothing")
		}
		for where, text := range map[string]string{"operation": string(op.Raw), "timeline": string(timeline), "log": a.log.String()} {
			if strings.Contains(text, key) {
				t.Errorf("the %s shows the key of the address", where)
			}
		}
	})
}
