// Package outbound is the only HTTP client: it sends one request to a provider
// and says truthfully whether any byte of it can have left.
//
// Specifications: HTTP/1.1 of RFC 9110 and RFC 9112, on net/http's Transport.
// HTTP/2 is never used, proxies and cookies neither.
//
// Guarantees for a call with side effects (Request.SideEffect):
//
//   - At most one request is written, on a connection opened for it and closed
//     after it. Nothing is resent, no redirect is followed. (On a connection
//     that was kept alive and has died, net/http by itself sends a POST that
//     carries Idempotency-Key again.)
//   - The first byte leaves only if NotAfter has not passed, on the wall clock
//     and on the monotonic clock, asked inside the connection's Write; for TLS,
//     inside the Write below the encryption. After a failure was reported no
//     further byte leaves.
//   - Failure.Sent is NotSent only if no byte of the request was given to the
//     network. Every doubt is SentUnknown.
//
// Guarantees for every call: the whole exchange ends within its timeout, the
// body and the headers are bounded, credentials are resolved for this call and
// do not appear in an Answer or an error.
//
// Guarantees about where a call goes: an origin in Request.Trusted may have any
// address. For every other origin, and for each redirect once such an origin was
// on the way (also one that leads back), Config.Policy decides on the IP address
// that is dialled, after name resolution and before the first packet; a name
// that resolves differently a moment later gains nothing by it. A
// refused destination sees nothing, and is named in the Failure. Connections
// that were opened for a trusted origin and others are never used for each other.
//
// Content codings. None is asked for, yet some hosts send stored objects
// compressed. gzip, deflate and zstd are undone; limits, Answer.Body and with
// it every digest and size that is recorded are about the decoded bytes. What
// is in any other coding, or in several, is not handed on.
//
// Limits. Between the clock check and the system call lie microseconds in which
// the process can be stopped; they are not closed. A read that meets an idle connection's end
// fails, since what the provider saw of it is not known; its caller reads again. Names of headers are written in
// canonical case and sorted order; only values of one name keep theirs. A body
// that ends with the connection (Answer.CloseDelimited) cannot be told from a cut one.
package outbound

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"code.dny.dev/ssrf"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// Defaults for the zero fields of Config.
const (
	DefaultTimeout     = 30 * time.Second
	DefaultDialTimeout = 10 * time.Second
	DefaultMaxResponse = 8 << 20
	DefaultMaxHeader   = 64 << 10
	DefaultUserAgent   = "counterfoil"
)

// MaxTimeout is the longest exchange that can be asked for.
const MaxTimeout = 24 * time.Hour

// Config of a Client. Dial, Clock and Resolve are required.
type Config struct {
	Dial    Dialer
	Clock   Clock
	Resolve CredentialResolver
	// Policy is for origins that a request does not trust. Zero: public addresses only.
	Policy Policy

	// TLS is cloned; nil means system roots. ALPN is always http/1.1 alone.
	TLS *tls.Config
	// AllowHTTP permits plain http, where credentials travel in the clear.
	AllowHTTP bool
	// Timeout of a request that names none. Default 30 s.
	Timeout time.Duration
	// DialTimeout bounds connecting and the TLS handshake together. Default 10 s.
	DialTimeout time.Duration
	// MaxResponse is the default and the ceiling of Request.MaxBody, in bytes. Default 8 MiB.
	MaxResponse int64
	// MaxHeader bounds status line and headers, informational responses
	// included, in bytes. Default 64 KiB. net/http grants about 4 KiB of slack.
	MaxHeader int64
	UserAgent string
	// IdentityKey keys CredentialIdentity, so that an identity cannot be used
	// to try out guessed values. All processes of one ledger need the same key.
	IdentityKey []byte
}

// Header is one request header. Its value may hold no secret: it is stored
// with the attempt. Authorization, Cookie and the headers that frame the
// message are refused here.
type Header struct{ Name, Value string }

// Request is one call. URL is absolute; it is normalised by httprule.ResolveLink.
type Request struct {
	Method, URL string
	Header      []Header
	Body        []byte
	Credential  Credential
	// Trusted are the origins that the operator chose, as httprule.Origin spells
	// them: they may have any address. None trusts nothing.
	Trusted []string

	// SideEffect marks a call that changes something at the provider: create,
	// cancel, cleanup, a result that can be read once. It needs NotAfter.
	SideEffect bool
	// NotAfter is the last wall time at which the first byte may leave. Zero
	// means none, and is refused with SideEffect. A read with NotAfter is sent
	// like a call with side effects.
	NotAfter time.Time
	// NotAfterMonotonic is the same moment on Config.Clock's monotonic clock,
	// if this process fixed it. Zero: derived from NotAfter when Do begins, and
	// a clock set back before that goes unseen.
	NotAfterMonotonic time.Duration
	// Timeout of the whole exchange, from Do to the end of the body. Zero: Config.Timeout.
	Timeout time.Duration
	// MaxBody bounds the response body in bytes, decoded. Zero: Config.MaxResponse.
	MaxBody int64
	// FollowRedirects is how many redirects a GET or HEAD read may follow. At
	// zero, and for every other call, the redirect itself is the answer.
	// Credential and own headers are dropped at the first change of origin,
	// for good.
	FollowRedirects int
	// Again, if set, is asked before each redirect is followed: it waits until
	// another request may leave. Its error ends the call.
	Again func(ctx context.Context) error
}

// Answer is what the provider said. Together with a Failure it holds what came
// before the failure: Status is then 0 if no header arrived. The credential's
// value, where the provider echoes it, is replaced; other secrets (presigned
// links above all) may be in Header, Body and URL: reduce them before recording.
type Answer struct {
	Status int
	// Header is all of it; httprule.AllowedHeaders reduces it. Of a decoded body,
	// Content-Encoding and Content-Length are left out, as they are not about Body.
	Header http.Header
	Body   []byte
	// Coding is the content coding that was undone; empty if there was none.
	Coding string
	// Truncated: Body is not the whole body. Always with a Failure.
	Truncated bool
	// CloseDelimited: the body ended with the connection, so its end is not proved.
	CloseDelimited bool
	// Scrubbed counts the echoes of the credential that were replaced.
	Scrubbed int
	// URL of the last hop, without the credential.
	URL string
	// SentAt is the wall time of the first byte's clock check (of a read: when it
	// got its connection); zero if not sent. AnsweredAt is when the headers
	// had arrived.
	SentAt, AnsweredAt time.Time
	// Date is the provider's Date header, zero if none could be read.
	Date time.Time
	// CredentialIdentity is a digest that changes when the credential does; empty without one.
	CredentialIdentity string
}

// Client sends requests. It is safe for concurrent use.
type Client struct {
	cfg      Config
	tls      *tls.Config
	guardian *ssrf.Guardian
	// Kept-alive connections, for reads only. Those to trusted origins are apart:
	// the same host and port may not be dialled for others.
	trusted, others *http.Transport
}

// New checks cfg and makes a Client. Close it to drop idle connections.
func New(cfg Config) (*Client, error) {
	if cfg.Dial == nil || cfg.Clock == nil || cfg.Resolve == nil {
		return nil, errors.New("outbound client: Dial, Clock and Resolve are required")
	}
	for name, n := range map[string]int64{
		"Timeout": int64(cfg.Timeout), "DialTimeout": int64(cfg.DialTimeout),
		"MaxResponse": cfg.MaxResponse, "MaxHeader": cfg.MaxHeader,
	} {
		if n < 0 {
			return nil, fmt.Errorf("outbound client: %s is negative", name)
		}
	}
	if cfg.Timeout > MaxTimeout {
		return nil, fmt.Errorf("outbound client: Timeout is over %v", MaxTimeout)
	}
	cfg.Timeout = orDefault(cfg.Timeout, DefaultTimeout)
	cfg.DialTimeout = orDefault(cfg.DialTimeout, DefaultDialTimeout)
	cfg.MaxResponse = orDefault(cfg.MaxResponse, DefaultMaxResponse)
	cfg.MaxHeader = orDefault(cfg.MaxHeader, DefaultMaxHeader)
	cfg.UserAgent = orDefault(cfg.UserAgent, DefaultUserAgent)

	guardian, err := cfg.Policy.guardian()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, guardian: guardian, tls: &tls.Config{MinVersion: tls.VersionTLS12}}
	if cfg.TLS != nil {
		c.tls = cfg.TLS.Clone()
	}
	c.tls.NextProtos = []string{"http/1.1"}
	if c.tls.ClientSessionCache == nil {
		// A fresh connection per create is affordable because it resumes.
		c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(64)
	}
	c.trusted, c.others = c.pool(true), c.pool(false)
	return c, nil
}

// pool makes the transport that keeps connections for reads.
func (c *Client) pool(trusted bool) *http.Transport {
	t := c.transport()
	t.MaxIdleConnsPerHost = 16
	t.IdleConnTimeout = 60 * time.Second
	t.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return c.dial(ctx, addr, trusted, false, nil)
	}
	t.DialTLSContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return c.dial(ctx, addr, trusted, true, nil)
	}
	return t
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Close drops idle connections. Calls under way are not disturbed.
func (c *Client) Close() {
	c.trusted.CloseIdleConnections()
	c.others.CloseIdleConnections()
}

func (c *Client) transport() *http.Transport {
	var p http.Protocols
	p.SetHTTP1(true)
	return &http.Transport{
		Protocols:              &p,
		DisableCompression:     true,
		MaxResponseHeaderBytes: c.cfg.MaxHeader,
	}
}

// Do sends r and reads the answer. An error is always a *Failure.
func (c *Client) Do(ctx context.Context, r Request) (Answer, error) {
	h, err := c.prepare(r)
	if err != nil {
		return Answer{}, &Failure{Class: InvalidRequest, Sent: NotSent, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	if f := c.resolve(ctx, r.Credential, h); f != nil {
		return Answer{CredentialIdentity: h.identity}, f
	}
	var a Answer
	var f *Failure
	switch {
	case r.SideEffect:
		a, f = c.once(ctx, h, r)
	case !r.NotAfter.IsZero():
		a, f = c.read(ctx, h, r, func(ctx context.Context, h *hop) (Answer, *Failure) { return c.once(ctx, h, r) })
	default:
		a, f = c.read(ctx, h, r, c.readHop)
	}
	a.CredentialIdentity = h.identity
	h.scrub.answer(&a)
	if f != nil {
		f.Err = h.scrub.err(f.Err)
		f.Method, f.Origin = r.Method, h.origin
		return a, f
	}
	return a, nil
}

// once writes one request on one connection of its own.
func (c *Client) once(ctx context.Context, h *hop, r Request) (Answer, *Failure) {
	a := Answer{URL: h.url.String()}
	g := newGuard(c.cfg.Clock, r, h.timeout, ctx.Err)
	if err := g.refuse(); err != nil { // saves a connection; the check that counts is in Write
		return a, &Failure{Class: NotAfter, Sent: NotSent, Err: err}
	}
	conn, err := c.dial(ctx, address(h.url), h.trusts, h.url.Scheme == "https", g)
	if err != nil {
		// The handshake of a connection carries no byte of the request.
		return a, &Failure{Class: classify(ctx, err), Sent: NotSent, Err: err}
	}
	defer conn.Close()
	defer func() { _, _ = g.finish() }() // whatever the answer was, nothing more leaves
	if err := g.refuse(); err != nil {   // or the context's end would hide the reason
		return a, &Failure{Class: NotAfter, Sent: NotSent, Err: err}
	}

	var taken atomic.Bool
	take := func(context.Context, string, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errSecondConnection
		}
		return conn, nil
	}
	t := c.transport()
	t.DisableKeepAlives = true
	t.DialContext, t.DialTLSContext = take, take
	defer t.CloseIdleConnections()

	resp, err := t.RoundTrip(h.request(ctx))
	if err == nil && !g.sent() {
		err = errEarlyAnswer
		resp.Body.Close()
	}
	if err != nil {
		// From here on no byte leaves, whatever net/http's write loop still
		// holds: this is what makes NotSent true rather than likely.
		left, stop := g.finish()
		a.SentAt = g.sentAt()
		f := &Failure{Class: classify(ctx, err), Sent: SentUnknown, Err: err}
		if !left {
			f.Sent = NotSent
		}
		if errors.Is(stop, errNotAfter) {
			f.Class, f.Err = NotAfter, stop
		}
		return a, f
	}
	a.SentAt = g.sentAt()
	return a, c.receive(ctx, resp, h.maxBody, &a)
}

// read sends a request without side effects and follows redirects.
func (c *Client) read(ctx context.Context, h *hop, r Request, send func(context.Context, *hop) (Answer, *Failure)) (Answer, *Failure) {
	redirects := r.FollowRedirects
	following := redirects > 0
	for first := true; ; first = false {
		a, f := send(ctx, h)
		if f != nil && !first {
			f.Sent = SentUnknown
		}
		if f != nil || !following || !h.redirects(a.Status) || a.Header.Get("Location") == "" {
			return a, f
		}
		next, err := c.follow(h, a.Header.Get("Location"), &redirects)
		if err != nil {
			return a, &Failure{Class: RedirectRefused, Sent: SentUnknown, Err: err}
		}
		if r.Again != nil {
			if err := r.Again(ctx); err != nil {
				return a, &Failure{Class: Timeout, Sent: SentUnknown, Err: err}
			}
		}
		h.url = next
	}
}

func (c *Client) readHop(ctx context.Context, h *hop) (Answer, *Failure) {
	a := Answer{URL: h.url.String()}
	// GotConn runs in RoundTrip, or in a dial that outlives it.
	var gotConn atomic.Pointer[time.Time]
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			now := c.cfg.Clock.Now()
			gotConn.Store(&now)
		},
	})
	pool := c.others
	if h.trusts {
		pool = c.trusted
	}
	resp, err := pool.RoundTrip(h.request(traced))
	f := &Failure{Sent: NotSent, Err: err}
	if at := gotConn.Load(); at != nil {
		a.SentAt, f.Sent = *at, SentUnknown
	}
	if err != nil {
		f.Class = classify(ctx, err)
		return a, f
	}
	return a, c.receive(ctx, resp, h.maxBody, &a)
}

// follow decides where a redirect leads and strips what must not go along.
func (c *Client) follow(h *hop, location string, left *int) (*url.URL, error) {
	if *left--; *left < 0 {
		return nil, errors.New("too many redirects")
	}
	link, err := httprule.ResolveLink(h.url.String(), location)
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	to, err := url.Parse(link)
	if err != nil {
		return nil, errors.New("redirect: not a URL")
	}
	if to.Scheme == "http" && (h.url.Scheme == "https" || !c.cfg.AllowHTTP) {
		return nil, errors.New("redirect: leads to plain http")
	}
	from, _ := httprule.Origin(h.url.String())
	o, err := httprule.Origin(link)
	if err != nil || o != from {
		h.leaveOrigin()
	}
	h.trusts = h.trusts && slices.Contains(h.trusted, o)
	return to, nil
}

// receive takes the response apart. It reads at most one byte more than limit,
// and closes the body, which drops the connection unless the end was reached.
func (c *Client) receive(ctx context.Context, resp *http.Response, limit int64, a *Answer) *Failure {
	defer resp.Body.Close()
	a.AnsweredAt = c.cfg.Clock.Now()
	a.Status, a.Header = resp.StatusCode, resp.Header
	a.Date, _ = httprule.ParseDate(resp.Header.Get("Date"))
	if resp.StatusCode == http.StatusSwitchingProtocols {
		a.Truncated = true
		return &Failure{Class: Protocol, Sent: SentUnknown, Err: errors.New("unasked change of protocol")}
	}
	a.CloseDelimited = resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && resp.Request.Method != http.MethodHead
	body := newContent(resp, limit)
	defer body.Close()
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(body, limit+1))
	if err == nil && n <= limit {
		err = body.end()
	}
	a.Body, a.Coding = buf.Bytes()[:min(n, limit)], body.coding
	f := &Failure{Sent: SentUnknown}
	switch {
	case n > limit || body.tooLong():
		f.Class, f.Err = BodyTooLarge, fmt.Errorf("body is larger than %d bytes", limit)
	case err == nil:
		return nil
	case errors.Is(err, errCoding):
		f.Class, f.Err = Encoding, err
	default:
		f.Class, f.Err = BodyCut, fmt.Errorf("read body after %d bytes: %w", n, err)
		if class, ended := contextClass(ctx); ended {
			f.Class = class
		}
	}
	a.Truncated = true
	return f
}

// dial connects, and for https shakes hands. With a guard, every byte written
// afterwards passes it.
func (c *Client) dial(ctx context.Context, addr string, trusted, secure bool, g *guard) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &phaseError{Dial, err}
	}
	conn, err := c.connect(ctx, host, addr, trusted)
	if err != nil {
		class := Dial
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			class = DNS
		}
		if refused := (*refusedError)(nil); errors.As(err, &refused) {
			class = DestinationRefused
		}
		return nil, &phaseError{class, fmt.Errorf("connect to %s: %w", addr, err)}
	}
	if g != nil {
		conn = &wire{conn, g}
	}
	if secure {
		cfg := c.tls
		if cfg.ServerName == "" {
			cfg = c.tls.Clone()
			cfg.ServerName = host
		}
		tc := tls.Client(conn, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, &phaseError{TLS, fmt.Errorf("TLS handshake with %s: %w", addr, err)}
		}
		conn = tc
	}
	if g != nil {
		conn = &spoken{conn, g}
	}
	return conn, nil
}

// connect dials where the policy lets it.
func (c *Client) connect(ctx context.Context, host, addr string, trusted bool) (net.Conn, error) {
	v := &visit{guardian: c.guardian}
	if trusted {
		v.guardian = nil
	}
	if err := v.host(host); err != nil {
		return nil, err
	}
	conn, err := c.cfg.Dial(ctx, "tcp", addr, v.control)
	if err == nil && !trusted && !v.passed.Load() {
		conn.Close()
		return nil, errUnasked
	}
	return conn, err
}

func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
