package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const idempotencyKey = "Idempotency-Key"

// With which key a request is sent again, if it is sent again.
const (
	SameKey = "same_key" // its own: it never acts twice
	NewKey  = "new_key"  // another: nothing can have been recorded under this one
	Never   = "never"    // there is nothing to send again
)

// Retry says how a client tries again. The zero value is the default of each field.
type Retry struct {
	// Tries is how often one request is sent at most, and how often in a row a watch
	// may fail; 0 is 8, 1 sends everything once, and less than 0 sets no bound but
	// the context.
	Tries int
	// First is the wait before the second try; each further one is twice as long, up
	// to Longest. A wait is shortened by up to a half at random, so that those who
	// failed together do not come back together. 0 is 250 ms, and 10 s.
	First, Longest time.Duration
	// Patience bounds the Retry-After of an answer that is kept to, instead of the
	// waits above where it is longer. A problem that asks for more, or for more than
	// the context has left, is given to the caller at once. 0 is 5 min.
	Patience time.Duration
	// Answer is how long one answer may take before it counts as lost, beyond the time
	// that was asked for in a wait. 0 is 1 min.
	Answer time.Duration
}

// Retrying gives a client that tries again as r says.
func (c *Client) Retrying(r Retry) *Client {
	other := *c
	other.retry = r
	return &other
}

// LostError says that no answer came, or not all of it: whether the request was done
// is open. Sent again with the same key it is done once.
type LostError struct {
	Method, Path string
	Key          string // as it was sent; "" if it needs none
	Tries        int    // how often it was sent
	Err          error
}

func (e *LostError) Error() string { return fmt.Sprintf("%s %s: %v", e.Method, e.Path, e.Err) }

func (e *LostError) Unwrap() error { return e.Err }

// Retryable says whether the request that failed with err may succeed later, sent
// again unchanged and with the same key.
func Retryable(err error) bool {
	var p *Problem
	if errors.As(err, &p) {
		return p.Retryable && p.RetryWith != Never && p.RetryWith != NewKey
	}
	var lost *LostError
	return errors.As(err, &lost) && !permanent(lost.Err)
}

// permanent says whether another try would meet the same: the server is not who it
// should be.
func permanent(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

// again says whether the client sends the request that failed with err again by
// itself. A conflict says how the operation stands, and takes a wait for it.
func again(err error) bool {
	var p *Problem
	if errors.As(err, &p) && p.Status == http.StatusConflict {
		return false
	}
	return Retryable(err)
}

// request is one as it is sent, each time it is tried.
type request struct {
	method, path string
	body         []byte // nil sends none
	header       map[string]string
	// limit is how many bytes of the answer are read before it counts as one; one
	// more is kept where there are more. 0 leaves the body to be read.
	limit int64
	// extra is how long the answer may take beyond what any may.
	extra time.Duration
}

// exchange makes a request, and makes it again where that is safe and may help. On
// success the body is the caller's to close.
func (c *Client) exchange(ctx context.Context, r request) (*http.Response, error) {
	// What changes something and has no key might be done twice.
	safe := r.method == http.MethodGet || r.method == http.MethodHead || r.header[idempotencyKey] != ""
	for tries := 1; ; tries++ {
		answer, err := c.try(ctx, r)
		if err == nil {
			return answer, nil
		}
		var lost *LostError
		if errors.As(err, &lost) {
			lost.Tries = tries
		}
		if ctx.Err() != nil || !safe || !again(err) || !c.retry.more(tries) {
			return nil, err
		}
		if waiting := c.retry.pause(ctx, tries, err); waiting != nil {
			return nil, waiting
		}
	}
}

func (r Retry) more(tries int) bool { return r.Tries < 0 || tries < cmp.Or(r.Tries, 8) }

// pause waits before the next try after so many that failed, the last with err. It
// gives that, or what ended the wait with it, if there is to be none.
func (r Retry) pause(ctx context.Context, tries int, err error) error {
	first, longest := cmp.Or(r.First, 250*time.Millisecond), cmp.Or(r.Longest, 10*time.Second)
	wait := longest
	if tries < 16 { // beyond that the shift would be
		wait = min(first<<(tries-1), longest)
	}
	wait -= rand.N(wait/2 + 1)
	var p *Problem
	if errors.As(err, &p) && p.RetryAfter > wait {
		if wait = p.RetryAfter; wait > cmp.Or(r.Patience, 5*time.Minute) {
			return err
		}
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) < wait {
			return err
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w; the last try: %w", ctx.Err(), err)
	case <-timer.C:
		return nil
	}
}

// try makes a request once.
func (c *Client) try(ctx context.Context, r request) (*http.Response, error) {
	lost := func(err error) error {
		return &LostError{Method: r.method, Path: r.path, Key: r.header[idempotencyKey], Err: err}
	}
	// The time is for the answer up to where it counts as one; a body that is left to
	// the caller, and a stream, may take any.
	ctx, stop := context.WithCancelCause(ctx)
	timer := time.AfterFunc(cmp.Or(c.retry.Answer, time.Minute)+r.extra, func() { stop(errNoAnswer) })
	defer timer.Stop()
	answer, err := c.send(ctx, r)
	if err != nil {
		defer stop(nil)
		if errors.Is(err, ErrHeader) {
			return nil, err
		}
		if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
			err = errors.Join(cause, err)
		}
		return nil, lost(err)
	}
	limit, refused := r.limit, answer.StatusCode >= 300 && answer.StatusCode != http.StatusNotModified
	if refused {
		limit = maxAnswer
	}
	if limit == 0 {
		answer.Body = &stopping{answer.Body, stop}
		return answer, nil
	}
	defer stop(nil)
	defer func() { _ = answer.Body.Close() }() // it was read, or the error says why not
	var body []byte
	if answer.ContentLength <= limit {
		if body, err = io.ReadAll(io.LimitReader(answer.Body, limit+1)); err != nil {
			return nil, lost(fmt.Errorf("read the answer: %w", err))
		}
	}
	if refused {
		return nil, readProblem(answer, body)
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, nil
}

// errNoAnswer ends a try that took too long.
var errNoAnswer = errors.New("no answer in time")

// stopping is a body that ends its request when it is closed.
type stopping struct {
	io.ReadCloser
	stop context.CancelCauseFunc
}

func (s *stopping) Close() error {
	err := s.ReadCloser.Close()
	s.stop(nil)
	return err
}

func (c *Client) send(ctx context.Context, request request) (*http.Response, error) {
	var reader io.Reader
	if request.body != nil {
		reader = bytes.NewReader(request.body)
	}
	r, err := http.NewRequestWithContext(ctx, request.method, c.base+request.path, reader)
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if request.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range request.header {
		r.Header.Set(name, value)
	}
	for name, values := range r.Header {
		if strings.ContainsFunc(values[0], func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return nil, fmt.Errorf("%s %s: %w: %s", request.method, request.path, ErrHeader, name)
		}
	}
	return c.http.Do(r)
}

// retryAfter reads how long an answer asks to wait, in seconds or as a date.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
