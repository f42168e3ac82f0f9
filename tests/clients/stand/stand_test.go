package stand_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A stand answers through its proxy, loses what it should, and leaves nothing behind.
func TestStand(t *testing.T) {
	s, err := stand.Start(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	p, err := stand.NewProxy(s.URL, stand.Faults{Lose: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answered := 0
	for range 4 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, p.URL+"/healthz", nil) // nobody repeats it
		if err != nil {
			t.Fatal(err)
		}
		w, err := hc.Do(r)
		if err != nil {
			continue
		}
		answered++
		if err := w.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := len(p.Requests()); n != 4 || answered < 2 {
		t.Errorf("%d requests, %d answered", n, answered)
	}
}
