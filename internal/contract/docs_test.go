package contract

import (
	"os"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// The example in the documents loads and is what the text around it says.
func TestDocumentedExample(t *testing.T) {
	doc, err := os.ReadFile("../../docs/CONTRACTS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```yaml\n")
	src, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("no example in docs/CONTRACTS.md")
	}
	if c := parse(t, []byte(src)); c.Guarantee() != events.Recoverable {
		t.Errorf("guarantee %s", c.Guarantee())
	}
}
