package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/trustbundle"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/presence"
	"github.com/fealty-io/fealty/internal/store"
)

// memberServer serves MemberService.
type memberServer struct {
	fealtyv1.UnimplementedMemberServiceServer
	c *Membership
}

// registerServices registers the services over members, and over the other coordinators that
// hear them.
func (c *Membership) registerServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterMemberServiceServer(to, memberServer{c: c})
	fealtyv1.RegisterCoordinatorServiceServer(to, coordinatorServer{c: c})
	fealtyv1.RegisterLiveServiceServer(to, liveServer{c: c})
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
			return nil, explain.New(explain.NotFound, "what", "kind", "name", string(k))
		}
		prefix = string(k) + "/"
	}
	from, err := readPage(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	keep, err := matching(req)
	if err != nil {
		return nil, err
	}
	msgs, next, since, err := m.c.memberPage(ctx, s, prefix, from, keep)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.ListMembersResponse{Members: msgs, NextPageToken: next, KnownAt: since}, nil
}

// maxPageSize is how many members a page holds at most.
const maxPageSize = 1000

// A page is where a page of members begins. Its token is the path of the last member that
// was sent, so that members that come and go between pages neither hide nor double those
// that stay, with the revision of the store that the first page was made of: the pages
// after it are of no earlier one, whichever coordinator makes them.
type page struct {
	size  int
	after string         // path of the last member of the page before; empty: none
	at    store.Revision // of the first page; 0: this is the first, or one of an earlier release asked before
}

func (p page) first() bool { return p.after == "" }

// token returns the token of the page after one that ends with last.
func (p page) token(last *fealtyv1.Member) string {
	return fmt.Sprintf("%s/%s@%d", last.GetKind(), last.GetName(), p.at)
}

// readPage checks what a call asks for. Size 0 is as many as a page has at most.
func readPage(size uint32, token string) (page, error) {
	p := page{size: int(size)}
	if size > maxPageSize {
		return p, explain.New(explain.RequestField,
			"field", "page_size", "problem", fmt.Sprintf("it is %d, and a page has at most %d", size, maxPageSize))
	}
	if size == 0 {
		p.size = maxPageSize
	}
	if token == "" {
		return p, nil
	}
	bad := explain.New(explain.RequestField, "field", "page_token", "problem", "it is not one that this call gave out")
	path, revision, ok := strings.Cut(token, "@")
	if ok {
		n, err := strconv.ParseUint(revision, 10, 63)
		if err != nil {
			return p, bad
		}
		p.at = store.Revision(n)
	}
	kind, name, ok := strings.Cut(path, "/")
	if !ok || !identity.Kind(kind).Valid() || name == "" || len(path) > identity.MaxIDBytes {
		return p, bad
	}
	p.after = path
	return p, nil
}

// cut returns the page of members that begins at p, and the token of what follows.
func (p page) cut(members []*fealtyv1.Member) ([]*fealtyv1.Member, string) {
	i, _ := slices.BinarySearchFunc(members, p.after, func(m *fealtyv1.Member, after string) int {
		if after != "" && m.GetKind()+"/"+m.GetName() <= after {
			return -1
		}
		return 1
	})
	members = members[i:]
	if len(members) <= p.size {
		return members, ""
	}
	return members[:p.size], p.token(members[p.size-1])
}

func (m memberServer) GetMember(ctx context.Context, req *fealtyv1.GetMemberRequest) (*fealtyv1.GetMemberResponse,
	error) {
	s, err := m.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	id, err := memberID(s, req.GetKind(), req.GetName())
	if err != nil {
		return nil, err
	}
	asking, cancel := m.c.cfg.Head.Patience(ctx)
	defer cancel()
	out, err := m.recorded(asking, s, id)
	var since *timestamppb.Timestamp
	if authority.OutOfReach(ctx, asking, err) {
		confirmed := m.c.cfg.Head.Confirmed()
		err = authority.InOutage("read the member", err)
		if _, err := m.c.cfg.Head.Alone("read the member", err); err != nil {
			return nil, err
		}
		rec, ok := m.c.members.Find(string(id.Kind()) + "/" + id.Name())
		if !ok {
			return nil, err // it may have joined since
		}
		out, since, err = m.c.memberMessage(s, rec, m.c.knownBan(s, rec)), timestamppb.New(confirmed), nil
	}
	if err != nil {
		return nil, err
	}
	return &fealtyv1.GetMemberResponse{Member: out, KnownAt: since}, nil
}

// recorded returns a member as the store has it.
func (m memberServer) recorded(ctx context.Context, s *authority.State, id identity.ID) (*fealtyv1.Member, error) {
	rec, err := m.c.member(ctx, s, string(id.Kind()), id.Name())
	if err != nil {
		return nil, err
	}
	ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(rec.Value.Kind, rec.Value.Name))
	if err != nil {
		return nil, m.c.cfg.Head.StoreError("read the ban of a member", err)
	}
	m.c.hearOthers(ctx, s)
	out := m.c.memberMessage(s, rec.Value, ban)
	if out.Live != nil {
		out.Live.DegradedPeriods = m.c.degradedPeriods(ctx, s, id)
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
		return nil, explain.New(explain.RequestField,
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
	err = c.changeMemberLater(ctx, req.GetKind(), req.GetName(), what,
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
			return nil, explain.New(explain.RequestField,
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
			m.c.hearOthers(ctx, s)
			out = &fealtyv1.RemoveMemberResponse{Member: m.c.memberMessage(s, rec.Value, ban)}
			if n := len(rec.Value.Domains); n > 0 {
				return false, explain.New(explain.MemberOwnsDomains, "member", rec.Value.Path(),
					"domains", fmt.Sprint(n))
			}
			if rec.Value.State == record.Active && !ban.Exists() && !req.GetForce() {
				if seen := m.c.inContact(out.GetMember()); seen != "" {
					return false, explain.New(explain.MemberInContact, "member", rec.Value.Path(), "seen", seen)
				}
			}
			if req.GetDryRun() {
				return false, nil
			}
			return true, m.c.removeRecord(ctx, s, ch, rec, record.Actor(ctx), action, req.GetReason())
		})
	return out, err
}

// inContact says how a member shows that it is alive, or "" if it does not. A
// coordinator that has only just become ready does not know yet, and says that.
func (c *Membership) inContact(m *fealtyv1.Member) string {
	now, live := c.cfg.Now(), m.GetLive()
	switch silent := now.Sub(live.GetLastReport().AsTime()); {
	case record.IsSession(identity.Kind(m.GetKind())), !now.Before(m.GetSvidNotAfter().AsTime()):
		return ""
	case live.GetConnected():
		return "it is connected"
	case live.GetLastReport() != nil && silent < replicas.SilentAfter:
		return fmt.Sprintf("it reported %v ago", silent.Round(time.Second))
	case now.Sub(c.hearsSince()) < replicas.SilentAfter:
		return "this coordinator has been ready for less than " + replicas.SilentAfter.String() +
			" and does not know yet whether it is away"
	}
	switch quiet, lost := c.quietOthers(); {
	case lost:
		return "it may be connected to another coordinator, and the store does not say now which there are"
	case len(quiet) > 0:
		return strings.Join(quiet, ", ") + ", to which it may be connected, does not answer now"
	}
	return ""
}

// quietOthers names the coordinators to which a member may be connected without saying so
// here: they do not answer, and did a short while ago. It reports true if nobody could say
// which others there are.
func (c *Membership) quietOthers() (names []string, lost bool) {
	silent, lost := c.others.quiet()
	for _, r := range silent {
		if since, expected := c.presence.Silent(r.Key, c.cfg.Elapsed()); expected && since < replicas.SilentAfter {
			names = append(names, r.Name)
		}
	}
	return names, lost
}

// hearsAll reports whether everybody answered who may hear a member, when they were asked
// last, and this coordinator has listened for long enough to know.
func (c *Membership) hearsAll() bool {
	silent, lost := c.others.quiet()
	return !lost && len(silent) == 0 && c.presence.Settled(c.cfg.Elapsed())
}

// contacts counts what is heard of members.
func (c *Membership) contacts(members []*fealtyv1.Member) *fealtyv1.Contacts {
	out := &fealtyv1.Contacts{}
	for _, m := range members {
		if m.GetBanned() || m.GetState() == record.Replacing {
			continue
		}
		switch presence.Contact(m.GetContact()) {
		case presence.Connected:
			out.Connected++
		case presence.NotHeard:
			out.NotHeard++
		case presence.Unknown:
			out.Unknown++
		}
	}
	silent, _ := c.others.quiet()
	for _, r := range silent {
		out.Unanswered = append(out.Unanswered, r.Name)
	}
	return out
}

// hearsSince is since when members can report to this coordinator.
func (c *Membership) hearsSince() time.Time { return time.Unix(0, c.hears.Load()) }

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
				return false, trustbundle.WordFull("the replacement of a member", err)
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

// BanMember forbids an identity and every key that its record remembers. An
// identity that nobody holds can be banned too, before it joins.
func (m memberServer) BanMember(ctx context.Context, req *fealtyv1.BanMemberRequest) (*fealtyv1.BanMemberResponse,
	error) {
	c := m.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if req.GetReason() == "" {
		return nil, explain.New(explain.RequestField,
			"field", "reason", "problem", "it is empty: say why, for the audit log")
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	out := &fealtyv1.BanMemberResponse{}
	// Counted from before the commit: the loop that follows the store may be first.
	mark := c.ended.Mark()
	// A ban must not fail for want of room: the identity alone keeps its
	// certificates out, and lifting its ban bans the keys.
	withKeys := true
	for range record.CommitTries {
		s, err := c.cfg.Head.InForce(ctx)
		if err != nil {
			return nil, err
		}
		id, err := memberID(s, req.GetKind(), req.GetName())
		if err != nil {
			return nil, err
		}
		if id.Kind() == identity.Coordinator {
			return nil, explain.New(explain.RequestField, "field", "kind", "problem",
				"every process believes coordinators by the manifest, so banning one would lock everybody out: take "+
					"it out of the manifest, by a set")
		}
		rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
		if err != nil {
			return nil, c.cfg.Head.StoreError("read the member", err)
		}
		old, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(id.Kind(), id.Name()))
		if err != nil {
			return nil, c.cfg.Head.StoreError("read the ban", err)
		}
		ban := record.Ban{Reason: req.GetReason(), By: record.Actor(ctx), At: c.cfg.Now().UTC()}
		if rec.Exists() {
			out.Member = c.memberMessage(s, rec.Value, record.Versioned[record.Ban]{Value: ban, Version: 1})
		}
		if req.GetDryRun() {
			return out, nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		// The record does not change, but what is banned must be what it says.
		ch.Require(record.MemberKey(id.Kind(), id.Name()), rec.Version)
		banned := rec.Value
		if !withKeys {
			banned = record.Member{}
		}
		switch err := c.banKeys(ctx, s, ch, banned, ban, bundle.Delta{Ban: []identity.ID{id},
			Write: func(counter uint64) {
				ban.Counter = counter
				ch.Put(record.BanIDKey(id.Kind(), id.Name()), old.Version, ban)
			}}, bundle.ForBans); {
		case errors.Is(err, bundle.ErrFull) && withKeys:
			withKeys = false
			continue
		case err != nil:
			return nil, trustbundle.WordFull("the ban", err)
		}
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: ban.By, Action: "member.ban", Target: id.String(),
			Reason: ban.Reason})
		ch.Withdraws = string(id.Kind()) + "/" + id.Name()
		switch err := c.cfg.Bundle.Withdraw(ctx, ch); {
		case err == nil:
			if err := c.cfg.Head.Made(ctx, "the ban", c.cfg.Bundle.Apply(ctx)); err != nil {
				return out, err
			}
			out.Ended = c.endedEverywhere(ctx, s, id, mark)
			for _, at := range out.Ended {
				out.ConnectionsClosed += at.GetConnections()
			}
			return out, nil
		case !c.cfg.Head.Conflicts(ctx, err):
			return nil, c.cfg.Head.StoreError("ban the member", err)
		}
	}
	return nil, record.Busy("member " + req.GetName())
}

// UnbanMember lifts the ban of an identity. The keys stay banned, so the member
// needs a proof as at first; until then its name waits for it.
func (m memberServer) UnbanMember(ctx context.Context, req *fealtyv1.UnbanMemberRequest) (*fealtyv1.UnbanMemberResponse,
	error) {
	c := m.c
	for range record.CommitTries {
		s, err := c.cfg.Head.InForce(ctx)
		if err != nil {
			return nil, err
		}
		id, err := memberID(s, req.GetKind(), req.GetName())
		if err != nil {
			return nil, err
		}
		ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(id.Kind(), id.Name()))
		if err != nil {
			return nil, c.cfg.Head.StoreError("read the ban", err)
		}
		if !ban.Exists() {
			return nil, explain.New(explain.NotFound, "what", "ban", "name", string(id.Kind())+"/"+id.Name())
		}
		rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
		if err != nil {
			return nil, c.cfg.Head.StoreError("read the member", err)
		}
		out := &fealtyv1.UnbanMemberResponse{KeysBannedFor: durationpb.New(lifetimes.KeyMemory(s.Manifest))}
		if req.GetDryRun() {
			return out, nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Delete(record.BanIDKey(id.Kind(), id.Name()), ban.Version)
		ch.Write(record.UnbanKey(id.Kind(), id.Name()), record.Unban{Counter: ban.Value.Counter, By: record.Actor(ctx),
			At: c.cfg.Now().UTC()})
		kept := record.Ban{Reason: ban.Value.Reason, By: ban.Value.By, At: c.cfg.Now().UTC()}
		if err := c.banKeys(ctx, s, ch, rec.Value, kept, bundle.Delta{Unban: []identity.ID{id}},
			bundle.ForBans); err != nil {
			return nil, trustbundle.WordFull("lifting the ban, which bans the member's keys instead,", err)
		}
		if rec.Exists() && rec.Value.Held() {
			rec.Value.State = record.Replacing
			ch.Put(record.MemberKey(id.Kind(), id.Name()), rec.Version, rec.Value)
		} else {
			ch.Require(record.MemberKey(id.Kind(), id.Name()), rec.Version)
		}
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "member.unban", Target: id.String()})
		switch _, err := ch.Commit(ctx); {
		case err == nil:
			return out, c.cfg.Head.Made(ctx, "the end of the ban", c.cfg.Bundle.Apply(ctx))
		case !c.cfg.Head.Conflicts(ctx, err):
			return nil, c.cfg.Head.StoreError("lift the ban", err)
		}
	}
	return nil, record.Busy("member " + req.GetName())
}

// changeMember is changeMemberLater with the trust bundle that follows in force
// before it returns.
func (c *Membership) changeMember(ctx context.Context, kind, name, what string,
	f func(*authority.State, record.Versioned[record.Member], *record.Change) (bool, error)) error {
	done := false
	err := c.changeMemberLater(ctx, kind, name, what, func(s *authority.State, rec record.Versioned[record.Member],
		ch *record.Change) (_ bool, err error) {
		done, err = f(s, rec, ch)
		return done, err
	})
	if err != nil {
		return err
	}
	if err = c.cfg.Bundle.Apply(ctx); done {
		err = c.cfg.Head.Made(ctx, "the change of the member", err)
	}
	return err
}

// changeMemberLater reads the member, lets f fill a transaction, and commits it,
// again from the start if somebody was first. f answers false for nothing to do.
func (c *Membership) changeMemberLater(ctx context.Context, kind, name, what string,
	f func(*authority.State, record.Versioned[record.Member], *record.Change) (bool, error)) error {
	for range record.CommitTries {
		s, err := c.cfg.Head.InForce(ctx)
		if err != nil {
			return err
		}
		rec, err := c.member(ctx, s, kind, name)
		if err != nil {
			return err
		}
		ch := s.Records.NewChange(s.HeadVersion)
		if do, err := f(s, rec, ch); err != nil || !do {
			return err
		}
		switch err := c.cfg.Bundle.Withdraw(ctx, ch); {
		case err == nil:
			c.cfg.Bundle.LookAgain()
			return nil
		case !c.cfg.Head.Conflicts(ctx, err):
			return c.cfg.Head.StoreError(what, err)
		}
	}
	return record.Busy("member " + name)
}

// removeRecord adds to ch what deletes rec and bans its keys.
func (c *Membership) removeRecord(ctx context.Context, s *authority.State, ch *record.Change,
	rec record.Versioned[record.Member], by, action, reason string) error {
	m := rec.Value
	ch.Delete(record.MemberKey(m.Kind, m.Name), rec.Version)
	ch.Withdraws = m.Path()
	if err := c.recount(ctx, s, ch, m.Entry, ""); err != nil {
		return err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: by, Action: action, Target: m.Path(), Reason: reason})
	err := c.banKeys(ctx, s, ch, m, record.Ban{Reason: action, By: by, At: c.cfg.Now().UTC()}, bundle.Delta{},
		bundle.ForOthers)
	return trustbundle.WordFull("the removal of a member", err)
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
		next.CertEnd = record.Later(k.NotAfter.Add(lifetimes.CertMargin), old.Value.CertEnd)
		if k.Key == m.Key {
			// A machine that came in under two names may hold this one under the other.
			next.CertEnd = record.Later(next.CertEnd, ban.At.Add(s.Manifest.LongestSVIDTTL()+lifetimes.CertMargin))
		}
		next.Until = record.Later(record.Later(ban.At.Add(lifetimes.KeyMemory(s.Manifest)), next.CertEnd),
			old.Value.Until)
		if old.Exists() && !next.Until.After(old.Value.Until) && !next.CertEnd.After(old.Value.CertEnd) {
			continue
		}
		ch.Put(record.BanKeyKey(k.Key), old.Version, next)
		d.Keys = append(d.Keys, bundle.KeyBan{Key: k.Key, CertEnd: next.CertEnd})
	}
	return c.cfg.Bundle.Touch(ctx, s, ch, d, room)
}

// member reads the record of the member, or says that there is none.
func (c *Membership) member(ctx context.Context, s *authority.State, kind,
	name string) (record.Versioned[record.Member],
	error) {
	id, err := memberID(s, kind, name)
	if err != nil {
		return record.Versioned[record.Member]{}, err
	}
	rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return rec, c.cfg.Head.StoreError("read the member", err)
	}
	if !rec.Exists() {
		return rec, explain.New(explain.NotFound, "what", "member", "name", string(id.Kind())+"/"+id.Name())
	}
	return rec, nil
}

func memberID(s *authority.State, kind, name string) (identity.ID, error) {
	id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
	if err != nil {
		return id, explain.Wrap(err, explain.RequestField, "field", "kind and name", "problem", err.Error())
	}
	return id, nil
}

// memberPage returns the page of the members below prefix that begins at from, of those
// that keep takes, or nil of all, and the
// token of what follows. While the store is out of reach these are the members as they
// were last known, and since is when.
func (c *Membership) memberPage(ctx context.Context, s *authority.State, prefix string, from page,
	keep func(record.Member) bool) (msgs []*fealtyv1.Member, next string, since *timestamppb.Timestamp, err error) {
	asking, cancel := c.cfg.Head.Patience(ctx)
	defer cancel()
	ban := func(record.Member) record.Versioned[record.Ban] { return record.Versioned[record.Ban]{} }
	from.at, err = c.syncMembers(asking, s, from.at)
	if err == nil {
		ban, err = c.bans(asking, s)
	}
	if authority.OutOfReach(ctx, asking, err) {
		confirmed := c.cfg.Head.Confirmed()
		if _, err := c.cfg.Head.Alone("list members", authority.InOutage("list members", err)); err != nil {
			return nil, "", nil, err
		}
		since, err = timestamppb.New(confirmed), nil
		ban = func(r record.Member) record.Versioned[record.Ban] { return c.knownBan(s, r) }
	}
	if err != nil {
		return nil, "", nil, err
	}
	c.hearOthers(ctx, s)
	recs, more := c.members.Page(prefix, from.after, from.size, keep)
	for _, r := range recs {
		msgs = append(msgs, c.memberMessage(s, r, ban(r)))
	}
	if more {
		next = from.token(msgs[len(msgs)-1])
	}
	return msgs, next, since, nil
}

// syncMembers has the member index hold what the store held at revision at, which a page
// before this one was made of, or with at 0 what it holds now. It returns the revision
// from which on it does. What the index has already is not decoded again.
func (c *Membership) syncMembers(ctx context.Context, s *authority.State, at store.Revision) (store.Revision, error) {
	if at != 0 && c.members.Holds(at) {
		return at, nil
	}
	l, err := c.cfg.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return 0, c.cfg.Head.StoreError("list members", err)
	}
	have, listed := c.members.Versions(), make(map[string]bool, len(l.Entries))
	var news []record.Versioned[record.Member]
	for _, e := range l.Entries {
		path := e.Key[len(record.MemberPrefix):]
		listed[path] = true
		if have[path] == e.Version {
			if _, err := s.Records.Open(e.Key, e.Value); err != nil {
				return 0, c.cfg.Head.StoreError("list members", err)
			}
			continue
		}
		r, err := record.Open[record.Member](s.Records, e)
		if err != nil {
			return 0, c.cfg.Head.StoreError("list members", err)
		}
		news = append(news, r)
	}
	c.members.CatchUp(listed, news, l.Revision)
	return max(l.Revision, 1), nil
}

// recordedMembers returns all members as the store has them, for who counts them, and the
// revision that they are of.
func (c *Membership) recordedMembers(ctx context.Context, s *authority.State) ([]*fealtyv1.Member, store.Revision,
	error) {
	at, err := c.syncMembers(ctx, s, 0)
	if err != nil {
		return nil, 0, err
	}
	ban, err := c.bans(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	c.hearOthers(ctx, s)
	recs := c.members.All()
	out := make([]*fealtyv1.Member, 0, len(recs))
	for _, r := range recs {
		out = append(out, c.memberMessage(s, r, ban(r)))
	}
	return out, at, nil
}

// bans returns what says how a member is banned.
func (c *Membership) bans(ctx context.Context, s *authority.State) (func(record.Member) record.Versioned[record.Ban],
	error) {
	all, err := c.banned(ctx, s)
	return func(r record.Member) record.Versioned[record.Ban] { return all[r.Path()] }, err
}

// banned returns the bans of identities by "<kind>/<name>".
func (c *Membership) banned(ctx context.Context, s *authority.State) (map[string]record.Versioned[record.Ban], error) {
	l, err := c.cfg.Store.List(ctx, record.BanIDPrefix)
	if err != nil {
		return nil, c.cfg.Head.StoreError("list bans", err)
	}
	out := make(map[string]record.Versioned[record.Ban], len(l.Entries))
	for _, e := range l.Entries {
		b, err := record.Open[record.Ban](s.Records, e)
		if err != nil {
			return nil, c.cfg.Head.StoreError("read a ban", err)
		}
		out[e.Key[len(record.BanIDPrefix):]] = b
	}
	return out, nil
}

func (c *Membership) memberMessage(s *authority.State, r record.Member,
	ban record.Versioned[record.Ban]) *fealtyv1.Member {
	id, err := identity.New(s.Manifest.Cluster, r.Kind, r.Name)
	if err != nil {
		panic("a member's record under the MAC has no identity: " + err.Error())
	}
	m := &fealtyv1.Member{
		SpiffeId: id.String(), Kind: string(r.Kind), Name: r.Name, State: r.State,
		Organizations: r.Organizations, Domains: r.Domains,
		JoinedAt: timestamppb.New(r.JoinedAt), Entry: r.Entry, KeyId: r.Key.String(),
		SvidNotAfter: timestamppb.New(r.NotAfter),
		Banned:       ban.Exists(), BanReason: ban.Value.Reason,
		ReportedHost: r.Machine.Host, ReportedOs: r.Machine.OS, ReportedAddresses: r.Machine.Addresses,
		SeenAddress: r.SeenAddress, Labels: r.AllLabels(),
		Live: newerLive(c.live.Message(id), proto.CloneOf(c.others.of(r.Path()))),
	}
	if l := m.Live; l.GetAutonomousUntil() != nil && l.GetAutonomousUntil().AsTime().After(r.NotAfter) {
		// It cannot last longer than its certificates, whatever it says.
		l.AutonomousUntil, l.AutonomyLimit = m.SvidNotAfter, "svid"
	}
	if !record.IsSession(r.Kind) {
		m.Contact = string(presence.ContactOf(m.GetLive().GetConnected(), c.hearsAll()))
	}
	if len(r.Selectors) > 0 {
		m.JoinedBy = r.Selectors[0]
	}
	if !r.Drain.At.IsZero() {
		m.DrainingSince, m.DrainedBy, m.DrainReason = timestamppb.New(r.Drain.At), r.Drain.By, r.Drain.Reason
	}
	for _, role := range r.Roles {
		m.Roles = append(m.Roles, string(role))
	}
	return m
}
