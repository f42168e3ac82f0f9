package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/signature"
	"github.com/counterfoil/counterfoil/internal/webhook"
)

func (h *handler) submit(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	view, replayed, err := h.o.Service.Submit(ctx, ingest.SubmitRequest{
		Caller: c.caller, Key: key, Body: c.body, TraceParent: ingest.TraceParent(c.r.Header.Get("Traceparent")),
	})
	if err != nil {
		return answer{}, err
	}
	return h.submitted(c, view, replayed)
}

// submitted answers a submit, after the wait that was asked for.
func (h *handler) submitted(c *call, view ingest.View, replayed bool) (answer, error) {
	if view.Validation != nil { // nothing that a tag or an address could be of
		return answer{status: http.StatusOK, header: map[string]string{"Vary": "Prefer"}, body: view}, nil
	}
	if wait := preferredWait(c.r.Header["Prefer"]); wait > 0 {
		// Whatever goes wrong with the wait, the submit went well, and its answer is what is
		// known; so it is for a key that may submit and not read.
		w, err := h.o.Service.BeginWait(c.r.Context(), ingest.WaitRequest{
			Caller: c.caller, ID: view.ID, Wait: min(time.Duration(wait)*time.Second, ingest.MaxWait), UntilDone: true,
		})
		if err == nil {
			c.body = nil
			return c.followed(w, replayed, view.OriginalStatus, waitApplied(wait)), nil
		}
	}
	return c.submitted(view, replayed, "")
}

// followed answers a submit when the wait for its end is over.
func (c *call) followed(w *ingest.Waiting, replayed bool, original int, applied string) answer {
	return answer{later: func() (a answer, err error) {
		ctx, stop := untilStopping(c.r.Context())
		defer stop()
		if _, err := w.Wait(ctx); err != nil {
			applied = ""
		}
		ingest.Aside(func() {
			view := w.View()
			view.OriginalStatus = original
			a, err = c.submitted(view, replayed, applied)
		})
		return a, err
	}}
}

// submitted answers a submit; applied says what was waited for its end.
func (c *call) submitted(view ingest.View, replayed bool, applied string) (answer, error) {
	status := http.StatusAccepted
	if replayed || view.Terminal {
		status = http.StatusOK
	}
	a, err := c.show(status, view)
	if err != nil {
		return answer{}, err
	}
	if status == http.StatusAccepted {
		a.header["Location"] = address(view.ID)
	}
	a.header["Vary"] = "Prefer"
	if applied != "" {
		a.header["Preference-Applied"] = applied
	}
	return markReplayed(a, replayed), nil
}

func (h *handler) batch(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	return h.several(ctx, c, key, h.o.Service.SubmitBatch)
}

func (h *handler) cancelBatch(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	return h.several(ctx, c, key, h.o.Service.CancelBatch)
}

// several answers a request for several things.
func (h *handler) several(ctx context.Context, c *call, key string, do func(context.Context, ingest.BatchRequest) (ingest.BatchView, bool, error)) (answer, error) {
	view, replayed, err := do(ctx, ingest.BatchRequest{
		Caller: c.caller, Key: key, Body: c.body, TraceParent: ingest.TraceParent(c.r.Header.Get("Traceparent")),
		Problem: func(err error) ingest.Problem { return ingest.ProblemOf(err, instance(c.r), ingest.ProblemBase) },
	})
	if err != nil {
		return answer{}, err
	}
	a := answer{status: http.StatusOK, header: map[string]string{}, body: view}
	if view.Mode == ingest.Atomic && !replayed && !view.ValidateOnly {
		a.status = http.StatusAccepted
	}
	return markReplayed(a, replayed), nil
}

func address(id string) string { return "/v1/operations/" + id }

// query is the parameters of an address.
type query struct{ url.Values }

// repeated is the one parameter that may be there several times.
const repeated = "tag"

// query reads the parameters and refuses any that the route does not know, and any
// that is empty: a misspelt filter must not give everything, nor one whose value was not
// set.
func (c *call) query(known ...string) (query, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return query{}, parameter("query", ingest.FieldMalformed, "cannot be read")
	}
	for name, list := range values {
		ok := false
		for _, k := range known {
			ok = ok || k == name
		}
		switch {
		case !ok:
			return query{}, parameter("query", ingest.FieldUnknown, "has a parameter that this address does not know", known...)
		case len(list) > 1 && name != repeated:
			return query{}, parameter(name, ingest.FieldDuplicate, "must be given once")
		case slices.Contains(list, ""):
			return query{}, parameter(name, ingest.FieldNotAllowed, "must not be empty: leave it out if there is none")
		}
	}
	return query{values}, nil
}

func (q query) number(name string, most uint64) (uint64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, ingest.Refuse(ingest.Wrong(name, ingest.FieldOutOfBounds, "must be a whole number from {min} to {max}", ingest.Values{"min": 0, "max": most}))
	}
	return n, nil
}

func (q query) flag(name string) (bool, error) {
	switch q.Get(name) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, parameter(name, ingest.FieldNotAllowed, "must be true or false", "true", "false")
}

func parameter(name string, code ingest.FieldCode, message string, allowed ...string) *ingest.Refusal {
	return ingest.Refuse(ingest.Wrong(name, code, message, nil, allowed...))
}

func (h *handler) list(ctx context.Context, c *call) (answer, error) {
	q := c.q
	limit, err := q.number("limit", ingest.MaxPage)
	if err != nil {
		return answer{}, err
	}
	if q.Has("limit") && limit == 0 {
		return answer{}, ingest.Refuse(ingest.Wrong("limit", ingest.FieldOutOfBounds, "must be between {min} and {max}", ingest.Values{"min": 1, "max": ingest.MaxPage}))
	}
	page, err := h.o.Service.List(ctx, ingest.ListRequest{
		Caller: c.caller, Of: ingest.Of(q.Get("of")), State: q.Get("state"), Provider: q.Get("provider"), Session: q.Get("session"), Reference: q.Get("client_reference"), Tags: q.Values[repeated], Limit: int(limit), Cursor: q.Get("cursor"),
	})
	if err != nil {
		return answer{}, err
	}
	a := answer{status: http.StatusOK, header: map[string]string{}, body: page}
	if page.NextCursor != "" {
		next := url.Values{}
		for name, list := range q.Values {
			next[name] = list
		}
		next.Set("cursor", page.NextCursor)
		a.header["Link"] = "</v1/operations?" + next.Encode() + `>; rel="next"`
	}
	return a, nil
}

func (h *handler) timeline(ctx context.Context, c *call) (answer, error) {
	q := c.q
	after, err := q.number("after", 1<<62)
	if err != nil {
		return answer{}, err
	}
	limit, err := q.number("limit", ingest.MaxTimeline)
	if err != nil {
		return answer{}, err
	}
	page, err := h.o.Service.Timeline(ctx, c.caller, c.operation, after, int(limit))
	if err != nil {
		return answer{}, err
	}
	c.trace = page.Trace
	header := map[string]string{}
	if page.NextAfter > 0 {
		next := url.Values{"after": {strconv.FormatUint(page.NextAfter, 10)}}
		if limit > 0 {
			next.Set("limit", strconv.FormatUint(limit, 10))
		}
		header["Link"] = "<" + address(page.Operation) + "/timeline?" + next.Encode() + `>; rel="next"`
	}
	// The version does not move when history gets a fact, or a text is erased.
	return c.fresh(page, header, func(text []byte) string { return tag(page.Version, text) })
}

// params gives the caller's parameters as they were sent.
func (h *handler) params(ctx context.Context, c *call) (answer, error) {
	params, digest, err := h.o.Service.Params(ctx, c.caller, c.operation)
	if err != nil {
		return answer{}, err
	}
	etag := `"` + digest.String() + `"`
	header := map[string]string{"ETag": etag, "Cache-Control": "private, immutable"}
	if matches(c.r.Header["If-None-Match"], etag) {
		return answer{status: http.StatusNotModified, header: header}, nil
	}
	header["Content-Digest"] = "sha-256=:" + base64.StdEncoding.EncodeToString(digest[:]) + ":"
	return answer{status: http.StatusOK, header: header, media: jsonType, body: params}, nil
}

func (h *handler) result(ctx context.Context, c *call) (answer, error) {
	q := c.q
	unaccepted, err := q.flag("unaccepted")
	if err != nil {
		return answer{}, err
	}
	r, err := h.o.Service.Result(ctx, c.caller, c.operation, unaccepted, q.Get("file"))
	if err != nil {
		return answer{}, err
	}
	c.trace = r.Trace
	etag := `"` + r.Digest.String() + `"`
	header := map[string]string{
		"ETag":           etag,
		"Content-Digest": "sha-256=:" + base64.StdEncoding.EncodeToString(r.Digest[:]) + ":",
		"Cache-Control":  "private, immutable",
		// It is a provider's text at our address: no browser may run it here.
		"Content-Security-Policy": "default-src 'none'; sandbox",
		"Content-Disposition":     "attachment",
	}
	if matches(c.r.Header["If-None-Match"], etag) {
		return answer{status: http.StatusNotModified, header: map[string]string{"ETag": etag, "Cache-Control": header["Cache-Control"]}}, nil
	}
	media := r.MediaType
	if media == "" || strings.ContainsFunc(media, func(r rune) bool { return r < ' ' || r > '~' }) {
		media = "application/octet-stream"
	}
	header["Accept-Ranges"] = "bytes"
	status, data := http.StatusOK, r.Data
	part, err := c.part(etag, int64(len(data)))
	switch {
	case err != nil:
		// It says how long it is, so that the next try can be right.
		c.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(data)))
		return answer{}, err
	case part != nil:
		header["Content-Range"] = fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, len(data))
		header["Repr-Digest"] = header["Content-Digest"] // of the whole; the other is of what is sent
		status, data = http.StatusPartialContent, data[part.from:part.to]
		sum := sha256.Sum256(data)
		header["Content-Digest"] = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	}
	header["Content-Length"] = strconv.Itoa(len(data))
	// A large result takes its time; the limit of other answers is not for it.
	_ = http.NewResponseController(c.w).SetWriteDeadline(h.o.Now().Add(resultTime)) // not every writer has one
	return answer{status: status, header: header, media: media, body: data}, nil
}

func (h *handler) cancel(ctx context.Context, c *call) (answer, error) {
	r := ingest.CancelRequest{Caller: c.caller, ID: c.operation, Body: c.body}
	var err error
	if r.Key, err = ingest.ParseKey(c.r.Header["Idempotency-Key"]); err != nil {
		return answer{}, err
	}
	if r.Version, err = c.ifMatch(); err != nil {
		return answer{}, err
	}
	view, err := h.o.Service.Cancel(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if view.OriginalStatus != 0 {
		a, err := c.show(http.StatusOK, view)
		return markReplayed(a, true), err
	}
	return c.show(ingest.CancelStatus(view), view)
}

// ifMatch reads If-Match; 0 means that there is none.
func (c *call) ifMatch() (uint64, error) {
	values := c.r.Header["If-Match"]
	if len(values) == 0 {
		return 0, nil
	}
	v, err := ingest.ParseVersion(values[0])
	if err != nil || len(values) > 1 || v == 0 {
		return 0, &ingest.Refusal{Code: ingest.CodePreconditionInvalid, Detail: `If-Match must be one version such as "v7"`}
	}
	return v, nil
}

func (h *handler) decide(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	version, err := c.ifMatch()
	if err != nil {
		return answer{}, err
	}
	if version == 0 {
		return answer{}, &ingest.Refusal{Code: ingest.CodePrecondition, Detail: "send If-Match with the ETag of the operation"}
	}
	view, replayed, err := h.o.Service.Decide(ctx, ingest.DecideRequest{
		Caller: c.caller, ID: c.operation, Key: key, Version: version, Body: c.body,
	})
	if err != nil {
		return answer{}, err
	}
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	a, err := c.show(status, view)
	if err != nil {
		return answer{}, err
	}
	a.header["Location"] = address(view.ID) + "/timeline"
	return markReplayed(a, replayed), nil
}

// capabilities tells what may be asked for, and of what anybody may know where no
// key was shown.
func (h *handler) capabilities(ctx context.Context, c *call) (answer, error) {
	shown := h.o.Service.PublicCapabilities()
	if c.caller.Principal != "" {
		shown = h.o.Service.Capabilities(ctx, c.caller)
	}
	shown.Documents = h.documents
	shown.Actions = slices.DeleteFunc(shown.Actions, func(a ingest.ActionView) bool {
		path, _, _ := strings.Cut(a.Href, "?")
		return !h.serves[a.Method+" "+path]
	})
	header := map[string]string{"Cache-Control": "private, max-age=60", "Vary": "Authorization"}
	// What is left of quotas moves with the clock and with every submit: it is no part of
	// the tag, as next_poll_after is none.
	lasting := shown
	lasting.Quotas = slices.Clone(shown.Quotas)
	for i := range lasting.Quotas {
		lasting.Quotas[i].Remaining, lasting.Quotas[i].More, lasting.Quotas[i].Left = nil, 0, ""
	}
	sum, err := encode(lasting)
	if err != nil {
		return answer{}, err
	}
	return c.fresh(shown, header, func([]byte) string { return `"` + sumOf(sum) + `"` })
}

// alive says that the process answers, whatever it depends on.
func (h *handler) alive(context.Context, *call) (answer, error) {
	return answer{status: http.StatusOK, body: status{"ok"}}, nil
}

// ready says whether it can do its work.
func (h *handler) ready(ctx context.Context, _ *call) (answer, error) {
	ready, report := h.o.Ready(ctx)
	if !ready {
		return answer{status: http.StatusServiceUnavailable, body: report}, nil
	}
	return answer{status: http.StatusOK, body: report}, nil
}

// hook takes a provider's call. It is answered as taken only if it is stored.
func (h *handler) hook(ctx context.Context, c *call) (answer, error) {
	address := webhook.Address{Operation: c.operation, Key: c.r.URL.Query().Get("key")}
	c.operation = "" // an address that names nothing is taken too, so it is not for the log
	fresh, err := h.o.Webhooks.Receive(ctx, c.r.PathValue("provider"), address, signature.Delivery{Header: c.r.Header, Body: c.body})
	switch {
	case errors.Is(err, webhook.ErrUnknown):
		return answer{}, noAddress()
	case errors.Is(err, webhook.ErrSignature):
		return answer{}, &ingest.Refusal{Code: ingest.CodeSignatureInvalid}
	case errors.Is(err, webhook.ErrTooLarge):
		return answer{}, &ingest.Refusal{Code: ingest.CodeBodyTooLarge}
	case err != nil:
		return answer{}, err
	}
	taken := status{"stored"}
	if !fresh {
		taken.Status = "stored before"
	}
	return answer{status: http.StatusOK, body: taken}, nil
}
