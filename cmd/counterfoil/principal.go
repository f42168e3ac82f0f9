package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// principalCommand works on the keys file by principals. key is the same file key
// by key.
func (a *app) principalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "principal", Short: "Make, list and revoke principals and what their keys may do",
		Long: `Make, list and revoke principals: who operations belong to. A principal is made
by its first key and outlives its keys. The commands work on DATA/keys.jsonl, or on
the file given with --keys, whether or not the service runs; one that runs sees a
change at the next request. docs/IDENTITY.md says what scopes and teams are.`,
		Args: known, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.principalCreate(), a.principalList(), a.principalRevoke())
	return cmd
}

func (a *app) principalCreate() *cobra.Command {
	var keys keyFile
	var team, expires string
	var scopes []string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a key for a principal and print it once", Args: exactly(1, "one name"),
		Long: `Make a key for a principal and print it once; only a digest is kept. A name that
has keys gets another one, and sees the same operations with each. --scope says what
the key may do, once for each scope:

  submit:PROVIDER/ACCOUNT   * for either: any
  cancel, decide            for operations of the principal
  approve                   approve or deny what other principals submitted
  read:own, read:team, read:all
  audit                     see the holds and the report
  admin                     holds, probes, and everybody's operations; not submit

Without --scope the key may do what keys without scopes may: submit to every account
that its principal has access to, cancel, decide and read:own. An earlier version of
the program refuses a keys file with scopes, teams or ends.`,
		RunE: func(_ *cobra.Command, args []string) error {
			name, now := args[0], time.Now()
			if !contract.ValidName(name) {
				return usage("principal %q: want 1 to 64 of a-z, 0-9, _ and -", name)
			}
			key, bearer, err := ingest.NewKey(rand.Reader, name, false, now)
			if err != nil {
				return err
			}
			for _, text := range scopes {
				s, err := ingest.ParseScope(text)
				if err != nil {
					return usage("--scope: %w", err)
				}
				key.Scopes = append(key.Scopes, s)
			}
			if key.Team = team; team != "" && !contract.ValidName(team) {
				return usage("--team is %q: want 1 to 64 of a-z, 0-9, _ and -", team)
			}
			if expires != "" {
				if key.Expires, err = ingest.ParseExpiry(expires, now); err != nil {
					return usage("--expires %w", err)
				}
			}
			path, err := keys.path()
			if err != nil {
				return err
			}
			// A crash after this line leaves a key that nobody knows, to be revoked.
			if err := ingest.AddKey(path, key); err != nil {
				return err
			}
			if a.output == "json" {
				made := map[string]any{"id": key.ID, "principal": name, "scopes": key.May(), "key": bearer}
				if team != "" {
					made["team"] = team
				}
				if expires != "" {
					made["expires"] = key.Expires
				}
				return a.json(made)
			}
			fmt.Fprintf(a.stderr, "key %s of principal %s, which may %s%s, printed this once:\n", key.ID, name,
				scopeList(key.May()), when(expires != "", " until "+key.Expires.Format(time.RFC3339)))
			_, err = fmt.Fprintln(a.stdout, bearer)
			return err
		},
	}
	keys.flags(cmd)
	cmd.Flags().StringVar(&team, "team", "", "the principal's team: 1 to 64 of a-z, 0-9, _ and - (default: as it is)")
	cmd.Flags().StringArrayVar(&scopes, "scope", nil, "what the key may do; once for each scope")
	cmd.Flags().StringVar(&expires, "expires", "", "when the key ends: 90d, 12h, or a time with a zone (default: never)")
	return cmd
}

func scopeList(list []ingest.Scope) string {
	var names []string
	for _, s := range list {
		names = append(names, string(s))
	}
	return firstOf(strings.Join(names, " "), "nothing")
}

// keyLine is one key as it is listed.
type keyLine struct {
	ID       string         `json:"id"`
	State    string         `json:"state"` // active, expired, disabled
	Created  time.Time      `json:"created"`
	Operator bool           `json:"operator"`
	Scopes   []ingest.Scope `json:"scopes"`
	Expires  *time.Time     `json:"expires,omitempty"`
	LastUsed *time.Time     `json:"last_used,omitempty"` // about; absent: not that it is known
}

// principalLine is one principal with its keys, in the order of the file.
type principalLine struct {
	Name string    `json:"principal"`
	Team string    `json:"team,omitempty"`
	Keys []keyLine `json:"keys"`
}

func principalLines(list []ingest.Key, uses map[string]time.Time, now time.Time) []principalLine {
	lines, teams, at := []principalLine{}, ingest.TeamsOf(list), map[string]int{}
	for _, k := range list {
		i, seen := at[k.Principal]
		if !seen {
			i = len(lines)
			at[k.Principal] = i
			lines = append(lines, principalLine{Name: k.Principal, Team: teams[k.Principal]})
		}
		line := keyLine{ID: k.ID, State: "active", Created: k.Created, Operator: k.Operates(), Scopes: k.May()}
		switch {
		case k.Disabled:
			line.State = "disabled"
		case k.Expired(now):
			line.State = "expired"
		}
		if !k.Expires.IsZero() {
			line.Expires = &k.Expires
		}
		if used, ok := uses[k.ID]; ok {
			line.LastUsed = &used
		}
		lines[i].Keys = append(lines[i].Keys, line)
	}
	return lines
}

func (a *app) principalList() *cobra.Command {
	var keys keyFile
	cmd := &cobra.Command{
		Use: "list", Short: "List the principals and their keys, without what is secret", Args: exactly(0, "none"),
		Long: `List the principals and their keys: team, key, state, what it may do, when it ends,
and when a running service last let it in, as far as that is noted (once a minute).`,
		RunE: func(*cobra.Command, []string) error {
			path, err := keys.path()
			if err != nil {
				return err
			}
			list, err := ingest.ListKeys(path)
			if err != nil {
				return err
			}
			uses, err := ingest.KeyUses(path)
			if err != nil {
				return err
			}
			lines := principalLines(list, uses, time.Now())
			if a.output == "json" {
				return a.json(map[string]any{"principals": lines})
			}
			return writePrincipals(a.stdout, lines)
		},
	}
	keys.flags(cmd)
	return cmd
}

func writePrincipals(to io.Writer, lines []principalLine) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	moment := func(t *time.Time, none string) string {
		if t == nil {
			return none
		}
		return t.UTC().Format(time.RFC3339)
	}
	fmt.Fprintln(w, "PRINCIPAL\tTEAM\tKEY\tSTATE\tEXPIRES\tLAST USED\tMAY")
	for _, p := range lines {
		for _, k := range p.Keys {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", p.Name, firstOf(p.Team, "-"), k.ID, k.State, moment(k.Expires, "never"),
				moment(k.LastUsed, "-"), scopeList(k.Scopes), when(k.Operator, " (operator)"))
		}
	}
	return w.Flush()
}

func (a *app) principalRevoke() *cobra.Command {
	var keys keyFile
	var id string
	cmd := &cobra.Command{
		Use: "revoke NAME | --key ID", Short: "Let nobody in with a principal's keys, or with one key, any more",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("got %d arguments: want one name, or none with --key", len(args))
			}
			return nil
		},
		Long: `Disable all keys of a principal, or one key. Operations stay the principal's and go
on; cancel or hold what must not. A key that is made for the name later sees them.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if (len(args) == 1) == (id != "") {
				return usage("give the name of a principal, or --key and the id of one key")
			}
			path, err := keys.path()
			if err != nil {
				return err
			}
			var revoked []ingest.Key
			if id != "" {
				var one ingest.Key
				one, err = ingest.DisableKey(path, id)
				revoked = append(revoked, one)
			} else {
				revoked, err = ingest.RevokePrincipal(path, args[0])
			}
			if errors.Is(err, ingest.ErrNoKey) || errors.Is(err, ingest.ErrNoPrincipal) {
				return &coded{exitUsage, "counterfoil principal list shows the names and ids; an id is the part of a key between cf_ and the dot", err}
			}
			if err != nil {
				return err
			}
			if a.output == "json" {
				ids := []string{}
				for _, k := range revoked {
					ids = append(ids, k.ID)
				}
				return a.json(map[string]any{"principal": revoked[0].Principal, "disabled": ids})
			}
			for _, k := range revoked {
				if _, err := fmt.Fprintf(a.stdout, "key %s of principal %s is disabled\n", k.ID, k.Principal); err != nil {
					return err
				}
			}
			return a.warnNoOperator(path)
		},
	}
	keys.flags(cmd)
	cmd.Flags().StringVar(&id, "key", "", "id of the one key to revoke")
	return cmd
}

// warnNoOperator says so where no key is left that may release a hold.
func (a *app) warnNoOperator(path string) error {
	list, err := ingest.ListKeys(path)
	if err != nil {
		return err
	}
	for _, k := range list {
		if k.Operates() && !k.Disabled && !k.Expired(time.Now()) {
			return nil
		}
	}
	fmt.Fprintln(a.stderr, "no operator is left: counterfoil key add --operator makes one")
	return nil
}
