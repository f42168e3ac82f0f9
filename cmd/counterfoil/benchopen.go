package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// openWait is when the waiting operations' jobs are read next: long after the
	// bench.
	openWait  = time.Hour
	openBatch = 200 // operations in one commit
	openRest  = 5 * time.Second
	// openMany operations are compared with their wake-ups for long enough to show. At
	// rest is what stands for openStill then, longer than the service takes to give
	// back what it needed; openMost bounds the wait.
	openMany  = 10000
	openStill = 35 * time.Second
	openMost  = 3 * time.Minute
	openReads = 500 // of one operation
	openLists = 100 // of one page
	openLimit = 10 * time.Minute
)

// benchGrowth is what so many waiting operations cost.
type benchGrowth struct {
	Open    int       `json:"open"`
	Derived float64   `json:"derived_facts_per_s"` // by the first start, which finds facts alone
	Clean   float64   `json:"ready_s"`
	Killed  float64   `json:"ready_killed_s"`
	Peak    float64   `json:"start_rss_mib"`
	Rest    float64   `json:"rest_rss_mib"`
	Get     quantiles `json:"get_ms"`
	List    quantiles `json:"list_ms"`
}

// grow makes a data directory with waiting operations and gives the service that
// was started on it last, after an orderly stop and after a kill.
func (a *app) grow(ctx context.Context, o benchOptions, url string) (_ *benchService, g *benchGrowth, err error) {
	g = &benchGrowth{Open: o.open}
	ids, bearer, err := a.fill(ctx, o, url)
	if err != nil {
		return nil, nil, fmt.Errorf("make %d waiting operations: %w", o.open, err)
	}
	o.bearer, o.limit = bearer, openLimit
	profile := o.profile
	o.profile = ""
	child, err := a.startService(ctx, o, url)
	if err != nil {
		return nil, nil, err
	}
	g.Derived = round(float64(3*o.open)/child.ready.Seconds(), 0)
	if err := child.stop(); err != nil {
		return nil, nil, child.explain(err)
	}
	if child, err = a.startService(ctx, o, url); err != nil {
		return nil, nil, err
	}
	g.Clean = round(child.ready.Seconds(), 3)
	if err := child.kill(); err != nil {
		return nil, nil, err
	}
	o.profile = profile
	if child, err = a.startService(ctx, o, url); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = child.explain(errors.Join(err, child.stop()))
		}
	}()
	g.Killed = round(child.ready.Seconds(), 3)
	if err := pause(ctx, openRest); err != nil {
		return nil, nil, err
	}
	if g.Peak, err = child.memory("VmHWM"); err != nil {
		return nil, nil, err
	}
	if g.Rest, err = atRest(ctx, child, o.open); err != nil {
		return nil, nil, err
	}
	var c benchConn
	defer c.close()
	ask := func(n int, path func(i int) string) (quantiles, error) {
		sample := make([]time.Duration, n)
		for i := range sample {
			began := time.Now()
			status, _, err := c.do(ctx, child.address, http.MethodGet, path(i), "Authorization: Bearer "+bearer+"\r\n", "")
			if err != nil {
				return quantiles{}, err
			}
			if status != http.StatusOK {
				return quantiles{}, fmt.Errorf("%s answered %d", path(i), status)
			}
			sample[i] = time.Since(began)
		}
		return quantilesOf(sample), nil
	}
	if g.Get, err = ask(openReads, func(i int) string { return "/v1/operations/" + ids[i*(len(ids)/openReads+1)%len(ids)] }); err != nil {
		return nil, nil, err
	}
	if g.List, err = ask(openLists, func(int) string { return "/v1/operations?limit=50" }); err != nil {
		return nil, nil, err
	}
	return child, g, nil
}

// fill makes the operations: the facts that ingest and poller append and the
// payloads and claims that come before them, many in one commit. What is derived
// from them is left to the service.
func (a *app) fill(ctx context.Context, o benchOptions, url string) (ids []string, bearer string, err error) {
	dir, remove, err := tempDir("bench-contract")
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := benchContract(dir); err != nil {
		return nil, "", err
	}
	parsed, _, err := wire.LoadContracts(contracts.FS, dir)
	if err != nil {
		return nil, "", err
	}
	l, err := open(ctx, options{
		Options: launch.Options{
			Contracts: dir, Listen: "127.0.0.1:0", BaseURLs: []string{"example=" + url}, Credentials: []string{"example=env:" + benchSecret},
			AllowHTTP: true, Workers: 1,
		},
		Data: o.data, Sync: "interval",
	}, nil, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	f := &filler{nats: l.nats, identity: l.setup.Config.Identity, contract: parsed["example"], url: url, run: l.setup.Config.Run}
	f.journal = l.service.Journal()
	if f.policy, err = f.contract.Policy(events.Policy{PollInterval: openWait, PollMax: openWait}); err != nil {
		return nil, "", err
	}
	if f.deadlines, err = f.contract.Deadlines(events.Deadlines{}); err != nil {
		return nil, "", err
	}
	for from := 0; from < o.open; from += openBatch {
		some, err := f.add(ctx, from, min(openBatch, o.open-from))
		if err != nil {
			return nil, "", err
		}
		ids = append(ids, some...)
	}
	return ids, l.newKey, nil
}

// filler makes waiting operations.
type filler struct {
	nats      *journal.NATS
	journal   *journal.Journal
	identity  wire.Identity
	contract  *contract.Contract
	policy    events.Policy
	deadlines events.Deadlines
	url, run  string
}

func (f *filler) add(ctx context.Context, from, n int) (ids []string, err error) {
	tails := make([]*journal.Tail, n)
	payloads := make([][]byte, 2*n)
	intents := make([]*events.IntentRecorded, n)
	for i := range n {
		key := "waiting-" + strconv.Itoa(from+i)
		params := fmt.Sprintf(`{"n":%d,"prompt":"a standard operation"}`, from+i)
		s, err := ingest.DecodeSubmission([]byte(`{"provider":"example","params":` + params + `}`))
		if err != nil {
			return nil, err
		}
		fingerprint, err := s.Fingerprint()
		if err != nil {
			return nil, err
		}
		id := ingest.OperationID(f.identity.Installation, firstPrincipal, key)
		token, reference := f.contract.Identifiers(f.identity.Key, id, fingerprint)
		ids = append(ids, id)
		tails[i] = &journal.Tail{Operation: id}
		payloads[i] = []byte(params)
		payloads[n+i] = fmt.Appendf(nil, `{"method":"POST","url":"%s/v1/jobs","idempotency-key":%q,"body":{"n":%d,"prompt":"a standard operation","client_reference":%q}}`,
			f.url, token, from+i, reference)
		intents[i] = &events.IntentRecorded{
			Principal: firstPrincipal, Provider: "example", Account: ingest.DefaultAccount, Contract: f.contract.Digest,
			Fingerprint: fingerprint, PayloadSize: uint64(len(params)), Token: token, ClientReference: reference,
			Deadlines: f.deadlines, Policy: f.policy, Promises: f.contract.Promises(false), Offers: f.contract.Offers(), Rules: projections.RulesFor(f.contract.Offers()),
		}
	}
	digests, err := journal.FillPayloads(ctx, f.nats, payloads)
	if err != nil {
		return nil, err
	}
	put := func(source string, fact func(i int) events.Fact) error {
		now := time.Now()
		list := make([]events.Event, n)
		for i := range list {
			list[i] = events.Event{ID: wire.NewID(), Source: source, Time: now, Fact: fact(i)}
		}
		return journal.Fill(ctx, f.nats, tails, list)
	}
	if err := put("/ingest/"+f.run, func(i int) events.Fact {
		intents[i].Payload = digests[i]
		return intents[i]
	}); err != nil {
		return nil, err
	}
	if err := put("/poller/1", func(i int) events.Fact {
		return &events.CreateAttempted{Attempt: events.Attempt{
			Number: 1, Request: digests[n+i], Origin: f.url, Account: ingest.DefaultAccount, Credential: "env:" + benchSecret,
			Identity: strings.Repeat("0", 32), NotAfter: time.Now().Add(f.policy.RequestTimeout), Timeout: f.policy.RequestTimeout, Owner: "1/" + f.run,
		}}
	}); err != nil {
		return nil, err
	}
	// Before the fact that relies on it.
	job := func(i int) string { return fmt.Sprintf("job_waiting_%08d", from+i) }
	claims := make(chan int, n)
	for i := range n {
		claims <- i
	}
	close(claims)
	err = together(ctx, 16, func(ctx context.Context) error {
		for i := range claims {
			if _, err := f.journal.Claim(ctx, "example", ingest.DefaultAccount, job(i), ids[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ids, put("/poller/1", func(i int) events.Fact {
		return &events.CreateAnswered{
			Attempt: 1, Outcome: events.CreateAccepted, JobID: job(i), StatusURL: f.url + "/v1/jobs/" + job(i), Remote: "queued", Claim: events.ClaimOwn,
			Call: events.Call{
				AsOf: tails[i].Sequence, LeftAt: time.Now(), Status: http.StatusAccepted,
				Inline: fmt.Appendf(nil, `{"job_id":%q,"state":"queued","created_at":%q}`, job(i), time.Now().UTC().Format(time.RFC3339)),
			},
		}
	})
}

// memory is one of the service's figures in MiB.
func (s *benchService) memory(name string) (float64, error) {
	var kib int64
	if _, err := fmt.Sscanf(procLine(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "status"), name), "%d kB", &kib); err != nil {
		return 0, fmt.Errorf("measure the service: %w", err)
	}
	return round(float64(kib)/(1<<10), 1), nil
}

// kill ends the service without a word.
func (s *benchService) kill() error {
	s.once.Do(func() {
		s.err = s.cmd.Process.Kill()
		s.read.Wait()
		_ = s.cmd.Wait() // it says that it was killed
		s.err = errors.Join(s.err, s.remove())
	})
	return s.err
}

// atRest is the memory that is resident once it stays so, in MiB.
func atRest(ctx context.Context, child *benchService, open int) (float64, error) {
	rest, err := child.memory("VmRSS")
	if err != nil || open < openMany {
		return rest, err
	}
	began := time.Now()
	for since := began; time.Since(since) < openStill && time.Since(began) < openMost; {
		if err := pause(ctx, time.Second); err != nil {
			return 0, err
		}
		now, err := child.memory("VmRSS")
		if err != nil {
			return 0, err
		}
		if math.Abs(now-rest) > rest/100 {
			rest, since = now, time.Now()
		}
	}
	return rest, nil
}
