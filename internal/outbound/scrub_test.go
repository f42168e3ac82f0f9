package outbound

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A credential that comes back in the escapes a JSON string allows is taken out
// before anybody undoes them.
func TestScrubsEscapedEchoes(t *testing.T) {
	const secret = `ab/cd+efghijkl"mnop\qrstuv==`
	s := newScrubber(secret)
	for name, body := range map[string]string{
		"slashes":     `{"message":"bad key: Bearer ab\/cd+efghijkl\"mnop\\qrstuv=="}`,
		"code points": `{"message":"\u0061b/cd\u002befghijkl\u0022mnop\u005cqrstuv=\u003d","more":[1,2]}`,
		"a name":      `{"ab\/cd\u002befghijkl\"mnop\\qrstuv==":1}`,
		"lines":       `{"a":"x\/y"}` + "\n" + `{"b":"ab\/cd+efghijkl\"mnop\\qrstuv=="}` + "\n",
	} {
		a := Answer{Body: []byte(body)}
		s.answer(&a)
		if a.Scrubbed != 1 || bytes.Contains(a.Body, []byte("efghijkl")) || !bytes.Contains(a.Body, []byte(redacted)) {
			t.Errorf("%s: %d replaced, %s", name, a.Scrubbed, a.Body)
		}
	}
	for _, body := range []string{`{"path":"a\/b","n":1.50, "u":"\u00e9"}`, `\`, `"\`, `"\u12`, `{"a":"\ud800"}`, ``} {
		a := Answer{Body: []byte(body)}
		if s.answer(&a); string(a.Body) != body || a.Scrubbed != 0 {
			t.Errorf("%q became %q", body, a.Body)
		}
	}
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte(`{"a":"\u0061b\/cd"}`))
	f.Add([]byte(`"\\\"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		const secret = "0123456789ab/cdef"
		s := newScrubber(secret)
		a := Answer{Body: bytes.Clone(body)}
		s.answer(&a)
		if a.Scrubbed == 0 && !bytes.Equal(a.Body, body) {
			t.Errorf("%q became %q", body, a.Body)
		}
		var v any
		if json.Unmarshal(a.Body, &v) == nil && strings.Contains(fmt.Sprint(v), secret) {
			t.Errorf("%q still shows it: %q", body, a.Body)
		}
	})
}
