package broker_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

type inProcess func() (net.Conn, error)

func (f inProcess) InProcessConn() (net.Conn, error) { return f() }

// Batches are staged in memory, also after a start on what an earlier run left,
// and the server keeps them where we think it does.
func TestBatchesAreStagedInMemory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, run := range []string{"one", "two"} {
		b := start(t, config(dir, run))
		conn, err := nats.Connect("", nats.InProcessServer(inProcess(b.InProcess)))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(subject, body string) string {
			t.Helper()
			m, err := conn.Request(subject, []byte(body), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return string(m.Data)
		}
		ask("$JS.API.STREAM.CREATE.S", `{"name":"S","subjects":["s.*"],"storage":"file","allow_atomic":true}`)
		if ok, err := b.StageInMemory("S"); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		link := filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", "S", "batches")
		stage, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(stage, "/dev/shm/") {
			t.Fatalf("staged in %q, %v", stage, err)
		}
		batched := func(id string, i int, commit bool) *nats.Msg {
			m := nats.NewMsg(fmt.Sprint("s.", id, i))
			m.Header.Set("Nats-Batch-Id", id)
			m.Header.Set("Nats-Batch-Sequence", fmt.Sprint(i))
			if commit {
				m.Header.Set("Nats-Batch-Commit", "1")
			}
			return m
		}
		// One that is not committed is to be seen there.
		if _, err := conn.RequestMsg(batched(run+"open", 1, false), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(stage); err != nil || len(list) != 1 {
			t.Errorf("staged: %v, %v", list, err)
		}
		if err := conn.PublishMsg(batched(run, 1, false)); err != nil {
			t.Fatal(err)
		}
		m, err := conn.RequestMsg(batched(run, 2, true), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Count int             `json:"count"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Count != 2 || answer.Error != nil {
			t.Errorf("%s, %v", m.Data, err)
		}
		conn.Close()
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(stage); !os.IsNotExist(err) {
			t.Errorf("left in memory after the stop: %v", err)
		}
	}
}
