package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// keyCommand works on the keys file of a data directory. A service that runs on
// it follows the file; nothing is restarted.
func (a *app) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Make, list and disable API keys of a data directory",
		Long: `Make, list and disable API keys. The commands work on DATA/keys.jsonl, whether or
not the service runs; one that runs sees a change at the next request. Comments
in the file do not survive a change. With --keys FILE they work on that file
instead, which key add makes if it is not there. counterfoil principal works on the
same file and also says what a key may do, and when it ends.`,
		Args: known, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.keyAdd(), a.keyList(), a.keyDisable())
	return cmd
}

// keyFile is where the keys are: in a data directory, or in a file of its own as
// for roles on a store elsewhere.
type keyFile struct{ data, file string }

func (k *keyFile) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.data, "data", "counterfoil-data", "data directory")
	cmd.Flags().StringVar(&k.file, "keys", "", "file of keys, instead of that in a data directory")
}

// path gives the file. That of a data directory must be there.
func (k *keyFile) path() (string, error) {
	if k.file != "" {
		return k.file, nil
	}
	data := k.data
	path := filepath.Join(data, keysName)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", &coded{exitUsage, "name the directory that counterfoil serve uses; its first start makes the file and a first key", fmt.Errorf("--data %s has no %s", data, keysName)}
		}
		return "", fmt.Errorf("read the keys of %s: %w", data, err)
	}
	return path, nil
}

func (a *app) keyAdd() *cobra.Command {
	var keys keyFile
	var principal string
	var operator bool
	cmd := &cobra.Command{
		Use: "add --principal NAME", Short: "Make a key and print it once", Args: exactly(0, "none"),
		Long: `Make a key for a principal and print it once; only a digest is kept. A principal
may have several keys and sees the same operations with each. --operator lets
the key also place and release holds and read the report for operators.`,
		RunE: func(*cobra.Command, []string) error {
			if !contract.ValidName(principal) {
				return usage("--principal is %q: want 1 to 64 of a-z, 0-9, _ and -", principal)
			}
			path, err := keys.path()
			if err != nil {
				return err
			}
			key, bearer, err := ingest.NewKey(rand.Reader, principal, operator, time.Now())
			if err != nil {
				return err
			}
			// A crash after this line leaves a key that nobody knows, to be disabled.
			if err := ingest.AddKey(path, key); err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(map[string]any{"id": key.ID, "principal": key.Principal, "operator": operator, "key": bearer})
			}
			fmt.Fprintf(a.stderr, "key %s of principal %s%s, printed this once:\n", key.ID, key.Principal, when(operator, ", an operator's"))
			_, err = fmt.Fprintln(a.stdout, bearer)
			return err
		},
	}
	keys.flags(cmd)
	cmd.Flags().StringVar(&principal, "principal", "", "whose key it is: 1 to 64 of a-z, 0-9, _ and -")
	cmd.Flags().BoolVar(&operator, "operator", false, "the key may also do what is for operators")
	return cmd
}

func (a *app) keyList() *cobra.Command {
	var keys keyFile
	cmd := &cobra.Command{
		Use: "list", Short: "List the keys, without what is secret", Args: exactly(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			path, err := keys.path()
			if err != nil {
				return err
			}
			list, err := ingest.ListKeys(path)
			if err != nil {
				return err
			}
			type line struct {
				ID        string    `json:"id"`
				Principal string    `json:"principal"`
				Created   time.Time `json:"created"`
				Operator  bool      `json:"operator"`
				Disabled  bool      `json:"disabled"`

				Scopes []ingest.Scope `json:"scopes"`
				Team   string         `json:"team,omitempty"`
			}
			lines, teams := []line{}, ingest.TeamsOf(list)
			for _, k := range list {
				lines = append(lines, line{k.ID, k.Principal, k.Created, k.Operates(), k.Disabled, k.May(), teams[k.Principal]})
			}
			if a.output == "json" {
				return a.json(map[string]any{"keys": lines})
			}
			w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			for _, k := range lines {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.ID, k.Principal, k.Created.UTC().Format(time.RFC3339), firstOf(when(k.Operator, "operator"), "-"), firstOf(when(k.Disabled, "disabled"), "-"))
			}
			return w.Flush()
		},
	}
	keys.flags(cmd)
	return cmd
}

func (a *app) keyDisable() *cobra.Command {
	var keys keyFile
	cmd := &cobra.Command{
		Use: "disable ID", Short: "Let nobody in with a key any more", Args: exactly(1, "one key id"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := keys.path()
			if err != nil {
				return err
			}
			key, err := ingest.DisableKey(path, args[0])
			if errors.Is(err, ingest.ErrNoKey) {
				return &coded{exitUsage, "counterfoil key list shows the ids; an id is the part of a key between cf_ and the dot", err}
			}
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(map[string]any{"id": key.ID, "principal": key.Principal, "disabled": true})
			}
			if _, err := fmt.Fprintf(a.stdout, "key %s of principal %s is disabled\n", key.ID, key.Principal); err != nil {
				return err
			}
			return a.warnNoOperator(path)
		},
	}
	keys.flags(cmd)
	return cmd
}
