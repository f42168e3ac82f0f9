package ingest

import (
	"strings"
	"testing"
)

func TestAside(t *testing.T) {
	done := false
	Aside(func() { done = true })
	if !done {
		t.Error("it came back before it was done")
	}
}

func TestAsidePanicsInTheCaller(t *testing.T) {
	defer func() {
		err, is := recover().(error)
		if !is || !strings.Contains(err.Error(), "panic: broken") || !strings.Contains(err.Error(), "TestAsidePanicsInTheCaller.func") {
			t.Errorf("recovered %v, want what was said and where", err)
		}
	}()
	Aside(func() { panic("broken") })
	t.Error("it came back from a panic")
}
