package client

import (
	"context"
	"encoding/json"
	"time"
)

// What is known of a call that somebody asked for.
const (
	AskedWaiting = "waiting"  // it is to be sent, or sent again
	AskedSending = "sending"  // it may be on its way
	AskedDone    = "done"     // the provider said so
	AskedRefused = "refused"  // the provider said so
	AskedUnknown = "unknown"  // it left, and nobody knows what came of it
	AskedNotSent = "not_sent" // given up: it could not be sent
	AskedDropped = "dropped"  // its time was over before anything left
)

// Asked is a call that somebody asked for, and what was seen of it.
type Asked struct {
	Status  string           `json:"status"`
	By      string           `json:"by"`
	At      time.Time        `json:"at"`
	Number  uint64           `json:"number"` // of the operation's, from 1
	Problem *ProviderProblem `json:"problem"`
}

// Input is what a job waits for, and the newest answer that was given here.
type Input struct {
	URL  string `json:"url"`  // where a person gives it, at the provider
	Text string `json:"text"` // what it is, in the provider's words
	// Question is the name of what is asked, which [Client.Answer] sends.
	Question string `json:"question"`
	Given    *Asked `json:"given"`
}

// Cleanup is what became of the newest cleanup that was asked for.
type Cleanup struct {
	Asked
	JobID   string   `json:"job_id"`
	Removed []string `json:"removed"` // jobs of which the provider said that it is done
}

// Answer gives the answer, a JSON object, to what the job of the operation waited for
// when op was read, as the person saw it. If it asks something else by now, the answer
// is refused with the code question_differs. It is passed on once; [Operation.Input]
// says what became of it, and the state whether the job goes on.
func (c *Client) Answer(ctx context.Context, op Operation, input json.RawMessage) (Operation, error) {
	question := ""
	if op.Input != nil {
		question = op.Input.Question
	}
	return c.post(ctx, op.ID, "input", struct {
		Question string          `json:"question,omitempty"`
		Input    json.RawMessage `json:"input"`
	}{question, input})
}

// Cleanup asks for what a job of the operation left to be removed, of the operation's
// own where job is "". The operation must have ended or stopped.
func (c *Client) Cleanup(ctx context.Context, id, job, why string) (Operation, error) {
	return c.post(ctx, id, "cleanup", struct {
		JobID string `json:"job_id,omitempty"`
		Why   string `json:"why,omitempty"`
	}{job, why})
}
