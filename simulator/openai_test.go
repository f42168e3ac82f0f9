package simulator_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

func TestUpload(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/o", simulator.OpenAIBatches)
		good, kind := form(t, "in.jsonl", input(2)+"\n"+input(1)+"{\n[]\n", "purpose", "batch")
		for name, test := range map[string]struct{ body, kind, param string }{
			"no multipart":  {`{"purpose":"batch"}`, "application/json", "file"},
			"no boundary":   {good, "multipart/form-data", "file"},
			"cut":           {good[:len(good)-20], kind, "file"},
			"other purpose": {body: "purpose", param: "purpose"},
			"no file":       {body: "nofile", param: "file"},
			"empty file":    {body: "empty", param: "file"},
		} {
			switch test.body {
			case "purpose":
				test.body, test.kind = form(t, "in.jsonl", input(1), "purpose", "assistants")
			case "nofile":
				test.body, test.kind = form(t, "", "", "purpose", "batch", "file", input(1))
			case "empty":
				test.body, test.kind = form(t, "in.jsonl", "", "purpose", "batch")
			}
			a := w.call("POST", "/o/v1/files", test.body, "Content-Type", test.kind)
			w.equal(name, []any{a.status, a.field("error.param")}, []any{400, test.param})
		}
		w.equal("kept of them", len(m.Uploads()), 0)

		a := w.want(200, w.call("POST", "/o/v1/files", good, "Content-Type", kind))
		w.field(a, "object", "file")
		w.field(a, "purpose", "batch")
		w.field(a, "filename", "in.jsonl")
		b := w.want(200, w.call("POST", "/o/v1/files", good, "Content-Type", kind))
		if a.field("id") == b.field("id") {
			t.Error("a second upload of the same bytes is not a file of its own")
		}
		up := m.Uploads()[0]
		w.field(a, "bytes", fmt.Sprint(up.Size))
		// A repeated custom_id, no JSON, no object; the blank line is none.
		w.equal("lines", up.Lines, 5)
		w.equal("flaws", up.Flaws, []int{4, 5, 6})

		c := w.want(200, w.call("POST", "/o/v1/batches", batchOf(up.ID, "op_1")))
		w.field(c, "status", "validating")
		time.Sleep(time.Second)
		w.field(w.call("GET", "/o/v1/batches/"+c.field("id"), ""), "status", "failed")

		// The upload has the operation's key once a create used it.
		var keys []string
		for _, r := range w.sim.Requests(simulator.Filter{Call: simulator.Prepare, Stored: true}) {
			keys = append(keys, r.Key)
		}
		w.equal("keys", keys, []string{"op_1", ""})
	})
}

func TestBatchRefusals(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("/o", simulator.OpenAIBatches)
		file := w.uploaded("/o", input(1))
		long := strings.Repeat("x", 513)
		for name, test := range map[string]struct{ from, to, param string }{
			"endpoint": {"/v1/responses", "/v1/nope", "endpoint"},
			"window":   {"24h", "1h", "completion_window"},
			"file":     {file, "file-none", "input_file_id"},
			"number":   {`"op"`, `7`, "metadata"},
			"long":     {`"op"`, `"` + long + `"`, "metadata"},
			"no JSON":  {"{", "[", "null"},
		} {
			a := w.call("POST", "/o/v1/batches", strings.Replace(batchOf(file, "op"), test.from, test.to, 1))
			w.equal(name, []any{a.status, a.field("error.param")}, []any{400, test.param})
		}
		w.equal("jobs", len(w.sim.Jobs()), 0)
		w.field(w.want(404, w.call("GET", "/o/v1/batches/batch_none", "")), "error.type", "invalid_request_error")
		w.want(404, w.call("GET", "/o/v1/files/file-none/content", ""))
		w.want(404, w.call("DELETE", "/o/v1/batches", ""))
	})
}

// TestBatchLife: the states by the clock, the files at the end and not before,
// and the credential for all of it.
func TestBatchLife(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/o", simulator.OpenAIBatches)
		file := w.uploaded("/o", input(3))
		m.Configure(simulator.Options{Auth: simulator.Auth{Bearer: "k"}, ResultOnce: true, Plan: simulator.Plan{
			Steps: simulator.Steps(10*time.Second, "queued", "running", "finalizing", "succeeded").Steps, Failures: 1,
		}})
		call := func(method, path, body string) answer { return w.call(method, path, body, "Authorization", "Bearer k") }
		w.field(w.want(401, w.call("POST", "/o/v1/batches", batchOf(file, "op_1"))), "error.code", "unauthorized")
		id := w.want(200, call("POST", "/o/v1/batches", batchOf(file, "op_1"))).field("id")
		path := "/o/v1/batches/" + id
		want := []string{
			`validating {"completed":0,"failed":0,"total":0} null null`,
			`in_progress {"completed":0,"failed":0,"total":3} null null`,
			`finalizing {"completed":2,"failed":1,"total":3} null null`,
		}
		for _, one := range want {
			a := w.want(200, call("GET", path, ""))
			w.equal("view", strings.Join([]string{a.field("status"), a.field("request_counts"), a.field("output_file_id"), a.field("error_file_id")}, " "), one)
			time.Sleep(10 * time.Second)
		}
		a := w.want(200, call("GET", path, ""))
		w.field(a, "status", "completed")
		w.field(a, "metadata", `{"client_ref":"op_1"}`)
		w.field(a, "in_progress_at", fmt.Sprint(w.start.Add(10*time.Second).Unix()))
		w.field(a, "completed_at", fmt.Sprint(w.start.Add(30*time.Second).Unix()))
		w.field(a, "expires_at", fmt.Sprint(w.start.Add(24*time.Hour).Unix()))
		for name, items := range map[string]string{"output_file_id": "item-2 item-1", "error_file_id": "item-3"} {
			at := "/o/v1/files/" + a.field(name) + "/content"
			w.want(401, w.call("GET", at, ""))
			var got []string
			for line := range strings.Lines(w.want(200, call("GET", at, "")).body) {
				got = append(got, answer{body: line}.field("custom_id"))
			}
			w.equal(name, strings.Join(got, " "), items)
			w.want(410, call("GET", at, "")) // once each
		}
		w.equal("fetches", w.sim.Jobs()[0].Fetches, 2)
		w.equal("reads", w.sim.Jobs()[0].Reads, 4)
	})
}

// TestBatchCancel: cancelling first, cancelled later; again is 200, too late 409.
func TestBatchCancel(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/o", simulator.OpenAIBatches).Configure(simulator.Options{
			Plan: simulator.Plan{Steps: at("running").Steps, CancelAfter: time.Minute, Done: 1},
		})
		file := w.uploaded("/o", input(3))
		path := "/o/v1/batches/" + w.want(200, w.call("POST", "/o/v1/batches", batchOf(file, "op_1"))).field("id")
		for range 2 {
			w.field(w.want(200, w.call("POST", path+"/cancel", "")), "status", "cancelling")
		}
		time.Sleep(time.Minute)
		a := w.want(200, w.call("GET", path, ""))
		w.field(a, "status", "cancelled")
		w.field(a, "request_counts", `{"completed":1,"failed":0,"total":3}`)
		for name, want := range map[string]string{"output_file_id": "response.status_code 200", "error_file_id": "error.code batch_cancelled"} {
			field, value, _ := strings.Cut(want, " ")
			for line := range strings.Lines(w.want(200, w.call("GET", "/o/v1/files/"+a.field(name)+"/content", "")).body) {
				w.field(answer{body: line}, field, value)
			}
		}
		w.field(w.want(200, w.call("POST", path+"/cancel", "")), "status", "cancelled")

		// Nothing was done: no files.
		m.Configure(simulator.Options{})
		path = "/o/v1/batches/" + w.want(200, w.call("POST", "/o/v1/batches", batchOf(file, "op_2"))).field("id")
		w.field(w.want(200, w.call("POST", path+"/cancel", "")), "status", "cancelling") // never at once
		time.Sleep(time.Second)
		a = w.want(200, w.call("GET", path, ""))
		w.field(a, "status", "cancelled")
		w.field(a, "output_file_id", "null")
		w.field(a, "error_file_id", "null")

		for _, state := range []string{"succeeded", "failed", "expired"} {
			m.Configure(simulator.Options{Plan: at(state)})
			path = "/o/v1/batches/" + w.want(200, w.call("POST", "/o/v1/batches", batchOf(file, "op_3"))).field("id")
			w.want(409, w.call("POST", path+"/cancel", ""))
		}
	})
}

// TestBatchList: pages newest first, each job once while new ones come; late
// ones; and no token that would make a repeated create harmless.
func TestBatchList(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/o", simulator.OpenAIBatches)
		file := w.uploaded("/o", input(1))
		create := func(reference string) string {
			time.Sleep(time.Second)
			return w.want(200, w.call("POST", "/o/v1/batches", batchOf(file, reference), "Idempotency-Key", "same")).field("id")
		}
		old := m.Plant(48*time.Hour, "succeeded", []byte(batchOf(file, "op_0")))
		var made []string
		for i := range 5 {
			made = append([]string{create(fmt.Sprintf("op_%d", i))}, made...)
		}
		m.Add(simulator.On(simulator.Create, simulator.Nth(1), simulator.ListLate(time.Minute)))
		late := create("op_5")
		walk := func(meanwhile func()) (ids []string) {
			after := ""
			for {
				a := w.want(200, w.call("GET", "/o/v1/batches?limit=2"+after, ""))
				var first string
				for _, one := range strings.Split(a.field("data"), `"id":"`)[1:] {
					id, _, _ := strings.Cut(one, `"`)
					if first == "" {
						first = id
					}
					ids = append(ids, id)
				}
				w.field(a, "first_id", first)
				w.field(a, "last_id", ids[len(ids)-1])
				if a.field("has_more") == "false" {
					return ids
				}
				after = "&after=" + a.field("last_id")
				meanwhile()
			}
		}
		w.equal("before", walk(func() { create("op_new") })[:6], append(made, old.ID))
		time.Sleep(time.Minute)
		if ids := walk(func() {}); ids[2] != late {
			t.Errorf("the late one is not where its age puts it: %v, %s", ids, late)
		}
		m.Configure(simulator.Options{PageSize: 1})
		w.field(w.want(200, w.call("GET", "/o/v1/batches?limit=100", "")), "has_more", "true")
		for _, query := range []string{"limit=0", "limit=101", "limit=x", "after=batch_none"} {
			w.want(400, w.call("GET", "/o/v1/batches?"+query, ""))
		}
		m2 := w.sim.Mount("/empty", simulator.OpenAIBatches)
		a := w.want(200, w.call("GET", m2.Base()+"/v1/batches", ""))
		w.field(a, "data", "[]")
		w.field(a, "last_id", "null")

		create("op_1")
		// op_new came twice and op_1 again; the planted job is no operation's.
		w.equal("duplicates", w.sim.DuplicateCount(), 2)
		w.equal("planted", []any{old.Planted, old.Reference, len(m.Jobs())}, []any{true, "op_0", 10})
	})
}

// TestBatchCorrelation: one operation is known by its input, also when its file
// was uploaded twice and its reference changed.
func TestBatchCorrelation(t *testing.T) {
	bubble(t, simulator.Config{CorrelateAlways: true}, func(w *world) {
		w.sim.Mount("/o", simulator.OpenAIBatches)
		for i := range 2 {
			w.want(200, w.call("POST", "/o/v1/batches", batchOf(w.uploaded("/o", input(1)), fmt.Sprint(i))))
		}
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
		w.want(200, w.call("POST", "/o/v1/batches", batchOf(w.uploaded("/o", input(2)), "3")))
		w.equal("duplicates", w.sim.DuplicateCount(), 1)
	})
}

// TestBatchFaults: what is scripted for other dialects acts here too.
func TestBatchFaults(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/o", simulator.OpenAIBatches,
			simulator.On(simulator.Prepare, simulator.Nth(1), simulator.DropAnswer{Reset: true}),
			simulator.On(simulator.Create, simulator.First(2), simulator.DropAnswer{}),
			simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelFinishFirst),
			simulator.On(simulator.Result, simulator.Nth(1), simulator.CutBody{}),
			simulator.On(simulator.Status, simulator.Nth(1), simulator.Vanish{}),
			simulator.On(simulator.Status, simulator.Nth(2), simulator.StateWord{To: "paused"}),
		)
		body, kind := form(t, "in.jsonl", input(1), "purpose", "batch")
		w.wantCut(w.call("POST", "/o/v1/files", body, "Content-Type", kind))
		w.equal("stored", len(m.Uploads()), 1)
		file := w.uploaded("/o", input(1))
		w.wantCut(w.call("POST", "/o/v1/batches", batchOf(file, "op_1")))
		w.want(404, w.call("GET", "/o/v1/batches/"+w.sim.Jobs()[0].ID, ""))
		w.wantCut(w.call("POST", "/o/v1/batches", batchOf(file, "op_2")))
		path := "/o/v1/batches/" + w.sim.Jobs()[1].ID
		w.field(w.want(200, w.call("GET", path, "")), "status", "paused")
		w.field(w.want(409, w.call("POST", path+"/cancel", "")), "error.message", "Cannot cancel a batch with status 'completed'.")
		at := "/o/v1/files/" + w.call("GET", path, "").field("output_file_id") + "/content"
		w.wantCut(w.call("GET", at, ""))
		w.want(200, w.call("GET", at, ""))
		w.equal("prepares", w.sim.Count(simulator.Filter{Call: simulator.Prepare}), 2)

		// An error that says much, and a status that does.
		m.Add(simulator.On(simulator.Any, simulator.Always(), simulator.HugeMessage(3<<20)))
		w.equal("error", len(w.want(400, w.call("POST", "/o/v1/batches", "{}")).field("error.message")), 3<<20)
		w.equal("status", len(w.want(200, w.call("GET", path, "")).body) > 3<<20, true)
		w.equal("list", len(w.want(200, w.call("GET", "/o/v1/batches", "")).field("message")), 3<<20)
	})
}

// FuzzRequests: whatever is sent to the real dialects is answered, and a file or
// a job is made only by what was accepted.
func FuzzRequests(f *testing.F) {
	f.Add(true, "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"+
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\n{\r\n--b--\r\n")
	f.Add(true, "application/json", batchOf("file-1", "op_1"))
	f.Add(false, "application/x-www-form-urlencoded", run+"&parameters[columns][]=a&parameters[=")
	f.Fuzz(func(t *testing.T, openAI bool, kind, body string) {
		sim := simulator.New(simulator.Config{})
		defer sim.Close()
		paths := []string{"/v1/reporting/report_runs"}
		if openAI {
			sim.Mount("", simulator.OpenAIBatches)
			paths = []string{"/v1/files", "/v1/batches"}
		} else {
			sim.Mount("", simulator.StripeReporting)
		}
		for _, path := range paths {
			r := httptest.NewRequest("POST", path, strings.NewReader(body))
			r.Header.Set("Content-Type", kind)
			w := httptest.NewRecorder()
			sim.ServeHTTP(w, r)
			if w.Code != 200 && w.Code != 400 {
				t.Errorf("%s is answered %d", path, w.Code)
			}
			if !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s is answered %q", path, w.Body)
			}
			stored := sim.Requests(simulator.Filter{})
			if last := stored[len(stored)-1]; last.Stored != (w.Code == 200) {
				t.Errorf("answered %d, stored %t", w.Code, last.Stored)
			}
		}
	})
}
