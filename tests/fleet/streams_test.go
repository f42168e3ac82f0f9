package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/tests/fleet"
)

// Streams are made by those who provision, and by nobody else. A role does not start
// where one is missing or was loosened, and one that runs sees it when it has found
// the server again.
func TestStreamsAreProvisioned(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{})
	says := func(what, text string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("%s: it does not say %q:\n%s", what, word, text)
			}
		}
	}
	// The server wants to see a certificate.
	args := f.Provision("admin")
	at := slices.Index(args, "--nats-cert")
	if _, complaint, code := f.Run(slices.Delete(args, at, at+4)...); code == 0 {
		t.Errorf("a client without certificate is let in: %s", complaint)
	}
	js := f.Administer()
	if err := js.DeleteStream(t.Context(), "INDEX"); err != nil {
		t.Fatal(err)
	}
	_, complaint, code := f.Run(f.Provision("role")...)
	if code == 0 {
		t.Error("a role's user provisions")
	}
	says("provision as a role", complaint, "INDEX")
	if _, err := js.Stream(t.Context(), "INDEX"); err == nil {
		t.Error("a role's user made a stream")
	}
	says("start without a stream", f.Refused("poller"), "INDEX")
	if _, complaint, code = f.Run(f.Provision("admin")...); code != 0 {
		t.Fatalf("provision: %s", complaint)
	}
	running := f.Start("ingest")

	s, err := js.Stream(t.Context(), "LEDGER")
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.MaxMsgs = 1000
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	says("start with a loosened stream", f.Refused("projector"), "LEDGER", "max_msgs")
	f.Server.Kill()
	f.StartServer()
	f.Until(fleet.Patience, "who runs sees it", func() bool {
		return strings.Contains(running.Admin("/readyz"), `"streams"`) && !strings.HasPrefix(running.Admin("/readyz"), `{"status":"ok"`)
	})
	says("the log of who runs", running.Log(), "LEDGER", "max_msgs")
	f.Until(fleet.Patience, "the client of the server's owner is there again", func() bool {
		s, err = js.Stream(t.Context(), "LEDGER")
		return err == nil
	})
	config.MaxMsgs = -1
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	f.Server.Kill() // sooner than the next minute
	f.StartServer()
	f.Until(70*time.Second, "who runs sees that it was put back", func() bool { return strings.HasPrefix(running.Admin("/readyz"), `{"status":"ok"`) })
}
