package events_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

func serviceTypes() []events.Type {
	return []events.Type{events.TypeHoldPlaced, events.TypeHoldReleased, events.TypeKeyChanged}
}

func serviceEvent(fact events.ServiceFact) events.ServiceEvent {
	return events.ServiceEvent{
		ID: "f-1", Source: "/ingest/3", Subject: "providers/example", Time: time.Date(2026, 12, 1, 10, 0, 0, 500_000_000, time.UTC),
		Previous: events.ChainStart("providers/example"), TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		Actor: "team a", CausationID: "f-0", Fact: fact,
	}
}

// The bytes of every service fact, see TestGolden.
func TestServiceGolden(t *testing.T) {
	for _, name := range serviceTypes() {
		t.Run(string(name), func(t *testing.T) {
			fact := events.NewService(name)
			if fact == nil || fact.Type() != name {
				t.Fatalf("NewService gives %T", fact)
			}
			if events.New(name) != nil {
				t.Error("the type is also one of an operation's facts")
			}
			if b := codec.Marshal(fact); !bytes.Equal(b, []byte{0x80}) {
				t.Errorf("an empty one is %x", b)
			}
			new(filler).fill(reflect.ValueOf(fact).Elem(), "")
			event := serviceEvent(fact)
			header, data, digest := events.EncodeService(event)
			golden(t, filepath.Join("service", string(name)+".golden"), describe(t, header, data, digest))
			back, again, err := events.DecodeService(header, data)
			if err != nil || !reflect.DeepEqual(back, event) || again != digest {
				t.Errorf("decoded %+v, %s, %v\nwant %+v, %s", back, again, err, event, digest)
			}
			// What an operation's fold would see stops that operation (rule 7).
			stray, _, err := events.Decode(header, data)
			if _, unknown := stray.Fact.(*events.Unknown); err != nil || !unknown {
				t.Errorf("on an operation it is %T, %v", stray.Fact, err)
			}
		})
	}
}

func TestServiceRefusals(t *testing.T) {
	header, data, _ := events.Encode(envelope(&events.OperationPaused{Who: "a"}))
	if _, _, err := events.DecodeService(header, data); !errors.Is(err, events.ErrMalformed) {
		t.Errorf("an operation's fact: %v", err)
	}
	header, data, _ = events.Encode(envelope(&events.Unknown{Name: "hold.placed.v9", Data: []byte{0x80}}))
	if _, _, err := events.DecodeService(header, data); !errors.Is(err, events.ErrUnknownType) {
		t.Errorf("a type of a later version: %v", err)
	}
	header, _, _ = events.EncodeService(serviceEvent(&events.HoldPlaced{Scope: events.HoldAll}))
	for _, data := range [][]byte{nil, {0xc1}, {0x81, 0xa1, 's', 0x01}} {
		if _, _, err := events.DecodeService(header, data); !errors.Is(err, events.ErrMalformed) {
			t.Errorf("data %x: %v", data, err)
		}
	}
}

func TestHoldSubject(t *testing.T) {
	for _, provider := range []string{"", "example", "a-b_1"} {
		if back, ok := events.HeldProvider(events.HoldSubject(provider)); !ok || back != provider {
			t.Errorf("%q comes back as %q, %v", provider, back, ok)
		}
	}
	for _, subject := range []string{"", "providers/", "provider/x", "providersx", "op_abc"} {
		if p, ok := events.HeldProvider(subject); ok {
			t.Errorf("%q is taken for provider %q", subject, p)
		}
	}
}

// Whatever arrives is an event or an error, and what is an event survives being
// written again.
func FuzzDecodeService(f *testing.F) {
	for _, name := range serviceTypes() {
		fact := events.NewService(name)
		new(filler).fill(reflect.ValueOf(fact).Elem(), "")
		e := serviceEvent(fact)
		_, data, _ := events.EncodeService(e)
		f.Add(events.TypePrefix+string(name), e.Subject, data)
	}
	f.Add("dev.counterfoil.hold.placed.v2", "providers", []byte{0x80})
	f.Fuzz(func(t *testing.T, kind, subject string, data []byte) {
		e, _, err := events.DecodeService(map[string][]string{
			"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/x"}, "ce-type": {kind}, "ce-subject": {subject},
			"ce-datacontenttype": {events.ContentType},
		}, data)
		if err != nil {
			if !errors.Is(err, events.ErrMalformed) && !errors.Is(err, events.ErrUnknownType) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		header, again, digest := events.EncodeService(e)
		back, d, err := events.DecodeService(header, again)
		if err != nil || d != digest || !reflect.DeepEqual(back, e) {
			t.Fatalf("%+v comes back as %+v, %v", e, back, err)
		}
	})
}
