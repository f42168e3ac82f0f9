package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
)

// profileLast is the file that is written last.
const profileLast = "done"

// profiled writes a CPU and an allocation profile of this process into a
// directory: they begin now, and end with ctx or at SIGUSR1, whichever is first.
// The function returned waits until they are written.
func profiled(ctx context.Context, dir string) (wait func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	cpu, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), cpu.Close())
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	done := make(chan error, 1)
	go func() {
		select {
		case <-asked:
		case <-ctx.Done():
		}
		signal.Stop(asked)
		pprof.StopCPUProfile()
		err := cpu.Close()
		runtime.GC() // the heap profile is of the last collection
		for _, name := range []string{"allocs", "heap"} {
			err = errors.Join(err, writeProfile(name, filepath.Join(dir, name+".pprof")))
		}
		done <- errors.Join(err, os.WriteFile(filepath.Join(dir, profileLast), nil, 0o600))
	}()
	return func() error { return <-done }, nil
}

func writeProfile(name, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return errors.Join(pprof.Lookup(name).WriteTo(f, 0), f.Close())
}
