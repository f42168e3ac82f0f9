package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// TestOperationID holds the derivation: a lost ledger must give the same ids.
func TestOperationID(t *testing.T) {
	if got, want := OperationID("in_test", "alice", "k-1"), "op_roe6n54h3wamt4k4ergrhchhy24jrev3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Parts are prefixed with their lengths.
	if OperationID("a", "b", "cd") == OperationID("a", "bc", "d") {
		t.Error("two principals share an id")
	}
	if err := checkID("id", OperationID("", "", "")); err != nil {
		t.Error(err)
	}
}

func TestParseKey(t *testing.T) {
	for _, c := range []struct{ in, want, says string }{
		{`k-1`, "k-1", ""},
		{`"k-1"`, "k-1", ""},
		{`"a\"b\\c"`, `a"b\c`, ""},
		{`a"b`, `a"b`, ""},
		{`"` + strings.Repeat("x", 255) + `"`, strings.Repeat("x", 255), ""},
		{`"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255), ""},
		{strings.Repeat("x", 256), "", "255"},
		{`"` + strings.Repeat("x", 256) + `"`, "", "255"},
		{``, "", "empty"},
		{`""`, "", "empty"},
		{`"a`, "", "closing"},
		{`"a\`, "", "backslash"},
		{`"a\n"`, "", "backslash"},
		{`"a";p=1`, "", "after the closing"},
		{`"a b"`, "", "visible"},
		{"a\tb", "", "visible"},
		{"ä", "", "visible"},
	} {
		got, err := ParseKey([]string{c.in})
		if got != c.want || (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: got %q, %v", c.in, got, err)
		}
	}
	if _, err := ParseKey([]string{"a", "b"}); err == nil {
		t.Error("two headers were taken")
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{`k`, `"k"`, `"a\"b"`, `"`, `"\`, `a,b`, "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := ParseKey([]string{s})
		if err != nil {
			if r := new(Refusal); !errors.As(err, &r) || key != "" {
				t.Fatalf("%q: %q, %v", s, key, err)
			}
			return
		}
		// The quoted spelling of a key is the same key.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := ParseKey([]string{quoted}); err != nil || again != key {
			t.Fatalf("%q gives %q, quoted %q, %v", s, key, again, err)
		}
	})
}

func FuzzDecodeSubmission(f *testing.F) {
	for _, s := range []string{
		`{"provider":"example","params":{"n":1.0}}`,
		`{"provider":"example","account":"default","action":"x","params":{},"deadlines":{"create":"1h","result":"2026-12-24T00:00:00Z"},"tags":{"a":"b"},"session":"s"}`,
		`{"provider":"a","provider":"b","params":{}}`, `{"params":null}`, `[]`, `{"deadlines":{"x":1}}`, `{"provider":"a","params":9e999}`,
		"{\"provider\":\"a\",\"params\":\"\xff\"}", `{"a/~b":1}`, `{"provider":"a","params":{},"deadlines":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := DecodeSubmission(body)
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) {
				t.Fatalf("%q: %v is no refusal", body, err)
			}
			r.Code.Meaning() // panics if it has none
			if _, err := json.Marshal(r.Errors); err != nil {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Contains(body, s.Params) {
			t.Fatalf("%q: parameters %q are not the caller's bytes", body, s.Params)
		}
		first, err := s.Fingerprint()
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		// White space around the body is no other request.
		again, err := DecodeSubmission([]byte(" " + string(body) + "\n"))
		if err != nil {
			if len(body)+2 > MaxBody {
				return
			}
			t.Fatalf("%q with white space: %v", body, err)
		}
		if second, err := again.Fingerprint(); err != nil || second != first {
			t.Fatalf("%q: two fingerprints, %v", body, err)
		}
	})
}

// TestFingerprint: what makes another request, and what does not.
func TestFingerprint(t *testing.T) {
	print := func(body string) events.Digest {
		s, err := DecodeSubmission([]byte(body))
		if err != nil {
			t.Fatal(body, err)
		}
		d, err := s.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := print(`{"provider":"p","params":{"a":1,"b":[1,2]}}`)
	for _, same := range []string{
		`{"params":{"b":[1,2],"a":1.0},"provider":"p"}`,
		`{"provider":"p","account":"default","params":{"a":1,"b":[1,2]},"session":"x"}`,
		`{"provider":"p","params":{"a":1,"b":[1,2]},"deadlines":null,"expect":null}`,
		`{"provider":"\u0070","params":{"\u0061":1,"b":[ 1,2 ]}}`,
	} {
		if print(same) != base {
			t.Errorf("%s is another request", same)
		}
	}
	for _, other := range []string{
		`{"provider":"q","params":{"a":1,"b":[1,2]}}`,
		`{"provider":"p","account":"x","params":{"a":1,"b":[1,2]}}`,
		`{"provider":"p","action":"x","params":{"a":1,"b":[1,2]}}`,
		`{"provider":"p","params":{"a":1,"b":[2,1]}}`,
		`{"provider":"p","params":{"a":"1","b":[1,2]}}`,
		`{"provider":"p","params":{"a":1,"b":[1,2]},"max_cost":"5"}`,
		`{"provider":"p","params":{"a":1,"b":[1,2]},"deadlines":{"result":"1h"}}`,
	} {
		if print(other) == base {
			t.Errorf("%s is the same request", other)
		}
	}
}

func TestKeysFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	random := rand.NewChaCha8([32]byte{7})
	key, bearer, err := NewKey(random, "alice", false, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := AddKey(path, key); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, secret, _ := strings.Cut(bearer, ".")
	if len(secret) != 43 || strings.Contains(string(text), secret) {
		t.Errorf("secret %d characters; file %s", len(secret), text)
	}
	keys, err := OpenKeys(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := keys.Authenticate([]string{"Bearer " + bearer}); err != nil || c.Principal != "alice" || c.KeyID != key.ID || c.Operator || !slices.Equal(c.Scopes, UnstatedScopes()) {
		t.Fatal(c, err)
	}
	for _, bad := range [][]string{
		nil,
		{""},
		{"Bearer"},
		{"Basic " + bearer},
		{bearer},
		{"Bearer " + bearer + "x"},
		{"Bearer " + strings.ToUpper(bearer)},
		{"Bearer cf_" + key.ID + "."},
		{"Bearer cf_" + key.ID},
		{"Bearer cf_." + secret},
		{"Bearer cf_nobody." + secret},
		{"Bearer " + bearer, "Bearer " + bearer},
	} {
		var r *Refusal
		if c, err := keys.Authenticate(bad); !errors.As(err, &r) || r.Code != CodeUnauthenticated || c.Principal != "" || c.Scopes != nil {
			t.Errorf("%q: %v %v", bad, c, err)
		}
	}
	// A second key of the principal, then the first one disabled: both are seen
	// without a restart, and the principal stays who it is.
	second, bearer2, err := NewKey(random, "alice", false, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := AddKey(path, second); err != nil {
		t.Fatal(err)
	}
	if c, err := keys.Authenticate([]string{"bearer " + bearer2}); err != nil || c.Principal != "alice" {
		t.Error(c, err)
	}
	if err := AddKey(path, second); err == nil {
		t.Error("an id was added twice")
	}
	text, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	disabled := strings.Replace(string(text), `Z",`, `Z","disabled":true,`, 1)
	if err := os.WriteFile(path, []byte("# comment\n\n"+disabled), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Authenticate([]string{"Bearer " + bearer}); err == nil {
		t.Error("a disabled key got in")
	}
	if _, err := keys.Authenticate([]string{"Bearer " + bearer2}); err != nil {
		t.Error(err)
	}
	// Open to others, or broken: nobody gets in until it is repaired.
	for _, spoil := range []struct {
		text string
		mode os.FileMode
		says string
	}{
		{disabled, 0o640, "chmod 600"},
		{"", 0o600, "has no key"},
		{"\n# nobody\n", 0o600, "has no key"},
		{disabled + "nonsense\n", 0o600, ":3: not a key"},
		{disabled + disabled, 0o600, "twice"},
		{strings.Replace(disabled, `"principal":"alice"`, `"principal":"A"`, 1), 0o600, "principal"},
		{strings.Replace(disabled, `"principal"`, `"principle"`, 1), 0o600, ":1: not a key"},
	} {
		if err := os.WriteFile(path, []byte(spoil.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, spoil.mode); err != nil {
			t.Fatal(err)
		}
		var k *KeysError
		_, err := keys.Authenticate([]string{"Bearer " + bearer2})
		if !errors.As(err, &k) || !strings.Contains(err.Error(), spoil.says) {
			t.Errorf("%s: %v", spoil.says, err)
		}
		if _, openErr := OpenKeys(path, time.Now); openErr == nil || strings.Contains(err.Error(), key.SHA256) {
			t.Errorf("%s: %v", spoil.says, openErr)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(disabled), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Authenticate([]string{"Bearer " + bearer2}); err != nil {
		t.Error(err)
	}
	if _, _, err := NewKey(random, "Not a name", false, now); err == nil {
		t.Error("a principal of other characters was taken")
	}
}

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]uint64{`"v7"`: 7, `v12`: 12, ` "v1" `: 1, `"7"`: 0, `W/"v7"`: 0, `*`: 0, `"v"`: 0, `"v-1"`: 0, `"v99999999999999999999"`: 0} {
		if got, err := ParseVersion(in); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v", in, got, err)
		}
	}
}

// TestAllowedAgree: what a view lists as allowed is not refused; and what is not refused is
// listed, but where a wish is served or too late.
func TestAllowedAgree(t *testing.T) {
	for _, name := range phases() {
		for _, wish := range []bool{false, true} {
			s := projections.State{Operation: "op_x", Phase: projections.Phase(name)}
			s.Intent.Promises.Cancels = true
			s.Cancel.Wished = wish
			listed := slices.ContainsFunc(ViewOf(s, time.Time{}).Allowed, func(a Allowed) bool { return a.Action == "cancel" })
			late := strings.HasPrefix(name, "result_") && s.Phase != projections.PhaseResultTimedOut || s.Phase == projections.PhaseCancelled
			if taken := cancelRefusal(s) == nil; listed && !taken || taken && !listed && !wish && !late || listed && late {
				t.Errorf("%s, wish %v: listed %v, taken %v", name, wish, listed, taken)
			}
		}
	}
}

// TestNoProblemWithoutWords: whatever the class, what a caller sees says something,
// and the reason for people says that calls fail. Trouble that is over is not shown.
func TestNoProblemWithoutWords(t *testing.T) {
	s := projections.State{Operation: "op_x", Phase: projections.PhaseObserving, Because: "the job goes on"}
	s.Job.ID, s.Pace.Failures, s.Problem.Class = "j", 4, events.ErrorUnauthorized
	v := ViewOf(s, time.Time{})
	if v.Problem == nil || v.Problem.Message != "not authorised" || v.Because != "the job goes on; the last 4 status reads failed: not authorised" {
		t.Errorf("problem %+v, because %q", v.Problem, v.Because)
	}
	s.Phase, s.Job.Remote, s.Reason, s.Because = projections.PhaseResultTimedOut, "running", "result_deadline", "result_deadline"
	if v := ViewOf(s, time.Time{}); v.Because != `the job had not ended when the deadline for its result passed; the provider last said "running"; the last 4 status reads failed: not authorised` {
		t.Error(v.Because)
	}
	s.Phase, s.Because = projections.PhaseSucceeded, ""
	if v := ViewOf(s, time.Time{}); v.Problem != nil || v.Because != "" {
		t.Errorf("after its end: problem %+v, because %q", v.Problem, v.Because)
	}
}

// TestPartialAndUnknown: what is less than success, and what nobody can place, is
// said with the provider's own words.
func TestPartialAndUnknown(t *testing.T) {
	s := projections.State{Operation: "op_x", Phase: projections.PhaseSucceeded, Outcome: projections.OutcomeSuccess}
	s.Job.ID, s.Job.Remote, s.Job.Class, s.Job.Progress = "j", "completed", events.ClassPartial, "10/10, 9 failed"
	if v := ViewOf(s, time.Time{}); v.Because != "the job succeeded in part (10/10, 9 failed)" || v.State != projections.PhaseSucceeded {
		t.Errorf("%s, because %q", v.State, v.Because)
	}
	s.Phase, s.Because = projections.PhaseResultCollecting, "the job ended and its result is due"
	if v := ViewOf(s, time.Time{}); v.Because != s.Because+"; the job succeeded in part (10/10, 9 failed)" {
		t.Error(v.Because)
	}
	s = projections.State{Operation: "op_x", Phase: projections.PhaseObserving, Because: "the job goes on"}
	s.Job.ID, s.Job.Remote, s.Job.Class = "j", "on_hold", events.ClassUnknown
	if v := ViewOf(s, time.Time{}); v.Because != `the job goes on; the provider says "on_hold", and the contract does not know what that means` {
		t.Error(v.Because)
	}
	s.Phase, s.Reason, s.Because = projections.PhaseResultTimedOut, "result_deadline", "result_deadline"
	if v := ViewOf(s, time.Time{}); v.Because != `the job had not ended when the deadline for its result passed; the provider last said "on_hold", and the contract does not know what that means` {
		t.Error(v.Because)
	}
}

// TestReadableIsComplete: every fact type shows something or is known to hold
// nothing for people, and none shows a token or a credential.
func TestReadableIsComplete(t *testing.T) {
	attempt := events.Attempt{Number: 1, Credential: "env:canary", Identity: "canary-identity", Owner: "o"}
	call := events.Call{Message: "see https://x.test/?sig=canary-link", Inline: []byte("canary-inline")}
	for _, f := range []events.Fact{
		&events.IntentRecorded{Provider: "p", Token: "canary-token"},
		&events.CreateAttempted{Attempt: attempt}, &events.CancelAttempted{Attempt: attempt}, &events.ResultAttempted{Attempt: attempt},
		&events.CreateAnswered{StatusURL: "https://u:canary@x.test/j?token=canary", Call: call}, &events.CancelAnswered{Call: call},
		&events.JobObserved{Progress: "https://x.test/?sig=canary", Call: call}, &events.ObservationFailed{Call: call},
		&events.LookupAnswered{Call: call}, &events.ResultCollected{Call: call}, &events.ResultFailed{Call: call},
		&events.Unknown{Name: "x.v1", Data: []byte("canary")},
	} {
		fields := readable(f)
		text, err := json.Marshal(fields)
		if err != nil || len(fields) == 0 || strings.Contains(string(text), "canary") {
			t.Errorf("%T shows %s, %v", f, text, err)
		}
	}
}
