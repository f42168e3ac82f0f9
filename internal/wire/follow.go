package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

// credentialsEvery is how often, at most, the credentials file is looked at for
// changes.
const credentialsEvery = time.Second

// credentialsRest is how long a file that is changed in place must have been left
// alone before it is taken up: until then it may be half written, and what is
// missing at its end may be a denial.
const credentialsRest = 10 * time.Second

// CredentialsConfig says which credentials file is followed. Every field is
// required.
type CredentialsConfig struct {
	Path string
	// Optional says that there may be no file: it is the default path and not
	// one that was asked for. One that is written later is taken up.
	Optional  bool
	Contracts map[string]*contract.Contract
	AllowHTTP bool
	Now       func() time.Time
	Log       *slog.Logger
}

// Credentials follows a credentials file. What is asked of it is answered from
// the newest version of the file that could be read whole: it is looked at when
// it is used, at most once a second, and a version that is wrong, cannot be read
// or is gone changes nothing and is told once. A file that replaced the one before
// is taken up at the next look; one that is changed in place, once it has been
// left alone for 10 s. Safe for concurrent use. Nil has
// no file: nothing is configured by it, and everyone may use everything.
//
// There is no durable step here: a restart reads the file afresh, and refuses
// to start where a running process would have kept the version before.
type Credentials struct {
	cfg CredentialsConfig

	current atomic.Pointer[CredentialsTable]

	mu      sync.Mutex        // held while the file is looked at
	looked  time.Time         // when it was last; guarded by mu
	seen    fs.FileInfo       // the version that was last read, good or not; guarded by mu
	pending writing           // the version that came about in place and was not read yet; guarded by mu
	changed func()            // called with mu held after another version was taken up; guarded by mu
	status  CredentialsStatus // guarded by mu
}

// writing is a version of the file that came about in place.
type writing struct {
	info   fs.FileInfo // nil: there is none
	before time.Time   // the last look that found another version
	first  time.Time   // the first look that found this one
}

// CredentialsStatus says what is known of the credentials file.
type CredentialsStatus struct {
	Path string // "" if none is followed
	// Loaded is when the version in use was read; zero if there is none.
	Loaded time.Time
	// Problem is why the file as it is now is not in use, with line and field;
	// "" if it is, or if there is none and need be none.
	Problem string
	// Where is the first place of the problem in the file, line and field; "" if
	// it is not in what the file says. It names no value and no principal.
	Where string
	Since time.Time // of the problem
	// Writing is since when the file is seen being written in place; it is read
	// once it has been left alone for 10 s. Zero if it is not being written.
	Writing time.Time
}

// OpenCredentials reads the file. It fails if that is wrong, or others can read
// it, or it is gone and not optional.
func OpenCredentials(cfg CredentialsConfig) (*Credentials, error) {
	c := &Credentials{cfg: cfg}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	if c.status.Problem != "" {
		return nil, errors.New(c.status.Problem)
	}
	return c, nil
}

// onChange sets what is called after another version of the file was taken up.
func (c *Credentials) onChange(f func()) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = f
}

// Status looks at the file and says how it stands.
func (c *Credentials) Status() CredentialsStatus {
	if c == nil {
		return CredentialsStatus{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	return c.status
}

var noCredentials = &CredentialsTable{}

// table gives the newest good version. While another goroutine looks at the
// file, or the file system hangs, nobody waits: they get the version before.
func (c *Credentials) table() *CredentialsTable {
	if c == nil {
		return noCredentials
	}
	if c.mu.TryLock() {
		c.refreshLocked()
		c.mu.Unlock()
	}
	if t := c.current.Load(); t != nil {
		return t
	}
	return noCredentials
}

func (c *Credentials) refreshLocked() {
	// A clock that is set back must not stop the looking.
	if since := c.cfg.Now().Sub(c.looked); since >= 0 && since < credentialsEvery {
		return
	}
	before, problem, writing := c.current.Load(), c.status.Problem, c.status.Writing
	c.lookLocked()
	if writing.IsZero() && !c.status.Writing.IsZero() {
		c.cfg.Log.Warn("the credentials file is being written in place; what it said before holds until it has been left alone",
			"file", c.cfg.Path, "for", credentialsRest.String(), "hint", "write a new file beside it and rename it: that counts at once")
	}
	switch now := c.current.Load(); {
	case c.status.Problem != "" && c.status.Problem != problem:
		c.cfg.Log.Error("the credentials file cannot be used; what it said before still holds", "file", c.cfg.Path, "problem", c.status.Problem)
	case c.status.Problem == "" && problem != "", now != before:
		c.cfg.Log.Info("the credentials file was read", "file", c.cfg.Path)
	}
	if c.current.Load() != before && c.changed != nil {
		c.changed()
	}
}

// lookLocked reads the file if it is another one than was last read.
func (c *Credentials) lookLocked() {
	now, last := c.cfg.Now(), c.looked
	c.looked, c.status.Path = now, c.cfg.Path
	info, err := os.Stat(c.cfg.Path)
	switch {
	case (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) && c.cfg.Optional && c.current.Load() == nil:
		c.status.Problem, c.status.Where, c.status.Since = "", "", time.Time{} // none is needed
		return
	case err != nil:
		c.seen = nil
		c.restLocked()
		c.problemLocked(now, fmt.Errorf("credentials file: %w", err))
		return
	case c.writtenLocked(info, now, last):
		return
	case c.pending.info == nil && c.seen != nil && sameVersion(c.seen, info):
		return
	}
	text, read, err := outbound.ReadPrivate(c.cfg.Path, MaxCredentials)
	if err != nil {
		c.restLocked()
		c.seen = info // a chmod is another version
		c.problemLocked(now, fmt.Errorf("credentials file: %w", err))
		return
	}
	if c.current.Load() != nil && changedInPlace(info, read) {
		c.pendLocked(read, now, now) // written since it was looked at
		return
	}
	c.restLocked()
	c.seen = read
	table, err := ParseCredentials(c.cfg.Path, text, c.cfg.Contracts, c.cfg.AllowHTTP)
	if err != nil {
		c.problemLocked(now, fmt.Errorf("credentials file with problems:\n%w", err))
		return
	}
	if after, err := os.Stat(c.cfg.Path); err != nil || !sameVersion(read, after) {
		// Written while it was read: this may be half of it. The next look tells.
		c.seen = nil
		switch {
		case c.current.Load() == nil:
			c.problemLocked(now, fmt.Errorf("credentials file: %s was written while it was read", c.cfg.Path))
		case err == nil && changedInPlace(read, after):
			c.pendLocked(after, now, now)
		}
		return
	}
	c.current.Store(table)
	c.status.Loaded, c.status.Problem, c.status.Where, c.status.Since = now, "", "", time.Time{}
}

// writtenLocked says whether the file as it is found now is to be left alone: it
// was changed in place, and not long enough ago. last is the look before this one.
//
// Its time of change tells, by our clock. A file server's clock may differ, and
// that time can be set to anything, so our own looks must agree: for 10 s none
// found another version. Where it is ahead of our clock only looks count, from
// the first that found this version.
func (c *Credentials) writtenLocked(info fs.FileInfo, now, last time.Time) bool {
	was := c.pending.info
	if was == nil {
		was = c.seen
	}
	switch {
	case c.current.Load() == nil || was == nil:
		return false // nothing is in force that could go on, or the file was gone
	case !os.SameFile(was, info):
		c.restLocked() // replaced whole
		return false
	case changedInPlace(was, info):
		c.pendLocked(info, now, last)
	case c.pending.info == nil:
		return false
	}
	p := &c.pending
	if p.before.After(now) || p.first.After(now) { // the clock was set back
		p.before, p.first = now, now
	}
	rested := min(now.Sub(p.before), now.Sub(info.ModTime()))
	if info.ModTime().After(now) {
		rested = now.Sub(p.first)
	}
	if rested >= credentialsRest {
		return false
	}
	if c.status.Writing.IsZero() {
		c.status.Writing = now
	}
	return true
}

func (c *Credentials) pendLocked(info fs.FileInfo, now, before time.Time) {
	c.pending = writing{info: info, before: before, first: now}
}

// restLocked forgets what was being written.
func (c *Credentials) restLocked() {
	c.pending, c.status.Writing = writing{}, time.Time{}
}

func (c *Credentials) problemLocked(now time.Time, err error) {
	var in *credentialsError
	if c.status.Where = ""; errors.As(err, &in) {
		c.status.Where = in.where
	}
	if text := err.Error(); text != c.status.Problem {
		c.status.Problem, c.status.Since = text, now
	}
}

// sameVersion tells one version of the file from the next: one that is replaced
// by another of the same length in the same moment is another file.
func sameVersion(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}

// changedInPlace says whether b is a with something else written into it. A chmod
// writes nothing.
func changedInPlace(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && (!a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size())
}

// denying refuses API keys that the credentials file denies, in the words in
// which an unknown key is refused.
type denying struct {
	keys  *ingest.Keys
	table func() *CredentialsTable
}

// Authenticate implements api.Authenticator.
func (d denying) Authenticate(header []string) (ingest.Caller, error) {
	return d.let(d.keys.Authenticate(header))
}

// Known is [ingest.Keys.Known] for keys that are not denied.
func (d denying) Known(principal, key string) (ingest.Caller, error) {
	return d.let(d.keys.Known(principal, key))
}

// Counts is [ingest.Keys.Counts] for keys that are not denied.
func (d denying) Counts(principal, key string) (ingest.Caller, error) {
	return d.let(d.keys.Counts(principal, key))
}

func (d denying) let(caller ingest.Caller, err error) (ingest.Caller, error) {
	if err == nil && d.table().denied[caller.KeyID] {
		refused := ingest.Unauthenticated()
		refused.Key, refused.KeyState = caller.KeyID, "denied"
		return ingest.Caller{}, refused
	}
	return caller, err
}

// Credentials says how the credentials file stands.
func (s *Service) Credentials() CredentialsStatus { return s.cfg.Credentials.Status() }

// tellCredentials tells of every entry of the file that a flag wins over, and of
// every configured reference that leads to nothing. The latter is no failure:
// the value may come later, and is looked for at each call.
func (s *Service) tellCredentials(ctx context.Context) {
	for _, at := range s.catalogue.shadowed() {
		s.cfg.Log.InfoContext(ctx, "a flag wins over an entry of the credentials file", "entry", at)
	}
	for _, provider := range s.catalogue.Providers() {
		for _, account := range s.catalogue.Accounts(provider) {
			a, _ := s.catalogue.Account(provider, account) // it has no other error than none
			for _, r := range []struct{ what, reference, hint string }{
				{"credential", a.Credential, "put the secret there; calls under this account rest until then"},
				{"webhook secret", s.catalogue.webhookSecret(provider, account), "put the secret there; webhooks of this account are refused until then"},
			} {
				if r.reference == "" {
					continue
				}
				if _, err := s.cfg.Resolve.Resolve(ctx, r.reference); err != nil {
					s.cfg.Log.WarnContext(ctx, "a reference leads to no secret", "what", r.what,
						"provider", provider, "account", account, "reference", r.reference, "error", err, "hint", r.hint)
				}
			}
		}
	}
}
