package events

import "github.com/counterfoil/counterfoil/internal/codec"

// The Fields methods fix the order and the names of what is stored. Since v0.1.0 a
// field is only ever added, at the end.

// Fields implements [codec.Record].
func (f *IntentRecorded) Fields(v *codec.Visitor) {
	codec.Text(v, "pr", &f.Principal)
	codec.Text(v, "kid", &f.KeyID)
	codec.Text(v, "ses", &f.Session)
	codec.Text(v, "apr", &f.Approval)
	codec.Text(v, "p", &f.Provider)
	codec.Text(v, "a", &f.Account)
	codec.Digest(v, "c", &f.Contract)
	codec.Digest(v, "fp", &f.Fingerprint)
	codec.Digest(v, "pl", &f.Payload)
	codec.Uint(v, "ps", &f.PayloadSize)
	codec.Text(v, "tok", &f.Token)
	codec.Text(v, "ref", &f.ClientReference)
	codec.Text(v, "rep", &f.Replaces)
	codec.Text(v, "ret", &f.RetryOf)
	codec.Text(v, "ado", &f.Adopt)
	codec.Time(v, "nb", &f.NotBefore)
	codec.Text(v, "exp", &f.Expect)
	codec.Text(v, "max", &f.MaxCost)
	codec.List(v, "tag", &f.Tags)
	codec.Bool(v, "app", &f.NeedsApproval)
	codec.Nested(v, "d", &f.Deadlines)
	codec.Nested(v, "po", &f.Policy)
	codec.Nested(v, "pm", &f.Promises)
	codec.Uint(v, "r", &f.Rules)
	codec.Text(v, "own", &f.Reference)
	codec.Digest(v, "apo", &f.Approving)
	codec.List(v, "dem", &f.Demands)
	codec.Text(v, "cst", &f.Cost)
	codec.Text(v, "csu", &f.CostUnit)
	codec.Nested(v, "of", &f.Offers)
	codec.Uint(v, "exf", &f.ExpectForm)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (d *Demand) Fields(v *codec.Visitor) {
	codec.Text(v, "r", &d.Rule)
	codec.Text(v, "y", &d.Why)
	codec.Text(v, "f", &d.Failed)
}

// Fields implements [codec.Record].
func (o *Offers) Fields(v *codec.Visitor) {
	codec.Bool(v, "i", &o.Input)
	codec.Bool(v, "ri", &o.RepeatInput)
	codec.Bool(v, "c", &o.Cleanup)
}

// Fields implements [codec.Record].
func (t *Tag) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &t.Name)
	codec.Text(v, "v", &t.Value)
}

// Fields implements [codec.Record].
func (d *Deadlines) Fields(v *codec.Visitor) {
	codec.Duration(v, "a", &d.Approval)
	codec.Duration(v, "c", &d.Create)
	codec.Duration(v, "r", &d.Result)
	codec.Duration(v, "x", &d.Cancel)
	codec.Duration(v, "o", &d.Collect)
}

// Fields implements [codec.Record].
func (p *Policy) Fields(v *codec.Visitor) {
	codec.Duration(v, "i", &p.PollInterval)
	codec.Duration(v, "m", &p.PollMax)
	codec.Duration(v, "b", &p.BackoffBase)
	codec.Duration(v, "x", &p.BackoffMax)
	codec.Duration(v, "t", &p.RequestTimeout)
	codec.Uint(v, "n", &p.MaxAttempts)
	codec.Duration(v, "c", &p.ClockDifference)
}

// Fields implements [codec.Record].
func (p *Promises) Fields(v *codec.Visitor) {
	codec.Text(v, "g", &p.Guarantee)
	codec.Duration(v, "w", &p.TokenWindow)
	codec.Duration(v, "s", &p.Settle)
	codec.Bool(v, "rp", &p.RefusalIsProof)
	codec.Text(v, "l", &p.Lookup)
	codec.Bool(v, "lc", &p.LookupConclusive)
	codec.Bool(v, "st", &p.Strict)
	codec.Bool(v, "wh", &p.WebhookNamesJob)
	codec.Duration(v, "ng", &p.NotFoundGrace)
	codec.Bool(v, "gc", &p.GoneConfirmsCancel)
	codec.Bool(v, "c", &p.Cancels)
	codec.Bool(v, "r", &p.HasResult)
	codec.Bool(v, "pr", &p.PartialResults)
	codec.Bool(v, "xc", &p.RepeatCancel)
	codec.Bool(v, "xr", &p.RepeatResult)
	codec.Bool(v, "xu", &p.RepeatCleanup)
	codec.Uint(v, "pn", &p.Prepares)
}

func (a *Attempt) visit(v *codec.Visitor) {
	codec.Uint(v, "n", &a.Number)
	codec.Digest(v, "rq", &a.Request)
	codec.Text(v, "o", &a.Origin)
	codec.Text(v, "a", &a.Account)
	codec.Text(v, "cr", &a.Credential)
	codec.Text(v, "ci", &a.Identity)
	codec.Time(v, "na", &a.NotAfter)
	codec.Duration(v, "t", &a.Timeout)
	codec.Text(v, "ow", &a.Owner)
}

func (c *Call) visit(v *codec.Visitor) {
	codec.Uint(v, "as", &c.AsOf)
	codec.Time(v, "l", &c.LeftAt)
	codec.Uint(v, "st", &c.Status)
	codec.Text(v, "ec", &c.Class)
	codec.Text(v, "co", &c.Code)
	codec.Text(v, "m", &c.Message)
	codec.Text(v, "rid", &c.RequestID)
	codec.Time(v, "ra", &c.RetryAt)
	codec.Bytes(v, "in", &c.Inline)
	codec.Digest(v, "b", &c.Body)
}

// Fields implements [codec.Record].
func (f *PrepareAttempted) Fields(v *codec.Visitor) {
	codec.Uint(v, "i", &f.Step)
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *PrepareAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Uint(v, "i", &f.Step)
	codec.Text(v, "oc", &f.Outcome)
	codec.List(v, "v", &f.Values)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CreateAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CreateAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "u", &f.StatusURL)
	codec.Text(v, "rs", &f.Remote)
	codec.Text(v, "cl", &f.Claim)
	codec.Bool(v, "ed", &f.EchoDiffer)
	codec.Bool(v, "og", &f.OwnerGone)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (j *FoundJob) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &j.ID)
	codec.Text(v, "u", &j.StatusURL)
	codec.Bool(v, "e", &j.Exact)
	codec.Text(v, "cl", &j.Claim)
	codec.Time(v, "t", &j.CreatedAt)
}

// Fields implements [codec.Record].
func (f *LookupAnswered) Fields(v *codec.Visitor) {
	codec.Text(v, "oc", &f.Outcome)
	codec.List(v, "js", &f.Jobs)
	codec.Bool(v, "c", &f.Conclusive)
	codec.Uint(v, "pg", &f.Pages)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *JobObserved) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "cl", &f.Claim)
	codec.Text(v, "rs", &f.Remote)
	codec.Text(v, "s", &f.State)
	codec.Time(v, "pt", &f.ProviderTime)
	codec.Time(v, "rt", &f.RetrievedAt)
	codec.Text(v, "pg", &f.Progress)
	codec.Bool(v, "nr", &f.NoResult)
	codec.Text(v, "pr", &f.Prompt)
	f.Call.visit(v)
	codec.Text(v, "iu", &f.InputURL)
	codec.Text(v, "it", &f.InputText)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *ObservationFailed) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "pr", &f.Prompt)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *JobContested) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "ow", &f.Owner)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *WebhookReceived) Fields(v *codec.Visitor) {
	codec.Text(v, "e", &f.EventID)
	codec.Text(v, "sc", &f.Scheme)
	codec.Text(v, "et", &f.EventType)
	codec.Text(v, "rs", &f.Remote)
	codec.Text(v, "j", &f.JobID)
	codec.Bool(v, "x", &f.Exact)
	codec.Digest(v, "b", &f.Body)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CancelRequested) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Text(v, "k", &f.Key)
	codec.Digest(v, "y", &f.Why)
	codec.Text(v, "x", &f.Expected)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CancelAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CancelAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	codec.Text(v, "rs", &f.Remote)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *ResultAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (c *Check) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &c.Name)
	codec.Bool(v, "ok", &c.Passed)
	codec.Text(v, "d", &c.Detail)
}

// Fields implements [codec.Record].
func (c *Count) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &c.Name)
	codec.Uint(v, "v", &c.Value)
}

// Fields implements [codec.Record].
func (f *ResultCollected) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Digest(v, "pl", &f.Payload)
	codec.Uint(v, "sz", &f.Size)
	codec.Text(v, "mt", &f.MediaType)
	codec.List(v, "ck", &f.Checks)
	codec.List(v, "ct", &f.Counts)
	codec.Texts(v, "fi", &f.FailedItems)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *ResultFailed) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CleanupRequested) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "y", &f.Why)
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "cl", &f.Claim)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CleanupAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *CleanupAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *InputSubmitted) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "pl", &f.Payload)
	codec.Uint(v, "q", &f.Question)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *InputAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *InputAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *ApprovalGranted) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "ap", &f.Approved)
	codec.Text(v, "k", &f.Key)
	codec.Text(v, "kid", &f.KeyID)
	codec.Digest(v, "y", &f.Why)
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "cl", &f.Claim)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *ApprovalDenied) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "y", &f.Why)
	codec.Digest(v, "de", &f.Denied)
	codec.Text(v, "k", &f.Key)
	codec.Text(v, "kid", &f.KeyID)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *DeadlinePassed) Fields(v *codec.Visitor) {
	codec.Text(v, "d", &f.Which)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *DecisionMade) Fields(v *codec.Visitor) {
	codec.Text(v, "k", &f.Choice)
	codec.Text(v, "w", &f.Who)
	codec.Text(v, "ik", &f.Key)
	codec.Digest(v, "y", &f.Why)
	codec.Uint(v, "sq", &f.Sequence)
	codec.Text(v, "j", &f.JobID)
	codec.Text(v, "cl", &f.Claim)
	codec.Text(v, "d", &f.Which)
	codec.Time(v, "u", &f.Until)
	codec.Digest(v, "ev", &f.Evidence)
	codec.Bool(v, "ar", &f.AcceptRisk)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *StepDeferred) Fields(v *codec.Visitor) {
	codec.Time(v, "u", &f.Until)
	codec.Text(v, "r", &f.Reason)
	codec.Text(v, "dt", &f.Detail)
	codec.Bool(v, "cr", &f.Creates)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *OperationPaused) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "y", &f.Why)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *OperationResumed) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Digest(v, "y", &f.Why)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *TagsChanged) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.List(v, "t", &f.Tags)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *OperationLinked) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.List(v, "l", &f.Links)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (l *Link) Fields(v *codec.Visitor) {
	codec.Text(v, "k", &l.Kind)
	codec.Text(v, "o", &l.Operation)
	codec.Bool(v, "r", &l.Overlap)
}

// Fields implements [codec.Record].
func (f *NotificationAttempted) Fields(v *codec.Visitor) {
	f.Attempt.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record].
func (f *NotificationAnswered) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &f.Attempt)
	codec.Text(v, "oc", &f.Outcome)
	f.Call.visit(v)
	codec.Rest(v, &f.Extra)
}

// Fields implements [codec.Record]; an unknown fact has no fields to visit.
func (*Unknown) Fields(*codec.Visitor) {}
