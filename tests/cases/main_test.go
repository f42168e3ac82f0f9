// Package cases_test plays the field cases: what the service must show when a
// provider, a caller, the network or the host misbehaves. Each case is a test
// named after it, from outside: through the HTTP interface, the simulated
// provider's log, and the history. Two things hold in every case: one operation
// never leads to two provider jobs, and nothing a caller was told is accepted is
// ever lost.
package cases_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The cases with processes of their own wait for leases to end more than they
	// work: they wait together, whatever the number of processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := programs.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}
