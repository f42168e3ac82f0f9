package fleet_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/tests/fleet"
)

var programs fleet.Programs

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := programs.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}
