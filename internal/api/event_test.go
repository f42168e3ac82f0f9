package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

const intentBody = `{"provider":"example","params":{"n": 1.0}}`

func binary(more ...string) map[string]string {
	h := map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/agents/a", "ce-type": ingest.EventSubmit}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

func structured(id, more, data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/agents/a","type":%q%s,"data":%s}`, id, ingest.EventSubmit, more, data)
}

// TestIntentIsOneInEveryForm: the same intent is the same operation, whatever it
// comes in, and another intent under its key is refused in every form.
func TestIntentIsOneInEveryForm(t *testing.T) {
	for name, c := range map[string]struct {
		key        string // of JSON; "" where that has none in common
		header     map[string]string
		structured string
	}{
		"a key":         {"k1", binary("ce-idempotencykey", "k1"), structured("2", `,"idempotencykey":"k1"`, `{"params":{"n":1},"provider":"example"}`)},
		"source and id": {"", binary(), structured("1", "", `{"params":{"n":1e0},"provider":"example"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			first := h.do("alice", "POST", eventPath, c.header, intentBody)
			if first.Code != 202 || first.Header().Get("Location") == "" || first.Header().Get("ETag") == "" {
				t.Fatalf("%d %v %s", first.Code, first.Header(), first.Body)
			}
			op, stored := h.op, h.stored()
			again := func(what string, w *httptest.ResponseRecorder) {
				t.Helper()
				if w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" || h.op != op {
					t.Errorf("%s: %d %s, operation %s, want %s", what, w.Code, w.Body, h.op, op)
				}
			}
			again("binary", h.do("alice", "POST", eventPath, c.header, intentBody))
			asJSON := map[string]string{"Content-Type": "application/cloudevents+json; charset=utf-8"}
			again("structured", h.do("alice", "POST", eventPath, asJSON, c.structured))
			if c.key != "" {
				again("JSON", h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": c.key}, intentBody))
				c.header["Idempotency-Key"] = `"` + c.key + `"`
				again("the header says the same", h.do("alice", "POST", eventPath, c.header, intentBody))
			}
			batch := map[string]string{"Content-Type": cloudevent.BatchJSON}
			w := h.do("alice", "POST", eventPath, batch, "["+c.structured+"]")
			if got := eventItems(t, w)[0]; got.Status != 200 || !got.Replayed || got.Operation.ID != op {
				t.Errorf("batch: %s", w.Body)
			}
			if n := h.stored(); n != stored {
				t.Errorf("%d messages were stored by replays", n-stored)
			}
			if w := h.do("alice", "POST", eventPath, c.header, `{"provider":"example","params":{"n":2}}`); w.Code != 422 || !strings.Contains(w.Body.String(), string(ingest.CodeKeyReused)) {
				t.Errorf("another intent: %d %s", w.Code, w.Body)
			}
			if w := h.do("bob", "POST", eventPath, c.header, intentBody); w.Code != 202 {
				t.Errorf("another principal: %d %s", w.Code, w.Body)
			}
		})
	}
}

func eventItems(t *testing.T, w *httptest.ResponseRecorder) []ingest.EventItem {
	t.Helper()
	var view ingest.EventsView
	if err := json.Unmarshal(w.Body.Bytes(), &view); w.Code != 200 || err != nil || view.Mode != "independent" {
		t.Fatalf("%d %v %s", w.Code, err, w.Body)
	}
	return view.Items
}

// TestEventBatchIsIndependent: each event of a batch has its own end, and the batch
// again records only what is missing.
func TestEventBatchIsIndependent(t *testing.T) {
	h := newHarness(t)
	list := []string{
		structured("1", "", intentBody), `{"id":"x"}`, structured("3", "", `{"provider":"nobody","params":{}}`),
		structured("4", `,"idempotencykey":"k"`, intentBody), structured("5", `,"idempotencykey":"k"`, `{"provider":"example","params":{}}`), "7",
		structured("6", `,"idempotencykey":"a b"`, intentBody), structured("7", `,"datacontenttype":"text/plain"`, `"x"`),
		structured("8", `,"subject":"a","subject":"a"`, intentBody), structured("9", "", `{"provider":"example","params":{"a":1,"a":1}}`),
	}
	batch := map[string]string{"Content-Type": cloudevent.BatchJSON}
	text := "[" + strings.Join(list, ",") + "]"
	for round, want := range [][]int{{202, 422, 422, 202, 422, 422, 400, 415, 400, 400}, {200, 422, 422, 200, 422, 422, 400, 415, 400, 400}} {
		w := h.do("alice", "POST", eventPath, batch, text)
		items := eventItems(t, w)
		for i, it := range items {
			if it.Status != want[i] || (it.Operation == nil) == (it.Problem == nil) || it.Problem != nil && it.Problem.Status != it.Status {
				t.Errorf("round %d, event %d: %+v, want %d", round, i, it, want[i])
			}
		}
		if items[0].ID != "1" || items[0].Source != "/agents/a" {
			t.Errorf("the first: %+v", items[0])
		}
	}
	for body, want := range map[string]string{
		"[]": "validation_failed", "{}": "validation_failed", "[": "malformed_json", "[" + strings.Repeat("[", 10_001): "too_deep",
		"[" + strings.Repeat("1,", ingest.MaxBatch) + "1]": "batch_too_large",
	} {
		if w := h.do("alice", "POST", eventPath, batch, body); w.Code < 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.20s: %d %s, want %s", body, w.Code, w.Body, want)
		}
	}
	// The store dies under a batch: nothing is lost by sending it again.
	var calls atomic.Int64
	dying := newHarness(t)
	dying.over(memory.Inject(dying.store, func(memory.Call) memory.Fault {
		if n := calls.Add(1); n > 3 && n < 53 {
			return memory.Fault{Kind: memory.Unavailable}
		}
		return memory.Fault{}
	}))
	last := dying.do("alice", "POST", eventPath, batch, text)
	for range 40 {
		last = dying.do("alice", "POST", eventPath, batch, text)
		if items := eventItems(t, last); items[0].Status == 200 && items[3].Status == 200 {
			return
		}
	}
	t.Errorf("it never came through: %s", last.Body)
}

// TestEventsRefused: what is no event, or not of these, is refused by a problem that
// names what is wrong.
func TestEventsRefused(t *testing.T) {
	h := newHarness(t)
	before := h.stored()
	for name, c := range map[string]struct {
		header map[string]string
		body   string
		status int
		want   string
	}{
		"no id":            {binary("ce-id", ""), intentBody, 422, `"field":"id"`},
		"type":             {binary("ce-type", "com.example.x"), intentBody, 422, ingest.EventSubmit},
		"version":          {binary("ce-specversion", "0.3"), intentBody, 422, `"allowed":["1.0"]`},
		"encoding":         {binary("ce-subject", "%zz"), intentBody, 422, `"field":"subject"`},
		"bad key":          {binary("ce-idempotencykey", "a%20b"), intentBody, 400, `"field":"idempotencykey"`},
		"header key":       {binary("Idempotency-Key", "k"), intentBody, 422, "extension idempotencykey"},
		"bad header key":   {binary("Idempotency-Key", "a b"), intentBody, 400, "idempotency_key_invalid"},
		"other text":       {binary("Content-Type", "text/plain"), intentBody, 415, `"allowed":["application/json","application/cloudevents+json","application/cloudevents-batch+json"]`},
		"no media type":    {binary("Content-Type", ""), intentBody, 415, "unsupported_media_type"},
		"other encoding":   {binary("Content-Type", "application/cloudevents+avro"), intentBody, 415, "unsupported_media_type"},
		"data is text":     {binary("ce-datacontenttype", "text/plain"), intentBody, 415, "unsupported_media_type"},
		"data twice":       {binary(), `{"provider":"example","provider":"example"}`, 400, "duplicate_key"},
		"large data":       {binary(), `"` + strings.Repeat("x", ingest.MaxBody) + `"`, 413, "body_too_large"},
		"structured twice": {map[string]string{"Content-Type": cloudevent.StructuredJSON}, `{"id":"1","id":"1"}`, 400, `"field":"id","code":"duplicate_key"`},
		"deep extension":   {map[string]string{"Content-Type": cloudevent.StructuredJSON}, `{"extension":` + strings.Repeat("[", 10_001) + "1", 422, "too_deep"},
		"name twice deep":  {map[string]string{"Content-Type": cloudevent.StructuredJSON}, structured("1", "", `{"params":{"a":1,"a":1}}`), 400, `"field":"/params/a"`},
		"structured text":  {map[string]string{"Content-Type": cloudevent.StructuredJSON}, `{`, 400, "malformed_json"},
		"not an object":    {map[string]string{"Content-Type": cloudevent.StructuredJSON}, `[]`, 422, "wrong_type"},
		"no data":          {map[string]string{"Content-Type": cloudevent.StructuredJSON}, strings.Replace(structured("1", "", "1"), `,"data":1`, "", 1), 400, "malformed_json"},
		"long id":          {binary("ce-id", strings.Repeat("x", 2000)), intentBody, 422, `"max":1024`},
	} {
		t.Run(name, func(t *testing.T) {
			w := h.do("alice", "POST", eventPath, c.header, c.body)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("%d %s, want %d with %s", w.Code, w.Body, c.status, c.want)
			}
			if w.Code == 415 && !strings.Contains(w.Header().Get("Accept-Post"), cloudevent.StructuredJSON) {
				t.Errorf("Accept-Post: %s", w.Header())
			}
		})
	}
	if w := h.do("nothing", "POST", eventPath, binary(), intentBody); w.Code != 403 || !strings.Contains(w.Body.String(), `"requires":"submit:example/default"`) {
		t.Errorf("without a scope: %d %s", w.Code, w.Body)
	}
	if n := h.stored(); n != before {
		t.Errorf("%d messages were stored", n-before)
	}
}

// FuzzEvent: whatever is posted gets an answer that the document allows, and what is
// refused stores nothing.
func FuzzEvent(f *testing.F) {
	f.Add("application/json", "1", "k", intentBody)
	f.Add(cloudevent.StructuredJSON, "", "", structured("1", "", intentBody))
	f.Add(cloudevent.BatchJSON, "", "", "["+structured("1", "", intentBody)+",1]")
	h := newHarness(f)
	keys, err := ingest.OpenKeys(h.keys, h.clock.Now)
	if err != nil {
		f.Fatal(err)
	}
	handler := newHandler(Options{Service: h.service, Keys: keys, Log: slog.New(slog.DiscardHandler), Now: h.clock.Now})
	f.Fuzz(func(t *testing.T, media, id, key, body string) {
		h.t = t
		before := h.stored()
		r := httptest.NewRequest(http.MethodPost, eventPath, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
		r.Header["Content-Type"] = []string{media}
		for name, value := range binary("ce-id", id, "ce-idempotencykey", key) {
			r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		for _, problem := range handler.judge(r, []byte(body), w.Code, w.Header(), w.Body.Bytes()) {
			t.Errorf("the document does not allow the answer %d: %s", w.Code, problem)
		}
		if w.Code >= 400 && h.stored() != before {
			t.Errorf("refused with %d, and something was stored", w.Code)
		}
		if w.Code >= 500 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestEventKeysAreApart: no event without a key has the key of another, or one that
// can be sent.
func TestEventKeysAreApart(t *testing.T) {
	seen := map[string]string{}
	for _, e := range []cloudevent.Event{{Source: "a", ID: "b c"}, {Source: "a b", ID: "c"}, {Source: "a 1", ID: ""}, {Source: "a", ID: "1 "}} {
		key, err := ingest.EventKey(e)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[key]; ok {
			t.Errorf("%v has the key of %s", e, before)
		}
		seen[key] = e.Source + "|" + e.ID
		var refusal *ingest.Refusal
		if _, err := ingest.ParseKey([]string{key}); !errors.As(err, &refusal) {
			t.Errorf("%q can be sent", key)
		}
	}
}
