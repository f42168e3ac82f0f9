package ingest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// Capabilities is what a caller can ask of this installation. Whoever shows no key
// gets what is the same for everybody: no caller, actions and providers.
type Capabilities struct {
	Service     string `json:"service"` // counterfoil
	Version     string `json:"version"` // of the program
	KeyRequired bool   `json:"key_required"`
	// Authenticate says how a key is shown.
	Authenticate string `json:"authenticate"`
	// Documents are addresses that say more, without a key.
	Documents []string `json:"documents,omitempty"`

	Caller *CallerView `json:"caller,omitempty"`
	// Actions is what may be asked for; submit is with the providers' accounts.
	Actions   []ActionView          `json:"actions,omitzero"`
	Providers []ProviderView        `json:"providers,omitzero"`
	Decisions []events.DecisionKind `json:"decisions"`
	States    []string              `json:"states"`
	Limits    LimitsView            `json:"limits"`
	// Quotas are the caller's principal's.
	Quotas []QuotaView `json:"quotas,omitzero"`
	// Modes are those of requests for several things; the first is meant where none is named.
	Modes []ModeView `json:"modes"`
}

// ModeView says what a mode means.
type ModeView struct {
	Mode        Mode   `json:"mode"`
	Transaction string `json:"transaction"` // in words
}

// CallerView is what is known of the caller.
type CallerView struct {
	Principal string  `json:"principal"`
	KeyID     string  `json:"key_id"`
	Team      string  `json:"team,omitempty"`
	Scopes    []Scope `json:"scopes"`
	// Operator is the operator's right of a key without scopes.
	Operator bool `json:"operator"`
	// Expires is when the key stops to count; absent: never.
	Expires *time.Time `json:"expires,omitempty"`
}

// Verdict says whether the caller may do something, and otherwise why not: the
// code of the problem that it would be answered, and the scope that its key lacks,
// where it is that.
type Verdict struct {
	Allowed  bool  `json:"allowed"`
	Reason   Code  `json:"reason,omitempty"`
	Requires Scope `json:"requires,omitempty"`
}

func verdict(r *Refusal) Verdict {
	if r == nil {
		return Verdict{Allowed: true}
	}
	return Verdict{Reason: r.Code, Requires: r.Requires}
}

// ActionView is one thing that can be asked for, on the caller's own operations
// where it is about operations, and approve on those of others: what is allowed on one
// it says itself.
type ActionView struct {
	Action string `json:"action"`
	Method string `json:"method"`
	Href   string `json:"href"` // {id} stands for an operation's
	Verdict
}

// SubmitView says whether the caller may submit to an account.
type SubmitView struct {
	Account string `json:"account"`
	Verdict
	// Unusable is why the account's calls will not leave for now. What is submitted is
	// taken all the same, and rests until the operator has put it right.
	Unusable Unusable `json:"unusable,omitempty" enum:"no_credential,credential_unresolved,plain_http" doc:"Why calls to the account cannot leave for now; absent: nothing is known against it. A submit is taken all the same, and rests until the operator has put it right, or its deadline passes."`
	// Approval says whether another principal has to approve what the caller asks of the
	// account before it is sent, as far as that can be known: always, never, or depends on
	// what is asked for.
	Approval contract.Foresight `json:"approval" enum:"always,depends,never"`
	// Rules are those that demand it, or may.
	Rules []string `json:"approval_rules,omitempty"`
}

// Unusable says why an account's calls will not leave, without what only the operator
// may know: where a credential is kept.
type Unusable string

// Why an account cannot be used.
const (
	UnusableNoCredential Unusable = "no_credential"         // none is configured
	UnusableUnresolved   Unusable = "credential_unresolved" // its reference leads to no secret
	UnusablePlainHTTP    Unusable = "plain_http"            // its base URL is, and that is not allowed
)

// words is what follows "the account cannot be used for now: ".
func (u Unusable) words() string {
	switch u {
	case UnusableNoCredential:
		return "no credential is configured for it"
	case UnusableUnresolved:
		return "its credential's reference leads to no secret"
	case UnusablePlainHTTP:
		return "its base URL is plain http, which is not allowed here"
	}
	return ""
}

func (v *Service) unusable(ctx context.Context, provider, account string) Unusable {
	if v.cfg.Unusable == nil {
		return ""
	}
	return v.cfg.Unusable(ctx, provider, account)
}

// actionViews lists every action but submit, with the caller's verdicts.
func (v *Service) actionViews(c Caller) []ActionView {
	list := []ActionView{}
	for _, a := range []struct {
		name, method, href string
		action             Action
	}{
		{"get", "GET", "/v1/operations/{id}", ActRead},
		{"timeline", "GET", "/v1/operations/{id}/timeline", ActRead},
		{"params", "GET", "/v1/operations/{id}/params", ActRead},
		{"page", "GET", "/operations/{id}", ActRead},
		{"result", "GET", "/v1/operations/{id}/result", ActRead},
		{"list", "GET", "/v1/operations", ActRead},
		{"watch", "GET", "/v1/operations/{id}/events", ActRead},
		{"feed", "GET", "/v1/events", ActRead},
		{"list_team", "GET", "/v1/operations?of=team", ActListTeam},
		{"list_all", "GET", "/v1/operations?of=all", ActListAll},
		{"cancel", "POST", "/v1/operations/{id}/cancel", ActCancel},
		{"cancel_several", "POST", "/v1/operations:cancel", ActCancel},
		{"pause", "POST", "/v1/operations/{id}/pause", ActPause},
		{"resume", "POST", "/v1/operations/{id}/resume", ActPause},
		{"decide", "POST", "/v1/operations/{id}/decisions", ActDecide},
		{"approve", "POST", "/v1/operations/{id}/decisions", ActApprove},
		{"input", "POST", "/v1/operations/{id}/input", ActInput},
		{"cleanup", "POST", "/v1/operations/{id}/cleanup", ActCleanup},
		{"holds", "GET", "/v1/holds", ActHolds},
		{"hold", "POST", "/v1/holds", ActHold},
		{"release", "POST", "/v1/holds/release", ActHold},
		{"doctor", "GET", "/v1/doctor", ActReport},
		{"probe", "GET", "/v1/doctor?probe=true", ActProbe},
	} {
		list = append(list, ActionView{a.name, a.method, a.href, verdict(v.May(c, Right{Action: a.action}))})
	}
	return list
}

// LimitsView holds the bounds of requests.
type LimitsView struct {
	Body           int `json:"body_bytes"`
	IdempotencyKey int `json:"idempotency_key_characters"`
	// Expiry is when a key is forgotten: never. The ledger is where keys are kept.
	Expiry string `json:"idempotency_key_expires"`
	Wait   int    `json:"wait_seconds"`
	Page   int    `json:"page"`
	// Items of a request for several things.
	Items int `json:"items"`
}

// ProviderView is one provider of which the caller's principal may use an account.
type ProviderView struct {
	Name     string   `json:"name"`
	Title    string   `json:"title,omitempty"`
	Accounts []string `json:"accounts"` // those the caller may name
	// Submit has the verdict for each account that its principal may use.
	Submit    []SubmitView  `json:"submit"`
	Guarantee GuaranteeView `json:"guarantee"`
	// Cancel is none, or best_effort: what was asked is confirmed only by the
	// provider's own word.
	Cancel string `json:"cancel"`
	// Input is whether an answer to what a job waits for can be passed on, and whether
	// a lost one is sent again; Cleanup the same of removing what a job left.
	Input       string       `json:"input"`   // none, once, repeatable
	Cleanup     string       `json:"cleanup"` // none, once, repeatable
	InputParams []ParamView  `json:"input_params,omitempty"`
	InputClosed bool         `json:"input_params_closed,omitempty"` // no parameter but these
	Lookup      string       `json:"lookup"`                        // none, candidates, exact
	Webhooks    bool         `json:"webhooks"`
	Result      string       `json:"result"` // none, once, repeatable
	Params      []ParamView  `json:"params"`
	Closed      bool         `json:"params_closed"` // no parameter but these
	Explain     string       `json:"explain"`       // the whole in plain words
	Defaults    DeadlineView `json:"default_deadlines"`
	// CostUnit is that of max_cost; absent: the contract does not say what a job costs,
	// max_cost is refused, and no quota of costs counts its jobs.
	CostUnit string `json:"cost_unit,omitempty"`
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

// PublicCapabilities tells what anybody may know: nothing of providers, accounts and
// principals.
func (v *Service) PublicCapabilities() Capabilities {
	return Capabilities{
		Service: "counterfoil", Version: cmp.Or(v.cfg.Build, "unknown"), KeyRequired: true,
		Authenticate: "Authorization: Bearer cf_…, a key of this installation, which its operator gives out",
		Decisions:    append(decisionKinds(), Approve, Deny), States: phases(),
		Limits: LimitsView{MaxBody, MaxKey, "never", int(MaxWait.Seconds()), MaxPage, MaxBatch},
		Modes:  []ModeView{{Independent, Independent.Words()}, {Atomic, Atomic.Words()}},
	}
}

// Capabilities tells what the caller can ask: nothing of a provider of which its
// principal may use no account. The verdicts are those of [Service.May], which the
// use cases ask.
func (v *Service) Capabilities(ctx context.Context, caller Caller) Capabilities {
	out := v.PublicCapabilities()
	out.Caller = &CallerView{
		Principal: caller.Principal, KeyID: caller.KeyID, Team: caller.Team(), Scopes: append([]Scope{}, caller.Scopes...),
		Operator: caller.Operator, Expires: moment(caller.Expires),
	}
	out.Actions, out.Providers, out.Quotas = v.actionViews(caller), []ProviderView{}, v.Quotas(caller)
	for _, name := range v.providersOf(caller) {
		c, ok := v.cfg.Directory.Current(name)
		if !ok {
			continue
		}
		accounts := v.cfg.Directory.AccountsOf(caller.Principal, name)
		reachable := slices.ContainsFunc(accounts, func(a string) bool { return v.cfg.Directory.Reachable(name, a) })
		view := providerView(c, reachable)
		view.Accounts, view.Submit = []string{}, []SubmitView{}
		for _, account := range accounts {
			may := verdict(v.May(caller, Right{Action: ActSubmit, Provider: name, Account: account}))
			foreseen, rules := v.policy().Foresee(asked(caller, name, account, c.Promises(v.cfg.Directory.Reachable(name, account))))
			if view.Submit = append(view.Submit, SubmitView{account, may, v.unusable(ctx, name, account), foreseen, rules}); may.Allowed {
				view.Accounts = append(view.Accounts, account)
			}
		}
		out.Providers = append(out.Providers, view)
	}
	return out
}

// providersOf lists the providers of which the caller's principal may use an account.
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
		Params: []ParamView{}, Closed: c.Params.Closed, Explain: c.Explain(), CostUnit: c.CostUnit(),
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
	out.Params = append(out.Params, paramViews(c.Params)...)
	offers := c.Offers()
	out.Input, out.Cleanup = further(offers.Input, offers.RepeatInput), further(offers.Cleanup, p.RepeatCleanup)
	out.InputParams, out.InputClosed = paramViews(c.InputParams), c.InputParams.Closed
	if d, err := c.Deadlines(events.Deadlines{}); err == nil { // defaults keep their own bounds
		out.Defaults = DeadlineView{span(d.Create), span(d.Result), span(d.Cancel), span(d.Collect)}
	}
	return out
}

// further says whether there is such a call, and whether it is sent again.
func further(offered, repeatable bool) string {
	switch {
	case !offered:
		return "none"
	case repeatable:
		return "repeatable"
	}
	return "once"
}

func paramViews(p contract.Params) (list []ParamView) {
	known := map[string]int{}
	for _, prop := range p.Properties {
		known[prop.Name] = len(list)
		list = append(list, ParamView{Name: prop.Name, Types: prop.Types, Allowed: prop.Enum, Description: prop.Description})
	}
	for _, name := range p.Required {
		if i, ok := known[name]; ok {
			list[i].Required = true
			continue
		}
		list = append(list, ParamView{Name: name, Required: true})
	}
	return list
}
