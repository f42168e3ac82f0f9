package wire

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
)

// PolicyConfig says which policy file is followed. Every field is required.
type PolicyConfig struct {
	Path string
	Now  func() time.Time
	Log  *slog.Logger
}

// PolicyFile follows a policy file, as [followed] says: where the file as it is now is
// wrong, or gone, the rules before still hold. Nil has no file and no rules.
type PolicyFile struct{ file followed[contract.Policy] }

// OpenPolicy reads the file. It fails if that is wrong, or gone, or others can change it.
func OpenPolicy(cfg PolicyConfig) (*PolicyFile, error) {
	p := &PolicyFile{}
	p.file.cfg = fileConfig[contract.Policy]{
		what: "policy file", path: cfg.Path, limit: contract.MaxFile, now: cfg.Now, log: cfg.Log,
		parse: func(text []byte) (*contract.Policy, error) { return contract.ParsePolicy(cfg.Path, text) },
		where: func(err error) string {
			var wrong *contract.ParseError
			if !errors.As(err, &wrong) {
				return ""
			}
			first := wrong.Problems[0]
			text := fmt.Sprintf("line %d", first.Line)
			if first.Field != "" {
				text += ", " + first.Field
			}
			return text
		},
	}
	if err := p.file.open(); err != nil {
		return nil, err
	}
	return p, nil
}

// Policy gives the rules as they are now; nil has none.
func (p *PolicyFile) Policy() *contract.Policy {
	if p == nil {
		return nil
	}
	return p.file.newest()
}

// Status looks at the file and says how it stands.
func (p *PolicyFile) Status() FileStatus {
	if p == nil {
		return FileStatus{}
	}
	return p.file.Status()
}
