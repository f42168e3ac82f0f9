package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in the place of a contract is refused; opening it would wait for a
// writer.
func TestContractThatIsAPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "acme.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	want := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "acme.yaml: not a regular file") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := lint([]string{pipe})
	want("lint of it", err)
	_, err = lint([]string{dir})
	want("lint of its directory", err)
	_, err = findContract(pipe, "")
	want("show of it", err)
	_, err = knownContracts(dir)
	want("list and serve with its directory", err)
}
