package ingest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "append new codes to the golden file")

// TestCodesGolden: what a code means is for ever. A new one is appended to the
// file by -update; no flag takes one away or changes it.
func TestCodesGolden(t *testing.T) {
	const path = "testdata/codes.golden"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	var now []string
	for _, m := range Meanings() {
		now = append(now, fmt.Sprintf("%s %d retryable=%t %s %q", m.Code, m.Status, m.Retryable, m.RetryWith, m.Title))
	}
	for _, line := range golden {
		if !slices.Contains(now, line) {
			t.Errorf("a code is lost, or means something else than it did: %s", line)
		}
	}
	var added []string
	for _, line := range now {
		if !slices.Contains(golden, line) {
			added = append(added, line)
		}
	}
	if len(added) == 0 || t.Failed() {
		return
	}
	if !*update {
		t.Fatalf("new codes; -update appends them, and they are for ever then:\n%s", strings.Join(added, "\n"))
	}
	if err := os.WriteFile(path, []byte(strings.Join(append(golden, added...), "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRetryWith: a code that is retryable can be sent again as it was, with its
// key; another key is advised nowhere but where none was readable.
func TestRetryWith(t *testing.T) {
	for _, m := range Meanings() {
		switch m.RetryWith {
		case RetrySameKey:
		case RetryNewKey:
			if m.Code != CodeKeyMissing && m.Code != CodeKeyInvalid {
				t.Errorf("%s: prove that nothing can be recorded under the key, and say so here", m.Code)
			}
		case RetryNever:
		default:
			t.Errorf("%s: retry_with is %q", m.Code, m.RetryWith)
		}
		if m.Retryable && m.RetryWith != RetrySameKey {
			t.Errorf("%s is retryable unchanged, with %s", m.Code, m.RetryWith)
		}
	}
}
