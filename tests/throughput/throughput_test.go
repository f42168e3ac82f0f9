// Package throughput measures reads and submits over loopback, beside a bare net/http
// handler that answers with the same bytes, and what it costs that thousands wait; each
// server in a process of its own. It is a benchmark and no test: it asserts only that every
// answer is the one wanted.
package throughput

import (
	"bufio"
	"bytes"
	"errors"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bareEnv has the answer of the bare server, where this program is to be that.
const bareEnv = "COUNTERFOIL_BARE_ANSWER"

func TestMain(m *testing.M) {
	if text := os.Getenv(bareEnv); text != "" {
		if err := bare(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// at runs a benchmark for each number of clients that ask at the same time, each one
// request after the other: few for how long one takes, many for how many there can be.
func at(b *testing.B, run func(b *testing.B, connections int)) {
	for _, n := range []int{8, 32} {
		b.Run("connections="+strconv.Itoa(n), func(b *testing.B) { run(b, n) })
	}
}

// BenchmarkGet reads one operation.
func BenchmarkGet(b *testing.B) {
	at(b, func(b *testing.B, connections int) {
		s := serve(b)
		id := s.submit(b, "first")
		measured(b, s, connections, "200", func(int) string {
			return "GET /v1/operations/" + id + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.key + "\r\n\r\n"
		})
	})
}

// BenchmarkSubmit submits operations that are not due yet: what is measured is to take
// them, while the other roles write down what follows from each.
func BenchmarkSubmit(b *testing.B) {
	at(b, func(b *testing.B, connections int) {
		s := serve(b)
		s.submit(b, "first")
		measured(b, s, connections, "202", func(n int) string { return s.submission("k" + strconv.Itoa(n)) })
	})
}

// measured asks the service b.N times, and then the bare server.
func measured(b *testing.B, s *service, connections int, status string, request func(n int) string) {
	b.Helper()
	answer, err := one(s.address, request(-1))
	if err != nil {
		b.Fatal(err)
	}
	plain := serveBare(b, answer)
	ours := run(b, s.address, connections, status, request)
	theirs := run(b, plain, connections, status, request)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ours.rate, "requests/s")
	b.ReportMetric(ours.at(50), "p50-ms")
	b.ReportMetric(ours.at(99), "p99-ms")
	b.ReportMetric(theirs.rate, "bare-requests/s")
	b.ReportMetric(theirs.at(99), "bare-p99-ms")
	b.ReportMetric(theirs.rate/ours.rate, "bare/ours")
}

type figures struct {
	rate float64 // requests a second
	took []time.Duration
}

// at is a percentile in milliseconds.
func (f figures) at(percent int) float64 {
	return float64(f.took[(len(f.took)-1)*percent/100].Microseconds()) / 1000
}

func run(b *testing.B, address string, connections int, status string, request func(int) string) figures {
	b.Helper()
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var all sync.WaitGroup
	start := make(chan struct{})
	for range min(connections, b.N) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		all.Go(func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			<-start
			for n := int(next.Add(1)) - 1; n < b.N; n = int(next.Add(1)) - 1 {
				text := request(n)
				began := time.Now()
				if _, err := io.WriteString(conn, text); err != nil {
					b.Error(err)
					return
				}
				have, err := skip(in)
				if took[n] = time.Since(began); err != nil || have != status {
					b.Errorf("answered %q: %v", have, err)
					return
				}
			}
		})
	}
	began := time.Now()
	close(start)
	all.Wait()
	f := figures{float64(b.N) / time.Since(began).Seconds(), took}
	slices.Sort(f.took)
	return f
}

// skip reads one answer and gives its status. It does no more, since it shares the
// processors with who is measured.
func skip(in *bufio.Reader) (status string, err error) {
	length := -1
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil:
			return status, err
		case status == "":
			if len(line) < 12 {
				return "", errors.New("not an answer")
			}
			status = string(line[9:12])
		case len(line) <= 2:
			if length < 0 {
				return status, errors.New("no Content-Length")
			}
			_, err := in.Discard(length)
			return status, err
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if length, err = strconv.Atoi(strings.TrimSpace(string(line[16:]))); err != nil {
				return status, err
			}
		}
	}
}

// one asks once and gives the answer's bytes.
func one(address, request string) ([]byte, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("answered %d: %s", r.StatusCode, body)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%d\n", r.StatusCode)
	if err := r.Header.Write(&out); err != nil {
		return nil, err
	}
	out.WriteString("\n")
	out.Write(body)
	return out.Bytes(), nil
}

// bare serves the answer, whatever is asked, until it is told to stop. It reads bodies, as who
// answers has to.
func bare(text string) error {
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(strings.ReplaceAll(head, "\r", ""), "\n")
	status, err := strconv.Atoi(lines[0])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, line := range lines[1:] {
			if name, value, ok := strings.Cut(line, ": "); ok && name != "Date" && name != "Content-Length" {
				w.Header().Add(name, value)
			}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
}

func serveBare(b *testing.B, answer []byte) (address string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), bareEnv+"="+string(answer))
	return started(b, cmd, func(line string) (string, bool) { return line, true }, os.Interrupt)
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
	cmd := exec.Command(binary, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "", "--sync", "interval",
		"--credential", "example=env:PROVIDER_KEY")
	cmd.Env = append(os.Environ(), "PROVIDER_KEY=not-used-by-anything")
	s := &service{}
	key, listening := regexp.MustCompile(`cf_[A-Za-z0-9_.-]+`), regexp.MustCompile(`127\.0\.0\.1:\d+`)
	s.address = started(b, cmd, func(line string) (string, bool) {
		s.key += key.FindString(line)
		at := listening.FindString(line)
		return at, at != "" && s.key != ""
	}, syscall.SIGTERM)
	s.pid = cmd.Process.Pid
	return s
}

// started starts a program, reads its output until that is enough, and stops it with the
// benchmark.
func started(b *testing.B, cmd *exec.Cmd, enough func(string) (string, bool), signal os.Signal) string {
	b.Helper()
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
		_ = cmd.Process.Signal(signal)
		_ = cmd.Wait() // the bare one ends by its signal
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if found, ok := enough(lines.Text()); ok {
			go func() { // until the program ends
				for lines.Scan() {
				}
			}()
			return found
		}
	}
	b.Fatalf("%s ended: %s", cmd.Path, &log)
	return ""
}

// submission asks for an operation that is not due within the benchmark.
func (s *service) submission(key string) string {
	body := fmt.Sprintf(`{"provider":"example","params":{"kind":"render","n":7,"note":"a body of some size"},"not_before":%q}`,
		time.Now().Add(50*time.Minute).UTC().Format(time.RFC3339))
	return fmt.Sprintf("POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIdempotency-Key: %q\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		s.key, key, len(body), body)
}

func (s *service) submit(b *testing.B, key string) (id string) {
	b.Helper()
	answer, err := one(s.address, s.submission(key))
	if err != nil {
		b.Fatal(err)
	}
	if id = regexp.MustCompile(`op_[a-z2-7]+`).FindString(string(answer)); id == "" {
		b.Fatalf("%s", answer)
	}
	return id
}
