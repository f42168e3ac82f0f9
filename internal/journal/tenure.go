package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/projections"
)

const takeover = "takeover" // last token of a take-over record; no operation has this id

// A Tenure is one projector's hold on one partition, from taking it over until
// another takes it. It belongs to one goroutine, and so has one commit in
// flight at most.
//
// Guards keep out whoever had the partition before, however late its writes
// land: every write to WAKEUPS expects this tenure's epoch, a take-over record in
// HISTORY the last sequence of the partition, and every other record there this
// tenure's take-over record as the newest.
type Tenure struct {
	j         *Journal
	number    int // of the partition
	partition string
	id        string

	epoch     uint64 // sequence of our message on epoch.<partition>
	last      uint64 // sequence of the partition's last history message, ours
	taken     uint64 // sequence of our newest take-over record
	position  uint64 // ledger sequence of the newest fact in the history
	unsettled bool   // a write to WAKEUPS may yet land under the present epoch

	room []byte // for the records of a run, used again when nothing of it can land any more
}

// keptRoom bounds what a tenure keeps for its next run.
const keptRoom = 64 << 10

type takeoverRecord struct {
	position uint64
	tenure   string
}

// Fields implements codec.Record.
func (r *takeoverRecord) Fields(v *codec.Visitor) {
	codec.Uint(v, "p", &r.position)
	codec.Text(v, "t", &r.tenure)
}

func epochSubject(partition string) string { return "epoch." + partition }

func (t *Tenure) filter() string { return t.j.generation.subjects(t.partition) }

// TakeOver takes a partition, whoever has it.
func (j *Journal) TakeOver(ctx context.Context, partition int) (*Tenure, error) {
	if partition < 0 || partition >= Partitions {
		return nil, fmt.Errorf("take over partition %d: want 0 to %d", partition, Partitions-1)
	}
	t := &Tenure{j: j, number: partition, partition: partitionToken(partition), id: j.newID()}
	if err := t.takeOver(ctx); err != nil {
		return nil, fmt.Errorf("take over partition %d: %w", partition, err)
	}
	return t, nil
}

func (t *Tenure) takeOver(ctx context.Context) error {
	// First the epoch: from here on no wake-up of the projector before us is
	// let in. A crash here leaves both of us out, and the next taker begins
	// again.
	for {
		before, err := t.lastOf(ctx, Wakeups, epochSubject(t.partition))
		if err != nil {
			return err
		}
		t.epoch = before.Sequence
		err = t.writeEpoch(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFenced) {
			return err
		}
		// Another taker was quicker by a moment. It is the later one that stays.
	}
	// Then the history: from here on none of its records is let in either. A
	// crash here leaves a record that repeats the position and moves nothing.
	for {
		before, err := t.lastOf(ctx, History, t.filter())
		if err != nil {
			return err
		}
		if t.position, err = positionIn(before); err != nil {
			return err
		}
		data := codec.Marshal(&takeoverRecord{position: t.position, tenure: t.id})
		t.last = before.Sequence
		// Beaten means that the one before us, or another taker, committed since
		// we read: read again.
		err = t.writeHistory(ctx, takeover, data)
		if err == nil {
			t.taken = t.last
			break
		}
		if !errors.Is(err, ErrFenced) {
			return err
		}
	}
	// Two takers at once can have ended with one stream each.
	for attempt := 0; ; attempt++ {
		lost, behind, err := t.overtaken(ctx)
		switch {
		case err != nil:
			return err
		case lost:
			return ErrFenced
		case !behind:
			return nil
		}
		if err := t.waitBehind(ctx, attempt); err != nil {
			return err
		}
	}
}

// overtaken says whether the partition's epoch is another's. Epochs only grow, so
// one before ours is the answer of a leader that is none any more, or WAKEUPS has
// lost ours: behind.
func (t *Tenure) overtaken(ctx context.Context) (lost, behind bool, err error) {
	m, err := t.lastOf(ctx, Wakeups, epochSubject(t.partition))
	return m.Sequence > t.epoch, m.Sequence < t.epoch, err
}

// waitBehind waits before the epoch is asked for again. A tenure whose epoch is
// lost for good ends with an error, and the next begins with a new one.
func (t *Tenure) waitBehind(ctx context.Context, attempt int) error {
	if attempt >= maxBehind {
		return fmt.Errorf("the epoch of partition %s is lost: %s ends before %d", t.partition, epochSubject(t.partition), t.epoch)
	}
	return t.j.sleep(ctx, backoff(t.partition, attempt))
}

// lastOf gives the zero message where there is none.
func (t *Tenure) lastOf(ctx context.Context, s Stream, subject string) (Message, error) {
	var m Message
	err := t.j.retry(ctx, subject, func() (err error) {
		m, err = t.j.store.Last(ctx, s, subject)
		return err
	})
	if errors.Is(err, ErrNoMessage) {
		return Message{}, nil
	}
	return m, err
}

func positionIn(m Message) (uint64, error) {
	switch {
	case m.Sequence == 0:
		return 0, nil
	case strings.HasSuffix(m.Subject, "."+takeover):
		var r takeoverRecord
		if err := codec.Unmarshal(m.Data, &r); err != nil {
			return 0, fmt.Errorf("read take-over record %d: %w", m.Sequence, err)
		}
		return r.position, nil
	}
	r, err := decodeRecord(m)
	return r.Sequence, err
}

// writeEpoch writes our epoch at its expected sequence. Afterwards nothing
// that was sent under an earlier one can land.
func (t *Tenure) writeEpoch(ctx context.Context) error {
	subject := epochSubject(t.partition)
	sequence, other, err := t.j.place(ctx, Wakeups, subject, t.epoch,
		func() (uint64, error) { return t.j.store.Publish(ctx, Wakeups, t.epochMessage()) },
		func(m Message) bool { return string(m.Data) == t.id })
	switch {
	case err != nil:
		return fmt.Errorf("write epoch: %w", err)
	case other != nil:
		return ErrFenced
	}
	t.epoch, t.unsettled = sequence, false
	return nil
}

func (t *Tenure) epochMessage() Outgoing {
	return Outgoing{Subject: epochSubject(t.partition), Data: []byte(t.id), Guard: &Guard{Sequence: t.epoch}}
}

// Partition is the partition held.
func (t *Tenure) Partition() string { return t.partition }

// Number is the partition's number.
func (t *Tenure) Number() int { return t.number }

// Slate gives the tenure its part of the process's board.
func (t *Tenure) Slate() *Slate { return t.j.board.Slate(t.number) }

// Position is the ledger sequence of the newest fact of the partition that is
// in the history.
func (t *Tenure) Position() uint64 { return t.position }

// Facts reads the partition's facts that are not in the history yet.
func (t *Tenure) Facts(ctx context.Context) (*Facts, error) {
	filter := "facts." + segment + "." + t.partition + ".*"
	c, err := t.j.store.Read(ctx, Ledger, filter, t.position+1)
	if err != nil {
		return nil, fmt.Errorf("read facts of partition %s: %w", t.partition, err)
	}
	return &Facts{c}, nil
}

// Ahead is the ledger sequence of the partition's first fact that is not in the
// history; 0 if there is none.
func (t *Tenure) Ahead(ctx context.Context) (uint64, error) {
	m, err := t.j.store.Next(ctx, Ledger, "facts."+segment+"."+t.partition+".*", t.position+1)
	if err != nil && !errors.Is(err, ErrNoMessage) {
		return 0, fmt.Errorf("read facts of partition %s: %w", t.partition, err)
	}
	return m.Sequence, nil
}

// AllFacts reads the facts of all partitions from a sequence on.
func (j *Journal) AllFacts(ctx context.Context, from uint64) (*Facts, error) {
	c, err := j.store.Read(ctx, Ledger, ">", from)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return &Facts{c}, nil
}

// FactsSince is AllFacts from the first fact on that was stored at that time or later, by
// the server's clock. Where several servers' clocks differ it may begin as much later or
// earlier.
func (j *Journal) FactsSince(ctx context.Context, at time.Time) (*Facts, error) {
	end, err := j.LedgerEnd(ctx)
	if err != nil {
		return nil, err
	}
	low, high := uint64(1), end+1 // the first is at low or behind it, and at high at the latest
	for low < high {
		middle := low + (high-low)/2
		m, err := j.store.Next(ctx, Ledger, ">", middle)
		switch {
		case err != nil && !errors.Is(err, ErrNoMessage):
			return nil, fmt.Errorf("look for the facts since %s: %w", at.UTC().Format(time.RFC3339), err)
		case err != nil || !m.Time.Before(at):
			high = middle
		default:
			low = middle + 1
		}
	}
	return j.AllFacts(ctx, low)
}

// StoredFact is a fact that is yet to be decoded.
type StoredFact struct{ m Message }

// Partition is the name of its partition.
func (f StoredFact) Partition() string {
	rest := strings.TrimPrefix(f.m.Subject, "facts."+segment+".")
	name, _, _ := strings.Cut(rest, ".")
	return name
}

// Is says whether it is of the type.
func (f StoredFact) Is(t events.Type) bool {
	return slices.Contains(f.m.Header["ce-type"], events.TypePrefix+string(t))
}

// Sequence is its place in the ledger.
func (f StoredFact) Sequence() uint64 { return f.m.Sequence }

// Operation is the id of its operation.
func (f StoredFact) Operation() string {
	return f.m.Subject[strings.LastIndexByte(f.m.Subject, '.')+1:]
}

// Entry decodes it.
func (f StoredFact) Entry() projections.Entry { return entry(f.m) }

// Facts walks a partition's facts in ledger order.
type Facts struct{ cursor Cursor }

// Next gives the next fact; ErrNoMessage says that none came within wait, or,
// with a wait of 0, that none is there, or, with one below 0, that none has come
// by itself.
func (f *Facts) Next(ctx context.Context, wait time.Duration) (projections.Entry, error) {
	m, err := f.cursor.Next(ctx, wait)
	if err != nil {
		return projections.Entry{}, err
	}
	return entry(m), nil
}

// NextStored is Next without decoding.
func (f *Facts) NextStored(ctx context.Context, wait time.Duration) (StoredFact, error) {
	m, err := f.cursor.Next(ctx, wait)
	return StoredFact{m}, err
}

// Close ends the reading.
func (f *Facts) Close() error { return f.cursor.Close() }

// writeHistory appends one message to the partition. The first message behind
// our last is ours or another projector's take-over record, never a copy of
// ours made by someone else.
func (t *Tenure) writeHistory(ctx context.Context, name string, data []byte) error {
	m := Outgoing{
		Subject: t.j.generation.subject(t.partition, name), Data: data,
		Guard: &Guard{Subject: t.filter(), Sequence: t.last},
	}
	sequence, other, err := t.j.place(ctx, History, t.filter(), t.last,
		func() (uint64, error) { return t.j.store.Publish(ctx, History, m) },
		func(stored Message) bool { return stored.Subject == m.Subject && bytes.Equal(stored.Data, m.Data) })
	switch {
	case err != nil:
		return fmt.Errorf("write %s: %w", m.Subject, err)
	case other != nil:
		return ErrFenced
	}
	t.last = sequence
	return nil
}

// CommitRun appends records one behind the other, in the order of their facts,
// whose wake-ups the caller has published or leaves to its next sweep: a crash
// after a wake-up leaves an operation that is looked at once more than needed, and
// the other order could leave one that is never looked at. ErrFenced ends the
// tenure: stop, and touch nothing. After another error the same records may be
// tried again, and others only by a new tenure; what was appended of a run is not
// appended again.
func (t *Tenure) CommitRun(ctx context.Context, list []projections.Record) error {
	messages := make([]Outgoing, len(list))
	room := t.room[:0]
	for i := range list {
		if err := checkOperation(list[i].State.Operation); err != nil {
			return err
		}
		begin := len(room)
		room = codec.Append(room, &list[i])
		messages[i] = Outgoing{Subject: t.j.generation.subject(t.partition, list[i].State.Operation), Data: room[begin:]}
	}
	if t.room = room; cap(room) > keptRoom {
		t.room = nil
	}
	refusals := 0
	for attempt := 0; ; attempt++ {
		// A crash during this write leaves the first records of the run and never one
		// without those before it. The position is the last one's, from where the
		// next projector goes on.
		last, err := t.j.store.PublishRun(ctx, History, Guard{Subject: t.fence(), Sequence: t.taken}, messages)
		if err == nil {
			t.last, t.position = last, list[len(list)-1].Sequence
			return nil
		}
		switch {
		case errors.Is(err, ErrWrongSequence), errors.Is(err, ErrInFlight), errors.Is(err, ErrUnanswered):
			refusals = 0
		default:
			if refusals++; refusals >= maxRefusals {
				return fmt.Errorf("write %d records of partition %s: %w", len(messages), t.partition, err)
			}
		}
		if attempt > 0 {
			if sleepErr := t.j.sleep(ctx, backoff(t.partition, attempt)); sleepErr != nil {
				return fmt.Errorf("write %d records of partition %s: %w", len(messages), t.partition, unsure(true, errors.Join(sleepErr, err)))
			}
		}
		// The rest of it could land later. Behind a new take-over record of ours it
		// cannot, and what is before that is what has landed.
		if err := t.renew(ctx); err != nil {
			return fmt.Errorf("write %d records of partition %s: %w", len(messages), t.partition, err)
		}
		done := 0
		for done < len(list) && list[done].Sequence <= t.position {
			done++
		}
		if list, messages = list[done:], messages[done:]; len(list) == 0 {
			return nil
		}
	}
}

// fence is the subject of the partition's take-over records.
func (t *Tenure) fence() string { return t.j.generation.subject(t.partition, takeover) }

// renew writes a take-over record where the newest is ours, and learns the
// position that it repeats. A crash after it leaves what a take-over leaves.
func (t *Tenure) renew(ctx context.Context) error {
	for behind := 0; ; {
		// The end first: what takes over after this read moves it.
		before, err := t.lastOf(ctx, History, t.filter())
		if err != nil {
			return err
		}
		newest, err := t.lastOf(ctx, History, t.fence())
		switch {
		case err != nil:
			return err
		case newest.Sequence > t.taken:
			return ErrFenced
		case newest.Sequence < t.taken || before.Sequence < t.taken:
			// The answer of a leader that is none any more, or HISTORY has lost it.
			if behind >= maxBehind {
				return fmt.Errorf("the history of partition %s is lost: it ends before %d", t.partition, t.taken)
			}
			if err := t.j.sleep(ctx, backoff(t.partition, behind)); err != nil {
				return err
			}
			behind++
			continue
		}
		if t.position, err = positionIn(before); err != nil {
			return err
		}
		t.last = before.Sequence
		// Beaten means that more of the run has landed, or that another took over.
		err = t.writeHistory(ctx, takeover, codec.Marshal(&takeoverRecord{position: t.position, tenure: t.id}))
		if err == nil {
			t.taken = t.last
			return nil
		}
		if !errors.Is(err, ErrFenced) {
			return err
		}
	}
}

// WakeRun is Wake for several operations at once, each of which occurs once.
func (t *Tenure) WakeRun(ctx context.Context, list []Wake) error {
	var run []Wake
	for _, w := range list {
		if err := w.check(); err != nil {
			return err
		}
		if w.At.IsZero() { // it moves the epoch, and goes alone
			if err := t.Wake(ctx, w); err != nil {
				return err
			}
			continue
		}
		run = append(run, w)
	}
	if len(run) == 0 {
		return nil
	}
	if !t.unsettled {
		now := t.j.now()
		messages := make([]Outgoing, len(run))
		for i := range run {
			messages[i] = run[i].message(now)
		}
		_, err := t.j.store.PublishRun(ctx, Wakeups, Guard{Subject: epochSubject(t.partition), Sequence: t.epoch}, messages)
		if err == nil {
			return nil
		}
		t.unsettled = true // some are stored, and some may yet land
	}
	// A crash in between leaves the first of them, as if they had been published
	// one by one. So they are now, which settles each; the same one twice does no
	// more than one.
	for _, w := range run {
		if err := t.Wake(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// Wake publishes a wake-up, or cancels the pending one, without a record: for
// the sweep, which finds wake-ups lost.
func (t *Tenure) Wake(ctx context.Context, w Wake) error {
	if err := w.check(); err != nil {
		return err
	}
	refusals, behind := 0, 0
	for attempt := 0; ; attempt++ {
		if t.unsettled {
			// A copy that was not answered could land later, over a newer wake-up.
			// Under a new epoch it cannot.
			if err := t.writeEpoch(ctx); err != nil {
				return fmt.Errorf("wake %s: %w", w.Operation, err)
			}
		}
		err := t.publishWake(ctx, w)
		if err == nil {
			return nil
		}
		wait := backoff(w.Operation, attempt)
		switch {
		case errors.Is(err, ErrNobody): // so no copy of it can land
			refusals, wait = 0, min(wait, nobodyMax)
		case errors.Is(err, ErrWrongSequence):
			// Our epoch moves by writeEpoch and publishWake alone, and both know
			// when they are in doubt.
			lost, earlier, readErr := t.overtaken(ctx)
			switch {
			case readErr != nil:
				return fmt.Errorf("wake %s: %w", w.Operation, errors.Join(err, readErr))
			case lost:
				return ErrFenced
			case earlier:
				if waitErr := t.waitBehind(ctx, behind); waitErr != nil {
					return fmt.Errorf("wake %s: %w", w.Operation, waitErr)
				}
				behind++
				continue
			}
		case errors.Is(err, ErrInFlight), errors.Is(err, ErrUnanswered):
			t.unsettled = true
			refusals = 0
		default:
			if refusals++; refusals >= maxRefusals {
				return fmt.Errorf("wake %s: %w", w.Operation, err)
			}
		}
		if sleepErr := t.j.sleep(ctx, wait); sleepErr != nil {
			return fmt.Errorf("wake %s: %w", w.Operation, unsure(t.unsettled, errors.Join(sleepErr, err)))
		}
	}
}

// publishWake sends it once. Cancelling rides on our own epoch, which every
// partition has: a message of its own would have to be removed again.
func (t *Tenure) publishWake(ctx context.Context, w Wake) error {
	if w.At.IsZero() {
		m := t.epochMessage()
		m.Header = map[string][]string{SchedulerHeader: {wakeSubject(w.Operation)}, NextHeader: {NextPurge}}
		sequence, err := t.j.store.Publish(ctx, Wakeups, m)
		if err == nil {
			t.epoch = sequence
		}
		return err
	}
	m := w.message(t.j.now())
	m.Guard = &Guard{Subject: epochSubject(t.partition), Sequence: t.epoch}
	_, err := t.j.store.Publish(ctx, Wakeups, m)
	return err
}
