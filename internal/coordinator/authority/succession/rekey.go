package succession

import (
	"context"
	"errors"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// rekeyTimeout bounds a change of the mesh CA key, which goes on when its caller hangs up.
const rekeyTimeout = 2 * time.Minute

// RotateMesh takes the turn, and puts another mesh CA key into force, as by asked for, and returns the state
// then. A dry run changes nothing, and returns the state that it would follow.
func (c *Succession) RotateMesh(ctx context.Context, dryRun bool, reason, by string) (*authority.State, error) {
	release, err := c.cfg.Turn.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil || dryRun {
		return s, err
	}
	// A caller that hangs up now must not leave a head behind whose key is in no memory.
	changing, cancel := context.WithTimeout(timeout.Beyond(ctx), rekeyTimeout)
	defer cancel()
	return c.Rekey(changing, s, reason, by, nil)
}

// Rekey makes a new mesh CA key after before, whose manifest stays in force: the
// next authority epoch begins. It is the one way to write a rekey transition, whoever
// asks for it. by is who, for the audit log, and received where the seed came from, nil
// if it was here. The caller has the turn.
//
// before is the head as its history was verified, with the secrets of its seed; it
// need not be the state of this coordinator. On an error its secrets stay the
// caller's, unless the keychain holds them.
//
// The order is that of a set: the key is made and sealed before the head moves, the
// head moves by compare-and-swap, and an unknown outcome is settled by reading. Until
// the head has moved nothing has changed but sealed secrets that no head names, so a
// crash is a rekey that did not happen. After that the next start finds a head whose
// mesh CA key a keeper opens or, without one, nobody has: then the next rekey writes
// one more. No mesh CA key ever signed under the epoch in between (I9).
func (c *Succession) Rekey(ctx context.Context, before *authority.State, reason, by string,
	received map[string]string) (*authority.State,
	error) {
	if _, err := c.cfg.Self.Admits(before.Manifest); err != nil {
		return nil, err
	}
	// A reseed that was cut off after the head moved left the records for this seed to
	// move: the trust state can be read only then.
	if err := c.cfg.Reseal.Move(ctx, before); err != nil {
		return nil, c.cfg.Head.StoreError("bring the records under the seed of the head", err)
	}
	mv := &transition.Move{From: before, Manifest: before.Manifest, Secrets: before.Secrets, Root: before.Root,
		Actor:    by,
		Received: received}
	t, err := c.cfg.Restoration.Next(ctx, before)
	if err != nil {
		return nil, err
	}
	if t != nil {
		ctx = storeguard.AsRestore(ctx)
	} else {
		t, _ = before.Chain.Next(history.KindRekey, before.Manifest)
		t.Reason = ratelimit.Clip(reason, history.MaxReasonBytes)
	}
	if err := mv.NewMesh(t, c.cfg.Now()); err != nil {
		return nil, err
	}
	// The store's word of a restore may differ from when before was read.
	if err := c.cfg.Restoration.PassesMark(before.Chain, t); err != nil {
		return nil, err
	}
	if err := mv.Seal(t); err != nil {
		return nil, err
	}
	if err := c.Fits(ctx, mv); err != nil {
		return nil, err
	}
	mv.Sealing = mv.Seals()
	c.cfg.Keepers.SealAgain(ctx, &mv.Sealing)
	if err := c.cfg.Faults.Hit("rekey.before-swap"); err != nil {
		return nil, err
	}
	// Keepers have sealed what they can: swap must not fail over those that cannot.
	if _, err := c.Swap(ctx, mv); err != nil {
		return nil, err
	}
	s := c.cfg.Head.State()
	if s.Phase != authority.Ready || s.Head.Hash != mv.Link.Hash {
		return nil, c.cfg.Head.Made(ctx, "the new mesh CA key",
			errors.New("the head moved, and the coordinator is not ready at it"))
	}
	return s, nil
}

// StateBefore returns the head of v with its secrets, for a rekey to follow: of all
// that a state has the mesh CA is missing.
func (c *Succession) StateBefore(ctx context.Context, v *history.Verified,
	secrets *authority.Secrets) (*authority.State, error) {
	root, err := loadRoot(ctx, c.cfg.Store, v, secrets)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "cluster", v.Manifest().Cluster, "problem", err.Error())
	}
	auth, err := secrets.Records()
	if err != nil {
		return nil, err
	}
	return &authority.State{
		Chain: v, Manifest: v.Manifest(), Head: *v.Current(), HeadVersion: v.Version(), HeadRecord: v.Head().Encode(),
		Secrets: secrets, Records: record.Records{Store: c.cfg.Store, Auth: auth,
			Audit: c.cfg.Auditing.Places()}, Root: root,
	}, nil
}
