package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names in a data directory.
const (
	lockName   = "lock"      // flock; holds the pid of its holder
	formatName = "format"    // marker: this directory is ours, and its format
	runsName   = "runs"      // one line per start and per orderly stop
	storeName  = "jetstream" // the server's own

	// CredentialsName is the operator's own file, which may be there before a first start.
	CredentialsName = "credentials.yaml"

	streamsName = "jetstream/$G/streams" // in the server's own, with a directory for each stream
)

const (
	formatPrefix = "counterfoil data directory, format "
	// Format is the version this program reads and writes.
	Format = 1

	maxPIDFile = 32 // bytes

	credentialsStart = "credentials:" // its first field
	maxPreamble      = 64 << 10       // bytes of comments before it
)

// ErrForeign says that a directory holds something and was not made by this
// program.
var ErrForeign = errors.New("not a counterfoil data directory")

// ErrNewer says that a directory was written by a newer program.
var ErrNewer = errors.New("data directory is newer than this program")

// LockedError says that another process has the directory.
type LockedError struct {
	Dir string
	PID int // as the lock file says; 0 if it does not
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("data directory %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("data directory %s is in use by process %d", e.Dir, e.PID)
}

// A directory is a locked data directory with this run noted in it.
type directory struct {
	lock *os.File
	runs *os.File
	now  func() time.Time

	run     string
	last    string // previous run; "" at the first start
	clean   bool   // it ended in order
	earlier map[string]struct{}
}

// open locks the directory, checks its marker and notes the run. A directory
// it refuses is left as it was, apart from the empty lock file in a directory
// that was empty.
func open(path, run string, now func() time.Time) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if err := checkOurs(path); err != nil {
		return nil, err
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	d := &directory{lock: lock, run: run, now: now, earlier: map[string]struct{}{}}
	if err := d.begin(path); err != nil {
		closeQuietly(lock)
		return nil, err
	}
	return d, nil
}

func (d *directory) begin(path string) error {
	// Checked again under the lock: the holder before us may have been another
	// version of the program.
	if err := checkOurs(path); err != nil {
		return err
	}
	// A crash before the marker leaves a lock file alone, which the next start
	// accepts as an empty directory.
	if err := writeMarker(path); err != nil {
		return err
	}
	if err := d.readRuns(filepath.Join(path, runsName)); err != nil {
		return err
	}
	// A crash after this line leaves a run without its stop line: the next
	// start knows the run and that it did not end in order.
	if err := d.note("start"); err != nil {
		closeQuietly(d.runs)
		return err
	}
	return syncDir(path)
}

// checkOurs reads and changes nothing.
func checkOurs(path string) error {
	text, err := os.ReadFile(filepath.Join(path, formatName))
	if errors.Is(err, os.ErrNotExist) {
		return checkEmpty(path)
	}
	if err != nil {
		return fmt.Errorf("read format of data directory: %w", err)
	}
	rest, ours := strings.CutPrefix(strings.TrimSpace(string(text)), formatPrefix)
	if !ours {
		return fmt.Errorf("%s: %w: its file %q says something else", path, ErrForeign, formatName)
	}
	version, err := strconv.Atoi(rest)
	switch {
	case err != nil || version < 1:
		return fmt.Errorf("%s: %w: format %q is not a number above 0", path, ErrForeign, rest)
	case version > Format:
		return fmt.Errorf("%s: %w: it has format %d, this program knows up to %d", path, ErrNewer, version, Format)
	}
	return nil
}

// checkEmpty accepts what a first start that crashed may have left, and a credentials
// file, which may be put there before it.
func checkEmpty(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("read data directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, formatName + ".new":
		case CredentialsName:
			if err := checkCredentials(filepath.Join(path, e.Name())); err != nil {
				return fmt.Errorf("%s: %w: it holds no file %q, and of its file %q: %w", path, ErrForeign, formatName, e.Name(), err)
			}
		default:
			return fmt.Errorf("%s: %w: it holds %q and no file %q", path, ErrForeign, e.Name(), formatName)
		}
	}
	return nil
}

// checkCredentials says whether the file begins as one of ours, so that a file of that
// name alone does not make another program's directory ours. Whether it is right is not
// asked here.
func checkCredentials(name string) error {
	if info, err := os.Stat(name); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer closeQuietly(f)
	text, err := io.ReadAll(io.LimitReader(f, maxPreamble))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line == "---" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, credentialsStart) {
			return nil
		}
		break
	}
	return fmt.Errorf("it does not begin with %q", credentialsStart)
}

func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer closeQuietly(f)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", path, err)
		}
		return nil, &LockedError{Dir: path, PID: readPID(f)}
	}
	// The pid is for the other process's error message only; the lock is the
	// kernel's. A stale one after a crash is overwritten here.
	if err := writePID(f); err != nil {
		closeQuietly(f)
		return nil, fmt.Errorf("write pid to lock of data directory: %w", err)
	}
	return f, nil
}

func readPID(f *os.File) int {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxPIDFile))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// writeMarker makes the marker whole or not at all.
func writeMarker(path string) error {
	name := filepath.Join(path, formatName)
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write format of data directory: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s%d\n", formatPrefix, Format)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write format of data directory: %w", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("write format of data directory: %w", err)
	}
	return syncDir(path)
}

// readRuns learns the earlier runs and opens the file for this run's lines.
// Lines are "start <run> <time>" and "stop <run> <time>". A line that was torn
// by a power loss is not believed: a run it named is then not known to be
// gone, which costs time and nothing else.
func (d *directory) readRuns(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open runs of data directory: %w", err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		closeQuietly(f)
		return fmt.Errorf("read runs of data directory: %w", err)
	}
	torn := len(text) > 0 && text[len(text)-1] != '\n'
	d.earlier, d.last, d.clean = earlierRuns(text)
	if torn {
		if _, err := f.WriteString("\n"); err != nil {
			closeQuietly(f)
			return fmt.Errorf("end torn line in runs of data directory: %w", err)
		}
	}
	if _, known := d.earlier[d.run]; known {
		closeQuietly(f)
		return fmt.Errorf("run id %q was used before", d.run)
	}
	d.runs = f
	return nil
}

// earlierRuns reads the whole lines of the runs file: the runs it knows, the
// newest of them, and whether that one ended in order.
func earlierRuns(text []byte) (earlier map[string]struct{}, last string, clean bool) {
	earlier = map[string]struct{}{}
	for line := range strings.Lines(string(text[:bytes.LastIndexByte(text, '\n')+1])) {
		what, run, ok := parseRun(line)
		switch {
		case !ok:
		case what == "start":
			earlier[run] = struct{}{}
			last, clean = run, false
		case run == last:
			clean = true
		}
	}
	return earlier, last, clean
}

func parseRun(line string) (what, run string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != "start" && fields[0] != "stop" || !validRun(fields[1]) {
		return "", "", false
	}
	if _, err := time.Parse(time.RFC3339, fields[2]); err != nil {
		return "", "", false
	}
	return fields[0], fields[1], true
}

func validRun(run string) bool {
	for _, c := range []byte(run) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return run != "" && len(run) <= 64
}

// note appends one line and returns when the disk has it.
func (d *directory) note(what string) error {
	_, err := fmt.Fprintf(d.runs, "%s %s %s\n", what, d.run, d.now().UTC().Format(time.RFC3339))
	if err = errors.Join(err, d.runs.Sync()); err != nil {
		return fmt.Errorf("note %s of run %s: %w", what, d.run, err)
	}
	return nil
}

// release closes the files; closing the lock file gives up the lock.
func (d *directory) release() error {
	if err := errors.Join(d.runs.Close(), d.lock.Close()); err != nil {
		return fmt.Errorf("release data directory: %w", err)
	}
	return nil
}

// syncDir makes new names in the directory survive a power loss.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	return nil
}
