package contract

import (
	"fmt"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// A success that calls itself a part of what was asked for is no status, no
// result and no proof that a job is absent, whatever its body reads like.
func TestParts(t *testing.T) {
	lookup := parse(t, edited(t, "example-lookup",
		"    items: body.jobs\n", "    items: body.?jobs.orValue([])\n    absent: status == 404 || status == 206 || !given(body.?jobs)\n"))
	result := parse(t, edited(t, "example", "not_ready: status in [404, 409]", "not_ready: status in [206, 404, 409]", "expired: status == 410", `expired: body.?gone.orValue(false)`))
	in := Inputs{JobID: "j-1", ClientReference: "ref-1", Params: []byte(`{}`)}
	const body = `{"job_id":"j-1","id":"j-1","state":"succeeded","status":"succeeded","jobs":[],"gone":true,"output":[1,2]}`
	reads := map[string]func(Answer) string{
		"status": func(a Answer) string {
			r := builtin(t, "example").ReadStatus(a, in)
			return fmt.Sprint(r.State, r.Class, " ", r.Detail)
		},
		"lookup": func(a Answer) string {
			r := lookup.ReadLookup(a, in)
			return fmt.Sprint(r.Outcome, " ", r.Class, " ", r.Detail)
		},
		"result": func(a Answer) string {
			r := result.ReadResult(a, in)
			return fmt.Sprint(r.NotReady, len(r.Body), " ", r.Class, " ", r.Detail)
		},
		"result from status": func(a Answer) string {
			r := builtin(t, "replicate").ReadResult(a, in)
			return fmt.Sprint(r.NotReady, len(r.Body), " ", r.Class, " ", r.Detail)
		},
		"link": func(a Answer) string {
			r := builtin(t, "replicate").ReadLink(a, in)
			return fmt.Sprint(r.NotReady, len(r.Body), " ", r.Class, " ", r.Detail)
		},
	}
	for name, c := range map[string]struct {
		status int
		header map[string][]string
		part   bool
	}{
		"206":                   {206, nil, true},
		"206 with its range":    {206, map[string][]string{"Content-Range": {"bytes 0-9/100"}}, true},
		"200 with a range":      {200, map[string][]string{"content-range": {"items 0-1/2"}}, true},
		"200":                   {200, map[string][]string{"Accept-Ranges": {"bytes"}}, false},
		"an error with a range": {503, map[string][]string{"Content-Range": {"bytes */100"}}, false},
	} {
		for call, read := range reads {
			t.Run(name+" to "+call, func(t *testing.T) {
				header := map[string][]string{"Content-Type": {"application/json"}}
				for k, v := range c.header {
					header[k] = v
				}
				got := read(Answer{Status: c.status, Header: header, Body: []byte(body), URL: "https://api.test/x", ReceivedAt: received})
				if says := strings.Contains(got, "unreadable the answer is a part"); says != c.part {
					t.Errorf("reads %q", got)
				}
			})
		}
	}
	// What a create says of a job is evidence at any status; its contract decides.
	a := Answer{Status: 206, Body: []byte(`{"job_id":"j-1","state":"queued"}`), URL: "https://api.test/x", ReceivedAt: received}
	if r := parse(t, edited(t, "example", "status in [200, 201, 202]", "status in [200, 201, 202, 206]")).ReadCreate(a, in); r.JobID != "j-1" {
		t.Errorf("create: %+v", r)
	}
	// And no contract can ask for a part.
	if _, err := Parse("test.yaml", edited(t, "example", "  repeat: safe\n  read:\n    not_ready", "  repeat: safe\n  headers: {Range: bytes=0-9}\n  read:\n    not_ready")); err == nil || !strings.Contains(err.Error(), "is not a header a contract may set") {
		t.Error(err)
	}
}

// A body that ended with the connection is half of one as likely as a whole: it
// is kept, and counts as checked only where it shows its end by itself.
func TestUnendedBodies(t *testing.T) {
	in := Inputs{JobID: "j-1", ClientReference: "ref-1", Params: []byte(`{}`)}
	file := func(checks string) *Contract {
		return parse(t, edited(t, "example", "  checks:\n    - name: json\n      json: true\n", checks))
	}
	const (
		asJSON  = "  checks: [{name: c, json: true}]\n"
		asLines = "  checks: [{name: c, jsonl: true}]\n"
		counted = "  checks: [{name: c, jsonl: true}, {name: n, lines: \"2\"}]\n"
		lines   = "  checks: [{name: n, lines: \"2\"}]\n"
		sized   = "  checks: [{name: n, size: \"4\"}]\n"
		expr    = "  checks: [{name: e, expr: 'true'}]\n"
	)
	for _, c := range []struct {
		name, checks, mediaType, body string
		shown                         bool
	}{
		{"an object", asJSON, "application/json", `{"a":1}`, true},
		{"an object of no media type", asJSON, "", " [1,2]\n", true},
		{"an object that no check looks at", "", "application/problem+json", `{"a":1}`, true},
		{"half of an object that no check looks at", "", "application/json", `{"a":`, false},
		{"a number, as of a longer one", asJSON, "application/json", `12`, false},
		{"a text", asJSON, "application/json", `"12"`, true},
		{"an object among other bytes", "", "application/octet-stream", `{"a":1}`, false},
		{"lines", asLines, "application/jsonl", "{\"a\":1}\n{\"a\":2}\n", false},
		{"the first of lines, which reads as JSON", asLines, "application/json", "{\"a\":1}\n", false},
		{"lines whose number is known", counted, "application/jsonl", "{\"a\":1}\n{\"a\":2}\n", true},
		{"the same without the last line's end", counted, "application/jsonl", "{\"a\":1}\n{\"a\":2}", true},
		{"too few lines", counted, "application/jsonl", "{\"a\":1}\n", false},
		{"lines of text", lines, "text/csv", "a,b\n1,2\n", true},
		{"a line of text that may go on", lines, "text/csv", "a,b\n1,2", false},
		{"bytes whose number is known", sized, "image/png", "\x89PNG", true},
		{"fewer", sized, "image/png", "\x89PN", false},
		{"bytes", expr, "image/png", "\x89PNG", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Answer{Status: 200, Header: map[string][]string{"Content-Type": {c.mediaType}}, Body: []byte(c.body), URL: "https://api.test/x", ReceivedAt: received}
			find := func(r ResultReading) *events.Check {
				for _, k := range r.Checks {
					if k.Name == "ended" {
						return &k
					}
				}
				return nil
			}
			if k := find(file(c.checks).ReadResult(a, in)); k != nil {
				t.Errorf("its end is not in doubt: %+v", k)
			}
			a.Unended = true
			r := file(c.checks).ReadResult(a, in)
			if k := find(r); k == nil || k.Passed != c.shown || k.Passed == (k.Detail != "") || string(r.Body) != c.body {
				t.Errorf("%+v of %+v", k, r)
			}
		})
	}
	// One JSON document is whole if it can be read, so states go on as they did.
	a := Answer{Status: 200, Body: []byte(`{"job_id":"j-1","state":"running","jobs":[]}`), URL: "https://api.test/x", ReceivedAt: received, Unended: true}
	if r := builtin(t, "example").ReadStatus(a, in); r.State != events.ClassRunning {
		t.Errorf("status: %+v", r)
	}
	if r := builtin(t, "example-lookup").ReadLookup(a, in); r.Outcome != events.LookupAbsent {
		t.Errorf("look-up: %+v", r)
	}
	// An empty body shows nothing.
	empty := parse(t, edited(t, "example-lookup", "    items: body.jobs\n", "    items: body.jobs\n    absent: status == 404 || !given(body.?jobs)\n"))
	a.Body = nil
	if r := empty.ReadLookup(a, in); r.Outcome != events.LookupFailed {
		t.Errorf("empty look-up: %+v", r)
	}
	a.Status = 404 // the head came whole
	if r := empty.ReadLookup(a, in); r.Outcome != events.LookupAbsent {
		t.Errorf("404: %+v", r)
	}
	a.Status, a.Unended = 200, false
	if r := empty.ReadLookup(a, in); r.Outcome != events.LookupAbsent {
		t.Errorf("an empty body with its length: %+v", r)
	}
}
