// Package outbound is the only HTTP client: it sends one request to a provider
// and says truthfully whether any byte of it can have left.
//
// Specifications: HTTP/1.1 of RFC 9110 and RFC 9112. Requests are written here,
// answers are read by net/http's ReadResponse. Its Transport is not used: it
// sends some requests again by itself, and costs twice the time. HTTP/2 is never
// used (one connection would carry several calls, and a byte of one could not be
// told from another's), proxies and cookies neither.
//
// Guarantees for every request:
//
//   - It is written once. Nothing is resent; a redirect is followed for reads only.
//   - Failure.Sent is NotSent only if the kernel took no byte of it and will
//     take none: nothing was written, or its first Write took nothing. Every
//     doubt is SentUnknown. After a failure was reported no further byte leaves.
//   - A connection that the provider has closed, or on which it has spoken unasked, gets
//     no request: it is looked at, without waiting, right before. Where that
//     shows on one that was kept, the call takes another.
//
// Guarantees for a call with side effects (Request.SideEffect):
//
//   - The first byte leaves only if NotAfter has not passed, on the wall clock
//     and on the monotonic clock, asked inside the connection's Write; for TLS,
//     inside the Write below the encryption.
//   - Its connection was opened for it and is closed after it, unless it is
//     Repeatable; then it may use one that was idle for a second at most. Between
//     the look and the provider's reading lies a journey over the network, in
//     which the provider may close. For a call that the provider takes twice
//     that costs a repetition; for another it would cost certainty.
//
// Connections that are kept. One carries one request at a time and the next one
// only if the answer was read to its end, nothing came behind it, the whole
// request was written in time and neither side said close. It is used again for the
// same scheme, host and port, the same trust and the same credential only (so
// never after a rotation); for a read after 30 s idle at most, for a repeatable
// call after 1 s, and never in the last second before the provider closes, where
// it has said when (Keep-Alive: timeout). After 5 minutes it is replaced. At most 32
// are idle for one such place, 256 in all. A connection that cannot be looked at
// (a Dialer's own, without ReadNow) carries one request.
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
// refused destination sees nothing, and is named in the Failure.
//
// Memory. Bodies take Config.Room at most, all calls together; a read whose body
// is large waits for its part in the middle of the exchange and within its
// timeout, a call with side effects before it leaves. See room.
//
// Content codings. None is asked for, yet some hosts send stored objects
// compressed. gzip, deflate and zstd are undone; limits, Answer.Body and with
// it every digest and size that is recorded are about the decoded bytes. What
// is in any other coding, or in several, is not handed on.
//
// Limits. Between the clock check and the system call lie microseconds in which
// the process can be stopped; they are not closed. A call on a connection that the
// provider closes at that moment fails, since what it saw of it is not known; its
// caller repeats it by its own rules. Names of headers are written in
// canonical case and sorted order; only values of one name keep theirs. A body
// that ends with the connection (Answer.CloseDelimited) cannot be told from a cut one;
// what it is good for, its reader says.
package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
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
	// Room is what the bodies of answers take in memory at most, all calls
	// together, in bytes; default DefaultRoom. Only calls whose MaxBody is over
	// 8 MiB count, each from its second MiB on until Answer.Release, and a body
	// that comes without its length counts twice while it is read. Bodies up to
	// 8 MiB have another quarter of Room beside it. A body larger than Room has it
	// alone.
	Room int64
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
	// Repeatable says of a call with side effects that the provider takes a second
	// one for the same: a create it deduplicates, a cancel that is safe to repeat.
	// It may use a connection that was kept, and leaves one. Reads do so anyway.
	Repeatable bool
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
	// Cut says why, for people, where it did not only end early.
	Cut string
	// CloseDelimited: the body ended with the connection, so its end is not proved.
	CloseDelimited bool
	// Scrubbed counts the echoes of the credential that were replaced.
	Scrubbed int
	// URL of the last hop, without the credential.
	URL string
	// SentAt is the wall time of the first byte's clock check; zero if not sent.
	// AnsweredAt is when the headers had arrived.
	SentAt, AnsweredAt time.Time
	// Date is the provider's Date header, zero if none could be read.
	Date time.Time
	// CredentialIdentity is a digest that changes when the credential does; empty without one.
	CredentialIdentity string

	held *share // of Client.room
}

// Release gives back the room of Body, which is not used any more. Only a call
// whose MaxBody is over 8 MiB takes any. It may be called twice.
func (a Answer) Release() {
	a.held.give(0)
}

// Client sends requests. It is safe for concurrent use.
type Client struct {
	cfg      Config
	tls      *tls.Config
	guardian *ssrf.Guardian
	pool     *pool
	room     *room
	spelled  spellbook
}

// New checks cfg and makes a Client. Close it to drop idle connections.
func New(cfg Config) (*Client, error) {
	if cfg.Dial == nil || cfg.Clock == nil || cfg.Resolve == nil {
		return nil, errors.New("outbound client: Dial, Clock and Resolve are required")
	}
	for name, n := range map[string]int64{
		"Timeout": int64(cfg.Timeout), "DialTimeout": int64(cfg.DialTimeout),
		"MaxResponse": cfg.MaxResponse, "MaxHeader": cfg.MaxHeader, "Room": cfg.Room,
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
		// A fresh connection for a create is affordable because it resumes.
		c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(64)
	}
	c.pool, c.room = newPool(cfg.Clock), newRoom(orDefault(cfg.Room, DefaultRoom))
	return c, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Close drops idle connections, and those of calls under way when they end.
func (c *Client) Close() { c.pool.close() }

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
	f := c.makeRoom(ctx, h, r)
	switch {
	case f != nil:
	case h.read:
		a, f = c.read(ctx, h, r)
	default:
		a, f = c.call(ctx, h, r)
	}
	if len(a.Body) == 0 {
		h.held.give(0)
	}
	a.CredentialIdentity, a.held = h.identity, h.held
	h.scrub.answer(&a)
	if f != nil {
		f.Err = h.scrub.err(f.Err)
		f.Method, f.Origin = r.Method, h.origin
		return a, f
	}
	return a, nil
}

// makeRoom waits for the room of a large answer before a call with side effects
// leaves: what came of it must not be lost to a wait. A read waits when it knows
// that its answer is large, and can be made again.
func (c *Client) makeRoom(ctx context.Context, h *hop, r Request) *Failure {
	if !r.SideEffect || h.held == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.NotAfter.Sub(c.cfg.Clock.Now()))
	defer cancel()
	err := c.room.whole(ctx, h.held, h.maxBody)
	if err == nil {
		return nil
	}
	class, _ := contextClass(ctx)
	return &Failure{Class: class, Sent: NotSent, Err: err}
}

// call writes one request, on a connection that was kept where the request may
// use one, else on one of its own.
func (c *Client) call(ctx context.Context, h *hop, r Request) (Answer, *Failure) {
	g := newGuard(c.cfg.Clock, r, h.timeout, ctx.Err)
	fails := func(class Class, err error) (Answer, *Failure) {
		return Answer{URL: h.link}, &Failure{Class: class, Sent: NotSent, Err: err}
	}
	if err := g.refuse(); err != nil { // saves a connection; the check that counts is in Write
		return fails(NotAfter, err)
	}
	at := place{trusted: h.trusts, secure: h.url.Scheme == "https", addr: address(h.url)}
	if h.secret.Name != "" || h.parameter.Name != "" {
		at.identity = h.identity
	}
	on := c.kept(at, h)
	if on == nil {
		var err error
		if on, err = c.dial(ctx, at, g); err != nil {
			// The handshake of a connection carries no byte of the request.
			return fails(classify(ctx, err), err)
		}
	}
	if err := g.refuse(); err != nil { // or the context's end would hide the reason
		on.Close()
		return fails(NotAfter, err)
	}
	a, again, f := c.exchange(ctx, h, on, g, h.rest > 0 && on.wire.now != nil)
	if again {
		on.wire.guard = nil
		c.pool.put(on)
	}
	return a, f
}

// kept gives a connection from the pool that is open and has nothing to say; nil if there is none.
func (c *Client) kept(at place, h *hop) *carrier {
	for h.rest > 0 {
		on := c.pool.take(at, h.rest)
		if on == nil || on.quiet() == nil {
			return on
		}
		on.Close()
	}
	return nil
}

// read sends a request without side effects and follows redirects.
func (c *Client) read(ctx context.Context, h *hop, r Request) (Answer, *Failure) {
	redirects := r.FollowRedirects
	following := redirects > 0
	for first := true; ; first = false {
		a, f := c.call(ctx, h, r)
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
		h.url, h.link = next, next.String()
		h.held.give(0)
	}
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

// receive takes the response apart. It reads at most one byte more than the
// limit; whole says that the body was read to its end.
func (c *Client) receive(ctx context.Context, resp *http.Response, h *hop, a *Answer) (whole bool, _ *Failure) {
	limit := h.maxBody
	a.AnsweredAt = c.cfg.Clock.Now()
	a.Status, a.Header = resp.StatusCode, resp.Header
	a.Date, _ = httprule.ParseDate(resp.Header.Get("Date"))
	if resp.StatusCode == http.StatusSwitchingProtocols {
		a.Truncated, a.Cut = true, "the answer changes the protocol, and nobody asked for that"
		return false, &Failure{Class: Protocol, Sent: SentUnknown, Err: errors.New("unasked change of protocol")}
	}
	a.CloseDelimited = resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && h.method != http.MethodHead
	body := newContent(resp.Header, resp.Body, limit)
	defer body.Close()
	length := int64(0)
	if body.coding == "" && h.method != http.MethodHead {
		length = resp.ContentLength
	}
	read, err := c.room.gather(ctx, h.held, body, length, limit)
	n := int64(len(read))
	if err == nil && n <= limit {
		err = body.end()
	}
	a.Body, a.Coding = read[:min(n, limit)], body.coding
	f := &Failure{Sent: SentUnknown}
	switch {
	case n > limit || body.tooLong():
		f.Class, f.Err = BodyTooLarge, fmt.Errorf("body is larger than %d bytes", limit)
	case err == nil:
		return body.whole, nil
	case errors.Is(err, errCoding):
		f.Class, f.Err, a.Cut = Encoding, err, err.Error()
	default:
		a.Cut = body.wrong(err)
		f.Class, f.Err = BodyCut, fmt.Errorf("read body after %d bytes: %w", n, err)
		if class, ended := contextClass(ctx); ended {
			f.Class = class
		}
	}
	a.Truncated = true
	return body.whole, f
}

// dial connects, and for https shakes hands. Every byte written passes g.
func (c *Client) dial(ctx context.Context, at place, g *guard) (*carrier, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(at.addr)
	if err != nil {
		return nil, &phaseError{Dial, err}
	}
	conn, err := c.connect(ctx, host, at.addr, at.trusted)
	if err != nil {
		class := Dial
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			class = DNS
		}
		if refused := (*refusedError)(nil); errors.As(err, &refused) {
			class, err = DestinationRefused, refused // the dialer's words around it say the address again
		}
		return nil, &phaseError{class, fmt.Errorf("connect to %s: %w", at.addr, err)}
	}
	w := &wire{Conn: conn, now: nowReader(conn), guard: g}
	if !at.secure {
		return newCarrier(w, w, at, g.began), nil
	}
	cfg := c.tls
	if cfg.ServerName == "" {
		cfg = c.tls.Clone()
		cfg.ServerName = host
	}
	tc := tls.Client(w, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &phaseError{TLS, fmt.Errorf("TLS handshake with %s: %w", at.addr, err)}
	}
	return newCarrier(tc, w, at, g.began), nil
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
