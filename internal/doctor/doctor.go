// Package doctor looks at a running service and says what is right, what is
// not, and what to do about it.
//
// Guarantees. A look changes nothing and appends nothing. No provider is called
// unless a probe is asked for, and then with one read of each account that the
// contract says is without effect. The work is bounded whatever the ledger
// holds; where something was left out, the report says so. Secrets are not in
// it, and text of providers only as the state keeps it, cleaned.
//
// Limits. What cannot be seen is called unseen and not ok. Operations are found
// in the history, which may lag a moment; those reported are read again from
// the ledger.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

// Status is a check's verdict.
type Status string

// Verdicts.
const (
	OK     Status = "ok"
	Warn   Status = "warn" // somebody should look, the service does what it can
	Fail   Status = "fail" // the service cannot do what it is for
	Unseen Status = "unseen"
)

// Check is one thing that was looked at.
type Check struct {
	Name    string   `json:"name"`              // what kind of thing
	Subject string   `json:"subject,omitempty"` // which one
	Status  Status   `json:"status"`
	Seen    string   `json:"seen"`              // what was seen, in plain words
	Do      []string `json:"do,omitempty"`      // what helps; commands are given in full
	Runbook string   `json:"runbook,omitempty"` // a page of the documentation
}

// Report is one look at a service.
type Report struct {
	At     time.Time `json:"at"`
	Build  string    `json:"build"`
	Checks []Check   `json:"checks"`
	Cut    []string  `json:"cut,omitempty"` // what was left out, and why
}

// Count counts the checks with a verdict.
func (r Report) Count(s Status) int {
	n := 0
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// Journal is what is read of the ledger.
type Journal interface {
	Holds(ctx context.Context) (projections.Holds, error)
	LedgerTime(ctx context.Context) (time.Time, bool, error)
	Providers(ctx context.Context) ([]string, error)
	Records(ctx context.Context, at journal.Place, limit int, keep func(*projections.Record) bool) (journal.Page, error)
	Current(ctx context.Context, operation string) (projections.State, error)
}

// Caller makes one exchange with a provider.
type Caller interface {
	Do(ctx context.Context, r outbound.Request) (outbound.Answer, error)
	CredentialIdentity(ctx context.Context, cr outbound.Credential) (string, error)
}

// Account is one configured account of a provider.
type Account struct {
	Provider, Account string
	BaseURL           string // "" for the contract's own
	Credential        string // reference, "" for none
	Unusable          string // why its calls will not leave; "" if nothing is known
	// Unbounded are the principals, "*" for those that the quotas do not name, that may use
	// it and whose quota of costs counts nothing of what they begin there.
	Unbounded []string
	Contract  *contract.Contract
}

// Config of a [Doctor]. Fields that may be nil say so.
type Config struct {
	Build   string
	Now     func() time.Time
	Journal Journal
	Call    Caller
	Clocks  *Clocks

	// Sync is how the store writes: always, interval, or "" where that cannot be
	// seen from here.
	Sync string
	// Streams says what of the streams is not as provisioned; nil where nothing
	// can tell.
	Streams func(ctx context.Context) error
	// Failing says why the store can write no more; nil where that cannot be asked.
	Failing func() error
	// Disk says how much is free where the store writes, below what nothing new is
	// begun, and whether that is reached. Nil where nobody looks.
	Disk func() (free, least uint64, low bool, err error)
	// StoreTime is the store's clock as it is now; nil where it cannot be asked.
	StoreTime func(ctx context.Context) (time.Time, error)
	// ClockDifference is what clocks of two processes may differ by.
	ClockDifference time.Duration
	// Accounts lists the configured accounts.
	Accounts func(ctx context.Context) []Account
	// CredentialsFile says why the credentials file as it is now is not in use, and
	// since when; "" if it is. Writing is since when it is seen being written,
	// or new; zero if it is neither. Nil where there is none.
	CredentialsFile func() (problem string, since, writing time.Time)
	// PolicyFile says the same of the policy file. Nil where there is none.
	PolicyFile func() (problem string, since, writing time.Time)
	// Contract gives a contract by the digest an operation recorded.
	Contract func(ctx context.Context, digest events.Digest) (*contract.Contract, error)
}

// Doctor looks at a service. It is safe for concurrent use.
type Doctor struct{ cfg Config }

// New makes a Doctor.
func New(cfg Config) *Doctor { return &Doctor{cfg} }

// Request says how to look.
type Request struct {
	// Probe allows one harmless read of each account.
	Probe bool
}

// Look makes a report. Trouble with one check is that check's verdict; the error
// is ctx's alone.
func (d *Doctor) Look(ctx context.Context, r Request) (Report, error) {
	v := &visit{d: d, ctx: ctx, at: d.cfg.Now(), request: r}
	v.durability()
	v.streams()
	v.disk()
	v.storeClock()
	v.holds()
	v.operations()
	accounts := v.accounts()
	if r.Probe {
		v.probe(accounts)
	} else {
		v.credentials(accounts)
	}
	v.providerClocks(accounts) // after a probe, which tells their time too
	v.contracts(accounts)
	v.quotas(accounts)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return Report{At: v.at.UTC(), Build: d.cfg.Build, Checks: append(v.checks, v.stuck...), Cut: v.cut}, nil
}

// visit is one look under way.
type visit struct {
	d       *Doctor
	ctx     context.Context //nolint:containedctx // one call's own, see Look
	at      time.Time
	request Request

	checks []Check
	stuck  []Check // operations come last
	cut    []string
	open   []projections.State // those that have not ended, as far as looked
	held   []string            // providers with a hold of their own
}

func (v *visit) add(name, subject string, s Status, seen string, do ...string) {
	// A file's problems are a line each, and what is seen is one.
	seen = strings.ReplaceAll(strings.ReplaceAll(seen, ":\n", ": "), "\n", "; ")
	v.checks = append(v.checks, Check{Name: name, Subject: subject, Status: s, Seen: seen, Do: do})
}

// durability says what survives what.
func (v *visit) durability() {
	v.add("guarantee", "process death", OK, "what was acknowledged is in the store and outlives this process")
	switch v.d.cfg.Sync {
	case "always":
		v.add("guarantee", "power loss", OK, "the store asks the disk before it acknowledges; whether the disk keeps what it says it has cannot be seen from here")
	case "interval":
		v.add("guarantee", "power loss", Warn, "power loss may take the last second, and with it the record of a create that had left",
			"start with --sync always, unless that is meant")
	default:
		v.add("guarantee", "power loss", Unseen, "not verifiable: whether another's server asks the disk before it acknowledges cannot be seen from a client")
	}
}

func (v *visit) streams() {
	if v.d.cfg.Failing != nil {
		if err := v.d.cfg.Failing(); err != nil {
			v.add("store", "", Fail, "it can write no more: "+err.Error(),
				"make room where the data directory is, or see what is wrong with the disk: the service starts the store again when there is room")
		}
	}
	if v.d.cfg.Streams == nil {
		v.add("streams", "", Unseen, "not verifiable: nothing here can read their configuration")
		return
	}
	err := v.d.cfg.Streams(v.ctx)
	if err == nil {
		v.add("streams", "", OK, "every stream is as provisioned")
		return
	}
	for _, one := range parts(err) {
		var drift *journal.DriftError
		if errors.As(one, &drift) {
			v.add("streams", drift.Stream, Fail, fmt.Sprintf("%s is %s, want %s; no call with side effects is permitted meanwhile", drift.Field, drift.Have, drift.Want),
				fmt.Sprintf("put %s of stream %s back to %s, and find out who changed it", drift.Field, drift.Stream, drift.Want))
			continue
		}
		v.add("streams", "", Fail, one.Error(), "see that the store answers; the check is made again every minute")
	}
}

// parts takes joined errors apart.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var list []error
		for _, one := range joined.Unwrap() {
			list = append(list, parts(one)...)
		}
		return list
	}
	return []error{err}
}

func (v *visit) disk() {
	if v.d.cfg.Disk == nil {
		v.add("disk", "", Unseen, "nobody looks how much is free: the service was started without a reserve")
		return
	}
	free, least, low, err := v.d.cfg.Disk()
	seen := fmt.Sprintf("%d MiB are free, the reserve is %d MiB", free>>20, least>>20)
	switch {
	case low:
		v.add("disk", "", Fail, seen+": new operations are refused and no create is sent, everything else goes on while there is any room", "make room where the data directory is")
	case err != nil:
		v.add("disk", "", Warn, seen+" when last asked, since then it could not be: "+err.Error())
	case free < 2*least:
		v.add("disk", "", Warn, seen+", which is near", "make room where the data directory is")
	default:
		v.add("disk", "", OK, seen)
	}
}

// holds tells of what people have stopped on purpose.
func (v *visit) holds() {
	list, err := v.d.cfg.Journal.Holds(v.ctx)
	if err != nil {
		v.add("hold", "", Fail, err.Error(), "see that the store answers")
		return
	}
	for _, h := range list {
		whose, release := "all providers", "counterfoil release"
		if h.Provider != "" {
			whose, release = h.Provider, release+" --provider "+h.Provider
		}
		switch {
		case h.Unreadable != "":
			v.add("hold", whose, Fail, "a fact of it cannot be read: "+h.Unreadable, "run the program version that wrote it")
		case h.Scope != events.HoldNone:
			v.held = append(v.held, h.Provider)
			what := "creates are"
			if h.Scope == events.HoldAll {
				what = "all calls are"
			}
			v.add("hold", whose, Warn, fmt.Sprintf("%s held since %s by %s", what, clock(h.Since), h.Who), release+", once the reason is gone")
		}
	}
}

// storeClock compares our clock with the store's: the store's own answer, and
// the newest fact, whose time can only be in the past.
func (v *visit) storeClock() {
	// Two processes that are each within half of what is allowed are within the whole of
	// each other; beyond half this one permits nothing.
	fix, allowed := "set this machine's clock and the store's by the same time server", time.Second
	if d := v.d.cfg.ClockDifference; d > 0 {
		fix, allowed = fix+"; until then this process makes no call with side effects", d/2
	}
	if v.d.cfg.StoreTime == nil {
		v.add("clock", "store", Unseen, "not verifiable: the store cannot be asked for its time")
	} else {
		before := v.d.cfg.Now()
		at, err := v.d.cfg.StoreTime(v.ctx)
		after := v.d.cfg.Now()
		ahead, behind := at.Sub(after), before.Sub(at)
		switch {
		case err != nil:
			v.add("clock", "store", Fail, err.Error(), "see that the store answers")
		case ahead > allowed:
			v.add("clock", "store", Fail, fmt.Sprintf("the store's clock is %s ahead of this process's, %s allowed", span(ahead), span(allowed)), fix)
		case behind > allowed:
			v.add("clock", "store", Fail, fmt.Sprintf("the store's clock is %s behind this process's, %s allowed", span(behind), span(allowed)), fix)
		default:
			v.add("clock", "store", OK, fmt.Sprintf("the store's clock and this process's agree within %s", span(max(allowed, after.Sub(before)))))
		}
	}
	newest, any, err := v.d.cfg.Journal.LedgerTime(v.ctx)
	switch ahead := newest.Sub(v.at); {
	case err != nil:
		v.add("clock", "ledger", Fail, err.Error(), "see that the store answers")
	case !any:
		v.add("clock", "ledger", OK, "the ledger is empty")
	case ahead > allowed:
		v.add("clock", "ledger", Fail, fmt.Sprintf("the newest fact was stored at %s by the store's clock, %s from now", clock(newest), span(ahead)), fix)
	default:
		v.add("clock", "ledger", OK, fmt.Sprintf("the newest fact was stored at %s by the store's clock, %s ago", clock(newest), span(-ahead)))
	}
}

// accounts says of each configured account whether its calls can leave.
func (v *visit) accounts() []Account {
	for _, file := range []struct {
		name string
		look func() (problem string, since, writing time.Time)
	}{{"credentials file", v.d.cfg.CredentialsFile}, {"policy file", v.d.cfg.PolicyFile}} {
		if file.look == nil {
			continue
		}
		problem, since, writing := file.look()
		if problem != "" {
			v.add(file.name, "", Fail, fmt.Sprintf("not in use as it is since %s, what it said before still holds: %s", clock(since), problem), "correct the file; it is read again by itself")
		}
		if !writing.IsZero() {
			v.add(file.name, "", Warn, "being written, or new, since "+clock(writing)+", what it said before still holds", "leave it alone: it is read once nobody has written it for 10 s; one that is renamed into its place counts at once if it was last written a minute ago or more")
		}
	}
	list := v.d.cfg.Accounts(v.ctx)
	if len(list) > maxAccounts {
		v.cut = append(v.cut, fmt.Sprintf("%d of %d accounts were looked at", maxAccounts, len(list)))
		list = list[:maxAccounts]
	}
	idle := map[string][]string{} // accounts that are not set up, by what they lack
	var lacks []string
	for _, a := range list {
		if a.Unusable == "" {
			continue
		}
		n := 0
		for i := range v.open {
			if in := &v.open[i].Intent; in.Provider == a.Provider && in.Account == a.Account {
				n++
			}
		}
		seen := a.Unusable
		if n > 0 {
			seen += "; " + count(n, "open operation belongs", "open operations belong") + " to it"
		}
		switch {
		case a.Credential != "" && strings.HasPrefix(a.Unusable, "its base URL"):
			v.add("account", a.name(), Fail, seen) // the credential is not what is wrong
		case a.Credential != "":
			v.add("account", a.name(), Fail, seen, "put right what "+a.Credential+" names; it is read anew for each call")
		case n > 0:
			v.add("account", a.name(), Fail, seen, "give what is missing: in the credentials file it counts within seconds, as a flag of serve after a restart")
		default:
			if idle[seen] == nil {
				lacks = append(lacks, seen)
			}
			idle[seen] = append(idle[seen], a.name())
		}
	}
	for _, lack := range lacks {
		v.add("account", "", Unseen, fmt.Sprintf("%s not set up, and no open operation uses one (%s): %s", count(len(idle[lack]), "account is", "accounts are"), lack, strings.Join(idle[lack], ", ")))
	}
	return list
}

// quotas says whose costs are bounded but at some accounts. An account that is not set up
// costs nobody anything.
func (v *visit) quotas(accounts []Account) {
	for _, a := range accounts {
		if len(a.Unbounded) == 0 || a.Unusable != "" {
			continue
		}
		seen, do := "its contract does not say what a job costs", "give the contract a cost"
		if unit := a.Contract.CostUnit(); unit != "" {
			seen, do = "it costs "+unit+", which they do not name", "name "+unit+" in cost_per_day"
		}
		v.add("quota", a.name(), Warn, fmt.Sprintf("the quotas of costs for %s count nothing of what is begun here: %s", strings.Join(a.Unbounded, ", "), seen),
			do+" if it costs anything, or keep the account from them: principals in the credentials file")
	}
}

const (
	maxAccounts  = 100
	maxContracts = 100
)

func (a Account) name() string { return a.Provider + "/" + a.Account }

// origin is where its calls go; "" if that cannot be told.
func (a Account) origin() string {
	origin, err := httprule.Origin(cmp.Or(a.BaseURL, a.Contract.BaseURL))
	if err != nil {
		return ""
	}
	return origin
}

// contracts says which recorded contracts are not there any more, or cannot be
// read by this version.
func (v *visit) contracts(accounts []Account) {
	configured := map[string]bool{}
	for _, a := range accounts {
		configured[a.Provider] = true
	}
	ever, err := v.d.cfg.Journal.Providers(v.ctx)
	if err != nil {
		v.add("contract", "", Fail, err.Error(), "see that the store answers")
	}
	byProvider, byDigest := map[string]int{}, map[events.Digest][]string{}
	for i := range v.open {
		s := &v.open[i]
		byProvider[s.Intent.Provider]++
		byDigest[s.Intent.Contract] = append(byDigest[s.Intent.Contract], s.Intent.Provider)
	}
	bad := len(v.checks)
	for _, provider := range ever {
		if configured[provider] {
			continue
		}
		if n := byProvider[provider]; n > 0 {
			v.add("contract", provider, Warn, fmt.Sprintf("not configured any more; %s it as recorded, new ones are refused", count(n, "open operation follows", "open operations follow")),
				"give its contract with --contracts, or let them end")
		}
	}
	digests := make([]events.Digest, 0, len(byDigest))
	for digest := range byDigest {
		digests = append(digests, digest)
	}
	slices.SortFunc(digests, func(a, b events.Digest) int { return slices.Compare(a[:], b[:]) })
	if len(digests) > maxContracts {
		v.cut = append(v.cut, fmt.Sprintf("%d of %d recorded contracts were read", maxContracts, len(digests)))
		digests = digests[:maxContracts]
	}
	for _, digest := range digests {
		if _, err := v.d.cfg.Contract(v.ctx, digest); err != nil {
			who := byDigest[digest]
			v.add("contract", who[0], Fail, fmt.Sprintf("%v; %s", err, count(len(who), "open operation needs it and rests", "open operations need it and rest")),
				"run the program version that recorded them until they have ended")
		}
	}
	if len(v.checks) == bad {
		v.add("contract", "", OK, fmt.Sprintf("%s configured; every contract of the open operations looked at can be read", count(len(configured), "contract is", "contracts are")))
	}
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// span writes a length of time for people, to the second or finer below one.
func span(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	s := d.Round(time.Second).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
