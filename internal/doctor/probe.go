package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
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
	probeBody    = 64 << 10        // bytes of the answer
	madeUp       = "counterfoil-doctor-probe"
	noSuchJob    = "status of a job that does not exist"
)

// credentials says whether the references lead to something. Nothing is sent.
func (v *visit) credentials(accounts []Account) {
	for _, a := range accounts {
		if a.Unusable != "" || a.Contract.Credential.Place == contract.PlaceNone {
			continue
		}
		if _, err := v.d.cfg.Call.CredentialIdentity(v.ctx, a.Credential); err != nil {
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
	request, what, ok := harmless(a)
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
	if place := request.Credential; place.Place != contract.PlaceNone {
		out.Credential = outbound.Credential{Ref: a.Credential, In: outbound.Place(place.Place), Name: place.Name}
		if place.Place == contract.PlaceHeader {
			out.Credential.Format = place.Before + "{}" + place.After
		}
	}
	ctx, stop := context.WithTimeout(ctx, probeTime)
	defer stop()
	answer, err := d.cfg.Call.Do(ctx, out)
	asked := "GET " + shown(request.URL) + " (" + what + ")"
	switch {
	case answer.Status == 0:
		c.Status, c.Seen = Fail, asked+" had no answer: "+fault(err)
		c.Do = []string{"see that this machine reaches the provider, and what " + reference(a) + " names"}
	case answer.Status == http.StatusUnauthorized || answer.Status == http.StatusForbidden:
		c.Status, c.Seen = Fail, fmt.Sprintf("%s answered %d: the credential is refused", asked, answer.Status)
		c.Do = []string{"put a credential that is valid behind " + reference(a) + "; it is read anew for each call"}
	case answer.Status == http.StatusOK || answer.Status == http.StatusNotFound && what == noSuchJob:
		c.Status, c.Seen = OK, fmt.Sprintf("%s answered %d: ", asked, answer.Status)
		switch {
		case a.Contract.Credential.Place == contract.PlaceNone:
			c.Seen += "the provider asks for no credential"
		case answer.Status == http.StatusOK:
			c.Seen += "the credential is accepted"
		default:
			c.Seen += "the credential was not refused"
		}
	default:
		c.Status, c.Seen = Warn, fmt.Sprintf("%s answered %d: that says nothing clear about the credential", asked, answer.Status)
		c.Do = []string{"look at the provider's status page, and probe again"}
	}
	return c
}

func reference(a Account) string {
	if a.Credential == "" {
		return "the credential"
	}
	return a.Credential
}

// harmless gives a request that changes nothing at the provider.
func harmless(a Account) (r contract.Request, what string, ok bool) {
	in := contract.Inputs{
		BaseURL: a.BaseURL, Params: []byte("{}"), Token: madeUp, ClientReference: madeUp, JobID: madeUp,
	}
	if r, err := a.Contract.Lookup(in); err == nil && r.Method == http.MethodGet && r.Credential == a.Contract.Credential {
		return r, "first page of the look-up", true
	}
	if r, err := a.Contract.Status(in); err == nil && r.Method == http.MethodGet && r.Credential == a.Contract.Credential {
		return r, noSuchJob, true
	}
	return contract.Request{}, "", false
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
