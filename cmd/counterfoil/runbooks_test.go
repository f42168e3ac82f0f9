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
	"github.com/counterfoil/counterfoil/internal/runbook"
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
	for _, rest := range runbook.Rests() {
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
		for _, command := range commands {
			checkCommand(t, rest, command)
		}
		checkAgrees(t, rest, string(text))
	}
	for _, command := range commandsIn(string(index)) {
		checkCommand(t, runbook.Rest{}, command)
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

// commandWords splits a command line at spaces outside of quotes.
var commandWords = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)

// checkCommand parses the command as the program would, and where it decides,
// asks whether the decision fits the state.
func checkCommand(t *testing.T, rest runbook.Rest, command string) {
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
	if len(commandsAccepting(command)) > 0 {
		t.Errorf("%s: %q binds or risks something by being pasted", rest.Page(), command)
	}
}

// commandsAccepting finds what a person has to write themselves.
func commandsAccepting(command string) []string {
	return slices.DeleteFunc([]string{"--accept-risk", "--job", "--evidence"}, func(flag string) bool { return !strings.Contains(command, flag) })
}

// checkAgrees asks whether the page has each step that notices and the doctor
// give, in the same words and order, and begins to look as they do.
func checkAgrees(t *testing.T, rest runbook.Rest, page string) {
	t.Helper()
	at := 0
	for i, step := range runbook.Steps(projections.State{Operation: "OPERATION", Phase: rest.Phase, Quarantine: rest.Kind}) {
		want := "\n**Look at**\n\n- `" + step.Command + "`"
		if i > 0 {
			want = "\n- " + step.When
			if step.Command != "" {
				want += ": `" + step.Command + "`"
			}
		}
		next := strings.Index(page[at:], want)
		if next < 0 {
			t.Errorf("%s has no %q, or not here", rest.Page(), want)
			continue
		}
		at += next
		bullet, _, _ := strings.Cut(page[at+1:], "\n")
		for _, flag := range commandsAccepting(step.Add) {
			if !strings.Contains(bullet, flag) {
				t.Errorf("%s: %q does not say what to add with %s", rest.Page(), bullet, flag)
			}
		}
	}
}

// The check itself finds what is wrong.
func TestRunbookCommandsAreFound(t *testing.T) {
	got := commandsIn("`counterfoil get OPERATION`, and `counterfoil decide OPERATION adopt`; not `serve`")
	if want := []string{"counterfoil get OPERATION", "counterfoil decide OPERATION adopt"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
