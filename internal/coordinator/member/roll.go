package member

import (
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// A Roll is all members at one moment, for who counts them and looks for what is wrong. Most members of a fleet are well:
// of them nothing but their number is said, and no message is made.
type Roll struct {
	// Counts counts all members.
	Counts *fealtyv1.MemberCounts
	// Said are the members of whom there may be more to say than that they are well, sorted by path.
	Said []*fealtyv1.Member
	// Well counts the others, by kind: they are active, in date, not banned and connected, and nothing of what is heard
	// of them is for somebody to look at.
	Well map[identity.Kind]uint32
	// Page is the page that was asked for, and Next the token of what follows.
	Page []*fealtyv1.Member
	Next string

	unanswered []string // coordinators that did not say whom they hear
}

// RollCall goes through all members as they were known when they were read last, whose bans were read with them. at is
// the time to which they are compared, and from the page that is asked for, the first one; the zero page is none.
func (m *Membership) RollCall(s *authority.State, bans *bundle.IDBans, at time.Time, from Page) *Roll {
	m.idBans.Store(bans)
	return m.roll(s, m.bansOf(s, bans), at, from)
}

// RollKnown is [Membership.RollCall] while the store is out of reach: the bundle in force says who is banned.
func (m *Membership) RollKnown(s *authority.State, at time.Time, from Page) *Roll {
	return m.roll(s, m.bansInForce(s), at, from)
}

// glanced is how many members are glanced at at once: nobody is kept from reporting for longer.
const glanced = 500

func (m *Membership) roll(s *authority.State, ban banOf, at time.Time, from Page) *Roll {
	out := &Roll{Counts: &fealtyv1.MemberCounts{}, Well: make(map[identity.Kind]uint32)}
	revision := m.cfg.StoreGuard.Revision()
	above := func(h *fealtyv1.HeldVersion) bool { return claimOf("", h).Above(s.Head.AuthorityEpoch, revision) }
	elsewhere := m.cfg.Peers.AllLive()
	entries := m.members.Entries(func(r record.Member) identity.ID { return idOf(s, r) })
	var ids []identity.ID
	var here []live.Glance
	for some := range slices.Chunk(entries, glanced) {
		ids = ids[:0]
		for _, e := range some {
			ids = append(ids, e.ID())
		}
		here = m.live.Glances(here[:0], ids, above)
		for i, e := range some {
			banned := ban(e.path, e.Value)
			var heard live.Glance
			well := e.Value.State == record.Active && at.Before(e.Value.NotAfter) && !record.IsSession(e.Value.Kind) &&
				!banned.Exists()
			if well {
				heard, well = here[i].Well(elsewhere[e.path], above)
			}
			var msg *fealtyv1.Member
			if !well || len(out.Page) < from.size {
				msg = m.memberMessage(s, e.Value, banned)
			}
			if len(out.Page) < from.size {
				out.Page = append(out.Page, msg)
			}
			if !well {
				out.Said = append(out.Said, msg)
				condition.Add(out.Counts, msg, at)
				continue
			}
			out.Well[e.Value.Kind]++
			kind := string(e.Value.Kind)
			condition.AddConnected(out.Counts, kind)
			if until, limit, said := aloneUntil(e.Value, heard); said {
				condition.AddAlone(out.Counts, kind, e.Value.Name, until, limit)
			}
		}
	}
	if len(out.Page) > 0 && len(out.Page) < len(entries) {
		out.Next = from.token(out.Page[len(out.Page)-1])
	}
	silent, _ := m.cfg.Peers.Unanswered()
	for _, r := range silent {
		out.unanswered = append(out.unanswered, r.Name)
	}
	return out
}

// aloneUntil is until when a member works without a coordinator, as it said, and why no longer; said is false if it said
// nothing of that, and then there is no such time. It cannot last longer than its certificates, whatever it says.
func aloneUntil(r record.Member, heard live.Glance) (until time.Time, limit string, said bool) {
	if heard.AloneUntil == nil {
		return time.Time{}, "", false
	}
	if until = heard.AloneUntil.AsTime(); until.After(r.NotAfter) {
		return r.NotAfter, limitSVID, true
	}
	return until, heard.AloneLimit, true
}

// limitSVID says that a member cannot work alone for longer than its certificate counts.
const limitSVID = "svid"

// idOf is the identity of a member in the cluster of s.
func idOf(s *authority.State, r record.Member) identity.ID {
	id, err := identity.New(s.Manifest.Cluster, r.Kind, r.Name)
	if err != nil {
		panic("a member's record under the MAC has no identity: " + err.Error())
	}
	return id
}

// NeedSomebody returns the first of the members that need somebody at a time, size of them at most.
func (r *Roll) NeedSomebody(at time.Time, size int) []*fealtyv1.Member {
	need := condition.NeedSomebody(r.Said, at)
	return need[:min(len(need), size)]
}

// Contacts counts what is heard of members.
func (r *Roll) Contacts() *fealtyv1.Contacts {
	out := &fealtyv1.Contacts{Unanswered: r.unanswered}
	for _, n := range r.Well {
		out.Connected += n
	}
	for _, one := range r.Said {
		if one.GetBanned() || one.GetState() == record.Replacing {
			continue
		}
		switch peer.Contact(one.GetContact()) {
		case peer.Connected:
			out.Connected++
		case peer.NotHeard:
			out.NotHeard++
		case peer.Unknown:
			out.Unknown++
		}
	}
	return out
}
