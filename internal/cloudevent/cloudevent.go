// Package cloudevent reads CloudEvents that callers send, over HTTP and NATS.
//
// Specifications: CloudEvents 1.0.2, its JSON event format, its HTTP binding and
// its NATS binding (1.0.3-wip): binary mode has attributes in headers ce-NAME,
// percent-encoded, and the data as the body; structured mode has all of it in one
// JSON object; a batch is a JSON array of those. Header names are found in any
// case. The NATS binding wants the data's media type in ce-datacontenttype, and
// senders that put it in content-type are understood, too.
//
// Guarantees: an event that two readers could take for two is refused: a name
// that occurs twice in an object or among the headers, an attribute name that is
// not allowed, invalid UTF-8, both kinds of data. The data's bytes are the
// sender's, unchanged.
//
// Limits: the version of the specification is 1.0 and no other. Extension values
// are kept as text: a number or a boolean is what its JSON says. Everything here
// is a pure function of its arguments.
package cloudevent

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Media types.
const (
	JSON           = "application/json"
	StructuredJSON = "application/cloudevents+json"
	BatchJSON      = "application/cloudevents-batch+json"
)

// SpecVersion is the version that is spoken.
const SpecVersion = "1.0"

// Bounds.
const (
	MaxAttributes = 64   // of one event
	MaxName       = 64   // characters of an attribute's name
	MaxValue      = 1024 // bytes of an attribute's value
	MaxDepth      = 64   // of nested arrays and objects, in the data; the envelope is one more
	// Envelope is how many bytes an event in structured mode may have beside its data.
	Envelope = 16 << 10
)

const prefix = "ce-"

// Event is a CloudEvent that keeps the specification.
type Event struct {
	ID, Source, Type string
	// MediaType is of the data, as the sender wrote it; "" where it said none, which
	// is JSON.
	MediaType string
	// Other has the attributes beside those and specversion: optional ones and
	// extensions.
	Other map[string]string
	Data  []byte
}

// Problem is why an event is refused.
type Problem string

// The problems.
const (
	NotJSON    Problem = "not_json"  // the envelope
	Duplicate  Problem = "duplicate" // a name that is there twice
	Missing    Problem = "missing"   // an attribute that must be there
	BadName    Problem = "bad_name"  // of an attribute
	BadType    Problem = "bad_type"  // the JSON type of a value
	BadValue   Problem = "bad_value" // an attribute's value cannot be read
	TooLong    Problem = "too_long"  // a name or a value
	TooMany    Problem = "too_many"  // attributes, or events of a batch
	TooDeep    Problem = "too_deep"  // arrays and objects in each other
	TwoKinds   Problem = "two_kinds" // data and data_base64
	NotAllowed Problem = "not_known" // a version of the specification
)

// Error says what is wrong with an event.
type Error struct {
	Problem   Problem
	Attribute string // "" where it is the whole; never longer than MaxName
	// Pointer is, of a Duplicate in a JSON object, the name: of an attribute, or a JSON
	// pointer into the data. It is as long as the sender made it.
	Pointer string
	Detail  string // of the attribute, in words; {max} stands for Bound
	Bound   int    // that was passed; 0 where there is none
}

func (e *Error) Error() string {
	what := "the event"
	if e.Attribute != "" {
		what = "attribute " + e.Attribute
	}
	return what + " " + strings.ReplaceAll(e.Detail, "{max}", strconv.Itoa(e.Bound))
}

// Mode is how an event is sent.
type Mode int

// The modes.
const (
	Unknown Mode = iota // an encoding of CloudEvents that is not read here, or no media type at all
	Binary
	Structured
	Batched
)

// ModeOf tells the mode by the value of Content-Type.
func ModeOf(contentType string) Mode {
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return Unknown
	case media == StructuredJSON:
		return Structured
	case media == BatchJSON:
		return Batched
	case strings.HasPrefix(media, "application/cloudevents"):
		return Unknown
	}
	return Binary
}

// ContentType is the value of that header in any case, "" if there is none or
// more than one.
func ContentType(header map[string][]string) string {
	found, times := contentType(header)
	if times != 1 {
		return ""
	}
	return found
}

func contentType(header map[string][]string) (found string, times int) {
	for name, values := range header {
		if strings.EqualFold(name, "content-type") {
			times += len(values)
			found = strings.Join(values, "")
		}
	}
	return found, times
}

// FromHeaders reads an event in binary mode. The error is an [*Error].
func FromHeaders(header map[string][]string, data []byte) (Event, error) {
	if _, times := contentType(header); times > 1 {
		return Event{}, &Error{Problem: Duplicate, Attribute: "content-type", Detail: "must be there once"}
	}
	b := builder{e: Event{MediaType: ContentType(header), Data: data}}
	for _, name := range slices.Sorted(maps.Keys(header)) { // so that the same is always refused first
		values := header[name]
		attribute, ok := strings.CutPrefix(strings.ToLower(name), prefix)
		if !ok {
			continue
		}
		if len(values) != 1 {
			return Event{}, &Error{Problem: Duplicate, Attribute: clip(attribute), Detail: "must be there once"}
		}
		value, err := decode(values[0])
		if err != nil {
			return Event{}, &Error{Problem: BadValue, Attribute: clip(attribute), Detail: "is not percent-encoded UTF-8"}
		}
		if err := b.add(attribute, value); err != nil {
			return Event{}, err
		}
	}
	return b.event()
}

// FromJSON reads an event in structured mode. The error is an [*Error].
func FromJSON(text []byte) (Event, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	open, err := dec.ReadToken()
	if err != nil {
		return Event{}, unreadable(err, 1)
	}
	if open.Kind() != '{' {
		return Event{}, &Error{Problem: BadType, Detail: "must be a JSON object"}
	}
	var b builder
	kinds := 0
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return Event{}, unreadable(err, 1)
		}
		attribute := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return Event{}, unreadable(err, 1)
		}
		switch {
		case attribute == "data":
			kinds++
			b.e.Data = bytes.Clone(value)
		case value.Kind() == 'n': // null is what leaving the member out is
		case attribute == "data_base64":
			kinds++
			if b.e.Data, err = binaryData(value); err != nil {
				return Event{}, err
			}
		default:
			plain, err := plainText(attribute, value)
			if err != nil {
				return Event{}, err
			}
			if err := b.add(attribute, plain); err != nil {
				return Event{}, err
			}
		}
	}
	if _, err := dec.ReadToken(); err != nil { // the object's end
		return Event{}, unreadable(err, 1)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Event{}, &Error{Problem: NotJSON, Detail: "has data after its end"}
	}
	if kinds > 1 {
		return Event{}, &Error{Problem: TwoKinds, Attribute: "data_base64", Detail: "must not be there beside data"}
	}
	return b.event()
}

// Split gives the elements of a batch, which has at most so many. They are JSON and
// looked at no further, so that one that is refused is refused alone: also one that has
// a name twice. The error is an [*Error].
func Split(text []byte, most int) ([][]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	open, err := dec.ReadToken()
	if err != nil {
		return nil, unreadable(err, 2)
	}
	if open.Kind() != '[' {
		return nil, &Error{Problem: BadType, Detail: "must be a JSON array of events"}
	}
	var list [][]byte
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, unreadable(err, 2)
		}
		if len(list) == most {
			return nil, &Error{Problem: TooMany, Detail: "must have at most {max} events", Bound: most}
		}
		list = append(list, bytes.Clone(value))
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, unreadable(err, 2)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, &Error{Problem: NotJSON, Detail: "has data after its end"}
	}
	return list, nil
}

// unreadable turns the decoder's error into ours, without quoting the text. around is
// how many arrays and objects stand around the values of attributes.
func unreadable(err error, around int) *Error {
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		return &Error{Problem: NotJSON, Detail: "is not JSON in UTF-8"}
	}
	// The decoder has a bound of its own, far beyond ours. Whatever it minds below ours
	// is too deep.
	if strings.Count(string(s.JSONPointer), "/") > MaxDepth+around {
		e := &Error{Problem: TooDeep, Detail: "nests arrays and objects deeper than {max}", Bound: MaxDepth}
		if around == 1 {
			for name := range s.JSONPointer.Tokens() {
				e.Attribute = clip(name)
				break
			}
		}
		return e
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		e := &Error{Problem: Duplicate, Detail: "has a name twice in one object", Pointer: string(s.JSONPointer)}
		if in, ok := strings.CutPrefix(e.Pointer, "/data/"); ok {
			e.Pointer = "/" + in // as where the data is the whole body
		} else if name := s.JSONPointer.LastToken(); s.JSONPointer.Parent() == "" {
			e.Pointer = name
		}
		return e
	}
	return &Error{Problem: NotJSON, Detail: "is not JSON in UTF-8"}
}

func binaryData(value jsontext.Value) ([]byte, error) {
	wrong := &Error{Problem: BadValue, Attribute: "data_base64", Detail: "must be base64 text"}
	if value.Kind() != '"' {
		return nil, wrong
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return nil, wrong
	}
	data, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return nil, wrong
	}
	return data, nil
}

// plainText gives an attribute's value as text.
func plainText(name string, value jsontext.Value) (string, error) {
	switch value.Kind() {
	case '"':
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return "", &Error{Problem: BadValue, Attribute: clip(name), Detail: "is not a JSON string"}
		}
		return string(text), nil
	case '0', 't', 'f':
		return string(value), nil
	}
	return "", &Error{Problem: BadType, Attribute: clip(name), Detail: "must be a string, a whole number or a boolean"}
}

// decode takes the percent-encoding off a header's value, which may be in quotes.
func decode(value string) (string, error) {
	if len(value) > 3*MaxValue+2 {
		return value, nil // refused as too long, whatever it says
	}
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		var b strings.Builder
		inner := value[1 : len(value)-1]
		for i := 0; i < len(inner); i++ {
			if inner[i] == '\\' && i+1 < len(inner) {
				i++
			}
			b.WriteByte(inner[i])
		}
		value = b.String()
	}
	text, err := url.PathUnescape(value)
	if err != nil {
		return "", err
	}
	if !utf8.ValidString(text) {
		return "", errors.New("invalid UTF-8")
	}
	return text, nil
}

// Encode gives text the form it has in a header.
func Encode(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// builder takes an event's attributes one by one.
type builder struct {
	e       Event
	version string
	count   int
	seen    map[string]bool
}

func (b *builder) add(name, value string) error {
	b.count++
	switch {
	case len(name) > MaxName:
		return &Error{Problem: TooLong, Attribute: clip(name), Detail: "has a name of more than {max} characters", Bound: MaxName}
	case !plainName(name):
		return &Error{Problem: BadName, Attribute: clip(name), Detail: "must have a name of a-z and 0-9"}
	case b.count > MaxAttributes:
		return &Error{Problem: TooMany, Detail: "must have at most {max} attributes", Bound: MaxAttributes}
	case len(value) > MaxValue:
		return &Error{Problem: TooLong, Attribute: name, Detail: "must have at most {max} bytes", Bound: MaxValue}
	case strings.ContainsFunc(value, unicode.IsControl):
		return &Error{Problem: BadValue, Attribute: name, Detail: "must have no control characters"}
	case b.seen[name]: // two spellings of one header
		return &Error{Problem: Duplicate, Attribute: name, Detail: "must be there once"}
	}
	if b.seen == nil {
		b.seen, b.e.Other = map[string]bool{}, map[string]string{}
	}
	b.seen[name] = true
	switch name {
	case "specversion":
		b.version = value
	case "id":
		b.e.ID = value
	case "source":
		b.e.Source = value
	case "type":
		b.e.Type = value
	case "datacontenttype":
		b.e.MediaType = value
	default:
		b.e.Other[name] = value
	}
	return nil
}

// event checks what was taken as a whole.
func (b *builder) event() (Event, error) {
	for _, must := range []struct{ name, value string }{
		{"specversion", b.version}, {"type", b.e.Type}, {"source", b.e.Source}, {"id", b.e.ID},
	} {
		if must.value == "" {
			return Event{}, &Error{Problem: Missing, Attribute: must.name, Detail: "must be given"}
		}
	}
	if b.version != SpecVersion {
		return Event{}, &Error{Problem: NotAllowed, Attribute: "specversion", Detail: "is of no version that is spoken here"}
	}
	if _, err := url.Parse(b.e.Source); err != nil {
		return Event{}, &Error{Problem: BadValue, Attribute: "source", Detail: "must be a URI reference"}
	}
	if at, ok := b.e.Other["time"]; ok {
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
			return Event{}, &Error{Problem: BadValue, Attribute: "time", Detail: "must be a time with a zone, as in RFC 3339"}
		}
	}
	return b.e, nil
}

func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// clip bounds a sender's name that comes back in an answer.
func clip(name string) string {
	if len(name) > MaxName {
		name = name[:MaxName]
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, name), "")
}
