package crash_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
)

// TestStoreThatCannotWrite has the system refuse the service's writes for a
// while, as a full disk does: the server keeps refusing afterwards, and the
// service starts it again. Nothing that was acknowledged is lost, and what was not
// is asked for again with its key.
func TestStoreThatCannotWrite(t *testing.T) {
	t.Parallel()
	s := newSite(t, simulator.Options{Plan: simulator.Steps(2*time.Second, "running", "succeeded")})
	p := s.start()
	before := p.submit("before")
	p.until(before.ID, in("observing"))

	var was unix.Rlimit
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	if op, _, err := p.client.Submit(ctx, "meanwhile", killable("meanwhile")); err == nil {
		t.Fatalf("%s was accepted by a store that cannot write", op.ID)
	}
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &was, nil); err != nil {
		t.Fatal(err)
	}

	var meanwhile client.Operation
	for end := time.Now().Add(patience); ; {
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		op, _, err := p.client.Submit(ctx, "meanwhile", killable("meanwhile"))
		stop()
		if err == nil {
			meanwhile = op
			break
		}
		if time.Now().After(end) {
			p.end(unix.SIGTERM)
			t.Fatalf("it cannot write although it may: %v\n%s", err, p.errors)
		}
		time.Sleep(200 * time.Millisecond)
	}
	for _, id := range []string{before.ID, meanwhile.ID} {
		p.until(id, in("succeeded"))
	}
	if n := s.sim.Count(simulator.Filter{Call: simulator.Create}); n != 2 {
		t.Errorf("%d creates, want 2", n)
	}
}

// TestStartOnAFullDisk starts the program where nothing can be written. It says
// what is wrong, answers callers all the same, and comes to be ready by itself once
// there is room.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	small := smallDisk(t, 64<<20)
	s := newSite(t, simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")})
	s.put(filepath.Join(small, "data"))
	p := s.start()
	before := p.submit("before")
	p.until(before.ID, in("observing"))
	p.end(unix.SIGKILL)
	filler := fill(t, small)

	// Where it was before, since it says where it is once it is ready.
	address := p.address()
	s.args = append(s.args, "--listen", strings.TrimPrefix(address, "http://"))
	for end := time.Now().Add(patience); ; {
		if p = s.launch(); p.failing(address) {
			break
		}
		// Now and then the page that was begun has room for what it writes first, and
		// it ends at what comes next.
		if p.code() != 1 || !strings.Contains(p.errors.String(), "no space left") || !strings.Contains(p.errors.String(), "hint: make room") {
			t.Fatalf("exit %d without room, want 1, the reason and a hint:\n%s", p.code(), p.errors)
		}
		if time.Now().After(end) {
			t.Fatalf("it never stays without room:\n%s", p.errors)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	var answer *client.Problem
	if _, err := s.caller(address).Get(ctx, before.ID); !errors.As(err, &answer) || answer.Code != "store_unavailable" || !answer.Retryable {
		t.Errorf("who asks meanwhile gets %v", err)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.await()
	if p.client == nil {
		t.Fatalf("it ended although there is room:\n%s", p.errors)
	}
	after := p.submit("after")
	for _, id := range []string{before.ID, after.ID} {
		p.until(id, in("succeeded"))
	}
	if n := s.sim.Count(simulator.Filter{Call: simulator.Create}); n != 2 {
		t.Errorf("%d creates, want 2", n)
	}
	if !p.well(address, "store") {
		t.Error("the store is still not well")
	}
}

// failing waits until the process says that its store is not well; false if it
// ended before.
func (p *process) failing(address string) bool {
	p.site.t.Helper()
	for end := time.Now().Add(patience); p.well(address, "store"); time.Sleep(100 * time.Millisecond) {
		select {
		case at, ok := <-p.ready:
			if ok {
				p.site.t.Fatalf("ready on %s without room", at)
			}
			<-p.ended
			return false
		default:
		}
		if time.Now().After(end) {
			p.site.t.Fatalf("the store is called well without room:\n%s", p.errors)
		}
	}
	return true
}

// well says whether a check of the process is well, or nobody answers.
func (p *process) well(address, check string) bool {
	t := p.site.t
	t.Helper()
	r, err := http.NewRequestWithContext(p.site.context(), http.MethodGet, address+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return true
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	var report struct {
		Checks []struct{ Name, Status string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&report); err != nil {
		t.Fatalf("/readyz: %v", err)
	}
	for _, one := range report.Checks {
		if one.Name == check {
			return one.Status == "ok"
		}
	}
	t.Fatalf("/readyz has no check %q", check)
	return false
}

// TestStoreTakesTheDiskToTheReserve: results are stored beyond what the server
// would take of a disk by itself, three quarters of what is free at its start, and
// below the reserve too, where no new operation is taken any more.
func TestStoreTakesTheDiskToTheReserve(t *testing.T) {
	t.Parallel()
	const (
		size, reserve  = 40 << 20, 8 << 20
		results, bytes = 16, 2 << 20
	)
	small := smallDisk(t, size)
	s := newSite(t, simulator.Options{
		Plan: simulator.Steps(3*time.Second, "running", "succeeded"),
		Result: func(j simulator.Job) (string, []byte) {
			raw, seed := make([]byte, bytes*3/4), [32]byte{}
			copy(seed[:], j.ID)
			_, _ = rand.NewChaCha8(seed).Read(raw) // it never fails, and nothing makes it smaller
			return "application/json", fmt.Appendf(nil, `{"noise":%q}`, base64.StdEncoding.EncodeToString(raw))
		},
	})
	s.put(filepath.Join(small, "data"))
	s.args = append(s.args, "--disk-reserve", fmt.Sprint(reserve))
	p := s.start()
	var ids []string
	for i := range results { // all are created before there is little room
		ids = append(ids, p.submit(fmt.Sprintf("result-%d", i)).ID)
	}
	for _, id := range ids {
		p.until(id, in("succeeded"))
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(small, &disk); err != nil {
		t.Fatal(err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free >= reserve || free > size/4 {
		t.Fatalf("%d of %d bytes are free: the test stores too little", free, size)
	}
	for end := time.Now().Add(patience); p.well(p.address(), "disk"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("below the reserve the disk is called well:\n%s", p.errors)
		}
	}
	var refused *client.Problem
	if _, _, err := p.client.Submit(s.context(), "too-many", killable("too-many")); !errors.As(err, &refused) || refused.Code != "storage_low" {
		t.Errorf("below the reserve an operation is answered with %v", err)
	}
	if !p.well(p.address(), "store") {
		t.Errorf("the store is not well:\n%s", p.errors)
	}
}
