// Package architecture holds the laws of the tree as tests: which package may
// import which, where effects may be used, and what every package must carry.
//
// The files are read and parsed inside the test process. A version that asked
// the go command would be reported "ok (cached)" after a violation was added,
// because the test cache does not see what a child process reads.
//
// Limits: names are resolved by import declaration, not by type checking. A
// local variable that shadows an imported package can hide a finding or make
// one. What needs types (clocks behind an alias, exhaustive switches) is the
// linter's, see .golangci.yml.
package architecture

import (
	"os"
	"testing"
)

// house is the law of this repository. Packages that do not exist yet may be
// listed; a package that is not listed fails.
var house = laws{
	module: "github.com/counterfoil/counterfoil",

	// Lowest first. A package imports only from strictly lower levels, so two
	// packages of one level do not know each other.
	levels: [][]string{
		{"internal/codec"},
		{"events"},
		{"projections"},
		{"internal/httprule", "internal/canonical", "internal/runbook", "internal/budget", "internal/cloudevent"},
		{"internal/contract", "internal/signature"},
		{"internal/workflow"},
		{"internal/journal", "internal/outbound", "internal/disk"},
		{"internal/doctor", "internal/ingest", "internal/projector", "internal/poller", "internal/webhook", "internal/notice", "internal/journal/memory"},
		{"internal/api", "internal/mcpapi", "internal/intake"},
		{"internal/telemetry"},
		{"internal/wire", "internal/broker", "internal/journal/conformance"},
		{"internal/broker/brokertest"},
		{"internal/launch", "tests/page"},
		{"cmd/...", "tests/..."},
	},

	// Outside the levels: they depend on nothing of ours and nothing of others,
	// so that a user can copy them out, and only the edge may use them.
	standalone:          []string{"client", "simulator"},
	standaloneImporters: []string{"cmd/...", "tests/..."},

	// Embedded data: imports nothing but the standard library, open to all.
	data: []string{"contracts"},

	// No clock, randomness, environment, file, network, logging, goroutine,
	// mutex or context; and of other people's modules only those named here.
	pure: map[string][]string{
		"internal/codec": {},
		"events": {
			"github.com/cloudevents/sdk-go/v2/event",
			"github.com/cloudevents/sdk-go/v2/types",
		},
		"projections": {},
		"internal/contract": {
			"cel.dev/cel-go",
			"github.com/go-json-experiment/json",
			"go.yaml.in/yaml/v3",
		},
		"internal/signature":  {},
		"internal/httprule":   {},
		"internal/canonical":  {"github.com/go-json-experiment/json"},
		"internal/workflow":   {},
		"internal/runbook":    {},
		"internal/budget":     {},
		"internal/cloudevent": {"github.com/go-json-experiment/json"},
	},

	// Module prefix to the only packages whose non-test files import it.
	confined: map[string][]string{
		"github.com/nats-io/nats.go":             {"internal/journal", "tests/..."},
		"github.com/nats-io/nkeys":               {"internal/journal", "tests/..."},
		"github.com/synadia-io/orbit.go":         {"internal/journal", "tests/..."},
		"github.com/nats-io/nats-server":         {"internal/broker", "tests/..."},
		"github.com/danielgtaylor/huma":          {"internal/api"},
		"github.com/modelcontextprotocol/go-sdk": {"internal/mcpapi", "tests/..."},
		"github.com/google/jsonschema-go":        {"internal/mcpapi", "tests/..."},
		"github.com/prometheus":                  {"internal/telemetry"},
		"github.com/anishathalye/porcupine":      {"tests/..."},
		"pgregory.net/rapid":                     {"internal/journal/conformance", "tests/..."},
	},

	// The role binaries stay small and cannot start a store by accident: only
	// the all-in-one command links the embedded server.
	unreachable: map[string][]string{
		"cmd/ingest":    {"internal/broker"},
		"cmd/projector": {"internal/broker"},
		"cmd/poller":    {"internal/broker"},
		"cmd/webhooks":  {"internal/broker"},
		"client":        {"internal/broker"},
	},

	// One place has the limits, the redaction and the deadline at the wire.
	httpClients: []string{"internal/outbound", "client", "simulator", "tests/..."},
}

func TestRepositoryKeepsTheLaws(t *testing.T) {
	fsys := os.DirFS("../..")
	// Guard against checking the wrong directory and finding nothing wrong.
	tr, err := readTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if tr.module != house.module {
		t.Fatalf("the tree is module %q, not %q", tr.module, house.module)
	}
	if _, ok := tr.dirs["tests/architecture"]; !ok {
		t.Fatal("the walk did not find this very package")
	}
	for _, v := range house.check(tr) {
		t.Error(v)
	}
}
