package ingest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// FuzzCursor: only what was given out is read, by its caller and with its filter.
func FuzzCursor(f *testing.F) {
	v := &Service{cfg: Config{Key: bytes.Repeat([]byte("k"), 32)}}
	f.Add("", "alice", "succeeded", "example", uint64(7))
	f.Add("AAAAAAAAAAcAAAAAAAAABwAAAAAAAAAAAAAAAAAAAAA", "alice", "", "", uint64(0))
	f.Add("AAAAAAAAAAc=", "bob", "a\x00b", "", uint64(1)<<63)
	f.Fuzz(func(t *testing.T, text, principal, state, provider string, before uint64) {
		r := ListRequest{Caller: Caller{Principal: principal}, State: state, Provider: provider}
		at := journal.Place{Before: before, Top: before + 1}
		own := v.cursor(r, at)
		r.Cursor = own
		if got, err := v.readCursor(r); err != nil || got != at {
			t.Fatalf("%q is read as %+v %v, was %+v", own, got, err, at)
		}
		var refusal *Refusal
		for _, other := range []ListRequest{
			{Caller: Caller{Principal: principal + "x"}, State: state, Provider: provider, Cursor: own},
			{Caller: Caller{Principal: principal}, State: state + "x", Provider: provider, Cursor: own},
			{Caller: Caller{Principal: principal}, State: provider, Provider: state + "x", Cursor: own},
			{Caller: Caller{Principal: principal}, State: state, Provider: provider, Of: OfAll, Cursor: own},
			{Caller: Caller{Principal: principal}, State: state, Provider: provider, Cursor: own + "="},
			{Caller: Caller{Principal: principal}, State: state, Provider: provider, Cursor: own[1:]},
		} {
			if _, err := v.readCursor(other); !errors.As(err, &refusal) || refusal.Code != CodeCursorInvalid {
				t.Errorf("%q is read for %+v: %v", own, other, err)
			}
		}
		if r.Cursor = text; text != "" && text != own {
			// Forging one takes the key.
			if got, err := v.readCursor(r); err == nil && v.cursor(r, got) != text {
				t.Errorf("%q is read as %+v", text, got)
			}
		}
	})
}
