package api

import (
	"context"
	"net/http"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

func (h *handler) pause(ctx context.Context, c *call) (answer, error) {
	return c.rest(ctx, h.o.Service.Pause)
}

func (h *handler) resume(ctx context.Context, c *call) (answer, error) {
	return c.rest(ctx, h.o.Service.Resume)
}

// rest pauses an operation or ends its pause.
func (c *call) rest(ctx context.Context, do func(context.Context, ingest.PauseRequest) (ingest.View, bool, error)) (answer, error) {
	r := ingest.PauseRequest{Caller: c.caller, ID: c.operation, Body: c.body}
	var err error
	if r.Key, err = ingest.ParseKey(c.r.Header["Idempotency-Key"]); err != nil {
		return answer{}, err
	}
	if r.Version, err = c.ifMatch(); err != nil {
		return answer{}, err
	}
	view, replayed, err := do(ctx, r)
	if err != nil {
		return answer{}, err
	}
	a, err := c.show(http.StatusOK, view)
	if err != nil {
		return answer{}, err
	}
	return markReplayed(a, replayed), nil
}

func (h *handler) holds(ctx context.Context, c *call) (answer, error) {
	list, err := h.o.Service.Holds(ctx, c.caller)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, header: map[string]string{}, body: list}, nil
}

func (h *handler) hold(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	view, placed, replayed, err := h.o.Service.Hold(ctx, ingest.HoldRequest{Caller: c.caller, Body: c.body, Key: key})
	if err != nil {
		return answer{}, err
	}
	a := answer{status: http.StatusOK, header: map[string]string{}, body: view}
	if placed {
		a.status = http.StatusCreated
		a.header["Location"] = "/v1/holds"
	}
	return markReplayed(a, replayed), nil
}

func (h *handler) release(ctx context.Context, c *call) (answer, error) {
	key, err := ingest.ParseKey(c.r.Header["Idempotency-Key"])
	if err != nil {
		return answer{}, err
	}
	view, replayed, err := h.o.Service.Release(ctx, ingest.HoldRequest{Caller: c.caller, Body: c.body, Key: key})
	if err != nil {
		return answer{}, err
	}
	return markReplayed(answer{status: http.StatusOK, header: map[string]string{}, body: view}, replayed), nil
}

func markReplayed(a answer, replayed bool) answer {
	if replayed {
		a.header["Idempotent-Replayed"] = "true"
	}
	return a
}
