package simulator

import (
	"encoding/json"
	"fmt"
	"net/url"
)

// Replicate's words.
func replicateWord(state string) string {
	switch state {
	case Queued:
		return "starting"
	case Running, Cancelling:
		return "processing"
	case Cancelled:
		return "canceled"
	case Expired:
		return Aborted
	}
	return state
}

// prediction is a job in Replicate's form.
func (c *call) prediction(j *job) document {
	m := c.mount
	var body struct {
		Version string          `json:"version"`
		Model   string          `json:"model"`
		Input   json.RawMessage `json:"input"`
	}
	// The create checked that this reads.
	_ = json.Unmarshal(j.body, &body)
	if body.Model == "" {
		body.Model = "acme/upscaler"
	}
	if len(body.Input) == 0 {
		body.Input = json.RawMessage("{}")
	}
	var started, completed any
	for _, ch := range j.changes {
		if ch.State == Running && started == nil {
			started = c.milli(ch.At)
		}
		if Terminal(ch.State) {
			completed = c.milli(ch.At)
		}
	}
	removed := Terminal(j.state) && !c.sim.now().Before(j.updated().Add(m.retention()))
	var output, failure, logs any = nil, nil, ""
	metrics := json.RawMessage("{}")
	if hasResult(j.state) {
		output = []string{c.link(j)}
		metrics = json.RawMessage(fmt.Sprintf(`{"total_time":%.1f}`, j.updated().Sub(j.created).Seconds()))
	}
	if j.state == Failed {
		failure = j.plan.Message
	}
	if removed {
		body.Input, output, logs = json.RawMessage("{}"), nil, nil
	}
	var urls document
	at := c.base() + "/v1/predictions/" + url.PathEscape(j.id)
	urls.set("get", at)
	urls.set("cancel", at+"/cancel")
	urls.set("web", c.base()+"/p/"+url.PathEscape(j.id))

	var doc document
	doc.set("id", j.idValue())
	doc.set("model", body.Model)
	doc.set("version", body.Version)
	doc.set("input", body.Input)
	doc.set("logs", logs)
	doc.set("output", output)
	doc.set("error", failure)
	doc.set("status", c.word(j.state))
	doc.set("created_at", c.milli(j.created))
	doc.set("started_at", started)
	doc.set("completed_at", completed)
	doc.set("source", "api")
	doc.set("data_removed", removed)
	doc.set("metrics", metrics)
	doc.set("urls", urls)
	return doc
}
