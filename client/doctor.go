package client

import (
	"context"
	"net/http"
	"time"
)

// Report is one look at the service: what is right, what is not, and what to do.
type Report struct {
	At     time.Time     `json:"at"`
	Build  string        `json:"build"`
	Checks []ReportCheck `json:"checks"`
	Cut    []string      `json:"cut"` // what was left out, and why
}

// ReportCheck is one thing that was looked at.
type ReportCheck struct {
	Name    string   `json:"name"`
	Subject string   `json:"subject,omitempty"`
	Status  string   `json:"status"` // ok, warn, fail, unseen
	Seen    string   `json:"seen"`
	Do      []string `json:"do,omitempty"`
	Runbook string   `json:"runbook,omitempty"`
}

// Doctor asks for a report. It needs a key with the operator's right. With probe
// each provider account is asked one harmless question, which can take a minute.
func (c *Client) Doctor(ctx context.Context, probe bool) (Report, error) {
	path := "/v1/doctor"
	if probe {
		path += "?probe=true"
	}
	answer, err := c.exchange(ctx, request{method: http.MethodGet, path: path, limit: maxAnswer, extra: 2 * time.Minute}) //nolint:bodyclose // decode closes it
	if err != nil {
		return Report{}, err
	}
	var r Report
	_, err = decode(answer, &r)
	return r, err
}
