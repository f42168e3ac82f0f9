package ingest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
)

// Scope is one thing that a key may do. The set is closed: the constants below,
// and submit:PROVIDER/ACCOUNT with * for either. Scopes are stored with keys, so
// a name never changes its meaning.
type Scope string

// The scopes that name no account.
const (
	ScopeCancel   Scope = "cancel"    // wish to cancel, pause and resume operations of the caller's principal, and clean up after them
	ScopeDecide   Scope = "decide"    // decide on them, and answer what their jobs wait for
	ScopeApprove  Scope = "approve"   // approve or deny what other principals submitted, as far as the key sees it
	ScopeReadOwn  Scope = "read:own"  // see them
	ScopeReadTeam Scope = "read:team" // see those of every principal of the caller's team, and its own
	ScopeReadAll  Scope = "read:all"  // see everybody's
	ScopeAudit    Scope = "audit"     // see the holds and the report on the service
	// ScopeAdmin places and releases holds, has providers probed, sees everything
	// and cancels, decides and approves for everybody. It does not submit.
	ScopeAdmin Scope = "admin"
)

const (
	submitPrefix = "submit:"

	submitAnywhere Scope = submitPrefix + anyName + "/" + anyName

	anyName   = "*"
	maxScopes = 64 // of one key
)

// SubmitScope is the right to submit to an account of a provider; "" is any.
func SubmitScope(provider, account string) Scope {
	if provider == "" {
		provider = anyName
	}
	if account == "" {
		account = anyName
	}
	return Scope(submitPrefix + provider + "/" + account)
}

// PlainScopes lists the scopes that name no account.
func PlainScopes() []Scope {
	return []Scope{ScopeCancel, ScopeDecide, ScopeApprove, ScopeReadOwn, ScopeReadTeam, ScopeReadAll, ScopeAudit, ScopeAdmin}
}

// UnstatedScopes is what a key may do whose line says nothing of scopes, as none
// did before there were any.
func UnstatedScopes() []Scope {
	return []Scope{submitAnywhere, ScopeCancel, ScopeDecide, ScopeReadOwn}
}

// ParseScope reads a scope.
func ParseScope(text string) (Scope, error) {
	s := Scope(text)
	if slices.Contains(PlainScopes(), s) {
		return s, nil
	}
	if rest, ok := strings.CutPrefix(text, submitPrefix); ok {
		provider, account, both := strings.Cut(rest, "/")
		name := func(s string) bool { return s == anyName || contract.ValidName(s) }
		if both && name(provider) && name(account) {
			return s, nil
		}
		return "", fmt.Errorf("scope %.80q: want submit:PROVIDER/ACCOUNT, * for any", text)
	}
	return "", fmt.Errorf("scope %.80q: there is none such; want submit:PROVIDER/ACCOUNT, %s", text, scopeWords())
}

func scopeWords() string {
	var names []string
	for _, s := range PlainScopes() {
		names = append(names, string(s))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// checkScopes says what is wrong with the scopes of a key, or "".
func checkScopes(list []Scope) string {
	if len(list) > maxScopes {
		return fmt.Sprintf("scopes has %d entries; at most %d are allowed", len(list), maxScopes)
	}
	for i, s := range list {
		if _, err := ParseScope(string(s)); err != nil {
			return err.Error()
		}
		if slices.Contains(list[:i], s) {
			return fmt.Sprintf("scope %s is there twice", s)
		}
	}
	return ""
}

// submits says whether the scope allows to submit to the account of the provider;
// with "" for both, whether it allows to submit anywhere.
func (s Scope) submits(provider, account string) bool {
	rest, ok := strings.CutPrefix(string(s), submitPrefix)
	if !ok {
		return false
	}
	p, a, _ := strings.Cut(rest, "/")
	return provider == "" && account == "" || (p == anyName || p == provider) && (a == anyName || a == account)
}

// Teams says which team a principal is of: "" for none. A version of it is not
// changed any more.
type Teams map[string]string

// Caller is who asks, as far as authentication knows. The zero Caller may do
// nothing.
type Caller struct {
	Principal string // outlives its keys
	KeyID     string
	// Operator is the operator's right of keys that were made before there were
	// scopes: what audit allows, and of what admin allows the holds and the probes.
	Operator bool
	Scopes   []Scope
	Expires  time.Time // of the key; zero if it does not
	// Teams as they are now. The team of an operation is that of its principal,
	// so that it need not be stored and moves with the principal.
	Teams Teams
}

// Team is the caller's own team, "" if it has none.
func (c Caller) Team() string { return c.Teams[c.Principal] }

// Alike says whether the other is the same principal with the same key, and may
// see and do the very same.
func (c Caller) Alike(other Caller) bool {
	same := c.Principal == other.Principal && c.KeyID == other.KeyID && c.Operator == other.Operator && slices.Equal(c.Scopes, other.Scopes)
	return same && (!slices.Contains(c.Scopes, ScopeReadTeam) || maps.Equal(c.Teams, other.Teams))
}

// Action is something that a caller can ask for.
type Action string

// The actions.
const (
	ActSubmit   Action = "submit"
	ActRead     Action = "read" // get, wait, timeline, result, and the list of the caller's own
	ActListTeam Action = "list_team"
	ActListAll  Action = "list_all"
	ActCancel   Action = "cancel"
	ActPause    Action = "pause" // and resume
	ActDecide   Action = "decide"
	ActApprove  Action = "approve" // and deny
	ActInput    Action = "input"   // pass on an answer to what a job waits for
	ActCleanup  Action = "cleanup" // have removed what a job left
	ActHolds    Action = "holds"   // read them
	ActHold     Action = "hold"    // place and release
	ActReport   Action = "report"  // read the report on the service
	ActProbe    Action = "probe"   // have providers asked for it
)

// Actions lists them.
func Actions() []Action {
	return []Action{
		ActSubmit, ActRead, ActListTeam, ActListAll, ActCancel, ActPause, ActDecide, ActApprove, ActInput, ActCleanup, ActHolds, ActHold, ActReport, ActProbe,
	}
}

// Right is what a caller wants to do, and to what.
type Right struct {
	Action Action
	// Principal is whose operation it is, for read, cancel, pause, decide, input and cleanup; ""
	// means the caller's own. For approve it means any other's that the caller sees.
	Principal string
	// Provider and Account are where a submit goes; "" for both asks whether the
	// caller may submit anywhere.
	Provider, Account string
}

// May refuses a caller who may not do what it wants to, or gives nil. Every use
// case asks it, and so does whatever tells callers beforehand what they may do. It
// knows of no accounts that are kept from a principal: see [Service.May].
//
// What the caller may not read is not found, in the words in which what does not
// exist is not found.
func (c Caller) May(r Right) *Refusal {
	own := r.Principal == "" || r.Principal == c.Principal
	switch r.Action {
	case ActSubmit:
		if !slices.ContainsFunc(c.Scopes, func(s Scope) bool { return s.submits(r.Provider, r.Account) }) {
			return forbidden(SubmitScope(r.Provider, r.Account))
		}
	case ActRead:
		if own && !c.has(ScopeReadOwn) && !c.has(ScopeReadTeam) && !c.has(ScopeReadAll) {
			return forbidden(ScopeReadOwn)
		}
		if !own && !c.sees(r.Principal) {
			return noOperation()
		}
	case ActListTeam:
		if !c.has(ScopeReadTeam) && !c.has(ScopeReadAll) {
			return forbidden(ScopeReadTeam)
		}
	case ActListAll:
		if !c.has(ScopeReadAll) {
			return forbidden(ScopeReadAll)
		}
	case ActCancel, ActPause, ActCleanup:
		return c.mayAct(r.Principal, own, ScopeCancel)
	case ActDecide, ActInput:
		return c.mayAct(r.Principal, own, ScopeDecide)
	case ActApprove:
		return c.mayApprove(r.Principal)
	case ActHolds, ActReport:
		if !c.Operator && !c.has(ScopeAudit) {
			return operatorOnly(ScopeAudit)
		}
	case ActHold, ActProbe:
		if !c.Operator && !c.has(ScopeAdmin) {
			return operatorOnly(ScopeAdmin)
		}
	default:
		panic(fmt.Sprintf("ingest: action %q has no rule", string(r.Action)))
	}
	return nil
}

func (c Caller) mayAct(principal string, own bool, scope Scope) *Refusal {
	switch {
	case !own && !c.sees(principal):
		return noOperation()
	case !own && !c.has(ScopeAdmin):
		return forbidden(ScopeAdmin)
	case !c.has(scope):
		return forbidden(scope)
	}
	return nil
}

// mayApprove refuses whoever submitted the operation, whatever its key may do.
func (c Caller) mayApprove(principal string) *Refusal {
	others := c.has(ScopeReadAll) || c.has(ScopeReadTeam) && c.Team() != ""
	switch {
	case principal == c.Principal && principal != "":
		return selfApproval()
	case !c.has(ScopeApprove): // first, and of every other operation alike: it tells of none
		return forbidden(ScopeApprove)
	case !others: // nor does this, of every one alike
		return (&Refusal{Code: CodeForbidden, Requires: ScopeReadAll}).Say("this key may approve, and sees nothing that others submitted: it has no scope {requires}, nor that of its team", nil)
	case principal != "" && !c.sees(principal):
		return noOperation()
	}
	return nil
}

// has says whether the caller has the scope, or admin where that includes it.
func (c Caller) has(s Scope) bool {
	return slices.Contains(c.Scopes, s) || slices.Contains(c.Scopes, ScopeAdmin)
}

// sees says whether the caller may know of operations of another principal.
func (c Caller) sees(principal string) bool {
	if c.has(ScopeReadAll) {
		return true
	}
	team := c.Team()
	return c.has(ScopeReadTeam) && team != "" && c.Teams[principal] == team
}

func forbidden(s Scope) *Refusal {
	return (&Refusal{Code: CodeForbidden, Requires: s}).Say("this key has no scope {requires}", nil)
}

// operatorOnly refuses what is for operators. It says nothing of what is held.
func operatorOnly(s Scope) *Refusal {
	return (&Refusal{Code: CodeOperatorOnly, Requires: s}).Say("this key has no operator's right, nor the scope {requires}", nil)
}

func noOperation() *Refusal {
	return &Refusal{Code: CodeNotFound, Detail: "there is no such operation of yours"}
}

// May is [Caller.May], and refuses to submit to an account that is kept from the
// principal.
func (v *Service) May(c Caller, r Right) *Refusal {
	if refusal := c.May(r); refusal != nil {
		return refusal
	}
	if r.Action == ActSubmit && r.Provider != "" && !v.cfg.Directory.MayUse(c.Principal, r.Provider, r.Account) {
		return v.notAllowed(c, r.Provider, r.Account, "/account")
	}
	return nil
}
