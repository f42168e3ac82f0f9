package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// Verdicts of a check, as the service spells them.
const (
	checkOK     = "ok"
	checkWarn   = "warn"
	checkFail   = "fail"
	checkUnseen = "unseen"
)

func (a *app) doctorCommand() *cobra.Command {
	var p place
	var probe bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is right with the service, what is not, and what to do",
		Long: `Ask the running service for a report: what survives what, streams, clocks,
credentials, contracts, and every operation that does not go on, with the command
that helps. It needs a key with the operator's right, and changes nothing.

--probe also asks each provider account one harmless question, a GET that the
contract says changes nothing, to see whether its credential is accepted.

--data adds what can be said of a data directory from outside, also where the
service is down: who holds it, its identity and keys, disk, contracts and
credentials. The exit code is 1 if something fails.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r client.Report
			if p.data != "" {
				r.Checks = p.look(cmd.Context())
			}
			if err := a.ask(cmd.Context(), &r, probe, p.data != ""); err != nil {
				return err
			}
			return a.reported(r)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&probe, "probe", false, "ask each provider account one harmless question")
	flags.StringVar(&p.data, "data", "", "data directory to look at too")
	flags.StringVar(&p.contracts, "contracts", "", "with --data: directory of your own contracts, as of serve")
	flags.StringVar(&p.credentials, "credentials", "", "with --data: credentials file (default DATA/credentials.yaml, if it is there)")
	return cmd
}

// ask adds the service's own report. Where more is known than it, that it does
// not answer is a check like the others.
func (a *app) ask(ctx context.Context, r *client.Report, probe, more bool) error {
	c, err := a.client()
	if err != nil && more {
		r.Checks = append(r.Checks, client.ReportCheck{
			Name: "service", Status: checkUnseen, Seen: "not asked: " + err.Error(),
			Do: []string{"give an operator's key with COUNTERFOIL_KEY or --key-file"},
		})
		return nil
	}
	if err != nil {
		return err
	}
	report, err := c.Doctor(ctx, probe)
	var problem *client.Problem
	switch {
	case err == nil:
		report.Checks = append(r.Checks, report.Checks...)
		*r = report
		return nil
	case !more && errors.As(err, &problem):
		return err
	case !more:
		return &coded{exitUnreachable, "is the service running? --data DIR says what can be said without it", err}
	case errors.As(err, &problem):
		r.Checks = append(r.Checks, client.ReportCheck{Name: "service", Status: checkFail, Seen: err.Error(), Do: []string{hint(problem)}})
	default:
		r.Checks = append(r.Checks, client.ReportCheck{Name: "service", Status: checkFail, Seen: "does not answer: " + err.Error(), Do: []string{"counterfoil serve starts it"}})
	}
	return nil
}

func (a *app) reported(r client.Report) error {
	failed := 0
	for _, c := range r.Checks {
		if c.Status == checkFail {
			failed++
		}
	}
	if a.output == "json" {
		if err := a.json(r); err != nil {
			return err
		}
	} else {
		fmt.Fprint(a.stdout, reportText(r))
	}
	if failed > 0 {
		return ended(exitFailure)
	}
	return nil
}

// reportText writes a report for people: a line for each check, what to do
// below those that are not well, and how many there are of each.
func reportText(r client.Report) string {
	var b strings.Builder
	counts := map[string]int{}
	for _, c := range r.Checks {
		counts[c.Status]++
		mark := c.Status
		if mark == checkFail {
			mark = "FAIL" // found by eye, and without colour
		}
		name := c.Name
		if c.Subject != "" {
			name += " " + c.Subject
		}
		fmt.Fprintf(&b, "%-6s  %s: %s\n", printable(mark), printable(name), printable(c.Seen))
		for _, do := range c.Do {
			if do != "" {
				fmt.Fprintf(&b, "        > %s\n", printable(do))
			}
		}
		if c.Runbook != "" {
			fmt.Fprintf(&b, "        > see %s\n", printable(c.Runbook))
		}
	}
	for _, cut := range r.Cut {
		fmt.Fprintf(&b, "left out: %s\n", printable(cut))
	}
	fmt.Fprintf(&b, "%d ok, %d to look at, %d failed, %d that cannot be seen\n", counts[checkOK], counts[checkWarn], counts[checkFail], counts[checkUnseen])
	return b.String()
}

// place is a data directory and what belongs to it.
type place struct{ data, contracts, credentials string }

// look says what can be said without the service. It changes nothing.
func (p place) look(ctx context.Context) []client.ReportCheck {
	var list []client.ReportCheck
	add := func(name, status, seen string, do ...string) {
		list = append(list, client.ReportCheck{Name: name, Status: status, Seen: seen, Do: do})
	}
	if info, err := os.Stat(p.data); err != nil || !info.IsDir() {
		add("data", checkFail, p.data+" is not a directory that can be read", "name the directory that serve --data uses")
		return list
	}
	i, err := broker.Inspect(p.data)
	var hint *coded
	switch {
	case err != nil:
		do := []string{}
		if errors.As(dataHint(err), &hint) {
			do = append(do, hint.hint)
		}
		add("data", checkFail, err.Error(), do...)
		return list
	case !i.Made:
		add("data", checkUnseen, p.data+" is empty: the first start makes everything in it")
	case i.Locked && i.PID > 0:
		add("data", checkOK, fmt.Sprintf("%s is in use by process %d", p.data, i.PID))
	case i.Locked:
		add("data", checkOK, p.data+" is in use by another process")
	case i.Run == "" || i.Clean:
		add("data", checkOK, p.data+" is in use by nobody; its last run ended in order")
	default:
		add("data", checkWarn, p.data+" is in use by nobody; its last run did not end in order", "counterfoil serve goes on where it stopped")
	}
	p.disk(add)
	if i.Made {
		p.identity(add)
	}
	parsed, _, err := wire.LoadContracts(contracts.FS, p.contracts)
	if err != nil {
		do := "name a directory of contracts"
		if p.contracts != "" {
			do = "counterfoil contract lint " + p.contracts
		}
		add("contracts", checkFail, oneLine(err), do)
		return list
	}
	add("contracts", checkOK, count(len(parsed), "contract")+" can be read: "+strings.Join(slices.Sorted(maps.Keys(parsed)), ", "))
	p.secrets(ctx, parsed, add)
	return list
}

type adder = func(name, status, seen string, do ...string)

// Free bytes of the disk below which the check warns and fails. What is written
// for one operation is some ten KiB and its results.
const (
	diskWarn = 2 << 30
	diskFail = 256 << 20
)

func (p place) disk(add adder) {
	free, err := disk.Free(p.data)
	if err != nil {
		add("disk", checkUnseen, "free space of "+p.data+" cannot be read: "+err.Error())
		return
	}
	status, do := diskStatus(free)
	add("disk", status, fmt.Sprintf("%d MiB are free for %s", free>>20, p.data), do...)
}

func diskStatus(free uint64) (string, []string) {
	switch {
	case free < diskFail:
		return checkFail, []string{"make room before anything else: a store that cannot write accepts nothing"}
	case free < diskWarn:
		return checkWarn, []string{"make room, or move the directory to a larger disk"}
	}
	return checkOK, nil
}

func (p place) identity(add adder) {
	id, err := wire.LoadIdentity(p.data, nil, time.Time{}, false) // never makes one
	switch {
	case errors.Is(err, wire.ErrNoIdentity):
		add("identity", checkFail, "identity.json is missing", "put it back from its backup: with another one the same requests would make second jobs; only where the ledger is empty the next start makes one")
	case err != nil:
		add("identity", checkFail, err.Error())
	default:
		add("identity", checkOK, fmt.Sprintf("installation %s, made %s; readable by its owner only. Is it backed up apart from the data?", id.Installation, id.Created.Format(time.DateOnly)))
	}
	keys, err := ingest.ListKeys(filepath.Join(p.data, keysName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		add("keys", checkWarn, keysName+" is missing: nobody can call", "the next start makes a key and prints it")
		return
	case err != nil:
		add("keys", checkFail, err.Error())
		return
	}
	good, operators := 0, 0
	for _, k := range keys {
		if !k.Disabled {
			good++
			if k.Operates() {
				operators++
			}
		}
	}
	status := checkOK
	if operators == 0 {
		status = checkWarn
	}
	add("keys", status, fmt.Sprintf("%s in use, %d with the operator's right", count(good, "key"), operators))
}

// secrets says whether the credentials file can be read and its references lead
// to something from here.
func (p place) secrets(ctx context.Context, parsed map[string]*contract.Contract, add adder) {
	path := cmp.Or(p.credentials, filepath.Join(p.data, credentialsName))
	file, err := wire.OpenCredentials(wire.CredentialsConfig{
		Path: path, Optional: p.credentials == "", Contracts: parsed, AllowHTTP: true, Now: wire.NewSystemClock().Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		add("credentials file", checkFail, oneLine(err), "docs/CREDENTIALS.md has the form of the file")
		return
	}
	if _, err := os.Stat(path); err != nil {
		add("credentials file", checkUnseen, "there is none; what flags of serve say cannot be seen from here")
		return
	}
	add("credentials file", checkOK, path+" can be read, by its owner only")
	catalogue, err := wire.NewCatalogue(ctx, nowhere{}, parsed, nil, nil, nil, file, "")
	if err != nil {
		add("credentials file", checkFail, err.Error())
		return
	}
	resolve := outbound.SystemReferences()
	for _, provider := range catalogue.Providers() {
		for _, account := range catalogue.Accounts(provider) {
			a, _ := catalogue.Account(provider, account) // it has no other error than none
			if a.Credential == "" {
				continue
			}
			name := "credential " + provider + "/" + account
			_, err := resolve.Resolve(ctx, a.Credential)
			switch {
			case err == nil:
				add(name, checkOK, a.Credential+" leads to a value")
			case strings.HasPrefix(a.Credential, "env:"):
				add(name, checkUnseen, err.Error()+" in this environment; the service may have another")
			default:
				add(name, checkFail, err.Error(), "put right what "+a.Credential+" names")
			}
		}
	}
}

// oneLine puts an error with a line for each problem on one.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.Replace(err.Error(), ":\n", ": ", 1), "\n", "; ")
}

// nowhere keeps no payload: nothing is recorded of what the doctor reads.
type nowhere struct{}

func (nowhere) PutPayload(context.Context, []byte) (events.Digest, error) {
	return events.Digest{}, nil
}

func (nowhere) Payload(context.Context, events.Digest) ([]byte, error) {
	return nil, errors.New("nothing is kept here")
}
