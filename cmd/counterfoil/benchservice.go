package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
)

// benchService is the service of a bench: this very program in a process of its
// own.
type benchService struct {
	cmd     *exec.Cmd
	profile string // directory; "": none
	address string // host:port
	admin   string
	bearer  string
	ready   time.Duration // from its start until it said so
	remove  func() error

	read sync.WaitGroup // of its output
	once sync.Once
	err  error // of the one stop

	mu  sync.Mutex
	log []string // its newest lines, guarded by mu
}

const (
	benchReady   = time.Minute
	benchStop    = time.Minute
	benchLog     = 20 // lines kept
	benchSecret  = "COUNTERFOIL_BENCH_TOKEN"
	adminMessage = "metrics and health"

	// The wait between status reads as the contract spells it, and the bench's.
	benchFrom, benchTo = "poll_interval: {default: 2s,", "poll_interval: {default: 1s,"
)

// startService starts the service and returns when it is ready.
func (a *app) startService(ctx context.Context, o benchOptions, provider string) (_ *benchService, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	// The contract lies beside the data, which are to be the service's alone.
	dir, remove, err := tempDir("bench-contract")
	if err != nil {
		return nil, err
	}
	s := &benchService{remove: remove, profile: o.profile, bearer: o.bearer}
	defer func() {
		if err != nil {
			err = s.explain(errors.Join(err, s.stop()))
		}
	}()
	if err := benchContract(dir); err != nil {
		return nil, err
	}
	args := []string{
		"serve", "--data", o.data, "--sync", o.sync, "--contracts", dir,
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--base-url", "example=" + provider, "--credential", "example=env:" + benchSecret, "--allow-http",
	}
	if o.workers > 0 {
		args = append(args, "--workers", strconv.Itoa(o.workers))
	}
	if o.profile != "" {
		args = append(args, "--profile", o.profile)
	}
	s.cmd = exec.CommandContext(ctx, program, args...)
	s.cmd.Args[0] = os.Args[0]
	s.cmd.Env = append(os.Environ(), benchSecret+"="+benchToken)
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = benchStop
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return nil, fmt.Errorf("start the service: %w", err)
	}
	said, admin := make(chan struct{}), make(chan struct{})
	s.read.Go(func() { s.listen(stdout, said) })
	s.read.Go(func() { s.follow(stderr, admin) })
	limit := time.NewTimer(max(o.limit, benchReady))
	defer limit.Stop()
	for _, ready := range []chan struct{}{said, admin} {
		select {
		case <-ready:
			if ready == said {
				s.ready = time.Since(began)
			}
		case <-limit.C:
			return nil, fmt.Errorf("the service was not ready within %s", max(o.limit, benchReady))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.address == "" || s.admin == "" || s.bearer == "" {
		return nil, errors.New("the service did not start")
	}
	return s, nil
}

// benchContract writes the built-in contract with the standard job's wait.
func benchContract(dir string) error {
	text, err := fs.ReadFile(contracts.FS, "example.yaml")
	if err != nil {
		return err
	}
	if bytes.Count(text, []byte(benchFrom)) != 1 {
		return fmt.Errorf("the contract example does not say %q once", benchFrom)
	}
	text = bytes.ReplaceAll(text, []byte(benchFrom), []byte(benchTo))
	if err := os.WriteFile(filepath.Join(dir, "example.yaml"), text, 0o600); err != nil {
		return fmt.Errorf("write the contract: %w", err)
	}
	return nil
}

// listen reads what the service prints until its end; said is closed when it is
// ready, or will not be.
func (s *benchService) listen(out io.Reader, said chan struct{}) {
	once := sync.OnceFunc(func() { close(said) })
	defer once()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		if _, key, ok := strings.Cut(line, "printed this once: "); ok {
			s.bearer = key
		}
		if address, ok := strings.CutPrefix(line, "ready on http://"); ok {
			s.address = address
			once()
		}
	}
}

// follow reads the service's log until its end; admin is closed when it has said
// where its series are, or will not.
func (s *benchService) follow(out io.Reader, admin chan struct{}) {
	once := sync.OnceFunc(func() { close(admin) })
	defer once()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var entry struct {
			Msg     string `json:"msg"`
			Address string `json:"address"`
		}
		if s.admin == "" && json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == adminMessage {
			s.admin = entry.Address
			once()
		}
		s.mu.Lock()
		if s.log = append(s.log, lines.Text()); len(s.log) > benchLog {
			s.log = s.log[1:]
		}
		s.mu.Unlock()
	}
}

// explain adds the end of the service's log to an error.
func (s *benchService) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.log) == 0 {
		return err
	}
	return fmt.Errorf("%w\nthe service's log ends:\n%s", err, strings.Join(s.log, "\n"))
}

// stop ends the service in order, and says if it did not end so.
func (s *benchService) stop() error {
	s.once.Do(func() {
		if s.cmd != nil {
			s.err = s.cmd.Process.Signal(syscall.SIGTERM)
			if errors.Is(s.err, os.ErrProcessDone) {
				s.err = nil // Wait says how it ended
			}
			kill := time.AfterFunc(benchStop, func() { _ = s.cmd.Process.Kill() }) // it may have ended since
			s.read.Wait()                                                          // before Wait, which closes the pipes
			s.err = errors.Join(s.err, s.cmd.Wait())
			kill.Stop()
			if s.err != nil {
				s.err = fmt.Errorf("stop the service: %w", s.err)
			}
		}
		s.err = errors.Join(s.err, s.remove())
	})
	return s.err
}

// benchUsage is what the service has used since its start.
type benchUsage struct {
	cpu   time.Duration // user and system
	peak  int64         // bytes of memory at once
	syncs float64       // fsyncs that somebody waited for
}

// userHZ is the unit of processor times in /proc, the same on every
// architecture that Go runs on.
const userHZ = 100

func (s *benchService) usage() (benchUsage, error) {
	var u benchUsage
	fail := func(err error) (benchUsage, error) {
		return benchUsage{}, fmt.Errorf("measure the service: %w", err)
	}
	dir := filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid))
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return fail(err)
	}
	// The name in parentheses may hold anything; utime and stime are fields 14
	// and 15, counted from the process id.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return fail(errors.New("its stat is too short"))
	}
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return fail(err)
		}
		u.cpu += time.Duration(ticks) * time.Second / userHZ
	}
	// Not the rusage of the ended child, which also counts what this process had
	// when it forked.
	if _, err := fmt.Sscanf(procLine(filepath.Join(dir, "status"), "VmHWM"), "%d kB", &u.peak); err != nil {
		return fail(err)
	}
	u.peak <<= 10
	var c benchConn
	defer c.close()
	found := false
	err = readSeries(context.Background(), &c, s.admin, func(name string, value float64) {
		switch name {
		case "counterfoil_store_sync_seconds_count":
			found = true
		case "counterfoil_store_fsyncs_total": // with sync always
			u.syncs = value
		}
	})
	if err == nil && !found {
		err = errors.New("it does not count its writes")
	}
	if err != nil {
		return fail(err)
	}
	return u, nil
}

// flushProfile lets the service write its profiles, if it is to: what follows is
// not to be in them.
func (s *benchService) flushProfile(ctx context.Context) error {
	if s.profile == "" {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return fmt.Errorf("ask the service for its profiles: %w", err)
	}
	for {
		_, err := os.Stat(filepath.Join(s.profile, profileLast))
		if err == nil {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}
