package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// double is a service that panics, refuses and fails as it is told.
type double struct {
	UseCases
	get          func(ctx context.Context, id string) (Answer, error)
	capabilities string
}

func (d double) Get(ctx context.Context, id string) (Answer, error) { return d.get(ctx, id) }

func (d double) Wait(ctx context.Context, id string, _ uint64, _ time.Duration, _ bool) (Answer, error) {
	return d.get(ctx, id)
}

func (d double) Capabilities(context.Context) (Answer, error) {
	return Answer{Document: json.RawMessage(d.capabilities)}, nil
}

// talk serves the double to a client over pipes until the test ends. It gives the
// log and the codes that were counted.
func talk(t *testing.T, d double) (s *mcp.ClientSession, log *bytes.Buffer, refused *[]ingest.Code) {
	t.Helper()
	log, refused = &bytes.Buffer{}, &[]ingest.Code{}
	ctx, stop := context.WithCancel(t.Context())
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, Options{
			Build: "test", Now: time.Now, Stopping: ctx, Base: "http://service",
			Log:     slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Refused: func(c ingest.Code) { *refused = append(*refused, c) },
		}, d, toServer, fromServer)
	}()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		_ = s.Close() // its peer is gone
	})
	return s, log, refused
}

func get(t *testing.T, s *mcp.ClientSession, id string) (*mcp.CallToolResult, error) {
	t.Helper()
	return s.CallTool(t.Context(), &mcp.CallToolParams{Name: ToolGet, Arguments: map[string]any{"id": id}})
}

// A panic ends one call, and nothing of what a caller sent is told or logged.
func TestPanicEndsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, refused := talk(t, double{get: func(_ context.Context, id string) (Answer, error) {
			if strings.HasPrefix(id, "bad") {
				panic("canary " + id)
			}
			return Answer{Document: json.RawMessage(`{"id":"` + id + `"}`)}, nil
		}})
		_, err := get(t, s, "bad-canary")
		var wire *jsonrpc.Error
		if !errors.As(err, &wire) || wire.Code != jsonrpc.CodeInternalError || strings.Contains(err.Error(), "canary") {
			t.Errorf("a panic: %v", err)
		}
		if r, err := get(t, s, "good"); err != nil || r.IsError {
			t.Errorf("the call after a panic: %+v %v", r, err)
		}
		synctest.Wait()
		if !strings.Contains(log.String(), "panicked") || strings.Contains(log.String(), "canary") || len(*refused) != 1 || (*refused)[0] != ingest.CodeInternal {
			t.Errorf("counted %v, logged\n%s", *refused, log)
		}
	})
}

// What another process refused comes through as it is; a store that fails is a
// problem that may be tried again, and what broke stays in the log.
func TestFailuresAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, refused := talk(t, double{get: func(_ context.Context, id string) (Answer, error) {
			if id == "there" {
				return Answer{}, &Refused{Document: json.RawMessage(`{"code":"of_tomorrow","more":1}`), Code: "of_tomorrow"}
			}
			return Answer{}, errors.New("disk canary-path broke")
		}})
		r, err := get(t, s, "there")
		if err != nil || !r.IsError || r.Content[0].(*mcp.TextContent).Text != `{"code":"of_tomorrow","more":1}` {
			t.Errorf("of another process: %+v %v", r, err)
		}
		r, err = get(t, s, "here")
		if err != nil || !r.IsError {
			t.Fatalf("of a store: %+v %v", r, err)
		}
		text := r.Content[0].(*mcp.TextContent).Text
		if !strings.Contains(text, `"code":"store_unavailable"`) || !strings.Contains(text, `"type":"http://service/errors/store_unavailable"`) || strings.Contains(text, "canary") {
			t.Errorf("of a store: %s", text)
		}
		synctest.Wait()
		if !strings.Contains(log.String(), "canary-path") || len(*refused) != 2 {
			t.Errorf("counted %v, logged\n%s", *refused, log)
		}
	})
}

// The list over a running service follows what it says of the caller; where it
// says nothing, all tools are there.
func TestListFollowsWhatTheServiceSays(t *testing.T) {
	for said, want := range map[string]int{
		`{"actions":[{"action":"get","allowed":true},{"action":"cancel","allowed":false}],"providers":[{"submit":[{"allowed":false}]}]}`:                    6,
		`{"actions":[{"action":"cancel","allowed":true},{"action":"decide","allowed":true}],"providers":[{"submit":[{"allowed":false},{"allowed":true}]}]}`: 4,
		`{"providers":[]}`: 9,
		`broken`:           9,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _, _ := talk(t, double{capabilities: said})
			list, err := s.ListTools(t.Context(), nil)
			if err != nil || len(list.Tools) != want {
				t.Errorf("%s: %d tools, want %d, error %v", said, len(list.Tools), want, err)
			}
		})
	}
}
