package crash_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// Row "power loss, sync interval": the ledger loses its tail, the history does
// not. The history is derived anew beside the old one, and the request that was
// lost, repeated with its key, gets the same id and token, so that the provider
// answers with the job it has.
func TestPowerLossTakesTheLedgersTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "running", "succeeded")})
		kept := h.Submit("kept", "example", `{"n": 1}`)
		h.Wait(kept.ID, 10*time.Minute, "succeeded")
		h.Stop()
		ledger := findStream(t, h.Dir(), "LEDGER")
		before := filepath.Join(t.TempDir(), "ledger")
		if err := os.CopyFS(before, os.DirFS(ledger)); err != nil {
			t.Fatal(err)
		}
		h.Start()
		lost := h.Submit("lost", "example", `{"n": 2}`)
		h.Wait(lost.ID, 10*time.Minute, "observing")
		h.Stop()
		if err := os.RemoveAll(ledger); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(ledger, os.DirFS(before)); err != nil {
			t.Fatal(err)
		}

		h.Start()
		if op := h.Wait(kept.ID, time.Minute, "succeeded"); len(h.Timeline(op.ID)) == 0 {
			t.Error("the operation before the loss has no timeline")
		}
		if _, err := h.Client.Get(t.Context(), lost.ID); err == nil {
			t.Error("the lost operation is still believed: its record stands on no fact")
		}
		again := h.Submit("lost", "example", `{"n": 2}`)
		if again.ID != lost.ID {
			t.Errorf("the same key gives operation %s after the loss, %s before", again.ID, lost.ID)
		}
		h.Wait(again.ID, 10*time.Minute, "succeeded")
		if n := len(h.Sim.Jobs()); n != 2 {
			t.Errorf("%d jobs at the provider, want 2\n%s", n, h.Story(again.ID))
		}
		for _, e := range h.Timeline(kept.ID) {
			if e.Verdict == "" {
				t.Errorf("fact %d of the kept operation has no record in the new generation", e.Sequence)
			}
		}
	})
}

func findStream(t *testing.T, dir, name string) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			found = path
			return filepath.SkipAll
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("stream %s is not under %s: %v", name, dir, err)
	}
	return found
}
