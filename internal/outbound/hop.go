package outbound

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// hop is a request made ready. Owned by one Do; read changes it between hops.
type hop struct {
	method string
	url    *url.URL
	link   string // of it
	origin string
	header []Header // names in canonical case
	body   []byte
	// secret goes along with the header, parameter with the query, as long as
	// the origin does not change; the zero values: none.
	secret, parameter Header
	identity          string
	scrub             scrubber
	timeout           time.Duration
	maxBody           int64
	held              *share // of the room, for the body; nil where MaxBody is too small for one
	// read says that it changes nothing and may leave at any time. rest is how
	// long a connection may have been idle that it uses; 0: it has its own.
	read bool
	rest time.Duration
	// trusted are origins that may have any address, trusts says that this hop's
	// is one of them and was reached through such ones only.
	trusted []string
	trusts  bool
}

func (c *Client) prepare(r Request) (*hop, error) {
	if !token(r.Method) || r.Method != strings.ToUpper(r.Method) || r.Method == http.MethodConnect {
		return nil, errors.New("method is not an HTTP method in capitals")
	}
	h := &hop{method: r.Method, body: r.Body, header: make([]Header, 1, len(r.Header)+1)}
	h.header[0] = Header{"User-Agent", c.cfg.UserAgent}
	var err error
	if h.url, h.link, h.origin, err = httprule.Absolute(r.URL); err != nil {
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
		if x.Name = http.CanonicalHeaderKey(x.Name); x.Name == "User-Agent" {
			h.header[0] = x
			continue
		}
		h.header = append(h.header, x)
	}
	slices.SortStableFunc(h.header[1:], func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
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
	h.read = !r.SideEffect && r.NotAfter.IsZero()
	switch {
	case h.read:
		h.rest = restForReads
	case r.SideEffect && r.Repeatable:
		h.rest = restForEffects
	}
	h.timeout = orDefault(r.Timeout, c.cfg.Timeout)
	h.maxBody = min(orDefault(r.MaxBody, c.cfg.MaxResponse), c.cfg.MaxResponse)
	if h.maxBody > middling {
		h.held = &share{}
	}
	return h, nil
}

func (cr Credential) check(own []Header) error {
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
		if slices.ContainsFunc(own, func(h Header) bool { return strings.EqualFold(h.Name, cr.Name) && h.Value != "" }) {
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

// appendHead writes the request line and the headers, in canonical case and
// sorted, behind Host, User-Agent and Content-Length. All of it was checked: no
// value has a line end.
func (h *hop) appendHead(b []byte, closes bool) []byte {
	u := *h.url
	if h.parameter.Name != "" {
		u.RawQuery = withParameter(u.RawQuery, h.parameter.Name, h.parameter.Value)
	}
	b = append(b, h.method...)
	b = append(b, ' ')
	b = append(b, u.RequestURI()...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendHeader(b, Header{"Host", u.Host})
	for _, x := range h.header[:1] { // an empty one is left out
		if x.Value != "" {
			b = appendHeader(b, x)
		}
	}
	switch h.method {
	case http.MethodPost, http.MethodPut, http.MethodPatch: // some servers insist on one
		b = appendLength(b, len(h.body))
	default:
		if len(h.body) > 0 {
			b = appendLength(b, len(h.body))
		}
	}
	secret := h.secret
	for _, x := range h.header[1:] {
		if secret.Name != "" && secret.Name <= x.Name {
			b, secret = appendHeader(b, secret), Header{}
		}
		if x.Name != h.secret.Name {
			b = appendHeader(b, x)
		}
	}
	if secret.Name != "" {
		b = appendHeader(b, secret)
	}
	if closes {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

func appendHeader(b []byte, h Header) []byte {
	b = append(b, h.Name...)
	b = append(b, ": "...)
	b = append(b, strings.Trim(h.Value, " \t")...)
	return append(b, "\r\n"...)
}

func appendLength(b []byte, n int) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, "\r\n"...)
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
	h.secret, h.parameter = Header{}, Header{}
	own := h.header[1:]
	h.header = h.header[:1:1]
	for _, x := range own {
		switch x.Name {
		case "Accept", "Accept-Encoding", "Accept-Language", "Range":
			h.header = append(h.header, x)
		}
	}
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
