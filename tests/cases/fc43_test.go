package cases_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// Secrets that must be seen nowhere. They have nothing that a spelling would
// change, so that one look finds them in JSON, in links and in text.
const (
	markHeader   = "SECR3Theader7f3a91c0d2e84b6a"
	markQuery    = "SECR3Tquery5b0e77a1c93f4d28"
	markUser     = "SECR3Tuser4c1d"
	markPassword = "SECR3Tpassword88ab03f1e7d6"
	markHook     = "SECR3Thook2d90e5b7c6a14f83"
	markLink     = "SECR3Tlink61f7a0c3b2"
)

// FC-43: secrets show nowhere, whatever fails.
func TestFC43SecretsShowNowhere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		places := []struct {
			name, credential, secret string
			auth                     simulator.Auth
		}{
			{"marked-header", "credential:\n  header: X-Api-Key\n", markHeader, simulator.Auth{Header: "X-Api-Key", Value: markHeader}},
			{"marked-query", "credential:\n  query: key\n", markQuery, simulator.Auth{Query: "key", Value: markQuery}},
			{"marked-basic", "credential:\n  basic: true\n", markUser + ":" + markPassword, simulator.Auth{
				Header: "Authorization", Value: "Basic " + base64.StdEncoding.EncodeToString([]byte(markUser+":"+markPassword)),
			}},
		}
		log := &page.Page{}
		o := harness.Options{
			Webhooks: true, Workers: 32, Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})),
			Contracts: map[string]string{}, Accounts: map[string]poller.Account{},
			Secrets: map[string]string{"HARNESS_HOOK": markHook},
		}
		link := byLink(t)
		for _, p := range places {
			text := builtin(t, "example", p.name, "credential:\n  header: Authorization\n  format: Bearer {secret}\n", p.credential,
				"request_timeout: 30s", "request_timeout: 5s")
			o.Contracts[p.name+".yaml"] = link("example.yaml", text)
			o.Accounts[p.name] = poller.Account{BaseURL: "http://provider.test/" + p.name, Credential: "env:" + strings.ToUpper(strings.ReplaceAll(p.name, "-", "_"))}
			o.Secrets[strings.ToUpper(strings.ReplaceAll(p.name, "-", "_"))] = p.secret
		}
		h := harness.New(t, o)

		var ids []string
		var forced []simulator.Filter
		for _, p := range places {
			m := h.Sim.Mount("/"+p.name, simulator.Example)
			options := simulator.Options{
				Plan: simulator.Steps(5*time.Second, "running", "succeeded"), Auth: p.auth, LinkTTL: time.Hour, LinkBase: "http://files.test", Echo: true,
			}
			m.Configure(options)
			list, faults := failEverything(t, h, m, p.name, p.secret, p.auth.Value)
			ids, forced = append(ids, list...), append(forced, faults...)
		}
		time.Sleep(time.Minute)
		// The credential itself: missing, wrong, and back.
		for _, value := range []string{"missing", "wrong", "right"} {
			for _, p := range places {
				secret := map[string]string{"missing": "", "wrong": "SECR3Twrong11112222", "right": p.secret}[value]
				h.SetSecret(strings.ToUpper(strings.ReplaceAll(p.name, "-", "_")), secret)
				ids = append(ids, h.Submit(p.name+"-"+value, p.name, fmt.Sprintf(`{"credential":%q}`, p.name+value)).ID)
			}
			time.Sleep(20 * time.Second)
		}
		time.Sleep(30 * time.Second)

		// Verdicts show operations, too: one that was just taken, and one that has ended.
		for _, p := range places {
			for _, pause := range []time.Duration{0, time.Minute} {
				time.Sleep(pause)
				publish(t, h, p.name, "", fmt.Sprintf(`{"provider":%q,"params":{"correlation":%q}}`, p.name, "intent "+p.name))
				if v := verdict(t, h, p.name); v.Operation == nil {
					t.Fatalf("the intent to %s: %+v", p.name, v)
				}
			}
		}

		// Each way to fail has happened.
		for _, f := range forced {
			if !slices.ContainsFunc(h.Sim.Requests(f), func(r simulator.Request) bool { return r.Fault != "" }) {
				t.Errorf("no %s of job %s at %s failed", f.Call, f.Job, f.Mount)
			}
		}

		seen := map[string]string{"log": log.String()}
		for i, id := range ids {
			for _, path := range []string{"", "/timeline", "/result"} {
				seen[fmt.Sprintf("%d%s", i, path)] = ask(t, h, "GET", "/v1/operations/"+id+path, "").body
			}
			if i%8 != 0 {
				continue
			}
			seen[fmt.Sprintf("%d cancel", i)] = ask(t, h, "POST", "/v1/operations/"+id+"/cancel", "", "Idempotency-Key", `"c"`).body
			seen[fmt.Sprintf("%d decide", i)] = ask(t, h, "POST", "/v1/operations/"+id+"/decisions", `{"kind":"accept_result"}`, "Idempotency-Key", `"d"`, "If-Match", `"v1"`).body
		}
		for _, path := range []string{"/v1/operations", "/v1/capabilities", "/healthz", "/metrics", "/v1/operations/op_none"} {
			seen[path] = ask(t, h, "GET", path, "").body
		}
		seen["log after all"] = log.String()
		for _, stream := range journal.Streams() {
			n := 0
			for from := uint64(1); ; n++ {
				m, err := h.Store.Next(t.Context(), stream, ">", from)
				if errors.Is(err, journal.ErrNoMessage) {
					break
				}
				if err != nil {
					t.Fatalf("read %s: %v", stream, err)
				}
				seen[fmt.Sprintf("%s %d %s", stream, m.Sequence, m.Subject)] = fmt.Sprint(m.Subject, m.Header) + string(m.Data)
				from = m.Sequence + 1
			}
			// Nothing is in CONTROL before a hold, nor in SLOTS where one process
			// counts an account's limits by itself, nor in INTENTS once all are answered.
			if n == 0 && stream != journal.Control && stream != journal.Slots && stream != journal.Intents {
				t.Errorf("nothing was read of %s", stream)
			}
		}

		// Signatures of the links that really were used are secrets too.
		marks := []string{"SECR3T", base64.StdEncoding.EncodeToString([]byte(markUser + ":" + markPassword))}
		for _, r := range h.Sim.Requests(simulator.Filter{Host: "files.test"}) {
			q, err := url.ParseQuery(r.Query)
			if err != nil || q.Get("signature") == "" {
				t.Fatalf("no signature in %q", r.Query)
			}
			marks = append(marks, q.Get("signature"))
			if a := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + q.Get("key"); a != "" {
				t.Errorf("a credential went to another host: %s", a)
			}
		}
		if len(marks) < 20 {
			t.Errorf("only %d result links were fetched", len(marks)-2)
		}
		shown := 0
		for where, text := range seen {
			for _, mark := range marks {
				if i := strings.Index(text, mark); i >= 0 {
					if shown++; shown <= 12 {
						t.Errorf("%s shows %q: …%s…", where, mark, text[max(0, i-160):min(len(text), i+120)])
					}
				}
			}
		}
		if shown > 0 {
			t.Errorf("%d places in all", shown)
		}
		if text := log.String(); !strings.Contains(text, "level=INFO") {
			t.Error("the log was not captured")
		}
		invariants(t, h, ids...)
	})
}

// failEverything makes each kind of call to the provider fail in each way, with
// answers that echo the secrets, and gives the operations and, for each fault,
// the calls of which one at least must fail by it.
func failEverything(t *testing.T, h *harness.House, m *simulator.Mount, provider, secret, sent string) ([]string, []simulator.Filter) {
	t.Helper()
	words := fmt.Sprintf("key %s or %s at https://%s:%s@files.test/x?signature=%s&expires=1#%s", secret, sent, markUser, markPassword, markLink, markLink)
	if _, password, basic := strings.Cut(secret, ":"); basic {
		words += " password " + password
	}
	echo := func(status int) simulator.Answer {
		return simulator.Answer{
			Status: status,
			Header: http.Header{
				"Content-Type": {"application/json"}, "X-Request-Id": {"req-" + sent}, "Www-Authenticate": {"Bearer " + secret},
				"Location": {"https://files.test/x?signature=" + markLink}, "Set-Cookie": {"s=" + secret},
			},
			Body: fmt.Sprintf(`{"code":%q,"detail":%q,"error":{"code":%q,"message":%q},"link":"https://files.test/x?signature=%s"}`, secret, words, secret, words, markLink),
		}
	}
	page := echo(502)
	page.Header.Set("Content-Type", "text/html")
	page.Body = "<html><body><p>" + words + "</p></body></html>"
	// The simulator redirects no result links by itself.
	moved := simulator.Answer{Status: 302, Header: http.Header{"Location": {"http://elsewhere.test/x?signature=" + markLink}}}
	transport := []simulator.Fault{
		simulator.NeverReceive{},
		simulator.NeverReceive{Reset: true},
		simulator.DropAnswer{},
		simulator.CutBody{},
		simulator.Truncate{},
		simulator.DelayAfter(8 * time.Second), simulator.HugeMessage(9 << 20),
	}
	var creates, later []simulator.Fault
	creates = append(append(creates, transport...), page, echo(400), echo(401), echo(409), echo(429), echo(500))
	later = append(append(later, transport[:6]...), page, echo(401), echo(403), echo(404), echo(429), echo(500), moved)

	if provider != "marked-query" { // the ways to fail are all there once; the places of a secret with some of them
		creates = []simulator.Fault{simulator.DropAnswer{}, page, echo(400), echo(500)}
		later = []simulator.Fault{simulator.CutBody{}, page, echo(401), echo(404)}
	}

	var ids []string
	var forced []simulator.Filter
	submit := func(name string) string {
		id := h.Submit(provider+name, provider, fmt.Sprintf(`{"case":%q}`, name)).ID
		ids = append(ids, id)
		return id
	}
	failed := func() int {
		return len(slices.DeleteFunc(h.Sim.Requests(simulator.Filter{Mount: m.Base(), Call: simulator.Create}), func(r simulator.Request) bool { return r.Fault == "" }))
	}
	for i, fault := range creates {
		m.Add(simulator.On(simulator.Create, simulator.Nth(1), fault))
		submit(fmt.Sprintf("create-%d", i))
		// By whichever create comes next: those that failed are sent again.
		for end := time.Now().Add(time.Minute); failed() <= i && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
	}
	want(t, "creates that failed", failed(), len(creates))
	// Each of the later calls fails twice for one job.
	for _, call := range []simulator.Call{simulator.Status, simulator.Result, simulator.Cancel} {
		for i, fault := range later {
			id := submit(fmt.Sprintf("%s-%d", call, i))
			op := h.Wait(id, time.Minute, "accepted", "observing")
			m.Add(simulator.On(call, simulator.Match{Job: op.Job.ID, By: simulator.PerJob, To: 2}, fault))
			forced = append(forced, simulator.Filter{Mount: m.Base(), Call: call, Job: op.Job.ID})
			if call == simulator.Cancel {
				if _, err := h.Client.Cancel(t.Context(), id, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// A provider that shows its secrets while all goes well, and its webhooks.
	id := submit("webhooks")
	op := h.Wait(id, time.Minute, "accepted", "observing")
	body := fmt.Sprintf(`{"event_id":"e-%s","type":"job.updated","job_id":%q,"state":"running","link":"https://files.test/y?signature=%s"}`, provider, op.Job.ID, markLink)
	for _, key := range []string{markHook, "wrong"} {
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(body))
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://counterfoil.test/hooks/"+provider+"/"+id, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		resp, err := h.HTTP.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if key == markHook && resp.StatusCode/100 != 2 || key != markHook && resp.StatusCode != 401 {
			t.Errorf("webhook signed with %s: %d", key[:4], resp.StatusCode)
		}
	}
	return ids, forced
}

// FC-43: the link of a job's status is kept with its query, since reading needs
// it, and shown without, as docs/BEHAVIOUR.md says.
func TestFC43StatusLink(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		log := &page.Page{}
		h := harness.New(t, harness.Options{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(3*time.Second, "running", "succeeded")},
			simulator.On(simulator.Create, simulator.Always(), simulator.Links{Location: "/example/v1/jobs/{id}?token=" + markLink}),
			simulator.On(simulator.Status, simulator.Nth(1), simulator.Reply(500)),
			simulator.On(simulator.Status, simulator.Nth(2), simulator.NeverReceive{Reset: true}))
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Status}) {
			want(t, "query", r.Query, "token="+markLink)
		}
		for where, text := range map[string]string{
			"log": log.String(), "operation": string(op.Raw), "timeline": ask(t, h, "GET", "/v1/operations/"+op.ID+"/timeline", "").body,
			"list": ask(t, h, "GET", "/v1/operations", "").body, "result": resultOf(t, h, op.ID),
		} {
			if strings.Contains(text, markLink) {
				t.Errorf("%s shows the link's secret: %s", where, text)
			}
		}
		link := factsOf(h, op.ID, "create.answered")[0].Fields["status_url"]
		want(t, "link in the timeline", link, "http://provider.test/example/v1/jobs/"+op.Job.ID+"?token=...")
		invariants(t, h, op.ID)
	})
}
