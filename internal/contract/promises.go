package contract

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/events"
)

// day is for bounds that humans read in days.
const day = 24 * time.Hour

// promises reads token and promises, refuses claims the contract does not
// back, and computes the guarantee.
func (p *parser) promises(root section) {
	c := p.c
	if c.create == nil {
		return // reported; nothing can be judged without it
	}
	n := root.value["promises"]
	s := section{d: p.d, field: "promises", value: map[string]*yaml.Node{}}
	if n != nil {
		s = p.d.section(n, "promises", "settle", "refusal_is_proof", "strict", "not_found_grace", "gone_confirms_cancel", "partial_results")
	}
	pr := &c.promises
	c.settle = s.duration("settle", 0, day)
	pr.RefusalIsProof = s.flag("refusal_is_proof")
	pr.Strict = s.flag("strict")
	pr.GoneConfirmsCancel = s.flag("gone_confirms_cancel")
	pr.PartialResults = s.flag("partial_results")
	pr.NotFoundGrace = 30 * time.Second
	if s.has("not_found_grace") {
		pr.NotFoundGrace = s.duration("not_found_grace", time.Second, day)
	}
	more := func(sec section, field, format string, args ...any) {
		if n := sec.value[field]; n != nil {
			p.d.addf(n, sec.at(field), "claims more than the contract backs: "+format, args...)
		}
	}
	if pr.RefusalIsProof && c.createRead.conflict == nil && !p.d.broken("create") {
		more(s, "refusal_is_proof", "create.read.conflict says of no answer that the token was refused")
	}
	if pr.GoneConfirmsCancel && c.cancel == nil {
		more(s, "gone_confirms_cancel", "there is no cancel")
	}
	if pr.PartialResults && c.ResultSource == ResultNone {
		more(s, "partial_results", "there is no result")
	}
	if c.statusRead.noResult != nil && c.ResultSource == ResultNone && !p.d.broken("result") {
		p.d.addf(root.node, "status.read.no_result", "says nothing: jobs have no result")
	}
	p.token(root)
	p.lookupClaims(root)
	// A look-up may overlook a job for the time a request may be held and, after
	// that, for the time the list lags. A token's window has to leave room for the
	// same, so one number serves both.
	pr.Settle = c.settle + c.late
	if c.Token != nil {
		pr.TokenWindow = c.Token.Window
	}
	pr.Guarantee = events.AskAfterLoss
	switch {
	case c.Token != nil && (c.second == "returns_first" || c.second == "names_first") && c.settle > 0:
		pr.Guarantee = events.Deduplicated
	case pr.Lookup == events.LookupExact && pr.LookupConclusive && c.settle > 0:
		pr.Guarantee = events.Recoverable
	}
}

func (p *parser) token(root section) {
	c := p.c
	sends := c.create.uses("token")
	unclear := p.d.broken("create")
	if !root.has("token") || root.none("token") {
		if sends {
			p.d.addf(root.node, "token", "is missing: the create sends the token; say what the provider does with it")
		}
		return
	}
	s := p.d.section(root.value["token"], "token", "form", "window", "second_create")
	t := &TokenRule{Form: TokenHex}
	if s.has("form") {
		t.Form = TokenForm(s.oneOf("form", string(TokenUUID), string(TokenHex), string(TokenBase32)))
	}
	if s.need("second_create", ": returns_first, names_first, refused or ignored") {
		c.second = s.oneOf("second_create", "returns_first", "names_first", "refused", "ignored")
	}
	c.Token = t
	if c.second == "" {
		return // reported
	}
	if !unclear && !sends {
		p.d.addf(s.node, "token", "claims more than the contract backs: the create never sends it; use {token} in a header, the query or the body")
	}
	if !unclear && c.second == "names_first" && c.createRead.conflict == nil {
		p.d.addf(s.value["second_create"], "token.second_create", "claims more than the contract backs: names_first needs create.read.conflict")
	}
	if c.second != "returns_first" && c.second != "names_first" {
		if s.has("window") {
			p.d.addf(s.value["window"], "token.window", "claims more than the contract backs: a token that is %s has no window", c.second)
		}
		return
	}
	if s.need("window", ": how long a token is honoured, or forever") && s.text("window") != "forever" {
		t.Window = s.duration("window", time.Minute, 3650*day)
		if t.Window > 0 && t.Window <= c.settle {
			p.d.addf(s.value["window"], "token.window", "is %s; must be longer than promises.settle, %s", span(t.Window), span(c.settle))
		}
	}
	if c.settle == 0 && !p.d.broken("promises.settle") {
		p.d.addf(s.node, "promises.settle", "is missing: how long a request may be held before it acts; without it a repeat could overtake the first")
	}
}

func (p *parser) lookupClaims(root section) {
	c := p.c
	n := root.value["lookup"]
	if c.lookup == nil || n == nil || n.Kind != yaml.MappingNode {
		return
	}
	field := func(name string) *yaml.Node {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return n.Content[i+1]
			}
		}
		return n
	}
	const claims = "claims more than the contract backs: "
	if c.promises.Lookup == events.LookupExact && !p.d.broken("create") && !p.d.broken("lookup.read") {
		e := c.lookupRead.exact
		switch {
		case e == nil:
			p.d.addf(field("answers"), "lookup.answers", claims+"exact needs lookup.read.exact, which compares an item with our reference")
		case e.uses["client_reference"] && c.create.uses("client_reference"), e.uses["token"] && c.create.uses("token"):
			if !e.uses["item"] && !e.uses["body"] {
				p.d.addf(field("answers"), "lookup.answers", claims+"lookup.read.exact looks at nothing of the answer")
			}
		default:
			p.d.addf(field("answers"), "lookup.answers", claims+"lookup.read.exact must compare client_reference or token, and the create must send it")
		}
	}
	if c.promises.LookupConclusive {
		switch {
		case c.promises.Lookup != events.LookupExact:
			p.d.addf(field("conclusive"), "lookup.conclusive", claims+"only an exact look-up can prove that no job exists")
		case c.settle == 0 && !p.d.broken("promises.settle"):
			p.d.addf(field("conclusive"), "lookup.conclusive", claims+"promises.settle is missing: how long a request may be held before it acts")
		}
	}
}

// Promises is what the fold needs of this contract. reachable says whether a
// webhook of this provider can reach this installation: where none can, no
// webhook will name a job, and waiting for one would be waiting for nothing.
func (c *Contract) Promises(reachable bool) events.Promises {
	p := c.promises
	p.WebhookNamesJob = p.WebhookNamesJob && reachable
	return p
}

// Guarantee is what can be honoured after a create whose answer was lost.
func (c *Contract) Guarantee() events.Guarantee { return c.promises.Guarantee }

// bound is a default and what a caller may ask for instead.
type bound struct{ fallback, low, high time.Duration }

type pacing struct {
	interval, pollMax, backoff, backoffMax, timeout bound
	attempts, attemptsMax                           uint64
}

type deadlines struct{ approval, create, result, cancel, collect bound }

// pacing reads pacing and deadlines. What a contract leaves out has the
// defaults below; what it gives must keep the bounds below.
func (p *parser) pacing(root section) {
	c := p.c
	read := func(name string, fields []string, into map[string]*bound, outer map[string]bound) section {
		var s section
		if root.has(name) {
			s = p.d.section(root.value[name], name, fields...)
		}
		for _, f := range sortedKeys(into) {
			o := outer[f]
			*into[f] = o
			if n := s.value[f]; n != nil {
				*into[f] = p.bound(n, s.at(f), o)
			}
		}
		return s
	}
	pa, dl := &c.pacing, &c.deadlines
	s := read("pacing", []string{"poll_interval", "poll_max", "backoff", "backoff_max", "request_timeout", "attempts"},
		map[string]*bound{"poll_interval": &pa.interval, "poll_max": &pa.pollMax, "backoff": &pa.backoff, "backoff_max": &pa.backoffMax, "request_timeout": &pa.timeout},
		map[string]bound{
			"poll_interval":   {5 * time.Second, 10 * time.Millisecond, day},
			"poll_max":        {5 * time.Minute, 10 * time.Millisecond, day},
			"backoff":         {time.Second, 10 * time.Millisecond, time.Hour},
			"backoff_max":     {5 * time.Minute, 10 * time.Millisecond, day},
			"request_timeout": {30 * time.Second, 10 * time.Millisecond, 10 * time.Minute},
		})
	pa.attempts, pa.attemptsMax = 10, 1000
	if s.has("attempts") {
		a := p.d.section(s.value["attempts"], "pacing.attempts", "default", "max")
		if a.has("max") {
			pa.attemptsMax = uint64(a.integer("max", 1, 1000))
		}
		if a.has("default") {
			pa.attempts = uint64(a.integer("default", 1, 1000))
		}
		if pa.attempts > pa.attemptsMax && a.node != nil {
			p.d.addf(a.node, "pacing.attempts", "the default %d is above the maximum %d", pa.attempts, pa.attemptsMax)
		}
	}
	if pa.interval.fallback > pa.pollMax.fallback && !p.d.broken("pacing") {
		p.d.addf(root.node, "pacing.poll_max", "is %s by default, less than poll_interval, %s", span(pa.pollMax.fallback), span(pa.interval.fallback))
	}
	read("deadlines", []string{"approval", "create", "result", "cancel", "collect"},
		map[string]*bound{"approval": &dl.approval, "create": &dl.create, "result": &dl.result, "cancel": &dl.cancel, "collect": &dl.collect},
		map[string]bound{
			"approval": {7 * day, time.Second, 365 * day},
			"create":   {time.Hour, time.Second, 30 * day},
			"result":   {day, time.Second, 365 * day},
			"cancel":   {10 * time.Minute, time.Second, 30 * day},
			"collect":  {time.Hour, time.Second, 30 * day},
		})
}

// bound reads a length of time (the default) or default, min and max.
func (p *parser) bound(n *yaml.Node, field string, outer bound) bound {
	if n.Kind != yaml.MappingNode {
		b := outer
		b.fallback = p.d.duration(n, field, outer.low, outer.high)
		return b
	}
	s := p.d.section(n, field, "default", "min", "max")
	b := outer
	if s.has("min") {
		b.low = s.duration("min", outer.low, outer.high)
	}
	if s.has("max") {
		b.high = s.duration("max", outer.low, outer.high)
	}
	if s.has("default") {
		b.fallback = s.duration("default", outer.low, outer.high)
	}
	if b.fallback < b.low || b.fallback > b.high {
		p.d.addf(n, field, "the default %s is not between min %s and max %s", span(b.fallback), span(b.low), span(b.high))
	}
	return b
}

// BoundError is a wish of a caller outside what the contract allows.
type BoundError struct {
	Field     string // "deadlines.create"
	Low, High string
	Got       string
}

func (e *BoundError) Error() string {
	return fmt.Sprintf("%s is %s; must be between %s and %s", e.Field, e.Got, e.Low, e.High)
}

func (b bound) resolve(field string, want time.Duration) (time.Duration, error) {
	if want == 0 {
		return b.fallback, nil
	}
	if want < b.low || want > b.high {
		return 0, &BoundError{field, span(b.low), span(b.high), span(want)}
	}
	return want, nil
}

// Policy fills what want leaves zero with the contract's defaults. A *BoundError
// names a wish outside its bounds. ClockDifference is passed through.
func (c *Contract) Policy(want events.Policy) (events.Policy, error) {
	for _, f := range []struct {
		name string
		b    bound
		v    *time.Duration
	}{
		{"pacing.poll_interval", c.pacing.interval, &want.PollInterval},
		{"pacing.poll_max", c.pacing.pollMax, &want.PollMax},
		{"pacing.backoff", c.pacing.backoff, &want.BackoffBase},
		{"pacing.backoff_max", c.pacing.backoffMax, &want.BackoffMax},
		{"pacing.request_timeout", c.pacing.timeout, &want.RequestTimeout},
	} {
		v, err := f.b.resolve(f.name, *f.v)
		if err != nil {
			return events.Policy{}, err
		}
		*f.v = v
	}
	if want.MaxAttempts == 0 {
		want.MaxAttempts = c.pacing.attempts
	}
	if want.MaxAttempts > c.pacing.attemptsMax {
		return events.Policy{}, &BoundError{"pacing.attempts", "1", fmt.Sprint(c.pacing.attemptsMax), fmt.Sprint(want.MaxAttempts)}
	}
	// A caller who moves one of a pair keeps the order of the two.
	want.PollMax = max(want.PollMax, want.PollInterval)
	want.BackoffMax = max(want.BackoffMax, want.BackoffBase)
	return want, nil
}

// Deadlines fills what want leaves zero with the contract's defaults. A
// *BoundError names a wish outside its bounds.
func (c *Contract) Deadlines(want events.Deadlines) (events.Deadlines, error) {
	for _, f := range []struct {
		name string
		b    bound
		v    *time.Duration
	}{
		{"deadlines.approval", c.deadlines.approval, &want.Approval},
		{"deadlines.create", c.deadlines.create, &want.Create},
		{"deadlines.result", c.deadlines.result, &want.Result},
		{"deadlines.cancel", c.deadlines.cancel, &want.Cancel},
		{"deadlines.collect", c.deadlines.collect, &want.Collect},
	} {
		v, err := f.b.resolve(f.name, *f.v)
		if err != nil {
			return events.Deadlines{}, err
		}
		*f.v = v
	}
	return want, nil
}

// LongestResult is the longest result deadline an operation may ask for.
func (c *Contract) LongestResult() time.Duration { return c.deadlines.result.high }
