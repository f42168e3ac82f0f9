package cases_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// told is one event of a stream.
type told struct{ id, name, data string }

// stream reads a stream until it ends, or limit has passed. A status of 0 means that
// there was no answer.
func stream(t *testing.T, h *harness.House, path, last string, limit time.Duration) (status int, header http.Header, events []told, ended bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://counterfoil.test"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + h.Bearer}, "Accept": {"text/event-stream"}}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := h.HTTP.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e told
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = strings.TrimSuffix(strings.TrimPrefix(value, "dev.counterfoil."), ".v1")
		case "data":
			e.data = value
		case "":
			if e.name != "" {
				events = append(events, e)
			}
			e = told{}
		}
	}
	return resp.StatusCode, resp.Header, events, lines.Err() == nil
}

// FC-35: a stream that begins where it cannot. An id that is older than what there is
// does not exist, since nothing is thrown away; every other one that is none of this
// operation's has a defined answer, and none a silent start from now.
func TestFC35StreamsFromElsewhere(t *testing.T) {
	// Without a worker nothing comes that the test did not do.
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		other := h.Submit("other", "example", params("other")).ID
		id := h.Submit("fc35", "example", params("fc35")).ID
		for i, act := range []string{"pause", "resume", "pause"} {
			for _, op := range []string{id, other} {
				if a := ask(t, h, "POST", "/v1/operations/"+op+"/"+act, "{}", "Idempotency-Key", act+number(uint64(i))); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
		}
		const version = 4
		at := "/v1/operations/" + id + "/events"
		line := h.Timeline(id)
		foreign := h.Timeline(other)
		for name, last := range map[string]string{
			"an id of another operation": number(foreign[len(foreign)-1].Sequence), "an id from the future": "99999", "the largest": "9223372036854775807",
		} {
			status, _, events, _ := stream(t, h, at, last, 2*time.Second)
			if status != 200 || len(events) == 0 || events[0].name != "operation.reset" || !strings.Contains(events[0].data, `"version":`+number(version)) {
				t.Errorf("%s: %d %+v", name, status, events)
			}
		}
		for _, last := range []string{"garbage", "-1", "1.5", "18446744073709551616"} {
			status, header, events, _ := stream(t, h, at, last, 2*time.Second)
			if status != 400 || header.Get("Content-Type") != "application/problem+json" || len(events) > 0 {
				t.Errorf("%q: %d %v %+v", last, status, header, events)
			}
		}
		// One of its own goes on behind it, with every fact, in order.
		for i := range line {
			_, _, events, _ := stream(t, h, at, number(line[i].Sequence), time.Second)
			var got, want []string
			for _, e := range events {
				got = append(got, e.id)
			}
			for _, e := range line[i+1:] {
				want = append(want, number(e.Sequence))
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("behind %d: told %v, want %v", line[i].Sequence, got, want)
			}
		}
		keptPromises(t, h, other, id)
	})
}

// FC-36, for streams: who watches what has ended sees it at once and is told to stop.
func TestFC36StreamsOfWhatIsOver(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(5*time.Second, "running", "succeeded")})
		id := h.Submit("fc36", "example", params("fc36")).ID
		at := "/v1/operations/" + id + "/events"
		// One that is open when it ends is told the end, and ends.
		status, _, events, ended := stream(t, h, at, "", time.Minute)
		if n := len(events); status != 200 || !ended || n < 3 || events[0].name != "operation.snapshot" || events[n-1].name != "operation.ended" ||
			!strings.Contains(events[n-1].data, `"state":"succeeded"`) {
			t.Fatalf("%d, ended %t: %+v", status, ended, events)
		}
		last := events[len(events)-1].id
		for _, age := range []time.Duration{0, 12 * time.Hour} {
			time.Sleep(age)
			begun := time.Now()
			status, _, events, ended := stream(t, h, at, "", time.Minute)
			if len(events) != 2 || status != 200 || !ended || events[0].name != "operation.snapshot" || events[1].name != "operation.ended" || events[1].id != last {
				t.Errorf("after %s: %d, ended %t: %+v", age, status, ended, events)
			}
			if status, _, events, _ := stream(t, h, at, last, time.Minute); status != 204 || len(events) > 0 {
				t.Errorf("after %s, with all of it: %d %+v", age, status, events)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("after %s it took %s", age, took)
			}
		}
		if status, header, _, _ := stream(t, h, "/v1/operations/op_never/events", "", time.Minute); status != 404 || header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("what never was: %d %v", status, header)
		}
		keptPromises(t, h, id)
	})
}
