package ingest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// MaxWait bounds how long a caller is kept waiting: proxies cut at 60 s.
	MaxWait = 55 * time.Second

	// Between two looks of a waiting caller.
	firstGap   = 50 * time.Millisecond
	longestGap = time.Second

	// DefaultPage and MaxPage bound a page of a list.
	DefaultPage = 50
	MaxPage     = 200

	// MaxTagFilters bounds the tags that a list is filtered by.
	MaxTagFilters = 8
)

// load reads an operation for what the caller wants to do with it. One that the
// caller may not see is not found, in the same words as one that does not exist.
func (v *Service) load(ctx context.Context, caller Caller, id string, action Action) (projections.State, error) {
	if err := checkID("id", id); err != nil {
		return projections.State{}, err
	}
	// Who may not do it to its own may do it to none, and the store is not asked.
	if refusal := v.May(caller, Right{Action: action}); refusal != nil {
		return projections.State{}, refusal
	}
	s, err := v.cfg.Journal.Current(ctx, id)
	switch {
	case errors.Is(err, journal.ErrNoOperation), errors.Is(err, journal.ErrBadName):
		return projections.State{}, noOperation()
	case err != nil:
		return projections.State{}, fmt.Errorf("read %s: %w", id, err)
	}
	if refusal := v.May(caller, Right{Action: action, Principal: s.Intent.Principal}); refusal != nil {
		return projections.State{}, refusal
	}
	return s, nil
}

// Get shows an operation as it is now.
func (v *Service) Get(ctx context.Context, caller Caller, id string) (View, error) {
	s, err := v.load(ctx, caller, id, ActRead)
	if err != nil {
		return View{}, err
	}
	return v.view(caller, s), nil
}

// WaitRequest asks for news of an operation.
type WaitRequest struct {
	Caller Caller
	ID     string
	After  uint64        // version the caller has; 0 for none
	Wait   time.Duration // bounded by MaxWait
	// UntilDone waits for the end, or a stop, instead of any change.
	UntilDone bool
}

// Wait gives the operation once it has another version than the caller has, or
// is done; changed is false if the wait ended before. A version that comes during the wait
// and changes nothing that is shown, such as another status read, does not end it: what is
// shown at its end is of the newest all the same. While [Service.Run] follows the
// ledger it hears of a fact as it is stored, and looks by itself at growing intervals
// of at most a second otherwise.
func (v *Service) Wait(ctx context.Context, r WaitRequest) (view View, changed bool, err error) {
	if r.Wait <= 0 {
		view, err = v.Get(ctx, r.Caller, r.ID)
		return view, err == nil && r.enough(view.Version, view.Done), err
	}
	w, err := v.BeginWait(ctx, r)
	if err != nil {
		return View{}, false, err
	}
	if changed, err = w.Wait(ctx); err != nil {
		return View{}, false, err
	}
	Aside(func() { view = w.View() }) // all who wait may be told at the same time
	return view, changed, nil
}

// Waiting is [Service.Wait] in steps, of which each takes little of the caller's stack: it
// stays as large as it was once, for each of the thousands who may wait. It belongs to one
// goroutine and need not be closed.
type Waiting struct {
	v     *Service
	r     WaitRequest
	state *projections.State
}

// BeginWait reads the operation as it stands before the wait.
func (v *Service) BeginWait(ctx context.Context, r WaitRequest) (w *Waiting, err error) {
	Aside(func() {
		var s projections.State
		if s, err = v.load(ctx, r.Caller, r.ID, ActRead); err == nil {
			w = &Waiting{v, r, &s}
		}
	})
	return w, err
}

// Wait waits as it is said at [Service.Wait].
func (w *Waiting) Wait(ctx context.Context) (changed bool, err error) { return w.v.news.wait(ctx, w) }

func (w *Waiting) enough() bool {
	return w.r.enough(w.state.Facts, w.state.Phase.Terminal() || w.state.Phase.Stopped())
}

// View shows the operation as it was when the wait ended, or last before that.
func (w *Waiting) View() View { return w.v.view(w.r.Caller, *w.state) }

// stoppedAgain is when to ask again for the result of what waits for a person.
const stoppedAgain = time.Minute

// enough says whether the caller waits for no more than this.
func (r *WaitRequest) enough(version uint64, done bool) bool {
	return version != r.After && (!r.UntilDone || done)
}

// Of says whose operations a list shows.
type Of string

// Whose they can be.
const (
	OfOwn  Of = "own"  // the caller's principal's; so does ""
	OfTeam Of = "team" // its team's, and its own
	OfAll  Of = "all"
)

// ListRequest bounds a list. Empty fields do not filter.
type ListRequest struct {
	Caller   Caller
	Of       Of
	State    string
	Provider string
	// Session is the caller's own label. It names the newest operations that
	// carry it, in one page without a cursor.
	Session string
	// Reference is the caller's own, and names operations as Session does.
	Reference string
	// Tags are those that an operation must all have, each as name:value; at most
	// MaxTagFilters.
	Tags   []string
	Limit  int // 0: DefaultPage
	Cursor string
}

// Page is a part of a list, newest first. It may be short or empty with more to
// come: NextCursor says so.
type Page struct {
	Items      []View `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
	// LeftOut says that older operations carry the session label, too.
	LeftOut bool `json:"older_left_out,omitempty"`
}

// List shows the caller's operations, or those of others that it may see, as
// history has them: the newest facts of an operation may not be in yet.
func (v *Service) List(ctx context.Context, r ListRequest) (Page, error) {
	var problems []FieldError
	if r.State != "" && !slices.Contains(phases(), r.State) {
		problems = append(problems, Wrong("state", FieldNotAllowed, "is not a state", nil, phases()...))
	}
	if r.Provider != "" && !contract.ValidName(r.Provider) {
		problems = append(problems, badName("provider"))
	}
	if r.Limit == 0 {
		r.Limit = DefaultPage
	}
	if r.Limit < 1 || r.Limit > MaxPage {
		problems = append(problems, Wrong("limit", FieldOutOfBounds, "must be between {min} and {max}", Values{"min": 1, "max": MaxPage}))
	}
	if problem := textProblem(r.Session, MaxText); r.Session != "" && problem != nil {
		problems = append(problems, problem.at("session"))
	}
	if r.Session != "" && r.Cursor != "" {
		problems = append(problems, FieldError{Field: "cursor", Code: FieldNotAllowed, Message: "does not go with session, whose list is one page"})
	}
	if problem := textProblem(r.Reference, MaxText); problem != nil {
		problems = append(problems, problem.at("client_reference"))
	}
	if r.Reference != "" && (r.Session != "" || r.Cursor != "") {
		problems = append(problems, FieldError{Field: "client_reference", Code: FieldNotAllowed, Message: "goes with neither session nor cursor: its list is one page"})
	}
	tags, wrong := tagFilters(r.Tags)
	problems = append(problems, wrong...)
	action, problem := r.whose()
	if problem != nil {
		problems = append(problems, *problem)
	}
	if r.Session != "" && r.Of != OfOwn {
		problems = append(problems, FieldError{Field: "of", Code: FieldNotAllowed, Message: "does not go with session, which is a label of your own"})
	}
	if r.Reference != "" && r.Of != OfOwn {
		problems = append(problems, FieldError{Field: "of", Code: FieldNotAllowed, Message: "does not go with client_reference, which is a label of your own"})
	}
	if len(problems) > 0 {
		return Page{}, Refuse(problems...)
	}
	if refusal := v.May(r.Caller, Right{Action: action}); refusal != nil {
		return Page{}, refusal
	}
	if r.Session != "" {
		return v.ofLabel(ctx, r, r.Session, tags)
	}
	if r.Reference != "" {
		return v.ofLabel(ctx, r, journal.ReferenceLabel(r.Reference), tags)
	}
	at, err := v.readCursor(r)
	if err != nil {
		return Page{}, err
	}
	found, err := v.cfg.Journal.Records(ctx, at, r.Limit, func(record *projections.Record) bool {
		s := &record.State
		return r.shows(s.Intent.Principal) && tagged(s.Intent.Tags, tags) &&
			(r.State == "" || string(s.Phase) == r.State) && (r.Provider == "" || s.Intent.Provider == r.Provider)
	})
	if err != nil {
		return Page{}, fmt.Errorf("list operations: %w", err)
	}
	page := Page{Items: []View{}}
	for _, record := range found.Records {
		page.Items = append(page.Items, v.view(r.Caller, record.State))
	}
	if found.Next != (journal.Place{}) {
		page.NextCursor = v.cursor(r, found.Next)
	}
	return page, nil
}

// tagFilters reads what a list is filtered by.
func tagFilters(list []string) (tags []events.Tag, problems []FieldError) {
	if len(list) > MaxTagFilters {
		return nil, []FieldError{Wrong("tag", FieldOutOfBounds, "is there {times} times; at most {max} are allowed", Values{"times": len(list), "max": MaxTagFilters})}
	}
	for _, text := range list {
		name, value, both := strings.Cut(text, ":")
		switch problem := textProblem(value, MaxTagValue); {
		case !both || !validTagName(name):
			problems = append(problems, Wrong("tag", FieldMalformed, "must be name:value, the name {min} to {max} of a-z, 0-9, _, - and .", Values{"min": 1, "max": MaxTagName}))
		case problem != nil:
			problems = append(problems, problem.at("tag"))
		case slices.ContainsFunc(tags, func(t events.Tag) bool { return t.Name == name }):
			problems = append(problems, Wrong("tag", FieldDuplicate, "must name each tag once: an operation has one value of it", nil))
		default:
			tags = append(tags, events.Tag{Name: name, Value: value})
		}
	}
	return tags, problems
}

// tagged says whether all that is wanted is there.
func tagged(has, wants []events.Tag) bool {
	return !slices.ContainsFunc(wants, func(t events.Tag) bool { return !slices.Contains(has, t) })
}

// whose says what is asked for by a list of whose operations.
func (r *ListRequest) whose() (Action, *FieldError) {
	switch r.Of {
	case OfOwn, "":
		r.Of = OfOwn
		return ActRead, nil
	case OfTeam:
		return ActListTeam, nil
	case OfAll:
		return ActListAll, nil
	}
	return "", &FieldError{Field: "of", Code: FieldNotAllowed, Message: "is none of these", Allowed: []string{string(OfOwn), string(OfTeam), string(OfAll)}}
}

// shows says whether an operation of the principal belongs to the list, for a
// caller who may ask for it.
func (r ListRequest) shows(principal string) bool {
	switch r.Of {
	case OfOwn:
		return principal == r.Caller.Principal
	case OfTeam:
		team := r.Caller.Team()
		return principal == r.Caller.Principal || team != "" && r.Caller.Teams[principal] == team
	case OfAll:
		return true
	}
	return false
}

// ofLabel shows the newest operations under one label, as they stand.
func (v *Service) ofLabel(ctx context.Context, r ListRequest, label string, tags []events.Tag) (Page, error) {
	ids, more, err := v.cfg.Journal.Labelled(ctx, r.Caller.Principal, label)
	if err != nil {
		return Page{}, fmt.Errorf("list operations of a label: %w", err)
	}
	page := Page{Items: []View{}, LeftOut: more}
	for _, id := range ids {
		s, err := v.cfg.Journal.Current(ctx, id)
		switch {
		case errors.Is(err, journal.ErrNoOperation):
			continue // the ledger was lost, and INDEX not
		case err != nil:
			return Page{}, fmt.Errorf("list operations of a label: %w", err)
		case s.Intent.Principal != r.Caller.Principal, !tagged(s.Intent.Tags, tags),
			r.State != "" && string(s.Phase) != r.State, r.Provider != "" && s.Intent.Provider != r.Provider:
			continue
		case len(page.Items) == r.Limit:
			page.LeftOut = true
			return page, nil
		}
		page.Items = append(page.Items, v.view(r.Caller, s))
	}
	return page, nil
}

const cursorMAC = 16 // bytes

// cursor is opaque, signed, and good for this principal and filter only.
func (v *Service) cursor(r ListRequest, at journal.Place) string {
	raw := binary.BigEndian.AppendUint64(nil, at.Before)
	raw = binary.BigEndian.AppendUint64(raw, at.Top)
	h := hmac.New(sha256.New, v.cfg.Key)
	parts := []string{"cursor2", r.Caller.Principal, r.State, r.Provider, string(raw)}
	if r.Of != OfOwn {
		parts = append(parts, string(r.Of))
	}
	if len(r.Tags) > 0 { // in whatever order
		parts = append(parts, "tags")
		parts = append(parts, slices.Sorted(slices.Values(r.Tags))...)
	}
	for _, part := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(append(raw, h.Sum(nil)[:cursorMAC]...))
}

func (v *Service) readCursor(r ListRequest) (journal.Place, error) {
	if r.Cursor == "" {
		return journal.Place{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(r.Cursor)
	if err == nil && len(raw) == 16+cursorMAC {
		at := journal.Place{Before: binary.BigEndian.Uint64(raw), Top: binary.BigEndian.Uint64(raw[8:])}
		if hmac.Equal([]byte(r.Cursor), []byte(v.cursor(r, at))) {
			return at, nil
		}
	}
	return journal.Place{}, &Refusal{Code: CodeCursorInvalid, Detail: "the cursor was not made for this caller and filter"}
}

func phases() []string {
	var list []string
	for _, p := range []projections.Phase{
		projections.PhaseApprovalPending, projections.PhaseCreatePending, projections.PhaseCreateUnknown, projections.PhaseReconciliation,
		projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired, projections.PhaseCancelRequested,
		projections.PhaseCancelling, projections.PhaseResultCollecting, projections.PhaseResultTimedOut,
		projections.PhaseCancellationUnconfirmed, projections.PhaseResultUnavailable, projections.PhaseResultValidationFailed,
		projections.PhaseQuarantined, projections.PhaseSucceeded, projections.PhaseFailed, projections.PhaseCancelled, projections.PhaseAbandoned,
	} {
		list = append(list, string(p))
	}
	return list
}

// Result is a collected result's bytes.
type Result struct {
	Data      []byte
	MediaType string
	Digest    events.Digest
	Version   uint64
	Trace     string // of the operation's calls; for the log
}

// Result gives the bytes of a collected result. One that failed a check is
// given only to a caller who says that it wants an unaccepted one. file asks for
// one file of a result of several, by its name or its place in the list, from 0;
// "" for the result itself.
func (v *Service) Result(ctx context.Context, caller Caller, id string, unaccepted bool, file string) (Result, error) {
	s, err := v.load(ctx, caller, id, ActRead)
	if err != nil {
		return Result{}, err
	}
	refusal := &Refusal{Operation: s.Operation, Trace: s.TraceID(), State: s.Phase, Provider: problemView(s.Problem)}
	switch {
	case s.Phase == projections.PhaseResultUnavailable:
		refusal.Code = CodeResultUnavailable
		refusal = refusal.Say("the job succeeded, its result could not be collected: {reason}", Values{"reason": s.Reason})
		return Result{}, refusal
	case s.Phase == projections.PhaseResultValidationFailed && !unaccepted:
		refusal.Code, refusal.Detail = CodeResultNotAccepted, "the result failed a check"
		return Result{}, refusal
	case s.Result.Payload.IsZero() && s.Phase.Terminal():
		refusal.Code = CodeNoResult
		refusal = refusal.Say("the operation ended as {state} without a result", nil)
		return Result{}, refusal
	case s.Result.Payload.IsZero():
		refusal.Code = CodeResultNotReady
		refusal = refusal.Say("the operation is {state}", nil)
		if s.Phase.Stopped() {
			refusal = refusal.Say("the operation is {state}: somebody has to decide, as its allowed says, before there can be a result", nil)
			refusal.RetryAfter = stoppedAgain
		}
		refusal.Provider = nil
		if wait := pollAfter(s, v.cfg.Clock.Now()); wait > 0 {
			refusal.RetryAfter = time.Duration(wait) * time.Second
		}
		return Result{}, refusal
	}
	read := func(r Result) (Result, error) {
		var err error
		r.Data, err = v.cfg.Journal.Payload(ctx, r.Digest)
		switch {
		case errors.Is(err, journal.ErrNoPayload):
			refusal.Code, refusal.Detail = CodeResultUnavailable, "the result was collected and is no longer stored"
			return Result{}, refusal
		case err != nil:
			return Result{}, fmt.Errorf("read result of %s: %w", id, err)
		}
		return r, nil
	}
	whole, err := read(Result{MediaType: s.Result.MediaType, Digest: s.Result.Payload, Version: s.Facts, Trace: s.TraceID()})
	if err != nil || file == "" {
		return whole, err
	}
	one, err := pick(whole, file)
	if err != nil {
		return Result{}, err
	}
	return read(one)
}

// pick finds one file of a result of several.
func pick(whole Result, name string) (Result, error) {
	unknown := func(message string, allowed ...string) error {
		return invalid("file", FieldNotAllowed, message, nil, allowed...)
	}
	if whole.MediaType != contract.FilesType {
		return Result{}, unknown("is given, and the result is not a list of files; ask without it")
	}
	files, err := contract.ReadFiles(whole.Data)
	if err != nil {
		return Result{}, fmt.Errorf("result %s: %w", whole.Digest, err)
	}
	var labels []string
	for i, f := range files {
		label := f.Label(i)
		if label == name || strconv.Itoa(i) == name {
			return Result{MediaType: f.MediaType, Digest: f.Digest, Version: whole.Version, Trace: whole.Trace}, nil
		}
		labels = append(labels, label)
	}
	return Result{}, unknown("is none of the result's files", labels[:min(len(labels), 20)]...)
}
