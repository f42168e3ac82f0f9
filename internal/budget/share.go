package budget

import (
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// share is one slot's part of the requests. Times are of one monotonic clock.
//
// A request arrives at some moment between its begin and its end, and nobody
// here knows which. Let every request begin only while fewer than quota others
// have ended within per before it. Of any quota+1 that arrive within per, take the one
// that began last: all others have ended no earlier than they arrived, so within
// per before it began. That is one too many; so there are none such.
type share struct {
	quota int // 0: no limit
	per   time.Duration
	spent []spent // oldest first, no more than are needed for the next one
}

// spent are requests that ended no later than at.
type spent struct {
	first, at time.Duration
	count     int
}

// grain is how far apart requests are that are counted together, as a part of
// per. It bounds the memory of a share.
const grain = 64

// ready is the first moment at which the next request may begin.
func (s *share) ready() time.Duration {
	if s.quota == 0 {
		return 0
	}
	ready, left := time.Duration(0), s.total()
	for _, e := range s.spent {
		if left < s.quota {
			break
		}
		left -= e.count
		ready = e.at + s.per
	}
	return ready
}

func (s *share) total() (n int) {
	for _, e := range s.spent {
		n += e.count
	}
	return n
}

// end counts requests that have ended by now.
func (s *share) end(now time.Duration, n int) {
	if s.quota == 0 || n <= 0 {
		return
	}
	if last := len(s.spent) - 1; last >= 0 && now-s.spent[last].first < s.per/grain {
		// Counted as if they had all ended with the newest, which is later than
		// they did.
		s.spent[last].at = max(s.spent[last].at, now)
		s.spent[last].count += n
	} else {
		s.spent = append(s.spent, spent{now, now, n})
	}
	left := s.total()
	for len(s.spent) > 1 && left-s.spent[0].count >= s.quota {
		left -= s.spent[0].count
		s.spent = s.spent[1:]
	}
}

// exhaust is for what nobody can know: as if the whole part had just been used.
func (s *share) exhaust(now time.Duration) {
	s.spent = nil
	s.end(now, s.quota)
}

// Used are requests of the holder before, by how long ago they ended at least.
type Used struct {
	Ago   time.Duration
	Count uint64
}

// Fields implements codec.Record.
func (u *Used) Fields(v *codec.Visitor) {
	codec.Duration(v, "a", &u.Ago)
	codec.Uint(v, "c", &u.Count)
}

// leave says what the next holder has to know.
func (s *share) leave(now time.Duration) (list []Used) {
	for _, e := range s.spent {
		if ago := now - e.at; ago < s.per {
			list = append(list, Used{Ago: max(ago, 0), Count: uint64(e.count)})
		}
	}
	return list
}

// resume takes up what the holder before left. It was left before now, so that
// everything is older than it says.
func (s *share) resume(now time.Duration, list []Used) {
	s.spent = nil
	for _, u := range list {
		s.end(now-min(max(u.Ago, 0), s.per), int(min(u.Count, uint64(s.quota))))
	}
}
