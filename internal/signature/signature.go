// Package signature verifies the signatures under webhooks.
//
// Schemes: "hmac-sha256-hex", HMAC-SHA-256 over the raw body, in lower-case
// hexadecimal, after a prefix, in a header the provider chooses; "standard-webhooks", the
// specification of that name, version 1, symmetric keys.
//
// Guarantees: the raw bytes are signed, never a parsed form; comparison takes
// constant time; a delivery is verified whole or not at all, and nothing of it
// may be read before. Everything here is a pure function of its arguments.
//
// Limits: one secret at a time, no asymmetric schemes. hmac-sha256-hex signs no time, so an old
// delivery verifies for ever; that it counts once is the store's affair.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The schemes.
const (
	HMACSHA256Hex    = "hmac-sha256-hex"
	StandardWebhooks = "standard-webhooks"
)

const (
	// Tolerance is how far a signed time may be from ours, either way.
	Tolerance = 5 * time.Minute

	maxSignatures = 16 // looked at in one header
)

// ErrRefused is wrapped by every error that says a delivery is not authentic.
// The text after it is for our own log, never for the sender.
var ErrRefused = errors.New("signature refused")

// ErrScheme says that this version does not know the scheme.
var ErrScheme = errors.New("unknown signature scheme")

// Scheme is how a provider signs.
type Scheme struct {
	Name   string
	Header string // of hmac-sha256-hex
	Prefix string // of hmac-sha256-hex, before the digits: "sha256="
}

// Delivery is what came in, untouched.
type Delivery struct {
	Header map[string][]string
	Body   []byte
}

// Verified says what the signature covers besides the body.
type Verified struct {
	EventID string // "" where the scheme signs none
}

// Verify checks a delivery against the shared secret.
func Verify(s Scheme, secret string, d Delivery, now time.Time) (Verified, error) {
	if secret == "" {
		// An empty key would make a signature that anyone can compute.
		return Verified{}, fmt.Errorf("%w: the secret is empty", ErrRefused)
	}
	switch s.Name {
	case HMACSHA256Hex:
		return Verified{}, verifyHex(s, secret, d)
	case StandardWebhooks:
		return verifyStandard(secret, d, now)
	}
	return Verified{}, fmt.Errorf("%w: %q", ErrScheme, s.Name)
}

// Sign gives the headers a sender of the scheme sets, for tests and drills.
// id and at are used by standard-webhooks only.
func Sign(s Scheme, secret string, body []byte, id string, at time.Time) (map[string]string, error) {
	switch s.Name {
	case HMACSHA256Hex:
		return map[string]string{s.Header: s.Prefix + hex.EncodeToString(mac([]byte(secret), body))}, nil
	case StandardWebhooks:
		key, err := standardKey(secret)
		if err != nil {
			return nil, err
		}
		stamp := strconv.FormatInt(at.Unix(), 10)
		return map[string]string{
			"Webhook-Id": id, "Webhook-Timestamp": stamp,
			"Webhook-Signature": "v1," + base64.StdEncoding.EncodeToString(mac(key, []byte(id+"."+stamp+"."), body)),
		}, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrScheme, s.Name)
}

func verifyHex(s Scheme, secret string, d Delivery) error {
	text, err := one(d.Header, s.Header)
	if err != nil {
		return err
	}
	digits, ok := strings.CutPrefix(text, s.Prefix)
	if !ok {
		return fmt.Errorf("%w: header %s does not start with %q", ErrRefused, s.Header, s.Prefix)
	}
	if len(d.Body) == 0 {
		return fmt.Errorf("%w: the body is empty, so nothing was signed", ErrRefused)
	}
	// The text is compared and not the bytes: one signature has one spelling.
	if want := hex.EncodeToString(mac([]byte(secret), d.Body)); !hmac.Equal([]byte(digits), []byte(want)) {
		return fmt.Errorf("%w: it is not that of this body under our secret", ErrRefused)
	}
	return nil
}

func verifyStandard(secret string, d Delivery, now time.Time) (Verified, error) {
	key, err := standardKey(secret)
	if err != nil {
		return Verified{}, err
	}
	id, err := one(d.Header, "webhook-id")
	if err != nil {
		return Verified{}, err
	}
	stamp, err := one(d.Header, "webhook-timestamp")
	if err != nil {
		return Verified{}, err
	}
	list, err := one(d.Header, "webhook-signature")
	if err != nil {
		return Verified{}, err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return Verified{}, fmt.Errorf("%w: webhook-timestamp is not a whole number of seconds", ErrRefused)
	}
	want := mac(key, []byte(id+"."+stamp+"."), d.Body)
	found := false
	for i, part := range strings.Fields(list) {
		if i == maxSignatures {
			break
		}
		text, ok := strings.CutPrefix(part, "v1,")
		if !ok {
			continue // a version this scheme does not define
		}
		got, err := base64.StdEncoding.DecodeString(text)
		if err == nil && hmac.Equal(got, want) {
			found = true
		}
	}
	if !found {
		return Verified{}, fmt.Errorf("%w: none is that of this body under our secret", ErrRefused)
	}
	// Whole seconds, as they are signed. The difference of two int64 that are
	// far apart would wrap, so the bounds are compared instead.
	if seconds < now.Add(-Tolerance).Unix() || seconds > now.Add(Tolerance).Unix() {
		return Verified{}, fmt.Errorf("%w: the signed time is more than %s from ours", ErrRefused, Tolerance)
	}
	return Verified{EventID: id}, nil
}

// standardKey reads a secret with or without its prefix. The error does not
// show it.
func standardKey(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("%w: our secret is not base64, with or without whsec_ before it", ErrRefused)
	}
	return key, nil
}

// one gives the single value of a header. Two values are refused: a proxy and
// we could each look at another.
func one(header map[string][]string, name string) (string, error) {
	found, n := "", 0
	for key, values := range header {
		if strings.EqualFold(key, name) {
			for _, v := range values {
				found = v
				n++
			}
		}
	}
	if n != 1 || found == "" {
		return "", fmt.Errorf("%w: header %s must be there once", ErrRefused, name)
	}
	return found, nil
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		_, _ = h.Write(p) // a hash never fails
	}
	return h.Sum(nil)
}
