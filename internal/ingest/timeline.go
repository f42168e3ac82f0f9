package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// Bounds of one page of a timeline.
const (
	DefaultTimeline = 500
	MaxTimeline     = 1000
)

// TimelinePage is a part of an operation's history, oldest first.
type TimelinePage struct {
	Operation string  `json:"operation"`
	Entries   []Entry `json:"entries"`
	// NextAfter is where the next page goes on; 0 ends.
	NextAfter uint64 `json:"next_after,omitempty"`
	Version   uint64 `json:"version"`
	Trace     string `json:"-"` // of the operation's calls; for the log
}

// Entry is one fact and what it did.
type Entry struct {
	Sequence uint64              `json:"seq"` // of the ledger
	ID       string              `json:"id"`
	Time     time.Time           `json:"time"` // the ledger's
	Type     events.Type         `json:"type"`
	Kind     string              `json:"kind"` // permit or evidence
	Source   string              `json:"source"`
	Actor    string              `json:"actor,omitempty"`
	Verdict  projections.Verdict `json:"verdict"`
	Row      string              `json:"row"`
	From     projections.Phase   `json:"from,omitempty"`
	To       projections.Phase   `json:"to,omitempty"`
	Reason   projections.Reason  `json:"reason,omitempty"`
	// Projected is false while history does not have the fact yet; the verdict
	// is then the one that this program would give.
	Projected bool   `json:"projected"`
	Fields    Fields `json:"fields,omitempty"`
}

// Timeline shows the facts after a sequence.
func (v *Service) Timeline(ctx context.Context, caller Caller, id string, after uint64, limit int) (TimelinePage, error) {
	if limit == 0 {
		limit = DefaultTimeline
	}
	if limit < 1 || limit > MaxTimeline {
		return TimelinePage{}, invalid("limit", FieldOutOfBounds, "must be between {min} and {max}", Values{"min": 1, "max": MaxTimeline})
	}
	s, err := v.load(ctx, caller, id, ActRead)
	if err != nil {
		return TimelinePage{}, err
	}
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return TimelinePage{}, fmt.Errorf("read timeline of %s: %w", id, err)
	}
	page := TimelinePage{Operation: s.Operation, Trace: s.TraceID(), Entries: []Entry{}, Version: s.Facts}
	var folded projections.State
	for _, line := range lines {
		var record projections.Record
		folded, record = projections.Fold(folded, line.Entry)
		if line.Record != nil {
			record = *line.Record // what was believed then
		}
		if line.Entry.Sequence <= after {
			continue
		}
		if len(page.Entries) == limit {
			page.NextAfter = page.Entries[limit-1].Sequence
			break
		}
		e := entryOf(line.Entry, record)
		e.Projected = line.Record != nil
		if e.Fields, err = v.withTexts(ctx, e.Fields); err != nil {
			return TimelinePage{}, fmt.Errorf("read timeline of %s: %w", id, err)
		}
		page.Entries = append(page.Entries, e)
	}
	return page, nil
}

// entryOf shows a fact with the verdict of a record that is not in the history yet.
func entryOf(e projections.Entry, record projections.Record) Entry {
	out := Entry{
		Sequence: e.Sequence, ID: e.Event.ID, Time: e.Time.UTC(), Type: record.Type, Source: e.Event.Source, Actor: e.Event.Actor,
		Verdict: record.Verdict, Row: record.Row, From: record.From, To: record.To, Reason: record.Reason,
	}
	if fact := e.Event.Fact; fact != nil {
		out.Kind, out.Fields = fact.Kind().String(), readable(fact)
	}
	return out
}

// withTexts adds the texts that people gave beside the digests that facts have of
// them. One that was erased is left out, and its digest stays.
func (v *Service) withTexts(ctx context.Context, fields Fields) (Fields, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	list := make(Fields, 0, len(fields)+2)
	for _, field := range fields {
		list = append(list, field)
		if field.Name != "why" && field.Name != "evidence" {
			continue
		}
		d, err := events.ParseDigest(field.Value)
		if err != nil {
			return nil, err
		}
		text, err := v.cfg.Journal.Payload(ctx, d)
		switch {
		case errors.Is(err, journal.ErrNoPayload):
		case err != nil:
			return nil, err
		default:
			list = append(list, Field{field.Name + "_text", string(text)})
		}
	}
	return list, nil
}

// Fields are named texts in a fixed order. They are written as a JSON object.
type Fields []Field

// Field is one readable part of a fact.
type Field struct{ Name, Value string }

// MarshalJSON keeps the order.
func (f Fields) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, field := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, s := range []string{field.Name, field.Value} {
			text, err := json.Marshal(s)
			if err != nil {
				return nil, err
			}
			b.Write(text)
			if j == 0 {
				b.WriteByte(':')
			}
		}
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

// readable shows what of a fact is for people. Left out: tokens, references and
// identities of credentials, caller and provider bodies, queries of links, and
// whatever a later version added.
func readable(fact events.Fact) Fields {
	w := &writer{}
	switch f := fact.(type) {
	case *events.IntentRecorded:
		w.text("provider", f.Provider)
		w.text("account", f.Account)
		w.text("key_id", f.KeyID)
		w.text("session", f.Session)
		w.text("approval", f.Approval)
		w.digest("contract", f.Contract)
		w.digest("fingerprint", f.Fingerprint)
		w.digest("payload", f.Payload)
		w.number("payload_size", f.PayloadSize)
		w.text("client_reference", f.ClientReference)
		w.text("replaces", f.Replaces)
		w.text("retry_of", f.RetryOf)
		w.id("adopt", f.Adopt)
		w.id("own_reference", f.Reference)
		w.time("not_before", f.NotBefore)
		w.text("expect", f.Expect)
		w.text("max_cost", f.MaxCost)
		w.text("cost", f.Cost)
		w.text("cost_unit", f.CostUnit)
		w.digest("approving_policy", f.Approving)
		for _, d := range f.Demands {
			w.text("approval_rule", d.Rule)
			w.text("approval_why", d.Why)
			w.text("approval_rule_failed", clean(d.Failed))
		}
		w.text("guarantee", string(f.Promises.Guarantee))
		w.length("deadline_create", f.Deadlines.Create)
		w.length("deadline_result", f.Deadlines.Result)
		w.number("rules", f.Rules)
	case *events.ApprovalGranted:
		w.text("who", f.Who)
		w.text("key_id", f.KeyID)
		w.digest("approved", f.Approved)
		w.digest("why", f.Why)
		w.id("job_id", f.JobID)
		w.text("claim", f.Claim)
	case *events.ApprovalDenied:
		w.text("who", f.Who)
		w.text("key_id", f.KeyID)
		w.digest("denied", f.Denied)
		w.digest("why", f.Why)
	case *events.PrepareAttempted:
		w.number("step", f.Step+1)
		w.attempt(&f.Attempt)
	case *events.PrepareAnswered:
		w.number("step", f.Step+1)
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		for _, v := range f.Values {
			w.provider("value_"+clean(v.Name), v.Value)
		}
		w.call(&f.Call)
	case *events.CreateAttempted:
		w.attempt(&f.Attempt)
	case *events.CreateAnswered:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.id("job_id", f.JobID)
		w.link("status_url", f.StatusURL)
		w.provider("remote_state", f.Remote)
		w.text("claim", f.Claim)
		w.flag("echo_differs", f.EchoDiffer)
		w.call(&f.Call)
	case *events.LookupAnswered:
		w.text("outcome", string(f.Outcome))
		for i, j := range f.Jobs {
			if i == 20 {
				break
			}
			name := "job_" + strconv.Itoa(i+1)
			w.id(name, j.ID)
			w.flag(name+"_exact", j.Exact)
			w.text(name+"_claim", j.Claim)
		}
		w.flag("conclusive", f.Conclusive)
		w.number("pages", f.Pages)
		w.call(&f.Call)
	case *events.JobObserved:
		w.id("job_id", f.JobID)
		w.text("claim", f.Claim)
		w.provider("remote_state", f.Remote)
		w.text("class", string(f.State))
		w.time("provider_time", f.ProviderTime)
		w.flag("no_result", f.NoResult)
		w.provider("progress", f.Progress)
		w.text("prompt", f.Prompt)
		w.link("input_url", f.InputURL)
		w.provider("input_text", f.InputText)
		w.call(&f.Call)
	case *events.ObservationFailed:
		w.id("job_id", f.JobID)
		w.text("prompt", f.Prompt)
		w.call(&f.Call)
	case *events.JobContested:
		w.id("job_id", f.JobID)
	case *events.WebhookReceived:
		w.provider("event_id", f.EventID)
		w.text("scheme", f.Scheme)
		w.provider("event_type", f.EventType)
		w.provider("remote_state", f.Remote)
		w.id("job_id", f.JobID)
		w.flag("exact", f.Exact)
		w.digest("body", f.Body)
	case *events.CancelRequested:
		w.text("who", f.Who)
		w.digest("why", f.Why)
		w.text("expected", f.Expected)
	case *events.CancelAttempted:
		w.attempt(&f.Attempt)
	case *events.CancelAnswered:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.provider("remote_state", f.Remote)
		w.call(&f.Call)
	case *events.ResultAttempted:
		w.attempt(&f.Attempt)
	case *events.ResultCollected:
		w.number("attempt", f.Attempt)
		w.digest("payload", f.Payload)
		w.number("size", f.Size)
		w.provider("media_type", f.MediaType)
		for _, c := range f.Checks {
			verdict := "failed"
			if c.Passed {
				verdict = "passed"
			}
			w.text("check_"+clean(c.Name), verdict)
		}
		w.call(&f.Call)
	case *events.ResultFailed:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.call(&f.Call)
	case *events.CleanupRequested:
		w.text("who", f.Who)
		w.digest("why", f.Why)
		w.id("job_id", f.JobID)
	case *events.CleanupAttempted:
		w.attempt(&f.Attempt)
	case *events.CleanupAnswered:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.call(&f.Call)
	case *events.InputSubmitted:
		w.text("who", f.Who)
		w.digest("payload", f.Payload)
		if f.Question != 0 {
			w.number("question", f.Question)
		}
	case *events.InputAttempted:
		w.attempt(&f.Attempt)
	case *events.InputAnswered:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.call(&f.Call)
	case *events.DeadlinePassed:
		w.text("deadline", string(f.Which))
	case *events.DecisionMade:
		w.text("decision", string(f.Choice))
		w.text("who", f.Who)
		w.digest("why", f.Why)
		w.number("on_sequence", f.Sequence)
		w.id("job_id", f.JobID)
		w.text("claim", f.Claim)
		w.text("deadline", string(f.Which))
		w.time("until", f.Until)
		w.digest("evidence", f.Evidence)
		w.flag("accept_risk", f.AcceptRisk)
	case *events.StepDeferred:
		w.time("until", f.Until)
		w.text("reason", string(f.Reason))
		w.provider("detail", f.Detail)
		w.flag("creates_only", f.Creates)
	case *events.OperationPaused:
		w.text("who", f.Who)
		w.digest("why", f.Why)
	case *events.OperationResumed:
		w.text("who", f.Who)
		w.digest("why", f.Why)
	case *events.TagsChanged:
		w.text("who", f.Who)
		for _, t := range f.Tags {
			w.text("tag_"+t.Name, t.Value)
		}
	case *events.OperationLinked:
		w.text("who", f.Who)
		for _, kind := range []events.LinkKind{events.LinkReplacedBy, events.LinkRetriedBy} {
			w.id(string(kind), strings.Join(linked(f.Links, kind), ", "))
		}
		w.flag("overlap_allowed", slices.ContainsFunc(f.Links, func(l events.Link) bool { return l.Overlap }))
	case *events.NotificationAttempted:
		w.attempt(&f.Attempt)
	case *events.NotificationAnswered:
		w.number("attempt", f.Attempt)
		w.text("outcome", string(f.Outcome))
		w.call(&f.Call)
	case *events.Unknown:
		w.number("bytes", uint64(len(f.Data)))
	}
	return w.fields
}

// writer leaves out what is zero.
type writer struct{ fields Fields }

func (w *writer) text(name, value string) {
	if value != "" {
		w.fields = append(w.fields, Field{name, value})
	}
}

func (w *writer) provider(name, value string) { w.text(name, clean(value)) }

func (w *writer) id(name, value string) { w.text(name, verbatim(value)) }

func (w *writer) link(name, value string) {
	if value != "" {
		w.text(name, httprule.RedactURL(value))
	}
}

func (w *writer) digest(name string, d events.Digest) { w.text(name, d.String()) }

func (w *writer) number(name string, n uint64) {
	if n != 0 {
		w.text(name, strconv.FormatUint(n, 10))
	}
}

func (w *writer) flag(name string, b bool) {
	if b {
		w.text(name, "true")
	}
}

func (w *writer) time(name string, t time.Time) {
	if !t.IsZero() {
		w.text(name, t.UTC().Format(time.RFC3339Nano))
	}
}

func (w *writer) length(name string, d time.Duration) {
	if d != 0 {
		w.text(name, span(d))
	}
}

func (w *writer) attempt(a *events.Attempt) {
	w.number("attempt", a.Number)
	w.digest("request", a.Request)
	w.link("origin", a.Origin)
	w.text("account", a.Account)
	w.time("not_after", a.NotAfter)
	w.text("owner", a.Owner)
}

func (w *writer) call(c *events.Call) {
	w.number("as_of", c.AsOf)
	w.time("left_at", c.LeftAt)
	w.number("status", c.Status)
	w.text("class", string(c.Class))
	w.provider("code", c.Code)
	w.provider("message", c.Message)
	w.provider("request_id", c.RequestID)
	w.time("retry_at", c.RetryAt)
	w.digest("body", c.Body)
}
