// Package watchers measures what it costs that thousands wait: the memory of the
// service, and how long until the last of them has heard of a fact. It is a benchmark and
// no test: it asserts only that all of them have heard.
package watchers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Run it with -benchtime 5000x: N is how many wait.

// BenchmarkStreams has all watch one operation by server-sent events.
func BenchmarkStreams(b *testing.B) {
	measured(b, func(s *service, op string) request {
		return request{
			"GET /v1/operations/" + op + "/events HTTP/1.1", "operation.snapshot", "operation.paused",
		}
	})
}

// BenchmarkWaits has all wait for it by a long poll.
func BenchmarkWaits(b *testing.B) {
	measured(b, func(_ *service, op string) request {
		return request{"GET /v1/operations/" + op + "?wait=55&after=1 HTTP/1.1", "", `"version":2`}
	})
}

type request struct{ line, first, news string }

func measured(b *testing.B, ask func(*service, string) request) {
	s := serve(b)
	op := s.submit(b)
	r := ask(s, op)
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

// service is `counterfoil serve` in a process of its own.
type service struct {
	address, key string
	pid          int
}

func serve(b *testing.B) *service {
	b.Helper()
	dir := b.TempDir()
	binary := filepath.Join(dir, "counterfoil")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/counterfoil/counterfoil/cmd/counterfoil").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	// An operation that is not due stays where it is.
	cmd := exec.Command(binary, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--credential", "example=env:PROVIDER_KEY")
	cmd.Env = append(os.Environ(), "PROVIDER_KEY=not-used-by-anything")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			b.Errorf("serve: %v\n%s", err, &log)
		}
	})
	s := &service{pid: cmd.Process.Pid}
	key, listening := regexp.MustCompile(`cf_[A-Za-z0-9_.-]+`), regexp.MustCompile(`127\.0\.0\.1:\d+`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.key += key.FindString(lines.Text())
		if at := listening.FindString(lines.Text()); at != "" && s.address == "" {
			s.address = at
		}
		if strings.Contains(lines.Text(), "ready") {
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
	if s.key == "" || s.address == "" {
		b.Fatalf("serve said neither key nor address\n%s", &log)
	}
	return s
}

func (s *service) post(b *testing.B, path, body string, want int) []byte {
	b.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+s.address+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + s.key}, "Content-Type": {"application/json"}, "Idempotency-Key": {path}}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Body.Close()
	text, _ := io.ReadAll(w.Body)
	if w.StatusCode != want {
		b.Fatalf("POST %s: %s\n%s", path, w.Status, text)
	}
	return text
}

func (s *service) submit(b *testing.B) string {
	b.Helper()
	at := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339)
	var op struct{ ID string }
	text := s.post(b, "/v1/operations", `{"provider":"example","params":{"kind":"render"},"not_before":"`+at+`","deadlines":{"create":"1h"}}`, http.StatusAccepted)
	if err := json.Unmarshal(text, &op); err != nil {
		b.Fatal(err)
	}
	return op.ID
}

func (s *service) pause(b *testing.B, op string) {
	b.Helper()
	s.post(b, "/v1/operations/"+op+"/pause", `{"why":"measured"}`, http.StatusOK)
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

func (s *service) open(b *testing.B, r request) *client {
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
