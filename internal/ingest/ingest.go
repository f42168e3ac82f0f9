// Package ingest holds what callers can ask of the ledger: submit an
// operation, look at it, wait for it, list, read its timeline and result, ask
// for its cancellation, and decide what automation must not.
//
// Guarantees. One principal's key names one operation for ever: the same
// request again gives the operation as it now stands, another request under the
// key is refused. An error before anything is recorded does not use the key up.
// A caller sees the operations of its principal, and others only with a scope
// that says so; every use case asks [Caller.May]. Answers come
// from current state, not from history. Provider text leaves only as a cleaned
// excerpt.
//
// Every refusal is a [Refusal] with a stable [Code]; any other error is a
// failure of the store, after which a submit may be repeated with its key.
//
// Limits: a list is a bounded scan of the newest history and may lag behind the
// operations it names.
package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"log/slog"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// Bounds of what a caller may send.
const (
	MaxBody     = 1 << 20 // bytes of a request body
	MaxKey      = 255     // characters of an idempotency key
	MaxWhy      = 4 << 10 // bytes of a reason
	MaxText     = 1024    // bytes of any other text field
	MaxTags     = 32
	MaxTagName  = 64
	MaxTagValue = 256
)

// Directory gives contracts as they are configured now.
type Directory interface {
	// Current gives the contract that new operations with the provider use.
	Current(provider string) (*contract.Contract, bool)
	// Providers lists the names, sorted.
	Providers() []string
	// HasAccount says whether the account is configured for the provider.
	HasAccount(provider, account string) bool
	// MayUse says whether the principal may use the account, whether or not it
	// is configured.
	MayUse(principal, provider, account string) bool
	// AccountsOf lists the configured accounts of the provider that the
	// principal may use, sorted.
	AccountsOf(principal, provider string) []string
	// Reachable says whether the provider's webhooks for the account can reach
	// us and are verified.
	Reachable(provider, account string) bool
}

// Clock is the service's time. Sleep and SleepOr return early with ctx's error, and
// SleepOr returns early without one once woken is closed.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
	SleepOr(ctx context.Context, d time.Duration, woken <-chan struct{}) error
}

// Config of a [Service]. Every field is required unless it says otherwise.
type Config struct {
	Journal   *journal.Journal
	Directory Directory
	Clock     Clock
	NewID     func() string // for facts; random
	Build     string        // the program's version, for capabilities; "" if it is not known

	// Installation and Key are made at first start and kept outside the ledger,
	// so that a lost ledger still gives the same ids and tokens.
	Installation string
	Key          []byte

	// Source is the CloudEvents source of this role's facts, "/ingest/1".
	Source string
	// ClockDifference is what clocks of two processes may differ by; 0 where
	// one process holds all roles.
	ClockDifference time.Duration

	// HoldsChanged is called before a caller hears that a hold is placed or
	// released, and makes it count in this process. Optional.
	HoldsChanged func(context.Context)

	// Bound says where an operation's create goes and where the provider may call
	// back, as the pollers of this process have it, "" for the contract's and for none. With
	// it the request of the create is stored beside the intent. Nil where others call providers.
	Bound func(provider, account, operation string) (baseURL, callbackURL string)

	// Unusable says why calls to an account will not leave, as the pollers of this process
	// have it now, "" if nothing is known. Nil where others call providers.
	Unusable func(ctx context.Context, provider, account string) Unusable

	// Policy gives the rules that demand approvals, as they are now; nil for none. Optional.
	Policy func() *contract.Policy

	// Streams bounds the streams that are open at once. Optional.
	Streams StreamLimits

	// Quotas gives what a principal may begin, as it is configured now. Nil: the defaults
	// for all.
	Quotas func(principal string) Quotas
	// Exceeded is told of every new operation, or batch of them for all or none, that a
	// quota refused. Nil: nobody.
	Exceeded func(Policy)

	// Log is told what callers are not. Nil: nobody.
	Log *slog.Logger

	// Full says that no new operation may be taken, since the room that is left is
	// for those under way. Everything else is taken all the same. Nil means never.
	Full func() bool
}

// Service answers callers. It is safe for concurrent use. All it keeps is what it
// knows of operations that somebody waits for, and what principals have used of their
// quotas.
type Service struct {
	cfg     Config
	news    *news
	streams streams
	quotas  *quotas
	linking *linking
}

// New makes a Service.
func New(cfg Config) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Exceeded == nil {
		cfg.Exceeded = func(Policy) {}
	}
	return &Service{
		cfg: cfg, news: newNews(cfg.Journal, cfg.Clock, cfg.Log), streams: streams{limits: cfg.Streams.OrDefault(), by: map[string]int{}},
		quotas: newQuotas(cfg.Quotas, cfg.Clock.Now), linking: newLinking(),
	}
}

// Run follows the ledger for callers who wait, while there are any, until ctx ends.
// Without it they are answered all the same, later.
func (v *Service) Run(ctx context.Context) { v.news.run(ctx) }

// OperationID names the one operation of a principal's key, for ever.
func OperationID(installation, principal, key string) string {
	h := sha256.New()
	for _, s := range []string{installation, principal, key} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write([]byte(s))
	}
	return "op_" + strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)[:20]))
}

// maxID bounds an operation id in a request; ours have 35 characters.
const maxID = 64

// checkID keeps anything but [a-z0-9_] from ever becoming part of a subject.
func checkID(field, id string) error {
	ok := id != "" && len(id) <= maxID
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_')
	}
	if ok {
		return nil
	}
	return &Refusal{
		Code: CodeInvalidID, Detail: "an operation id has other characters, or another length; see errors",
		Errors: []FieldError{Wrong(field, FieldNotAllowed, "must be {min} to {max} of a-z, 0-9 and _", Values{"min": 1, "max": maxID})},
	}
}
