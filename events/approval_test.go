package events_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// What an approval is over is for ever: digests are stored. Each part counts.
func TestToApprove(t *testing.T) {
	intent := func() *events.IntentRecorded {
		return &events.IntentRecorded{
			Principal: "team-a", Provider: "example", Account: "default", Contract: events.Sum([]byte("contract")), Payload: events.Sum([]byte("{}")),
			Fingerprint: events.Sum([]byte("fingerprint")), Token: "tok", ClientReference: "ref", NotBefore: time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC),
		}
	}
	const want = "293326ddd1719eb75c8e925a270a9b896d42a346263d1fbb10f27174933a72d1"
	first := intent().ToApprove("op_1")
	if first.String() != want {
		t.Errorf("the digest is %s", first)
	}
	seen := map[events.Digest]bool{first: true}
	for name, change := range map[string]func(*events.IntentRecorded){
		"principal": func(i *events.IntentRecorded) { i.Principal = "team-b" }, "provider": func(i *events.IntentRecorded) { i.Provider = "exampl" },
		"account": func(i *events.IntentRecorded) { i.Account = "defaul" }, "contract": func(i *events.IntentRecorded) { i.Contract = events.Sum(nil) },
		"params": func(i *events.IntentRecorded) { i.Payload = events.Sum([]byte("{ }")) }, "token": func(i *events.IntentRecorded) { i.Token = "" },
		"reference": func(i *events.IntentRecorded) { i.ClientReference = "reference" }, "adopt": func(i *events.IntentRecorded) { i.Adopt = "job-1" },
		"not_before": func(i *events.IntentRecorded) { i.NotBefore = i.NotBefore.Add(1) }, "fingerprint": func(i *events.IntentRecorded) { i.Fingerprint = events.Digest{} },
	} {
		i := intent()
		change(i)
		if d := i.ToApprove("op_1"); seen[d] {
			t.Errorf("%s makes no difference", name)
		} else {
			seen[d] = true
		}
	}
	if seen[intent().ToApprove("op_2")] {
		t.Error("the operation makes no difference")
	}
	// The same moment is the same digest, whatever zone it was written in.
	i := intent()
	if i.NotBefore = i.NotBefore.In(time.FixedZone("x", 3600)); i.ToApprove("op_1") != first {
		t.Error("the zone makes a difference")
	}
}
