package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"syscall"

	"github.com/counterfoil/counterfoil/internal/httprule"
)

// Sent says whether the provider can have seen a request.
type Sent int

// The zero value is the careful one.
const (
	// SentUnknown: some or all of the request may have left.
	SentUnknown Sent = iota
	// NotSent: no byte of the request was given to the network, and none will be.
	NotSent
)

func (s Sent) String() string {
	if s == NotSent {
		return "not sent"
	}
	return "may have been sent"
}

// Class is why a call failed: a closed set of words, stable because facts carry them.
type Class string

const (
	InvalidRequest    Class = "invalid_request"    // the request breaks a rule of this package
	CredentialMissing Class = "credential_missing" // the reference leads to nothing, or to nothing usable
	CredentialChanged Class = "credential_changed" // not the identity the caller expects
	NotAfter          Class = "not_after"          // the last moment for sending had passed
	Canceled          Class = "canceled"           // the caller gave up
	Timeout           Class = "timeout"            // the exchange took longer than its timeout
	DNS               Class = "dns"                // the host's name could not be resolved
	Dial              Class = "dial"               // no connection
	TLS               Class = "tls"                // no handshake, or no trusted certificate
	Reset             Class = "reset"              // the connection ended before the headers were complete
	Protocol          Class = "protocol"           // what came back is not an answer in HTTP/1.1
	HeaderTooLarge    Class = "header_too_large"
	BodyCut           Class = "body_cut"       // headers arrived, the body ended early or could not be decoded
	BodyTooLarge      Class = "body_too_large" // headers arrived, the body is over the limit
	Encoding          Class = "encoding"       // headers arrived, the body is in a content coding that is not read here
	RedirectRefused   Class = "redirect_refused"
	// DestinationRefused: Config.Policy lets nothing be dialled there.
	DestinationRefused Class = "policy"
)

// Classes lists every Class.
func Classes() []Class {
	return []Class{
		InvalidRequest, CredentialMissing, CredentialChanged, NotAfter, Canceled, Timeout, DNS, Dial, TLS,
		Reset, Protocol, HeaderTooLarge, BodyCut, BodyTooLarge, Encoding, RedirectRefused, DestinationRefused,
	}
}

// Failure is the error of Do. Its text is for humans, bounded, and holds
// neither the credential nor path or query of the URL. For every Class up to
// Reset both values of Sent occur except where no request can exist yet
// (invalid_request, credential_*, dns, dial and tls are always NotSent on a
// first hop, and so is policy).
type Failure struct {
	Class Class
	Sent  Sent
	// Method and Origin of the request as asked, for the text. Origin is empty
	// for an invalid request.
	Method, Origin string
	Err            error
}

func (f *Failure) Error() string {
	where, sent, why := f.parts()
	return where + fmt.Sprintf("%s (%s)", f.Class, sent) + why
}

// Words is the text without the class, for where that stands beside it.
func (f *Failure) Words() string {
	where, sent, why := f.parts()
	return where + sent + why
}

func (f *Failure) parts() (where, sent, why string) {
	const limit = 300
	sent = f.Sent.String()
	if f.Sent == SentUnknown && (f.Class == DestinationRefused || f.Class == RedirectRefused) {
		// The doubt is about the requests that led there, never about what was refused.
		sent = "nothing was sent there; the request that led there may have been sent"
	}
	if f.Origin != "" {
		where = fmt.Sprintf("%s %s: ", f.Method, f.Origin)
	}
	if f.Err != nil {
		// net/http quotes malformed answers, so the text may come from outside.
		why = ": " + httprule.Excerpt([]byte(f.Err.Error()), limit)
	}
	return where, sent, why
}

func (f *Failure) Unwrap() error { return f.Err }

// phaseError marks where connecting stopped.
type phaseError struct {
	class Class
	err   error
}

func (e *phaseError) Error() string { return e.err.Error() }
func (e *phaseError) Unwrap() error { return e.err }

// classify names an error that came before the response headers were complete.
// The end of the context wins: the errors it causes look like the network's.
func classify(ctx context.Context, err error) Class {
	if class, ended := contextClass(ctx); ended {
		return class
	}
	var phase *phaseError
	var netErr net.Error
	var malformed textproto.ProtocolError
	switch {
	case errors.Is(err, errNotAfter):
		return NotAfter
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.As(err, &netErr) && netErr.Timeout():
		return Timeout
	case errors.As(err, &phase):
		return phase.class
	case errors.Is(err, errEarlyAnswer), errors.As(err, &malformed):
		return Protocol
	case errors.Is(err, errHeaderTooLarge):
		return HeaderTooLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.As(err, &netErr):
		return Reset
	}
	return Protocol
}

func contextClass(ctx context.Context) (class Class, ended bool) {
	switch err := ctx.Err(); {
	case err == nil:
		return "", false
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout, true
	}
	return Canceled, true
}
