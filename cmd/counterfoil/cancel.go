package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
)

const (
	cancelsAtOnce = 100    // in one request
	mostCancels   = 10_000 // of one command
	cancelPage    = 200
)

func (a *app) cancelCommand() *cobra.Command {
	var why, key string
	var f client.Filter
	var tags []string
	var yes bool
	cmd := &cobra.Command{
		Use: "cancel [OPERATION]...", Short: "Ask for the cancellation of operations",
		Long: `Ask for the cancellation of an operation. The wish is recorded at once; the
operation is cancelled when the provider says so.

Of several each is asked for by itself, in requests of 100, and has a line that
says how it stands or why it was refused; the exit code is 3 if one was. With
--tag, --client-reference or --session it is asked for all of your operations that
have all of these, but for those that have ended or are being cancelled: how many
that are is shown first, and confirmed. The same --key asks for none of them twice.`,
		Example: `  counterfoil cancel op_… --why 'no longer needed'
  counterfoil cancel --tag run=2026-12-01 --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.Tags, err = readTags(tags); err != nil {
				return err
			}
			chosen := len(f.Tags) > 0 || f.Reference != "" || f.Session != ""
			switch {
			case chosen && len(args) > 0:
				return usage("give operations, or what they have in common, not both")
			case !chosen && len(args) == 0:
				return usage("want operation ids, or --tag, --client-reference or --session")
			case len(args) > mostCancels:
				return usage("got %d operations: at most %d are asked for at once", len(args), mostCancels)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			c = c.Keyed(key)
			if len(args) == 1 {
				op, err := c.Cancel(cmd.Context(), args[0], why)
				if err != nil {
					return a.reachOnce(err, key)
				}
				a.noteReplay(op.OriginalStatus)
				return a.show(op)
			}
			if chosen {
				if args, err = a.cancellable(cmd.Context(), c, f); err != nil {
					return reach(err)
				}
				if len(args) > 0 && !yes {
					if err := a.asked(cmd.Context(), cmd.InOrStdin(), "cancel them?", "give --yes if all of them are meant"); err != nil {
						return err
					}
				}
			}
			return a.cancelSeveral(cmd.Context(), c, args, why, key)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&why, "why", "", "reason, kept with the operation")
	flags.StringArrayVar(&tags, "tag", nil, "NAME=VALUE, repeatable: all operations of yours that have all of these tags")
	flags.StringVar(&f.Reference, "client-reference", "", "all that have this client_reference of yours")
	flags.StringVar(&f.Session, "session", "", "all that have this session label of yours")
	flags.BoolVar(&yes, "yes", false, "do not ask whether all of them are meant")
	onceFlag(cmd, &key)
	return cmd
}

// pointless says whether a cancel has nothing to begin: the job has ended, or it is asked
// for and may still come to it. Where the key may not, or the provider has no cancel, what
// runs goes on: it is asked for, and the refusal says so.
func pointless(op client.Operation) bool {
	switch {
	case op.Terminal:
		return true
	case slices.ContainsFunc(op.Allowed, func(x client.AllowedAction) bool { return x.Action == "cancel" }):
		return false
	case op.Cancel != nil && op.Cancel.Wished && op.Cancel.Possible:
		return true
	}
	return slices.Contains([]string{"result_collecting", "result_unavailable", "result_validation_failed"}, op.State)
}

// cancellable gives the ids of the operations that the filter chooses but for those of
// which a cancel is pointless, and says how many that are.
func (a *app) cancellable(ctx context.Context, c *client.Client, f client.Filter) ([]string, error) {
	f.Limit = cancelPage
	var ids []string
	known, others, older := map[string]bool{}, 0, false // an operation that moves meanwhile can be listed twice
	for {
		page, err := c.List(ctx, f)
		if err != nil {
			return nil, err
		}
		older = older || page.LeftOut
		for _, op := range page.Items {
			switch {
			case known[op.ID]:
				continue
			case pointless(op):
				others++
			default:
				ids = append(ids, op.ID)
			}
			known[op.ID] = true
		}
		if f.Cursor = page.Next; f.Cursor == "" || len(ids) > mostCancels {
			break
		}
	}
	if len(ids) > mostCancels {
		return nil, usage("more than %d operations have that; choose fewer", mostCancels)
	}
	fmt.Fprintf(a.stderr, "%d to be cancelled; of %d others nothing is left to cancel, or it is under way\n", len(ids), others)
	if older {
		fmt.Fprintln(a.stderr, "older operations have the label too, and are not in the list: name them by their ids")
	}
	return ids, nil
}

// cancelSeveral asks for each in requests of as many as one takes. Where one of them is not
// answered, those before it are recorded and the same key asks for the rest.
func (a *app) cancelSeveral(ctx context.Context, c *client.Client, ids []string, why, key string) error {
	all := client.Batch{Items: []client.BatchOutcome{}}
	var failed error
	for chunk := range slices.Chunk(ids, cancelsAtOnce) {
		items := make([]client.CancelItem, len(chunk))
		for i, id := range chunk {
			items[i].ID = id
		}
		b, err := c.CancelBatch(ctx, client.Independent, why, items)
		if err != nil {
			failed = err
			break
		}
		all.Recorded, all.Replayed, all.Refused = all.Recorded+b.Recorded, all.Replayed+b.Replayed, all.Refused+b.Refused
		all.Items = append(all.Items, b.Items...)
	}
	if err := a.showCancels(ids, all); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return a.reachOnce(failed, key)
	case all.Refused > 0:
		return &coded{exitRefused, "counterfoil get says how one stands", fmt.Errorf("%d of %d were refused", all.Refused, len(ids))}
	}
	return nil
}

func (a *app) showCancels(ids []string, b client.Batch) error {
	if a.output == "json" {
		list := []any{}
		for i, item := range b.Items {
			one := map[string]any{"id": ids[i], "status": item.Status, "replayed": item.Replayed}
			if item.Operation != nil {
				one["operation"] = item.Operation.Raw
			} else {
				one["problem"] = item.Problem
			}
			list = append(list, one)
		}
		return a.json(map[string]any{"items": list, "recorded": b.Recorded, "replayed": b.Replayed, "refused": b.Refused})
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for i, item := range b.Items {
		switch {
		case item.Operation != nil:
			fmt.Fprintf(w, "%s\t%s%s\n", ids[i], stateOf(*item.Operation), when(item.Replayed, ", asked for before"))
		case item.Problem != nil:
			fmt.Fprintf(w, "%s\trefused: %s\n", ids[i], printable(item.Problem.Error()))
		default:
			return errors.New("the answer has an item without an outcome: is the service of another version?")
		}
	}
	return w.Flush()
}
