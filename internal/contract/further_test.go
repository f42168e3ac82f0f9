package contract

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

const waits = `classes:
  input_required: [waiting]
`

const answers = `input:
  path: /v1/jobs/{job.id}/input
  headers:
    Idempotency-Key: "{input_token}"
  repeat: safe
  params:
    required: [answer]
    closed: true
    properties:
      answer: {type: string, enum: ["yes", "no"]}
  read:
    done: status == 200
    refused: status in [409, 422, 429]
cleanup:
  path: /v1/jobs/{job.id}
  repeat: once
  read:
    done: status in [204, 404]
    refused: status == 409
`

func answering(t testing.TB, pairs ...string) []byte {
	t.Helper()
	src := string(edited(t, "example-ask", "classes:\n", waits, "result:\n", answers+"result:\n"))
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(src, pairs[i]) {
			t.Fatalf("nothing to edit: %q", pairs[i])
		}
		src = strings.Replace(src, pairs[i], pairs[i+1], 1)
	}
	return []byte(src)
}

// What a contract asks for with an answer and with a cleanup, and what it says of both.
func TestFurtherRequests(t *testing.T) {
	in := Inputs{JobID: "j/1", Params: []byte(`{"n":1.0}`), Token: "tok", Input: []byte(`{"answer":"yes","big":12345678901234567890}`), InputToken: "it-1"}
	var b strings.Builder
	b.WriteString("# Inputs and cleanups: the requests, and what a reader of the contract is told.\n")
	for _, c := range []struct {
		name  string
		pairs []string
	}{
		{"as it is", nil},
		{"set and dropped", []string{"  repeat: safe\n  params", "  body:\n    drop: [/big]\n    set:\n      /job: job.id\n      /version: params.n\n  repeat: once\n  params"}},
		{"of its own", []string{"  repeat: safe\n  params", "  body:\n    from: empty\n    set:\n      /choice: input.answer == \"yes\"\n    as: form\n  repeat: safe\n  params", "  repeat: once\n", "  method: POST\n  body: none\n  repeat: safe\n"}},
	} {
		k := parse(t, answering(t, c.pairs...))
		fmt.Fprintf(&b, "\n== %s: %+v, a cleanup is repeated: %t\n", c.name, k.Offers(), k.promises.RepeatCleanup)
		r, err := k.Input(in)
		showRequest(&b, r, err)
		r, err = k.Cleanup(in)
		showRequest(&b, r, err)
		for _, topic := range k.Topics() {
			if topic.Name == "Input" || topic.Name == "Cleanup" {
				fmt.Fprintf(&b, "  %s\n    %s\n", topic.Name, strings.Join(topic.Lines, "\n    "))
			}
		}
	}
	golden(t, "further.txt", b.String())

	k := parse(t, answering(t))
	if _, err := k.Input(Inputs{JobID: "j", Input: []byte(`{}`)}); err == nil {
		t.Error("an input went without its token")
	}
	if _, err := k.Cleanup(Inputs{}); err == nil {
		t.Error("a cleanup of no job was built")
	}
	if _, err := k.Input(Inputs{JobID: "j", InputToken: "t", Input: []byte(`{`)}); err == nil {
		t.Error("an input that is no JSON was sent")
	}
	plain := builtin(t, "example-ask")
	if _, err := plain.Input(in); !errors.Is(err, ErrNoCall) {
		t.Errorf("%v", err)
	}
	if _, err := plain.Cleanup(in); !errors.Is(err, ErrNoCall) || plain.Offers() != (events.Offers{}) {
		t.Errorf("%v, %+v", err, plain.Offers())
	}
	for input, want := range map[string]string{
		`{"answer":"yes"}`: "", `{"answer":"perhaps"}`: "/answer not_allowed", `{"answer":1}`: "/answer type", `{}`: "/answer required",
		`{"answer":"no","more":1}`: "/more unknown", `[]`: " type",
	} {
		got := ""
		for _, e := range k.CheckInput([]byte(input)) {
			got += e.Field + " " + e.Code
		}
		if got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
}

// An answer counts as done or refused only where the contract says so of the whole of it.
func TestReadFurther(t *testing.T) {
	k := parse(t, answering(t))
	for _, c := range []struct {
		answer         Answer
		input, cleanup string
	}{
		{Answer{Status: 200, Body: []byte(`{}`)}, "done", "ambiguous unreadable"},
		{Answer{Status: 204}, "ambiguous unreadable", "done"},
		{Answer{Status: 404, Body: []byte(`{}`)}, "ambiguous not_found", "done"},
		{Answer{Status: 409, Body: []byte(`{"code":"late","detail":"it goes on"}`)}, "refused refused", "refused refused"},
		{Answer{Status: 429}, "refused throttled", "ambiguous throttled"},
		{Answer{Status: 500, Body: []byte(`{}`)}, "ambiguous server", "ambiguous server"},
		{Answer{Status: 200, Body: []byte(`<html>`)}, "ambiguous unreadable", "ambiguous unreadable"},
		{Answer{Status: 200, Body: []byte(`{`), Truncated: true}, "ambiguous unreadable", "ambiguous unreadable"},
		{Answer{Status: 200, Body: []byte(`{}`), Header: map[string][]string{"Content-Range": {"bytes 0-1/9"}}}, "ambiguous unreadable", "ambiguous unreadable"},
	} {
		show := func(r FurtherReading) string { return strings.TrimSpace(string(r.Outcome) + " " + string(r.Class)) }
		in := Inputs{JobID: "j", Input: []byte(`{"answer":"yes"}`)}
		if got := show(k.ReadInput(c.answer, in)); got != c.input {
			t.Errorf("%d %s: input %s, want %s", c.answer.Status, c.answer.Body, got, c.input)
		}
		if got := show(k.ReadCleanup(c.answer, in)); got != c.cleanup {
			t.Errorf("%d %s: cleanup %s, want %s", c.answer.Status, c.answer.Body, got, c.cleanup)
		}
	}
	failing := parse(t, answering(t, "done: status == 200", "done: body.ok", "done: status in [204, 404]", "done: body.gone", "refused: status == 409", "refused: body.never"))
	for _, r := range []FurtherReading{failing.ReadInput(Answer{Status: 200}, Inputs{}), failing.ReadCleanup(Answer{Status: 200}, Inputs{})} {
		if r.Outcome != events.CallAmbiguous || r.Detail == "" {
			t.Errorf("a rule that failed: %+v", r)
		}
	}
}
