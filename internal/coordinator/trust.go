package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/gauge"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/snapshot"
)

// maxBootstrapMembers bounds the members that a node_bootstrap shows: enough to
// find the fleet by, not a directory of it. With nine of ten members gone, one of
// 32 taken at random still answers in 29 of 30 cases; each costs a join 80 bytes
// and a few microseconds at both ends.
const maxBootstrapMembers = 32

// readTrust reads the inputs of the trust bundle. If the bans are not those that
// the trust state says there are, or the trust state is gone, the error matches
// [store.ErrForged]: no bundle is made of what somebody else left.
func (c *TrustBundle) readTrust(ctx context.Context, s *authority.State) (bundle.Input, error) {
	began := c.cfg.StoreGuard.Begin()
	in, err := bundle.Read(ctx, s.Records, s.Manifest.Cluster)
	if err != nil {
		return in, err
	}
	// First whether all of it is of before: whoever put it back put back the sum too.
	if err := c.cfg.StoreGuard.Compare(ctx, s.StoredHead(), began, in.Seen(s.RestoredEpoch())); err != nil {
		return in, err
	}
	return in, in.Whole()
}

// keptTrust is the trust bundle that goes on in force while the store cannot say which
// is: the one in memory or, after a restart, on disk.
func (c *TrustBundle) keptTrust(s *authority.State) (*bundle.View, error) {
	if have := c.trust.Load(); have != nil && have.Epoch == s.Head.AuthorityEpoch {
		return have, nil
	}
	raw := c.cfg.StoreGuard.Bundle()
	if raw == nil {
		return nil, errors.New("no trust bundle is kept here")
	}
	t, err := s.Bundle.Reopen(raw)
	if err != nil {
		return nil, fmt.Errorf("the trust bundle that is kept here: %w", err)
	}
	if t.Epoch != s.Head.AuthorityEpoch {
		return nil, fmt.Errorf("the trust bundle that is kept here is of authority epoch %d, not %d", t.Epoch,
			s.Head.AuthorityEpoch)
	}
	return t, nil
}

// ensureTrust makes the trust state name the mesh CA key of s, as after a first
// set or a change of authority, and returns the inputs that are then in force. A
// crash between the head's swap and this is healed by the next start.
func (c *TrustBundle) ensureTrust(ctx context.Context, s *authority.State) (bundle.Input, error) {
	for range record.CommitTries {
		in, err := c.readTrust(ctx, s)
		if err != nil {
			if errors.Is(err, store.ErrForged) {
				if moved := c.cfg.Head.ForgedUnder(ctx, s, authority.Suspect{What: "the trust state and the bans",
					Err: err}); moved != nil {
					return in, moved
				}
			}
			return in, err
		}
		now := c.cfg.Now().UTC().Truncate(time.Second)
		next, changed := s.Bundle.Next(in, now)
		if !changed {
			return in, nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(bundle.StateKey, in.State.Version, next)
		if err := c.cfg.Begin(ctx, ch, in.State.Value); err != nil {
			return in, err
		}
		_, err = ch.Commit(ctx)
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && conflict.Key == history.HeadKey:
			return in, err // another head is in force: this state is over
		case err != nil && !errors.Is(err, store.ErrConflict):
			return in, err
		}
	}
	return bundle.Input{}, record.Busy("the trust state")
}

// touchTrust adds to ch a new version of the trust state, so that the bundle
// that ch leads to has a version of its own. What no bundle could be made of is
// refused here, with an error that matches [bundle.ErrFull]: once committed it would
// stop every later ban.
func (c *TrustBundle) touchTrust(ctx context.Context, s *authority.State, ch *record.Change, d bundle.Delta,
	room bundle.Room) error {
	in, err := c.readTrust(ctx, s)
	if err != nil {
		return c.cfg.Head.StoreError("read the trust state", err)
	}
	was := in.State.Version
	next, changed := s.Bundle.Next(in, c.cfg.Now().UTC().Truncate(time.Second))
	if !changed {
		next.Change++
	}
	if d.Edit != nil {
		if err := d.Edit(&next, was); err != nil {
			return err
		}
	}
	in = in.With(d, next)
	next.Bans = in.Sum()
	limit := room.Of(c.cfg.MaxListed)
	if n := len(in.Listed()); n > limit && len(d.Keys) > 0 {
		return fmt.Errorf("%d banned keys would be listed, the limit is %d: %w", n, limit, bundle.ErrFull)
	}
	t, err := s.Bundle.Sign(in, c.cfg.Now())
	if err != nil {
		return fmt.Errorf("%w: %w", bundle.ErrFull, err)
	}
	if have := c.trust.Load(); t.Size > snapshot.DefaultContent-bundle.Reserve && have != nil && t.Size > have.Size {
		return fmt.Errorf("%d bytes, of which %d are kept for the next manifest: %w", t.Size, bundle.Reserve,
			bundle.ErrFull)
	}
	ch.Put(bundle.StateKey, was, next)
	if d.Write != nil {
		d.Write(next.Change)
	}
	return nil
}

// bundleFull words [bundle.ErrFull] for who asked.
func bundleFull(what string, err error) error {
	if !errors.Is(err, bundle.ErrFull) {
		return err
	}
	return explain.Wrap(err, explain.RateLimited, "what", what,
		"limit", fmt.Sprintf("%d banned keys whose certificates are still valid", snapshot.MaxBans))
}

// trustChanged makes what was just committed true here: our own connections
// first, then the members'.
func (c *TrustBundle) trustChanged(ctx context.Context) error {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	if err := c.refreshTrust(ctx, s, false); err != nil {
		// It is durable, and the trust loop goes on trying.
		c.trustDue.Notify()
		return c.cfg.Head.StoreError("read the trust state", err)
	}
	return nil
}

// refreshTrust compiles the bundle if its inputs or, with renew, its age ask for
// it, and puts it into force.
func (c *TrustBundle) refreshTrust(ctx context.Context, s *authority.State, renew bool) (err error) {
	release, err := c.refreshing.Lock(ctx, "trust")
	if err != nil {
		return err
	}
	defer release()
	withdrawn := c.withdrawn.settled()
	in, err := c.ensureTrust(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			c.withdrawn.forget(withdrawn...) // the bundle bans them, or nothing came of it
		}
	}()
	now := c.cfg.Now()
	have := c.trust.Load()
	if have != nil && have.Epoch == s.Head.AuthorityEpoch && have.Version >= uint64(in.State.Version) {
		age := now.Sub(have.IssuedAt)
		fresh := age > -snapshot.ClockTolerance && age < min(bundle.RefreshPause, bundle.Life(s.Manifest)/4)
		if fresh || !renew {
			return nil
		}
	}
	t, err := s.Bundle.Sign(in, now)
	if err != nil {
		return err
	}
	if err := c.believe(t); err != nil {
		return err
	}
	c.cfg.Guard.Sweep(ctx)
	c.bundleChanged.Notify()
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "trust bundle in force", slog.Uint64("config_version", t.Version),
		slog.Uint64("authority_epoch", t.Epoch),
		slog.Int("banned", len(in.BannedIDs)), slog.Int("banned_keys", len(in.BannedKeys)), slog.Int("mesh_keys",
			len(in.State.Value.MeshKeys)))
	return nil
}

// believe puts t into force here, unless a newer one is already.
func (c *TrustBundle) believe(t *bundle.View) error {
	c.trustMu.Lock()
	defer c.trustMu.Unlock()
	if have := c.trust.Load(); have != nil && have.Newer(t) {
		return nil
	}
	if err := c.cfg.Source.Trust(t.Bundle); err != nil {
		return fmt.Errorf("believe the new trust bundle: %w", err)
	}
	c.trust.Store(t)
	c.cfg.StoreGuard.SawBundle(t.Signed)
	return nil
}

// followTrust keeps the bundle up with the store until ctx ends: at once on a
// notice or a change, and every few seconds in case a notice was lost.
func (c *Trust) followTrust(ctx context.Context, s *authority.State) error {
	changed, stop := watch.Key(ctx, c.cfg.Store, bundle.StateKey)
	defer stop()
	for {
		due, confirmed := c.cfg.Bundle.trustDue.Wait(), c.keyConfirmed.Wait()
		if err := c.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		// A head that moved ends this state, and with it ctx.
		err := c.cfg.Bundle.refreshTrust(ctx, s, true)
		if err == nil {
			err = c.followRotation(ctx, s)
		}
		if err != nil && !c.cfg.Head.Conflicts(ctx, err) {
			return err
		}
		if _, err := watch.Wait(ctx, trustPollPause, due, changed, confirmed); err != nil {
			return err
		}
		select {
		case <-confirmed:
			// What one coordinator hears, the others wait for; of many that confirm at
			// once one look is enough.
			if err := watch.Sleep(ctx, confirmPause); err != nil {
				return err
			}
		default:
		}
	}
}

// bootstrap compiles and signs what a node is told when it joins. version is the
// revision of a transaction that wrote rec for this very content, and serves as
// the generation of its publication too. No two contents may share one: the node
// would take the second for an equivocation.
func (c *Admission) bootstrap(s *authority.State, rec record.Member, version store.Revision,
	now time.Time) (*fealtyv1.SignedSnapshot, error) {
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return nil, err
	}
	roles := roleNames(rec.Roles)
	orgs := slices.Sorted(slices.Values(rec.Organizations))
	entry, ok := s.Manifest.EntryByName(rec.Entry)
	if !ok {
		return nil, fmt.Errorf("entry %s of the member's record is not in the manifest in force",
			rec.Entry) // callers cover first
	}
	content := snapshot.NodeBootstrap{
		ClusterID: s.Manifest.Cluster, Node: id, Kind: rec.Kind, Roles: roles, Organizations: orgs, Entry: rec.Entry,
		Coordinators: c.cfg.Membership.knownAddresses(),
		RenewEvery:   lifetimes.RenewEvery(entry.SVIDTTL).Truncate(time.Second),
		SVIDTTL:      entry.SVIDTTL.Truncate(time.Second),
		Degraded:     degradedPolicy(s.Manifest),
		Resilience: snapshot.Resilience{DataMembers: c.cfg.Membership.members.count(identity.Data),
			Required: s.Manifest.Baseline.Data},
	}
	if snapshot.MayHold(snapshot.ScopeNodeBootstrap, snapshot.SectionMembers, roles) {
		for _, m := range c.cfg.Membership.members.visible(rec, maxBootstrapMembers) {
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
		slices.SortFunc(content.Members, func(a, b snapshot.Member) int { return a.ID.Compare(b.ID) })
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
	t := c.cfg.Bundle.trust.Load()
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

// bootstrapLife is the hard end of a node_bootstrap. It is far ahead: what a
// node is does not change until it is told so.
const bootstrapLife = 365 * 24 * time.Hour

// registerMetrics registers which bundle is in force.
func (c *TrustBundle) registerMetrics(reg prometheus.Registerer) {
	reg.MustRegister(
		gauge.Of("fealty_trust_bundle_version",
			"Config version of the trust bundle that is served.",
			func() float64 {
				if t := c.trust.Load(); t != nil {
					return float64(t.Version)
				}
				return 0
			}),
	)
}

// fits reports whether a trust bundle can be made under after.
func (c *TrustBundle) fits(ctx context.Context, from, after *authority.State) (err error) {
	var in bundle.Input
	if from != nil {
		if in, err = c.readTrust(ctx, from); err != nil {
			return c.cfg.Head.StoreError("read the trust state", err)
		}
	}
	next, _ := after.Bundle.Next(in, c.cfg.Now().UTC().Truncate(time.Second))
	if n := len(next.MeshKeys); n > snapshot.MaxMeshKeys {
		return explain.New(explain.RateLimited, "what", "the set, which makes a new mesh CA key,",
			"limit", fmt.Sprintf("%d mesh CA keys whose certificates are still valid", snapshot.MaxMeshKeys))
	}
	if _, err := after.Bundle.Sign(in.With(bundle.Delta{}, next), c.cfg.Now()); err != nil {
		return explain.Wrap(err, explain.RequestField,
			"field", "manifest", "problem", "no trust bundle can be made of it: "+err.Error())
	}
	return nil
}
