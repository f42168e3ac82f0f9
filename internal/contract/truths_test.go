package contract

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// Awkward truths about providers, by the numbers of the project's notes, as far
// as they touch the built-in contracts of real ones. What the engine makes of
// these readings is tested where the engine is.
func TestTruths(t *testing.T) {
	openai, stripe, replicate := builtin(t, "openai-batches"), builtin(t, "stripe-reporting"), builtin(t, "replicate")
	report := []byte(`{"report_type":"balance.summary.1","parameters":{"interval_start":1788220800,"interval_end":1789430400}}`)
	batch := Inputs{JobID: "batch_68f0a1c2d3e4", ClientReference: "op_01JZ0001", Params: []byte(`{}`)}
	run := Inputs{JobID: "frr_1FIX0001", Token: "t", Params: report}
	prediction := Inputs{JobID: "rrr4z55ocneqzikepnug6xezpe", Params: []byte(`{"input":{}}`)}
	read := func(t *testing.T, provider, name string) Answer {
		t.Helper()
		return recorded(t, provider, name).answer()
	}
	// batchIs is a recorded status with pieces of its text replaced, in pairs.
	batchIs := func(t *testing.T, name string, pairs ...string) StatusReading {
		t.Helper()
		a := read(t, "openai-batches", name)
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(string(a.Body), pairs[i]) {
				t.Fatalf("%s does not contain %s", name, pairs[i])
			}
			a.Body = []byte(strings.Replace(string(a.Body), pairs[i], pairs[i+1], 1))
		}
		return openai.ReadStatus(a, batch)
	}
	names := func(links []Link) string {
		var list []string
		for _, l := range links {
			list = append(list, l.Name)
		}
		return strings.Join(list, " ")
	}
	for _, truth := range []struct {
		row   int
		title string
		holds func(t *testing.T)
	}{
		{1, "no idempotency at all", func(t *testing.T) {
			for _, c := range []*Contract{openai, replicate} {
				if c.Token != nil || c.Guarantee() != events.AskAfterLoss {
					t.Errorf("%s: token %v, guarantee %s", c.Name, c.Token, c.Guarantee())
				}
			}
			first, second := openai.ReadCreate(read(t, "openai-batches", "create_accepted"), batch), openai.ReadCreate(read(t, "openai-batches", "create_replay_duplicate"), batch)
			if first.JobID == second.JobID || second.Outcome != events.CreateAccepted {
				t.Errorf("a second create is another job: %+v, %+v", first, second)
			}
		}},
		{4, "the same token with another body shows in the echo", func(t *testing.T) {
			for params, differs := range map[string]bool{
				string(report): false,
				`{"report_type":"balance.summary.1","parameters":{"interval_start":"1788220800","interval_end":1789430400}}`: false,
				`{"report_type":"balance.summary.1"}`: false, // the rest was filled in
				`{"report_type":"balance.summary.1","parameters":{"interval_start":1788220801,"interval_end":1789430400}}`: true,
				`{"report_type":"balance.summary.1","parameters":{"currency":"eur"}}`:                                      true,
				`{"report_type":"payouts.summary.1"}`:                                                                      true,
			} {
				r := stripe.ReadCreate(read(t, "stripe-reporting", "create_replay_same_token"), Inputs{Params: []byte(params)})
				if r.Outcome != events.CreateAccepted || r.EchoDiffer != differs || r.Detail != "" {
					t.Errorf("%s: %+v", params, r)
				}
			}
			// Refused, without a job, and no proof.
			r := stripe.ReadCreate(read(t, "stripe-reporting", "create_conflict"), run)
			if r.Outcome != events.CreateConflict || r.JobID != "" || stripe.Promises(false).RefusalIsProof {
				t.Errorf("idempotency_error: %+v", r)
			}
		}},
		{5, "a token replays old outcomes, failed ones too", func(t *testing.T) {
			if r := stripe.ReadCreate(read(t, "stripe-reporting", "create_server_error_replayed"), run); r.Outcome != events.CreateAmbiguous || r.Class != events.ErrorServer {
				t.Errorf("a stored 500: %+v", r)
			}
			a := read(t, "stripe-reporting", "create_replay_same_token")
			a.Body = []byte(strings.Replace(string(a.Body), `"pending"`, `"succeeded"`, 1))
			if r := stripe.ReadCreate(a, run); r.Outcome != events.CreateAccepted || r.JobID == "" {
				t.Errorf("what a replay says of the state ended the job: %+v", r)
			}
		}},
		{8, "token windows are short", func(t *testing.T) {
			if p := stripe.Promises(false); p.TokenWindow != 24*time.Hour || p.Guarantee != events.Deduplicated {
				t.Errorf("%+v", p)
			}
		}},
		{12, "a list is late", func(t *testing.T) {
			a := Answer{Status: 200, Body: []byte(`{"object":"list","data":[],"has_more":false}`), URL: "https://api.openai.com/v1/batches"}
			if r := openai.ReadLookup(a, batch); r.Outcome != events.LookupAbsent || openai.Promises(true).LookupConclusive {
				t.Errorf("an empty list: %+v", r)
			}
			for _, c := range []*Contract{stripe, replicate} {
				if p := c.Promises(true); p.Lookup != events.LookupCandidates || p.LookupConclusive {
					t.Errorf("%s: %+v", c.Name, p)
				}
			}
		}},
		{13, "finished is not succeeded", func(t *testing.T) {
			counts := `"request_counts": {
    "total": 3,
    "completed": 3,
    "failed": 0
   },`
			for replace, want := range map[string]events.Class{
				counts: events.ClassSucceeded,
				`"request_counts": {"total": 3, "completed": 2, "failed": 1},`: events.ClassPartial,
				`"request_counts": {"total": 3, "completed": 2, "failed": 0},`: events.ClassPartial,
				`"request_counts": {"total": 9, "completed": 0, "failed": 9},`: events.ClassFailed,
				`"request_counts": {"total": 0, "completed": 0, "failed": 0},`: events.ClassFailed,
				`"request_counts": null,`:                                      events.ClassUnknown,
				``:                                                             events.ClassUnknown,
			} {
				if s := batchIs(t, "status_succeeded", counts, replace); s.State != want || s.Class != events.ErrorNone {
					t.Errorf("%s: %+v", replace, s)
				}
			}
			if s := batchIs(t, "status_completed_all_failed"); s.State != events.ClassFailed || names(s.Results) != "errors" || s.NoResult {
				t.Errorf("0 of 9: %+v", s)
			}
		}},
		{14, "expired and cancelled jobs have output that was paid for", func(t *testing.T) {
			for name, want := range map[string]events.Class{"status_expired_partial": events.ClassExpired, "status_cancelled_partial": events.ClassCancelled} {
				if s := batchIs(t, name); s.State != want || s.NoResult || names(s.Results) != "errors output" {
					t.Errorf("%s: %+v", name, s)
				}
			}
			if !openai.Promises(false).PartialResults {
				t.Error("partial output is not asked for")
			}
			if s := batchIs(t, "status_failed"); !s.NoResult || s.State != events.ClassFailed || s.Code != "invalid_json_line" {
				t.Errorf("input refused, nothing ran: %+v", s)
			}
			none := []string{`"output_file_id": "file-out01"`, `"output_file_id": null`, `"error_file_id": "file-err01"`, `"error_file_id": ""`}
			if s := batchIs(t, "status_cancelled_partial", none...); !s.NoResult || len(s.Results) != 0 {
				t.Errorf("cancelled before anything ran: %+v", s)
			}
			if s := batchIs(t, "status_running"); s.NoResult {
				t.Errorf("no result of a job that runs: %+v", s)
			}
			// A batch that succeeded has output; where none is named yet, it is awaited.
			if s := batchIs(t, "status_succeeded", `"file-out01"`, `null`); s.NoResult || s.State != events.ClassSucceeded {
				t.Errorf("succeeded and no file: %+v", s)
			}
		}},
		{15, "an empty string means null", func(t *testing.T) {
			if s := batchIs(t, "status_succeeded"); names(s.Results) != "output" {
				t.Errorf("%+v", s)
			}
			if s := batchIs(t, "status_partial", `"output_file_id": "file-out01"`, `"output_file_id": ""`); names(s.Results) != "errors" {
				t.Errorf("%+v", s)
			}
		}},
		{16, "new status values appear", func(t *testing.T) {
			if s := stripe.ReadStatus(read(t, "stripe-reporting", "status_unknown_value"), run); s.State != events.ClassUnknown || s.Remote != "canceled" || s.Class != events.ErrorNone {
				t.Errorf("stripe: %+v", s)
			}
			if s := batchIs(t, "status_running", `"in_progress"`, `"paused"`); s.State != events.ClassUnknown || s.Remote != "paused" {
				t.Errorf("openai: %+v", s)
			}
			if s := replicate.ReadStatus(read(t, "replicate", "status_aborted"), prediction); s.State != events.ClassFailed || s.Remote != "aborted" {
				t.Errorf("replicate: %+v", s)
			}
		}},
		{18, "state names are read by their documented meaning", func(t *testing.T) {
			for name, want := range map[string]events.Class{
				"status_queued": events.ClassQueued, "status_finalizing": events.ClassRunning, "status_cancelling": events.ClassRunning,
			} {
				if s := batchIs(t, name); s.State != want || len(s.Results) != 0 {
					t.Errorf("%s: %+v", name, s)
				}
			}
		}},
		{20, "200 with an error body", func(t *testing.T) {
			body := []byte(`{"error":{"message":"no room","type":"server_error","code":"overloaded"}}`)
			for _, c := range []*Contract{openai, stripe, replicate} {
				a := Answer{Status: 200, Body: body, URL: c.BaseURL + "/x"}
				if r := c.ReadCreate(a, run); r.Outcome != events.CreateAmbiguous || r.JobID != "" {
					t.Errorf("%s: create %+v", c.Name, r)
				}
				if s := c.ReadStatus(a, run); s.State != "" || s.Class != events.ErrorUnreadable {
					t.Errorf("%s: status %+v", c.Name, s)
				}
				if l := c.ReadLookup(a, run); l.Outcome != events.LookupFailed {
					t.Errorf("%s: look-up %+v", c.Name, l)
				}
			}
			if s := stripe.ReadStatus(read(t, "stripe-reporting", "status_failed"), run); s.State != events.ClassFailed || s.Message != "The report could not be generated." {
				t.Errorf("%+v", s)
			}
		}},
		{22, "Retry-After in several dialects or none", func(t *testing.T) {
			for header, wait := range map[string]time.Duration{
				"retry-after: 20": 20 * time.Second, "retry-after-ms: 1500": 1500 * time.Millisecond, "stripe-should-retry: true": 0, "x-ratelimit-reset-requests: 20s": 0,
			} {
				name, value, _ := strings.Cut(header, ": ")
				a := Answer{Status: 429, Body: []byte(`{}`), Header: map[string][]string{name: {value}}, ReceivedAt: received}
				for _, c := range []*Contract{openai, stripe, replicate} {
					r := c.ReadCreate(a, run)
					if r.Outcome != events.CreateRejected || r.Class != events.ErrorThrottled || (wait > 0) != r.RetryAt.Equal(received.Add(wait)) {
						t.Errorf("%s, %s: %+v", c.Name, header, r)
					}
				}
			}
		}},
		{23, "an error while reading a state is not the job's", func(t *testing.T) {
			for _, status := range []int{400, 401, 403, 404, 408, 409, 410, 422, 429, 500, 502, 503, 504} {
				for _, c := range []*Contract{openai, stripe, replicate} {
					if s := c.ReadStatus(Answer{Status: status, Body: []byte(`{"error":{"code":"x"},"status":"failed","id":"j"}`)}, Inputs{JobID: "j"}); s.State != "" || s.Class == events.ErrorNone {
						t.Errorf("%s: %d became %s", c.Name, status, s.State)
					}
				}
			}
		}},
		{24, "a 2xx to a cancel proves nothing", func(t *testing.T) {
			if r := openai.ReadCancel(read(t, "openai-batches", "cancel_accepted"), batch); r.Outcome != events.CancelAcknowledged {
				t.Errorf("openai: %+v", r)
			}
			if r := openai.ReadCancel(read(t, "openai-batches", "cancel_repeat"), batch); r.Outcome != events.CancelConfirmed {
				t.Errorf("openai, where the answer itself says so: %+v", r)
			}
			if r := replicate.ReadCancel(Answer{Status: 200, Body: []byte(`{"status":"processing"}`)}, prediction); r.Outcome != events.CancelAcknowledged {
				t.Errorf("replicate: %+v", r)
			}
		}},
		{26, "late cancels are answered in different ways", func(t *testing.T) {
			if r := openai.ReadCancel(read(t, "openai-batches", "cancel_too_late"), batch); r.Outcome != events.CancelTooLate {
				t.Errorf("openai: %+v", r)
			}
			if r := openai.ReadCancel(read(t, "openai-batches", "status_succeeded"), batch); r.Outcome != events.CancelTooLate {
				t.Errorf("openai, the final object: %+v", r)
			}
			if r := replicate.ReadCancel(read(t, "replicate", "cancel_too_late"), prediction); r.Outcome != events.CancelTooLate {
				t.Errorf("replicate: %+v", r)
			}
			if _, err := stripe.Cancel(run); err == nil {
				t.Error("stripe has a cancel")
			}
		}},
		{28, "result links die", func(t *testing.T) {
			for _, c := range []*Contract{openai, stripe, replicate} {
				for _, status := range []int{403, 404, 410} {
					if r := c.ReadLink(Answer{Status: status, Body: []byte(`{}`)}, run); r.Class != events.ErrorExpired || len(r.Body) > 0 {
						t.Errorf("%s: %d: %+v", c.Name, status, r)
					}
				}
			}
			if r := replicate.ReadResult(read(t, "replicate", "status_succeeded_data_removed"), prediction); r.Class != events.ErrorExpired {
				t.Errorf("data removed: %+v", r)
			}
		}},
		{29, "results are split and unordered, lists are paged", func(t *testing.T) {
			a := read(t, "openai-batches", "result_output_file")
			for completed, want := range map[string]string{"2": "[]", "3": "[complete: has 2 lines, expected 3]", "null": "[complete: the number to compare with is absent: last.?request_counts.?completed]"} {
				in := Inputs{Link: "output", LastBody: []byte(`{"request_counts":{"completed":` + completed + `}}`)}
				if got := fmt.Sprint(failing(openai.ReadLink(a, in))); got != want {
					t.Errorf("completed %s: %s, want %s", completed, got, want)
				}
			}
			// The file of errors has what was left undone too, unless all was done.
			failed := read(t, "openai-batches", "result_error_file")
			for last, want := range map[string]string{
				string(read(t, "openai-batches", "status_expired_partial").Body): "[]",
				`{"status":"cancelled","request_counts":{"failed":0}}`:           "[]",
				`{"status":"completed","request_counts":{"failed":2}}`:           "[]",
				`{"status":"completed","request_counts":{"failed":3}}`:           "[complete_errors: has 2 lines, expected 3]",
				`{"status":"completed","request_counts":{}}`:                     "[complete_errors: the number to compare with is absent: last.?request_counts.?failed]",
				string(read(t, "openai-batches", "status_partial").Body):         "[complete_errors: has 2 lines, expected 1]",
			} {
				if got := fmt.Sprint(failing(openai.ReadLink(failed, Inputs{Link: "errors", LastBody: []byte(last)}))); got != want {
					t.Errorf("errors after %s: %s, want %s", last, got, want)
				}
			}
			cut := a
			cut.Body = a.Body[:len(a.Body)-20]
			if got := fmt.Sprint(failing(openai.ReadLink(cut, Inputs{Link: "errors"}))); got != "[jsonl: line 2 is not one JSON value]" {
				t.Errorf("a cut line: %s", got)
			}
			in := Inputs{LastBody: []byte(`{"result":{"size":24}}`)}
			if got := failing(stripe.ReadLink(read(t, "stripe-reporting", "result"), in)); len(got) > 0 {
				t.Errorf("the size fits: %s", got)
			}
			for provider, page := range map[*Contract]string{openai: "after=b2&limit=100", stripe: "limit=100&starting_after=b2"} {
				body := `{"data":[{"id":"b1","created_at":2,"created":2},{"id":"b2","created_at":1,"created":1}],"has_more":true,"last_id":"b2"}`
				l := provider.ReadLookup(Answer{Status: 200, Body: []byte(body)}, Inputs{ClientReference: "r", Params: []byte(`{"report_type":"x"}`)})
				r, err := provider.Lookup(Inputs{ClientReference: "r", Page: l.Next})
				u, err2 := url.Parse(r.URL)
				if err != nil || err2 != nil || l.Next != "b2" || u.RawQuery != page {
					t.Errorf("%s: next %q, %s %v", provider.Name, l.Next, r.URL, err)
				}
				if !l.Older(time.Unix(2, 0)) || l.Older(time.Unix(1, 0)) {
					t.Errorf("%s: the page does not say how far back it reaches", provider.Name)
				}
				body = `{"data":[],"has_more":true}`
				if l := provider.ReadLookup(Answer{Status: 200, Body: []byte(body)}, Inputs{ClientReference: "r"}); l.Outcome != events.LookupFailed {
					t.Errorf("%s: more to come and nowhere to go on: %+v", provider.Name, l)
				}
			}
		}},
		{30, "files are on other hosts", func(t *testing.T) {
			for link, goes := range map[string]bool{
				"https://files.stripe.com/v1/files/f/contents": true, "https://api.stripe.com/v1/files/f/contents": true,
				"http://files.stripe.com/v1/files/f/contents": false, "https://files.stripe.com.evil.test/f": false, "https://files.stripe.com:444/f": false,
			} {
				if r, err := stripe.ResultLink(link, run); err != nil || (r.Credential.Place != PlaceNone) != goes {
					t.Errorf("%s: %+v %v", link, r.Credential, err)
				}
			}
			if r, err := replicate.ResultLink("https://replicate.delivery/f", prediction); err != nil || r.Credential.Place != PlaceNone {
				t.Errorf("%+v %v", r, err)
			}
			// An id that would climb stays one step of the path.
			s := batchIs(t, "status_succeeded", `"file-out01"`, `"../../x?y"`)
			if len(s.Results) != 1 || s.Results[0].URL != "https://api.openai.com/v1/files/..%2F..%2Fx%3Fy/content" {
				t.Errorf("%+v", s.Results)
			}
		}},
		{32, "a redelivery has the same event id and another signature", func(t *testing.T) {
			var ids []string
			var signatures []string
			for _, name := range []string{"webhook_completed", "webhook_completed_retry"} {
				f := recorded(t, "openai-batches", name)
				header := map[string][]string{}
				for k, v := range f.Request.Headers {
					header[k] = []string{v}
				}
				w, err := openai.ReadWebhook([]byte(f.Request.BodyRaw), header)
				if err != nil || w.JobID != batch.JobID {
					t.Fatalf("%+v %v", w, err)
				}
				ids, signatures = append(ids, w.EventID), append(signatures, f.Request.Headers["webhook-signature"])
			}
			if ids[0] != ids[1] || ids[0] == "" || signatures[0] == signatures[1] {
				t.Errorf("%q %q", ids, signatures)
			}
		}},
		{38, "a create half done", func(t *testing.T) {
			in := Inputs{ClientReference: "ref", Params: []byte(`{"endpoint":"/v1/responses","completion_window":"24h","requests":[{"custom_id":"a","n":1.0}],"metadata":{"mine":"x"}}`)}
			if n, err := openai.Prepares(in); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			r, err := openai.Prepare(0, in)
			if err != nil || r.URL != "https://api.openai.com/v1/files" || !strings.Contains(string(r.Body), "\r\n\r\n{\"custom_id\":\"a\",\"n\":1.0}\n\r\n") || !strings.Contains(string(r.Body), "\r\n\r\nbatch\r\n") {
				t.Errorf("%s\n%s\n%v", r.URL, r.Body, err)
			}
			p := openai.ReadPrepare(0, Answer{Status: 200, Body: []byte(`{"id":"file-1","object":"file","purpose":"batch"}`)}, in)
			if p.Outcome != events.PrepareDone || !slices.Equal(p.Values, []events.Tag{{Name: "input_file_id", Value: "file-1"}}) {
				t.Errorf("%+v", p)
			}
			in.Prepared = map[string]string{"input_file_id": "file-1"}
			want := `{"endpoint":"/v1/responses","completion_window":"24h","metadata":{"mine":"x","client_ref":"ref"},"input_file_id":"file-1"}`
			if r, err := openai.Create(in); err != nil || string(r.Body) != want {
				t.Errorf("%s %v", r.Body, err)
			}
			in.Params = []byte(`{"endpoint":"/v1/responses","completion_window":"24h","input_file_id":"file-9"}`)
			if n, err := openai.Prepares(in); n != 0 || err != nil {
				t.Errorf("an uploaded file needs %d preparations, %v", n, err)
			}
			for _, params := range []string{
				`{"endpoint":"e","completion_window":"24h"}`, `{"endpoint":"e","completion_window":"24h","input_file_id":"f","requests":[{}]}`,
				`{"endpoint":"e","completion_window":"24h","requests":[]}`, `{"endpoint":"e","completion_window":"24h","input_file_id":"f","metadata":{"client_ref":"x"}}`,
			} {
				if len(openai.CheckParams([]byte(params))) != 1 {
					t.Errorf("%s: %+v", params, openai.CheckParams([]byte(params)))
				}
			}
		}},
	} {
		t.Run(fmt.Sprintf("row %d: %s", truth.row, truth.title), truth.holds)
	}
}

// failing are the checks that did not pass.
func failing(r ResultReading) (list []string) {
	for _, k := range r.Checks {
		if !k.Passed {
			list = append(list, k.Name+": "+k.Detail)
		}
	}
	return list
}

// FC-34: what a provider says at length is cut with a mark that says how long it
// was, and the reading stands.
func TestOversizedWords(t *testing.T) {
	const limit = 3 << 20
	long := strings.Repeat("x", limit)
	c := builtin(t, "openai-batches")
	in := Inputs{JobID: "b", ClientReference: "r", Params: []byte(`{}`)}
	mark := fmt.Sprintf("… (cut, %d bytes)", limit)
	s := c.ReadStatus(Answer{Status: 200, Body: []byte(`{"id":"b","status":"failed","errors":{"data":[{"code":"c","message":"` + long + `"}]}}`)}, in)
	if s.State != events.ClassFailed || !strings.HasSuffix(s.Message, mark) || len(s.Message) > maxMessage {
		t.Errorf("status: %s, %d bytes, %s", s.State, len(s.Message), s.Message[max(0, len(s.Message)-40):])
	}
	r := c.ReadCreate(Answer{Status: 400, Body: []byte(`{"error":{"code":"` + long + `","message":"` + long + `"}}`)}, in)
	if r.Outcome != events.CreateRejected || !strings.HasSuffix(r.Message, mark) || !strings.HasSuffix(r.Code, mark) || len(r.Code) > maxWord {
		t.Errorf("create: %+v", r)
	}
	page := c.ReadStatus(Answer{Status: 502, Body: []byte("<html>" + long)}, in)
	if page.Class != events.ErrorServer || !strings.HasSuffix(page.Message, fmt.Sprintf("… (cut, %d bytes)", limit+6)) || len(page.Message) > maxMessage {
		t.Errorf("page: %+v", page)
	}
	// An error whose body was cut keeps its class, and says that it was cut.
	short := Answer{Status: 503, Body: []byte(`{"error":{"mess`), Truncated: true}
	if s := c.ReadStatus(short, in); s.Class != events.ErrorServer || s.Cut != "the body was cut" || s.State != "" {
		t.Errorf("an error cut: %+v", s)
	}
	odd := short
	odd.Cut = "the body is labelled gzip, and cannot be read as that"
	if s := c.ReadStatus(odd, in); s.Class != events.ErrorServer || s.Cut != odd.Cut {
		t.Errorf("an error that cannot be read: %+v", s)
	}
	short.Status = 200
	if s := c.ReadStatus(short, in); s.Class != events.ErrorUnreadable || s.Detail != "the body was cut" || s.Cut != "" {
		t.Errorf("an answer cut: %+v", s)
	}
	// Over the limit of the contract nothing is read, and that is no outcome.
	over := Answer{Status: 200, Body: []byte(strings.Repeat("x", int(c.Limits.Response))), Truncated: true}
	if s := c.ReadStatus(over, in); s.Class != events.ErrorTooLarge || s.State != "" {
		t.Errorf("over the limit: %+v", s)
	}
	if r := c.ReadCreate(over, in); r.Outcome != events.CreateAmbiguous || r.Class != events.ErrorTooLarge {
		t.Errorf("over the limit: %+v", r)
	}
}

// A list says how far back it reaches only where it keeps the order it claims.
func TestOlder(t *testing.T) {
	c := builtin(t, "openai-batches")
	at := time.Unix(100, 0)
	for items, want := range map[string]bool{
		`{"id":"a","created_at":300},{"id":"b","created_at":99}`:         true,
		`{"id":"a","created_at":99},{"id":"b","created_at":99}`:          true,
		`{"id":"a","created_at":300},{"id":"b","created_at":100}`:        false, // not before it
		`{"id":"a","created_at":99},{"id":"b","created_at":300}`:         false, // another order
		`{"id":"a","created_at":98},{"id":"b","created_at":99}`:          false,
		`{"id":"a","created_at":300},{"id":"b"}`:                         false, // no age
		`{"id":"a"},{"id":"b","created_at":99}`:                          false,
		`{"id":"a","created_at":"yesterday"},{"id":"b","created_at":99}`: false,
		``: false,
		`{"id":"a","created_at":99,"metadata":{"client_ref":"r"}},{"id":"b","created_at":98}`: true, // ours, and still older
	} {
		r := c.ReadLookup(Answer{Status: 200, Body: []byte(`{"data":[` + items + `],"has_more":false}`)}, Inputs{ClientReference: "r"})
		if r.Outcome == events.LookupFailed || r.Older(at) != want {
			t.Errorf("%s: %+v", items, r)
		}
	}
	unordered := parse(t, edited(t, "openai-batches", "  order: newest_first\n", ""))
	r := unordered.ReadLookup(Answer{Status: 200, Body: []byte(`{"data":[{"id":"a","created_at":1}],"has_more":false}`)}, Inputs{ClientReference: "r"})
	if r.Older(at) {
		t.Error("a list without an order was cut short")
	}
}

func TestEchoes(t *testing.T) {
	for expr, want := range map[string]bool{
		`echoes(body.?a, params.?a)`:      true, // 1 and "1"
		`echoes(body.?f, params.?f)`:      true, // 100 and 1e2
		`echoes(body.?t, params.?t)`:      true, // "true" and true
		`echoes(body.?l, params.?l)`:      true,
		`echoes(body.?l, params.?short)`:  false,
		`echoes(body.?m, params.?m)`:      true, // more than was sent, and a null
		`echoes(body.?m, params.?other)`:  false,
		`echoes(body.?none, params.?a)`:   false,
		`echoes(body.?a, params.?none)`:   true,
		`echoes(body.?m, params.?a)`:      false,
		`echoes(body.?a, params.?l)`:      false,
		`echoes(body.?a, params.?m)`:      false,
		`echoes(body.?big, params.?big)`:  true,
		`echoes(body.?big, params.?near)`: false,
	} {
		c := parse(t, edited(t, "stripe-reporting", "accepted: status == 200", "accepted: "+expr))
		r := c.ReadCreate(Answer{Status: 200, Body: []byte(`{"id":"j","a":1,"f":100,"t":"true","l":["x",2],"m":{"k":"1","more":1},"big":123456789012345678901234567890}`)},
			Inputs{Params: []byte(`{"a":"1","f":1e2,"t":true,"l":["x","2"],"short":["x"],"m":{"k":1,"n":null},"other":{"z":1},"big":123456789012345678901234567890,"near":123456789012345678901234567891}`)})
		if (r.Outcome == events.CreateAccepted) != want || r.Class != events.ErrorNone && want {
			t.Errorf("%s: %+v", expr, r)
		}
	}
}

func TestFileLists(t *testing.T) {
	files := []File{
		{"errors", events.Sum([]byte("a")), 1, "text/csv"}, {"", events.Sum([]byte("b")), 1 << 40, `a"b\`}, {"x", events.Sum([]byte("c")), 0, ""},
	}
	got, err := ReadFiles(WriteFiles(files))
	if err != nil || !slices.Equal(got, files) || files[0].Label(0) != "errors" || files[1].Label(1) != "1" {
		t.Errorf("%+v %v", got, err)
	}
	for _, body := range []string{"", "[]", `{"files":[{"sha256":""}]}`, `{"files":[{"sha256":"zz"}]}`, `{"files":[{"sha256":7}]}`, `{"files":{}}`} {
		if files, err := ReadFiles([]byte(body)); err == nil {
			t.Errorf("%s: %+v", body, files)
		}
	}
	// A provider cannot pass its own list off as ours and have other payloads read.
	forged := Answer{Status: 200, Body: WriteFiles(files), Header: map[string][]string{"Content-Type": {strings.ToUpper(FilesType) + "; x=y"}}}
	if r := builtin(t, "example").ReadResult(forged, Inputs{}); r.Class != events.ErrorNone || r.MediaType != "application/json" {
		t.Errorf("%+v", r)
	}
	if r := builtin(t, "replicate").ReadLink(forged, Inputs{}); r.Class != events.ErrorNone || r.MediaType != "application/json" {
		t.Errorf("%+v", r)
	}
}

// A page that asks to log in, answered with 200 in the place of a file, is no
// result where the contract says what files are like. Replicate's cannot: its
// comment says so.
func TestFileThatIsAPage(t *testing.T) {
	const page = "<!doctype html><html><form>password</form></html>"
	for _, c := range []struct {
		contract, status, link, file, mediaType string
		refuses                                 bool
	}{
		{"openai-batches", `{"id":"b","status":"completed","request_counts":{"total":1,"completed":1,"failed":0},"output_file_id":"f"}`, "output", `{"custom_id":"one"}`, "application/octet-stream", true},
		{"stripe-reporting", fmt.Sprintf(`{"id":"r","status":"succeeded","result":{"size":%d,"url":"https://files.stripe.com/x"}}`, len(page)), "", strings.Repeat("x", len(page)), "text/csv; charset=utf-8", true},
		{"replicate", `{"id":"p","status":"succeeded","output":"https://files.test/x"}`, "", "png", "image/png", false},
	} {
		read := func(mediaType, body string) ResultReading {
			in := Inputs{JobID: "j", Params: []byte(`{}`), LastBody: []byte(c.status), Link: c.link}
			a := Answer{Status: 200, Body: []byte(body), URL: "https://files.test/x", ReceivedAt: received, Header: map[string][]string{"Content-Type": {mediaType}}}
			return builtin(t, c.contract).ReadLink(a, in)
		}
		passed := func(r ResultReading) bool {
			return r.Class == events.ErrorNone && !slices.ContainsFunc(r.Checks, func(k events.Check) bool { return !k.Passed })
		}
		if r := read(c.mediaType, c.file); !passed(r) {
			t.Errorf("%s refuses a file: %+v", c.contract, r)
		}
		r := read("text/html; charset=utf-8", page)
		if again := r.Class == events.ErrorUnreadable && len(r.Body) == 0; again != c.refuses {
			t.Errorf("%s reads a page as %+v", c.contract, r)
		}
		// Without a name it is no other answer, but the checks find it.
		if r := read("", page); passed(r) == c.refuses {
			t.Errorf("%s takes a page without a type: %+v", c.contract, r)
		}
	}
}
