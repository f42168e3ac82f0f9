package ingest

import "github.com/go-json-experiment/json/jsontext"

// The bodies of requests, as the parsers of this package take them: names are
// matched exactly, others are refused, and null is what leaving a member out is.
//
// The tags beside the names are what a description of the API shows of a member.
// Nothing here reads them: the parsers decide, and a test of the API holds every
// body that was taken against what the description says.

// SubmitBody asks for an operation.
type SubmitBody struct {
	Provider  *string           `json:"provider" nullable:"false" pattern:"^[a-z0-9_-]{1,64}$" example:"example" doc:"A provider that GET /v1/capabilities lists."`
	Account   *string           `json:"account" required:"false" pattern:"^[a-z0-9_-]{1,64}$" example:"default" doc:"An account of the provider that you may use. Left out: default."`
	Action    *string           `json:"action" required:"false" minLength:"1" maxLength:"64" example:"render" doc:"Your name for what is asked. A label: it is part of the request's identity and nothing else. At most 64 bytes, no control characters."`
	Params    jsontext.Value    `json:"params" doc:"What the provider is to be given, as its contract says; {} if there is nothing. Numbers must survive as doubles: send others as strings."`
	Deadlines *DeadlinesBody    `json:"deadlines" required:"false" doc:"Those not named are the contract's."`
	NotBefore *string           `json:"not_before" required:"false" format:"date-time" example:"2030-01-31T09:00:00Z" doc:"The create is not sent before. It must be before the create deadline."`
	Expect    *string           `json:"expect" required:"false" minLength:"1" maxLength:"1024" example:"result.total <= params.budget" doc:"A rule that the result must keep: an expression in CEL over result, params, result_size, result_lines, media_type and job_class, on one line of at most 1024 bytes. Where it does not hold, or cannot be evaluated, the operation stops as result_validation_failed."`
	MaxCost   *string           `json:"max_cost" required:"false" pattern:"^[0-9]{1,15}(\\.[0-9]{1,6})?$" example:"12.50" doc:"A decimal number as text, in the unit that GET /v1/capabilities names for the provider: what costs more, or where the cost is not known, is refused."`
	Tags      map[string]string `json:"tags" required:"false" maxProperties:"32" doc:"Your labels. A name is 1 to 64 of a-z, 0-9, _, - and .; a value has at most 256 bytes and no control characters."`
	Approval  *string           `json:"approval" required:"false" minLength:"1" maxLength:"1024" doc:"A note on who approved it, at most 1024 bytes. It is kept and shown in the timeline."`
	Replaces  *string           `json:"replaces" required:"false" pattern:"^[a-z0-9_]{1,64}$" doc:"An operation of yours that this one takes the place of. Refused while that may still create a job."`
	RetryOf   *string           `json:"retry_of" required:"false" pattern:"^[a-z0-9_]{1,64}$" doc:"An operation of yours that this one is another try of. Refused while that may still create a job."`
	Adopt     *AdoptBody        `json:"adopt" required:"false" doc:"Follow a job that was created elsewhere, and create none."`
	Overlap   *bool             `json:"allow_overlap" required:"false" doc:"true: with replaces or retry_of, two jobs at once are acceptable."`
	Validate  *bool             `json:"validate_only" required:"false" doc:"true: check everything, the key too, record nothing, and answer with what would be recorded. It is no part of the request's identity and uses no key up. In a batch it stands beside the items."`
	Reference *string           `json:"client_reference" required:"false" minLength:"1" maxLength:"1024" example:"invoice-2030-17" doc:"Your own name for what is asked, at most 1024 bytes, by which GET /v1/operations?client_reference= finds it. A label: several operations may have it, and it makes no request a replay. It is part of the request's identity."`
	Session   *string           `json:"session" required:"false" minLength:"1" maxLength:"1024" example:"run-7" doc:"A label of at most 1024 bytes by which GET /v1/operations?session= finds the operation. It is no part of the request's identity: the same request under the same key in another session is a replay."`
}

// AdoptBody names a job that was created elsewhere.
type AdoptBody struct {
	JobID *string `json:"job_id" nullable:"false" minLength:"1" maxLength:"1024" example:"job-7" doc:"The provider's id of the job. Whether there is such a job the first status read says."`
}

// BatchBody asks for several operations.
type BatchBody struct {
	Mode  *string        `json:"mode" required:"false" enum:"independent,atomic" doc:"independent records what can be recorded and says for each item what became of it; atomic records all items or none. Left out: independent."`
	Items []BatchElement `json:"items" nullable:"false" minItems:"1" maxItems:"100" doc:"Answered in this order."`
	// Validate is about all items, so that none is recorded by mistake.
	Validate *bool `json:"validate_only" required:"false" doc:"true: check everything, the keys too, record nothing, and answer with what would become of each item."`
}

// BatchElement is one of them.
type BatchElement struct {
	Operation jsontext.Value `json:"operation" doc:"What is asked for: a body of POST /v1/operations."`
}

// DeadlinesBody are the deadlines of a submit.
type DeadlinesBody struct {
	Approval *string `json:"approval" required:"false" minLength:"1" maxLength:"64" example:"2h" doc:"For an approval. A length of time from now, such as 90s, 2h30m or 7d, or an RFC 3339 time with a zone."`
	Create   *string `json:"create" required:"false" minLength:"1" maxLength:"64" example:"10m" doc:"Until the job is accepted by the provider; the same forms."`
	Result   *string `json:"result" required:"false" minLength:"1" maxLength:"64" example:"6h" doc:"Until the job has ended; the same forms."`
	Cancel   *string `json:"cancel" required:"false" minLength:"1" maxLength:"64" example:"10m" doc:"For a cancel to be confirmed; the same forms."`
	Collect  *string `json:"collect" required:"false" minLength:"1" maxLength:"64" example:"1h" doc:"For the result to be fetched; the same forms."`
}

// WhyBody is what a cancel, a pause and a resume may carry.
type WhyBody struct {
	Why *string `json:"why" required:"false" minLength:"1" maxLength:"4096" example:"the input was wrong" doc:"A reason for people, at most 4096 bytes. It is kept apart from the facts and can be erased."`
}

// InputBody answers what a job waits for.
type InputBody struct {
	Question *string        `json:"question" maxLength:"64" example:"q42" doc:"To which question: input.question of the operation as the person saw it. An answer to another than the job waits for now is refused."`
	Input    jsontext.Value `json:"input" doc:"The answer, as the contract takes it: a JSON object, passed on byte by byte unless the contract says otherwise. Numbers must survive as doubles: send others as strings."`
}

// CleanupBody asks for what a job left to be removed.
type CleanupBody struct {
	JobID *string `json:"job_id" required:"false" minLength:"1" maxLength:"1024" doc:"One of the operation's jobs, also a stray one. Left out: the operation's own."`
	Why   *string `json:"why" required:"false" minLength:"1" maxLength:"4096" example:"the files are not needed any more" doc:"A reason for people, at most 4096 bytes. It is kept apart from the facts and can be erased."`
}

// CancelBatchBody asks for the cancellation of several operations.
type CancelBatchBody struct {
	Mode  *string         `json:"mode" required:"false" enum:"independent,atomic" doc:"independent records the wishes that can be and says for each item what became of it; atomic records all wishes or none. Left out: independent."`
	Items []CancelElement `json:"items" nullable:"false" minItems:"1" maxItems:"100" doc:"Answered in this order."`
	Why   *string         `json:"why" required:"false" minLength:"1" maxLength:"4096" example:"the input was wrong" doc:"A reason for people, at most 4096 bytes, of all of them. It is kept apart from the facts and can be erased."`
}

// CancelElement is one of them.
type CancelElement struct {
	ID      *string `json:"id" nullable:"false" pattern:"^[a-z0-9_]{1,64}$" doc:"An operation. Each may be named once."`
	Key     *string `json:"idempotency_key" required:"false" minLength:"1" maxLength:"255" example:"stop-17" doc:"The item's own key, as a cancel alone has it. Left out, the key of the whole is the item's, too."`
	IfMatch *string `json:"if_match" required:"false" minLength:"1" example:"\"v7\"" doc:"Only if the operation is still at this version: its ETag, or its version such as \"v7\"."`
}

// DecideBody is a choice on an operation that automation must not settle.
type DecideBody struct {
	Kind       *string `json:"kind" nullable:"false" doc:"One of those that the operation's allowed lists under decide."`
	Why        *string `json:"why" required:"false" minLength:"1" maxLength:"4096" example:"the provider confirmed it by mail" doc:"A reason for people, at most 4096 bytes."`
	JobID      *string `json:"job_id" required:"false" minLength:"1" maxLength:"1024" doc:"The job to adopt. Goes with kind adopt, which needs it."`
	Deadline   *string `json:"deadline" required:"false" enum:"approval,create,result,cancel,collect" example:"result" doc:"The deadline to move. Goes with kind extend, which needs it."`
	Until      *string `json:"until" required:"false" minLength:"1" maxLength:"64" example:"2h" doc:"Where to move it: a length of time from now or an RFC 3339 time with a zone, at most 365 days ahead. Goes with kind extend, which needs it."`
	Evidence   *string `json:"evidence" required:"false" minLength:"1" maxLength:"4096" doc:"How it is known that the job was cancelled, at most 4096 bytes. Goes with kind mark_cancelled, which needs it."`
	AcceptRisk *bool   `json:"accept_risk" required:"false" doc:"That a second job is acceptable. Goes with kind retry_create."`
	Digest     *string `json:"digest" required:"false" minLength:"1" maxLength:"64" doc:"approval.digest of the operation: what is approved or denied. Goes with kinds approve and deny, which need it."`
}

// HoldBody places a hold.
type HoldBody struct {
	Provider *string `json:"provider" required:"false" pattern:"^[a-z0-9_-]{1,64}$" example:"example" doc:"Left out: all providers."`
	Scope    *string `json:"scope" nullable:"false" enum:"creates,all" example:"creates" doc:"What rests: creates, or all calls."`
	Why      *string `json:"why" nullable:"false" maxLength:"4096" example:"an incident at the provider" doc:"A reason for whoever finds the hold, 1 to 4096 bytes."`
	Replace  *bool   `json:"replace" required:"false" doc:"That a stronger hold in place may become this weaker one."`
}

// ReleaseBody ends a hold.
type ReleaseBody struct {
	Provider *string `json:"provider" required:"false" pattern:"^[a-z0-9_-]{1,64}$" example:"example" doc:"Left out: the hold on all providers, and no other."`
	Why      *string `json:"why" nullable:"false" maxLength:"4096" example:"the incident is over" doc:"A reason, 1 to 4096 bytes."`
}

// States lists the states an operation can be in.
func States() []string { return phases() }

// Decisions lists the kinds of decision.
func Decisions() []string {
	var list []string
	for _, kind := range append(decisionKinds(), Approve, Deny) {
		list = append(list, string(kind))
	}
	return list
}
