package api

import (
	"context"
	"net/http"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// doctor looks at the service. It is not for everyone, since it tells of every
// principal's operations and, with ?probe=true, has providers called.
func (h *handler) doctor(ctx context.Context, c *call) (answer, error) {
	action := ingest.ActReport
	if c.q.Get("probe") == "true" {
		action = ingest.ActProbe
	}
	if refusal := c.caller.May(ingest.Right{Action: action}); refusal != nil {
		return answer{}, refusal
	}
	probe, err := c.q.flag("probe")
	if err != nil {
		return answer{}, err
	}
	ctx, stop := untilStopping(ctx)
	defer stop()
	report, err := h.o.Doctor.Look(ctx, doctor.Request{Probe: probe})
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: report}, nil
}
