// Command growth turns lines of "counterfoil bench --open N --output json", read
// from standard input, into a table on standard output and a plot.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type line struct {
	Open   int       `json:"open"`
	Clean  float64   `json:"ready_s"`
	Killed float64   `json:"ready_killed_s"`
	Peak   float64   `json:"start_rss_mib"`
	Rest   float64   `json:"rest_rss_mib"`
	Get    quantiles `json:"get_ms"`
	List   quantiles `json:"list_ms"`
	Create quantiles `json:"create_ms"`
	Late   quantiles `json:"late_ms"`
	Sync   string    `json:"sync"`
	On     string    `json:"machine"`
}

func main() {
	svg := flag.String("svg", "", "file for the plot; none if empty")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *svg); err != nil {
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, svg string) error {
	var list []line
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("line %d: %w", len(list)+1, err)
		}
		if l.Open == 0 {
			return fmt.Errorf("line %d is not of a bench with --open", len(list)+1)
		}
		list = append(list, l)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("there is nothing on standard input")
	}
	table(out, list)
	if svg == "" {
		return nil
	}
	return os.WriteFile(svg, []byte(plot(list)), 0o644)
}

// table has one column for each line.
func table(out io.Writer, list []line) {
	row := func(name string, cell func(l line) string) {
		fmt.Fprintf(out, "| %s |", name)
		for _, l := range list {
			fmt.Fprintf(out, " %s |", cell(l))
		}
		fmt.Fprintln(out)
	}
	both := func(q quantiles) string { return fmt.Sprintf("%.1f / %.1f", q.P50, q.P99) }
	row("waiting", func(l line) string { return fmt.Sprint(l.Open) })
	fmt.Fprintln(out, "|---"+strings.Repeat("|---", len(list))+"|")
	row("start to ready, s", func(l line) string { return fmt.Sprintf("%.2f", l.Clean) })
	row("after a kill, s", func(l line) string { return fmt.Sprintf("%.2f", l.Killed) })
	row("memory at the start, at rest, MiB", func(l line) string { return fmt.Sprintf("%.0f / %.0f", l.Peak, l.Rest) })
	row("one read, p50 / p99 ms", func(l line) string { return both(l.Get) })
	row("fifty listed, p50 / p99 ms", func(l line) string { return both(l.List) })
	row("submit to create, p50 / p99 ms", func(l line) string { return both(l.Create) })
	row("status read late, p50 / p99 ms", func(l line) string { return both(l.Late) })
	fmt.Fprintf(out, "\nsync %s; %s\n", list[0].Sync, list[0].On)
}

const (
	width, height = 720, 420
	left, right   = 60, 200
	top, bottom   = 20, 50
)

// plot draws the series over the number of operations, both on logarithmic
// scales, each point with its own unit in the key.
func plot(list []line) string {
	series := []struct {
		name, colour string
		value        func(l line) float64
	}{
		{"ready, s", "#0a7", func(l line) float64 { return l.Clean }},
		{"ready after a kill, s", "#074", func(l line) float64 { return l.Killed }},
		{"memory at rest, MiB", "#c30", func(l line) float64 { return l.Rest }},
		{"read p50, ms", "#36c", func(l line) float64 { return l.Get.P50 }},
		{"listed p50, ms", "#69f", func(l line) float64 { return l.List.P50 }},
		{"late p99, ms", "#939", func(l line) float64 { return l.Late.P99 }},
	}
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range list {
		x := math.Log10(float64(l.Open))
		lowX, highX = min(lowX, math.Floor(x)), max(highX, math.Ceil(x))
		for _, s := range series {
			if v := s.value(l); v > 0 {
				y := math.Log10(v)
				lowY, highY = min(lowY, math.Floor(y)), max(highY, math.Ceil(y))
			}
		}
	}
	highX, highY = max(highX, lowX+1), max(highY, lowY+1)
	x := func(v float64) float64 {
		return left + (math.Log10(v)-lowX)/(highX-lowX)*(width-left-right)
	}
	y := func(v float64) float64 {
		return height - bottom - (math.Log10(v)-lowY)/(highY-lowY)*(height-top-bottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	for e := lowY; e <= highY; e++ {
		v := math.Pow(10, e)
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, y(v), width-right, left-6, y(v)+4, v)
	}
	for e := lowX; e <= highX; e++ {
		v := math.Pow(10, e)
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", x(v), top, height-bottom, x(v), height-bottom+18, v)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">operations that wait</text>`+"\n", (left+width-right)/2, height-10)
	for i, s := range series {
		var points []string
		for _, l := range list {
			if v := s.value(l); v > 0 {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(l.Open)), y(v)))
			}
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), s.colour)
		for _, p := range points {
			at := strings.Split(p, ",")
			fmt.Fprintf(&b, `<circle cx="%s" cy="%s" r="3" fill="%s"/>`+"\n", at[0], at[1], s.colour)
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+12, top+20+20*i, s.colour, s.name)
	}
	return b.String() + "</svg>\n"
}
