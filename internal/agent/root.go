package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// A cluster that was reseeded has another root. A node follows it on the word of the
// signers alone, whom it knows from its trust bundle: it verifies the change of root
// that they signed, and then comes back under the new root by a proof of its last key.
// What it is granted is verified in full and put in place by one durable write, like a
// join; until then it stays what it was.
//
// It hears of a change over its stream. One that was away finds coordinators that it
// cannot verify, and asks them for the changes: these need no trust in who sends them.

// maxRootChangesBytes bounds the answer of a server that is not verified.
const maxRootChangesBytes = snapshotform.MaxRootChanges*snapshotform.MaxSignedRootChange + 4<<10

// hearChanges verifies changes of root, and reports whether they lead from the root
// that the node pins to one that is news.
func (a *Agent) hearChanges(ctx context.Context, encoded [][]byte) bool {
	release, err := a.activation.Acquire(ctx)
	if err != nil {
		return false
	}
	defer release()
	me := a.self()
	change, err := verifyChanges(encoded, a.beliefs.Load(), me.Pin)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, snapshot.ErrNoRootChange) && len(encoded) == 0 {
			level = slog.LevelDebug
		}
		a.log.LogAttrs(ctx, level, "no change of root is believed, the pinned one stays", slog.String("root", me.Pin.String()), slog.String("reason", err.Error()))
		return false
	}
	if old := a.moved.Load(); old != nil && old.Root == change.Root {
		return false // it is being followed, as fast as that is tried again
	}
	a.moved.Store(&change)
	a.log.LogAttrs(ctx, slog.LevelWarn, "the signers of the cluster authorized another root", slog.String("root", me.Pin.String()),
		slog.String("next", change.Root.String()), slog.Uint64("seed_epoch", change.SeedEpoch))
	return true
}

// verifyChanges decides where the root that a node pins went. It is pure.
func verifyChanges(encoded [][]byte, b *state.Beliefs, pin identity.KeyID) (snapshot.RootChange, error) {
	// An expired bundle will do: who signs is not a matter of its date, and the way back
	// must not end with it.
	bundle := b.Stale
	if h := b.Held[snapshot.ScopeTrustBundle]; h != nil {
		bundle = h.Verified
	}
	if bundle == nil {
		return snapshot.RootChange{}, errors.New("there is no trust bundle that names the signers")
	}
	if len(encoded) > snapshotform.MaxRootChanges {
		return snapshot.RootChange{}, fmt.Errorf("%d changes of root, limit %d",
			len(encoded), snapshotform.MaxRootChanges)
	}
	var signed []*snapshot.SignedRootChange
	for _, raw := range encoded {
		s, err := snapshot.UnmarshalRootChange(raw)
		if err != nil {
			return snapshot.RootChange{}, err
		}
		signed = append(signed, s)
	}
	return snapshot.VerifyRootChanges(signed, bundle, pin)
}

// strangeRoot reports whether err says that a coordinator is under a root that the
// node does not know.
func strangeRoot(err error) bool {
	if errors.Is(err, credential.ErrPin) {
		return true
	}
	h, ok := errors.AsType[*mesh.HandshakeError](err)
	return ok && h.Reason == mesh.PeerUntrusted
}

// askForChanges asks the coordinators for changes of root, and reports whether one
// had news.
func (a *Agent) askForChanges(ctx context.Context) bool {
	for _, address := range a.addresses() {
		encoded, err := a.changesAt(ctx, address)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			a.log.LogAttrs(ctx, slog.LevelDebug, "no changes of root from this address", slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
			continue
		}
		if a.hearChanges(ctx, encoded) {
			return true
		}
	}
	return false
}

func (a *Agent) changesAt(ctx context.Context, address string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := mesh.DialPinned(enroll.Target(address), credential.Unproven(), mesh.Options{
		Dialer: enroll.Dialer(a.dial), Now: a.now, OnFailure: a.handshakeFailed,
		GRPC: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRootChangesBytes))},
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewReseedServiceClient(conn).GetRootChanges(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, verdict.Word(address, err)
	}
	return resp.GetChanges().GetChanges(), nil
}

// trustAhead has connections trust the bundle under the root that comes, before the
// node itself is under it: its peers change their certificates in the same moments.
// It reports whether raw is such a bundle. The caller holds a.activation.
func (a *Agent) trustAhead(raw []byte) bool {
	change := a.moved.Load()
	if change == nil {
		return false
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return false
	}
	me := a.self()
	me.ConfigRoot = change.ConfigRoot
	b := a.beliefs.Load()
	d, err := state.Decide(me, &state.Beliefs{Ledger: state.Ledger{Marks: b.Marks}}, signed, a.now())
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
	return a.source.Trust(trust) == nil
}

// followRoot puts a grant under another root in place of all that the node had. The
// caller holds a.activation.
func (a *Agent) followRoot(ctx context.Context, got *state.Admitted) error {
	if err := a.enrolAnew(ctx, got); err != nil {
		return err
	}
	a.moved.Store(nil)
	// What is signed under the old root would only be refused at the next start.
	var stale []string
	for _, scope := range state.Scopes {
		stale = append(stale, dir.SnapshotName(scope, dir.Pending), dir.SnapshotName(scope, dir.Previous))
		if !slices.ContainsFunc(got.Took, func(t state.Taken) bool { return t.V.Header().ScopeType == scope }) {
			stale = append(stale, dir.SnapshotName(scope, dir.Active))
		}
	}
	if err := a.store.Remove(stale...); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "snapshots under the old root are not removed", slog.Any("err", err))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "the node is under the new root", slog.String("root", got.Me.Pin.String()), slog.String("key", got.SVID.Key.ID.String()))
	return nil
}
