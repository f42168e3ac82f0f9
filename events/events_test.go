package events_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

var update = flag.Bool("update", false, "rewrite golden files")

// allTypes reads the Type constants from the source, so that one that was
// added without a golden file or a registry entry is found.
func allTypes(t testing.TB) []events.Type {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "facts.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []events.Type
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Type" {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, events.Type(value))
		return true
	})
	if len(list) != 33 {
		t.Fatalf("found %d types in the source, want the 33 of the design", len(list))
	}
	return list
}

// filler gives every field of a fact a value of its own, so that a field that
// is not stored, or stored under another's name, shows.
type filler struct{ n uint64 }

func (f *filler) fill(v reflect.Value, name string) {
	f.n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 12, 1, 0, 0, int(f.n), 0, time.UTC)))
		return
	case time.Duration:
		v.Set(reflect.ValueOf(time.Duration(f.n) * time.Second))
		return
	case events.Digest:
		v.Set(reflect.ValueOf(events.Digest{0: 0xd0, 31: byte(f.n)}))
		return
	case codec.Extra:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.ToLower(name) + "-" + strconv.FormatUint(f.n, 10))
	case reflect.Uint64:
		v.SetUint(f.n)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte{byte(f.n), 0xff})
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(v.Index(i), name)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i), v.Type().Field(i).Name)
		}
	default:
		panic("no rule to fill " + v.Type().String())
	}
}

func filled(t testing.TB, name events.Type) events.Fact {
	t.Helper()
	fact := events.New(name)
	if fact == nil {
		t.Fatalf("New does not know %s", name)
	}
	new(filler).fill(reflect.ValueOf(fact).Elem(), "")
	return fact
}

func envelope(fact events.Fact) events.Event {
	return events.Event{
		ID: "f-1", Source: "/poller/3", Operation: "op_abc", Time: time.Date(2026, 12, 1, 10, 0, 0, 500_000_000, time.UTC),
		Previous: events.ChainStart("op_abc"), TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Actor: "team a", CausationID: "f-0", Fact: fact,
	}
}

// The bytes of every fact, with every field set. A change here would change what is
// stored for ever, and is not allowed since v0.1.0: a new field makes a longer file.
func TestGolden(t *testing.T) {
	wanted := map[string]bool{}
	for _, name := range allTypes(t) {
		wanted[string(name)+".golden"] = true
		t.Run(string(name), func(t *testing.T) {
			event := envelope(filled(t, name))
			header, data, digest := events.Encode(event)
			golden(t, string(name)+".golden", describe(t, header, data, digest))

			back, again, err := events.Decode(header, data)
			if err != nil {
				t.Fatalf("decode: %v", err)
			}
			if !reflect.DeepEqual(back, event) {
				t.Errorf("decoded %+v\nwant %+v", back, event)
			}
			if again != digest {
				t.Errorf("digest %s after decoding, %s before", again, digest)
			}
			if _, err := event.CloudEvent(); err != nil {
				t.Errorf("the CloudEvents SDK refuses it: %v", err)
			}
		})
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file.Name(), ".golden") && !wanted[file.Name()] {
			t.Errorf("testdata/%s belongs to no fact type", file.Name())
		}
	}
}

// An empty fact of each type is an empty map: zero fields cost nothing.
func TestEmptyFacts(t *testing.T) {
	for _, name := range allTypes(t) {
		if b := codec.Marshal(events.New(name)); !bytes.Equal(b, []byte{0x80}) {
			t.Errorf("an empty %s is %x", name, b)
		}
	}
}

func describe(t *testing.T, header map[string][]string, data []byte, digest events.Digest) string {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(header[name], " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", hex.Dump(data))
	d := msgpack.NewDecoder(bytes.NewReader(data))
	readable(t, &b, d, "")
	fmt.Fprintf(&b, "\ndigest %s\n", digest)
	return b.String()
}

// readable prints one MessagePack value in its own order.
func readable(t *testing.T, b *strings.Builder, d *msgpack.Decoder, indent string) {
	t.Helper()
	code, err := d.PeekCode()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16:
		n, err := d.DecodeMapLen()
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			key, err := d.DecodeString()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(b, "%s%s:", indent, key)
			nested(t, b, d, indent)
		}
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16:
		n, err := d.DecodeArrayLen()
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			fmt.Fprintf(b, "%s-", indent)
			nested(t, b, d, indent)
		}
	default:
		value, err := d.DecodeInterface()
		if err != nil {
			t.Fatal(err)
		}
		switch v := value.(type) {
		case string:
			fmt.Fprintf(b, " %q\n", v)
		case []byte:
			fmt.Fprintf(b, " 0x%x\n", v)
		default:
			fmt.Fprintf(b, " %v\n", v)
		}
	}
}

func nested(t *testing.T, b *strings.Builder, d *msgpack.Decoder, indent string) {
	t.Helper()
	code, err := d.PeekCode()
	if err != nil {
		t.Fatal(err)
	}
	if msgpcode.IsFixedMap(code) || msgpcode.IsFixedArray(code) || code == msgpcode.Map16 || code == msgpcode.Array16 {
		b.WriteByte('\n')
	}
	readable(t, b, d, indent+"  ")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update after a deliberate change)", err)
	}
	if got != string(want) {
		t.Errorf("%s changed; got\n%s\nwant\n%s", path, got, want)
	}
}

// The registry knows every type, gives each its own Go type, and each says the
// name it was asked for.
func TestRegistry(t *testing.T) {
	seen := map[reflect.Type]events.Type{}
	for _, name := range allTypes(t) {
		fact := events.New(name)
		if fact == nil {
			t.Errorf("New does not know %s", name)
			continue
		}
		if fact.Type() != name {
			t.Errorf("New(%s) says it is %s", name, fact.Type())
		}
		if other, twice := seen[reflect.TypeOf(fact)]; twice {
			t.Errorf("%s and %s share %T", name, other, fact)
		}
		seen[reflect.TypeOf(fact)] = name
	}
	for _, name := range []events.Type{"", "intent.recorded", "intent.recorded.v2", "INTENT.RECORDED.V1"} {
		if fact := events.New(name); fact != nil {
			t.Errorf("New(%q) gives %T", name, fact)
		}
	}
}

// Permits are what the design lists, all others are evidence.
func TestKind(t *testing.T) {
	for _, name := range allTypes(t) {
		base := strings.TrimSuffix(string(name), ".v1")
		want := events.Evidence
		switch {
		case base == "intent.recorded", strings.HasPrefix(base, "approval."), strings.HasSuffix(base, ".attempted"),
			base == "deadline.passed", base == "decision.made":
			want = events.Permit
		}
		if got := events.New(name).Kind(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if k := (&events.Unknown{Name: "x.v9"}).Kind(); k != events.Evidence {
		t.Errorf("an unknown fact is %s; dropping it on a conflict would lose it", k)
	}
}

// draw gives every field a random value.
func draw(t *rapid.T, v reflect.Value, name string) {
	switch v.Interface().(type) {
	case time.Time:
		if rapid.Bool().Draw(t, name) {
			v.Set(reflect.ValueOf(time.Unix(0, rapid.Int64Range(-9_200_000_000_000_000_000, 9_200_000_000_000_000_000).Draw(t, name)).UTC()))
		}
		return
	case events.Digest:
		var d events.Digest
		copy(d[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, name))
		v.Set(reflect.ValueOf(d))
		return
	case codec.Extra:
		for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching("new[a-z]{1,3}"), 0, 3, rapid.ID).Draw(t, name) {
			raw := rapid.SampledFrom([][]byte{{0xc0}, {0x07}, {0x92, 1, 0xc2}, {0xca, 0x3f, 0x80, 0, 0}, {0x81, 0xa1, 'k', 0xc4, 1, 0xff}}).Draw(t, "raw")
			v.Set(reflect.Append(v, reflect.ValueOf(codec.Field{Key: key, Raw: raw})))
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.String().Draw(t, name))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, name))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, name))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(t, name)))
	case reflect.Slice:
		if n := rapid.IntRange(0, 3).Draw(t, name); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				draw(t, v.Index(i), name)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			draw(t, v.Field(i), v.Type().Field(i).Name)
		}
	default:
		panic("no rule to draw " + v.Type().String())
	}
}

// Every fact, with fields this version does not know, comes back as it was and
// is written again as the same bytes with the same digest.
func TestRoundTrip(t *testing.T) {
	types := allTypes(t)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(types).Draw(t, "type")
		event := events.Event{
			ID: rapid.StringMatching(`[!-~]{1,30}`).Draw(t, "id"), Source: "/" + rapid.StringMatching(`[a-z/0-9 "%é]{0,10}`).Draw(t, "source"),
			Operation: "op_" + rapid.String().Draw(t, "operation"), Actor: rapid.String().Draw(t, "actor"),
			CausationID: rapid.String().Draw(t, "causation"), Fact: events.New(name),
		}
		draw(t, reflect.ValueOf(event.Fact).Elem(), "fact")
		if rapid.Bool().Draw(t, "has time") {
			event.Time = time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()
		}
		if rapid.Bool().Draw(t, "has extension") {
			event.Extensions = []events.Attribute{{Name: "newer", Value: "v" + rapid.String().Draw(t, "extension")}}
		}
		header, data, digest := events.Encode(event)
		for key, values := range header {
			for _, c := range []byte(values[0]) {
				if c < '!' || c > '~' {
					t.Fatalf("header %s has byte 0x%02x", key, c)
				}
			}
		}
		back, again, err := events.Decode(header, data)
		if err != nil {
			t.Fatalf("decode own bytes: %v", err)
		}
		if !reflect.DeepEqual(back, event) {
			t.Fatalf("got  %+v\nwant %+v", back, event)
		}
		header2, data2, digest2 := events.Encode(back)
		if again != digest || digest2 != digest || !bytes.Equal(data, data2) || !reflect.DeepEqual(header, header2) {
			t.Fatalf("writing it again gives other bytes")
		}
	})
}

// A fact of a later version keeps its name and bytes.
func TestUnknownType(t *testing.T) {
	event := envelope(&events.Unknown{Name: "job.teleported.v3", Data: []byte{0x81, 0xa1, 'x', 0xc3}})
	event.Extensions = []events.Attribute{{Name: "newattr", Value: "ü"}}
	header, data, digest := events.Encode(event)
	back, again, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, event) || again != digest {
		t.Errorf("got %+v, want %+v", back, event)
	}
	data[1] = 0
	if back.Fact.(*events.Unknown).Data[1] != 0xa1 {
		t.Error("the fact shares memory with the message")
	}
}

func base() (map[string][]string, []byte) {
	header, data, _ := events.Encode(envelope(&events.CancelRequested{Who: "alice"}))
	return header, data
}

// The header form is that of the CloudEvents NATS binding, text of July 2026.
func TestHeaderForm(t *testing.T) {
	event := envelope(&events.CancelRequested{})
	event.Actor = "Zoë \"%20\"\t~!"
	header, _, _ := events.Encode(event)
	for name, want := range map[string]string{
		"ce-specversion":     "1.0",
		"ce-type":            "dev.counterfoil.cancel.requested.v1",
		"ce-datacontenttype": "application/msgpack",
		"ce-actor":           "Zo%C3%AB%20%22%2520%22%09~!",
		"ce-subject":         "op_abc",
		"ce-time":            "2026-12-01T10:00:00.5Z",
	} {
		if got := header[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name := range header {
		if !strings.HasPrefix(name, "ce-") || name != strings.ToLower(name) {
			t.Errorf("header %q: want lower case with ce-", name)
		}
	}
}

// Both spellings in use are read.
func TestHeaderReading(t *testing.T) {
	type change func(h map[string][]string)
	set := func(name, value string) change { return func(h map[string][]string) { h[name] = []string{value} } }
	drop := func(name string) change { return func(h map[string][]string) { delete(h, name) } }
	for _, c := range []struct {
		name    string
		changes []change
		want    string // "" = read; else part of the error
		actor   string
	}{
		{"as written", nil, "", "team a"},
		{"upper case", []change{drop("ce-actor"), set("CE-Actor", "x")}, "", "x"},
		{"raw space", []change{set("ce-actor", "team b")}, "", "team b"},
		{"raw UTF-8", []change{set("ce-actor", "Zoë")}, "", "Zoë"},
		{"quoted", []change{set("ce-actor", `"team \"b\" \\ c"`)}, "", `team "b" \ c`},
		{"quoted and encoded", []change{set("ce-actor", `"%41%20"`)}, "", "A "},
		{"one pass only", []change{set("ce-actor", "%2541")}, "", "%41"},
		{"lower-case digits", []change{set("ce-actor", "%c3%ab")}, "", "ë"},
		{"lone quote", []change{set("ce-actor", `"`)}, "", `"`},
		{"content-type", []change{drop("ce-datacontenttype"), set("Content-Type", "application/msgpack")}, "", "team a"},
		{"ce- before content-type", []change{set("content-type", "text/plain")}, "", "team a"},
		{"other headers", []change{set("Nats-Msg-Id", "x"), set("traceparent", "%zz"), set("cesource", "y")}, "", "team a"},
		{"two content types", []change{drop("ce-datacontenttype"), set("Content-Type", "application/msgpack"), set("content-type", "text/plain")}, "two content types", ""},
		{"name twice", []change{set("CE-ID", "x")}, "attribute id twice", ""},
		{"two values", []change{func(h map[string][]string) { h["ce-id"] = []string{"a", "b"} }}, "2 values", ""},
		{"no value", []change{func(h map[string][]string) { h["ce-id"] = nil }}, "0 values", ""},
		{"empty value", []change{set("ce-actor", "")}, "attribute actor is empty", ""},
		{"empty quoted value", []change{set("ce-actor", `""`)}, "attribute actor is empty", ""},
		{"bad name", []change{set("ce-bad_name", "x")}, "attribute name", ""},
		{"no name", []change{set("ce-", "x")}, "attribute name", ""},
		{"long name", []change{set("ce-"+strings.Repeat("a", 65), "x")}, "attribute name", ""},
		{"half an escape", []change{set("ce-actor", "a%4")}, "percent sign", ""},
		{"no escape", []change{set("ce-actor", "100%zz")}, "percent sign", ""},
		{"bad UTF-8 encoded", []change{set("ce-actor", "%ff")}, "not valid UTF-8", ""},
		{"bad UTF-8 raw", []change{set("ce-actor", "\xc3")}, "not valid UTF-8", ""},
		{"too long", []change{set("ce-actor", strings.Repeat("a", 8<<10+1))}, "at most 8192", ""},
		{"too many", []change{func(h map[string][]string) {
			for i := range 64 {
				h[fmt.Sprintf("ce-x%d", i)] = []string{"v"}
			}
		}}, "more than 64", ""},
		{"no id", []change{drop("ce-id")}, "id, source and subject", ""},
		{"no source", []change{drop("ce-source")}, "id, source and subject", ""},
		{"no subject", []change{drop("ce-subject")}, "id, source and subject", ""},
		{"no specversion", []change{drop("ce-specversion")}, "specversion", ""},
		{"old specversion", []change{set("ce-specversion", "0.3")}, "specversion", ""},
		{"other type", []change{set("ce-type", "com.example.x")}, "does not start with", ""},
		{"bare prefix", []change{set("ce-type", "dev.counterfoil.")}, "does not start with", ""},
		{"other media type", []change{set("ce-datacontenttype", "application/json")}, "datacontenttype", ""},
		{"no media type", []change{drop("ce-datacontenttype")}, "datacontenttype", ""},
		{"bad time", []change{set("ce-time", "yesterday")}, "not RFC 3339", ""},
		{"short previous", []change{set("ce-previous", "abcd")}, "43 characters of base64url", ""},
		{"long previous", []change{set("ce-previous", strings.Repeat("A", 44))}, "43 characters of base64url", ""},
		{"previous in hexadecimal", []change{set("ce-previous", strings.Repeat("a", 64))}, "43 characters of base64url", ""},
		{"previous in base64", []change{set("ce-previous", strings.Repeat("+", 42)+"A")}, "43 characters of base64url", ""},
		{"previous with a loose end", []change{set("ce-previous", strings.Repeat("A", 42)+"B")}, "43 characters of base64url", ""},
		{"previous with a line end", []change{set("ce-previous", strings.Repeat("A", 42)+"%0A")}, "43 characters of base64url", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			header, data := base()
			for _, change := range c.changes {
				change(header)
			}
			event, _, err := events.Decode(header, data)
			if c.want != "" {
				if !errors.Is(err, events.ErrMalformed) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want ErrMalformed with %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if event.Actor != c.actor {
				t.Errorf("actor %q, want %q", event.Actor, c.actor)
			}
		})
	}
}

func TestBadData(t *testing.T) {
	header, _ := base()
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", "cut short"},
		{"trailing", "8000", "after the record"},
		{"duplicate key", "82a177a161a177a162", "twice"},
		{"wrong kind", "81a17701", "instead of a string"},
		{"bad UTF-8", "81a177a1ff", "UTF-8"},
		{"huge", "dfffffffff", "a length of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, err := hex.DecodeString(c.data)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := events.Decode(header, data); !errors.Is(err, events.ErrMalformed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrMalformed with %q", err, c.want)
			}
		})
	}
}

// Text that is not UTF-8 is replaced when written, never a fact nobody can read.
func TestInvalidTextIsReplaced(t *testing.T) {
	event := envelope(&events.ObservationFailed{Call: events.Call{RequestID: "r\xe9q", Message: "caf\xe9"}})
	event.Actor = "a\xff"
	header, data, digest := events.Encode(event)
	back, again, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	f := back.Fact.(*events.ObservationFailed)
	if f.RequestID != "r\uFFFDq" || f.Message != "caf\uFFFD" || back.Actor != "a\uFFFD" || again != digest {
		t.Errorf("got %q %q %q, same digest %v", f.RequestID, f.Message, back.Actor, again == digest)
	}
}

// The chain of three facts, as numbers: other implementations can check theirs
// against it.
func TestChainVectors(t *testing.T) {
	var b strings.Builder
	previous := events.ChainStart("op_abc")
	fmt.Fprintf(&b, "start of op_abc: %s\n", previous)
	facts := []events.Fact{
		&events.IntentRecorded{Principal: "team-a", Provider: "example", Rules: 1},
		&events.CreateAttempted{Attempt: events.Attempt{Number: 1, Owner: "poller-1/r1"}},
		&events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "job-1", Claim: events.ClaimOwn},
	}
	for i, fact := range facts {
		event := envelope(fact)
		event.ID, event.Previous = fmt.Sprintf("f-%d", i+1), previous
		_, _, previous = events.Encode(event)
		fmt.Fprintf(&b, "after %s: %s\n", fact.Type(), previous)
	}
	golden(t, "chain.txt", b.String())
}

// Every changed byte of an attribute or of the data, and every attribute more
// or less, is another digest; what is not part of the fact is not.
func TestChainDetectsChange(t *testing.T) {
	header, data := base()
	_, want, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	differs := func(what string, h map[string][]string, d []byte) {
		t.Helper()
		if _, got, err := events.Decode(h, d); err == nil && got == want {
			t.Errorf("%s: digest stands", what)
		}
	}
	for name, values := range header {
		for i := range values[0] {
			changed := maps.Clone(header)
			b := []byte(values[0])
			b[i] ^= 1
			changed[name] = []string{string(b)}
			differs(fmt.Sprintf("%s, byte %d", name, i), changed, data)
		}
		less := maps.Clone(header)
		delete(less, name)
		differs("without "+name, less, data)
	}
	for i := range data {
		b := bytes.Clone(data)
		b[i] ^= 1
		differs(fmt.Sprintf("data, byte %d", i), header, b)
	}
	more := maps.Clone(header)
	more["ce-more"] = []string{"x"}
	differs("one attribute more", more, data)

	same := maps.Clone(header)
	same["Nats-Expected-Last-Subject-Sequence"] = []string{"7"}
	same["CE-Actor"] = []string{`"team a"`}
	delete(same, "ce-actor")
	if _, got, err := events.Decode(same, data); err != nil || got != want {
		t.Errorf("another spelling of the same attributes: digest %s, want %s (%v)", got, want, err)
	}
}

// Length prefixes keep neighbouring values apart, and order counts.
func TestChainIsUnambiguous(t *testing.T) {
	digest := func(change func(*events.Event)) events.Digest {
		event := envelope(&events.CancelRequested{Who: "a"})
		change(&event)
		_, _, d := events.Encode(event)
		return d
	}
	seen := map[events.Digest]string{}
	for name, change := range map[string]func(*events.Event){
		"plain":               func(*events.Event) {},
		"value moved":         func(e *events.Event) { e.Actor, e.CausationID = "f-0", "team a" },
		"extension a=bc":      func(e *events.Event) { e.Extensions = []events.Attribute{{Name: "xa", Value: "bc"}} },
		"extension ab=c":      func(e *events.Event) { e.Extensions = []events.Attribute{{Name: "xab", Value: "c"}} },
		"other predecessor":   func(e *events.Event) { e.Previous = events.ChainStart("op_abd") },
		"other operation":     func(e *events.Event) { e.Operation = "op_abd" },
		"without predecessor": func(e *events.Event) { e.Previous = events.Digest{} },
		"other fact, same data": func(e *events.Event) {
			e.Fact = &events.OperationPaused{Who: "a"}
		},
	} {
		d := digest(change)
		if other, twice := seen[d]; twice {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[d] = name
	}
	one, two := events.CancelRequested{Who: "one"}, events.CancelRequested{Who: "two"}
	chain := func(facts ...events.Fact) events.Digest {
		d := events.ChainStart("op_abc")
		for _, fact := range facts {
			event := envelope(fact)
			event.Previous = d
			_, _, d = events.Encode(event)
		}
		return d
	}
	if chain(&one, &two) == chain(&two, &one) {
		t.Error("the chain does not see the order of facts")
	}
}

func TestDigestText(t *testing.T) {
	d := events.Sum([]byte("x"))
	back, err := events.ParseDigest(d.String())
	if err != nil || back != d {
		t.Errorf("got %s, %v; want %s", back, err, d)
	}
	if s := (events.Digest{}).String(); s != "" {
		t.Errorf("no digest prints as %q", s)
	}
	for _, bad := range []string{"", "00", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("x", 64), strings.Repeat("é", 32)} {
		if _, err := events.ParseDigest(bad); err == nil {
			t.Errorf("%q was read as a digest", bad)
		}
	}
}

func TestTraceID(t *testing.T) {
	for parent, want := range map[string]string{
		"": "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":      "4bf92f3577b34da6a3ce929d0e0e4736",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more": "4bf92f3577b34da6a3ce929d0e0e4736",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":      "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":      "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01":      "",
		"00-4bf92f3577b34da6-00f067aa0ba902b7-01":                      "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736":                          "",
	} {
		if got := (events.Event{TraceParent: parent, Operation: "op_abc"}).TraceID(); got != want {
			t.Errorf("%q: got %q, want %q", parent, got, want)
		}
	}
	if got := events.OperationTrace("op_abc"); got != "39eaed47e46d97747d09ed62324a6aff" || got == events.OperationTrace("op_abd") {
		t.Errorf("got %s", got)
	}
}

func FuzzDecode(f *testing.F) {
	header, data := base()
	f.Add(header["ce-id"][0], header["ce-type"][0], header["ce-time"][0], header["ce-actor"][0], header["ce-previous"][0], "newer", "x", data)
	for _, name := range allTypes(f) {
		_, data, _ := events.Encode(envelope(filled(f, name)))
		f.Add("f-1", events.TypePrefix+string(name), "2026-12-01T10:00:00+02:00", `"q"`, "", "", "", data)
	}
	f.Add("%20", "dev.counterfoil.x", "0001-01-01T00:00:00Z", "%", strings.Repeat("A", 43), "data", "%C3%AB", []byte{0xc1})
	f.Fuzz(func(t *testing.T, id, kind, at, actor, previous, name, value string, data []byte) {
		header := map[string][]string{
			"ce-id": {id}, "ce-source": {"/s"}, "ce-subject": {"op_a"}, "ce-specversion": {"1.0"}, "ce-type": {kind},
			"ce-datacontenttype": {"application/msgpack"}, "ce-actor": {actor},
		}
		for key, v := range map[string]string{"ce-time": at, "ce-previous": previous, "CE-" + name: value} {
			if v != "" {
				header[key] = []string{v}
			}
		}
		event, _, err := events.Decode(header, data)
		if err != nil {
			if !errors.Is(err, events.ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		_, _ = event.CloudEvent() // may refuse, must not panic
		header2, data2, digest2 := events.Encode(event)
		again, digest3, err := events.Decode(header2, data2)
		if err != nil {
			t.Fatalf("written, then unreadable: %v", err)
		}
		if digest2 != digest3 || !reflect.DeepEqual(again, event) {
			t.Fatalf("got  %+v\nwant %+v", again, event)
		}
	})
}

// benchmarked are a fact of each size: what most facts are, and the largest.
func benchmarked(b *testing.B) map[string]events.Event {
	read := envelope(&events.JobObserved{
		JobID: "job_0123456789abcdef", Remote: "running", State: events.ClassRunning, RetrievedAt: time.Unix(1_800_000_000, 5).UTC(), Prompt: "due",
		Call: events.Call{AsOf: 2, LeftAt: time.Unix(1_800_000_000, 4).UTC(), Status: 200, Inline: []byte(`{"state":"running","progress":40}`)},
	})
	return map[string]events.Event{"read": read, "intent": envelope(filled(b, events.TypeIntentRecorded))}
}

func BenchmarkEncode(b *testing.B) {
	for name, event := range benchmarked(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				header, data, _ := events.Encode(event)
				size = len(data) + 14 // "NATS/1.0\r\n" and the lines' ends
				for name, values := range header {
					size += len(name) + len(values[0]) + 4
				}
			}
			b.ReportMetric(float64(size), "bytes/fact")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, event := range benchmarked(b) {
		b.Run(name, func(b *testing.B) {
			header, data, _ := events.Encode(event)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := events.Decode(header, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
