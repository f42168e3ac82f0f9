package contract

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/events"
)

const (
	maxPreparations = 8
	maxValues       = 16 // of all preparations of one contract
)

// preparation is a call made before the create, such as the upload of its
// input. It makes no job, and repeating it is safe.
type preparation struct {
	name string
	call *call
	when *expression // over params; nil: always needed
	read prepareRead
}

type prepareRead struct {
	shared
	done, rejected *expression
	values         []value // sorted by name
}

// value is what a preparation's answer gives to later calls, as prepared.NAME.
type value struct {
	name string
	expr *expression
}

// prepares reads the preparations. Each sees the values of those before it, and
// everything read after them sees all.
func (p *parser) prepares(n *yaml.Node) {
	if !p.d.plain(n, "create.prepare") {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.d.addf(n, "create.prepare", "must be a list of calls")
		return
	}
	if len(n.Content) > maxPreparations {
		p.d.addf(n, "create.prepare", "has %d calls; at most %d are allowed", len(n.Content), maxPreparations)
		return
	}
	for i, item := range n.Content {
		p.preparation(item, fmt.Sprintf("create.prepare[%d]", i))
	}
}

func (p *parser) preparation(n *yaml.Node, field string) {
	s := p.d.section(n, field, append([]string{"name", "when", "repeat"}, callFields...)...)
	if s.node == nil || len(s.order) == 0 {
		return
	}
	c := p.c
	k := preparation{name: s.text("name"), when: s.expression(p.env.params, "when", boolean), call: s.call(p.env.request, "POST")}
	if s.need("name", "") {
		if !ValidName(k.name) {
			p.d.addf(s.value["name"], s.at("name"), "is %q; must be 1 to 64 of a-z, 0-9, _ and -", clip(k.name, 80))
		}
		if slices.ContainsFunc(c.prepares, func(o preparation) bool { return o.name == k.name }) {
			p.d.addf(s.value["name"], s.at("name"), "is used already: %q", clip(k.name, 80))
		}
	}
	if s.need("repeat", ": safe") && s.text("repeat") != "safe" {
		p.d.addf(s.value["repeat"], s.at("repeat"), "is %q, must be safe: a preparation that cannot be repeated safely is not supported", clip(s.text("repeat"), 40))
	}
	if s.has("url") {
		p.d.addf(s.value["url"], s.at("url"), "a preparation goes to a path of the contract, never to a link")
	}
	if k.call.uses("token") {
		p.d.addf(s.node, field, "uses token: it names the create, and a provider could take the one for the other")
	}
	if !s.need("read", "") {
		return
	}
	r := p.d.section(s.value["read"], s.at("read"), slices.Concat(sharedFields, []string{"done", "rejected", "values"})...)
	k.read = prepareRead{
		shared:   p.shared(r, p.env.answer),
		done:     r.expression(p.env.answer, "done", boolean),
		rejected: r.expression(p.env.answer, "rejected", boolean),
	}
	r.need("done", ": which answers say that the preparation is made")
	r.need("rejected", ": which answers prove that these parameters will never be taken; write \"false\" if none do")
	if r.has("values") {
		k.read.values = p.values(p.d.section(r.value["values"], r.at("values")))
	}
	c.prepares = append(c.prepares, k)
	if err := p.env.prepared(k.read.values); err != nil {
		p.d.addf(r.value["values"], r.at("values"), "%s", clip(err.Error(), 200))
	}
}

func (p *parser) values(s section) []value {
	var list []value
	for _, name := range s.order {
		switch e := s.expression(p.env.answer, name, text); {
		case !validValue(name):
			p.d.addf(s.value[name], s.at(name), "must be 1 to 64 of a-z, 0-9 and _, and start with a letter")
		case slices.Contains(p.c.valueNames(), name):
			p.d.addf(s.value[name], s.at(name), "is given by an earlier preparation already")
		default: // also one that is broken, so that one mistake gives one message
			list = append(list, value{name, e})
		}
	}
	if len(list)+len(p.c.valueNames()) > maxValues {
		p.d.addf(s.node, s.field, "all preparations together may give %d values", maxValues)
		return nil
	}
	slices.SortFunc(list, func(a, b value) int { return strings.Compare(a.name, b.name) })
	return list
}

// celWords are refused as names of values: CEL reads them otherwise.
var celWords = []string{
	"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
	"import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
}

func validValue(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && s[0] >= 'a' && s[0] <= 'z' && !slices.Contains(celWords, s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') })
}

// prepared makes values known to everything that is read from here on.
func (s *scopes) prepared(values []value) error {
	var opts []cel.EnvOption
	for _, v := range values {
		opts = append(opts, cel.Variable("prepared."+v.name, cel.StringType))
	}
	for _, env := range []**cel.Env{&s.request, &s.answer, &s.item} {
		wider, err := (*env).Extend(opts...)
		if err != nil {
			return err
		}
		*env = wider
	}
	return nil
}

// valueNames are the names of all values preparations give.
func (c *Contract) valueNames() []string {
	var list []string
	for _, k := range c.prepares {
		for _, v := range k.read.values {
			list = append(list, v.name)
		}
	}
	return list
}

// needed gives the preparations these parameters need, in order.
func (c *Contract) needed(in Inputs) ([]preparation, error) {
	if len(c.prepares) == 0 {
		return nil, nil
	}
	vars, err := c.requestVars(in)
	if err != nil {
		return nil, err
	}
	var list []preparation
	for _, k := range c.prepares {
		yes := k.when == nil
		if !yes {
			if yes, err = k.when.bool(vars); err != nil {
				return nil, err
			}
		}
		if yes {
			list = append(list, k)
		}
	}
	return list, nil
}

func (c *Contract) step(step int, in Inputs) (preparation, error) {
	list, err := c.needed(in)
	if err != nil {
		return preparation{}, err
	}
	if step < 0 || step >= len(list) {
		return preparation{}, fmt.Errorf("preparation %d of %d: %w", step, len(list), ErrNoCall)
	}
	return list[step], nil
}

// Prepares is how many preparations these parameters need before the create.
// It looks at the parameters only, so the same parameters always need the same.
func (c *Contract) Prepares(in Inputs) (int, error) {
	list, err := c.needed(in)
	return len(list), err
}

// PrepareName is the contract's name of a preparation, for people; step counts
// those the parameters need, from 0. "" if there is none.
func (c *Contract) PrepareName(step int, in Inputs) string {
	k, err := c.step(step, in)
	if err != nil {
		return ""
	}
	return k.name
}

// Prepare builds the request of a preparation; step counts those the parameters
// need, from 0. The same inputs give the same bytes. ErrNoCall if there are not
// so many.
func (c *Contract) Prepare(step int, in Inputs) (Request, error) {
	k, err := c.step(step, in)
	if err != nil {
		return Request{}, err
	}
	if k.call.uses("client_reference") && in.ClientReference == "" {
		return Request{}, fmt.Errorf("%s: the contract sends a client reference and none was given", k.call.field)
	}
	return c.build(k.call, in, c.Limits.Response)
}

// PrepareReading is what the answer to a preparation says.
type PrepareReading struct {
	Outcome events.PrepareOutcome // done, rejected, ambiguous
	Values  []events.Tag          // of a preparation that is done, sorted by name; they become Inputs.Prepared
	// Failure.Class is none for done. A rejected answer has throttled if the
	// provider asks to come back: the same may be asked again after RetryAt.
	// Any other rejection proves that these parameters will never be taken.
	Failure
}

// ReadPrepare reads the answer to a preparation. It is done only if the contract
// says so and every value is there. What is cut or not JSON, what no rule claims
// and whatever a rule could not be evaluated on is ambiguous: the same is asked
// again.
func (c *Contract) ReadPrepare(step int, a Answer, in Inputs) PrepareReading {
	v := c.view(a, in)
	k, err := c.step(step, in)
	if err != nil {
		return PrepareReading{Outcome: events.PrepareAmbiguous, Failure: c.errors.fail(v, events.ErrorUnreadable, cause(err))}
	}
	r := k.read
	ambiguous := func(class events.ErrorClass, detail string) PrepareReading {
		return PrepareReading{Outcome: events.PrepareAmbiguous, Failure: r.fail(v, class, detail)}
	}
	class := byStatus(a.Status)
	switch {
	case a.Truncated:
		return ambiguous(v.cut(c.Limits.Response))
	case v.unreadable != "":
		return ambiguous(class, v.unreadable)
	}
	done, err := r.done.bool(v.vars)
	if err != nil {
		return ambiguous(events.ErrorUnreadable, cause(err))
	}
	if done {
		values, err := r.take(v)
		if err != nil {
			return ambiguous(events.ErrorUnreadable, cause(err))
		}
		return PrepareReading{Outcome: events.PrepareDone, Values: values, Failure: r.about(v)}
	}
	if slow, err := r.slow(v); err == nil && slow {
		class = events.ErrorThrottled
	}
	rejected, err := r.rejected.bool(v.vars)
	switch {
	case err != nil:
		return ambiguous(events.ErrorUnreadable, cause(err))
	case !rejected:
		return ambiguous(class, a.part())
	case class == events.ErrorUnreadable: // a status that says nothing by itself
		class = events.ErrorRefused
	}
	out := PrepareReading{Outcome: events.PrepareRejected, Failure: r.about(v)}
	out.Class = class
	return out
}

// take reads the values. One that is absent is an error: later calls would be
// made without it.
func (r prepareRead) take(v view) ([]events.Tag, error) {
	var list []events.Tag
	for _, k := range r.values {
		s, err := k.expr.id(v.vars)
		if err != nil {
			return nil, err
		}
		if s == "" {
			return nil, k.expr.errorf("the preparation is done and gives no such value")
		}
		list = append(list, events.Tag{Name: k.name, Value: s})
	}
	return list, nil
}

// checkPrepared says whether the values the create is made of are there.
func (c *Contract) checkPrepared(in Inputs) error {
	list, err := c.needed(in)
	if err != nil {
		return err
	}
	for _, k := range list {
		for _, v := range k.read.values {
			if in.Prepared[v.name] == "" {
				return fmt.Errorf("create: prepared.%s is missing: the preparation %s has not been made", v.name, k.name)
			}
		}
	}
	return nil
}

// PreparedShape gives a value for each that preparations give, as long as one
// may be, to see whether the requests that use them can be built.
func (c *Contract) PreparedShape() map[string]string {
	shape := map[string]string{}
	for _, name := range c.valueNames() {
		shape[name] = strings.Repeat("v", maxID)
	}
	return shape
}
