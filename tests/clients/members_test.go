package clients

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Whatever the service takes in a submit and shows of an operation has its place in the
// types of the TypeScript client, and what it takes in the words of the Python client.
func TestMembers(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	part := func(text, from, to string) string {
		_, rest, found := strings.Cut(text, from)
		inside, _, ends := strings.Cut(rest, to)
		if !found || !ends {
			t.Fatalf("there is no %q up to %q", from, to)
		}
		return inside
	}
	typescript, python := read("../../clients/typescript/counterfoil.ts"), read("../../clients/python/counterfoil.py")
	for _, one := range []struct {
		what, text, member string // member is the pattern of one, for its name
		theirs             any
		beside             string
	}{
		{"interface Submission", part(typescript, "export interface Submission {\n", "\n}\n"), `(?m)^  %s\??: `, ingest.SubmitBody{}, "validate_only"},
		{"interface Operation", part(typescript, "export interface Operation {\n", "\n}\n"), `(?m)^  %s\??: `, ingest.View{}, "phase validation"}, // phase is state
		{"interface Checked", part(typescript, "export interface Checked extends Operation {\n", "\n}\n"), `(?m)^    %s\??: `, ingest.ValidationView{}, ""},
		{"interface Decision", part(typescript, "export interface Decision {\n", "\n}\n"), `(?m)^  %s\??: `, ingest.DecideBody{}, ""},
		{"interface CancelItem", part(typescript, "export interface CancelItem {\n", "\n}\n"), `(?m)^  %s\??: `, ingest.CancelElement{}, ""},
		{"submit of Python", part(python, "def submit(", "body = "), `\b%s\b`, ingest.SubmitBody{}, "validate_only"},
		{"decide of Python", part(python, "def decide(", "return "), `\b%s\b`, ingest.DecideBody{}, ""},
	} {
		of := reflect.TypeOf(one.theirs)
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" || strings.Contains(" "+one.beside+" ", " "+name+" ") {
				continue
			}
			if !regexp.MustCompile(strings.ReplaceAll(one.member, "%s", regexp.QuoteMeta(name))).MatchString(one.text) {
				t.Errorf("%s has no %s", one.what, name)
			}
		}
	}
}
