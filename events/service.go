package events

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// A ServiceFact is something that happened to the service itself and not to an
// operation. It has the envelope of other facts and is kept in CONTROL. The set
// is closed. On an operation's subject its type is unknown.
//
//sumtype:decl
type ServiceFact interface {
	// Type is the fact's name and version, "hold.placed.v1".
	Type() Type
	codec.Record
	serviceFact()
}

// The types of service facts.
const (
	TypeHoldPlaced   Type = "hold.placed.v1"
	TypeHoldReleased Type = "hold.released.v1"
	TypeKeyChanged   Type = "key.changed.v1"
)

// ErrUnknownType is wrapped by every error that says that this version does not
// know a service fact's type.
var ErrUnknownType = errors.New("unknown type of fact")

// NewService gives an empty service fact of the type, or nil for a type this
// version does not know.
func NewService(t Type) ServiceFact {
	switch t {
	case TypeHoldPlaced:
		return new(HoldPlaced)
	case TypeHoldReleased:
		return new(HoldReleased)
	case TypeKeyChanged:
		return new(KeyChanged)
	}
	return nil
}

// HoldScope says which calls a hold rests.
type HoldScope string

// Scopes of a hold, from none to the strongest.
const (
	HoldNone    HoldScope = ""
	HoldCreates HoldScope = "creates" // no create leaves, nor a preparation before one
	HoldAll     HoldScope = "all"     // no call leaves at all; deadlines run on
)

// HoldPlaced rests calls to a provider, or to all, until it is released.
// Permit.
type HoldPlaced struct {
	Scope HoldScope
	Who   string // principal
	KeyID string // which of the principal's keys was used
	Key   string // caller's idempotency key, hashed; "" if none was sent
	Why   Digest // reason in PAYLOADS
	Extra codec.Extra
}

// HoldReleased ends the hold on its subject. Permit.
type HoldReleased struct {
	Who   string
	KeyID string
	Key   string
	Why   Digest
	Extra codec.Extra
}

// Type implements [ServiceFact].
func (*HoldPlaced) Type() Type { return TypeHoldPlaced }

func (*HoldPlaced) serviceFact() {}

// Fields implements [codec.Record].
func (f *HoldPlaced) Fields(v *codec.Visitor) {
	codec.Text(v, "s", &f.Scope)
	codec.Text(v, "w", &f.Who)
	codec.Text(v, "kid", &f.KeyID)
	codec.Text(v, "k", &f.Key)
	codec.Digest(v, "y", &f.Why)
	codec.Rest(v, &f.Extra)
}

// Type implements [ServiceFact].
func (*HoldReleased) Type() Type { return TypeHoldReleased }

func (*HoldReleased) serviceFact() {}

// Fields implements [codec.Record].
func (f *HoldReleased) Fields(v *codec.Visitor) {
	codec.Text(v, "w", &f.Who)
	codec.Text(v, "kid", &f.KeyID)
	codec.Text(v, "k", &f.Key)
	codec.Digest(v, "y", &f.Why)
	codec.Rest(v, &f.Extra)
}

// KeyChanged is what a keys file says of one key, as a process found it that
// authenticates by it. Evidence: who gets in is decided by the file. There is
// nothing of the secret in it.
type KeyChanged struct {
	KeyID     string
	Principal string
	Scopes    []string // what the key may do, also where its line does not say
	Operator  bool     // has the operator's right
	Team      string   // of the principal; "" for none
	Expires   time.Time
	Disabled  bool
	Removed   bool // the file has no line of it any more
	Extra     codec.Extra
}

// Type implements [ServiceFact].
func (*KeyChanged) Type() Type { return TypeKeyChanged }

func (*KeyChanged) serviceFact() {}

// Fields implements [codec.Record].
func (f *KeyChanged) Fields(v *codec.Visitor) {
	codec.Text(v, "kid", &f.KeyID)
	codec.Text(v, "w", &f.Principal)
	codec.Texts(v, "s", &f.Scopes)
	codec.Bool(v, "o", &f.Operator)
	codec.Text(v, "t", &f.Team)
	codec.Time(v, "e", &f.Expires)
	codec.Bool(v, "d", &f.Disabled)
	codec.Bool(v, "r", &f.Removed)
	codec.Rest(v, &f.Extra)
}

// KeySubject is the subject attribute of the facts about one key.
func KeySubject(id string) string { return "keys/" + id }

const heldProviders = "providers" // what a hold without a provider is on

// HoldSubject is the subject attribute of the facts of one hold: "providers"
// for the hold on all of them, which "" names, else "providers/NAME".
func HoldSubject(provider string) string {
	if provider == "" {
		return heldProviders
	}
	return heldProviders + "/" + provider
}

// HeldProvider reads what HoldSubject wrote.
func HeldProvider(subject string) (provider string, ok bool) {
	if subject == heldProviders {
		return "", true
	}
	provider, ok = strings.CutPrefix(subject, heldProviders+"/")
	return provider, ok && provider != ""
}

// ServiceEvent is a service fact with its envelope. The facts of one subject
// form a chain, as those of an operation do; the first carries the digest of
// the subject.
type ServiceEvent struct {
	ID          string
	Source      string
	Subject     string
	Time        time.Time
	Previous    Digest
	TraceParent string
	Actor       string
	CausationID string
	Extensions  []Attribute
	Fact        ServiceFact
}

// envelope is the same envelope around bytes.
func (e ServiceEvent) envelope() Event {
	return Event{
		ID: e.ID, Source: e.Source, Operation: e.Subject, Time: e.Time, Previous: e.Previous,
		TraceParent: e.TraceParent, Actor: e.Actor, CausationID: e.CausationID, Extensions: e.Extensions,
		Fact: &Unknown{Name: e.Fact.Type(), Data: codec.Marshal(e.Fact)},
	}
}

// EncodeService does for a service fact what [Encode] does for others.
func EncodeService(e ServiceEvent) (header map[string][]string, data []byte, d Digest) {
	return Encode(e.envelope())
}

// DecodeService reads what EncodeService wrote. An error wraps ErrMalformed, or
// ErrUnknownType, which a later version may know.
func DecodeService(header map[string][]string, data []byte) (ServiceEvent, Digest, error) {
	e, d, err := Decode(header, data)
	if err != nil {
		return ServiceEvent{}, Digest{}, err
	}
	// Operations have no fact of these types, so that Decode kept the bytes.
	u, ok := e.Fact.(*Unknown)
	if !ok {
		return ServiceEvent{}, Digest{}, fmt.Errorf("%w: %s is a fact of an operation", ErrMalformed, e.Fact.Type())
	}
	fact := NewService(u.Name)
	if fact == nil {
		return ServiceEvent{}, Digest{}, fmt.Errorf("%w: %.80q", ErrUnknownType, u.Name)
	}
	if err := codec.Unmarshal(u.Data, fact); err != nil {
		return ServiceEvent{}, Digest{}, fmt.Errorf("%w: data of %s: %w", ErrMalformed, u.Name, err)
	}
	return ServiceEvent{
		ID: e.ID, Source: e.Source, Subject: e.Operation, Time: e.Time, Previous: e.Previous,
		TraceParent: e.TraceParent, Actor: e.Actor, CausationID: e.CausationID, Extensions: e.Extensions, Fact: fact,
	}, d, nil
}
