package api

import (
	"encoding/json"
	"fmt"
	"strings"
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

// TestTagFilters: what cannot be a tag is refused with its bound, and a cursor is of the
// tags that it was made for, in whatever order.
func TestTagFilters(t *testing.T) {
	h := newHarness(t)
	for i := range 3 {
		if w, _, _ := h.submit("alice", fmt.Sprint(i), `{"provider":"example","params":{"kind":"render"},"tags":{"a":"1","b":""}}`); w.Code != 202 {
			t.Fatal(w.Code, w.Body)
		}
	}
	h.play("project")
	for query, want := range map[string]struct {
		code  ingest.Code
		field ingest.FieldCode
	}{
		"tag=a":                             {ingest.CodeInvalid, ingest.FieldMalformed},
		"tag=":                              {ingest.CodeInvalid, ingest.FieldNotAllowed},
		"tag=:1":                            {ingest.CodeInvalid, ingest.FieldMalformed},
		"tag=A:1":                           {ingest.CodeInvalid, ingest.FieldMalformed},
		"tag=a:1&tag=a:2":                   {ingest.CodeInvalid, ingest.FieldDuplicate},
		"tag=a:%0A":                         {ingest.CodeInvalid, ingest.FieldNotAllowed},
		"tag=a:" + strings.Repeat("x", 257): {ingest.CodeInvalid, ingest.FieldOutOfBounds},
		"tags=a:1":                          {ingest.CodeInvalid, ingest.FieldUnknown},
		"state=failed&state=cancelled":      {ingest.CodeInvalid, ingest.FieldDuplicate},
		strings.Repeat("&tag=a:1", 9)[1:]:   {ingest.CodeInvalid, ingest.FieldOutOfBounds},
	} {
		w := h.do("alice", "GET", "/v1/operations?"+query, nil, "")
		var p ingest.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 || p.Code != want.code || p.Errors[0].Code != want.field {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := h.do("alice", "GET", "/v1/timeline?tag=a:1&tag=b:2", nil, ""); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	var page ingest.Page
	w := h.do("alice", "GET", "/v1/operations?limit=1&tag=a:1&tag=b:", nil, "")
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page.Items) != 1 || page.NextCursor == "" || !strings.Contains(strings.Join(w.Header()["Link"], " "), "tag=a%3A1&tag=b%3A") {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	for query, want := range map[string]int{"tag=b:&tag=a:1": 200, "tag=a:1": 400, "": 400, "tag=a:2&tag=b:": 400} {
		if w := h.do("alice", "GET", "/v1/operations?limit=1&"+query+"&cursor="+page.NextCursor, nil, ""); w.Code != want {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}
