package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// TestClientReference: who lost its key finds what it asked for by its own name for it,
// and nobody else does.
func TestClientReference(t *testing.T) {
	h := newHarness(t)
	const body = `{"provider":"example","params":{"kind":"render"},"client_reference":"invoice 17"}`
	for _, who := range []string{"alice", "bob"} {
		for _, key := range []string{"1", "2"} {
			w, v, _ := h.submit(who, key, body)
			if w.Code != 202 || v.Reference != "invoice 17" {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			// As the projector does.
			if err := h.journal.Label(t.Context(), who, journal.ReferenceLabel("invoice 17"), v.ID, h.clock.Now()); err != nil {
				t.Fatal(err)
			}
			_ = h.clock.Sleep(t.Context(), time.Second) // only moves the clock
		}
	}
	list := func(query string) (status int, page ingest.Page, p ingest.Problem) {
		t.Helper()
		w := h.do("alice", "GET", "/v1/operations?"+query, nil, "")
		var err error
		if w.Code < 300 {
			err = json.Unmarshal(w.Body.Bytes(), &page)
		} else {
			err = json.Unmarshal(w.Body.Bytes(), &p)
		}
		if err != nil {
			t.Fatal(err)
		}
		return w.Code, page, p
	}
	if status, page, _ := list("client_reference=invoice%2017"); status != 200 || len(page.Items) != 2 || !page.Items[0].Started.After(page.Items[1].Started) || page.Items[0].Principal != "" {
		t.Errorf("%d %+v", status, page)
	}
	for _, query := range []string{"client_reference=other", "session=invoice%2017"} {
		if status, page, _ := list(query); status != 200 || len(page.Items) != 0 {
			t.Errorf("%s: %d %+v", query, status, page)
		}
	}
	for query, field := range map[string]string{
		"client_reference=a&session=b": "client_reference", "client_reference=a&cursor=b": "client_reference", "client_reference=a&of=all": "of", "client_reference=a%0Ab": "client_reference",
	} {
		if status, _, p := list(query); status != 422 || p.Errors[0].Field != field {
			t.Errorf("%s: %d %+v", query, status, p)
		}
	}
}
