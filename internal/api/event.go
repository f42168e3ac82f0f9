package api

import (
	"context"
	"net/http"

	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// eventPath takes events and, by GET, tells them.
const eventPath = "/v1/events"

// submitEvent is an intent in structured mode.
type submitEvent struct {
	_ struct{} `additionalProperties:"true"`

	SpecVersion string            `json:"specversion" enum:"1.0"`
	ID          string            `json:"id" minLength:"1" maxLength:"1024" example:"8e03978e-40d5-43e8-bc93-6894a57f9324" doc:"Names the event among those of its source."`
	Source      string            `json:"source" minLength:"1" maxLength:"1024" format:"uri-reference" example:"/agents/planner" doc:"Who made the event."`
	Type        string            `json:"type" enum:"dev.counterfoil.operation.submit.v1"`
	Key         string            `json:"idempotencykey,omitempty" minLength:"1" maxLength:"512" doc:"The idempotency key, as the header Idempotency-Key has it. Left out, source and id stand for it."`
	MediaType   string            `json:"datacontenttype,omitempty" example:"application/json" doc:"Of the data: JSON, which is meant where it is left out."`
	TraceParent string            `json:"traceparent,omitempty" doc:"The trace that the caller is in (W3C)."`
	Data        ingest.SubmitBody `json:"data"`
}

// eventForms are the media types that POST /v1/events takes: binary mode, whose body
// is the data, structured mode, and batches.
func eventForms() []string {
	return []string{jsonType, cloudevent.StructuredJSON, cloudevent.BatchJSON}
}

// event takes an intent as a CloudEvent, or several of them.
func (h *handler) event(ctx context.Context, c *call) (answer, error) {
	trace := ingest.TraceParent(c.r.Header.Get("Traceparent"))
	var e cloudevent.Event
	var err error
	switch cloudevent.ModeOf(c.r.Header.Get("Content-Type")) {
	case cloudevent.Batched:
		view, err := h.o.Service.SubmitEvents(ctx, c.caller, c.body, trace, func(err error) ingest.Problem {
			return ingest.ProblemOf(err, instance(c.r), ingest.ProblemBase)
		})
		if err != nil {
			return answer{}, err
		}
		return answer{status: http.StatusOK, body: view}, nil
	case cloudevent.Structured:
		e, err = cloudevent.FromJSON(c.body)
	case cloudevent.Binary, cloudevent.Unknown: // the latter was refused with its body unread
		if len(c.body) > ingest.MaxBody {
			return answer{}, bodyTooLarge(ingest.MaxBody)
		}
		e, err = cloudevent.FromHeaders(c.r.Header, c.body)
	}
	if err != nil {
		return answer{}, ingest.EventRefusal(err)
	}
	if err := sameKey(c.r.Header["Idempotency-Key"], e); err != nil {
		return answer{}, err
	}
	view, replayed, err := h.o.Service.SubmitEvent(ctx, ingest.EventRequest{Caller: c.caller, Event: e, TraceParent: trace})
	if err != nil {
		return answer{}, err
	}
	return h.submitted(c, view, replayed)
}

// sameKey refuses a header that would be thought to count: the key is in the event.
func sameKey(header []string, e cloudevent.Event) error {
	if len(header) == 0 {
		return nil
	}
	given, err := ingest.ParseKey(header)
	if err != nil {
		return err
	}
	if key, err := ingest.EventKey(e); err != nil || key != given {
		return parameter("Idempotency-Key", ingest.FieldNotAllowed, "must be the event's extension idempotencykey: the key of an event is in the event")
	}
	return nil
}

func eventSheet() sheet {
	return sheet{
		id: "submitEvent", tag: tagOperations, title: "Submit an operation as a CloudEvent, or several",
		text: "CloudEvents 1.0 of type " + ingest.EventSubmit + ", whose data is the body of submitOperation: in binary mode, in structured mode, or up to 100 in a batch. " +
			"The idempotency key is the extension idempotencykey; without it source and id of the event name the intent, for ever. The same intent by submitOperation under the same key is the same operation. " +
			"Each event of a batch is recorded or refused by itself, and the same batch again records what is missing.",
		params: []string{paramPrefer, paramTrace}, body: typeOf[ingest.SubmitBody](), forms: eventForms(),
		answers: []outcome{
			{status: http.StatusAccepted, text: "Recorded; the job is under way or yet to be made.", body: typeOf[ingest.View](), always: []string{"ETag", "Location", "Content-Location", "Vary"}, maybe: []string{"Retry-After", "Preference-Applied"}},
			{
				status: http.StatusOK, text: "The key named this operation before, or it ended within the wait. For a batch: what became of each event. With validate_only, what would be recorded.", body: typeOf[ingest.View](), or: typeOf[ingest.EventsView](),
				maybe: []string{"ETag", "Content-Location", "Vary", "Retry-After", "Idempotent-Replayed", "Preference-Applied"},
			},
		},
		codes: []ingest.Code{ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeUnknownProvider, ingest.CodeAccountNotAllowed, ingest.CodeStorageLow, ingest.CodeForbidden, ingest.CodeBatchTooLarge, ingest.CodeMayStillCreate, ingest.CodeMoving, ingest.CodeJobOwned, ingest.CodeNewerVersion, ingest.CodeCostExceeded, ingest.CodeCostUnknown},
	}
}
