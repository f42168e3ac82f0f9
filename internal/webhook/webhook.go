// Package webhook takes a provider's calls and turns them into facts.
//
// A delivery to /hooks/{provider} or /hooks/{provider}/{operation} is verified
// over its raw bytes, stored once, and only then answered as taken. A second
// role reads the store and appends webhook.received to the operations that the
// event is about, by reference, job or an address that counts, which makes their
// owner look sooner and proves nothing else.
//
// The signature covers no address. One counts only where the contract says that
// our reference is in it and where it carries the key that the create gave to
// the provider (AddressKey); every other is as good as none. An event about none is parked, for those that
// come to know its job later.
//
// Guarantees: nothing of a delivery is read before its signature holds; only
// what the signature covers is read at all; a delivery that verified is never
// refused for whom it names; one that was answered as taken becomes a fact, once
// for each operation, or is parked, however often the provider sends it and
// whenever a process dies.
//
// Limits: a store that refuses a second delivery does so for ever. A delivery
// that cannot be read as its contract says is a fact too, without a job. What is
// parked expires after the longest result deadline of its provider.
package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/signature"
)

// MaxBody bounds a delivery in bytes.
const MaxBody = 1 << 20

const (
	maxEventID = 512 // bytes of a provider's event id that tell deliveries apart

	batch = 16
	// fetchWait is how long one request for deliveries waits.
	fetchWait = 5 * time.Second
	// restAfterFailure is how long the role rests when the store does not answer.
	restAfterFailure = time.Second

	// finishTime bounds what is still recorded when the role stops.
	finishTime = 10 * time.Second

	// lookBack is how many stored deliveries are looked at again at the start.
	lookBack = 1000

	headerOperation = "Addressed" // the operation, only where the address counts
	headerAccount   = "Account"   // those whose secret it was signed with
	headerScheme    = "Scheme"
	headerEventID   = "Event-Id" // only where the signature covers it
	headerMedia     = "Content-Type"
)

// Errors a face tells apart. Any other error of Receive is the store's: the
// provider must send again.
var (
	// ErrUnknown says that there is no such provider, or that it has no webhooks
	// here.
	ErrUnknown = errors.New("no such webhook")
	// ErrSignature says that the delivery is not authentic.
	ErrSignature = errors.New("signature refused")
	// ErrTooLarge says that the body is over MaxBody.
	ErrTooLarge = errors.New("body too large")
)

// Directory says how providers call us.
type Directory interface {
	// Current gives the provider's contract.
	Current(provider string) (*contract.Contract, bool)
	// WebhookSecrets gives the shared secrets of the provider's accounts; none
	// means that no delivery can be verified.
	WebhookSecrets(provider string) []Secret
}

// Secret is what a provider signs an account's webhooks with.
type Secret struct {
	Account   string
	Reference string // of the secret, never itself
}

// Clock is the role's time. Sleep returns early with ctx's error.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Config of a [Receiver]. Every field is required.
type Config struct {
	Journal   *journal.Journal
	Directory Directory
	Secrets   outbound.CredentialResolver
	Clock     Clock
	Log       *slog.Logger
	// Source is the CloudEvents source of this role's facts, "/webhooks/1".
	Source string
	// AddressKey is what the keys of addresses are derived under; see AddressKey.
	AddressKey []byte
}

// Receiver takes deliveries and makes facts of them. It is safe for concurrent
// use and keeps nothing.
type Receiver struct{ cfg Config }

// New makes a Receiver.
func New(cfg Config) *Receiver { return &Receiver{cfg} }

// AddressKey is what the address given to a provider with an operation's create
// carries as its query parameter "key": 32 hexadecimal digits, derived under
// secret. It is a secret itself: whoever holds it and a signed delivery can have
// the delivery's job read for this operation.
func AddressKey(secret []byte, provider, account, operation string) string {
	h := hmac.New(sha256.New, secret)
	for _, part := range []string{provider, account, operation} {
		fmt.Fprintf(h, "%d %s ", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Address is what a delivery came to, beside its provider.
type Address struct {
	Operation string // "" where it names none
	Key       string // as it was given; see AddressKey
}

// Takes says whether deliveries of the provider can be taken here, so that the body of
// one that cannot need not be read.
func (r *Receiver) Takes(provider string) bool {
	c, ok := r.cfg.Directory.Current(provider)
	return ok && c.Webhook != nil && len(r.cfg.Directory.WebhookSecrets(provider)) > 0
}

// Receive verifies and stores one delivery. fresh is false if it was stored
// before. nil means that it is stored; only then may the provider be told so.
func (r *Receiver) Receive(ctx context.Context, provider string, address Address, d signature.Delivery) (fresh bool, err error) {
	if len(d.Body) > MaxBody {
		return false, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, MaxBody)
	}
	c, ok := r.cfg.Directory.Current(provider)
	if !ok || c.Webhook == nil {
		return false, fmt.Errorf("%w: provider", ErrUnknown)
	}
	signed, accounts, err := r.verify(ctx, provider, c.Webhook, d)
	if err != nil {
		return false, err
	}
	operation, err := r.counts(ctx, provider, c.Webhook, address, accounts)
	if err != nil {
		return false, err
	}
	header := map[string][]string{headerScheme: {c.Webhook.Scheme}, headerAccount: accounts}
	if operation != "" {
		header[headerOperation] = []string{operation}
	}
	if signed.EventID != "" {
		header[headerEventID] = []string{clip(signed.EventID)}
	}
	if media, _, err := mime.ParseMediaType(first(d.Header["Content-Type"])); err == nil {
		header[headerMedia] = []string{clip(media)}
	}
	// A crash before this write leaves nothing, and the provider, who got no
	// answer, sends again. A crash after it leaves the delivery for Run, and the
	// provider's repetition is found stored.
	key := dedupeKey(c, r.whose(provider, operation, accounts), signed.EventID, d.Body)
	// The store is for ever, so the secret parts of links stay out of it.
	fresh, err = r.cfg.Journal.StoreWebhook(ctx, provider, key, header, canonical.RedactLinks(d.Body))
	if err != nil {
		return false, fmt.Errorf("webhook of %s for %q: %w", provider, operation, err)
	}
	return fresh, nil
}

// counts gives the operation that the address names, or "" for an address that
// does not count. It is not signed, so that the same delivery can come to any;
// only the provider was given its key. One that names no operation of these
// accounts, or has not its key, is one that names none: the provider is not
// told, who would give up on the address, and a stranger with one delivery cannot
// make many of it.
func (r *Receiver) counts(ctx context.Context, provider string, w *contract.Webhook, a Address, accounts []string) (string, error) {
	if !w.InURL || a.Operation == "" || a.Key == "" {
		return "", nil
	}
	s, err := r.cfg.Journal.Current(ctx, a.Operation)
	switch {
	case errors.Is(err, journal.ErrNoOperation), errors.Is(err, journal.ErrBadName):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("webhook for %s: %w", a.Operation, err)
	}
	want := AddressKey(r.cfg.AddressKey, provider, s.Intent.Account, a.Operation)
	if s.Intent.Provider != provider || !slices.Contains(accounts, s.Intent.Account) || !hmac.Equal([]byte(a.Key), []byte(want)) {
		return "", nil
	}
	return a.Operation, nil
}

// verify holds the delivery against the secret of each account, afresh, so that
// a rotated secret needs no restart. It gives what was signed and the accounts
// whose secret it was signed with: one account's sender knows nothing of
// another's operations.
func (r *Receiver) verify(ctx context.Context, provider string, w *contract.Webhook, d signature.Delivery) (signed signature.Verified, accounts []string, err error) {
	secrets := r.cfg.Directory.WebhookSecrets(provider)
	if len(secrets) == 0 {
		return signed, nil, fmt.Errorf("%w: no secret is configured for provider %s", ErrUnknown, provider)
	}
	var missing, refused error
	for _, s := range secrets {
		secret, err := r.cfg.Secrets.Resolve(ctx, s.Reference)
		if err != nil {
			missing = fmt.Errorf("webhook secret of provider %s, account %s: %w", provider, s.Account, err)
			continue
		}
		got, err := signature.Verify(schemeOf(w), secret.Reveal(), d, r.cfg.Clock.Now())
		if err != nil {
			refused = fmt.Errorf("%w: %w", ErrSignature, err)
			continue
		}
		signed, accounts = got, append(accounts, s.Account)
	}
	switch {
	case len(accounts) > 0:
		return signed, accounts, nil
	case missing != nil: // it may be signed with that one: the provider must send again
		return signed, nil, missing
	}
	return signed, nil, refused
}

func schemeOf(w *contract.Webhook) signature.Scheme {
	return signature.Scheme{Name: w.Scheme, Header: w.Header, Prefix: w.Prefix}
}

// whose is the part of a dedupe key that tells apart equal events of different
// senders. The operation is in it where the address counts: the same body at
// another address must not keep the true one out. So are the accounts, where
// the secret is not that of all: two of them can number their events alike.
func (r *Receiver) whose(provider, operation string, accounts []string) string {
	whose := operation
	if whose == "" {
		whose = "-"
	}
	if len(accounts) < len(r.cfg.Directory.WebhookSecrets(provider)) {
		whose += " of " + strings.Join(accounts, ",")
	}
	return whose
}

// dedupeKey tells one event from another: by the id the signature covers, in a
// header or in the body, else by the body. An id in an unsigned header would
// let whoever holds one delivery make many of it.
func dedupeKey(c *contract.Contract, whose, signedID string, body []byte) string {
	id := signedID
	if id == "" {
		if reading, err := c.ReadWebhook(body, nil); err == nil {
			id = reading.EventID
		}
	}
	if id == "" || len(id) > maxEventID {
		sum := sha256.Sum256(body)
		return whose + " body " + hex.EncodeToString(sum[:])
	}
	return whose + " id " + id
}

// Run makes facts of stored deliveries, or parks them, until ctx ends, which is
// not an error. Those it was handed by then it finishes, within finishTime.
func (r *Receiver) Run(ctx context.Context) error {
	seen, err := r.parkAgain(ctx)
	if err != nil && ctx.Err() == nil {
		r.cfg.Log.ErrorContext(ctx, "events that power loss may have taken from INDEX are not parked again before the next start", "error", err)
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		limit := time.AfterFunc(finishTime, stop)
		context.AfterFunc(work, func() { limit.Stop() })
	})()
	var queue *journal.WebhookQueue
	for ctx.Err() == nil {
		err := error(nil)
		if queue == nil {
			queue, err = r.cfg.Journal.Webhooks(ctx)
		}
		var list []*journal.Webhook
		if err == nil {
			list, err = queue.Fetch(ctx, batch, fetchWait)
		}
		if err != nil && ctx.Err() == nil {
			// Nothing is lost: what is not acked stays in the queue.
			r.cfg.Log.WarnContext(ctx, "no webhook could be fetched", "error", err)
			if r.cfg.Clock.Sleep(ctx, restAfterFailure) != nil {
				return nil
			}
			continue
		}
		for _, w := range list {
			if err := r.record(work, w, w.Delivered > 1 || w.Sequence <= seen); err != nil && work.Err() == nil {
				// The lease ends by itself and the delivery comes again.
				r.cfg.Log.ErrorContext(ctx, "webhook left to its next lease", "provider", w.Provider, "sequence", w.Sequence, "error", err)
			}
		}
	}
	return nil
}

// record makes one delivery a fact of each operation it is about, or parks it,
// then acks it. again says that somebody may have done some of it before.
func (r *Receiver) record(ctx context.Context, w *journal.Webhook, again bool) error {
	a, err := r.arrival(ctx, w)
	if err != nil {
		return err
	}
	// A crash before the append leaves the delivery in the queue. A crash
	// between append and ack brings it again, and it is found recorded. Two
	// holders of one lease may both append; the id is derived from the delivery,
	// so the fold notes the second as a duplicate.
	n, err := r.cfg.Journal.Deliver(ctx, a, r.cfg.Source, again)
	if err != nil {
		return err
	}
	if n == 0 {
		if err := r.park(ctx, a); err != nil {
			return err
		}
	} else if again {
		// It may have been parked before it matched.
		if err := r.cfg.Journal.Unpark(ctx, a); err != nil {
			return err
		}
	}
	return r.ack(ctx, w)
}

// park keeps an event that is about no operation, and then looks again: what
// was named meanwhile has seen it parked, or is seen now. A crash before the
// second look leaves it parked and in the queue.
func (r *Receiver) park(ctx context.Context, a journal.Arrival) error {
	keep := longestKeep
	if c, ok := r.cfg.Directory.Current(a.Provider); ok {
		keep = c.LongestResult()
	}
	if err := r.cfg.Journal.Park(ctx, a, keep); err != nil {
		return err
	}
	n, err := r.cfg.Journal.Deliver(ctx, a, r.cfg.Source, true)
	if err != nil || n == 0 {
		return err
	}
	return r.cfg.Journal.Unpark(ctx, a)
}

// longestKeep is for deliveries of providers whose contract is gone.
const longestKeep = 30 * 24 * time.Hour

// arrival reads a stored delivery.
func (r *Receiver) arrival(ctx context.Context, w *journal.Webhook) (journal.Arrival, error) {
	a := journal.Arrival{
		Provider: w.Provider, Key: w.Key, Operation: first(w.Header[headerOperation]), Time: w.Time,
		Accounts: w.Header[headerAccount],
		Fact:     events.WebhookReceived{EventID: first(w.Header[headerEventID]), Scheme: first(w.Header[headerScheme])},
	}
	if c, ok := r.cfg.Directory.Current(w.Provider); ok {
		// Only what was signed is read, so no headers. What cannot be read is
		// left out: the delivery itself is worth a look at the job.
		if reading, err := c.ReadWebhook(w.Body, nil); err == nil {
			a.Fact.EventType, a.Fact.Remote, a.Fact.JobID, a.Reference = reading.Type, reading.Remote, reading.JobID, reading.Reference
			if a.Fact.EventID == "" {
				a.Fact.EventID = reading.EventID
			}
		}
	}
	if a.Fact.EventID == "" {
		a.Fact.EventID = events.Sum(w.Body).String()
	}
	// The body before the fact that names it; a crash in between leaves bytes
	// that nothing refers to.
	var err error
	if a.Fact.Body, err = r.cfg.Journal.PutPayload(ctx, w.Body); err != nil {
		return a, fmt.Errorf("store webhook body of %s: %w", w.Provider, err)
	}
	return a, nil
}

// parkAgain looks at the newest stored deliveries whose address does not
// count. INDEX is not synced, so that power loss can take an event out of it
// whose delivery was acknowledged because it was parked. It gives the newest
// sequence it saw.
func (r *Receiver) parkAgain(ctx context.Context) (newest uint64, err error) {
	now := r.cfg.Clock.Now()
	err = r.cfg.Journal.RecentWebhooks(ctx, lookBack, func(w *journal.Webhook) (more bool, err error) {
		newest = max(newest, w.Sequence)
		more = w.Time.Add(longestKeep).After(now)
		if len(w.Header[headerOperation]) > 0 {
			return more, nil
		}
		a, err := r.arrival(ctx, w)
		if err != nil {
			return false, err
		}
		n, err := r.cfg.Journal.Deliver(ctx, a, r.cfg.Source, true)
		if err == nil && n == 0 {
			err = r.park(ctx, a)
		}
		return more, err
	})
	return newest, err
}

// ack ends a delivery that is a fact, or parked. A crash before it brings the
// delivery again.
func (r *Receiver) ack(ctx context.Context, w *journal.Webhook) error {
	if err := w.Ack(ctx); err != nil {
		return fmt.Errorf("ack webhook %d, which is recorded: %w", w.Sequence, err)
	}
	return nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func clip(s string) string { return s[:min(len(s), maxEventID)] }
