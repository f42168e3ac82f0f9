package ingest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/counterfoil/counterfoil/internal/contract"
)

const (
	keyPrefix   = "cf_"
	secretBytes = 32 // 256 bits, so a plain digest is enough to keep
	maxKeysFile = 1 << 20
	keyFileMode = 0o600
	othersBits  = 0o077
	lastYear    = 2200 // of an expiry
)

// Key is one line of the keys file. The secret itself is nowhere.
type Key struct {
	ID        string    `json:"id"`
	Principal string    `json:"principal"`
	SHA256    string    `json:"sha256"` // of the secret part, in hex
	Created   time.Time `json:"created"`
	Disabled  bool      `json:"disabled,omitzero"`
	// Operator says that the key may also place and release holds. Where no line
	// of a file has the member, the file is older than it, and the first key, the
	// one that the first start made, has the right.
	Operator *bool `json:"operator"`
	// Scopes is what the key may do. Where a line has no such member the key is
	// older than it: see [UnstatedScopes]. An empty list allows nothing.
	Scopes []Scope `json:"scopes,omitzero"`
	// Team is the team of the principal; "" leaves it at what an earlier line says.
	Team string `json:"team,omitzero"`
	// Expires is when the key stops to count; zero means never.
	Expires time.Time `json:"expires,omitzero"`
}

// Expired says whether the key has stopped to count. It goes by this machine's
// clock: where that is set back the key counts again.
func (k Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Operates says whether the key has the operator's right, also by a scope.
func (k Key) Operates() bool {
	return k.Operator != nil && *k.Operator || slices.Contains(k.Scopes, ScopeAdmin)
}

// May lists what the key may do, beside the operator's right.
func (k Key) May() []Scope {
	if k.Scopes == nil {
		return UnstatedScopes()
	}
	return k.Scopes
}

// TeamsOf gives the team of each principal: what its last line that names one
// says, whether or not the key still counts, since operations outlive keys.
func TeamsOf(list []Key) Teams {
	teams := Teams{}
	for _, k := range list {
		if k.Team != "" {
			teams[k.Principal] = k.Team
		}
	}
	return teams
}

// NewKey makes a key from 256 random bits and gives the bearer text, which is
// shown once and not kept. operator gives it the operator's right.
func NewKey(random io.Reader, principal string, operator bool, now time.Time) (Key, string, error) {
	if !contract.ValidName(principal) {
		return Key{}, "", fmt.Errorf("make a key: principal %q: must be 1 to 64 of a-z, 0-9, _ and -", principal)
	}
	raw := make([]byte, 10+secretBytes)
	if _, err := io.ReadFull(random, raw); err != nil {
		return Key{}, "", fmt.Errorf("make a key: %w", err)
	}
	id := strings.ToLower(base32.StdEncoding.EncodeToString(raw[:10]))
	secret := base64.RawURLEncoding.EncodeToString(raw[10:])
	sum := sha256.Sum256([]byte(secret))
	key := Key{ID: id, Principal: principal, SHA256: hex.EncodeToString(sum[:]), Created: now.UTC().Truncate(time.Second), Operator: &operator}
	return key, keyPrefix + id + "." + secret, nil
}

// AddKey appends a key to the file, making it if it is not there. The file is
// replaced whole: a crash leaves the old one or the new one, and in the latter
// case a key whose secret nobody saw, which can be disabled or left.
func AddKey(path string, key Key) error {
	if problem := key.problem(); problem != "" {
		return errors.New("add a key: " + problem)
	}
	err := changeKeys(path, func(list []Key) ([]Key, error) {
		for _, k := range list {
			if k.ID == key.ID {
				return nil, fmt.Errorf("there is one with id %s", key.ID)
			}
		}
		return append(list, key), nil
	})
	if err != nil {
		return fmt.Errorf("add a key to %s: %w", path, err)
	}
	return nil
}

func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".keys-*") // made 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(keyFileMode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// readKeys reads the file and refuses one that others can read.
func readKeys(path string) ([]Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&othersBits != 0:
		return nil, fmt.Errorf("%s is open to others (mode %04o); run chmod 600 %s", path, info.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeysFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxKeysFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxKeysFile)
	}
	return parseKeys(path, text)
}

func parseKeys(path string, text []byte) ([]Key, error) {
	var list []Key
	seen := map[string]bool{}
	stated := false // some line has the member operator
	for i, line := range bytes.Split(text, []byte{'\n'}) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		var k Key
		if err := json.Unmarshal(line, &k, json.RejectUnknownMembers(true)); err != nil {
			// The library's text could show the line, and so a digest.
			return nil, fmt.Errorf("%s:%d: not a key: want {\"id\",\"principal\",\"sha256\",\"created\",\"disabled\",\"operator\",\"scopes\",\"team\",\"expires\"}", path, i+1)
		}
		if problem := k.problem(); problem != "" {
			return nil, fmt.Errorf("%s:%d: %s", path, i+1, problem)
		}
		if seen[k.ID] {
			return nil, fmt.Errorf("%s:%d: id %s is there twice", path, i+1, k.ID)
		}
		seen[k.ID] = true
		stated = stated || k.Operator != nil
		list = append(list, k)
	}
	for i := range list {
		if list[i].Operator == nil {
			right := !stated && i == 0 && list[i].Scopes == nil
			list[i].Operator = &right
		}
	}
	return list, nil
}

func (k Key) problem() string {
	sum, err := hex.DecodeString(k.SHA256)
	switch {
	case !contract.ValidName(k.ID):
		return "id must be 1 to 64 of a-z, 0-9, _ and -"
	case !contract.ValidName(k.Principal):
		return "principal must be 1 to 64 of a-z, 0-9, _ and -"
	case err != nil || len(sum) != sha256.Size:
		return "sha256 must be 64 hexadecimal digits"
	case k.Team != "" && !contract.ValidName(k.Team):
		return "team must be 1 to 64 of a-z, 0-9, _ and -"
	case k.Expires.Year() > lastYear:
		return fmt.Sprintf("expires must be before the end of %d", lastYear)
	}
	return checkScopes(k.Scopes)
}

// Keys authenticates callers against a keys file and follows its changes. It is
// safe for concurrent use.
type Keys struct {
	path string
	now  func() time.Time

	mu    sync.Mutex
	stamp stamp                // of the file keys was read from; guarded by mu
	keys  map[string]Key       // guarded by mu
	teams Teams                // replaced whole; guarded by mu
	used  map[string]time.Time // by id, and not noted yet; guarded by mu
}

// stamp tells one version of the file from the next. An editor that writes in
// place within the clock's grain and leaves the size is not noticed; one that
// replaces the file, as AddKey does, is.
type stamp struct {
	modified time.Time
	size     int64
	mode     fs.FileMode
}

// OpenKeys reads the file. It fails if others can read it, a line is wrong, or it has no
// key. now is what keys expire by.
func OpenKeys(path string, now func() time.Time) (*Keys, error) {
	k := &Keys{path: path, now: now, used: map[string]time.Time{}}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return k, nil
}

func (k *Keys) refreshLocked() error {
	info, err := os.Stat(k.path)
	if err != nil {
		return err
	}
	now := stamp{info.ModTime(), info.Size(), info.Mode()}
	if k.keys != nil && now == k.stamp {
		return nil
	}
	list, err := readKeys(k.path)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		// Everybody would be told that no key of theirs counts, for good.
		return fmt.Errorf("%s has no key: put back what it held, or make a key with counterfoil principal create", k.path)
	}
	k.keys = make(map[string]Key, len(list))
	for _, key := range list {
		k.keys[key.ID] = key
	}
	k.teams = TeamsOf(list)
	// A change between Stat and the read is seen at the next call.
	k.stamp = now
	return nil
}

// Authenticate reads an Authorization header. While the file cannot be read or
// is wrong nobody gets in: the change that broke it may have been a revocation.
// The error then wraps the cause, for the log; it is not a [Refusal].
func (k *Keys) Authenticate(header []string) (Caller, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return Caller{}, &KeysError{err}
	}
	refused := Unauthenticated()
	if len(header) != 1 {
		return Caller{}, refused
	}
	scheme, token, _ := strings.Cut(header[0], " ")
	text, ours := strings.CutPrefix(strings.TrimSpace(token), keyPrefix)
	id, secret, whole := strings.Cut(text, ".")
	key, known := k.keys[id]
	// An unknown id takes the same time as a wrong secret.
	want, err := hex.DecodeString(key.SHA256)
	if err != nil || len(want) != sha256.Size {
		want, known = make([]byte, sha256.Size), false
	}
	sum := sha256.Sum256([]byte(secret))
	equal := subtle.ConstantTimeCompare(sum[:], want) == 1
	if !equal || !known || !whole || !ours || !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, refused
	}
	return k.admitLocked(key, true)
}

// Known gives the caller of a key whose secret was seen before, by who let it in.
// It is answered as Authenticate would: by what the file says now.
func (k *Keys) Known(principal, id string) (Caller, error) { return k.known(principal, id, true) }

// Counts is Known for one that only stays connected, which is no use of its key.
func (k *Keys) Counts(principal, id string) (Caller, error) { return k.known(principal, id, false) }

func (k *Keys) known(principal, id string, use bool) (Caller, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return Caller{}, &KeysError{err}
	}
	key, known := k.keys[id]
	if !known || key.Principal != principal {
		return Caller{}, Unauthenticated()
	}
	return k.admitLocked(key, use)
}

// admitLocked lets a key in whose secret was right, if it still counts.
func (k *Keys) admitLocked(key Key, use bool) (Caller, error) {
	refused := Unauthenticated()
	now := k.now()
	switch {
	case key.Disabled:
		refused.Key, refused.KeyState = key.ID, "disabled"
		return Caller{}, refused
	case key.Expired(now):
		refused.Key, refused.KeyState = key.ID, "expired"
		return Caller{}, refused
	}
	if use {
		k.used[key.ID] = now
	}
	return Caller{
		Principal: key.Principal, KeyID: key.ID, Operator: key.Operates(), Scopes: key.May(), Teams: k.teams, Expires: key.Expires,
	}, nil
}

// Unauthenticated refuses a caller without telling why: a key that is unknown,
// wrong, disabled, expired or denied gets the same words.
func Unauthenticated() *Refusal {
	return &Refusal{Code: CodeUnauthenticated, Detail: "send Authorization: Bearer cf_… with a key of this installation"}
}

// KeysError says that keys cannot be checked.
type KeysError struct{ Cause error }

func (e *KeysError) Error() string { return "keys cannot be checked: " + e.Cause.Error() }

// Unwrap gives the cause.
func (e *KeysError) Unwrap() error { return e.Cause }
