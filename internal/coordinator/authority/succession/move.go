package succession

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Swap brings mv into force, in the order that package decide gives: the mesh CA key
// was made before its hash was put into the transition; it is sealed, the head moves,
// and is adopted. It reports whether the secrets of the move are in use now, or may be.
// The caller has the turn.
//
// If it stays unknown whether the head moved, nothing is adopted here: the loop
// that follows the head finds its keys among the candidates or, after a restart,
// sealed under the new head's hash.
func (c *Succession) Swap(ctx context.Context, mv *transition.Move) (inUse bool, err error) {
	if err := c.cfg.Self.CheckPin(mv.Root); err != nil {
		return false, err
	}
	if mv.Actor == "" {
		mv.Actor = record.Actor(ctx)
	}
	var order decide.Move
	var verified *history.Verified
	for {
		result := decide.OK
		switch order.Stage() {
		case decide.Make:
		case decide.Seal:
			if err = c.cfg.Keepers.SealMesh(ctx, &mv.Sealing); err != nil {
				result = decide.Failed
			}
		case decide.Prepare:
			if took := c.cfg.Peers.Prepare(ctx, mv); len(took) > 0 {
				c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "peers have the mesh CA key of the next head",
					slog.Any("peers", took), slog.String("head", mv.Link.Hash.String()))
			}
		case decide.Swap:
			c.cfg.Hooks.BeforeMove(ctx, mv.From)
			verified, result, err = c.moveHead(ctx, mv)
		case decide.Adopt:
			inUse = true
			// The head moved: what follows must not be given up because the caller did, and
			// is no reason to say that it did not. The loop that follows the head goes on
			// where it fails.
			if s, failed := c.newState(verified, mv.Secrets, mv.Root, mv.Mesh); failed != nil {
				c.cfg.Log.LogAttrs(ctx, slog.LevelError, "the new head was not adopted", slog.Any("err", failed))
				result = decide.Failed
			} else {
				c.untold = append(c.untold, mv.Audit(s)...)
				c.cfg.Keys.Pend(mv)                        // so that its keys are here whatever the adoption comes to
				if lost(c.Adopt(timeout.Beyond(ctx), s)) { // logged there, and tried again
					mv.Audited, result = true, decide.Conflict
				}
			}
		case decide.Keep:
			inUse = c.cfg.Keys.Pend(mv)
			c.cfg.Head.LookAgain()
		case decide.Drop:
			mv.WipeMesh()
			c.cfg.Head.LookAgain()
		case decide.Done:
			return inUse, err
		}
		order.Ended(result)
	}
}

// moveHead moves the head to mv, and says how that ended.
func (c *Succession) moveHead(ctx context.Context, mv *transition.Move) (*history.Verified, decide.Result, error) {
	if err := c.cfg.Faults.Hit("set.before-swap"); err != nil {
		return nil, decide.Failed, err
	}
	var from *history.Verified
	if mv.From != nil {
		from = mv.From.Chain
	}
	verified, err := c.cfg.Head.History().Append(ctx, from, &mv.Link.Transition, mv.Manifest, mv.Secrets.Transaction())
	switch {
	case errors.Is(err, store.ErrUnknownOutcome):
		return nil, decide.Unknown, setError(c.cfg.Head, err)
	case errors.Is(err, store.ErrConflict):
		return nil, decide.Conflict, setError(c.cfg.Head, err)
	case err != nil:
		return nil, decide.Failed, setError(c.cfg.Head, err)
	}
	if err := c.cfg.Faults.Hit("set.after-swap"); err != nil {
		return nil, decide.Unknown, err
	}
	if verified.Version() == 0 {
		return nil, decide.Overtaken, nil // on again, by somebody else
	}
	return verified, decide.OK, nil
}

// setError words why the head did not move. If somebody else moved it, our state
// is behind, and is loaded anew by the loop that follows the head.
func setError(head *authority.Head, err error) error {
	var conflict *history.ConflictError
	if errors.As(err, &conflict) {
		return errcode.Wrap(err, errcode.ManifestStale,
			"expected", "the head of "+
				"before", "head", conflict.Head.Hash.String()[:16], "index", fmt.Sprint(conflict.Head.Index))
	}
	return head.StoreError("set the manifest", err)
}

// Fits reports whether a trust bundle can be made after the move, and of another
// manifest what members are told. A head that no bundle follows from would stop the
// cluster.
func (c *Succession) Fits(ctx context.Context, mv *transition.Move) error {
	after := &authority.State{Manifest: mv.Manifest, Head: mv.Link, Secrets: mv.Secrets, Root: mv.Root,
		MeshKey: mv.Mesh.KeyID()}
	after.Bundle = &bundle.Authority{
		Manifest: after.Manifest, Head: after.Head, Root: after.Root, MeshKey: after.MeshKey,
		ConfigRoot: mv.Secrets.ConfigRoot, ConfigKey: mv.Secrets.ConfigSigning, TokenKey: mv.Secrets.TokenSigning,
	}
	for _, fits := range c.cfg.Hooks.Fits {
		if err := fits(ctx, mv.From, after); err != nil {
			return err
		}
	}
	return nil
}

// WriteSecrets writes what must be found by who comes up at the new head: the
// seed, sealed by each keeper, its shares, encrypted to their owners, and the root. The caller has the turn.
func (c *Succession) WriteSecrets(ctx context.Context, mv *transition.Move) error {
	if err := c.cfg.Keepers.SealSeeds(ctx, &mv.Sealing); err != nil {
		return err
	}
	if mv.NewSeed {
		if _, err := c.cfg.Head.Overwrite(ctx, sealed.RootKey(&mv.Link.Transition), mv.Root.Raw); err != nil {
			return err
		}
		if err := c.cfg.Faults.Hit("set.after-seed"); err != nil {
			return err
		}
	}
	return c.cfg.Shares.Write(ctx, mv)
}
