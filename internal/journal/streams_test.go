package journal

import (
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Every field of a stream's configuration that differs is named, whatever the
// library adds to it: a field this test cannot change fails it.
func TestEveryDriftedFieldIsNamed(t *testing.T) {
	ignored := map[string]bool{"Name": true, "Description": true, "Placement": true, "Metadata": true}
	for _, s := range Streams() {
		for _, replicas := range []int{1, 3} {
			want := configuration(s, replicas)
			if err := drift(want, configuration(s, replicas)); err != nil {
				t.Fatalf("no drift, but %v", err)
			}
			kind := reflect.TypeOf(want)
			for i := range kind.NumField() {
				field := kind.Field(i)
				have := configuration(s, replicas)
				change(t, field.Name, reflect.ValueOf(&have).Elem().Field(i))
				err := drift(want, have)
				var d *DriftError
				switch {
				case field.Name == "Name":
				case ignored[field.Name]:
					if err != nil {
						t.Errorf("%s of %s: %v, want it ignored", field.Name, s, err)
					}
				case !errors.As(err, &d) || d.Stream != string(s) || d.Field == "" || d.Want == d.Have:
					t.Errorf("%s of %s: %v, want a named drift", field.Name, s, err)
				}
			}
		}
	}
}

// change sets a field to something it is not.
func change(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int32, reflect.Int64:
		// Never more replicas, which is no drift.
		if name == "Replicas" {
			v.SetInt(v.Int() - 1)
			return
		}
		if name == "Discard" || name == "Retention" || name == "Storage" || name == "PersistMode" {
			v.SetInt((v.Int() + 1) % 2)
			return
		}
		v.SetInt(v.Int() + 1000)
	case reflect.Uint8:
		v.SetUint((v.Uint() + 1) % 2)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Map:
		metadata := maps.Clone(v.Interface().(map[string]string))
		metadata["someone"] = "else"
		v.Set(reflect.ValueOf(metadata))
	case reflect.Slice:
		switch v.Interface().(type) {
		case []string:
			v.Set(reflect.ValueOf([]string{"other"}))
		case []*jetstream.StreamSource:
			v.Set(reflect.ValueOf([]*jetstream.StreamSource{{Name: "other"}}))
		default:
			t.Fatalf("field %s has a type this test does not change", name)
		}
	case reflect.Struct:
		if _, ok := v.Interface().(jetstream.StreamConsumerLimits); !ok {
			t.Fatalf("field %s has a type this test does not change", name)
		}
		v.Set(reflect.ValueOf(jetstream.StreamConsumerLimits{MaxAckPending: 1}))
	default:
		t.Fatalf("field %s has a type this test does not change", name)
	}
}

func TestPartitionCountAndFormatAreHeld(t *testing.T) {
	for key, value := range map[string]string{partitionsKey: "16", formatKey: "2"} {
		have := configuration(Ledger, 1)
		have.Metadata[key] = value
		var d *DriftError
		if err := drift(configuration(Ledger, 1), have); !errors.As(err, &d) || d.Field != "metadata "+key || d.Have != value {
			t.Errorf("%s %s: %v", key, value, err)
		}
		delete(have.Metadata, key)
		if err := drift(configuration(Ledger, 1), have); !errors.As(err, &d) || d.Have != "not set" {
			t.Errorf("%s missing: %v", key, err)
		}
	}
}

// A process that makes no stream learns from them how many replicas there should
// be; without that record the streams do not pass for ones of a single replica.
func TestReplicasAreRead(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		if n := provisionedReplicas(configuration(Ledger, replicas)); n != replicas {
			t.Errorf("%d replicas, want %d", n, replicas)
		}
	}
	have := configuration(History, 3)
	delete(have.Metadata, replicasKey)
	var d *DriftError
	if err := drift(configuration(History, provisionedReplicas(have)), have); !errors.As(err, &d) {
		t.Errorf("a record that was taken away: %v, want a drift", err)
	}
}

func TestMoreReplicasAreNoDrift(t *testing.T) {
	have := configuration(Ledger, 1)
	have.Replicas = 3
	if err := drift(configuration(Ledger, 1), have); err != nil {
		t.Error(err)
	}
}

func TestOldServersAreRefused(t *testing.T) {
	for version, want := range map[string]bool{
		"2.15.0": true, "2.15.3": true, "2.16.0-beta.1": true, "3.0.0": true, "v2.15.1": true, "2.100.0": true,
		"2.14.9": false, "2.9.0": false, "1.99.0": false, "": false, "2": false, "two.15.0": false, "2.x.1": false,
	} {
		if recent(version) != want {
			t.Errorf("version %q: %v, want %v", version, !want, want)
		}
	}
}

func TestScheduleTimesKeepNanoseconds(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 3600))
	if got := ScheduleAt(at); got != "@at 2026-01-02T02:04:05.678901234Z" {
		t.Error(got)
	}
}
