package member

import (
	"context"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// Prune removes the records of people's sessions that were over at now, so that logins do not
// add up. It is the leader's.
func (m *Membership) Prune(ctx context.Context, s *authority.State, now time.Time) error {
	for _, kind := range []identity.Kind{identity.Admin, identity.Readonly} {
		recs, _, err := authority.ListGenuine[record.Member](ctx, m.cfg.Head, s, record.MemberPrefix+string(kind)+"/")
		if err != nil {
			return err
		}
		for _, r := range recs {
			if now.Before(r.Value.CertifiedUntil().Add(record.CertMargin)) {
				continue
			}
			ch := m.cfg.Election.NewChange(s)
			ch.Delete(record.MemberKey(kind, r.Value.Name), r.Version)
			if err := m.Recount(ctx, s, ch, r.Value.Entry, ""); err != nil {
				return err
			}
			if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
				return err
			}
		}
	}
	return nil
}
