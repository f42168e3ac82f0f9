package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"mime/multipart"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// maxBody bounds a form or a multipart body in bytes. JSON bodies are bounded by
// the caller's parameters, which they repeat.
const maxBody = 8 << 20

// payload is the request body: the caller's parameters or an empty object, less
// some members and with members set by the contract, as JSON or as a form; or
// parts.
type payload struct {
	params bool
	input  bool     // in place of the parameters, the answer to a job that waits
	drop   []string // members of the parameters that are not sent
	set    []member
	form   bool
	parts  *parts // nil unless multipart
}

type member struct {
	pointer []string
	value   *expression
}

// parts is a multipart/form-data body.
type parts struct {
	fields []field
	file   *filePart
}

type field struct {
	name  string
	value *expression
}

// filePart is the one file of a multipart body: a text, or the elements of a
// list in the parameters as one line of JSON each.
type filePart struct {
	name, filename, mediaType string
	text                      *expression
	lines                     jsontext.Pointer
}

func (d *document) payload(env *cel.Env, n *yaml.Node, field string) *payload {
	if n.Kind == yaml.ScalarNode {
		switch d.scalar(n, field) {
		case "none":
			return nil
		case "params":
			return &payload{params: true}
		case "empty":
			return &payload{}
		case "input":
			if field == "input.body" {
				return &payload{input: true}
			}
		}
		d.addf(n, field, "is %q; allowed: none, empty, params, %sor a mapping of from, drop, set, as, multipart", clip(n.Value, 40), map[bool]string{true: "input, "}[field == "input.body"])
		return nil
	}
	s := d.section(n, field, "from", "drop", "set", "as", "multipart")
	if s.has("multipart") {
		for _, k := range []string{"from", "drop", "set", "as"} {
			if s.has(k) {
				d.addf(s.value[k], s.at(k), "does not go with multipart")
			}
		}
		return &payload{parts: d.parts(env, s.value["multipart"], s.at("multipart"))}
	}
	var p *payload
	if from := ""; field == "input.body" {
		if s.has("from") {
			from = s.oneOf("from", "input", "params", "empty")
		}
		p = &payload{input: !s.has("from") || from == "input", params: from == "params"}
	} else {
		p = &payload{params: !s.has("from") || s.oneOf("from", "params", "empty") == "params"}
	}
	p.form = s.has("as") && s.oneOf("as", "json", "form") == "form"
	for i, ptr := range s.texts("drop") {
		if !strings.HasPrefix(ptr, "/") || strings.Count(ptr, "/") != 1 || !jsontext.Pointer(ptr).IsValid() {
			d.addf(s.value["drop"], fmt.Sprintf("%s[%d]", s.at("drop"), i), "must be a JSON pointer of one step, like /requests")
			continue
		}
		p.drop = append(p.drop, slices.Collect(jsontext.Pointer(ptr).Tokens())...)
	}
	if s.has("drop") && !p.params && !p.input {
		d.addf(s.value["drop"], s.at("drop"), "goes with from: params only")
	}
	if !s.has("set") {
		return p
	}
	set := d.section(s.value["set"], s.at("set"))
	for _, k := range set.order {
		if !strings.HasPrefix(k, "/") || strings.Count(k, "/") > 8 || !jsontext.Pointer(k).IsValid() {
			d.addf(set.value[k], set.at(k), "must be a JSON pointer of at most 8 steps, like /metadata/reference")
			continue
		}
		if e := d.expression(env, set.value[k], set.at(k), anything); e != nil {
			p.set = append(p.set, member{slices.Collect(jsontext.Pointer(k).Tokens()), e})
		}
	}
	return p
}

func (d *document) parts(env *cel.Env, n *yaml.Node, at string) *parts {
	s := d.section(n, at, "fields", "file")
	var out parts
	if s.has("fields") {
		fields := d.section(s.value["fields"], s.at("fields"))
		for _, name := range fields.order {
			if !validPart(name) {
				d.addf(fields.value[name], fields.at(name), "is not a name of a part: 1 to 128 printable ASCII characters, no quote and no backslash")
			}
			if e := fields.expression(env, name, text); e != nil {
				out.fields = append(out.fields, field{name, e})
			}
		}
	}
	if s.has("file") {
		out.file = d.filePart(env, s.value["file"], s.at("file"))
	}
	if s.node != nil && !s.has("fields") && !s.has("file") {
		d.addf(n, at, "give fields, a file, or both")
	}
	return &out
}

func (d *document) filePart(env *cel.Env, n *yaml.Node, at string) *filePart {
	s := d.section(n, at, "name", "filename", "type", "text", "lines")
	if s.node == nil || len(s.order) == 0 {
		return nil
	}
	f := &filePart{name: s.text("name"), filename: s.text("filename"), mediaType: "application/octet-stream", text: s.expression(env, "text", text)}
	for _, k := range []string{"name", "filename"} {
		if s.need(k, "") && !validPart(s.text(k)) {
			d.addf(s.value[k], s.at(k), "must be 1 to 128 printable ASCII characters, no quote and no backslash")
		}
	}
	if s.has("type") {
		f.mediaType = s.text("type")
		if strings.Count(f.mediaType, "/") != 1 || !validPart(f.mediaType) || strings.ContainsAny(f.mediaType, " ;,") {
			d.addf(s.value["type"], s.at("type"), "must be a media type without parameters, like application/jsonl")
		}
	}
	if s.has("text") == s.has("lines") {
		d.addf(n, at, "give exactly one of text (an expression) and lines (a JSON pointer into the parameters)")
	}
	if s.has("lines") {
		f.lines = jsontext.Pointer(s.text("lines"))
		if f.lines == "" || !f.lines.IsValid() {
			d.addf(s.value["lines"], s.at("lines"), "must be a JSON pointer to a list in the parameters, like /requests")
		}
	}
	return f
}

func validPart(s string) bool {
	return len(s) >= 1 && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r > 0x7e || r == '"' || r == '\\'
	})
}

// expressions are all of the body.
func (p *payload) expressions() []*expression {
	if p == nil {
		return nil
	}
	var list []*expression
	for _, m := range p.set {
		list = append(list, m.value)
	}
	if p.parts != nil {
		for _, f := range p.parts.fields {
			list = append(list, f.value)
		}
		if f := p.parts.file; f != nil && f.text != nil {
			list = append(list, f.text)
		}
	}
	return list
}

// bytes gives the body and its media type. Without members to set or leave out
// the caller's bytes go out as they came; otherwise everything else keeps its
// text.
func (p *payload) bytes(params []byte, vars *names) (body []byte, mediaType string, err error) {
	if p.parts != nil {
		return p.parts.bytes(params, vars)
	}
	if body, err = p.json(params, vars); err != nil || !p.form {
		return body, "application/json", err
	}
	body, err = formBody(body)
	return body, "application/x-www-form-urlencoded", err
}

func (p *payload) json(params []byte, vars *names) ([]byte, error) {
	body := []byte("{}")
	switch {
	case p.params && len(params) > 0:
		body = params
	case p.input && len(vars.in.Input) > 0:
		body = vars.in.Input
	}
	var err error
	if len(p.drop) > 0 {
		if body, err = dropMembers(body, p.drop); err != nil {
			return nil, err
		}
	}
	for _, m := range p.set {
		v, err := m.value.eval(vars)
		if err != nil {
			return nil, err
		}
		if !given(v) {
			continue
		}
		value, ok, err := encode(v, 0)
		if err != nil {
			return nil, m.value.errorf("the value %v", err)
		}
		if !ok {
			continue
		}
		if body, err = setMember(body, m.pointer, value); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// dropMembers leaves members out of an object; all others keep their text.
func dropMembers(raw []byte, names []string) ([]byte, error) {
	out := []byte{'{'}
	for m, err := range members(raw) {
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(names, m.name):
			continue
		}
		if out, err = appendMember(out, m.name, m.text); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

// setMember puts a member into an object, replacing one of that name.
func setMember(raw []byte, path []string, value []byte) ([]byte, error) {
	if len(path) == 0 {
		return value, nil
	}
	out, found := []byte{'{'}, false
	for m, err := range members(raw) {
		if errors.Is(err, errNoObject) {
			return nil, fmt.Errorf("cannot set the member %q: not inside an object", path[0])
		}
		if err != nil {
			return nil, err
		}
		if m.name == path[0] {
			found = true
			if m.text, err = setMember(m.text, path[1:], value); err != nil {
				return nil, err
			}
		}
		if out, err = appendMember(out, m.name, m.text); err != nil {
			return nil, err
		}
	}
	if !found {
		inner := value
		var err error
		for _, step := range slices.Backward(path[1:]) {
			if inner, _, err = object(map[string][]byte{step: inner}); err != nil {
				return nil, err
			}
		}
		if out, err = appendMember(out, path[0], inner); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func appendMember(out []byte, name string, v []byte) ([]byte, error) {
	if len(out) > 1 {
		out = append(out, ',')
	}
	out, err := jsontext.AppendQuote(out, name)
	return append(append(out, ':'), v...), err
}

// textMember is a member of an object with the text of its value.
type textMember struct {
	name string
	text []byte
}

var errNoObject = errors.New("not inside an object")

// members goes through an object. It ends with the first error.
func members(raw []byte) func(func(textMember, error) bool) {
	return func(yield func(textMember, error) bool) {
		dec := jsontext.NewDecoder(bytes.NewReader(raw))
		if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
			yield(textMember{}, errNoObject)
			return
		}
		for dec.PeekKind() != '}' {
			tok, err := dec.ReadToken()
			if err != nil {
				yield(textMember{}, err)
				return
			}
			name := tok.String()
			v, err := dec.ReadValue()
			if err != nil {
				yield(textMember{}, err)
				return
			}
			if !yield(textMember{name, v.Clone()}, nil) {
				return
			}
		}
	}
}

// formError is a member that a form cannot carry.
type formError struct{ pointer, message string }

func (e *formError) Error() string { return e.pointer + ": " + e.message }

// maxFormName bounds a name with its brackets, in bytes.
const maxFormName = 4096

// formBody writes an object as application/x-www-form-urlencoded, nested names
// in brackets: {"a":{"b":1.0},"c":["x"]} is a[b]=1.0&c[0]=x. Members keep their
// order and numbers their text; null, {} and [] have no form and are left out.
// A name that is empty or holds a bracket is refused, since it would be read as
// another.
func formBody(raw []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if dec.PeekKind() != '{' {
		return nil, errNoObject
	}
	w := formWriter{dec: dec}
	err := w.value("")
	return []byte(w.b.String()), err
}

// formWriter goes through the object once.
type formWriter struct {
	dec *jsontext.Decoder
	b   strings.Builder
}

func (w *formWriter) value(name string) error {
	tok, err := w.dec.ReadToken()
	if err != nil {
		return err
	}
	if w.dec.StackDepth() > maxDepth {
		return w.errorf("%v", errDepth)
	}
	switch kind := tok.Kind(); kind {
	case 'n':
		return nil
	case '{':
		for w.dec.PeekKind() == '"' {
			if err := w.member(name); err != nil {
				return err
			}
		}
		_, err = w.dec.ReadToken()
		return err
	case '[':
		for i := 0; w.dec.PeekKind() != ']'; i++ {
			if err := w.value(name + "[" + strconv.Itoa(i) + "]"); err != nil {
				return err
			}
		}
		_, err = w.dec.ReadToken()
		return err
	}
	if w.b.Len() > 0 {
		w.b.WriteByte('&')
	}
	w.b.WriteString(name + "=" + url.QueryEscape(tok.String()))
	if w.b.Len() > maxBody {
		return w.errorf("the form has more than %d bytes", maxBody)
	}
	return nil
}

func (w *formWriter) member(prefix string) error {
	tok, err := w.dec.ReadToken()
	if err != nil {
		return err
	}
	name := tok.String()
	if name == "" || strings.ContainsAny(name, "[]") {
		return w.errorf("a form cannot carry a name that is empty or holds a bracket")
	}
	name = url.QueryEscape(name)
	if prefix != "" {
		name = prefix + "[" + name + "]"
	}
	if len(name) > maxFormName {
		return w.errorf("a name in a form has at most %d bytes", maxFormName)
	}
	return w.value(name)
}

func (w *formWriter) errorf(format string, args ...any) error {
	return &formError{clip(string(w.dec.StackPointer()), 200), fmt.Sprintf(format, args...)}
}

// elements goes through a list.
func elements(raw []byte, f func(i int, v jsontext.Value) error) error {
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '[' {
		return errors.New("not a list")
	}
	for i := 0; dec.PeekKind() != ']'; i++ {
		v, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := f(i, v.Clone()); err != nil {
			return err
		}
	}
	return nil
}

// bytes writes the parts. The boundary is a digest of them, so that equal inputs
// give equal bytes.
func (p *parts) bytes(params []byte, vars *names) (body []byte, mediaType string, err error) {
	var values [][]byte
	total := 0
	for _, f := range p.fields {
		s, err := f.value.text(vars)
		if err != nil {
			return nil, "", err
		}
		values = append(values, []byte(s))
		total += len(s)
	}
	if p.file != nil {
		content, err := p.file.content(params, vars)
		if err != nil {
			return nil, "", err
		}
		values = append(values, content)
		total += len(content)
	}
	if total > maxBody {
		return nil, "", fmt.Errorf("the parts have more than %d bytes", maxBody)
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary(values, digest)); err != nil {
		return nil, "", err
	}
	for i, v := range values {
		header := map[string][]string{}
		switch {
		case i < len(p.fields) && len(v) == 0:
			continue // absent, as everywhere
		case i < len(p.fields):
			header["Content-Disposition"] = []string{`form-data; name="` + p.fields[i].name + `"`}
		default:
			header["Content-Disposition"] = []string{multipart.FileContentDisposition(p.file.name, p.file.filename)}
			header["Content-Type"] = []string{p.file.mediaType}
		}
		part, err := w.CreatePart(header)
		if err == nil {
			_, err = part.Write(v)
		}
		if err != nil {
			return nil, "", err
		}
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return b.Bytes(), w.FormDataContentType(), nil
}

func digest(n uint64, values [][]byte) string {
	h := sha256.New()
	put := func(b []byte) { _, _ = h.Write(b) } // a hash never fails
	put(binary.BigEndian.AppendUint64(nil, n))
	for _, v := range values {
		put(binary.BigEndian.AppendUint64(nil, uint64(len(v))))
		put(v)
	}
	return fmt.Sprintf("cf%x", h.Sum(nil)[:24])
}

// boundary gives the first sum that occurs in none of the values.
func boundary(values [][]byte, sum func(n uint64, values [][]byte) string) string {
	for n := uint64(0); ; n++ {
		b := sum(n, values)
		if !slices.ContainsFunc(values, func(v []byte) bool { return bytes.Contains(v, []byte(b)) }) {
			return b
		}
	}
}

// content is the text of the file. An empty one is an error: there is nothing
// to upload.
func (f *filePart) content(params []byte, vars *names) ([]byte, error) {
	if f.text != nil {
		s, err := f.text.text(vars)
		if err == nil && s == "" {
			err = f.text.errorf("the file is empty")
		}
		return []byte(s), err
	}
	return jsonLines(params, f.lines)
}

// jsonLines writes each element of a list in the parameters as one line of JSON.
// Only white space between tokens is left out: numbers keep their text.
func jsonLines(params []byte, at jsontext.Pointer) ([]byte, error) {
	raw, err := find(params, at)
	if err != nil {
		return nil, fmt.Errorf("the parameters have no list at %s", at)
	}
	var out []byte
	err = elements(raw, func(_ int, v jsontext.Value) error {
		if err := v.Compact(); err != nil {
			return err
		}
		out = append(append(out, v...), '\n')
		if len(out) > maxBody {
			return fmt.Errorf("the file has more than %d bytes", maxBody)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the parameters at %s: %w", at, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the list at %s in the parameters is empty", at)
	}
	return out, nil
}
