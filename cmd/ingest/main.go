// Command ingest takes callers' requests: the HTTP interface of an installation
// whose other roles and whose store run elsewhere.
package main

import (
	"os"

	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

const long = `Take callers' requests over HTTP and record them. The store is a NATS cluster,
and the other roles run beside it. Any number of instances may run.

The streams must be there: counterfoil provision makes them. Exit codes: 0 after
it was told to stop, 1 where it could not go on, 2 for a wrong command line.`

func main() {
	os.Exit(launch.Main("ingest", "Take callers' requests", long, wire.Ingest))
}
