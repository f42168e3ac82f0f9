package outbound_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// BenchmarkCall is one exchange with a server on the loopback address, whose
// own work is in the figures: about what a provider's answer costs in net/http.
func BenchmarkCall(b *testing.B) {
	answer := []byte(`{"id":"job_123","status":"running","progress":0.5}`)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	})
	for _, secure := range []bool{false, true} {
		name := "plain"
		start := httptest.NewServer
		if secure {
			name, start = "tls", httptest.NewTLSServer
		}
		b.Run(name, func(b *testing.B) {
			srv := start(handler)
			defer srv.Close()
			var trust *tls.Config
			if secure {
				trust = srv.Client().Transport.(*http.Transport).TLSClientConfig
			}
			c, err := outbound.New(outbound.Config{
				Dial: outbound.SystemDialer(nil), Clock: outbound.NewSystemClock(), Resolve: secrets{"KEY": "topsecretkey"}, AllowHTTP: true,
				TLS: trust, Policy: outbound.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			key := outbound.Credential{Ref: "env:KEY", In: outbound.InHeader, Name: "Authorization", Format: "Bearer {}"}
			header := []outbound.Header{{Name: "Accept", Value: "application/json"}, {Name: "Traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
			read := outbound.Request{Method: "GET", URL: srv.URL + "/v1/jobs/job_123", Header: header, Credential: key, Trusted: []string{srv.URL}}
			once := read
			once.Method, once.Body, once.SideEffect = "POST", []byte(`{"prompt":"a cat"}`), true
			repeatable := once
			repeatable.Repeatable = true
			for _, call := range []struct {
				name string
				r    outbound.Request
			}{{"read", read}, {"once", once}, {"repeatable", repeatable}} {
				b.Run(call.name, func(b *testing.B) {
					b.ReportAllocs()
					before := used(b)
					for b.Loop() {
						r := call.r
						if r.SideEffect {
							r.NotAfter = time.Now().Add(time.Minute)
						}
						if a, err := c.Do(b.Context(), r); err != nil || a.Status != 200 {
							b.Fatal(a.Status, err)
						}
					}
					b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
				})
			}
		})
	}
}

// used is the CPU time of this process, which a busy machine changes less than the clock.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
