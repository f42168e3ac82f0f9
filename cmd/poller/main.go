// Command poller makes the calls to providers. The other roles and the store run
// elsewhere.
package main

import (
	"os"

	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

const long = `Make the calls to providers that are due, and record what came of them. The store
is a NATS cluster. Any number of instances share the work.

The streams must be there: counterfoil provision makes them. Exit codes: 0 after
it was told to stop, 1 where it could not go on, 2 for a wrong command line.`

func main() {
	os.Exit(launch.Main("poller", "Make the calls to providers", long, wire.Poller))
}
