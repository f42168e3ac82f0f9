package codec_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/internal/codec"
)

type word string

type digest [32]byte

// inner keeps what it does not know, as a record should.
type inner struct {
	Name  word
	Count uint64
	Extra codec.Extra
}

func (r *inner) Fields(v *codec.Visitor) {
	codec.Text(v, "n", &r.Name)
	codec.Uint(v, "c", &r.Count)
	codec.Rest(v, &r.Extra)
}

// outer has a field of every kind.
type outer struct {
	Text   word
	Texts  []string
	Bytes  []byte
	Digest digest
	Uint   uint64
	Uints  []uint64
	Length time.Duration
	Time   time.Time
	Flag   bool
	One    inner
	Many   []inner
	Extra  codec.Extra
}

func (r *outer) Fields(v *codec.Visitor) {
	codec.Text(v, "t", &r.Text)
	codec.Texts(v, "ts", &r.Texts)
	codec.Bytes(v, "b", &r.Bytes)
	codec.Digest(v, "d", &r.Digest)
	codec.Uint(v, "u", &r.Uint)
	codec.Uints(v, "us", &r.Uints)
	codec.Duration(v, "l", &r.Length)
	codec.Time(v, "at", &r.Time)
	codec.Bool(v, "f", &r.Flag)
	codec.Nested(v, "o", &r.One)
	codec.List(v, "m", &r.Many)
	codec.Rest(v, &r.Extra)
}

// deep nests without end.
type deep struct{ Down *deep }

func (r *deep) Fields(v *codec.Visitor) {
	if r.Down == nil {
		r.Down = new(deep)
	}
	codec.Nested(v, "d", r.Down)
}

// These bytes are what a record of every kind is stored as.
func TestVector(t *testing.T) {
	r := outer{
		Text: "é", Texts: []string{"", "a"}, Bytes: []byte{0, 255}, Digest: digest{31: 1},
		Uint: math.MaxUint64, Uints: []uint64{0, 128, 70000}, Length: -time.Second,
		Time: time.Unix(0, 1).UTC(), Flag: true, One: inner{Name: "x"}, Many: []inner{{Count: 1}, {}},
		Extra: codec.Extra{{Key: "zz", Raw: []byte{0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0}}},
	}
	want := "8c" + "a174" + "a2c3a9" + "a27473" + "92a0a161" + "a162" + "c40200ff" +
		"a164" + "c420" + strings.Repeat("00", 31) + "01" + "a175" + "cfffffffffffffffff" +
		"a27573" + "9300cc80ce00011170" + "a16c" + "d2c4653600" + "a26174" + "01" + "a166" + "c3" +
		"a16f" + "81a16ea178" + "a16d" + "9281a1630180" + "a27a7a" + "cb3ff0000000000000"
	if got := hex.EncodeToString(codec.Marshal(&r)); got != want {
		t.Errorf("bytes changed\n got %s\nwant %s", got, want)
	}
	if got := hex.EncodeToString(codec.Marshal(new(outer))); got != "80" {
		t.Errorf("an empty record is %s, want an empty map", got)
	}
}

// A library writes the same bytes, at every size at which MessagePack takes
// another form, and so can read them.
func TestBytesOfTheLibrary(t *testing.T) {
	check := func(what string, r outer, key string, value any) {
		t.Helper()
		var want bytes.Buffer
		enc := msgpack.NewEncoder(&want)
		enc.UseCompactInts(true)
		if err := errors.Join(enc.EncodeMapLen(1), enc.EncodeString(key), enc.Encode(value)); err != nil {
			t.Fatal(err)
		}
		got := codec.Marshal(&r)
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: got %.40x, want %.40x", what, got, want.Bytes())
		}
		var back outer
		if err := codec.Unmarshal(got, &back); len(got) < 4096 && (err != nil || !reflect.DeepEqual(back, r)) {
			t.Errorf("%s: read as %+v (%v)", what, back, err)
		}
	}
	for bits := range 64 {
		for d := -1; d <= 1; d++ {
			n := uint64(1)<<bits + uint64(d)
			if n == 0 {
				continue
			}
			check("number", outer{Uint: n}, "u", n)
			if n <= math.MaxInt64 {
				check("length", outer{Length: time.Duration(n)}, "l", int64(n))
				check("negative length", outer{Length: -time.Duration(n)}, "l", -int64(n))
			}
		}
	}
	for _, n := range []int{1, 15, 16, 31, 32, 255, 256, 4096, 65535, 65536} {
		check("text", outer{Text: word(strings.Repeat("a", n))}, "t", strings.Repeat("a", n))
		check("bytes", outer{Bytes: make([]byte, n)}, "b", make([]byte, n))
		check("list", outer{Uints: make([]uint64, n)}, "us", make([]uint64, n))

		// A map of so many entries, which it takes unknown ones to have.
		var r inner
		var want bytes.Buffer
		enc := msgpack.NewEncoder(&want)
		err := enc.EncodeMapLen(n)
		for i := range n {
			key := fmt.Sprintf("z%d", i)
			r.Extra = append(r.Extra, codec.Field{Key: key, Raw: []byte{0xc0}})
			err = errors.Join(err, enc.EncodeString(key), enc.EncodeNil())
		}
		if got := codec.Marshal(&r); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("map of %d: got %.40x, want %.40x (%v)", n, got, want.Bytes(), err)
		}
		inside := codec.Marshal(&outer{One: r})
		if want := append([]byte{0x81, 0xa1, 'o'}, want.Bytes()...); !bytes.Equal(inside, want) {
			t.Errorf("nested map of %d: got %.40x, want %.40x", n, inside, want)
		}
	}
}

// What is written behind other bytes leaves those as they are.
func TestAppend(t *testing.T) {
	one := inner{Name: "x"}
	if got, want := codec.Append([]byte("before"), &one), append([]byte("before"), codec.Marshal(&one)...); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func drawOuter(t *rapid.T) outer {
	extra := func(label string) codec.Extra {
		var list codec.Extra
		for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching("zz[a-z]{0,3}"), 0, 3, rapid.ID).Draw(t, label) {
			raw := rapid.SampledFrom([][]byte{{0xc0}, {0x01}, {0x91, 0xc3}, {0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, {0xd4, 5, 6}, {0x81, 0xa1, 'a', 0xa1, 'b'}}).Draw(t, "raw")
			list = append(list, codec.Field{Key: key, Raw: raw})
		}
		return list
	}
	text := rapid.String()
	one := func(label string) inner {
		return inner{Name: word(text.Draw(t, label)), Count: rapid.Uint64().Draw(t, "count"), Extra: extra("inner extra")}
	}
	r := outer{
		Text: word(text.Draw(t, "text")), Uint: rapid.Uint64().Draw(t, "uint"),
		Length: time.Duration(rapid.Int64().Draw(t, "length")), Flag: rapid.Bool().Draw(t, "flag"), One: one("one"), Extra: extra("extra"),
	}
	if list := rapid.SliceOfN(text, 1, 4).Draw(t, "texts"); rapid.Bool().Draw(t, "has texts") {
		r.Texts = list
	}
	if list := rapid.SliceOfN(rapid.Uint64(), 1, 4).Draw(t, "uints"); rapid.Bool().Draw(t, "has uints") {
		r.Uints = list
	}
	if list := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "bytes"); rapid.Bool().Draw(t, "has bytes") {
		r.Bytes = list
	}
	copy(r.Digest[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "digest"))
	if rapid.Bool().Draw(t, "has time") {
		r.Time = time.Unix(rapid.Int64Range(-9_214_560_000, 9_214_646_399).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()
	}
	for range rapid.IntRange(0, 3).Draw(t, "many") {
		r.Many = append(r.Many, one("item"))
	}
	return r
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawOuter(t)
		b := codec.Marshal(&want)
		var got outer
		if err := codec.Unmarshal(b, &got); err != nil {
			t.Fatalf("read own bytes %x: %v", b, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
		if again := codec.Marshal(&got); !bytes.Equal(again, b) {
			t.Fatalf("second writing differs: %x, %x", again, b)
		}
	})
}

// Fields may come in any order; what is not known is kept in its own order.
func TestOrderOfReading(t *testing.T) {
	var r inner
	if err := codec.Unmarshal(unhex(t, "84 a2 7a32 01 a163 05 a2 7a31 02 a16e a178"), &r); err != nil {
		t.Fatal(err)
	}
	if r.Name != "x" || r.Count != 5 {
		t.Errorf("read %+v", r)
	}
	if got, want := hex.EncodeToString(codec.Marshal(&r)), "84a16ea178a16305a27a3201a27a3102"; got != want {
		t.Errorf("written back as %s, want %s", got, want)
	}
}

// The record shares no memory with the bytes it was read from.
func TestNoSharedMemory(t *testing.T) {
	want := outer{Text: "text", Bytes: []byte("bytes"), Texts: []string{"a"}, Extra: codec.Extra{{Key: "zz", Raw: []byte{0xa1, 'q'}}}}
	b := codec.Marshal(&want)
	var got outer
	if err := codec.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 0xff
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("overwriting the input changed the record to %+v", got)
	}
}

// Text from a provider's header need not be UTF-8. It must not make a record
// that cannot be read again.
func TestInvalidTextIsReplaced(t *testing.T) {
	b := codec.Marshal(&outer{Text: "a\xffb", Texts: []string{"\xc3"}})
	var got outer
	if err := codec.Unmarshal(b, &got); err != nil {
		t.Fatalf("read own bytes: %v", err)
	}
	if got.Text != "a\uFFFDb" || got.Texts[0] != "\uFFFD" {
		t.Errorf("read %q and %q", got.Text, got.Texts)
	}
}

// A provider may name any time; it must neither stop the writer nor make a
// record that cannot be read again.
func TestTimeBounds(t *testing.T) {
	first, last := time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2261, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	for _, c := range []struct{ at, want time.Time }{
		{first, first},
		{last, last},
		{time.Unix(0, 0), time.Unix(0, 0)},
		{time.Date(1677, 12, 31, 0, 0, 0, 0, time.UTC), first},
		{time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC), first},
		{time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC), last},
		{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), last},
	} {
		var got outer
		if err := codec.Unmarshal(codec.Marshal(&outer{Time: c.at}), &got); err != nil || !got.Time.Equal(c.want) {
			t.Errorf("%v came back as %v, want %v (%v)", c.at, got.Time, c.want, err)
		}
	}
}

func TestBadInput(t *testing.T) {
	text := func(s string) string { return hex.EncodeToString(append([]byte{0xa0 | byte(len(s))}, s...)) }
	for _, c := range []struct{ name, input, want string }{
		{"nothing", "", "cut short"},
		{"nil", "c0", "nil instead of a map"},
		{"a list", "90", "not a map"},
		{"a number", "01", "not a map"},
		{"never used code", "c1", "unknown code"},
		{"trailing byte", "8000", "1 bytes after the record"},
		{"map cut", "81" + text("t"), "cut short"},
		{"value cut", "81" + text("t") + "a5", "a length of 5 with 0 bytes left"},
		{"length cut", "81" + text("t") + "d9", "cut short"},
		{"duplicate key", "82" + text("t") + "a161" + text("t") + "a162", `key "t" twice`},
		{"duplicate unknown key", "82" + text("zz") + "01" + text("zz") + "02", `key "zz" twice`},
		{"duplicate nested key", "81" + text("o") + "82" + text("n") + "a0" + text("n") + "a0", `key "n" twice`},
		{"number as key", "810101", "instead of a string"},
		{"bytes as key", "81c4017401", "instead of a string"},
		{"nil as key", "81c001", "instead of a string"},
		{"key not UTF-8", "81a1ff01", "not valid UTF-8"},
		{"text not UTF-8", "81" + text("t") + "a1ff", "not valid UTF-8"},
		{"text in a list not UTF-8", "81" + text("ts") + "91a1ff", "not valid UTF-8"},
		{"bytes as text", "81" + text("t") + "c40161", "instead of a string"},
		{"nil as text", "81" + text("t") + "c0", "instead of a string"},
		{"text as bytes", "81" + text("b") + "a161", "instead of bytes"},
		{"nil as bytes", "81" + text("b") + "c0", "instead of bytes"},
		{"short digest", "81" + text("d") + "c40100", "1 bytes instead of 32"},
		{"text as digest", "81" + text("d") + "d920" + strings.Repeat("61", 32), "instead of bytes"},
		{"float as number", "81" + text("u") + "cb3ff0000000000000", "instead of a whole number"},
		{"small float as number", "81" + text("u") + "ca3f800000", "instead of a whole number"},
		{"float in a list", "81" + text("us") + "91ca3f800000", "instead of a whole number"},
		{"float as length", "81" + text("l") + "ca3f800000", "instead of a whole number"},
		{"float as time", "81" + text("at") + "cb3ff0000000000000", "instead of a whole number"},
		{"nil as time", "81" + text("at") + "c0", "instead of a whole number"},
		{"text as number", "81" + text("u") + "a131", "instead of a whole number"},
		{"minus one as count", "81" + text("u") + "ff", "a negative number"},
		{"minus one in 64 bits", "81" + text("u") + "d3ffffffffffffffff", "a negative number"},
		{"minus one in a list", "81" + text("us") + "91ff", "a negative number"},
		{"length above 63 bits", "81" + text("l") + "cfffffffffffffffff", "number too large"},
		{"time above 63 bits", "81" + text("at") + "cfffffffffffffffff", "number too large"},
		{"time after 2261", "81" + text("at") + "cf7fffffffffffffff", "outside 1678 to 2261"},
		{"time before 1678", "81" + text("at") + "d38000000000000000", "outside 1678 to 2261"},
		{"number as flag", "81" + text("f") + "01", "instead of a flag"},
		{"nil as flag", "81" + text("f") + "c0", "instead of a flag"},
		{"nil as list", "81" + text("m") + "c0", "nil instead of a list"},
		{"nil as list of texts", "81" + text("ts") + "c0", "nil instead of a list"},
		{"map as list", "81" + text("m") + "80", `field "m"`},
		{"nil as nested", "81" + text("o") + "c0", "nil instead of a map"},
		{"nil as item", "81" + text("m") + "91c0", "nil instead of a map"},
		{"map of 2^32-1", "dfffffffff", "a length of"},
		{"list of 2^32-1", "81" + text("m") + "ddffffffff", "a length of"},
		{"text of 2^32-1", "81" + text("t") + "dbffffffff", "a length of"},
		{"bytes of 2^32-1", "81" + text("b") + "c6ffffffff", "a length of"},
		{"extension of 2^32-1", "81" + text("zz") + "c9ffffffff00", "a length of"},
		{"list of 4,097", "81" + text("us") + "dc1001" + strings.Repeat("00", 4097), "a length of 4097"},
		{"map of 4,097", "de1001" + strings.Repeat("0000", 4097), "a length of"},
		{"17 lists deep", "81" + text("zz") + strings.Repeat("91", 17) + "00", "nested too deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := codec.Unmarshal(unhex(t, c.input), new(outer))
			if !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want something with %q", err, c.want)
			}
		})
	}
	if err := codec.Unmarshal(make([]byte, 1<<20+1), new(outer)); !errors.Is(err, codec.ErrMalformed) {
		t.Errorf("more than 1 MiB: %v", err)
	}
	nested := unhex(t, strings.Repeat("81a164", 9)+"80")
	if err := codec.Unmarshal(nested, new(deep)); err == nil || !strings.Contains(err.Error(), "nested") {
		t.Errorf("nine records deep: %v", err)
	}
	if err := codec.Unmarshal(unhex(t, "81"+text("us")+"dc1000"+strings.Repeat("00", 4096)), new(outer)); err != nil {
		t.Errorf("a list of 4,096: %v", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	full := outer{Text: "t", Texts: []string{"a"}, Bytes: []byte("b"), Uint: 300, Uints: []uint64{1}, Length: 5, Time: time.Unix(1, 0), Flag: true, One: inner{Name: "n"}, Many: []inner{{Count: 1}}}
	f.Add(codec.Marshal(&full))
	for _, s := range []string{"80", "c0", "81a17401", "81a27a7ad40506", "dfffffffff", "82a174a0a174a0", "81a175ff", "81a161cf7fffffffffffffff", "81a16d9180"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second outer
		if err := codec.Unmarshal(b, &first); err != nil {
			if !errors.Is(err, codec.ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		written := codec.Marshal(&first)
		if err := codec.Unmarshal(written, &second); err != nil {
			t.Fatalf("read %x, wrote %x, which is unreadable: %v", b, written, err)
		}
		if again := codec.Marshal(&second); !bytes.Equal(again, written) {
			t.Fatalf("wrote %x, then %x", written, again)
		}
	})
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
