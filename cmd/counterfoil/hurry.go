package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/counterfoil/counterfoil/contracts"
)

// hurries are the waits as the contracts spell them, and what they become. A
// test sees to it that each of them is found in a contract.
func hurries() []struct{ from, to string } {
	return []struct{ from, to string }{
		{"  settle: 30s\n", "  settle: 1s\n"},
		{"  late: 5s\n", "  late: 500ms\n"},
		{"{default: 2s, min: 10ms, max: 1h}", "{default: 250ms, min: 10ms, max: 1h}"},
		{"{default: 2s, min: 500ms, max: 1h}", "{default: 250ms, min: 10ms, max: 1h}"},
		{"{default: 10s, min: 1s, max: 1h}", "{default: 250ms, min: 10ms, max: 1h}"},
		{"{default: 30s, min: 1s, max: 1h}", "{default: 250ms, min: 10ms, max: 1h}"},
		{"  backoff: 1s\n", "  backoff: 250ms\n"},
		{"  backoff_max: 1m\n", "  backoff_max: 2s\n"},
		{"  request_timeout: 30s\n", "  request_timeout: 2s\n"},
		// A contract that leaves these to the defaults gets them.
		{"  poll_max: 5m\n", "  poll_max: 5m\n  backoff_max: 2s\n"},
		{"  attempts: {default: 5, max: 100}\n", "  attempts: {default: 5, max: 100}\n  backoff_max: 2s\n  request_timeout: 2s\n"},
		{"  not_found_grace: 30s\n", "  not_found_grace: 2s\n"},
		{"  not_found_grace: 1m\n", "  not_found_grace: 2s\n"},
	}
}

// hurried shortens the waits of the built-in contracts, so that a demonstration
// takes seconds. Nothing else of them changes. Real providers need the real
// waits: a settle time shorter than the time a request may be held breaks the
// guarantee that rests on it.
func hurried() (fstest.MapFS, error) {
	names, err := fs.Glob(contracts.FS, "*.yaml")
	if err != nil {
		return nil, err
	}
	out := fstest.MapFS{}
	for _, name := range names {
		text, err := fs.ReadFile(contracts.FS, name)
		if err != nil {
			return nil, err
		}
		for _, change := range hurries() {
			text = bytes.ReplaceAll(text, []byte(change.from), []byte(change.to))
		}
		out[name] = &fstest.MapFile{Data: text, Mode: 0o444}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no built-in contracts")
	}
	return out, nil
}
