package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"

	"code.dny.dev/ssrf"
)

// Policy says which addresses may be dialled for an origin that nobody trusts:
// a link in an answer, the target of a redirect. Public addresses may; what
// IANA lists as special (loopback, private, link-local, unspecified, multicast,
// documentation, translation prefixes such as 64:ff9b::/96) may not. The zero
// Policy allows nothing else.
type Policy struct {
	// Allow are networks that may be dialled all the same, as ParseNetwork
	// gives them. A network of an IPv6 prefix that embeds IPv4 addresses allows
	// all addresses behind it.
	Allow []netip.Prefix
}

// ParseNetwork reads a network to allow, such as 10.1.0.0/16 or fd00:1::/64.
// An IPv4 network is written as one, not as ::ffff:0:0/96.
func ParseNetwork(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("%.60q is not a network: want ADDRESS/BITS, as 10.1.0.0/16 or fd00:1::/64", s)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q is an IPv4 network in IPv6 spelling: write it as ADDRESS/BITS of IPv4", s)
	case p != p.Masked():
		return p, fmt.Errorf("%q names an address inside a network: write %s for the network or %s/%d for the address", s, p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// A Dialer opens a connection to host:port. It must return when ctx ends. It
// asks control with each address that a name led to, before it connects to it,
// and does not connect where control returns an error. A connection whose
// Dialer never asked is closed unused, unless the origin is trusted.
//
// A connection is kept for further requests if it is a syscall.Conn, as sockets
// are, or has ReadNow(p []byte) (int, error): Read without waiting, 0 and no
// error where there is nothing to read yet. It is looked at with that before
// each request.
type Dialer func(ctx context.Context, network, addr string, control Control) (net.Conn, error)

// Control has the meaning and the type of net.Dialer's ControlContext: address
// is IP:port, after name resolution. It does not use c, which may be nil.
type Control func(ctx context.Context, network, address string, c syscall.RawConn) error

// SystemDialer dials sockets. A nil resolver is the system's.
func SystemDialer(resolver *net.Resolver) Dialer {
	return func(ctx context.Context, network, addr string, control Control) (net.Conn, error) {
		d := net.Dialer{Resolver: resolver, ControlContext: control}
		return d.DialContext(ctx, network, addr)
	}
}

// azureHost is a public address that is only reached from inside Azure, where
// it serves the machine's own configuration.
var azureHost = netip.PrefixFrom(netip.AddrFrom4([4]byte{168, 63, 129, 16}), 32)

// guardian makes the list of what may be dialled.
func (p Policy) guardian() (*ssrf.Guardian, error) {
	var v4, v6 []netip.Prefix
	for _, n := range p.Allow {
		switch {
		case !n.IsValid() || n.Addr().Is4In6():
			return nil, errors.New("outbound client: Policy.Allow holds a network that ParseNetwork refuses")
		case n.Addr().Is4():
			v4 = append(v4, n)
		default:
			v6 = append(v6, n)
		}
	}
	return ssrf.New(ssrf.WithAnyPort(), ssrf.WithAnyNetwork(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...),
		ssrf.WithDeniedV4Prefixes(azureHost)), nil
}

// errUnasked is a fault of a Dialer.
var errUnasked = errors.New("the dialer did not say which address it dialled")

// refusedError says which destination the policy refused; nothing was sent there.
type refusedError struct{ what string }

func (e *refusedError) Error() string {
	// Short, since the advice stands at the end of what may be cut.
	return e.what + "; if it is the provider's, serve --allow-network allows it"
}

// visit decides about the addresses of one dial. A dialer may try several at once.
type visit struct {
	guardian *ssrf.Guardian // nil: the origin is trusted
	passed   atomic.Bool    // an address was asked about and may be dialled
}

func (v *visit) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	if v.guardian != nil {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return &refusedError{"a destination that is not an IP address"}
		}
		if ip := to.Addr().Unmap(); v.guardian.SafeAddr(ip) != nil {
			return &refusedError{fmt.Sprintf("address %s is not public", ip)}
		}
	}
	v.passed.Store(true)
	return nil
}

// host refuses a host that is a number but not an address in its usual
// spelling (0x7f000001, 2130706433, 127.1, 127.0.0.1.): whether it is looked
// up as a name or taken for an address depends on the resolver. The rule is
// that of browsers: its last label, a dot at the end aside, is a number.
func (v *visit) host(host string) error {
	if v.guardian == nil {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	if number(labels[len(labels)-1]) {
		return &refusedError{fmt.Sprintf("host %.60q is an address in an unusual spelling", host)}
	}
	return nil
}

func number(s string) bool {
	digits := "0123456789"
	if hex := strings.ToLower(s); strings.HasPrefix(hex, "0x") {
		s, digits = hex[2:], "0123456789abcdef"
	} else if s == "" {
		return false
	}
	return strings.Trim(s, digits) == ""
}
