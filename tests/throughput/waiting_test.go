package throughput

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// The benchmarks of this file measure what it costs that thousands wait: the memory of the
// service, and how long until the last of them has heard of a fact. Run them with
// -benchtime 5000x: N is how many wait.

// BenchmarkStreams has all watch one operation by server-sent events.
func BenchmarkStreams(b *testing.B) {
	waited(b, func(op string) asked {
		return asked{
			"GET /v1/operations/" + op + "/events HTTP/1.1", "operation.snapshot", "operation.paused",
		}
	})
}

// BenchmarkWaits has all wait for it by a long poll.
func BenchmarkWaits(b *testing.B) {
	waited(b, func(op string) asked {
		return asked{"GET /v1/operations/" + op + "?wait=55&after=1 HTTP/1.1", "", `"version":2`}
	})
}

// asked is what a client sends, and what it is to be told at first and later.
type asked struct{ line, first, news string }

func waited(b *testing.B, ask func(op string) asked) {
	s := serve(b)
	op := s.submit(b, "first")
	r := ask(op)
	before := s.memory(b)
	list := make([]*client, b.N)
	var ready sync.WaitGroup
	limit := make(chan struct{}, 64)
	for i := range list {
		limit <- struct{}{}
		ready.Go(func() {
			defer func() { <-limit }()
			list[i] = s.open(b, r)
		})
	}
	ready.Wait()
	if b.Failed() {
		b.FailNow()
	}
	for _, c := range list {
		defer c.Close()
	}
	time.Sleep(40 * time.Second) // what opening them took is given back
	idle := s.memory(b)
	heard := make([]time.Duration, b.N)
	var all sync.WaitGroup
	var began time.Time
	start := make(chan struct{})
	for i, c := range list {
		all.Go(func() {
			<-start
			if err := c.read(r.news); err != nil {
				b.Errorf("client %d: %v", i, err)
			}
			heard[i] = time.Since(began)
		})
	}
	began = time.Now()
	close(start)
	s.pause(b, op)
	all.Wait()
	after := s.memory(b)
	slices.Sort(heard)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(idle.rss)/(1<<20), "idle-MiB")
	b.ReportMetric(float64(max(after.peak, idle.peak))/(1<<20), "peak-MiB")
	b.ReportMetric(float64(idle.rss-before.rss)/float64(b.N)/1024, "KiB/client")
	b.ReportMetric(float64(heard[len(heard)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(heard[len(heard)-1].Microseconds())/1000, "last-ms")
}

// pause appends a fact.
func (s *service) pause(b *testing.B, op string) {
	b.Helper()
	body := `{"why":"measured"}`
	answer, err := one(s.address, fmt.Sprintf("POST /v1/operations/%s/pause HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIdempotency-Key: %q\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		op, s.key, "pause", len(body), body))
	if err != nil || !bytes.Contains(answer, []byte(`"paused":`)) {
		b.Fatalf("%v: %s", err, answer)
	}
}

type memory struct{ rss, peak int64 }

func (s *service) memory(b *testing.B) memory {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		b.Fatal(err)
	}
	field := func(name string) int64 {
		m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
		if m == nil {
			b.Fatalf("no %s", name)
		}
		n, _ := strconv.ParseInt(string(m[1]), 10, 64)
		return n << 10
	}
	return memory{field("VmRSS"), field("VmHWM")}
}

// client is one connection.
type client struct {
	net.Conn
	r *bufio.Reader
}

func (s *service) open(b *testing.B, r asked) *client {
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		b.Error(err)
		return nil
	}
	c := &client{conn, bufio.NewReaderSize(conn, 512)}
	if _, err := fmt.Fprintf(conn, "%s\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", r.line, s.address, s.key); err != nil {
		b.Error(err)
	}
	if r.first != "" {
		if err := c.read(r.first); err != nil {
			b.Error(err)
		}
	}
	return c
}

// read reads until a line holds the text.
func (c *client) read(text string) error {
	if err := c.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	var seen []byte
	for {
		part, err := c.r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull { //nolint:errorlint // as ReadSlice returns it
			return fmt.Errorf("%w after %.300q", err, seen)
		}
		seen = append(seen, part...)
		if bytes.Contains(seen, []byte(text)) {
			return nil
		}
		seen = seen[max(0, len(seen)-4096):]
	}
}
