package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// Groups of operations in the document.
const (
	tagOperations = "operations"
	tagHolds      = "holds"
	tagService    = "service"
	tagProviders  = "providers"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
)

// anyObject is a JSON object whose members are not described.
type anyObject struct{}

// Schema implements huma.SchemaProvider.
func (anyObject) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

// textObject is a JSON object of texts.
type textObject struct{}

// Schema implements huma.SchemaProvider.
func (textObject) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: &huma.Schema{Type: huma.TypeString}}
}

// Names of closed sets: the document lists their values.
type (
	stateName     string
	decisionName  string
	guaranteeName string
	scopeName     string
	codeName      string
	keyName       string
)

func oneOf[T any](values ...T) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: anys(values)}
}

// Schema implements huma.SchemaProvider.
func (stateName) Schema(huma.Registry) *huma.Schema { return oneOf(ingest.States()...) }

// Schema implements huma.SchemaProvider.
func (decisionName) Schema(huma.Registry) *huma.Schema { return oneOf(ingest.Decisions()...) }

// Schema implements huma.SchemaProvider.
func (guaranteeName) Schema(huma.Registry) *huma.Schema {
	return oneOf(string(events.Deduplicated), string(events.Recoverable), string(events.AskAfterLoss))
}

// Schema implements huma.SchemaProvider. A hold that was released has none.
func (scopeName) Schema(huma.Registry) *huma.Schema {
	return oneOf(string(events.HoldNone), string(events.HoldCreates), string(events.HoldAll))
}

// Schema implements huma.SchemaProvider.
func (codeName) Schema(huma.Registry) *huma.Schema {
	var codes []string
	for _, m := range ingest.Meanings() {
		codes = append(codes, string(m.Code))
	}
	return oneOf(codes...)
}

// Schema implements huma.SchemaProvider.
func (keyName) Schema(huma.Registry) *huma.Schema {
	return oneOf(string(ingest.RetrySameKey), string(ingest.RetryNewKey), string(ingest.RetryNever))
}

// newAPI makes huma's side: it routes, and it keeps the document. Nothing else of
// it is used. It decodes no body, since a second reader beside that of ingest could
// take a body for something else than what is fingerprinted; it writes no error,
// since its errors are made by a variable of the package; and it adds no $schema
// and no pages of its own.
func newAPI(mux *http.ServeMux, build string) huma.API {
	registry := newRegistry()
	if build == "" {
		build = "unknown"
	}
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:       "Counterfoil",
			Version:     build,
			Description: "Long-running jobs at providers, written down before they are acted on. Read /llms.txt first: it is short.",
			License:     &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"},
		},
		Servers: []*huma.Server{{URL: "/", Description: "The service that this document was read from."}},
		Tags: []*huma.Tag{
			{Name: tagOperations, Description: "Submit, follow, cancel and decide."},
			{Name: tagHolds, Description: "Rest calls to providers; for operators."},
			{Name: tagService, Description: "What the service can do and how it is."},
			{Name: tagProviders, Description: "The providers' way in."},
		},
		Components: &huma.Components{
			Schemas:    registry,
			Parameters: params(),
			Headers:    map[string]*huma.Header{},
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"key": {Type: "http", Scheme: "bearer", Description: "A key of this installation, cf_…, as its operator gives it out."},
			},
		},
	}
	for name, text := range headers() {
		doc.Components.Headers[name] = &huma.Header{Description: text, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	api := humago.New(mux, huma.Config{OpenAPI: doc})
	doc.Components.Schemas.Schema(typeOf[ingest.Problem](), false, "")
	return api
}

// newRegistry makes schemas of Go types.
func newRegistry() huma.Registry {
	registry := huma.NewMapRegistry("#/components/schemas/", schemaName)
	for from, to := range map[reflect.Type]reflect.Type{
		typeOf[projections.Phase]():   typeOf[stateName](),
		typeOf[events.DecisionKind](): typeOf[decisionName](),
		typeOf[events.Guarantee]():    typeOf[guaranteeName](),
		typeOf[events.HoldScope]():    typeOf[scopeName](),
		typeOf[ingest.Code]():         typeOf[codeName](),
		typeOf[ingest.RetryWith]():    typeOf[keyName](),
		typeOf[ingest.Fields]():       typeOf[textObject](),
		typeOf[jsontext.Value]():      typeOf[anyObject](),
	} {
		registry.RegisterTypeAlias(from, to)
	}
	return registry
}

// schemaName gives types their names in the document.
func schemaName(t reflect.Type, hint string) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case typeOf[ingest.Problem]():
		return "Problem"
	case typeOf[ingest.View]():
		return "Operation"
	case typeOf[ingest.Page]():
		return "OperationList"
	case typeOf[ingest.ProblemView]():
		return "ProviderProblem"
	case typeOf[ingest.CheckView]():
		return "ResultCheck"
	}
	return strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "View")
}

// codesOf are the problems that a route can answer.
func (r route) codesOf() []ingest.Code {
	codes := append([]ingest.Code{
		ingest.CodeInternal, ingest.CodeBodyIncomplete, ingest.CodeBodyTooLarge, ingest.CodeRequestTimeout, ingest.CodeRequestMalformed,
	}, r.sheet.codes...)
	if !r.open {
		codes = append(codes, ingest.CodeUnauthenticated, ingest.CodeKeysUnavailable)
	}
	if !r.early() || !r.open {
		codes = append(codes, ingest.CodeUnavailable)
	}
	if slices.Contains(r.sheet.params, paramID) {
		codes = append(codes, ingest.CodeInvalidID, ingest.CodeNotFound, ingest.CodeForbidden)
	}
	if r.sheet.body != nil {
		codes = append(codes, ingest.CodeMediaType, ingest.CodeMalformedJSON, ingest.CodeDuplicateKey,
			ingest.CodeNumberOutOfRange, ingest.CodeTooDeep, ingest.CodeInvalid)
	}
	if r.strict() {
		codes = append(codes, ingest.CodeInvalid)
	}
	if len(r.offers()) > 0 {
		codes = append(codes, ingest.CodeNotAcceptable)
	}
	if r.begins {
		codes = append(codes, ingest.CodeRateExceeded, ingest.CodeTooManyOpen, ingest.CodeCostQuota, ingest.CodeCostAboveQuota)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// told are the headers of all answers to whoever is known.
func (r route) told() []string {
	if r.begins {
		return []string{"RateLimit", "RateLimit-Policy"}
	}
	return nil
}

// describe is the document's entry for the route.
func (r route) describe(doc *huma.OpenAPI) *huma.Operation {
	s := r.sheet
	op := &huma.Operation{
		Method: r.method, Path: r.path, OperationID: s.id, Tags: []string{s.tag}, Summary: s.title, Description: s.text,
		Responses: map[string]*huma.Response{},
	}
	switch {
	case r.open:
		op.Security = []map[string][]string{{}}
	case r.either:
		op.Security = []map[string][]string{{}, {"key": {}}}
	default:
		op.Security = []map[string][]string{{"key": {}}}
	}
	for _, name := range s.params {
		if doc.Components.Parameters[name] == nil {
			panic(fmt.Sprintf("api: %s has the parameter %s, which is described nowhere", s.id, name))
		}
		op.Parameters = append(op.Parameters, &huma.Param{Ref: "#/components/parameters/" + name})
	}
	registry := doc.Components.Schemas
	switch {
	case s.body != nil:
		op.RequestBody = &huma.RequestBody{
			Required: r.body == bodyJSON || r.body == bodyEvent, Content: map[string]*huma.MediaType{jsonType: {Schema: registry.Schema(s.body, true, "")}},
		}
		if r.body == bodyEvent {
			one := registry.Schema(typeOf[submitEvent](), true, "")
			op.RequestBody.Content[cloudevent.StructuredJSON] = &huma.MediaType{Schema: one}
			op.RequestBody.Content[cloudevent.BatchJSON] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{}}}
		}
	case r.body == bodyRaw:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"*/*": {Schema: &huma.Schema{}}}}
	}
	for _, o := range s.answers {
		answer := &huma.Response{Description: o.text, Headers: map[string]*huma.Header{}}
		for _, name := range o.always {
			answer.Headers[name] = &huma.Header{Ref: "#/components/headers/" + name}
		}
		for _, name := range r.told() {
			answer.Headers[name] = &huma.Header{Ref: "#/components/headers/" + name}
		}
		for _, name := range o.maybe {
			answer.Headers[name] = &huma.Header{Ref: "#/components/headers/" + name}
		}
		if o.body != nil {
			answer.Content = map[string]*huma.MediaType{jsonType: {Schema: registry.Schema(o.body, true, "")}}
			if o.or != nil {
				answer.Content[jsonType].Schema = &huma.Schema{AnyOf: []*huma.Schema{registry.Schema(o.body, true, ""), registry.Schema(o.or, true, "")}}
			}
		}
		if o.media != "" {
			if answer.Content == nil {
				answer.Content = map[string]*huma.MediaType{}
			}
			answer.Content[o.media] = &huma.MediaType{Schema: &huma.Schema{}}
		}
		op.Responses[strconv.Itoa(o.status)] = answer
	}
	byStatus := map[int][]ingest.Code{}
	for _, code := range r.codesOf() {
		status := code.Meaning().Status
		byStatus[status] = append(byStatus[status], code)
	}
	for status, codes := range byStatus {
		answer := op.Responses[strconv.Itoa(status)]
		if answer == nil {
			answer = &huma.Response{Headers: map[string]*huma.Header{}, Content: map[string]*huma.MediaType{}}
			op.Responses[strconv.Itoa(status)] = answer
		}
		var texts, names []string
		for _, code := range codes {
			names = append(names, string(code))
			texts = append(texts, "`"+string(code)+"`: "+code.Meaning().Title+".")
		}
		answer.Description = strings.TrimSpace(answer.Description + " " + strings.Join(texts, " "))
		answer.Content[problemType] = &huma.MediaType{Schema: problemOf(names)}
		if status != http.StatusUnauthorized {
			for _, name := range r.told() {
				answer.Headers[name] = &huma.Header{Ref: "#/components/headers/" + name}
			}
		}
		switch status {
		case http.StatusUnauthorized:
			if slices.Contains(codes, ingest.CodeUnauthenticated) {
				answer.Headers["WWW-Authenticate"] = &huma.Header{Ref: "#/components/headers/WWW-Authenticate"}
			}
		case http.StatusUnsupportedMediaType:
			answer.Headers["Accept-Post"] = &huma.Header{Ref: "#/components/headers/Accept-Post"}
		case http.StatusRequestedRangeNotSatisfiable:
			answer.Headers["Content-Range"] = &huma.Header{Ref: "#/components/headers/Content-Range"}
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			answer.Headers["Retry-After"] = &huma.Header{Ref: "#/components/headers/Retry-After"}
		}
	}
	return op
}

// problemOf is the schema of a problem with one of the codes.
func problemOf(codes []string) *huma.Schema {
	code := oneOf(codes...)
	s := &huma.Schema{AllOf: []*huma.Schema{
		{Ref: "#/components/schemas/Problem"},
		{Type: huma.TypeObject, Properties: map[string]*huma.Schema{"code": code}},
	}}
	code.PrecomputeMessages()
	s.AllOf[1].PrecomputeMessages()
	return s
}

func tidySchemas(registry huma.Registry) {
	for _, s := range registry.Map() {
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // what has no elements is written []
			}
		}
	}
}

// tidy finishes the document once all routes are in it.
func tidy(doc *huma.OpenAPI) {
	tidySchemas(doc.Components.Schemas)
	used := map[string]bool{}
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			for _, p := range op.Parameters {
				used[strings.TrimPrefix(p.Ref, "#/components/parameters/")] = true
			}
			for _, answer := range op.Responses {
				for _, header := range answer.Headers {
					used[strings.TrimPrefix(header.Ref, "#/components/headers/")] = true
				}
			}
		}
	}
	maps.DeleteFunc(doc.Components.Parameters, func(name string, _ *huma.Param) bool { return !used[name] })
	maps.DeleteFunc(doc.Components.Headers, func(name string, _ *huma.Header) bool { return !used[name] })
}

func written(doc *huma.OpenAPI) []byte {
	text, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("api: openapi document: %v", err)) // texts and numbers always encode
	}
	return append(text, '\n')
}

// operationsOf are the operations of one path, by method.
func operationsOf(item *huma.PathItem) map[string]*huma.Operation {
	all := map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodPost: item.Post}
	maps.DeleteFunc(all, func(_ string, op *huma.Operation) bool { return op == nil })
	return all
}
