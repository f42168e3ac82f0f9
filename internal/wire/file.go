package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// fileEvery is how often, at most, a file is looked at for changes.
const fileEvery = time.Second

// fileRest is how long a file must have been left alone before it is taken up: until
// then it may be half written, and what is missing at its end may be a denial.
const fileRest = 10 * time.Second

// fileOld is how long ago, by its time of change, a file that takes the place of another
// must have been written to count at once: longer than a file server's clock is behind.
const fileOld = time.Minute

// fileNews is what the operator is told of a file that is followed.
type fileNews int

const (
	fileWritten  fileNews = iota // lately: it is not taken up yet
	fileUnusable                 // as it is now
	fileTaken                    // up
)

// fileConfig says which file is followed. Every field is required unless it says
// otherwise.
type fileConfig[T any] struct {
	what string // "credentials file"
	path string
	// optional says that there may be no file. One that is written later is taken up.
	optional bool
	limit    int64 // bytes
	now      func() time.Time
	parse    func(text []byte) (*T, error)
	where    func(error) string // the first place of a problem, see [FileStatus]; optional
	log      *slog.Logger
}

// told tells the operator. The texts are whole, with the file's name in them, since that is
// what logs are searched for.
func (c fileConfig[T]) told(news fileNews, problem string) {
	log := c.log.With("file", c.path)
	switch news {
	case fileWritten:
		log.Warn("the "+c.what+" is being written, or new; what it said before holds until it has been left alone", //nolint:sloglint // of few constants
			"for", fileRest.String(), "hint", "one that is renamed over the old one counts at once if it was last written a minute ago or more")
	case fileUnusable:
		log.Error("the "+c.what+" cannot be used; what it said before still holds", "problem", problem) //nolint:sloglint // of few constants
	case fileTaken:
		log.Info("the " + c.what + " was read") //nolint:sloglint // of few constants
	}
}

// followed follows a file of the operator's. What is asked of it is answered from the
// newest version of the file that could be read whole: it is looked at when it is used,
// at most once a second, and a version that is wrong, cannot be read or is gone changes
// nothing and is told once. Whatever way another version came about, it is taken up once
// it has been left alone for 10 s. Safe for concurrent use.
//
// Who makes a file under the name of one that was moved away or removed a moment before
// leaves what a rename leaves: another file. So the way a version came about does not
// say that it is whole, and only the time since it was written does. One that took the
// place of another and was not written for a minute by its time of change is taken up at
// the next look, so that a whole file can be made to count at once.
//
// There is no durable step here: a restart reads the file afresh, and refuses to start
// where a running process would have kept the version before.
type followed[T any] struct {
	cfg fileConfig[T]

	current atomic.Pointer[T]

	mu      sync.Mutex  // held while the file is looked at
	looked  time.Time   // when it was last; guarded by mu
	opened  bool        // since then what is in force goes on until a version rests; guarded by mu
	seen    fs.FileInfo // the version that was last read, good or not; nil: the file was gone; guarded by mu
	pending writing     // the version that was not read yet; guarded by mu
	changed func()      // called with mu held after another version was taken up; guarded by mu
	status  FileStatus  // guarded by mu
}

// writing is a version of the file that may still be written.
type writing struct {
	info     fs.FileInfo // nil: there is none
	before   time.Time   // the last look that found another version, or none
	first    time.Time   // the first look that found this one
	replaced bool        // it is another file than the one before, which was there at that look
}

// FileStatus says what is known of a file that is followed.
type FileStatus struct {
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
	// Writing is since when the file is seen to be new or being written; it is read
	// once it has been left alone for 10 s. Zero if it is neither.
	Writing time.Time
}

// open reads the file. It fails if that is wrong, or others can read it, or it is gone
// and not optional.
func (c *followed[T]) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked()
	if c.status.Problem != "" {
		return errors.New(c.status.Problem)
	}
	c.opened = true
	return nil
}

// onChange sets what is called after another version of the file was taken up.
func (c *followed[T]) onChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = f
}

// Status looks at the file and says how it stands.
func (c *followed[T]) Status() FileStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	return c.status
}

// newest gives the newest good version, nil if there is none. While another goroutine
// looks at the file, or the file system hangs, nobody waits: they get the version before.
func (c *followed[T]) newest() *T {
	if c.mu.TryLock() {
		c.refreshLocked()
		c.mu.Unlock()
	}
	return c.current.Load()
}

func (c *followed[T]) refreshLocked() {
	// A clock that is set back must not stop the looking.
	if since := c.cfg.now().Sub(c.looked); since >= 0 && since < fileEvery {
		return
	}
	before, problem, writing := c.current.Load(), c.status.Problem, c.status.Writing
	c.lookLocked()
	if writing.IsZero() && !c.status.Writing.IsZero() {
		c.cfg.told(fileWritten, "")
	}
	switch now := c.current.Load(); {
	case c.status.Problem != "" && c.status.Problem != problem:
		c.cfg.told(fileUnusable, c.status.Problem)
	case c.status.Problem == "" && problem != "" && c.status.Writing.IsZero(), now != before:
		c.cfg.told(fileTaken, "")
	}
	if c.current.Load() != before && c.changed != nil {
		c.changed()
	}
}

// lookLocked reads the file if it is another one than was last read.
func (c *followed[T]) lookLocked() {
	now, last := c.cfg.now(), c.looked
	c.looked, c.status.Path = now, c.cfg.path
	info, err := os.Stat(c.cfg.path)
	switch {
	case (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) && c.cfg.optional && c.current.Load() == nil:
		c.status.Problem, c.status.Where, c.status.Since = "", "", time.Time{} // none is needed
		c.seen = nil
		c.restLocked()
		return
	case err != nil:
		c.seen = nil
		c.restLocked()
		c.problemLocked(now, fmt.Errorf("%s: %w", c.cfg.what, err))
		return
	case c.writtenLocked(info, now, last):
		return
	case c.pending.info == nil && c.seen != nil && sameVersion(c.seen, info):
		return
	}
	text, read, err := outbound.ReadPrivate(c.cfg.path, c.cfg.limit)
	if err != nil {
		c.restLocked()
		c.seen = info // a chmod is another version
		c.problemLocked(now, fmt.Errorf("%s: %w", c.cfg.what, err))
		return
	}
	if c.opened && (!os.SameFile(info, read) || changedInPlace(info, read)) {
		c.pendLocked(read, now, now) // written or replaced since it was looked at
		return
	}
	c.restLocked()
	c.seen = read
	table, err := c.cfg.parse(text)
	if err != nil {
		c.problemLocked(now, fmt.Errorf("%s with problems:\n%w", c.cfg.what, err))
		return
	}
	if after, err := os.Stat(c.cfg.path); err != nil || !sameVersion(read, after) {
		// Written while it was read: this may be half of it. The next look tells.
		c.seen = nil
		switch {
		case !c.opened:
			c.problemLocked(now, fmt.Errorf("%s: %s was written while it was read", c.cfg.what, c.cfg.path))
		case err == nil && (!os.SameFile(read, after) || changedInPlace(read, after)):
			c.pendLocked(after, now, now)
		}
		return
	}
	c.current.Store(table)
	c.status.Loaded, c.status.Problem, c.status.Where, c.status.Since = now, "", "", time.Time{}
}

// writtenLocked says whether the file as it is found now is to be left alone: it is
// another version, and may still be written. last is the look before this one.
//
// Its time of change tells, by our clock. A file server's clock may differ, and
// that time can be set to anything, so our own looks must agree: for 10 s none
// found another version, or none at all. Of a file that took the place of another, which
// is mostly renamed there whole, that time is believed if it is a minute ago: what was
// made there since the last look would be younger. Where it is ahead of our clock only
// looks count, from the first that found this version.
func (c *followed[T]) writtenLocked(info fs.FileInfo, now, last time.Time) bool {
	was := c.pending.info
	if was == nil {
		was = c.seen
	}
	switch {
	case !c.opened:
		return false // nothing is in force that could go on
	case c.seen != nil && sameVersion(c.seen, info):
		c.restLocked() // the one that was read last is back, or was never gone
		return false
	case was == nil: // it was gone
		c.pendLocked(info, now, last)
		// That it is gone is no longer so. What else is wrong is told when it would count.
		c.status.Problem, c.status.Where, c.status.Since = "", "", time.Time{}
	case !os.SameFile(was, info):
		c.pendLocked(info, now, last)
		c.pending.replaced = true
	case changedInPlace(was, info):
		c.pendLocked(info, now, last)
	case c.pending.info == nil:
		return false
	}
	p := &c.pending
	if p.before.After(now) || p.first.After(now) { // the clock was set back
		p.before, p.first = now, now
	}
	age := now.Sub(info.ModTime())
	rested := min(now.Sub(p.before), age)
	if age < 0 {
		rested = now.Sub(p.first)
	}
	if rested >= fileRest || p.replaced && age >= fileOld {
		return false
	}
	if c.status.Writing.IsZero() {
		c.status.Writing = now
	}
	return true
}

func (c *followed[T]) pendLocked(info fs.FileInfo, now, before time.Time) {
	c.pending = writing{info: info, before: before, first: now}
}

// restLocked forgets what was being written.
func (c *followed[T]) restLocked() {
	c.pending, c.status.Writing = writing{}, time.Time{}
}

func (c *followed[T]) problemLocked(now time.Time, err error) {
	if c.status.Where = ""; c.cfg.where != nil {
		c.status.Where = c.cfg.where(err)
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
