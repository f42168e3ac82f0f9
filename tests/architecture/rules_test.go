package architecture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// lawful is a tree without a breach that uses everything the laws allow, so
// that each case below is one change away from it and a checker that reports
// too much fails as surely as one that reports nothing.
func lawful() map[string]string {
	return map[string]string{
		"go.mod": "module github.com/counterfoil/counterfoil\n\ngo 1.26.0 // replace nothing\n",
		"events/events.go": `// Package events is lawful.
package events

import (
	"net/url"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)
`,
		"events/events_test.go":            "package events_test\n\nimport (\n\t\"os\"\n\n\t\"github.com/counterfoil/counterfoil/internal/broker\"\n\t\"go.uber.org/goleak\"\n)\n\nfunc TestMain(m *testing.M) { goleak.VerifyTestMain(m) }\n",
		"projections/projections.go":       pkg("projections", "github.com/counterfoil/counterfoil/events"),
		"internal/outbound/outbound.go":    pkg("outbound", "net/http") + "\nvar c http.Client\n",
		"internal/journal/journal.go":      pkg("journal", "github.com/nats-io/nats.go/jetstream", "github.com/counterfoil/counterfoil/projections"),
		"internal/journal/memory/m.go":     pkg("memory", "github.com/counterfoil/counterfoil/internal/journal"),
		"internal/poller/poller.go":        pkg("poller", "github.com/counterfoil/counterfoil/internal/outbound") + "\nfunc f() { go f() }\n",
		"internal/poller/poller_test.go":   "package poller\n\nimport \"go.uber.org/goleak\"\n\nfunc TestMain(m *testing.M) { goleak.VerifyTestMain(m) }\n",
		"internal/api/api.go":              pkg("api", "net/http") + "\nvar s http.Server\n\nvar errX, table = 1, 2\n\nfunc g(s int) { table := s; table = 3; s++ }\n",
		"internal/broker/broker.go":        pkg("broker", "github.com/nats-io/nats-server/v2/server"),
		"internal/wire/wire.go":            pkg("wire", "github.com/counterfoil/counterfoil/internal/poller", "github.com/counterfoil/counterfoil/contracts"),
		"simulator/simulator.go":           pkg("simulator", "net/http") + "\nvar c http.Client\n",
		"contracts/contracts.go":           pkg("contracts", "embed"),
		"cmd/poller/main.go":               "// Poller runs.\n" + strings.TrimPrefix(pkg("main", "github.com/counterfoil/counterfoil/internal/wire"), "// Package main is lawful.\n"),
		"tests/scenario/s_test.go":         pkg("scenario", "github.com/nats-io/nats.go"),
		"tests/scenario/testdata/bad/x.go": "package util\n\nfunc init() {}\n",
		"_draft/x.go":                      "package util\n",
		"tools/go.mod":                     "module github.com/counterfoil/counterfoil/tools\n",
		"tools/tool.go":                    "package util\n",
	}
}

func pkg(name string, imports ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "// Package %s is lawful.\npackage %s\n", name, name)
	for _, p := range imports {
		fmt.Fprintf(&b, "\nimport %q\n", p)
	}
	return b.String()
}

func breaches(t *testing.T, files map[string]string) []violation {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := readTree(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return house.check(tr)
}

func TestLawfulTreeHasNoBreach(t *testing.T) {
	for _, v := range breaches(t, lawful()) {
		t.Error(v)
	}
}

// Each law catches its breach, once, and names the place.
func TestEachLawCanFail(t *testing.T) {
	const m = "github.com/counterfoil/counterfoil/"
	for name, c := range map[string]struct {
		file, text  string
		where, rule string
	}{
		"package in no level":            {"internal/stray/s.go", pkg("stray"), "internal/stray", "no level"},
		"module root is no level":        {"root.go", pkg("counterfoil"), ".", "no level"},
		"child of a listed package":      {"internal/journal/deep/d.go", pkg("deep"), "internal/journal/deep", "no level"},
		"higher level":                   {"internal/codec/c.go", pkg("codec", m+"events"), "internal/codec/c.go:4", "level"},
		"own level":                      {"internal/ingest/i.go", pkg("ingest", m+"internal/poller"), "internal/ingest/i.go:4", "level"},
		"command knows command":          {"cmd/one/m.go", pkg("one", m+"cmd/poller"), "cmd/one/m.go:4", "level"},
		"import of an unlisted package":  {"internal/ingest/i.go", pkg("ingest", m+"internal/gone"), "internal/ingest/i.go:4", "level"},
		"simulator below the edge":       {"internal/ingest/i.go", pkg("ingest", m+"simulator"), "internal/ingest/i.go:4", "standalone"},
		"simulator uses a module":        {"simulator/x.go", "package simulator\n\nimport \"github.com/google/go-cmp/cmp\"\n", "simulator/x.go:3", "standard only"},
		"client uses ours":               {"client/c.go", pkg("client", m+"events"), "client/c.go:4", "standard only"},
		"contracts use a module":         {"contracts/x.go", "package contracts\n\nimport \"go.yaml.in/yaml/v3\"\n", "contracts/x.go:3", "standard only"},
		"pure uses its list of another":  {"projections/x.go", "package projections\n\nimport \"github.com/cloudevents/sdk-go/v2/event\"\n", "projections/x.go:3", "pure"},
		"prefix of a listed module":      {"events/x.go", "package events\n\nimport \"github.com/cloudevents/sdk-go/v2/event0\"\n", "events/x.go:3", "pure"},
		"pure starts a goroutine":        {"events/x.go", "package events\n\nfunc f() {\n\tgo f()\n}\n", "events/x.go:4", "pure"},
		"pure reads the clock":           {"events/x.go", "package events\n\nimport \"time\"\n\nvar t = time.Now()\n", "events/x.go:5", "pure"},
		"pure reads a renamed clock":     {"events/x.go", "package events\n\nimport clock \"time\"\n\nvar t = clock.Since\n", "events/x.go:5", "pure"},
		"pure imports the clock by dot":  {"events/x.go", "package events\n\nimport . \"time\"\n", "events/x.go:3", "pure"},
		"nats.go above the journal":      {"internal/ingest/i.go", pkg("ingest", "github.com/nats-io/nats.go"), "internal/ingest/i.go:4", "confined"},
		"nats.go in the memory journal":  {"internal/journal/memory/x.go", "package memory\n\nimport \"github.com/nats-io/nats.go\"\n", "internal/journal/memory/x.go:3", "confined"},
		"orbit above the journal":        {"internal/wire/x.go", "package wire\n\nimport \"github.com/synadia-io/orbit.go/jetstreamext\"\n", "internal/wire/x.go:3", "confined"},
		"server outside the broker":      {"internal/journal/x.go", "package journal\n\nimport \"github.com/nats-io/nats-server/v2/server\"\n", "internal/journal/x.go:3", "confined"},
		"test tool in shipped code":      {"internal/wire/x.go", "package wire\n\nimport \"pgregory.net/rapid\"\n", "internal/wire/x.go:3", "confined"},
		"http client in the API":         {"internal/api/x.go", "package api\n\nimport \"net/http\"\n\nvar c = http.DefaultClient\n", "internal/api/x.go:5", "http client"},
		"http client by another name":    {"internal/api/x.go", "package api\n\nimport h \"net/http\"\n\nvar c = h.NewRequest\n", "internal/api/x.go:5", "http client"},
		"http client through a dot":      {"internal/api/x.go", "package api\n\nimport . \"net/http\"\n", "internal/api/x.go:3", "http client"},
		"role binary links the server":   {"cmd/poller/x.go", "package main\n\nimport \"" + m + "internal/broker\"\n", "cmd/poller", "reach"},
		"replace, one line":              {"go.mod", "module " + m[:len(m)-1] + "\n\nreplace a => b\n", "go.mod:3", "replace"},
		"replace, block":                 {"go.mod", "module " + m[:len(m)-1] + "\n\nreplace (\n\ta => b\n)\n", "go.mod:3", "replace"},
		"replace in the tools":           {"tools/go.mod", "module x\nreplace a => b\n", "tools/go.mod:2", "replace"},
		"directory without a meaning":    {"cmd/util/u.go", "// It runs.\npackage main\n", "cmd/util", "name"},
		"package without a meaning":      {"cmd/one/u.go", "// Package helpers runs.\npackage helpers\n", "cmd/one/u.go:2", "name"},
		"no package comment":             {"internal/ingest/i.go", "package ingest\n", "internal/ingest", "package comment"},
		"directive is no comment":        {"internal/ingest/i.go", "//go:generate true\npackage ingest\n", "internal/ingest", "package comment"},
		"two package comments":           {"events/x.go", "// Package events again.\npackage events\n", "events", "package comment"},
		"second comment in a test":       {"events/x_test.go", "// Package events_test again.\npackage events_test\n", "events", "package comment"},
		"comment of another shape":       {"internal/ingest/i.go", "// Takes requests in.\npackage ingest\n", "internal/ingest/i.go:1", "package comment"},
		"init":                           {"events/x.go", "package events\n\nfunc init() {}\n", "events/x.go:3", "init"},
		"init in a test":                 {"events/x_test.go", "package events\n\nfunc init() {}\n", "events/x_test.go:3", "init"},
		"package variable assigned":      {"internal/api/x.go", "package api\n\nvar v int\n\nfunc f() {\n\tv = 1\n}\n", "internal/api/x.go:6", "global"},
		"package table written":          {"internal/api/x.go", "package api\n\nvar v = map[int]T{}\n\nfunc f() { v[1].x++ }\n", "internal/api/x.go:5", "global"},
		"package table emptied":          {"internal/api/x.go", "package api\n\nvar v = map[int]T{}\n\nfunc f() { delete(v, 1) }\n", "internal/api/x.go:5", "global"},
		"package variable lent out":      {"internal/api/x.go", "package api\n\nvar v int\n\nfunc f() *int { return &v }\n", "internal/api/x.go:5", "global"},
		"package lock":                   {"internal/api/x.go", "package api\n\nimport \"sync\"\n\nvar v sync.Mutex\n", "internal/api/x.go:5", "global"},
		"goroutine without goleak":       {"internal/api/x.go", "package api\n\nfunc f() {\n\tgo f()\n}\n", "internal/api/x.go:4", "leak"},
		"group's goroutine":              {"internal/api/x.go", "package api\n\nfunc f() { g.Go(f) }\n", "internal/api/x.go:3", "leak"},
		"goroutine of a test":            {"internal/api/x_test.go", "package api\n\nfunc f() { go f() }\n", "internal/api/x_test.go:3", "leak"},
		"goleak not called by TestMain":  {"internal/poller/poller_test.go", "package poller\n\nimport \"go.uber.org/goleak\"\n\nfunc TestMain(m *testing.M) {}\n", "internal/poller/poller.go:6", "leak"},
		"goleak called without TestMain": {"internal/poller/poller_test.go", "package poller\n\nimport \"go.uber.org/goleak\"\n\nvar v = goleak.Find()\n", "internal/poller/poller.go:6", "leak"},
	} {
		t.Run(name, func(t *testing.T) {
			files := lawful()
			files[c.file] = c.text
			got := breaches(t, files)
			if len(got) != 1 || got[0].where != c.where || got[0].rule != c.rule {
				t.Errorf("got %v, want one breach of %q at %s", got, c.rule, c.where)
			}
		})
	}
}

// Every pure package refuses every effect by name, and accepts what only
// parses text.
func TestPurePackagesRefuseEveryEffect(t *testing.T) {
	denied := []string{
		"context", "crypto/rand", "database/sql", "log", "log/slog", "math/rand", "math/rand/v2", "net",
		"net/http", "net/http/httptest", "os", "os/exec", "os/signal", "runtime/debug", "sync", "sync/atomic", "syscall", "unsafe",
	}
	for _, dir := range slices.Sorted(maps.Keys(house.pure)) {
		for _, effect := range denied {
			files := lawful()
			files[dir+"/effect.go"] = "package p\n\nimport \"" + effect + "\"\n"
			if !slices.ContainsFunc(breaches(t, files), func(v violation) bool {
				return v.rule == "pure" && v.where == dir+"/effect.go:3"
			}) {
				t.Errorf("%s may import %s", dir, effect)
			}
		}
		for _, allowed := range []string{"crypto/sha256", "encoding/json", "errors", "net/url", "strings", "time"} {
			files := lawful()
			files[dir+"/effect.go"] = "package p\n\nimport \"" + allowed + "\"\n"
			for _, v := range breaches(t, files) {
				if v.rule == "pure" {
					t.Errorf("%s may not import %s: %s", dir, allowed, v)
				}
			}
		}
	}
}

// A role binary is caught however long the way to the server is.
func TestReachFollowsEveryStep(t *testing.T) {
	files := lawful()
	files["internal/wire/x.go"] = "package wire\n\nimport \"github.com/counterfoil/counterfoil/internal/broker\"\n"
	var got []string
	for _, v := range breaches(t, files) {
		if v.rule == "reach" {
			got = append(got, v.what)
		}
	}
	want := "cmd/poller must not link internal/broker: cmd/poller -> internal/wire -> internal/broker"
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A file that does not parse stops the check: it must not pass unread.
func TestUnreadableFileIsAnError(t *testing.T) {
	fsys := fstest.MapFS{"events/x.go": {Data: []byte("package events\n\nfunc {")}}
	if _, err := readTree(fsys); err == nil {
		t.Error("a file with a syntax error was accepted")
	}
}

// The table itself: a package in two levels would be judged by the first, and
// a pure package above the last pure level could import effects through others.
func TestTableIsSound(t *testing.T) {
	seen := map[string]int{}
	for i, dirs := range house.levels {
		for _, dir := range dirs {
			if first, twice := seen[dir]; twice {
				t.Errorf("%s is in levels %d and %d", dir, first, i)
			}
			seen[dir] = i
		}
	}
	for i, dirs := range house.levels {
		for _, dir := range dirs {
			if _, pure := house.pure[dir]; pure {
				for below := range i {
					for _, lower := range house.levels[below] {
						if _, ok := house.pure[lower]; !ok {
							t.Errorf("%s is pure and may import %s, which is not", dir, lower)
						}
					}
				}
			}
		}
	}
	for dir := range house.pure {
		if house.levelOf(dir) < 0 {
			t.Errorf("%s is pure and in no level", dir)
		}
	}
}
