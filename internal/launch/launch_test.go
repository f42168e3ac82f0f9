package launch_test

import (
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// What cannot work is refused before any server is asked, by an error that names
// the flag and repeats no secret.
func TestRefusedBeforeConnecting(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // past the umask
			t.Fatal(err)
		}
		return path
	}
	identity, err := wire.LoadIdentityFile(filepath.Join(dir, "identity.json"), strings.NewReader(strings.Repeat("seed", 16)), time.Unix(0, 0), true)
	if err != nil || identity.Installation == "" {
		t.Fatal(err)
	}
	keys := filepath.Join(dir, "keys.jsonl")
	key, _, err := ingest.NewKey(rand.Reader, "alice", false, time.Now())
	if err := errors.Join(err, ingest.AddKey(keys, key)); err != nil {
		t.Fatal(err)
	}
	good := func() launch.Options {
		return launch.Options{
			Listen: "127.0.0.1:0", Workers: 1, ClockDifference: 30 * time.Second,
			Identity: filepath.Join(dir, "identity.json"), Keys: keys,
			Store: launch.Store{URLs: "nats://127.0.0.1:1"}, // nobody listens there
		}
	}
	const secret = "SUSECRETSECRET"
	for name, c := range map[string]struct {
		change func(*launch.Options)
		want   string
		usage  bool
	}{
		"no servers":              {func(o *launch.Options) { o.Store.URLs = "" }, "--nats", true},
		"a server without scheme": {func(o *launch.Options) { o.Store.URLs = "localhost:4222" }, "--nats", true},
		"a password in the URL":   {func(o *launch.Options) { o.Store.URLs = "nats://me:" + secret + "@localhost:4222" }, "--nats-creds", true},
		"nobody there":            {func(*launch.Options) {}, "connect to the store", false},
		"no identity":             {func(o *launch.Options) { o.Identity = "" }, "--identity", true},
		"identity is not there":   {func(o *launch.Options) { o.Identity = dir + "/none" }, "none", false},
		"identity others read":    {func(o *launch.Options) { o.Identity = file("open.json", "{}", 0o644) }, "chmod 600", false},
		"no keys":                 {func(o *launch.Options) { o.Keys = "" }, "--keys", true},
		"keys are not there":      {func(o *launch.Options) { o.Keys = dir + "/none" }, "none", false},
		"clocks":                  {func(o *launch.Options) { o.ClockDifference = 0 }, "--clock-difference", true},
		"workers":                 {func(o *launch.Options) { o.Workers = 0 }, "--workers", true},
		"too little room":         {func(o *launch.Options) { o.ResultRoom = "1MiB" }, "--result-room", true},
		"room without a unit":     {func(o *launch.Options) { o.ResultRoom = "512M" }, "--result-room", true},
		"certificate without key": {func(o *launch.Options) { o.Store.Cert = "x" }, "--nats-key", true},
		"CA is no certificate":    {func(o *launch.Options) { o.Store.CA = file("ca", "no", 0o600) }, "--nats-ca", true},
		"credentials others read": {func(o *launch.Options) { o.Store.Creds = file("open.creds", secret, 0o644) }, "--nats-creds", false},
		"credentials are none":    {func(o *launch.Options) { o.Store.Creds = file("bad.creds", secret, 0o600) }, "nkey seed", false},
		"an unknown provider":     {func(o *launch.Options) { o.BaseURLs = []string{"nobody=https://x.test"} }, "nobody", true},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			c.change(&o)
			err := launch.Serve(t.Context(), o, wire.AllRoles, slog.New(slog.DiscardHandler), io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q in it", err, c.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats a secret: %v", err)
			}
			var with *launch.Error
			if usage := errors.As(err, &with) && with.Usage; usage != c.usage {
				t.Errorf("wrong command line: %v, want %v (%v)", usage, c.usage, err)
			}
		})
	}
}

// A role alone is asked for nothing that only others need.
func TestRolesNeedTheirOwn(t *testing.T) {
	o := launch.Options{ClockDifference: time.Second, Store: launch.Store{URLs: "nats://127.0.0.1:1"}}
	err := launch.Serve(t.Context(), o, wire.Projector, slog.New(slog.DiscardHandler), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "connect to the store") {
		t.Errorf("a projector without identity, keys and contracts: %v, want it to come as far as the store", err)
	}
}
