package journal

import (
	"bytes"
	"fmt"
	"io"

	"github.com/nats-io/nkeys"
)

// AgentSubjects are what an agent may name at a NATS server, whichever it is. Each
// key of an agent has an account of its own there, since the server sends answers in
// its own name to whatever subject of its account a client asks for: from the
// account of the store an agent could write to every stream.
type AgentSubjects struct {
	Intents  string // it publishes there
	Offered  string // the same in the store's account: the server writes the key into it
	Verdicts string // it subscribes to that
	Direct   string // it asks there for single verdicts
	Inboxes  string // it subscribes to that
}

// SubjectsOf gives the subjects of a key.
func SubjectsOf(principal, key string) AgentSubjects {
	verdicts := "verdicts." + principal + ".*"
	return AgentSubjects{
		Intents: intents + principal, Offered: offers + principal + "." + key,
		Verdicts: verdicts, Direct: directVerdicts + verdicts, Inboxes: "_INBOX.>",
	}
}

// Permissions are the subjects that a key may publish on, as a publish or a request,
// and subscribe to. Whoever may not read gets no verdicts: they are on all intents of
// the principal. The list to publish on may be empty, which servers take for everything,
// so that it then names the inboxes, where nobody hears but the agent itself.
func (s AgentSubjects) Permissions(submits, reads bool) (publish, subscribe []string) {
	subscribe = []string{s.Inboxes}
	if reads {
		publish, subscribe = append(publish, s.Direct), append(subscribe, s.Verdicts)
	}
	if submits {
		publish = append(publish, s.Intents)
	}
	if len(publish) == 0 {
		publish = []string{s.Inboxes}
	}
	return publish, subscribe
}

const (
	// intents begins the subjects that INTENTS stores, offers those that a [Door] takes.
	intents = "intents."
	offers  = "offers."
)

const directVerdicts = apiPrefix + "DIRECT.GET." + string(Verdicts) + "."

// AgentExports are what the store's account lets other accounts have: services, which
// are asked, and streams, which are heard.
func AgentExports() (services, streams []string) {
	return []string{offers + "*.*", directVerdicts + "verdicts.*.*"}, []string{"verdicts.*.*"}
}

// NewAgentSeed makes what an agent proves by that it is one: the seed of an nkey,
// which is a secret, and the public key that a server knows it by.
func NewAgentSeed(random io.Reader) (seed []byte, public string, err error) {
	pair, err := nkeys.CreatePairWithRand(nkeys.PrefixByteUser, random)
	if err != nil {
		return nil, "", fmt.Errorf("make an nkey: %w", err)
	}
	defer pair.Wipe()
	if public, err = pair.PublicKey(); err != nil {
		return nil, "", fmt.Errorf("make an nkey: %w", err)
	}
	own, err := pair.Seed()
	if err != nil {
		return nil, "", fmt.Errorf("make an nkey: %w", err)
	}
	return bytes.Clone(own), public, nil // the pair's is wiped
}

// PublicOf gives the public key of a seed. The text is not in the error.
func PublicOf(seed []byte) (string, error) {
	pair, err := keysIn(seed)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	public, err := pair.PublicKey()
	if err != nil {
		return "", errBadCredentials
	}
	return public, nil
}
