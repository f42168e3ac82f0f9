// Package intake makes operations of the intents that agents publish on NATS.
//
// An agent stores a CloudEvent in INTENTS and is told so by the server. From then on
// the intent is answered, whoever dies: it is handed out until its verdict is stored.
// The verdict is the answer that the same event would have had by HTTP, on
// verdicts.<principal>.<token>, see [Token].
//
// Guarantees: the principal and its key are those of the subject, which the server
// lets nobody else write to, and never of the event; what the key may do is asked
// when the intent is taken up, so that one that was revoked meanwhile gets nothing.
// The same event again, or an event under the same key by whatever protocol, is the
// same operation. An event that cannot be read is answered, kept aside and counted;
// it keeps nobody waiting.
//
// Limits: intents are taken up side by side and in no order that counts. One that
// the store does not let be recorded stays in the queue and comes again after 30 s.
package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/cloudevent"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

const (
	batch     = 32 // intents that are worked on at once
	fetchWait = 30 * time.Second
	// restAfterFailure is how long the role rests when the store does not answer.
	restAfterFailure = time.Second
	// workTime bounds one intent; its lease is longer.
	workTime = 20 * time.Second
	// finishTime bounds what is still answered when the role stops.
	finishTime = 10 * time.Second
	// triesAfterPanic is how often an intent is tried that breaks our own code.
	triesAfterPanic = 5

	tokenDigits = 32 // of a digest
)

// Outcome is how an intent was answered, for the count of them.
type Outcome string

// The outcomes.
const (
	Accepted  Outcome = "accepted"
	Replayed  Outcome = "replayed"
	Validated Outcome = "validated" // and nothing recorded, as was asked for
	Refused   Outcome = "refused"
	Malformed Outcome = "malformed" // no event, or no intent; kept aside
	Postponed Outcome = "postponed" // not answered yet: the store did not take it
)

// Outcomes lists them.
func Outcomes() []Outcome {
	return []Outcome{Accepted, Replayed, Validated, Refused, Malformed, Postponed}
}

// Clock is the role's time. Sleep returns early with ctx's error.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Config of a [Role]. Every field is required but Refused.
type Config struct {
	Journal *journal.Journal
	Service *ingest.Service
	// Caller gives what the key may do now. For one that does not count, or is not the
	// principal's, it gives [ingest.Unauthenticated], and a [ingest.KeysError] where it
	// cannot tell.
	Caller func(principal, key string) (ingest.Caller, error)
	Clock  Clock
	Log    *slog.Logger
	// Source is the CloudEvents source of the verdicts, "/ingest/1".
	Source string
	// Count counts the intents that were taken up.
	Count func(Outcome)
	// Refused is told the code of every problem answered; nil tells nobody.
	Refused func(ingest.Code)
}

// Role answers intents.
type Role struct{ cfg Config }

// New makes a Role.
func New(cfg Config) *Role { return &Role{cfg} }

// Token is where the verdict on an event is found, below verdicts.<principal>: the
// first 32 hexadecimal digits of the SHA-256 of its source, a line feed and its id.
// Neither has a line feed.
func Token(source, id string) string {
	sum := sha256.Sum256([]byte(source + "\n" + id))
	return hex.EncodeToString(sum[:])[:tokenDigits]
}

// SequenceToken is where the verdict on a message is found that has no source and id:
// the agent knows its sequence from the server's acknowledgement.
func SequenceToken(sequence uint64) string { return "seq-" + strconv.FormatUint(sequence, 10) }

// Run answers intents until ctx ends, which is not an error. Those it has by then it
// answers yet, within finishTime.
func (r *Role) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		limit := time.AfterFunc(finishTime, stop)
		context.AfterFunc(work, func() { limit.Stop() })
	})()
	var queue *journal.IntentQueue
	for ctx.Err() == nil {
		var err error
		if queue == nil {
			queue, err = r.cfg.Journal.Intents(ctx)
		}
		var list []*journal.Intent
		if err == nil {
			list, err = queue.Fetch(ctx, batch, fetchWait)
		}
		if err != nil && ctx.Err() == nil {
			// Nothing is lost: what is not acknowledged stays in the queue.
			r.cfg.Log.WarnContext(ctx, "no intent could be fetched", "error", err)
			if r.cfg.Clock.Sleep(ctx, restAfterFailure) != nil {
				return nil
			}
			continue
		}
		var group errgroup.Group
		for _, i := range list {
			group.Go(func() error {
				r.attend(work, i)
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// attend answers one intent, or leaves it to its next lease.
func (r *Role) attend(ctx context.Context, i *journal.Intent) {
	ctx, stop := context.WithTimeout(ctx, workTime)
	defer stop()
	outcome, err := r.answer(ctx, i)
	if err != nil {
		outcome = Postponed
		r.cfg.Log.WarnContext(ctx, "intent left to its next lease", "principal", i.Principal, "sequence", i.Sequence, "delivered", i.Delivered, "error", err)
	}
	r.cfg.Count(outcome)
}

// answer takes an intent through its steps. Each may fail undone, or done without
// our knowing, and is then done again when the lease has ended:
//
//   - before the operation is recorded nothing stands but the intent;
//   - after it the next try finds the operation by its key and answers with it;
//   - after the verdict is stored the next try writes it again, as the operation
//     stands by then;
//   - after the acknowledgement there is nothing to do.
func (r *Role) answer(ctx context.Context, i *journal.Intent) (Outcome, error) {
	e, err := eventIn(i)
	var broken *cloudevent.Error
	if errors.As(err, &broken) {
		return Malformed, r.reject(ctx, i, nameIn(i), ingest.EventRefusal(err))
	}
	view, replayed, err := r.submit(ctx, i, e)
	var refusal *ingest.Refusal
	// What the store does not take now, or can say nothing of yet, waits in the queue.
	if err != nil && (!errors.As(err, &refusal) || refusal.Code == ingest.CodeUnavailable) {
		return Postponed, err
	}
	if refusal != nil && e.Type != ingest.EventSubmit {
		return Malformed, r.reject(ctx, i, e, refusal)
	}
	outcome := Accepted
	switch {
	case refusal != nil:
		outcome = Refused
	case replayed:
		outcome = Replayed
	case view.Validation != nil:
		outcome = Validated
	}
	return outcome, r.settle(ctx, i, e, Token(e.Source, e.ID), ingest.OutcomeOf(view, replayed, err, r.problem(i)))
}

// nameIn has what names a message that is no event, if anything does.
func nameIn(i *journal.Intent) (e cloudevent.Event) {
	if structured(i) {
		e.Source, e.ID = cloudevent.NameInJSON(i.Data)
	} else {
		e.Source, e.ID = cloudevent.NameInHeaders(i.Header)
	}
	return e
}

func structured(i *journal.Intent) bool {
	return cloudevent.ModeOf(cloudevent.ContentType(i.Header)) == cloudevent.Structured
}

// eventIn reads the event of a message, in whichever mode it is.
func eventIn(i *journal.Intent) (cloudevent.Event, error) {
	if structured(i) {
		return cloudevent.FromJSON(i.Data)
	}
	// Binary, whatever the media type: what is none of JSON is refused with the data.
	return cloudevent.FromHeaders(i.Header, i.Data)
}

// submit records the intent. A defect of ours must not hold up the others, and is
// no reason to give up at once: another version may be the next to try.
func (r *Role) submit(ctx context.Context, i *journal.Intent, e cloudevent.Event) (view ingest.View, replayed bool, err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// The text of a panic may quote what a caller sent.
		r.cfg.Log.ErrorContext(ctx, "the handling of an intent panicked", "principal", i.Principal, "sequence", i.Sequence, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		err = errors.New("it panicked")
		if i.Delivered >= triesAfterPanic {
			err = &ingest.Refusal{Code: ingest.CodeInternal}
		}
	}()
	caller, err := r.cfg.Caller(i.Principal, i.Key)
	if err != nil {
		return ingest.View{}, false, err
	}
	return r.cfg.Service.SubmitEvent(ctx, ingest.EventRequest{Caller: caller, Event: e, TraceParent: ingest.TraceParent(first(i.Header, "traceparent"))})
}

func first(header map[string][]string, name string) string {
	if values := header[name]; len(values) == 1 {
		return values[0]
	}
	return ""
}

// problem shows errors as problems of the message.
func (r *Role) problem(i *journal.Intent) func(error) ingest.Problem {
	return func(err error) ingest.Problem {
		return ingest.ProblemOf(err, "nats:intents#"+strconv.FormatUint(i.Sequence, 10), ingest.ProblemBase)
	}
}

// reject answers what is no intent, and keeps it aside first: after a crash in
// between it is kept aside again, in the same place.
func (r *Role) reject(ctx context.Context, i *journal.Intent, e cloudevent.Event, why error) error {
	if err := r.cfg.Journal.KeepAside(ctx, i, why.Error()); err != nil {
		return err
	}
	token := SequenceToken(i.Sequence)
	if e.ID != "" {
		token = Token(e.Source, e.ID)
	}
	return r.settle(ctx, i, e, token, ingest.OutcomeOf(ingest.View{}, false, why, r.problem(i)))
}

// settle stores the verdict and then lets the intent go.
func (r *Role) settle(ctx context.Context, i *journal.Intent, e cloudevent.Event, token string, outcome ingest.EventOutcome) error {
	body, err := json.Marshal(ingest.IntentVerdict{Sequence: i.Sequence, ID: e.ID, Source: e.Source, EventOutcome: outcome})
	if err != nil {
		return fmt.Errorf("write a verdict: %w", err)
	}
	header := map[string][]string{
		"ce-specversion": {cloudevent.SpecVersion}, "ce-type": {ingest.EventVerdict}, "ce-source": {cloudevent.Encode(r.cfg.Source)},
		"ce-id":              {"verdict-" + strconv.FormatUint(i.Sequence, 10) + "-" + strconv.FormatUint(i.Delivered, 10)},
		"ce-time":            {r.cfg.Clock.Now().UTC().Format(time.RFC3339Nano)},
		"ce-datacontenttype": {cloudevent.JSON},
	}
	if outcome.Operation != nil && outcome.Operation.Validation == nil {
		header["ce-subject"] = []string{outcome.Operation.ID}
	}
	if err := r.cfg.Journal.StoreVerdict(ctx, i.Principal, token, header, body); err != nil {
		return err
	}
	r.log(ctx, i, outcome)
	return i.Ack(ctx)
}

// log writes one line for each verdict.
func (r *Role) log(ctx context.Context, i *journal.Intent, outcome ingest.EventOutcome) {
	args := []any{"principal", i.Principal, "key", i.Key, "sequence", i.Sequence, "status", outcome.Status}
	if outcome.Operation != nil {
		args = append(args, "operation", outcome.Operation.ID)
	}
	if outcome.Problem != nil {
		args = append(args, "code", outcome.Problem.Code)
		if r.cfg.Refused != nil {
			r.cfg.Refused(outcome.Problem.Code)
		}
	}
	r.cfg.Log.InfoContext(ctx, "intent", args...)
}
