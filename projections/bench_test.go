package projections

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// standardOperation is one create, four status reads and a result: what most
// operations are.
func standardOperation() *ledger {
	l := newLedger()
	intent := standard()
	intent.Token, intent.KeyID, intent.Contract = "cf_tok_5up3r53cr3t0000000000000000", "key-1", events.Sum([]byte("contract"))
	intent.Fingerprint, intent.Payload, intent.PayloadSize = events.Sum([]byte("f")), events.Sum([]byte("p")), 512
	l.fold(epoch, intent)
	l.fold(epoch.Add(time.Millisecond), &events.CreateAttempted{Attempt: events.Attempt{
		Number: 1, Request: events.Sum([]byte("r")), Origin: "https://api.example.com:443", Account: "main", Credential: "env:EXAMPLE_KEY",
		Identity: "3f2a", NotAfter: epoch.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "poller-1/01J0000000",
	}})
	l.fold(epoch.Add(time.Second), &events.CreateAnswered{
		Attempt: 1, Outcome: events.CreateAccepted, JobID: "job_0123456789abcdef", StatusURL: "https://api.example.com/v1/jobs/job_0123456789abcdef",
		Remote: "queued", Claim: events.ClaimOwn, Call: events.Call{AsOf: 2, LeftAt: epoch, Status: 202, Inline: []byte(`{"job_id":"job_0123456789abcdef","state":"queued"}`)},
	})
	for i := range 4 {
		class := events.ClassRunning
		if i == 3 {
			class = events.ClassSucceeded
		}
		at := epoch.Add(time.Duration(10*(i+1)) * time.Second)
		l.fold(at, &events.JobObserved{
			JobID: l.s.Job.ID, Remote: string(class), State: class, RetrievedAt: at, Prompt: "due",
			Call: events.Call{AsOf: l.seq, LeftAt: at, Status: 200, Inline: []byte(`{"state":"running","progress":40}`)},
		})
	}
	at := epoch.Add(time.Minute)
	l.fold(at, &events.ResultCollected{
		Payload: events.Sum([]byte("result")), Size: 4096, MediaType: "application/json",
		Checks: []events.Check{{Name: "size", Passed: true}, {Name: "schema", Passed: true}}, Call: events.Call{AsOf: l.seq, LeftAt: at, Status: 200},
	})
	return l
}

// The bytes of a standard operation, in the ledger and in history, as bounds:
// what a commit may cost is decided here and not noticed later.
func TestBytesOfAStandardOperation(t *testing.T) {
	l := standardOperation()
	if l.s.Phase != PhaseSucceeded {
		t.Fatalf("it is %s", l.s.Phase)
	}
	facts, records := 0, 0
	for i, e := range l.entries {
		header, data, _ := events.Encode(e.Event)
		size := len(data)
		for name, values := range header {
			size += len(name) + len(values[0]) + 4
		}
		record := len(codec.Marshal(&l.records[i]))
		facts, records = facts+size, records+record
		t.Logf("%-22s fact %4d bytes (data %4d), record %4d, state %4d", e.Event.Fact.Type(), size, len(data), record, len(codec.Marshal(&l.records[i].State)))
	}
	t.Logf("%d facts: ledger %d bytes, history %d bytes", len(l.entries), facts, records)
	if facts > 6<<10 {
		t.Errorf("facts take %d bytes, at most 6 KiB", facts)
	}
	if one := len(codec.Marshal(&l.records[len(l.records)-1])); one > 2<<10 {
		t.Errorf("the last record takes %d bytes, at most 2 KiB", one)
	}
}

// BenchmarkFold folds a status read, and a whole operation.
func BenchmarkFold(b *testing.B) {
	l := standardOperation()
	b.Run("read", func(b *testing.B) {
		before, e := l.records[4].State, l.entries[5]
		b.ReportAllocs()
		for b.Loop() {
			_, _ = Fold(before, e)
		}
	})
	b.Run("operation", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var s State
			for _, e := range l.entries {
				s, _ = Fold(s, e)
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	s := standardOperation().records[4].State
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Next(s); !ok {
			b.Fatal("no next look")
		}
	}
}

func BenchmarkSteps(b *testing.B) {
	s := standardOperation().records[4].State
	b.ReportAllocs()
	for b.Loop() {
		if len(Steps(s)) == 0 {
			b.Fatal("no steps")
		}
	}
}

func BenchmarkEncodeRecord(b *testing.B) {
	l := standardOperation()
	r := l.records[5]
	b.ReportAllocs()
	for b.Loop() {
		_ = codec.Marshal(&r)
	}
	b.ReportMetric(float64(len(codec.Marshal(&r))), "bytes/record")
	b.ReportMetric(float64(len(codec.Marshal(&r.State))), "bytes/state")
}

func BenchmarkDecodeRecord(b *testing.B) {
	l := standardOperation()
	data := codec.Marshal(&l.records[5])
	b.ReportAllocs()
	for b.Loop() {
		var r Record
		if err := codec.Unmarshal(data, &r); err != nil {
			b.Fatal(err)
		}
	}
}
