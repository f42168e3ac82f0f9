package api

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAcceptable(t *testing.T) {
	for accept, want := range map[string]bool{
		"": true, "*/*": true, "application/*": true, "application/json": true, "Application/JSON; charset=utf-8": true,
		"text/html, */*;q=0.1": true, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"text/html": false, "text/*": false, "application/problem+json": false, "application/xml, text/plain;q=0.5": false,
		"application/json;q=0": false, "*/*, application/json;q=0": false, "application/*;q=0, */*": false, "*/*;q=0": false,
		"application/json;q=0.001": true, "application/json;q=x": true, ";;": false, ",": true, "application/json;q=0, application/json;v=2": true,
	} {
		if got := acceptable([]string{accept}, jsonType); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
	if !acceptable(nil, jsonType) || !acceptable([]string{"text/html", "application/json"}, jsonType) {
		t.Error("no header, or two")
	}
}

// Whoever takes anything of the first weight takes ours, whatever else is there.
func TestAcceptableOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		other := rapid.StringMatching(`[a-z*;,/=.0-9 "\\]{0,30}`).Draw(t, "other")
		if !acceptable([]string{other, "application/json"}, jsonType) {
			t.Errorf("%q and application/json", other)
		}
	})
}
