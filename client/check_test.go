package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

// A check says what the submit under the same key does, and records nothing.
func TestCheck(t *testing.T) {
	s := start(t, time.Hour)
	c, p := through(t, s, stand.Faults{Lose: true})
	ctx := t.Context()
	wish := intent(1)
	wish.Tags = map[string]string{"validate_only": "x"}
	wish.Params = json.RawMessage(`{"correlation":"c-1", "n":1.0}`) // spelt as no encoder does
	v, err := c.Check(ctx, "k", wish)
	if err != nil || v.Would != client.WouldRecord || v.Status != http.StatusAccepted || v.Operation.ID == "" || v.Warnings == nil {
		t.Fatalf("%+v: %v", v, err)
	}
	if _, err := c.Get(ctx, v.Operation.ID); !problemIs(err, "not_found") {
		t.Errorf("what was checked is there: %v", err)
	}
	bad := intent(2)
	bad.Adopt, bad.NotBefore = &client.Adopt{JobID: "j"}, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	bad.AllowOverlap = true
	_, err = c.Check(ctx, "bad", bad)
	var refused *client.Problem
	if !errors.As(err, &refused) || refused.Code != "validation_failed" {
		t.Fatalf("%v", err)
	}
	fields := map[string]bool{}
	for _, e := range refused.Errors {
		fields[e.Field] = true
	}
	if len(fields) != 2 || !fields["/not_before"] || !fields["/allow_overlap"] {
		t.Errorf("refused %v", fields)
	}
	items := []client.BatchItem{{Operation: wish}, {Operation: client.Submission{Provider: "nobody"}}}
	b, err := c.CheckBatch(ctx, "b", "", items)
	if err != nil || b.Valid != 1 || b.Refused != 1 || b.Recorded != 0 || b.Items[0].Validation == nil || b.Items[0].Validation.Would != client.WouldRecord || b.Items[1].Validation != nil {
		t.Errorf("%+v: %v", b, err)
	}
	for op, err := range c.Operations(ctx, client.Filter{}) {
		t.Errorf("%s was recorded: %v", op.ID, err)
	}
	op, _, err := c.Submit(ctx, "k", wish)
	if err != nil || op.ID != v.Operation.ID {
		t.Fatalf("%s is not %s: %v", op.ID, v.Operation.ID, err)
	}
	if v, err = c.Check(ctx, "k", wish); err != nil || v.Would != client.WouldReplay || v.Operation.ID != op.ID || v.Operation.Version < op.Version || v.Operation.OriginalStatus != 0 {
		t.Errorf("%s %s at %d: %v", v.Would, v.Operation.ID, v.Operation.Version, err)
	}
	for _, a := range p.Requests() {
		if a.Path == "/v1/operations" && a.Key == "bad" && a.Status < 400 {
			t.Errorf("%+v", a)
		}
	}
}

func problemIs(err error, code string) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Code == code
}

// An answer that does not say that it is one to a check is none: it may have been taken
// for a submit.
func TestCheckThatRecorded(t *testing.T) {
	c := inBubble(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":batch") {
			fmt.Fprint(w, `{"items":[{"operation":{"id":"op_1"}}]}`)
			return
		}
		fmt.Fprint(w, `{"id":"op_1"}`)
	})
	if v, err := c.Check(t.Context(), "k", intent(1)); err == nil || !strings.Contains(err.Error(), "nothing was recorded") {
		t.Errorf("%+v: %v", v, err)
	}
	if b, err := c.CheckBatch(t.Context(), "k", "", []client.BatchItem{{Operation: intent(1)}}); err == nil {
		t.Errorf("%+v", b)
	}
}

// Several cancels at once are done once, each by itself or all of them.
func TestCancelBatch(t *testing.T) {
	s := start(t, time.Hour)
	c, _ := through(t, s, stand.Faults{Lose: true})
	ctx := t.Context()
	var ops []client.Operation
	for i := range 4 {
		later := intent(i) // nothing moves it meanwhile
		later.NotBefore = time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339)
		op, _, err := c.Submit(ctx, fmt.Sprint("k-", i), later)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	b, err := c.CancelBatch(ctx, "", "why", []client.CancelItem{{ID: ops[0].ID, Key: "own"}, {ID: "op_nobody"}, {ID: ops[1].ID, Version: 1 << 40}})
	if err != nil || b.Mode != client.Independent || b.Recorded+b.Replayed != 1 || b.Refused != 2 {
		t.Fatalf("%+v: %v", b, err)
	}
	if it := b.Items[0]; it.Key != "own" || it.Operation == nil || it.Operation.Cancel == nil || !it.Operation.Cancel.Wished || !json.Valid(it.Operation.Raw) {
		t.Errorf("%+v", it)
	}
	for i, code := range map[int]string{1: "not_found", 2: "stale"} {
		if p := b.Items[i].Problem; p == nil || p.Code != code {
			t.Errorf("item %d: %+v", i, p)
		}
	}
	if _, err = c.CancelBatch(ctx, client.Atomic, "", []client.CancelItem{{ID: ops[2].ID}, {ID: "op_nobody"}}); err == nil {
		t.Error("a batch for all or none went through in part")
	}
	all := []client.CancelItem{{ID: ops[2].ID}, {ID: ops[3].ID}}
	if b, err = c.Keyed("all").CancelBatch(ctx, client.Atomic, "", all); err != nil || b.Replayed != 2 { // the first answer was lost
		t.Errorf("%+v: %v", b, err)
	}
	for i, op := range ops {
		line, err := c.Timeline(ctx, op.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range line {
			if e.Type == "cancel.requested.v1" {
				n++
			}
		}
		if want := map[bool]int{true: 0, false: 1}[i == 1]; n != want {
			t.Errorf("operation %d has %d wishes to cancel, want %d", i, n, want)
		}
	}
}

// Whatever the service shows of an operation, and takes in a submit, has its place in the
// client's types.
func TestMembers(t *testing.T) {
	members := func(t reflect.Type) map[string]bool {
		names := map[string]bool{}
		for i := range t.NumField() {
			if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
				names[name] = true
			}
		}
		return names
	}
	for _, one := range []struct {
		ours, theirs any
		beside       string
	}{
		// phase is state; a check gives validation beside the operation.
		{client.Operation{}, ingest.View{}, "phase validation"},
		{client.Submission{}, ingest.SubmitBody{}, "validate_only"},
		{client.Deadlines{}, ingest.DeadlinesBody{}, ""},
		{client.Adopt{}, ingest.AdoptBody{}, ""},
		{client.Decision{}, ingest.DecideBody{}, ""},
		{client.Validation{}, ingest.ValidationView{}, ""},
		{client.Approval{}, ingest.ApprovalView{}, ""},
		{client.Input{}, ingest.InputView{}, ""},
		{client.Job{}, ingest.JobView{}, ""},
		{client.Cost{}, ingest.CostView{}, ""},
		{client.ResultMeta{}, ingest.ResultView{}, ""},
		{client.AllowedAction{}, ingest.Allowed{}, ""},
		{client.Standing{}, ingest.Standing{}, ""},
		{client.Batch{}, ingest.BatchView{}, "validate_only"},
		{client.BatchOutcome{}, ingest.BatchItem{}, ""},
	} {
		ours := members(reflect.TypeOf(one.ours))
		for name := range members(reflect.TypeOf(one.theirs)) {
			if !ours[name] && !strings.Contains(" "+one.beside+" ", " "+name+" ") {
				t.Errorf("%T has no %s", one.ours, name)
			}
		}
	}
}
