package ingest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/projections"
)

// Code is a problem's name for machines. Codes are for ever.
type Code string

// The codes. Their meanings are in [Meanings], the one place that says which
// status, title and advice belong to each.
const (
	CodeUnauthenticated     Code = "unauthenticated"
	CodeForbidden           Code = "forbidden"
	CodeAccountNotAllowed   Code = "account_not_allowed"
	CodeOperatorOnly        Code = "operator_only"
	CodeNotFound            Code = "not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeBodyTooLarge        Code = "body_too_large"
	CodeMediaType           Code = "unsupported_media_type"
	CodeRequestMalformed    Code = "request_malformed"
	CodeBodyIncomplete      Code = "body_incomplete"
	CodeRequestTimeout      Code = "request_timeout"
	CodeExpectation         Code = "expectation_failed"
	CodeHeadersTooLarge     Code = "headers_too_large"
	CodeTransferCoding      Code = "transfer_coding_unsupported"
	CodeHTTPVersion         Code = "http_version_unsupported"
	CodeMalformedJSON       Code = "malformed_json"
	CodeDuplicateKey        Code = "duplicate_key"
	CodeNumberOutOfRange    Code = "number_out_of_range"
	CodeTooDeep             Code = "too_deep"
	CodeInvalid             Code = "validation_failed"
	CodeInvalidID           Code = "invalid_id"
	CodeUnknownProvider     Code = "unknown_provider"
	CodeKeyMissing          Code = "idempotency_key_missing"
	CodeKeyInvalid          Code = "idempotency_key_invalid"
	CodeKeyReused           Code = "idempotency_key_reused"
	CodeAlreadyTerminal     Code = "already_terminal"
	CodeCancelUnsupported   Code = "cancel_unsupported"
	CodeInputUnsupported    Code = "input_unsupported"
	CodeInputNotWanted      Code = "input_not_wanted"
	CodeQuestionDiffers     Code = "question_differs"
	CodeCleanupUnsupported  Code = "cleanup_unsupported"
	CodeCleanupNotAllowed   Code = "cleanup_not_allowed"
	CodeCleanupUnderWay     Code = "cleanup_under_way"
	CodePrecondition        Code = "precondition_required"
	CodePreconditionInvalid Code = "precondition_invalid"
	CodeStale               Code = "stale"
	CodeDecisionNotAllowed  Code = "decision_not_allowed"
	CodeRiskNotAccepted     Code = "risk_not_accepted"
	CodeJobOwned            Code = "job_owned_elsewhere"
	CodeMayStillCreate      Code = "predecessor_may_create"
	CodeCostExceeded        Code = "cost_exceeds_max"
	CodeCostUnknown         Code = "cost_unknown"
	CodeSelfApproval        Code = "self_approval"
	CodeApprovalDiffers     Code = "approval_differs"
	CodeMoving              Code = "operation_moving"
	CodeNotHeld             Code = "not_held"
	CodeHoldStronger        Code = "hold_is_stronger"
	CodeCursorInvalid       Code = "cursor_invalid"
	CodeResultNotReady      Code = "result_not_ready"
	CodeNoResult            Code = "no_result"
	CodeResultNotAccepted   Code = "result_not_accepted"
	CodeResultUnavailable   Code = "result_unavailable"
	CodeSignatureInvalid    Code = "signature_invalid"
	CodeNewerVersion        Code = "newer_version"
	CodeBatchTooLarge       Code = "batch_too_large"
	CodeTooManyStreams      Code = "too_many_streams"
	CodeRateExceeded        Code = "rate_exceeded"
	CodeTooManyOpen         Code = "too_many_open"
	CodeCostQuota           Code = "cost_quota_exceeded"
	CodeCostAboveQuota      Code = "cost_above_quota"
	CodeTooManyDeliveries   Code = "too_many_deliveries"
	CodeNotAcceptable       Code = "not_acceptable"
	CodeRangeUnsatisfied    Code = "range_not_satisfiable"
	CodeCursorExpired       Code = "cursor_expired"
	CodeUnavailable         Code = "store_unavailable"
	CodeKeysUnavailable     Code = "keys_unavailable"
	CodeStorageLow          Code = "storage_low"
	CodeInternal            Code = "internal_error"
	CodeProtocol            Code = "protocol_error"
	CodeForeignOrigin       Code = "foreign_origin"
	CodeForeignHost         Code = "foreign_host"
)

// Meaning is what a code says.
type Meaning struct {
	Code      Code
	Status    int // HTTP status
	Title     string
	Retryable bool // the same request may succeed later, unchanged
	RetryWith RetryWith
	Advice    string // what the caller can do
}

// RetryWith is the key that a request may be sent with after a refusal. A
// request that needs no key is sent as it was, or corrected.
type RetryWith string

const (
	// RetrySameKey: send it again with its key, unchanged if the code is retryable and
	// corrected if not. The key is looked up before anything is done, so it never
	// acts twice, whatever became of the tries before.
	RetrySameKey RetryWith = "same_key"
	// RetryNewKey: send it with another key. Only for what proves that nothing can have
	// been recorded under the key as it was sent, since a second key is a second
	// operation: no request without a key, or with one that cannot be read, gets as
	// far as the ledger. A refusal of the body proves no such thing. The same key
	// may have named an operation in a try whose answer was lost.
	RetryNewKey RetryWith = "new_key"
	// RetryNever: there is nothing to send again. It is settled, or it belongs elsewhere.
	RetryNever RetryWith = "never"
)

// Meanings lists every code, sorted by status, then name.
func Meanings() []Meaning {
	list := []Meaning{
		{CodeRequestMalformed, 400, "The request is not HTTP as this server reads it", false, RetrySameKey, "Send HTTP/1.1 (RFC 9112): a request line, a Host header, names and values without control characters, whole chunks."},
		{CodeBodyIncomplete, 400, "The body ended before its end", true, RetrySameKey, "Send the whole request again, with the same Idempotency-Key."},
		{CodeRequestTimeout, 408, "The body came too slowly", true, RetrySameKey, "Send the request again, with the same Idempotency-Key: nothing was recorded."},
		{CodeExpectation, 417, "The expectation is not known", false, RetrySameKey, "Send no Expect header, or 100-continue."},
		{CodeHeadersTooLarge, 431, "The header fields are too large", false, RetrySameKey, "Send fewer header fields, or shorter ones."},
		{CodeTransferCoding, 501, "The transfer coding is not known", false, RetrySameKey, "Send the body with Content-Length, or chunked."},
		{CodeHTTPVersion, 505, "The version of HTTP is not spoken here", false, RetrySameKey, "Speak HTTP/1.1."},
		{CodeMalformedJSON, 400, "The body is not JSON", false, RetrySameKey, "Send one JSON object in UTF-8."},
		{CodeDuplicateKey, 400, "A name occurs twice in one JSON object", false, RetrySameKey, "Send each name once: readers disagree about which of two counts."},
		{CodeInvalidID, 400, "Not an operation id", false, RetryNever, "Use the id as it was answered."},
		{CodeKeyMissing, 400, "The Idempotency-Key header is missing", false, RetryNewKey, "Make one key for each intent, keep it, and send it with every try. Nothing was recorded by this one."},
		{CodeKeyInvalid, 400, "The Idempotency-Key header is not usable", false, RetryNewKey, "Send 1 to 255 visible ASCII characters, bare or as a quoted string. Nothing is recorded under a key that cannot be read."},
		{CodePreconditionInvalid, 400, "The If-Match header is not a version", false, RetrySameKey, "Send the ETag of the operation as it was answered."},
		{CodeCursorInvalid, 400, "The cursor is not valid for this list", false, RetrySameKey, "Start again without a cursor, or keep the filter the cursor was made for."},
		{CodeProtocol, 400, "Not a message of the Model Context Protocol", false, RetrySameKey, "Send one JSON-RPC 2.0 message in a POST, with Accept: application/json, text/event-stream and a protocol version that server/discover lists."},
		{CodeUnauthenticated, 401, "A valid key is required", false, RetrySameKey, "Send Authorization: Bearer with a key of this installation."},
		{CodeSignatureInvalid, 401, "The signature is not valid", false, RetryNever, "Sign the raw body with the shared secret of this provider."},
		{CodeForbidden, 403, "The key has no scope for this", false, RetrySameKey, "Use a key with the scope named in requires; GET /v1/capabilities says what this one may do, and the operator makes keys."},
		{CodeAccountNotAllowed, 403, "The account is not one you may use", false, RetrySameKey, "Name an account that GET /v1/capabilities lists, or ask the operator for this one."},
		{CodeSelfApproval, 403, "Nobody approves what it submitted itself", false, RetryNever, "Hand decision_url of the operation to somebody whose key is of another principal and has the scope approve."},
		{CodeForeignOrigin, 403, "The request comes from a page of another site", false, RetrySameKey, "Call from a program, or from a page of this service."},
		{CodeForeignHost, 403, "The Host header does not name this service", false, RetrySameKey, "Use the address the service has, or let the operator set its public address."},
		{CodeOperatorOnly, 403, "Only an operator may do this", false, RetryNever, "Use the key of an operator: counterfoil key list shows which have the right, key add --operator makes one."},
		{CodeNotFound, 404, "Not found", false, RetryNever, "Check the address. Operations of other principals are not shown."},
		{CodeNoResult, 404, "The operation has no result", false, RetryNever, "Read the operation: it ended without one."},
		{CodeMethodNotAllowed, 405, "The method is not allowed here", false, RetryNever, "Use a method of the Allow header."},
		{CodeNotAcceptable, 406, "The answer cannot be had in a form that is accepted", false, RetrySameKey, "Accept a media type named in allowed."},
		{CodeAlreadyTerminal, 409, "The operation has ended", false, RetryNever, "Nothing moves it any more; read its state."},
		{CodeCancelUnsupported, 409, "The provider cannot cancel", false, RetryNever, "Wait for the job's end, or abandon the operation by a decision."},
		{CodeInputUnsupported, 409, "No answer can be passed on to the provider", false, RetryNever, "Hand input.url to a person, where the operation has one: the answer is given at the provider."},
		{CodeInputNotWanted, 409, "The job waits for no answer now", false, RetrySameKey, "Read the operation: allowed lists input where one is wanted. Nothing was recorded."},
		{CodeQuestionDiffers, 409, "The job asks something else", false, RetrySameKey, "Read the operation, show the person what it asks now, and send its input.question with the answer to that. Nothing was recorded."},
		{CodeCleanupUnsupported, 409, "The provider has no cleanup", false, RetryNever, "Remove what the job left at the provider, by its own means."},
		{CodeCleanupNotAllowed, 409, "A cleanup does not fit the state", false, RetrySameKey, "Wait until the operation has ended, or decide on it; allowed lists cleanup where one fits. Nothing was recorded."},
		{CodeCleanupUnderWay, 409, "A cleanup is under way", true, RetrySameKey, "Read the operation until cleanup.status is neither waiting nor sending, then ask again if it is still wanted. Nothing was recorded."},
		{CodeDecisionNotAllowed, 409, "The decision does not fit the state", false, RetrySameKey, "Take one of the decisions listed as allowed by the operation."},
		{CodeRiskNotAccepted, 409, "A second job cannot be excluded", false, RetrySameKey, "Send accept_risk: true if a second job is acceptable, else look for the first one and adopt it."},
		{CodeJobOwned, 409, "The job belongs to another operation", false, RetrySameKey, "Check the job id. One job belongs to one operation."},
		{CodeApprovalDiffers, 409, "Something else waits for the approval", false, RetrySameKey, "Read the operation and its parameters again, and send its approval.digest if that is what you approve or deny."},
		{CodeMayStillCreate, 409, "The operation it names may still create a job", true, RetrySameKey, "Wait until operation_id has a job or has ended, or cancel it; or say with allow_overlap that two jobs are acceptable."},
		{CodeMoving, 409, "The operation moved at every try", true, RetrySameKey, "Nothing was recorded by this request. Send it again after Retry-After with the same Idempotency-Key."},
		{CodeNotHeld, 409, "There is no such hold", false, RetryNever, "Read GET /v1/holds: a hold on one provider and the one on all are released each by itself."},
		{CodeHoldStronger, 409, "A stronger hold is in place", false, RetrySameKey, "Leave it, or send replace: true if the weaker one is to take its place."},
		{CodeResultNotReady, 409, "The result is not there yet", true, RetrySameKey, "Ask again after Retry-After."},
		{CodeResultNotAccepted, 409, "The result failed a check", false, RetryNever, "Look at it with ?unaccepted=true, then decide: accept_result or retry_collection."},
		{CodeNewerVersion, 409, "A newer version of the program owns this operation", false, RetrySameKey, "Ask a process of that version."},
		{CodeResultUnavailable, 410, "The result cannot be had any more", false, RetryNever, "Read the operation's reason; retry_collection may help if it is allowed."},
		{CodeCursorExpired, 410, "The stream cannot be resumed from so far back", false, RetryNever, "Read the list, then begin a new stream without a cursor."},
		{CodeStale, 412, "The operation has moved on", false, RetrySameKey, "Read it again, decide again, and send the new ETag in If-Match."},
		{CodeBodyTooLarge, 413, "The body is too large", false, RetrySameKey, "Send at most the number of bytes given."},
		{CodeBatchTooLarge, 413, "The request has too many items", false, RetrySameKey, "Send at most as many items as the bound says, and the others in requests with keys of their own. Nothing was recorded."},
		{CodeMediaType, 415, "The body's media type is not supported", false, RetrySameKey, "Send a media type named in allowed."},
		{CodeRangeUnsatisfied, 416, "The range begins beyond the end", false, RetrySameKey, "Ask for bytes below the length in Content-Range, or without Range for all of them."},
		{CodeInvalid, 422, "The request is not valid", false, RetrySameKey, "Correct the fields listed in errors."},
		{CodeCostExceeded, 422, "It would cost more than max_cost", false, RetrySameKey, "Nothing was recorded. Ask for less, or raise max_cost if that is yours to do."},
		{CodeCostUnknown, 422, "What it would cost is not known", false, RetrySameKey, "Nothing was recorded. If errors name /params, correct what the cost is reckoned from: a quota counts it. If they name /max_cost, do that, or leave max_cost out if any cost will do."},
		{CodeNumberOutOfRange, 422, "A number cannot be told from its neighbours", false, RetrySameKey, "Send it as a string."},
		{CodeTooDeep, 422, "The JSON is nested too deeply", false, RetrySameKey, "Nest at most as deep as the bound given."},
		{CodeUnknownProvider, 422, "There is no such provider", false, RetrySameKey, "Use one of those listed by GET /v1/capabilities."},
		{CodeKeyReused, 422, "The key was used for another request", false, RetryNever, "If operation_id is what you mean, read it. Only a new intent takes a new key: with one, the same intent would be done twice."},
		{CodePrecondition, 428, "The If-Match header is required", false, RetrySameKey, "Send the ETag of the state the decision was made on."},
		{CodeTooManyStreams, 429, "Too many streams are open", true, RetrySameKey, "End one, or ask again after Retry-After; a wait of an operation is no stream."},
		{CodeRateExceeded, 429, "You have begun as many operations as you may for now", true, RetrySameKey, "Nothing was recorded. Send it again after Retry-After with the same Idempotency-Key; RateLimit says what is left."},
		{CodeTooManyOpen, 429, "Too many of your operations have not ended", true, RetrySameKey, "Nothing was recorded. Send it again with the same Idempotency-Key once some have ended; GET /v1/operations lists them: cancel what is not needed, and decide on what has stopped."},
		{CodeCostQuota, 429, "What you begin would cost more than you may spend for now", true, RetrySameKey, "Nothing was recorded. Send it again after Retry-After with the same Idempotency-Key; GET /v1/capabilities says what is left."},
		{CodeCostAboveQuota, 422, "It would cost more than you may ever spend at once", false, RetrySameKey, "Nothing was recorded. Ask for less; the operator sets what you may spend."},
		{CodeInternal, 500, "Something went wrong here", true, RetrySameKey, "Try again with the same Idempotency-Key; if it stays, ask the operator."},
		{CodeUnavailable, 503, "The store does not answer", true, RetrySameKey, "Try again with the same Idempotency-Key: whether anything was recorded is not known."},
		{CodeStorageLow, 503, "There is too little room for new operations", true, RetrySameKey, "Nothing was recorded. Try again after Retry-After with the same Idempotency-Key; the operator must make room."},
		{CodeTooManyDeliveries, 503, "Too many deliveries are being taken", true, RetrySameKey, "Nothing was stored. Deliver it again after Retry-After."},
		{CodeKeysUnavailable, 503, "Keys cannot be checked", true, RetrySameKey, "The operator must repair the keys file; try again later."},
	}
	slices.SortFunc(list, func(a, b Meaning) int {
		if a.Status != b.Status {
			return a.Status - b.Status
		}
		return strings.Compare(string(a.Code), string(b.Code))
	})
	return list
}

// Meaning gives what the code says. A code without meaning is our own defect.
func (c Code) Meaning() Meaning {
	for _, m := range Meanings() {
		if m.Code == c {
			return m
		}
	}
	panic(fmt.Sprintf("ingest: code %q has no meaning", string(c)))
}

// FieldCode is why one field of a request was refused.
type FieldCode string

// The field codes.
const (
	FieldRequired    FieldCode = "required"
	FieldUnknown     FieldCode = "unknown_field"
	FieldWrongType   FieldCode = "wrong_type"
	FieldNotAllowed  FieldCode = "not_allowed"
	FieldOutOfBounds FieldCode = "out_of_bounds"
	FieldInThePast   FieldCode = "in_the_past"
	FieldDuplicate   FieldCode = "duplicate_key"
	FieldNumber      FieldCode = "number_out_of_range"
	FieldMalformed   FieldCode = "malformed"
)

// FieldCodes lists the field codes.
func FieldCodes() []FieldCode {
	return []FieldCode{
		FieldRequired, FieldUnknown, FieldWrongType, FieldNotAllowed, FieldOutOfBounds, FieldInThePast,
		FieldDuplicate, FieldNumber, FieldMalformed,
	}
}

// FieldMeanings says what each field code means.
func FieldMeanings() map[FieldCode]string {
	return map[FieldCode]string{
		FieldRequired:    "The field is missing or empty.",
		FieldUnknown:     "There is no field of this name.",
		FieldWrongType:   "The value is of another JSON type than the field.",
		FieldNotAllowed:  "The value is none of those allowed; allowed lists them where they are few.",
		FieldOutOfBounds: "The value is outside the bound named in the message.",
		FieldInThePast:   "The time has passed, or the length of time is not positive.",
		FieldDuplicate:   "The name occurs twice in its object.",
		FieldNumber:      "The number cannot be told from its neighbours; send it as a string.",
		FieldMalformed:   "The value cannot be read.",
	}
}

// FieldError names one field and what is wrong with it.
type FieldError struct {
	Field   string    `json:"field"` // JSON pointer into the body, or a header or parameter name
	Code    FieldCode `json:"code"`
	Message string    `json:"message"`
	Allowed []string  `json:"allowed,omitempty"`
	Values  Values    `json:"values,omitempty"` // those in the message
}

// Values are the bounds, names and numbers in a text, by name: whoever acts on a
// refusal reads them here and never out of a sentence.
type Values map[string]any

// in puts the values into a text, in the places of their names in braces.
func (v Values) in(text string) string {
	var pairs []string
	for name, value := range v {
		pairs = append(pairs, "{"+name+"}", fmt.Sprint(value))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// Wrong says what is wrong with a field. {name} in the text stands for a value;
// none stands there in another way.
func Wrong(field string, code FieldCode, text string, values Values, allowed ...string) FieldError {
	return FieldError{Field: field, Code: code, Message: values.in(text), Values: values, Allowed: allowed}
}

// at is the same about another field.
func (e FieldError) at(field string) FieldError {
	e.Field = field
	return e
}

// Refusal is an answer of the use cases that is not a success. It is not a
// failure: nothing broke.
type Refusal struct {
	Code       Code
	Detail     string // for people; no provider text, no secrets; see Say
	Values     Values // those in the detail that no other member has
	Errors     []FieldError
	Operation  string // where one exists and belongs to the caller
	Trace      string // of that operation's calls; for the log
	State      projections.Phase
	Allowed    []string      // values that would have been taken
	Requires   Scope         // the scope that the caller's key lacks
	Violated   []Policy      // the quotas that do not allow it
	Key        string        // id of a key that was the right one once; for the log alone
	KeyState   string        // why it is not any more; for the log alone
	RetryAfter time.Duration // 0: none to name
	Provider   *ProblemView  // what the provider said, for no_result and result_unavailable
}

// Say sets the detail. {name} in the text stands for a value, which is a member of
// the problem, too; so are {state}, {operation}, {requires} and {allowed}, which
// stand for what the refusal has by then.
func (r *Refusal) Say(text string, values Values) *Refusal {
	r.Values = values
	r.Detail = values.in(Values{"state": r.State, "operation": r.Operation, "requires": r.Requires, "allowed": strings.Join(r.Allowed, ", ")}.in(text))
	return r
}

func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(string(r.Code))
	if r.Detail != "" {
		b.WriteString(": " + r.Detail)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(&b, "; %s: %s", e.Field, e.Message)
	}
	return b.String()
}

// invalid refuses one field.
func invalid(field string, code FieldCode, text string, values Values, allowed ...string) *Refusal {
	return Refuse(Wrong(field, code, text, values, allowed...))
}

// Refuse makes one refusal of problems with single fields.
func Refuse(problems ...FieldError) *Refusal {
	r := &Refusal{Code: CodeInvalid, Detail: strings.TrimSpace(problems[0].Field + " " + problems[0].Message), Errors: problems}
	if n := len(problems) - 1; n > 0 {
		r.Values = Values{"more": n}
		r.Detail += r.Values.in(", and {more} more")
	}
	return r
}
