package ingest

import (
	"errors"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// An expectation of a job without a result could never be held against anything.
func TestExpectationWithoutResult(t *testing.T) {
	src, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	from, to := strings.Index(text, "\nresult:"), strings.Index(text, "\nwebhook:")
	c, err := contract.Parse("example.yaml", []byte(text[:from]+"\nresult: none\n"+text[to:]))
	if err != nil {
		t.Fatal(err)
	}
	var r *Refusal
	if err := checkExpectation(c, &Submission{Provider: "example", Expect: "result.ok"}); !errors.As(err, &r) || r.Code != CodeInvalid || r.Errors[0].Field != "/expect" || r.Values["provider"] == "" {
		t.Errorf("%v", err)
	}
	if err := checkExpectation(c, &Submission{Provider: "example"}); err != nil {
		t.Error(err)
	}
}
