package contract

import (
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// BenchmarkRead reads what the built-in example contract makes of an answer.
func BenchmarkRead(b *testing.B) {
	c := builtin(b, "example")
	in := Inputs{
		Params: []byte(`{"n":1,"prompt":"a standard operation"}`), Token: "cf_0123456789abcdef", ClientReference: "cf-0123456789abcdef",
		JobID: "job_0123456789abcdef",
	}
	answer := func(status int, body string) Answer {
		return Answer{
			Status: status, Body: []byte(body), URL: "https://api.example.com/v1/jobs/job_0123456789abcdef", ReceivedAt: received,
			Header: map[string][]string{"Content-Type": {"application/json"}, "Content-Length": {"100"}, "Date": {"Mon, 21 Sep 2026 14:14:00 GMT"}},
		}
	}
	b.Run("create", func(b *testing.B) {
		a := answer(202, `{"job_id":"job_0123456789abcdef","state":"queued","client_reference":"cf-0123456789abcdef"}`)
		b.ReportAllocs()
		for b.Loop() {
			if r := c.ReadCreate(a, in); r.Outcome != events.CreateAccepted {
				b.Fatalf("read %+v", r)
			}
		}
	})
	b.Run("status", func(b *testing.B) {
		a := answer(200, `{"job_id":"job_0123456789abcdef","state":"running","progress":40,"updated_at":"2026-09-21T14:13:00Z"}`)
		b.ReportAllocs()
		for b.Loop() {
			if r := c.ReadStatus(a, in); r.State != events.ClassRunning {
				b.Fatalf("read %+v", r)
			}
		}
	})
}
