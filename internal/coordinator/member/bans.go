package member

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// BanMember forbids an identity and every key that its record remembers. An
// identity that nobody holds can be banned too, before it joins.
func (m memberServer) BanMember(ctx context.Context, req *fealtyv1.BanMemberRequest) (*fealtyv1.BanMemberResponse,
	error) {
	c := m.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if req.GetReason() == "" {
		return nil, errcode.New(errcode.RequestField,
			"field", "reason", "problem", "it is empty: say why, for the audit log")
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	// Counted from before the commit: the loop that follows the store may be first.
	mark := c.ended.Mark()
	out := &fealtyv1.BanMemberResponse{}
	err := c.cfg.Head.Transact(ctx, "member "+req.GetName(), func(s *authority.State) error {
		path, err := m.ban(ctx, s, req, true, out)
		if errors.Is(err, bundle.ErrFull) {
			// A ban must not fail for want of room: the identity alone keeps its
			// certificates out, and lifting its ban bans the keys.
			path, err = m.ban(ctx, s, req, false, out)
		}
		if err != nil || path == "" {
			return current.WordFull("the ban", err)
		}
		if err := c.cfg.Head.Made(ctx, "the ban", c.cfg.Bundle.Apply(ctx)); err != nil {
			return err
		}
		out.Ended = c.cfg.Peers.Ended(ctx, s, path, &fealtyv1.EndedConnections{
			Coordinator: c.cfg.Self.NameIn(s.Manifest), Answered: true, Connections: c.ended.After(path, mark),
		})
		for _, at := range out.Ended {
			out.ConnectionsClosed += at.GetConnections()
		}
		return nil
	})
	return out, err
}

// ban commits the ban that req asks for, with the member's keys or without, and returns the path of the member;
// nothing of a dry run. The member as it shows it is put into out. The error matches [bundle.ErrFull] if the
// keys have no room, and [store.ErrConflict] if it is to be decided again.
func (m memberServer) ban(ctx context.Context, s *authority.State, req *fealtyv1.BanMemberRequest, withKeys bool,
	out *fealtyv1.BanMemberResponse) (path string, err error) {
	c := m.c
	id, err := memberID(s, req.GetKind(), req.GetName())
	if err != nil {
		return "", err
	}
	if id.Kind() == identity.Coordinator {
		return "", errcode.New(errcode.RequestField, "field", "kind", "problem",
			"every process believes coordinators by the manifest, so banning one would lock everybody out: take "+
				"it out of the manifest, by a set")
	}
	rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return "", c.cfg.Head.StoreError("read the member", err)
	}
	old, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(id.Kind(), id.Name()))
	if err != nil {
		return "", c.cfg.Head.StoreError("read the ban", err)
	}
	ban := record.Ban{Reason: req.GetReason(), By: record.Actor(ctx), At: c.cfg.Now().UTC()}
	if rec.Exists() {
		out.Member = c.memberMessage(s, rec.Value, record.Versioned[record.Ban]{Value: ban, Version: 1})
	}
	if req.GetDryRun() {
		return "", nil
	}
	ch := s.Records.NewChange(s.HeadVersion)
	// The record does not change, but what is banned must be what it says.
	ch.Require(record.MemberKey(id.Kind(), id.Name()), rec.Version)
	banned := rec.Value
	if !withKeys {
		banned = record.Member{}
	}
	if err := c.banKeys(ctx, s, ch, banned, ban, bundle.Delta{Ban: []identity.ID{id},
		Write: func(counter uint64) {
			ban.Counter = counter
			ch.Put(record.BanIDKey(id.Kind(), id.Name()), old.Version, ban)
		}}, bundle.ForBans); err != nil {
		return "", err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: ban.By, Action: "member.ban", Target: id.String(),
		Reason: ban.Reason})
	path = string(id.Kind()) + "/" + id.Name()
	ch.Withdraws = path
	if err := c.cfg.Bundle.Withdraw(ctx, ch); err != nil {
		return "", c.cfg.Head.CommitError("ban the member", err)
	}
	return path, nil
}

// UnbanMember lifts the ban of an identity. The keys stay banned, so the member
// needs a proof as at first; until then its name waits for it.
func (m memberServer) UnbanMember(ctx context.Context, req *fealtyv1.UnbanMemberRequest) (*fealtyv1.UnbanMemberResponse,
	error) {
	c := m.c
	var out *fealtyv1.UnbanMemberResponse
	err := c.cfg.Head.Transact(ctx, "member "+req.GetName(), func(s *authority.State) error {
		id, err := memberID(s, req.GetKind(), req.GetName())
		if err != nil {
			return err
		}
		ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(id.Kind(), id.Name()))
		if err != nil {
			return c.cfg.Head.StoreError("read the ban", err)
		}
		if !ban.Exists() {
			return errcode.New(errcode.NotFound, "what", "ban", "name", string(id.Kind())+"/"+id.Name())
		}
		rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
		if err != nil {
			return c.cfg.Head.StoreError("read the member", err)
		}
		out = &fealtyv1.UnbanMemberResponse{KeysBannedFor: durationpb.New(record.KeyMemory(s.Manifest))}
		if req.GetDryRun() {
			return nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Delete(record.BanIDKey(id.Kind(), id.Name()), ban.Version)
		ch.Write(record.UnbanKey(id.Kind(), id.Name()), record.Unban{Counter: ban.Value.Counter, By: record.Actor(ctx),
			At: c.cfg.Now().UTC(), AuthorityEpoch: s.Head.AuthorityEpoch})
		kept := record.Ban{Reason: ban.Value.Reason, By: ban.Value.By, At: c.cfg.Now().UTC()}
		if err := c.banKeys(ctx, s, ch, rec.Value, kept, bundle.Delta{Unban: []identity.ID{id}},
			bundle.ForBans); err != nil {
			return current.WordFull("lifting the ban, which bans the member's keys instead,", err)
		}
		if rec.Exists() && rec.Value.Held() {
			rec.Value.State = record.Replacing
			ch.Put(record.MemberKey(id.Kind(), id.Name()), rec.Version, rec.Value)
		} else {
			ch.Require(record.MemberKey(id.Kind(), id.Name()), rec.Version)
		}
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "member.unban", Target: id.String()})
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("lift the ban", err)
		}
		return c.cfg.Head.Made(ctx, "the end of the ban", c.cfg.Bundle.Apply(ctx))
	})
	return out, err
}

// banKeys adds to ch a ban of every key that m remembers, and the version of the
// trust state that it and d lead to; the zero m has no keys. A key is refused
// here until no holder of it can be in grace, and listed in the bundle for as long
// as a certificate over it can be valid.
func (c *Membership) banKeys(ctx context.Context, s *authority.State, ch *record.Change, m record.Member,
	ban record.Ban,
	d bundle.Delta, room bundle.Room) error {
	for _, k := range m.Keys() {
		if k.Key.IsZero() {
			continue
		}
		old, err := record.Get[record.Ban](ctx, s.Records, record.BanKeyKey(k.Key))
		if err != nil {
			return c.cfg.Head.StoreError("read a banned key", err)
		}
		next := ban
		next.CertEnd = record.Later(k.NotAfter.Add(record.CertMargin), old.Value.CertEnd)
		if k.Key == m.Key {
			// A machine that came in under two names may hold this one under the other.
			next.CertEnd = record.Later(next.CertEnd, ban.At.Add(s.Manifest.LongestSVIDTTL()+record.CertMargin))
		}
		next.Until = record.Later(record.Later(ban.At.Add(record.KeyMemory(s.Manifest)), next.CertEnd),
			old.Value.Until)
		if old.Exists() && !next.Until.After(old.Value.Until) && !next.CertEnd.After(old.Value.CertEnd) {
			continue
		}
		ch.Put(record.BanKeyKey(k.Key), old.Version, next)
		d.Keys = append(d.Keys, bundle.KeyBan{Key: k.Key, CertEnd: next.CertEnd})
	}
	return c.cfg.Bundle.Touch(ctx, s, ch, d, room)
}
