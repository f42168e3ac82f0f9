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
	if refusal := c.caller.May(ingest.Right{Action: ingest.ActReport}); refusal != nil {
		return answer{}, refusal
	}
	var r doctor.Request
	switch c.q.Get("probe") {
	case "", "false":
	case "true":
		if refusal := c.caller.May(ingest.Right{Action: ingest.ActProbe}); refusal != nil {
			return answer{}, refusal
		}
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
