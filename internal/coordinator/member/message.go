package member

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// inContact says how a member shows that it is alive, or "" if it does not. A
// coordinator that has only just become ready does not know yet, and says that.
func (m *Membership) inContact(msg *fealtyv1.Member) string {
	now, live := m.cfg.Now(), msg.GetLive()
	switch silent := now.Sub(live.GetLastReport().AsTime()); {
	case record.IsSession(identity.Kind(msg.GetKind())), !now.Before(msg.GetSvidNotAfter().AsTime()):
		return ""
	case live.GetConnected():
		return "it is connected"
	case live.GetLastReport() != nil && silent < peer.SilentAfter:
		return fmt.Sprintf("it reported %v ago", silent.Round(time.Second))
	case now.Sub(m.ListensSince()) < peer.SilentAfter:
		return "this coordinator has been ready for less than " + peer.SilentAfter.String() +
			" and does not know yet whether it is away"
	}
	switch silent, lost := m.cfg.Peers.MayHear(); {
	case lost:
		return "it may be connected to another coordinator, and the store does not say now which there are"
	case len(silent) > 0:
		return strings.Join(silent, ", ") + ", to which it may be connected, does not answer now"
	}
	return ""
}

// memberMessage tells what is recorded and heard of a member.
func (m *Membership) memberMessage(s *authority.State, r record.Member,
	ban record.Versioned[record.Ban]) *fealtyv1.Member {
	id := idOf(s, r)
	msg := &fealtyv1.Member{
		SpiffeId: id.String(), Kind: string(r.Kind), Name: r.Name, State: r.State,
		Organizations: r.Organizations, Domains: r.Domains,
		JoinedAt: timestamppb.New(r.JoinedAt), Entry: r.Entry, KeyId: r.Key.String(),
		SvidNotAfter: timestamppb.New(r.NotAfter),
		Banned:       ban.Exists(), BanReason: ban.Value.Reason,
		ReportedHost: r.Machine.Host, ReportedOs: r.Machine.OS, ReportedAddresses: r.Machine.Addresses,
		SeenAddress: r.SeenAddress, Labels: r.AllLabels(),
		Live: live.Newer(m.live.Message(id), proto.CloneOf(m.cfg.Peers.Live(r.Path()))),
	}
	if msg.Banned {
		msg.State = record.Banned // whatever the record says: nobody of that name is served
	}
	if l := msg.Live; l.GetAutonomousUntil() != nil && l.GetAutonomousUntil().AsTime().After(r.NotAfter) {
		// It cannot last longer than its certificates, whatever it says.
		l.AutonomousUntil, l.AutonomyLimit = msg.SvidNotAfter, limitSVID
	}
	if !record.IsSession(r.Kind) {
		msg.Contact = string(peer.ContactOf(msg.GetLive().GetConnected(), m.cfg.Peers.AllAnswered()))
	}
	if len(r.Selectors) > 0 {
		msg.JoinedBy = r.Selectors[0]
	}
	if !r.Drain.At.IsZero() {
		msg.DrainingSince, msg.DrainedBy, msg.DrainReason = timestamppb.New(r.Drain.At), r.Drain.By, r.Drain.Reason
	}
	for _, role := range r.Roles {
		msg.Roles = append(msg.Roles, string(role))
	}
	return msg
}

// tellWhole adds to what is heard of a member what only who asks for one member is told, as the coordinators say that
// hear of it.
func (m *Membership) tellWhole(ctx context.Context, id identity.ID, of *fealtyv1.Live) {
	path := string(id.Kind()) + "/" + id.Name()
	whole, other := m.live.Whole(id), m.cfg.Peers.Live(path)
	if other != nil && live.Newer(whole, other) != whole {
		whole = live.Newer(whole, m.cfg.Peers.Whole(ctx, path, other))
	}
	of.DegradedPeriods, of.Process = whole.GetDegradedPeriods(), whole.GetProcess()
}
