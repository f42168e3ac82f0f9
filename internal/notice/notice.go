// Package notice tells people of operations that came to rest and wait for them.
//
// Every rest is a line in the log at error level. Where a command is configured it
// is also run, once for each rest, with the notice as JSON on its standard input,
// no shell and none of this process's environment, which holds credentials.
//
// Guarantees. The line is written before the record that makes the rest known, so
// a crash repeats it and does not lose it. The command runs after the fact that
// permits it is stored, and how it ended is a fact too: a crash in between leaves
// a notice without an answer, which the next run repeats once, as attempt 2 of the
// same id. So people are told at least once, and at most twice for one rest. An
// operation that has moved on before its turn came is not told of.
//
// Limits. A command that fails is not run again: the line in the log has what it
// was given. A history that is derived anew writes its lines again.
package notice

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/runbook"
	"github.com/counterfoil/counterfoil/projections"
)

// base is where the runbooks are.
const base = "https://github.com/counterfoil/counterfoil/blob/main/docs/runbooks/"

// Notice is what is said of one rest of one operation. It is made of names, codes
// and times: no text of the provider but ids of jobs, none of a caller or of an
// error.
type Notice struct {
	Version   int                    `json:"version"` // of this document: 1
	ID        string                 `json:"id"`      // the same for a repeat
	Attempt   uint64                 `json:"attempt"` // 1, or 2 where it is not known whether the first arrived
	Operation string                 `json:"operation"`
	Trace     string                 `json:"trace,omitempty"` // that of the operation's calls
	Phase     projections.Phase      `json:"phase"`
	Kind      projections.Quarantine `json:"kind,omitempty"`
	Reason    projections.Reason     `json:"reason"`
	Problem   events.ErrorClass      `json:"problem,omitempty"` // class of what last went wrong in asking the provider
	Cause     string                 `json:"cause,omitempty"`   // the same in our words, with how often
	Since     time.Time              `json:"since"`
	Principal string                 `json:"principal"`
	Provider  string                 `json:"provider"`
	Account   string                 `json:"account"`
	Job       string                 `json:"job,omitempty"`
	Runbook   string                 `json:"runbook"`
	Command   string                 `json:"command"` // the look to begin with
	Help      []string               `json:"help"`    // what helps, a line for each; the first is the command
}

// Of gives the notice of a state that rests.
func Of(s projections.State) Notice {
	help := runbook.Lines(runbook.Steps(s)) // never empty for a state that rests
	first := s.Notice.Made + 1 - s.Notice.Told
	trouble, _ := runbook.TroubleOf(s)
	return Notice{
		Version: 1, ID: fmt.Sprintf("%s/%d", s.Operation, first), Attempt: s.Notice.Told + 1,
		Operation: s.Operation, Trace: s.TraceID(), Phase: s.Phase, Kind: s.Quarantine, Reason: s.Reason, Since: s.Since.UTC(),
		Problem: trouble.Class, Cause: trouble.Words,
		Principal: s.Intent.Principal, Provider: s.Intent.Provider, Account: s.Intent.Account, Job: s.Job.ID,
		Runbook: base + runbook.Of(s).Page(), Command: help[0], Help: help,
	}
}

// document is the notice as the command reads it.
func (n Notice) document() []byte {
	text, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("notice: %v", err)) // strings, numbers and times of four digits always encode
	}
	return append(text, '\n')
}

// attributes is the notice as a line in the log has it.
func (n Notice) attributes() []any {
	list := []any{
		slog.String("operation", n.Operation), slog.String("trace", n.Trace), slog.String("phase", string(n.Phase)), slog.String("reason", string(n.Reason)),
		slog.Time("since", n.Since), slog.String("provider", n.Provider), slog.String("account", n.Account),
		slog.String("runbook", n.Runbook), slog.String("command", n.Command), slog.Any("help", n.Help),
	}
	if n.Kind != "" {
		list = append(list, slog.String("kind", string(n.Kind)))
	}
	if n.Problem != events.ErrorNone {
		list = append(list, slog.String("problem", string(n.Problem)), slog.String("cause", n.Cause))
	}
	return list
}
