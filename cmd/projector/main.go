// Command projector folds the ledger into history and wake-ups, and tells of what
// comes to rest. The other roles and the store run elsewhere.
package main

import (
	"os"

	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

const long = `Fold the ledger into history and wake-ups, and tell of operations that come to
rest. The store is a NATS cluster. Instances share the partitions.

The streams must be there: counterfoil provision makes them. Exit codes: 0 after
it was told to stop, 1 where it could not go on, 2 for a wrong command line.`

func main() {
	os.Exit(launch.Main("projector", "Fold the ledger into history and wake-ups", long, wire.Projector))
}
