package crash_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const crashTable = "../../docs/CRASHES.md"

var (
	quoted    = regexp.MustCompile("`([^`]+)`")
	namedStep = regexp.MustCompile(`\*([^*]+)\*`)
)

// tableRows gives the first and the last column of every row of the table.
func tableRows(t *testing.T) (rows [][2]string) {
	t.Helper()
	text, err := os.ReadFile(crashTable)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| stopped or lost") {
			continue
		}
		if len(cells) != 5 {
			t.Errorf("%d columns, want 5: %s", len(cells), line)
			continue
		}
		rows = append(rows, [2]string{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[4])})
	}
	if len(rows) < 30 {
		t.Fatalf("%d rows found in %s: the table is not read", len(rows), crashTable)
	}
	return rows
}

// TestEveryRowNamesItsTest holds the table's last column against the sources:
// a test that is named there is there, with the case it names.
func TestEveryRowNamesItsTest(t *testing.T) {
	sources := map[string]string{}
	source := func(dir string) string {
		if _, read := sources[dir]; !read {
			files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				sources[dir] += string(text)
			}
		}
		return sources[dir]
	}
	for _, row := range tableRows(t) {
		tests := 0
		for part := range strings.SplitSeq(row[1], ";") {
			dir := "tests/crash"
			for _, m := range quoted.FindAllStringSubmatch(part, -1) {
				name, rest, _ := strings.Cut(m[1], "/")
				if !strings.HasPrefix(name, "Test") {
					dir = m[1]
					continue
				}
				tests++
				if !strings.Contains(source(dir), "func "+name+"(t *testing.T)") {
					t.Errorf("%s: %s has no %s", row[0], dir, name)
				}
				if rest != "" && !strings.Contains(source(dir), `"`+rest) {
					t.Errorf("%s: %s has no case %q", row[0], name, rest)
				}
			}
		}
		if tests == 0 {
			t.Errorf("%s: no test is named", row[0])
		}
	}
}

// checkNamedSteps says which steps the table names that no course had.
func checkNamedSteps(t *testing.T, seen map[string]bool) {
	t.Helper()
	for _, row := range tableRows(t) {
		for _, m := range namedStep.FindAllStringSubmatch(row[1], -1) {
			if !seen[m[1]] {
				t.Errorf("%s: no course has the step %q", row[0], m[1])
			}
		}
	}
}
