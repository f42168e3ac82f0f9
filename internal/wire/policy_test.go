package wire_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/wire"
)

// A policy is taken up without a restart, and what is wrong leaves the rules in force.
func TestPolicyFileIsFollowed(t *testing.T) {
	now := time.Now() // the file's times of change are the machine's
	path := filepath.Join(t.TempDir(), "policy.yaml")
	var log bytes.Buffer
	open := func() (*wire.PolicyFile, error) {
		return wire.OpenPolicy(wire.PolicyConfig{Path: path, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}
	replace := func(text string, mode os.FileMode) {
		t.Helper()
		beside := path + ".new"
		if err := os.WriteFile(beside, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(beside, time.Time{}, now.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(beside, path); err != nil {
			t.Fatal(err)
		}
	}
	rule := func(name string) string {
		return "policy: 1\napproval:\n  - {name: " + name + ", when: 'true'}\n"
	}
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Fatal(err)
	}
	replace(rule("first"), 0o644)
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Fatal(err)
	}
	replace(strings.Replace(rule("first"), "'true'", "tru", 1), 0o600)
	if _, err := open(); err == nil || !strings.Contains(err.Error(), path+":3:25: approval[first].when: undeclared reference to 'tru'") {
		t.Fatal(err)
	}
	replace(rule("first"), 0o600)
	file, err := open()
	if err != nil {
		t.Fatal(err)
	}
	now1 := func() string {
		now = now.Add(2 * time.Second)
		return strings.Join(file.Policy().Rules(), " ")
	}
	if got := now1(); got != "first" {
		t.Errorf("the rules are %s", got)
	}
	replace(rule("second"), 0o600)
	if got := now1(); got != "second" || !strings.Contains(log.String(), "the policy file was read") {
		t.Errorf("the rules are %s: %s", got, &log)
	}
	for problem, change := range map[string]func(){
		"undeclared reference": func() { replace(strings.Replace(rule("third"), "'true'", "tru", 1), 0o600) },
		"chmod 600":            func() { replace(rule("third"), 0o666) },
		"no such file": func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		log.Reset()
		change()
		now1()
		now = now.Add(10 * time.Second) // the name may have been gone before
		if now1() != "second" || (file.Status().Where == "line 3, approval[third].when") != (problem == "undeclared reference") || !strings.Contains(file.Status().Problem, problem) || !strings.Contains(log.String(), "the policy file cannot be used") {
			t.Errorf("%s: %+v: %s", problem, file.Status(), &log)
		}
	}
	replace(rule("third"), 0o600)
	now1()
	now = now.Add(10 * time.Second)
	if got := now1(); got != "third" || file.Status().Problem != "" {
		t.Errorf("the rules are %s: %+v", got, file.Status())
	}
	// Half of a file that is written in place may lack what demands.
	if err := os.WriteFile(path, []byte("policy: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := now1(); got != "third" || file.Status().Writing.IsZero() {
		t.Errorf("the rules are %q: %+v", got, file.Status())
	}
	now = now.Add(20 * time.Second)
	if got := now1(); got != "" {
		t.Errorf("the rules are %q", got)
	}
	if (*wire.PolicyFile)(nil).Policy() != nil {
		t.Error("no file has rules")
	}
}
