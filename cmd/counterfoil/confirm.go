package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/counterfoil/counterfoil/client"
)

// adopting shows what an adoption would bind, and asks on a terminal whether that
// is meant. Nobody checks the id afterwards, and only another adoption corrects it.
func (a *app) adopting(ctx context.Context, in io.Reader, op client.Operation, job string, yes bool) error {
	if job == "" {
		return usage("--job is missing: the id of the job as the provider's own console shows it")
	}
	named := "no look-up named it; the provider's own console must show that it is this operation's"
	if slices.Contains(op.Candidates, job) {
		named = "a look-up named it, without our reference: whether it is this operation's only its parameters and times can say"
	}
	fmt.Fprintf(a.stderr, "adopt binds a job to an operation, which then follows it:\n  operation  %s, %s/%s, %s\n  job        %s\n             %s\n",
		op.ID, printable(op.Provider), printable(op.Account), printable(stateOf(op)), printable(job), named)
	if yes {
		return nil
	}
	return a.asked(ctx, in, "bind it?", "give --yes if this job is meant")
}

// asked asks on a terminal. otherwise is what to do where there is none.
func (a *app) asked(ctx context.Context, in io.Reader, question, otherwise string) error {
	if f, ok := in.(*os.File); !ok || openScreen(f) == nil {
		return usage("nobody can be asked here: %s", otherwise)
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	// The reading goroutine is left behind by an interrupt: the process ends.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // its end is no answer
		answer <- line
	}()
	select {
	case line := <-answer:
		if s := strings.ToLower(strings.TrimSpace(line)); s == "y" || s == "yes" {
			return nil
		}
		return &coded{exitFailure, "", errors.New("nothing was decided")}
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return ended(exitInterrupted)
	}
}
