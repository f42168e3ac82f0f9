package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/simulator"
)

var update = flag.Bool("update", false, "rewrite the golden parts of testdata/script")

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"counterfoil": main})
}

// leakChecked runs the tests and then looks for goroutines they left.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// TestScripts plays testdata/script: the program as a user sees it. Scripts
// have a few more commands than testscript's own:
//
//	exits CODE COMMAND...     run it and check its exit code
//	keep NAME [PATTERN]       set NAME to the operation id, or the word that PATTERN is, in the last output
//	until PATTERN COMMAND...  run it again and again until what it prints matches
//	served [POLICY]           start a service with simulated providers
//	provider                  start the simulator as a provider of bench, at $PROVIDER
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("COUNTERFOIL_KEY", "")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "until": until, "keep": keep, "served": served, "provider": provider,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var ended *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &ended):
		code = ended.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d\n%s%s", code, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// until runs a command again and again until what it prints matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND...")
	}
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	for end := time.Now().Add(time.Minute); ; {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("it never matched %q:\n%s", args[0], ts.ReadFile("stdout"))
		}
	}
}

func keep(ts *testscript.TestScript, neg bool, args []string) {
	pattern := `op_[a-z2-7]{32}`
	if len(args) == 2 {
		pattern = args[1]
	}
	// A whole word: ids are random, and hold whatever is short sooner or later.
	found := regexp.MustCompile(`\b(?:` + pattern + `)\b`).FindString(ts.ReadFile("stdout"))
	if neg || len(args) < 1 || len(args) > 2 || found == "" {
		ts.Fatalf("keep NAME [PATTERN]: no operation id, or what is named, in %q", ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], found)
}

// served starts a service whose accounts behave each in its own way, with a policy file
// or without.
func served(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: served [POLICY]")
	}
	s, err := newStage(filepath.Join(ts.Getenv("WORK"), "data"), quiet())
	ts.Check(err)
	ts.Defer(s.close)
	s.contracts, err = hurried()
	ts.Check(err)
	if len(args) == 1 {
		s.policy = ts.MkAbs(args[0])
	}
	const quick = 100 * time.Millisecond
	s.mount("example", "default", steps(quick, "queued", "running", "succeeded"))
	s.mount("example", "endless", steps(time.Hour, "running", "succeeded"))
	s.mount("example", "fails", steps(quick, "queued", "failed"))
	s.mount("example", "asks", steps(quick, "running", "waiting", "succeeded"))
	s.mount("example-ask", "lost", steps(quick, "running", "succeeded"),
		simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
	s.mount("example-ask", "moved", steps(quick, "running", "succeeded"),
		simulator.On(simulator.Create, simulator.Always(), simulator.ReplyEmpty(302)))
	s.mount("example", "shut", steps(time.Hour, "running", "succeeded"),
		simulator.On(simulator.Status, simulator.Always(), simulator.ReplyEmpty(401)))
	s.mount("openai-batches", "default", steps(quick, "queued", "running", "partial"))
	ts.Check(s.open(context.Background()))
	s.work("1", nil)
	ts.Defer(func() {
		if err := s.stop(); err != nil {
			ts.Logf("stop the service: %v", err)
		}
	})
	ts.Setenv("COUNTERFOIL_SERVER", "http://"+s.local.listener.Addr().String())
	ts.Setenv("COUNTERFOIL_KEY", s.bearer)
}

// provider starts a simulated provider for bench that is not the bench's own.
func provider(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: provider")
	}
	sim := simulator.New(simulator.Config{Now: time.Now, Seed: 1})
	ts.Defer(sim.Close)
	states := benchStates()
	sim.Mount("/example", simulator.Example).Configure(simulator.Options{
		Auth: simulator.Auth{Bearer: benchToken}, Plan: simulator.StepsPerRead(states[:]...),
	})
	url, err := sim.Listen("127.0.0.1:0")
	ts.Check(err)
	ts.Setenv("PROVIDER", url+"/example")
}
