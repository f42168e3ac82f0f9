package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// MCP speaks the Model Context Protocol with callers who are known by then.
type MCP interface {
	// ServeCaller answers one POST. The body can be read without waiting. An error
	// is still to be answered; nothing was written then.
	ServeCaller(w http.ResponseWriter, r *http.Request, c ingest.Caller) error
}

const (
	mcpPath = "/mcp"

	// mcpEnvelope is how many bytes a message may have beside the body of a submit.
	mcpEnvelope = 16 << 10
)

// mcp hands a message on, once its sender is known not to be a page that a
// person happens to have open: browsers send what such a page wants, also to
// addresses of this machine, and a page can give an address of its own choosing a
// name of its own (DNS rebinding).
func (h *handler) mcp(_ context.Context, c *call) (answer, error) {
	if err := http.NewCrossOriginProtection().Check(c.r); err != nil {
		return answer{}, &ingest.Refusal{Code: ingest.CodeForeignOrigin, Detail: "the Origin or Sec-Fetch-Site header names another site"}
	}
	if !h.ours(c.r) {
		return answer{}, &ingest.Refusal{Code: ingest.CodeForeignHost, Detail: "the Host header names neither this machine nor the service's public address"}
	}
	r := c.r.Clone(c.r.Context()) // with its values: whoever serves it bounds what it stores
	r.Body = io.NopCloser(bytes.NewReader(c.body))
	c.out.Header().Set("X-Content-Type-Options", "nosniff")
	return answer{written: true}, h.o.MCP.ServeCaller(c.out, r, c.caller)
}

// ours says whether the Host header is one the service is reached under. Where it
// was not reached on a loopback address, nobody's name for it is wrong.
func (h *handler) ours(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !loopback(local.String()) {
		return true
	}
	return loopback(r.Host) || slices.ContainsFunc(h.o.Hosts, func(host string) bool { return strings.EqualFold(host, r.Host) })
}

// loopback says whether the host, with or without a port, is this machine.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}
