package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"
)

// DefaultRoom is Config.Room where none is given, in bytes.
const DefaultRoom = 512 << 20

// Sizes of a body in bytes. Its first free bytes are never waited for, and where
// MaxBody is no more than middling nothing is: states, lists and what creates are
// answered. So none of these stands behind results.
const (
	free     = 1 << 20
	middling = 8 << 20
)

// piece is the most of a body of unknown length that is read at a time, in bytes.
const piece = 4 << 20

// room bounds what bodies take in memory, all calls together. A call whose body
// grows over free waits for a share, which its Answer holds until it is released.
// There are shares of two kinds, so that results of a usual size do not wait for
// large ones.
//
// Nobody waits for ever: who has a large share waits for nothing more, and who
// has a middling one may wait for a large one only. A body for which even the
// whole room is too small has all of it.
type room struct{ middling, large pile }

type pile struct {
	left *semaphore.Weighted
	all  int64
}

func newRoom(bytes int64) *room {
	of := func(n int64) pile { return pile{semaphore.NewWeighted(n), n} }
	return &room{of(max(bytes/4, 1)), of(bytes)}
}

// share is a part of a room. The zero value is none. It has one owner at a time.
type share struct {
	of *semaphore.Weighted
	n  int64
}

// take waits for n bytes. What is held before is given back once they are there.
func (s *share) take(ctx context.Context, p pile, n int64) error {
	n = min(n, p.all)
	if err := p.left.Acquire(ctx, n); err != nil {
		return fmt.Errorf("no room for a body of more than %d bytes, as the bodies of others take it: %w", free, err)
	}
	s.give(0)
	*s = share{p.left, n}
	return nil
}

// give gives back all but n bytes. Nil has none.
func (s *share) give(n int64) {
	if s != nil && s.n > n {
		s.of.Release(s.n - n)
		s.n = n
	}
}

// whole waits for the share of a body of at most limit bytes before any of it is
// there: its pieces count, and the bytes they are put together to.
func (r *room) whole(ctx context.Context, s *share, limit int64) error {
	return s.take(ctx, r.large, 2*limit)
}

// gather reads a body to its end, or one byte over the limit. length is what was
// said of it; nothing if not positive.
func (r *room) gather(ctx context.Context, s *share, body io.Reader, length, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if length > 0 {
		// What is said may be a lie; bytes.MinRead more and it need not grow.
		buf.Grow(int(min(length, limit, 64<<10)) + bytes.MinRead)
	}
	first := limit
	if limit > middling {
		first = free
	}
	n, err := buf.ReadFrom(io.LimitReader(body, first+1))
	switch {
	case err != nil || n <= first || limit <= middling:
		s.give(0)
		return buf.Bytes(), err
	case length > 0:
		return r.known(ctx, s, body, &buf, min(length, limit+1))
	}
	return r.unknown(ctx, s, body, buf.Bytes(), limit+1)
}

// known reads what is said to have so many bytes into one buffer of that size.
func (r *room) known(ctx context.Context, s *share, body io.Reader, buf *bytes.Buffer, length int64) ([]byte, error) {
	if s.n == 0 {
		p := r.large
		if length <= middling {
			p = r.middling
		}
		if err := s.take(ctx, p, length); err != nil {
			return buf.Bytes(), err
		}
	}
	left := length - int64(buf.Len())
	buf.Grow(int(max(left, 0)) + bytes.MinRead)
	_, err := buf.ReadFrom(io.LimitReader(body, left))
	s.give(int64(buf.Len()))
	return buf.Bytes(), err
}

// unknown reads piece by piece and puts the pieces together at the end: a buffer
// that grows by doubling would be several times the body, with its old copies.
func (r *room) unknown(ctx context.Context, s *share, body io.Reader, first []byte, most int64) (whole []byte, err error) {
	n, pieces := int64(len(first)), [][]byte{first}
	defer func() {
		whole = make([]byte, 0, n)
		for i, p := range pieces {
			whole = append(whole, p...)
			pieces[i] = nil
		}
		s.give(n)
	}()
	for n < most {
		// The half of a middling share, since the pieces and the whole count.
		end := min(most, middling/2)
		switch {
		case n >= end && (s.of == nil || s.of == r.middling.left):
			err = r.whole(ctx, s, most-1)
		case s.n == 0:
			err = s.take(ctx, r.middling, middling)
		}
		if err != nil {
			return nil, err
		}
		if s.of == r.large.left {
			end = most
		}
		p := make([]byte, min(piece, max(n, free), end-n))
		got := 0
		for got < len(p) && err == nil {
			var k int
			k, err = body.Read(p[got:])
			got += k
		}
		n += int64(got)
		pieces = append(pieces, p[:got])
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
