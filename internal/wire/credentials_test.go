package wire_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/webhook"
	"github.com/counterfoil/counterfoil/internal/wire"
)

func builtin(t testing.TB) map[string]*contract.Contract {
	t.Helper()
	parsed, _, err := wire.LoadContracts(contracts.FS, "")
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// marker is a secret in a place where none belongs; it is in no message.
const marker = "SECR3Tin0place7f3a91c0"

const goodCredentials = `credentials: 1
providers:
  example:
    "*": {base_url: "https://all.test", webhook_secret: env:HOOK}
    default: {credential: env:EXAMPLE_KEY}
    research:
      credential: file:/run/secrets/research
      base_url: https://research.test/v1
      webhook_secret: file:/run/secrets/research-hook
  replicate:
    default: {credential: env:REPLICATE}
principals:
  local: {accounts: [example/default, "replicate/*"]}
  all: {accounts: ["*/*"]}
  none: {accounts: []}
denied_keys: [ab12]
`

func TestCredentialsProblems(t *testing.T) {
	contracts := builtin(t)
	for _, c := range []struct{ name, text, says string }{
		{"empty", "", "f.yaml:1: the file is empty; it begins with credentials: 1"},
		{"only a comment", "# nothing\n", "f.yaml:1: the file is empty"},
		{"a list", "- a\n", "f.yaml:1: credentials: must be the first field: credentials: 1"},
		{"no version", "providers: {}\n", "f.yaml:1: credentials: must be the first field"},
		{"version later", "providers: {}\ncredentials: 1\n", "f.yaml:1: credentials: must be the first field"},
		{"another version", "credentials: 2\nwhat: ever\n", "f.yaml:1: credentials: must be 1, the only version this program reads"},
		{"two documents", "credentials: 1\n---\ncredentials: 1\n", "there is a second document"},
		{"not YAML", "credentials: 1\nproviders: {" + marker + ": *" + marker + "\n", ": not valid YAML"},
		{"an alias to nowhere", "credentials: 1\nproviders: *" + marker + "\n", ": not valid YAML"},
		{"an anchor", "credentials: 1\nproviders: &a {}\n", "f.yaml:2: providers: anchors, aliases and tags are not allowed"},
		{"unknown field", "credentials: 1\nprovider: {}\n", "f.yaml:2: unknown field provider; known here: credentials, providers, principals, quotas, denied_keys"},
		{"a secret as field", "credentials: 1\n" + marker + ": {}\n", "f.yaml:2: unknown field (not shown); known here"},
		{"unknown field of an account", "credentials: 1\nproviders:\n  example:\n    default: {key: env:A}\n", "f.yaml:4: providers.example.default: unknown field key; known here: credential, webhook_secret, base_url, limits"},
		{"twice", "credentials: 1\nproviders:\n  example: {}\n  example: {}\n", "f.yaml:4: providers: a name is given twice example"},
		{"unknown provider", "credentials: 1\nproviders:\n  nobody: {}\n", "f.yaml:3: providers: no contract is named nobody"},
		{"a secret as provider", "credentials: 1\nproviders:\n  sk-live-" + strings.ToLower(marker) + ": {}\n", "f.yaml:3: providers: the name of a provider looks like a secret"},
		{"account name", "credentials: 1\nproviders:\n  example:\n    No: {}\n", "f.yaml:4: providers.example: the name of an account must be 1 to 64"},
		{"a secret as account", "credentials: 1\nproviders:\n  example:\n    sk-secr3t: {}\n", "f.yaml:4: providers.example: the name of an account looks like a secret"},
		{"limits out of bounds", "credentials: 1\nproviders:\n  example:\n    default: {limits: {concurrency: 65}}\n", "f.yaml:4: providers.example.default.limits.concurrency: must be a whole number between 1 and 64"},
		{"two measures", "credentials: 1\nproviders:\n  example:\n    default: {limits: {per_second: 5, per_minute: 10}}\n", "f.yaml:4: providers.example.default.limits.per_minute: per_second and per_minute exclude each other: give the one the provider names"},
		{"no quota", "credentials: 1\nquotas:\n  batch: {submits_per_minute: 0}\n", "f.yaml:3: quotas.batch.submits_per_minute: must be a whole number between 1 and 10000000"},
		{"a quota out of bounds", "credentials: 1\nquotas:\n  \"*\": {open_operations: 100000001}\n", "f.yaml:3: quotas.*.open_operations: must be a whole number between 1 and 100000000"},
		{"no amount", "credentials: 1\nquotas:\n  batch: {cost_per_day: {USD: -1}}\n", "f.yaml:3: quotas.batch.cost_per_day: must be a decimal with at most 15 digits before and 6 after the point"},
		{"no unit", "credentials: 1\nquotas:\n  batch: {cost_per_day: {U S: 1}}\n", "f.yaml:3: quotas.batch.cost_per_day: a unit must be 1 to 16 letters, digits, _ and -"},
		{"many units", "credentials: 1\nquotas:\n  batch: {cost_per_day: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}}\n", "f.yaml:3: quotas.batch.cost_per_day: has 9 units; at most 8 are allowed"},
		{"an unknown quota", "credentials: 1\nquotas:\n  batch: {per_day: 3}\n", "f.yaml:3: quotas.batch: unknown field per_day; known here: submits_per_minute, open_operations, cost_per_day"},
		{"a secret for a principal", "credentials: 1\nquotas:\n  sk-secr3t: {}\n", "f.yaml:3: quotas: the name of a principal looks like a secret"},
		{"the secret for the account", "credentials: 1\nproviders:\n  example:\n    default: " + marker + "\n", "f.yaml:4: providers.example.default: must be a mapping of credential, webhook_secret, base_url, limits"},
		{"the secret itself", "credentials: 1\nproviders:\n  example:\n    default:\n      credential: " + marker + "\n", "f.yaml:5: providers.example.default.credential: must be env:NAME or file:/ABSOLUTE/PATH"},
		{"the secret after env", "credentials: 1\nproviders:\n  example:\n    default: {credential: env:" + marker + "}\n", "f.yaml:4: providers.example.default.credential: must be env:NAME"},
		{"a known secret after env", "credentials: 1\nproviders:\n  example:\n    default: {credential: env:sk_live_" + marker + "}\n", "f.yaml:4: providers.example.default.credential: must be env:NAME"},
		{"the secret after file", "credentials: 1\nproviders:\n  example:\n    default: {webhook_secret: \"file:" + marker + "\"}\n", "f.yaml:4: providers.example.default.webhook_secret: must be env:NAME"},
		{"a relative path", "credentials: 1\nproviders:\n  example:\n    default: {credential: \"file:key\"}\n", "file:/ABSOLUTE/PATH"},
		{"no value", "credentials: 1\nproviders:\n  example:\n    default: {credential: }\n", "f.yaml:4: providers.example.default.credential: must be text, and not empty"},
		{"base URL with password", "credentials: 1\nproviders:\n  example:\n    default: {base_url: \"https://u:" + marker + "@h.test\"}\n", "f.yaml:4: providers.example.default.base_url: user information in a URL is refused"},
		{"base URL with query", "credentials: 1\nproviders:\n  example:\n    default: {base_url: \"https://h.test?key=" + marker + "\"}\n", "base_url: must have no query"},
		{"base URL with both", "credentials: 1\nproviders:\n  example:\n    default: {base_url: \"https://u:" + marker + "@h.test?key=" + marker + "\"}\n", "base_url: must have no query"},
		{"base URL without TLS", "credentials: 1\nproviders:\n  example:\n    default: {base_url: \"http://h.test\"}\n", "base_url: is plain http"},
		{"principal", "credentials: 1\nprincipals:\n  Bob: {accounts: []}\n", "f.yaml:3: principals: the name of a principal must be"},
		{"grant", "credentials: 1\nprincipals:\n  bob: {accounts: [example]}\n", "f.yaml:3: principals.bob.accounts[0]: must be PROVIDER/ACCOUNT"},
		{"grant of a secret", "credentials: 1\nprincipals:\n  bob: {accounts: [a/a, " + marker + "]}\n", "f.yaml:3: principals.bob.accounts[1]: must be PROVIDER/ACCOUNT"},
		{"grant of all providers' account", "credentials: 1\nprincipals:\n  bob: {accounts: [\"*/default\"]}\n", "must be PROVIDER/ACCOUNT"},
		{"grant at an unknown provider", "credentials: 1\nprincipals:\n  bob: {accounts: [nobody/default]}\n", "no contract is named nobody"},
		{"grants not in a list", "credentials: 1\nprincipals:\n  bob: {accounts: example/default}\n", "f.yaml:3: principals.bob.accounts: must be a list"},
		{"a whole key denied", "credentials: 1\ndenied_keys:\n- cf_ab12." + marker + "\n", "f.yaml:3: denied_keys[0]: must be the id of an API key: what stands between cf_ and the point"},
		{"too large", "credentials: 1\n#" + strings.Repeat("x", wire.MaxCredentials) + "\n", "the file has 262161 bytes; at most 262144 are allowed"},
	} {
		_, err := wire.ParseCredentials("f.yaml", []byte(c.text), contracts, false)
		switch {
		case err == nil:
			t.Errorf("%s: no error", c.name)
		case !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %q is not in\n%v", c.name, c.says, err)
		case strings.Contains(strings.ToLower(err.Error()), "secr3t"):
			t.Errorf("%s: shows the secret: %v", c.name, err)
		}
	}
}

// Every problem of the file is told, in the order of its lines.
func TestCredentialsProblemsAreToldTogether(t *testing.T) {
	_, err := wire.ParseCredentials("f.yaml", []byte("credentials: 1\nother: 1\nproviders:\n  example:\n    default: {credential: x, base_url: y}\ndenied_keys: [A]\n"), builtin(t), false)
	if err == nil {
		t.Fatal("no error")
	}
	var lines []string
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, strings.Join(strings.SplitN(line, ":", 4)[:3], ":"))
	}
	want := "f.yaml:2: unknown field other; known here|f.yaml:5: providers.example.default.credential|f.yaml:5: providers.example.default.base_url|f.yaml:6: denied_keys[0]"
	if got := strings.Join(lines, "|"); got != want {
		t.Errorf("told %s\nwant %s", got, want)
	}
}

// A webhook secret or a credential for a contract that has no use for it is a
// misunderstanding.
func TestCredentialsFitTheContract(t *testing.T) {
	contracts := map[string]*contract.Contract{"bare": {Name: "bare", Credential: contract.Credential{Place: contract.PlaceNone}}}
	_, err := wire.ParseCredentials("f.yaml", []byte("credentials: 1\nproviders:\n  bare:\n    default: {credential: env:A, webhook_secret: env:B}\n"), contracts, false)
	for _, want := range []string{"credential: the contract bare sends no credential", "webhook_secret: the contract bare has no webhooks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte(goodCredentials))
	f.Add([]byte("credentials: 1\nproviders: {example: {default: {credential: [}}}"))
	f.Add([]byte("credentials: 1\nprincipals: &a\n  b: *a\n"))
	contracts := builtin(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := wire.ParseCredentials("f.yaml", text, contracts, false)
		if (table == nil) == (err == nil) {
			t.Errorf("table %v, error %v", table, err)
		}
		if err != nil && bytes.Contains(text, []byte(marker)) && strings.Contains(err.Error(), marker) {
			t.Errorf("shown: %v", err)
		}
	})
}

// followed is a credentials file and a clock for whoever follows it.
type followed struct {
	t    *testing.T
	path string
	now  time.Time
	log  bytes.Buffer
}

func (f *followed) config(optional bool) wire.CredentialsConfig {
	return wire.CredentialsConfig{
		Path: f.path, Optional: optional, Contracts: builtin(f.t), AllowHTTP: true,
		Now: func() time.Time { return f.now }, Log: slog.New(slog.NewTextHandler(&f.log, nil)),
	}
}

// write replaces the file by one that was written long ago, and lets its next look come.
func (f *followed) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path+".new", []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Chtimes(f.path+".new", time.Time{}, f.now.Add(-time.Hour)); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
	f.now = f.now.Add(time.Second)
}

func follow(t *testing.T) *followed {
	t.Helper()
	return &followed{t: t, path: filepath.Join(t.TempDir(), "credentials.yaml"), now: made}
}

func catalogueOver(t *testing.T, c *wire.Credentials, accounts map[string]poller.Account, hooks map[string]string) *wire.Catalogue {
	t.Helper()
	parsed, sources, err := wire.LoadContracts(contracts.FS, "")
	if err != nil {
		t.Fatal(err)
	}
	made, err := wire.NewCatalogue(t.Context(), &store{kept: map[events.Digest][]byte{}}, parsed, sources, accounts, hooks, c, "https://public.test")
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCredentialsSay(t *testing.T) {
	f := follow(t)
	f.write(goodCredentials)
	file, err := wire.OpenCredentials(f.config(false))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	for at, want := range map[string]poller.Account{
		"example/default":   {BaseURL: "https://all.test", Credential: "env:EXAMPLE_KEY"},
		"example/research":  {BaseURL: "https://research.test/v1", Credential: "file:/run/secrets/research"},
		"example/other":     {Missing: "account other of provider example is not configured any more"},
		"replicate/default": {Credential: "env:REPLICATE"},
	} {
		provider, account, _ := strings.Cut(at, "/")
		if got, err := c.Account(provider, account); got != want || err != nil {
			t.Errorf("%s is %+v, %v, want %+v", at, got, err, want)
		}
		if has := c.HasAccount(provider, account); has != (want.Missing == "") {
			t.Errorf("%s: configured %v", at, has)
		}
	}
	if c.HasAccount("example", "*") {
		t.Error("the entry for all accounts can be named as one")
	}
	for principal, want := range map[string]string{
		"local": "example: default replicate: default example-ask:", "all": "example: default research replicate: default example-ask: default",
		"none": "example: replicate: example-ask:", "unlisted": "example: replicate: example-ask:",
	} {
		var got []string
		for _, provider := range []string{"example", "replicate", "example-ask"} {
			got = append(append(got, provider+":"), c.AccountsOf(principal, provider)...)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s may use %s, want %s", principal, text, want)
		}
	}
	if !c.MayUse("local", "replicate", "any") || c.MayUse("local", "example", "research") {
		t.Error("a grant of all accounts of one provider is not one")
	}
	want := []webhook.Secret{{Account: "default", Reference: "env:HOOK"}, {Account: "research", Reference: "file:/run/secrets/research-hook"}}
	if got := c.WebhookSecrets("example"); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("webhook secrets %v", got)
	}
	if !c.Reachable("example", "research") || c.Reachable("replicate", "default") {
		t.Error("reachable is not where there is a webhook secret")
	}

	// A flag wins wherever it applies.
	c = catalogueOver(t, file, map[string]poller.Account{
		"example": {BaseURL: "https://flag.test"}, "example/research": {Credential: "env:FLAG"},
	}, map[string]string{"example": "env:FLAG_HOOK"})
	for account, want := range map[string]poller.Account{
		"default":  {BaseURL: "https://flag.test", Credential: "env:EXAMPLE_KEY"},
		"research": {BaseURL: "https://flag.test", Credential: "env:FLAG"},
	} {
		if got, err := c.Account("example", account); got != want || err != nil {
			t.Errorf("with flags, %s is %+v, %v, want %+v", account, got, err, want)
		}
	}
	if got := c.WebhookSecrets("example"); len(got) != 2 || got[0].Reference != "env:FLAG_HOOK" || got[1].Reference != "env:FLAG_HOOK" {
		t.Errorf("with flags, webhook secrets %v", got)
	}
}

// Without a section of principals everyone may use everything, as without a
// file; with an empty one nobody may use anything.
func TestNobodyIsRestrictedWithoutPrincipals(t *testing.T) {
	if c := catalogueOver(t, nil, nil, nil); !c.MayUse("anyone", "example", "default") {
		t.Error("restricted without a file")
	}
	f := follow(t)
	f.write("credentials: 1\n")
	file, err := wire.OpenCredentials(f.config(false))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	if !c.MayUse("anyone", "example", "default") {
		t.Error("restricted without a section")
	}
	f.write("credentials: 1\nprincipals: {}\n")
	if c.MayUse("anyone", "example", "default") {
		t.Error("not restricted with an empty section")
	}
}

// The file is followed while it is used: a good version is taken up within a
// second, a bad one changes nothing and is told once.
func TestCredentialsAreFollowed(t *testing.T) {
	f := follow(t)
	f.write("credentials: 1\nproviders: {example: {one: {credential: env:ONE}}}\n")
	file, err := wire.OpenCredentials(f.config(false))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	is := func(when, want string) {
		t.Helper()
		if a, err := c.Account("example", "one"); err != nil || a.Credential != want {
			t.Errorf("%s: %+v, %v, want %s", when, a, err, want)
		}
	}
	is("at first", "env:ONE")
	f.write("credentials: 1\nproviders: {example: {one: {credential: env:TWO}}}\n")
	f.now = f.now.Add(-time.Millisecond)
	is("before the second is over", "env:ONE")
	f.now = f.now.Add(time.Millisecond)
	is("after it", "env:TWO")

	for _, bad := range []func(){
		func() { f.write("credentials: 1\nproviders: {example: {one: {credential: " + marker + "}}}\n") },
		func() {
			if err := os.Chmod(f.path, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if err := os.Remove(f.path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f.log.Reset()
		bad()
		f.now = f.now.Add(time.Second)
		since := f.now
		for range 3 {
			is("while the file is bad", "env:TWO")
			f.now = f.now.Add(time.Minute)
		}
		if n := strings.Count(f.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("told %d times: %s", n, &f.log)
		}
		s := file.Status()
		if s.Problem == "" || !s.Since.Equal(since) || s.Loaded.IsZero() || s.Path != f.path {
			t.Errorf("status %+v", s)
		}
		if text := f.log.String() + s.Problem; strings.Contains(text, marker) || !strings.Contains(text, f.path) {
			t.Errorf("told as %s", text)
		}
	}
	f.log.Reset()
	f.write("credentials: 1\nproviders: {example: {one: {credential: env:ONE}}}\n")
	is("before the repair counts", "env:TWO") // the name was gone
	f.now = f.now.Add(10 * time.Second)
	is("after the repair", "env:ONE")
	if s := file.Status(); s.Problem != "" || !s.Since.IsZero() || !s.Loaded.Equal(f.now) {
		t.Errorf("status after the repair %+v", s)
	}
	if !strings.Contains(f.log.String(), "was read") {
		t.Errorf("the repair is not told: %s", &f.log)
	}
	f.now = made // a clock that is set back
	f.write("credentials: 1\n")
	is("when the account is gone", "")
	if a, err := c.Account("example", "one"); err != nil || a.Missing == "" {
		t.Errorf("the account that is gone: %+v, %v", a, err)
	}
}

// A file that is written in place, in pieces, counts once it has been left alone
// for 10 s: a half of it lacks the denials at its end. One that is renamed into
// place and was written long ago counts at the next look, also in the middle of that.
func TestCredentialsWrittenInPlace(t *testing.T) {
	const head = "credentials: 1\nproviders: {example: {one: {credential: env:"
	text := func(v string) string { return head + v + "}}}\n" }
	f := follow(t)
	f.write(text("ONE"))
	file, err := wire.OpenCredentials(f.config(false))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	is := func(when, want string, writing bool) {
		t.Helper()
		if a, err := c.Account("example", "one"); err != nil || a.Credential != "env:"+want {
			t.Errorf("%s: %+v, %v, want %s", when, a, err, want)
		}
		if s := file.Status(); s.Writing.IsZero() == writing || s.Problem != "" {
			t.Errorf("%s: status %+v, want writing %t", when, s, writing)
		}
	}
	// put writes in place; the time of change is behind the clock by age.
	put := func(text string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(f.path, time.Time{}, f.now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		f.now = f.now.Add(time.Second)
	}
	look := func(after time.Duration, when, want string, writing bool) {
		t.Helper()
		f.now = f.now.Add(after)
		is(when, want, writing)
	}
	is("at first", "ONE", false)
	f.log.Reset()
	put(text("TWO"), 0)
	is("after the first write", "ONE", true)
	look(8*time.Second, "9 s after it", "ONE", true)
	put(text("TWO")+"denied_keys: [k3x7q2m4w5p6r7s8]\n", 0)
	look(0, "after the second write", "ONE", true)
	look(8*time.Second, "9 s after that", "ONE", true)
	if n := strings.Count(f.log.String(), "is being written"); n != 1 || strings.Contains(f.log.String(), "was read") {
		t.Errorf("told %d times: %s", n, &f.log)
	}
	look(time.Second, "10 s after it", "TWO", false)
	if !strings.Contains(f.log.String(), "was read") {
		t.Errorf("not told: %s", &f.log)
	}

	put(text("ONE"), time.Hour) // a time of change that was set, or of another's clock
	look(0, "when only the looks tell", "TWO", true)
	look(8*time.Second, "while they do", "TWO", true)
	look(time.Second, "10 s after the last look at another version", "ONE", false)

	put(text("TWO"), -time.Hour) // ahead of our clock
	look(0, "when its time is ahead", "ONE", true)
	look(9*time.Second, "9 s after the first look", "ONE", true)
	look(time.Second, "10 s after it", "TWO", false)

	put(text("ONE"), 0)
	look(time.Hour, "when nobody had looked for an hour", "ONE", false)

	put(text("TWO"), 0)
	look(0, "in the middle", "ONE", true)
	f.write(text("THREE"))
	look(0, "after a rename", "THREE", false)

	put(text("ONE"), 0)
	look(0, "in the middle", "THREE", true)
	f.now = f.now.Add(-time.Minute)
	look(0, "when the clock was set back", "THREE", true)
	look(10*time.Second, "10 s after that", "ONE", false)

	put(text(marker), 0) // what is wrong is told when it would count
	look(0, "with a mistake", "ONE", true)
	f.now = f.now.Add(10 * time.Second)
	if s := file.Status(); s.Problem == "" || !s.Writing.IsZero() {
		t.Errorf("a mistake: %+v", s)
	}
	if err := os.Chmod(f.path, 0o644); err != nil { // no writing: told at once
		t.Fatal(err)
	}
	f.now = f.now.Add(time.Second)
	if s := file.Status(); !strings.Contains(s.Problem, "chmod 600") || !s.Writing.IsZero() {
		t.Errorf("a mode: %+v", s)
	}
}

func TestCredentialsFileIsRefused(t *testing.T) {
	f := follow(t)
	if _, err := wire.OpenCredentials(f.config(false)); err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("a file that is not there: %v", err)
	}
	f.write("credentials: 1\n")
	for _, mode := range []os.FileMode{0o604, 0o640, 0o620, 0o602} {
		if err := os.Chmod(f.path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := wire.OpenCredentials(f.config(true)); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	// Through a link it is what the link leads to that counts.
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(f.path, link); err != nil {
		t.Fatal(err)
	}
	path := f.path
	f.path = link
	if _, err := wire.OpenCredentials(f.config(false)); err == nil {
		t.Error("a link to a file that others can change was taken")
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.OpenCredentials(f.config(false)); err != nil {
		t.Errorf("a link to a private file: %v", err)
	}
	f.path = t.TempDir()
	if _, err := wire.OpenCredentials(f.config(false)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

// The default path need not be there, and is taken up once it is.
func TestOptionalCredentials(t *testing.T) {
	f := follow(t)
	file, err := wire.OpenCredentials(f.config(true))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	if a, err := c.Account("example", "default"); err != nil || a != (poller.Account{}) {
		t.Errorf("without a file %+v, %v", a, err)
	}
	if s := file.Status(); s.Problem != "" || !s.Loaded.IsZero() {
		t.Errorf("status %+v", s)
	}
	f.write("credentials: 1\nproviders: {example: {default: {credential: env:LATE}}}\n")
	if a, err := c.Account("example", "default"); err != nil || a != (poller.Account{}) || file.Status().Writing.IsZero() {
		t.Errorf("at once %+v, %v", a, err)
	}
	f.now = f.now.Add(10 * time.Second)
	if a, err := c.Account("example", "default"); err != nil || a.Credential != "env:LATE" {
		t.Errorf("after it was written %+v, %v", a, err)
	}
}

// Whose quota of costs counts nothing of what is begun at an account, for the operator.
func TestUnboundedCosts(t *testing.T) {
	for _, c := range []struct{ quotas, principals, want string }{
		{`{alice: {submits_per_minute: 1}}`, "", "example: ; example-ask: "},
		{`{"*": {cost_per_day: {USD: 1}}}`, "", "example: ; example-ask: *"},
		{`{"*": {cost_per_day: {EUR: 1}}, alice: {cost_per_day: {USD: 1}}, bob: {open_operations: 1}}`, "", "example: * bob; example-ask: * alice bob"},
		{`{alice: {cost_per_day: {USD: 1}}, bob: {cost_per_day: {EUR: 1}}}`, `{alice: {accounts: ["example-ask/*"]}, bob: {accounts: ["example/*"]}}`, "example: bob; example-ask: alice"},
		{`{"*": {cost_per_day: {USD: 1}}}`, `{alice: {accounts: [example-ask/default]}, bob: {accounts: ["example/*"]}}`, "example: ; example-ask: alice"},
	} {
		text := "credentials: 1\nquotas: " + c.quotas + "\n"
		if c.principals != "" {
			text += "principals: " + c.principals + "\n"
		}
		f := follow(t)
		f.write(text)
		file, err := wire.OpenCredentials(f.config(false))
		if err != nil {
			t.Fatal(err)
		}
		catalogue := catalogueOver(t, file, nil, nil)
		var got []string
		for _, provider := range []string{"example", "example-ask"} {
			got = append(got, provider+": "+strings.Join(catalogue.Unbounded(provider, "default"), " "))
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s %s: %s, want %s", c.quotas, c.principals, text, c.want)
		}
	}
}
