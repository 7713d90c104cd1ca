package member

import (
	"context"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// forgetLive drops what is known of a member that is none any more.
func (m *Membership) forgetLive(s *authority.State, path string) {
	kind, name, _ := strings.Cut(path, "/")
	if id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name); err == nil {
		m.live.Forget(id)
	}
	m.copies.Forget(path)
}

// openMembers opens records of members under s. One that was altered from outside is left
// out, and reported. It is a [store.ConflictError] on the head if s does not open all of
// them because the head moved on.
func (m *Membership) openMembers(ctx context.Context, s *authority.State,
	entries []store.Entry) ([]record.Versioned[record.Member], error) {
	recs := make([]record.Versioned[record.Member], 0, len(entries))
	var bad []authority.Suspect
	for _, e := range entries {
		if r, err := record.Open[record.Member](s.Records, e); err == nil {
			recs = append(recs, r)
		} else {
			bad = append(bad, authority.Suspect{What: e.Key, Err: err})
		}
	}
	return recs, m.cfg.Head.ForgedUnder(ctx, s, bad...)
}

// FollowMembers keeps the index up with the store until ctx ends.
func (m *Membership) FollowMembers(ctx context.Context, s *authority.State) error {
	for {
		l, err := m.cfg.Store.List(ctx, record.MemberPrefix)
		if err != nil {
			return err
		}
		if err := m.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		recs, err := m.openMembers(ctx, s, l.Entries)
		if err != nil {
			return err
		}
		m.members.Fill(recs, l.Revision)
		for ch, err := range m.cfg.Store.Changes(ctx, record.MemberPrefix, l.Revision) {
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				break // compacted or disconnected: list again
			}
			recs, err := m.openMembers(ctx, s, ch.Put)
			if err != nil {
				return err
			}
			for _, r := range recs {
				m.members.Put(r.Value, r.Version)
			}
			for _, k := range ch.Delete {
				path := k[len(record.MemberPrefix):]
				m.members.Remove(path, ch.Revision)
				m.forgetLive(s, path)
			}
			m.members.Seen(ch.Revision)
		}
		if err := watch.Sleep(ctx, watch.RetryPause); err != nil {
			return err
		}
	}
}

// Follow fills the index with the members of next.
func (m *Membership) Follow(ctx context.Context, next *authority.State) (authority.Adoption, error) {
	l, err := m.cfg.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return authority.Adoption{}, fmt.Errorf("read the members: %w", err)
	}
	recs, err := m.openMembers(ctx, next, l.Entries)
	if err != nil {
		return authority.Adoption{}, err
	}
	return authority.Adoption{
		Present: func() error {
			m.members.Fill(recs, l.Revision)
			return nil
		},
	}, nil
}
