package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// hop is a request made ready. Owned by one Do; follow changes it between hops.
type hop struct {
	method   string
	url      *url.URL
	origin   string
	header   http.Header
	body     []byte
	attach   func(*http.Request) // puts the credential in; nil: none
	identity string
	scrub    scrubber
	timeout  time.Duration
	maxBody  int64
	// trusted are origins that may have any address, trusts says that this hop's
	// is one of them and was reached through such ones only.
	trusted []string
	trusts  bool
}

func (c *Client) prepare(r Request) (*hop, error) {
	if !token(r.Method) || r.Method != strings.ToUpper(r.Method) || r.Method == http.MethodConnect {
		return nil, errors.New("method is not an HTTP method in capitals")
	}
	link, err := httprule.ResolveLink(r.URL, r.URL)
	if err != nil {
		return nil, err
	}
	h := &hop{method: r.Method, body: r.Body, header: http.Header{"User-Agent": {c.cfg.UserAgent}}}
	if h.url, err = url.Parse(link); err != nil {
		return nil, errors.New("not a URL")
	}
	if h.origin, err = httprule.Origin(link); err != nil {
		return nil, err
	}
	h.trusted, h.trusts = r.Trusted, slices.Contains(r.Trusted, h.origin)
	if h.url.Scheme == "http" && !c.cfg.AllowHTTP {
		return nil, errors.New("plain http is not allowed")
	}
	for _, x := range r.Header {
		if !token(x.Name) || !headerValue(x.Value) {
			return nil, fmt.Errorf("header %.40q cannot be sent", x.Name)
		}
		if reserved(x.Name) {
			return nil, fmt.Errorf("header %s is not the caller's to set", http.CanonicalHeaderKey(x.Name))
		}
		if strings.EqualFold(x.Name, "User-Agent") {
			h.header.Set(x.Name, x.Value)
			continue
		}
		h.header.Add(x.Name, x.Value)
	}
	if err := r.Credential.check(h.header); err != nil {
		return nil, err
	}
	switch {
	case r.SideEffect && r.NotAfter.IsZero():
		return nil, errors.New("a call with side effects needs a last moment for sending")
	case r.SideEffect && r.FollowRedirects != 0:
		return nil, errors.New("a call with side effects follows no redirects")
	case r.Timeout > MaxTimeout:
		return nil, fmt.Errorf("timeout is over %v", MaxTimeout)
	case r.Timeout < 0 || r.MaxBody < 0 || r.FollowRedirects < 0 || r.NotAfterMonotonic < 0:
		return nil, errors.New("timeout, body limit, redirects and monotonic limit may not be negative")
	}
	h.timeout = orDefault(r.Timeout, c.cfg.Timeout)
	h.maxBody = min(orDefault(r.MaxBody, c.cfg.MaxResponse), c.cfg.MaxResponse)
	return h, nil
}

func (cr Credential) check(own http.Header) error {
	if cr == (Credential{}) {
		return nil
	}
	if cr.Ref == "" {
		return errors.New("credential without a reference")
	}
	if cr.Format != "" && strings.Count(cr.Format, "{}") != 1 {
		return errors.New(`credential format needs "{}" exactly once`)
	}
	switch cr.In {
	case InHeader:
		if !token(cr.Name) || framing(cr.Name) {
			return fmt.Errorf("credential header %.40q cannot be sent", cr.Name)
		}
		if own.Get(cr.Name) != "" {
			return fmt.Errorf("header %s is also the credential's", http.CanonicalHeaderKey(cr.Name))
		}
	case InQuery:
		if cr.Name == "" {
			return errors.New("credential parameter has no name")
		}
	case InBasic, Nowhere:
	default:
		return errors.New("credential goes neither in header, query nor basic")
	}
	return nil
}

// request is made anew for each hop. It has no GetBody, so net/http cannot
// send a body a second time.
func (h *hop) request(ctx context.Context) *http.Request {
	u := *h.url
	r := &http.Request{
		Method: h.method, URL: &u, Host: u.Host, Header: h.header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	switch {
	case len(h.body) > 0:
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(h.body)), int64(len(h.body))
	case h.method != http.MethodGet && h.method != http.MethodHead:
		r.Body = http.NoBody
	default:
		// A body that cannot be had again, though it is empty and nothing of it
		// is written: net/http would resend the read by itself when a connection
		// it kept alive is reset, and the provider would be asked twice for one
		// recorded read, without a wait between.
		r.Body = io.NopCloser(strings.NewReader(""))
	}
	if h.attach != nil {
		h.attach(r)
	}
	return r.WithContext(ctx)
}

// redirects reports whether this request may be sent again to the Location of
// an answer with that status.
func (h *hop) redirects(status int) bool {
	if h.method != http.MethodGet && h.method != http.MethodHead || len(h.body) > 0 {
		return false
	}
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// leaveOrigin drops the credential and all headers but those that say nothing
// about the caller. It is not undone if a later redirect leads back.
func (h *hop) leaveOrigin() {
	h.attach = nil
	kept := make(http.Header)
	for _, name := range []string{"User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Range"} {
		if v := h.header.Values(name); v != nil {
			kept[name] = v
		}
	}
	h.header = kept
}

// framing names the headers that belong to the connection or frame the message.
func framing(name string) bool {
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect", "proxy-connection":
		return true
	}
	return false
}

// reserved adds those that carry secrets: a credential reference sets them.
func reserved(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie":
		return true
	}
	return framing(name)
}

func token(s string) bool {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

func headerValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
