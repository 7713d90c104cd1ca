package accept

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// HearLinks keeps the newest links that somebody sent, for the bundle that follows.
func (n *Node) HearLinks(ctx context.Context, links [][]byte) {
	size := 0
	for _, raw := range links {
		size += len(raw)
	}
	if len(links) == 0 || len(links) > state.MaxLinks || size > state.MaxLinkBytes {
		return
	}
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return
	}
	defer release()
	next := *n.trustState.Load()
	next.Links = slices.Clone(links)
	n.trustState.Store(&next)
}

// enrolAnew puts a grant into use by which the node is in another incarnation: what
// is signed for the old one is void. It is one write, as a join is. The caller holds
// n.activation.
func (n *Node) enrolAnew(ctx context.Context, got *state.Admitted) error {
	got.After, _ = got.After.Pruned()
	entry, err := got.Journal(n.me.Addresses, n.Clock.Now())
	if err != nil {
		return err
	}
	if err := n.store.CommitJoin(entry); err != nil {
		return fmt.Errorf("keep the new enrolment: %w", err)
	}
	n.owed.marksDirty = false
	n.Clock.Learn(got.After.Marks)
	// Snapshots for the old incarnation would only be refused at the next start.
	var void []string
	for _, scope := range state.Scopes {
		if scope == snapshot.ScopeTrustBundle {
			continue
		}
		void = append(void, dir.SnapshotName(scope, dir.Pending), dir.SnapshotName(scope, dir.Previous))
		if got.After.Active[scope] == nil {
			void = append(void, dir.SnapshotName(scope, dir.Active))
		}
	}
	if err := n.store.Remove(void...); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "snapshots for the old incarnation are not removed", slog.Any("err", err))
	}
	got.Me.Anchor = entry.Anchor
	n.enrolled.Store(&got.Me)
	n.trustState.Store(got.After)
	if err := n.source.Adopt(got.Material); err != nil {
		return fmt.Errorf("use the new identity: %w", err)
	}
	n.svid.Store(&got.SVID)
	n.arrival.early = nil
	for _, scope := range state.Scopes {
		n.accepted(ctx, scope)
	}
	clear(n.files.receipts)
	for scope := range got.After.Active {
		n.files.receipts[scope] = state.Receipt{At: n.Clock.Now(), From: state.ByGrant}
	}
	n.files.derive(ctx)
	n.reports.Changed(state.Scopes[:]...)
	n.log.LogAttrs(ctx, slog.LevelInfo, "enrolled anew", slog.String("key", got.SVID.Key.ID.String()),
		slog.Time("svid_not_after", got.Material.NotAfter()))
	return nil
}

// Renew verifies a renewed chain in full, and hands it to f under n.activation.
func (n *Node) Renew(ctx context.Context, key dir.KeyPair, ders [][]byte,
	f func(context.Context, dir.SVID, *credential.Material) error) error {
	chain, err := dir.ParseChain(ders, dir.SVIDCertificates)
	if err != nil {
		return fmt.Errorf("the renewed certificate: %w", err)
	}
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	// The bundle that is believed now, under the lock that keeps it from changing: an
	// older one would take back a ban.
	now, err := n.source.Current(ctx)
	if err != nil {
		return err
	}
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key.Signer(), Bundle: now.Bundle(),
		Now: n.Clock.Now})
	switch {
	case err != nil:
		return fmt.Errorf("the renewed certificate: %w", err)
	case m.ID() != n.me.ID:
		return fmt.Errorf("the renewed certificate is of %s, this node is %s", m.ID(), n.me.ID)
	case identity.KeyOf(chain[2]) != n.Self().Pin:
		return errors.New("the renewed certificate leads to another root than the pinned one")
	}
	return f(ctx, dir.SVID{Key: key, Chain: chain}, m)
}

// Present makes an identity durable, then uses it. The caller holds n.activation and
// verified both.
//
// Its key is durable already. So a disk that does not take the certificate, refused, is no
// reason to let the one before run out: the next start finds the key, and asks for another
// one.
func (n *Node) Present(ctx context.Context, s dir.SVID, m *credential.Material) (refused, err error) {
	refused = n.store.WriteSVID(s)
	if refused == nil {
		if err := n.Faults.Hit("adopt.after-svid"); err != nil {
			return nil, err
		}
	}
	if err := n.source.Adopt(m); err != nil {
		return refused, fmt.Errorf("use the new identity: %w", err)
	}
	n.svid.Store(&s)
	n.log.LogAttrs(ctx, slog.LevelInfo, "identity renewed", slog.String("member", n.me.ID.String()),
		slog.String("key", s.Key.ID.String()), slog.Time("svid_not_after", m.NotAfter()))
	n.reports.Report()
	return refused, nil
}

// Granted says of a grant from whom it is, and what for.
type Granted struct {
	Address string
	Pin     identity.KeyID // of the root under which it was asked for
	Key     dir.KeyPair
	Moved   *trust.RootChange // what is followed by it; nil: the root stays
}

// Rejoin verifies a grant for the node that this is, and puts it into use: anew says
// that all that the node had was replaced. Otherwise the snapshots in it are in use, unless
// the disk did not take them, and adopt puts the identity into use.
func (n *Node) Rejoin(ctx context.Context, grant *fealtyv1.JoinGrant, of Granted,
	adopt func(ctx context.Context, s dir.SVID, m *credential.Material, unkept error) error) (anew bool, err error) {
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	me := n.Self()
	w := state.Wanted{Cluster: me.Cluster, Kind: me.Kind, Pin: of.Pin, Key: of.Key, Me: &me,
		TrustState: n.trustState.Load(), Moved: of.Moved}
	if of.Moved != nil {
		// Of what is signed under the old root the marks alone count.
		w.TrustState = &state.TrustState{Ledger: state.Ledger{Marks: w.TrustState.Marks}}
	}
	got, err := state.VerifyRejoin(grant, w, n.Clock.Now)
	if err != nil {
		return false, errcode.Wrap(err, errcode.JoinGrantRefused, "coordinator", of.Address, "problem", err.Error())
	}
	switch {
	case of.Moved != nil:
		err = n.followRoot(ctx, got)
	case got.Me.Incarnation != me.Incarnation:
		err = n.enrolAnew(ctx, got)
	default:
		unkept := n.activate(ctx, state.ByGrant, got.Accepted)
		if unkept != nil {
			// The snapshots beside the certificate are taken again when the disk takes them. The
			// certificate itself brings the connections back, by the bundle that came too.
			n.log.LogAttrs(ctx, slog.LevelError, "snapshots of a rejoin not kept, the ones in use stay",
				slog.Any("err", unkept))
		}
		return false, adopt(ctx, got.SVID, got.Material, unkept)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", state.ErrStorage, err)
	}
	return true, nil
}

// A cluster that was reseeded has another root. A node follows it on the word of the
// signers alone, whom it knows from its trust bundle: it verifies the change of root
// that they signed, and then comes back under the new root by a proof of its last key.
// The grant is verified in full and put in place by one durable write, like a
// join; until then it stays what it was.
//
// It hears of a change over its stream. One that was away finds coordinators that it
// cannot verify, and asks them for the changes: these need no trust in who sends them.

// HearChanges verifies changes of root, and reports whether they lead from the root
// that the node pins to one that is news.
func (n *Node) HearChanges(ctx context.Context, encoded [][]byte) bool {
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return false
	}
	defer release()
	me := n.Self()
	change, err := verifyChanges(encoded, n.trustState.Load(), me.Pin)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, trust.ErrNoRootChange) && len(encoded) == 0 {
			level = slog.LevelDebug
		}
		n.log.LogAttrs(ctx, level, "no change of root is believed, the pinned one stays",
			slog.String("root", me.Pin.String()), slog.String("reason", err.Error()))
		return false
	}
	if old := n.moved.Load(); old != nil && old.Root == change.Root {
		return false // it is being followed, as fast as that is tried again
	}
	n.moved.Store(&change)
	n.log.LogAttrs(ctx, slog.LevelWarn, "the signers of the cluster authorized another root",
		slog.String("root", me.Pin.String()),
		slog.String("next", change.Root.String()), slog.Uint64("seed_epoch", change.SeedEpoch))
	return true
}

// verifyChanges decides where the root that a node pins went. It is pure.
func verifyChanges(encoded [][]byte, b *state.TrustState, pin identity.KeyID) (trust.RootChange, error) {
	// An expired bundle will do: who signs is not a matter of its date, and the way back
	// must not end with it.
	bundle := b.Stale
	if h := b.Active[snapshot.ScopeTrustBundle]; h != nil {
		bundle = h.Verified
	}
	if bundle == nil {
		return trust.RootChange{}, errors.New("there is no trust bundle that names the signers")
	}
	if len(encoded) > internalsnapshot.MaxRootChanges {
		return trust.RootChange{}, fmt.Errorf("%d changes of root, limit %d",
			len(encoded), internalsnapshot.MaxRootChanges)
	}
	var signed []*trust.SignedRootChange
	for _, raw := range encoded {
		s, err := trust.UnmarshalRootChange(raw)
		if err != nil {
			return trust.RootChange{}, err
		}
		signed = append(signed, s)
	}
	return trust.VerifyRootChanges(signed, bundle, pin)
}

// trustAhead has connections trust the bundle under the root that comes, before the
// node itself is under it: its peers change their certificates in the same moments.
// It reports whether raw is such a bundle. The caller holds n.activation.
func (n *Node) trustAhead(raw []byte) bool {
	change := n.moved.Load()
	if change == nil {
		return false
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return false
	}
	me := n.Self()
	me.ConfigRoot = change.ConfigRoot
	b := n.trustState.Load()
	d, err := state.Decide(me, &state.TrustState{Ledger: state.Ledger{Marks: b.Marks}}, signed, n.Clock.Now())
	if err != nil {
		return false
	}
	content, ok := d.V.TrustBundle()
	if !ok {
		return false
	}
	trust, err := content.Identity()
	if err != nil || !state.Names(trust, change.Root) {
		return false
	}
	return n.source.Trust(trust) == nil
}

// followRoot puts a grant under another root in place of all that the node had. The
// caller holds n.activation.
func (n *Node) followRoot(ctx context.Context, got *state.Admitted) error {
	if err := n.enrolAnew(ctx, got); err != nil {
		return err
	}
	n.moved.Store(nil)
	// Snapshots under the old root would only be refused at the next start.
	var stale []string
	for _, scope := range state.Scopes {
		stale = append(stale, dir.SnapshotName(scope, dir.Pending), dir.SnapshotName(scope, dir.Previous))
		if !slices.ContainsFunc(got.Accepted,
			func(t state.AcceptedSnapshot) bool { return t.V.Header().ScopeType == scope }) {
			stale = append(stale, dir.SnapshotName(scope, dir.Active))
		}
	}
	if err := n.store.Remove(stale...); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "snapshots under the old root are not removed", slog.Any("err", err))
	}
	n.log.LogAttrs(ctx, slog.LevelInfo, "the node is under the new root", slog.String("root", got.Me.Pin.String()),
		slog.String("key", got.SVID.Key.ID.String()))
	return nil
}
