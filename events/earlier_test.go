package events_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// What version 0.1.0 wrote is read as it was meant, and written again gives the very
// bytes: what fields came since are not there.
func TestEarlierFacts(t *testing.T) {
	files, err := filepath.Glob("testdata/v0.1.0/*.golden")
	if err != nil || len(files) == 0 {
		t.Fatal(err, "no files")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, rest, _ := strings.Cut(string(text), "\n\n")
			header := map[string][]string{}
			for line := range strings.Lines(head) {
				name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
				if !ok {
					t.Fatalf("header %q", line)
				}
				header[name] = []string{value}
			}
			dump, _, _ := strings.Cut(rest, "\n\n")
			var data []byte
			for line := range strings.Lines(dump) {
				digits, _, _ := strings.Cut(line[10:], "|")
				part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(digits), " ", ""))
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				data = append(data, part...)
			}
			_, digest, _ := strings.Cut(rest, "digest ")
			if strings.HasPrefix(header["ce-type"][0], "dev.counterfoil.hold") {
				fact, got, err := events.DecodeService(header, data)
				if err != nil || got.String() != strings.TrimSpace(digest) {
					t.Fatalf("%v: digest %s", err, got)
				}
				if _, again, _ := events.EncodeService(fact); !bytes.Equal(again, data) {
					t.Errorf("written again:\n%x\nwas\n%x", again, data)
				}
				return
			}
			fact, got, err := events.Decode(header, data)
			if err != nil || got.String() != strings.TrimSpace(digest) {
				t.Fatalf("%v: digest %s", err, got)
			}
			if _, again, _ := events.Encode(fact); !bytes.Equal(again, data) {
				t.Errorf("written again:\n%x\nwas\n%x", again, data)
			}
		})
	}
}
