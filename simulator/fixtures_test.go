package simulator_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/counterfoil/counterfoil/simulator"
)

// fixtureBody is the recorded response body of a replicate scenario.
func fixtureBody(t *testing.T, scenario string) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "replicate", scenario+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var x struct {
		Response struct {
			Body map[string]any `json:"body"`
		} `json:"response"`
	}
	if err := json.Unmarshal(raw, &x); err != nil {
		t.Fatal(err)
	}
	return x.Response.Body
}

func TestFixturesPlay(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		_, err := w.sim.MountFixtures("/r", simulator.Fixtures{
			FS: os.DirFS("testdata/replicate"),
			Order: []string{
				"rate_limited", "create_accepted", "reconcile_list",
				"status_queued", "status_running", "status_succeeded", "cancel_too_late",
			},
			Replace: map[string]string{"https://replicate.delivery": "{base}"},
			Files:   map[string][]byte{"/fix/out-0.png": []byte("PNG")},
		}, simulator.On(simulator.Status, simulator.Nth(2), simulator.Reply(503)))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"version":"5c7d"}`
		a := w.want(429, w.call("POST", "/r/v1/predictions", body))
		w.equal("Retry-After", a.header.Get("Retry-After"), "30")
		a = w.want(201, w.call("POST", "/r/v1/predictions", body))
		w.field(a, "id", "rrr4z55ocneqzikepnug6xezpe")
		at := a.field("urls.get")
		w.equal("urls.get", at, "http://provider/r/v1/predictions/rrr4z55ocneqzikepnug6xezpe")
		var got []string
		for range 5 {
			a = w.call("GET", at, "")
			got = append(got, a.field("status"))
		}
		w.equal("states", got, []string{"starting", "503", "processing", "succeeded", "succeeded"})
		var p struct{ Output []string }
		if err := json.Unmarshal([]byte(a.body), &p); err != nil {
			t.Fatal(err)
		}
		r := w.want(200, w.call("GET", p.Output[0], ""))
		w.equal("output", r.body, "PNG")
		w.field(w.want(200, w.call("POST", at+"/cancel", "")), "status", "succeeded")
		w.want(200, w.call("GET", "/r/v1/predictions?limit=5", ""))
		w.want(404, w.call("GET", "/r/v1/nothing", ""))

		w.equal("jobs", len(w.sim.Jobs()), 1)
		w.want(201, w.call("POST", "/r/v1/predictions", body)) // the last create repeats: a replay
		w.equal("duplicates", w.sim.DuplicateCount(), 0)
		var kinds []string
		for _, r := range w.sim.Requests(simulator.Filter{}) {
			kinds = append(kinds, string(r.Call))
		}
		w.equal("kinds", strings.Join(kinds, " "),
			"create create status status status status status result cancel list other create")
		w.equal("reads", w.sim.Jobs()[0].Reads, 4)
	})
}

func TestFixturesSecondJob(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		_, err := w.sim.MountFixtures("", simulator.Fixtures{
			FS:    os.DirFS("testdata/replicate"),
			Order: []string{"create_accepted", "create_replay_duplicate"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			w.want(201, w.call("POST", "/v1/predictions", `{}`))
		}
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
	})
}

func TestFixtureErrors(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"missing": {"", "read fixture x"},
		"syntax":  {"{", "decode fixture x.json"},
		"inbound": {`{"direction":"inbound"}`, "is a webhook"},
		"lacking": {`{"request":{"method":"GET","path":"/"}}`, "lacks request.method or response.status"},
		"path":    {`{"request":{"method":"GET","path":"%zz"},"response":{"status":200}}`, "read the path"},
		"noslash": {`{"request":{"method":"GET","path":"v1"},"response":{"status":200}}`, "must start with a slash"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			if test.file != "" {
				fsys["x.json"] = &fstest.MapFile{Data: []byte(test.file)}
			}
			sim := simulator.New(simulator.Config{})
			defer sim.Close()
			_, err := sim.MountFixtures("/p", simulator.Fixtures{FS: fsys, Order: []string{"x"}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func FuzzFixture(f *testing.F) {
	for _, name := range []string{"create_accepted", "status_succeeded", "reconcile_list", "webhook_start"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "replicate", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"request":{"method":"GET","path":"/a?b=c&b=d"},"response":{"status":200,"body_raw":"x"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		sim := simulator.New(simulator.Config{})
		defer sim.Close()
		// Any file is either mounted or refused with an error that names it.
		_, err := sim.MountFixtures("/p", simulator.Fixtures{
			FS:    fstest.MapFS{"x.json": &fstest.MapFile{Data: raw}},
			Order: []string{"x"},
		})
		if err != nil && !strings.Contains(err.Error(), "fixture x") {
			t.Errorf("error %v names no file", err)
		}
	})
}
