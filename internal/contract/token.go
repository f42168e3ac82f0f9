package contract

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/counterfoil/counterfoil/events"
)

// TokenForm is how a token is spelled for a provider.
type TokenForm string

// Forms. All come from one 256-bit sum; uuid and base32 keep 122 and 160 bits
// of it.
const (
	TokenHex    TokenForm = "hex"    // 64 lower-case hexadecimal digits
	TokenUUID   TokenForm = "uuid"   // with the version and variant bits of a random UUID, as validators expect
	TokenBase32 TokenForm = "base32" // 32 lower-case letters and digits 2-7
)

// Token is the idempotency token of an operation: HMAC-SHA256 under the
// instance key over the operation id and the fingerprint, so it can be made
// again after the ledger was lost and tells nobody the operation id. A form
// that Parse does not let through is our own bug and panics.
func Token(key []byte, operation string, fingerprint events.Digest, form TokenForm) string {
	sum := mac(key, "token1", operation, string(fingerprint[:]))
	switch form {
	case TokenHex:
		return hex.EncodeToString(sum)
	case TokenBase32:
		return lower32(sum[:20])
	case TokenUUID:
		u := sum[:16]
		u[6] = u[6]&0x0f | 0x40
		u[8] = u[8]&0x3f | 0x80
		return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	}
	panic("contract: token form " + string(form))
}

// ClientReference is what the provider may store to name our job. It is derived
// from the token, never from the operation id, so that whoever sees it at the
// provider learns neither. 26 characters: "cf" and 24 of base32.
func ClientReference(key []byte, token string) string {
	return "cf" + lower32(mac(key, "reference1", token)[:15])
}

// Identifiers gives what this contract sends to name an operation: the token
// in the provider's form, "" where it takes none, and the client reference, ""
// where neither the create nor what comes before it sends one.
func (c *Contract) Identifiers(key []byte, operation string, fingerprint events.Digest) (token, reference string) {
	sends := c.create.uses("client_reference")
	for _, k := range c.prepares {
		sends = sends || k.call.uses("client_reference")
	}
	if sends {
		reference = ClientReference(key, Token(key, operation, fingerprint, TokenHex))
	}
	if c.Token != nil {
		token = Token(key, operation, fingerprint, c.Token.Form)
	}
	return token, reference
}

func mac(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = io.WriteString(h, p)
	}
	return h.Sum(nil)
}

func lower32(b []byte) string {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding).EncodeToString(b)
}
