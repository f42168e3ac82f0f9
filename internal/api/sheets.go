package api

import (
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// sheet is what the document says of a route, beyond what follows from the route's
// line in the table.
type sheet struct {
	id, tag, title, text string

	params  []string // by their names in params; the query takes no others
	body    reflect.Type
	forms   []string // media types of the body; none: JSON alone
	answers []outcome
	codes   []ingest.Code // beyond those that every route of its kind can answer
}

// outcome is one answer that is no problem.
type outcome struct {
	status int
	text   string
	body   reflect.Type // as JSON; nil: not so
	or     reflect.Type // another body of it; nil: there is none
	media  string       // of what is answered instead, or beside JSON to who prefers it
	always []string     // headers, by their names in headers
	maybe  []string
}

// Names of parameters, of which some routes have one of another meaning under the
// same name on the wire.
const (
	paramID         = "OperationID"
	paramCode       = "Code"
	paramProvider   = "HookProvider"
	paramHookID     = "HookOperationID"
	paramHookKey    = "HookKey"
	paramKey        = "IdempotencyKey"
	paramMatch      = "IfMatch"
	paramMatchMaybe = "IfMatchOptional"
	paramNoneMatch  = "IfNoneMatch"
	paramRange      = "Range"
	paramIfRange    = "IfRange"
	paramPrefer     = "Prefer"
	paramTrace      = "Traceparent"
	paramWait       = "Wait"
	paramAfter      = "AfterVersion"
	paramUntil      = "Until"
	paramWhose      = "Whose"
	paramState      = "State"
	paramOf         = "Provider"
	paramSession    = "Session"
	paramReference  = "ClientReference"
	paramTag        = "Tag"
	paramLimit      = "Limit"
	paramCursor     = "Cursor"
	paramAfterEntry = "AfterEntry"
	paramEntries    = "Entries"
	paramUnaccepted = "Unaccepted"
	paramFile       = "File"
	paramProbe      = "Probe"
	paramResume     = "AfterEvent"
	paramLastEvent  = "LastEventID"
)

// params are the parameters that routes have.
func params() map[string]*huma.Param {
	text := func(s huma.Schema) *huma.Schema { s.Type = huma.TypeString; return &s }
	number := func(from, to float64) *huma.Schema {
		return &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: &from, Maximum: &to}
	}
	length := func(n int) *int { return &n }
	const id = "^[a-z0-9_]{1,64}$"
	const key = "Made by you, one for each intent, kept, and sent with every try: 1 to 255 visible ASCII characters, bare or as a structured-field string in quotes (draft-ietf-httpapi-idempotency-key-header-07). It never expires."
	keySchema := text(huma.Schema{MinLength: length(1), MaxLength: length(2*ingest.MaxKey + 2), Examples: []any{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`}})
	const match = `The ETag of the operation as it was answered, or its version such as "v7". What counts is the version.`
	return map[string]*huma.Param{
		paramID:         {Name: "id", In: "path", Required: true, Description: "An operation's id, as it was answered.", Schema: text(huma.Schema{Pattern: id, Examples: []any{"op_mq5r4kqzixmvs5pa4yfvhhw3yyz2zcws"}})},
		paramCode:       {Name: "code", In: "path", Required: true, Description: "The code of a problem.", Schema: text(huma.Schema{Pattern: "^[a-z_]+$"})},
		paramProvider:   {Name: "provider", In: "path", Required: true, Description: "The provider that calls.", Schema: text(huma.Schema{Pattern: "^[a-z0-9_-]{1,64}$"})},
		paramHookID:     {Name: "id", In: "path", Required: true, Description: "The operation that the address was made for.", Schema: text(huma.Schema{})},
		paramHookKey:    {Name: "key", In: "query", Description: "The address's own key, as it was given to the provider. The address counts only with it.", Schema: text(huma.Schema{})},
		paramKey:        {Name: "Idempotency-Key", In: "header", Required: true, Description: key, Schema: keySchema},
		paramMatch:      {Name: "If-Match", In: "header", Required: true, Description: match, Schema: text(huma.Schema{Examples: []any{`"v7"`}})},
		paramMatchMaybe: {Name: "If-Match", In: "header", Description: match, Schema: text(huma.Schema{Examples: []any{`"v7"`}})},
		paramNoneMatch:  {Name: "If-None-Match", In: "header", Description: "ETags that you have. If one of them is current the answer is 304; for an operation with a wait it is so only once the wait has ended.", Schema: text(huma.Schema{Examples: []any{`"v7-1f8a0c5be4d2aa03"`}})},
		paramRange:      {Name: "Range", In: "header", Description: "One range of bytes, of those that were cut off before. Several are answered with the whole.", Schema: text(huma.Schema{Examples: []any{"bytes=1048576-"}})},
		paramIfRange:    {Name: "If-Range", In: "header", Description: "The ETag that the first part had: of another result the whole is sent.", Schema: text(huma.Schema{Examples: []any{`"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`}})},
		paramPrefer:     {Name: "Prefer", In: "header", Description: "wait=N: wait up to N seconds for the answer, at most " + strconv.Itoa(int(ingest.MaxWait.Seconds())) + " (RFC 7240).", Schema: text(huma.Schema{Examples: []any{"wait=30"}})},
		paramTrace:      {Name: "traceparent", In: "header", Description: "W3C trace context; the operation's calls are part of that trace.", Schema: text(huma.Schema{Examples: []any{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}})},
		paramWait:       {Name: "wait", In: "query", Description: "Seconds to wait for news, of which at most " + strconv.Itoa(int(ingest.MaxWait.Seconds())) + " are waited.", Schema: number(0, 1<<31)},
		paramAfter:      {Name: "after", In: "query", Description: "The version that you have: the answer is 304 unless there is another.", Schema: number(0, 1<<62)},
		paramUntil:      {Name: "until", In: "query", Description: "Wait for the end, or a stop that waits for a decision, instead of any news. done is the same.", Schema: text(huma.Schema{Enum: []any{"terminal", "done"}})},
		paramWhose:      {Name: "of", In: "query", Description: "Whose operations: your principal's, those of your team, or everybody's; the latter two need a scope.", Schema: text(huma.Schema{Enum: []any{"own", "team", "all"}})},
		paramState:      {Name: "state", In: "query", Description: "Only operations in this state.", Schema: text(huma.Schema{Enum: anys(ingest.States())})},
		paramOf:         {Name: "provider", In: "query", Description: "Only operations with this provider.", Schema: text(huma.Schema{Pattern: "^[a-z0-9_-]{1,64}$"})},
		paramSession:    {Name: "session", In: "query", Description: "The newest operations with this session label, in one page without a cursor.", Schema: text(huma.Schema{MinLength: length(1), MaxLength: length(ingest.MaxText)})},
		paramReference:  {Name: "client_reference", In: "query", Description: "The newest operations with this client_reference, in one page without a cursor.", Schema: text(huma.Schema{MinLength: length(1), MaxLength: length(ingest.MaxText)})},
		paramTag:        {Name: repeated, In: "query", Description: "name:value: only operations with this tag. It may be there several times; all must match.", Schema: &huma.Schema{Type: huma.TypeArray, MaxItems: length(ingest.MaxTagFilters), Items: text(huma.Schema{MinLength: length(1), Examples: []any{"team:billing"}})}},
		paramLimit:      {Name: "limit", In: "query", Description: "Operations on a page, " + strconv.Itoa(ingest.DefaultPage) + " if it is left out.", Schema: number(1, ingest.MaxPage)},
		paramCursor:     {Name: "cursor", In: "query", Description: "next_cursor of the page before, with the same filter.", Schema: text(huma.Schema{MinLength: length(1)})},
		paramAfterEntry: {Name: "after", In: "query", Description: "Only facts after this seq.", Schema: number(0, 1<<62)},
		paramEntries:    {Name: "limit", In: "query", Description: "Facts on a page, " + strconv.Itoa(ingest.DefaultTimeline) + " if it is left out.", Schema: number(0, ingest.MaxTimeline)},
		paramUnaccepted: {Name: "unaccepted", In: "query", Description: "true: give the result although a check of it failed.", Schema: &huma.Schema{Type: huma.TypeBoolean}},
		paramFile:       {Name: "file", In: "query", Description: "One file of a result of several, by its name or its place from 0.", Schema: text(huma.Schema{MinLength: length(1)})},
		paramResume:     {Name: "after", In: "query", Description: "The id of the last event that you have; 0 has all there are told. Left out, the stream begins with how things stand.", Schema: number(0, 1<<62)},
		paramLastEvent:  {Name: "Last-Event-ID", In: "header", Description: "As after, and it wins: browsers send it when they connect again.", Schema: text(huma.Schema{Pattern: "^[0-9]+$"})},
		paramProbe:      {Name: "probe", In: "query", Description: "true: have every provider called, too.", Schema: &huma.Schema{Type: huma.TypeBoolean}},
	}
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

// headers are the headers of answers that a caller can use.
func headers() map[string]string {
	return map[string]string{
		"ETag":                "Strong. For an operation it has the version, and a sum of all that this caller is shown but next_poll_after.",
		"RateLimit-Policy":    "The quotas of your principal (draft-ietf-httpapi-ratelimit-headers-12): q operations, begun in w seconds (submit), or under way (open).",
		"RateLimit":           "What is left of them: r operations can be begun now, one more in t seconds. Best effort, and of the process that answers.",
		"Retry-After":         "Seconds after which asking again may show something new, or may succeed.",
		"Location":            "Where the thing that was made is found.",
		"Content-Location":    "The operation that the body shows.",
		"Idempotent-Replayed": "true: the key had done this before, and nothing was done now.",
		"Preference-Applied":  "The wait that was applied.",
		"Vary":                "The request headers that the answer depends on.",
		"Link":                "Links (RFC 8288): this description, and next where a list goes on.",
		"Cache-Control":       "How long and by whom the answer may be kept.",
		"Content-Digest":      "The digest of the bytes that are sent (RFC 9530).",
		"Repr-Digest":         "The digest of the whole (RFC 9530).",
		"Content-Range":       "Which bytes they are, of how many.",
		"Accept-Ranges":       "That parts can be asked for.",
		"WWW-Authenticate":    "How to authenticate.",
		"Accept-Post":         "The media types that a POST takes.",
	}
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// showing answers a POST with an operation.
func showing(status int, text string, maybe ...string) outcome {
	return outcome{status: status, text: text, body: typeOf[ingest.View](), always: []string{"ETag", "Content-Location"}, maybe: append(maybe, "Retry-After")}
}

func same(text string, maybe ...string) outcome {
	return outcome{status: http.StatusNotModified, text: text, always: []string{"ETag"}, maybe: maybe}
}

func submitSheet() sheet {
	return sheet{
		id: "submitOperation", tag: tagOperations, title: "Submit an operation",
		text:   "Records what is asked for before anything is done about it, and answers at once, or with Prefer: wait=N once it has ended. The same request under the same key never acts again: it is answered with the operation as it now stands.",
		params: []string{paramKey, paramPrefer, paramTrace}, body: typeOf[ingest.SubmitBody](),
		answers: []outcome{
			{status: http.StatusAccepted, text: "Recorded; the job is under way or yet to be made.", body: typeOf[ingest.View](), always: []string{"ETag", "Location", "Content-Location", "Vary"}, maybe: []string{"Retry-After", "Preference-Applied"}},
			{status: http.StatusOK, text: "The key named this operation before, or it ended within the wait. Or, with validate_only, what would be recorded, with validation.", body: typeOf[ingest.View](), always: []string{"Vary"}, maybe: []string{"ETag", "Content-Location", "Retry-After", "Idempotent-Replayed", "Preference-Applied"}},
		},
		codes: []ingest.Code{ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeUnknownProvider, ingest.CodeAccountNotAllowed, ingest.CodeStorageLow, ingest.CodeForbidden, ingest.CodeMayStillCreate, ingest.CodeMoving, ingest.CodeJobOwned, ingest.CodeNewerVersion, ingest.CodeCostExceeded, ingest.CodeCostUnknown},
	}
}

func batchSheet() sheet {
	return sheet{
		id: "submitOperations", tag: tagOperations, title: "Submit several operations",
		text: "mode says what it means where not all items can be recorded; the answer says it again in words. The key names the whole for ever: sent again with it, " +
			"what is recorded is not recorded again, and what was refused is tried again.",
		params: []string{paramKey, paramTrace}, body: typeOf[ingest.BatchBody](),
		answers: []outcome{
			{status: http.StatusAccepted, text: "atomic: all items are recorded.", body: typeOf[ingest.BatchView]()},
			{status: http.StatusOK, text: "independent: what became of each item. atomic: all were recorded before. With validate_only, what would become of them.", body: typeOf[ingest.BatchView](), maybe: []string{"Idempotent-Replayed"}},
		},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeBatchTooLarge, ingest.CodeUnknownProvider, ingest.CodeAccountNotAllowed,
			ingest.CodeStorageLow, ingest.CodeForbidden, ingest.CodeMayStillCreate, ingest.CodeMoving, ingest.CodeJobOwned, ingest.CodeNewerVersion, ingest.CodeCostExceeded, ingest.CodeCostUnknown,
		},
	}
}

func cancelBatchSheet() sheet {
	return sheet{
		id: "cancelOperations", tag: tagOperations, title: "Ask for the cancellation of several operations",
		text: "Wishes, as of cancelOperation. mode says what it means where not all can be recorded; the answer says it again in words. " +
			"Keys are looked up on each operation, and that of the whole stands for items without one: sent again with it, what was recorded is not recorded again.",
		params: []string{paramKey}, body: typeOf[ingest.CancelBatchBody](),
		answers: []outcome{
			{status: http.StatusAccepted, text: "atomic: all wishes are recorded.", body: typeOf[ingest.BatchView]()},
			{status: http.StatusOK, text: "independent: what became of each item. atomic: all were asked for before.", body: typeOf[ingest.BatchView](), maybe: []string{"Idempotent-Replayed"}},
		},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeBatchTooLarge, ingest.CodeNotFound, ingest.CodeStale,
			ingest.CodeAlreadyTerminal, ingest.CodeCancelUnsupported, ingest.CodeMoving, ingest.CodeNewerVersion, ingest.CodeForbidden,
		},
	}
}

func listSheet() sheet {
	return sheet{
		id: "listOperations", tag: tagOperations, title: "List your operations, newest fact first",
		text:    "A page may be short or empty with more to come: next_cursor says so. The newest facts of an operation may not be in yet; GET of the operation has them.",
		params:  []string{paramWhose, paramState, paramOf, paramSession, paramReference, paramTag, paramLimit, paramCursor},
		answers: []outcome{{status: http.StatusOK, text: "A page.", body: typeOf[ingest.Page](), maybe: []string{"Link"}}},
		codes:   []ingest.Code{ingest.CodeCursorInvalid, ingest.CodeForbidden},
	}
}

func getSheet() sheet {
	return sheet{
		id: "getOperation", tag: tagOperations, title: "Read an operation, or wait for news of it",
		text:   "With Prefer: wait=N and If-None-Match, or ?wait=N&after=VERSION, it is answered once there is news, and 304 if there is none in time. With until=terminal it is answered once waiting is over (done is true).",
		params: []string{paramID, paramWait, paramAfter, paramUntil, paramPrefer, paramNoneMatch},
		answers: []outcome{
			{status: http.StatusOK, text: "The operation as it is now.", body: typeOf[ingest.View](), always: []string{"ETag", "Vary"}, maybe: []string{"Retry-After", "Preference-Applied"}},
			{status: http.StatusNotModified, text: "It is as you have it.", always: []string{"ETag", "Vary"}, maybe: []string{"Retry-After", "Preference-Applied"}},
		},
	}
}

func watchSheet() sheet {
	return sheet{
		id: "watchOperation", tag: tagOperations, title: "Follow an operation as it happens",
		text: "Server-sent events, each a CloudEvent in JSON: operation.snapshot.v1 with the operation as it stands, then every fact as it is stored, and operation.ended.v1 at the end. " +
			"Who comes back with the id of its last event is told what it missed; where that id is none of this operation's, operation.reset.v1 shows it as it stands.",
		params: []string{paramID, paramResume, paramLastEvent},
		answers: []outcome{
			{status: http.StatusOK, text: "The stream.", media: eventStream},
			{status: http.StatusNoContent, text: "It has ended and you have all of it: do not connect again."},
		},
		codes: []ingest.Code{ingest.CodeNotAcceptable, ingest.CodeCursorInvalid, ingest.CodeTooManyStreams},
	}
}

func feedSheet() sheet {
	return sheet{
		id: "watchOperations", tag: tagOperations, title: "Follow all your operations as it happens",
		text: "Server-sent events, each a CloudEvent in JSON: one for every fact, with the operation as it stands by then in short. " +
			"It begins with an id and no data, which a browser takes note of and does not dispatch: where the stream is. Such ids come later, too. " +
			"Who comes back with the last id is told what it missed.",
		params:  []string{paramWhose, paramOf, paramResume, paramLastEvent},
		answers: []outcome{{status: http.StatusOK, text: "The stream.", media: eventStream}},
		codes:   []ingest.Code{ingest.CodeNotAcceptable, ingest.CodeCursorInvalid, ingest.CodeCursorExpired, ingest.CodeTooManyStreams, ingest.CodeForbidden},
	}
}

func timelineSheet() sheet {
	return sheet{
		id: "getTimeline", tag: tagOperations, title: "Read what happened, oldest first",
		text:   "Every fact of the operation, who caused it, and what it did.",
		params: []string{paramID, paramAfterEntry, paramEntries, paramNoneMatch},
		answers: []outcome{
			{status: http.StatusOK, text: "A page of facts.", body: typeOf[ingest.TimelinePage](), always: []string{"ETag"}, maybe: []string{"Link"}},
			same("It is as you have it."),
		},
	}
}

func paramsSheet() sheet {
	return sheet{
		id: "getParams", tag: tagOperations, title: "Read the parameters",
		text:   "The caller's JSON as it was sent, byte for byte. Its ETag is its SHA-256 in hex, which is approval.params_sha256 of an operation that needs an approval.",
		params: []string{paramID, paramNoneMatch},
		answers: []outcome{
			{status: http.StatusOK, text: "The parameters.", body: typeOf[anyObject](), always: []string{"ETag", "Content-Digest", "Cache-Control"}},
			same("They are what you have.", "Cache-Control"),
		},
	}
}

func personSheet() sheet {
	return sheet{
		id: "showOperation", tag: tagOperations, title: "Show an operation to a person",
		text:    "A page that changes nothing and runs no script: how the operation stands, and what happened. A browser may give the key as the password of any name (HTTP Basic).",
		params:  []string{paramID, paramAfterEntry},
		answers: []outcome{{status: http.StatusOK, text: "The page.", media: "text/html"}},
	}
}

func resultSheet() sheet {
	return sheet{
		id: "getResult", tag: tagOperations, title: "Read the result",
		text:   "The provider's bytes, in its media type, as they were collected.",
		params: []string{paramID, paramUnaccepted, paramFile, paramNoneMatch, paramRange, paramIfRange},
		answers: []outcome{
			{status: http.StatusOK, text: "The result.", media: "*/*", always: []string{"ETag", "Content-Digest", "Cache-Control", "Accept-Ranges"}},
			{status: http.StatusPartialContent, text: "The part that was asked for.", media: "*/*", always: []string{"ETag", "Content-Digest", "Repr-Digest", "Content-Range", "Cache-Control", "Accept-Ranges"}},
			same("It is what you have."),
		},
		codes: []ingest.Code{ingest.CodeResultNotReady, ingest.CodeNoResult, ingest.CodeResultNotAccepted, ingest.CodeResultUnavailable, ingest.CodeRangeUnsatisfied},
	}
}

func cancelSheet() sheet {
	return sheet{
		id: "cancelOperation", tag: tagOperations, title: "Ask for an operation's cancellation",
		text:   "A wish: only the provider's word makes it cancelled, and the job may still end in another way.",
		params: []string{paramID, paramKey, paramMatchMaybe}, body: typeOf[ingest.WhyBody](),
		answers: []outcome{showing(http.StatusAccepted, "The wish is recorded and served."), showing(http.StatusOK, "Nothing is on its way: it is cancelled, or cannot be any more. Or the key had asked for it before.", "Idempotent-Replayed")},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodePreconditionInvalid, ingest.CodeStale, ingest.CodeAlreadyTerminal, ingest.CodeCancelUnsupported, ingest.CodeNewerVersion,
		},
	}
}

func decideSheet() sheet {
	return sheet{
		id: "decideOperation", tag: tagOperations, title: "Decide what automation must not",
		text:   "On the very state that was seen: If-Match says which. The kinds approve and deny answer an operation that waits in approval_pending, and are for another principal than the one that submitted it, with the scope approve.",
		params: []string{paramID, paramKey, paramMatch}, body: typeOf[ingest.DecideBody](),
		answers: []outcome{
			{status: http.StatusCreated, text: "Recorded.", body: typeOf[ingest.View](), always: []string{"ETag", "Location", "Content-Location"}, maybe: []string{"Retry-After"}},
			{status: http.StatusOK, text: "The key had recorded this decision before.", body: typeOf[ingest.View](), always: []string{"ETag", "Location", "Content-Location", "Idempotent-Replayed"}, maybe: []string{"Retry-After"}},
		},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodePrecondition, ingest.CodePreconditionInvalid, ingest.CodeStale,
			ingest.CodeDecisionNotAllowed, ingest.CodeRiskNotAccepted, ingest.CodeJobOwned, ingest.CodeAlreadyTerminal, ingest.CodeNewerVersion, ingest.CodeAccountNotAllowed,
			ingest.CodeSelfApproval, ingest.CodeApprovalDiffers,
		},
	}
}

func pauseSheet() sheet {
	s := restSheet()
	s.id, s.title = "pauseOperation", "Rest an operation's creates and collections"
	s.text = "Cancels, look-ups, reads and deadlines go on. One that is paused stays as it is."
	return s
}

func resumeSheet() sheet {
	s := restSheet()
	s.id, s.title = "resumeOperation", "End an operation's pause"
	s.text = "One that is not paused stays as it is. It is not the decision of kind resume, which watches a job again after a deadline."
	return s
}

func restSheet() sheet {
	return sheet{
		tag: tagOperations, params: []string{paramID, paramKey, paramMatchMaybe}, body: typeOf[ingest.WhyBody](),
		answers: []outcome{showing(http.StatusOK, "The operation as it is now.", "Idempotent-Replayed")},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodePreconditionInvalid, ingest.CodeStale, ingest.CodeAlreadyTerminal, ingest.CodeNewerVersion,
		},
	}
}

func holdsSheet() sheet {
	return sheet{
		id: "listHolds", tag: tagHolds, title: "List the holds in force", text: "For operators.",
		answers: []outcome{{status: http.StatusOK, text: "The holds.", body: typeOf[ingest.HoldList]()}},
		codes:   []ingest.Code{ingest.CodeOperatorOnly},
	}
}

func holdSheet() sheet {
	return sheet{
		id: "placeHold", tag: tagHolds, title: "Hold a provider, or all of them",
		text:   "For operators. The same hold again changes nothing, and a stronger one takes the place of a weaker.",
		params: []string{paramKey}, body: typeOf[ingest.HoldBody](),
		answers: []outcome{
			{status: http.StatusCreated, text: "The hold is in force.", body: typeOf[ingest.HoldView](), always: []string{"Location"}},
			{status: http.StatusOK, text: "It was in force before.", body: typeOf[ingest.HoldView](), maybe: []string{"Idempotent-Replayed"}},
		},
		codes: []ingest.Code{ingest.CodeOperatorOnly, ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeUnknownProvider, ingest.CodeHoldStronger},
	}
}

func releaseSheet() sheet {
	return sheet{
		id: "releaseHold", tag: tagHolds, title: "Release a hold",
		text:   "For operators. The hold on all providers and those on single ones are released each by itself.",
		params: []string{paramKey}, body: typeOf[ingest.ReleaseBody](),
		answers: []outcome{{status: http.StatusOK, text: "It is released; was tells what it was.", body: typeOf[ingest.HoldView](), maybe: []string{"Idempotent-Replayed"}}},
		codes:   []ingest.Code{ingest.CodeOperatorOnly, ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodeNotHeld},
	}
}

func capabilitiesSheet() sheet {
	return sheet{
		id: "getCapabilities", tag: tagService, title: "Read what you may ask for",
		text:   "With a key: who you are, what your key may do and what not and why, the providers of which you may use an account, and what each promises. Without one, what is the same for everybody.",
		params: []string{paramNoneMatch},
		answers: []outcome{
			{status: http.StatusOK, text: "What you may do.", body: typeOf[ingest.Capabilities](), always: []string{"ETag", "Cache-Control", "Vary"}},
			same("It is as you have it.", "Vary", "Cache-Control"),
		},
	}
}

func doctorSheet() sheet {
	return sheet{
		id: "getReport", tag: tagService, title: "Have the service looked at",
		text:   "For operators: it tells of every principal's operations.",
		params: []string{paramProbe},
		answers: []outcome{
			{status: http.StatusOK, text: "What was seen.", body: typeOf[doctor.Report]()},
		},
		codes: []ingest.Code{ingest.CodeOperatorOnly},
	}
}

// status is a body of one word.
type status struct {
	Status string `json:"status" example:"ok"`
}

func aliveSheet() sheet {
	return sheet{
		id: "getHealth", tag: tagService, title: "Ask whether the process is alive", text: "Whatever it depends on.",
		answers: []outcome{{status: http.StatusOK, text: "It is.", body: typeOf[status]()}},
	}
}

func readySheet() sheet {
	return sheet{
		id: "getReadiness", tag: tagService, title: "Ask whether the service can do its work",
		text: "The one answer that is no success and no problem document: 503 has the same report.",
		answers: []outcome{
			{status: http.StatusOK, text: "It can.", body: typeOf[anyObject]()},
			{status: http.StatusServiceUnavailable, text: "It cannot; the report says why.", body: typeOf[anyObject]()},
		},
	}
}

func hookSheet() sheet {
	return sheet{
		id: "receiveWebhook", tag: tagProviders, title: "Take a provider's event",
		text:    "For providers, not for agents. The body is signed as the provider's contract says; it is answered as taken only once it is stored.",
		params:  []string{paramProvider},
		answers: []outcome{{status: http.StatusOK, text: "It is stored.", body: typeOf[status]()}},
		codes:   []ingest.Code{ingest.CodeNotFound, ingest.CodeSignatureInvalid, ingest.CodeBodyTooLarge, ingest.CodeTooManyDeliveries},
	}
}

func operationHookSheet() sheet {
	s := hookSheet()
	s.id, s.title = "receiveOperationWebhook", "Take a provider's event about one operation"
	s.params = []string{paramProvider, paramHookID, paramHookKey}
	return s
}
