package ingest

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func newKey(t *testing.T, random *rand.ChaCha8, principal string, operator bool) (Key, string) {
	t.Helper()
	key, bearer, err := NewKey(random, principal, operator, time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return key, bearer
}

func addKeys(t *testing.T, path string, keys ...Key) {
	t.Helper()
	for _, k := range keys {
		if err := AddKey(path, k); err != nil {
			t.Fatal(err)
		}
	}
}

// operators lists the principals whose keys have the right.
func operators(t *testing.T, path string) string {
	t.Helper()
	list, err := ListKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range list {
		if k.Operates() {
			names = append(names, k.Principal)
		}
	}
	return strings.Join(names, " ")
}

func TestOperatorRight(t *testing.T) {
	random := rand.NewChaCha8([32]byte{3})
	first, bearer := newKey(t, random, "local", true)
	second, _ := newKey(t, random, "team", false)
	third, _ := newKey(t, random, "night", true)
	path := filepath.Join(t.TempDir(), "keys.jsonl")
	addKeys(t, path, first, second)
	if got := operators(t, path); got != "local" {
		t.Errorf("operators %q", got)
	}

	// A file from before the member: the first key has the right, and no other.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`,"operator":(true|false)`).ReplaceAll(text, nil)
	if strings.Contains(string(old), "operator") {
		t.Fatalf("the file still has the member: %s", old)
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := operators(t, path); got != "local" {
		t.Errorf("operators of an old file %q", got)
	}
	keys, err := OpenKeys(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := keys.Authenticate([]string{"Bearer " + bearer}); err != nil || !c.Operator {
		t.Errorf("the key of an old installation is %+v, %v", c, err)
	}
	// A change states it for every key, so that a later one takes nothing away.
	addKeys(t, path, third)
	if got := operators(t, path); got != "local night" {
		t.Errorf("operators after a change %q", got)
	}

	// A file that says it of any key says it of all.
	for _, c := range []struct{ text, want string }{
		{strings.Replace(string(old), `"principal":"team"`, `"principal":"team","operator":true`, 1), "team"},
		{strings.Replace(string(old), `"principal":"team"`, `"principal":"team","operator":false`, 1), ""},
		{strings.Replace(string(old), `"principal":"team"`, `"principal":"team","operator":null`, 1), "local"},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := operators(t, path); got != c.want {
			t.Errorf("operators %q, want %q, of\n%s", got, c.want, c.text)
		}
	}
}

func TestDisableKey(t *testing.T) {
	random := rand.NewChaCha8([32]byte{4})
	one, bearer := newKey(t, random, "local", true)
	two, bearer2 := newKey(t, random, "local", false)
	path := filepath.Join(t.TempDir(), "keys.jsonl")
	addKeys(t, path, one, two)
	keys, err := OpenKeys(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if k, err := DisableKey(path, one.ID); err != nil || !k.Disabled || k.ID != one.ID {
			t.Fatal(k, err)
		}
	}
	if _, err := keys.Authenticate([]string{"Bearer " + bearer}); err == nil {
		t.Error("a disabled key got in")
	}
	if c, err := keys.Authenticate([]string{"Bearer " + bearer2}); err != nil || c.Operator {
		t.Errorf("the other key is %+v, %v", c, err)
	}
	if _, err := DisableKey(path, "nobody"); !errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
	if _, err := ListKeys(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Changes made at once are all made: none is lost to another's older file.
func TestKeyChangesAtOnce(t *testing.T) {
	random := rand.NewChaCha8([32]byte{5})
	path := filepath.Join(t.TempDir(), "keys.jsonl")
	const n = 20
	var made []Key
	for range n {
		k, _ := newKey(t, random, "local", false)
		made = append(made, k)
	}
	addKeys(t, path, made[:n/2]...)
	var wait sync.WaitGroup
	for i, k := range made {
		wait.Go(func() {
			var err error
			if i < n/2 {
				_, err = DisableKey(path, k.ID)
			} else {
				err = AddKey(path, k)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	list, err := ListKeys(path)
	if err != nil || len(list) != n {
		t.Fatalf("%d keys, %v; want %d", len(list), err, n)
	}
	disabled := 0
	for _, k := range list {
		if k.Disabled {
			disabled++
		}
	}
	if disabled != n/2 {
		t.Errorf("%d keys are disabled, want %d", disabled, n/2)
	}
}
