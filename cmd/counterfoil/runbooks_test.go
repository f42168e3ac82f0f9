package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/projections"
)

const runbooks = "../../docs/runbooks"

// Every rest has its page, every page its rest, and the index both.
func TestRunbooks(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(runbooks, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]bool{"README.md": true}
	for _, rest := range notice.Rests() {
		pages[rest.Page()] = true
		text, err := os.ReadFile(filepath.Join(runbooks, rest.Page()))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range []string{"**What it means.**", "**What is true.**", "**What is not known.**", "**Look at**", "**What helps**", "**Never**"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no %s", rest.Page(), part)
			}
		}
		if !strings.Contains(string(index), "("+rest.Page()+")") {
			t.Errorf("the index has no %s", rest.Page())
		}
		commands := commandsIn(string(text))
		if len(commands) < 3 {
			t.Errorf("%s has only the commands %q", rest.Page(), commands)
		}
		for _, command := range append(commands, rest.Command("OPERATION")) {
			checkCommand(t, rest, command)
		}
	}
	for _, command := range commandsIn(string(index)) {
		checkCommand(t, notice.Rest{}, command)
	}
	files, err := os.ReadDir(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[f.Name()] {
			t.Errorf("%s belongs to no state", f.Name())
		}
	}
}

var inBackticks = regexp.MustCompile("`counterfoil ([^`]+)`")

func commandsIn(text string) []string {
	var list []string
	for _, m := range inBackticks.FindAllStringSubmatch(text, -1) {
		list = append(list, "counterfoil "+m[1])
	}
	return list
}

// commandWords splits a command line at spaces outside of double quotes.
var commandWords = regexp.MustCompile(`"[^"]*"|\S+`)

// checkCommand parses the command as the program would, and where it decides,
// asks whether the decision fits the state.
func checkCommand(t *testing.T, rest notice.Rest, command string) {
	t.Helper()
	a := &app{stdout: io.Discard, stderr: io.Discard}
	cmd, args, err := a.root().Find(commandWords.FindAllString(command, -1)[1:])
	if err == nil {
		err = cmd.ParseFlags(args)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err != nil || cmd == cmd.Root() {
		t.Errorf("%s: %q: %v", rest.Page(), command, err)
		return
	}
	if cmd.Name() != "decide" || rest.Phase == "" {
		return
	}
	state := projections.State{Phase: rest.Phase, Quarantine: rest.Kind}
	choice := events.DecisionKind(cmd.Flags().Arg(1))
	if ok, why := projections.Allowed(state, choice); !ok {
		t.Errorf("%s: %q does not fit: %s", rest.Page(), command, why)
	}
	needs := map[events.DecisionKind]string{events.DecideAdopt: "job", events.DecideMarkCancelled: "evidence"}
	if flag := needs[choice]; flag != "" && !cmd.Flags().Changed(flag) {
		t.Errorf("%s: %q lacks --%s", rest.Page(), command, flag)
	}
}

// The check itself finds what is wrong.
func TestRunbookCommandsAreFound(t *testing.T) {
	got := commandsIn("`counterfoil get OPERATION`, and `counterfoil decide OPERATION adopt --job JOB`; not `serve`")
	if want := []string{"counterfoil get OPERATION", "counterfoil decide OPERATION adopt --job JOB"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
