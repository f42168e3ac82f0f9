package api

import (
	"context"
	_ "embed" // for llms.txt
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// What a caller that knows nothing but the address finds. None of it needs a key,
// and none of it names what is not served.

//go:embed llms.txt
var guide string

const (
	guidePath   = "/llms.txt"
	eventsPath  = "/asyncapi.json"
	catalogPath = "/.well-known/api-catalog"

	// catalogType is that of RFC 9264 with the profile of RFC 9727.
	catalogType = `application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"`

	// maxGuide is what an agent is asked to read before it does anything, in bytes.
	maxGuide = 4 << 10
)

// llms tells agents how to use the service.
func (h *handler) llms(_ context.Context, c *call) (answer, error) {
	text := guide
	switch {
	case h.o.Service == nil:
		text = "# Counterfoil\n\n> This process takes the webhooks of providers. The API for agents is served by another one.\n"
	default:
		if h.o.MCP != nil {
			text += "- POST /mcp is the same as tools (Model Context Protocol, streamable HTTP), with the same key\n"
		}
		if h.o.Intents {
			text += "- NATS: publish the CloudEvent on intents.PRINCIPAL, read verdicts.PRINCIPAL.*, with the same key as token; the AsyncAPI document has the rest\n"
		}
	}
	return newPage("text/plain; charset=utf-8", []byte(text)).answer(c)
}

// link is one target of a link set.
type link struct {
	Href  string `json:"href"`
	Type  string `json:"type,omitempty"`
	Title string `json:"title,omitempty"`
}

// linkContext is what links of a set go out from (RFC 9264, section 4.2).
type linkContext struct {
	Anchor      string `json:"anchor"`
	Item        []link `json:"item,omitempty"`
	ServiceDesc []link `json:"service-desc,omitempty"`
	ServiceDoc  []link `json:"service-doc,omitempty"`
	ServiceMeta []link `json:"service-meta,omitempty"`
	Status      []link `json:"status,omitempty"`
}

type linkSet struct {
	Linkset []linkContext `json:"linkset"`
}

// links are what describes the API, and what there is to be used. References are
// relative: the service does not know by which names it is reached.
func (h *handler) links() (api linkContext, items []link) {
	api = linkContext{
		Anchor:      "/v1/operations",
		ServiceDesc: []link{{Href: "/openapi.json", Type: jsonType, Title: "OpenAPI 3.1"}},
		ServiceDoc: []link{
			{Href: guidePath, Type: "text/plain", Title: "How to use it, for agents"},
			{Href: "/errors", Type: "text/html", Title: "Problem codes"},
		},
		Status: []link{{Href: "/healthz", Type: jsonType, Title: "Whether it runs"}},
	}
	if h.o.Ready != nil {
		api.Status = append(api.Status, link{Href: "/readyz", Type: jsonType, Title: "Whether it is well"})
	}
	if h.o.Service != nil {
		api.ServiceDesc = append(api.ServiceDesc, link{Href: eventsPath, Type: jsonType, Title: "AsyncAPI 3.0, for the event streams"})
		api.ServiceMeta = []link{{Href: "/v1/capabilities", Type: jsonType, Title: "What may be asked for"}}
		items = append(items, link{Href: "/v1/operations", Title: "Operations"})
	}
	if h.o.MCP != nil {
		items = append(items, link{Href: mcpPath, Title: "The same as tools of the Model Context Protocol"})
	}
	return api, items
}

// catalog lists what there is (RFC 9727).
func (h *handler) catalog(_ context.Context, c *call) (answer, error) {
	api, items := h.links()
	text, err := encode(linkSet{[]linkContext{{Anchor: catalogPath, Item: items}, api}})
	if err != nil {
		return answer{}, err
	}
	a, err := newPage(catalogType, text).answer(c)
	a.header["Link"] = "<" + catalogPath + `>; rel="api-catalog"`
	return a, err
}

// asyncapi describes what is told as it happens.
func (h *handler) asyncapi(_ context.Context, c *call) (answer, error) {
	return h.eventsDocument().answer(c)
}

// object is a JSON object that is put together by hand.
type object = map[string]any

func ref(to string) object { return object{"$ref": to} }

// told are the kinds of event of the streams: the name of each, what it is, and the
// type of its data.
type told struct {
	name, title, text string
	kind              *huma.Schema // of the attribute type
	data              *huma.Schema
}

func toldBy(registry huma.Registry) []told {
	view := registry.Schema(typeOf[ingest.View](), true, "")
	exactly := func(name string) *huma.Schema { return oneOf(events.TypePrefix + name) }
	return []told{
		{"snapshot", "How an operation stands when a stream begins", "The first event of a stream that does not resume.", exactly(ingest.EventSnapshot), view},
		{"reset", "How an operation stands where a stream cannot go on", "The id that the caller came back with is none of this operation's.", exactly(ingest.EventReset), view},
		{"fact", "What happened", "One for each fact, as it is stored. The timeline explains what each type has.", &huma.Schema{Type: huma.TypeString, Pattern: `^dev\.counterfoil\.[a-z_]+\.[a-z_]+\.v[0-9]+$`}, registry.Schema(typeOf[ingest.FactData](), true, "")},
		{"ended", "An operation has ended", "The last event; the stream ends with it. Who connects again is answered 204.", exactly(ingest.EventEnded), view},
	}
}

// payload is the schema of a whole event.
func (t told) payload(registry huma.Registry) *huma.Schema {
	s := &huma.Schema{AllOf: []*huma.Schema{
		registry.Schema(typeOf[ingest.CloudEvent](), true, ""),
		{Type: huma.TypeObject, Properties: map[string]*huma.Schema{"type": t.kind, "data": t.data}},
	}}
	t.kind.PrecomputeMessages()
	s.AllOf[1].PrecomputeMessages()
	return s
}

func asyncDocument(build string, intents bool) []byte {
	registry := newRegistry()
	messages, of := object{}, map[string]object{"operation": {}, "all": {}}
	for _, t := range toldBy(registry) {
		messages[t.name] = object{
			"name": t.name, "title": t.title, "summary": t.text, "contentType": "application/cloudevents+json", "payload": t.payload(registry),
		}
		of["operation"][t.name] = ref("#/components/messages/" + t.name)
		if t.name == "fact" {
			of["all"][t.name] = ref("#/components/messages/" + t.name)
		}
	}
	var submit, verdict *huma.Schema
	if intents {
		submit, verdict = registry.Schema(typeOf[submitEvent](), true, ""), registry.Schema(typeOf[ingest.IntentVerdict](), true, "")
	}
	tidySchemas(registry)
	var streams []object
	for _, s := range journal.Streams() {
		streams = append(streams, object{"stream": s, "subjects": journal.Subjects(s)})
	}
	channel := func(of object, address, title, text string) object {
		return object{"address": address, "title": title, "description": text, "messages": of}
	}
	operation := func(channel, title string) object {
		return object{"action": "send", "channel": ref("#/channels/" + channel), "title": title, "bindings": object{"http": object{"method": "GET", "bindingVersion": "0.3.0"}}}
	}
	one := channel(of["operation"], "/v1/operations/{id}/events", "One operation",
		"Server-sent events over HTTP. id is the fact's place in the ledger, event the type, data the event in the JSON format of CloudEvents 1.0. Last-Event-ID, or ?after=, resumes.")
	one["parameters"] = object{"id": object{"description": "The operation's id."}}
	doc := object{
		"asyncapi": "3.0.0",
		"info": object{
			"title": "Counterfoil", "version": build, "license": object{"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
			"description": "What callers are told as it happens. Both streams need a key in the Authorization header, as everything in /openapi.json does; " +
				"requests and answers are described there. The streams of the store, listed in x-store, are the service's own, " +
				"closed to callers, and named here for operators alone.",
		},
		"defaultContentType": "application/cloudevents+json",
		"channels": object{
			"operationEvents": one,
			"events": channel(of["all"], "/v1/events", "All operations of the caller",
				"The same, for all operations that the caller may see: facts, each with the operation as it stood by then. ?of= and ?provider= choose. "+
					"The stream begins with an id and no data: where it is, for who is cut off before the first event. Such ids come later, too."),
		},
		"operations": object{
			"tellOperation": operation("operationEvents", "Tell what happens to an operation"),
			"tellAll":       operation("events", "Tell what happens to all of them"),
		},
		"components": object{"messages": messages, "schemas": registry},
		"x-store":    streams,
	}
	if intents {
		withIntents(doc, messages, submit, verdict)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("api: asyncapi document: %v", err)) // texts and numbers always encode
	}
	return append(text, '\n')
}

// withIntents adds what agents may send and read by NATS.
func withIntents(doc, messages object, submit, verdict *huma.Schema) {
	messages["intent"] = object{
		"name": ingest.EventSubmit, "title": "What is to be done", "contentType": cloudevent.StructuredJSON, "payload": submit,
		"summary": "A CloudEvent in structured mode, as here, or in binary mode with headers ce-id and so on. Its data is the body of POST /v1/operations.",
	}
	messages["verdict"] = object{
		"name": ingest.EventVerdict, "title": "What became of an intent", "contentType": jsonType, "payload": verdict,
		"summary": "A CloudEvent in binary mode: this is its data, the headers ce-type and so on its attributes.",
	}
	principal := object{"description": "The principal of the key that let the agent in."}
	channel := func(address, title, text, message string, parameters object) object {
		return object{
			"address": address, "title": title, "description": text, "parameters": parameters,
			"messages": object{message: ref("#/components/messages/" + message)}, "bindings": object{"nats": object{}},
		}
	}
	channels, operations := doc["channels"].(object), doc["operations"].(object) //nolint:forcetypeassert // both were made so
	channels["intents"] = channel("intents.{principal}", "Intents of a principal",
		"By NATS, through JetStream: the acknowledgement says that it is stored. The API key is the token, or the password. What is refused by permissions is told by the client's error handler alone.",
		"intent", object{"principal": principal})
	channels["verdicts"] = channel("verdicts.{principal}.{token}", "Verdicts for a principal",
		"By NATS, as they come; and later, for 7 days, as the answer to a request on $JS.API.DIRECT.GET.VERDICTS. before this subject.",
		"verdict", object{"principal": principal, "token": object{
			"description": "The first 32 hexadecimal digits of the SHA-256 of the event's source, a line feed and its id; seq- and the sequence of the acknowledgement where those could not be read.",
		}})
	operations["takeIntent"] = object{"action": "receive", "channel": ref("#/channels/intents"), "title": "Take an intent"}
	operations["tellVerdict"] = object{"action": "send", "channel": ref("#/channels/verdicts"), "title": "Tell what became of it"}
}

func guideSheet() sheet {
	return pageSheet("getGuide", "Read how to use the service, in short", "text/plain")
}

func catalogSheet() sheet {
	s := pageSheet("getCatalog", "Read what there is (RFC 9727)", "application/linkset+json")
	s.answers[0].always = append(s.answers[0].always, "Link")
	return s
}

func asyncapiSheet() sheet {
	s := pageSheet("getAsyncAPI", "Read what is told as it happens (AsyncAPI 3.0)", jsonType)
	s.answers[0].body, s.answers[0].media = typeOf[anyObject](), ""
	return s
}

// streamedRoute says whether the route is a stream of events.
func (r route) streamed() bool {
	return len(r.sheet.answers) > 0 && strings.HasPrefix(r.sheet.answers[0].media, eventStream) && r.method == http.MethodGet
}
