package api

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"testing"
)

// BenchmarkStacks gives the stacks of each of those who wait: that of its request, which is
// 8 KiB only where the wait is called from near the bottom, and up to 4 of who watches its
// connection. -benchtime 200x is enough; -race makes stacks larger.
func BenchmarkStacks(b *testing.B) {
	for _, c := range []struct{ name, request string }{
		{"stream", "GET /v1/operations/{op}/events"},
		{"wait", "GET /v1/operations/{op}?wait=50&after=1"},
		{"wait with a tag", "GET /v1/operations/{op}?wait=50&until=terminal"},
		{"submit", "POST /v1/operations"},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := &harness{t: b, clock: &clock{real: true}, log: &bytes.Buffer{}, bearer: map[string]string{}}
			h.over(h.memory())
			op := h.submitted("alice", "k")
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			served, followed := make(chan error, 1), make(chan struct{})
			go func() { served <- Serve(ctx, listener, newHandler(h.options), slog.New(slog.DiscardHandler), nil) }()
			go func() { defer close(followed); h.service.Run(ctx) }()
			before := stacks()
			for range b.N {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				body := ""
				if strings.HasPrefix(c.request, "POST") {
					body = `{"provider":"example","params":{"kind":"render"}}`
				}
				fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k\r\nPrefer: wait=50\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
					strings.ReplaceAll(c.request, "{op}", op), h.bearer["alice"], len(body), body)
			}
			for asleep() < b.N {
				runtime.Gosched()
			}
			b.ReportMetric(float64(stacks()-before)/float64(b.N)/1024, "KiB/waiting")
			stop()
			<-followed
			if err := <-served; err != nil {
				b.Error(err)
			}
		})
	}
}

// asleep counts those who wait.
func asleep() (n int) {
	var text bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&text, 1) // a buffer takes everything
	for group := range strings.SplitSeq(text.String(), "\n\n") {
		if strings.Contains(group, ".SleepOr") && strings.Contains(group, "net/http") {
			count, _, _ := strings.Cut(group, " @")
			of := 0
			_, _ = fmt.Sscan(count, &of) // the heading is no number
			n += of
		}
	}
	return n
}

// stacks is what all stacks take, when those that are too large have been made smaller.
func stacks() int {
	for range 4 {
		runtime.GC() // halves
	}
	list := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(list)
	return int(list[0].Value.Uint64())
}
