// Package journal is where facts are kept. It appends to the ledger, reads
// current states, claims jobs, keeps payloads and webhooks, publishes
// wake-ups, leases work and fences projectors, over the streams of DESIGN §3.
//
// Guarantees. An append ends in stored or superseded, never in "conflict" or
// "timeout": after a doubtful answer the stream's leader is asked which fact
// came first. Evidence is not dropped on a conflict but linked anew and
// appended again. Everything that decides or answers is read from the leader.
// A projector whose partition was taken over changes nothing any more, however
// late its writes land.
//
// Limits. A call whose context ends while its outcome is in doubt returns an
// error that wraps [ErrUnknown]. A lease saves effort and fences nothing: the
// expected sequence of a permit does.
//
// The package stands on the narrow port [Store]: NATS, the only user of the
// client library, is one implementation, package memory the other. Appends that
// come at the same time share a commit below that port, see [Grouped]: above it
// each is a write of its own, and settled as one.
package journal

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"
)

// Errors a caller of a [Journal] tells apart.
var (
	// ErrNoOperation says that the ledger has no fact of the operation.
	ErrNoOperation = errors.New("no such operation")
	// ErrUnknown says that the context ended before it was known whether
	// something was stored. It may land later.
	ErrUnknown = errors.New("outcome of the write unknown")
	// ErrLedgerBehind says that the ledger ends before the state it was asked
	// to go on from: it lost facts (power loss, restored backup). It is said only
	// after the ledger's leader has said so for longer than one can that is none
	// any more.
	ErrLedgerBehind = errors.New("ledger is behind the state")
	// ErrFenced says that another projector has the partition.
	ErrFenced = errors.New("partition was taken over")
	// ErrNoPayload says that no payload of the digest is stored.
	ErrNoPayload = errors.New("no such payload")
	// ErrBadName says that a name or id cannot be part of a subject.
	ErrBadName = errors.New("bad name")
)

const (
	// Waiting times between attempts to settle a write.
	backoffBase = 5 * time.Millisecond
	backoffMax  = time.Second
	// The same while nobody takes the write. Nothing else is asked then, and who
	// waits for a leader goes on as soon as there is one.
	nobodyMax = 200 * time.Millisecond
	// Refusals in a row after which an error is believed to be for good.
	maxRefusals = 8
	// Answers in a row that a stream ends too early after which it has lost
	// something. With the waiting times between them they take more than 20 s, for
	// so long a leader that was cut off from its replicas answers with what it has.
	maxBehind = 48

	segment = "0" // of the ledger; constant until a ledger must end

	maxName = 64 // bytes of a name or id in a subject
)

// Options is what a [Journal] is made of. Every field but Generation, Board and
// Await is required.
type Options struct {
	Store Store
	// Now is this process's clock. It decides only whether a wake-up is
	// published as due or as a schedule.
	Now func() time.Time
	// Sleep waits, or returns the context's error.
	Sleep func(context.Context, time.Duration) error
	// NewID gives a new random id of ASCII letters, digits, - and _.
	NewID func() string
	// Generation of the history to work on, see CurrentGeneration; 0 means the
	// first.
	Generation Generation
	// Board is what the projectors of this process know; nil where there are
	// none.
	Board *Board
	// Await waits until reached is closed, limit has passed or ctx ends. Nil does
	// so on the machine's clock.
	Await func(ctx context.Context, reached <-chan struct{}, limit time.Duration)
}

// A Journal is the use of the streams by all roles. It holds no state of its
// own but what is on its board, and may be shared between goroutines.
type Journal struct {
	store Store
	now   func() time.Time
	sleep func(context.Context, time.Duration) error
	newID func() string

	generation Generation
	board      *Board
	await      func(context.Context, <-chan struct{}, time.Duration)
}

// New makes a journal over a provisioned store.
func New(o Options) *Journal {
	if o.Store == nil || o.Now == nil || o.Sleep == nil || o.NewID == nil {
		panic("journal: an option is missing")
	}
	if o.Await == nil {
		o.Await = awaitClosed
	}
	return &Journal{
		store: o.Store, now: o.Now, sleep: o.Sleep, newID: o.NewID, generation: max(o.Generation, FirstGeneration),
		board: o.Board, await: o.Await,
	}
}

// checkName refuses what would change a subject's shape.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= maxName
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w: %s %.80q: want 1 to %d of a-z, 0-9, _ and -", ErrBadName, what, name, maxName)
	}
	return nil
}

func checkOperation(id string) error {
	if id == takeover {
		return fmt.Errorf("%w: operation %q is reserved", ErrBadName, id)
	}
	return checkName("operation", id)
}

// token is a digest of parts in the form of a subject token.
func token(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return lower.EncodeToString(h.Sum(nil)[:20])
}

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Partition is the partition of an operation, for ever.
func Partition(operation string) int {
	sum := sha256.Sum256([]byte(operation))
	return int(sum[0]) % Partitions
}

// PartitionName is a partition's name as its tenure gives it.
func PartitionName(partition int) string { return partitionToken(partition) }

// partitionToken is two digits.
func partitionToken(partition int) string {
	return string([]byte{'0' + byte(partition/10), '0' + byte(partition%10)}) //nolint:gosec // below 32
}

func factSubject(operation string) string {
	return "facts." + segment + "." + partitionToken(Partition(operation)) + "." + operation
}

func (j *Journal) recordSubject(operation string) string {
	return j.generation.subject(partitionToken(Partition(operation)), operation)
}

// place stores a guarded message for certain. It returns its sequence, or the
// message of another that came first at the guard. subject is the guarded
// one; fresh makes the message anew for each attempt, and own recognises it.
//
// The rule (DESIGN §3): after an answer that proves nothing, ask the leader
// for the first message behind the expected one. Only one message can ever be
// that, so an own one is stored and another's has beaten every copy of ours,
// those included that have not landed yet. None means that ours may be sent
// again, and no more: a leader that was cut off from its replicas answers for a
// while with what it has. What it does have its replicas have too.
func (j *Journal) place(ctx context.Context, s Stream, subject string, expected uint64, send func() (uint64, error), own func(Message) bool) (uint64, *Message, error) {
	doubt := false
	refusals, behind := 0, 0
	for attempt := 0; ; attempt++ {
		// A crash before, during or after this write leaves it stored or not; who
		// made it decides afresh from what the stream then holds.
		sequence, err := send()
		if err == nil {
			return sequence, nil, nil
		}
		wait := backoff(subject, attempt)
		wrong := errors.Is(err, ErrWrongSequence)
		if errors.Is(err, ErrNobody) {
			// This copy is nowhere. One that was sent before may be, as before.
			refusals, wait = 0, min(wait, nobodyMax)
		} else if wrong || errors.Is(err, ErrInFlight) || errors.Is(err, ErrUnanswered) {
			refusals = 0
			// A guard that failed says nothing of the copies before.
			doubt = doubt || !wrong
			m, readErr := j.store.Next(ctx, s, subject, expected+1)
			switch {
			case readErr == nil && own(m):
				return m.Sequence, nil, nil
			case readErr == nil:
				return 0, &m, nil
			case !errors.Is(readErr, ErrNoMessage):
				err = errors.Join(err, readErr)
			case wrong && j.endsBefore(ctx, s, subject, expected):
				if behind++; behind >= maxBehind {
					return 0, nil, unsure(doubt, fmt.Errorf("%w: %s ends before %d", ErrLedgerBehind, subject, expected))
				}
			default:
				behind = 0
			}
		} else if refusals++; refusals >= maxRefusals {
			return 0, nil, unsure(doubt, err)
		}
		if sleepErr := j.sleep(ctx, wait); sleepErr != nil {
			return 0, nil, unsure(doubt, errors.Join(sleepErr, err))
		}
	}
}

// unsure marks an error after which something may be stored or yet land.
func unsure(doubt bool, err error) error {
	if doubt {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// endsBefore tells a guard that cannot hold from one that failed while the
// stream was moving. Of a leader that was cut off it is true for a while.
func (j *Journal) endsBefore(ctx context.Context, s Stream, subject string, expected uint64) bool {
	m, err := j.store.Last(ctx, s, subject)
	if err != nil {
		return errors.Is(err, ErrNoMessage) && expected > 0 // a failed read decides nothing
	}
	return m.Sequence < expected
}

// retry repeats a read until it succeeds, says that there is nothing, or ctx
// ends.
func (j *Journal) retry(ctx context.Context, what string, read func() error) error {
	for attempt := 0; ; attempt++ {
		err := read()
		if err == nil || errors.Is(err, ErrNoMessage) {
			return err
		}
		if sleepErr := j.sleep(ctx, backoff(what, attempt)); sleepErr != nil {
			return errors.Join(sleepErr, err)
		}
	}
}

// backoff doubles, with the upper half spread by a hash, so that writers of
// one subject do not meet again and a run can be repeated exactly.
func backoff(subject string, attempt int) time.Duration {
	d := min(backoffBase<<min(attempt, 16), backoffMax)
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", subject, attempt)
	return d/2 + time.Duration(h.Sum64()%uint64(d/2+1))
}
