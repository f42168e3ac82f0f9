package contract

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// MaxFile bounds a contract file in bytes.
const MaxFile = 256 << 10

// Problem is one thing wrong with a contract file.
type Problem struct {
	File         string
	Line, Column int    // 1-based, in the file
	Field        string // dotted path, "create.read.job_id"; "" is the whole file
	Message      string // what is wrong and which bound or values hold
	Source       string // the line of the expression, or "" outside expressions
	Caret        int    // 0-based column in Source
}

func (p Problem) String() string {
	s := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Field != "" {
		s += p.Field + ": "
	}
	s += p.Message
	if p.Source != "" {
		s += "\n    " + p.Source + "\n    " + strings.Repeat(" ", p.Caret) + "^"
	}
	return s
}

// ParseError holds all problems of a contract file in the order of the file.
type ParseError struct{ Problems []Problem }

func (e *ParseError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// document walks the nodes of one file and collects problems. A failed read
// gives a zero value and a problem, so that one pass finds all of them.
type document struct {
	file     string
	holds    string // what the file is; "" for a contract
	lines    []string
	problems []Problem
}

func (d *document) addf(n *yaml.Node, field, format string, args ...any) {
	p := Problem{File: d.file, Line: 1, Column: 1, Field: field, Message: fmt.Sprintf(format, args...)}
	if n != nil && n.Line > 0 { // a node the YAML library could not read has no place
		p.Line, p.Column = n.Line, n.Column
	}
	d.problems = append(d.problems, p)
}

// broken says whether a problem lies in the field or below it. Claims that rest
// on a broken part are not judged, so that one mistake gives one message.
func (d *document) broken(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool {
		return p.Field == field || strings.HasPrefix(p.Field, field+".")
	})
}

func (d *document) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return &ParseError{d.problems}
}

// read gives the root mapping, or nil with a problem.
func (d *document) read(src []byte) *yaml.Node {
	if len(src) > MaxFile {
		d.addf(nil, "", "the file has %d bytes; at most %d are allowed", len(src), MaxFile)
		return nil
	}
	d.lines = strings.Split(string(src), "\n")
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var root yaml.Node
	if err := dec.Decode(&root); err != nil {
		d.syntax(err)
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		d.addf(&second, "", "one file holds one %s; there is a second document", cmp.Or(d.holds, "contract"))
		return nil
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 {
		d.addf(nil, "", "the file is empty")
		return nil
	}
	return root.Content[0]
}

// syntax finds the line in the text of the YAML library's error.
func (d *document) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{File: d.file, Line: 1, Column: 1, Message: "not valid YAML: " + msg}
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		if num, text, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(num); err == nil && line >= 1 {
				p.Line, p.Message = line, "not valid YAML: "+text
			}
		}
	}
	if errors.Is(err, io.EOF) {
		p.Message = "the file is empty"
	}
	d.problems = append(d.problems, p)
}

// plain refuses what makes a file mean something else than it shows.
func (d *document) plain(n *yaml.Node, field string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.addf(n, field, "anchors and aliases are not allowed")
	case strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!"), n.Tag == "!!binary", n.Tag == "!!merge":
		d.addf(n, field, "the tag %s is not allowed", n.Tag)
	default:
		return true
	}
	return false
}

// section is a mapping read member by member.
type section struct {
	d     *document
	node  *yaml.Node
	field string
	value map[string]*yaml.Node
	order []string
}

func (s section) at(name string) string {
	if s.field == "" {
		return name
	}
	return s.field + "." + name
}

// section reads a mapping; with known names, any other is a problem.
func (d *document) section(n *yaml.Node, field string, known ...string) section {
	s := section{d: d, node: n, field: field, value: map[string]*yaml.Node{}}
	if n == nil || !d.plain(n, field) {
		return s
	}
	if n.Kind != yaml.MappingNode {
		d.addf(n, field, "must be a mapping%s", listed(" of ", known))
		return s
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || !d.plain(k, field) {
			d.addf(k, field, "a name must be plain text")
			continue
		}
		if _, twice := s.value[k.Value]; twice {
			d.addf(k, s.at(k.Value), "is given twice")
			continue
		}
		if len(known) > 0 && !slices.Contains(known, k.Value) {
			hint := ""
			if k.Value == "guarantee" {
				hint = "; the guarantee is computed from token, lookup and promises, never declared"
			}
			d.addf(k, s.at(k.Value), "unknown field; known here: %s%s", strings.Join(known, ", "), hint)
			continue
		}
		s.value[k.Value] = v
		s.order = append(s.order, k.Value)
	}
	return s
}

func listed(before string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return before + strings.Join(names, ", ")
}

func (s section) has(name string) bool { return s.value[name] != nil }

// need reports a field that is missing.
func (s section) need(name, why string) bool {
	if s.has(name) {
		return true
	}
	if s.node != nil {
		s.d.addf(s.node, s.at(name), "is missing%s", why)
	}
	return false
}

// none says whether the member is the word none.
func (s section) none(name string) bool {
	n := s.value[name]
	return n != nil && n.Kind == yaml.ScalarNode && n.Value == "none"
}

// text reads a scalar; "" where it is missing.
func (s section) text(name string) string {
	n := s.value[name]
	if n == nil {
		return ""
	}
	return s.d.scalar(n, s.at(name))
}

func (d *document) scalar(n *yaml.Node, field string) string {
	if !d.plain(n, field) {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.addf(n, field, "must be text")
		return ""
	}
	if strings.ContainsRune(n.Value, 0) {
		d.addf(n, field, "must not hold a zero byte")
		return ""
	}
	return n.Value
}

func (s section) oneOf(name string, allowed ...string) string {
	v := s.text(name)
	if s.has(name) && !slices.Contains(allowed, v) {
		s.d.addf(s.value[name], s.at(name), "is %q; allowed: %s", clip(v, 40), strings.Join(allowed, ", "))
		return ""
	}
	return v
}

func (s section) flag(name string) bool {
	if !s.has(name) {
		return false
	}
	switch s.text(name) {
	case "true":
		return true
	case "false":
	default:
		s.d.addf(s.value[name], s.at(name), "must be true or false")
	}
	return false
}

func (s section) texts(name string) []string {
	n := s.value[name]
	if n == nil || !s.d.plain(n, s.at(name)) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		s.d.addf(n, s.at(name), "must be a list")
		return nil
	}
	var list []string
	for i, c := range n.Content {
		list = append(list, s.d.scalar(c, fmt.Sprintf("%s[%d]", s.at(name), i)))
	}
	return list
}

func (s section) duration(name string, low, high time.Duration) time.Duration {
	n := s.value[name]
	if n == nil {
		return 0
	}
	return s.d.duration(n, s.at(name), low, high)
}

func (d *document) duration(n *yaml.Node, field string, low, high time.Duration) time.Duration {
	text := d.scalar(n, field)
	v, err := parseDuration(text)
	if err != nil {
		d.addf(n, field, "%q is not a length of time; write 500ms, 30s, 10m, 24h or 7d", clip(text, 40))
		return 0
	}
	if v < low || v > high {
		d.addf(n, field, "is %s; must be between %s and %s", span(v), span(low), span(high))
		return 0
	}
	return v
}

// parseDuration is time.ParseDuration and whole days.
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(s)
}

// span writes a length of time for humans, without trailing zero units.
func span(v time.Duration) string {
	if v >= 24*time.Hour && v%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", v/(24*time.Hour))
	}
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (s section) integer(name string, low, high int64) int64 {
	n := s.value[name]
	if n == nil {
		return 0
	}
	v, err := strconv.ParseInt(s.text(name), 10, 64)
	if err != nil || v < low || v > high {
		s.d.addf(n, s.at(name), "must be a whole number between %d and %d", low, high)
		return 0
	}
	return v
}

// bytes reads a size: a whole number of bytes, KiB, MiB or GiB.
func (s section) bytes(name string, fallback, high int64) int64 {
	n := s.value[name]
	if n == nil {
		return fallback
	}
	text, unit := s.text(name), int64(1)
	for suffix, u := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if t, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = strings.TrimSpace(t), u
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 1 || v > high/unit {
		s.d.addf(n, s.at(name), "must be a size of at most %d bytes, written as 1048576 or 1MiB", high)
		return fallback
	}
	return v * unit
}

// place finds where in the file a position inside a scalar is. A plain or quoted
// scalar written over several lines gets a place on its first.
func (d *document) place(n *yaml.Node, line, column int) (int, int) {
	switch {
	case n.Style&yaml.LiteralStyle != 0:
		at := n.Line + 1 + line // the text starts on the line after the indicator
		if at <= len(d.lines) {
			return at, indent(d.lines[at-1]) + column + 1
		}
		return n.Line, n.Column
	case n.Style&yaml.FoldedStyle != 0:
		// Lines were joined by one blank each: count them off.
		for at := n.Line + 1; at <= len(d.lines); at++ {
			text := strings.TrimRight(d.lines[at-1], " \r")
			if length := len(text) - indent(text); column > length {
				column -= length + 1
				continue
			}
			return at, indent(text) + column + 1
		}
		return n.Line, n.Column
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return n.Line, n.Column + 1 + column
	}
	return n.Line, n.Column + column
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
