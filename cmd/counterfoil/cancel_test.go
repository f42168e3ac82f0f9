package main

import (
	"testing"

	"github.com/counterfoil/counterfoil/client"
)

// What runs is never told as cancelled, nor as not worth a cancel.
func TestPointlessCancels(t *testing.T) {
	for _, c := range []struct {
		name string
		op   client.Operation
		want bool
	}{
		{"ended", client.Operation{State: "failed", Terminal: true}, true},
		{"under way", client.Operation{State: "cancelling", Cancel: &client.Cancel{Wished: true, Possible: true}}, true},
		{"refused before, and offered again", client.Operation{State: "observing", Cancel: &client.Cancel{Wished: true, Possible: true}, Allowed: []client.AllowedAction{{Action: "cancel"}}}, false},
		{"the provider has none", client.Operation{State: "observing", Cancel: &client.Cancel{Wished: true}}, false},
		{"not offered, for whatever reason", client.Operation{State: "observing"}, false},
		{"stopped", client.Operation{State: "quarantined", Done: true}, false},
		{"its result is read", client.Operation{State: "result_collecting"}, true},
		{"its result failed a check", client.Operation{State: "result_validation_failed", Done: true}, true},
	} {
		if got := pointless(c.op); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
