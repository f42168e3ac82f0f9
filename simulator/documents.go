package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// A document is a JSON object that keeps the order of its members and the exact
// bytes of raw ones, which encoding/json would compact and escape.
type document []member

type member struct {
	name  string
	value []byte
}

// set adds or replaces a member.
func (d *document) set(name string, value any) {
	raw := encode(value)
	for i := range *d {
		if (*d)[i].name == name {
			(*d)[i].value = raw
			return
		}
	}
	*d = append(*d, member{name, raw})
}

func (d document) has(name string) bool {
	return slices.ContainsFunc(d, func(m member) bool { return m.name == name })
}

func (d document) encode() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range d {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(m.name))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func encode(value any) []byte {
	switch v := value.(type) {
	case json.RawMessage:
		return v
	case document:
		return v.encode()
	case []document:
		var b bytes.Buffer
		b.WriteByte('[')
		for i, d := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(d.encode())
		}
		b.WriteByte(']')
		return b.Bytes()
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(fmt.Sprintf("simulator: encode %T: %v", value, err)) // only our own values come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
