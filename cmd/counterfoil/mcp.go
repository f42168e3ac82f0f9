package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/mcpapi"
)

func (a *app) mcpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Serve the operations as MCP tools on standard input and output",
		Long: `Serve the operations of a running service as tools of the Model Context Protocol,
on standard input and output, for an agent that starts its tools itself. The
service and the key are named as for every other command. It ends when its input
does and what was asked in it is answered.

A service also answers at /mcp, which needs no process beside the agent. See
docs/MCP.md.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			server := strings.TrimRight(a.serverAddress(), "/")
			return mcpapi.Serve(cmd.Context(), mcpapi.Options{
				Build: launch.Build(), Base: server, Now: time.Now, Stopping: cmd.Context(),
				Log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
			}, overHTTP{c}, feed(cmd.InOrStdin()), keepOpen{a.stdout})
		},
	}
}

// feed hands the input on: a read from a terminal or a pipe cannot be interrupted,
// and must not keep the process from ending.
func feed(in io.Reader) io.ReadCloser {
	out, into := io.Pipe()
	go func() {
		_, err := io.Copy(into, in)
		_ = into.CloseWithError(err) // never fails
	}()
	return out
}

// keepOpen is an output that is not ours to close.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// overHTTP is the use cases of a running service.
type overHTTP struct{ c *client.Client }

// call makes a request whose answer is one JSON object.
func (o overHTTP) call(ctx context.Context, r client.Request) (mcpapi.Answer, error) {
	a, err := o.c.Call(ctx, r)
	if err != nil {
		return mcpapi.Answer{}, refusedOver(err)
	}
	if a.Body == nil && a.Status != http.StatusNotModified {
		return mcpapi.Answer{}, mcpapi.NotReached(errors.New("its answer is larger than can be read"))
	}
	return mcpapi.Answer{Document: a.Body}, nil
}

// refusedOver is what the service refused, or that it did not answer.
func refusedOver(err error) error {
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Code != "" {
		document, encoding := problem.Document()
		if encoding != nil {
			return encoding
		}
		return &mcpapi.Refused{Document: document, Code: ingest.Code(problem.Code)}
	}
	var network *url.Error
	if errors.As(err, &network) {
		err = network.Err // without the address, which names the operation
	}
	return mcpapi.NotReached(err)
}

func operationPath(id string) string { return "/v1/operations/" + url.PathEscape(id) }

func headers(key string, version uint64) map[string]string {
	h := map[string]string{}
	if key != "" {
		h["Idempotency-Key"] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	}
	if version != 0 {
		h["If-Match"] = `"v` + strconv.FormatUint(version, 10) + `"`
	}
	return h
}

func (o overHTTP) Submit(ctx context.Context, key string, body []byte, traceParent string) (mcpapi.Answer, error) {
	h := headers(key, 0)
	if traceParent != "" {
		h["Traceparent"] = traceParent
	}
	return o.call(ctx, client.Request{Method: http.MethodPost, Path: "/v1/operations", Header: h, Body: body})
}

func (o overHTTP) Get(ctx context.Context, id string) (mcpapi.Answer, error) {
	return o.call(ctx, client.Request{Method: http.MethodGet, Path: operationPath(id)})
}

func (o overHTTP) Wait(ctx context.Context, id string, after uint64, wait time.Duration, untilDone bool) (mcpapi.Answer, error) {
	q := url.Values{"wait": {strconv.Itoa(int(wait / time.Second))}, "after": {strconv.FormatUint(after, 10)}}
	if untilDone {
		q.Set("until", "terminal")
	}
	a, err := o.call(ctx, client.Request{Method: http.MethodGet, Path: operationPath(id) + "?" + q.Encode()})
	if err == nil && len(a.Document) == 0 { // there is nothing new
		return o.Get(ctx, id)
	}
	return a, err
}

func (o overHTTP) List(ctx context.Context, l mcpapi.ListQuery) (mcpapi.Answer, error) {
	q := url.Values{"limit": {strconv.Itoa(l.Limit)}}
	for name, value := range map[string]string{"of": l.Of, "state": l.State, "provider": l.Provider, "session": l.Session, "client_reference": l.Reference, "cursor": l.Cursor} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if tags := l.TagFilters(); len(tags) > 0 {
		q["tag"] = tags
	}
	return o.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/operations?" + q.Encode()})
}

func (o overHTTP) Cancel(ctx context.Context, id, key string, version uint64, body []byte) (mcpapi.Answer, error) {
	return o.call(ctx, client.Request{Method: http.MethodPost, Path: operationPath(id) + "/cancel", Header: headers(key, version), Body: body})
}

func (o overHTTP) Decide(ctx context.Context, id, key string, version uint64, body []byte) (mcpapi.Answer, error) {
	return o.call(ctx, client.Request{Method: http.MethodPost, Path: operationPath(id) + "/decisions", Header: headers(key, version), Body: body})
}

func (o overHTTP) Timeline(ctx context.Context, id string, after uint64, limit int) (mcpapi.Answer, error) {
	q := url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(limit)}}
	return o.call(ctx, client.Request{Method: http.MethodGet, Path: operationPath(id) + "/timeline?" + q.Encode()})
}

func (o overHTTP) Capabilities(ctx context.Context) (mcpapi.Answer, error) {
	return o.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/capabilities"})
}

func (o overHTTP) Result(ctx context.Context, r mcpapi.ResultQuery, limit int) (mcpapi.Result, error) {
	path := operationPath(r.ID) + "/result"
	if q := r.Parameters(); len(q) > 0 {
		path += "?" + q.Encode()
	}
	a, err := o.c.Call(ctx, client.Request{Method: http.MethodGet, Path: path, Limit: int64(limit)})
	if err != nil {
		return mcpapi.Result{}, refusedOver(err)
	}
	out := mcpapi.Result{MediaType: a.Header.Get("Content-Type"), Size: a.Size, Data: a.Body, Whole: a.Body != nil}
	if text, ok := strings.CutPrefix(a.Header.Get("Content-Digest"), "sha-256=:"); ok {
		if digest, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(text, ":")); err == nil {
			out.SHA256 = hex.EncodeToString(digest)
		}
	}
	if sum := sha256.Sum256(a.Body); out.Whole && out.SHA256 != "" && hex.EncodeToString(sum[:]) != out.SHA256 {
		return mcpapi.Result{}, mcpapi.NotReached(errors.New("the result's bytes are not those of its digest"))
	}
	return out, nil
}
