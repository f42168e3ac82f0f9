// Command drive runs the standard job against the containers of deploy/compose.yaml
// and breaks things meanwhile: it kills a NATS node, the node that leads the ledger,
// and one container of each role. It says what that cost as one line of JSON, and
// fails if an operation was lost or made twice, or a bound was missed.
//
// It is the provider (the simulator) and the caller, and runs where the Docker engine
// is. "drive secrets DIR" makes the nkeys of the roles and what the servers are told
// of them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "secrets" {
		exit(secrets(os.Args[2]))
	}
	var o options
	flag.StringVar(&o.docker, "docker", "docker", "client of the engine")
	flag.StringVar(&o.project, "project", "deploy", "compose project")
	flag.StringVar(&o.secrets, "secrets", "deploy/secrets", "directory of secrets")
	flag.StringVar(&o.listen, "listen", "0.0.0.0:8787", "address of the simulated provider")
	flag.Float64Var(&o.rate, "rate", 20, "operations a second")
	flag.DurationVar(&o.calm, "calm", 5*time.Second, "time before the first thing is broken, and between two")
	breaks := flag.String("break", strings.Join(all(), ","), "what is killed, in this order; \"stopped \" before one tells it to stop instead")
	limit := flag.Duration("limit", 15*time.Minute, "time after which the run has failed")
	flag.Parse()
	o.breaks = strings.Split(*breaks, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("the run took longer than %s", *limit))
	defer end()
	report, err := run(ctx, o)
	if report != nil {
		text, jsonErr := json.Marshal(report)
		if jsonErr != nil {
			exit(jsonErr)
		}
		fmt.Println(string(text))
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "drive:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
