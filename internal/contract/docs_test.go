package contract

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// The examples in the documents load and are what the text around them says. The
// first is complete; each other one replaces the sections it gives.
func TestDocumentedExamples(t *testing.T) {
	doc, err := os.ReadFile("../../docs/CONTRACTS.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples []string
	for rest := string(doc); ; {
		var src string
		var ok bool
		if _, rest, ok = strings.Cut(rest, "```yaml\n"); !ok {
			break
		}
		if src, rest, ok = strings.Cut(rest, "```"); !ok {
			t.Fatal("an example is not closed")
		}
		examples = append(examples, src)
	}
	if len(examples) != 5 {
		t.Fatalf("%d examples in docs/CONTRACTS.md", len(examples))
	}
	if c := parse(t, []byte(examples[0])); c.Guarantee() != events.Recoverable {
		t.Errorf("guarantee %s", c.Guarantee())
	}
	upload := parse(t, replaceSections(examples[0], examples[1]))
	in := Inputs{Params: []byte(`{"frames":[1.0,{"b": 2}]}`), ClientReference: "r", Prepared: map[string]string{"scene": "s"}}
	if n, err := upload.Prepares(in); n != 1 || err != nil || len(upload.CheckParams(in.Params)) > 0 {
		t.Errorf("%d preparations, %v, %+v", n, err, upload.CheckParams(in.Params))
	}
	if r, err := upload.Create(in); err != nil || string(r.Body) != `{"scene":"s","metadata":{"reference":"r"}}` {
		t.Errorf("%s %v", r.Body, err)
	}
	asking := parse(t, replaceSections(examples[0], examples[2]))
	if r, err := asking.Input(Inputs{JobID: "7", Input: []byte(`{"choice":"draft"}`), InputToken: "t"}); err != nil || r.Method+" "+r.URL != "POST https://api.acme.example/v2/renders/7/answers" || string(r.Body) != `{"choice":"draft"}` {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := asking.Cleanup(Inputs{JobID: "7"}); err != nil || r.Method+" "+r.URL != "DELETE https://api.acme.example/v2/renders/7/output" || len(asking.CheckInput([]byte(`{}`))) != 1 {
		t.Errorf("%+v %v", r, err)
	}
	files := parse(t, replaceSections(examples[0], examples[3]))
	s := files.ReadStatus(Answer{Status: 200, URL: "https://api.acme.example/v2/renders/1", Body: []byte(`{"id":"1","status":"done","frames_url":"https://f.example/a","log_id":"x/y"}`)}, Inputs{JobID: "1"})
	if got := showLinks(s.Results); !slices.Equal(got, []string{"frames=https://f.example/a", "log=https://api.acme.example/v2/logs/x%2Fy"}) {
		t.Errorf("%q %+v", got, s.Failure)
	}
	priced := parse(t, replaceSections(examples[0], examples[4]))
	if cost, unit, err := priced.Cost([]byte(`{"copies":3}`)); err != nil || cost.String() != "0.75" || unit != "USD" {
		t.Errorf("%s %s %v", cost, unit, err)
	}
}

// replaceSections gives a file in which sections, from a name at the start of a
// line to the next, are those of another.
func replaceSections(file, by string) []byte {
	name := regexp.MustCompile(`(?m)^[a-z_]+:`)
	split := func(s string) (list []string) {
		at := name.FindAllStringIndex(s, -1)
		for i, from := range at {
			to := len(s)
			if i+1 < len(at) {
				to = at[i+1][0]
			}
			list = append(list, s[from[0]:to])
		}
		return list
	}
	out := split(by)
	for _, old := range split(file) {
		if !slices.ContainsFunc(out, func(s string) bool { return name.FindString(s) == name.FindString(old) }) {
			out = append(out, old)
		}
	}
	return []byte(strings.Join(out, "\n"))
}
