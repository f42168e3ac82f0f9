package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/contract"
)

func (a *app) approveCommand() *cobra.Command {
	return a.approvalCommand("approve", "Let an operation out that waits for an approval", "send it?", `The operation's create, with all it is made of, is what the digest is over.
Whoever submitted it cannot approve it, and the key needs the scope approve.`)
}

func (a *app) denyCommand() *cobra.Command {
	return a.approvalCommand("deny", "End an operation that waits for an approval", "end it?", `Nothing was sent and nothing will be. Whoever submitted it cancels it instead.`)
}

func (a *app) approvalCommand(kind, short, question, long string) *cobra.Command {
	d := client.Decision{Kind: kind}
	var version uint64
	var key string
	cmd := &cobra.Command{
		Use: kind + " OPERATION", Short: short, Args: exactly(1, "one operation id"),
		Long: short + `. Without --digest it shows what waits,
with its parameters, and asks; where there is no terminal, --digest says what was
looked at. ` + long,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if version == 0 || d.Digest == "" {
				op, err := c.Get(cmd.Context(), args[0])
				if err != nil {
					return reach(err)
				}
				if op.Approval == nil {
					return &coded{exitFailure, "", fmt.Errorf("operation %s needs no approval", op.ID)}
				}
				if version == 0 {
					version = op.Version
				}
				if d.Digest == "" {
					if op.Principal == "" { // it is the caller's own, and the service would refuse whatever is typed
						return own(op.ID)
					}
					if err := a.approving(cmd.Context(), cmd.InOrStdin(), c, op, question); err != nil {
						return err
					}
					d.Digest = op.Approval.Digest
				}
			}
			if key == "" {
				key = fmt.Sprintf("%s-%s", args[0], d.Kind)
			}
			op, err := c.Decide(cmd.Context(), args[0], version, key, d)
			if err != nil {
				return reach(err)
			}
			a.noteReplay(op.OriginalStatus)
			return a.show(op)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.Digest, "digest", "", "approval.digest of the operation, as it was looked at")
	flags.StringVar(&d.Why, "why", "", "reason, kept with the operation")
	flags.Uint64Var(&version, "version", 0, "version of the operation that was looked at")
	flags.StringVar(&key, "key", "", "idempotency key (default: made of operation and command)")
	return cmd
}

// own says of an operation of the caller's own what the service would say of the decision.
func own(operation string) error {
	return &coded{exitRefused, ownHint("self_approval"), fmt.Errorf("self_approval: operation %s is your own, and whoever submitted it has no say in its approval", operation)}
}

// approving shows what waits and asks on a terminal.
func (a *app) approving(ctx context.Context, in io.Reader, c *client.Client, op client.Operation, question string) error {
	params, err := c.Params(ctx, op.ID)
	if err != nil {
		return reach(err)
	}
	var shown bytes.Buffer
	if err := json.Indent(&shown, params, "  ", "  "); err != nil {
		return fmt.Errorf("the parameters are not JSON: %w", err)
	}
	fmt.Fprintf(a.stderr, "operation  %s of %s\nprovider   %s, account %s\nparameters\n  %s\ndigest     %s\n",
		op.ID, printable(op.Principal), printable(op.Provider), printable(op.Account), printableLines(shown.String()), op.Approval.Digest)
	for _, d := range op.Approval.Demands {
		fmt.Fprintf(a.stderr, "rule       %s%s%s\n", printable(d.Rule), when(d.Why != "", ": "+printable(d.Why)), when(d.Failed != "", ", which could not be evaluated: "+printable(d.Failed)))
	}
	return a.asked(ctx, in, question, "give --digest if this is meant")
}

// printableLines is printable for text of several lines.
func printableLines(s string) string {
	var out []byte
	for line := range bytes.Lines([]byte(s)) {
		text, end := bytes.CutSuffix(line, []byte{'\n'})
		out = append(out, printable(string(text))...)
		if end {
			out = append(out, '\n')
		}
	}
	return string(out)
}

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Check a policy file",
		Args: known, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "check FILE", Short: "Report every problem of a policy file, with its place", Args: exactly(1, "one file"),
		Long: `Report every problem of a policy file: line and column, the rule, what is wrong,
and where in its expression. The exit code is 1 if there is a problem, and 2 if
the file cannot be read. See docs/POLICY.md.`,
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				var path *fs.PathError
				if errors.As(err, &path) {
					err = path.Err
				}
				return usage("not checked: %s: %w", args[0], err)
			}
			p, err := contract.ParsePolicy(args[0], text)
			var wrong *contract.ParseError
			switch {
			case errors.As(err, &wrong):
				fmt.Fprintln(a.stdout, wrong)
				return &coded{exitFailure, "", fmt.Errorf("%d problems in %s", len(wrong.Problems), args[0])}
			case err != nil:
				return err
			}
			if a.output == "json" {
				return a.json(map[string]any{"rules": p.Rules()})
			}
			fmt.Fprintf(a.stdout, "%s: %d rules, no problem\n", args[0], len(p.Rules()))
			return nil
		},
	})
	return cmd
}
