package poller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

// roomy is a client whose room holds one large body, over a provider that
// answers each call with such a one.
func roomy(t *testing.T, status func() int) *outbound.Client {
	t.Helper()
	large := bytes.Repeat([]byte{'x'}, 9<<20)
	dial := func(ctx context.Context, network, addr string, control outbound.Control) (net.Conn, error) {
		if err := control(ctx, network, "93.184.216.34:80", nil); err != nil {
			return nil, err
		}
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
				fmt.Fprintf(theirs, "HTTP/1.1 %d X\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n", status(), len(large))
				_, _ = theirs.Write(large)
			}
		}()
		return ours, nil
	}
	c, err := outbound.New(outbound.Config{
		Dial: dial, Clock: outbound.NewSystemClock(), AllowHTTP: true, MaxResponse: 1 << 30, Room: 16 << 20,
		Resolve: outbound.SystemReferences(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// The room of a result is given back once it is stored, also between the files
// of one, and when it is no result or cannot be stored.
func TestRoomIsGivenBack(t *testing.T) {
	links := func(list string) reply {
		return says(200, `{"id": "j-1", "status": "succeeded", "output": `+list+`}`)
	}
	setup := func(t *testing.T) (*house, reply, *int) {
		status := 200
		client := roomy(t, func() int { return status })
		h := newHouse(t, changes{contract: "replicate"})
		h.accept()
		h.finish()
		return h, func(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
			return client.Do(ctx, outbound.Request{Method: r.Method, URL: "http://files.example/", MaxBody: r.MaxBody, Timeout: r.Timeout})
		}, &status
	}
	// fits fails where anything is still held.
	fits := func(t *testing.T, h *house, large reply) {
		t.Helper()
		begun := time.Now()
		a, err := large(t.Context(), outbound.Request{Method: "GET", MaxBody: 64 << 20, Timeout: time.Minute})
		if a.Release(); err != nil || time.Since(begun) != 0 {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	}
	bubble(t, "three files", func(t *testing.T) {
		h, large, _ := setup(t)
		h.caller.then(links(`["https://files.example/a", "https://files.example/b", "https://files.example/c"]`), large, large, large)
		begun := time.Now()
		h.attend()
		if last[*events.ResultCollected](h); time.Since(begun) != 0 {
			t.Errorf("waited %v", time.Since(begun))
		}
		fits(t, h, large)
	})
	bubble(t, "one file", func(t *testing.T) {
		h, large, _ := setup(t)
		h.caller.then(links(`"https://files.example/a"`), large)
		h.attend()
		if f := last[*events.ResultCollected](h); f.Size != 9<<20 {
			t.Errorf("%+v", f)
		}
		fits(t, h, large)
	})
	bubble(t, "an error as large", func(t *testing.T) {
		h, large, status := setup(t)
		*status = 500
		h.caller.then(links(`["https://files.example/a", "https://files.example/b"]`), large)
		h.attend()
		if f := last[*events.ResultFailed](h); f.Class != events.ErrorServer {
			t.Errorf("%+v", f)
		}
		fits(t, h, large)
	})
	bubble(t, "a store that takes none", func(t *testing.T) {
		h, large, _ := setup(t)
		h.store.before = func(stream journal.Stream, _ journal.Outgoing) error {
			if stream == journal.Payloads {
				return errors.New("as scripted")
			}
			return nil
		}
		h.caller.then(links(`"https://files.example/a"`), large)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.poller.Attend(ctx, h.due()); err == nil {
			t.Error("stored")
		}
		fits(t, h, large)
	})
}
