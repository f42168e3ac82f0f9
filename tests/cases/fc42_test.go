package cases_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones are the case, wherever it runs

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// zone sets the zone of the process until the test ends.
func zone(t *testing.T, name string) {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Local
	time.Local = z
	t.Cleanup(func() { time.Local = before })
}

// anyTime is a date and time of day with whatever follows it.
var anyTime = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d| ?[A-Z]{3,4})?`)

// onlyUTC checks that every time in the text is UTC with Z, and that there is
// one.
func onlyUTC(t *testing.T, where, text string) {
	t.Helper()
	found := anyTime.FindAllString(text, -1)
	if len(found) == 0 {
		t.Errorf("no time in %s: %s", where, text)
	}
	for _, at := range found {
		if !strings.HasSuffix(at, "Z") || strings.Contains(at, " ") {
			t.Errorf("%s shows %s", where, at)
		}
	}
}

// FC-42: what the clocks on the wall do is nothing to a deadline. The process
// runs in a zone that changes its clocks a minute after the start: forward,
// so that 02:30 is no time there, and back, so that it is two.
func TestFC42ZoneChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		change time.Time
	}{
		{"forward", time.Date(2000, 3, 26, 1, 0, 0, 0, time.UTC)},
		{"back", time.Date(2000, 10, 29, 1, 0, 0, 0, time.UTC)},
	} {
		variant(t, c.name, func(t *testing.T) {
			time.Sleep(time.Until(c.change.Add(-time.Minute)))
			zone(t, "Europe/Berlin")
			if _, before := time.Now().Local().Zone(); before == func() int { _, after := c.change.Local().Zone(); return after }() {
				t.Fatal("the zone changes nothing")
			}
			h := harness.New(t, harness.Options{})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")})
			end := c.change.Add(time.Minute + 17*time.Second) // past the change, and no whole minute
			berlin := end.In(time.Local).Format(time.RFC3339)
			var ids []string
			for _, deadline := range []string{
				end.Format(time.RFC3339),
				berlin,
				end.In(time.FixedZone("", -9*3600-1800)).Format(time.RFC3339),
				end.In(time.FixedZone("", 14*3600)).Format("2006-01-02T15:04:05.000Z07:00"),
				"2m17s",
			} {
				op, _, err := h.Client.Submit(t.Context(), "until-"+deadline, client.Submission{
					Provider: "example", Params: json.RawMessage(`{"n":1}`), Deadlines: &client.Deadlines{Result: deadline},
				})
				if err != nil {
					t.Fatalf("%s: %v", deadline, err)
				}
				// A length of time runs from the record, which took a moment to store.
				if off := op.Deadlines.Result.Sub(end); off < 0 || off >= time.Second {
					t.Errorf("%s is shown as %s, off by %s", deadline, op.Deadlines.Result, off)
				}
				ids = append(ids, op.ID)
			}
			waits, _, err := h.Client.Submit(t.Context(), "not-before", client.Submission{
				Provider: "example", Params: json.RawMessage(`{"n":1}`), NotBefore: berlin, Deadlines: &client.Deadlines{Create: "3h"},
			})
			if err != nil {
				t.Fatal(err)
			}
			// Without a zone it could be meant for here or for there.
			for _, field := range []string{"result", "create", "not_before"} {
				s := client.Submission{Provider: "example", Params: json.RawMessage(`{"n":1}`)}
				bare := end.In(time.Local).Format("2006-01-02T15:04:05")
				switch field {
				case "not_before":
					s.NotBefore = bare
				case "create":
					s.Deadlines = &client.Deadlines{Create: bare}
				default:
					s.Deadlines = &client.Deadlines{Result: bare}
				}
				_, _, err := h.Client.Submit(t.Context(), "bare-"+field, s)
				p := problemOf(t, err)
				if p.Code != "validation_failed" || len(p.Errors) != 1 || !strings.HasSuffix(p.Errors[0].Field, field) || !strings.Contains(p.Errors[0].Message, "RFC 3339 time with a zone") {
					t.Errorf("%s without a zone: %s %+v", field, p.Code, p.Errors)
				}
			}
			// So with a decision, which moves one deadline by its own offset.
			last, err := h.Client.Get(t.Context(), ids[len(ids)-1])
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Client.Decide(t.Context(), last.ID, last.Version, "bare", client.Decision{Kind: "extend", Deadline: "result", Until: end.Format("2006-01-02T15:04:05")})
			want(t, "code of a decision without a zone", problemOf(t, err).Code, "validation_failed")
			for try := 0; ; try++ { // a poll may come between
				if last, err = h.Client.Get(t.Context(), last.ID); err != nil {
					t.Fatal(err)
				}
				later := end.Add(time.Minute).In(time.Local).Format(time.RFC3339)
				after, err := h.Client.Decide(t.Context(), last.ID, last.Version, fmt.Sprint("later", try), client.Decision{Kind: "extend", Deadline: "result", Until: later})
				if err == nil {
					last = after
					break
				}
				if try > 5 {
					t.Fatal(err)
				}
			}
			want(t, "extended deadline", last.Deadlines.Result.Equal(end.Add(time.Minute)), true)

			for i, id := range ids {
				due := end
				if i == len(ids)-1 {
					due = end.Add(time.Minute)
				}
				op := await(h, id, 10*time.Minute, time.Second)
				want(t, "state", op.State, "result_timed_out")
				if late := op.Since.Sub(due); late < 0 || late > 3*time.Second {
					t.Errorf("%d ended %s after its deadline", i, late)
				}
			}
			sent := factsOf(h, waits.ID, "create.attempted")
			want(t, "creates of what had to wait", len(sent), 1)
			if late := sent[0].Time.Sub(end); late < 0 || late > 3*time.Second {
				t.Errorf("not before %s, sent %s later", end, late)
			}
			invariants(t, h, append(ids, waits.ID)...)
		})
	}
}

// FC-42: times that the provider gives are read by their own zone, and one
// without a zone is no time.
func TestFC42ProvidersTimes(t *testing.T) {
	change := time.Date(2000, 3, 26, 1, 0, 0, 0, time.UTC)
	at := change.Add(10 * time.Second)
	for name, text := range map[string]string{
		"with Z": at.Format(time.RFC3339), "with an offset": at.In(time.FixedZone("", 5*3600+1800)).Format(time.RFC3339),
		"without a zone": at.Format("2006-01-02T15:04:05"),
	} {
		variant(t, name, func(t *testing.T) {
			time.Sleep(time.Until(change.Add(-20 * time.Second)))
			zone(t, "Europe/Berlin")
			h := harness.New(t, harness.Options{})
			h.Mount(simulator.Example, "example", simulator.Options{},
				// Come back after the change, in the provider's words.
				simulator.On(simulator.Status, simulator.FirstOfJob(1), simulator.Answer{
					Status: 429, Header: http.Header{"Retry-After": {at.Format(http.TimeFormat)}, "Date": {change.Add(-18 * time.Second).Format(http.TimeFormat)}}, Body: `{}`,
				}),
				simulator.On(simulator.Status, simulator.Match{By: simulator.PerJob, From: 2}, simulator.Answer{
					Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: fmt.Sprintf(`{"state":"running","updated_at":%q}`, text),
				}))
			op := h.Submit("k", "example", `{"n":1}`)
			time.Sleep(time.Until(at) - time.Millisecond)
			early := h.Sim.Count(simulator.Filter{Call: simulator.Status})
			want(t, "reads before the time named", early, 1)
			time.Sleep(10 * time.Second)
			if h.Sim.Count(simulator.Filter{Call: simulator.Status}) < 2 {
				t.Fatal("no read after the time named")
			}
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			if name == "without a zone" {
				if now.Job.UpdatedAt != nil {
					t.Errorf("a time without a zone is taken for %s", now.Job.UpdatedAt)
				}
				seen := factsOf(h, op.ID, "job.observed")
				if e := seen[len(seen)-1]; e.Fields["provider_time"] != "" || !strings.Contains(e.Fields["message"], "is not an RFC 3339 time with zone") {
					t.Errorf("a time without a zone is read as %v", e.Fields)
				}
			} else if now.Job.UpdatedAt == nil || !now.Job.UpdatedAt.Equal(at) {
				t.Errorf("%s is taken for %v", text, now.Job.UpdatedAt)
			}
			invariants(t, h, op.ID)
		})
	}
}

// untimed leaves out when a line was written, which the handler adds in the zone
// of the process; that of serve puts it in UTC.
func untimed(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}

// FC-42: all times that leave are UTC with Z, and the zone of the process is
// nothing to what is stored.
func TestFC42OutputIsUTC(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		zone(t, "Pacific/Chatham") // 12:45 or 13:45 ahead
		log := &page.Page{}
		h := harness.New(t, harness.Options{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: untimed}))})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "running", "running", "succeeded")})
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: json.RawMessage(`{"n":1}`), Deadlines: &client.Deadlines{Result: "2000-01-01T23:59:59+13:45"},
		})
		if err != nil {
			t.Fatal(err)
		}
		waits, _, err := h.Client.Submit(t.Context(), "k2", client.Submission{
			Provider: "example", Params: json.RawMessage(`{"n":1}`), NotBefore: time.Now().In(time.Local).Add(20 * time.Minute).Format(time.RFC3339),
		})
		if err != nil {
			t.Fatal(err)
		}
		h.Wait(op.ID, time.Minute, "observing")
		h.Mount(simulator.Example, "example-ask", simulator.Options{}, simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		stops := h.Submit("k3", "example-ask", `{"n":1}`).ID
		h.Wait(stops, time.Minute, "quarantined") // since when is in the log
		read := func() map[string]string {
			seen := map[string]string{}
			for _, id := range []string{op.ID, waits.ID} {
				for _, path := range []string{"", "/timeline"} {
					seen[id+path] = ask(t, h, "GET", "/v1/operations/"+id+path, "").body
				}
			}
			seen["list"] = ask(t, h, "GET", "/v1/operations", "").body
			seen["problem"] = ask(t, h, "POST", "/v1/operations", `{"provider":"example","params":{},"deadlines":{"result":"1999-01-01T00:00:00+13:45"}}`, "Idempotency-Key", "past").body
			return seen
		}
		for where, text := range read() {
			onlyUTC(t, where, text)
		}
		// What the record of an operation is, to the byte.
		record := func(id string, facts int) string {
			text, err := json.Marshal(h.Timeline(id)[:facts])
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		ids := []string{op.ID, waits.ID}
		until := func(d client.RunningDeadlines) string { return fmt.Sprint(d.Create, d.Result.UTC()) }
		var facts []int
		var before, deadlines []string
		for i, id := range ids {
			facts = append(facts, len(h.Timeline(id)))
			before = append(before, record(id, facts[i]))
			now, err := h.Client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			deadlines = append(deadlines, until(now.Deadlines))
		}
		n := 0
		for _, stream := range []journal.Stream{journal.Ledger, journal.History, journal.Wakeups} {
			for from := uint64(1); ; n++ {
				m, err := h.Store.Next(t.Context(), stream, ">", from)
				if err != nil {
					break
				}
				if text := fmt.Sprint(m.Header); anyTime.MatchString(text) {
					onlyUTC(t, string(stream)+" "+m.Subject, text)
				}
				from = m.Sequence + 1
			}
		}
		if n < 10 {
			t.Errorf("%d messages were read", n)
		}
		h.Stop()
		zone(t, "America/St_Johns")
		h.Start()
		for i, id := range ids {
			now, err := h.Client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "deadlines after a change of zone", until(now.Deadlines), deadlines[i])
			want(t, "state", await(h, id, time.Hour, time.Second).State, "succeeded")
			want(t, "record in the end", record(id, facts[i]), before[i])
		}
		for where, text := range read() {
			onlyUTC(t, where, text)
		}
		onlyUTC(t, "log", log.String())
		invariants(t, h, append(ids, stops)...)
	})
}
