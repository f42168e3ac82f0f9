package contract

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// storedRequest is the exact request of a create as PAYLOADS keeps it, less the
// body, which follows behind it, and the credential, whose value is resolved for
// each call.
type storedRequest struct{ Request }

// Fields implements codec.Record.
func (r *storedRequest) Fields(v *codec.Visitor) {
	codec.Text(v, "m", &r.Method)
	codec.Text(v, "u", &r.URL)
	headers := make([]storedHeader, 0, len(r.Header))
	for _, h := range r.Header {
		headers = append(headers, storedHeader(h))
	}
	codec.List(v, "h", &headers)
	r.Header = r.Header[:0]
	for _, h := range headers {
		r.Header = append(r.Header, Header(h))
	}
	codec.Text(v, "cp", &r.Credential.Place)
	codec.Text(v, "cn", &r.Credential.Name)
	codec.Text(v, "cb", &r.Credential.Before)
	codec.Text(v, "ca", &r.Credential.After)
	limit, redirects := uint64(max(r.MaxBody, 0)), uint64(max(r.FollowRedirects, 0))
	codec.Uint(v, "l", &limit)
	codec.Uint(v, "r", &redirects)
	r.MaxBody, r.FollowRedirects = int64(limit), int(redirects)
}

type storedHeader Header

// Fields implements codec.Record.
func (h *storedHeader) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &h.Name)
	codec.Text(v, "v", &h.Value)
}

// EncodeRequest gives a request as it is stored: the length of the record, the
// record, and the body. The body stays outside because a record is bounded, and a
// caller's parameters may be as long as a record.
func EncodeRequest(r Request) []byte {
	r.Header = append([]Header(nil), r.Header...) // Fields writes to it
	record := codec.Marshal(&storedRequest{r})
	out := binary.AppendUvarint(nil, uint64(len(record)))
	return append(append(out, record...), r.Body...)
}

// DecodeRequest reads what EncodeRequest gave.
func DecodeRequest(stored []byte) (Request, error) {
	length, n := binary.Uvarint(stored)
	if n <= 0 || length > uint64(len(stored)-n) {
		return Request{}, errors.New("read a stored request: it is cut")
	}
	stored = stored[n:]
	var r storedRequest
	if err := codec.Unmarshal(stored[:length], &r); err != nil {
		return Request{}, fmt.Errorf("read a stored request: %w", err)
	}
	if r.MaxBody < 0 || r.FollowRedirects < 0 {
		return Request{}, errors.New("read a stored request: a limit is out of range")
	}
	if r.Body = stored[length:]; len(r.Body) == 0 {
		r.Body = nil
	}
	return r.Request, nil
}
