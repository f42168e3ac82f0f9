package main

import (
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// A contract whose waits are spelt anew would slow the demonstration without a
// word; so each change must find its text, and the waits that come out count.
func TestHurriedContractsAreQuick(t *testing.T) {
	names, err := fs.Glob(contracts.FS, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range names {
		text, err := fs.ReadFile(contracts.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range hurries() {
			found[change.from] = found[change.from] || strings.Contains(string(text), change.from)
		}
	}
	for _, change := range hurries() {
		if !found[change.from] {
			t.Errorf("no built-in contract says %q any more", change.from)
		}
	}

	files, err := hurried()
	if err != nil {
		t.Fatal(err)
	}
	quick, _, err := wire.LoadContracts(files, "")
	if err != nil {
		t.Fatal(err)
	}
	slow, _, err := wire.LoadContracts(contracts.FS, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(quick) != len(slow) || len(quick) == 0 {
		t.Fatalf("%d contracts became %d", len(slow), len(quick))
	}
	for name, c := range quick {
		policy, err := c.Policy(events.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		promises := c.Promises(false)
		for what, wait := range map[string]time.Duration{
			"poll_interval": policy.PollInterval, "backoff": policy.BackoffBase, "backoff_max": policy.BackoffMax, "request_timeout": policy.RequestTimeout,
			"settle": promises.Settle, "not_found_grace": promises.NotFoundGrace,
		} {
			if wait > 2*time.Second {
				t.Errorf("%s: %s is still %s", name, what, wait)
			}
		}
		if c.Guarantee() != slow[name].Guarantee() {
			t.Errorf("%s: the guarantee became %s, was %s", name, c.Guarantee(), slow[name].Guarantee())
		}
	}
}
