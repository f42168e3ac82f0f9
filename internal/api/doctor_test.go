package api

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

// nobody is a provider that is asked, and counts.
type nobody struct{ asked int }

func (n *nobody) Do(context.Context, outbound.Request) (outbound.Answer, error) {
	n.asked++
	return outbound.Answer{Status: http.StatusUnauthorized}, nil
}

func (n *nobody) CredentialIdentity(context.Context, outbound.Credential) (string, error) {
	return "id", nil
}

// The report is for operators, and asks providers only if it is told to.
func TestDoctor(t *testing.T) {
	h := newHarness(t)
	example, ok := builtin(t).Current("example-ask")
	if !ok {
		t.Fatal("no contract")
	}
	provider := &nobody{}
	h.doctor = doctor.New(doctor.Config{
		Build: "test", Now: h.clock.Now, Journal: h.journal, Call: provider, Clocks: doctor.NewClocks(), Sync: "always",
		Accounts: func(context.Context) []doctor.Account {
			return []doctor.Account{{Provider: "example-ask", Account: "default", Credential: "env:KEY", Contract: example}}
		},
		Contract: func(context.Context, events.Digest) (*contract.Contract, error) { return example, nil },
	})
	h.over(h.store)
	for _, c := range []struct {
		as, target string
		status     int
		code       string
		asked      int
	}{
		{"", "/v1/doctor", 401, "unauthenticated", 0},
		{"bob", "/v1/doctor", 403, "operator_only", 0},
		{"bob", "/v1/doctor?probe=true", 403, "operator_only", 0},
		{"alice", "/v1/doctor", 200, "", 0},
		{"alice", "/v1/doctor?probe=false", 200, "", 0},
		{"alice", "/v1/doctor?probe=maybe", 422, "validation_failed", 0},
		{"alice", "/v1/doctor?deep=true", 422, "validation_failed", 0},
		{"alice", "/v1/doctor?probe=true", 200, "", 1},
	} {
		w := h.do(c.as, "GET", c.target, nil, "")
		var answer struct {
			Code   string         `json:"code"`
			Checks []doctor.Check `json:"checks"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		if w.Code != c.status || answer.Code != c.code || provider.asked != c.asked || (c.status == 200) != (len(answer.Checks) > 5) {
			t.Errorf("%s as %q: %d %s, %d checks, %d asked\n%s", c.target, c.as, w.Code, answer.Code, len(answer.Checks), provider.asked, w.Body)
		}
	}
}
