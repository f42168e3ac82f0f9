package simulator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// recording is what a fixture says was answered, or was sent as a webhook.
type recording struct {
	Request struct {
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		BodyRaw *string           `json:"body_raw"`
	} `json:"response"`
}

func recorded(t *testing.T, provider, scenario string) recording {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", provider, scenario+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var x recording
	if err := json.Unmarshal(raw, &x); err != nil {
		t.Fatal(err)
	}
	return x
}

// scenarios are those of a provider's index.
func scenarios(t *testing.T, provider string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", provider, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Exchanges []string }
	if err := json.Unmarshal(raw, &index); err != nil {
		t.Fatal(err)
	}
	return index.Exchanges
}

// sameShape compares members and kinds of two documents, and the texts and
// numbers of the members named; null goes with every kind, since recordings
// leave out times they were not about.
func sameShape(t *testing.T, got, want string, values ...string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Errorf("%v in %s", err, got)
		return
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	compareShape(t, "", g, w, values)
}

func compareShape(t *testing.T, at string, got, want any, values []string) {
	t.Helper()
	if slices.Contains(values, strings.TrimPrefix(at, ".")) && fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s is %v, recorded was %v", at, got, want)
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			t.Errorf("%s is %v, recorded was an object", at, got)
			return
		}
		for name := range g {
			if _, ok := w[name]; !ok {
				t.Errorf("%s.%s was not recorded", at, name)
			}
		}
		for name, value := range w {
			have, ok := g[name]
			if !ok {
				t.Errorf("%s.%s is missing", at, name)
				continue
			}
			if value != nil && have != nil {
				compareShape(t, at+"."+name, have, value, values)
			} else if slices.Contains(values, strings.TrimPrefix(at+"."+name, ".")) && (value == nil) != (have == nil) {
				t.Errorf("%s.%s is %v, recorded was %v", at, name, have, value)
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) == 0 {
			t.Errorf("%s is %v, recorded was a list", at, got)
			return
		}
		for i, one := range g {
			compareShape(t, at, one, w[min(i, len(w)-1)], values)
		}
	default:
		if fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) {
			t.Errorf("%s is %v, recorded was %v", at, got, want)
		}
	}
}

// input is a file of n requests.
func input(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"item-%d","method":"POST","url":"/v1/responses","body":{"model":"m"}}`+"\n", i+1)
	}
	return b.String()
}

// form is a multipart body with its type; pairs are name, value, ..., and the
// content goes in as the file if it has a name.
func form(t *testing.T, filename, content string, pairs ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		if err := m.WriteField(pairs[i], pairs[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if filename != "" {
		part, err := m.CreateFormFile("file", filename)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), m.FormDataContentType()
}

// uploaded sends an input file and gives its id.
func (w *world) uploaded(base, content string) string {
	w.Helper()
	body, kind := form(w.T, "in.jsonl", content, "purpose", "batch")
	return w.want(200, w.call("POST", base+"/v1/files", body, "Content-Type", kind)).field("id")
}

func batchOf(file, reference string) string {
	return fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/responses","completion_window":"24h","metadata":{"client_ref":%q}}`, file, reference)
}

// plan brings a job to a state at once.
func at(state string) simulator.Plan { return simulator.Plan{Steps: []simulator.Step{{State: state}}} }

func TestOpenAIBatchesShapes(t *testing.T) {
	all := []string{"status", "request_counts.completed", "request_counts.failed", "request_counts.total", "error_file_id"}
	some := []string{"status", "request_counts.completed", "request_counts.failed", "request_counts.total"}
	plays := map[string]struct {
		lines  int
		plan   simulator.Plan
		rules  []simulator.Rule
		last   string   // the call: status if empty
		values []string // members whose values are the recorded ones
	}{
		"create_accepted":             {lines: 3, last: "create", values: all},
		"create_replay_duplicate":     {lines: 3, last: "create", values: all},
		"reconcile_list":              {lines: 3, last: "list"},
		"validation_error":            {lines: 3, last: "invalid", values: []string{"error.message", "error.type", "error.param", "error.code"}},
		"rate_limited":                {lines: 3, last: "create", rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.Throttled(simulator.RetryAfter{Text: "20"}))}, values: []string{"error.type", "error.code"}},
		"status_queued":               {lines: 3, plan: at("queued"), values: all},
		"status_running":              {lines: 3, plan: at("running"), values: []string{"status", "request_counts.total"}},
		"status_finalizing":           {lines: 3, plan: at("finalizing"), values: all},
		"status_succeeded":            {lines: 3, plan: at("succeeded"), values: all},
		"status_partial":              {lines: 3, plan: at("partial"), values: some},
		"status_completed_all_failed": {lines: 9, plan: simulator.Plan{Steps: at("succeeded").Steps, Failures: -1}, values: append([]string{"output_file_id"}, some...)},
		"status_failed":               {lines: -1, plan: at("succeeded"), values: append([]string{"errors.data.code", "errors.data.line", "errors.data.message"}, all...)},
		"status_cancelling":           {lines: 8, plan: simulator.Plan{Steps: at("cancelling").Steps, Done: 3}, values: all},
		"status_cancelled_partial":    {lines: 8, plan: simulator.Plan{Steps: at("cancelled").Steps, Done: 4}, values: some},
		"status_expired_partial":      {lines: 10, plan: simulator.Plan{Steps: at("expired").Steps, Done: 1}, values: some},
		"cancel_accepted":             {lines: 3, plan: at("running"), last: "cancel", values: []string{"status"}},
		"cancel_repeat":               {lines: 3, plan: at("cancelled"), last: "cancel", values: []string{"status"}},
		"cancel_too_late":             {lines: 3, plan: at("succeeded"), last: "cancel", values: []string{"error.message", "error.type", "error.code"}},
		"result_output_file":          {lines: 2, plan: at("succeeded"), last: "output_file_id"},
		"result_error_file":           {lines: 4, plan: simulator.Plan{Steps: at("expired").Steps, Done: 2}, last: "error_file_id"},
	}
	for _, name := range scenarios(t, "openai-batches") {
		if strings.HasPrefix(name, "webhook_") {
			continue // TestWebhookShapes
		}
		t.Run(name, func(t *testing.T) {
			play, ok := plays[name]
			if !ok {
				t.Fatal("nothing plays this recording")
			}
			x := recorded(t, "openai-batches", name)
			bubble(t, simulator.Config{}, func(w *world) {
				w.sim.Mount("/o", simulator.OpenAIBatches, play.rules...).Configure(simulator.Options{Plan: play.plan})
				text := input(play.lines)
				if play.lines < 0 {
					text = input(1) + "{\n"
				}
				body := batchOf(w.uploaded("/o", text), "op_1")
				if play.last == "invalid" {
					body = strings.Replace(body, "/v1/responses", "/v1/nope", 1)
				}
				a := w.call("POST", "/o/v1/batches", body)
				path := "/o/v1/batches/" + a.field("id")
				time.Sleep(2 * time.Second) // what its input lacks shows by then
				switch play.last {
				case "create", "invalid":
				case "list":
					a = w.call("GET", "/o/v1/batches?limit=100", "")
				case "cancel":
					a = w.call("POST", path+"/cancel", "")
				case "output_file_id", "error_file_id":
					a = w.call("GET", "/o/v1/files/"+w.call("GET", path, "").field(play.last)+"/content", "")
				default:
					a = w.call("GET", path, "")
				}
				w.want(x.Response.Status, a)
				sameHeaders(t, a.header, x.Response.Headers)
				if x.Response.BodyRaw == nil {
					sameShape(t, a.body, string(x.Response.Body), play.values...)
					return
				}
				// Each line has the shape of the recorded one of its kind.
				want := strings.Split(strings.TrimSpace(*x.Response.BodyRaw), "\n")
				lines := strings.Split(strings.TrimSpace(a.body), "\n")
				w.equal("lines", len(lines), 2)
				for _, line := range lines {
					sameShape(t, line, want[len(want)-1])
				}
			})
		})
	}
}

// sameHeaders wants the recorded headers, and those values that say what to do.
func sameHeaders(t *testing.T, got http.Header, want map[string]string) {
	t.Helper()
	for name, value := range want {
		have := got.Get(name)
		switch {
		case name == "x-ratelimit-reset-requests": // says the same as retry-after
		case have == "":
			t.Errorf("header %s is missing, recorded was %q", name, value)
		case slices.Contains([]string{"content-type", "retry-after", "idempotent-replayed", "stripe-should-retry"}, name) && have != value:
			t.Errorf("header %s is %q, recorded was %q", name, have, value)
		}
	}
}

const run = "report_type=balance.summary.1&parameters[interval_start]=1788220800&parameters[interval_end]=1789430400"

func TestStripeReportingShapes(t *testing.T) {
	first := simulator.Nth(1)
	plays := map[string]struct {
		plan   simulator.Plan
		rules  []simulator.Rule
		body   string // of the first create
		last   string
		values []string
	}{
		"create_accepted":              {last: "create", values: []string{"status", "object", "report_type", "parameters.interval_start", "livemode"}},
		"create_replay_same_token":     {last: "again", values: []string{"status"}},
		"create_conflict":              {last: "again", body: strings.Replace(run, "1789430400", "1789516800", 1), values: []string{"error.type", "error.message"}},
		"create_concurrent_same_token": {last: "create", rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.InProgress{})}, values: []string{"error.type", "error.code", "error.message"}},
		"create_server_error_replayed": {last: "again", rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.Answer{Status: 500, Own: true, Stored: true})}, values: []string{"error.type", "error.message"}},
		"reconcile_list":               {last: "list", values: []string{"url", "has_more", "object"}},
		"validation_error":             {last: "create", body: "report_type=nope", values: []string{"error.type", "error.param", "error.message"}},
		"rate_limited":                 {last: "create", rules: []simulator.Rule{simulator.On(simulator.Create, first, simulator.Throttled(simulator.RetryAfter{}))}, values: []string{"error.type", "error.code", "error.message"}},
		"status_queued":                {plan: at("queued"), values: []string{"status", "result"}},
		"status_succeeded":             {plan: at("succeeded"), values: []string{"status", "error", "result.purpose", "result.type", "result.object"}},
		"status_failed":                {plan: simulator.Plan{Steps: at("failed").Steps, Message: "The report could not be generated."}, values: []string{"status", "error", "result"}},
		"status_unknown_value":         {plan: at("canceled"), values: []string{"status", "result"}},
		"result":                       {plan: at("succeeded"), last: "file"},
	}
	for _, name := range scenarios(t, "stripe-reporting") {
		if strings.HasPrefix(name, "webhook_") {
			continue // TestWebhookShapes
		}
		t.Run(name, func(t *testing.T) {
			play, ok := plays[name]
			if !ok {
				t.Fatal("nothing plays this recording")
			}
			x := recorded(t, "stripe-reporting", name)
			bubble(t, simulator.Config{}, func(w *world) {
				w.sim.Mount("/s", simulator.StripeReporting, play.rules...).
					Configure(simulator.Options{Plan: play.plan, LinkBase: "http://files"})
				create := func(body string) answer {
					return w.call("POST", "/s/v1/reporting/report_runs", body,
						"Content-Type", "application/x-www-form-urlencoded", "Idempotency-Key", "op_1")
				}
				body := play.body
				if body == "" {
					body = run
				}
				a := create(body)
				path := "/s/v1/reporting/report_runs/" + a.field("id")
				switch play.last {
				case "create":
				case "again":
					a = create(run)
				case "list":
					a = w.call("GET", "/s/v1/reporting/report_runs?limit=100&created[gte]=1", "")
				case "file":
					a = w.call("GET", w.call("GET", path, "").field("result.url"), "")
				default:
					a = w.call("GET", path, "")
				}
				w.want(x.Response.Status, a)
				sameHeaders(t, a.header, x.Response.Headers)
				if x.Response.BodyRaw != nil {
					w.equal("body", a.body, *x.Response.BodyRaw)
					return
				}
				sameShape(t, a.body, string(x.Response.Body), play.values...)
			})
		})
	}
}

// TestWebhookShapes: the events of the real providers as they were recorded.
func TestWebhookShapes(t *testing.T) {
	for _, test := range []struct {
		dialect simulator.Dialect
		state   string
		name    string
		headers []string
	}{
		{simulator.OpenAIBatches, "succeeded", "webhook_completed", []string{"webhook-id", "webhook-timestamp", "webhook-signature"}},
		{simulator.OpenAIBatches, "succeeded", "webhook_completed_retry", []string{"webhook-id", "webhook-timestamp", "webhook-signature"}},
		{simulator.OpenAIBatches, "failed", "webhook_failed", nil},
		{simulator.OpenAIBatches, "expired", "webhook_expired", nil},
		{simulator.OpenAIBatches, "cancelled", "webhook_cancelled", nil},
		{simulator.StripeReporting, "succeeded", "webhook_succeeded", []string{"stripe-signature"}},
		{simulator.StripeReporting, "succeeded", "webhook_succeeded_retry", []string{"stripe-signature"}},
		{simulator.StripeReporting, "failed", "webhook_failed", nil},
	} {
		t.Run(string(test.dialect)+"/"+test.name, func(t *testing.T) {
			hooked(t, func(w *world, h *hooks) {
				w.sim.Mount("/p", test.dialect, simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2))).
					Configure(simulator.Options{Plan: simulator.Steps(time.Second, "running", test.state), Callback: "http://ingest/h"})
				if test.dialect == simulator.OpenAIBatches {
					w.want(200, w.call("POST", "/p/v1/batches", batchOf(w.uploaded("/p", input(2)), "op_1")))
				} else {
					w.want(200, w.call("POST", "/p/v1/reporting/report_runs", run))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				// The end alone is told, here twice with the same bytes.
				w.equal("events", len(h.bodies), 2)
				w.equal("bytes", h.bodies[0], h.bodies[1])
				x := recorded(t, string(test.dialect), test.name)
				sameShape(t, h.bodies[0], string(x.Request.Body), "type", "object", "data.object.status")
				for _, name := range test.headers {
					if h.header.Get(name) == "" || x.Request.Headers[name] == "" {
						t.Errorf("header %s is %q, recorded was %q", name, h.header.Get(name), x.Request.Headers[name])
					}
				}
			})
		})
	}
	// Every recorded webhook is among them.
	for _, provider := range []string{"openai-batches", "stripe-reporting"} {
		n := 0
		for _, name := range scenarios(t, provider) {
			if strings.HasPrefix(name, "webhook_") {
				n++
			}
		}
		if want := map[string]int{"openai-batches": 5, "stripe-reporting": 3}[provider]; n != want {
			t.Errorf("%s has %d webhooks recorded, the table knows %d", provider, n, want)
		}
	}
}
