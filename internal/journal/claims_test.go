package journal_test

import (
	"slices"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// A job that is to be adopted is its operation's from the intent on, or from the approval
// where one is needed: what waits, or was denied, keeps it from nobody. One that is to be
// cleaned up is claimed before, too.
func TestWhatClaimsAJob(t *testing.T) {
	for _, c := range []struct {
		fact events.Fact
		want []string
	}{
		{&events.IntentRecorded{Adopt: "job-7"}, []string{"job-7"}},
		{&events.IntentRecorded{Adopt: "job-7", NeedsApproval: true}, nil},
		{&events.ApprovalGranted{JobID: "job-7", Claim: events.ClaimOwn}, []string{"job-7"}},
		{&events.ApprovalGranted{}, nil},
		{&events.ApprovalDenied{}, nil},
		{&events.CleanupRequested{JobID: "job-7", Claim: events.ClaimOwn}, []string{"job-7"}},
		{&events.CleanupRequested{JobID: "job-7", Claim: "op_other"}, nil},
	} {
		if got := journal.OwnJobs(c.fact); !slices.Equal(got, c.want) {
			t.Errorf("%+v claims %v, want %v", c.fact, got, c.want)
		}
	}
}
