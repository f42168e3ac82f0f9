package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/counterfoil/counterfoil/internal/wire"
)

var made = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func seed(of string) io.Reader { return strings.NewReader(strings.Repeat(of, 64)) }

// The identity is made once: whatever randomness a later start has, it reads
// what the first one wrote, byte for byte.
func TestIdentityIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := wire.LoadIdentity(dir, seed("a"), made, true)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(first.Installation, "in_") || len(first.Key) != 32 || !first.Created.Equal(made) {
		t.Fatalf("made %+v", first)
	}
	path := filepath.Join(dir, "identity.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	again, err := wire.LoadIdentity(dir, iotest.ErrReader(errors.New("nothing random is needed")), made.Add(time.Hour), true)
	if err != nil {
		t.Fatal(err)
	}
	if again.Installation != first.Installation || !bytes.Equal(again.Key, first.Key) || !again.Created.Equal(made) {
		t.Errorf("read %+v, made %+v", again, first)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the file changed, %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v, want the identity alone", entries, err)
	}
	other, err := wire.LoadIdentity(t.TempDir(), seed("b"), made, true)
	if err != nil || other.Installation == first.Installation || bytes.Equal(other.Key, first.Key) {
		t.Errorf("another installation has the same identity: %+v, %v", other, err)
	}
}

// A crash while it is made leaves a temporary file, from which nothing was
// derived; the next start makes another.
func TestIdentityHalfWritten(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "identity.json.new"), []byte(`{"installation_id":"in_`), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := wire.LoadIdentity(dir, seed("a"), made, true); err != nil || len(id.Key) != 32 {
		t.Errorf("%+v, %v", id, err)
	}
}

func TestIdentityWithoutRandomness(t *testing.T) {
	dir := t.TempDir()
	if _, err := wire.LoadIdentity(dir, strings.NewReader("too short"), made, true); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v: something was made of too little", entries, err)
	}
}

func TestIdentityRefused(t *testing.T) {
	good := func(t *testing.T) []byte {
		dir := t.TempDir()
		if _, err := wire.LoadIdentity(dir, seed("a"), made, true); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "identity.json"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, one := range []struct {
		name string
		mode os.FileMode
		text func(good []byte) []byte
		want string
	}{
		{"readable by the group", 0o640, nil, "can be read by others (mode 0640)"},
		{"readable by others", 0o604, nil, "run chmod 600"},
		{"empty", 0o600, func([]byte) []byte { return nil }, "not readable as JSON"},
		{"cut", 0o600, func(good []byte) []byte { return good[:len(good)/2] }, "not readable as JSON"},
		{"without id", 0o600, func([]byte) []byte { return []byte(`{}`) }, "want an installation id"},
		{"short key", 0o600, func(good []byte) []byte {
			var m map[string]any
			if err := json.Unmarshal(good, &m); err != nil {
				panic(err)
			}
			m["instance_key"] = "AAAA"
			text, err := json.Marshal(m)
			if err != nil {
				panic(err)
			}
			return text
		}, "instance key of 32 bytes"},
	} {
		t.Run(one.name, func(t *testing.T) {
			text := good(t)
			if one.text != nil {
				text = one.text(text)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "identity.json")
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, one.mode); err != nil { // past the umask
				t.Fatal(err)
			}
			_, err := wire.LoadIdentity(dir, seed("b"), made, true)
			if err == nil || !strings.Contains(err.Error(), one.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %q and the path", err, one.want)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
				t.Errorf("a refused identity was changed, %v", err)
			}
			// Whatever is in the file, its key is not repeated in a message.
			if err != nil && strings.Contains(err.Error(), "YWFhYWFh") {
				t.Error("the message has the key")
			}
		})
	}
}

// With another identity the requests of old operations would get other ids and
// tokens: over a ledger with facts none is made.
func TestIdentityIsNotMadeOverALedger(t *testing.T) {
	dir := t.TempDir()
	if _, err := wire.LoadIdentity(dir, seed("a"), made, false); !errors.Is(err, wire.ErrNoIdentity) {
		t.Errorf("error %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v: something was made", entries, err)
	}
}
