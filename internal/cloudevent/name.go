package cloudevent

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The functions here read the source and the id of what [FromHeaders] or [FromJSON]
// refuses: whoever sent it looks for the answer under them. Both are "" unless each is
// there once and is text that an attribute may have.

// NameInHeaders does so in binary mode.
func NameInHeaders(header map[string][]string) (source, id string) {
	var n naming
	for name, values := range header {
		attribute, ok := strings.CutPrefix(strings.ToLower(name), prefix)
		if !ok || attribute != "source" && attribute != "id" {
			continue
		}
		for _, value := range values {
			text, err := decode(value)
			n.take(attribute, text, err)
		}
	}
	return n.name()
}

// NameInJSON does so in structured mode. What is no JSON object to its end has no name:
// the next byte could be of another.
func NameInJSON(text []byte) (source, id string) {
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return "", ""
	}
	var n naming
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return "", ""
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return "", ""
		}
		if name == "source" || name == "id" {
			text, err := plainText(name, value)
			n.take(name, text, err)
		}
	}
	if _, err := dec.ReadToken(); err != nil { // the object's end
		return "", ""
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return "", ""
	}
	return n.name()
}

// naming takes what may be source and id.
type naming struct {
	b      builder
	failed bool
}

func (n *naming) take(name, text string, err error) {
	if err != nil || n.b.add(name, text) != nil {
		n.failed = true
	}
}

func (n *naming) name() (source, id string) {
	if n.failed || n.b.e.Source == "" || n.b.e.ID == "" {
		return "", ""
	}
	return n.b.e.Source, n.b.e.ID
}
