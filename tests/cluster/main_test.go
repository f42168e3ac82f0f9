// Package cluster_test shows what the journal concludes on three replicas: in a
// race, after an answer that was lost, from a leader that is none any more, and
// when a server is stopped.
//
// Three servers run in this process, on sockets of their own and in real time:
// a cluster does not run in a testing/synctest bubble. Each test has an account of
// its own, whose streams nobody else sees, and can have the network of that account
// alone stand still.
package cluster_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// They wait for elections and timeouts rather than for a processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		println(err.Error())
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// On one cluster, each test in an account of its own.
func TestThreeReplicas(t *testing.T) {
	tests := []struct {
		account string // and name
		test    func(t *testing.T, c *cluster, account string)
	}{
		{"deposed", deposedLeader},
		{"race", race},
		{"held", heldOnTheWay},
		{"lost", lostConnection},
		{"lag", laggingFollower},
		{"step", leaderStepsDown},
		{"conformance", conforms},
		{"wakeups", wakesUp},
	}
	var accounts []string
	for _, it := range tests {
		accounts = append(accounts, it.account)
	}
	const last = "stop"
	c := start(t, append(accounts, last)...)
	t.Run("all", func(t *testing.T) {
		for _, it := range tests {
			t.Run(it.account, func(t *testing.T) {
				t.Parallel()
				c.provision(t, it.account)
				it.test(t, c, it.account)
			})
		}
	})
	t.Run(last, func(t *testing.T) {
		c.provision(t, last)
		leaderIsStopped(t, c, last)
	})
}
