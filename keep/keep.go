package keep

import (
	_ "cel.dev/cel-go/cel"
	_ "cel.dev/cel-go/common/types"
	_ "cel.dev/cel-go/ext"
	_ "github.com/anishathalye/porcupine"
	_ "github.com/cloudevents/sdk-go/v2/event"
	_ "github.com/go-json-experiment/json"
	_ "github.com/go-json-experiment/json/jsontext"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/synadia-io/orbit.go/jetstreamext"
	_ "github.com/vmihailenco/msgpack/v5"
	_ "go.uber.org/goleak"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "pgregory.net/rapid"
)
