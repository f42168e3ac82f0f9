package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTableAndPlot(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "plot.svg")
	var out strings.Builder
	in := `{"open":1000,"ready_s":0.5,"ready_killed_s":0.6,"start_rss_mib":90,"rest_rss_mib":80,"get_ms":{"p50":0.4,"p99":1},"list_ms":{"p50":20,"p99":40},"create_ms":{"p50":3,"p99":9},"late_ms":{"p50":-0.2,"p99":7},"sync":"interval","machine":"m"}
{"open":10000,"ready_s":2,"ready_killed_s":2.5,"start_rss_mib":190,"rest_rss_mib":180,"get_ms":{"p50":0.5,"p99":1},"list_ms":{"p50":21,"p99":40},"create_ms":{"p50":3,"p99":9},"late_ms":{"p50":0,"p99":8},"sync":"interval","machine":"m"}
`
	if err := run(strings.NewReader(in), &out, svg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| waiting | 1000 | 10000 |\n|---|---|---|\n", "| start to ready, s | 0.50 | 2.00 |", "| status read late, p50 / p99 ms | -0.2 / 7.0 | 0.0 / 8.0 |", "sync interval; m\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != 6 || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
		t.Errorf("%d lines, want 6, and numbers only:\n%s", lines, text)
	}
}

func TestWhatIsNoBenchIsRefused(t *testing.T) {
	for _, in := range []string{"", "ready\n", `{"ops":20}` + "\n"} {
		if err := run(strings.NewReader(in), io.Discard, ""); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}
