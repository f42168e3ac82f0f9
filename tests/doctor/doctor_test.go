// Package doctor_test plays what an operator is told of a running service, with
// its real parts, as transcripts in testdata.
package doctor_test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the transcripts")

// One service goes through what can be wrong with it, and is asked each time.
func TestTranscript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{
			Builtin:  []string{"example", "example-ask", "example-lookup", "openai-batches", "replicate", "stripe-reporting"},
			Accounts: map[string]poller.Account{"example-lookup": {BaseURL: "http://lookup.test"}},
			Secrets:  map[string]string{"OWN_TOKEN": harness.Token},
		})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(9*time.Hour, "running", "succeeded")})
		h.Mount(simulator.Example, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		told := &transcript{h: h, begun: time.Now(), names: map[string]string{}}

		told.ask(0, "a new service", false)
		fine := told.submit("fine", "example")
		lost := told.submit("lost", "example-ask")
		h.Wait(fine, time.Minute, "observing")
		h.Wait(lost, time.Minute, "quarantined")
		told.ask(10*time.Second, "one operation goes on, of the other nobody knows what became of its create", false)

		h.SetSecret("HARNESS_TOKEN", "")
		rests := told.submit("rests", "example")
		told.ask(30*time.Second, "the credential is gone", false)
		if op := h.Wait(rests, time.Second, "create_pending"); !strings.Contains(op.Because, "credential_missing") {
			t.Errorf("%s does not rest: %s", rests, op.Because)
		}

		h.SetSecret("HARNESS_TOKEN", "of somebody else")
		told.ask(31*time.Second, "the credential is another's, and the provider is asked", true)
		h.SetSecret("HARNESS_TOKEN", harness.Token)
		told.ask(32*time.Second, "the credential is right, and the provider is asked", true)

		// For less than the hour after which no create is sent any more.
		h.StopPoller("poller-1")
		told.ask(50*time.Minute, "nobody works", false)
		h.Poller("poller-2")
		time.Sleep(30 * time.Second)
		drift(t, h)
		told.ask(51*time.Minute, "a stream was changed from outside", false)

		told.compare("transcript.txt")
	})
}

// drift does what somebody with the store's own tool could do.
func drift(t *testing.T, h *harness.House) {
	t.Helper()
	conn, err := nats.Connect("", nats.InProcessServer(server{h.Broker}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "INDEX")
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.MaxAge = time.Hour
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// server is the store as the client library wants it.
type server struct{ *broker.Broker }

func (s server) InProcessConn() (net.Conn, error) { return s.InProcess() }

var (
	contracts = regexp.MustCompile("^[0-9]+ contracts")
	moments   = regexp.MustCompile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z")
	ages      = regexp.MustCompile("[0-9][0-9hms.]* ago")
	counts    = regexp.MustCompile(`last \d+ status reads`)
)

// transcript collects what was told. What is well, and was told before in the
// same words, is left out.
type transcript struct {
	h     *harness.House
	b     strings.Builder
	begun time.Time
	names map[string]string // operation ids to the names of the test
	last  []string          // checks that were shown
}

func (s *transcript) submit(key, provider string) string {
	op := s.h.Submit(key, provider, `{"n":1}`)
	s.names[op.ID] = "$" + key
	return op.ID
}

// ask asks at a time since the start, between the service's own moments.
func (s *transcript) ask(at time.Duration, when string, probe bool) {
	s.h.T.Helper()
	time.Sleep(time.Until(s.begun.Add(at + 333*time.Millisecond)))
	report, err := s.h.Client.Doctor(s.h.T.Context(), probe)
	if err != nil {
		s.h.T.Fatalf("%s: %v", when, err)
	}
	fmt.Fprintf(&s.b, "== %s\n", when)
	for _, c := range report.Checks {
		provider, _, _ := strings.Cut(c.Subject, "/")
		if (c.Name == "credential" || c.Name == "account") && provider != "" && !strings.HasPrefix(provider, "example") {
			continue // built-in contracts that take no part
		}
		c.Seen = contracts.ReplaceAllString(c.Seen, "$$n contracts")
		c.Seen = moments.ReplaceAllString(c.Seen, "$$time") // the store's timers fire a little late
		c.Seen = counts.ReplaceAllString(c.Seen, "last $$n status reads")
		c.Seen = ages.ReplaceAllString(c.Seen, "$$long ago")
		text := fmt.Sprintf("%+v", c)
		if slices.Contains(s.last, text) && c.Status == "ok" {
			continue // as before
		}
		s.last = append(s.last, text)
		fmt.Fprintln(&s.b, strings.TrimRight(fmt.Sprintf("%-6s %s", c.Status, strings.TrimSpace(c.Name+" "+c.Subject)), " ")+": "+c.Seen)
		for _, do := range c.Do {
			fmt.Fprintf(&s.b, "         %s\n", do)
		}
	}
	for _, cut := range report.Cut {
		fmt.Fprintf(&s.b, "cut: %s\n", cut)
	}
	s.b.WriteByte('\n')
}

func (s *transcript) compare(name string) {
	t := s.h.T
	got := s.b.String()
	for id, as := range s.names {
		got = strings.ReplaceAll(got, id, as)
	}
	if strings.Contains(got, harness.Token) || strings.Contains(got, "of somebody else") {
		t.Error("a secret is in the report")
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is otherwise; -update rewrites it. Got:\n%s", name, got)
	}
}
