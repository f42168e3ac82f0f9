package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/internal/launch"
)

// provisionCommand is the only one that makes streams in a store elsewhere.
func (a *app) provisionCommand() *cobra.Command {
	var o launch.Provisioning
	var level string
	cmd := &cobra.Command{
		Use: "provision --nats URL[,URL] --replicas N", Short: "Make the streams in a NATS cluster", Args: exactly(0, "none"),
		Long: `Make the streams that are missing in a NATS cluster, and compare those that are
there with what they must be. It changes no stream that is there, and may be run
again at any time. Its credentials must have the right to administer streams,
which no role's should have.

With --identity it also makes the identity file of the installation where the
file is not there and the ledger has no facts. Give the same file to every role,
and back it up: with another one the same requests would make second jobs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := launch.Log(a.stderr, level)
			if err != nil {
				return err
			}
			return a.provision(cmd.Context(), o, log)
		},
	}
	flags := cmd.Flags()
	o.Store.Flags(flags)
	flags.IntVar(&o.Replicas, "replicas", 0, "replicas of each stream, 1 or 3; they cannot be changed later")
	flags.StringVar(&o.Identity, "identity", "", "identity file of the installation, made if the ledger is empty")
	flags.StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	return cmd
}

func (a *app) provision(ctx context.Context, o launch.Provisioning, log *slog.Logger) error {
	done, err := o.Run(ctx, log)
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.json(map[string]any{"replicas": o.Replicas, "installation_id": done.Installation, "generation": done.Generation})
	}
	fmt.Fprintf(a.stdout, "the streams are as they must be, with %s\n", count(o.Replicas, "replica"))
	if done.Installation != "" {
		fmt.Fprintf(a.stdout, "installation %s in %s: back it up, and give it to every role\n", done.Installation, o.Identity)
	}
	return nil
}
