package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// SeatTime is how long the seat of a projector that fell silent stays its own,
// and how long at most a partition waits for the next.
const SeatTime = 5 * time.Second

const (
	seatBeat  = SeatTime / 4 // how often a holder says that it is there
	seatStand = SeatTime     // one request of a process that waits for a seat
	seatGroup = "projector"
)

func seatSubject(partition int) string { return "control.partition-" + partitionToken(partition) }

func seatConsumer(partition int) string { return "partition-" + partitionToken(partition) }

// MakeSeats puts a message for each partition on CONTROL, the ticket that is
// handed to one process at a time and never acknowledged. It is part of
// provisioning where projectors share the partitions; doing it again changes
// nothing. A crash in between leaves some, and running it again makes the rest.
func (n *NATS) MakeSeats(ctx context.Context) error {
	for p := range Partitions {
		subject := seatSubject(p)
		_, err := n.Last(ctx, Control, subject)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrNoMessage) {
			return err
		}
		_, err = n.Publish(ctx, Control, Outgoing{Subject: subject, Data: []byte(partitionToken(p)), Guard: &Guard{}})
		if err != nil && !errors.Is(err, ErrWrongSequence) { // another was quicker
			return fmt.Errorf("make the seat of partition %d: %w", p, err)
		}
	}
	return nil
}

// TakeSeat waits until this process is elected to project the partition, or ctx
// ends. Each partition has a consumer that serves one pinned client: the server
// pins the first that asks, and another when that one has been silent for
// SeatTime. Being elected fences nothing, and what the consumer has delivered
// means nothing; the tenure decides who writes.
func (n *NATS) TakeSeat(ctx context.Context, partition int) (*Seat, error) {
	consumer, err := n.seatQueue(ctx, partition)
	if err != nil {
		return nil, fmt.Errorf("stand for partition %d: %w", partition, err)
	}
	var silent time.Time // since when there is no leader
	for {
		ticket, err := pullSeat(ctx, consumer, seatStand)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case noLeader(err) && (silent.IsZero() || time.Since(silent) < leaderless):
			if silent.IsZero() {
				silent = time.Now()
			}
			if !pause(ctx, leaderAgain) {
				return nil, ctx.Err()
			}
			continue
		case errors.Is(err, jetstream.ErrPinIDMismatch):
			continue // that of a seat we had before; the library forgets it with this
		case err != nil:
			n.forgetSeat(partition)
			return nil, fmt.Errorf("stand for partition %d: %w", partition, err)
		case ticket == nil:
			silent = time.Time{}
			continue
		}
		s := &Seat{store: n, partition: partition, consumer: consumer, ticket: ticket, lost: make(chan struct{}), ended: make(chan struct{})}
		var held context.Context
		held, s.stop = context.WithCancel(context.WithoutCancel(ctx)) // until it leaves
		go s.hold(held)
		return s, nil
	}
}

// seatQueue gives the partition's consumer, which is made only where this process
// does not know of one: who makes consumers may have no leader when a seat is to
// be had.
func (n *NATS) seatQueue(ctx context.Context, partition int) (jetstream.Consumer, error) {
	n.seatsMu.Lock()
	consumer := n.seats[partition]
	n.seatsMu.Unlock()
	if consumer != nil {
		return consumer, nil
	}
	consumer, err := n.joinSeat(ctx, partition)
	if err != nil {
		return nil, err
	}
	n.seatsMu.Lock()
	defer n.seatsMu.Unlock()
	if n.seats == nil {
		n.seats = map[int]jetstream.Consumer{}
	}
	n.seats[partition] = consumer
	return consumer, nil
}

func (n *NATS) forgetSeat(partition int) {
	n.seatsMu.Lock()
	defer n.seatsMu.Unlock()
	delete(n.seats, partition)
}

func (n *NATS) joinSeat(ctx context.Context, partition int) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if _, err := n.Last(ctx, Control, seatSubject(partition)); errors.Is(err, ErrNoMessage) {
		return nil, fmt.Errorf("%w: %s is missing", ErrNotProvisioned, seatSubject(partition))
	} else if err != nil {
		return nil, err
	}
	return n.js.CreateOrUpdateConsumer(ctx, string(Control), jetstream.ConsumerConfig{
		Durable:       seatConsumer(partition),
		FilterSubject: seatSubject(partition),
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       SeatTime, // until the ticket is handed to who is pinned by then
		MaxDeliver:    -1,
		MaxAckPending: 1,
		// Who holds which seat is worth nothing after a restart.
		MemoryStorage:  true,
		PriorityPolicy: jetstream.PriorityPolicyPinned,
		PriorityGroups: []string{seatGroup},
		PinnedTTL:      SeatTime,
	})
}

// pullSeat asks once, under our pin if we have one. No ticket is no error.
func pullSeat(ctx context.Context, consumer jetstream.Consumer, wait time.Duration) (jetstream.Msg, error) {
	pull, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	batch, err := consumer.Fetch(1, jetstream.FetchPriorityGroup(seatGroup), jetstream.FetchContext(pull))
	if err != nil {
		return nil, err
	}
	var ticket jetstream.Msg
	for m := range batch.Messages() {
		ticket = m
	}
	err = batch.Error()
	if ticket != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
		return ticket, nil
	}
	return nil, err
}

// A Seat is one process's election to project a partition. It ends when it is
// lost or left, and must be left in either case.
type Seat struct {
	store     *NATS
	partition int
	consumer  jetstream.Consumer
	stop      context.CancelFunc
	lost      chan struct{} // closed by hold
	ended     chan struct{} // closed when hold is done
	leave     sync.Once

	ticket jetstream.Msg // hold's until ended is closed
}

// Lost is closed when the server has taken the seat away, or did not answer for
// SeatTime. A consumer that has no leader gives the seat to nobody else, so it is
// kept meanwhile, for as long as an election takes; whoever leads next takes it away.
func (s *Seat) Lost() <-chan struct{} { return s.lost }

// hold keeps the seat until it is lost or left: the request under our pin keeps
// the pin, and the ticket is kept from being handed out.
func (s *Seat) hold(ctx context.Context) {
	defer close(s.ended)
	answered := time.Now()
	var silent time.Time // since when there is no leader
	for ctx.Err() == nil {
		err := s.ticket.InProgress()
		var again jetstream.Msg
		if err == nil {
			again, err = pullSeat(ctx, s.consumer, seatBeat)
		}
		if !noLeader(err) {
			silent = time.Time{}
		} else if silent.IsZero() {
			silent = time.Now()
		}
		if !silent.IsZero() && time.Since(silent) < leaderless {
			answered = time.Now()
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, jetstream.ErrPinIDMismatch), err != nil && time.Since(answered) > SeatTime:
			close(s.lost)
			return
		case err != nil:
			timer := time.NewTimer(seatBeat / 4)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		case again != nil:
			s.ticket = again
		}
		answered = time.Now()
	}
}

// Others says how many other processes wait for the seat, as far as the server
// knows.
func (s *Seat) Others(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Waiting int                 `json:"num_waiting"`
	}
	err := s.store.ask(ctx, "CONSUMER.INFO."+string(Control)+"."+seatConsumer(s.partition), struct{}{}, &answer)
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	if err != nil {
		return 0, fmt.Errorf("ask who waits for partition %d: %w", s.partition, err)
	}
	return max(answer.Waiting-1, 0), nil // our own request waits too
}

// Leave gives the seat up, so that a process that waits for it has it at once. A
// second call does nothing, and neither does one for a seat that was lost. If it
// fails the seat is free after SeatTime.
func (s *Seat) Leave(ctx context.Context) (err error) {
	s.leave.Do(func() {
		s.stop()
		<-s.ended
		select {
		case <-s.lost:
			return // unpinning would hit whoever has it now
		default:
		}
		// First the pin, then the ticket: handed back under the pin, it would wait
		// for us.
		var answer struct {
			Error *jetstream.APIError `json:"error"`
		}
		request := struct {
			Group string `json:"group"`
		}{seatGroup}
		err = s.store.ask(ctx, "CONSUMER.UNPIN."+string(Control)+"."+seatConsumer(s.partition), request, &answer)
		if err == nil && answer.Error != nil {
			err = answer.Error
		}
		if err = errors.Join(err, s.ticket.Nak()); err != nil {
			err = fmt.Errorf("leave the seat of partition %d: %w", s.partition, err)
		}
	})
	return err
}
