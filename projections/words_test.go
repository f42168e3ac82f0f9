package projections_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// constants gives the values of the constants of a type in a file.
func constants(t *testing.T, file, kind string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); !ok || name.Name != kind {
			return true
		}
		for _, v := range spec.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, text)
		}
		return true
	})
	if len(list) < 5 {
		t.Fatalf("%s has %d constants of type %s", file, len(list), kind)
	}
	return list
}

// Every reason is told in words, each in its own, and none is a code.
func TestEveryReasonHasWords(t *testing.T) {
	seen := map[string]string{}
	say := func(code, words string) {
		t.Helper()
		switch other := seen[words]; {
		case words == "" || strings.Contains(words, "_") || !strings.Contains(words, " ") || strings.Contains(words, "does not know"):
			t.Errorf("%s is told as %q", code, words)
		case other != "":
			t.Errorf("%s is told as %s is", code, other)
		}
		seen[words] = code
	}
	for _, code := range constants(t, "state.go", "Reason") {
		s := projections.State{Reason: projections.Reason(code), Because: code}
		say(code, s.Why())
	}
	for _, code := range constants(t, "../events/facts.go", "DeferReason") {
		s := projections.State{Because: "deferred: " + code}
		words, ok := strings.CutPrefix(s.Why(), "deferred: "+code+": ")
		if !ok {
			t.Errorf("%s", s.Why())
		}
		say(code, words)
	}
	if s := (projections.State{Because: "deadline create"}); s.Why() != "nothing else is due before its create deadline passes" {
		t.Errorf("a deadline that runs is told as %q", s.Why())
	}
	if s := (projections.State{Because: "a cancel was asked for"}); s.Why() != s.Because {
		t.Errorf("words are changed: %s", s.Why())
	}
	if s := (projections.State{Reason: "of_a_later_version", Because: "of_a_later_version"}); s.Why() != "of_a_later_version" {
		t.Errorf("%s", s.Why())
	}
	if s := (projections.State{Because: "deferred: " + string(events.DeferReason("moonlight"))}); !strings.Contains(s.Why(), "moonlight") {
		t.Errorf("%s", s.Why())
	}
}
