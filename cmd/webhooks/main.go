// Command webhooks takes providers' callbacks. The other roles and the store run
// elsewhere.
package main

import (
	"os"

	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

const long = `Take providers' callbacks over HTTP and make facts of them. The store is a NATS
cluster. Any number of instances may run.

The streams must be there: counterfoil provision makes them. Exit codes: 0 after
it was told to stop, 1 where it could not go on, 2 for a wrong command line.`

func main() {
	os.Exit(launch.Main("webhooks", "Take providers' callbacks", long, wire.Webhooks))
}
