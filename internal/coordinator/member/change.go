package member

import (
	"context"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Recount adds to ch what keeps the counts right when a member moves from one
// entry to another; "" is outside. Entries without a maximum are not counted.
func (m *Membership) Recount(ctx context.Context, s *authority.State, ch *record.Change, from, to string) error {
	if from == to {
		return nil
	}
	for _, move := range []struct {
		entry string
		by    int
	}{{from, -1}, {to, 1}} {
		entry, ok := s.Manifest.EntryByName(move.entry)
		if !ok || entry.MaxMembers == 0 {
			continue
		}
		count, err := record.Get[record.EntryCount](ctx, s.Records, record.CountKey(entry.Name))
		if err != nil {
			return m.cfg.Head.StoreError("read the count of an entry", err)
		}
		// One of another head is counted anew at the next admission; it is written
		// all the same, so that an admission that counts right now starts again.
		if count.Value.Head == s.Head.Hash {
			count.Value.Members += move.by
		}
		ch.Put(record.CountKey(entry.Name), count.Version, count.Value)
	}
	return nil
}

// changeMember is ChangeMemberLater with the trust bundle that follows in force
// before it returns.
func (m *Membership) changeMember(ctx context.Context, kind, name, what string,
	f func(*authority.State, record.Versioned[record.Member], *record.Change) (bool, error)) error {
	done := false
	err := m.ChangeMemberLater(ctx, kind, name, what, func(s *authority.State, rec record.Versioned[record.Member],
		ch *record.Change) (_ bool, err error) {
		done, err = f(s, rec, ch)
		return done, err
	})
	if err != nil {
		return err
	}
	if err = m.cfg.Bundle.Apply(ctx); done {
		err = m.cfg.Head.Made(ctx, "the change of the member", err)
	}
	return err
}

// ChangeMemberLater reads the member, lets f fill a transaction, and commits it,
// again from the start if somebody was first. f answers false for nothing to do.
func (m *Membership) ChangeMemberLater(ctx context.Context, kind, name, what string,
	f func(*authority.State, record.Versioned[record.Member], *record.Change) (bool, error)) error {
	return m.cfg.Head.Transact(ctx, "member "+name, func(s *authority.State) error {
		rec, err := m.member(ctx, s, kind, name)
		if err != nil {
			return err
		}
		ch := s.Records.NewChange(s.HeadVersion)
		if do, err := f(s, rec, ch); err != nil || !do {
			return err
		}
		if err := m.cfg.Bundle.Withdraw(ctx, ch); err != nil {
			return m.cfg.Head.CommitError(what, err)
		}
		m.cfg.Bundle.LookAgain()
		return nil
	})
}

// RemoveRecord adds to ch what deletes rec and bans its keys.
func (c *Membership) RemoveRecord(ctx context.Context, s *authority.State, ch *record.Change,
	rec record.Versioned[record.Member], by, action, reason string) error {
	m := rec.Value
	ch.Delete(record.MemberKey(m.Kind, m.Name), rec.Version)
	ch.Withdraws = m.Path()
	if err := c.Recount(ctx, s, ch, m.Entry, ""); err != nil {
		return err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: by, Action: action, Target: m.Path(), Reason: reason})
	err := c.banKeys(ctx, s, ch, m, record.Ban{Reason: action, By: by, At: c.cfg.Now().UTC()}, bundle.Delta{},
		bundle.ForOthers)
	return current.WordFull("the removal of a member", err)
}

// member reads the record of the member, or says that there is none.
func (m *Membership) member(ctx context.Context, s *authority.State, kind,
	name string) (record.Versioned[record.Member],
	error) {
	id, err := memberID(s, kind, name)
	if err != nil {
		return record.Versioned[record.Member]{}, err
	}
	rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return rec, m.cfg.Head.StoreError("read the member", err)
	}
	if !rec.Exists() {
		return rec, errcode.New(errcode.NotFound, "what", "member", "name", string(id.Kind())+"/"+id.Name())
	}
	return rec, nil
}

func memberID(s *authority.State, kind, name string) (identity.ID, error) {
	id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
	if err != nil {
		return id, errcode.Wrap(err, errcode.RequestField, "field", "kind and name", "problem", err.Error())
	}
	return id, nil
}
