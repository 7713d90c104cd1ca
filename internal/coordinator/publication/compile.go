package publication

import (
	"context"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// compileRuntime makes the content of a member's node_runtime, by the manifest in
// force. It is a function of what the store holds. False: the member is told
// nothing, because no entry covers it or its name waits for a new machine.
//
// Its companions are the scopes of its group; the caller adds what it is assigned.
func compileRuntime(s *authority.State, rec record.Member, coordinators []string) (*snapshot.NodeRuntime, bool) {
	doing, ok := runtimeState(rec)
	if !ok {
		return nil, false
	}
	rec, entry, ok := covered(s, rec)
	if !ok {
		return nil, false
	}
	return runtimeContent(s, rec, doing, entry, coordinators), true
}

// covered returns a node's record as the manifest in force has it, and the entry
// that covers it.
func covered(s *authority.State, rec record.Member) (record.Member, *manifest.Entry, bool) {
	if record.IsSession(rec.Kind) {
		return rec, nil, false
	}
	found, ok := s.Manifest.Match(rec.Kind, rec.Selectors)
	if !ok {
		return rec, nil, false
	}
	rec.Cover(found.Entry)
	return rec, found.Entry, true
}

// compiled returns a member as the compiler sees it; ok is false where the manifest
// in force has no such member.
func compiled(s *authority.State, rec record.Member) (m compile.Member, ok bool) {
	rec, _, ok = covered(s, rec)
	if !ok {
		return m, false
	}
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return m, false
	}
	doing, _ := runtimeState(rec)
	return compile.Member{ID: id, Group: groupOfRecord(rec), State: doing, Outsider: rec.Outsider()}, true
}

// runtimeContent is what a member that entry covers is told.
func runtimeContent(s *authority.State, rec record.Member, doing snapshot.MemberState, entry *manifest.Entry,
	coordinators []string) *snapshot.NodeRuntime {
	group := groupOfRecord(rec)
	content := &snapshot.NodeRuntime{
		ClusterID: s.Manifest.Cluster, Kind: rec.Kind, Entry: rec.Entry, State: doing,
		Roles: group.Roles, Organizations: group.Organizations, Companions: group.Scopes(),
		Coordinators: coordinators,
		RenewEvery:   record.RenewEvery(entry.SVIDTTL).Truncate(time.Second),
		SVIDTTL:      entry.SVIDTTL.Truncate(time.Second),
	}
	if snapshot.ScopeNodeRuntime.MayHold(internalsnapshot.SectionDegraded, content.Roles) {
		policy := record.Degraded(s.Manifest)
		content.Degraded = &policy
	}
	return content
}

// contentsFit reports whether the members of each entry can be told what they are. An
// entry whose cannot would admit nobody, and its members would hear of no change.
func (c *Publication) contentsFit(after *authority.State) error {
	for i := range after.Manifest.Admit {
		e := &after.Manifest.Admit[i]
		if record.IsSession(e.Kind) || e.Kind == identity.Coordinator {
			continue
		}
		rec := record.Member{Kind: e.Kind, Name: e.Name}
		rec.Cover(e)
		content := runtimeContent(after, rec, snapshot.MemberActive, e, c.cfg.Addresses)
		t, err := nodeTarget(after, snapshot.ScopeNodeRuntime, rec, groupOfRecord(rec))
		if err == nil {
			_, _, _, err = compileHeader(after, t, content, nil, 1, c.cfg.Now())
		}
		if err != nil {
			return errcode.Wrap(err, errcode.RequestField,
				"field", "manifest", "problem", fmt.Sprintf("the members of entry %s could not be told what they are: "+
					"%v", e.Name, err))
		}
	}
	return nil
}

// runtimeState is what a member is told that it is doing.
func runtimeState(rec record.Member) (snapshot.MemberState, bool) {
	switch rec.State {
	case record.Active:
		return snapshot.MemberActive, true
	case record.Draining:
		return snapshot.MemberDraining, true
	}
	return "", false
}

// target is for whom a header is made.
type target struct {
	HeaderPath
	subject   snapshot.Subject
	group     compile.Group
	withdrawn bool // one of its roles is revoked: it is given nothing that is for its group
}

// gets returns the group whose headers go to the target's subject; empty: none.
func (t target) gets() string {
	if t.withdrawn {
		return ""
	}
	return groupOf(t.group)
}

// nodeTarget is a member, in one of the scopes of its own.
func nodeTarget(s *authority.State, scope snapshot.Scope, rec record.Member, g compile.Group) (target, error) {
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return target{}, err
	}
	return target{HeaderPath: nodePath(scope, rec.Path()), subject: snapshot.NodeSubject(id, rec.Incarnation),
		group: g}, nil
}

// groupTarget is a group, in one of its scopes.
func groupTarget(scope snapshot.Scope, g compile.Group) target {
	return target{HeaderPath: groupPath(scope, groupOf(g)), subject: g.Subject(), group: g}
}

// errContentTooLarge: no store takes it.
var errContentTooLarge = fmt.Errorf("the content has more than %d bytes", maxStoredContent)

// compileHeader makes the header of a target for generation, or returns the one
// that it has: equal content keeps its version, and is written again only to
// extend its validity. changed is false for the latter. raw is the exact bytes of
// the content.
func compileHeader(s *authority.State, t target, content snapshot.Content, old *Published, generation uint64,
	now time.Time) (h Published, raw []byte, changed bool, err error) {
	issued := now.UTC().Truncate(time.Second)
	header := snapshot.Header{
		ClusterID: s.Manifest.Cluster, Subject: t.subject, ScopeType: t.Scope,
		Roles: t.group.Roles, OrganizationIDs: t.group.Organizations,
		ConfigVersion: generation, AuthorityEpoch: s.Head.AuthorityEpoch,
		IssuedAt: issued, ValidFrom: issued,
		ExpiresAt: issued.Add(HeaderLife), RefreshAfter: issued.Add(HeaderLife / 2),
	}
	record := HeaderRecord{
		Subject: t.subject.String(), Group: t.gets(), AuthorityEpoch: header.AuthorityEpoch, IssuedAt: issued,
	}
	follows := old != nil && old.Header.Subject == record.Subject && old.Header.Group == record.Group &&
		old.Header.AuthorityEpoch == record.AuthorityEpoch
	draft, err := snapshot.Compose(header, content)
	if err != nil {
		return Published{}, nil, false, err
	}
	if len(draft.ContentBytes()) > maxStoredContent {
		return Published{}, nil, false, errContentTooLarge
	}
	record.Content = draft.Header().ContentHash.String()
	renewed := false
	if follows && old.Header.Content == record.Content {
		age := issued.Sub(old.Header.IssuedAt)
		if age > -internalsnapshot.ClockTolerance && age < HeaderLife/2 {
			return *old, nil, false, nil
		}
		renewed = age > 0 // one from a clock that was ahead could not be renewed, and takes a version
	}
	switch {
	case renewed:
		header.ConfigVersion = old.Header.ConfigVersion
		record.BaseVersion, record.Base = old.Header.BaseVersion, old.Header.Base
	case follows && t.Scope.Increments():
		record.BaseVersion, record.Base = old.Header.ConfigVersion, old.Header.Content
	}
	if record.Base != "" {
		hash, err := snapshot.ParseDigest(record.Base)
		if err != nil {
			return Published{}, nil, false, err
		}
		header.Base = &snapshot.Base{ConfigVersion: record.BaseVersion, ContentHash: hash}
	}
	if renewed || header.Base != nil {
		if draft, err = snapshot.Compose(header, content); err != nil {
			return Published{}, nil, false, err
		}
	}
	record.Header, record.ConfigVersion = draft.HeaderBytes(), header.ConfigVersion
	return Published{HeaderPath: t.HeaderPath, Header: record, Leaf: draft.Leaf()}, draft.ContentBytes(), true, nil
}

// signRecord signs the record over p's tree for generation.
func signRecord(s *authority.State, t *bundle.View, p *View, generation uint64,
	now time.Time) (*snapshot.Publication, snapshot.Record, error) {
	issued := now.UTC().Truncate(time.Second)
	r := snapshot.Record{
		ClusterID: s.Manifest.Cluster, AuthorityEpoch: s.Head.AuthorityEpoch, Generation: generation,
		Root: p.Tree.Root(), TreeSize: uint64(p.Tree.Size()),
		IssuedAt: issued, FreshUntil: issued.Add(Fresh), Revocations: t.Revocations,
	}
	signed, err := r.Sign(t.Signers(s.Bundle, now)...)
	return signed, r, err
}

// Fits reports whether everybody can be told what another manifest means.
func (c *Publication) Fits(_ context.Context, from, after *authority.State) error {
	if from != nil && from.Manifest.Hash() == after.Manifest.Hash() {
		return nil
	}
	return c.contentsFit(after)
}
