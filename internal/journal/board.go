package journal

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// boardWait bounds how long an author waits for its own fact on the board
	// before it reads it back.
	boardWait = time.Second
	// boardLive and boardEnded bound the states of one partition on the board:
	// those that moved last, and those of operations that are not looked at any
	// more, which only those need who wait for them.
	boardLive  = 1024
	boardEnded = 64
	// boardHot bounds those of the live ones that are kept as they are; the
	// others are kept as a record holds them, in a third of the memory.
	boardHot = 64
)

// A Board holds the newest states that the projectors of this process have
// folded, for everybody else in it (DESIGN §9). Only facts that were read from
// the ledger get onto it, so that it is never ahead of what is stored, and a
// state only gives way to a newer one. It may lag, and it forgets: what it does
// not say is read from the leader. Safe for concurrent use; nil has nothing.
type Board struct {
	// alone says that this process writes everything: what the board has is the
	// newest there is once it has come to what was acknowledged here.
	alone bool
	parts [Partitions]part

	// parks counts the events that this process began to park, and quiet is that
	// count plus one when none was parked last; 0: nobody has looked yet.
	parks, quiet atomic.Uint64
	inputs       inputs
	claims       claims
}

// NewBoard makes an empty board. alone says that only this process writes to
// the ledger.
func NewBoard(alone bool) *Board { return &Board{alone: alone} }

// part is one partition of a board.
type part struct {
	mu     sync.Mutex // guards everything below
	holder *Slate     // who may write; nil: nobody, and nothing is there
	posts  map[string]*post
	live   list // of posts that will be looked at, the one that moved last at the end
	ended  list // of the others
	// hot counts the live posts that are not packed: those from warmest to the end.
	hot     int
	warmest *post
	room    []byte // for what is being packed
	// acknowledged is the newest fact of an operation that was stored by this
	// process and is not on the board yet. It outlives the holder.
	acknowledged map[string]uint64
	waiting      map[string][]waiter
}

// post is one state on a board.
type post struct {
	operation  string
	sequence   uint64             // of the state
	state      *projections.State // never changed; nil if it is packed
	packed     []byte
	in         *list
	prev, next *post
}

// give gives the state, which nobody may change; nil where its packed form cannot
// be read, which is as if it were not there.
func (p *post) give() *projections.State {
	if p.state != nil {
		return p.state
	}
	var s projections.State
	if err := codec.Unmarshal(p.packed, &s); err != nil {
		return nil
	}
	return &s
}

// waiter is told when the operation has come to the sequence.
type waiter struct {
	sequence uint64
	reached  chan struct{}
}

// Slate is one tenure's right to write its partition of a board. Everybody may
// read.
type Slate struct{ part *part }

// Slate gives the partition to a new holder, empty; the one before can write it
// no longer. A nil board gives a slate that only its holder sees.
func (b *Board) Slate(partition int) *Slate {
	p := &part{}
	if b != nil {
		p = &b.parts[partition]
	}
	s := &Slate{p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
	p.holder = s
	return s
}

func (p *part) clearLocked() {
	p.holder = nil
	p.posts, p.live, p.ended, p.hot, p.warmest = map[string]*post{}, list{}, list{}, 0, nil
	for _, waiting := range p.waiting {
		for _, w := range waiting {
			close(w.reached)
		}
	}
	p.waiting = nil
}

// Close takes off what the slate showed. Who waits for it no longer does.
func (s *Slate) Close() {
	s.part.mu.Lock()
	defer s.part.mu.Unlock()
	if s.part.holder == s {
		s.part.clearLocked()
	}
}

// State gives what was put; nothing once another has the partition.
func (s *Slate) State(operation string) (projections.State, bool) {
	s.part.mu.Lock()
	defer s.part.mu.Unlock()
	if s.part.holder == s {
		if found := s.part.stateLocked(operation, 0); found != nil {
			return *found, true
		}
	}
	return projections.State{}, false
}

// stateLocked gives the state if it has come to least; nil if not. A packed one is
// not read before that is known. Pointers, because a state takes 2 KiB of each
// stack it is handed over.
func (p *part) stateLocked(operation string, least uint64) *projections.State {
	if found := p.posts[operation]; found != nil && found.sequence >= least {
		return found.give()
	}
	return nil
}

// addLocked puts a post at the end of a list, and packs those of the live ones
// that moved longest ago.
func (p *part) addLocked(at *post, in *list) {
	at.in = in
	in.add(at)
	if in != &p.live {
		return
	}
	if p.hot++; p.warmest == nil {
		p.warmest = at
	}
	for ; p.hot > boardHot; p.hot-- {
		cold := p.warmest
		// Copied: what an encoder leaves over is half as much again.
		p.room = codec.Append(p.room[:0], cold.state)
		cold.packed, cold.state = bytes.Clone(p.room), nil
		p.warmest = cold.next
	}
}

func (p *part) removeLocked(at *post) {
	if at.in == &p.live && at.state != nil {
		p.hot--
		if p.warmest == at {
			p.warmest = at.next
		}
	}
	at.in.remove(at)
}

// Put shows a state that was folded from the ledger. An older one than is there
// changes nothing.
func (s *Slate) Put(state projections.State) {
	p, operation := s.part, state.Operation
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != s {
		return
	}
	at := p.posts[operation]
	switch {
	case at == nil:
		// A copy: the strings of a state are parts of one, which would outlive it.
		operation = strings.Clone(operation)
		at = &post{operation: operation}
		p.posts[operation] = at
	case at.sequence >= state.Sequence:
		return
	default:
		p.removeLocked(at)
	}
	at.state, at.packed, at.sequence = &state, nil, state.Sequence
	in := &p.live
	if state.NextLook.IsZero() {
		in = &p.ended
	}
	p.addLocked(at, in)
	for _, full := range []struct {
		in   *list
		most int
	}{{&p.live, boardLive}, {&p.ended, boardEnded}} {
		if oldest := full.in.first; full.in.n > full.most {
			p.removeLocked(oldest)
			delete(p.posts, oldest.operation)
		}
	}
	if p.acknowledged[operation] <= state.Sequence {
		delete(p.acknowledged, operation)
	}
	p.leaveLocked(operation, func(w waiter) bool {
		if w.sequence > state.Sequence {
			return false
		}
		close(w.reached)
		return true
	})
}

// leaveLocked takes out those who need not wait any more.
func (p *part) leaveLocked(operation string, done func(waiter) bool) {
	waiting, some := p.waiting[operation]
	if !some {
		return
	}
	if waiting = slices.DeleteFunc(waiting, done); len(waiting) > 0 {
		p.waiting[operation] = waiting
	} else {
		delete(p.waiting, operation)
	}
}

// state gives what the board has of the operation if it has come to least, else nil.
func (b *Board) state(operation string, least uint64) *projections.State {
	if b == nil {
		return nil
	}
	p := &b.parts[Partition(operation)]
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stateLocked(operation, least)
	if at := p.posts[operation]; s != nil && at.state == nil && at.in == &p.live {
		// Who asks so is about to move it, and the projector asks next.
		p.removeLocked(at)
		at.state, at.packed = s, nil
		p.addLocked(at, &p.live)
	}
	return s
}

// newest gives the operation's state if it includes everything whose append was
// acknowledged before the call, else nil.
func (b *Board) newest(operation string) *projections.State {
	if b == nil || !b.alone {
		return nil
	}
	p := &b.parts[Partition(operation)]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stateLocked(operation, p.acknowledged[operation])
}

// acknowledge notes that a fact is stored. It gives the state if that has come
// so far, or else what is closed when it has; neither if nobody will say.
func (b *Board) acknowledge(operation string, sequence uint64) (s *projections.State, reached <-chan struct{}) {
	if b == nil {
		return nil, nil
	}
	p := &b.parts[Partition(operation)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.stateLocked(operation, sequence); s != nil {
		return s, nil
	}
	if b.alone {
		if p.acknowledged == nil {
			p.acknowledged = map[string]uint64{}
		}
		p.acknowledged[operation] = max(p.acknowledged[operation], sequence)
	}
	if p.holder == nil {
		return nil, nil
	}
	w := waiter{sequence, make(chan struct{})}
	if p.waiting == nil {
		p.waiting = map[string][]waiter{}
	}
	p.waiting[operation] = append(p.waiting[operation], w)
	return nil, w.reached
}

// resign ends a wait, if nobody has, and gives the state if it has come so far.
func (b *Board) resign(operation string, sequence uint64, reached <-chan struct{}) *projections.State {
	p := &b.parts[Partition(operation)]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(operation, func(w waiter) bool { return w.reached == reached })
	return p.stateLocked(operation, sequence)
}

// after gives the newest state behind an append that was acknowledged at the
// sequence, once the projector of this process has come to it. Without a board,
// or where it takes too long, there is none, and the ledger is to be read.
func (j *Journal) after(ctx context.Context, operation string, sequence uint64) *projections.State {
	s, reached := j.board.acknowledge(operation, sequence)
	if reached != nil {
		j.await(ctx, reached, boardWait)
		s = j.board.resign(operation, sequence, reached)
	}
	return s
}

// awaitClosed waits on the machine's clock.
func awaitClosed(ctx context.Context, reached <-chan struct{}, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-reached:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Known gives a state of the operation that includes the fact at the sequence
// and may be stale beyond it: a permit decided on it fails at its expected
// sequence if it is, and evidence says what its author knew. It asks the ledger
// only where the board has not come so far.
func (j *Journal) Known(ctx context.Context, operation string, least uint64) (projections.State, error) {
	if s := j.board.state(operation, least); s != nil {
		return *s, nil
	}
	return j.Current(ctx, operation)
}

// claims holds who this process made the owners of jobs lately, by subject: INDEX says
// so, and nobody but a Reclaim of this process takes a claim away.
type claims struct {
	mu     sync.Mutex // guards what follows
	owners lately[string]
	taken  uint64 // how many may have been taken away
}

// claiming is to be asked before a claim is written, and told when it is noted.
func (b *Board) claiming() uint64 {
	if b == nil {
		return 0
	}
	b.claims.mu.Lock()
	defer b.claims.mu.Unlock()
	return b.claims.taken
}

// claim notes the owner of a job, unless a claim was taken away since it began to be
// one: that may have been this.
func (b *Board) claim(subject, operation string, begun uint64) {
	if b == nil || !b.alone {
		return
	}
	c := &b.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == begun {
		c.owners.note(subject, strings.Clone(operation))
	}
}

// unclaim notes, ahead of the write and behind it, that the job may become another's.
func (b *Board) unclaim(subject string) {
	if b == nil {
		return
	}
	c := &b.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
	c.owners.forget(subject)
}

// claimed says whether the job is known to be the operation's. No means nothing.
func (b *Board) claimed(subject, operation string) bool {
	if b == nil {
		return false
	}
	c := &b.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	return operation != "" && c.owners.get(subject) == operation
}

// parking notes, ahead of the write, that an event is going to be parked.
func (b *Board) parking() {
	if b != nil {
		b.parks.Add(1)
	}
}

// nothingParked says whether nothing is parked. Who parks notes it, writes, and
// then reads the names; who asks this has written a name. If it is not noted by
// then, who parks will see the name.
func (b *Board) nothingParked() bool {
	return b != nil && b.alone && b.quiet.Load() == b.parks.Load()+1
}

const (
	// keptInputs bounds the bytes kept for creates that are about to leave, and
	// keptInput those of one.
	keptInputs = 16 << 20
	keptInput  = 8 << 10
)

// inputs holds payloads that are stored and will be read once soon, the oldest
// of which make room.
type inputs struct {
	mu    sync.Mutex // guards everything below
	data  map[events.Digest][]byte
	order []events.Digest // some may have been taken
	size  int
	// drafts are being stored, and closed when that has ended.
	drafts map[events.Digest]chan struct{}
}

func (i *inputs) keep(d events.Digest, data []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, there := i.data[d]; there {
		return
	}
	if i.data == nil {
		i.data = map[events.Digest][]byte{}
	}
	i.data[d] = data
	i.order = append(i.order, d)
	i.size += len(data)
	for i.size > keptInputs || len(i.order) > keptInputs/256 {
		i.size -= len(i.data[i.order[0]])
		delete(i.data, i.order[0])
		i.order = i.order[1:]
	}
}

func (i *inputs) take(d events.Digest) ([]byte, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	data, there := i.data[d]
	if there {
		i.size -= len(data)
		delete(i.data, d)
	}
	return data, there
}

// Keep holds a payload that was stored until it is read once, if there is room
// and somebody of this process to read it. The bytes must not change.
func (j *Journal) Keep(d events.Digest, data []byte) {
	if j.board != nil && len(data) <= keptInput {
		j.board.inputs.keep(d, data)
	}
}

// Draft stores a payload that a fact to come is likely to name: PutPayload of the
// same bytes in this process then has nothing left to do. What fails here is done
// there. Without a board, or beyond what that keeps, it does nothing.
func (j *Journal) Draft(ctx context.Context, data []byte) {
	if j.board == nil || len(data) > keptInput {
		return
	}
	d := events.Sum(data)
	i := &j.board.inputs
	if !i.begin(d) {
		return
	}
	// A crash after this write leaves a payload that no fact names.
	if err := j.putOnce(ctx, Outgoing{Subject: payloadSubject(d), Data: data}); err == nil {
		i.keep(d, data)
	}
	i.end(d)
}

// drafted says whether the payload was stored by Draft, for which it waits.
func (j *Journal) drafted(ctx context.Context, d events.Digest) bool {
	if j.board == nil {
		return false
	}
	i := &j.board.inputs
	if ended := i.ending(d); ended != nil {
		j.await(ctx, ended, boardWait)
	}
	_, stored := i.take(d)
	return stored
}

// begin says no if a draft of the payload is under way.
func (i *inputs) begin(d events.Digest) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.drafts[d] != nil {
		return false
	}
	if i.drafts == nil {
		i.drafts = map[events.Digest]chan struct{}{}
	}
	i.drafts[d] = make(chan struct{})
	return true
}

func (i *inputs) end(d events.Digest) {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.drafts[d])
	delete(i.drafts, d)
}

func (i *inputs) ending(d events.Digest) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.drafts[d]
}

// list keeps posts in the order in which they moved.
type list struct {
	first, last *post
	n           int
}

func (l *list) add(p *post) {
	p.prev, p.next = l.last, nil
	if l.last != nil {
		l.last.next = p
	} else {
		l.first = p
	}
	l.last = p
	l.n++
}

func (l *list) remove(p *post) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
	l.n--
}
