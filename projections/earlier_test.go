package projections

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// What version 0.1.0 folded, this version folds to the very same records: those of
// operations that keep version 1 of the rules. The file was made by that version.
func TestEarlierLedgers(t *testing.T) {
	text, err := os.ReadFile("testdata/v0.1.0/ledgers.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "== ")
	ledgers := strings.Split(rest, "\n== ")
	if len(ledgers) < 50 {
		t.Fatalf("%d ledgers", len(ledgers))
	}
	for _, one := range ledgers {
		head, lines, _ := strings.Cut(one, "\n")
		name, want, _ := strings.Cut(head, " ")
		t.Run(name, func(t *testing.T) {
			sum := sha256.New()
			s := &script{t: t}
			begin := func() {
				s.l, s.intent = newLedger(), standard()
				s.intent.Rules = 1
			}
			begin()
			records := 0
			flush := func() {
				for _, r := range s.l.records {
					_, _ = sum.Write(codec.Marshal(&r)) // a hash never fails
					records++
				}
			}
			for line := range strings.Lines(lines) {
				switch line = strings.TrimRight(line, "\n"); {
				case line == "":
				case strings.HasPrefix(line, "set "):
					s.set(strings.Fields(line)[1:])
				case line == "again":
					flush()
					begin()
				default:
					s.line(line)
				}
			}
			flush()
			if got := hex.EncodeToString(sum.Sum(nil)); got != want || records == 0 {
				t.Errorf("%d records come to %s, version 0.1.0 had %s", records, got, want)
			}
		})
	}
}
