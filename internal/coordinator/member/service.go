package member

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// memberServer serves MemberService.
type memberServer struct {
	fealtyv1.UnimplementedMemberServiceServer
	c *Membership
}

func (m memberServer) ListMembers(ctx context.Context, req *fealtyv1.ListMembersRequest) (*fealtyv1.ListMembersResponse,
	error) {
	s, err := m.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	prefix := ""
	if k := identity.Kind(req.GetKind()); k != "" {
		if !k.Valid() {
			return nil, errcode.New(errcode.NotFound, "what", "kind", "name", string(k))
		}
		prefix = string(k) + "/"
	}
	from, err := ReadPage(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	keep, err := matching(req)
	if err != nil {
		return nil, err
	}
	msgs, next, since, err := m.c.List(ctx, s, prefix, from, keep)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.ListMembersResponse{Members: msgs, NextPageToken: next, KnownAt: since}
	if from.First() {
		for _, path := range m.c.members.Forged() {
			if strings.HasPrefix(path, prefix) {
				out.Altered = record.AddAltered(out.Altered, path)
			}
		}
	}
	return out, nil
}

func (m memberServer) GetMember(ctx context.Context, req *fealtyv1.GetMemberRequest) (*fealtyv1.GetMemberResponse,
	error) {
	return m.c.Get(ctx, req.GetKind(), req.GetName())
}

// Get returns one member, with all that is kept and heard of it.
func (m *Membership) Get(ctx context.Context, kind, name string) (*fealtyv1.GetMemberResponse, error) {
	s, err := m.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	id, err := memberID(s, kind, name)
	if err != nil {
		return nil, err
	}
	asking, cancel := m.cfg.Head.Patience(ctx)
	defer cancel()
	out, err := m.recorded(asking, s, id)
	var since *timestamppb.Timestamp
	if authority.OutOfReach(ctx, asking, err) {
		confirmed := m.cfg.Head.Confirmed()
		err = m.cfg.Head.Degraded("read the member", err)
		if _, err := m.cfg.Head.DegradedState("read the member", err); err != nil {
			return nil, err
		}
		rec, ok := m.members.Find(string(id.Kind()) + "/" + id.Name())
		if !ok {
			return nil, err // it may have joined since
		}
		out, since, err = m.memberMessage(s, rec, m.knownBan(s, rec)), timestamppb.New(confirmed), nil
	}
	if err != nil {
		return nil, err
	}
	resp := &fealtyv1.GetMemberResponse{Member: out, KnownAt: since}
	for _, b := range m.beside {
		if since != nil || b.AboutMember(asking, s, id, resp) != nil {
			resp.Unknown = append(resp.Unknown, b.Unknown())
		}
	}
	return resp, nil
}

// recorded returns a member as the store has it.
func (m *Membership) recorded(ctx context.Context, s *authority.State, id identity.ID) (*fealtyv1.Member, error) {
	rec, err := m.member(ctx, s, string(id.Kind()), id.Name())
	if err != nil {
		return nil, err
	}
	ban, err := m.shownBan(ctx, s, rec.Value)
	if err != nil {
		return nil, m.cfg.Head.StoreError("read the ban of a member", err)
	}
	m.cfg.Peers.Hear(ctx, s)
	out := m.memberMessage(s, rec.Value, ban)
	if out.Live != nil {
		m.tellWhole(ctx, id, out.Live)
	}
	return out, nil
}

// DrainMember marks a member that is to go. The mark is its record's own, so that
// renewals, returns and replacements keep it.
func (m memberServer) DrainMember(ctx context.Context, req *fealtyv1.DrainMemberRequest) (*fealtyv1.DrainMemberResponse,
	error) {
	if _, err := m.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	if record.IsSession(identity.Kind(req.GetKind())) {
		return nil, errcode.New(errcode.RequestField,
			"field", "kind", "problem", "it is the session of a person or a tool, which never owns anything: remove "+
				"or ban it")
	}
	mark := record.DrainMark{At: m.c.cfg.Now().UTC(), By: record.Actor(ctx), Reason: req.GetReason()}
	member, changed, err := m.mark(ctx, req, "drain the member", "member.drain", mark)
	return &fealtyv1.DrainMemberResponse{Member: member, Changed: changed}, err
}

func (m memberServer) UndrainMember(ctx context.Context,
	req *fealtyv1.UndrainMemberRequest) (*fealtyv1.UndrainMemberResponse, error) {
	if _, err := m.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	member, changed, err := m.mark(ctx, req, "undrain the member", "member.undrain", record.DrainMark{})
	return &fealtyv1.UndrainMemberResponse{Member: member, Changed: changed}, err
}

// markRequest is a request to drain a member, or to drain it no more.
type markRequest interface {
	GetKind() string
	GetName() string
	GetDryRun() bool
}

// mark gives a member the mark, the zero one for none, and reports whether that
// is news.
func (m memberServer) mark(ctx context.Context, req markRequest, what, action string,
	mark record.DrainMark) (member *fealtyv1.Member, changed bool, err error) {
	c := m.c
	err = c.ChangeMemberLater(ctx, req.GetKind(), req.GetName(), what,
		func(s *authority.State, rec record.Versioned[record.Member], ch *record.Change) (bool, error) {
			ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(rec.Value.Kind, rec.Value.Name))
			if err != nil {
				return false, c.cfg.Head.StoreError("read the ban of a member", err)
			}
			if changed = rec.Value.Drain.At.IsZero() != mark.At.IsZero(); changed {
				rec.Value.Drain = mark
				if rec.Value.Held() {
					rec.Value.State = rec.Value.HeldState()
				}
			}
			member = c.memberMessage(s, rec.Value, ban)
			if !changed || req.GetDryRun() {
				return false, nil
			}
			ch.Put(record.MemberKey(rec.Value.Kind, rec.Value.Name), rec.Version, rec.Value)
			ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: action, Target: rec.Value.Path(),
				Reason: mark.Reason})
			return true, nil
		})
	return member, changed && err == nil, err
}

// RemoveMember deletes the record of a member that owns nothing, and bans its
// keys: its SVID would otherwise go on until it expires. A member that is at work
// is refused, as somebody may have named the wrong one, unless it drains or the
// removal is forced.
func (m memberServer) RemoveMember(ctx context.Context,
	req *fealtyv1.RemoveMemberRequest) (*fealtyv1.RemoveMemberResponse, error) {
	if _, err := m.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	action := "member.remove"
	if req.GetForce() {
		if action = "member.remove.force"; req.GetReason() == "" {
			return nil, errcode.New(errcode.RequestField,
				"field", "reason", "problem", "it is empty, and the removal is forced: say why, for the audit log")
		}
	}
	var out *fealtyv1.RemoveMemberResponse
	err := m.c.changeMember(ctx, req.GetKind(), req.GetName(), "remove the member",
		func(s *authority.State, rec record.Versioned[record.Member], ch *record.Change) (bool, error) {
			ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(rec.Value.Kind, rec.Value.Name))
			if err != nil {
				return false, m.c.cfg.Head.StoreError("read the ban of a member", err)
			}
			m.c.cfg.Peers.Hear(ctx, s)
			out = &fealtyv1.RemoveMemberResponse{Member: m.c.memberMessage(s, rec.Value, ban)}
			if n := len(rec.Value.Domains); n > 0 {
				return false, errcode.New(errcode.MemberOwnsDomains, "member", rec.Value.Path(),
					"domains", humanize.Plural(n, "domain", "domains"))
			}
			if rec.Value.State == record.Active && !ban.Exists() && !req.GetForce() {
				if seen := m.c.inContact(out.GetMember()); seen != "" {
					return false, errcode.New(errcode.MemberInContact, "member", rec.Value.Path(), "seen", seen)
				}
			}
			if req.GetDryRun() {
				return false, nil
			}
			return true, m.c.RemoveRecord(ctx, s, ch, rec, record.Actor(ctx), action, req.GetReason())
		})
	return out, err
}

func (m memberServer) ReplaceMember(ctx context.Context,
	req *fealtyv1.ReplaceMemberRequest) (*fealtyv1.ReplaceMemberResponse, error) {
	if _, err := m.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	var out *fealtyv1.ReplaceMemberResponse
	err := m.c.changeMember(ctx, req.GetKind(), req.GetName(), "replace the member",
		func(s *authority.State, rec record.Versioned[record.Member], ch *record.Change) (bool, error) {
			out = &fealtyv1.ReplaceMemberResponse{Member: m.c.memberMessage(s, rec.Value,
				record.Versioned[record.Ban]{})}
			if req.GetDryRun() || rec.Value.State == record.Replacing {
				return false, nil
			}
			ch.Withdraws = rec.Value.Path()
			err := m.c.banKeys(ctx, s, ch, rec.Value, record.Ban{Reason: "replaced: " + req.GetReason(),
				By: record.Actor(ctx), At: m.c.cfg.Now().UTC()}, bundle.Delta{}, bundle.ForOthers)
			if err != nil {
				return false, current.WordFull("the replacement of a member", err)
			}
			rec.Value.State = record.Replacing
			out.Member.State = record.Replacing
			ch.Put(record.MemberKey(rec.Value.Kind, rec.Value.Name), rec.Version, rec.Value)
			ch.Audit(m.c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "member.replace",
				Target: rec.Value.Path(), Reason: req.GetReason()})
			return true, nil
		})
	return out, err
}
