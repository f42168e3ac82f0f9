package ingest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/cloudevent"
)

// EventSubmit is the type of the one event that is an intent. Its data is exactly a
// [SubmitBody], the body of POST /v1/operations.
const EventSubmit = events.TypePrefix + "operation.submit.v1"

const (
	eventKeyAttribute   = "idempotencykey"
	eventTraceAttribute = "traceparent"
)

// EventRequest asks for an operation by a CloudEvent.
type EventRequest struct {
	Caller      Caller
	Event       cloudevent.Event
	TraceParent string // W3C, where the event has none; "" if there is none
}

// EventKey is the key that an event is recorded under: the extension idempotencykey,
// read as the header Idempotency-Key is, else source and id, which together name one
// event for ever. The latter has spaces, so that no key that a caller can send is
// ever the same; the same event over another protocol has the same.
func EventKey(e cloudevent.Event) (string, error) {
	if text, ok := e.Other[eventKeyAttribute]; ok {
		return ParseKeyOf(eventKeyAttribute, []string{text})
	}
	return "event " + strconv.Itoa(len(e.Source)) + " " + e.Source + " " + e.ID, nil
}

// SubmitEvent is [Service.Submit] for an intent that came as an event. What it is
// fingerprinted by is the data alone, so that the same intent is the same request
// whatever it came in.
func (v *Service) SubmitEvent(ctx context.Context, r EventRequest) (view View, replayed bool, err error) {
	e := r.Event
	if e.Type != EventSubmit {
		return View{}, false, invalid("type", FieldNotAllowed, "is no type of event that is taken here", nil, EventSubmit)
	}
	if media, _, err := mime.ParseMediaType(e.MediaType); e.MediaType != "" && (err != nil || media != cloudevent.JSON) {
		return View{}, false, (&Refusal{Code: CodeMediaType, Allowed: []string{cloudevent.JSON}}).Say("the event's data must be {allowed}", nil)
	}
	key, err := EventKey(e)
	if err != nil {
		return View{}, false, err
	}
	trace := TraceParent(e.Other[eventTraceAttribute])
	if trace == "" {
		trace = r.TraceParent
	}
	return v.Submit(ctx, SubmitRequest{Caller: r.Caller, Key: key, Body: e.Data, TraceParent: trace})
}

// TraceParent lets through what looks like W3C trace context and nothing else.
func TraceParent(s string) string {
	if len(s) != 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return ""
	}
	if _, err := hex.DecodeString(strings.ReplaceAll(s, "-", "")); err != nil || strings.ToLower(s) != s {
		return ""
	}
	return s
}

// EventRefusal turns what is wrong with an event into our codes. The error is one of
// package cloudevent.
func EventRefusal(err error) error {
	var e *cloudevent.Error
	if !errors.As(err, &e) {
		return err
	}
	var values Values
	if e.Bound > 0 {
		values = Values{"max": e.Bound}
	}
	wrong := func(code FieldCode, allowed ...string) *Refusal {
		return invalid(e.Attribute, code, e.Detail, values, allowed...)
	}
	switch e.Problem {
	case cloudevent.NotJSON:
		return &Refusal{Code: CodeMalformedJSON, Detail: "the event is not JSON, or goes on after its end"}
	case cloudevent.TooDeep:
		r := (&Refusal{Code: CodeTooDeep}).Say("the event "+e.Detail, values)
		if e.Attribute != "" {
			r.Errors = []FieldError{Wrong(e.Attribute, FieldOutOfBounds, e.Detail, values)}
		}
		return r
	case cloudevent.Duplicate:
		if e.Pointer != "" {
			return &Refusal{
				Code: CodeDuplicateKey, Detail: "the event has a name twice in one object",
				Errors: []FieldError{Wrong(clip(e.Pointer), FieldDuplicate, "is there twice in one object", nil)},
			}
		}
		return wrong(FieldDuplicate)
	case cloudevent.Missing:
		return wrong(FieldRequired)
	case cloudevent.BadType:
		return wrong(FieldWrongType)
	case cloudevent.TooLong, cloudevent.TooMany:
		return wrong(FieldOutOfBounds)
	case cloudevent.BadName, cloudevent.TwoKinds:
		return wrong(FieldNotAllowed)
	case cloudevent.NotAllowed:
		return wrong(FieldNotAllowed, cloudevent.SpecVersion)
	case cloudevent.BadValue:
	}
	return wrong(FieldMalformed)
}

// EventsView is what became of the events of one request. Each was recorded or
// refused by itself.
type EventsView struct {
	Mode  Mode        `json:"mode" enum:"independent"`
	Items []EventItem `json:"items"` // in the order of the request
}

// EventItem is what became of one event.
type EventItem struct {
	// ID and Source are the event's, "" where they cannot be read.
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
	EventOutcome
}

// EventVerdict is the type of the events that answer intents on NATS. Their data is a
// [IntentVerdict].
const EventVerdict = events.TypePrefix + "operation.verdict.v1"

// IntentVerdict is the answer to an intent on NATS.
type IntentVerdict struct {
	// Sequence is what the server told the agent when it stored the intent.
	Sequence uint64 `json:"sequence"`
	// ID and Source are the event's, "" where they cannot be read.
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
	EventOutcome
}

// EventOutcome is the answer to an intent that came as an event.
type EventOutcome struct {
	Status    int      `json:"status"` // HTTP's, of the answer to the same intent alone
	Replayed  bool     `json:"replayed,omitempty"`
	Operation *View    `json:"operation,omitempty"`
	Problem   *Problem `json:"problem,omitempty"`
}

// OutcomeOf is the outcome of a submit. problem makes the document of an error.
func OutcomeOf(view View, replayed bool, err error, problem func(error) Problem) EventOutcome {
	if err != nil {
		p := problem(err)
		return EventOutcome{Status: p.Status, Problem: &p}
	}
	status := statusSubmitted
	if replayed || view.Terminal || view.Validation != nil {
		status = statusDone
	}
	return EventOutcome{Status: status, Replayed: replayed, Operation: &view}
}

// SubmitEvents submits the events of a batch, which is a JSON array. Each is
// recorded or refused by itself; the error is about the whole, of which nothing
// was looked at then. Events under one key are taken in their order.
func (v *Service) SubmitEvents(ctx context.Context, caller Caller, batch []byte, traceParent string, problem func(error) Problem) (EventsView, error) {
	elements, err := cloudevent.Split(batch, MaxBatch)
	var many *cloudevent.Error
	switch {
	case errors.As(err, &many) && many.Problem == cloudevent.TooMany:
		return EventsView{}, (&Refusal{Code: CodeBatchTooLarge}).Say("a batch has at most {max} events", Values{"max": MaxBatch})
	case err != nil:
		return EventsView{}, EventRefusal(err)
	}
	if len(elements) == 0 {
		return EventsView{}, invalid("", FieldRequired, "must have at least one event", nil)
	}
	out := EventsView{Mode: Independent, Items: make([]EventItem, len(elements))}
	byKey := map[string][]int{} // the places of each key, in their order
	list := make([]cloudevent.Event, len(elements))
	for i, element := range elements {
		e, err := cloudevent.FromJSON(element)
		if err == nil {
			list[i], out.Items[i].ID, out.Items[i].Source = e, e.ID, e.Source
			var key string
			if key, err = EventKey(e); err == nil {
				byKey[key] = append(byKey[key], i)
				continue
			}
		}
		out.Items[i].EventOutcome = OutcomeOf(View{}, false, EventRefusal(err), problem)
	}
	// A crash in between leaves some recorded and the others not; the same batch
	// again finds the former and records the rest.
	var group errgroup.Group
	group.SetLimit(batchAtOnce)
	for _, places := range byKey {
		group.Go(func() error {
			var failed error
			for _, i := range places {
				// Of one that may or may not be recorded the next must not take the key.
				if failed != nil {
					out.Items[i].EventOutcome = OutcomeOf(View{}, false, failed, problem)
					continue
				}
				view, replayed, err := v.SubmitEvent(ctx, EventRequest{Caller: caller, Event: list[i], TraceParent: traceParent})
				out.Items[i].EventOutcome = OutcomeOf(view, replayed, err, problem)
				var refusal *Refusal
				if err != nil && !errors.As(err, &refusal) {
					failed = err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return EventsView{}, fmt.Errorf("submit events: %w", err)
	}
	return out, nil
}
