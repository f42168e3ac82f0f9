package contract

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// Params is what a caller may send, as far as the contract says. It is a
// subset of JSON Schema in spirit, not in letter.
type Params struct {
	Required   []string
	OneOf      []string // exactly one of these has to be there; none: no such rule
	Properties []Property
	Closed     bool // members that are not named are refused
}

// Property is one member of the parameters.
type Property struct {
	Name        string
	Types       []string // string, integer, number, boolean, object, array, null; none: any
	Enum        []string // allowed texts; none: any
	Description string
}

// ParamError is one thing wrong with a caller's parameters.
type ParamError struct {
	Field   string // JSON pointer
	Code    string // required, one_of, type, not_allowed, unknown, set_by_contract
	Message string
	Allowed []string
}

var jsonTypes = []string{"string", "integer", "number", "boolean", "object", "array", "null"}

// paramsOf reads the params of a section.
func (p *parser) paramsOf(of section) (out Params) {
	if !of.has("params") {
		return out
	}
	s := p.d.section(of.value["params"], of.at("params"), "required", "one_of", "properties", "closed")
	out.Required, out.Closed = s.texts("required"), s.flag("closed")
	if out.OneOf = s.texts("one_of"); s.has("one_of") && len(out.OneOf) < 2 {
		p.d.addf(s.value["one_of"], s.at("one_of"), "must name two or more parameters, of which a caller gives exactly one")
	}
	if !s.has("properties") {
		return out
	}
	props := p.d.section(s.value["properties"], s.at("properties"))
	for _, name := range props.order {
		f := p.d.section(props.value[name], props.at(name), "type", "enum", "description")
		prop := Property{Name: name, Description: f.text("description"), Enum: f.texts("enum")}
		switch n := f.value["type"]; {
		case n == nil:
		case n.Kind == yaml.SequenceNode:
			prop.Types = f.texts("type")
		default:
			prop.Types = []string{f.text("type")}
		}
		for _, t := range prop.Types {
			if !slices.Contains(jsonTypes, t) {
				p.d.addf(f.value["type"], f.at("type"), "is %q; allowed: %s", clip(t, 40), strings.Join(jsonTypes, ", "))
			}
		}
		out.Properties = append(out.Properties, prop)
	}
	return out
}

// words says what a caller may send, a line for each parameter.
func (p Params) words() []string {
	var lines []string
	named := map[string]bool{}
	line := func(name, kind, bound, description string) {
		named[name] = true
		text := name + ": " + kind
		if slices.Contains(p.Required, name) {
			text += ", required"
		}
		if text += bound; description != "" {
			text += ". " + description
		}
		lines = append(lines, text)
	}
	for _, prop := range p.Properties {
		kind, bound := strings.Join(prop.Types, " or "), ""
		if kind == "" {
			kind = "of any type"
		}
		if len(prop.Enum) > 0 {
			bound = ", one of " + strings.Join(prop.Enum, ", ")
		}
		line(prop.Name, kind, bound, prop.Description)
	}
	for _, name := range slices.Concat(p.Required, p.OneOf) {
		if !named[name] {
			line(name, "of any type", "", "")
		}
	}
	if len(p.OneOf) > 0 {
		lines = append(lines, "Exactly one of "+strings.Join(p.OneOf, ", ")+".")
	}
	switch {
	case p.Closed && len(lines) == 0:
		return []string{"None: whatever is given is refused."}
	case p.Closed:
		return append(lines, "Any other is refused.")
	case len(lines) == 0:
		return []string{"Any JSON object; the provider checks its members."}
	}
	return append(lines, "Any other is passed on; the provider checks it.")
}

// CheckParams checks a caller's parameters, which passed the canonical gate,
// against the contract. All problems are reported.
func (c *Contract) CheckParams(params []byte) []ParamError {
	list := c.Params.check(params)
	if len(list) == 1 && list[0].Field == "" && list[0].Code == "type" {
		return list // no object
	}
	list = append(list, c.checkBody(params)...)
	if len(list) > 0 {
		return list
	}
	return c.checkPreparations(params)
}

// check holds an object against what is allowed. All problems are reported.
func (p Params) check(params []byte) []ParamError {
	members, err := topLevel(params)
	if err != nil {
		return []ParamError{{Field: "", Code: "type", Message: "the parameters must be a JSON object", Allowed: []string{"object"}}}
	}
	var list []ParamError
	add := func(name, code, message string, allowed []string) {
		list = append(list, ParamError{"/" + escapePointer(name), code, message, allowed})
	}
	for _, name := range p.Required {
		if _, ok := members[name]; !ok {
			add(name, "required", "is missing", nil)
		}
	}
	if n := countIn(members, p.OneOf); len(p.OneOf) > 0 && n != 1 {
		list = append(list, ParamError{"", "one_of", fmt.Sprintf("%d of these are given; give exactly one", n), p.OneOf})
	}
	known := slices.Clone(p.OneOf)
	for _, prop := range p.Properties {
		known = append(known, prop.Name)
		raw, ok := members[prop.Name]
		if !ok {
			continue
		}
		if t := typeOf(raw); len(prop.Types) > 0 && !slices.Contains(prop.Types, t) && !(t == "integer" && slices.Contains(prop.Types, "number")) {
			add(prop.Name, "type", fmt.Sprintf("is of type %s", t), prop.Types)
			continue
		}
		if len(prop.Enum) > 0 {
			if v, err := jsontext.AppendUnquote(nil, []byte(raw)); err != nil || !slices.Contains(prop.Enum, string(v)) {
				add(prop.Name, "not_allowed", "is not one of the allowed values", prop.Enum)
			}
		}
	}
	for _, name := range sortedKeys(members) {
		if p.Closed && !slices.Contains(known, name) && !slices.Contains(p.Required, name) {
			add(name, "unknown", "is not a parameter of this provider", known)
		}
	}
	return list
}

func countIn(members map[string]jsontext.Value, names []string) (n int) {
	for _, name := range names {
		if _, ok := members[name]; ok {
			n++
		}
	}
	return n
}

// checkBody finds parameters that the create could not carry.
func (c *Contract) checkBody(params []byte) (list []ParamError) {
	body := c.create.body
	if body == nil || !body.params {
		return nil
	}
	for _, m := range body.set {
		if slices.ContainsFunc(c.valueNames(), func(name string) bool { return m.value.uses["prepared."+name] }) {
			continue // given by a preparation or, where none is needed, by the caller
		}
		if _, err := find(params, jsontext.Pointer(pointerOf(m.pointer))); err == nil {
			list = append(list, ParamError{pointerOf(m.pointer), "set_by_contract", "is set by the service itself", nil})
		}
	}
	if !body.form {
		return list
	}
	left, err := dropMembers(params, body.drop)
	if err == nil {
		_, err = formBody(left)
	}
	var bad *formError
	switch {
	case errors.As(err, &bad):
		list = append(list, ParamError{bad.pointer, "not_allowed", bad.message, nil})
	case err != nil:
		list = append(list, ParamError{"", "not_allowed", err.Error(), nil})
	}
	return list
}

// checkPreparations finds parameters no preparation could be made from, so that
// they are refused while the caller listens.
func (c *Contract) checkPreparations(params []byte) []ParamError {
	list, err := c.needed(Inputs{Params: params})
	if err != nil {
		return []ParamError{{"", "not_allowed", cause(err), nil}}
	}
	for _, k := range list {
		if k.call.body == nil || k.call.body.parts == nil || k.call.body.parts.file == nil || k.call.body.parts.file.lines == "" {
			continue
		}
		at := k.call.body.parts.file.lines
		if _, err := jsonLines(params, at); err != nil {
			return []ParamError{{string(at), "not_allowed", err.Error(), nil}}
		}
	}
	return nil
}

func pointerOf(path []string) string {
	var b strings.Builder
	for _, step := range path {
		b.WriteString("/" + escapePointer(step))
	}
	return b.String()
}

func escapePointer(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// topLevel gives the members of an object with their text.
func topLevel(src []byte) (map[string]jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(src))
	open, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	if open.Kind() != '{' {
		return nil, errNoMember
	}
	members := map[string]jsontext.Value{}
	for dec.PeekKind() == '"' {
		tok, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		name := tok.String()
		v, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		members[name] = v.Clone()
	}
	_, err = dec.ReadToken()
	return members, err
}

func typeOf(raw jsontext.Value) string {
	switch raw.Kind() {
	case '"':
		return "string"
	case '0':
		if _, ok := number(string(raw)).(int64); ok {
			return "integer"
		}
		return "number"
	case 't', 'f':
		return "boolean"
	case '{':
		return "object"
	case '[':
		return "array"
	}
	return "null"
}
