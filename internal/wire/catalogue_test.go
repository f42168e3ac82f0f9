package wire_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// store keeps payloads by digest, or fails.
type store struct {
	kept map[events.Digest][]byte
	err  error
}

func (s *store) PutPayload(_ context.Context, body []byte) (events.Digest, error) {
	if s.err != nil {
		return events.Digest{}, s.err
	}
	d := events.Sum(body)
	s.kept[d] = body
	return d, nil
}

func (s *store) Payload(_ context.Context, d events.Digest) ([]byte, error) {
	body, ok := s.kept[d]
	if !ok {
		return nil, errors.New("no such payload")
	}
	return body, nil
}

func example(t *testing.T) string {
	t.Helper()
	text, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// directory writes files and gives their directory.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadContracts(t *testing.T) {
	builtin, _, err := wire.LoadContracts(contracts.FS, "")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(example(t), "title: ", "title: my ", 1)
	renamed := strings.Replace(example(t), "name: example\n", "name: mine\n", 1)
	all, sources, err := wire.LoadContracts(contracts.FS, directory(t, map[string]string{
		"any-name.yaml": changed, "mine.yaml": renamed, "notes.txt": "not a contract",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(builtin)+1 || all["mine"] == nil {
		t.Errorf("contracts %v", slices.Sorted(maps.Keys(all)))
	}
	if all["example"].Digest == builtin["example"].Digest || string(sources["example"]) != changed {
		t.Error("the user's contract did not replace the built-in one of its name")
	}
	for name, c := range all {
		if events.Sum(sources[name]) != c.Digest {
			t.Errorf("%s: the bytes are not those of the digest", name)
		}
	}
}

// Every problem of every file is told at once, with file, line and column, and
// for an expression with the line itself and a caret under the place.
func TestLoadContractsTellsEveryProblem(t *testing.T) {
	dir := directory(t, map[string]string{
		"expression.yaml": strings.Replace(example(t), "throttled: status == 429", "throttled: status === 429", 1),
		"unknown.yaml":    strings.Replace(example(t), "base_url: ", "base_ulr: ", 1),
		"twice-a.yaml":    strings.Replace(example(t), "name: example\n", "name: twice\n", 1),
		"twice-b.yaml":    strings.Replace(example(t), "name: example\n", "name: twice\n", 1),
	})
	_, _, err := wire.LoadContracts(contracts.FS, dir)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		dir + "/expression.yaml:13:23: errors.throttled: ",
		"\n    status === 429\n             ^",
		dir + "/unknown.yaml:5:1: base_ulr: unknown field",
		dir + "/twice-b.yaml: name: \"twice\" is the name in " + dir + "/twice-a.yaml already",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
}

func TestLoadContractsWithoutDirectory(t *testing.T) {
	file := filepath.Join(directory(t, map[string]string{"a": ""}), "a")
	for _, dir := range []string{filepath.Join(t.TempDir(), "nowhere"), file} {
		if _, _, err := wire.LoadContracts(contracts.FS, dir); err == nil || !strings.Contains(err.Error(), "contracts directory "+dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, _, err := wire.LoadContracts(fstest.MapFS{"bad.yaml": {Data: []byte("contract: 1")}}, ""); err == nil || !strings.Contains(err.Error(), "builtin/bad.yaml:1:1: ") {
		t.Errorf("a bad built-in contract: %v", err)
	}
}

func TestCatalogue(t *testing.T) {
	ctx := t.Context()
	parsed, sources, err := wire.LoadContracts(contracts.FS, "")
	if err != nil {
		t.Fatal(err)
	}
	kept := &store{kept: map[events.Digest][]byte{}}
	accounts := map[string]poller.Account{"example": {BaseURL: "http://all"}, "example/one": {BaseURL: "http://one"}}
	c, err := wire.NewCatalogue(ctx, kept, parsed, sources, accounts, map[string]string{"example": "env:HOOK"}, nil, "https://public")
	if err != nil {
		t.Fatal(err)
	}
	if len(kept.kept) != len(parsed) {
		t.Errorf("%d contracts kept, want %d", len(kept.kept), len(parsed))
	}

	t.Run("an old contract is read from where it is kept", func(t *testing.T) {
		old := strings.Replace(example(t), "title: ", "title: old ", 1)
		digest, err := kept.PutPayload(ctx, []byte(old))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // read, then remembered
			one, err := c.Contract(ctx, digest)
			if err != nil || one.Digest != digest {
				t.Fatalf("%v, %v", one, err)
			}
			delete(kept.kept, digest)
		}
		if _, err := c.Contract(ctx, events.Sum([]byte("never"))); err == nil {
			t.Error("a contract that nobody kept")
		}
		digest, err = kept.PutPayload(ctx, []byte("contract: 999\n"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Contract(ctx, digest); err == nil || !strings.Contains(err.Error(), "another version of this program") {
			t.Errorf("a contract of another version: %v", err)
		}
	})
	t.Run("accounts", func(t *testing.T) {
		for _, one := range []struct {
			provider, account, url string
			has                    bool
		}{
			{"example", "one", "http://one", true},
			{"example", "default", "http://all", true},
			{"example", "other", "", false},
			{"replicate", "default", "", true},
		} {
			a, err := c.Account(one.provider, one.account)
			if err != nil || a.BaseURL != one.url || c.HasAccount(one.provider, one.account) != one.has {
				t.Errorf("%s/%s: %+v, %v, %v", one.provider, one.account, a, err, c.HasAccount(one.provider, one.account))
			}
		}
	})
	t.Run("reachable", func(t *testing.T) {
		for provider, want := range map[string]bool{"example": true, "replicate": false, "nobody": false} {
			if c.Reachable(provider, "default") != want {
				t.Errorf("%s reachable: %v", provider, !want)
			}
		}
		hidden, err := wire.NewCatalogue(ctx, kept, parsed, sources, nil, map[string]string{"example": "env:HOOK"}, nil, "")
		if err != nil || hidden.Reachable("example", "default") {
			t.Errorf("reachable without an address, %v", err)
		}
	})
	t.Run("a store that refuses", func(t *testing.T) {
		broken := &store{err: errors.New("full")}
		if _, err := wire.NewCatalogue(ctx, broken, parsed, sources, nil, nil, nil, ""); !errors.Is(err, broken.err) {
			t.Errorf("error %v", err)
		}
	})
}

// What is said of an account is filled up with what is said of its provider, so
// that an address for all accounts is not lost to a credential for one.
func TestAccountIsFilledFromItsProvider(t *testing.T) {
	kept := &store{kept: map[events.Digest][]byte{}}
	c, err := wire.NewCatalogue(t.Context(), kept, nil, nil, map[string]poller.Account{
		"p":   {BaseURL: "https://all.test", Credential: "env:ALL"},
		"p/a": {Credential: "env:A"},
		"p/b": {BaseURL: "https://b.test"},
	}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]poller.Account{
		"a":       {BaseURL: "https://all.test", Credential: "env:A"},
		"b":       {BaseURL: "https://b.test", Credential: "env:ALL"},
		"default": {BaseURL: "https://all.test", Credential: "env:ALL"},
		// Another account's jobs are not asked for with the credential of all.
		"c": {Missing: "account c of provider p is not configured any more"},
	} {
		if got, err := c.Account("p", account); err != nil || got != want {
			t.Errorf("account %s is %+v, %v, want %+v", account, got, err, want)
		}
	}
}
