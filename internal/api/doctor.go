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
	probe, action := c.q.Get("probe"), ingest.ActReport
	if probe == "true" {
		action = ingest.ActProbe
	}
	if refusal := c.caller.May(ingest.Right{Action: action}); refusal != nil {
		return answer{}, refusal
	}
	var r doctor.Request
	switch probe {
	case "", "false":
	case "true":
		r.Probe = true
	default:
		return answer{}, parameter("probe", ingest.FieldNotAllowed, "must be true or false", "true", "false")
	}
	ctx, stop := untilStopping(ctx)
	defer stop()
	report, err := h.o.Doctor.Look(ctx, r)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: report}, nil
}
