package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// Identity is what makes operation ids and tokens this installation's own. It
// is made at the first start and kept outside the ledger: whoever loses the
// ledger and keeps this gets the same ids and tokens for the same requests, and
// so no second job. Back it up apart from the data.
type Identity struct {
	Installation string    `json:"installation_id"`
	Key          []byte    `json:"instance_key"` // 32 bytes; never rotated in place
	Created      time.Time `json:"created"`
}

// derive gives a key for one purpose; it does not give the instance key away.
func (id Identity) derive(purpose string) []byte {
	h := hmac.New(sha256.New, id.Key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

const identityName = "identity.json"

// ErrNoIdentity says that the identity is gone while the ledger is not.
var ErrNoIdentity = errors.New("the identity of this installation is missing")

// LoadIdentity reads the identity in dir. If there is none it makes one from
// random, but only where fresh says that the ledger is empty: with another
// identity the same requests would get other ids and tokens, and so second
// jobs. A crash while it is made leaves a temporary file and no identity; the
// next start makes another, and nothing was derived from the first.
func LoadIdentity(dir string, random io.Reader, now time.Time, fresh bool) (Identity, error) {
	return LoadIdentityFile(filepath.Join(dir, identityName), random, now, fresh)
}

// LoadIdentityFile is LoadIdentity for a file of any name.
func LoadIdentityFile(path string, random io.Reader, now time.Time, fresh bool) (Identity, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !fresh {
		return Identity{}, fmt.Errorf("%w: %s is not there, and the ledger has facts", ErrNoIdentity, path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return makeIdentity(path, random, now)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("read the identity of this installation: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return Identity{}, fmt.Errorf("identity file %s can be read by others (mode %04o): it holds the instance key; run chmod 600 on it", path, info.Mode().Perm())
	}
	return parseIdentity(path, text)
}

// maxIdentity is the most bytes of an identity file.
const maxIdentity = 4 << 10

// ReadIdentity reads the identity for a process that never makes one. The file
// may be mounted as secrets are: see [outbound.ReadPrivate].
func ReadIdentity(path string) (Identity, error) {
	text, _, err := outbound.ReadPrivate(path, maxIdentity)
	if err != nil {
		return Identity{}, fmt.Errorf("read the identity of this installation: %w", err)
	}
	return parseIdentity(path, text)
}

func parseIdentity(path string, text []byte) (Identity, error) {
	var id Identity
	if err := json.Unmarshal(text, &id); err != nil {
		return Identity{}, fmt.Errorf("identity file %s is not readable as JSON: restore it from a backup; without it the same requests get other ids and tokens", path)
	}
	if id.Installation == "" || len(id.Key) != sha256.Size {
		return Identity{}, fmt.Errorf("identity file %s: want an installation id and an instance key of %d bytes; restore it from a backup", path, sha256.Size)
	}
	return id, nil
}

func makeIdentity(path string, random io.Reader, now time.Time) (Identity, error) {
	var seed [16 + sha256.Size]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		return Identity{}, fmt.Errorf("make the identity of this installation: %w", err)
	}
	id := Identity{
		Installation: "in_" + base64.RawURLEncoding.EncodeToString(seed[:16]),
		Key:          seed[16:],
		Created:      now.UTC(),
	}
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return Identity{}, fmt.Errorf("write the identity of this installation: %w", err)
	}
	if err := writeSynced(path, append(text, '\n'), 0o600); err != nil {
		return Identity{}, fmt.Errorf("write the identity of this installation: %w", err)
	}
	return id, nil
}

// writeSynced writes a file that is there whole or not at all, also after
// power loss.
func writeSynced(path string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
