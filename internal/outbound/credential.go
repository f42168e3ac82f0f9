package outbound

import (
	"bytes"
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

	"github.com/go-json-experiment/json/jsontext"
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
		sp = c.spell(cr, value)
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
	err               error // it cannot be sent
}

func (c *Client) spell(cr Credential, raw string) *spelled {
	sp := &spelled{value: raw}
	if cr.In == Nowhere {
		sp.scrub = newScrubber(spellings(raw)...)
		return sp
	}
	sp.identity = Identity(c.cfg.IdentityKey, NewSecret(raw))
	value := strings.Replace(orDefault(cr.Format, "{}"), "{}", raw, 1)
	sp.scrub = newScrubber(raw, value)
	switch cr.In {
	case InHeader:
		sp.secret = Header{http.CanonicalHeaderKey(cr.Name), value}
		if !headerValue(value) {
			sp.err = fmt.Errorf("credential %s: has a character that cannot stand in a header", cr.Ref)
		}
	case InBasic:
		sp.scrub = newScrubber(append(spellings(value), spellings(raw)...)...)
		sp.secret = Header{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(value))}
	case InQuery:
		sp.parameter = Header{cr.Name, value}
	case Nowhere:
	}
	return sp
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

func (b *spellbook) keep(cr Credential, sp *spelled) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil || len(b.last) >= maxSpelled {
		b.last = map[Credential]*spelled{}
	}
	b.last[cr] = sp
}

// resolve reads the credential's value and puts it into h.
func (c *Client) resolve(ctx context.Context, cr Credential, h *hop) *Failure {
	if cr.Ref == "" {
		return nil
	}
	s, f := c.lookup(ctx, cr.Ref)
	if f != nil {
		if cr.In == Nowhere {
			return nil
		}
		return f
	}
	kind, value := cr, s.Reveal()
	kind.Identity = "" // differs from call to call, and nothing is made of it
	sp := c.spelled.find(kind, value)
	if sp == nil {
		sp = c.spell(cr, value)
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

// minScrub is the shortest value looked for, in bytes: a shorter one would
// also be found where it is not meant. Not shorter than what replaces it, so
// that bounds on the answer hold.
const minScrub = len(redacted)

// spellings gives a secret as it is and, since it may be user and password, how
// the two are sent, and the password alone, or the user where that is the key.
// A user name beside a password is no secret, and results may hold it.
func spellings(value string) []string {
	list := []string{value, base64.StdEncoding.EncodeToString([]byte(value))}
	if user, password, pair := strings.Cut(value, ":"); pair {
		list = append(list, orDefault(password, user))
	}
	return list
}

// scrubber replaces a credential that a provider echoes, in the spellings in
// which it was sent, and as a JSON string may spell them. An echo in another
// spelling stays.
type scrubber struct{ needles []string }

func newScrubber(values ...string) scrubber {
	var s scrubber
	for _, v := range values {
		for _, v := range []string{v, url.QueryEscape(v), url.PathEscape(v)} {
			if len(v) >= minScrub {
				s.needles = append(s.needles, v)
			}
		}
	}
	return s
}

func (s scrubber) text(t string, count *int) string {
	for _, n := range s.needles {
		if c := strings.Count(t, n); c > 0 {
			t = strings.ReplaceAll(t, n, redacted)
			*count += c
		}
	}
	return t
}

// escaped replaces the credential inside JSON strings that are written with
// escapes, which every reader of the body undoes: \/ for a slash, \u002b for a
// plus. A string without a find keeps its bytes. It needs no whole document: a cut
// body and lines of JSON are looked through as well.
func (s scrubber) escaped(body []byte, count *int) []byte {
	if len(s.needles) == 0 || !bytes.ContainsRune(body, '\\') {
		return body
	}
	var out []byte // set once something was found
	kept := 0      // of body, in out
	for i := 0; i < len(body); {
		if body[i] != '"' {
			i++
			continue
		}
		end, escapes := i+1, false
		for end < len(body) && body[end] != '"' {
			if body[end] == '\\' {
				escapes = true
				end++
			}
			end++
		}
		cut := end >= len(body)
		next := min(end+1, len(body))
		if escapes {
			text, ok := unquote(body[i:next], cut)
			if !ok {
				i++ // not a string after all: the next quote may begin one
				continue
			}
			n := 0
			clean := s.text(text, &n)
			if cut {
				clean = s.tail(clean, &n)
			}
			if n > 0 {
				*count += n
				out = append(out, body[kept:i]...)
				out, _ = jsontext.AppendQuote(out, clean) // invalid UTF-8 is replaced
				if cut {
					out = out[:len(out)-1]
				}
				kept = next
			}
		}
		i = next
	}
	if kept == 0 {
		return body
	}
	return append(out, body[kept:]...)
}

// unquote reads a JSON string, of which the end may be missing. An escape that was
// cut through, or the first half of a pair, says nothing and is left out.
func unquote(literal []byte, cut bool) (text string, ok bool) {
	if !cut {
		plain, err := jsontext.AppendUnquote(nil, literal)
		return string(plain), err == nil
	}
	const longest = len(`\ud83d\ud83d`)
	for end := len(literal); end > 0 && end > len(literal)-longest; end-- {
		plain, err := jsontext.AppendUnquote(nil, append(slices.Clone(literal[:end]), '"'))
		if err == nil {
			return string(plain), true
		}
	}
	return "", false
}

// tail removes the beginning of a credential at the end of a text that was cut.
func (s scrubber) tail(t string, count *int) string {
	for _, n := range s.needles {
		for k := min(len(n)-1, len(t)); k >= max(minScrub, named(n)+1); k-- {
			if strings.HasSuffix(t, n[:k]) {
				t = t[:len(t)-k]
				*count++
				break
			}
		}
	}
	return t
}

func (s scrubber) answer(a *Answer) {
	a.URL = s.text(a.URL, &a.Scrubbed)
	for _, vs := range a.Header {
		for i := range vs {
			vs[i] = s.text(vs[i], &a.Scrubbed)
		}
	}
	a.Body = s.escaped(a.Body, &a.Scrubbed)
	for _, n := range s.needles {
		if c := bytes.Count(a.Body, []byte(n)); c > 0 {
			a.Body = bytes.ReplaceAll(a.Body, []byte(n), []byte(redacted))
			a.Scrubbed += c
		}
	}
	// The end may have cut through an echo.
	longest := 0
	for _, n := range s.needles {
		longest = max(longest, len(n))
	}
	head, end := len(a.Body)-min(longest, len(a.Body)), 0
	if end = len(s.tail(string(a.Body[head:]), &a.Scrubbed)); head+end < len(a.Body) {
		a.Body = a.Body[:head+end]
	}
}

// named is the length of the user name a needle may start with, which alone
// is no secret.
func named(needle string) int {
	for _, colon := range []string{":", "%3A"} {
		if user, _, pair := strings.Cut(needle, colon); pair {
			return len(user) + len(colon)
		}
	}
	return 0
}

// err keeps the chain unless its text shows the credential.
func (s scrubber) err(err error) error {
	var n int
	if text := s.text(err.Error(), &n); n > 0 {
		return errors.New(text)
	}
	return err
}
