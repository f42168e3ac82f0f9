// Package webhook takes a provider's calls and turns them into facts.
//
// A delivery to /hooks/{provider}/{operation} is verified over its raw bytes,
// stored once, and only then answered as taken. A second role reads the store
// and appends webhook.received, which makes the operation's owner look sooner
// and proves nothing else.
//
// Guarantees: nothing of a delivery is read before its signature holds; only
// what the signature covers is read at all; a delivery that was answered as
// taken becomes a fact, once, however often the provider sends it and whenever
// a process dies.
//
// Limits: a store that refuses a second delivery does so for ever. A delivery
// that cannot be read as its contract says is a fact too, without a job.
package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"slices"
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

	headerOperation = "Operation"
	headerScheme    = "Scheme"
	headerEventID   = "Event-Id" // only where the signature covers it
	headerMedia     = "Content-Type"
)

// Errors a face tells apart. Any other error of Receive is the store's: the
// provider must send again.
var (
	// ErrUnknown says that there is no such provider, that it has no webhooks
	// here, or, for a delivery that verified, no such operation of it.
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
}

// Receiver takes deliveries and makes facts of them. It is safe for concurrent
// use and keeps nothing.
type Receiver struct{ cfg Config }

// New makes a Receiver.
func New(cfg Config) *Receiver { return &Receiver{cfg} }

// Receive verifies and stores one delivery. fresh is false if it was stored
// before. nil means that it is stored; only then may the provider be told so.
func (r *Receiver) Receive(ctx context.Context, provider, operation string, d signature.Delivery) (fresh bool, err error) {
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
	// Only a sender with the secret learns which operations there are.
	s, err := r.cfg.Journal.Current(ctx, operation)
	switch {
	case errors.Is(err, journal.ErrNoOperation), errors.Is(err, journal.ErrBadName),
		err == nil && (s.Intent.Provider != provider || !slices.Contains(accounts, s.Intent.Account)):
		return false, fmt.Errorf("%w: operation", ErrUnknown)
	case err != nil:
		return false, fmt.Errorf("webhook for %s: %w", operation, err)
	}
	header := map[string][]string{headerOperation: {operation}, headerScheme: {c.Webhook.Scheme}}
	if signed.EventID != "" {
		header[headerEventID] = []string{clip(signed.EventID)}
	}
	if media, _, err := mime.ParseMediaType(first(d.Header["Content-Type"])); err == nil {
		header[headerMedia] = []string{clip(media)}
	}
	// A crash before this write leaves nothing, and the provider, who got no
	// answer, sends again. A crash after it leaves the delivery for Run, and the
	// provider's repetition is found stored.
	key := dedupeKey(c, operation, signed.EventID, d.Body)
	// The store is for ever, so the secret parts of links stay out of it.
	fresh, err = r.cfg.Journal.StoreWebhook(ctx, provider, key, header, canonical.RedactLinks(d.Body))
	if err != nil {
		return false, fmt.Errorf("webhook for %s: %w", operation, err)
	}
	return fresh, nil
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

// dedupeKey tells one event from another: by the id the signature covers, in a
// header or in the body, else by the body. An id in an unsigned header would
// let whoever holds one delivery make many of it. The operation is part of the
// key: the address is not signed, and the same body at another address must not
// keep the true one out.
func dedupeKey(c *contract.Contract, operation, signedID string, body []byte) string {
	id := signedID
	if id == "" {
		if reading, err := c.ReadWebhook(body, nil); err == nil {
			id = reading.EventID
		}
	}
	if id == "" || len(id) > maxEventID {
		sum := sha256.Sum256(body)
		return operation + " body " + hex.EncodeToString(sum[:])
	}
	return operation + " id " + id
}

// Run makes facts of stored deliveries until ctx ends, which is not an error.
func (r *Receiver) Run(ctx context.Context) error {
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
			if err := r.record(ctx, w); err != nil && ctx.Err() == nil {
				// The lease ends by itself and the delivery comes again.
				r.cfg.Log.ErrorContext(ctx, "webhook left to its next lease", "provider", w.Provider, "sequence", w.Sequence, "error", err)
			}
		}
	}
	return nil
}

// record makes one delivery a fact, then acks it.
func (r *Receiver) record(ctx context.Context, w *journal.Webhook) error {
	operation := first(w.Header[headerOperation])
	s, err := r.cfg.Journal.Current(ctx, operation)
	if err != nil {
		return fmt.Errorf("read %s: %w", operation, err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(w.Provider), w.Provider, w.Key))
	id := "webhook-" + hex.EncodeToString(sum[:16])
	if w.Delivered > 1 {
		// Whoever had it before may have died between append and ack.
		if known, err := r.recorded(ctx, operation, id); err != nil {
			return err
		} else if known {
			return r.ack(ctx, operation, w)
		}
	}
	fact := &events.WebhookReceived{
		EventID: first(w.Header[headerEventID]), Scheme: first(w.Header[headerScheme]), Exact: true,
	}
	if c, ok := r.cfg.Directory.Current(w.Provider); ok {
		// Only what was signed is read, so no headers. What cannot be read is
		// left out: the delivery itself is worth a look at the job.
		if reading, err := c.ReadWebhook(w.Body, nil); err == nil {
			fact.EventType, fact.Remote, fact.JobID = reading.Type, reading.Remote, reading.JobID
			if fact.EventID == "" {
				fact.EventID = reading.EventID
			}
			// A signed reference that is another operation's outweighs the address.
			if ref := reading.Reference; ref != "" && ref != s.Intent.ClientReference && ref != s.Intent.Token {
				fact.Exact = false
			}
		}
	}
	if fact.EventID == "" {
		fact.EventID = events.Sum(w.Body).String()
	}
	// The address is ours and names the operation, but it is not signed. A job
	// that another operation owns was not meant for this one: that is noted on
	// both and binds neither.
	owner := ""
	if fact.JobID != "" {
		found, owned, err := r.cfg.Journal.Owner(ctx, w.Provider, s.Intent.Account, fact.JobID)
		if err != nil {
			return fmt.Errorf("owner of the job a webhook for %s names: %w", operation, err)
		}
		if owned && found != operation {
			owner, fact.Exact = found, false
		}
	}
	// The body before the fact that names it; a crash in between leaves bytes
	// that nothing refers to.
	if fact.Body, err = r.cfg.Journal.PutPayload(ctx, w.Body); err != nil {
		return fmt.Errorf("store webhook body for %s: %w", operation, err)
	}
	// A crash before the append leaves the delivery in the queue. A crash
	// between append and ack brings it again, and it is found recorded. Two
	// holders of one lease may both append; the id is derived from the delivery,
	// so the fold notes the second as a duplicate. The owner's note, if there is
	// one, comes first, so that it is never the one that is missing.
	e := events.Event{ID: id, Source: r.cfg.Source, Time: w.Time, Actor: w.Provider, Fact: fact}
	if owner != "" {
		if err := r.tellOwner(ctx, owner, e, *fact); err != nil {
			return err
		}
	}
	if _, outcome, err := r.cfg.Journal.Append(ctx, s, e); err != nil {
		return fmt.Errorf("record webhook for %s (%s): %w", operation, outcome, err)
	}
	return r.ack(ctx, operation, w)
}

// recorded says whether the operation has the fact.
func (r *Receiver) recorded(ctx context.Context, operation, id string) (bool, error) {
	lines, err := r.cfg.Journal.Timeline(ctx, operation)
	if err != nil {
		return false, fmt.Errorf("look for a webhook of %s: %w", operation, err)
	}
	return slices.ContainsFunc(lines, func(l journal.Line) bool { return l.Entry.Event.ID == id }), nil
}

// ack ends a delivery that is a fact. A crash before it brings the delivery
// again.
func (r *Receiver) ack(ctx context.Context, operation string, w *journal.Webhook) error {
	if err := w.Ack(ctx); err != nil {
		return fmt.Errorf("ack webhook for %s, which is recorded: %w", operation, err)
	}
	return nil
}

// tellOwner notes the delivery on the operation that owns the job it names.
func (r *Receiver) tellOwner(ctx context.Context, owner string, e events.Event, fact events.WebhookReceived) error {
	s, err := r.cfg.Journal.Current(ctx, owner)
	if errors.Is(err, journal.ErrNoOperation) {
		return nil // a claim without facts: there is nobody to tell
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", owner, err)
	}
	e.ID, e.Fact = e.ID+"-o", &fact
	if _, outcome, err := r.cfg.Journal.Append(ctx, s, e); err != nil {
		return fmt.Errorf("record webhook for %s (%s): %w", owner, outcome, err)
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
