package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

const (
	defaultServer = "http://127.0.0.1:7766"

	// commandTries lets a command outlive a lost answer or a short refusal, and tell a
	// person within two seconds that there is no service. Who watches waits longer.
	commandTries = 4
)

// serverAddress is that of the service, as the flags and the environment name it.
func (a *app) serverAddress() string {
	return firstOf(a.server, a.getenv("COUNTERFOIL_SERVER"), defaultServer)
}

// client gives the service as the flags and the environment name it.
func (a *app) client() (*client.Client, error) {
	server := a.serverAddress()
	key := a.getenv("COUNTERFOIL_KEY")
	if path := firstOf(a.keyFile, a.getenv("COUNTERFOIL_KEY_FILE")); path != "" && (a.keyFile != "" || key == "") {
		text, err := readKey(path)
		if err != nil {
			return nil, &coded{exitUsage, "the file holds the key that serve printed at its first start, and only you may read it", fmt.Errorf("read the API key: %w", err)}
		}
		key = strings.TrimSpace(text)
	}
	if key == "" {
		return nil, &coded{exitUsage, "set COUNTERFOIL_KEY to the key that serve printed at its first start, or name its file with --key-file", errors.New("no API key is given")}
	}
	c, err := client.New(server, key, nil)
	if err != nil {
		return nil, usage("%w", err)
	}
	return c.Retrying(client.Retry{Tries: commandTries}), nil
}

// readKey reads the file of an API key. One that others can read is refused, by the
// rule of the service's own secrets; a pipe is read as it is.
func readKey(path string) (string, error) {
	const limit = 4 << 10 // bytes; a key is a line
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	var text []byte
	if info.Mode().IsRegular() {
		text, _, err = outbound.ReadPrivate(path, limit)
	} else {
		text, err = os.ReadFile(path)
	}
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s: more than %d bytes", path, limit)
	}
	return string(text), err
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// reach says what a failed call means for the caller.
func reach(err error) error {
	var problem *client.Problem
	var network *url.Error
	if errors.Is(err, client.ErrHeader) {
		return &coded{exitUsage, "a key is visible ASCII characters on one line; nothing was sent", err}
	}
	if err == nil || errors.As(err, &problem) || !errors.As(err, &network) {
		return err
	}
	return &coded{exitUnreachable, "is the service running? Repeating the command with the same key is safe", err}
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// show prints an operation.
func (a *app) show(op client.Operation) error {
	if a.output == "json" {
		return a.json(op.Raw)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	line("operation", "%s", op.ID)
	line("provider", "%s (account %s)", op.Provider, op.Account)
	if op.Principal != "" {
		line("principal", "%s", op.Principal)
	}
	links(line, op)
	line("state", "%s", stateOf(op))
	if p := op.Paused; p != nil {
		line("paused", "by %s since %s: creates and collections rest", p.By, p.Since.UTC().Format(time.RFC3339))
	}
	if op.WaitingFor != "" {
		next := ""
		if op.NextLook != nil {
			next = ", next look " + op.NextLook.UTC().Format(time.RFC3339Nano)
		}
		line("waiting for", "%s%s", op.WaitingFor, next)
	}
	if op.Because != "" {
		line("because", "%s", op.Because)
	}
	if c := op.Cost; c != nil {
		line("cost", "%s %s%s", c.Amount, c.Unit, when(c.Max != "", ", at most "+c.Max))
	}
	if p := op.Approval; p != nil {
		line("approval", "%s%s, digest %s", p.State, when(p.By != "", " by "+p.By), p.Digest)
	}
	line("after a lost answer", "%s", op.Guarantee.Words)
	if op.Job != nil && op.Job.ID != "" {
		line("job", "%s", op.Job.ID+when(op.Job.Adopted, ", adopted")+saying(op.Job))
	}
	if in := op.Input; in != nil {
		if in.Text+in.URL != "" {
			line("it waits for", "%s", strings.TrimSpace(in.Text+" "+in.URL))
		}
		if in.Question != "" {
			line("question", "%s", in.Question)
		}
		if g := in.Given; g != nil {
			line("answer", "%d, by %s: %s", g.Number, g.By, asked(g))
		}
	}
	if c := op.Cleanup; c != nil {
		line("cleanup", "of %s, asked for by %s: %s", c.JobID, c.By, asked(&c.Asked))
	}
	if c := op.Cancel; c != nil && c.Wished {
		line("cancel", "wished%s%s%s", when(!c.Possible && !op.Terminal, ", not possible"), when(c.TooLate, ", too late"),
			when(op.State == "cancelled", ", confirmed"))
	}
	if p := op.Problem; p != nil {
		line("problem", "%s", trouble(p))
	}
	if op.Expect != "" {
		line("expected", "%s", printable(op.Expect))
	}
	if r := op.Result; r != nil && r.SHA256 != "" {
		line("result", "%d bytes of %s, sha256 %s", r.Size, r.MediaType, r.SHA256)
		for _, check := range r.Checks {
			line("check "+check.Name, "%s%s", when(check.Passed, "passed"), when(!check.Passed, "failed: "+check.Detail))
		}
	}
	if len(op.Candidates) > 0 {
		line("candidates", "%s", strings.Join(op.Candidates, " "))
	}
	if len(op.Strays) > 0 {
		line("stray jobs", "%s", strings.Join(op.Strays, " "))
	}
	for _, action := range op.Allowed {
		line("allowed", "%s", allowedText(action))
	}
	return w.Flush()
}

// links are the lines of the operations that this one belongs to.
func links(line func(name, format string, args ...any), op client.Operation) {
	for _, l := range []struct {
		name string
		ids  []string
	}{
		{"replaces", []string{op.Replaces}},
		{"retry of", []string{op.RetryOf}},
		{"replaced by", op.ReplacedBy},
		{"retried by", op.RetriedBy},
	} {
		if ids := strings.Join(l.ids, " "); ids != "" {
			line(l.name, "%s", ids)
		}
	}
}

// showCheck prints what a submit would do.
func (a *app) showCheck(v client.Validation) error {
	op := v.Operation
	if a.output == "json" {
		return a.json(op.Raw)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	if v.Would == client.WouldReplay {
		line("would", "do nothing: the key names this operation; nothing was recorded now")
		line("operation", "%s", op.ID)
		line("state", "%s", stateOf(op))
		return w.Flush()
	}
	line("would", "%s a new operation; nothing was recorded now", v.Would)
	line("operation", "%s", op.ID)
	line("provider", "%s (account %s)", op.Provider, op.Account)
	links(line, op)
	if op.Job != nil && op.Job.ID != "" {
		line("job", "%s%s", op.Job.ID, when(op.Job.Adopted, ", adopted: none is created"))
	}
	if op.NotBefore != nil {
		line("not before", "%s", op.NotBefore.UTC().Format(time.RFC3339))
	}
	for _, d := range []struct {
		name string
		at   *time.Time
	}{{"approved until", op.Deadlines.Approval}, {"created until", op.Deadlines.Create}, {"ended until", op.Deadlines.Result}} {
		if d.at != nil {
			line(d.name, "%s", d.at.UTC().Format(time.RFC3339))
		}
	}
	if c := op.Cost; c != nil {
		line("cost", "%s %s%s", c.Amount, c.Unit, when(c.Max != "", ", at most "+c.Max))
	}
	if op.Expect != "" {
		line("expected", "%s", printable(op.Expect))
	}
	line("after a lost answer", "%s", op.Guarantee.Words)
	for _, warning := range v.Warnings {
		line("warning", "%s: %s", warning.Code, warning.Message)
	}
	return w.Flush()
}

// saying is the provider's own word for a job's state, if it has said one.
func saying(j *client.Job) string {
	if j.RemoteState == "" {
		return ", the provider has said nothing yet"
	}
	text := fmt.Sprintf(", the provider says %q", j.RemoteState)
	if j.Class == "unknown" {
		text += ", and the contract does not know what that means"
	}
	return text
}

// trouble is a problem in one line: what kind of trouble with asking it is, if it
// is that, the provider's code, and its words. Nothing is said twice.
func trouble(p *client.ProviderProblem) string {
	text := p.Message
	for _, word := range []string{p.Code, p.Class} {
		if word != "" && !strings.HasPrefix(text, word) {
			text = strings.TrimSpace(word + " " + text)
		}
	}
	return text
}

func when(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

// stateOf names the state with what is known about why.
func stateOf(op client.Operation) string {
	s := op.State
	if op.Quarantine != "" {
		s += " (" + op.Quarantine + ")"
	}
	if op.Reason != "" {
		s += ": " + op.Reason
	}
	if op.State == "succeeded" && op.Job != nil && op.Job.Class == "partial" {
		s += " in part"
		if op.Job.Progress != "" {
			s += " (" + op.Job.Progress + ")"
		}
	}
	return s
}

// outcome is the exit code that says how the operation stands.
func outcome(op client.Operation) error {
	switch op.State {
	case "succeeded":
		return nil
	case "failed":
		return ended(exitFailed)
	case "cancelled":
		return ended(exitCancelled)
	case "abandoned":
		return ended(exitAbandoned)
	}
	if op.Done {
		return ended(exitStopped)
	}
	return ended(exitNotYet)
}

func (a *app) submitCommand() *cobra.Command {
	var s client.Submission
	var key, params string
	var tags []string
	var wait, check bool
	var adopt string
	var d client.Deadlines
	cmd := &cobra.Command{
		Use:   "submit PROVIDER",
		Short: "Ask for an operation",
		Long: `Ask for an operation. The key names it for ever: repeating the command with the
same key and parameters gives the same operation as it then stands. Without
--key a new one is made and printed on stderr before the request is sent.

--check records nothing and says what the same command without it would do, with
warnings, and exits with 0; what would be refused is refused, with 3.

--adopt follows a job that was created elsewhere, in the account that is named, and
creates none.

--replaces and --retry-of name an earlier operation of yours. They are refused while
that may still create a job, unless --allow-overlap accepts two jobs at once.`,
		Example: `  counterfoil submit example --key report-17 --params '{"report": 17}'
  counterfoil submit example --key report-18 --params @params.json --wait
  counterfoil submit example --key report-18 --params @params.json --check
  counterfoil submit example --key import-4 --adopt job-4
  counterfoil submit example --key report-17b --params '{"report": 17}' --retry-of op_…`,
		Args: exactly(1, "one provider"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case check && wait:
				return usage("give --check or --wait, not both: what is checked is not recorded")
			case adopt != "":
				s.Adopt = &client.Adopt{JobID: adopt}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s.Provider = args[0]
			if s.Params, err = readParams("--params", params, cmd.InOrStdin()); err != nil {
				return err
			}
			if s.Tags, err = readTags(tags); err != nil {
				return err
			}
			if d != (client.Deadlines{}) {
				s.Deadlines = &d
			}
			if key == "" {
				var b [16]byte
				_, _ = rand.Read(b[:]) // never fails; it ends the process instead
				key = hex.EncodeToString(b[:])
				fmt.Fprintf(a.stderr, "key %s\n", key)
			}
			if check {
				v, err := c.Check(cmd.Context(), key, s)
				if err != nil {
					return reach(err)
				}
				return a.showCheck(v)
			}
			op, replayed, err := c.Submit(cmd.Context(), key, s)
			if err != nil {
				return reach(err)
			}
			if replayed {
				fmt.Fprintln(a.stderr, "the key had named this operation before")
			}
			if wait {
				return a.watch(cmd.Context(), c, op.ID)
			}
			return a.show(op)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&key, "key", "", "idempotency key, 1 to 255 visible ASCII characters")
	flags.StringVar(&params, "params", "{}", "the provider's parameters as JSON, @FILE, or - for standard input")
	flags.StringVar(&s.Account, "account", "", "account at the provider")
	flags.StringVar(&s.Session, "session", "", "label of the caller's own session")
	flags.StringVar(&s.Reference, "client-reference", "", "your own name for what is asked, by which list finds it")
	flags.StringVar(&s.NotBefore, "not-before", "", "do not create before this time (RFC 3339 with zone)")
	flags.StringVar(&s.Expect, "expect", "", "rule in CEL that the result must keep, such as 'result.total <= params.budget'")
	flags.StringVar(&s.MaxCost, "max-cost", "", "refuse what costs more, in the provider's unit, such as 12.50")
	flags.StringArrayVar(&tags, "tag", nil, "NAME=VALUE, repeatable")
	flags.StringVar(&d.Create, "create-deadline", "", "until when a job must exist: 30m, or RFC 3339 with zone")
	flags.StringVar(&d.Result, "deadline", "", "until when the job must have ended: 2h, or RFC 3339 with zone")
	flags.StringVar(&d.Cancel, "cancel-deadline", "", "how long a cancellation may take to be confirmed")
	flags.StringVar(&d.Collect, "collect-deadline", "", "how long collecting the result may take")
	flags.StringVar(&adopt, "adopt", "", "follow this job, by the provider's id, and create none")
	flags.StringVar(&s.Replaces, "replaces", "", "earlier operation that this one takes the place of")
	flags.StringVar(&s.RetryOf, "retry-of", "", "earlier operation that this one is another try of")
	flags.BoolVar(&s.AllowOverlap, "allow-overlap", false, "with these two: two jobs at once are acceptable")
	flags.BoolVar(&check, "check", false, "record nothing, and say what would be recorded")
	flags.BoolVar(&wait, "wait", false, "watch it until it ends")
	return cmd
}

func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("got %d arguments: want %s", len(args), what)
		}
		return nil
	}
}

func readParams(flag, params string, stdin io.Reader) ([]byte, error) {
	const limit = 1 << 20
	var source io.Reader = strings.NewReader(params)
	switch {
	case params == "-":
		source = stdin
	case strings.HasPrefix(params, "@"):
		f, err := os.Open(params[1:])
		if err != nil {
			return nil, usage("%s: %w", flag, err)
		}
		defer f.Close()
		source = f
	}
	text, err := io.ReadAll(io.LimitReader(source, limit+1))
	if err != nil {
		return nil, usage("%s: %w", flag, err)
	}
	if len(text) > limit {
		return nil, usage("%s: more than %d bytes", flag, limit)
	}
	if !json.Valid(text) {
		return nil, usage("%s is not JSON", flag)
	}
	return text, nil
}

func readTags(list []string) (map[string]string, error) {
	tags := map[string]string{}
	for _, tag := range list {
		name, value, ok := strings.Cut(tag, "=")
		if !ok || name == "" {
			return nil, usage("--tag %q: want NAME=VALUE", tag)
		}
		tags[name] = value
	}
	return tags, nil
}

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get OPERATION", Short: "Show an operation as it stands", Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			op, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return reach(err)
			}
			return a.show(op)
		},
	}
}

func (a *app) listCommand() *cobra.Command {
	var f client.Filter
	var tags []string
	cmd := &cobra.Command{
		Use: "list", Short: "List operations, the one with the newest fact first",
		Long: `List your operations, the one with the newest fact first. The time in a line is
since when the operation is in its state, so it is not always in order: facts
that leave the state as it is count too. --of team and --of all list others', too,
if the key may read them.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.Tags, err = readTags(tags); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			page, err := c.List(cmd.Context(), f)
			if err != nil {
				return reach(err)
			}
			if a.output == "json" {
				items := make([]json.RawMessage, 0, len(page.Items))
				for _, op := range page.Items {
					items = append(items, op.Raw)
				}
				return a.json(map[string]any{"items": items, "next_cursor": page.Next})
			}
			if len(page.Items) > 1 {
				fmt.Fprintln(a.stderr, "by newest fact, newest first; the time is since when it is in its state")
			}
			w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			for _, op := range page.Items {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s", op.ID, op.Provider, stateOf(op), op.Since.UTC().Format(time.RFC3339))
				if op.Principal != "" {
					fmt.Fprintf(w, "\t%s", op.Principal)
				}
				fmt.Fprintln(w)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if page.Next != "" {
				fmt.Fprintf(a.stderr, "more: --cursor %s\n", page.Next)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Of, "of", "own", "whose operations: own, team or all")
	flags.StringVar(&f.State, "state", "", "only operations in this state")
	flags.StringVar(&f.Provider, "provider", "", "only operations of this provider")
	flags.StringVar(&f.Session, "session", "", "only operations with this session label of yours, in one page")
	flags.StringVar(&f.Reference, "client-reference", "", "only operations with this client_reference of yours, in one page")
	flags.StringArrayVar(&tags, "tag", nil, "NAME=VALUE, repeatable: only operations that have all of these tags")
	flags.IntVar(&f.Limit, "limit", 50, "at most so many, 1 to 200")
	flags.StringVar(&f.Cursor, "cursor", "", "where the page before ended")
	return cmd
}

func (a *app) resultCommand() *cobra.Command {
	var to, file string
	var unaccepted bool
	cmd := &cobra.Command{
		Use: "result OPERATION", Short: "Write the collected result to standard output or a file",
		Long: `Write the collected result to standard output or a file. A result of several
files is a JSON list of them; --file gives one, by its name there or by its place
in the list, which begins at 0.`,
		Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if unaccepted && cmd.Flags().Changed("file") {
				return usage("give --file or --unaccepted, not both")
			}
			read := c.Result
			if unaccepted {
				read = c.UnacceptedResult
			}
			if cmd.Flags().Changed("file") {
				if file == "" {
					return usage("--file is empty: want a file's name or place in the list")
				}
				read = func(ctx context.Context, id string) (*client.Result, error) { return c.ResultFile(ctx, id, file) }
			}
			r, err := read(cmd.Context(), args[0])
			if err != nil {
				var problem *client.Problem
				if errors.As(err, &problem) && problem.Code == "result_not_ready" {
					fmt.Fprintf(a.stderr, "counterfoil: %v\n", err)
					return ended(exitNotYet)
				}
				return reach(err)
			}
			defer r.Body.Close()
			if to == "" {
				_, err = io.Copy(a.stdout, r.Body)
				return err
			}
			// Written beside its place and moved there whole.
			f, err := os.OpenFile(to+".part", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
			if err != nil {
				return err
			}
			_, err = io.Copy(f, r.Body)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(to+".part"))
			}
			return os.Rename(to+".part", to)
		},
	}
	cmd.Flags().BoolVar(&unaccepted, "unaccepted", false, "also one that failed a check: take it for untrusted input")
	cmd.Flags().StringVar(&to, "to", "", "file to write to")
	cmd.Flags().StringVar(&file, "file", "", "one file of a result of several: NAME, or its place from 0")
	return cmd
}

func (a *app) inputCommand() *cobra.Command {
	var key, input, question string
	cmd := &cobra.Command{
		Use: "input OPERATION", Short: "Answer what the job of an operation waits for",
		Long: `Answer what the job of an operation waits for, where its contract can pass an
answer on. It is passed on once; get says what was seen of that, and whether the
job goes on.

The answer names the question it answers. Without --question that is the one the
job asks now, which is shown first. Whoever decided on an answer before, such as a
script, names the question that get showed then: if the job asks something else by
now, the answer is refused. To repeat one under its --key, name its question, too.`,
		Example: `  counterfoil input op_abc --input '{"choice": "draft"}' --question q42`,
		Args:    exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if input == "" {
				return usage("--input is missing: the answer, a JSON object")
			}
			text, err := readParams("--input", input, cmd.InOrStdin())
			if err != nil {
				return err
			}
			asks := client.Operation{ID: args[0], Input: &client.Input{Question: question}}
			if question == "" {
				if asks, err = c.Get(cmd.Context(), args[0]); err != nil {
					return reach(err)
				}
				if in := asks.Input; in != nil && in.Question != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "question %s: %s\n", in.Question, printable(strings.TrimSpace(in.Text+" "+in.URL)))
				}
			}
			op, err := c.Keyed(key).Answer(cmd.Context(), asks, text)
			if err != nil {
				return a.reachOnce(err, key)
			}
			a.noteReplay(op.OriginalStatus)
			return a.show(op)
		},
	}
	cmd.Flags().StringVar(&input, "input", "", "the answer as JSON, @FILE, or - for standard input")
	cmd.Flags().StringVar(&question, "question", "", "the name of the question it answers, as get shows it; the one asked now unless given")
	onceFlag(cmd, &key)
	return cmd
}

func (a *app) cleanupCommand() *cobra.Command {
	var why, key, job string
	cmd := &cobra.Command{
		Use: "cleanup OPERATION", Short: "Have removed what the job of an operation left",
		Long: `Have removed what the job of an operation left at the provider, by the contract's
own call: the job and its files, for instance. The operation must have ended or
stopped, and stays as it is; get says what was seen of the cleanup.`,
		Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			op, err := c.Keyed(key).Cleanup(cmd.Context(), args[0], job, why)
			if err != nil {
				return a.reachOnce(err, key)
			}
			a.noteReplay(op.OriginalStatus)
			return a.show(op)
		},
	}
	cmd.Flags().StringVar(&job, "job", "", "another job of the operation, such as a stray one (default: its own)")
	cmd.Flags().StringVar(&why, "why", "", "reason, kept with the operation")
	onceFlag(cmd, &key)
	return cmd
}

// asked says how something stands that somebody asked for.
func asked(x *client.Asked) string {
	words := strings.ReplaceAll(x.Status, "_", " ")
	if x.Problem != nil {
		words += ", " + trouble(x.Problem)
	}
	return words
}

// onceFlag gives a command that changes something its key: the one named, or one
// made for this command.
func onceFlag(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "key", "", "idempotency key of this request, if it is to be repeated (default: a new one)")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *key == "" {
			*key = rand.Text()
		}
		return nil
	}
}

// reachOnce is reach for what carries a key: where it is open whether the request
// was done it names the key, with which it can be repeated.
func (a *app) reachOnce(err error, key string) error {
	var problem *client.Problem
	var network *url.Error
	if errors.As(err, &problem) && problem.Retryable || errors.As(err, &network) {
		fmt.Fprintf(a.stderr, "key %s\n", key)
	}
	return reach(err)
}

// noteReplay tells a person that the request had been done before.
func (a *app) noteReplay(original int) {
	if original != 0 {
		fmt.Fprintln(a.stderr, "this key had asked for it before; nothing was done again")
	}
}

func (a *app) decideCommand() *cobra.Command {
	var d client.Decision
	var version uint64
	var key string
	var yes bool
	cmd := &cobra.Command{
		Use:   "decide OPERATION KIND",
		Short: "Record a decision on an operation that automation must not settle",
		Long: `Record a decision. Kinds: abandon, extend, adopt, retry_create, resume,
retry_collection, accept_result, mark_cancelled. Without --version it is made
on the operation as it stands when the command reads it.

adopt shows what it would bind and asks; where there is no terminal, --yes says
that it is meant.

resume watches a job again after its deadline, or after it was lost. To end a
pause use counterfoil resume. What waits for an approval is answered by
counterfoil approve and counterfoil deny.`,
		Args: exactly(2, "an operation id and a kind"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			d.Kind = args[1]
			if version == 0 || d.Kind == "adopt" {
				op, err := c.Get(cmd.Context(), args[0])
				if err != nil {
					return reach(err)
				}
				if version == 0 {
					version = op.Version
				}
				if d.Kind == "adopt" {
					if err := a.adopting(cmd.Context(), cmd.InOrStdin(), op, d.JobID, yes); err != nil {
						return err
					}
				}
			}
			if key == "" {
				key = fmt.Sprintf("%s-%s-v%d", args[0], d.Kind, version)
			}
			op, err := c.Decide(cmd.Context(), args[0], version, key, d)
			if err != nil {
				return reach(err)
			}
			return a.show(op)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.Why, "why", "", "reason, kept with the decision")
	flags.StringVar(&d.JobID, "job", "", "adopt: the provider's job id")
	flags.StringVar(&d.Deadline, "which", "", "extend: approval, create, result, cancel or collect")
	flags.StringVar(&d.Until, "until", "", "extend: a length of time from now, or RFC 3339 with zone")
	flags.StringVar(&d.Evidence, "evidence", "", "mark_cancelled: what shows it")
	flags.BoolVar(&d.AcceptRisk, "accept-risk", false, "retry_create: a second job cannot be excluded, and that is accepted")
	flags.BoolVar(&yes, "yes", false, "adopt: do not ask")
	flags.Uint64Var(&version, "version", 0, "version of the operation the decision is made on")
	flags.StringVar(&key, "key", "", "idempotency key (default: made of operation, kind and version)")
	return cmd
}

func (a *app) timelineCommand() *cobra.Command {
	var after uint64
	cmd := &cobra.Command{
		Use: "timeline OPERATION", Short: "Print every fact of an operation and what it did", Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			entries, err := c.Timeline(cmd.Context(), args[0], after)
			if err != nil {
				return reach(err)
			}
			if a.output == "json" {
				return a.json(map[string]any{"entries": entries})
			}
			return printTimeline(a.stdout, entries)
		},
	}
	cmd.Flags().Uint64Var(&after, "after", 0, "only facts after this ledger sequence")
	return cmd
}

func printTimeline(to io.Writer, entries []client.Entry) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	for _, e := range entries {
		moved := e.From
		if e.To != e.From {
			moved = firstOf(e.From, "-") + " -> " + e.To
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s %s\t%s\n", e.Sequence, e.Time.UTC().Format("15:04:05.000"), e.Type, moved, e.Verdict, e.Reason, fields(e.Fields))
	}
	return w.Flush()
}

// fields lists the few that tell the story on one line.
func fields(m map[string]string) string {
	var list []string
	for _, name := range []string{"decision", "who", "attempt", "outcome", "job_id", "remote_state", "class", "status", "claim", "code", "deadline", "until", "accept_risk", "reason", "detail", "owner", "why_text", "evidence_text"} {
		v := m[name]
		switch {
		case v == "":
		case strings.HasSuffix(name, "_text"), name == "detail":
			// Free text, of a person or of somebody's configuration.
			list = append(list, fmt.Sprintf("%s=%q", strings.TrimSuffix(name, "_text"), printable(v)))
		default:
			list = append(list, name+"="+printable(v))
		}
	}
	return strings.Join(list, " ")
}
