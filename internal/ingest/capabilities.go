package ingest

import (
	"slices"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// Capabilities is what a caller can ask of this installation.
type Capabilities struct {
	Providers []ProviderView        `json:"providers"`
	Decisions []events.DecisionKind `json:"decisions"`
	States    []string              `json:"states"`
	Limits    LimitsView            `json:"limits"`
}

// LimitsView holds the bounds of requests.
type LimitsView struct {
	Body           int `json:"body_bytes"`
	IdempotencyKey int `json:"idempotency_key_characters"`
	Wait           int `json:"wait_seconds"`
	Page           int `json:"page"`
}

// ProviderView is one provider of which the caller may use an account.
type ProviderView struct {
	Name      string        `json:"name"`
	Title     string        `json:"title,omitempty"`
	Accounts  []string      `json:"accounts"` // those the caller may name
	Guarantee GuaranteeView `json:"guarantee"`
	// Cancel is none, or best_effort: what was asked is confirmed only by the
	// provider's own word.
	Cancel   string       `json:"cancel"`
	Lookup   string       `json:"lookup"` // none, candidates, exact
	Webhooks bool         `json:"webhooks"`
	Result   string       `json:"result"` // none, once, repeatable
	Params   []ParamView  `json:"params"`
	Closed   bool         `json:"params_closed"` // no parameter but these
	Explain  string       `json:"explain"`       // the whole in plain words
	Defaults DeadlineView `json:"default_deadlines"`
}

// DeadlineView holds lengths of time as text.
type DeadlineView struct {
	Create  string `json:"create"`
	Result  string `json:"result"`
	Cancel  string `json:"cancel"`
	Collect string `json:"collect"`
}

// ParamView is one parameter.
type ParamView struct {
	Name        string   `json:"name"`
	Required    bool     `json:"required"`
	Types       []string `json:"types,omitempty"`
	Allowed     []string `json:"allowed,omitempty"`
	Description string   `json:"description,omitempty"`
}

// Capabilities tells what the caller can ask: nothing of a provider of which it
// may use no account.
func (v *Service) Capabilities(caller Caller) Capabilities {
	out := Capabilities{
		Providers: []ProviderView{}, Decisions: decisionKinds(), States: phases(),
		Limits: LimitsView{MaxBody, MaxKey, int(MaxWait.Seconds()), MaxPage},
	}
	for _, name := range v.providersOf(caller) {
		c, ok := v.cfg.Directory.Current(name)
		if !ok {
			continue
		}
		accounts := v.cfg.Directory.AccountsOf(caller.Principal, name)
		reachable := slices.ContainsFunc(accounts, func(a string) bool { return v.cfg.Directory.Reachable(name, a) })
		view := providerView(c, reachable)
		view.Accounts = accounts
		out.Providers = append(out.Providers, view)
	}
	return out
}

// providersOf lists the providers of which the caller may use an account.
func (v *Service) providersOf(caller Caller) []string {
	return slices.DeleteFunc(slices.Clone(v.cfg.Directory.Providers()), func(name string) bool {
		return len(v.cfg.Directory.AccountsOf(caller.Principal, name)) == 0
	})
}

func providerView(c *contract.Contract, reachable bool) ProviderView {
	p := c.Promises(reachable)
	out := ProviderView{
		Name: c.Name, Title: c.Title, Guarantee: GuaranteeView{p.Guarantee, Words(p)},
		Cancel: "none", Lookup: string(p.Lookup), Webhooks: c.Webhook != nil && reachable, Result: "none",
		Params: []ParamView{}, Closed: c.Params.Closed, Explain: c.Explain(),
	}
	if p.Cancels {
		out.Cancel = "best_effort"
	}
	if p.Lookup == events.LookupNone {
		out.Lookup = "none"
	}
	switch {
	case p.HasResult && p.RepeatResult:
		out.Result = "repeatable"
	case p.HasResult:
		out.Result = "once"
	}
	known := map[string]int{}
	for _, prop := range c.Params.Properties {
		known[prop.Name] = len(out.Params)
		out.Params = append(out.Params, ParamView{Name: prop.Name, Types: prop.Types, Allowed: prop.Enum, Description: prop.Description})
	}
	for _, name := range c.Params.Required {
		if i, ok := known[name]; ok {
			out.Params[i].Required = true
			continue
		}
		out.Params = append(out.Params, ParamView{Name: name, Required: true})
	}
	if d, err := c.Deadlines(events.Deadlines{}); err == nil { // defaults keep their own bounds
		out.Defaults = DeadlineView{span(d.Create), span(d.Result), span(d.Cancel), span(d.Collect)}
	}
	return out
}
