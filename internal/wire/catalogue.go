package wire

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/poller"
)

// Payloads keeps contracts by the digest of their bytes, for ever: an
// operation is followed by the contract it was recorded with.
type Payloads interface {
	PutPayload(ctx context.Context, body []byte) (events.Digest, error)
	Payload(ctx context.Context, digest events.Digest) ([]byte, error)
}

// Catalogue is the contracts new operations may use, every contract an old one
// was recorded with, and the accounts as configured. Safe for concurrent use.
type Catalogue struct {
	payloads Payloads
	accounts map[string]poller.Account // by "provider/account" or "provider"
	hooks    map[string]string         // references of webhook secrets by provider
	public   string                    // address at which providers reach us; "" if they cannot
	current  map[string]*contract.Contract

	mu       sync.Mutex
	byDigest map[events.Digest]*contract.Contract // guarded by mu
}

// LoadContracts parses the built-in contracts and those of a directory, which
// replace a built-in one of the same name. It reports every problem of every
// file.
func LoadContracts(builtin fs.FS, dir string) (map[string]*contract.Contract, map[string][]byte, error) {
	contracts, sources := map[string]*contract.Contract{}, map[string][]byte{}
	var problems []string
	load := func(files fs.FS, prefix string) error {
		names, err := fs.Glob(files, "*.yaml")
		if err != nil {
			return err
		}
		seen := map[string]string{}
		for _, name := range names {
			source, err := fs.ReadFile(files, name)
			if err != nil {
				return err
			}
			shown := filepath.Join(prefix, name)
			c, err := contract.Parse(shown, source)
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			if other, twice := seen[c.Name]; twice {
				problems = append(problems, fmt.Sprintf("%s: name: %q is the name in %s already", shown, c.Name, other))
				continue
			}
			seen[c.Name] = shown
			contracts[c.Name], sources[c.Name] = c, source
		}
		return nil
	}
	if err := load(builtin, "builtin"); err != nil {
		return nil, nil, fmt.Errorf("read the built-in contracts: %w", err)
	}
	if dir != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, nil, fmt.Errorf("contracts directory %s: not a directory that can be read", dir)
		}
		if err := load(os.DirFS(dir), dir); err != nil {
			return nil, nil, fmt.Errorf("read contracts of %s: %w", dir, err)
		}
	}
	if len(problems) > 0 {
		return nil, nil, fmt.Errorf("contracts with problems:\n%s", strings.Join(problems, "\n"))
	}
	return contracts, sources, nil
}

// NewCatalogue keeps the contracts' bytes and gives a catalogue of them. A
// crash in between leaves bytes nothing refers to, stored again next time.
func NewCatalogue(ctx context.Context, payloads Payloads, contracts map[string]*contract.Contract, sources map[string][]byte, accounts map[string]poller.Account, hooks map[string]string, public string) (*Catalogue, error) {
	c := &Catalogue{
		payloads: payloads, accounts: maps.Clone(accounts), hooks: maps.Clone(hooks), public: public,
		current: maps.Clone(contracts), byDigest: map[events.Digest]*contract.Contract{},
	}
	for name, one := range contracts {
		if _, err := payloads.PutPayload(ctx, sources[name]); err != nil {
			return nil, fmt.Errorf("keep contract %s: %w", name, err)
		}
		c.byDigest[one.Digest] = one
	}
	return c, nil
}

// Providers lists the contracts for new operations by name.
func (c *Catalogue) Providers() []string { return slices.Sorted(maps.Keys(c.current)) }

// Current gives the contract for new operations of a provider.
func (c *Catalogue) Current(provider string) (*contract.Contract, bool) {
	one, ok := c.current[provider]
	return one, ok
}

// HasAccount says whether an operation may name the account: it is configured,
// or it is the default one.
func (c *Catalogue) HasAccount(provider, account string) bool {
	_, ok := c.accounts[provider+"/"+account]
	return ok || account == DefaultAccount
}

// Accounts lists the accounts an operation of the provider may name.
func (c *Catalogue) Accounts(provider string) []string {
	list := []string{DefaultAccount}
	for name := range c.accounts {
		if account, ok := strings.CutPrefix(name, provider+"/"); ok && account != DefaultAccount {
			list = append(list, account)
		}
	}
	slices.Sort(list)
	return list
}

// DefaultAccount is the account of an operation that names none.
const DefaultAccount = "default"

// WebhookSecret gives the reference of the secret a provider signs with.
func (c *Catalogue) WebhookSecret(provider string) (string, bool) {
	reference, ok := c.hooks[provider]
	return reference, ok
}

// Reachable says whether webhooks of the provider can reach us and be verified.
func (c *Catalogue) Reachable(provider string) bool {
	one, ok := c.current[provider]
	return ok && one.Webhook != nil && c.public != "" && c.hooks[provider] != ""
}

// Contract gives the contract with that digest, however old.
func (c *Catalogue) Contract(ctx context.Context, digest events.Digest) (*contract.Contract, error) {
	c.mu.Lock()
	one, ok := c.byDigest[digest]
	c.mu.Unlock()
	if ok {
		return one, nil
	}
	source, err := c.payloads.Payload(ctx, digest)
	if err != nil {
		return nil, fmt.Errorf("read contract %s: %w", digest, err)
	}
	one, err = contract.Parse(digest.String()+".yaml", source)
	if err != nil {
		return nil, fmt.Errorf("contract %s was written for another version of this program: %w", digest, err)
	}
	c.mu.Lock()
	c.byDigest[digest] = one
	c.mu.Unlock()
	return one, nil
}

// Account gives where the calls of a provider and account go as configured now:
// what is said of the account, and else what is said of its provider.
func (c *Catalogue) Account(provider, account string) (poller.Account, error) {
	a, all := c.accounts[provider+"/"+account], c.accounts[provider]
	if a.BaseURL == "" {
		a.BaseURL = all.BaseURL
	}
	if a.Credential == "" {
		a.Credential = all.Credential
	}
	return a, nil
}
