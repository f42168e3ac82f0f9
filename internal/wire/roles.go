package wire

// Roles is a set of roles that one process holds.
type Roles uint8

// The roles of DESIGN §2; the notifier is part of the projector, which sees what
// comes to rest.
const (
	Ingest Roles = 1 << iota
	Projector
	Poller
	Webhooks

	AllRoles = Ingest | Projector | Poller | Webhooks
)

// Any says whether one of these is in the set.
func (r Roles) Any(these Roles) bool { return r&these != 0 }

// OrAll gives all roles for the empty set.
func (r Roles) OrAll() Roles {
	if r == 0 {
		return AllRoles
	}
	return r
}
