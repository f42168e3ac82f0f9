package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/signature"
)

var update = flag.Bool("update", false, "rewrite the transcripts")

// shown are the headers a transcript shows.
var shown = []string{
	"Location", "Content-Location", "Retry-After", "ETag", "Idempotent-Replayed", "Preference-Applied", "WWW-Authenticate", "Allow",
	"Accept-Post", "Link", "Content-Type", "Content-Digest", "Content-Disposition",
}

// TestTranscripts plays the requests of each file against a fresh service and
// compares the answers. Lines:
//
//	# comment
//	! what a provider and its worker did, see harness.play
//	> METHOD /address      {op} is the operation answered last
//	> Header: value        As: names the principal, "As: -" nobody; Sign: signs the body
//	> body
//	< answer, written by -update
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("only %d transcripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			h := newHarness(t)
			got := playTranscript(h, string(want))
			for _, canary := range canaries(h) {
				if strings.Contains(answersOnly(got), canary) || strings.Contains(h.log.String(), canary) {
					t.Errorf("the secret %q came out", canary)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("the answers differ; -update rewrites them\n%s", firstDifference(string(want), got))
			}
		})
	}
}

// canaries must be in no answer and no log line.
func canaries(h *harness) []string {
	list := []string{hookSecret, "canary-", "env:PROVIDER_KEY", "env:HOOK"}
	for _, bearer := range h.bearer {
		_, secret, _ := strings.Cut(bearer, ".")
		list = append(list, secret)
	}
	return list
}

func answersOnly(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "<") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\n want %s\n got  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("want %d lines, got %d", len(w), len(g))
}

func playTranscript(h *harness, text string) string {
	h.t.Helper()
	var out strings.Builder
	var request []string
	flush := func() {
		if len(request) > 0 {
			out.WriteString(exchange(h, request))
			request = nil
		}
	}
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if rest, ok := strings.CutPrefix(line, "> "); ok {
			request = append(request, rest)
			out.WriteString(line + "\n")
			continue
		}
		flush()
		if strings.HasPrefix(line, "<") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "! "); ok {
			h.play(rest)
		}
		out.WriteString(line + "\n")
	}
	flush()
	return out.String()
}

// exchange makes one request and writes its answer.
func exchange(h *harness, lines []string) string {
	h.t.Helper()
	digest := ""
	if strings.Contains(strings.Join(lines, "\n"), "{digest}") {
		digest = h.toApprove()
	}
	fill := strings.NewReplacer("{op}", h.op, "{digest}", digest, "{long}", strings.Repeat("x", 300), "{huge}", strings.Repeat("x", 1<<20))
	method, target, _ := strings.Cut(lines[0], " ")
	as, header, body := "alice", map[string]string{}, ""
	sign := ""
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ": ")
		switch {
		case !ok || strings.HasPrefix(line, "{") || strings.HasPrefix(line, "["):
			body += fill.Replace(line)
		case name == "As" && value == "-":
			as = ""
		case name == "As":
			as = value
		case name == "Sign":
			sign = value
		default:
			if value == "-" {
				value = ""
			}
			header[name] = fill.Replace(value)
		}
	}
	if sign != "" {
		signed, err := signature.Sign(signature.Scheme{Name: signature.HMACSHA256Hex, Header: "X-Signature", Prefix: "sha256="}, sign, []byte(body), "", h.clock.Now())
		if err != nil {
			h.t.Fatal(err)
		}
		for name, value := range signed {
			header[name] = value
		}
	}
	w := h.do(as, method, fill.Replace(target), header, body)
	var out strings.Builder
	fmt.Fprintf(&out, "< %d\n", w.Code)
	for _, name := range shown {
		for _, value := range w.Header().Values(name) {
			if slices.Contains(serviceLinks(), value) {
				continue // on every answer, see judge
			}
			fmt.Fprintf(&out, "< %s: %s\n", name, value)
		}
	}
	text := w.Body.Bytes()
	var pretty bytes.Buffer
	if slices.Contains([]string{"application/json", "application/problem+json"}, w.Header().Get("Content-Type")) && json.Indent(&pretty, text, "", "  ") == nil {
		text = pretty.Bytes()
	}
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(&out, "< %s\n", strings.TrimRight(line, "\n"))
	}
	return out.String()
}
