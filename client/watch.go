package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// longestWait is what the server waits at most.
	longestWait = 55 * time.Second

	// A stream tells at once how things stand or what its last event's id missed,
	// and shows every 15 s that it lives. One that is silent for longer is held back
	// by something between, or dead.
	firstSilence  = 10 * time.Second
	laterSilence  = 40 * time.Second
	emptyStreams  = 3       // in a row, after which streams are taken to be eaten
	longestLine   = 4 << 20 // bytes of one line of a stream
	eventStream   = "text/event-stream"
	eventTypes    = "dev.counterfoil."
	eventSnapshot = "operation.snapshot.v1"
	eventReset    = "operation.reset.v1"
	eventEnded    = "operation.ended.v1"
)

// Poll reads an operation once it is another than the one that was seen, or looks
// different to this caller; changed is false, and op is seen, if nothing came in this
// time, of which the server waits 55 s at most. Of seen only the id is needed; with
// nothing else the operation is read at once.
func (c *Client) Poll(ctx context.Context, seen Operation, wait time.Duration) (op Operation, changed bool, err error) {
	return c.poll(ctx, seen, wait, "")
}

func (c *Client) poll(ctx context.Context, seen Operation, wait time.Duration, query string) (Operation, bool, error) {
	wait = min(max(wait, 0), longestWait).Truncate(time.Second)
	header := map[string]string{}
	if seen.Version != 0 {
		header["If-None-Match"] = versionTag(seen.Version)
		if seen.ETag != "" {
			header["If-None-Match"] = seen.ETag
		}
		if wait > 0 {
			header["Prefer"] = "wait=" + strconv.Itoa(int(wait/time.Second))
		}
	}
	r, err := c.exchange(ctx, request{method: http.MethodGet, path: operationPath(seen.ID) + query, header: header, limit: maxAnswer, extra: wait})
	if err != nil {
		return seen, false, err
	}
	if r.StatusCode == http.StatusNotModified {
		return seen, false, r.Body.Close()
	}
	op, err := readOperation(r)
	return op, err == nil, err
}

// Wait reads an operation once it is done: it has ended, or is stopped until somebody
// decides. The wait is bounded by the context alone.
func (c *Client) Wait(ctx context.Context, id string) (Operation, error) {
	op := Operation{ID: id}
	for {
		var err error
		begun := time.Now()
		changed := false
		if op, changed, err = c.poll(ctx, op, longestWait, "?until=done"); err != nil || op.Done {
			return op, err
		}
		// Something between may answer by itself, or not let the wait through.
		if !changed && time.Since(begun) < time.Second {
			if err := c.rest(ctx, op); err != nil {
				return op, err
			}
		}
	}
}

// rest waits until it is worth it to look again where a wait is not to be had.
func (c *Client) rest(ctx context.Context, op Operation) error {
	timer := time.NewTimer(min(max(time.Duration(op.NextPoll), 1), 10) * time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Watch gives the operation as it is and then after each change it sees, until it is
// done. Several changes between two looks are one. It follows the operation's stream,
// and goes on in a new one where that is cut; where streams do not come through, or
// too many are open, it waits for each change by a request of its own. Lost
// connections and problems that may pass are tried again as [Retry] says; then, or at
// any other problem, the error is the last thing given.
func (c *Client) Watch(ctx context.Context, id string) iter.Seq2[Operation, error] {
	return func(yield func(Operation, error) bool) {
		op := Operation{ID: id}
		show := func(next Operation) bool { // false: there is nothing more to give
			if next.Version <= op.Version {
				return !op.Done
			}
			op = next
			return yield(op, nil) && !op.Done
		}
		for e, err := range c.events(ctx, streamOf(id), "", true) {
			switch {
			case errors.Is(err, errEaten):
				c.watchByPolls(ctx, op, yield)
				return
			case err != nil:
				yield(Operation{}, err)
				return
			case e.Operation != nil:
				if !show(*e.Operation) {
					return
				}
			case e.Standing != nil && e.Standing.Version > op.Version:
				next, err := c.Get(ctx, id)
				if err != nil {
					yield(Operation{}, err)
					return
				}
				if !show(next) {
					return
				}
			}
		}
		// The stream is over although the end was not seen in it.
		if next, err := c.Get(ctx, id); err != nil {
			yield(Operation{}, err)
		} else {
			show(next)
		}
	}
}

func (c *Client) watchByPolls(ctx context.Context, op Operation, yield func(Operation, error) bool) {
	for !op.Done {
		begun := time.Now()
		next, changed, err := c.Poll(ctx, op, longestWait)
		switch {
		case err != nil:
			yield(Operation{}, err)
			return
		case changed && next.Version > op.Version:
			op = next
			if !yield(op, nil) {
				return
			}
		case changed:
			op = next // it is shown otherwise, and did not move
		}
		if time.Since(begun) < time.Second && !changed {
			if err := c.rest(ctx, op); err != nil {
				yield(Operation{}, err)
				return
			}
		}
	}
}

// Standing is how a fact left an operation.
type Standing struct {
	ID         string `json:"id"`
	Provider   string `json:"provider"`
	State      string `json:"state"`
	Terminal   bool   `json:"terminal"`
	Done       bool   `json:"done"`
	Quarantine string `json:"quarantine"`
	Outcome    string `json:"outcome"`
	Reason     string `json:"reason"`
	Version    uint64 `json:"version"`
}

// Event is one event of an operation's stream: a fact, with Entry and Standing, or how
// the operation stands, with Operation. Of a feed it is a fact, with Standing alone.
type Event struct {
	// ID is where the stream goes on behind this event, for [Client.Events] and
	// [Client.Feed]. It is the ledger sequence of the last fact told.
	ID   string
	Type string // of the CloudEvent without its prefix: "job.observed.v1"
	// Operation is there with operation.snapshot.v1, which begins a stream,
	// operation.reset.v1, which begins it anew where the given id is none of this
	// operation's, and operation.ended.v1, the last of one that has ended.
	Operation *Operation
	Standing  *Standing
	Entry     *Entry
	Raw       json.RawMessage // the CloudEvent, whole
}

// Events gives what happens to an operation, each fact once and in order, until it has
// ended. It begins with how the operation stands; or behind the event with the id last,
// with what was missed: "0" gives all from the first fact on. Where the stream is cut
// it goes on in a new one. It fails as [Client.Watch] does; where streams do not come
// through there is nothing to fall back on.
func (c *Client) Events(ctx context.Context, id, last string) iter.Seq2[Event, error] {
	return c.events(ctx, streamOf(id), last, false)
}

// FeedFilter chooses what a feed tells. Zero fields choose nothing.
type FeedFilter struct {
	// Of is whose operations: own, which "" is too, team, or all. The latter two take a
	// scope.
	Of       string
	Provider string
}

// Feed gives what happens to all operations that the filter chooses, each fact once and
// in order, from now on, or from behind the event with the id last. Where the stream is
// cut it goes on in a new one behind what was told, also if that was nothing yet. It
// never ends by itself, and fails as [Client.Events] does. A [*Problem] with the code
// cursor_expired says that more has happened since last than is told again:
// [Client.Operations] gives how things stand, and "" a feed from now on.
func (c *Client) Feed(ctx context.Context, f FeedFilter, last string) iter.Seq2[Event, error] {
	q := url.Values{}
	for name, v := range map[string]string{"of": f.Of, "provider": f.Provider} {
		if v != "" {
			q.Set(name, v)
		}
	}
	s := source{path: "/v1/events", what: "all operations", endless: true}
	if len(q) > 0 {
		s.path += "?" + q.Encode()
	}
	return c.events(ctx, s, last, false)
}

// source is what a stream is of.
type source struct {
	path, what string
	endless    bool // nothing that comes says that nothing follows
}

func streamOf(id string) source { return source{path: operationPath(id) + "/events", what: id} }

// errEaten says that streams do not come through here.
var errEaten = errors.New("streams do not come through: something between keeps them back")

// events is Events. Whoever can do without is told by errEaten that streams are not to
// be had, or not now.
func (c *Client) events(ctx context.Context, from source, last string, fallback bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		once := c.Retrying(Retry{Tries: 1, Answer: firstSilence}) // the loop tries again
		failures, empty := 0, 0
		for {
			got, over, err := once.stream(ctx, from, &last, yield)
			switch {
			case over:
				return
			case ctx.Err() != nil:
				yield(Event{}, ctx.Err())
				return
			case got > 0:
				failures, empty = 0, 0
			case lost(err) == nil:
				empty++ // it was opened
			}
			failures++
			var p *Problem
			refused := errors.As(err, &p)
			switch {
			case fallback && (errors.Is(err, errEaten) || errors.Is(err, errNoAnswer) || empty >= emptyStreams || refused && withoutStreams(p)):
				yield(Event{}, errEaten)
				return
			case err == nil:
				err = errCut // or its server stops
			}
			passing := errors.Is(err, errCut) || errors.Is(err, errNoAnswer) || again(err)
			if !passing || !c.retry.more(failures) {
				yield(Event{}, fmt.Errorf("watch %s: %w", from.what, err))
				return
			}
			if err := c.retry.pause(ctx, failures, err); err != nil {
				yield(Event{}, err)
				return
			}
		}
	}
}

func lost(err error) *LostError {
	var l *LostError
	errors.As(err, &l)
	return l
}

// withoutStreams says whether a request that is no stream may do better. An answer
// that is none of the API's, such as 501, comes from something between.
func withoutStreams(p *Problem) bool {
	return p.Code == "too_many_streams" || p.Code == "not_acceptable" || p.Code == "" && !p.Retryable
}

var (
	errCut       = errors.New("the stream was cut")
	errMalformed = errors.New("an event of the stream cannot be read")
)

// stream reads one stream. got counts what came through, signs of life too; over says
// that nothing comes any more, or that nobody takes it. last follows what was given.
func (c *Client) stream(ctx context.Context, from source, last *string, yield func(Event, error) bool) (got int, over bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	header := map[string]string{"Accept": eventStream}
	if *last != "" {
		header["Last-Event-ID"] = *last
	}
	r, err := c.exchange(ctx, request{method: http.MethodGet, path: from.path, header: header})
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = r.Body.Close() }() // it is given up
	if r.StatusCode == http.StatusNoContent && !from.endless {
		return 0, true, nil
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != eventStream {
		return 0, false, fmt.Errorf("%w: the answer is %q", errEaten, media)
	}
	silence := time.AfterFunc(firstSilence, stop)
	defer silence.Stop()
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, longestLine)
	var name, cursor string
	var data []byte
	placed := false // an id came since the last event
	for lines.Scan() {
		got++
		silence.Reset(laterSilence)
		line := lines.Text()
		if line != "" {
			field, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			switch field {
			case "id":
				cursor, placed = value, true
			case "event":
				name = value
			case "data":
				if data != nil {
					data = append(data, '\n')
				}
				data = append(data, value...)
			}
			continue
		}
		if data == nil {
			// It says where the stream is, and tells nothing.
			if placed && behind(cursor, *last) {
				*last = cursor
			}
			name, placed = "", false
			continue
		}
		placed = false
		e := Event{ID: cursor, Type: strings.TrimPrefix(name, eventTypes), Raw: data}
		name, data = "", nil
		known, err := e.read(*last)
		switch {
		case err != nil:
			return got, false, err
		case !known:
			continue
		}
		// What is taken is not told again, also if the stream is cut right here.
		*last = e.ID
		silence.Stop() // the caller takes its time
		if !yield(e, nil) || e.Type == eventEnded && !from.endless {
			return got, true, nil
		}
		silence.Reset(laterSilence)
	}
	if err = lines.Err(); err != nil && got == 0 && ctx.Err() != nil {
		err = errNoAnswer
	}
	if err == nil || errors.Is(err, errNoAnswer) {
		return got, false, err
	}
	return got, false, fmt.Errorf("%w: %w", errCut, err)
}

// read reads the event's data. It is not news if it is a fact that was told, which can
// be where something between repeats what it had.
func (e *Event) read(last string) (news bool, err error) {
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	fail := func(err error) (bool, error) { return false, fmt.Errorf("%w: %s: %w", errMalformed, e.Type, err) }
	if err := json.Unmarshal(e.Raw, &envelope); err != nil {
		return fail(err)
	}
	switch e.Type {
	case eventSnapshot, eventReset, eventEnded:
		var op Operation
		if err := json.Unmarshal(envelope.Data, &op); err != nil {
			return fail(err)
		}
		op.Raw = envelope.Data
		e.Operation = &op
		return true, nil
	}
	var fact struct {
		Entry     *Entry    `json:"entry"`
		Operation *Standing `json:"operation"`
	}
	if err := json.Unmarshal(envelope.Data, &fact); err != nil {
		return fail(err)
	}
	e.Entry, e.Standing = fact.Entry, fact.Operation
	if _, err := strconv.ParseUint(e.ID, 10, 64); err != nil {
		return fail(err)
	}
	return behind(e.ID, last), nil
}

// behind says whether the id of an event is behind the last one, if there was any.
func behind(id, last string) bool {
	now, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return false
	}
	before, err := strconv.ParseUint(last, 10, 64)
	return err != nil || now > before
}
