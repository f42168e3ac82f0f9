package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// MaxBatch is how many items one request may have.
	MaxBatch = 100

	batchAtOnce = 16 // items of one request
	// batchTries bounds how often a request for all or nothing is looked at again
	// because an operation moved meanwhile.
	batchTries = 8
)

// Mode says what a request for several things means where not all of them can be done.
type Mode string

// The modes.
const (
	// Independent does what can be done, and says for each item what became of it. It is
	// the default.
	Independent Mode = "independent"
	// Atomic does all or nothing.
	Atomic Mode = "atomic"
)

// Words says it in words.
func (m Mode) Words() string {
	switch m {
	case Independent:
		return "Each item is recorded or refused by itself. Send the whole again, with the same key and what was refused corrected, and only that is tried again."
	case Atomic:
		return "All items are recorded in one write, or none. Calls to providers are made for each operation by itself: that all are recorded says nothing of how they end."
	}
	return ""
}

// BatchRequest asks for several things at once.
type BatchRequest struct {
	Caller      Caller
	Key         string // as ParseKey gave it, of the whole
	Body        []byte
	TraceParent string // W3C; "" if there is none
	// Problem shows why an item is refused, as a problem of this request.
	Problem func(error) Problem
}

// BatchView is what became of a request for several things.
type BatchView struct {
	Mode        Mode   `json:"mode"`
	Transaction string `json:"transaction"` // what the mode means, in words
	// Counts of the items by what became of them.
	Recorded int `json:"recorded"` // now
	Replayed int `json:"replayed"` // before, also where the request was validate_only
	Refused  int `json:"refused"`
	// Valid counts those that would be recorded, where the request was validate_only.
	Valid        int  `json:"valid,omitempty"`
	ValidateOnly bool `json:"validate_only,omitempty"`
	// Items are in the order of the request.
	Items []BatchItem `json:"items"`
}

// BatchItem is what became of one item.
type BatchItem struct {
	Index int `json:"index"` // in the request, from 0
	// Key is the item's own key, of a cancellation that was given one.
	Key string `json:"idempotency_key,omitempty"`
	// Status is that of the answer to the same request alone.
	Status    int      `json:"status"`
	Replayed  bool     `json:"replayed,omitempty"`
	Operation *View    `json:"operation,omitempty"`
	Problem   *Problem `json:"problem,omitempty"`

	err error
}

// item is one operation that is asked for, on its way.
type item struct {
	field       string // where it is in the body
	id          string
	submission  Submission
	fingerprint events.Digest
	found       *projections.State
	plan        plan
	err         error
}

// SubmitBatch records several operations, or finds that they are recorded. The key names
// each place for ever, and so the operation that was recorded in it: an item that is
// another one than that is refused, and one in a place where nothing is recorded is tried.
// replayed says that all of them were recorded before.
//
// With mode atomic an error means that nothing was recorded, or that it is not known; the
// same request finds out. With mode independent each item has its own answer, and the
// error is about the whole.
func (v *Service) SubmitBatch(ctx context.Context, r BatchRequest) (view BatchView, replayed bool, err error) {
	if r.Key == "" {
		return BatchView{}, false, keyMissing()
	}
	body, mode, err := decodeBatch(r.Body)
	if err != nil {
		return BatchView{}, false, err
	}
	items := v.itemsOf(r, body.Items)
	if err := v.findItems(ctx, items); err != nil {
		return BatchView{}, false, err
	}
	view = BatchView{Mode: mode, Transaction: mode.Words(), ValidateOnly: body.Validate != nil && *body.Validate}
	switch {
	case view.ValidateOnly:
		view.Items, err = v.validateBatch(ctx, r, mode, items)
	case mode == Atomic:
		view.Items, err = v.submitAll(ctx, r, items)
	case mode == Independent:
		view.Items = v.submitEach(ctx, r, items)
	}
	if err != nil {
		return BatchView{}, false, err
	}
	view.count(r.Problem)
	return view, !view.ValidateOnly && view.Replayed == len(items), nil
}

// count counts the items and shows problems where they are answered.
func (b *BatchView) count(problem func(error) Problem) {
	for i := range b.Items {
		it := &b.Items[i]
		it.Index = i
		switch {
		case it.err != nil:
			p := problem(it.err)
			it.Problem, it.Status = &p, p.Status
			b.Refused++
		case it.Operation.Validation != nil:
			switch it.Status = statusDone; it.Operation.Validation.Would {
			case WouldRecord:
				b.Valid++
			case WouldReplay:
				b.Replayed++
			}
		case it.Replayed:
			it.Status = statusDone
			b.Replayed++
		default:
			it.Status = statusSubmitted
			b.Recorded++
		}
	}
}

func decodeBatch(body []byte) (b BatchBody, mode Mode, err error) {
	if err := DecodeStrict(body, &b); err != nil {
		return b, "", err
	}
	mode, problems := modeOf(b.Mode)
	switch {
	case len(b.Items) == 0:
		problems = append(problems, Wrong("/items", FieldRequired, "must have at least one item", nil))
	case len(b.Items) > MaxBatch:
		return b, "", tooManyItems(len(b.Items))
	}
	if len(problems) > 0 {
		return b, "", Refuse(problems...)
	}
	return b, mode, nil
}

func modeOf(text *string) (Mode, []FieldError) {
	if text == nil {
		return Independent, nil
	}
	mode := Mode(*text)
	if mode.Words() == "" {
		return "", []FieldError{Wrong("/mode", FieldNotAllowed, "is no mode", nil, string(Independent), string(Atomic))}
	}
	return mode, nil
}

func tooManyItems(n int) *Refusal {
	values := Values{"items": n, "limit": MaxBatch}
	r := &Refusal{Code: CodeBatchTooLarge, Errors: []FieldError{Wrong("/items", FieldOutOfBounds, "has {items} items; at most {limit} are allowed", values)}}
	return r.Say("the request has {items} items; at most {limit} are allowed", values)
}

func itemField(i int) string { return "/items/" + strconv.Itoa(i) }

// itemsOf reads each item as the body of a submit alone.
func (v *Service) itemsOf(r BatchRequest, elements []BatchElement) []item {
	items := make([]item, len(elements))
	for i, e := range elements {
		it := &items[i]
		it.field = itemField(i)
		// No key has the character in between, so no submit alone has this id.
		it.id = OperationID(v.cfg.Installation, r.Caller.Principal, r.Key+"\x00"+strconv.Itoa(i))
		if len(e.Operation) == 0 {
			it.err = invalid("", FieldRequired, "the operation must be given", nil)
			continue
		}
		if it.submission, it.err = DecodeSubmission(e.Operation); it.err == nil {
			it.fingerprint, it.err = it.submission.Fingerprint()
		}
		if it.submission.ValidateOnly {
			it.err = invalid("/validate_only", FieldNotAllowed, "stands beside the items, and is about all of them", nil)
		}
	}
	return items
}

// findItems looks up what is recorded in the items' places, whatever the mode and size of
// the request that recorded it.
func (v *Service) findItems(ctx context.Context, items []item) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(batchAtOnce)
	for i := range items {
		it := &items[i]
		group.Go(func() error {
			s, err := v.cfg.Journal.Find(ctx, it.id)
			switch {
			case errors.Is(err, journal.ErrNoOperation):
				it.found = nil
				return nil
			case err != nil:
				return fmt.Errorf("submit %s: %w", it.id, err)
			}
			it.found = &s
			return nil
		})
	}
	return group.Wait()
}

// submitEach records each item by itself.
func (v *Service) submitEach(ctx context.Context, r BatchRequest, items []item) []BatchItem {
	out := make([]BatchItem, len(items))
	var group errgroup.Group
	group.SetLimit(batchAtOnce)
	for i := range items {
		group.Go(func() error {
			view, replayed, err := v.submitItem(ctx, r, &items[i])
			if out[i] = (BatchItem{Replayed: replayed, err: within(err, items[i].field)}); err == nil {
				out[i].Operation = &view
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	return out
}

// within says where in the whole a refusal's fields are.
func within(err error, field string) error {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	moved := *refusal
	moved.Errors = slices.Clone(refusal.Errors)
	for i := range moved.Errors {
		moved.Errors[i].Field = field + "/operation" + moved.Errors[i].Field
	}
	return &moved
}

func (v *Service) submitItem(ctx context.Context, r BatchRequest, it *item) (View, bool, error) {
	switch {
	case it.err != nil:
		return View{}, false, it.err
	case it.found != nil:
		return v.adopt(r.Caller, *it.found, it.fingerprint)
	}
	return v.record(ctx, r.one(), &it.submission, it.id, it.fingerprint)
}

// one is the request for one of the items.
func (r BatchRequest) one() SubmitRequest {
	return SubmitRequest{Caller: r.Caller, Key: r.Key, TraceParent: r.TraceParent}
}

// submitAll records all items or none. Those that are recorded in their places count as
// recorded.
func (v *Service) submitAll(ctx context.Context, r BatchRequest, items []item) ([]BatchItem, error) {
	for try := 0; ; try++ {
		out, again, err := v.tryAll(ctx, r, items)
		if err != nil || !again {
			return out, err
		}
		if try == batchTries {
			return nil, moving()
		}
		if err := v.beaten(ctx, items[0].id, try); err != nil {
			return nil, fmt.Errorf("submit a batch of %d: %w", len(items), err)
		}
		// Another request with the same key came first with one item or more, or an
		// operation moved that one of them names.
		if err := v.findItems(ctx, items); err != nil {
			return nil, err
		}
	}
}

func (v *Service) tryAll(ctx context.Context, r BatchRequest, items []item) (out []BatchItem, again bool, err error) {
	out = make([]BatchItem, len(items))
	var fresh []int
	refused := refusals{inside: "/operation"}
	for i := range items {
		it := &items[i]
		switch {
		case it.err != nil:
			refused.add(i, it.err)
		case it.found != nil:
			view, _, err := v.adopt(r.Caller, *it.found, it.fingerprint)
			refused.add(i, err)
			out[i] = BatchItem{Replayed: true, Operation: &view}
		default:
			fresh = append(fresh, i)
			it.plan, err = v.intent(ctx, r.one(), &it.submission, it.id, it.fingerprint)
			refused.add(i, err)
		}
	}
	twiceAdopted(items, fresh, &refused)
	if err := refused.whole(); err != nil || len(fresh) == 0 {
		return out, false, err
	}
	if refusal := v.full(); refusal != nil {
		return nil, false, refusal
	}
	orders := make([]order, len(fresh))
	for n, i := range fresh {
		orders[n] = orderOf(items[i].id, items[i].plan.intent)
	}
	settle, err := v.begin(ctx, r.Caller, orders...)
	if err != nil {
		return nil, false, err
	}
	defer func() { settle(err == nil && !again) }()
	if err := v.keepAll(ctx, items, fresh); err != nil {
		return nil, false, err
	}
	release, err := v.takeTurns(ctx, r.Caller, items, fresh, &refused)
	if err != nil {
		return nil, false, err
	}
	defer release()
	claims, err := v.claimAll(ctx, items, fresh, &refused)
	if err != nil {
		v.withdraw(ctx, claims...) // no intent was sent
		return nil, false, err
	}
	var drafts sync.WaitGroup
	defer drafts.Wait()
	all := v.together(r.Caller.Principal)
	for _, i := range fresh {
		it := &items[i]
		all.add(projections.State{Operation: it.id}, v.intentEvent(r.one(), it.id, it.plan.intent))
		if it.plan.create != nil {
			drafts.Go(func() { v.cfg.Journal.Draft(ctx, it.plan.create) })
		}
	}
	for _, i := range fresh {
		all.link(items[i].plan.before)
	}
	// A crash before this write leaves payloads that nothing names, and claims of jobs that
	// were to be adopted, which the same request finds to be its own and which lapse; a crash
	// after it leaves all operations, which that finds by their ids.
	after, outcome, err := v.cfg.Journal.AppendAll(ctx, all.states, all.facts)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("submit a batch of %d: %w", len(items), err)
	case outcome == journal.Superseded:
		v.withdraw(ctx, claims...) // none of the intents can be stored any more
		return nil, true, nil
	}
	for n, i := range fresh {
		view := v.view(r.Caller, after[n])
		out[i] = BatchItem{Operation: &view}
	}
	return out, false, nil
}

// takeTurns waits for the turns at the operations that items name and at the jobs that they
// adopt, and checks the operations again: they have moved meanwhile where others named them,
// too.
func (v *Service) takeTurns(ctx context.Context, caller Caller, items []item, fresh []int, refused *refusals) (release func(), err error) {
	var named []string
	for _, i := range fresh {
		named = append(named, items[i].plan.named()...)
		if turn := jobTurn(items[i].plan.intent); turn != "" {
			named = append(named, turn)
		}
	}
	if len(named) == 0 {
		return func() {}, nil
	}
	slices.Sort(named)
	release, _, err = v.linking.take(ctx, slices.Compact(named), nil)
	if err != nil {
		return nil, fmt.Errorf("submit a batch of %d: wait for those that name the same operations or jobs: %w", len(items), err)
	}
	read := v.remembered(ctx)
	for _, i := range fresh {
		it := &items[i]
		it.plan.before, err = v.predecessorsBy(read, caller, &it.submission, it.id)
		refused.add(i, err)
	}
	if err := refused.whole(); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// claimAll claims the jobs that items adopt, in the same order whatever the order of the
// items, and stops at the first that another operation has. So of two batches that adopt the
// same jobs one gets all of them. It gives what it has claimed also with an error.
func (v *Service) claimAll(ctx context.Context, items []item, fresh []int, refused *refusals) (claims []*journal.Provisional, err error) {
	ordered := slices.SortedFunc(slices.Values(fresh), func(a, b int) int {
		return strings.Compare(jobTurn(items[a].plan.intent), jobTurn(items[b].plan.intent))
	})
	for _, i := range ordered {
		claim, err := v.claimAdopted(ctx, items[i].plan.intent, items[i].id)
		if err != nil {
			refused.add(i, err)
			return claims, refused.whole()
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// keepAll stores the parameters of the items, before the facts that name them.
func (v *Service) keepAll(ctx context.Context, items []item, fresh []int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(batchAtOnce)
	for _, i := range fresh {
		it := &items[i]
		group.Go(func() (err error) {
			if it.plan.intent.Payload, err = v.cfg.Journal.PutPayload(ctx, it.submission.Params); err != nil {
				return fmt.Errorf("submit %s: %w", it.id, err)
			}
			v.cfg.Journal.Keep(it.plan.intent.Payload, it.submission.Params)
			return nil
		})
	}
	return group.Wait()
}

// refusals are those of single items, of a request for all or nothing.
type refusals struct {
	first  error
	at     int
	fields []FieldError
	inside string  // the member of an item that fields are of
	others []error // failures that are no refusals
}

func (r *refusals) add(i int, err error) {
	if err == nil {
		return
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		r.others = append(r.others, err)
		return
	}
	if r.first == nil {
		r.first, r.at = err, i
	}
	field := itemField(i)
	if len(refusal.Errors) == 0 {
		r.fields = append(r.fields, Wrong(field, FieldNotAllowed, "is refused: {code}", Values{"code": refusal.Code}))
	}
	for _, e := range refusal.Errors {
		e.Field = field + r.inside + e.Field
		r.fields = append(r.fields, e)
	}
}

// whole refuses the whole, if an item was: in the words of the first, with the fields of
// all of them.
func (r *refusals) whole() error {
	if len(r.others) > 0 {
		return r.others[0]
	}
	var refusal *Refusal
	if !errors.As(r.first, &refusal) {
		return nil
	}
	whole := *refusal
	whole.Errors = r.fields
	return whole.Say("nothing was recorded, since item {item} is refused", Values{"item": r.at})
}
