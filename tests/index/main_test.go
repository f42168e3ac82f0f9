// Package index_test shows whose job a job is where nobody is told outright: in
// the race of an event with the answer it overtook, with either side stopped or
// dead at each of its steps; and where many operations look for their jobs in one
// list that names nobody.
package index_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
