package cases_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

const (
	hugeMessage = 3 << 20  // bytes; more than a message of the store holds
	smallFact   = 16 << 10 // bytes a fact may have, whatever a provider says
)

// measured counts what goes into the store, and the largest message of each
// stream but the payloads, where what is large is put aside.
type measured struct {
	mu              sync.Mutex // guards the fields below
	stored, largest int
	stream          journal.Stream
}

func (m *measured) through(s journal.Store) journal.Store {
	return hookedStore{&hooks{stored: func(stream journal.Stream, out journal.Outgoing) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.stored++
		if stream != journal.Payloads && len(out.Data) > m.largest {
			m.largest, m.stream = len(out.Data), stream
		}
		return nil
	}}, s}
}

func (m *measured) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored
}

func (m *measured) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.largest == 0 || m.largest > smallFact {
		t.Errorf("the largest message is one of %d bytes in %s", m.largest, m.stream)
	}
}

// excerpt checks that a provider's words were cut, with the mark of a cut and
// how much there was.
func excerpt(t *testing.T, what, message string) {
	t.Helper()
	if message == "" || len(message) > 500 || !strings.Contains(message, "…") || !strings.HasSuffix(message, " bytes)") {
		t.Errorf("%s: %d bytes that end in %.20q, want at most 500 and a mark", what, len(message), message[max(0, len(message)-10):])
	}
}

// keptWhole reads a body that was put aside: all of it must be there. It is not
// where a look brought no news: then the fact has its digest alone.
func keptWhole(t *testing.T, h *harness.House, digest string) bool {
	t.Helper()
	d, err := events.ParseDigest(digest)
	if err != nil {
		t.Fatal(err)
	}
	body, err := h.Journal.Payload(t.Context(), d)
	if errors.Is(err, journal.ErrNoPayload) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(body) < hugeMessage || !json.Valid(body) && !bytes.HasSuffix(body, []byte("</p></body></html>")) {
		t.Errorf("%d bytes are kept, from %.40q to %.40q", len(body), body, body[max(0, len(body)-40):])
	}
	return true
}

// hugeError is an error body of the provider, hugePage one of a proxy.
func hugeError(status int) simulator.Answer {
	return simulator.Answer{
		Status: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: fmt.Sprintf(`{"code":"too_much","detail":%q}`, strings.Repeat("word ", hugeMessage/5+1)),
	}
}

func hugePage(status int) simulator.Answer {
	return simulator.Answer{
		Status: status, Header: http.Header{"Content-Type": {"text/html"}},
		Body: "<html><body>" + strings.Repeat("<p>word</p>", hugeMessage/11+1) + "</body></html>",
	}
}

// FC-34: what a provider says at length is cut or put aside, and the operation
// goes on.
func TestFC34HugeAnswers(t *testing.T) {
	plan := simulator.Steps(5*time.Second, "queued", "running", "succeeded")
	failing := simulator.Steps(5*time.Second, "running", "failed")
	failing.Code, failing.Message = "too_much", strings.Repeat("word ", hugeMessage/5)
	for _, c := range []struct {
		name  string
		plan  simulator.Plan
		rules []simulator.Rule
		state string
		// fact has a message that was cut; aside one whose body was put aside.
		fact, class string
		aside       string
	}{
		{
			"status with a huge message", plan,
			[]simulator.Rule{simulator.On(simulator.Status, simulator.Always(), simulator.HugeMessage(hugeMessage))},
			"succeeded", "", "", "job.observed",
		},
		{"failed job with a huge message", failing, nil, "failed", "job.observed", "", "job.observed"},
		{
			"status over the limit", plan,
			[]simulator.Rule{simulator.On(simulator.Status, simulator.First(2), simulator.HugeMessage(9<<20))},
			"succeeded", "", "too_large", "",
		},
		{
			"error on status", plan,
			[]simulator.Rule{simulator.On(simulator.Status, simulator.First(2), hugeError(500))},
			"succeeded", "observation.failed", "", "",
		},
		{
			"page on status", plan,
			[]simulator.Rule{simulator.On(simulator.Status, simulator.First(2), hugePage(502))},
			"succeeded", "observation.failed", "", "",
		},
		{
			"page for a status", plan,
			[]simulator.Rule{simulator.On(simulator.Status, simulator.First(2), hugePage(200))},
			"succeeded", "observation.failed", "unreadable", "",
		},
		{
			"create refused", plan,
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Always(), hugeError(400))},
			"failed", "create.answered", "", "create.answered",
		},
		{
			"error on create", plan,
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), hugeError(503))},
			"succeeded", "create.answered", "", "create.answered",
		},
		{
			"page on create", plan,
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), hugePage(502))},
			"succeeded", "create.answered", "", "create.answered",
		},
		{
			"job made, huge answer", plan,
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.HugeMessage(hugeMessage))},
			"succeeded", "", "", "create.answered",
		},
		{
			"job made, answer over the limit", plan,
			[]simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.HugeMessage(9<<20))},
			"succeeded", "", "too_large", "",
		},
	} {
		variant(t, c.name, func(t *testing.T) {
			m := &measured{}
			h := harness.New(t, harness.Options{Through: m.through})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: c.plan}, c.rules...)
			op := h.Submit("k", "example", `{"n":1}`)
			op = h.Wait(op.ID, 5*time.Minute)
			want(t, "state", op.State, c.state)
			cut, classed, aside := "", false, false
			for _, e := range h.Timeline(op.ID) {
				name := factName(e.Type)
				text := e.Fields["message"]
				if name == c.fact && len(text) > len(cut) {
					cut = text
				}
				classed = classed || e.Fields["class"] == c.class
				if name == c.aside && e.Fields["body"] != "" {
					aside = keptWhole(t, h, e.Fields["body"]) || aside
				}
			}
			if c.fact != "" {
				excerpt(t, c.fact, cut)
			}
			if c.class != "" && !classed {
				t.Errorf("no failure of class %s", c.class)
			}
			if c.aside != "" && !aside {
				t.Errorf("no body put aside in %s", c.aside)
			}
			if op.State == "failed" {
				excerpt(t, "problem", op.Problem.Message)
			}
			if t.Failed() {
				t.Log(h.Story(op.ID))
			}
			m.check(t)
			invariants(t, h, op.ID)
		})
	}
}

// FC-34: a submission just below the limit is kept whole, one just above is
// refused before anything is stored.
func TestFC34Submissions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := &measured{}
		h := harness.New(t, harness.Options{Through: m.through})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")})
		raw := ask(t, h, "GET", "/v1/capabilities", "")
		if !strings.Contains(raw.body, `1048576`) {
			t.Errorf("the limit is not told to callers: %s", raw.body)
		}
		const limit, frame = 1 << 20, `{"provider":"example","params":{"pad":""}}`
		body := func(size int) string {
			return `{"provider":"example","params":{"pad":"` + strings.Repeat("x", size-len(frame)) + `"}}`
		}
		time.Sleep(time.Minute) // what starting stores is stored
		before := m.count()
		over := ask(t, h, "POST", "/v1/operations", body(limit+1), "Idempotency-Key", "over")
		want(t, "status", over.status, 413)
		want(t, "type", over.header.Get("Content-Type"), "application/problem+json")
		if !strings.Contains(over.body, `"code":"body_too_large"`) || !strings.Contains(over.body, "1048576") {
			t.Errorf("problem: %s", over.body)
		}
		time.Sleep(time.Minute)
		want(t, "messages stored for it", m.count()-before, 0)

		under := ask(t, h, "POST", "/v1/operations", body(limit), "Idempotency-Key", "under")
		want(t, "status at the limit", under.status, 202)
		var op client.Operation
		if err := json.Unmarshal([]byte(under.body), &op); err != nil {
			t.Fatal(err)
		}
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		creates := h.Sim.Requests(simulator.Filter{Call: simulator.Create})
		if len(creates) != 1 || len(creates[0].Body) < limit-len(frame) {
			t.Errorf("%d creates", len(creates))
		}
		m.check(t)
		invariants(t, h, op.ID)
	})
}
