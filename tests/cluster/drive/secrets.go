package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"
)

// rights is what a role may publish on its streams, and whose consumers it uses.
// Reading a stream's configuration and its messages is every role's.
type rights struct {
	role    string
	publish []string
	queues  []string
}

func roles() []rights {
	return []rights{
		{"ingest", []string{"facts.>", "payloads.*", "control.*", "job.>", "verdicts.*.*", "rejected.*.*"}, []string{"INTENTS", "HISTORY"}},
		{"projector", []string{"facts.>", "payloads.*", "history.>", "wake.*", "due.>", "epoch.*", "job.>", "ref.>", "client.>", "parked.>"}, []string{"LEDGER", "HISTORY", "CONTROL"}},
		{"poller", []string{"facts.>", "payloads.*", "control.*", "job.>", "slot.>"}, []string{"WAKEUPS"}},
		{"webhooks", []string{"facts.>", "payloads.*", "control.*", "webhooks.>", "parked.>"}, []string{"WEBHOOKS"}},
	}
}

func (r rights) subjects() []string {
	list := append([]string{"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*"}, r.publish...)
	for _, s := range r.queues {
		list = append(list,
			"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.DURABLE.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*",
			"$JS.API.CONSUMER.DELETE."+s+".*", "$JS.API.CONSUMER.UNPIN."+s+".*", "$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.ACK."+s+".>")
	}
	return list
}

// secrets writes the nkeys, and what the servers are told of them and of each other.
func secrets(dir string) error {
	var users strings.Builder
	users.WriteString("authorization {\n  timeout: 5\n  users: [\n")
	add := func(role, permissions string) error {
		pair, err := nkeys.CreateUser()
		if err != nil {
			return err
		}
		public, err := pair.PublicKey()
		if err != nil {
			return err
		}
		seed, err := pair.Seed()
		if err != nil {
			return err
		}
		fmt.Fprintf(&users, "    { nkey: %s%s }\n", public, permissions)
		return write(dir, "nkey-"+role, string(seed)+"\n")
	}
	if err := add("provision", ""); err != nil {
		return err
	}
	for _, r := range roles() {
		permissions := fmt.Sprintf(", permissions: { publish: { allow: [%q] }, subscribe: { allow: [\"_INBOX.>\"] } }", strings.Join(r.subjects(), `", "`))
		permissions = strings.ReplaceAll(permissions, `\"`, `"`)
		if err := add(r.role, permissions); err != nil {
			return err
		}
	}
	users.WriteString("  ]\n}\n")
	if err := write(dir, "nats-users", users.String()); err != nil {
		return err
	}
	password := rand.Text()
	var routes []string
	for n := 1; n <= 3; n++ {
		routes = append(routes, fmt.Sprintf("\"nats-route://route:%s@nats-%d:6222\"", password, n))
	}
	return write(dir, "nats-cluster", fmt.Sprintf(`cluster {
  name: counterfoil
  listen: "0.0.0.0:6222"
  no_advertise: true
  authorization { user: route, password: %q }
  routes: [%s]
}
`, password, strings.Join(routes, ", ")))
}

func write(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o400)
}
