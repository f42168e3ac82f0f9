package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

const (
	seedMode = 0o600
	maxSeed  = 4 << 10 // bytes of a seed's file
)

// natsUsersCommand writes what servers elsewhere must know of agents.
func (a *app) natsUsersCommand() *cobra.Command {
	var keys keyFile
	var seeds, account string
	cmd := &cobra.Command{
		Use: "nats-users --seeds DIR", Short: "Write the accounts of agents for NATS servers elsewhere", Args: exactly(0, "none"),
		Long: `Write the part of a NATS server's configuration that lets agents publish intents
on servers elsewhere: an account for each key of the keys file that counts, with an
nkey. The seeds, by which agents prove who they are, go into the directory, one file
for each key, to be handed out; those that are there stay. Run it again after a change
of the keys file and have the servers read their configuration again. A key that was
revoked gets no operation from then on in any case, since ingest asks the keys file.

What it prints belongs into the block "accounts" of the configuration, where the
account that has Counterfoil's streams must be another than the global one. Its first
lines say what that account exports. docs/NATS.md has an example.`,
		RunE: func(*cobra.Command, []string) error {
			if seeds == "" {
				return usage("--seeds: name the directory for the agents' seeds")
			}
			if !contract.ValidName(strings.ToLower(account)) {
				return usage("--account is %q: want 1 to 64 letters, digits, _ and -", account)
			}
			path, err := keys.path()
			if err != nil {
				return err
			}
			return a.natsUsers(path, seeds, account, time.Now())
		},
	}
	keys.flags(cmd)
	cmd.Flags().StringVar(&seeds, "seeds", "", "directory of the agents' seeds, made if it is not there")
	cmd.Flags().StringVar(&account, "account", "COUNTERFOIL", "account that has the streams")
	return cmd
}

func (a *app) natsUsers(path, seeds, account string, now time.Time) error {
	list, err := ingest.ListKeys(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(seeds, 0o700); err != nil {
		return fmt.Errorf("make the directory for seeds: %w", err)
	}
	services, streams := journal.AgentExports()
	var b bytes.Buffer
	b.WriteString("# Accounts of agents, written by counterfoil nats-users. The account " + account + " needs:\n#   exports: [\n")
	for _, s := range services {
		fmt.Fprintf(&b, "#     { service: %q }\n", s)
	}
	for _, s := range streams {
		fmt.Fprintf(&b, "#     { stream: %q }\n", s)
	}
	b.WriteString("#   ]\n")
	for _, k := range list {
		if k.Disabled || k.Expired(now) {
			continue
		}
		public, err := agentSeed(filepath.Join(seeds, k.Principal+"-"+k.ID+".nk"))
		if err != nil {
			return err
		}
		who := ingest.Caller{Principal: k.Principal, Scopes: k.May()}
		writeAgent(&b, account, k.Principal, k.ID, public, who)
	}
	_, err = a.stdout.Write(b.Bytes())
	return err
}

func writeAgent(b *bytes.Buffer, account, principal, key, public string, who ingest.Caller) {
	may := journal.SubjectsOf(principal, key)
	publish, subscribe := may.Permissions(
		who.May(ingest.Right{Action: ingest.ActSubmit}) == nil, who.May(ingest.Right{Action: ingest.ActRead}) == nil)
	quoted := func(list ...string) string { return `["` + strings.Join(list, `", "`) + `"]` }
	fmt.Fprintf(b, `AGENT-%s-%s: {
  users: [
    { nkey: %s, permissions: { publish: { allow: %s }, subscribe: { allow: %s } } }
  ]
  imports: [
    { service: { account: %s, subject: %q }, to: %q }
    { service: { account: %s, subject: %q } }
    { stream: { account: %s, subject: %q } }
  ]
}
`, principal, key, public, quoted(publish...), quoted(subscribe...),
		account, may.Offered, may.Intents, account, may.Direct, account, may.Verdicts)
}

// agentSeed gives the public key of the seed in the file, which it makes if it is not
// there. A crash in between leaves no file, or one whose key is written the next time.
func agentSeed(path string) (string, error) {
	seed, _, err := outbound.ReadPrivate(path, maxSeed)
	switch {
	case err == nil:
		defer clear(seed)
		public, err := journal.PublicOf(bytes.TrimSpace(seed))
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return public, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	seed, public, err := journal.NewAgentSeed(rand.Reader)
	if err != nil {
		return "", err
	}
	defer clear(seed)
	if err := newFile(path, append(seed, '\n')); err != nil {
		return "", fmt.Errorf("write a seed: %w", err)
	}
	return public, nil
}

// newFile writes a file that was not there, whole or not at all.
func newFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".seed-*") // made 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(seedMode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), path) // fails where one was made meanwhile
	}
	return errors.Join(err, os.Remove(f.Name()))
}
