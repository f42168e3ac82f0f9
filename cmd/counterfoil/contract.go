package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/wire"
)

func (a *app) contractCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "contract", Short: "Check and read provider contracts",
		Args: known, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.contractLint(), a.contractShow(), a.contractList())
	return cmd
}

func (a *app) contractLint() *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE|DIR...",
		Short: "Report every problem of contract files, with its place",
		Long: `Report every problem of contract files: file, line and column, the field, what
is wrong, and for an expression where in it. Of a directory every *.yaml is
read, as serve --contracts does. The exit code is 1 if there is a problem, and 2
if one of the names cannot be read; the others are checked all the same.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("nothing to check: name contract files or directories")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			l, unread := lint(args)
			if l.Files == 0 && unread != nil {
				return unread
			}
			if err := a.linted(l); unread == nil {
				return err
			}
			return unread
		},
	}
}

// lintReport is what lint found.
type lintReport struct {
	Files    int           `json:"files"`
	Wrong    int           `json:"files_with_problems"`
	Problems []lintProblem `json:"problems"`
}

type lintProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Source  string `json:"source,omitempty"` // the line of the expression
	Caret   int    `json:"caret,omitempty"`  // 0-based column in source
}

// lint checks what the arguments name. Names that cannot be read are an error of
// the command line, beside the report about the others.
func lint(args []string) (lintReport, error) {
	out := lintReport{Problems: []lintProblem{}}
	var unread []string
	for _, arg := range args {
		files, directory, err := contractFiles(arg)
		if err != nil {
			unread = append(unread, err.Error())
			continue
		}
		names := map[string]string{} // in one directory a name is given once
		for _, file := range files {
			problems, name, err := lintFile(file)
			if err != nil {
				unread = append(unread, err.Error())
				continue
			}
			if other := names[name]; directory && name != "" && other != "" {
				problems = append(problems, lintProblem{File: file, Line: 1, Column: 1, Field: "name", Message: fmt.Sprintf("%q is the name in %s already", name, other)})
			}
			names[name] = file
			out.Files++
			if len(problems) > 0 {
				out.Wrong++
			}
			out.Problems = append(out.Problems, problems...)
		}
	}
	if len(unread) > 0 {
		return out, usage("not checked: %s", strings.Join(unread, "; "))
	}
	return out, nil
}

// contractFiles gives the files an argument names.
func contractFiles(arg string) (files []string, directory bool, err error) {
	info, err := os.Stat(arg)
	switch {
	case err != nil:
		return nil, false, unreadable(arg, err)
	case !info.IsDir():
		return []string{arg}, false, nil
	}
	names, err := fs.Glob(os.DirFS(arg), "*.yaml")
	if err != nil {
		return nil, true, usage("%s: %w", arg, err)
	}
	if len(names) == 0 {
		return nil, true, usage("%s: no *.yaml in this directory", arg)
	}
	for _, name := range names {
		files = append(files, filepath.Join(arg, name))
	}
	return files, true, nil
}

func lintFile(file string) (problems []lintProblem, name string, err error) {
	source, err := readContract(file)
	if err != nil {
		return nil, "", err
	}
	c, err := contract.Parse(file, source)
	var wrong *contract.ParseError
	switch {
	case errors.As(err, &wrong):
		for _, p := range wrong.Problems {
			problems = append(problems, lintProblem(p))
		}
		return problems, "", nil
	case err != nil:
		return nil, "", err
	}
	return nil, c.Name, nil
}

// unreadable names the file and why it cannot be read, without the call that failed.
func unreadable(file string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return usage("%s: cannot be read: %w", file, err)
}

// readContract reads a byte more than a contract may have, so that a longer
// file is refused by the parser and not read to its end.
func readContract(file string) ([]byte, error) {
	// Opening a pipe waits for a writer, and opening a device may do something.
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return nil, usage("%s: not a regular file", file)
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a pipe by now
	if err != nil {
		return nil, unreadable(file, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, usage("%s: not a regular file", file)
	}
	source, err := io.ReadAll(io.LimitReader(f, contract.MaxFile+1))
	if err != nil {
		return nil, usage("%w", err)
	}
	return source, nil
}

func (a *app) linted(l lintReport) error {
	if a.output == "json" {
		if err := a.json(l); err != nil {
			return err
		}
	} else {
		for _, p := range l.Problems {
			// A file of somebody else must not steer the terminal.
			for line := range strings.SplitSeq(contract.Problem(p).String(), "\n") {
				fmt.Fprintln(a.stdout, printable(line))
			}
		}
		if len(l.Problems) == 0 {
			fmt.Fprintf(a.stdout, "%s, no problem\n", count(l.Files, "contract"))
		} else {
			fmt.Fprintf(a.stdout, "%s, %d with problems: %s\n", count(l.Files, "contract"), l.Wrong, count(len(l.Problems), "problem"))
		}
	}
	if len(l.Problems) > 0 {
		return ended(exitFailure)
	}
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// knownContracts are those serve would have: the built-in ones and those of a
// directory, which replace one of the same name.
func knownContracts(dir string) ([]knownContract, error) {
	parsed, _, err := wire.LoadContracts(contracts.FS, dir)
	if err != nil {
		return nil, &coded{exitUsage, "", err}
	}
	var list []knownContract
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		c := parsed[name]
		from := c.File
		if rest, ok := strings.CutPrefix(from, "builtin"+string(filepath.Separator)); ok {
			from = "built in (" + rest + ")"
		}
		list = append(list, knownContract{c, from})
	}
	return list, nil
}

type knownContract struct {
	*contract.Contract
	from string
}

func (a *app) contractShow() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "show NAME|FILE",
		Short: "Say in plain words what a contract promises",
		Long: `Say in plain words what a contract takes and promises: its parameters, what
happens after a lost answer, step by step with the times, what an answer to a cancel proves, what a look-up
proves, deadlines, pace, results and webhooks. NAME is a built-in contract or
one of --contracts; what has a slash or ends in .yaml is a file.`,
		Example: `  counterfoil contract show replicate
  counterfoil contract show ./acme.yaml`,
		Args: exactly(1, "one name or file"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := findContract(args[0], dir)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(shownContract(c))
			}
			fmt.Fprintf(a.stdout, "From %s, digest %s\n\n", c.from, c.Digest)
			for line := range strings.Lines(c.Explain()) {
				fmt.Fprintln(a.stdout, printable(strings.TrimSuffix(line, "\n")))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "contracts", "", "directory of your own contracts, as of serve")
	return cmd
}

func findContract(arg, dir string) (knownContract, error) {
	if strings.ContainsRune(arg, filepath.Separator) || strings.HasSuffix(arg, ".yaml") {
		source, err := readContract(arg)
		if err != nil {
			return knownContract{}, err
		}
		c, err := contract.Parse(arg, source)
		if err != nil {
			return knownContract{}, &coded{exitFailure, "counterfoil contract lint " + arg + " says the same as a list", err}
		}
		return knownContract{c, arg}, nil
	}
	list, err := knownContracts(dir)
	if err != nil {
		return knownContract{}, err
	}
	var names []string
	for _, c := range list {
		if c.Name == arg {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return knownContract{}, usage("no contract is named %q; there are %s", arg, strings.Join(names, ", "))
}

// contractView is a contract for machines; lengths of time are in the words.
type contractView struct {
	Name      string           `json:"name"`
	Title     string           `json:"title,omitempty"`
	From      string           `json:"from"`
	Digest    string           `json:"digest"`
	BaseURL   string           `json:"base_url"`
	Guarantee string           `json:"guarantee"`
	Lookup    string           `json:"lookup"` // none, candidates, exact
	Absence   bool             `json:"absence_is_proof"`
	Cancels   bool             `json:"cancels"`
	Input     bool             `json:"input"`   // an answer to a job that waits can be passed on
	Cleanup   bool             `json:"cleanup"` // what a job left can be removed
	Result    string           `json:"result"`  // none, request, status
	Webhook   string           `json:"webhook,omitempty"`
	Topics    []contract.Topic `json:"topics,omitempty"`
}

func shownContract(c knownContract) contractView {
	v := listedContract(c)
	v.Topics = c.Topics()
	return v
}

func listedContract(c knownContract) contractView {
	p := c.Promises(true)
	v := contractView{
		Name: c.Name, Title: c.Title, From: c.from, Digest: c.Digest.String(), BaseURL: c.BaseURL,
		Guarantee: string(p.Guarantee), Lookup: cmp.Or(string(p.Lookup), "none"), Absence: p.LookupConclusive,
		Cancels: p.Cancels, Input: c.Offers().Input, Cleanup: c.Offers().Cleanup, Result: string(c.ResultSource),
	}
	if c.Webhook != nil {
		v.Webhook = c.Webhook.Scheme
	}
	return v
}

func (a *app) contractList() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "list", Short: "List the contracts serve would have", Args: exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			list, err := knownContracts(dir)
			if err != nil {
				return err
			}
			if a.output == "json" {
				views := []contractView{}
				for _, c := range list {
					views = append(views, listedContract(c))
				}
				return a.json(map[string]any{"contracts": views})
			}
			w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			for _, c := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Name, c.Guarantee(), c.from, printable(c.Title))
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&dir, "contracts", "", "directory of your own contracts, as of serve")
	return cmd
}
