package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Every flag of every command refuses an empty value, but the one whose usage says
// what an empty value means.
func TestNoFlagIsTakenEmpty(t *testing.T) {
	t.Chdir(t.TempDir())
	ended, end := context.WithCancel(t.Context())
	end() // what is not refused ends by itself
	none := func(string) string { return "" }
	said := func(args []string) (int, string) {
		var out, errs bytes.Buffer
		code := run(ended, args, &out, &errs, none)
		return code, out.String() + errs.String()
	}
	flags, documented := 0, 0
	walk((&app{}).root(), func(cmd *cobra.Command) {
		if !cmd.Runnable() {
			return
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		each := func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			flags++
			if strings.Contains(f.Usage, "'' for ") {
				documented++
				return
			}
			refused := false
			// As many arguments as a command may want: their number is looked at first.
			for n := range 3 {
				args := slices.Concat(path, []string{"--" + f.Name + "="}, slices.Repeat([]string{"x"}, n))
				code, text := said(args)
				if code != exitUsage {
					t.Errorf("%s: exit code %d, want %d\n%s", strings.Join(args, " "), code, exitUsage, text)
				}
				refused = refused || strings.Contains(text, "--"+f.Name+" is empty: give it a value, or leave it out") ||
					strings.Contains(text, `invalid argument "" for "--`+f.Name)
			}
			if !refused {
				t.Errorf("%s --%s '': no word of what is empty", cmd.CommandPath(), f.Name)
			}
		}
		cmd.LocalFlags().VisitAll(each)
		cmd.InheritedFlags().VisitAll(each)
	})
	if flags < 200 || documented != 1 {
		t.Errorf("%d flags were seen, %d of them documented as of use when empty", flags, documented)
	}
	// One of a list, and what is no flag.
	for _, args := range [][]string{
		{"submit", "example", "--tag", "a=b", "--tag", ""},
		{"get", ""},
		{"decide", "op_x", ""},
		{"--server", "", "version"},
	} {
		if code, text := said(args); code != exitUsage || !strings.Contains(text, "is empty: give it a value, or leave it out") {
			t.Errorf("%q: exit code %d, want %d\n%s", args, code, exitUsage, text)
		}
	}
}

func walk(cmd *cobra.Command, each func(*cobra.Command)) {
	each(cmd)
	for _, c := range cmd.Commands() {
		walk(c, each)
	}
}

// The help on making a key names every scope there is.
func TestScopesInHelp(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"principal", "create", "--help"}, &out, &out, func(string) string { return "" }); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	words := strings.FieldsFunc(out.String(), func(r rune) bool { return strings.ContainsRune(" ,\n", r) })
	for _, s := range ingest.PlainScopes() {
		if !slices.Contains(words, string(s)) {
			t.Errorf("the help names no scope %s", s)
		}
	}
}
