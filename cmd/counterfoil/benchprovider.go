package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// benchProvider is the simulated provider of a bench. It answers the calls of the
// standard job as the simulator answers them under its dialect example, which a
// test compares, and notes when each arrived. It is not the simulator: that one
// speaks through net/http and keeps what a test may want to know, and what that
// costs would be taken from the processors that the service is measured on.
type benchProvider struct {
	url      string
	listener net.Listener
	work     sync.WaitGroup

	results atomic.Int64 // given out
	last    atomic.Int64 // when the newest call arrived, Unix nanoseconds

	mu      sync.Mutex // guards everything below, jobs included
	closed  bool
	conns   map[net.Conn]struct{}
	jobs    map[string]*benchJob // by id
	byToken map[string]*benchJob
	made    []*benchJob
}

// benchJob is a job at the provider.
type benchJob struct {
	id, reference string
	operation     int // the number in the create's body
	reads         int
	changed       time.Time
	arrived       time.Time // the create
	answered      time.Time // the newest answer, just before it was written
	late          []time.Duration
}

const (
	benchToken = "bench-token" // what the provider asks for
	benchBase  = "/example"    // where it is mounted
)

func startProvider() (*benchProvider, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the simulated provider: %w", err)
	}
	p := &benchProvider{
		url: "http://" + listener.Addr().String() + benchBase, listener: listener,
		conns: map[net.Conn]struct{}{}, jobs: map[string]*benchJob{}, byToken: map[string]*benchJob{},
	}
	p.work.Go(p.accept)
	return p, nil
}

// close ends all connections and waits for their goroutines.
func (p *benchProvider) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close() // a second close is its only error; so also below
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (p *benchProvider) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed; else the service finds nobody and the run ends without news
		}
		p.mu.Lock()
		if p.closed {
			_ = c.Close()
		} else {
			p.conns[c] = struct{}{}
			p.work.Go(func() { p.serve(c) })
		}
		p.mu.Unlock()
	}
}

// benchRequest is what the provider reads of a request.
type benchRequest struct {
	method, path     string
	host, authorized string
	token            string // Idempotency-Key
	length           int
	close            bool
	body             []byte
	arrived          time.Time
}

// serve answers the requests of one connection in turn. One that it cannot read
// ends it.
func (p *benchProvider) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	var out []byte
	for {
		r, err := readBenchRequest(in)
		if err != nil {
			return
		}
		p.last.Store(r.arrived.UnixNano())
		job, status, location, body := p.answer(&r)
		out = fmt.Appendf(out[:0], "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nDate: %s\r\n",
			status, http.StatusText(status), len(body), time.Now().UTC().Format(http.TimeFormat))
		if location != "" {
			out = fmt.Appendf(out, "Location: %s\r\n", location)
		}
		out = append(append(out, "\r\n"...), body...)
		if job != nil {
			// Before the write: the service may have the answer, and count from it,
			// before this goroutine goes on.
			p.mu.Lock()
			job.answered = time.Now()
			p.mu.Unlock()
		}
		_, err = c.Write(out)
		if err != nil || r.close {
			return
		}
	}
}

// benchBody bounds the body of a request, in bytes.
const benchBody = 1 << 20

func readBenchRequest(in *bufio.Reader) (r benchRequest, err error) {
	line, err := readBenchLine(in)
	if err != nil {
		return r, err
	}
	r.arrived = time.Now()
	r.method, r.path, _ = strings.Cut(line, " ")
	r.path, _, _ = strings.Cut(r.path, " ")
	for {
		line, err := readBenchLine(in)
		if err != nil {
			return r, err
		}
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.EqualFold(name, "Host"):
			r.host = value
		case strings.EqualFold(name, "Authorization"):
			r.authorized = value
		case strings.EqualFold(name, "Idempotency-Key"):
			r.token = value
		case strings.EqualFold(name, "Connection"):
			r.close = strings.EqualFold(value, "close")
		case strings.EqualFold(name, "Content-Length"):
			if r.length, err = strconv.Atoi(value); err != nil || r.length < 0 || r.length > benchBody {
				return r, errors.New("a length that is none")
			}
		case strings.EqualFold(name, "Transfer-Encoding"):
			return r, errors.New("a body without a length")
		}
	}
	r.body = make([]byte, r.length)
	_, err = io.ReadFull(in, r.body)
	return r, err
}

func readBenchLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	return string(bytes.TrimRight(line, "\r\n")), err
}

// answer lets a request take effect. job is the one that a create or a status
// read is about.
func (p *benchProvider) answer(r *benchRequest) (job *benchJob, status int, location string, body []byte) {
	if r.authorized != "Bearer "+benchToken {
		return benchRefusal(http.StatusUnauthorized, "unauthorized", "the credential is missing or wrong")
	}
	const path = benchBase + "/v1/jobs"
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.method == http.MethodPost && r.path == path {
		return p.create(r)
	}
	rest, ok := strings.CutPrefix(r.path, path+"/")
	id, result := strings.CutSuffix(rest, "/result")
	job = p.jobs[id]
	if !ok || job == nil || r.method != http.MethodGet {
		return benchRefusal(http.StatusNotFound, "job_not_found", "no such job")
	}
	if result {
		if job.state() != "succeeded" {
			return benchRefusal(http.StatusNotFound, "no_result", "the job has no result")
		}
		p.results.Add(1)
		return nil, http.StatusOK, "", benchDocument(job.id)
	}
	job.late = append(job.late, r.arrived.Sub(job.answered.Add(benchPoll)))
	if job.reads < benchReads {
		job.reads++
		job.changed = time.Now()
	}
	return job, http.StatusOK, "", job.view()
}

func benchRefusal(status int, code, detail string) (job *benchJob, _ int, location string, body []byte) {
	return nil, status, "", fmt.Appendf(nil, `{"type":"about:blank","title":%q,"status":%d,"code":%q,"detail":%q}`,
		http.StatusText(status), status, code, detail)
}

// benchStates is the course of a job, one step for each status read.
func benchStates() [benchReads + 1]string {
	return [...]string{"queued", "running", "running", "succeeded"}
}

func (j *benchJob) state() string { return benchStates()[j.reads] }

func (p *benchProvider) create(r *benchRequest) (job *benchJob, status int, location string, body []byte) {
	job, status = p.byToken[r.token], http.StatusOK
	replayed := job != nil && r.token != ""
	if !replayed {
		n, ok := memberOf(r.body, `"n":`)
		operation, err := strconv.Atoi(n)
		if !ok || err != nil {
			return benchRefusal(http.StatusBadRequest, "invalid_body", "the body has no number of an operation")
		}
		job = &benchJob{
			id: fmt.Sprintf("job_%016x", len(p.made)+1), operation: operation,
			arrived: r.arrived, changed: r.arrived, answered: r.arrived,
		}
		if text, ok := memberOf(r.body, `"client_reference":"`); ok {
			job.reference = text
		}
		p.jobs[job.id], p.byToken[r.token] = job, job
		p.made = append(p.made, job)
		status = http.StatusAccepted
	}
	location = benchBase + "/v1/jobs/" + job.id
	body = fmt.Appendf(nil, `{"job_id":%q,"state":%q,"status_url":"http://%s%s"`, job.id, job.state(), r.host, location)
	if replayed {
		body = append(body, `,"replayed":true`...)
	}
	return job, status, location, append(body, '}')
}

// memberOf gives what follows a name in a JSON text up to the end of the number
// or text: the parameters are the bench's own and hold nothing that is escaped.
func memberOf(body []byte, name string) (string, bool) {
	_, rest, ok := bytes.Cut(body, []byte(name))
	if end := bytes.IndexAny(rest, `",}`); ok && end >= 0 {
		return string(rest[:end]), true
	}
	return "", false
}

func (j *benchJob) view() []byte {
	progress := 100 * j.reads / (benchReads + 1)
	if j.reads == benchReads {
		progress = 100
	}
	body := fmt.Appendf(nil, `{"job_id":%q,"state":%q,"updated_at":%q,"progress":%d`,
		j.id, j.state(), j.changed.UTC().Format(time.RFC3339Nano), progress)
	if j.reference != "" {
		body = fmt.Appendf(body, `,"client_reference":%q`, j.reference)
	}
	return append(body, '}')
}

// benchSeen is what the provider can tell of a run.
type benchSeen struct {
	create     []time.Duration // from the submit to the arrival of the first create
	late       []time.Duration // of status reads, after the time they were due
	duplicates int             // jobs beyond the first of each operation
}

// seen compares the jobs with when each operation was submitted.
func (p *benchProvider) seen(sent []time.Time) benchSeen {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out benchSeen
	known := make([]bool, len(sent))
	for _, j := range p.made {
		out.late = append(out.late, j.late...)
		if j.operation < 0 || j.operation >= len(sent) || known[j.operation] {
			out.duplicates++
			continue
		}
		known[j.operation] = true
		out.create = append(out.create, j.arrived.Sub(sent[j.operation]))
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
