package api

import (
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// An empty text is no way to say that there is no bound, no rule and no predecessor, by
// whatever way in. What was recorded when it was one is still found by a replay.
func TestEmptyMembers(t *testing.T) {
	for _, member := range []string{"max_cost", "expect", "replaces", "retry_of", "action", "approval", "client_reference", "session"} {
		t.Run(member, func(t *testing.T) {
			h := newHarness(t)
			body := `{"provider":"example","params":{"copies":1},"` + member + `":""}`
			before := h.stored()
			for _, one := range []string{body, `{"validate_only":true,` + body[1:]} {
				w, _, p := h.submit("alice", "k", one)
				if w.Code != 422 || p.Code != ingest.CodeInvalid || len(p.Errors) != 1 || p.Errors[0].Field != "/"+member {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}
			item := `{"operation":` + body + `}`
			if _, _, v, _ := h.batch("alice", "b", batchOf("independent", goodItem, item)); v.Recorded != 1 || v.Items[1].Problem.Errors[0].Field != "/items/1/operation/"+member {
				t.Errorf("in a batch: %+v", v)
			}
			between := h.stored()
			if status, _, _, p := h.batch("alice", "c", batchOf("atomic", goodItem, item)); status != 422 || p.Errors[0].Field != "/items/1/operation/"+member {
				t.Errorf("for all or none: %d %+v", status, p)
			}
			header := map[string]string{"ce-specversion": "1.0", "ce-type": ingest.EventSubmit, "ce-source": "/agent", "ce-id": "1"}
			if w := h.do("alice", "POST", eventPath, header, body); w.Code != 422 {
				t.Errorf("as an event: %d %s", w.Code, w.Body)
			}
			if h.stored() != between || before == between {
				t.Error("something was recorded")
			}

			// An earlier version took it.
			s, err := ingest.DecodeSubmission([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			fingerprint, err := s.Fingerprint()
			if err != nil {
				t.Fatal(err)
			}
			id := ingest.OperationID("in_test", "alice", "old")
			if _, _, err := h.journal.Create(t.Context(), events.Event{
				ID: "old", Source: "/ingest/1", Operation: id, Time: h.clock.Now(), Actor: "alice",
				Fact: &events.IntentRecorded{Principal: "alice", Provider: "example", Account: "default", Fingerprint: fingerprint, Rules: projections.Rules},
			}); err != nil {
				t.Fatal(err)
			}
			view, replayed, err := h.service.Submit(t.Context(), ingest.SubmitRequest{Caller: ingest.Caller{Principal: "alice"}, Key: "old", Body: []byte(body)})
			if err != nil || !replayed || view.ID != id {
				t.Errorf("a replay: %v %v %s", err, replayed, view.ID)
			}
		})
	}
}
