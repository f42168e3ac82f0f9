package poller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

type reply = func(context.Context, outbound.Request) (outbound.Answer, error)

// fails is an exchange that failed after the headers had come, or before.
func fails(class outbound.Class, sent outbound.Sent, status int, body string) reply {
	return func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
		a := outbound.Answer{URL: r.URL}
		if status != 0 {
			a = answered(r, status, body)
			a.Truncated = true
		}
		return a, &outbound.Failure{Class: class, Sent: sent, Err: errors.New("as scripted")}
	}
}

// unfollowed is a redirect that led no further.
func unfollowed(class outbound.Class) reply {
	return func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
		a := answered(r, 302, "")
		a.Header.Set("Location", "/elsewhere")
		return a, &outbound.Failure{Class: class, Sent: outbound.SentUnknown, Err: errors.New("as scripted")}
	}
}

// page is a whole answer of a proxy.
func page(status int, mediaType, body string) reply {
	return func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
		a := answered(r, status, body)
		a.Header = http.Header{"Content-Type": {mediaType}}
		return a, nil
	}
}

// What is recorded where an answer is not one: on each kind of call, and never
// as a state of the job, a result or a proof that nothing was made.
func TestAnswersThatAreNone(t *testing.T) {
	const whole = `{"job_id": "j-1", "state": "succeeded", "status": "succeeded", "output": "https://files.example/a"}`
	calls := map[string]func(t *testing.T, r reply) (*house, string, events.Call){
		"create": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{})
			h.caller.then(r)
			h.attend()
			f := last[*events.CreateAnswered](h)
			return h, string(f.Outcome), f.Call
		},
		"status": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{})
			h.accept()
			time.Sleep(2 * time.Second)
			h.caller.then(r)
			h.attend()
			return h, "", last[*events.ObservationFailed](h).Call
		},
		"lookup": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{contract: "example-lookup"})
			h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
			h.attend()
			h.caller.then(r)
			due := h.due()
			time.Sleep(time.Until(due.at))
			if err := h.poller.Attend(t.Context(), due); err != nil {
				t.Fatal(err)
			}
			f := last[*events.LookupAnswered](h)
			return h, string(f.Outcome), f.Call
		},
		"cancel": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{})
			h.accept(&events.CancelRequested{Who: "team-a"})
			// What a cancel did is asked at once.
			h.caller.then(r, says(200, `{"job_id": "j-1", "state": "running"}`))
			h.attend()
			f := last[*events.CancelAnswered](h)
			return h, string(f.Outcome), f.Call
		},
		"result": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{})
			h.accept()
			h.finish()
			h.caller.then(r)
			h.attend()
			f := last[*events.ResultFailed](h)
			return h, string(f.Outcome), f.Call
		},
		"link": func(t *testing.T, r reply) (*house, string, events.Call) {
			h := newHouse(t, changes{contract: "replicate"})
			h.accept()
			h.finish()
			h.caller.then(says(200, strings.ReplaceAll(whole, "job_id", "id")), r)
			h.attend()
			f := last[*events.ResultFailed](h)
			return h, string(f.Outcome), f.Call
		},
	}
	for _, c := range []struct {
		name  string
		reply reply
		// What each call records: outcome and class. A "-" is not asked here.
		create, status, lookup, cancel, result, link string
	}{
		{
			"login page", page(200, "text/html", "<html><form>password</form></html>"),
			"ambiguous/unreadable", "/unreadable", "failed/unreadable", "ambiguous/unreadable", "-", "-",
		},
		{
			"empty body", says(200, ""),
			// The contract takes the status of a cancel for its answer, as many providers
			// send no body.
			"ambiguous/unreadable", "/unreadable", "failed/unreadable", "acknowledged/", "error/unreadable", "error/unreadable",
		},
		{
			"a part of the whole", says(206, whole),
			"ambiguous/unreadable", "/unreadable", "failed/unreadable", "ambiguous/unreadable", "error/unreadable", "error/unreadable",
		},
		{
			"half of the JSON, as a whole answer", says(200, whole[:30]),
			"ambiguous/unreadable", "/unreadable", "failed/unreadable", "ambiguous/unreadable", "-", "-",
		},
		{
			"body cut", fails(outbound.BodyCut, outbound.SentUnknown, 200, whole),
			"ambiguous/transport", "/unreadable", "failed/transport", "ambiguous/transport", "error/unreadable", "error/unreadable",
		},
		{
			"headers, then slower than the timeout", fails(outbound.Timeout, outbound.SentUnknown, 200, whole[:9]),
			"ambiguous/timeout", "/unreadable", "failed/timeout", "ambiguous/timeout", "error/unreadable", "error/unreadable",
		},
		{
			"headers slower than the timeout", fails(outbound.Timeout, outbound.SentUnknown, 0, ""),
			"ambiguous/timeout", "/timeout", "failed/timeout", "ambiguous/timeout", "ambiguous/timeout", "ambiguous/timeout",
		},
		{
			"coding that is not read", fails(outbound.Encoding, outbound.SentUnknown, 200, ""),
			"ambiguous/unreadable", "/unreadable", "failed/unreadable", "ambiguous/unreadable", "ambiguous/unreadable", "ambiguous/unreadable",
		},
		{
			"coding that is not read, of an error", fails(outbound.Encoding, outbound.SentUnknown, 404, ""),
			"ambiguous/unreadable", "/not_found", "failed/unreadable", "ambiguous/unreadable", "error/not_found", "error/expired",
		},
		{
			"destination refused", fails(outbound.DestinationRefused, outbound.NotSent, 0, ""),
			"not_sent/policy", "/policy", "failed/policy", "not_sent/policy", "not_sent/policy", "ambiguous/policy",
		},
		{
			"destination refused after a redirect", fails(outbound.DestinationRefused, outbound.SentUnknown, 0, ""),
			"ambiguous/policy", "/policy", "failed/policy", "ambiguous/policy", "ambiguous/policy", "ambiguous/policy",
		},
		{
			"redirect that is not followed", unfollowed(outbound.RedirectRefused), // no other call follows one
			"-", "/policy", "failed/policy", "-", "ambiguous/policy", "ambiguous/policy",
		},
		{
			"redirect that waited in vain for its turn", unfollowed(outbound.Timeout),
			"-", "/timeout", "failed/timeout", "-", "ambiguous/timeout", "ambiguous/timeout",
		},
	} {
		for call, want := range map[string]string{
			"create": c.create, "status": c.status, "lookup": c.lookup, "cancel": c.cancel, "result": c.result, "link": c.link,
		} {
			if want == "-" {
				continue
			}
			bubble(t, c.name+" to "+call, func(t *testing.T) {
				h, outcome, recorded := calls[call](t, c.reply)
				if got := outcome + "/" + string(recorded.Class); got != want {
					t.Errorf("recorded %s (%s), want %s", got, recorded.Message, want)
				}
				if recorded.Class != "" && recorded.Status < 300 && recorded.Code == "" && recorded.Message == "" {
					t.Error("nothing says why")
				}
				if strings.HasPrefix(c.name, "redirect") && (!strings.Contains(recorded.Message, "as scripted") || recorded.Status != 302) {
					t.Errorf("%d, %q: the reason is lost", recorded.Status, recorded.Message)
				}
				if recorded.Code != "" && strings.Contains(recorded.Message, recorded.Code+" (") {
					t.Errorf("%q says %q once more", recorded.Message, recorded.Code)
				}
				if c.name == "body cut" && recorded.Class == events.ErrorUnreadable && !strings.HasPrefix(recorded.Message, "the body was cut: ") {
					t.Errorf("%q does not say that it was cut", recorded.Message)
				}
				if s := h.state(); s.Phase.Terminal() || call == "status" && s.Job.Remote != "" || call == "create" && s.Job.ID != "" {
					t.Errorf("%s, job %+v", s.Phase, s.Job)
				}
			})
		}
	}
}

// Where the body is the result, half of it is kept as what was given, and the
// contract's checks say that it is none. A page where JSON is expected comes
// from somewhere else: the result is read again.
func TestResultThatIsNone(t *testing.T) {
	bubble(t, "half of the JSON", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		h.finish()
		h.caller.then(says(200, `{"answer": 4`))
		h.attend()
		failed := ""
		for _, k := range last[*events.ResultCollected](h).Checks {
			if !k.Passed {
				failed += k.Name
			}
		}
		if s := h.state(); failed != "json" || s.Phase != projections.PhaseResultValidationFailed {
			t.Errorf("failed checks %q, %s", failed, s.Phase)
		}
	})
	bubble(t, "lines that ended with the connection", func(t *testing.T) {
		h := newHouse(t, changes{replace: []string{"json: true", "jsonl: true"}})
		h.accept()
		h.finish()
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			a := answered(r, 200, "{\"answer\": 4}\n")
			a.CloseDelimited = true
			return a, nil
		})
		h.attend()
		f := last[*events.ResultCollected](h)
		if s := h.state(); s.Phase != projections.PhaseResultValidationFailed {
			t.Errorf("%s: %+v", s.Phase, f.Checks)
		}
		if kept, err := h.journal.Payload(t.Context(), f.Payload); err != nil || string(kept) != "{\"answer\": 4}\n" {
			t.Errorf("kept %q, %v", kept, err)
		}
	})
	bubble(t, "login page", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		h.finish()
		h.caller.then(page(200, "text/html", "<html><form>password</form></html>"))
		h.attend()
		if f := last[*events.ResultFailed](h); f.Outcome != events.ResultError || f.Class != events.ErrorUnreadable {
			t.Errorf("%+v", f)
		}
		time.Sleep(time.Minute)
		h.caller.then(says(200, `{"answer": 4}`))
		h.attend()
		if s := h.state(); s.Phase != projections.PhaseSucceeded {
			t.Errorf("%s", s.Phase)
		}
	})
}

// A call trusts the base URL in force and the contract's origins, whatever it
// is sent to.
func TestTrustedOrigins(t *testing.T) {
	bubble(t, "all calls", func(t *testing.T) {
		h := newHouse(t, changes{replace: []string{"credential:\n", "origins: [https://files.example:8443, HTTPS://Other.example:443/]\ncredential:\n"}})
		h.caller.then(says(201, `{"job_id": "j-1", "state": "queued"}`))
		h.attend()
		time.Sleep(2 * time.Second)
		h.caller.then(says(200, `{"job_id": "j-1", "state": "succeeded"}`), says(200, `{"answer": 42}`))
		h.attend()
		if len(h.caller.sent) != 3 {
			t.Fatalf("%d calls", len(h.caller.sent))
		}
		for _, r := range h.caller.sent {
			if got := fmt.Sprint(r.Trusted); got != "[https://api.example https://files.example:8443 https://other.example]" {
				t.Errorf("%s %s trusts %s", r.Method, r.URL, got)
			}
		}
	})
}
