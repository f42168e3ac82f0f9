package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
)

func (a *app) feedCommand() *cobra.Command {
	var f client.FeedFilter
	var after string
	var count uint
	cmd := &cobra.Command{
		Use: "feed", Short: "Tell what happens to all operations, as it happens",
		Long: `Tell what happens to all of your operations: a line for each fact, from now on,
until you interrupt it, with how the operation stood when that was told. A line
begins with an id: with --after it goes on behind that one and misses nothing,
unless that is too long ago. Where the connection is cut it goes on by itself.
With --output json a line has that id as "id", and the fact as a CloudEvent as
"event".

counterfoil watch follows one operation, or shows those that are open;
counterfoil timeline has what else is known of a fact.`,
		Example: `  counterfoil feed --provider example
  counterfoil feed --after 4711 --count 100 --output json`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, told := cmd.Context(), uint(0)
			for e, err := range c.Retrying(client.Retry{}).Feed(ctx, f, after) {
				if ctx.Err() != nil {
					break
				}
				var problem *client.Problem
				switch {
				case errors.As(err, &problem) && problem.Code == "cursor_invalid":
					return &coded{exitRefused, "give an id as a line begins with, or leave out --after for what happens from now on", err}
				case errors.As(err, &problem) && problem.Code == "cursor_expired":
					return &coded{exitRefused, "counterfoil list shows how things stand; leave out --after for what happens from now on", err}
				case err != nil:
					return reach(err)
				case e.Standing == nil:
					continue // what a later version tells beside facts
				}
				if a.output == "json" {
					line, err := json.Marshal(fedLine{e.ID, e.Raw})
					if err != nil {
						return err
					}
					fmt.Fprintf(a.stdout, "%s\n", line)
				} else {
					fmt.Fprintln(a.stdout, feedLine(e))
				}
				if told++; told == count {
					break
				}
			}
			return nil // interrupting it is how it ends
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Of, "of", "own", "whose operations: own, team or all")
	flags.StringVar(&f.Provider, "provider", "", "only operations of this provider")
	flags.StringVar(&after, "after", "", "go on behind this id (default: from now on)")
	flags.UintVar(&count, "count", 0, "end after so many (default: never)")
	return cmd
}

// fedLine is a line of JSON.
type fedLine struct {
	ID    string          `json:"id"` // what --after takes
	Event json.RawMessage `json:"event"`
}

// feedLine is one fact, and how it left its operation.
func feedLine(e client.Event) string {
	var event struct {
		Time time.Time `json:"time"`
	}
	at := "-"
	if json.Unmarshal(e.Raw, &event) == nil && !event.Time.IsZero() {
		at = event.Time.UTC().Format("15:04:05.000")
	}
	s := e.Standing
	state := stateOf(client.Operation{State: s.State, Quarantine: s.Quarantine, Reason: s.Reason})
	return printable(fmt.Sprintf("%s  %s  %s  %s  %s  %s", e.ID, at, s.ID, s.Provider, e.Type, state))
}
