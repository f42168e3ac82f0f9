package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Partitions is the number of partitions of LEDGER and HISTORY. It is recorded
// in the streams' metadata and cannot change: the partition is part of every
// subject.
const Partitions = 32

const (
	partitionsKey = "counterfoil_partitions"
	formatKey     = "counterfoil_format"
	format        = "1" // of the subjects
	// replicasKey is on streams with more than one replica, so that a process
	// that makes none knows how many there should be.
	replicasKey = "counterfoil_replicas"

	intentsOfOne = 10_000  // pending, of one key
	intentsBytes = 1 << 30 // of all

	// The least the server allows. We send no Nats-Msg-Id, and at its start the server
	// reads all messages of so long. What agents send has none when it is stored, see
	// Door. A stream with a source could be without a window, but the server's goroutine
	// that looks for the source outlives its stop.
	duplicates = 100 * time.Millisecond
)

// configuration is what a stream must look like on a server with this many
// replicas. Every field the server would fill in is given, so that what it
// reports can be compared field by field.
func configuration(s Stream, replicas int) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:              string(s),
		Retention:         jetstream.LimitsPolicy,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		Compression:       jetstream.S2Compression, // of full blocks
		Replicas:          replicas,
		Duplicates:        duplicates,
		Metadata:          map[string]string{partitionsKey: strconv.Itoa(Partitions), formatKey: format},
	}
	// One server has nobody who lags. With replicas any of them would answer.
	c.AllowDirect = replicas == 1
	if replicas > 1 {
		c.Metadata[replicasKey] = strconv.Itoa(replicas)
	}
	switch s {
	case Ledger:
		c.Subjects = []string{"facts.*.*.*"}
		c.DenyDelete, c.DenyPurge, c.AllowAtomicPublish = true, true, true
	case Control:
		c.Subjects = []string{"control.*"}
		c.DenyDelete, c.DenyPurge, c.AllowAtomicPublish = true, true, true
	case History:
		c.Subjects = []string{"history.*.*.*"}
		derived(&c)
	case Wakeups:
		c.Subjects = []string{"wake.*", "due.*.*", "epoch.*"}
		c.Retention = jetstream.WorkQueuePolicy
		c.Compression = jetstream.NoCompression // nothing of it stays
		c.MaxMsgsPerSubject = 1
		// Schedules need roll-ups. Left out, the server would turn them on by
		// itself; created pedantic, it refuses instead.
		c.AllowMsgSchedules, c.AllowRollup = true, true
		derived(&c)
	case Index:
		c.Subjects = []string{"job.*.*.*", "ref.*.*", "client.*.*", "parked.*.*.*"}
		c.MaxMsgsPerSubject = 1
		c.AllowMsgTTL = true // what is parked expires by itself
		derived(&c)
	case Webhooks:
		c.Subjects = []string{"webhooks.*.*"}
		c.MaxMsgsPerSubject = 1
		c.Discard, c.DiscardNewPerSubject = jetstream.DiscardNew, true
	case Payloads:
		c.Subjects = []string{"payloads.*"}
		c.MaxMsgsPerSubject = 1
		c.AllowAtomicPublish = true
	case Slots:
		// Not derived: a message that power loss took would leave two holders.
		c.Subjects = []string{"slot.*.*.*"}
		c.MaxMsgsPerSubject = 1
	case Intents:
		// Agents write here, so it is bounded, and what has no room is refused to who
		// sent it. It takes none of the headers that would do more than store.
		c.Subjects = []string{"intents.*.*"}
		c.Retention = jetstream.WorkQueuePolicy
		c.Discard, c.DiscardNewPerSubject = jetstream.DiscardNew, true
		c.MaxMsgsPerSubject, c.MaxBytes, c.MaxMsgSize = intentsOfOne, intentsBytes, IntentSize
	case Verdicts:
		c.Subjects = []string{"verdicts.*.*", "rejected.*.*"}
		c.MaxMsgsPerSubject = 1
		c.MaxAge = VerdictAge
		// Agents read by subject, which the server's permissions can hold them to. A
		// replica that lags has no answer yet.
		c.AllowDirect = true
	}
	return c
}

// provisionedReplicas is how many replicas a stream was made with. One whose
// record of it was taken away counts as made with one: then other fields of the
// derived streams differ.
func provisionedReplicas(have jetstream.StreamConfig) int {
	n, err := strconv.Atoi(have.Metadata[replicasKey])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// derived streams can be built again from the ledger. On one node they are not
// synced, which the server allows only without atomic batches and never lets
// us change later; a run is a fast batch there, which ends at the first message
// that is refused. On several a run is one atomic batch.
func derived(c *jetstream.StreamConfig) {
	if c.Replicas == 1 {
		c.PersistMode = jetstream.AsyncPersistMode
		c.AllowBatchPublish = true
	} else {
		c.AllowAtomicPublish = true
	}
}

// A DriftError names one field of one stream that is not as provisioned.
type DriftError struct {
	Stream string
	Field  string // as the server spells it
	Want   string
	Have   string
}

func (e *DriftError) Error() string {
	return fmt.Sprintf("stream %s: %s is %s, want %s", e.Stream, e.Field, e.Have, e.Want)
}

// drift compares what a server reports with what we provisioned. Every field
// counts except those that neither loosen nor bind anything: the description,
// where the replicas are placed, and metadata of others.
func drift(want, have jetstream.StreamConfig) error {
	wanted, err := fields(want)
	if err != nil {
		return err
	}
	found, err := fields(have)
	if err != nil {
		return err
	}
	// More replicas than asked for lose nothing.
	if have.Replicas > want.Replicas {
		found["num_replicas"] = wanted["num_replicas"]
	}
	for _, ignored := range []string{"description", "placement"} {
		delete(wanted, ignored)
		delete(found, ignored)
	}
	names := map[string]bool{}
	for name := range wanted {
		names[name] = true
	}
	for name := range found {
		names[name] = true
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if wanted[name] != found[name] {
			problems = append(problems, &DriftError{
				Stream: want.Name, Field: name, Want: orUnset(wanted[name]), Have: orUnset(found[name]),
			})
		}
	}
	return errors.Join(problems...)
}

// fields gives the configuration as the server writes it, field by field, our
// own metadata as fields of their own. Fields added by a later version of the
// library are compared too, without a line here.
func fields(c jetstream.StreamConfig) (map[string]string, error) {
	metadata := c.Metadata
	c.Metadata = nil
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write configuration of stream %s: %w", c.Name, err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("read configuration of stream %s: %w", c.Name, err)
	}
	out := map[string]string{}
	for name, value := range raw {
		// Whether a zero is written or left out differs between fields.
		if v := string(value); v != "false" && v != "0" && v != "null" && v != `""` && v != "{}" {
			out[name] = v
		}
	}
	for key, value := range metadata {
		if strings.HasPrefix(key, "counterfoil_") {
			out["metadata "+key] = value
		}
	}
	return out, nil
}

func orUnset(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

// Subjects lists the subjects of a stream, with NATS wildcards.
func Subjects(s Stream) []string { return configuration(s, 1).Subjects }
