package simulator

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"
)

// overlapGrace is how long a second call with side effects waits for news that
// the client of the first has left, on connections that do not tell at once.
const overlapGrace = 20 * time.Millisecond

// A Request is one entry of the log.
type Request struct {
	Seq int // from 1
	// At is the arrival, Done when the answer was written or the connection
	// cut; zero while the request is held.
	At, Done time.Time
	// Mount is the base path of the provider; with an empty Dialect the
	// request matched none.
	Mount   string
	Dialect Dialect
	Call    Call
	Method  string
	Host    string
	Path    string // still escaped
	Query   string // raw
	Header  http.Header
	Body    []byte
	// Job and Token are what the call is about, as far as known.
	Job, Token string
	// Key names the operation; see Simulator.Duplicates. A Prepare has one
	// once a create used what it prepared.
	Key string
	// Stored says that this call made a job, Replayed that it got an earlier
	// one by its token.
	Stored, Replayed bool
	// Fault names the faults that acted on the call, by commas; also
	// "unauthorized" and "body-unread". Empty means none.
	Fault string
	// Status is what was answered; 0 means that no answer was begun.
	Status int
}

// A Filter picks log entries; every set field must be equal. Fault picks the
// entries that name this fault among others.
type Filter struct {
	Mount, Host, Job, Token, Key, Fault string
	Dialect                             Dialect
	Call                                Call
	Method                              string
	Status                              int
	Stored                              bool
}

func (f Filter) match(r *Request) bool {
	return (f.Mount == "" || f.Mount == r.Mount) &&
		(f.Host == "" || f.Host == r.Host) &&
		(f.Job == "" || f.Job == r.Job) &&
		(f.Token == "" || f.Token == r.Token) &&
		(f.Key == "" || f.Key == r.Key) &&
		(f.Fault == "" || slices.Contains(strings.Split(r.Fault, ","), f.Fault)) &&
		(f.Dialect == "" || f.Dialect == r.Dialect) &&
		(f.Call == "" || f.Call == Any || f.Call == r.Call) &&
		(f.Method == "" || f.Method == r.Method) &&
		(f.Status == 0 || f.Status == r.Status) &&
		(!f.Stored || r.Stored)
}

// Requests returns copies of the matching log entries, in order of arrival; the
// zero Filter picks all.
func (s *Simulator) Requests(f Filter) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Request
	for _, r := range s.log {
		if f.match(r) {
			c := *r
			c.Header = r.Header.Clone()
			c.Body = bytes.Clone(r.Body)
			out = append(out, c)
		}
	}
	return out
}

// Count is the number of log entries that match.
func (s *Simulator) Count(f Filter) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.log {
		if f.match(r) {
			n++
		}
	}
	return n
}

// CreatesOnWire is the number of creates of an operation key that reached the
// simulator, on all mounts, those it never looked at included.
func (s *Simulator) CreatesOnWire(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wire[key]
}

// MaxAtOnce is the largest number of calls with side effects (creates and
// cancels) of one operation key that were in flight at the same time: from
// arrival until the answer is written, the connection cut or the client gone. A
// request held after its client left no longer counts.
//
// With a memory listener this is exact. On other connections the departure of a
// client shows late, so the second of two overlapping calls waits up to 20 ms
// for it before it counts as overlap.
func (s *Simulator) MaxAtOnce(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxFlights[key]
}

// MaxAtOnceAny is the largest MaxAtOnce of all operations.
func (s *Simulator) MaxAtOnceAny() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := 0
	for _, n := range s.maxFlights {
		most = max(most, n)
	}
	return most
}

func (s *Simulator) logLocked(r *Request) {
	s.seq++
	r.Seq = s.seq
	s.log = append(s.log, r)
	// Dropped in bulk, so that a full log costs no copy per request.
	if s.logLimit > 0 && len(s.log) >= 2*s.logLimit {
		s.log = append([]*Request(nil), s.log[len(s.log)-s.logLimit:]...)
	}
}

// note adds a fault that acts on the call to its log entry.
func (s *Simulator) note(c *call, fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.noteLocked(fault)
}

func (c *call) noteLocked(fault string) { c.entry.Fault = join(c.entry.Fault, fault) }

// leave completes the log entry when the handler ends.
func (s *Simulator) leave(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.entry.Done = s.now()
	if m := c.mount; m != nil && m.busy[c.token] == c.entry.Seq {
		delete(m.busy, c.token)
	}
	fl := slices.DeleteFunc(s.flights[c.flightKey], func(f *flight) bool { return f.entry == c.entry })
	if len(fl) == 0 {
		delete(s.flights, c.flightKey)
	} else {
		s.flights[c.flightKey] = fl
	}
}

// A flight is a call with side effects that may still be under way.
type flight struct {
	entry *Request
	left  <-chan struct{} // ends when the server saw the client leave
	conn  *memoryConn     // nil on other connections
}

func (f *flight) gone() bool {
	if f.conn != nil && f.conn.abandoned() {
		return true
	}
	select {
	case <-f.left:
		return true
	default:
		return false
	}
}

// departLocked registers a call with side effects and what flies beside it. It
// may release the lock for overlapGrace.
func (s *Simulator) departLocked(c *call, r *http.Request) {
	key := c.entry.Key
	if key == "" {
		key = c.entry.Job // a cancel of a job unknown here
	}
	c.flightKey = key
	own := &flight{entry: c.entry, left: r.Context().Done()}
	own.conn, _ = r.Context().Value(connKey{}).(*memoryConn)
	s.flights[key] = append(s.flights[key], own)
	for _, other := range slices.Clone(s.flights[key]) {
		if other == own || other.conn != nil || other.gone() {
			continue
		}
		s.mu.Unlock()
		s.wait(overlapGrace, other.left)
		s.mu.Lock()
	}
	n := 0
	for _, f := range s.flights[key] {
		// A call that came after this one counts itself.
		if f.entry.Seq <= own.entry.Seq && !f.gone() {
			n++
		}
	}
	s.maxFlights[key] = max(s.maxFlights[key], n)
}
