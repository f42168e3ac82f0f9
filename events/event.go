// Package events defines the facts of Counterfoil's ledger and their bytes.
//
// Each fact is a CloudEvent 1.0 in NATS binary mode: context attributes as
// "ce-" headers with percent-encoded values, data as MessagePack. Facts of one
// operation form a hash chain: each carries in its "previous" attribute the
// digest of the one before it, the first the digest of the operation id.
//
// Everything here is pure: no clock, randomness, file or network. Unknown fact
// types and unknown fields survive decoding and are reported, never dropped.
package events

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/counterfoil/counterfoil/internal/codec"
)

const (
	// TypePrefix stands before a fact's Type in the CloudEvents attribute.
	TypePrefix = "dev.counterfoil."
	// SpecVersion is the CloudEvents version of every fact.
	SpecVersion = "1.0"
	// ContentType is the media type of every fact's data.
	ContentType = "application/msgpack"

	maxAttributes = 64
	maxValue      = 8 << 10 // bytes of one attribute's value
)

// ErrMalformed is wrapped by every error that says a message is not a fact.
var ErrMalformed = errors.New("malformed fact")

// Digest is a SHA-256 sum. The zero Digest means none.
type Digest [32]byte

// Sum gives the digest of b.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

// IsZero says whether there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// String gives 64 hexadecimal digits, or "" for none.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return hex.EncodeToString(d[:])
}

// ParseDigest reads 64 hexadecimal digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if n, err := hex.Decode(d[:], []byte(s[:min(len(s), 64)])); err != nil || n != 32 || len(s) != 64 {
		return Digest{}, fmt.Errorf("digest %q is not 64 hexadecimal digits", s[:min(len(s), 80)])
	}
	return d, nil
}

// linkText is a digest as the value of an attribute: a third shorter than
// hexadecimal, in every fact.
func linkText(d Digest) string {
	if d.IsZero() {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(d[:])
}

// parseLink reads what linkText wrote, in that form only: a link has one.
func parseLink(s string) (Digest, error) {
	var d Digest
	if n, err := base64.RawURLEncoding.Strict().Decode(d[:], []byte(s[:min(len(s), 43)])); err != nil || n != 32 || len(s) != 43 {
		return Digest{}, fmt.Errorf("digest %q is not 43 characters of base64url", s[:min(len(s), 80)])
	}
	return d, nil
}

// Attribute is one CloudEvents context attribute, decoded.
type Attribute struct{ Name, Value string }

// Event is a fact with its envelope.
type Event struct {
	ID        string // made once by the author; ASCII
	Source    string // role and instance, "/poller/3"
	Operation string // the subject attribute
	Time      time.Time
	Previous  Digest // digest of the operation's preceding fact

	TraceParent string // W3C trace context; optional
	Actor       string // principal or role on whose behalf; optional
	CausationID string // id of the fact that led to this one; optional

	Extensions []Attribute // attributes this version does not know, sorted
	Fact       Fact
}

// ChainStart is the Previous of an operation's first fact.
func ChainStart(operation string) Digest {
	var room [128]byte
	return sha256.Sum256(appendSized(room[:0], operation))
}

// attributes gives the context attributes sorted by name.
func (e *Event) attributes() []Attribute {
	list := make([]Attribute, 0, 11+len(e.Extensions))
	add := func(name, value string) {
		if value != "" { // what cannot be read again is replaced here, so that the digest covers what is sent
			list = append(list, Attribute{name, strings.ToValidUTF8(value, "\uFFFD")})
		}
	}
	at := ""
	if !e.Time.IsZero() {
		at = e.Time.UTC().Format(time.RFC3339Nano)
	}
	add("actor", e.Actor)
	add("causationid", e.CausationID)
	add("datacontenttype", ContentType)
	add("id", e.ID)
	add("previous", linkText(e.Previous))
	add("source", e.Source)
	add("specversion", SpecVersion)
	add("subject", e.Operation)
	add("time", at)
	add("traceparent", e.TraceParent)
	add("type", TypePrefix+string(e.Fact.Type()))
	if len(e.Extensions) > 0 {
		list = append(list, e.Extensions...)
		sortAttributes(list)
	}
	return list
}

func sortAttributes(list []Attribute) {
	slices.SortFunc(list, func(a, b Attribute) int { return strings.Compare(a.Name, b.Name) })
}

// data gives the fact's MessagePack bytes.
func (e *Event) data() []byte {
	if u, ok := e.Fact.(*Unknown); ok {
		return u.Data
	}
	return codec.Marshal(e.Fact)
}

// digest chains one fact: length-prefixed attributes sorted by name, decoded,
// then the data. The NATS subject is not part of it.
func digest(attributes []Attribute, data []byte) Digest {
	var room [2 << 10]byte // enough for most
	b := room[:0]
	for _, a := range attributes {
		b = appendSized(appendSized(b, a.Name), a.Value)
	}
	return sha256.Sum256(appendSized(b, data))
}

func appendSized[T string | []byte](b []byte, s T) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}

// Encode gives the NATS headers and the body of the event, and the digest the
// next fact carries as Previous. The header names are lower case and the map
// may be changed by the caller.
func Encode(e Event) (header map[string][]string, data []byte, d Digest) {
	attributes := e.attributes()
	data = e.data()
	header = make(map[string][]string, len(attributes)+2) // and what the writer adds
	values := make([]string, len(attributes))
	for i, a := range attributes {
		values[i] = percentEncode(a.Value)
		header[headerName(a.Name)] = values[i : i+1 : i+1]
	}
	return header, data, digest(attributes, data)
}

// headerName is the attribute's header. Those of every fact need no new string.
func headerName(attribute string) string {
	switch attribute {
	case "actor":
		return "ce-actor"
	case "datacontenttype":
		return "ce-datacontenttype"
	case "id":
		return "ce-id"
	case "previous":
		return "ce-previous"
	case "source":
		return "ce-source"
	case "specversion":
		return "ce-specversion"
	case "subject":
		return "ce-subject"
	case "time":
		return "ce-time"
	case "traceparent":
		return "ce-traceparent"
	case "type":
		return "ce-type"
	}
	return "ce-" + attribute
}

// Decode reads a message in NATS binary mode. Header names are matched without
// regard to case; "content-type" is taken for "ce-datacontenttype" where the
// latter is missing. Headers that are not CloudEvents attributes are ignored.
// A fact of an unknown type becomes *Unknown.
func Decode(header map[string][]string, data []byte) (Event, Digest, error) {
	attributes, err := readAttributes(header)
	if err != nil {
		return Event{}, Digest{}, err
	}
	var e Event
	var kind, spec, media string
	for _, a := range attributes {
		switch a.Name {
		case "id":
			e.ID = a.Value
		case "source":
			e.Source = a.Value
		case "specversion":
			spec = a.Value
		case "type":
			kind = a.Value
		case "subject":
			e.Operation = a.Value
		case "datacontenttype":
			media = a.Value
		case "traceparent":
			e.TraceParent = a.Value
		case "actor":
			e.Actor = a.Value
		case "causationid":
			e.CausationID = a.Value
		case "time":
			if e.Time, err = time.Parse(time.RFC3339Nano, a.Value); err != nil {
				return Event{}, Digest{}, fmt.Errorf("%w: time %q: not RFC 3339", ErrMalformed, a.Value)
			}
			e.Time = e.Time.UTC()
		case "previous":
			if e.Previous, err = parseLink(a.Value); err != nil {
				return Event{}, Digest{}, fmt.Errorf("%w: previous: %w", ErrMalformed, err)
			}
		default:
			e.Extensions = append(e.Extensions, a)
		}
	}
	name, ours := strings.CutPrefix(kind, TypePrefix)
	switch {
	case spec != SpecVersion:
		return Event{}, Digest{}, fmt.Errorf("%w: specversion %q, want %q", ErrMalformed, spec, SpecVersion)
	case e.ID == "" || e.Source == "" || e.Operation == "":
		return Event{}, Digest{}, fmt.Errorf("%w: id, source and subject are required", ErrMalformed)
	case !ours || name == "":
		return Event{}, Digest{}, fmt.Errorf("%w: type %q does not start with %q", ErrMalformed, kind, TypePrefix)
	case media != ContentType:
		return Event{}, Digest{}, fmt.Errorf("%w: datacontenttype %q, want %q", ErrMalformed, media, ContentType)
	}
	d := digest(attributes, data)
	if e.Fact = New(Type(name)); e.Fact == nil {
		e.Fact = &Unknown{Name: Type(name), Data: slices.Clone(data)}
		return e, d, nil
	}
	if err := codec.Unmarshal(data, e.Fact); err != nil {
		return Event{}, Digest{}, fmt.Errorf("%w: data of %s: %w", ErrMalformed, name, err)
	}
	return e, d, nil
}

// readAttributes collects the "ce-" headers, decoded and sorted by name.
func readAttributes(header map[string][]string) ([]Attribute, error) {
	list := make([]Attribute, 0, min(len(header), maxAttributes))
	contentType := ""
	for key, values := range header {
		lower := strings.ToLower(key)
		name, isAttribute := strings.CutPrefix(lower, "ce-")
		switch {
		case lower == "content-type" && len(values) > 0:
			if contentType != "" && contentType != values[0] {
				return nil, fmt.Errorf("%w: two content types", ErrMalformed)
			}
			contentType = values[0]
			continue
		case !isAttribute:
			continue
		case len(values) != 1:
			return nil, fmt.Errorf("%w: header %q has %d values", ErrMalformed, key, len(values))
		case !validName(name):
			return nil, fmt.Errorf("%w: attribute name %q: want lower-case letters and digits", ErrMalformed, name)
		}
		value, err := percentDecode(values[0])
		if err != nil {
			return nil, fmt.Errorf("%w: attribute %s: %w", ErrMalformed, name, err)
		}
		if value == "" { // CloudEvents knows no empty attribute; read as absent it would be missing from a copy's digest
			return nil, fmt.Errorf("%w: attribute %s is empty", ErrMalformed, name)
		}
		if len(value) > maxValue {
			return nil, fmt.Errorf("%w: attribute %s has %d bytes, at most %d", ErrMalformed, name, len(value), maxValue)
		}
		list = append(list, Attribute{name, value})
		if len(list) > maxAttributes {
			return nil, fmt.Errorf("%w: more than %d attributes", ErrMalformed, maxAttributes)
		}
	}
	sortAttributes(list)
	for i := 1; i < len(list); i++ {
		if list[i].Name == list[i-1].Name {
			return nil, fmt.Errorf("%w: attribute %s twice", ErrMalformed, list[i].Name)
		}
	}
	if contentType != "" && !slices.ContainsFunc(list, func(a Attribute) bool { return a.Name == "datacontenttype" }) {
		list = append(list, Attribute{"datacontenttype", contentType})
		sortAttributes(list)
	}
	return list, nil
}

func validName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

const upperHex = "0123456789ABCDEF"

// percentEncode writes a header value as the CloudEvents bindings want it:
// space, '"', '%' and everything outside U+0021 to U+007E as UTF-8 bytes.
func percentEncode(s string) string {
	plain := true
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || c == '"' || c == '%' {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// percentDecode undoes quoting, then one pass of percent-encoding.
func percentDecode(s string) (string, error) {
	if !strings.ContainsAny(s, `%"`) && utf8.ValidString(s) {
		return s, nil
	}
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		var b strings.Builder
		for i := 1; i < len(s)-1; i++ {
			if s[i] == '\\' && i+1 < len(s)-1 {
				i++
			}
			b.WriteByte(s[i])
		}
		s = b.String()
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("percent sign without two digits")
		}
		x, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", errors.New("percent sign without two hexadecimal digits")
		}
		b.Write(x)
		i += 2
	}
	out := b.String()
	if !utf8.ValidString(out) {
		return "", errors.New("not valid UTF-8")
	}
	return out, nil
}

// CloudEvent gives the event in the CloudEvents SDK's own model, validated by
// it, for interfaces that speak CloudEvents.
func (e Event) CloudEvent() (event.Event, error) {
	out := event.New(event.CloudEventsVersionV1)
	for _, a := range e.attributes() {
		switch a.Name {
		case "specversion", "datacontenttype":
		case "id":
			out.SetID(a.Value)
		case "source":
			out.SetSource(a.Value)
		case "type":
			out.SetType(a.Value)
		case "subject":
			out.SetSubject(a.Value)
		case "time":
			out.SetTime(e.Time)
		default:
			out.SetExtension(a.Name, a.Value)
		}
	}
	if err := out.SetData(ContentType, e.data()); err != nil {
		return event.Event{}, fmt.Errorf("fact %s as a CloudEvent: %w", e.ID, err)
	}
	if err := out.Validate(); err != nil {
		return event.Event{}, fmt.Errorf("fact %s as a CloudEvent: %w", e.ID, err)
	}
	return out, nil
}

// TraceID is the trace id of the event's trace context (W3C Trace Context §3.2.2.3),
// 32 lower-case hexadecimal digits; "" where there is none that can be used.
func (e Event) TraceID() string {
	if parts := strings.Split(e.TraceParent, "-"); len(parts) >= 4 && parts[0] != "ff" && traceID(parts[1]) {
		return parts[1]
	}
	return ""
}

// OperationTrace is the trace id of an operation whose submitter sent none, made
// from its id.
func OperationTrace(operation string) string {
	sum := sha256.Sum256([]byte("trace " + operation))
	return hex.EncodeToString(sum[:16])
}

func traceID(s string) bool {
	zero := true
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
		zero = zero && c == '0'
	}
	return len(s) == 32 && !zero
}
