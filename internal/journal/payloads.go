package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/counterfoil/counterfoil/events"
)

const (
	// partSize is the most bytes of one message on PAYLOADS. Larger payloads
	// are cut into parts.
	partSize = 512 << 10
	// MaxPayload is the most bytes of one payload.
	MaxPayload = 256 << 20

	partsHeader = "Counterfoil-Parts" // on the head of a payload in parts; its data is empty
)

func payloadSubject(d events.Digest) string { return "payloads." + d.String() }

func partSubject(d events.Digest, i int) string {
	return payloadSubject(d) + "-" + strconv.Itoa(i)
}

// PutPayload stores bytes under their digest. Doing it again changes nothing.
// It comes before the fact that names the digest.
func (j *Journal) PutPayload(ctx context.Context, data []byte) (events.Digest, error) {
	d := events.Sum(data)
	if len(data) > MaxPayload {
		return events.Digest{}, fmt.Errorf("store payload: %d bytes, at most %d", len(data), MaxPayload)
	}
	if j.drafted(ctx, d) {
		return d, nil
	}
	head := Outgoing{Subject: payloadSubject(d), Data: data}
	if len(data) > partSize {
		// Parts first, head last: a crash in between leaves parts that nothing
		// refers to, and the next attempt finds them done.
		parts := 0
		for rest := data; len(rest) > 0; parts++ {
			part := rest[:min(partSize, len(rest))]
			rest = rest[len(part):]
			if err := j.putOnce(ctx, Outgoing{Subject: partSubject(d, parts), Data: part}); err != nil {
				return events.Digest{}, fmt.Errorf("store part %d of payload %s: %w", parts, d, err)
			}
		}
		head.Data, head.Header = nil, map[string][]string{partsHeader: {strconv.Itoa(parts)}}
	}
	// A crash after this write leaves a payload that no fact names; its author
	// stores it again under the same digest.
	if err := j.putOnce(ctx, head); err != nil {
		return events.Digest{}, fmt.Errorf("store payload %s: %w", d, err)
	}
	return d, nil
}

// putOnce stores a message whose subject says what it holds: whatever is there
// already is it.
func (j *Journal) putOnce(ctx context.Context, m Outgoing) error {
	m.Guard = &Guard{}
	_, _, err := j.place(ctx, Payloads, m.Subject, 0,
		func() (uint64, error) { return j.store.Publish(ctx, Payloads, m) },
		func(Message) bool { return true })
	return err
}

// Payload gives the bytes of a digest, verified, or ErrNoPayload.
func (j *Journal) Payload(ctx context.Context, d events.Digest) ([]byte, error) {
	if j.board != nil {
		if data, ok := j.board.inputs.take(d); ok {
			return data, nil
		}
	}
	head, err := j.store.Last(ctx, Payloads, payloadSubject(d))
	if errors.Is(err, ErrNoMessage) {
		return nil, fmt.Errorf("%w: %s", ErrNoPayload, d)
	}
	if err != nil {
		return nil, fmt.Errorf("read payload %s: %w", d, err)
	}
	data := head.Data
	if text := headerValue(head.Header, partsHeader); text != "" {
		parts, err := strconv.Atoi(text)
		if err != nil || parts < 1 || parts > MaxPayload/partSize {
			return nil, fmt.Errorf("read payload %s: %q is not a number of parts", d, text)
		}
		data = make([]byte, 0, parts*partSize)
		for i := range parts {
			part, err := j.store.Last(ctx, Payloads, partSubject(d, i))
			if err != nil {
				return nil, fmt.Errorf("read part %d of payload %s: %w", i, d, err)
			}
			data = append(data, part.Data...)
		}
	}
	if events.Sum(data) != d {
		return nil, fmt.Errorf("read payload %s: the stored bytes have another digest", d)
	}
	return data, nil
}

func headerValue(header map[string][]string, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}
