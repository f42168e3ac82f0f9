package main

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A run fails by each of the things it is for.
func TestWhatFailsARun(t *testing.T) {
	good := Report{Broken: []Broken{{Name: "nats-1", Progress: 9}, {Name: "poller-1", Progress: 20, Attended: 32}}}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for want, r := range map[string]Report{
		"lost":        {Lost: 1},
		"unfinished":  {Unfinished: map[string]int{"create_unknown": 1}},
		"twice":       {Duplicates: 1},
		"new":         {Broken: []Broken{{Name: "nats-1", Progress: 11}}},
		"attended to": {Broken: []Broken{{Name: "poller-1", Progress: 1, Attended: 34}}},
	} {
		if err := r.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// No role may make, change or empty a stream, or take a message out of one.
func TestNoRoleAdministersStreams(t *testing.T) {
	for _, r := range roles() {
		for _, subject := range r.subjects() {
			rest, api := strings.CutPrefix(subject, "$JS.API.")
			allowed := !api && subject != ">" || rest == "INFO" || strings.HasPrefix(rest, "STREAM.INFO.") ||
				strings.HasPrefix(rest, "STREAM.MSG.GET.") || strings.HasPrefix(rest, "CONSUMER.")
			if !allowed {
				t.Errorf("%s may publish on %s", r.role, subject)
			}
		}
	}
}
