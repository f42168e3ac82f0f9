// Package crash_test holds a test for each row of docs/CRASHES.md: what stands when
// a durable step fails or the process ends there, and who repairs it.
package crash_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
