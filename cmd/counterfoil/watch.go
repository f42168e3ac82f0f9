package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
)

const (
	// A table is made of so many pages of the newest operations at most: the
	// service reads a record for each of them, every time.
	watchPages = 3
	watchPage  = 200

	shortestRefresh = 500 * time.Millisecond
	longestRefresh  = time.Hour
)

func (a *app) watchCommand() *cobra.Command {
	var once bool
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "watch [OPERATION]",
		Short: "Follow one operation until it ends, or all that are open",
		Long: `With an operation: a line for each change until it ends; the exit code is the
outcome. On a terminal it is shown in place, and the lines are printed at the end.

Without one: the open operations as a table, refreshed in place until you
interrupt it. --once prints it once, for scripts; so does an output that is no
terminal. It looks at the newest 600 operations and says if there are more.

NO_COLOR in the environment keeps it from using colours.`,
		Example: `  counterfoil watch op_…
  counterfoil watch
  counterfoil watch --once --output json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("got %d arguments: want one operation id, or none for all that are open", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < shortestRefresh || every > longestRefresh {
				return usage("--every is %s: want %s to %s", every, shortestRefresh, longestRefresh)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			live := a.screen()
			switch {
			case len(args) == 1 && once:
				return usage("--once goes with the table: counterfoil get shows one operation once")
			case len(args) == 1 && live != nil:
				return a.watchLive(cmd.Context(), c, args[0], live)
			case len(args) == 1:
				return a.watch(cmd.Context(), c, args[0])
			case once || live == nil:
				return a.tableOnce(cmd.Context(), c)
			}
			return a.tableLive(cmd.Context(), c, live, every)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print the table once")
	cmd.Flags().DurationVar(&every, "every", every, "how often the table is refreshed")
	return cmd
}

// screen is the terminal to show things on in place, if there is one.
func (a *app) screen() *screen {
	f, ok := a.stdout.(*os.File)
	if !ok || a.output != "text" || a.getenv("TERM") == "dumb" {
		return nil
	}
	return openScreen(f)
}

// gather reads the open operations.
func gather(ctx context.Context, c *client.Client) (table, error) {
	t := table{}
	f := client.Filter{Limit: watchPage}
	for range watchPages {
		page, err := c.List(ctx, f)
		if err != nil {
			return t, err
		}
		for _, op := range page.Items {
			if !op.Terminal {
				t.ops = append(t.ops, op)
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	t.more = f.Cursor != ""
	t.at = time.Now()
	return t, nil
}

func (a *app) tableOnce(ctx context.Context, c *client.Client) error {
	t, err := gather(ctx, c)
	if err != nil {
		return reach(err)
	}
	if a.output == "json" {
		items := []json.RawMessage{}
		for _, op := range t.ops {
			items = append(items, op.Raw)
		}
		return a.json(map[string]any{"items": items, "states": t.counts(), "more": t.more})
	}
	for _, line := range t.frame(unbounded) {
		fmt.Fprintln(a.stdout, line)
	}
	return nil
}

// tableLive refreshes the table until ctx ends. After the first answer a service
// that does not answer is shown as such, with the table as it last was.
func (a *app) tableLive(ctx context.Context, c *client.Client, on *screen, every time.Duration) error {
	t, err := gather(ctx, c)
	if err != nil {
		return reach(err)
	}
	on.begin()
	defer on.end()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		v := on.view(a.getenv("NO_COLOR") == "")
		on.draw(t.frame(v), v)
		select {
		case <-ctx.Done():
			return nil // interrupting it is how it ends
		case <-on.resized:
			continue
		case <-ticker.C:
		}
		next, err := gather(ctx, c)
		var problem *client.Problem
		switch {
		case err == nil:
			t = next
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &problem) && !problem.Retryable:
			return err // the key was taken away, or the service is another
		default:
			t.trouble = err.Error()
		}
	}
}

// watchLive shows one operation in place until it is done, then prints the
// lines that a.watch would have.
func (a *app) watchLive(ctx context.Context, c *client.Client, id string, on *screen) error {
	c = c.Retrying(client.Retry{})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type news struct {
		op  client.Operation
		err error
	}
	changes := make(chan news)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer close(changes)
		for op, err := range c.Watch(ctx, id) {
			select {
			case changes <- news{op, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { <-gone }() // after stop, below
	defer stop()

	var f follow
	var failed error
	begun := false
	defer on.end()
	ticker := time.NewTicker(time.Second) // the ages move
	defer ticker.Stop()
	for open := true; open; {
		select {
		case n, more := <-changes:
			switch {
			case !more:
				open = false
				continue
			case n.err != nil:
				failed, open = n.err, false
				continue
			}
			f.add(n.op, time.Now())
			if !begun {
				begun = true
				on.begin()
			}
		case <-on.resized:
		case <-ticker.C:
		}
		if begun {
			v := on.view(a.getenv("NO_COLOR") == "")
			on.draw(f.frame(v, time.Now()), v)
		}
	}
	on.end()
	for _, line := range f.lines {
		fmt.Fprintln(a.stdout, line)
	}
	switch {
	case ctx.Err() != nil && f.op.ID == "":
		return ended(exitNotYet)
	case failed != nil && ctx.Err() == nil:
		return reach(failed)
	}
	return outcome(f.op)
}

// watch prints a line for each change of an operation until it is done.
func (a *app) watch(ctx context.Context, c *client.Client, id string) error {
	c = c.Retrying(client.Retry{})
	var f follow
	enc := json.NewEncoder(a.stdout)
	for op, err := range c.Watch(ctx, id) {
		if ctx.Err() != nil {
			return ended(exitNotYet)
		}
		if err != nil {
			return reach(err)
		}
		line, fresh := f.add(op, time.Now())
		if a.output == "json" {
			if err := enc.Encode(op.Raw); err != nil {
				return err
			}
		} else if fresh {
			fmt.Fprintln(a.stdout, line)
		}
	}
	return outcome(f.op)
}

// follow is one operation and the changes that were seen of it.
type follow struct {
	op    client.Operation
	last  string
	lines []string
}

// add takes news of the operation and gives its line, unless what changed is
// not worth one.
func (f *follow) add(op client.Operation, now time.Time) (string, bool) {
	f.op = op
	line := op.ID + "  " + stateOf(op)
	if op.Job != nil && op.Job.ID != "" {
		line += "  job " + op.Job.ID + saying(op.Job)
	}
	if strings.HasPrefix(op.Because, "deferred") {
		line += "  " + op.Because
	}
	if p := op.Problem; p != nil {
		line += "  problem: " + trouble(p)
	}
	if line == f.last {
		return "", false
	}
	f.last = line
	line = now.UTC().Format("15:04:05.000") + "  " + printable(line)
	f.lines = append(f.lines, line)
	return line, true
}
