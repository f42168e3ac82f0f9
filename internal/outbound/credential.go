package outbound

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// maxCredential bounds a credential file in bytes.
const maxCredential = 64 << 10

// Place is where a credential goes.
type Place string

const (
	InHeader Place = "header" // Name is the header
	InQuery  Place = "query"  // Name is the parameter; one of that name already there is replaced
	InBasic  Place = "basic"  // Authorization: Basic, over the formatted value ("user:{}")
	// Nowhere sends no credential; it is resolved only to be taken out of the
	// answer, where the host may know it all the same. One that cannot be had
	// is no failure.
	Nowhere Place = "nowhere"
)

// Credential says which credential goes where; it never holds the value. The
// zero Credential means none.
type Credential struct {
	Ref  string // env:NAME or file:PATH
	In   Place
	Name string
	// Format has "{}" where the value goes, once: "Bearer {}". Empty means "{}".
	Format string
	// Identity, if set, is the only one the call may use: credential_changed
	// otherwise, and nothing is sent. It is what the attempt has recorded.
	Identity string
}

// CredentialResolver gives the value behind a reference, afresh at each call,
// so that a rotated credential is used without a restart. Errors name the
// reference, never the value.
type CredentialResolver interface {
	Resolve(ctx context.Context, ref string) (Secret, error)
}

// References resolves env:NAME and file:PATH. Line ends at the end of a value
// are dropped, since editors and mounted secrets add them.
type References struct {
	LookupEnv func(name string) (string, bool)
	// ReadFile returns at most limit+1 bytes of a file.
	ReadFile func(path string, limit int64) ([]byte, error)
}

// SystemReferences reads the process environment and the file system, where it
// refuses a file that others can read.
func SystemReferences() References {
	return References{LookupEnv: os.LookupEnv, ReadFile: readFile}
}

// Resolve implements CredentialResolver.
func (r References) Resolve(_ context.Context, ref string) (Secret, error) {
	scheme, name, _ := strings.Cut(ref, ":")
	var value string
	switch {
	case scheme == "env" && envName(name):
		v, ok := r.LookupEnv(name)
		if !ok {
			return Secret{}, fmt.Errorf("credential %s: not set", ref)
		}
		value = v
	case scheme == "file" && name != "":
		b, err := r.ReadFile(name, maxCredential)
		if err != nil {
			return Secret{}, fmt.Errorf("credential %s: %w", ref, err)
		}
		if len(b) > maxCredential {
			return Secret{}, fmt.Errorf("credential %s: larger than %d bytes", ref, maxCredential)
		}
		value = string(b)
	default:
		// Not quoted: the likeliest mistake is the credential itself.
		return Secret{}, errors.New("credential reference is not env:NAME or file:PATH")
	}
	value = strings.TrimRight(value, "\r\n")
	if value == "" {
		return Secret{}, fmt.Errorf("credential %s: empty", ref)
	}
	return NewSecret(value), nil
}

func envName(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func readFile(path string, limit int64) ([]byte, error) {
	text, _, err := ReadPrivate(path, limit)
	return text, err
}

// Identity is a short digest that shows rotation and not the value: HMAC-SHA-256
// under key, first 8 bytes, in hex. Without a key a value that can be guessed
// can be confirmed.
func Identity(key []byte, s Secret) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("counterfoil credential identity 1\x00"))
	m.Write([]byte(s.Reveal()))
	return hex.EncodeToString(m.Sum(nil)[:8])
}

// CredentialIdentity resolves a credential to its identity, to be recorded with
// the attempt before the call. It fails with a *Failure as Do does, also where
// the value cannot be put where the credential goes.
func (c *Client) CredentialIdentity(ctx context.Context, cr Credential) (string, error) {
	s, f := c.lookup(ctx, cr.Ref)
	if f != nil {
		return "", f
	}
	value := s.Reveal()
	if cr.Identity = ""; cr.In == Nowhere {
		cr = Credential{Ref: cr.Ref} // of its own, since what goes nowhere is sent as nobody
	}
	// It is asked for before each step.
	sp := c.spelled.find(cr, value)
	if sp == nil {
		sp = c.spell(cr, value, c.spelled.former(cr, value))
		c.spelled.keep(cr, sp)
	}
	if sp.err != nil {
		return "", &Failure{Class: CredentialMissing, Sent: NotSent, Err: sp.err}
	}
	return sp.identity, nil
}

func (c *Client) lookup(ctx context.Context, ref string) (Secret, *Failure) {
	s, err := c.cfg.Resolve.Resolve(ctx, ref)
	if err == nil && s.Empty() {
		err = fmt.Errorf("credential %s: empty", ref)
	}
	if err != nil {
		f := &Failure{Class: CredentialMissing, Sent: NotSent, Err: err}
		if class, ended := contextClass(ctx); ended {
			f.Class = class
		}
		return Secret{}, f
	}
	return s, nil
}

// spelled is what is made of a credential's value for one Credential: it costs
// more than reading the value, and stays the same until that is rotated.
type spelled struct {
	value, identity string
	// secret goes along as a header, parameter in the query.
	secret, parameter Header
	scrub             scrubber
	former            []string // values before it, the latest first
	err               error    // it cannot be sent
}

// maxFormer bounds how many values before the present one a provider's echo is
// looked through for.
const maxFormer = 2

func (c *Client) spell(cr Credential, raw string, former []string) *spelled {
	sp := &spelled{value: raw, former: former}
	values := cr.shown(raw)
	for _, old := range former { // an answer may lag behind a rotation
		values = append(values, cr.shown(old)...)
	}
	if sp.scrub = newScrubber(values...); cr.In == Nowhere {
		return sp
	}
	sp.identity = Identity(c.cfg.IdentityKey, NewSecret(raw))
	value := cr.formatted(raw)
	switch cr.In {
	case InHeader:
		sp.secret = Header{http.CanonicalHeaderKey(cr.Name), value}
		if !headerValue(value) {
			sp.err = fmt.Errorf("credential %s: has a character that cannot stand in a header", cr.Ref)
		}
	case InBasic:
		sp.secret = Header{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(value))}
	case InQuery:
		sp.parameter = Header{cr.Name, value}
	case Nowhere:
	}
	return sp
}

func (cr Credential) formatted(raw string) string {
	return strings.Replace(orDefault(cr.Format, "{}"), "{}", raw, 1)
}

// shown lists what of a value an answer may not show.
func (cr Credential) shown(raw string) []string {
	switch cr.In {
	case Nowhere:
		return secretParts(raw)
	case InBasic:
		return append(secretParts(cr.formatted(raw)), secretParts(raw)...)
	case InHeader, InQuery:
	}
	return []string{raw, cr.formatted(raw)}
}

// maxSpelled bounds how many credentials are remembered.
const maxSpelled = 256

// spellbook remembers what was spelled last for each credential. Pointers, so
// that nothing which prints a Client follows them.
type spellbook struct {
	mu   sync.Mutex // guards last
	last map[Credential]*spelled
}

func (b *spellbook) find(cr Credential, value string) *spelled {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sp := b.last[cr]; sp != nil && sp.value == value {
		return sp
	}
	return nil
}

// latest gives what was spelled last, nil for none.
func (b *spellbook) latest(cr Credential) *spelled {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[cr]
}

// former lists the values that were there before this one.
func (b *spellbook) former(cr Credential, value string) []string {
	sp := b.latest(cr)
	if sp == nil {
		return nil
	}
	list := slices.DeleteFunc(append([]string{sp.value}, sp.former...), func(v string) bool { return v == value })
	return list[:min(len(list), maxFormer)]
}

func (b *spellbook) keep(cr Credential, sp *spelled) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[Credential]*spelled{}
	}
	if _, some := b.last[cr]; !some {
		for other := range b.last { // any
			if len(b.last) < maxSpelled {
				break
			}
			delete(b.last, other)
		}
	}
	b.last[cr] = sp
}

// resolve reads the credential's value and puts it into h.
func (c *Client) resolve(ctx context.Context, cr Credential, h *hop) *Failure {
	if cr.Ref == "" {
		return nil
	}
	kind := cr
	kind.Identity = "" // differs from call to call, and nothing is made of it
	s, f := c.lookup(ctx, cr.Ref)
	switch {
	case f == nil:
	case cr.In != Nowhere:
		return f
	default:
		if sp := c.spelled.latest(kind); sp != nil {
			h.scrub = sp.scrub
		}
		return nil
	}
	value := s.Reveal()
	sp := c.spelled.find(kind, value)
	if sp == nil {
		sp = c.spell(cr, value, c.spelled.former(kind, value))
		c.spelled.keep(kind, sp)
	}
	h.identity, h.scrub, h.secret, h.parameter = sp.identity, sp.scrub, sp.secret, sp.parameter
	switch {
	case cr.Identity != "" && cr.Identity != sp.identity && cr.In != Nowhere:
		return &Failure{Class: CredentialChanged, Sent: NotSent, Err: fmt.Errorf("credential %s: identity is %s, expected %s", cr.Ref, sp.identity, cr.Identity)}
	case sp.err != nil:
		return &Failure{Class: CredentialMissing, Sent: NotSent, Err: sp.err}
	}
	return nil
}

// withParameter sets one parameter and leaves the rest of the query as written.
func withParameter(query, name, value string) string {
	var parts []string
	for p := range strings.SplitSeq(query, "&") {
		k, _, _ := strings.Cut(p, "=")
		if k, err := url.QueryUnescape(k); p != "" && (err != nil || k != name) {
			parts = append(parts, p)
		}
	}
	return strings.Join(append(parts, url.QueryEscape(name)+"="+url.QueryEscape(value)), "&")
}
