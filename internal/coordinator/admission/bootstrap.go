package admission

import (
	"fmt"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// maxBootstrapMembers bounds the members that a node_bootstrap shows: enough to
// find the fleet by, not a directory of it. With nine of ten members gone, one of
// 32 taken at random still answers in 29 of 30 cases; each costs a join 80 bytes
// and a few microseconds at both ends.
const maxBootstrapMembers = 32

// bootstrapLife is the hard end of a node_bootstrap. It is far ahead: what a
// node is does not change until it is told so.
const bootstrapLife = 365 * 24 * time.Hour

// Bootstrap compiles and signs what a node is told when it joins. version is the
// revision of a transaction that wrote rec for this very content, and serves as
// the generation of its publication too. No two contents may share one: the node
// would take the second for an equivocation.
func (a *Admission) Bootstrap(s *authority.State, rec record.Member, version store.Revision,
	now time.Time) (*fealtyv1.SignedSnapshot, error) {
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return nil, err
	}
	roles := rec.RoleNames()
	orgs := slices.Sorted(slices.Values(rec.Organizations))
	entry, ok := s.Manifest.EntryByName(rec.Entry)
	if !ok {
		return nil, fmt.Errorf("entry %s of the member's record is not in the manifest in force",
			rec.Entry) // callers cover first
	}
	content := snapshot.NodeBootstrap{
		ClusterID: s.Manifest.Cluster, Node: id, Kind: rec.Kind, Roles: roles, Organizations: orgs, Entry: rec.Entry,
		Coordinators: a.cfg.Peers.KnownAddresses(),
		RenewEvery:   record.RenewEvery(entry.SVIDTTL).Truncate(time.Second),
		SVIDTTL:      entry.SVIDTTL.Truncate(time.Second),
		Degraded:     record.Degraded(s.Manifest),
		Resilience: snapshot.Resilience{DataMembers: a.cfg.Membership.Roster().Count(identity.Data),
			Required: s.Manifest.Baseline.Data},
	}
	if snapshot.ScopeNodeBootstrap.MayHold(internalsnapshot.SectionMembers, roles) {
		for _, m := range a.cfg.Membership.Roster().VisibleTo(rec, maxBootstrapMembers) {
			other, err := identity.New(s.Manifest.Cluster, m.Kind, m.Name)
			if err != nil {
				return nil, err
			}
			if nameable(other) != nil {
				continue // of an earlier release
			}
			switch m.State {
			case record.Active:
				content.Members = append(content.Members, snapshot.Member{ID: other, State: snapshot.MemberActive})
			case record.Draining:
				content.Members = append(content.Members, snapshot.Member{ID: other, State: snapshot.MemberDraining})
			}
		}
		slices.SortFunc(content.Members, func(x, y snapshot.Member) int { return x.ID.Compare(y.ID) })
	}
	issued := now.UTC().Truncate(time.Second)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID: s.Manifest.Cluster, Subject: snapshot.NodeSubject(id,
			rec.Incarnation), ScopeType: snapshot.ScopeNodeBootstrap,
		Roles: roles, OrganizationIDs: orgs,
		ConfigVersion: uint64(version), AuthorityEpoch: s.Head.AuthorityEpoch,
		IssuedAt: issued, ValidFrom: issued,
		ExpiresAt:    issued.Add(bootstrapLife),
		RefreshAfter: issued.Add(bootstrapLife / 2),
	}, &content)
	if err != nil {
		return nil, err
	}
	t := a.cfg.Bundle.View()
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: s.Manifest.Cluster, AuthorityEpoch: s.Head.AuthorityEpoch, Generation: uint64(version),
		IssuedAt: issued, FreshUntil: issued.Add(entry.SVIDTTL).Truncate(time.Second), Revocations: t.Revocations,
	}, t.Signers(s.Bundle, now)...)
	if err != nil {
		return nil, err
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	return &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeNodeBootstrap), Envelope: raw}, nil
}
