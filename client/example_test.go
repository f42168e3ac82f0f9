package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

// The examples run against a service in this process, through a proxy that loses every
// second answer. Jobs take 200 ms there.
func connect() (c *client.Client, end func()) {
	s, err := stand.Start(200 * time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	p, err := stand.NewProxy(s.URL, stand.Faults{Lose: true, CutAfter: 3})
	if err != nil {
		log.Fatal(err)
	}
	c, err = client.New(p.URL, s.Key, nil)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		p.Close()
		if err := s.Stop(); err != nil {
			log.Fatal(err)
		}
	}
}

// One key for one intent. Whatever answers are lost, there is one operation.
func Example() {
	c, end := connect()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	op, _, err := c.Submit(ctx, "report-17", client.Submission{Provider: "example", Params: json.RawMessage(`{"report": 17}`)})
	if err != nil {
		log.Fatal(err)
	}
	if op, err = c.Wait(ctx, op.ID); err != nil {
		log.Fatal(err)
	}
	again, replayed, err := c.Submit(ctx, "report-17", client.Submission{Provider: "example", Params: json.RawMessage(`{"report": 17}`)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(op.State, again.ID == op.ID, replayed)
	// Output: succeeded true true
}

// A watch gives each change until the operation is done.
func ExampleClient_Watch() {
	c, end := connect()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	op, _, err := c.Submit(ctx, "render-1", client.Submission{Provider: "example", Tags: map[string]string{"team": "films"}})
	if err != nil {
		log.Fatal(err)
	}
	for now, err := range c.Watch(ctx, op.ID) {
		if err != nil {
			log.Fatal(err)
		}
		op = now
	}
	fmt.Println(op.State, op.Result.MediaType)
	// Output: succeeded application/json
}

// Several operations at once, and which of them was refused.
func ExampleClient_SubmitBatch() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	batch, err := c.SubmitBatch(ctx, "night-3", client.Independent, []client.BatchItem{
		{Operation: client.Submission{Provider: "example", Params: json.RawMessage(`{"n": 1}`)}},
		{Operation: client.Submission{Provider: "nobody"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range batch.Items {
		if item.Problem != nil {
			fmt.Println(item.Index, item.Problem.Code)
			continue
		}
		fmt.Println(item.Index, item.Operation.Provider)
	}
	// Output:
	// 0 example
	// 1 unknown_provider
}

// What a submit would do, before it is made.
func ExampleClient_Check() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	wish := client.Submission{Provider: "example", Params: json.RawMessage(`{"report": 17}`), MaxCost: "0.000001"}
	_, err := c.Check(ctx, "report-17", wish)
	var problem *client.Problem
	if errors.As(err, &problem) {
		fmt.Println(problem.Code)
	}
	wish.MaxCost = ""
	would, err := c.Check(ctx, "report-17", wish)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(would.Would, would.Operation.Guarantee.Name)
	op, _, err := c.Submit(ctx, "report-17", wish)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(op.ID == would.Operation.ID)
	// Output:
	// cost_exceeds_max
	// record deduplicated
	// true
}

// A feed tells what happens to all operations, however often its stream is cut.
func ExampleClient_Feed() {
	c, end := connect()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	// Where to go on is the id of the last event that was dealt with: kept where it
	// outlives the program, nothing is missed. "0" is before the first fact.
	kept := "0"
	for i := range 2 {
		if _, _, err := c.Submit(ctx, fmt.Sprint("item-", i), client.Submission{Provider: "example"}); err != nil {
			log.Fatal(err)
		}
	}
	ended := map[string]string{}
	for event, err := range c.Feed(ctx, client.FeedFilter{Provider: "example"}, kept) {
		if err != nil {
			log.Fatal(err)
		}
		kept = event.ID
		if now := event.Standing; now.Terminal {
			ended[now.ID] = now.State
		}
		if len(ended) == 2 {
			break
		}
	}
	for _, state := range ended {
		fmt.Println(state)
	}
	fmt.Println(kept != "0")
	// Output:
	// succeeded
	// succeeded
	// true
}

// What automation must not settle is stopped until somebody decides.
func ExampleClient_Decide() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	op, _, err := c.Submit(ctx, "ask-1", client.Submission{Provider: "example-ask", Account: "lost"})
	if err != nil {
		log.Fatal(err)
	}
	if op, err = c.Wait(ctx, op.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(op.State, op.Reason)
	op, err = c.Decide(ctx, op.ID, op.Version, "ask-1-decision", client.Decision{Kind: "abandon", Why: "it is not worth a second job"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(op.State)
	// Output:
	// quarantined create_outcome_unknown
	// abandoned
}

// A problem says whether, when and with which key to send the request again.
func ExampleProblem() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	later := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339)
	op, _, err := c.Submit(ctx, "k", client.Submission{Provider: "example", NotBefore: later})
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Result(ctx, op.ID)
	var problem *client.Problem
	if errors.As(err, &problem) {
		fmt.Println(problem.Code, problem.Status, problem.Retryable, problem.RetryWith, problem.RetryAfter > 0)
	}
	if _, err = c.Cancel(ctx, op.ID, "not needed"); err != nil { // with a key of its own
		log.Fatal(err)
	}
	if _, err = c.Wait(ctx, op.ID); err != nil {
		log.Fatal(err)
	}
	_, err = c.Result(ctx, op.ID)
	if errors.As(err, &problem) {
		fmt.Println(problem.Code, problem.Status, problem.Retryable, problem.RetryWith)
	}
	// Output:
	// result_not_ready 409 true same_key true
	// no_result 404 false never
}

// A list is read page after page.
func ExampleClient_Operations() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	for i := range 5 {
		if _, _, err := c.Submit(ctx, fmt.Sprint("item-", i), client.Submission{Provider: "example"}); err != nil {
			log.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for op, err := range c.Operations(ctx, client.Filter{Provider: "example", Limit: 2}) {
		if err != nil {
			log.Fatal(err)
		}
		seen[op.ID] = true
	}
	fmt.Println(len(seen))
	// Output: 5
}

// A result's bytes are held against its digest when they are read to the end.
func ExampleClient_Result() {
	c, end := connect()
	defer end()
	ctx := context.Background()

	op, _, err := c.Submit(ctx, "k", client.Submission{Provider: "example"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err = c.Wait(ctx, op.ID); err != nil {
		log.Fatal(err)
	}
	for {
		r, err := c.Result(ctx, op.ID)
		if err != nil {
			log.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err == nil {
			fmt.Println(r.MediaType, len(text) > 0)
			break
		}
		// It was cut; nothing is lost by reading it again.
	}
	// Output: application/json true
}
