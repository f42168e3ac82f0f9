package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// documents are what is found without a key.
func documents() []string {
	return []string{indexPath, "/openapi.json", guidePath, eventsPath, catalogPath, "/errors"}
}

// TestDocumentsNeedNothing: the documents are answered without a key and before the
// service can do its work, and not sent again to who has them.
func TestDocumentsNeedNothing(t *testing.T) {
	h := newHarness(t)
	h.open = make(chan struct{})
	h.over(h.store)
	for _, at := range documents() {
		w := h.do("", "GET", at, nil, "")
		if w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s: %d %s", at, w.Code, w.Body)
		}
		if head := h.do("", "HEAD", at, nil, ""); head.Code != 200 || !slices.Equal(head.Header()["Link"], w.Header()["Link"]) {
			t.Errorf("HEAD %s: %d %v", at, head.Code, head.Header())
		}
		etag := w.Header().Get("ETag")
		if at == "/errors" {
			continue
		}
		if again := h.do("", "GET", at, map[string]string{"If-None-Match": etag}, ""); etag == "" || again.Code != 304 {
			t.Errorf("%s: %d to who has %s", at, again.Code, etag)
		}
	}
	if w := h.do("", "GET", catalogPath, nil, ""); w.Header().Get("Content-Type") != catalogType || !slices.Contains(w.Header()["Link"], "<"+catalogPath+`>; rel="api-catalog"`) {
		t.Errorf("the catalog's headers are %v", w.Header())
	}
}

// TestEveryLinkResolves: whatever address a document or a header names is served.
func TestEveryLinkResolves(t *testing.T) {
	h := newHarness(t)
	links := map[string]string{}
	add := func(in, to string) { links[to] = in }
	guide := h.do("", "GET", guidePath, nil, "").Body.String()
	if len(guide) > maxGuide {
		t.Errorf("%s has %d bytes, more than %d", guidePath, len(guide), maxGuide)
	}
	for _, m := range regexp.MustCompile(`\]\((/[^)]*)\)`).FindAllStringSubmatch(guide, -1) {
		add(guidePath, m[1])
	}
	if len(links) < 5 {
		t.Errorf("%s has only %d links", guidePath, len(links))
	}
	for at := range h.do("", "GET", guidePath, nil, "").Header() {
		if at == "Link" {
			for _, line := range serviceLinks() {
				target, _, _ := strings.Cut(strings.TrimPrefix(line, "<"), ">")
				add("Link", target)
			}
		}
	}
	var set linkSet
	if err := json.Unmarshal(h.do("", "GET", catalogPath, nil, "").Body.Bytes(), &set); err != nil || len(set.Linkset) != 2 {
		t.Fatalf("%v: %v", set, err)
	}
	for _, c := range set.Linkset {
		add(catalogPath, c.Anchor)
		for _, list := range [][]link{c.Item, c.ServiceDesc, c.ServiceDoc, c.ServiceMeta, c.Status} {
			for _, l := range list {
				add(catalogPath, l.Href)
				if w := h.do("alice", "GET", l.Href, map[string]string{"Accept": l.Type}, ""); l.Type != "" && !strings.HasPrefix(w.Header().Get("Content-Type"), l.Type) {
					t.Errorf("%s is %s, and the catalog says %s", l.Href, w.Header().Get("Content-Type"), l.Type)
				}
			}
		}
	}
	var index indexView
	if err := json.Unmarshal(h.do("", "GET", indexPath, nil, "").Body.Bytes(), &index); err != nil || len(index.Links) < 9 {
		t.Fatalf("%+v: %v", index, err)
	}
	page := h.do("", "GET", indexPath, map[string]string{"Accept": "text/html,*/*;q=0.8"}, "")
	for _, l := range index.Links {
		if strings.HasPrefix(l.Href, "/") && l.Href != mcpPath { // which takes a message
			add(indexPath, l.Href)
		}
		if l.Rel == "" || l.Title == "" || !strings.Contains(page.Body.String(), `<a href="`+l.Href+`">`) {
			t.Errorf("%+v is not on the page: %s", l, page.Body)
		}
	}
	for _, at := range append(documents(), "/v1/capabilities", "/v1/operations") {
		if at != indexPath && links[at] != indexPath {
			t.Errorf("%s does not lead to %s", indexPath, at)
		}
	}
	if page.Header().Get("Content-Type") != htmlType || page.Header().Get("Vary") != "Accept" || !slices.Contains(page.Header()["Link"], "<"+catalogPath+`>; rel="api-catalog"`) {
		t.Errorf("the page's headers are %v", page.Header())
	}
	for at, in := range links {
		if w := h.do("alice", "GET", at, nil, ""); w.Code != 200 {
			t.Errorf("%s of %s is answered %d", at, in, w.Code)
		}
	}
	// Requests in the guide are ones that the table has.
	table := map[string]bool{}
	for _, r := range everything().routes() {
		table[r.method+" "+r.path] = true
	}
	requests := regexp.MustCompile(`(GET|POST) (/[A-Za-z0-9_/{}.-]*[a-z}])`).FindAllStringSubmatch(guide, -1)
	if len(requests) < 7 {
		t.Errorf("only %d requests in %s", len(requests), guidePath)
	}
	for _, m := range requests {
		if !table[m[1]+" "+m[2]] {
			t.Errorf("%s names %s %s, which there is not", guidePath, m[1], m[2])
		}
	}
}

// TestEventsDocument: the streams of the table are its channels, and every reference
// leads somewhere. That events are as it says is looked at by judge.
func TestEventsDocument(t *testing.T) {
	h := newHarness(t)
	var doc map[string]any
	if err := json.Unmarshal(h.do("", "GET", eventsPath, nil, "").Body.Bytes(), &doc); err != nil || doc["asyncapi"] != "3.0.0" {
		t.Fatalf("%v %v", doc["asyncapi"], err)
	}
	if refs := follow(t, doc); refs < 20 {
		t.Errorf("only %d references", refs)
	}
	channels, streams := map[string]bool{}, map[string]bool{}
	for _, c := range doc["channels"].(map[string]any) {
		channels[c.(map[string]any)["address"].(string)] = true
	}
	for _, r := range everything().routes() {
		if r.streamed() {
			streams[r.path] = true
		}
	}
	if len(streams) == 0 || !maps.Equal(channels, streams) {
		t.Errorf("the channels are %v, the streams %v", channels, streams)
	}
}

// Where agents can publish by NATS the documents say so, and elsewhere nothing of it.
func TestIntentsAreDescribed(t *testing.T) {
	h := newHarness(t)
	without := h.do("", "GET", eventsPath, nil, "").Body.String() + h.do("", "GET", guidePath, nil, "").Body.String()
	if strings.Contains(without, "intents.{principal}") || strings.Contains(without, "NATS") {
		t.Error("what is not served is described")
	}
	o := Options{Service: h.service, Log: logInto(h.log), Now: h.clock.Now, Intents: true, MCP: &quietMCP{}}
	handler := documented(t, o)
	get := func(at string) []byte {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", at, nil))
		return w.Body.Bytes()
	}
	var doc map[string]any
	if err := json.Unmarshal(get(eventsPath), &doc); err != nil {
		t.Fatal(err)
	}
	if refs := follow(t, doc); refs < 25 {
		t.Errorf("only %d references", refs)
	}
	channels := doc["channels"].(map[string]any)
	for name, stream := range map[string]journal.Stream{"intents": journal.Intents, "verdicts": journal.Verdicts} {
		address, _ := channels[name].(map[string]any)["address"].(string)
		if !strings.HasPrefix(journal.Subjects(stream)[0], strings.Split(address, ".")[0]+".") {
			t.Errorf("channel %s is %q, the stream has %v", name, address, journal.Subjects(stream))
		}
	}
	if guide := get(guidePath); len(guide) > maxGuide || !bytes.Contains(guide, []byte("intents.PRINCIPAL")) {
		t.Errorf("the guide has %d bytes: %s", len(guide), guide)
	}
}

type quietMCP struct{}

func (*quietMCP) ServeCaller(http.ResponseWriter, *http.Request, ingest.Caller) error { return nil }

// A process that only takes webhooks says so, and leads nobody to what it has not.
func TestGuideOfWebhooksAlone(t *testing.T) {
	h := newHarness(t)
	o := Options{Webhooks: h.receiver, Log: logInto(h.log), Now: h.clock.Now}
	handler := documented(t, o)
	for at, want := range map[string]int{guidePath: 200, "/openapi.json": 200, catalogPath: 404, eventsPath: 404} {
		h.handler = handler
		w := h.do("", "GET", at, nil, "")
		if w.Code != want || strings.Contains(w.Body.String(), "/v1/operations") {
			t.Errorf("%s: %d %s", at, w.Code, w.Body)
		}
	}
}
