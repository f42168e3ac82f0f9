package poller

import (
	"fmt"

	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// storedRequest is the exact request of a create as PAYLOADS keeps it: all but
// the credential, whose value is resolved for each call.
type storedRequest struct{ contract.Request }

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
		r.Header = append(r.Header, contract.Header(h))
	}
	codec.Bytes(v, "b", &r.Body)
	codec.Text(v, "cp", &r.Credential.Place)
	codec.Text(v, "cn", &r.Credential.Name)
	codec.Text(v, "cb", &r.Credential.Before)
	codec.Text(v, "ca", &r.Credential.After)
	limit, redirects := uint64(max(r.MaxBody, 0)), uint64(max(r.FollowRedirects, 0))
	codec.Uint(v, "l", &limit)
	codec.Uint(v, "r", &redirects)
	r.MaxBody, r.FollowRedirects = int64(limit), int(redirects)
}

type storedHeader contract.Header

// Fields implements codec.Record.
func (h *storedHeader) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &h.Name)
	codec.Text(v, "v", &h.Value)
}

func encodeRequest(r contract.Request) []byte {
	r.Header = append([]contract.Header(nil), r.Header...) // Fields writes to it
	return codec.Marshal(&storedRequest{r})
}

func decodeRequest(body []byte) (contract.Request, error) {
	var r storedRequest
	if err := codec.Unmarshal(body, &r); err != nil {
		return contract.Request{}, fmt.Errorf("read a stored request: %w", err)
	}
	return r.Request, nil
}
