package outbound

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a value that does not print. fmt with every verb, slog, JSON and
// text encoders show "[redacted]", also where it lies in another struct.
// Reveal is the only way out.
//
// The value sits behind a function, because fmt does not call methods on
// unexported fields and prints what reflection reaches: here, an address. It
// also makes == on secrets not compile. The zero Secret is empty.
type Secret struct{ reveal func() string }

// NewSecret hides value.
func NewSecret(value string) Secret { return Secret{func() string { return value }} }

// Reveal is the value.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Empty reports whether there is no value.
func (s Secret) Empty() bool { return s.Reveal() == "" }

func (Secret) String() string               { return redacted }
func (Secret) GoString() string             { return redacted }
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// Format takes every verb and flag.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }
