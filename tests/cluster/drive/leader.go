package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
)

// servers are where the override of the test publishes the three nodes.
const servers = "nats://127.0.0.1:14221,nats://127.0.0.1:14222,nats://127.0.0.1:14223"

// leader names the node that leads the ledger.
func (d *drive) leader(ctx context.Context) (string, error) {
	who, err := nats.NkeyOptionFromSeed(filepath.Join(d.o.secrets, "nkey-provision"))
	if err != nil {
		return "", err
	}
	conn, err := nats.Connect(servers, who, nats.Timeout(5*time.Second))
	if err != nil {
		return "", fmt.Errorf("ask for the ledger's leader: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := conn.RequestWithContext(ctx, "$JS.API.STREAM.INFO.LEDGER", nil)
	if err != nil {
		return "", fmt.Errorf("ask for the ledger's leader: %w", err)
	}
	var info struct {
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(answer.Data, &info); err != nil || info.Cluster.Leader == "" {
		return "", fmt.Errorf("the ledger has no leader: %s", answer.Data)
	}
	return info.Cluster.Leader, nil
}
