package ingest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// teams of the principals below: alice and bob are of one, carol of another, and
// dave of none.
func someTeams() Teams { return Teams{"alice": "blue", "bob": "blue", "carol": "green"} }

// TestMay holds the policy line by line: who with what may do what.
func TestMay(t *testing.T) {
	const notFound = "not_found"
	for _, c := range []struct {
		scopes   string
		operator bool
		right    Right
		want     string // "", a code, or a code and what it requires
	}{
		{"", false, Right{Action: ActSubmit, Provider: "p", Account: "a"}, "forbidden submit:p/a"},
		{"submit:p/a", false, Right{Action: ActSubmit, Provider: "p", Account: "a"}, ""},
		{"submit:p/a", false, Right{Action: ActSubmit, Provider: "p", Account: "b"}, "forbidden submit:p/b"},
		{"submit:p/a", false, Right{Action: ActSubmit, Provider: "q", Account: "a"}, "forbidden submit:q/a"},
		{"submit:p/*", false, Right{Action: ActSubmit, Provider: "p", Account: "b"}, ""},
		{"submit:p/*", false, Right{Action: ActSubmit, Provider: "pp", Account: "b"}, "forbidden submit:pp/b"},
		{"submit:*/a", false, Right{Action: ActSubmit, Provider: "q", Account: "a"}, ""},
		{"submit:*/a", false, Right{Action: ActSubmit, Provider: "q", Account: "b"}, "forbidden submit:q/b"},
		{"submit:*/*", false, Right{Action: ActSubmit, Provider: "q", Account: "b"}, ""},
		{"submit:p/a", false, Right{Action: ActSubmit}, ""}, // somewhere
		{"cancel read:all audit", false, Right{Action: ActSubmit}, "forbidden submit:*/*"},
		{"admin", true, Right{Action: ActSubmit, Provider: "p", Account: "a"}, "forbidden submit:p/a"},

		{"cancel decide", false, Right{Action: ActRead}, "forbidden read:own"},
		{"read:own", false, Right{Action: ActRead}, ""},
		{"read:own", false, Right{Action: ActRead, Principal: "alice"}, ""},
		{"read:own", false, Right{Action: ActRead, Principal: "bob"}, notFound},
		{"read:team", false, Right{Action: ActRead}, ""},
		{"read:team", false, Right{Action: ActRead, Principal: "bob"}, ""},
		{"read:team", false, Right{Action: ActRead, Principal: "carol"}, notFound},
		{"read:team", false, Right{Action: ActRead, Principal: "dave"}, notFound},
		{"read:all", false, Right{Action: ActRead}, ""},
		{"read:all", false, Right{Action: ActRead, Principal: "dave"}, ""},
		{"admin", false, Right{Action: ActRead, Principal: "dave"}, ""},
		{"read:own", true, Right{Action: ActRead, Principal: "bob"}, notFound},

		{"read:own", false, Right{Action: ActListTeam}, "forbidden read:team"},
		{"read:team", false, Right{Action: ActListTeam}, ""},
		{"read:team", false, Right{Action: ActListAll}, "forbidden read:all"},
		{"read:all", false, Right{Action: ActListTeam}, ""},
		{"admin", false, Right{Action: ActListAll}, ""},

		{"read:own", false, Right{Action: ActCancel}, "forbidden cancel"},
		{"cancel", false, Right{Action: ActCancel}, ""},
		{"cancel", false, Right{Action: ActPause}, ""},
		{"cancel", false, Right{Action: ActDecide}, "forbidden decide"},
		{"decide", false, Right{Action: ActDecide, Principal: "alice"}, ""},
		{"cancel decide", false, Right{Action: ActCancel, Principal: "bob"}, notFound},
		{"cancel decide read:team", false, Right{Action: ActCancel, Principal: "bob"}, "forbidden admin"},
		{"cancel decide read:team", false, Right{Action: ActDecide, Principal: "bob"}, "forbidden admin"},
		{"cancel decide read:team", false, Right{Action: ActPause, Principal: "carol"}, notFound},
		{"admin", false, Right{Action: ActCancel, Principal: "bob"}, ""},
		{"admin", false, Right{Action: ActDecide, Principal: "bob"}, ""},
		{"admin", false, Right{Action: ActPause}, ""},
		{"cancel decide read:own", true, Right{Action: ActCancel, Principal: "bob"}, notFound},

		{"", false, Right{Action: ActApprove}, "forbidden approve"},
		{"cancel decide read:own", false, Right{Action: ActApprove}, "forbidden approve"},
		{"cancel decide read:own", false, Right{Action: ActApprove, Principal: "bob"}, "forbidden approve"},
		{"read:team", false, Right{Action: ActApprove, Principal: "bob"}, "forbidden approve"},
		{"read:team", false, Right{Action: ActApprove, Principal: "carol"}, "forbidden approve"},
		{"approve read:own", false, Right{Action: ActApprove}, "forbidden read:all"},
		{"approve read:own", false, Right{Action: ActApprove, Principal: "bob"}, "forbidden read:all"},
		{"approve read:own", false, Right{Action: ActApprove, Principal: "carol"}, "forbidden read:all"},
		{"approve read:team", false, Right{Action: ActApprove, Principal: "bob"}, ""},
		{"approve read:team", false, Right{Action: ActApprove, Principal: "carol"}, notFound},
		{"approve read:all", false, Right{Action: ActApprove, Principal: "alice"}, "self_approval"},

		{"read:all", false, Right{Action: ActHolds}, "operator_only audit"},
		{"read:all", false, Right{Action: ActReport}, "operator_only audit"},
		{"audit", false, Right{Action: ActHolds}, ""},
		{"audit", false, Right{Action: ActReport}, ""},
		{"audit", false, Right{Action: ActHold}, "operator_only admin"},
		{"audit", false, Right{Action: ActProbe}, "operator_only admin"},
		{"admin", false, Right{Action: ActHolds}, ""},
		{"admin", false, Right{Action: ActHold}, ""},
		{"admin", false, Right{Action: ActProbe}, ""},
		{"", true, Right{Action: ActHolds}, ""},
		{"", true, Right{Action: ActReport}, ""},
		{"", true, Right{Action: ActHold}, ""},
		{"", true, Right{Action: ActProbe}, ""},
	} {
		caller := Caller{Principal: "alice", Operator: c.operator, Teams: someTeams()}
		for _, s := range strings.Fields(c.scopes) {
			scope, err := ParseScope(s)
			if err != nil {
				t.Fatal(err)
			}
			caller.Scopes = append(caller.Scopes, scope)
		}
		got := ""
		if r := caller.May(c.right); r != nil {
			got = strings.TrimSpace(string(r.Code) + " " + string(r.Requires))
		}
		if got != c.want {
			t.Errorf("with %q (operator %v) %+v: %q, want %q", c.scopes, c.operator, c.right, got, c.want)
		}
	}
}

// Whoever is of no team is not of the same one as another who is of none.
func TestNoTeamIsNoTeam(t *testing.T) {
	dave := Caller{Principal: "dave", Scopes: []Scope{ScopeReadTeam}, Teams: someTeams()}
	if dave.May(Right{Action: ActRead, Principal: "erin"}) == nil {
		t.Error("a principal of no team sees another of no team")
	}
	if dave.May(Right{Action: ActRead}) != nil {
		t.Error("a principal of no team does not see its own")
	}
}

// The zero Caller, which an authenticator might give by mistake, may do nothing.
func TestNobodyMayNothing(t *testing.T) {
	for _, a := range Actions() {
		if (Caller{}).May(Right{Action: a, Provider: "p", Account: "a"}) == nil {
			t.Errorf("nobody may %s", a)
		}
	}
}

func FuzzParseScope(f *testing.F) {
	for _, s := range append(PlainScopes(), "submit:*/*", "submit:p/a", "submit:p", "submit:/", "submit:p/a/b", "submit:P/a", "Admin", "", "read:", "submit:p/**") {
		f.Add(string(s))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScope(text)
		if err != nil {
			if s != "" {
				t.Fatalf("%q: %q beside %v", text, s, err)
			}
			return
		}
		if string(s) != text {
			t.Fatalf("%q is read as %q", text, s)
		}
		if rest, ok := strings.CutPrefix(text, "submit:"); ok {
			p, a, _ := strings.Cut(rest, "/")
			if !s.submits("", "") || p != "*" && s.submits("x"+p, a) || p != "*" && a != "*" && !s.submits(p, a) {
				t.Fatalf("%q allows what it does not name, or not what it names", text)
			}
		} else if s.submits("", "") {
			t.Fatalf("%q submits", text)
		}
	})
}

// A scope more never takes a right away, and what a refusal says it requires is
// enough.
func TestScopesAdd(t *testing.T) {
	names := []string{"alice", "bob", "carol", "dave"}
	scope := rapid.SampledFrom(append(PlainScopes(), "submit:*/*", "submit:p/a", "submit:p/*", "submit:*/a"))
	rapid.Check(t, func(t *rapid.T) {
		c := Caller{
			Principal: rapid.SampledFrom(names).Draw(t, "caller"), Operator: rapid.Bool().Draw(t, "operator"), Teams: someTeams(),
			Scopes: rapid.SliceOfN(scope, 0, 4).Draw(t, "scopes"),
		}
		r := Right{Action: rapid.SampledFrom(Actions()).Draw(t, "action"), Principal: rapid.SampledFrom(append(names, "")).Draw(t, "whose")}
		if rapid.Bool().Draw(t, "somewhere") {
			r.Provider, r.Account = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "provider"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account")
		}
		refusal := c.May(r)
		more := c
		if more.Scopes = append(slices.Clone(c.Scopes), scope.Draw(t, "more")); refusal == nil && more.May(r) != nil {
			t.Fatalf("%+v may %+v, and not with %v", c, r, more.Scopes)
		}
		if refusal == nil {
			return
		}
		// No scope lets anybody approve what it submitted.
		if self := refusal.Code == CodeSelfApproval; self != (r.Action == ActApprove && r.Principal == c.Principal) ||
			!self && refusal.Code.Meaning().Status == 403 != (refusal.Requires != "") {
			t.Fatalf("%+v: %s requires %q", r, refusal.Code, refusal.Requires)
		}
		more.Scopes = append(slices.Clone(c.Scopes), refusal.Requires)
		switch still := more.May(r); {
		case r.Action != ActApprove || still == nil:
		case still.Code == CodeNotFound:
			return // it approves now what it sees, which is not this
		case refusal.Requires == ScopeApprove && still.Requires == ScopeReadAll:
			more.Scopes = append(more.Scopes, still.Requires) // it takes both
		}
		if refusal.Requires != "" && more.May(r) != nil {
			t.Fatalf("%+v is refused %+v for want of %s, and with it, too", c, r, refusal.Requires)
		}
	})
}

// What is read of a keys file is written so that it reads the same.
func FuzzKeysFile(f *testing.F) {
	const line = `{"id":"a","principal":"p","sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","created":"2026-12-01T09:00:00Z"`
	for _, s := range []string{
		"", "# nothing\n\n", line + "}\n", line + `,"operator":true,"scopes":[],"team":"t","expires":"2027-01-01T00:00:00+01:00"}`, line + `,"scopes":null}`,
		line + `,"scopes":["submit:*/*","cancel"],"disabled":true}` + "\n" + line + "}", line + `,"scopes":["x"]}`, line + `,"expires":"9999-01-01T00:00:00Z"}`,
		line + `,"sha256":"b"}`, line + `,"more":1}`, "{", "null", "\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseKeys("keys", text)
		if err != nil {
			if list != nil {
				t.Fatalf("%d keys beside %v", len(list), err)
			}
			return
		}
		again, err := keysText(list)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", text, err)
		}
		back, err := parseKeys("keys", again)
		if err != nil || len(back) != len(list) {
			t.Fatalf("%q is written as %q, which reads as %d keys, %v", text, again, len(back), err)
		}
		for i, k := range list {
			b := back[i]
			if b.ID != k.ID || b.Principal != k.Principal || b.SHA256 != k.SHA256 || b.Disabled != k.Disabled || b.Operates() != k.Operates() ||
				!slices.Equal(b.May(), k.May()) || b.Team != k.Team || !b.Expires.Equal(k.Expires) {
				t.Fatalf("%+v comes back as %+v", k, b)
			}
		}
	})
}

// TestScopedKeys: what a line says of scopes and teams, and what one that says
// nothing means.
func TestScopedKeys(t *testing.T) {
	const sum = `"sha256":"` + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + `","created":"2026-12-01T09:00:00Z"`
	read := func(lines ...string) ([]Key, error) {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return ListKeys(path)
	}
	list, err := read(
		`{"id":"a","principal":"p",`+sum+`,"team":"one","disabled":true}`,
		`{"id":"b","principal":"p",`+sum+`}`,
		`{"id":"c","principal":"q",`+sum+`,"scopes":["read:own","submit:example/*"],"team":"one"}`,
		`{"id":"d","principal":"q",`+sum+`,"scopes":[],"team":"two"}`,
	)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(list[1].May(), UnstatedScopes()) || len(list[2].May()) != 2 || len(list[3].May()) != 0 {
		t.Errorf("keys may %v, %v, %v", list[1].May(), list[2].May(), list[3].May())
	}
	if teams := TeamsOf(list); teams["p"] != "one" || teams["q"] != "two" {
		t.Errorf("teams %v", teams)
	}
	// The first key of a file without the member operator has that right, unless
	// it says what it may do.
	if list, err = read(`{"id":"a","principal":"p",` + sum + `,"scopes":["read:own"]}`); err != nil || list[0].Operates() {
		t.Errorf("a key with scopes got the operator's right: %v", err)
	}
	for _, c := range []struct{ members, says string }{
		{`"scopes":["read:everything"]`, "there is none such"},
		{`"scopes":["submit:example"]`, "submit:PROVIDER/ACCOUNT"},
		{`"scopes":["cancel","cancel"]`, "twice"},
		{`"scopes":"cancel"`, "not a key"},
		{`"team":"No Team"`, "team must be"},
	} {
		if _, err := read(`{"id":"a","principal":"p",` + sum + `,` + c.members + `}`); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.members, err)
		}
	}
}

// What changes the file keeps what its lines say.
func TestScopesSurviveChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	one, _, err := NewKey(strings.NewReader(strings.Repeat("a", 64)), "p", false, now)
	if err != nil {
		t.Fatal(err)
	}
	one.Scopes, one.Team = []Scope{}, "blue"
	two, _, err := NewKey(strings.NewReader(strings.Repeat("b", 64)), "p", false, now)
	if err != nil {
		t.Fatal(err)
	}
	addKeys(t, path, one, two)
	if _, err := DisableKey(path, two.ID); err != nil {
		t.Fatal(err)
	}
	list, err := ListKeys(path)
	if err != nil || list[0].Scopes == nil || len(list[0].Scopes) != 0 || list[0].Team != "blue" || list[1].Scopes != nil {
		t.Errorf("%+v, %v", list, err)
	}
}
