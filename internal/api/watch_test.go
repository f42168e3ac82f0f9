package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// sse is one event of a stream as a client reads it.
type sse struct{ id, name, data string }

// listener is a client of a stream in a bubble. What it was sent can be read at any
// time.
type listener struct {
	mu     sync.Mutex
	header http.Header
	status int
	text   strings.Builder
	stop   context.CancelFunc
	done   chan struct{}
	broken bool          // writes fail
	gate   chan struct{} // not nil: a write waits until it is closed
	at     string        // id of the last event without data that was taken
}

func (l *listener) Header() http.Header { return l.header }

func (l *listener) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = status
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	if gate != nil {
		<-gate
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return 0, io.ErrClosedPipe
	}
	return l.text.Write(b)
}

func (l *listener) FlushError() error { return nil }

// listen opens a stream and waits until it has been told all there is.
func (h *harness) listen(as, target string, header map[string]string) *listener {
	ctx, stop := context.WithCancel(h.t.Context())
	l := &listener{header: http.Header{}, stop: stop, done: make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	r.Header.Set("Authorization", "Bearer "+h.bearer[as])
	for name, value := range header {
		r.Header.Set(name, value)
	}
	go func() {
		defer close(l.done)
		h.handler.ServeHTTP(l, r)
	}()
	synctest.Wait()
	return l
}

// leave ends it as a client does.
func (l *listener) leave() {
	l.stop()
	<-l.done
}

func (l *listener) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// take gives what has come since the last take.
func (l *listener) take(t *testing.T) (list []sse, beats int) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	l.text.Reset()
	var e sse
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "" && e.id != "" && e.name+e.data == "":
			l.at, e = e.id, sse{} // it says where the stream is, and nothing else
		case line == "" && e != sse{}:
			list, e = append(list, e), sse{}
		case line == ": hb":
			beats++
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		case line == "", strings.HasPrefix(line, "retry: "):
		default:
			t.Errorf("line %q of a stream", line)
		}
	}
	return list, beats
}

func names(list []sse) (out []string) {
	for _, e := range list {
		out = append(out, e.id+" "+strings.TrimSuffix(strings.TrimPrefix(e.name, "dev.counterfoil."), ".v1"))
	}
	return out
}

func expect(t *testing.T, list []sse, want ...string) {
	t.Helper()
	if got := names(list); !slices.Equal(got, want) {
		t.Errorf("told\n%q\nwant\n%q", got, want)
	}
}

// watched runs a test in a bubble, on its clock, with the ledger followed for those
// who wait, or not.
func watched(t *testing.T, test func(t *testing.T, h *harness, followed bool)) {
	for _, followed := range []bool{true, false} {
		t.Run(fmt.Sprintf("followed %t", followed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &harness{t: t, clock: &clock{real: true}, log: &bytes.Buffer{}, bearer: map[string]string{}}
				h.over(h.memory())
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					if followed {
						h.service.Run(ctx)
					}
				}()
				test(t, h, followed)
				stop()
				<-done
			})
		})
	}
}

func (h *harness) submitted(as, key string) string {
	h.t.Helper()
	w := h.do(as, "POST", "/v1/operations", map[string]string{"Idempotency-Key": key}, `{"provider":"example","params":{"kind":"render"}}`)
	if w.Code != http.StatusAccepted {
		h.t.Fatalf("submit: %d %s", w.Code, w.Body)
	}
	return h.op
}

// settle lets those who look for themselves look.
func settle() {
	time.Sleep(1100 * time.Millisecond)
	synctest.Wait()
}

// A stream begins with the operation as it stands, tells each fact once and in order,
// and ends with the operation. Who comes back is told what it missed and nothing else.
func TestWatchAnOperation(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		op := h.submitted("alice", "k")
		address := "/v1/operations/" + op + "/events"
		l := h.listen("alice", address, map[string]string{"Accept": "text/event-stream"})
		list, _ := l.take(t)
		expect(t, list, "1 operation.snapshot")
		if l.status != http.StatusOK || l.header.Get("Content-Type") != "text/event-stream" || l.header.Get("Cache-Control") != "no-store" || l.header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("%d %v", l.status, l.header)
		}
		var snapshot struct {
			ID, Subject, Type string
			Data              ingest.View
		}
		if err := json.Unmarshal([]byte(list[0].data), &snapshot); err != nil || snapshot.Subject != op || snapshot.Data.ID != op || snapshot.Data.Version != 1 {
			t.Errorf("%v %s", err, list[0].data)
		}
		h.play("attempted")
		settle()
		list, _ = l.take(t)
		expect(t, list, "2 create.attempted")
		h.play("accepted j-1")
		h.play("observed running")
		settle()
		list, _ = l.take(t)
		expect(t, list, "3 create.answered", "4 job.observed")
		var told struct {
			SpecVersion, ID, Source, Type, Subject string
			Data                                   struct {
				Entry     ingest.Entry
				Operation ingest.Standing
			}
		}
		if err := json.Unmarshal([]byte(strings.ReplaceAll(list[1].data, `"fields":`, `"x":`)), &told); err != nil ||
			told.SpecVersion != "1.0" || told.Subject != op || told.Type != list[1].name || told.Data.Operation.State != "observing" || told.Data.Operation.Version != 4 ||
			told.Data.Entry.Verdict != "applied" || !strings.Contains(list[1].data, `"remote_state":"RUNNING"`) {
			t.Errorf("%v %s", err, list[1].data)
		}
		// One that comes back with an old id, by header or by parameter, is told the rest.
		for _, back := range []*listener{h.listen("alice", address, map[string]string{"Last-Event-ID": "2"}), h.listen("alice", address+"?after=2", nil)} {
			list, _ = back.take(t)
			expect(t, list, "3 create.answered", "4 job.observed")
			back.leave()
		}
		all := h.listen("alice", address+"?after=0", nil)
		list, _ = all.take(t)
		expect(t, list, "1 intent.recorded", "2 create.attempted", "3 create.answered", "4 job.observed")
		all.leave()
		h.play("observed succeeded")
		h.play(`collected {"ok":true}`)
		settle()
		list, _ = l.take(t)
		expect(t, list, "5 job.observed", "6 result.collected", "6 operation.ended")
		if !l.ended() {
			t.Error("the stream goes on behind the end")
		}
		var end struct{ Data ingest.View }
		if err := json.Unmarshal([]byte(list[2].data), &end); err != nil || !end.Data.Terminal || end.Data.Result == nil {
			t.Errorf("%v %s", err, list[2].data)
		}
		// A browser connects again by itself, and is told to stop.
		if w := h.do("alice", "GET", address, map[string]string{"Last-Event-ID": "6"}, ""); w.Code != http.StatusNoContent || w.Body.Len() > 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// Who comes for the first time sees the end at once.
		late := h.listen("alice", address, nil)
		list, _ = late.take(t)
		expect(t, list, "6 operation.snapshot", "6 operation.ended")
		if !late.ended() {
			t.Error("the stream of what has ended goes on")
		}
	})
}

// What is no id of this operation never starts silently from now.
func TestWatchFromElsewhere(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		other := h.submitted("alice", "other")
		op := h.submitted("alice", "k")
		h.play("attempted")
		address := "/v1/operations/" + op + "/events"
		for _, id := range []string{"1", "99", "9223372036854775807"} { // another's, of the future
			l := h.listen("alice", address, map[string]string{"Last-Event-ID": id})
			list, _ := l.take(t)
			expect(t, list, "3 operation.reset")
			if len(list) > 0 && !strings.Contains(list[0].data, `"version":2`) {
				t.Error(list[0].data)
			}
			l.leave()
		}
		for _, id := range []string{"x", "-1", "9223372036854775808", "1 "} {
			if w := h.do("alice", "GET", address+"?after="+strings.ReplaceAll(id, " ", "%20"), nil, ""); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"cursor_invalid"`) {
				t.Errorf("%q: %d %s", id, w.Code, w.Body)
			}
		}
		// Of two ids each reader may take another.
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, address, nil)
		r.Header = http.Header{"Authorization": {"Bearer " + h.bearer["alice"]}, "Last-Event-Id": {"1", "2"}}
		if h.handler.ServeHTTP(w, r); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"field":"Last-Event-ID"`) {
			t.Errorf("two ids: %d %s", w.Code, w.Body)
		}
		for _, c := range []struct {
			as, target string
			header     map[string]string
			status     int
		}{
			{"alice", "/v1/operations/op_none/events", nil, 404},
			{"bob", address, nil, 404},
			{"", address, nil, 401},
			{"alice", address + "?since=1", nil, 422},
			{"alice", address, map[string]string{"Accept": "application/json, text/event-stream;q=0"}, 406},
			{"alice", "/v1/events", map[string]string{"Accept": "application/json"}, 406},
			{"alice", "/v1/events?after=x", nil, 400},
			{"alice", "/v1/events?after=99", nil, 400},
			{"alice", "/v1/events?provider=A", nil, 422},
		} {
			if w := h.do(c.as, "GET", c.target, c.header, ""); w.Code != c.status || !strings.Contains(w.Header().Get("Content-Type"), "problem+json") {
				t.Errorf("%s: %d %s", c.target, w.Code, w.Body)
			}
		}
		if w := h.do("alice", "HEAD", "/v1/operations/"+other+"/events", nil, ""); w.Code != http.StatusOK {
			t.Errorf("HEAD: %d", w.Code)
		}
	})
}

// A stream shows that it lives, and one that nobody reads any more ends.
func TestWatchBeats(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		op := h.submitted("alice", "k")
		l := h.listen("alice", "/v1/operations/"+op+"/events", nil)
		time.Sleep(47 * time.Second)
		if list, beats := l.take(t); len(list) != 1 || beats != 3 {
			t.Errorf("%q, %d beats", list, beats)
		}
		l.mu.Lock()
		l.broken = true
		l.mu.Unlock()
		time.Sleep(beatTime)
		synctest.Wait()
		if !l.ended() {
			t.Error("a stream that nobody reads goes on")
		}
		if strings.Contains(h.log.String(), "request failed") {
			t.Error("somebody who leaves is told as a failure")
		}
	})
}

// A stream ends with the right to it: when its key is revoked or expires, or may do
// something else, and nothing is told after that. Another key's change is none of it.
func TestStreamsEndWithTheirKeys(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		h.key("short", "alice", false, h.clock.Now().Add(time.Minute))
		h.key("long", "alice", false, time.Time{})
		op := h.submitted("alice", "k")
		his := h.submitted("bob", "k")
		target := "/v1/operations/" + op + "/events"
		id := func(as string) string {
			id, _, _ := strings.Cut(strings.TrimPrefix(h.bearer[as], "cf_"), ".")
			return id
		}
		short, long, feed := h.listen("short", target, nil), h.listen("long", target, nil), h.listen("long", "/v1/events", nil)
		mate := h.listen("mate", "/v1/operations/"+his+"/events", nil)
		for _, l := range []*listener{short, long, feed, mate} {
			if l.take(t); l.ended() {
				t.Fatalf("a stream ended at once: %d", l.status)
			}
		}
		// Another principal gets a key, and the team another name.
		h.key("other", "other", false, time.Time{})
		time.Sleep(beatTime)
		synctest.Wait()
		if long.ended() || feed.ended() || mate.ended() {
			t.Error("a stream ended with somebody else's key")
		}
		key, _, err := ingest.NewKey(rand.Reader, "bob", false, h.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		key.Team = "green"
		if err := ingest.AddKey(h.keys, key); err != nil {
			t.Fatal(err)
		}
		if _, err := ingest.DisableKey(h.keys, id("long")); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*listener{long, feed, mate} {
			l.take(t)
		}
		h.op = op
		h.play("attempted")
		h.op = his
		h.play("attempted")
		settle()
		for name, l := range map[string]*listener{"watch": long, "feed": feed, "of the team": mate} {
			if list, _ := l.take(t); len(list) > 0 || !l.ended() {
				t.Errorf("%s goes on: %q", name, list)
			}
		}
		if list, _ := short.take(t); len(list) != 1 || short.ended() {
			t.Errorf("the other key's stream was told %q", list)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !short.ended() {
			t.Error("a stream outlives its key")
		}
	})
}

// All who watch an operation hear of a fact, also those who are behind what is kept.
func TestManyWatch(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		op := h.submitted("alice", "k")
		h.play("attempted")
		h.play("accepted j-1")
		var all []*listener
		for range 20 {
			all = append(all, h.listen("alice", "/v1/operations/"+op+"/events?after=3", nil))
		}
		const facts = 150 // more than are kept
		var want []string
		slow := all[0]
		slow.mu.Lock()
		slow.gate = make(chan struct{}) // it cannot write what it is told of the first
		slow.mu.Unlock()
		h.play("observed running")
		for i := range facts {
			want = append(want, fmt.Sprintf("%d job.observed", 4+i))
			if i > 0 {
				h.play("observed running")
			}
			if i%10 == 0 {
				time.Sleep(time.Second) // the others keep up
			}
		}
		close(slow.gate)
		settle()
		for _, l := range all {
			list, _ := l.take(t)
			expect(t, list, want...)
			l.leave()
		}
	})
}

// While the ledger cannot be followed those who wait look for themselves, and nobody
// misses a fact.
func TestWatchThroughTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, clock: &clock{real: true}, log: &bytes.Buffer{}, bearer: map[string]string{}}
		trouble := &troubled{Store: h.memory()}
		h.over(trouble)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.service.Run(ctx) }()
		op := h.submitted("alice", "k")
		l := h.listen("alice", "/v1/operations/"+op+"/events", nil)
		l.take(t)
		n := 1
		for range 12 {
			trouble.flip()
			time.Sleep(1200 * time.Millisecond) // a reading of the ledger fails after a second
			h.fact(&events.OperationPaused{Who: "alice"})
			h.fact(&events.OperationResumed{Who: "alice"})
			time.Sleep(2200 * time.Millisecond)
			list, _ := l.take(t)
			expect(t, list, fmt.Sprintf("%d operation.paused", n+1), fmt.Sprintf("%d operation.resumed", n+2))
			n += 2
		}
		l.leave()
		stop()
		<-done
	})
}

// troubled is a store whose ledger cannot be followed every other while.
type troubled struct {
	journal.Store
	mu  sync.Mutex
	bad bool
}

func (s *troubled) flip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = !s.bad
}

func (s *troubled) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad {
		return journal.ErrUnread
	}
	return nil
}

func (s *troubled) Last(ctx context.Context, stream journal.Stream, subject string) (journal.Message, error) {
	if err := s.trouble(); err != nil && stream == journal.Ledger {
		return journal.Message{}, err // so that nobody can begin to follow it
	}
	return s.Store.Last(ctx, stream, subject)
}

func (s *troubled) Read(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	c, err := s.Store.Read(ctx, stream, subject, from)
	return &troubledCursor{c, s}, err
}

type troubledCursor struct {
	journal.Cursor
	s *troubled
}

func (c *troubledCursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	if err := c.s.trouble(); err != nil && wait > 0 {
		return journal.Message{}, err
	}
	return c.Cursor.Next(ctx, min(wait, time.Second))
}

// A feed tells a caller of all its operations and of no others, and resumes.
func TestFeed(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		h.submitted("alice", "before")
		l := h.listen("alice", "/v1/events", nil)
		one := h.submitted("alice", "one")
		h.submitted("bob", "his")
		h.op = one
		h.play("attempted")
		list, _ := l.take(t)
		expect(t, list, "2 intent.recorded", "4 create.attempted")
		l.leave()
		h.play("accepted j-1")
		back := h.listen("alice", "/v1/events?provider=example", map[string]string{"Last-Event-ID": "2"})
		list, _ = back.take(t)
		expect(t, list, "4 create.attempted", "5 create.answered")
		if !strings.Contains(list[1].data, `"state":"accepted"`) || strings.Contains(list[1].data, "canary") {
			t.Error(list[1].data)
		}
		time.Sleep(2*beatTime + time.Second)
		if _, beats := back.take(t); beats != 2 {
			t.Errorf("%d beats", beats)
		}
		back.leave()
		none := h.listen("alice", "/v1/events?provider=replicate&after=0", nil)
		list, _ = none.take(t)
		expect(t, list)
		none.leave()
	})
}

// A feed says where it begins before it tells anything, and where it is when nothing that
// it passed was its caller's: who is cut off there goes on with what came since.
func TestFeedSaysWhereItIs(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, _ bool) {
		empty := h.listen("alice", "/v1/events", nil)
		if empty.take(t); empty.at != "0" {
			t.Errorf("the feed of an empty ledger begins at %q", empty.at)
		}
		empty.leave()
		h.submitted("alice", "before")
		l := h.listen("alice", "/v1/events", nil)
		if text := l.text.String(); text != "retry: 2000\nid: 1\n\n" {
			t.Errorf("a feed begins with %q", text)
		}
		l.leave() // before its first event
		h.submitted("alice", "missed")
		back := h.listen("alice", "/v1/events", map[string]string{"Last-Event-ID": "1"})
		list, _ := back.take(t)
		expect(t, list, "2 intent.recorded")
		h.submitted("bob", "his")
		time.Sleep(beatTime + time.Second)
		list, beats := back.take(t)
		if expect(t, list); back.at != "3" || beats != 1 {
			t.Errorf("behind another's fact the feed is at %q, with %d beats", back.at, beats)
		}
		back.at = ""
		time.Sleep(beatTime)
		if back.take(t); back.at != "" {
			t.Errorf("with nothing new the feed says that it is at %q", back.at)
		}
		back.leave()
	})
}

// Streams are bounded, and a place is free again when one ends.
func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{t: t, clock: &clock{real: true}, log: &bytes.Buffer{}, bearer: map[string]string{}, streams: ingest.StreamLimits{Most: 4, MostOf: 3, Feeds: 2, Replay: 1}}
		h.over(h.memory())
		his, hers := h.submitted("bob", "k"), h.submitted("alice", "k")
		watch := func(op string) string { return "/v1/operations/" + op + "/events" }
		refused := func(as, target string, status int, code string) {
			t.Helper()
			w := h.do(as, "GET", target, nil, "")
			if w.Code != status || !strings.Contains(w.Body.String(), code) || (status == http.StatusTooManyRequests) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
		}
		one, two := h.listen("alice", "/v1/events", nil), h.listen("alice", "/v1/events", nil)
		refused("bob", "/v1/events", http.StatusTooManyRequests, "too_many_streams") // of all operations
		three := h.listen("alice", watch(hers), nil)
		refused("alice", watch(hers), http.StatusTooManyRequests, "too_many_streams") // of hers
		four := h.listen("bob", watch(his), nil)
		refused("bob", watch(his), http.StatusTooManyRequests, "too_many_streams") // of anybody
		one.leave()
		refused("alice", "/v1/events?after=0", http.StatusGone, "cursor_expired")
		refused("bob", "/v1/events?of=all", http.StatusForbidden, "read:all")
		again := h.listen("bob", "/v1/events?after=1", nil)
		if again.status != http.StatusOK {
			t.Error(again.status)
		}
		for _, l := range []*listener{two, three, four, again} {
			l.leave()
		}
	})
}

// A wait ends with the fact it waits for, and not a look later.
func TestWaitHearsAtOnce(t *testing.T) {
	watched(t, func(t *testing.T, h *harness, followed bool) {
		op := h.submitted("alice", "k")
		began := time.Now()
		answered := make(chan time.Duration)
		go func() {
			w := h.do("alice", "GET", "/v1/operations/"+op+"?wait=50&after=1", nil, "")
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"version":2`) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			answered <- time.Since(began)
		}()
		time.Sleep(20*time.Second + 321*time.Millisecond)
		h.play("attempted")
		took := <-answered
		if took < 20*time.Second || took > 21400*time.Millisecond || followed && took != 20*time.Second+321*time.Millisecond {
			t.Errorf("answered after %s", took)
		}
	})
}
