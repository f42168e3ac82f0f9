package wire

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// CredentialsConfig says which credentials file is followed. Every field is
// required.
type CredentialsConfig struct {
	Path string
	// Optional says that there may be no file: it is the default path and not
	// one that was asked for. One that is written later is taken up.
	Optional  bool
	Contracts map[string]*contract.Contract
	AllowHTTP bool
	Now       func() time.Time
	Log       *slog.Logger
}

// Credentials follows a credentials file, as [followed] says. Nil has no file: nothing
// is configured by it, and everyone may use everything.
type Credentials struct{ file followed[CredentialsTable] }

// CredentialsStatus says what is known of the credentials file.
type CredentialsStatus = FileStatus

// OpenCredentials reads the file. It fails if that is wrong, or others can read
// it, or it is gone and not optional.
func OpenCredentials(cfg CredentialsConfig) (*Credentials, error) {
	c := &Credentials{}
	c.file.cfg = fileConfig[CredentialsTable]{
		what: "credentials file", path: cfg.Path, optional: cfg.Optional, limit: MaxCredentials, now: cfg.Now, log: cfg.Log,
		parse: func(text []byte) (*CredentialsTable, error) {
			return ParseCredentials(cfg.Path, text, cfg.Contracts, cfg.AllowHTTP)
		},
		where: func(err error) string {
			var in *credentialsError
			if errors.As(err, &in) {
				return in.where
			}
			return ""
		},
	}
	if err := c.file.open(); err != nil {
		return nil, err
	}
	return c, nil
}

// onChange sets what is called after another version of the file was taken up.
func (c *Credentials) onChange(f func()) {
	if c != nil {
		c.file.onChange(f)
	}
}

// Status looks at the file and says how it stands.
func (c *Credentials) Status() CredentialsStatus {
	if c == nil {
		return CredentialsStatus{}
	}
	return c.file.Status()
}

var noCredentials = &CredentialsTable{}

// table gives the newest good version.
func (c *Credentials) table() *CredentialsTable {
	if c == nil {
		return noCredentials
	}
	if t := c.file.newest(); t != nil {
		return t
	}
	return noCredentials
}

// denying refuses API keys that the credentials file denies, in the words in
// which an unknown key is refused.
type denying struct {
	keys  *ingest.Keys
	table func() *CredentialsTable
}

// Authenticate implements api.Authenticator.
func (d denying) Authenticate(header []string) (ingest.Caller, error) {
	return d.let(d.keys.Authenticate(header))
}

// Known is [ingest.Keys.Known] for keys that are not denied.
func (d denying) Known(principal, key string) (ingest.Caller, error) {
	return d.let(d.keys.Known(principal, key))
}

// Counts is [ingest.Keys.Counts] for keys that are not denied.
func (d denying) Counts(principal, key string) (ingest.Caller, error) {
	return d.let(d.keys.Counts(principal, key))
}

func (d denying) let(caller ingest.Caller, err error) (ingest.Caller, error) {
	if err == nil && d.table().denied[caller.KeyID] {
		refused := ingest.Unauthenticated()
		refused.Key, refused.KeyState = caller.KeyID, "denied"
		return ingest.Caller{}, refused
	}
	return caller, err
}

// Credentials says how the credentials file stands.
func (s *Service) Credentials() CredentialsStatus { return s.cfg.Credentials.Status() }

// tellCredentials tells of every entry of the file that a flag wins over, and of
// every configured reference that leads to nothing. The latter is no failure:
// the value may come later, and is looked for at each call.
func (s *Service) tellCredentials(ctx context.Context) {
	for _, at := range s.catalogue.shadowed() {
		s.cfg.Log.InfoContext(ctx, "a flag wins over an entry of the credentials file", "entry", at)
	}
	for _, provider := range s.catalogue.Providers() {
		for _, account := range s.catalogue.Accounts(provider) {
			a, _ := s.catalogue.Account(provider, account) // it has no other error than none
			for _, r := range []struct{ what, reference, hint string }{
				{"credential", a.Credential, "put the secret there; calls under this account rest until then"},
				{"webhook secret", s.catalogue.webhookSecret(provider, account), "put the secret there; webhooks of this account are refused until then"},
			} {
				if r.reference == "" {
					continue
				}
				if _, err := s.cfg.Resolve.Resolve(ctx, r.reference); err != nil {
					s.cfg.Log.WarnContext(ctx, "a reference leads to no secret", "what", r.what,
						"provider", provider, "account", account, "reference", r.reference, "error", err, "hint", r.hint)
				}
			}
		}
	}
}
