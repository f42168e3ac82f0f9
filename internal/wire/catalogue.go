package wire

import (
	"cmp"
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
	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/webhook"
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
	accounts map[string]poller.Account // as the flags say, by "provider/account" or "provider"
	hooks    map[string]string         // the same of webhook secrets, by provider
	file     *Credentials              // what no flag says
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
			// Opening a pipe would wait for a writer.
			if info, err := fs.Stat(files, name); err == nil && !info.Mode().IsRegular() {
				return fmt.Errorf("%s: not a regular file", filepath.Join(prefix, name))
			}
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

// NewCatalogue keeps the contracts' bytes and gives a catalogue of them.
// accounts and hooks win over the file, wherever they apply. A crash in between
// leaves bytes nothing refers to, stored again next time.
func NewCatalogue(ctx context.Context, payloads Payloads, contracts map[string]*contract.Contract, sources map[string][]byte, accounts map[string]poller.Account, hooks map[string]string, file *Credentials, public string) (*Catalogue, error) {
	c := &Catalogue{
		payloads: payloads, accounts: maps.Clone(accounts), hooks: maps.Clone(hooks), file: file, public: public,
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

// DefaultAccount is the account of an operation that names none.
const DefaultAccount = "default"

// HasAccount says whether an operation may name the account: it is configured,
// or it is the default one.
func (c *Catalogue) HasAccount(provider, account string) bool {
	if account == DefaultAccount {
		return true
	}
	_, flag := c.accounts[provider+"/"+account]
	_, file := c.file.table().accounts[provider][account]
	return flag || file && account != AllAccounts
}

// Accounts lists the accounts an operation of the provider may name, sorted.
func (c *Catalogue) Accounts(provider string) []string {
	list := []string{DefaultAccount}
	for name := range c.accounts {
		if account, ok := strings.CutPrefix(name, provider+"/"); ok {
			list = append(list, account)
		}
	}
	for account := range c.file.table().accounts[provider] {
		if account != AllAccounts {
			list = append(list, account)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// MayUse says whether the principal may use the account, whether or not it is
// configured.
func (c *Catalogue) MayUse(principal, provider, account string) bool {
	return c.file.table().mayUse(principal, provider, account)
}

// AccountsOf lists the accounts of the provider that the principal may use,
// sorted.
func (c *Catalogue) AccountsOf(principal, provider string) []string {
	table := c.file.table()
	return slices.DeleteFunc(c.Accounts(provider), func(account string) bool {
		return !table.mayUse(principal, provider, account)
	})
}

// Quotas gives what the principal may begin: what the credentials file says of it, and of
// what it does not say there, of all.
func (c *Catalogue) Quotas(principal string) ingest.Quotas {
	quotas := c.file.table().quotas
	one, all := quotas[principal], quotas[AllPrincipals]
	out := ingest.Quotas{Submits: cmp.Or(one.Submits, all.Submits), Open: cmp.Or(one.Open, all.Open), Costs: all.Costs}
	if len(one.Costs) > 0 {
		out.Costs = maps.Clone(one.Costs)
		for unit, amount := range all.Costs {
			if _, said := one.Costs[unit]; !said {
				out.Costs[unit] = amount
			}
		}
	}
	return out
}

// Unbounded lists the principals, AllPrincipals for those that quotas do not name, that may use the account and
// have a quota of costs that counts nothing of what they begin there: the contract does not
// say what a job costs, or says it in a unit that the quota does not name.
func (c *Catalogue) Unbounded(provider, account string) []string {
	table := c.file.table()
	unit := ""
	if current, ok := c.Current(provider); ok {
		unit = current.CostUnit()
	}
	names := map[string]bool{AllPrincipals: true}
	for name := range table.quotas {
		names[name] = true
	}
	for name := range table.grants {
		names[name] = true
	}
	var list []string
	for name := range names {
		costs := c.Quotas(name).Costs
		if _, counted := costs[unit]; len(costs) > 0 && !counted && table.mayUse(name, provider, account) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// WebhookSecrets gives what a provider signs the webhooks of its accounts with.
func (c *Catalogue) WebhookSecrets(provider string) []webhook.Secret {
	var list []webhook.Secret
	for _, account := range c.Accounts(provider) {
		if reference := c.webhookSecret(provider, account); reference != "" {
			list = append(list, webhook.Secret{Account: account, Reference: reference})
		}
	}
	return list
}

func (c *Catalogue) webhookSecret(provider, account string) string {
	if reference := c.hooks[provider]; reference != "" {
		return reference
	}
	file := c.file.table().accounts[provider]
	return cmp.Or(file[account].WebhookSecret, file[AllAccounts].WebhookSecret)
}

// Reachable says whether webhooks for the account can reach us and be verified.
func (c *Catalogue) Reachable(provider, account string) bool {
	one, ok := c.current[provider]
	return ok && one.Webhook != nil && c.public != "" && c.webhookSecret(provider, account) != ""
}

// shadowed lists the entries of the file that a flag wins over, sorted:
// "example.research.credential".
func (c *Catalogue) shadowed() []string {
	var list []string
	for provider, accounts := range c.file.table().accounts {
		for account, e := range accounts {
			one, all := c.accounts[provider+"/"+account], c.accounts[provider]
			for _, part := range []struct{ name, file, flag string }{
				{"credential", e.Credential, cmp.Or(one.Credential, all.Credential)},
				{"base_url", e.BaseURL, cmp.Or(one.BaseURL, all.BaseURL)},
				{"webhook_secret", e.WebhookSecret, c.hooks[provider]},
			} {
				if part.file != "" && part.flag != "" {
					list = append(list, provider+"."+account+"."+part.name)
				}
			}
		}
	}
	slices.Sort(list)
	return list
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

// Calls gives what may be asked of an account at once and in a stretch of time: by
// the credentials file, else by the contract for new operations.
func (c *Catalogue) Calls(provider, account string) budget.Limits {
	file := c.file.table().accounts[provider]
	if l := cmp.Or(file[account].Limits, file[AllAccounts].Limits); l != nil {
		return *l
	}
	if one := c.current[provider]; one != nil {
		return one.Calls
	}
	return budget.Limits{}
}

// Account gives where the calls of a provider and account go as configured now.
// Each part is said by the flag of the account, else by the flag of its
// provider, else by the file's entry of the account, else by its entry for all
// accounts. An account that is configured nowhere, by now, gets nothing of what
// is said for all: its jobs are not another account's to ask for.
func (c *Catalogue) Account(provider, account string) (poller.Account, error) {
	one, all := c.accounts[provider+"/"+account], c.accounts[provider]
	file := c.file.table().accounts[provider]
	a := poller.Account{
		BaseURL:    cmp.Or(one.BaseURL, all.BaseURL, file[account].BaseURL, file[AllAccounts].BaseURL),
		Credential: cmp.Or(one.Credential, all.Credential, file[account].Credential, file[AllAccounts].Credential),
	}
	if !c.HasAccount(provider, account) {
		a = poller.Account{Missing: fmt.Sprintf("account %s of provider %s is not configured any more", account, provider)}
	}
	return a, nil
}
