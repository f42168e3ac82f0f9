package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
)

func (a *app) holdCommand() *cobra.Command {
	var w client.HoldWish
	var creates, all bool
	var key string
	cmd := &cobra.Command{
		Use:   "hold --creates|--all --why TEXT",
		Short: "Rest calls to one provider, or to all of them (operators)",
		Long: `Rest calls to one provider, or without --provider to all of them, until
counterfoil release. It needs a key with the operator's right.

--creates: no create leaves, nor a preparation before one. Reads, cancels,
look-ups, results and deadlines go on.
--all: no call leaves at all. Deadlines run on.

A call that is permitted already may still leave. The hold on one provider and
the one on all stand side by side, and the stronger counts. To rest a single
operation use counterfoil pause.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if creates == all {
				return usage("give --creates or --all, one of them")
			}
			if w.Scope = client.HoldAll; creates {
				w.Scope = client.HoldCreates
			}
			if strings.TrimSpace(w.Why) == "" {
				return usage("--why is missing: say why, for whoever finds the hold")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			h, placed, err := c.Keyed(key).PlaceHold(cmd.Context(), w)
			if err != nil {
				return a.reachOnce(err, key)
			}
			if a.noteReplay(h.OriginalStatus); !placed && h.OriginalStatus == 0 {
				fmt.Fprintln(a.stderr, "it was on hold before; nothing was changed")
			}
			return a.showHolds([]client.Hold{h}, h)
		},
	}
	flags := cmd.Flags()
	onceFlag(cmd, &key)
	flags.StringVar(&w.Provider, "provider", "", "only this provider")
	flags.BoolVar(&creates, "creates", false, "no create leaves")
	flags.BoolVar(&all, "all", false, "no call leaves at all")
	flags.StringVar(&w.Why, "why", "", "reason, kept with the hold")
	flags.BoolVar(&w.Replace, "replace", false, "put --creates in the place of --all")
	return cmd
}

func (a *app) releaseCommand() *cobra.Command {
	var provider, why, key string
	cmd := &cobra.Command{
		Use:   "release --why TEXT",
		Short: "End a hold (operators)",
		Long: `End the hold on one provider, or without --provider the one on all of them;
holds on single providers stay then. What rested goes on within seconds.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(why) == "" {
				return usage("--why is missing: say why the hold is over")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			h, err := c.Keyed(key).ReleaseHold(cmd.Context(), provider, why)
			if err != nil {
				return a.reachOnce(err, key)
			}
			a.noteReplay(h.OriginalStatus)
			if a.output == "json" {
				return a.json(h)
			}
			fmt.Fprintf(a.stdout, "%s: released\n", heldName(h.Provider))
			left, err := c.Holds(cmd.Context())
			if err != nil {
				return reach(err)
			}
			for _, other := range left {
				fmt.Fprintf(a.stderr, "still on hold: %s, %s\n", heldName(other.Provider), other.Scope)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "", "the hold on this provider")
	cmd.Flags().StringVar(&why, "why", "", "reason, kept with the release")
	onceFlag(cmd, &key)
	return cmd
}

func (a *app) holdsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "holds", Short: "List the holds in force (operators)", Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Holds(cmd.Context())
			if err != nil {
				return reach(err)
			}
			if list == nil {
				list = []client.Hold{}
			}
			return a.showHolds(list, map[string]any{"holds": list})
		},
	}
}

// showHolds prints a line for each hold, or raw as JSON.
func (a *app) showHolds(list []client.Hold, raw any) error {
	if a.output == "json" {
		return a.json(raw)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, h := range list {
		since := ""
		if h.Since != nil {
			since = "since " + h.Since.UTC().Format(time.RFC3339)
		}
		why := printable(h.Why)
		if h.Unreadable != "" {
			why = "a fact of this hold cannot be read: " + printable(h.Unreadable)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\tby %s\t%s\n", heldName(h.Provider), firstOf(h.Scope, "not held"), since, firstOf(printable(h.By), "nobody"), why)
	}
	return w.Flush()
}

func heldName(provider string) string { return firstOf(provider, "all providers") }

func (a *app) pauseCommand() *cobra.Command {
	var why, key string
	cmd := &cobra.Command{
		Use: "pause OPERATION", Short: "Rest the creates and the collection of one operation",
		Long: `Rest the creates and the collection of one operation until counterfoil resume.
Cancels, look-ups, reads and deadlines go on: extend a deadline by a decision if
the pause is to last longer.`,
		Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			op, err := c.Keyed(key).Pause(cmd.Context(), args[0], why)
			if err != nil {
				return a.reachOnce(err, key)
			}
			a.noteReplay(op.OriginalStatus)
			return a.show(op)
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "reason, kept with the operation")
	onceFlag(cmd, &key)
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	var why, key string
	cmd := &cobra.Command{
		Use: "resume OPERATION", Short: "End the pause of an operation",
		Long: `End what counterfoil pause began. To watch a job again after its deadline, or
after it was lost, is another thing: counterfoil decide OPERATION resume.`,
		Args: exactly(1, "one operation id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			before, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return reach(err)
			}
			op, err := c.Keyed(key).Resume(cmd.Context(), args[0], why)
			if err != nil {
				return a.reachOnce(err, key)
			}
			if a.noteReplay(op.OriginalStatus); before.Paused == nil && op.OriginalStatus == 0 {
				fmt.Fprintln(a.stderr, "it was not paused; nothing was changed")
				if slices.ContainsFunc(op.Allowed, func(x client.AllowedAction) bool { return slices.Contains(x.Decisions, "resume") }) {
					fmt.Fprintf(a.stderr, "to watch its job again: counterfoil decide %s resume\n", op.ID)
				}
			}
			return a.show(op)
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "reason, kept with the operation")
	onceFlag(cmd, &key)
	return cmd
}

// allowedText is an action as get prints it; the one that ends a pause must not
// be taken for the decision of the same name.
func allowedText(x client.AllowedAction) string {
	if x.Action == "resume" {
		return "resume (end the pause)"
	}
	return strings.TrimSpace(x.Action + " " + strings.Join(append(x.Decisions, x.Jobs...), " "))
}
