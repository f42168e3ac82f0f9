package notice

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// program writes a script to run. Real time: these tests are about processes.
func program(t *testing.T, text string) func(context.Context, []byte) Ran {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tell")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	run, err := Command(path, []string{"PATH=/usr/bin:/bin", "GIVEN=yes"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func TestCommand(t *testing.T) {
	t.Setenv("PROVIDER_TOKEN", "SECR3T")
	out := filepath.Join(t.TempDir(), "out")
	ran := program(t, "{ cat; env; } > '"+out+"'")(t.Context(), []byte("{\"operation\":\"op_1\"}\n"))
	got, err := os.ReadFile(out)
	if err != nil || ran.Outcome != events.CallDone {
		t.Fatal(ran, err)
	}
	if text := string(got); !strings.HasPrefix(text, "{\"operation\":\"op_1\"}\n") || !strings.Contains(text, "GIVEN=yes") || strings.Contains(text, "SECR3T") {
		t.Errorf("it was given %q", text)
	}

	ran = program(t, "yes complaint | head -c 100000 >&2; exit 7")(t.Context(), nil)
	if ran.Outcome != events.CallRefused || !strings.HasPrefix(ran.Detail, "exit status 7: complaint") || len(ran.Detail) > showOutput+40 {
		t.Errorf("%s %q", ran.Outcome, ran.Detail)
	}
	if ran := program(t, "exit 0")(t.Context(), make([]byte, 1<<20)); ran.Outcome != events.CallDone {
		t.Errorf("one that reads nothing: %+v", ran)
	}
	// What it started is ended with it.
	limited, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	began := time.Now()
	if ran := program(t, "sleep 60 & sleep 60")(limited, nil); ran.Outcome != events.CallAmbiguous || time.Since(began) > 30*time.Second {
		t.Errorf("%+v after %s", ran, time.Since(began))
	}
}

func TestNoCommand(t *testing.T) {
	for _, name := range []string{"", "/no/such/program", "tell --now"} {
		if _, err := Command(name, nil); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	path := filepath.Join(t.TempDir(), "gone")
	if err := os.WriteFile(path, []byte("#!/no/such/shell\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	run, err := Command(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ran := run(t.Context(), nil); ran.Outcome != events.CallNotSent || ran.Detail == "" {
		t.Errorf("%+v", ran)
	}
}
