package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Stream names one of the streams of DESIGN §3.
type Stream string

// The streams.
const (
	Ledger   Stream = "LEDGER"
	History  Stream = "HISTORY"
	Wakeups  Stream = "WAKEUPS"
	Index    Stream = "INDEX"
	Webhooks Stream = "WEBHOOKS"
	Control  Stream = "CONTROL"
	Payloads Stream = "PAYLOADS"
	Slots    Stream = "SLOTS"
	Intents  Stream = "INTENTS"
	Verdicts Stream = "VERDICTS"
)

// Streams lists them all, in the order in which they are provisioned.
func Streams() []Stream {
	return []Stream{Ledger, Control, Webhooks, Payloads, Slots, History, Wakeups, Index, Verdicts, Intents}
}

// Errors a caller of a [Store] tells apart. Any other error says that nothing
// was stored, or for a read that nothing was learned.
var (
	// ErrWrongSequence says that a guard did not hold. Nothing was stored by
	// this call; an earlier copy of the same message may have been.
	ErrWrongSequence = errors.New("wrong last sequence")
	// ErrInFlight says that another write on the guarded subjects was under
	// way. It proves nothing about what is stored.
	ErrInFlight = errors.New("another write in flight")
	// ErrUnanswered says that no answer came: the message may be stored, may
	// not be, or may yet land.
	ErrUnanswered = errors.New("write unanswered")
	// ErrNobody says that no server took the write, as while a stream has no
	// leader: it is not stored, and will not be. It is an ErrUnanswered for those
	// who need not know more.
	ErrNobody = fmt.Errorf("%w: no server takes writes to the stream", ErrUnanswered)
	// ErrUnread says that a read was not answered, as while a stream has no leader;
	// asking again may help.
	ErrUnread = errors.New("read unanswered")
	// ErrSubjectFull says that the subject holds its one message already.
	ErrSubjectFull = errors.New("subject holds a message already")
	// ErrNoMessage says that the stream's leader has no such message, or that
	// none came within the wait.
	ErrNoMessage = errors.New("no message")
	// ErrPiecemeal says that a stream cannot be read as a whole.
	ErrPiecemeal = errors.New("the stream can only be read by the message")
)

// A Message is one stored message.
type Message struct {
	Subject  string
	Sequence uint64    // of the stream
	Time     time.Time // the server's, when it stored the message
	Header   map[string][]string
	Data     []byte
}

// Outgoing is a message to store.
type Outgoing struct {
	Subject string
	Header  map[string][]string // not changed by the store
	Data    []byte              // not changed by the store
	Guard   *Guard              // nil: unconditional
}

// A Guard lets a message in only if the last message that matches Subject has
// this sequence; 0 means that there is none.
type Guard struct {
	Subject  string // may hold wildcards; "" is the message's own subject
	Sequence uint64
}

// A Store is the narrow port to JetStream on which the journal's own logic
// stands. Implementations pass the suite in package conformance.
//
// Reads answer from the stream's leader: what was acknowledged before the call
// is seen. Message times come from the server and never decrease with the
// sequence on a single node.
//
// Store wakes schedules: a message on WAKEUPS with the headers ScheduleHeader
// and TargetHeader is republished on its target at its time or up to 250 ms
// later, never earlier, and then gone; the copy carries SchedulerHeader and
// NextHeader. Any message to WAKEUPS that carries these two headers cancels
// the schedule it names in the same write. WAKEUPS is a work queue: a due
// message leaves it when acknowledged, and so does one of INTENTS. On WAKEUPS and INDEX a new message
// replaces the old one of its subject, leased or not; on WEBHOOKS it is
// refused with ErrSubjectFull. SLOTS and VERDICTS replace as INDEX does.
type Store interface {
	// Publish stores a message and returns its sequence.
	Publish(ctx context.Context, s Stream, m Outgoing) (uint64, error)
	// PublishRun stores messages in order, 2 to RunMost of them or one, on HISTORY
	// or WAKEUPS, and returns the sequence of the last. Each is let in only while
	// the guard holds, which names no subject of theirs, and only behind the one
	// before it; they have no guards of their own and each its own subject where the
	// stream keeps one message for each. Others' messages may come in between. After
	// any error the first ones may be stored or may yet be, and never one without
	// those before it. ErrWrongSequence says that the guard did not hold.
	PublishRun(ctx context.Context, s Stream, guard Guard, list []Outgoing) (uint64, error)
	// PublishBatch stores all the messages or none, on LEDGER or PAYLOADS, and returns
	// their sequences. No subject may occur twice; a guard speaks of its message's own
	// subject as it was before the batch. ErrWrongSequence says that one guard
	// or more did not hold, ErrInFlight that another write was under way on one
	// of the subjects; ErrUnanswered is as for Publish. After any other error,
	// too, nothing is stored.
	PublishBatch(ctx context.Context, s Stream, list []Outgoing) ([]uint64, error)
	// Last gives the last message on the subject, which may hold wildcards.
	Last(ctx context.Context, s Stream, subject string) (Message, error)
	// Next gives the first message on the subject, which may hold wildcards,
	// with a sequence of at least from.
	Next(ctx context.Context, s Stream, subject string, from uint64) (Message, error)
	// Newest gives the last message of each subject that the filter matches, as
	// the stream is at the call or later, in no order that counts. One of a
	// subject that is written meanwhile may come again, newer. An error of do ends
	// it and is returned. do may use the store. ErrPiecemeal says that the stream
	// has replicas: they lag, and the leader gives one message at a time.
	Newest(ctx context.Context, s Stream, subject string, do func(Message) error) error
	// Read gives messages in order from a sequence on. Not for WAKEUPS.
	Read(ctx context.Context, s Stream, subject string, from uint64) (Cursor, error)
	// Queue joins a durable queue, making it if it is not there.
	Queue(ctx context.Context, q QueueConfig) (Queue, error)
}

// RunMost is how many messages a run has at most: the server's own limit for an
// atomic batch.
const RunMost = 1000

// A Cursor walks a stream. It belongs to one goroutine.
type Cursor interface {
	// Next gives the next message, waiting for one that is not there yet. With
	// a wait of 0 it says ErrNoMessage if the leader has none, otherwise when wait
	// is over. With a wait below 0 it gives what has come already and asks nobody; one
	// below a second may end without asking whether something was lost on its way.
	// After any error the cursor stands where it stood.
	Next(ctx context.Context, wait time.Duration) (Message, error)
	// Close lets go of what the server holds for the cursor.
	Close() error
}

// QueueConfig describes a durable queue: each message goes to one of those who
// fetch, again if it is not acknowledged, without limit.
type QueueConfig struct {
	Stream  Stream
	Durable string // its name; letters, digits, hyphens, underscores
	Filter  string // subjects; on a work queue no two queues overlap
	AckWait time.Duration
	// From is the sequence to start at when the queue is made; 0 is the first.
	From uint64
}

// A Queue hands out messages. It may be shared between goroutines.
type Queue interface {
	// Fetch gives up to limit messages, as soon as there is one; it waits for
	// the first at most wait, 0 meaning not at all. None is not an error. A
	// queue hears of a message a moment after its writer had the answer, so
	// that a Fetch that does not wait may miss it.
	Fetch(ctx context.Context, limit int, wait time.Duration) ([]Delivery, error)
}

// A Delivery is one message leased to this caller until its queue's AckWait is
// over. Calls by a holder whose lease has passed to another succeed and have
// no effect the caller may rely on: the ledger is the fence, not the lease.
type Delivery interface {
	Message() Message
	// Delivered counts deliveries of this message, this one included.
	Delivered() uint64
	// Extend starts the AckWait anew.
	Extend(ctx context.Context) error
	// Ack ends the message's life in the queue and waits for the answer.
	Ack(ctx context.Context) error
	// Release gives the message back; it is delivered again at once.
	Release(ctx context.Context) error
}

// Header names of schedules. The time is written in RFC 3339 with nanoseconds:
// the client library's own option cuts to seconds and so fires early.
const (
	ScheduleHeader  = "Nats-Schedule"        // "@at " and the time
	TargetHeader    = "Nats-Schedule-Target" // subject of the fired message
	SchedulerHeader = "Nats-Scheduler"       // schedule a message came from or cancels
	NextHeader      = "Nats-Schedule-Next"
	NextPurge       = "purge"
)

// ExpiresHeader removes a message of INDEX after so long, see Expires.
const ExpiresHeader = "Nats-TTL"

// Expires is the value of ExpiresHeader for a length of time, which the server
// counts in whole seconds: the next one up, at least 1 s.
func Expires(d time.Duration) string {
	return strconv.FormatInt(int64(max((d+time.Second-1)/time.Second, 1)), 10) + "s"
}

// ScheduleFloor is how late a schedule can fire, and the least time in which
// one fires (measured).
const ScheduleFloor = 250 * time.Millisecond

// ScheduleAt is the value of ScheduleHeader for a time.
func ScheduleAt(t time.Time) string { return "@at " + t.UTC().Format(time.RFC3339Nano) }
