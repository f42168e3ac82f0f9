package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	maxProbes    = 20
	probesAtOnce = 4
	probeTime    = 8 * time.Second // of one; all of them end within the API's time to answer
	probeBody    = 1 << 20         // bytes of the answer
	madeUp       = "counterfoil-doctor-probe"
	noSuchJob    = "status of a job that does not exist"
)

// credentials says whether the references lead to something. Nothing is sent.
func (v *visit) credentials(accounts []Account) {
	for _, a := range accounts {
		if a.Unusable != "" || a.Contract.Credential.Place == contract.PlaceNone {
			continue
		}
		if _, err := v.d.cfg.Call.CredentialIdentity(v.ctx, a.placed(a.Contract.Credential)); err != nil {
			v.add("credential", a.name(), Fail, fault(err), "set what "+a.Credential+" names; it is read anew for each call")
			continue
		}
		v.add("credential", a.name(), OK, a.Credential+" leads to a value; counterfoil doctor --probe asks the provider about it, with one harmless read")
	}
}

// probe makes one read of each account and says what it proves.
func (v *visit) probe(accounts []Account) {
	// A probe is a call: whoever holds all calls means it too. Nobody is asked
	// either while it cannot be known who is held.
	holds, err := v.d.cfg.Journal.Holds(v.ctx)
	var usable []Account
	for _, a := range accounts {
		if a.Unusable != "" {
			continue
		}
		hold := holds.For(a.Provider)
		switch {
		case err != nil:
			v.add("credential", a.name(), Unseen, "not probed: the holds could not be read: "+err.Error(), "see that the store answers")
		case hold.Unreadable != "":
			v.add("credential", a.name(), Unseen, "not probed: a fact of the hold on "+on(hold)+" cannot be read, so all calls are held")
		case !projections.StrongerHold(hold.Scope, events.HoldCreates):
			usable = append(usable, a)
		default:
			v.add("credential", a.name(), Unseen, fmt.Sprintf("not probed: all calls to %s are held since %s by %s", on(hold), clock(hold.Since), hold.Who), "probe again after the release")
		}
	}
	if len(usable) > maxProbes {
		v.cut = append(v.cut, fmt.Sprintf("%d of %d accounts were probed", maxProbes, len(usable)))
		usable = usable[:maxProbes]
	}
	found := make([]Check, len(usable))
	free := make(chan struct{}, probesAtOnce)
	var group sync.WaitGroup
	for i, a := range usable {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			found[i] = v.d.probe(v.ctx, a)
		})
	}
	group.Wait()
	v.checks = append(v.checks, found...)
}

func on(h projections.Hold) string {
	if h.Provider == "" {
		return "all providers"
	}
	return h.Provider
}

// probe asks the provider one thing that changes nothing: for the first page of
// the look-up, or for a job that does not exist.
func (d *Doctor) probe(ctx context.Context, a Account) Check {
	c := Check{Name: "credential", Subject: a.name(), Status: Unseen}
	request, read, what, ok := harmless(a)
	if !ok {
		c.Seen = "not probed: the contract has no plain GET to ask with"
		return c
	}
	out := outbound.Request{
		Method: request.Method, URL: request.URL, Timeout: probeTime, MaxBody: probeBody,
		Trusted: append([]string{a.origin()}, a.Contract.Origins...), // as every call of this account
	}
	for _, h := range request.Header {
		out.Header = append(out.Header, outbound.Header{Name: h.Name, Value: h.Value})
	}
	if request.Credential.Place != contract.PlaceNone {
		out.Credential = a.placed(request.Credential)
	}
	ctx, stop := context.WithTimeout(ctx, probeTime)
	defer stop()
	answer, err := d.cfg.Call.Do(ctx, out)
	asked := fmt.Sprintf("GET %s (%s)", shown(request.URL), what)
	if answer.Status == 0 {
		c.Status, c.Seen = Fail, asked+" had no answer: "+fault(err)
		c.Do = []string{"see that this machine reaches the provider, and what " + reference(a) + " names"}
		return c
	}
	c.Status, c.Seen, c.Do = proved(a, answer, read(contract.Answer{
		Status: answer.Status, Header: answer.Header, Body: answer.Body, URL: answer.URL,
		ReceivedAt: answer.AnsweredAt, Truncated: answer.Truncated, Cut: answer.Cut,
	}), what)
	c.Seen = fmt.Sprintf("%s answered %d%s", asked, answer.Status, c.Seen)
	return c
}

// proved says what an answer to a probe shows, by its status and by what the
// contract reads in it. A status alone shows little: a login page is a 200, and
// a wrong path a 404.
func proved(a Account, answer outbound.Answer, f contract.Failure, what string) (s Status, seen string, do []string) {
	// In the provider's own form: the contract finds its words in it.
	own := json.Valid(answer.Body) && f.Code+f.Message != ""
	words := ""
	text := strings.TrimSpace(f.Code + " " + f.Message)
	if !own && f.Detail != "" {
		text = strings.TrimSuffix(f.Detail+": "+text, ": ")
	}
	if text != "" {
		words = " (" + excerpt(text) + ")"
	}
	base := []string{"compare the base URL of " + a.name() + " with the provider's documentation; a proxy or a login page may answer in its place"}
	switch status := answer.Status; {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		seen = ": the credential is refused"
		if words != "" && !own {
			seen += ", by the provider or by something before it" + words
		}
		return Fail, seen, []string{"put a credential that is valid behind " + reference(a) + "; it is read anew for each call"}
	case answer.Cut != "":
		return Warn, ": " + excerpt(answer.Cut) + "; it shows nothing about the credential", base
	case status/100 == 3:
		return Warn, words + ": it leads to " + leads(answer) + ", where nobody was asked; it shows nothing about the credential", base
	case answer.Truncated:
		return Unseen, ", and its body was not read to the end: what it says was not looked at", nil
	case status/100 == 2 && f.Class == events.ErrorNone && a.Contract.Credential.Place == contract.PlaceNone:
		return OK, ", which the contract reads: the provider asks for no credential", nil
	case status/100 == 2 && f.Class == events.ErrorNone:
		return OK, ", which the contract reads: the credential is accepted", nil
	case status/100 == 2:
		return Warn, ", and that is not what the contract reads" + cmp.Or(words, " ("+string(f.Class)+")") + ": it shows nothing about the credential, and calls will fail", base
	case status == http.StatusNotFound && what == noSuchJob && own && a.Contract.Credential.Place == contract.PlaceNone:
		return OK, " in the provider's form" + words + ": the provider asks for no credential", nil
	case status == http.StatusNotFound && what == noSuchJob && own:
		return OK, " in the provider's form" + words + ": the credential was not refused; whether it is accepted shows at the first job", nil
	case status == http.StatusNotFound:
		return Warn, words + ": a wrong path in the base URL looks like that, and it shows nothing about the credential", base
	}
	return Warn, words + ": that says nothing clear about the credential", []string{"look at the provider's status page, and probe again"}
}

// leads is where a redirect leads, without path and query.
func leads(answer outbound.Answer) string {
	from, err := url.Parse(answer.URL)
	if err != nil {
		return "another place"
	}
	to, err := from.Parse(answer.Header.Get("Location"))
	switch {
	case err != nil || to.Host == "" || answer.Header.Get("Location") == "":
		return "another place"
	case to.Host == from.Host && to.Scheme == from.Scheme:
		return "another path of the same host"
	}
	return excerpt(to.Scheme + "://" + to.Host)
}

// placed is the account's credential where a contract puts it.
func (a Account) placed(place contract.Credential) outbound.Credential {
	cr := outbound.Credential{Ref: a.Credential, In: outbound.Place(place.Place), Name: place.Name}
	if place.Place == contract.PlaceHeader {
		cr.Format = place.Before + "{}" + place.After
	}
	return cr
}

func reference(a Account) string {
	if a.Credential == "" {
		return "the credential"
	}
	return a.Credential
}

// harmless gives a request that changes nothing at the provider, and how the
// contract reads its answer.
func harmless(a Account) (r contract.Request, read func(contract.Answer) contract.Failure, what string, ok bool) {
	in := contract.Inputs{
		BaseURL: a.BaseURL, Params: []byte("{}"), Token: madeUp, ClientReference: madeUp, JobID: madeUp,
	}
	if r, err := a.Contract.Lookup(in); err == nil && r.Method == http.MethodGet && r.Credential == a.Contract.Credential {
		return r, func(answer contract.Answer) contract.Failure { return a.Contract.ReadLookup(answer, in).Failure }, "first page of the look-up", true
	}
	if r, err := a.Contract.Status(in); err == nil && r.Method == http.MethodGet && r.Credential == a.Contract.Credential {
		return r, func(answer contract.Answer) contract.Failure { return a.Contract.ReadStatus(answer, in).Failure }, noSuchJob, true
	}
	return contract.Request{}, nil, "", false
}

// shown is a URL without its query.
func shown(link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return "the provider"
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// fault is a failed call's error; its text is bounded and holds no secret.
func fault(err error) string {
	if err == nil {
		return "the connection ended"
	}
	return err.Error()
}
