package simulator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/counterfoil/counterfoil/simulator"
)

// The first create of each token is stored and its answer lost. The retry with
// the same token finds the job, and the log proves that there is only one.
func Example() {
	sim := simulator.New(simulator.Config{Seed: 1})
	defer sim.Close()
	sim.Mount("/example", simulator.Example,
		simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.DropAnswer{}))
	client := sim.ListenMemory().Client()

	for range 2 {
		req, err := http.NewRequestWithContext(context.Background(), "POST", "http://provider/example/v1/jobs", strings.NewReader(`{"prompt":"hello"}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		req.GetBody = nil // or net/http repeats a POST that has a key
		req.Header.Set("Idempotency-Key", "op-1")
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println("no answer")
			continue
		}
		fmt.Println(resp.Status)
		resp.Body.Close()
	}
	for _, r := range sim.Requests(simulator.Filter{}) {
		fmt.Printf("%s stored=%v replayed=%v fault=%q\n", r.Call, r.Stored, r.Replayed, r.Fault)
	}
	fmt.Println("jobs:", len(sim.Jobs()), "duplicates:", sim.DuplicateCount())
	// Output:
	// no answer
	// 200 OK
	// create stored=true replayed=false fault="drop-answer"
	// create stored=false replayed=true fault=""
	// jobs: 1 duplicates: 0
}
