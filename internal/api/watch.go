package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

const (
	eventStream = "text/event-stream"

	beatTime   = 15 * time.Second // between two signs of life of a stream
	streamTime = 30 * time.Second // to write one event
	// retryHint is what a browser waits before it connects again, in ms.
	retryHint = 2000
)

// Streams are in the format of server-sent events (WHATWG HTML, section 9.2): id is
// the ledger sequence of a fact, event a CloudEvents type, data a CloudEvent in JSON.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
	buffer  []byte
}

func (h *handler) stream(w http.ResponseWriter) *stream {
	return &stream{w: w, control: http.NewResponseController(w), now: h.o.Now}
}

// event adds one event. data has no line ends, being JSON. A zero id is none.
func (s *stream) event(id uint64, name string, data []byte) {
	if id > 0 {
		s.buffer = append(strconv.AppendUint(append(s.buffer, "id: "...), id, 10), '\n')
	}
	s.buffer = append(append(append(s.buffer, "event: "...), name...), "\ndata: "...)
	s.buffer = append(append(s.buffer, data...), "\n\n"...)
}

// at adds where a stream is although nothing is told, in an event that only has an id: a
// browser dispatches none without data, and goes on behind its id when it connects again
// (section 9.2.6).
func (s *stream) at(id uint64) {
	s.buffer = append(strconv.AppendUint(append(s.buffer, "id: "...), id, 10), "\n\n"...)
}

// flush sends what was added.
func (s *stream) flush() error {
	// A caller who does not read is cut off; one who reads slowly is not.
	_ = s.control.SetWriteDeadline(s.now().Add(streamTime)) // not every writer has one
	_, err := s.w.Write(s.buffer)
	s.buffer = nil // it may be a while until there is something to tell
	if err == nil {
		err = s.control.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

// errLeft says that nobody reads any more.
var errLeft = errors.New("the caller of a stream left")

func (s *stream) shown(e *ingest.Shown) { s.event(e.Sequence, events.TypePrefix+e.Name, e.Text) }

func (s *stream) beat() error {
	s.buffer = append(s.buffer, ": hb\n\n"...)
	return s.flush()
}

// streamed is the answer that begins a stream.
func streamed(run func(http.ResponseWriter) error) answer {
	left := func(w http.ResponseWriter) error {
		if err := run(w); !errors.Is(err, errLeft) {
			return err
		}
		return nil
	}
	return answer{status: http.StatusOK, media: eventStream, stream: left, header: map[string]string{
		"X-Accel-Buffering": "no", // a proxy would keep events until it has many
	}}
}

// resume reads where a stream goes on: the header wins, since a browser sends it when
// it connects again to an address that has ?after=.
func (c *call) resume() (after uint64, given bool, err error) {
	text, field := c.q.Get("after"), "after"
	if values := c.r.Header["Last-Event-Id"]; len(values) > 0 {
		text, field = strings.Join(values, ","), "Last-Event-ID" // of two neither counts
	} else if !c.q.Has("after") {
		return 0, false, nil
	}
	after, err = strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, false, &ingest.Refusal{
			Code: ingest.CodeCursorInvalid, Detail: "the last event must be named by the id of an event of this stream, a number; see errors",
			Errors: []ingest.FieldError{{Field: field, Code: ingest.FieldMalformed, Message: "must be the id of an event of this stream, a number"}},
		}
	}
	return after, true, nil
}

// watch streams what happens to one operation. It ends with the operation; who
// connects again with the id of its last event is answered 204, which tells a browser
// to stop.
func (h *handler) watch(ctx context.Context, c *call) (answer, error) {
	after, resume, err := c.resume()
	if err != nil {
		return answer{}, err
	}
	w, err := h.o.Service.Watch(ctx, ingest.WatchRequest{Caller: c.caller, ID: c.operation, After: after, Resume: resume})
	if err != nil {
		return answer{}, err
	}
	c.trace = w.Trace()
	if w.Over {
		w.Close()
		return answer{status: http.StatusNoContent}, nil
	}
	if c.r.Method == http.MethodHead {
		w.Close()
		return answer{status: http.StatusOK, media: eventStream, body: []byte{}}, nil
	}
	return streamed(func(to http.ResponseWriter) error {
		defer w.Close()
		ctx, stop := untilStopping(ctx)
		defer stop()
		return h.tellAll(ctx, c, w, h.stream(to))
	}), nil
}

// entitled says whether the key that a stream was opened with still counts, and may
// what it might then. It is asked before anything is told, so that a stream ends when
// its key is revoked, expires or may do something else: who connects again is told why,
// or goes on where it was.
func (h *handler) entitled(c *call) bool {
	now, err := h.o.Keys.Authenticate(c.r.Header["Authorization"])
	return err == nil && now.Alike(c.caller)
}

func (h *handler) tellAll(ctx context.Context, c *call, w *ingest.Watch, s *stream) error {
	s.buffer = append(strconv.AppendInt(append(s.buffer, "retry: "...), retryHint, 10), "\n\n"...)
	if w.First != nil {
		s.shown(w.First)
		w.First = nil // it is not needed while the stream lasts
	}
	for wait := time.Duration(0); ; wait = beatTime { // the first time what is there is told at once
		list, ended, err := w.Next(ctx, wait)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller left, or the server stops: who connects again goes on where it was
		case err != nil:
			return err
		case !h.entitled(c):
			return nil
		}
		for _, happening := range list {
			text, err := h.o.Service.Event(ctx, happening)
			if err != nil {
				return err
			}
			s.event(happening.Entry.Sequence, events.TypePrefix+string(happening.Entry.Type), text)
		}
		if ended {
			end, err := w.Ended()
			if err != nil {
				return err
			}
			s.shown(end)
			return s.flush()
		}
		if len(list) == 0 && wait > 0 {
			err = s.beat()
		} else {
			err = s.flush()
		}
		if err != nil {
			return err
		}
	}
}

// feed streams what happens to all operations of the caller.
func (h *handler) feed(ctx context.Context, c *call) (answer, error) {
	r := ingest.FeedRequest{Caller: c.caller, Of: ingest.Of(c.q.Get("of")), Provider: c.q.Get("provider")}
	var err error
	if r.After, r.Resume, err = c.resume(); err != nil {
		return answer{}, err
	}
	f, err := h.o.Service.Feed(ctx, r)
	if err != nil {
		return answer{}, err
	}
	if c.r.Method == http.MethodHead {
		f.Close()
		return answer{status: http.StatusOK, media: eventStream, body: []byte{}}, nil
	}
	return streamed(func(to http.ResponseWriter) error {
		defer f.Close()
		ctx, stop := untilStopping(ctx)
		defer stop()
		s := h.stream(to)
		s.buffer = append(strconv.AppendInt(append(s.buffer, "retry: "...), retryHint, 10), '\n')
		// Whoever is cut off before anything is told goes on here, and not at the end of
		// the ledger by then.
		at := f.At()
		s.at(at)
		for err := s.flush(); err == nil; {
			var told *ingest.Told
			told, err = f.Next(ctx, beatTime)
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // as above
			case err != nil:
			case !h.entitled(c):
				return nil
			case told == nil:
				// What happens to others brings it on, too, or its place would be too far
				// behind one day.
				if now := f.At(); now != at {
					at = now
					s.at(at)
				}
				err = s.beat()
			default:
				at = told.Sequence
				s.event(told.Sequence, told.Type, told.Text)
				err = s.flush()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}), nil
}
