package projections

import "slices"

// Candidates gives the jobs that may turn out to be the operation's, for whoever decides:
// those that look-ups named without our reference, and behind them the one that a
// webhook named with it.
func Candidates(s State) []string {
	list := slices.Clone(s.Candidates)
	if job := s.hinted(); job != "" && s.awaitsJob() && !slices.Contains(list, job) {
		list = append(list, job)
	}
	return list
}

// Unfollowed gives the jobs of the operation that it does not follow: the stray ones, and
// behind them the one that a webhook named with our reference, where it will not become
// the operation's by itself any more.
func Unfollowed(s State) []string {
	list := slices.Clone(s.Strays)
	if job := s.hinted(); job != "" && !s.awaitsJob() {
		list = append(list, job)
	}
	return list
}

// hinted gives the job that a webhook named with our reference and that is known by
// nothing else, "" if there is none.
func (s *State) hinted() string {
	if !s.Hint.Exact || s.Hint.JobID == s.Job.ID || slices.Contains(s.Strays, s.Hint.JobID) {
		return ""
	}
	return s.Hint.JobID
}

// awaitsJob says whether it is open which job is the operation's.
func (s *State) awaitsJob() bool {
	return s.Job.ID == "" && !s.Phase.Terminal() && s.Quarantine != QuarantineConflict
}

// hint takes another hint. The job that the one before named stays known. By version 1
// of the rules it does not, as what that version recorded has to be read: a second
// webhook that names it is a conflict there.
func (f *folding) hint(h Hint) {
	if job := f.s.hinted(); job != h.JobID && f.s.Rulebook() >= 2 {
		f.stray(job)
	}
	f.s.Hint = h
}
