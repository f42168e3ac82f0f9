package events

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// approvalForm names what ToApprove is over and how. Another form is another name.
const approvalForm = "counterfoil approval 1"

// ToApprove is the digest of what an approval of the operation lets out: SHA-256 over
// the names and values below, in this order, each with its length before it as eight
// bytes, high byte first. They are everything that the request to the provider is made
// of, where and as whom it goes but for the addresses and secrets that the operator
// configures, and when: the contract is named by the digest of its file, the parameters
// by that of the caller's very bytes. The fingerprint stands for whatever else the caller
// said. Nothing of it changes in the life of an operation.
func (f *IntentRecorded) ToApprove(operation string) Digest {
	h := sha256.New()
	put := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = h.Write([]byte(s))
	}
	notBefore := ""
	if !f.NotBefore.IsZero() {
		notBefore = f.NotBefore.UTC().Format(time.RFC3339Nano)
	}
	put(approvalForm)
	for _, part := range [...]struct{ name, value string }{
		{"operation", operation},
		{"principal", f.Principal},
		{"provider", f.Provider},
		{"account", f.Account},
		{"contract", f.Contract.String()},
		{"params", f.Payload.String()},
		{"token", f.Token},
		{"client_reference", f.ClientReference},
		{"adopt", f.Adopt},
		{"not_before", notBefore},
		{"fingerprint", f.Fingerprint.String()},
	} {
		put(part.name)
		put(part.value)
	}
	return Digest(h.Sum(nil))
}
