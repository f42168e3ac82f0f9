package launch_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// Every flag of a command that holds one role refuses an empty value, but the one
// whose usage says what an empty value means.
func TestNoFlagIsTakenEmpty(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, roles := range map[string]wire.Roles{"ingest": wire.Ingest, "poller": wire.Poller, "projector": wire.Projector, "webhooks": wire.Webhooks} {
		t.Run(name, func(t *testing.T) {
			command := func(args ...string) error {
				cmd := launch.Command(name, "", "", roles, io.Discard, io.Discard)
				cmd.SetArgs(append([]string{"--nats", "nats://127.0.0.1:1"}, args...)) // nobody listens there
				return cmd.ExecuteContext(ended)
			}
			flags := 0
			launch.Command(name, "", "", roles, io.Discard, io.Discard).Flags().VisitAll(func(f *pflag.Flag) {
				if strings.Contains(f.Usage, "'' for ") {
					return
				}
				flags++
				err := command("--" + f.Name + "=")
				var wrong *launch.Error
				if !errors.As(err, &wrong) || !wrong.Usage || !strings.Contains(err.Error(), "--"+f.Name+" is empty: give it a value, or leave it out") &&
					!strings.Contains(err.Error(), `invalid argument "" for "--`+f.Name) {
					t.Errorf("--%s '': %v, want it refused", f.Name, err)
				}
			})
			var wrong *launch.Error
			if err := command("more"); !errors.As(err, &wrong) || !wrong.Usage {
				t.Errorf("an argument: %v, want it refused as a wrong command line", err)
			}
			if flags < 8 {
				t.Errorf("%d flags were seen", flags)
			}
			if err := command("--admin-listen=", "--clock-difference=1h"); err == nil || !strings.Contains(err.Error(), "--clock-difference is 1h") {
				t.Errorf("--admin-listen '': %v, want it taken, and what comes after it refused", err)
			}
		})
	}
}
