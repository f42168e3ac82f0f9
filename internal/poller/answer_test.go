package poller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

// A provider's body travels in the fact up to 1 KiB, beyond it as a payload,
// and its links lose what may be a secret either way.
func TestBodiesOfProviders(t *testing.T) {
	body := func(n int) string {
		frame := `{"state": "running", "pad": ""}`
		return strings.Replace(frame, `""`, `"`+strings.Repeat("x", n-len(frame))+`"`, 1)
	}
	for _, c := range []struct {
		name, body, kept string
		inline           bool
	}{
		{"none", "", "", true},
		{"1024 bytes", body(1024), body(1024), true},
		{"1025 bytes", body(1025), body(1025), false},
		{
			"a link", `{"state": "running", "file": "https://user:pw@files.example/a.png?X-Signature=s3cret#part"}`,
			`{"state": "running", "file": "https://redacted@files.example/a.png?redacted"}`, true,
		},
		{
			"a long link counts as what is left of it", `{"state": "running", "file": "https://files.example/a?s=` + strings.Repeat("s", 2000) + `"}`,
			`{"state": "running", "file": "https://files.example/a?redacted"}`, true,
		},
		{
			"a link in a payload", strings.Replace(body(2000), "running", "running\", \"u\": \"https://files.example/a?s3cret", 1),
			strings.Replace(body(2000), "running", "running\", \"u\": \"https://files.example/a?redacted", 1), false,
		},
	} {
		bubble(t, c.name, func(t *testing.T) {
			h := newHouse(t, changes{})
			h.accept()
			time.Sleep(2 * time.Second)
			h.caller.then(says(200, c.body))
			h.attend()
			var call events.Call
			if c.body == "" {
				call = last[*events.ObservationFailed](h).Call
			} else {
				call = last[*events.JobObserved](h).Call
			}
			if inline := call.Body.IsZero(); inline != c.inline {
				t.Fatalf("inline %v", inline)
			}
			got := string(call.Inline)
			if !c.inline {
				stored, err := h.journal.Payload(t.Context(), call.Body)
				if err != nil {
					t.Fatal(err)
				}
				got = string(stored)
			}
			if got != c.kept {
				t.Errorf("kept %s", got)
			}
		})
	}
}

// However little an answer says, what failed has a cause in words: the status at
// least.
func TestNoFailureIsWithoutACause(t *testing.T) {
	cause := func(t *testing.T, call events.Call, status int) {
		t.Helper()
		if call.Class == events.ErrorNone || !strings.Contains(call.Message, fmt.Sprintf("answered %d", status)) {
			t.Errorf("class %q, message %q", call.Class, call.Message)
		}
	}
	for _, answer := range []struct {
		status int
		body   string
	}{{401, ""}, {403, " \n"}, {302, ""}, {400, "{}"}, {500, ""}, {503, `{"up": false}`}} {
		bubble(t, fmt.Sprintf("status read, %d %q", answer.status, answer.body), func(t *testing.T) {
			h := newHouse(t, changes{})
			h.accept()
			time.Sleep(2 * time.Second)
			h.caller.then(says(answer.status, answer.body))
			h.attend()
			cause(t, last[*events.ObservationFailed](h).Call, answer.status)
		})
	}
	for _, status := range []int{204, 302, 307, 500} {
		bubble(t, fmt.Sprintf("create, %d", status), func(t *testing.T) {
			h := newHouse(t, changes{contract: "example-ask"})
			h.caller.then(says(status, ""))
			h.attend()
			f := last[*events.CreateAnswered](h)
			if f.Outcome != events.CreateAmbiguous {
				t.Error(f.Outcome)
			}
			cause(t, f.Call, status)
			if p := h.state().Problem; p.Message != f.Message || p.Class != f.Class {
				t.Errorf("the operation shows %+v", p)
			}
		})
	}
	bubble(t, "look-up, 403", func(t *testing.T) {
		h := newHouse(t, changes{contract: "example-lookup"})
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
		h.attend()
		h.caller.then(says(403, ""))
		due := h.due()
		time.Sleep(time.Until(due.at))
		if err := h.poller.Attend(t.Context(), due); err != nil {
			t.Fatal(err)
		}
		cause(t, last[*events.LookupAnswered](h).Call, 403)
	})
}

// lookedFor makes an operation whose create was lost and looks it up once.
func lookedFor(t *testing.T, c changes, pages ...string) (*house, *events.LookupAnswered) {
	t.Helper()
	h := newHouse(t, c)
	h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
	h.attend()
	for _, page := range pages {
		h.caller.then(says(200, strings.ReplaceAll(page, "NOW", time.Now().Format(time.RFC3339))))
	}
	due := h.due()
	time.Sleep(time.Until(due.at))
	h.take()
	if err := h.poller.Attend(t.Context(), due); err != nil {
		t.Fatal(err)
	}
	if len(h.caller.script) != 0 {
		t.Errorf("%d pages were not asked for", len(h.caller.script))
	}
	return h, last[*events.LookupAnswered](h)
}

func ids(f *events.LookupAnswered) []string {
	var list []string
	for _, j := range f.Jobs {
		list = append(list, j.ID)
	}
	return list
}

type answerer = func(context.Context, outbound.Request) (outbound.Answer, error)

func broken(list ...answerer) []answerer { return list }

func pages(bodies []string) (list []answerer) {
	for _, body := range bodies {
		list = append(list, says(200, body))
	}
	return list
}

func TestLookups(t *testing.T) {
	exact := changes{contract: "example-lookup"}
	job := func(id, reference string) string {
		return fmt.Sprintf(`{"job_id": %q, "client_reference": %q}`, id, reference)
	}
	next := `"next": "https://api.example/v1/jobs?page=2"`
	bubble(t, "two pages, the job on both", func(t *testing.T) {
		h, f := lookedFor(t, exact,
			`{"jobs": [`+job("j-8", "other")+`,`+job("j-1", "ref-1")+`], `+next+`}`, `{"jobs": [`+job("j-1", "ref-1")+`]}`)
		if f.Outcome != events.LookupFound || f.Pages != 2 || !slices.Equal(ids(f), []string{"j-1"}) || f.Jobs[0].Claim != events.ClaimOwn {
			t.Errorf("%+v", f)
		}
		same(t, h.take(), "GET /v1/jobs?client_reference=ref-1", "GET /v1/jobs?page=2", "claim", "lookup.answered")
		if s := h.state(); s.Job.ID != "j-1" {
			t.Error(s.Phase)
		}
	})
	bubble(t, "none", func(t *testing.T) {
		_, f := lookedFor(t, exact, `{"jobs": []}`)
		if f.Outcome != events.LookupAbsent || !f.Conclusive || f.Pages != 1 {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "the first page decides how old the answer is", func(t *testing.T) {
		h := newHouse(t, exact)
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
		h.attend()
		due := h.due()
		time.Sleep(time.Until(due.at))
		began := time.Now()
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			a := answered(r, 200, `{"jobs": [], `+next+`}`)
			time.Sleep(5 * time.Second)
			return a, nil
		}, says(200, `{"jobs": []}`))
		if err := h.poller.Attend(t.Context(), due); err != nil {
			t.Fatal(err)
		}
		if f := last[*events.LookupAnswered](h); !f.LeftAt.Equal(began) {
			t.Errorf("left at %v, the first page at %v", f.LeftAt, began)
		}
	})
	// A look-up that breaks off keeps what carries our reference, and nothing else.
	full := slices.Repeat([]string{`{"jobs": [], ` + next + `}`}, maxPages)
	for name, c := range map[string]struct {
		first string // page
		then  []answerer
		want  events.LookupOutcome
		jobs  []string
		class events.ErrorClass
	}{
		"ours, then a page that does not come": {
			job("j-8", "other") + "," + job("j-1", "ref-1"), broken(breaks(outbound.Timeout, outbound.SentUnknown)),
			events.LookupFound,
			[]string{"j-1"},
			events.ErrorTimeout,
		},
		"ours, then a page that cannot be read": {
			job("j-1", "ref-1"), broken(says(200, "<html>")), events.LookupFound, []string{"j-1"}, events.ErrorUnreadable,
		},
		"ours, then a page with an error": {
			job("j-1", "ref-1"), broken(says(503, "{}")), events.LookupFound, []string{"j-1"}, events.ErrorServer,
		},
		"ours, then more pages than are allowed": {
			job("j-1", "ref-1"), broken(pages(full[1:])...), events.LookupFound, []string{"j-1"}, events.ErrorTooLarge,
		},
		"two of ours, then a page that does not come": {
			job("j-1", "ref-1") + "," + job("j-2", "ref-1"), broken(breaks(outbound.Timeout, outbound.SentUnknown)),
			events.LookupFound,
			[]string{"j-1", "j-2"},
			events.ErrorTimeout,
		},
		"none of ours, then a page that does not come": {
			job("j-8", "other"), broken(breaks(outbound.Timeout, outbound.SentUnknown)), events.LookupFailed, nil, events.ErrorTimeout,
		},
	} {
		bubble(t, name, func(t *testing.T) {
			h := newHouse(t, exact)
			h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
			h.attend()
			due := h.due()
			time.Sleep(time.Until(due.at))
			h.caller.then(says(200, `{"jobs": [`+c.first+`], `+next+`}`))
			h.caller.then(c.then...)
			if err := h.poller.Attend(t.Context(), due); err != nil {
				t.Fatal(err)
			}
			f := last[*events.LookupAnswered](h)
			if f.Outcome != c.want || !slices.Equal(ids(f), c.jobs) || f.Class != c.class || f.Conclusive || f.Pages != uint64(1+len(c.then)) {
				t.Errorf("%+v", f)
			}
			s := h.state()
			switch len(c.jobs) {
			case 0:
				if s.Job.ID != "" || s.Creates.Unresolved() != 1 {
					t.Errorf("%s, job %q", s.Phase, s.Job.ID)
				}
			case 1:
				if s.Job.ID != "j-1" || !s.OwedLookup {
					t.Errorf("job %q, a whole look-up owed: %v", s.Job.ID, s.OwedLookup)
				}
			default:
				if s.Quarantine != projections.QuarantineConflict {
					t.Error(s.Phase, s.Quarantine)
				}
			}
		})
	}
	bubble(t, "too many pages", func(t *testing.T) {
		_, f := lookedFor(t, exact, slices.Repeat([]string{`{"jobs": [], ` + next + `}`}, maxPages)...)
		if f.Outcome != events.LookupFailed || f.Class != events.ErrorTooLarge || f.Pages != maxPages || f.Conclusive {
			t.Errorf("%+v", f)
		}
	})
	many := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, job(fmt.Sprintf("j-%d", i), "ref-1"))
		}
		return strings.Join(list, ",")
	}
	for name, pages := range map[string][]string{
		"too many jobs":                  {`{"jobs": [` + many(maxFound+1) + `], ` + next + `}`},
		"too many jobs on the last page": {`{"jobs": [` + many(maxFound+1) + `]}`},
	} {
		bubble(t, name, func(t *testing.T) {
			h, f := lookedFor(t, exact, pages...)
			if f.Outcome != events.LookupFailed || f.Class != events.ErrorTooLarge || len(f.Jobs) != 0 {
				t.Errorf("%+v", f)
			}
			if _, owned, err := h.journal.Owner(t.Context(), "example", "main", "j-0"); owned || err != nil {
				t.Error("claimed a job of a failed look-up", err)
			}
		})
	}
	bubble(t, "as many jobs as are allowed", func(t *testing.T) {
		_, f := lookedFor(t, exact, `{"jobs": [`+many(maxFound)+`]}`)
		if f.Outcome != events.LookupFound || len(f.Jobs) != maxFound {
			t.Errorf("%s, %d", f.Outcome, len(f.Jobs))
		}
	})

	candidate := func(id, created string) string {
		return fmt.Sprintf(`{"id": %q, "created_at": %q, "input": {"a": 1}, "urls": {"get": "https://api.example/v1/predictions/%s"}}`, id, created, id)
	}
	candidates := changes{contract: "replicate"}
	bubble(t, "candidates of others and of the time before are left out", func(t *testing.T) {
		h := newHouse(t, candidates)
		for id, owner := range map[string]string{"c-other": "op_other", "c-mine": operation} {
			if _, err := h.journal.Claim(t.Context(), "example", "main", id, owner); err != nil {
				t.Fatal(err)
			}
		}
		early := time.Now().Add(-providerClockMargin - h.s.Intent.Policy.ClockDifference - time.Second).Format(time.RFC3339)
		just := time.Now().Add(-providerClockMargin - h.s.Intent.Policy.ClockDifference).Format(time.RFC3339)
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown), says(200, `{"results": [`+strings.Join([]string{
			candidate("c-early", early), candidate("c-just", just), candidate("c-other", just), candidate("c-mine", just), candidate("c-just", just),
		}, ",")+`]}`))
		h.attend()
		f := last[*events.LookupAnswered](h)
		if f.Outcome != events.LookupFound || !slices.Equal(ids(f), []string{"c-just", "c-mine"}) || f.Jobs[0].Claim != "" {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "only candidates of others", func(t *testing.T) {
		h := newHouse(t, candidates)
		if _, err := h.journal.Claim(t.Context(), "example", "main", "c-1", "op_other"); err != nil {
			t.Fatal(err)
		}
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown), says(200, `{"results": [`+candidate("c-1", time.Now().Format(time.RFC3339))+`]}`))
		h.attend()
		if f := last[*events.LookupAnswered](h); f.Outcome != events.LookupAbsent || f.Conclusive || len(f.Jobs) != 0 {
			t.Errorf("%+v", f)
		}
	})
}

// The names a contract gives its files reach the list of them and their checks.
func TestManifestNames(t *testing.T) {
	read := contract.ResultReading{MediaType: "application/jsonl", Checks: []events.Check{{Name: "jsonl", Passed: true}}}
	one := file{name: "errors", digest: events.Sum([]byte("a")), size: 1, reading: read}
	two := file{name: "output", digest: events.Sum([]byte("bc")), size: 2, reading: read}
	r := manifest([]file{one, two})
	want := fmt.Sprintf(`{"files":[{"name":"errors","sha256":%q,"size":1,"media_type":"application/jsonl"},{"name":"output","sha256":%q,"size":2,"media_type":"application/jsonl"}]}`, one.digest, two.digest)
	if string(r.Body) != want || r.Checks[0].Name != "jsonl[errors]" || r.Checks[1].Name != "jsonl[output]" {
		t.Errorf("%s\n%+v", r.Body, r.Checks)
	}
}

// A result behind links is read at once: one file as it is, several as a list
// of what was stored.
func TestResultsBehindLinks(t *testing.T) {
	done := func(output string) string { return `{"id": "j-1", "status": "succeeded", "output": ` + output + `}` }
	collect := func(t *testing.T, script ...func(*caller)) *house {
		t.Helper()
		h := newHouse(t, changes{contract: "replicate"})
		h.accept()
		h.finish()
		for _, f := range script {
			f(h.caller)
		}
		h.attend()
		return h
	}
	then := func(status int, body string) func(*caller) { return func(c *caller) { c.then(says(status, body)) } }
	bubble(t, "one file", func(t *testing.T) {
		h := collect(t, then(200, done(`"https://files.example/a?sig=1"`)), then(200, "first"))
		r := last[*events.ResultCollected](h)
		if body, err := h.journal.Payload(t.Context(), r.Payload); err != nil || string(body) != "first" || r.Size != 5 {
			t.Errorf("%+v %q %v", r, body, err)
		}
		if link := h.caller.sent[1]; link.Credential.In != outbound.Nowhere || link.URL != "https://files.example/a?sig=1" {
			t.Errorf("%+v", link)
		}
	})
	bubble(t, "several files", func(t *testing.T) {
		h := collect(t, then(200, done(`["https://files.example/a?sig=1", "https://files.example/b?sig=2"]`)), then(200, "first"), then(200, "second"))
		r := last[*events.ResultCollected](h)
		body, err := h.journal.Payload(t.Context(), r.Payload)
		want := fmt.Sprintf(`{"files":[{"sha256":%q,"size":5,"media_type":"application/json"},{"sha256":%q,"size":6,"media_type":"application/json"}]}`,
			events.Sum([]byte("first")), events.Sum([]byte("second")))
		if err != nil || string(body) != want || r.MediaType != contract.FilesType {
			t.Errorf("%s %s, %v", r.MediaType, body, err)
		}
		for _, file := range []string{"first", "second"} {
			if stored, err := h.journal.Payload(t.Context(), events.Sum([]byte(file))); err != nil || string(stored) != file {
				t.Errorf("%s: %q %v", file, stored, err)
			}
		}
		var names []string
		for _, c := range r.Checks {
			names = append(names, c.Name)
		}
		same(t, names, "not_empty[0]", "not_empty[1]")
	})
	bubble(t, "a link that ran out", func(t *testing.T) {
		h := collect(t, then(200, done(`["https://files.example/a", "https://files.example/b"]`)), then(200, "first"), then(403, "denied"))
		if f := last[*events.ResultFailed](h); f.Outcome != events.ResultError || f.Class != events.ErrorExpired {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "a file that could not be asked for: the call before it has left", func(t *testing.T) {
		h := collect(t, then(200, done(`"https://files.example/a"`)), func(c *caller) { c.then(breaks(outbound.Dial, outbound.NotSent)) })
		if f := last[*events.ResultFailed](h); f.Outcome != events.ResultAmbiguous {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "no secret of a link is stored", func(t *testing.T) {
		h := collect(t, then(200, done(`"https://files.example/a?sig=s3cret"`)), then(404, `gone: https://files.example/a?sig=s3cret`))
		if f := last[*events.ResultFailed](h); strings.Contains(fmt.Sprintf("%+v %s", f, f.Inline), "s3cret") {
			t.Errorf("%+v", f)
		}
	})
}

// Without a credential a read is a failed read, and a call with side effects
// rests.
func TestCredentialMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.identity = func() (string, error) { return "", fmt.Errorf("env:KEY is not set") }
		_, trail := h.attend()
		same(t, trail, "step.deferred")
		if f := last[*events.StepDeferred](h); f.Reason != events.DeferNoCredential || f.Detail != "env:KEY is not set" {
			t.Errorf("%+v", f)
		}

		h = newHouse(t, changes{})
		h.accept()
		h.caller.identity = func() (string, error) { return "", fmt.Errorf("env:KEY is not set") }
		time.Sleep(2 * time.Second)
		_, trail = h.attend()
		same(t, trail, "observation.failed")
		if f := last[*events.ObservationFailed](h); f.Class != events.ErrorNoCredential {
			t.Errorf("%+v", f)
		}

		h = newHouse(t, changes{})
		h.accept()
		h.finish()
		h.caller.identity = func() (string, error) { return "", fmt.Errorf("env:KEY is not set") }
		_, trail = h.attend()
		same(t, trail, "step.deferred")
		if s := h.state(); s.Phase != projections.PhaseResultCollecting {
			t.Error(s.Phase)
		}
	})
}

// Whoever measures is told of each exchange, answered or not, and by what step.
func TestObserve(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var seen []Exchange
		h := newHouse(t, changes{config: func(c *Config) { c.Observe = func(e Exchange) { seen = append(seen, e) } }})
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			time.Sleep(3 * time.Second)
			return answered(r, 202, `{"job_id": "j-1", "state": "queued"}`), nil
		})
		h.attend()
		time.Sleep(time.Minute)
		h.caller.then(breaks(outbound.DNS, outbound.NotSent))
		h.attend()
		want := []Exchange{
			{Provider: "example", Step: projections.StepCreate, Outcome: "2xx", Took: 3 * time.Second},
			{Provider: "example", Step: projections.StepRead, Outcome: "dns"},
		}
		if !slices.Equal(seen, want) {
			t.Errorf("\n got %+v\nwant %+v", seen, want)
		}
	})
}
