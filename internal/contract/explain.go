package contract

import (
	"fmt"
	"strings"

	"github.com/counterfoil/counterfoil/events"
)

// Topic is one thing to know about a contract, in plain words.
type Topic struct {
	Name  string   `json:"topic"`
	Lines []string `json:"lines"`
}

// Explain says in plain words what may be relied on, and what not: the topics
// as one text.
func (c *Contract) Explain() string {
	var b strings.Builder
	for i, t := range c.Topics() {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n", t.Name)
		for _, line := range t.Lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	return b.String()
}

// Topics says in plain words what may be relied on, and what not, with the
// times that hold where a caller asks for no others.
func (c *Contract) Topics() []Topic {
	topics := []Topic{{c.Name, c.introduced()}, {"Parameters", c.Params.words()}}
	if len(c.prepares) > 0 {
		topics = append(topics, Topic{"Before a create", c.preparedFor()})
	}
	topics = append(topics, []Topic{
		{"After a create whose answer was lost: " + string(c.promises.Guarantee), c.afterLoss()},
		{"Look-up", c.lookedUp()},
		{"Cancel", c.cancelled()},
	}...)
	if c.input != nil {
		topics = append(topics, Topic{"Input", c.asked()})
	}
	if c.cleanup != nil {
		topics = append(topics, Topic{"Cleanup", c.removed()})
	}
	return append(topics, []Topic{
		{"Status", c.followed()},
		{"Result", c.collected()},
		{"Webhook", c.calledBack()},
		{"Pace", append(c.budgeted(), []string{
			fmt.Sprintf("A read every %s, at most %s apart; one exchange takes at most %s.",
				span(c.pacing.interval.fallback), span(c.pacing.pollMax.fallback), span(c.pacing.timeout.fallback)),
			fmt.Sprintf("After failures the wait doubles from %s up to %s; at most %d create requests.",
				span(c.pacing.backoff.fallback), span(c.pacing.backoffMax.fallback), c.pacing.attempts),
		}...)},
		{"Deadlines, unless a caller asks for others", c.deadlineWords()},
		{"Cost", c.priced()},
	}...)
}

// budgeted says what all operations of one account may ask for together.
func (c *Contract) budgeted() []string {
	if c.Calls.None() {
		return nil
	}
	return []string{"All operations of one account together: " + c.Calls.String() + ", unless credentials.yaml says otherwise."}
}

func (c *Contract) preparedFor() []string {
	var lines []string
	for _, k := range c.prepares {
		line := k.name + ": " + k.call.String()
		if k.when != nil {
			line += ", where {" + k.when.source + "}"
		}
		lines = append(lines, line)
	}
	return append(lines, "None of these makes a job. One whose answer was lost is made again; what it left behind the first time is not removed.")
}

func (c *Contract) introduced() []string {
	var lines []string
	if c.Title != "" {
		lines = append(lines, c.Title)
	}
	where := "Calls go below " + c.BaseURL
	switch cr := c.Credential; cr.Place {
	case PlaceNone:
		lines = append(lines, where+", without a credential.")
	case PlaceHeader:
		lines = append(lines, where+", with the credential in the header "+cr.Name+".")
	case PlaceQuery:
		lines = append(lines, where+", with the credential in the query as "+cr.Name+".")
	case PlaceBasic:
		lines = append(lines, where+", with the credential as user and password.")
	}
	if len(c.Origins) > 0 {
		lines = append(lines, "The credential may also go to "+strings.Join(c.Origins, ", ")+".")
	}
	return lines
}

// afterLoss tells what happens, step by step, when a create was sent and its
// answer did not come.
func (c *Contract) afterLoss() []string {
	p := c.promises
	var lines []string
	step := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%d. ", len(lines)+1)+fmt.Sprintf(format, args...))
	}
	first := max(p.Settle, c.pacing.backoff.fallback)
	switch p.Guarantee {
	case events.Deduplicated:
		window := "for ever"
		if p.TokenWindow > 0 {
			window = "for " + span(p.TokenWindow)
		}
		what := "answers it with the first job"
		if c.second == "names_first" {
			what = "refuses it and names the first job"
		}
		step("About %s after the loss the same request goes again with the same token; the provider %s %s.", span(first), what, window)
		step("If that is lost too it goes again, each time at least %s and up to %s later, at most %d requests in all.",
			span(first), span(max(first, c.pacing.backoffMax.fallback)), c.pacing.attempts)
		if p.TokenWindow > 0 {
			step("No repeat leaves later than %s after the first request.", span(p.TokenWindow-p.Settle-c.pacing.timeout.fallback))
		}
	case events.Recoverable:
		step("Nothing is sent again. %s after the loss the provider is asked for our reference, and again with growing waits up to %s.",
			span(p.Settle), span(c.pacing.backoffMax.fallback))
		step("If it names our job, that job is followed.")
		step("If it names none, that is proof once the look-up leaves %s or more after the create was permitted; then the create is sent again.",
			span(2*c.pacing.timeout.fallback+p.Settle))
		if p.Strict {
			step("It is no proof where the worker that sent a create fell silent and is not proved gone (strict).")
		}
	case events.AskAfterLoss:
		step("Nothing is sent again.")
	}
	soon := "At once"
	if p.Settle > 0 {
		soon = "From " + span(p.Settle) + " after the loss"
	}
	if p.Guarantee != events.Recoverable {
		switch p.Lookup {
		case events.LookupExact:
			step("%s the provider is also asked for our reference; a job it names is followed, finding none proves nothing.", soon)
		case events.LookupCandidates:
			step("%s jobs that may be ours are looked up and listed; none is adopted without a decision.", soon)
		case events.LookupNone:
		}
	}
	if p.WebhookNamesJob {
		step("Where webhooks reach us, one with our reference names the job at any time, and a read of that job confirms it.")
	}
	if p.Guarantee != events.AskAfterLoss {
		step("%s after the start no create is sent any more.", span(c.deadlines.create.fallback))
	}
	// Without a look-up by reference and without webhooks only a person can tell.
	alone := span(c.deadlines.create.fallback) + " after the start"
	switch {
	case p.Guarantee != events.AskAfterLoss:
	case p.Lookup == events.LookupNone:
		alone = "at once"
	case p.Lookup == events.LookupCandidates:
		alone = "with the first jobs so listed, or " + alone
	}
	last := span(c.deadlines.result.fallback) + " after the start"
	switch {
	case p.Lookup == events.LookupExact:
	case p.WebhookNamesJob:
		last += "; where webhooks do not reach us, " + alone
	default:
		last = alone
	}
	step("If nothing tells, the operation stops and asks a person (quarantined, unknown): %s.", last)
	lines = append(lines, "A person can adopt a job, create again at the stated risk, or abandon the operation.")
	if c.settle > 0 {
		lines = append(lines, fmt.Sprintf("This assumes that no process or network holds a request longer than %s before it acts.", span(c.settle)))
	}
	return lines
}

func (c *Contract) lookedUp() []string {
	p := c.promises
	if c.lookup == nil {
		return []string{"None: the provider cannot be asked for our job."}
	}
	lines := []string{c.lookup.String()}
	switch {
	case p.Lookup == events.LookupCandidates:
		lines = append(lines, "It lists jobs that may be ours; none is adopted without a decision, and finding none proves nothing.")
	case p.LookupConclusive:
		lines = append(lines, "A job it names is ours. All pages read, finding none proves that there is none.")
	default:
		lines = append(lines, "A job it names is ours; finding none proves nothing.")
	}
	if c.late > 0 {
		lines = append(lines, fmt.Sprintf("A new job may be missing from it for %s.", span(c.late)))
	}
	return lines
}

// cancelled says what an answer to a cancel proves.
func (c *Contract) cancelled() []string {
	p := c.promises
	if c.cancel == nil {
		return []string{"None: a wish to cancel is kept, and a job that runs ends by itself."}
	}
	lines := []string{c.cancel.String()}
	switch {
	case c.cancelRead.confirmed != nil && c.cancelRead.acknowledged != nil:
		lines = append(lines, "A 2xx proves that the job is cancelled only where the answer itself says so; any other 2xx proves that the wish arrived.")
	case c.cancelRead.confirmed != nil:
		lines = append(lines, "A 2xx proves that the job is cancelled where the answer itself says so, and otherwise nothing.")
	default:
		lines = append(lines, "A 2xx proves that the wish arrived, and not that the job is cancelled.")
	}
	lines = append(lines, "Otherwise the operation is cancelled when a status read says so; if the job ends first, that end counts.")
	if p.GoneConfirmsCancel {
		lines = append(lines, "A job that is gone after a cancel counts as cancelled.")
	}
	if p.RepeatCancel {
		lines = append(lines, "Repeating it is safe: it is sent again where a read shows that the job goes on.")
	} else {
		lines = append(lines, "It is sent once.")
	}
	return lines
}

func (c *Contract) followed() []string {
	return []string{
		c.status.String(),
		"A state the contract does not know says only that the job exists.",
		fmt.Sprintf("A job that is not found counts as lost after three such reads over %s at least.", span(c.promises.NotFoundGrace)),
	}
}

func (c *Contract) collected() []string {
	var lines []string
	switch c.ResultSource {
	case ResultNone:
		return []string{"Jobs have none: a job that succeeded is the end."}
	case ResultFromRequest:
		lines = append(lines, c.result.String())
	case ResultFromStatus:
		lines = append(lines, "Found through a fresh status read.")
	}
	again := "Reading it again is safe."
	if !c.promises.RepeatResult {
		again = "It is read once; if that answer is lost, so is the result."
	}
	lines = append(lines, again+fmt.Sprintf(" At most %s.", size(c.Limits.Result)))
	if checks := len(c.resultRead.checks) + len(c.resultRead.linkChecks); checks > 0 {
		lines = append(lines, "It counts once its checks have passed.")
	}
	if c.promises.PartialResults {
		lines = append(lines, "Failed, expired and cancelled jobs may have output, which is fetched too.")
	}
	return lines
}

func (c *Contract) calledBack() []string {
	switch {
	case c.Webhook == nil:
		return []string{"None."}
	case c.promises.WebhookNamesJob:
		return []string{"Signed by " + c.Webhook.Scheme + ". It carries our reference; it makes us read sooner and proves nothing else."}
	}
	return []string{"Signed by " + c.Webhook.Scheme + ". It names the job; it makes us read sooner and proves nothing else."}
}

func (c *Contract) deadlineWords() []string {
	d := c.deadlines
	var lines []string
	for _, line := range []struct {
		name, words string
		b           bound
	}{
		{"create", "to know a job", d.create},
		{"result", "for the job to end", d.result},
		{"cancel", "for a cancel to be confirmed", d.cancel},
		{"collect", "to read the result", d.collect},
	} {
		lines = append(lines, fmt.Sprintf("%-7s  %s %s, at most %s", line.name, span(line.b.fallback), line.words, span(line.b.high)))
	}
	return lines
}

// String writes the call as the contract has it, expressions in braces.
func (k *call) String() string {
	where := ""
	if k.path != nil {
		where = k.path.String()
		sep := "?"
		for _, q := range k.query {
			where += sep + q.name + "=" + q.value.String()
			sep = "&"
		}
	}
	switch {
	case k.address != nil && where == "":
		return k.method + " the link {" + k.address.source + "}"
	case k.address != nil:
		return k.method + " the link {" + k.address.source + "}, else " + where
	}
	return k.method + " " + where
}

func (t *template) String() string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.expr != nil {
			b.WriteString("{" + p.expr.source + "}")
		} else {
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// size writes a number of bytes in the unit that makes it whole.
func size(n int64) string {
	for _, u := range []struct {
		name string
		n    int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.n && n%u.n == 0 {
			return fmt.Sprintf("%d %s", n/u.n, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
