// Package footprint measures what one standard operation leaves on disk: a
// create, three status reads, and a result of 1 KiB that is collected and
// validated. It is a benchmark and no test: it asserts only that the operations
// it counts have all succeeded.
package footprint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// BenchmarkDisk reports the bytes of each stream per operation. Run it with
// -benchtime 2000x: blocks are compressed when they are full, so few operations
// say little.
func BenchmarkDisk(b *testing.B) {
	inBubble(b, func(t *testing.T) {
		h := harness.New(t, harness.Options{
			Workers: 64,
			Edit: func(_, text string) string {
				return string(bytes.ReplaceAll([]byte(text), []byte("poll_interval: {default: 2s"), []byte("poll_interval: {default: 1s")))
			},
		})
		h.Mount(simulator.Example, "example", simulator.Options{
			Plan: simulator.StepsPerRead("queued", "running", "running", "succeeded"),
			Result: func(j simulator.Job) (string, []byte) {
				return "application/json", []byte(`{"output":"` + filler(1010, j.ID) + `"}`)
			},
		})
		ids := make([]string, b.N)
		var wait sync.WaitGroup
		for w := range 16 {
			wait.Go(func() {
				for i := w; i < b.N; i += 16 {
					ids[i] = h.Submit(fmt.Sprintf("key-%d", i), "example", fmt.Sprintf(`{"n":%d,"prompt":"a standard operation"}`, i)).ID
				}
			})
		}
		wait.Wait()
		facts := 0
		for _, id := range ids {
			h.Wait(id, time.Hour, "succeeded")
			facts += len(h.Timeline(id))
		}
		dir := h.Dir()
		h.Stop()
		total := int64(0)
		streams := map[string]int64{}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			total += info.Size()
			for _, name := range []string{"LEDGER", "HISTORY", "WAKEUPS", "INDEX", "WEBHOOKS", "CONTROL", "PAYLOADS", "SLOTS"} {
				if rel, _ := filepath.Rel(dir, path); bytes.Contains([]byte(rel), []byte("/"+name+"/")) {
					streams[name] += info.Size()
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b.ReportMetric(float64(facts)/float64(b.N), "facts/op")
		b.ReportMetric(float64(total)/float64(b.N), "disk-B/op")
		for name, size := range streams {
			b.ReportMetric(float64(size)/float64(b.N), name+"-B/op")
		}
	})
}

// filler is text that is another for each job and does not compress to nothing:
// equal results would be stored once.
func filler(n int, job string) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	out := make([]byte, n)
	x := crc32.ChecksumIEEE([]byte(job)) | 1
	for i := range out {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out[i] = digits[x%36]
	}
	return string(out)
}

// inBubble runs a benchmark body on fake time. synctest takes a *testing.T, so
// the body runs as a test of its own.
func inBubble(b *testing.B, body func(*testing.T)) {
	ok := testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: b.Name(), F: func(t *testing.T) { synctest.Test(t, body) },
	}})
	if !ok {
		b.Fatal("the benchmark's body failed")
	}
}
