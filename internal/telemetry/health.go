package telemetry

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	keepReport = time.Second     // a report is given again for so long
	checkTime  = 2 * time.Second // for one check
)

// Check is one thing that must be well.
type Check struct {
	Name string
	// Required says that the service cannot do its work without it. What is not
	// required still shows, and leaves the service ready.
	Required bool
	// Do is what a person does about it; a fixed text, since anybody may read it.
	Do string
	// Where names the place to correct in a file of whoever runs the service: line
	// and field, no value and nobody's name. It is shown to them and not to callers.
	// Nil, or "": there is none.
	Where func() string
	// Look says what is wrong. The text goes to the log and nowhere else.
	Look func(ctx context.Context) error
}

// Status of a check, or of all of them.
type Status string

// Statuses. Degraded says that only checks that are not required fail.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Failing  Status = "failing"
)

// CheckReport is how one check stands.
type CheckReport struct {
	Name     string    `json:"name"`
	Status   Status    `json:"status"` // ok or failing
	Required bool      `json:"required"`
	Since    time.Time `json:"since"`           // of this status, as far as this process has looked
	Where    string    `json:"where,omitempty"` // line and field
	Do       string    `json:"do,omitempty"`
}

// Report is how all stand.
type Report struct {
	Status Status        `json:"status"`
	Checks []CheckReport `json:"checks"`
}

// Health looks at checks when it is asked, at most once a second however many
// ask. It is safe for concurrent use.
type Health struct {
	checks []Check
	now    func() time.Time
	log    *slog.Logger

	mu   sync.Mutex // held while the checks are looked at: who asks meanwhile gets the same report
	last Report
	at   time.Time // when last was made; zero if never
}

// NewHealth makes a Health over checks.
func NewHealth(checks []Check, now func() time.Time, log *slog.Logger) *Health {
	return &Health{checks: checks, now: now, log: log}
}

// Report looks at the checks, unless that was done within the last second. A check
// that begins to fail, or is well again, is a line in the log.
func (h *Health) Report(ctx context.Context) Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if age := now.Sub(h.at); !h.at.IsZero() && age >= 0 && age < keepReport {
		return h.last
	}
	report := Report{Status: OK}
	for i, check := range h.checks {
		// Who asks may leave; the report is for those who come within a second too.
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), checkTime)
		err := check.Look(limited)
		stop()
		entry := CheckReport{Name: check.Name, Status: OK, Required: check.Required, Since: now.UTC().Truncate(time.Second)}
		if err != nil {
			entry.Status, entry.Do = Failing, check.Do
			if check.Where != nil {
				entry.Where = check.Where()
			}
			if check.Required {
				report.Status = Failing
			} else if report.Status == OK {
				report.Status = Degraded
			}
		}
		first := h.at.IsZero()
		changed := first || h.last.Checks[i].Status != entry.Status
		switch {
		case !changed:
			entry.Since = h.last.Checks[i].Since
		case err != nil:
			h.log.WarnContext(ctx, "a check fails", "check", check.Name, "required", check.Required, "error", err)
		case !first:
			h.log.InfoContext(ctx, "a check is well again", "check", check.Name)
		}
		report.Checks = append(report.Checks, entry)
	}
	h.last, h.at = report, h.now()
	return report
}

// Ready gives the report as an answer to anybody: whether the service can do its
// work, and what is to be shown.
func (h *Health) Ready(ctx context.Context) (bool, any) {
	report := h.Report(ctx)
	report.Checks = slices.Clone(report.Checks)
	for i := range report.Checks {
		report.Checks[i].Where = ""
	}
	return report.Status != Failing, report
}

// Admin serves what whoever runs the service looks at: /healthz, /readyz and
// /metrics. None of them asks for a key.
func Admin(h *Health, m *Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]Status{"status": OK})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		report := h.Report(r.Context())
		if report.Status == Failing {
			status = http.StatusServiceUnavailable
		}
		answer(w, status, report)
	})
	mux.Handle("GET /metrics", m.Handler())
	return mux
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic("telemetry: " + err.Error()) // names, codes and times always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // whoever asked left; there is nobody to tell
}
