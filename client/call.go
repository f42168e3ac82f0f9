package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Request is one request as a caller writes it, for what this client has no method
// of its own for.
type Request struct {
	Method string
	Path   string            // with its query, from the server's root: "/v1/operations"
	Header map[string]string // beside the key's and the media type's
	Body   []byte            // JSON; nil sends none
	// Limit is how many bytes of an answer are read at most; 0 means 16 MiB.
	Limit int64
}

// Answer is an answer as it came.
type Answer struct {
	Status int // 2xx or 304
	Header http.Header
	Body   []byte
	Size   int64 // of the whole body; -1 if the server does not say, and there is more than Body
}

// Call makes a request. An answer that is not a success is a [*Problem]. Of a body
// beyond the limit nothing is kept but its size. What changes something is sent again
// only if its header has an Idempotency-Key.
func (c *Client) Call(ctx context.Context, r Request) (Answer, error) {
	limit := r.Limit
	if limit == 0 {
		limit = maxAnswer
	}
	answer, err := c.exchange(ctx, request{method: r.Method, path: r.Path, body: r.Body, header: r.Header, limit: limit, extra: longestWait})
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	out := Answer{Status: answer.StatusCode, Header: answer.Header, Size: answer.ContentLength}
	body, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("read the answer: %w", err)
	case out.Size > limit || int64(len(body)) > limit:
		return out, nil
	}
	out.Body, out.Size = body, int64(len(body))
	return out, nil
}

// Document is the problem as a document of the API (RFC 9457): as it came, or one
// with the same members where whoever answered was not the API.
func (p *Problem) Document() (json.RawMessage, error) {
	if len(p.raw) > 0 {
		return p.raw, nil
	}
	return json.Marshal(p)
}
