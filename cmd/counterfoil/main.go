// Command counterfoil stands between callers and providers' asynchronous job
// APIs: it writes every intent down before acting on it, makes the calls
// itself, and can say afterwards what was asked, what was seen and why.
//
// One binary holds everything: the service on an embedded store (serve), a
// demonstration (demo), failure drills (drill), and the commands of a caller.
// Exit codes are documented by "counterfoil help exit-codes".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/launch"
)

func main() {
	os.Exit(run(launch.UntilStopped(), os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// Exit codes. They are for ever.
const (
	exitOK          = 0
	exitFailure     = 1                  // the command could not do its work
	exitUsage       = 2                  // the command line is wrong
	exitRefused     = 3                  // the service refused; its code is on stderr
	exitUnreachable = 4                  // the service did not answer: repeat with the same key
	exitFailed      = 10                 // the operation failed
	exitCancelled   = 11                 // the operation was cancelled
	exitAbandoned   = 12                 // the operation was abandoned
	exitStopped     = 13                 // the operation waits for a decision
	exitNotYet      = 14                 // the operation goes on
	exitInterrupted = launch.Interrupted // interrupted before the work was done
)

const exitCodesText = `Exit codes:
    0  done; for watch and result: the operation succeeded, whole or in part
    1  the command could not do its work
    2  the command line is wrong
    3  the service refused; the problem's code is on stderr
    4  the service did not answer: repeat the command with the same key
   10  the operation failed
   11  the operation was cancelled
   12  the operation was abandoned
   13  the operation is stopped and waits for a decision
   14  the operation goes on (watch was interrupted, or its result is not there yet)
  130  interrupted before the work was done
`

// coded is an error with an exit code and a hint for the user.
type coded struct {
	code int
	hint string
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// ended carries an outcome as exit code, without a message.
type ended int

func (e ended) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// app is what the commands share.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string

	output  string // text or json
	server  string
	keyFile string
}

// run is the program: it parses, does the work and gives the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	a := &app{stdout: stdout, stderr: stderr, getenv: getenv}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	return a.exit(err)
}

// exit says what went wrong, on stderr, and gives the code.
func (a *app) exit(err error) int {
	var outcome ended
	var with *coded
	var refused *launch.Error
	var problem *client.Problem
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &outcome):
		return int(outcome)
	case errors.As(err, &problem):
		fmt.Fprintf(a.stderr, "counterfoil: %v\n", problem)
		for _, e := range problem.Errors {
			allowed := ""
			if len(e.Allowed) > 0 {
				allowed = "; allowed: " + strings.Join(e.Allowed, ", ")
			}
			fmt.Fprintf(a.stderr, "  %s\n", printable(e.Field+": "+e.Message+allowed))
		}
		h, code := hint(problem), exitRefused
		if errors.As(err, &with) { // the command knows better what its caller meant
			h, code = firstOf(with.hint, h), with.code
		}
		if h != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", printable(h))
		}
		return code
	case errors.As(err, &refused):
		fmt.Fprintf(a.stderr, "counterfoil: %v\n", refused.Err)
		code, hint := exitFailure, refused.Hint
		if refused.Usage {
			code, hint = exitUsage, firstOf(hint, usageHint)
		}
		if hint != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", hint)
		}
		return code
	case errors.As(err, &with):
		fmt.Fprintf(a.stderr, "counterfoil: %v\n", with.err)
		if with.hint != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", with.hint)
		}
		return with.code
	}
	fmt.Fprintf(a.stderr, "counterfoil: %v\n", err)
	return exitFailure
}

const usageHint = "see counterfoil help"

func usage(format string, args ...any) error {
	return &coded{code: exitUsage, hint: usageHint, err: fmt.Errorf(format, args...)}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "counterfoil",
		Short: "A ledger between callers and providers' asynchronous job APIs",
		Long: `Counterfoil writes every intent down before acting on it, makes the calls to the
provider itself, and can say afterwards what was asked, what was seen and why.

Try it: counterfoil demo`,
		SilenceErrors: true, SilenceUsage: true,
		Args: known, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := launch.Given(cmd, args); err != nil {
				return err
			}
			if a.output != "text" && a.output != "json" {
				return usage("--output is %q: want text or json", a.output)
			}
			return nil
		},
	}
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usage("%w", err)
			}
			if len(rest) > 0 {
				return usage("unknown help topic %q", strings.Join(args, " "))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.output, "output", "text", "text or json")
	flags.StringVar(&a.server, "server", "", "address of the service (default $COUNTERFOIL_SERVER, else http://127.0.0.1:7766)")
	flags.StringVar(&a.keyFile, "key-file", "", "file that holds the API key (default $COUNTERFOIL_KEY, or the file $COUNTERFOIL_KEY_FILE)")
	root.AddCommand(
		a.demoCommand(), a.serveCommand(), a.provisionCommand(), a.natsUsersCommand(),
		a.submitCommand(), a.getCommand(), a.listCommand(), a.watchCommand(), a.feedCommand(), a.resultCommand(),
		a.cancelCommand(), a.inputCommand(), a.cleanupCommand(), a.decideCommand(), a.timelineCommand(), a.doctorCommand(), a.mcpCommand(),
		a.pauseCommand(), a.resumeCommand(), a.holdCommand(), a.releaseCommand(), a.holdsCommand(), a.keyCommand(), a.principalCommand(),
		a.approveCommand(), a.denyCommand(), a.policyCommand(),
		a.contractCommand(), a.drillCommand(), a.benchCommand(), a.versionCommand(),
		&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesText},
	)
	return root
}

// known refuses what is no command, with those that look like it.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(near, ", "))
	}
	return usage("%w", err)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the program's version", Args: exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			if a.output == "json" {
				return a.json(map[string]string{"version": launch.Build()})
			}
			_, err := fmt.Fprintln(a.stdout, "counterfoil", launch.Build())
			return err
		},
	}
}
