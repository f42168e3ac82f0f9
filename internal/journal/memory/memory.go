// Package memory is a [journal.Store] without a server, for simulations and
// tests, and a wrapper that injects faults into any Store.
//
// The store passes the same suite as the one over JetStream (package
// conformance). It is deterministic: time is a function it is given, nothing
// happens between calls, and it starts no goroutine. What is due by the clock
// (schedules, ends of leases) is caught up with at the start of every call, at
// the time at which it was due.
//
// Limits: nothing is kept on disk, lists are searched in order where a subject
// has wildcards, and it grows with what is stored.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Config is what a [Store] is given.
type Config struct {
	// Now is the server's clock. Required.
	Now func() time.Time
	// Late says by how much a schedule fires after its time, from 0 to
	// [journal.ScheduleFloor]. Nil means not at all.
	Late func(subject string) time.Duration
	// Pause blocks a call that waits for a message until changed is closed, d
	// has passed or ctx ends. Nil waits on the real clock, which is the bubble's
	// in a testing/synctest bubble.
	Pause func(ctx context.Context, changed <-chan struct{}, d time.Duration)
}

// A Store holds the streams. It may be shared between goroutines.
type Store struct {
	config Config

	mu      sync.Mutex // guards everything below
	streams map[journal.Stream]*stream
	queues  map[string]*queue
	changed chan struct{} // closed when something was stored; nil if nobody waits
}

type stream struct {
	name     journal.Stream
	last     uint64
	lastTime time.Time
	entries  []*entry // ascending by sequence
	subjects map[string][]*entry
	pending  map[string]*entry // schedules by subject, WAKEUPS only
	expiring []*entry          // INDEX only; some may have been replaced since
}

type entry struct {
	message journal.Message
	fires   time.Time // of a schedule; zero otherwise
	expires time.Time // zero: never
}

// New makes an empty store with all streams.
func New(c Config) *Store {
	if c.Pause == nil {
		c.Pause = pause
	}
	s := &Store{config: c, streams: map[journal.Stream]*stream{}, queues: map[string]*queue{}}
	for _, name := range journal.Streams() {
		s.streams[name] = &stream{name: name, subjects: map[string][]*entry{}, pending: map[string]*entry{}}
	}
	return s
}

// Lose empties a stream, as power loss or an operator can one that is derived.
// What its queues had leased is gone too; sequences go on.
func (s *Store) Lose(name journal.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[name]
	for len(st.entries) > 0 {
		st.remove(s, st.entries[0])
	}
	st.expiring = nil
}

func pause(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// subjects of each stream, as provisioned.
func accepted(name journal.Stream) []string {
	switch name {
	case journal.Ledger:
		return []string{"facts.*.*.*"}
	case journal.Control:
		return []string{"control.*"}
	case journal.History:
		return []string{"history.*.*.*"}
	case journal.Wakeups:
		return []string{"wake.*", "due.*.*", "epoch.*"}
	case journal.Index:
		return []string{"job.*.*.*", "ref.*.*", "client.*.*", "parked.*.*.*"}
	case journal.Webhooks:
		return []string{"webhooks.*.*"}
	case journal.Payloads:
		return []string{"payloads.*"}
	case journal.Slots:
		return []string{"slot.*.*.*"}
	case journal.Intents:
		return []string{"intents.*.*"}
	case journal.Verdicts:
		return []string{"verdicts.*.*", "rejected.*.*"}
	}
	return nil
}

// single says whether a stream keeps one message per subject.
func single(name journal.Stream) bool {
	switch name {
	case journal.Wakeups, journal.Index, journal.Webhooks, journal.Payloads, journal.Slots, journal.Verdicts:
		return true
	}
	return false
}

// matches compares a subject with a filter. ">" matches one or more tokens.
func matches(filter, subject string) bool {
	for {
		f, filterRest, moreFilter := strings.Cut(filter, ".")
		if f == ">" {
			return subject != ""
		}
		t, subjectRest, moreSubject := strings.Cut(subject, ".")
		if f != "*" && f != t || moreFilter != moreSubject {
			return false
		}
		if !moreFilter {
			return true
		}
		filter, subject = filterRest, subjectRest
	}
}

func wild(filter string) bool { return strings.ContainsAny(filter, "*>") }

// Publish implements [journal.Store].
func (s *Store) Publish(ctx context.Context, name journal.Stream, m journal.Outgoing) (uint64, error) {
	sequences, err := s.publish(ctx, name, []journal.Outgoing{m})
	if err != nil {
		return 0, fmt.Errorf("publish on %s: %w", m.Subject, err)
	}
	return sequences[0], nil
}

// mostInBatch is the server's limit.
const mostInBatch = 1000

// PublishBatch implements [journal.Store].
func (s *Store) PublishBatch(ctx context.Context, name journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	switch name {
	case journal.Ledger, journal.Control, journal.Payloads:
	case journal.History, journal.Wakeups, journal.Index, journal.Webhooks:
		return nil, fmt.Errorf("publish a batch on %s: atomic publish is disabled", name)
	}
	if len(list) > mostInBatch {
		return nil, fmt.Errorf("publish a batch on %s: %d messages, at most %d", name, len(list), mostInBatch)
	}
	written := map[string]bool{}
	for _, m := range list {
		if m.Guard != nil && written[m.Subject] {
			return nil, fmt.Errorf("publish a batch on %s: %w: %s twice", name, journal.ErrInFlight, m.Subject)
		}
		written[m.Subject] = true
	}
	sequences, err := s.publish(ctx, name, list)
	if err != nil {
		return nil, fmt.Errorf("publish a batch on %s: %w", name, err)
	}
	return sequences, nil
}

// PublishRun implements [journal.Store], as one server does.
func (s *Store) PublishRun(ctx context.Context, name journal.Stream, guard journal.Guard, list []journal.Outgoing) (last uint64, err error) {
	switch name {
	case journal.History, journal.Wakeups, journal.Index:
	case journal.Ledger, journal.Control, journal.Webhooks, journal.Payloads, journal.Slots, journal.Intents, journal.Verdicts:
		return 0, fmt.Errorf("publish a run on %s: batch publish is disabled", name)
	}
	if len(list) == 0 || len(list) > journal.RunMost {
		return 0, fmt.Errorf("publish a run on %s: %d messages, want 1 to %d", name, len(list), journal.RunMost)
	}
	for _, m := range list {
		m.Guard = &guard
		if last, err = s.Publish(ctx, name, m); err != nil {
			return 0, fmt.Errorf("publish a run on %s: %w", name, err)
		}
	}
	return last, nil
}

// publish stores all messages or none.
func (s *Store) publish(ctx context.Context, name journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", journal.ErrUnanswered, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	st := s.streams[name]
	now := s.config.Now()
	fires := make([]time.Time, len(list))
	lives := make([]time.Duration, len(list))
	for i, m := range list {
		var err error
		if fires[i], lives[i], err = s.admit(st, m, now); err != nil {
			return nil, err
		}
	}
	var sequences []uint64
	for i, m := range list {
		sequences = append(sequences, s.store(st, m, now, fires[i]))
		if lives[i] > 0 {
			e := st.entries[len(st.entries)-1]
			e.expires = e.message.Time.Add(lives[i])
			st.expiring = append(st.expiring, e)
		}
	}
	return sequences, nil
}

// admit makes the checks of one message and gives when its schedule fires and
// how long it lives. The mutex is held.
func (s *Store) admit(st *stream, m journal.Outgoing, now time.Time) (fires time.Time, lives time.Duration, err error) {
	if !slices.ContainsFunc(accepted(st.name), func(f string) bool { return matches(f, m.Subject) }) {
		return fires, 0, fmt.Errorf("no stream takes it: %w", journal.ErrUnanswered)
	}
	if m.Guard != nil {
		subject := m.Guard.Subject
		if subject == "" {
			subject = m.Subject
		}
		if have := st.lastSequence(subject); have != m.Guard.Sequence {
			return fires, 0, fmt.Errorf("%w: %d", journal.ErrWrongSequence, have)
		}
	}
	if st.name == journal.Webhooks && len(st.subjects[m.Subject]) > 0 {
		return fires, 0, journal.ErrSubjectFull
	}
	if fires, err = st.schedule(m); err != nil {
		return fires, 0, err
	}
	if !fires.IsZero() {
		if s.config.Late != nil {
			fires = fires.Add(min(max(0, s.config.Late(m.Subject)), journal.ScheduleFloor))
		}
		// The server's timer is never set shorter.
		if floor := now.Add(journal.ScheduleFloor); fires.Before(floor) {
			fires = floor
		}
	}
	lives, err = st.lifetime(m)
	return fires, lives, err
}

// lifetime reads the header that lets a message expire.
func (st *stream) lifetime(m journal.Outgoing) (time.Duration, error) {
	text := first(m.Header, journal.ExpiresHeader)
	if text == "" {
		return 0, nil
	}
	if st.name != journal.Index {
		return 0, errors.New("per-message expiry is not allowed on this stream")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return 0, errors.New("per-message expiry is invalid")
	}
	return d.Truncate(time.Second), nil
}

// expire removes what has lived long enough. The mutex is held.
func (st *stream) expire(s *Store, now time.Time) {
	if len(st.expiring) == 0 {
		return
	}
	kept := st.expiring[:0]
	for _, e := range st.expiring {
		switch {
		case !slices.Contains(st.subjects[e.message.Subject], e): // replaced
		case e.expires.After(now):
			kept = append(kept, e)
		default:
			st.remove(s, e)
		}
	}
	st.expiring = kept
}

// schedule checks the headers of schedules as the server does and gives the
// time of this message's schedule, if it is one.
func (st *stream) schedule(m journal.Outgoing) (time.Time, error) {
	pattern, next, scheduler := first(m.Header, journal.ScheduleHeader), first(m.Header, journal.NextHeader), first(m.Header, journal.SchedulerHeader)
	if pattern == "" && next == "" && scheduler == "" {
		return time.Time{}, nil
	}
	if st.name != journal.Wakeups {
		return time.Time{}, errors.New("schedules are not allowed on this stream")
	}
	if next != "" || scheduler != "" {
		if next != journal.NextPurge || scheduler == "" || scheduler == m.Subject {
			return time.Time{}, errors.New("message schedules scheduler is invalid")
		}
		if list := st.subjects[scheduler]; len(list) > 0 && st.pending[scheduler] == nil {
			return time.Time{}, errors.New("message schedules scheduler is invalid")
		}
	}
	if pattern == "" {
		return time.Time{}, nil
	}
	text, ok := strings.CutPrefix(pattern, "@at ")
	at, err := time.Parse(time.RFC3339Nano, text)
	if !ok || err != nil {
		return time.Time{}, errors.New("message schedules pattern is invalid")
	}
	target := first(m.Header, journal.TargetHeader)
	if target == "" || target == m.Subject || !slices.ContainsFunc(accepted(st.name), func(f string) bool { return matches(f, target) }) {
		return time.Time{}, errors.New("message schedules target is invalid")
	}
	return at, nil
}

func first(header map[string][]string, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// store appends a message that passed every check. The mutex is held.
func (s *Store) store(st *stream, m journal.Outgoing, now, fires time.Time) uint64 {
	if first(m.Header, journal.NextHeader) == journal.NextPurge {
		st.removeAll(s, first(m.Header, journal.SchedulerHeader))
	}
	if single(st.name) {
		st.removeAll(s, m.Subject)
	}
	if now.Before(st.lastTime) {
		now = st.lastTime
	}
	st.last++
	st.lastTime = now
	header := make(map[string][]string, len(m.Header))
	for name, values := range m.Header {
		header[name] = slices.Clone(values)
	}
	e := &entry{fires: fires, message: journal.Message{
		Subject: m.Subject, Sequence: st.last, Time: now.UTC(), Header: header, Data: slices.Clone(m.Data),
	}}
	st.entries = append(st.entries, e)
	st.subjects[m.Subject] = append(st.subjects[m.Subject], e)
	if !fires.IsZero() {
		st.pending[m.Subject] = e
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	return st.last
}

// removeAll takes the subject's messages out of the stream and out of every
// queue, leased or not. The mutex is held.
func (st *stream) removeAll(s *Store, subject string) {
	for _, e := range st.subjects[subject] {
		st.remove(s, e)
	}
}

func (st *stream) remove(s *Store, e *entry) {
	i := st.index(e.message.Sequence)
	st.entries = slices.Delete(st.entries, i, i+1)
	subject := e.message.Subject
	list := slices.DeleteFunc(slices.Clone(st.subjects[subject]), func(o *entry) bool { return o == e })
	if len(list) == 0 {
		delete(st.subjects, subject)
	} else {
		st.subjects[subject] = list
	}
	if st.pending[subject] == e {
		delete(st.pending, subject)
	}
	for _, q := range s.queues {
		if q.stream == st {
			delete(q.leases, e.message.Sequence)
		}
	}
}

// index is where the first entry with at least this sequence stands.
func (st *stream) index(sequence uint64) int {
	return sort.Search(len(st.entries), func(i int) bool { return st.entries[i].message.Sequence >= sequence })
}

func (st *stream) lastEntry(filter string) *entry {
	if !wild(filter) {
		if list := st.subjects[filter]; len(list) > 0 {
			return list[len(list)-1]
		}
		return nil
	}
	for i := len(st.entries) - 1; i >= 0; i-- {
		if matches(filter, st.entries[i].message.Subject) {
			return st.entries[i]
		}
	}
	return nil
}

func (st *stream) lastSequence(filter string) uint64 {
	if e := st.lastEntry(filter); e != nil {
		return e.message.Sequence
	}
	return 0
}

func (st *stream) nextEntry(filter string, from uint64) *entry {
	if !wild(filter) {
		list := st.subjects[filter]
		i := sort.Search(len(list), func(i int) bool { return list[i].message.Sequence >= from })
		if i < len(list) {
			return list[i]
		}
		return nil
	}
	for _, e := range st.entries[st.index(from):] {
		if matches(filter, e.message.Subject) {
			return e
		}
	}
	return nil
}

// catchUp fires what was due, in the order of its times, and removes what has
// expired. The mutex is held.
func (s *Store) catchUp() {
	if index := s.streams[journal.Index]; len(index.expiring) > 0 {
		index.expire(s, s.config.Now())
	}
	st := s.streams[journal.Wakeups]
	if len(st.pending) == 0 {
		return
	}
	now := s.config.Now()
	for {
		e := st.firstDue()
		if e == nil || e.fires.After(now) {
			return
		}
		header := map[string][]string{}
		for name, values := range e.message.Header {
			if !strings.HasPrefix(name, journal.ScheduleHeader) && !strings.HasPrefix(name, "Nats-Expected-") {
				header[name] = values
			}
		}
		header[journal.SchedulerHeader] = []string{e.message.Subject}
		header[journal.NextHeader] = []string{journal.NextPurge}
		target := first(e.message.Header, journal.TargetHeader)
		s.store(st, journal.Outgoing{Subject: target, Header: header, Data: e.message.Data}, e.fires, time.Time{})
	}
}

func (st *stream) firstDue() *entry {
	var due *entry
	for _, e := range st.pending {
		if due == nil || e.fires.Before(due.fires) || e.fires.Equal(due.fires) && e.message.Sequence < due.message.Sequence {
			due = e
		}
	}
	return due
}

// NextEvent is when the store next does something by the clock alone: a
// schedule fires or a lease ends. A simulation can jump there.
func (s *Store) NextEvent() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	return s.nextEvent(s.config.Now())
}

// nextEvent leaves out leases that have ended: nothing more happens to them
// until somebody fetches. The mutex is held.
func (s *Store) nextEvent(now time.Time) (time.Time, bool) {
	var at time.Time
	if e := s.streams[journal.Wakeups].firstDue(); e != nil {
		at = e.fires
	}
	for _, q := range s.queues {
		for _, l := range q.leases {
			if l.until.After(now) && (at.IsZero() || l.until.Before(at)) {
				at = l.until
			}
		}
	}
	return at, !at.IsZero()
}

// Last implements [journal.Store].
func (s *Store) Last(ctx context.Context, name journal.Stream, subject string) (journal.Message, error) {
	if err := ctx.Err(); err != nil {
		return journal.Message{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	return read(s.streams[name].lastEntry(subject))
}

// Next implements [journal.Store].
func (s *Store) Next(ctx context.Context, name journal.Stream, subject string, from uint64) (journal.Message, error) {
	if err := ctx.Err(); err != nil {
		return journal.Message{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	return read(s.streams[name].nextEntry(subject, from))
}

// Newest implements [journal.Store].
func (s *Store) Newest(ctx context.Context, name journal.Stream, subject string, do func(journal.Message) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	s.catchUp()
	var list []journal.Message
	for _, e := range s.streams[name].entries {
		if on := e.message.Subject; matches(subject, on) && s.streams[name].lastEntry(on) == e {
			m, _ := read(e) // there is one
			list = append(list, m)
		}
	}
	s.mu.Unlock()
	for _, m := range list {
		if err := do(m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// read gives a copy of the map, so that no reader changes what is stored. Data
// is shared: nobody writes into a message's bytes.
func read(e *entry) (journal.Message, error) {
	if e == nil {
		return journal.Message{}, journal.ErrNoMessage
	}
	m := e.message
	m.Header = maps.Clone(m.Header)
	return m, nil
}

// await calls try under the mutex until it succeeds or wait is over.
func (s *Store) await(ctx context.Context, wait time.Duration, try func() bool) error {
	end := s.config.Now().Add(wait)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		s.catchUp()
		if try() {
			s.mu.Unlock()
			return nil
		}
		now := s.config.Now()
		if wait <= 0 || !now.Before(end) {
			s.mu.Unlock()
			return journal.ErrNoMessage
		}
		until := end
		if at, ok := s.nextEvent(now); ok && at.Before(until) {
			until = at
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		s.config.Pause(ctx, changed, max(until.Sub(now), time.Nanosecond))
	}
}

type cursor struct {
	store  *Store
	stream *stream
	filter string
	next   uint64
}

// Read implements [journal.Store].
func (s *Store) Read(_ context.Context, name journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	return &cursor{store: s, stream: s.streams[name], filter: subject, next: from}, nil
}

func (c *cursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	var m journal.Message
	err := c.store.await(ctx, wait, func() bool {
		e := c.stream.nextEntry(c.filter, c.next)
		if e == nil {
			return false
		}
		m, _ = read(e)
		c.next = m.Sequence + 1
		return true
	})
	return m, err
}

func (c *cursor) Close() error { return nil }

type queue struct {
	store  *Store
	stream *stream
	config journal.QueueConfig
	next   uint64
	leases map[uint64]*lease // by stream sequence
}

type lease struct {
	entry     *entry
	until     time.Time
	delivered uint64
}

// Queue implements [journal.Store].
func (s *Store) Queue(_ context.Context, c journal.QueueConfig) (journal.Queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := string(c.Stream) + " " + c.Durable
	q := s.queues[name]
	if q == nil {
		q = &queue{store: s, stream: s.streams[c.Stream], config: c, next: c.From, leases: map[uint64]*lease{}}
		s.queues[name] = q
	}
	q.config.AckWait = c.AckWait
	return q, nil
}

func (q *queue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	var list []journal.Delivery
	err := q.store.await(ctx, wait, func() bool {
		list = q.take(limit)
		return len(list) > 0
	})
	if errors.Is(err, journal.ErrNoMessage) {
		return nil, nil
	}
	return list, err
}

// take leases what is free: first what was leased before, then what is new.
func (q *queue) take(limit int) []journal.Delivery {
	now := q.store.config.Now()
	var list []journal.Delivery
	for _, sequence := range slices.Sorted(maps.Keys(q.leases)) {
		if l := q.leases[sequence]; len(list) < limit && !l.until.After(now) {
			list = append(list, q.lease(l, now))
		}
	}
	for len(list) < limit {
		e := q.stream.nextEntry(q.config.Filter, q.next)
		if e == nil {
			break
		}
		q.next = e.message.Sequence + 1
		l := &lease{entry: e}
		q.leases[e.message.Sequence] = l
		list = append(list, q.lease(l, now))
	}
	return list
}

func (q *queue) lease(l *lease, now time.Time) journal.Delivery {
	l.until = now.Add(q.config.AckWait)
	l.delivered++
	m, _ := read(l.entry)
	return &delivery{queue: q, message: m, delivered: l.delivered}
}

type delivery struct {
	queue     *queue
	message   journal.Message
	delivered uint64
}

func (d *delivery) Message() journal.Message { return d.message }
func (d *delivery) Delivered() uint64        { return d.delivered }

// on runs do with the lease of the message, if it has one. As on the server it
// does not matter whose lease that is by now.
func (d *delivery) on(ctx context.Context, do func(*lease, time.Time)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := d.queue.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	if l := d.queue.leases[d.message.Sequence]; l != nil {
		do(l, s.config.Now())
	}
	return nil
}

func (d *delivery) Extend(ctx context.Context) error {
	return d.on(ctx, func(l *lease, now time.Time) { l.until = now.Add(d.queue.config.AckWait) })
}

func (d *delivery) Ack(ctx context.Context) error {
	return d.on(ctx, func(l *lease, _ time.Time) {
		delete(d.queue.leases, d.message.Sequence)
		if name := d.queue.stream.name; name == journal.Wakeups || name == journal.Intents {
			d.queue.stream.remove(d.queue.store, l.entry)
		}
	})
}

func (d *delivery) Release(ctx context.Context) error {
	return d.on(ctx, func(l *lease, now time.Time) {
		l.until = now
		if s := d.queue.store; s.changed != nil {
			close(s.changed)
			s.changed = nil
		}
	})
}
