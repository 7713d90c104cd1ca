package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// operatorChanged is closed when other files of the operator's PKI are in use. It is
// nil, which blocks for ever, without any.
func (a *Agent) operatorChanged() <-chan struct{} {
	if a.operator == nil {
		return nil
	}
	return a.operator.Changed()
}

// reenrol comes back by the operator's certificate, for a node whose last certified
// key counts for nothing any more: as the member that it was, in a new incarnation.
//
// The caller has the answer that the grace is over, which is given only to who proves
// the last certified key: nobody else got this identity since. An older key and a record
// that is gone or given away have other answers, and are left to people; a ban of the
// identity is looked at again with the certificate.
func (a *Agent) reenrol(ctx context.Context, key dir.KeyPair, graceOver error) error {
	a.log.LogAttrs(ctx, slog.LevelInfo, "the grace for the last key is over, proving the operator's certificate", slog.String("reason", state.OneLine(graceOver)))
	err := somewhere(ctx, a.me.Cluster, a.addresses(), func(ctx context.Context, address string) error {
		return a.rejoinAt(ctx, address, enroll.ProverOf(a.operator), key)
	})
	if err == nil {
		a.log.LogAttrs(ctx, slog.LevelInfo, "the node is back by the operator's certificate", slog.String("incarnation", a.self().Incarnation.String()))
	}
	return err
}

// enrolAnew puts a grant into use by which the node is in another incarnation: what
// is signed for the old one is void. It is one write, as a join is. The caller holds
// a.activation.
func (a *Agent) enrolAnew(ctx context.Context, got *state.Admitted) error {
	got.After, _ = got.After.Pruned()
	entry, err := enroll.JournalOf(got, a.me.Addresses, a.now())
	if err != nil {
		return err
	}
	if err := a.store.CommitJoin(entry); err != nil {
		return fmt.Errorf("keep the new enrolment: %w", err)
	}
	a.marksDirty = false
	a.clock.Learn(got.After.Marks)
	// What is signed for the old incarnation would only be refused at the next start.
	var void []string
	for _, scope := range state.Scopes {
		if scope == snapshot.ScopeTrustBundle {
			continue
		}
		void = append(void, dir.SnapshotName(scope, dir.Pending), dir.SnapshotName(scope, dir.Previous))
		if got.After.Held[scope] == nil {
			void = append(void, dir.SnapshotName(scope, dir.Active))
		}
	}
	if err := a.store.Remove(void...); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "snapshots for the old incarnation are not removed", slog.Any("err", err))
	}
	got.Me.Anchor = entry.Anchor
	a.enrolled.Store(&got.Me)
	a.beliefs.Store(got.After)
	if err := a.source.Adopt(got.Material); err != nil {
		return fmt.Errorf("use the new identity: %w", err)
	}
	a.svid.Store(&got.SVID)
	a.next, a.early = nil, nil
	for _, scope := range state.Scopes {
		a.accepted(ctx, scope)
	}
	clear(a.receipts)
	for scope := range got.After.Held {
		a.receipts[scope] = state.Receipt{At: a.now(), From: state.ByGrant}
	}
	a.derive(ctx)
	a.changed(state.Scopes[:]...)
	a.log.LogAttrs(ctx, slog.LevelInfo, "enrolled anew", slog.String("key", got.SVID.Key.ID.String()), slog.Time("svid_not_after", got.Material.NotAfter()))
	return nil
}
