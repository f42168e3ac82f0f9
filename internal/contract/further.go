package contract

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"

	"github.com/counterfoil/counterfoil/events"
)

// The calls in this file are those a provider may have beside the others: one
// passes on what a person answered to a job that waits, one removes what a job
// left. Neither makes a job, and neither says how a job ended.

// furtherRead is how the answer to such a call is read.
type furtherRead struct {
	shared
	done, refused *expression
}

// input reads the call that passes an answer on. Its expressions know the answer
// as input, and input_token, which names it.
func (p *parser) input(root section) {
	s := p.d.section(root.value["input"], "input", append([]string{"repeat", "params"}, callFields...)...)
	c := p.c
	env, err := p.env.request.Extend(inputVariables...)
	if err != nil {
		panic(fmt.Sprintf("contract: scope of an input: %v", err)) // constant declarations
	}
	read, err := p.env.answer.Extend(inputVariables...)
	if err != nil {
		panic(fmt.Sprintf("contract: scope of an input's answer: %v", err))
	}
	c.input = p.further(s, env, "POST")
	c.offers.Input, c.offers.RepeatInput = true, p.repeats(s)
	c.InputParams = p.paramsOf(s)
	c.inputRead = p.furtherRead(s, read, ": which answers say that the provider has taken it")
	if k := c.input; k != nil && (k.body == nil || !k.body.input) && !k.uses("input") && !p.d.broken("input") {
		p.d.addf(s.node, "input", "sends nothing of what was answered: use body: input, or input in an expression")
	}
	waits := c.statusRead.class != nil
	for _, class := range c.classes {
		waits = waits || class == events.ClassInputRequired
	}
	if !waits && !p.d.broken("classes") {
		p.d.addf(s.node, "input", "claims more than the contract backs: no word is in class input_required")
	}
}

var inputVariables = []cel.EnvOption{cel.Variable("input", cel.DynType), cel.Variable("input_token", cel.StringType)}

// cleanup reads the call that removes what a job left.
func (p *parser) cleanup(root section) {
	s := p.d.section(root.value["cleanup"], "cleanup", append([]string{"repeat"}, callFields...)...)
	c := p.c
	c.cleanup = p.further(s, p.env.request, "DELETE")
	c.offers.Cleanup, c.promises.RepeatCleanup = true, p.repeats(s)
	c.cleanupRead = p.furtherRead(s, p.env.answer, ": which answers say that it is removed")
	if k := c.cleanup; k != nil && !k.uses("job.id") && !p.d.broken("cleanup") {
		p.d.addf(s.node, "cleanup", "does not say of which job: use {job.id}")
	}
}

func (p *parser) further(s section, env *cel.Env, method string) *call {
	k := s.call(env, method)
	if s.has("url") {
		p.d.addf(s.value["url"], s.at("url"), "a call with side effects goes to a path of the contract, never to a link")
	}
	if k.method == "GET" {
		p.d.addf(s.value["method"], s.at("method"), "is GET: a call with side effects has another")
	}
	if k.uses("token") {
		p.d.addf(s.node, s.field, "uses token: it names the create, and a provider could take the one for the other")
	}
	return k
}

func (p *parser) repeats(s section) bool {
	return s.need("repeat", ": safe or once") && s.oneOf("repeat", "safe", "once") == "safe"
}

func (p *parser) furtherRead(s section, env *cel.Env, done string) furtherRead {
	if !s.need("read", "") {
		return furtherRead{}
	}
	r := p.d.section(s.value["read"], s.at("read"), slices.Concat(sharedFields, []string{"done", "refused"})...)
	out := furtherRead{
		shared:  p.shared(r, env),
		done:    r.expression(env, "done", boolean),
		refused: r.expression(env, "refused", boolean),
	}
	r.need("done", done)
	r.need("refused", ": which answers prove that it did nothing; write \"false\" if none do")
	return out
}

// Offers is which further calls the provider takes.
func (c *Contract) Offers() events.Offers { return c.offers }

// CheckInput checks an answer to what a job waits for, which passed the canonical
// gate, against the contract. All problems are reported.
func (c *Contract) CheckInput(input []byte) []ParamError { return c.InputParams.check(input) }

// Input builds the request that passes an answer on: Inputs.Input, named by
// Inputs.InputToken. ErrNoCall if the contract has none.
func (c *Contract) Input(in Inputs) (Request, error) {
	if c.input != nil && c.input.uses("input_token") && in.InputToken == "" {
		return Request{}, fmt.Errorf("input: the contract sends a token and none was given")
	}
	return c.build(c.input, in, c.Limits.Response)
}

// Cleanup builds the request that removes what the job of Inputs.JobID left.
// ErrNoCall if the contract has none.
func (c *Contract) Cleanup(in Inputs) (Request, error) {
	return c.build(c.cleanup, in, c.Limits.Response)
}

// FurtherReading is what the answer to an input or a cleanup says.
type FurtherReading struct {
	Outcome events.CallOutcome // done, refused, ambiguous
	// Failure.Class is none for done. A refused answer has throttled if the
	// provider asks to come back: the same may be asked again after RetryAt.
	Failure
}

// ReadInput reads the answer to an input.
func (c *Contract) ReadInput(a Answer, in Inputs) FurtherReading {
	return c.inputRead.read(c.view(a, in), c.Limits.Response)
}

// ReadCleanup reads the answer to a cleanup.
func (c *Contract) ReadCleanup(a Answer, in Inputs) FurtherReading {
	return c.cleanupRead.read(c.view(a, in), c.Limits.Response)
}

// read asks done, then refused. What is cut or not JSON, what neither claims and
// whatever could not be evaluated is ambiguous.
func (r furtherRead) read(v view, limit int64) FurtherReading {
	ambiguous := func(class events.ErrorClass, detail string) FurtherReading {
		return FurtherReading{Outcome: events.CallAmbiguous, Failure: r.fail(v, class, detail)}
	}
	class := byStatus(v.a.Status)
	switch {
	case v.a.Truncated:
		return ambiguous(v.cut(limit))
	case v.unreadable != "":
		return ambiguous(class, v.unreadable)
	}
	done, err := r.done.bool(v.vars)
	switch {
	case err != nil:
		return ambiguous(events.ErrorUnreadable, cause(err))
	case done && v.a.part() == "":
		return FurtherReading{Outcome: events.CallDone, Failure: r.about(v)}
	}
	if slow, err := r.slow(v); err == nil && slow {
		class = events.ErrorThrottled
	}
	refused, err := r.refused.bool(v.vars)
	switch {
	case err != nil:
		return ambiguous(events.ErrorUnreadable, cause(err))
	case !refused:
		return ambiguous(class, v.a.part())
	case class == events.ErrorUnreadable: // a status that says nothing by itself
		class = events.ErrorRefused
	}
	out := FurtherReading{Outcome: events.CallRefused, Failure: r.about(v)}
	out.Class = class
	return out
}

// asked says what becomes of an answer to a job that waits.
func (c *Contract) asked() []string {
	lines := []string{c.input.String()}
	if c.offers.RepeatInput {
		lines = append(lines, "Repeating one is safe: if its answer is lost, it is sent again where a read shows that the job still waits.")
	} else {
		lines = append(lines, "It is sent once; if its answer is lost, nothing is sent again, and a read shows whether the job goes on.")
	}
	return append(lines, c.InputParams.words()...)
}

// removed says what becomes of a cleanup.
func (c *Contract) removed() []string {
	lines := []string{c.cleanup.String(), "It is sent only where somebody asks for it, of an operation that has ended or stopped."}
	if c.promises.RepeatCleanup {
		return append(lines, "Repeating it is safe: if its answer is lost, it is sent again.")
	}
	return append(lines, "It is sent once; if its answer is lost, nobody here knows whether anything is left.")
}
