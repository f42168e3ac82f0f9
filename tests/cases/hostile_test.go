package cases_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// A provider that answers a byte every two seconds holds a call no longer than
// the contract's request timeout: what has an effect is ambiguous then, and
// what only reads is read again.
func TestSlowByTheByte(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		slow := simulator.SlowBody{Every: 2 * time.Second}
		h.Mount(simulator.Example, "example", simulator.Options{
			Plan: simulator.Steps(time.Second, "running", "succeeded"),
			Result: func(simulator.Job) (string, []byte) {
				return "application/json", []byte(`{"output":"done, at some length"}`)
			},
		},
			simulator.On(simulator.Create, simulator.Nth(1), slow),
			simulator.On(simulator.Status, simulator.Nth(1), slow),
			simulator.On(simulator.Result, simulator.Nth(1), slow))
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, 10*time.Minute)
		want(t, "state", op.State, "succeeded")
		inOrder(t, h, op.ID, "create.attempted", "create.answered/ambiguous", "create.attempted", "create.answered/accepted",
			"observation.failed", "job.observed", "result.failed/error", "result.collected")
		want(t, "class of the create", facts(h, op.ID, "create.answered")[0].Fields["class"], "timeout")
		for _, call := range []simulator.Call{simulator.Create, simulator.Status, simulator.Result} {
			first := h.Sim.Requests(simulator.Filter{Call: call})[0]
			if held := first.Done.Sub(first.At); held < 20*time.Second || held > 33*time.Second {
				t.Errorf("the %s was held for %s, want the request timeout of 30s and at most a byte more", call, held)
			}
		}
		keptPromises(t, h, op.ID)
	})
}

// A host that sends a stored object compressed: the result is what it is of,
// and so are size and digest. A coding that is not known is named.
func TestCompressedResult(t *testing.T) {
	const text = `{"output":"what was asked for"}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, coding string, body []byte) (*harness.House, client.Operation) {
		h := harness.New(t, harness.Options{Edit: byLink(t)})
		h.Mount(simulator.Example, "example", simulator.Options{
			Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: time.Hour, LinkBase: "http://files.example.com",
		}, simulator.On(simulator.Result, simulator.Nth(1), simulator.Answer{
			Header: http.Header{"Content-Encoding": {coding}, "Content-Type": {"application/json"}}, Body: string(body),
		}))
		op := h.Submit("k", "example", `{"n":1}`)
		return h, h.Wait(op.ID, 5*time.Minute)
	}
	variant(t, "gzip", func(t *testing.T) {
		h, op := run(t, "gzip", packed.Bytes())
		want(t, "state", op.State, "succeeded")
		want(t, "result", resultOf(t, h, op.ID), text)
		sum := sha256.Sum256([]byte(text))
		want(t, "size", op.Result.Size, uint64(len(text)))
		want(t, "digest", op.Result.SHA256, hex.EncodeToString(sum[:]))
		want(t, "failures", len(facts(h, op.ID, "result.failed")), 0)
	})
	for name, c := range map[string]struct {
		coding string
		body   []byte
		says   string
	}{
		"cut":     {"gzip", packed.Bytes()[:packed.Len()-4], ""},
		"unknown": {"br", []byte("\x0b\x02\x80ok\x03"), `"br"`},
	} {
		variant(t, name, func(t *testing.T) {
			h, op := run(t, c.coding, c.body)
			want(t, "state", op.State, "succeeded") // by the next read
			failed := facts(h, op.ID, "result.failed")
			if len(failed) != 1 || failed[0].Fields["class"] != "unreadable" || !strings.Contains(failed[0].Fields["message"], c.says) {
				t.Errorf("failures %v, want one that says %s", failed, c.says)
			}
		})
	}
}
