package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// benchProvider is the simulated provider of a bench, with a watch: it notes
// when each call arrived and was answered.
type benchProvider struct {
	url    string
	sim    *simulator.Simulator
	server *http.Server
	served chan struct{} // closed when the server has ended

	results atomic.Int64 // given out
	last    atomic.Int64 // when the newest call arrived, Unix nanoseconds

	mu    sync.Mutex
	calls []benchCall // guarded by mu
}

// benchCall is a create or a status read of a job.
type benchCall struct {
	job               string
	create            bool
	arrived, answered time.Time
}

const benchToken = "bench-token" // what the provider asks for

func startProvider() (*benchProvider, error) {
	// The address of this process only, on a port of the system's choice.
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("start the simulated provider: %w", err)
	}
	p := &benchProvider{
		url: "http://" + listener.Addr().String() + "/example", served: make(chan struct{}),
		sim: simulator.New(simulator.Config{Now: time.Now, Seed: 1, LogLimit: 1}),
	}
	p.sim.Mount("/example", simulator.Example).Configure(simulator.Options{
		Auth:   simulator.Auth{Bearer: benchToken},
		Plan:   simulator.StepsPerRead("queued", "running", "running", "succeeded"),
		Result: func(j simulator.Job) (string, []byte) { return "application/json", benchDocument(j.ID) },
	})
	p.server = &http.Server{Handler: p} //nolint:gosec // only our own child calls
	go func() {
		defer close(p.served)
		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			// The service finds nobody and the run ends without news.
			return
		}
	}()
	return p, nil
}

func (p *benchProvider) close() {
	_ = p.server.Close() // the run is over; a listener closed twice is its only error
	<-p.served
	p.sim.Close()
}

// ServeHTTP passes the call on and notes its times.
func (p *benchProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := benchCall{create: r.Method == http.MethodPost, arrived: time.Now()}
	p.last.Store(c.arrived.UnixNano())
	p.sim.ServeHTTP(w, r)
	c.answered = time.Now()
	switch {
	case strings.HasSuffix(r.URL.Path, "/result"):
		p.results.Add(1)
		return
	case c.create:
		c.job = path.Base(w.Header().Get("Location"))
	default:
		c.job = path.Base(r.URL.Path)
	}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
}

// benchSeen is what the provider can tell of a run.
type benchSeen struct {
	create     []time.Duration // from the submit to the arrival of the first create
	late       []time.Duration // of status reads, after the time they were due
	duplicates int             // jobs beyond the first of each operation
}

// seen compares the calls with when each operation was submitted.
func (p *benchProvider) seen(sent []time.Time) benchSeen {
	var out benchSeen
	first := map[int]string{}
	number := map[string]int{}
	for _, j := range p.sim.Jobs() {
		var body struct {
			N int `json:"n"`
		}
		_ = json.Unmarshal(j.Body, &body) // the simulator refused what is no JSON
		if _, again := first[body.N]; again {
			out.duplicates++
			continue
		}
		first[body.N], number[j.ID] = j.ID, body.N
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := map[string]time.Time{}
	for _, c := range p.calls { // those of one job are in the order of their answers
		n, ok := number[c.job]
		if !ok {
			continue
		}
		before, known := answered[c.job]
		switch {
		case c.create && !known:
			out.create = append(out.create, c.arrived.Sub(sent[n]))
		case known && !c.create:
			out.late = append(out.late, c.arrived.Sub(before.Add(benchPoll)))
		}
		answered[c.job] = c.answered
	}
	return out
}

// benchDocument is a result of benchResult bytes that is another for each job
// and does not compress to nothing: equal results would be stored once.
func benchDocument(job string) []byte {
	const digits, head, tail = "0123456789abcdefghijklmnopqrstuvwxyz", `{"output":"`, `"}`
	out := make([]byte, 0, benchResult)
	out = append(out, head...)
	for x := crc32.ChecksumIEEE([]byte(job)) | 1; len(out) < benchResult-len(tail); {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out = append(out, digits[x%36])
	}
	return append(out, tail...)
}
