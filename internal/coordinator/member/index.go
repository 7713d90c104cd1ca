package member

import (
	"context"
	"fmt"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
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

// openMembers opens records of members under s. One that was altered from outside is apart,
// and reported. It is a [store.ConflictError] on the head if s does not open all of
// them because the head moved on.
func (m *Membership) openMembers(ctx context.Context, s *authority.State,
	entries []store.Entry) (recs []record.Versioned[record.Member], forged []store.Entry, err error) {
	recs = make([]record.Versioned[record.Member], 0, len(entries))
	var bad []authority.Suspect
	for _, e := range entries {
		if r, err := record.Open[record.Member](s.Records, e); err == nil {
			recs = append(recs, r)
		} else {
			forged, bad = append(forged, e), append(bad, authority.Suspect{What: e.Key, Err: err})
		}
	}
	return recs, forged, m.cfg.Head.ForgedUnder(ctx, s, bad...)
}

// forge notes which records were altered.
func (m *Membership) forge(forged []store.Entry) {
	for _, e := range forged {
		m.members.Forge(e.Key[len(record.MemberPrefix):], e.Version)
	}
}

// ForgedFindings names the records of members that were altered in the store.
func (m *Membership) ForgedFindings() []*fealtyv1.Finding {
	var keys []string
	for _, path := range m.members.Forged() {
		keys = append(keys, record.MemberPrefix+path)
	}
	return finding.Altered("who it is of neither renews nor joins until it is as it was", keys)
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
		recs, forged, err := m.openMembers(ctx, s, l.Entries)
		if err != nil {
			return err
		}
		m.members.Fill(recs, l.Revision)
		m.forge(forged)
		for ch, err := range m.cfg.Store.Changes(ctx, record.MemberPrefix, l.Revision) {
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				break // compacted or disconnected: list again
			}
			// What this process wrote it has in memory already.
			news := slices.DeleteFunc(ch.Put, func(e store.Entry) bool {
				return m.members.Has(e.Key[len(record.MemberPrefix):], e.Version)
			})
			recs, forged, err := m.openMembers(ctx, s, news)
			if err != nil {
				return err
			}
			for _, r := range recs {
				m.members.Put(r.Value, r.Version)
			}
			m.forge(forged)
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
	recs, forged, err := m.openMembers(ctx, next, l.Entries)
	if err != nil {
		return authority.Adoption{}, err
	}
	return authority.Adoption{
		Present: func() error {
			m.members.Fill(recs, l.Revision)
			m.forge(forged)
			return nil
		},
	}, nil
}
