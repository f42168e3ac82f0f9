package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// benchLoad submits the operations of a bench and waits for their end.
type benchLoad struct {
	o       benchOptions
	address string // of the service, host:port
	admin   string
	bearer  string

	beside int // operations that stay open

	start time.Time
	sent  []time.Time // when each was submitted, with a rate when it was to be
	ids   []string    // of the operations, as the service named them
}

func newLoad(o benchOptions, c *benchService) *benchLoad {
	return &benchLoad{
		o: o, address: c.address, admin: c.admin, bearer: c.bearer,
		sent: make([]time.Time, o.ops), ids: make([]string, o.ops),
	}
}

// run submits and gives the time at which the last operation had ended.
func (l *benchLoad) run(ctx context.Context, p *benchProvider) (ended time.Time, err error) {
	var next atomic.Int64
	l.start = time.Now()
	err = together(ctx, min(l.o.clients, l.o.ops), func(ctx context.Context) error {
		var c benchConn
		defer c.close()
		for {
			n := int(next.Add(1)) - 1
			if n >= l.o.ops || ctx.Err() != nil {
				return ctx.Err()
			}
			if err := l.submit(ctx, &c, n); err != nil {
				return fmt.Errorf("submit operation %d: %w", n, err)
			}
		}
	})
	if err != nil {
		return time.Time{}, err
	}
	return l.wait(ctx, p)
}

// submit asks for one operation. With a rate its time is that of the schedule,
// however long it had to wait for a connection: a service that is slow must not
// slow the clock it is measured by.
func (l *benchLoad) submit(ctx context.Context, c *benchConn, n int) error {
	l.sent[n] = time.Now()
	if l.o.rate > 0 {
		l.sent[n] = l.start.Add(time.Duration(float64(n) / l.o.rate * float64(time.Second)))
		if err := pause(ctx, time.Until(l.sent[n])); err != nil {
			return err
		}
	}
	body := fmt.Sprintf(`{"provider":"example","params":{"n":%d,"prompt":"a standard operation"}}`, n)
	status, answer, err := c.do(ctx, l.address, "POST", "/v1/operations", "Authorization: Bearer "+l.bearer+
		"\r\nContent-Type: application/json\r\nIdempotency-Key: \"bench-"+strconv.Itoa(n)+"\"\r\n", body)
	if err != nil {
		return err
	}
	var op struct {
		ID string `json:"id"`
	}
	if status != http.StatusAccepted {
		return fmt.Errorf("answered %d: %s", status, printable(string(answer)))
	}
	if err := json.Unmarshal(answer, &op); err != nil || op.ID == "" {
		return errors.New("the answer has no id")
	}
	l.ids[n] = op.ID
	return nil
}

// wait waits until no operation is open. While results are missing it asks
// seldom: the question costs the service time.
func (l *benchLoad) wait(ctx context.Context, p *benchProvider) (time.Time, error) {
	var c benchConn
	defer c.close()
	var quiet time.Time // since when none was open
	asked, news := time.Time{}, time.Now()
	for {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return time.Time{}, err
		}
		all := false
		if p != nil {
			all = p.results.Load() >= int64(l.o.ops)
			if last := time.Unix(0, p.last.Load()); last.After(news) {
				news = last
			}
		}
		now := time.Now()
		if !all && now.Sub(asked) < 250*time.Millisecond {
			continue
		}
		asked = now
		open, err := l.open(ctx, &c)
		if err != nil {
			return time.Time{}, err
		}
		switch {
		case open > 0:
			quiet = time.Time{}
		case all:
			return time.Now(), nil
		case quiet.IsZero():
			quiet = now
		case now.Sub(quiet) > 2*time.Second: // the projector has seen what was submitted
			return quiet, nil
		}
		if p != nil && now.Sub(news) > benchStall {
			return time.Time{}, fmt.Errorf("%d operations are open, and the provider has heard nothing for %s", open, benchStall)
		}
	}
}

const openSeries = "counterfoil_operations_open{"

// open is how many operations have not ended, as the projectors know.
func (l *benchLoad) open(ctx context.Context, c *benchConn) (int, error) {
	sum, found := 0.0, false
	err := l.series(ctx, c, func(name string, value float64) {
		if strings.HasPrefix(name, openSeries) {
			sum, found = sum+value, true
		}
	})
	if err == nil && !found {
		return 0, errors.New("the service does not say how many operations are open")
	}
	return int(sum) - l.beside, err
}

// series reads the service's series.
func (l *benchLoad) series(ctx context.Context, c *benchConn, each func(name string, value float64)) error {
	return readSeries(ctx, c, l.admin, each)
}

func readSeries(ctx context.Context, c *benchConn, admin string, each func(name string, value float64)) error {
	status, text, err := c.do(ctx, admin, "GET", "/metrics", "", "")
	if err != nil {
		return fmt.Errorf("read the service's series: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("read the service's series: answered %d", status)
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			each(name, v)
		}
	}
	return nil
}

// verify reads every operation and says which have not succeeded. It is no part
// of what is measured.
func (l *benchLoad) verify(ctx context.Context) (failed, err error) {
	var next, lost atomic.Int64
	var mu sync.Mutex
	others := map[string]int{} // by state
	err = together(ctx, min(16, l.o.ops), func(ctx context.Context) error {
		var c benchConn
		defer c.close()
		for {
			n := int(next.Add(1)) - 1
			if n >= l.o.ops || ctx.Err() != nil {
				return ctx.Err()
			}
			status, answer, err := c.do(ctx, l.address, "GET", "/v1/operations/"+l.ids[n], "Authorization: Bearer "+l.bearer+"\r\n", "")
			if err != nil {
				return fmt.Errorf("read operation %d: %w", n, err)
			}
			var op struct {
				State string `json:"state"`
			}
			if status == http.StatusNotFound {
				lost.Add(1)
				continue
			}
			if err := json.Unmarshal(answer, &op); err != nil || status != http.StatusOK {
				return fmt.Errorf("read operation %d: answered %d", n, status)
			}
			if op.State != "succeeded" {
				mu.Lock()
				others[op.State]++
				mu.Unlock()
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if n := lost.Load(); n > 0 {
		failed = fmt.Errorf("%d operations are lost", n)
	}
	for state, n := range others {
		failed = errors.Join(failed, fmt.Errorf("%d operations are %s", n, printable(state)))
	}
	return failed, nil
}

// latencies gives what the operations' own facts say of when requests left: the
// create after the submit, and each status read after it was due. It stands in
// for the watch of a provider that is elsewhere.
func (l *benchLoad) latencies(ctx context.Context) (create, late []time.Duration, err error) {
	var next atomic.Int64
	var mu sync.Mutex
	err = together(ctx, min(16, l.o.ops), func(ctx context.Context) error {
		var c benchConn
		defer c.close()
		for {
			n := int(next.Add(1)) - 1
			if n >= l.o.ops || ctx.Err() != nil {
				return ctx.Err()
			}
			status, answer, err := c.do(ctx, l.address, "GET", "/v1/operations/"+l.ids[n]+"/timeline", "Authorization: Bearer "+l.bearer+"\r\n", "")
			if err != nil {
				return fmt.Errorf("read the facts of operation %d: %w", n, err)
			}
			var timeline benchTimeline
			if err := json.Unmarshal(answer, &timeline); err != nil || status != http.StatusOK {
				return fmt.Errorf("read the facts of operation %d: answered %d", n, status)
			}
			first, reads := timeline.latencies(l.sent[n])
			mu.Lock()
			create, late = append(create, first...), append(late, reads...)
			mu.Unlock()
		}
	})
	return create, late, err
}

// benchTimeline is the part of an operation's facts that latencies are made of.
type benchTimeline struct {
	Entries []struct {
		Type   string    `json:"type"`
		Time   time.Time `json:"time"`
		Fields struct {
			LeftAt time.Time `json:"left_at"`
		} `json:"fields"`
	} `json:"entries"`
}

// latencies counts a read as due benchPoll after the fact before it was stored.
func (t benchTimeline) latencies(sent time.Time) (create, late []time.Duration) {
	for i, e := range t.Entries {
		switch {
		case e.Fields.LeftAt.IsZero():
		case strings.HasPrefix(e.Type, "create.answered.") && create == nil:
			create = append(create, e.Fields.LeftAt.Sub(sent))
		case strings.HasPrefix(e.Type, "job.observed.") && i > 0:
			late = append(late, e.Fields.LeftAt.Sub(t.Entries[i-1].Time.Add(benchPoll)))
		}
	}
	return create, late
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// benchConn is one kept-alive connection of a caller. It does less than an HTTP
// client, which would take more of the processors that the service is measured
// on. The zero value connects at the first call; it belongs to one goroutine.
type benchConn struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

const benchCallLimit = time.Minute // for one answer

func (c *benchConn) do(ctx context.Context, address, method, path, header, body string) (status int, answer []byte, err error) {
	if c.conn == nil {
		var dialer net.Dialer
		if c.conn, err = dialer.DialContext(ctx, "tcp", address); err != nil {
			return 0, nil, err
		}
		c.in = bufio.NewReader(c.conn)
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.conn.SetDeadline(time.Now().Add(benchCallLimit)); err != nil {
		return 0, nil, err
	}
	c.out = fmt.Appendf(c.out[:0], "%s %s HTTP/1.1\r\nHost: %s\r\n%s", method, path, address, header)
	if method == http.MethodPost {
		c.out = fmt.Appendf(c.out, "Content-Length: %d\r\n", len(body))
	}
	c.out = append(append(c.out, "\r\n"...), body...)
	if _, err := c.conn.Write(c.out); err != nil {
		return 0, nil, err
	}
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err = io.ReadAll(r.Body)
	return r.StatusCode, answer, errors.Join(err, r.Body.Close())
}

func (c *benchConn) close() {
	if c.conn != nil {
		_ = c.conn.Close() // what was asked was answered
		c.conn = nil
	}
}
