package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// UseCases is what the tools need of a service, in terms of its HTTP API: bodies
// as a caller wrote them, answers as the API writes them. Errors are a
// [*ingest.Refusal], a [*Refused] of another process, or a failure after which the
// same request may be repeated.
type UseCases interface {
	Submit(ctx context.Context, key string, body []byte, traceParent string) (Answer, error)
	Get(ctx context.Context, id string) (Answer, error)
	// Wait answers once the operation has another version than after, or with
	// untilDone once it is done, and otherwise after the time, which is at most
	// [ingest.MaxWait], or the end of ctx.
	Wait(ctx context.Context, id string, after uint64, wait time.Duration, untilDone bool) (Answer, error)
	List(ctx context.Context, q ListQuery) (Answer, error)
	// Cancel takes 0 for version where any will do.
	Cancel(ctx context.Context, id, key string, version uint64, body []byte) (Answer, error)
	Decide(ctx context.Context, id, key string, version uint64, body []byte) (Answer, error)
	Timeline(ctx context.Context, id string, after uint64, limit int) (Answer, error)
	Capabilities(ctx context.Context) (Answer, error)
	// Result gives the bytes only if there are at most limit of them.
	Result(ctx context.Context, q ResultQuery, limit int) (Result, error)
}

// Answer is what a use case gives.
type Answer struct {
	Document json.RawMessage // one JSON object, as the HTTP API answers it
	// Of the operation shown, for the log; "" if there is none or it is not known.
	Operation, Trace string
}

// ListQuery bounds a list; what is zero does not filter.
type ListQuery struct {
	Of, State, Provider, Session, Reference string

	Tags   map[string]string
	Limit  int
	Cursor string
}

// TagFilters are the tags as the HTTP API has them in a query, sorted.
func (q ListQuery) TagFilters() (list []string) {
	for name, value := range q.Tags {
		list = append(list, name+":"+value)
	}
	slices.Sort(list)
	return list
}

// ResultQuery names a result.
type ResultQuery struct {
	ID         string
	File       string // one file of a result of several; "" for the whole
	Unaccepted bool   // also one that failed a check
}

// Parameters are the query's in the address of a result.
func (q ResultQuery) Parameters() url.Values {
	values := url.Values{}
	if q.File != "" {
		values.Set("file", q.File)
	}
	if q.Unaccepted {
		values.Set("unaccepted", "true")
	}
	return values
}

// Result is a collected result, or what is known of one that is too large.
type Result struct {
	MediaType string
	Size      int64 // -1 if it is not known
	SHA256    string
	Data      []byte
	Whole     bool // Data has all of it
}

// Refused is what another process refused.
type Refused struct {
	Document json.RawMessage // a problem document
	Code     ingest.Code     // as it is there
}

func (r *Refused) Error() string { return "the service refused: " + string(r.Code) }

// NotReached is what a service that did not answer amounts to: nobody knows what
// became of the request.
func NotReached(err error) error {
	r := &ingest.Refusal{Code: ingest.CodeUnavailable, RetryAfter: ingest.RetryUnavailable}
	return r.Say("the service did not answer ({cause}); whether anything was recorded is not known: call again with the same idempotency_key",
		ingest.Values{"cause": err.Error()})
}

// InProcess gives the use cases of the service in this process, for the caller.
func InProcess(service *ingest.Service, c ingest.Caller) UseCases {
	return &inProcess{service, c}
}

type inProcess struct {
	service *ingest.Service
	caller  ingest.Caller
}

// shown is the answer with a document.
func shown(document any) (Answer, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return Answer{}, fmt.Errorf("write the answer: %w", err)
	}
	return Answer{Document: text}, nil
}

// shownView is the answer with an operation.
func shownView(view ingest.View, err error) (Answer, error) {
	if err != nil {
		return Answer{}, err
	}
	a, err := shown(view)
	a.Operation, a.Trace = view.ID, view.Trace
	return a, err
}

func (p *inProcess) Submit(ctx context.Context, key string, body []byte, traceParent string) (Answer, error) {
	view, _, err := p.service.Submit(ctx, ingest.SubmitRequest{Caller: p.caller, Key: key, Body: body, TraceParent: traceParent})
	return shownView(view, err)
}

func (p *inProcess) Get(ctx context.Context, id string) (Answer, error) {
	view, err := p.service.Get(ctx, p.caller, id)
	return shownView(view, err)
}

func (p *inProcess) Wait(ctx context.Context, id string, after uint64, wait time.Duration, untilDone bool) (Answer, error) {
	view, _, err := p.service.Wait(ctx, ingest.WaitRequest{Caller: p.caller, ID: id, After: after, Wait: wait, UntilDone: untilDone})
	return shownView(view, err)
}

func (p *inProcess) List(ctx context.Context, q ListQuery) (Answer, error) {
	page, err := p.service.List(ctx, ingest.ListRequest{
		Caller: p.caller, Of: ingest.Of(q.Of), State: q.State, Provider: q.Provider, Session: q.Session, Reference: q.Reference,
		Tags: q.TagFilters(), Limit: q.Limit, Cursor: q.Cursor,
	})
	if err != nil {
		return Answer{}, err
	}
	return shown(page)
}

func (p *inProcess) Cancel(ctx context.Context, id, key string, version uint64, body []byte) (Answer, error) {
	view, err := p.service.Cancel(ctx, ingest.CancelRequest{Caller: p.caller, ID: id, Key: key, Version: version, Body: body})
	return shownView(view, err)
}

func (p *inProcess) Decide(ctx context.Context, id, key string, version uint64, body []byte) (Answer, error) {
	view, _, err := p.service.Decide(ctx, ingest.DecideRequest{Caller: p.caller, ID: id, Key: key, Version: version, Body: body})
	return shownView(view, err)
}

func (p *inProcess) Timeline(ctx context.Context, id string, after uint64, limit int) (Answer, error) {
	page, err := p.service.Timeline(ctx, p.caller, id, after, limit)
	if err != nil {
		return Answer{}, err
	}
	a, err := shown(page)
	a.Operation, a.Trace = page.Operation, page.Trace
	return a, err
}

func (p *inProcess) Capabilities(ctx context.Context) (Answer, error) {
	return shown(p.service.Capabilities(ctx, p.caller))
}

func (p *inProcess) Result(ctx context.Context, q ResultQuery, limit int) (Result, error) {
	r, err := p.service.Result(ctx, p.caller, q.ID, q.Unaccepted, q.File)
	if err != nil {
		return Result{}, err
	}
	out := Result{MediaType: r.MediaType, Size: int64(len(r.Data)), SHA256: r.Digest.String()}
	if len(r.Data) <= limit {
		out.Data, out.Whole = r.Data, true
	}
	return out, nil
}
