package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/client"
)

// view is what a frame is made for. Frames are pure: the same data and view
// give the same lines.
type view struct {
	width  int // columns; 0 is without bound
	height int // lines; 0 is without bound
	colour bool
}

var unbounded = view{}

// table is the open operations as they were at a time.
type table struct {
	ops     []client.Operation // newest first
	at      time.Time
	more    bool   // older ones were not looked at
	trouble string // why it is not refreshed
}

func (t table) counts() map[string]int {
	m := map[string]int{}
	for _, op := range t.ops {
		m[op.State]++
	}
	return m
}

// asksYou says whether the operation waits for a person.
func asksYou(op client.Operation) bool { return op.Done && !op.Terminal }

// summary is the first line: how many are in which state, most first.
func (t table) summary() string {
	counts := t.counts()
	states := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
	var parts []string
	for _, state := range states {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
	}
	line := fmt.Sprintf("%s  %d open", t.at.UTC().Format("15:04:05Z"), len(t.ops))
	if len(parts) > 0 {
		line += ": " + strings.Join(parts, ", ")
	}
	if t.more {
		line += "; older ones were not looked at"
	}
	return line
}

// column is one column of the table. Where there is no room those of a high
// rank go first.
type column struct {
	name string
	rank int
	most int // cells; 0 is without bound
	text func(op client.Operation, now time.Time) string
}

func columns() []column {
	return []column{
		{"OPERATION", 0, 0, func(op client.Operation, _ time.Time) string { return op.ID }},
		{"PROVIDER", 3, 32, func(op client.Operation, _ time.Time) string { return op.Provider + "/" + op.Account }},
		{"PHASE", 1, 32, func(op client.Operation, _ time.Time) string {
			if op.Quarantine != "" {
				return op.State + " (" + op.Quarantine + ")"
			}
			return op.State
		}},
		{"PROVIDER SAYS", 4, 20, func(op client.Operation, _ time.Time) string {
			if op.Job == nil {
				return ""
			}
			return op.Job.RemoteState
		}},
		{"CREATES", 5, 0, func(op client.Operation, _ time.Time) string {
			text := fmt.Sprint(op.Attempts.Permitted)
			if op.Attempts.Unresolved > 0 {
				text += fmt.Sprintf(" (%d unknown)", op.Attempts.Unresolved)
			}
			return text
		}},
		{"NEXT LOOK", 2, 0, func(op client.Operation, now time.Time) string {
			switch {
			case op.NextLook == nil && asksYou(op):
				return "asks you"
			case op.NextLook == nil:
				return "-"
			case !op.NextLook.After(now):
				return "now"
			}
			return "in " + rough(op.NextLook.Sub(now))
		}},
		{"AGE", 6, 0, func(op client.Operation, now time.Time) string { return rough(now.Sub(op.Started)) }},
		{"BECAUSE", 7, 60, func(op client.Operation, _ time.Time) string { return cmp.Or(op.Because, op.Reason) }},
	}
}

// rough writes a length of time in its two largest units.
func rough(d time.Duration) string {
	switch d = max(d, 0).Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

const gap = 2 // cells between columns

// frame makes the lines of the table: none is wider than the view, there are no
// more than fit, and no text of others steers the terminal. Those that wait for
// a person come first.
func (t table) frame(v view) []string {
	ops := slices.Clone(t.ops)
	slices.SortStableFunc(ops, func(a, b client.Operation) int {
		return map[bool]int{true: 0, false: 1}[asksYou(a)] - map[bool]int{true: 0, false: 1}[asksYou(b)]
	})
	head := []string{v.paint(bold, fit(t.summary(), v.width))}
	if t.trouble != "" {
		head = append(head, v.paint(red, fit("not refreshed since then: "+t.trouble, v.width)))
	}
	if len(ops) == 0 {
		return v.cut(append(head, fit("no operation is open", v.width)))
	}
	hidden := 0
	if room := v.height - len(head) - 1; v.height > 0 && len(ops) > room {
		room = max(room-1, 0) // for the line that says so
		hidden = len(ops) - room
		ops = ops[:room]
	}
	cols := columns()
	cells := make([][]string, len(ops))
	widths := make([]int, len(cols))
	for i, col := range cols {
		widths[i] = cellsOf(col.name)
	}
	for r, op := range ops {
		for i, col := range cols {
			text := fit(printable(col.text(op, t.at)), col.most)
			cells[r] = append(cells[r], text)
			widths[i] = max(widths[i], cellsOf(text))
		}
	}
	shown := room(cols, widths, v.width)
	line := func(text func(i int) string) string {
		var b strings.Builder
		for n, i := range shown {
			if n > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			cell := fit(text(i), widths[i])
			b.WriteString(cell)
			if n < len(shown)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-cellsOf(cell)))
			}
		}
		return fit(strings.TrimRight(b.String(), " "), v.width)
	}
	lines := append(head, v.paint(dim, line(func(i int) string { return cols[i].name })))
	for r, op := range ops {
		colour := ""
		switch {
		case asksYou(op):
			colour = red
		case strings.HasPrefix(op.Because, "deferred"):
			colour = yellow
		}
		lines = append(lines, v.paint(colour, line(func(i int) string { return cells[r][i] })))
	}
	if hidden > 0 {
		lines = append(lines, fit(fmt.Sprintf("… and %d more", hidden), v.width))
	}
	return v.cut(lines)
}

const (
	lastRank = 4  // columns up to this are worth more than a whole id
	shortID  = 13 // cells of an id that can still be told from others
)

// room chooses the columns that fit, and shrinks what has to shrink: first the
// last column, then columns go by rank, and before those that matter go the id
// is shortened.
func room(cols []column, widths []int, width int) []int {
	shown := make([]int, len(cols))
	for i := range cols {
		shown[i] = i
	}
	total := func() int {
		sum := gap * (len(shown) - 1)
		for _, i := range shown {
			sum += widths[i]
		}
		return sum
	}
	const least = 16 // cells of the last column that still say something
	for width > 0 && total() > width {
		last := len(cols) - 1
		over := total() - width
		if shown[len(shown)-1] == last && widths[last]-over >= least {
			widths[last] -= over
			break
		}
		gone := 0
		for n, i := range shown {
			if cols[i].rank > cols[shown[gone]].rank {
				gone = n
			}
		}
		if short := max(widths[0]-over, shortID); cols[shown[gone]].rank <= lastRank && short < widths[0] {
			widths[0] = short
			continue
		}
		if len(shown) <= 2 {
			break // the line itself is cut
		}
		shown = slices.Delete(shown, gone, gone+1)
	}
	return shown
}

// frame shows one operation: what is known of it, and the newest changes.
func (f *follow) frame(v view, now time.Time) []string {
	op := f.op
	colour := ""
	if asksYou(op) {
		colour = red
	}
	lines := []string{v.paint(bold, fit(op.ID, v.width))}
	add := func(colour, name, text string) {
		if text != "" {
			lines = append(lines, v.paint(colour, fit(fmt.Sprintf("%-13s %s", name, printable(text)), v.width)))
		}
	}
	add("", "provider", op.Provider+"/"+op.Account)
	add(colour, "state", stateOf(op)+", for "+rough(now.Sub(op.Since)))
	if op.Job != nil && op.Job.ID != "" {
		add("", "job", op.Job.ID+saying(op.Job))
		add("", "progress", op.Job.Progress)
	}
	next := cmp.Or(op.WaitingFor, "nothing")
	if op.NextLook != nil {
		when := "now"
		if op.NextLook.After(now) {
			when = "in " + rough(op.NextLook.Sub(now))
		}
		next += ", next look " + when
	}
	add("", "waiting for", next)
	add("", "because", op.Because)
	if p := op.Problem; p != nil {
		add("", "problem", trouble(p))
	}
	creates := fmt.Sprint(op.Attempts.Permitted)
	if op.Attempts.Unresolved > 0 {
		creates += fmt.Sprintf(", %d of them unknown", op.Attempts.Unresolved)
	}
	add("", "creates", creates)
	add("", "age", rough(now.Sub(op.Started)))
	lines = append(lines, "")
	changes := f.lines
	if space := v.height - len(lines); v.height > 0 && len(changes) > space {
		changes = changes[len(changes)-max(space, 0):]
	}
	for _, line := range changes {
		lines = append(lines, fit(strings.Replace(line, op.ID+"  ", "", 1), v.width))
	}
	return v.cut(lines)
}

// cut keeps what the height has room for.
func (v view) cut(lines []string) []string {
	if v.height > 0 && len(lines) > v.height {
		return lines[:v.height]
	}
	return lines
}

// Colours, as the terminal is told.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	yellow = "33"
)

func (v view) paint(colour, text string) string {
	if !v.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// cellsOf is how many cells of a terminal a text takes at most.
func cellsOf(s string) int {
	n := 0
	for _, r := range s {
		n += runeCells(r)
	}
	return n
}

// runeCells takes everything from the scripts on that are written wide for
// wide: too much leaves a gap, too little would break the line.
func runeCells(r rune) int {
	if r >= 0x1100 && r != '…' && r != '�' {
		return 2
	}
	return 1
}

// fit makes text printable and cuts it to a width, 0 being none.
func fit(s string, width int) string {
	s = printable(s)
	if width <= 0 || cellsOf(s) <= width {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeCells(r); n > width-1 {
			return s[:i] + "…"
		}
	}
	return s
}
