package keepers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// A Sealing is what the keepers of a manifest seal for one move of the head.
type Sealing struct {
	From     *authority.State // what the move follows; nil for the first
	Manifest *manifest.Manifest
	NewSeed  bool // the seed was made for the move

	// These are sealed, once they are known.
	Link    history.Link
	Secrets *authority.Secrets
	Mesh    *pki.MeshCA

	// Made are the keys of keepers that were made for it on this machine. They stay,
	// whatever becomes of it.
	Made []*fealtyv1.KeeperKey

	found []found // the keepers of the manifest, as they were found here
}

// Look looks at the keepers of a sealing, and refuses one that they cannot follow. It
// changes nothing.
func (c *Keepers) Look(ctx context.Context, sl *Sealing) error {
	keepers, err := c.keepers(sl.Manifest)
	if err != nil {
		return err
	}
	sl.found = nil
	for _, k := range keepers {
		f, err := c.lookBeforeMove(ctx, k, sl)
		if err != nil {
			return err
		}
		if f.Act() == decide.RefuseMove {
			return c.refuseMove(ctx, f, sl)
		}
		sl.found = append(sl.found, f)
	}
	return nil
}

// lookBeforeMove is lookAtKeeper for one of a move's manifest.
func (c *Keepers) lookBeforeMove(ctx context.Context, k keeper, sl *Sealing) (found, error) {
	var f found
	if sl.From != nil {
		var err error
		if f, err = c.lookAtKeeper(ctx, k, sl.From); err != nil {
			return f, err
		}
	} else {
		f.keeper, f.Proven = k, k.proven()
		c.lookAtKey(ctx, &f, keyring.Place{Cluster: sl.Manifest.Cluster, Purpose: keyring.PurposeSeed, Owner: k.Name,
			SeedEpoch: 1})
	}
	f.NewSeed = sl.NewSeed
	if sl.From == nil || !slices.Contains(sl.From.Manifest.Seed.Keepers(), k.Owner) {
		f.Copies, f.Opens, f.Own = false, false, false // what is there is of nobody whom the manifest names
	}
	if err := c.adopts(f, sl); err != nil {
		return f, err
	}
	return f, ctx.Err()
}

// adopts reports whether f may seal in the place of a copy that is there although no
// manifest in force names its keeper: one that another move under way wrote, under an id
// that is no proof, must stay.
func (c *Keepers) adopts(f found, sl *Sealing) error {
	if f.Proven || f.Copies || f.NewSeed {
		return nil
	}
	for _, x := range f.copies {
		if !x.Former && x.ID == f.id && x.Entry.Version > sl.From.HeadVersion {
			return errcode.New(errcode.KeeperUnusable, "keeper", f.Name, "problem",
				fmt.Sprintf("another change of the manifest seals for it under key %s: try again when that is over, "+
					"or give the keeper another name", f.id))
		}
	}
	return nil
}

// refuseMove words why the move does not go on without the key of f.
func (c *Keepers) refuseMove(ctx context.Context, f found, sl *Sealing) error {
	if !f.Copies {
		return errcode.Wrap(f.problem, errcode.KeeperUnusable, "keeper", f.Name, "problem", problemText(f.problem))
	}
	here := "has no key of it"
	switch {
	case f.Key == decide.KeyBroken:
		here = "cannot use its key: " + problemText(f.problem)
	case f.id != "":
		here = "has key " + string(f.id)
	}
	holders := c.holders(ctx, sl.From, f.Name)
	who := "no coordinator said that its key opens it"
	if len(holders) > 0 {
		who = strings.Join(holders, ", ") + " can"
	}
	return errcode.Wrap(f.problem, errcode.KeeperNotHere, "keeper", f.Name, "here", here,
		"keys", idText(sealed.IDs(f.copies)), "who", who, "file", f.file())
}

// SealSeeds has each keeper do what was decided for it, before the head moves.
func (c *Keepers) SealSeeds(ctx context.Context, sl *Sealing) error {
	for i := range sl.found {
		if err := c.sealSeed(ctx, &sl.found[i], sl); err != nil {
			return err
		}
	}
	return nil
}

// sealSeed does for a keeper what was decided, before the head moves: the copies that
// are needed at the new head are written, and none of another key is touched. A key that
// it makes is in the move then.
func (c *Keepers) sealSeed(ctx context.Context, f *found, sl *Sealing) error {
	switch f.Act() {
	case decide.MakeKey:
		made, err := f.box.MakeKey(ctx)
		if err != nil {
			return errcode.Wrap(err, errcode.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
		}
		c.lookAtKey(ctx, f, seedPlace(sl.Manifest.Cluster, f.Name, &sl.Link.Transition))
		if f.Key != decide.KeyUsable {
			return errcode.Wrap(f.problem, errcode.KeeperUnusable, "keeper", f.Name, "problem", problemText(f.problem))
		}
		if made {
			sl.Made = append(sl.Made, &fealtyv1.KeeperKey{Keeper: f.Name,
				Coordinator: c.cfg.Self.NameIn(sl.Manifest), File: f.file(), KeyId: string(f.id)})
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the key of a keeper was made: back its file up now",
				slog.String("keeper", f.Name), slog.String("file", f.file()), slog.String("key", string(f.id)))
		}
		return c.writeCopy(ctx, f, sl)
	case decide.SealOwn:
		return c.writeCopy(ctx, f, sl)
	case decide.RefuseMove:
		return c.refuseMove(ctx, *f, sl)
	case decide.KeepForeign:
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"a keeper of this machine does not open the seed: what is sealed under another key stays",
			slog.String("keeper", f.Name), slog.String("keys", idText(sealed.IDs(f.copies))), slog.Any("err",
				f.problem))
	}
	return nil
}

// writeCopy seals the seed of the move under the key that is here, and writes the copy.
func (c *Keepers) writeCopy(ctx context.Context, f *found, sl *Sealing) error {
	t, of := &sl.Link.Transition, sealed.Seed(&sl.Link.Transition)
	copies := f.copies
	if sl.NewSeed {
		// A try before this one may have left some: nobody else has this seed.
		var err error
		if copies, err = sealed.Copies(ctx, c.cfg.Store, of, f.Name); err != nil {
			return c.cfg.Head.StoreError("read what keepers sealed", err)
		}
	}
	key, was := of.Key(f.Name, f.id), store.Revision(0)
	for _, x := range copies {
		if x.Entry.Key == key {
			was = x.Entry.Version
		}
	}
	if ids := sealed.IDs(copies); was == 0 && len(ids) >= sealed.MaxCopies && !slices.Contains(ids, f.id) {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"a keeper has too many keys to seal under one more: forget those that are lost",
			slog.String("keeper", f.Name), slog.Int("keys", len(ids)))
		return nil
	}
	data, err := sl.Secrets.Seal(ctx, f.box, seedPlace(sl.Manifest.Cluster, f.Name, t))
	if err == nil {
		err = f.checkSealed(data)
	}
	if err != nil {
		return errcode.Wrap(err, errcode.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
	}
	return c.writeSealedCopy(ctx, sl, key, was, data)
}

// checkSealed reports whether data is sealed under the key that was looked at: its file
// may have been exchanged since.
func (f *found) checkSealed(data []byte) error {
	if under, err := keyring.SealedUnder(data); f.Proven && (err != nil || under != f.id) {
		return fmt.Errorf("keyring: %s held key %s and holds %s now: try again: %w", f.file(), f.id, under,
			keyring.ErrKeyFile)
	}
	return nil
}

func (c *Keepers) writeSealedCopy(ctx context.Context, sl *Sealing, key string, was store.Revision, data []byte) error {
	var head store.Revision
	if sl.From != nil {
		head = sl.From.HeadVersion
	}
	err := sealed.Write(ctx, c.cfg.Store, head, key, was, data)
	switch {
	case errors.Is(err, sealed.ErrMeanwhile):
		return record.Busy("the sealed secret")
	case errors.Is(err, store.ErrConflict):
		c.cfg.Head.LookAgain()
		return errcode.Wrap(err, errcode.ManifestStale, "expected", "of before")
	case err != nil:
		return c.cfg.Head.StoreError("write a sealed secret", err)
	}
	return nil
}

// SealMesh has each keeper whose key is here seal the mesh CA key for the new head. Where
// none is, a start without a peer makes another mesh CA key, and nothing is lost.
func (c *Keepers) SealMesh(ctx context.Context, sl *Sealing) error {
	for i := range sl.found {
		f := &sl.found[i]
		if f.Key != decide.KeyUsable {
			continue
		}
		err := c.sealMeshWith(ctx, f, sl)
		c.noteSealed(f.Name, err)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Keepers) sealMeshWith(ctx context.Context, f *found, sl *Sealing) error {
	place := keyring.Place{Cluster: sl.Manifest.Cluster, Owner: f.Name, SeedEpoch: sl.Link.SeedEpoch,
		Head: sl.Link.Hash}
	data, err := authority.SealMesh(ctx, f.box, place, sl.Mesh)
	if err == nil {
		err = f.checkSealed(data)
	}
	if err != nil {
		return errcode.Wrap(err, errcode.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
	}
	key := sealed.Mesh(sl.Link.Hash).Key(f.Name, f.id)
	e, err := c.cfg.Store.Get(ctx, key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return c.cfg.Head.StoreError("read a sealed secret", err)
	}
	return c.writeSealedCopy(ctx, sl, key, e.Version, data)
}

// SealAgain has the keepers seal the seed, if their key is here and they do not open it,
// and the new mesh CA key. One that is gone may be why this is done: it is logged and
// shown by status, and stops nothing.
func (c *Keepers) SealAgain(ctx context.Context, sl *Sealing) {
	for _, o := range sl.Manifest.Seed.Keepers() {
		err := c.sealAgainWith(ctx, o, sl)
		c.noteSealed(o.Name, err)
		if err != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelError,
				"a keeper does not seal the seed and the new mesh CA key: a restart of all coordinators needs the "+
					"owners, until it is mended and a manifest is set",
				slog.String("keeper", o.Name), slog.Any("err", err))
		}
	}
	sl.found = nil // they sealed what they can: the move must not fail over the others
}

func (c *Keepers) sealAgainWith(ctx context.Context, o manifest.Owner, sl *Sealing) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	defer cancel()
	k, err := c.keeperOf(o)
	if err != nil {
		return err
	}
	f, err := c.lookBeforeMove(ctx, k, sl)
	if err != nil {
		return err
	}
	if err := c.sealSeed(ctx, &f, sl); err != nil || f.Key != decide.KeyUsable {
		return err
	}
	return c.sealMeshWith(ctx, &f, sl)
}

// noteSealed notes whether a keeper sealed the seed; status shows those that did
// not.
func (c *Keepers) noteSealed(name string, err error) {
	c.failedMu.Lock()
	defer c.failedMu.Unlock()
	if err == nil {
		delete(c.failed, name)
		return
	}
	if c.failed == nil {
		c.failed = make(map[string]string)
	}
	c.failed[name] = err.Error()
}

// unsealed returns the keepers that did not seal the seed, and why.
func (c *Keepers) unsealed() map[string]string {
	c.failedMu.Lock()
	defer c.failedMu.Unlock()
	return maps.Clone(c.failed)
}
