package accept

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// forgive ends the refusals of what the node is not to hold any more: nothing will take
// the place of what was refused. The caller holds n.activation.
func (n *Node) forgive(ctx context.Context) {
	b, ended := n.trustState.Load(), false
	for _, r := range n.status.Refusals() {
		if !b.Concerns(snapshot.Scope(r.Scope)) {
			ended = n.status.Resolved(r.Scope) || ended
			delete(n.arrival.early, r.Scope)
		}
	}
	if ended {
		n.keepRefusals(ctx)
	}
}

// drop notes what the node may not hold any more, for finishDrops. It is out of use
// already. The caller holds n.activation.
func (n *Node) drop(ctx context.Context, gone []snapshot.Scope) {
	for _, scope := range gone {
		n.log.LogAttrs(ctx, slog.LevelInfo, "snapshot dropped, the node_runtime does not give it any more",
			slog.String("scope", string(scope)))
		if n.status.Resolved(string(scope)) {
			n.keepRefusals(ctx)
		}
		delete(n.arrival.early, string(scope))
		delete(n.Trials.Since, scope)
		n.owed.dropping = append(n.owed.dropping, scope)
	}
}

// finishDrops removes from the disk what was dropped. A start would not use it, and
// remove it: what the disk does not do now is done later.
func (n *Node) finishDrops(ctx context.Context) {
	var left []snapshot.Scope
	b := n.trustState.Load()
	for _, scope := range n.owed.dropping {
		if b.Active[scope] != nil {
			continue // it was given again, and its files are the new ones
		}
		if err := n.store.Remove(dir.FilesOf(scope)...); err != nil {
			n.log.LogAttrs(ctx, slog.LevelWarn, "a dropped snapshot is still on disk, trying again",
				slog.String("scope", string(scope)), slog.Any("err", err))
			left = append(left, scope)
		}
	}
	n.owed.dropping = left
}

// ApplyEmergency verifies a statement of the signers, keeps it and acts on it; with dry it
// tells what that would do.
func (n *Node) ApplyEmergency(ctx context.Context, raw []byte, dry bool) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	b := n.trustState.Load()
	refused := func(err error) error {
		n.log.LogAttrs(ctx, slog.LevelWarn, "an emergency statement was refused",
			slog.String("reason", state.OneLine(err)))
		return errcode.Wrap(err, errcode.EmergencyRefused, "problem", state.EmergencyProblem(err))
	}
	bundle := b.Bundle()
	if bundle == nil {
		return nil, refused(errors.New("there is no trust bundle that names the signers"))
	}
	content, _ := bundle.TrustBundle()
	signed, err := trust.UnmarshalEmergency(raw)
	if err != nil {
		return nil, refused(err)
	}
	e, err := signed.Verify(content)
	if err != nil {
		return nil, refused(err)
	}
	statements, news, err := trust.AddEmergency(b.Emergencies, e)
	if err != nil {
		return nil, refused(err)
	}
	next := *b
	next.Emergencies, next.Statements = statements, state.WithStatement(b.Statements, raw)
	if next.Contact, err = content.IdentityWith(next.Stated()); err != nil {
		return nil, refused(err)
	}
	out := &fealtyv1.ApplyNodeEmergencyResponse{Changed: news}
	for scope, h := range b.Active {
		if next.Revocations().Distrusts(h.Verified) {
			out.Distrusted = append(out.Distrusted, string(scope))
		}
	}
	slices.Sort(out.Distrusted)
	if dry {
		return out, nil
	}
	// Also one that is in force already: what the disk lost of all of them is there again.
	kept, _, damage := n.store.ReadEmergencies(n.Self())
	if news || damage != nil || len(kept) < len(statements) {
		if err := n.store.WriteEmergencies(next.Statements); err != nil {
			return nil, errcode.Wrap(err, errcode.FileNotWritten, "purpose", "the emergency statement", "file",
				n.store.Path(dir.EmergencyAName))
		}
	}
	if err := n.Faults.Hit("emergency.after-write"); err != nil {
		return nil, err
	}
	n.trustState.Store(&next)
	if err := n.source.Trust(next.Contact); err != nil {
		return nil, err
	}
	n.reconsider(ctx)
	n.reports.Report()
	if news {
		n.log.LogAttrs(ctx, slog.LevelWarn, "an emergency statement of the signers is in force",
			slog.Uint64("number", e.Number), slog.String("statement", signed.Digest().String()),
			slog.String("reason", e.Reason), slog.Int("config_keys", len(e.ConfigKeys)), slog.Int("keys", len(e.Keys)),
			slog.Int("nodes", len(e.Nodes)), slog.Int("things", len(e.Revoked)))
	}
	return out, nil
}

// reconsider looks again at what is in use, by what is believed now. A snapshot that only a
// revoked key signed is not used any more: the one before takes its place if it stands on
// another key, or nothing does. One on a key that left in a rotation stays: what the next
// one signs is under way. A companion of a node_runtime that is not used any more goes with it: nothing says that the
// node is to hold it. Nothing changes on
// disk but what others read; a start comes to the same verdict. The caller holds
// n.activation.
func (n *Node) reconsider(ctx context.Context) {
	b := n.trustState.Load()
	var changed []snapshot.Scope
	revoked := b.Revocations()
	for _, scope := range state.Scopes {
		h := b.Active[scope]
		if scope == snapshot.ScopeTrustBundle || h == nil {
			continue
		}
		trust := n.Self().Trust(b)
		if v, err := again(scope, h.Raw, trust, b, n.Clock.Now()); err == nil {
			b = b.With(scope, &state.ActiveSnapshot{Verified: v, Raw: h.Raw}) // the same, with the keys that count now
			continue
		}
		switch {
		case revoked.Distrusts(h.Verified):
			b = b.Without(scope)
			delete(n.Trials.Since, scope)
			detail := "the key that signed it is revoked, and nothing takes its place yet"
			if raw, err := n.store.Read(dir.SnapshotName(scope, dir.Previous), internalsnapshot.MaxSigned); err == nil {
				if v, err := again(scope, raw, trust, b, n.Clock.Now()); err == nil {
					b = b.With(scope, &state.ActiveSnapshot{Verified: v, Raw: raw})
					detail = "the key that signed it is revoked: the one before is in use again"
				}
			}
			changed = append(changed, scope)
			r := state.Refusal{Scope: string(scope), Reason: string(internalsnapshot.ReasonSigner), Detail: detail,
				At: n.Clock.Now().UTC()}
			n.reports.Rejected(r.Scope, r.Reason)
			n.log.LogAttrs(ctx, slog.LevelError, "snapshot not used any more", slog.String("scope", r.Scope),
				slog.String("reason", r.Reason),
				slog.String("code", string(errcode.SnapshotRefused)), slog.String("detail", detail))
			if n.status.Refused(r) {
				n.keepRefusals(ctx)
			}
		case scope == snapshot.ScopeNodeBootstrap && b.Terms() != h:
			// It was overtaken, and would only be refused at the next start: a coordinator
			// sends another one.
			b = b.Without(scope)
			if err := n.store.Remove(dir.SnapshotName(scope, dir.Active),
				dir.SnapshotName(scope, dir.Previous)); err != nil {
				n.log.LogAttrs(ctx, slog.LevelWarn, "an overtaken node_bootstrap is not removed", slog.Any("err", err))
			}
		}
	}
	b, gone := b.Pruned()
	n.trustState.Store(b)
	if len(gone) > 0 {
		n.log.LogAttrs(ctx, slog.LevelInfo, "snapshots not used without the node_runtime that gave them",
			slog.Any("scopes", gone))
	}
	n.files.derive(ctx) // also for what is revoked by name
	n.reports.Changed(append(changed, gone...)...)
	n.reports.Report()
}

// again verifies what was in use once more.
func again(scope snapshot.Scope, raw []byte, trust snapshot.Trust, b *state.TrustState,
	now time.Time) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	v, err := snapshot.Recheck(signed, trust, b.Marks, now)
	if err == nil && v.Header().ScopeType != scope {
		err = fmt.Errorf("%w: it is of scope %s", dir.ErrDamaged, v.Header().ScopeType)
	}
	return v, err
}
