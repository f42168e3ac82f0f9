package wire

import (
	"context"
	"time"

	"github.com/counterfoil/counterfoil/internal/doctor"
)

// Doctor looks at this service as it runs.
func (s *Service) Doctor() *doctor.Doctor {
	var room func() (free, least uint64, low bool, err error)
	if s.reserve != nil {
		room = func() (uint64, uint64, bool, error) {
			free, err := s.reserve.Free()
			return free, s.reserve.Least(), s.reserve.Low(), err
		}
	}
	return doctor.New(doctor.Config{
		Disk:  room,
		Build: s.cfg.Build, Now: s.cfg.Clock.Now, Journal: s.journal,
		Call: s.clocks.Through(s.outbound), Clocks: s.clocks,
		Sync: s.cfg.Sync, Streams: s.cfg.Check, Failing: s.cfg.Failing, StoreTime: s.cfg.StoreTime, ClockDifference: s.cfg.ClockDifference,
		Contract: s.catalogue.Contract,
		CredentialsFile: func() (problem string, since, writing time.Time) {
			status := s.Credentials()
			return status.Problem, status.Since, status.Writing
		},
		PolicyFile: func() (problem string, since, writing time.Time) {
			status := s.cfg.Rules.Status()
			return status.Problem, status.Since, status.Writing
		},
		Accounts: func(ctx context.Context) []doctor.Account {
			var list []doctor.Account
			for _, p := range s.Providers(ctx) {
				c, _ := s.catalogue.Current(p.Name)
				a, _ := s.catalogue.Account(p.Name, p.Account) // it has no other error than none
				list = append(list, doctor.Account{
					Provider: p.Name, Account: p.Account, BaseURL: a.BaseURL, Credential: a.Credential,
					Unusable: p.Unusable, Unbounded: s.catalogue.Unbounded(p.Name, p.Account), Contract: c,
				})
			}
			return list
		},
	})
}
