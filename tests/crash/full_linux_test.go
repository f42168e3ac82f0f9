package crash_test

import (
	"context"
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
