package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// textsOf lists the members of a shape that are texts, by their pointers; of lists those
// of the first.
func textsOf(t reflect.Type, at string) (list []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.String:
		return []string{at}
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			list = append(list, textsOf(t.Field(i).Type, at+"/"+t.Field(i).Tag.Get("json"))...)
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return textsOf(t.Elem(), at+"/0")
	}
	return list
}

// put gives the body with the member at the pointer.
func put(t *testing.T, body, at string, value any) string {
	t.Helper()
	var whole map[string]any
	if err := json.Unmarshal([]byte(body), &whole); err != nil {
		t.Fatal(err)
	}
	names := strings.Split(at[1:], "/")
	into := whole
	for _, name := range names[:len(names)-1] {
		switch next := into[name].(type) {
		case []any:
			into[name] = next
			into = map[string]any{"0": next[0]}
		case map[string]any:
			into = next
		default:
			made := map[string]any{}
			into[name] = made
			into = made
		}
	}
	into[names[len(names)-1]] = value
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every text member of every body is refused when it is there and empty, by its name,
// and nothing is recorded: a variable that was not set must not be taken for "none".
func TestEmptyTextsOfEveryBody(t *testing.T) {
	bodies := map[string]string{
		"/v1/operations":                `{"provider":"example","params":{}}`,
		"/v1/operations:batch":          `{"mode":"atomic","items":[{"operation":{"provider":"example","params":{}}}]}`,
		"/v1/operations:cancel":         `{"mode":"atomic","items":[{"id":"op_none"}]}`,
		"/v1/operations/{id}/decisions": `{"kind":"abandon"}`,
		"/v1/operations/{id}/input":     `{"question":"q3","input":{"choice":"draft"}}`,
		"/v1/operations/{id}/cleanup":   `{}`, "/v1/operations/{id}/cancel": `{}`, "/v1/operations/{id}/pause": `{}`, "/v1/operations/{id}/resume": `{}`,
		"/v1/holds": `{"provider":"example","scope":"all","why":"x"}`, "/v1/holds/release": `{"provider":"example","why":"x"}`,
	}
	h := further(t, "input_required")
	texts := 0
	for _, route := range everything().routes() {
		if route.method != "POST" || route.sheet.body == nil || route.path == eventPath {
			continue
		}
		body, ok := bodies[route.path]
		if !ok {
			t.Errorf("%s: no body of it is tried", route.path)
			continue
		}
		target := strings.ReplaceAll(route.path, "{id}", h.op)
		header := map[string]string{"Idempotency-Key": "unsaid"}
		if slices.Contains(route.sheet.params, paramMatch) {
			header["If-Match"] = `"v99"`
		}
		for _, at := range textsOf(reflect.TypeOf(bodyOf(route.path)), "") {
			texts++
			before := h.stored()
			w := h.do("alice", "POST", target, header, put(t, body, at, ""))
			var p ingest.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 || len(p.Errors) == 0 || p.Errors[0].Field != at {
				t.Errorf("%s with an empty %s: %d %s", route.path, at, w.Code, w.Body)
			}
			if h.stored() != before {
				t.Errorf("%s with an empty %s: something was recorded", route.path, at)
			}
		}
	}
	if texts < 40 {
		t.Errorf("%d texts were seen", texts)
	}
	// null is what leaving a member out is, and a label may be empty.
	if w, _, _ := h.submit("alice", "null", `{"provider":"example","params":{"a":""},"action":null,"session":null,"client_reference":null,"tags":{"a":""}}`); w.Code != 202 {
		t.Errorf("null for none: %d %s", w.Code, w.Body)
	}
}

// bodyOf is the shape of a route's body.
func bodyOf(path string) any {
	switch path[strings.LastIndexAny(path, "/:")+1:] {
	case "operations":
		return ingest.SubmitBody{}
	case "batch":
		return ingest.BatchBody{}
	case "decisions":
		return ingest.DecideBody{}
	case "input":
		return ingest.InputBody{}
	case "cleanup":
		return ingest.CleanupBody{}
	case "holds":
		return ingest.HoldBody{}
	case "release":
		return ingest.ReleaseBody{}
	}
	if path == "/v1/operations:cancel" {
		return ingest.CancelBatchBody{}
	}
	return ingest.WhyBody{}
}

// What an earlier version recorded under a key with an empty member is still found by
// its replay, which the description does not have any more.
func TestReplaysWithEmptyTexts(t *testing.T) {
	alice, why := ingest.Caller{Principal: "alice", Scopes: ingest.UnstatedScopes()}, []byte(`{"why":""}`)
	h := further(t, "running")
	ctx := t.Context()
	for _, body := range [][]byte{nil, why} {
		v, err := h.service.Cancel(ctx, ingest.CancelRequest{Caller: alice, ID: h.op, Key: "old", Body: body})
		if err != nil || (v.OriginalStatus == 0) != (body == nil) {
			t.Errorf("cancel %s: %v %d", body, err, v.OriginalStatus)
		}
		_, again, err := h.service.Pause(ctx, ingest.PauseRequest{Caller: alice, ID: h.op, Key: "old", Body: body})
		if err != nil || again != (body != nil) {
			t.Errorf("pause %s: %v %v", body, err, again)
		}
	}
	h = newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{"n":1}}`)
	for _, line := range []string{"attempted", "lost", "passed result"} {
		h.play(line)
	}
	version := h.view("alice", h.op).Version
	for i, body := range []string{`{"kind":"abandon"}`, `{"kind":"abandon","job_id":""}`} {
		_, again, err := h.service.Decide(ctx, ingest.DecideRequest{Caller: alice, ID: h.op, Key: "old", Version: version, Body: []byte(body)})
		if err != nil || again != (i > 0) {
			t.Errorf("decide %s: %v %v", body, err, again)
		}
	}
}

// What a refusal says names what is wrong.
func TestRefusalsNameWhatIsWrong(t *testing.T) {
	h := further(t, "running")
	if _, _, _, p := h.batch("alice", "b", batchOf("atomic", `{}`)); len(p.Errors) != 1 || p.Errors[0].Message != "the operation must be given" {
		t.Errorf("an item without an operation: %+v", p)
	}
	if _, _, p := h.decide("alice", "d", `"v3"`, `{"kind":"approve","digest":"`+strings.Repeat("0", 64)+`"}`); p.Code != ingest.CodeInvalid || !strings.Contains(p.Detail, "is all zeros") {
		t.Errorf("a digest of zeros: %+v", p)
	}
}
