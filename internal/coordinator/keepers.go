package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// keeperTimeout bounds one keeper where the coordinator does not depend on it: one that
// is gone must not hold a recovery up, nor a look at the others.
const keeperTimeout = 10 * time.Second

// keeper is a keeper of the seed, as the manifest names it.
type keeper struct {
	manifest.Owner
	box keyring.Keeper // with the key, as far as it is on this machine
}

// keeperOf returns the keeper o, ready to seal.
func (c *Keepers) keeperOf(o manifest.Owner) (keeper, error) {
	k, err := keyring.KeeperOf(keyring.Owner(o), c.cfg.FS)
	if err != nil {
		return keeper{}, explain.Wrap(err, explain.KeeperUnusable, "keeper", o.Name, "problem", err.Error())
	}
	return keeper{o, k}, nil
}

// keepers returns the keepers of m, ready to seal. A manifest may have none: then
// its people bring the seed back.
func (c *Keepers) keepers(m *manifest.Manifest) ([]keeper, error) {
	var out []keeper
	for _, o := range m.Seed.Keepers() {
		k, err := c.keeperOf(o)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// file is the path of the keeper's key file or program.
func (k keeper) file() string {
	_, path, _ := strings.Cut(k.Keeper, ":")
	return path
}

// proven reports whether the ids of this keeper's keys derive from them.
func (k keeper) proven() bool { return strings.HasPrefix(k.Keeper, "file:") }

func seedPlace(cluster, owner string, t *history.Transition) keyring.Place {
	return keyring.Place{Cluster: cluster, Purpose: keyring.PurposeSeed, Owner: owner, SeedEpoch: t.SeedEpoch}
}

// found is what a coordinator found of a keeper: what decides, and what acting on that
// takes.
type found struct {
	keeper
	decide.Keeper
	id      keyring.KeyID // of the key that is here; empty: there is none, or it cannot be used
	by      keyring.KeyID // of the copy that it opened
	problem error         // why not
	copies  []sealed.Copy // of the seed in force
}

// lookAtKeeper looks at a keeper and at the copies of the seed of s, which s holds. It
// changes nothing. An error is a store that was not read; what is wrong with the keeper
// is in what was found, also that it took too long.
func (c *Keepers) lookAtKeeper(ctx context.Context, k keeper, s *authority.State) (found, error) {
	f := found{keeper: k}
	f.Proven = k.proven()
	place := seedPlace(s.Manifest.Cluster, k.Name, &s.Head.Transition)
	var err error
	if f.copies, err = sealed.Copies(ctx, c.cfg.Store, sealed.Seed(&s.Head.Transition), k.Name); err != nil {
		return f, c.cfg.Head.StoreError("read what keepers sealed", err)
	}
	f.Copies = len(f.copies) > 0
	c.lookAtKey(ctx, &f, place)
	if f.Key == decide.KeyUsable && f.Copies {
		same, by, err := tryCopies(ctx, k, f.id, f.copies, func(data []byte) (bool, error) {
			return s.Secrets.Opens(ctx, k.box, place, data)
		})
		if f.Opens = err == nil && same; f.Opens {
			f.by = by
		} else {
			f.problem = err
		}
		f.Own = slices.ContainsFunc(f.copies, func(x sealed.Copy) bool { return !x.Former && x.ID == f.id })
	}
	return f, nil
}

// lookAtKey looks for the key of a keeper on this machine.
func (c *Keepers) lookAtKey(ctx context.Context, f *found, place keyring.Place) {
	id, err := f.box.KeyID(ctx, place)
	switch {
	case errors.Is(err, keyring.ErrNoKey):
		f.Key, f.problem = decide.KeyMissing, err
	case err != nil:
		f.Key, f.problem = decide.KeyBroken, err
	default:
		f.Key, f.id = decide.KeyUsable, id
	}
}

// maxTried bounds the copies that a program is asked to open, one after the other.
const maxTried = 4

// tryCopies opens the first copy that the keeper opens: that under the id of the key that
// is here, then others. A file's key opens no other one, but says of one why not.
func tryCopies[T any](ctx context.Context, k keeper, id keyring.KeyID, copies []sealed.Copy,
	open func(data []byte) (T, error)) (opened T, by keyring.KeyID, err error) {
	order := slices.Clone(copies)
	slices.SortStableFunc(order, func(a, b sealed.Copy) int {
		switch {
		case (a.ID == id) == (b.ID == id):
			return 0
		case a.ID == id:
			return -1
		}
		return 1
	})
	var failures []error
	for i, x := range order {
		if i == maxTried || i > 0 && k.proven() && x.ID != id || ctx.Err() != nil {
			break
		}
		opened, err := open(x.Entry.Value)
		if err == nil {
			return opened, x.ID, nil
		}
		failures = append(failures, err)
	}
	return opened, "", errors.Join(append(failures, ctx.Err())...)
}

// lookAtKeepers looks at the keepers of a move, and refuses one that they cannot follow.
// It changes nothing.
func (c *Keepers) lookAtKeepers(ctx context.Context, mv *move, keepers []keeper) error {
	mv.keepers = nil
	for _, k := range keepers {
		f, err := c.lookBeforeMove(ctx, k, mv)
		if err != nil {
			return err
		}
		if f.Act() == decide.RefuseMove {
			return c.refuseMove(ctx, f, mv)
		}
		mv.keepers = append(mv.keepers, f)
	}
	return nil
}

// lookBeforeMove is lookAtKeeper for one of a move's manifest.
func (c *Keepers) lookBeforeMove(ctx context.Context, k keeper, mv *move) (found, error) {
	var f found
	if mv.from != nil {
		var err error
		if f, err = c.lookAtKeeper(ctx, k, mv.from); err != nil {
			return f, err
		}
	} else {
		f.keeper, f.Proven = k, k.proven()
		c.lookAtKey(ctx, &f, keyring.Place{Cluster: mv.manifest.Cluster, Purpose: keyring.PurposeSeed, Owner: k.Name,
			SeedEpoch: 1})
	}
	f.NewSeed = mv.newSeed
	if mv.from == nil || !slices.Contains(mv.from.Manifest.Seed.Keepers(), k.Owner) {
		f.Copies, f.Opens, f.Own = false, false, false // what is there is of nobody whom the manifest names
	}
	if err := c.adopts(f, mv); err != nil {
		return f, err
	}
	return f, ctx.Err()
}

// adopts reports whether f may seal in the place of a copy that is there although no
// manifest in force names its keeper: one that another move under way wrote, under an id
// that is no proof, must stay.
func (c *Keepers) adopts(f found, mv *move) error {
	if f.Proven || f.Copies || f.NewSeed {
		return nil
	}
	for _, x := range f.copies {
		if !x.Former && x.ID == f.id && x.Entry.Version > mv.from.HeadVersion {
			return explain.New(explain.KeeperUnusable, "keeper", f.Name, "problem",
				fmt.Sprintf("another change of the manifest seals for it under key %s: try again when that is over, "+
					"or give the keeper another name", f.id))
		}
	}
	return nil
}

// refuseMove words why the move does not go on without the key of f.
func (c *Keepers) refuseMove(ctx context.Context, f found, mv *move) error {
	if !f.Copies {
		return explain.Wrap(f.problem, explain.KeeperUnusable, "keeper", f.Name, "problem", problemText(f.problem))
	}
	here := "has no key of it"
	switch {
	case f.Key == decide.KeyBroken:
		here = "cannot use its key: " + problemText(f.problem)
	case f.id != "":
		here = "has key " + string(f.id)
	}
	holders := c.holders(ctx, mv.from, f.Name)
	who := "no coordinator said that its key opens it"
	if len(holders) > 0 {
		who = strings.Join(holders, ", ") + " can"
	}
	return explain.Wrap(f.problem, explain.KeeperNotHere, "keeper", f.Name, "here", here,
		"keys", idText(sealed.IDs(f.copies)), "who", who, "file", f.file())
}

func problemText(err error) string {
	if err == nil {
		return "it cannot be used"
	}
	return err.Error()
}

// idText names keys in a sentence.
func idText(ids []keyring.KeyID) string {
	if len(ids) == 0 {
		return "that nothing names"
	}
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = string(id)
	}
	return strings.Join(text, " or ")
}

// sealSeed does for a keeper what was decided, before the head moves: the copies that
// are needed at the new head are written, and none of another key is touched. A key that
// it makes is in the move then.
func (c *Keepers) sealSeed(ctx context.Context, f *found, mv *move) error {
	switch f.Act() {
	case decide.MakeKey:
		made, err := f.box.MakeKey(ctx)
		if err != nil {
			return explain.Wrap(err, explain.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
		}
		c.lookAtKey(ctx, f, seedPlace(mv.manifest.Cluster, f.Name, &mv.link.Transition))
		if f.Key != decide.KeyUsable {
			return explain.Wrap(f.problem, explain.KeeperUnusable, "keeper", f.Name, "problem", problemText(f.problem))
		}
		if made {
			mv.madeKeys = append(mv.madeKeys, &fealtyv1.KeeperKey{Keeper: f.Name,
				Coordinator: c.cfg.Self.NameIn(mv.manifest), File: f.file(), KeyId: string(f.id)})
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the key of a keeper was made: back its file up now",
				slog.String("keeper", f.Name), slog.String("file", f.file()), slog.String("key", string(f.id)))
		}
		return c.writeCopy(ctx, f, mv)
	case decide.SealOwn:
		return c.writeCopy(ctx, f, mv)
	case decide.RefuseMove:
		return c.refuseMove(ctx, *f, mv)
	case decide.KeepForeign:
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"a keeper of this machine does not open the seed: what is sealed under another key stays",
			slog.String("keeper", f.Name), slog.String("keys", idText(sealed.IDs(f.copies))), slog.Any("err",
				f.problem))
	}
	return nil
}

// writeCopy seals the seed of the move under the key that is here, and writes the copy.
func (c *Keepers) writeCopy(ctx context.Context, f *found, mv *move) error {
	t, of := &mv.link.Transition, sealed.Seed(&mv.link.Transition)
	copies := f.copies
	if mv.newSeed {
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
	data, err := mv.secrets.Seal(ctx, f.box, seedPlace(mv.manifest.Cluster, f.Name, t))
	if err == nil {
		err = f.checkSealed(data)
	}
	if err != nil {
		return explain.Wrap(err, explain.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
	}
	return c.writeSealedCopy(ctx, mv, key, was, data)
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

func (c *Keepers) writeSealedCopy(ctx context.Context, mv *move, key string, was store.Revision, data []byte) error {
	var head store.Revision
	if mv.from != nil {
		head = mv.from.HeadVersion
	}
	err := sealed.Write(ctx, c.cfg.Store, head, key, was, data)
	switch {
	case errors.Is(err, sealed.ErrMeanwhile):
		return record.Busy("the sealed secret")
	case errors.Is(err, store.ErrConflict):
		c.cfg.Head.LookAgain()
		return explain.Wrap(err, explain.ManifestStale, "expected", "of before")
	case err != nil:
		return c.cfg.Head.StoreError("write a sealed secret", err)
	}
	return nil
}

// sealMesh has each keeper whose key is here seal the mesh CA key for the new head. Where
// none is, a start without a peer makes another mesh CA key, and nothing is lost.
func (c *Keepers) sealMesh(ctx context.Context, mv *move) error {
	for i := range mv.keepers {
		f := &mv.keepers[i]
		if f.Key != decide.KeyUsable {
			continue
		}
		err := c.sealMeshWith(ctx, f, mv)
		c.noteSealed(f.Name, err)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Keepers) sealMeshWith(ctx context.Context, f *found, mv *move) error {
	place := keyring.Place{Cluster: mv.manifest.Cluster, Owner: f.Name, SeedEpoch: mv.link.SeedEpoch,
		Head: mv.link.Hash}
	data, err := authority.SealMesh(ctx, f.box, place, mv.mesh)
	if err == nil {
		err = f.checkSealed(data)
	}
	if err != nil {
		return explain.Wrap(err, explain.KeeperUnusable, "keeper", f.Name, "problem", err.Error())
	}
	key := sealed.Mesh(mv.link.Hash).Key(f.Name, f.id)
	e, err := c.cfg.Store.Get(ctx, key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return c.cfg.Head.StoreError("read a sealed secret", err)
	}
	return c.writeSealedCopy(ctx, mv, key, e.Version, data)
}

// sealAgain has the keepers seal the seed, if their key is here and they do not open it,
// and the new mesh CA key. One that is gone may be why this is done: it is logged and
// shown by status, and stops nothing.
func (c *Keepers) sealAgain(ctx context.Context, mv *move) {
	for _, o := range mv.manifest.Seed.Keepers() {
		err := c.sealAgainWith(ctx, o, mv)
		c.noteSealed(o.Name, err)
		if err != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelError,
				"a keeper does not seal the seed and the new mesh CA key: a restart of all coordinators needs the "+
					"owners, until it is mended and a manifest is set",
				slog.String("keeper", o.Name), slog.Any("err", err))
		}
	}
	mv.keepers = nil // they sealed what they can: the move must not fail over the others
}

func (c *Keepers) sealAgainWith(ctx context.Context, o manifest.Owner, mv *move) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	defer cancel()
	k, err := c.keeperOf(o)
	if err != nil {
		return err
	}
	f, err := c.lookBeforeMove(ctx, k, mv)
	if err != nil {
		return err
	}
	if err := c.sealSeed(ctx, &f, mv); err != nil || f.Key != decide.KeyUsable {
		return err
	}
	return c.sealMeshWith(ctx, &f, mv)
}

// openSeedOf opens the seed that t names with one keeper.
func (c *Keepers) openSeedOf(ctx context.Context, cluster string, t *history.Transition,
	o manifest.Owner) (*authority.Secrets, error) {
	place := seedPlace(cluster, o.Name, t)
	return openCopy(ctx, c, o, sealed.Seed(t), place, func(k keeper, data []byte) (*authority.Secrets, error) {
		return authority.Open(ctx, k.box, place, data, t.Salt)
	})
}

// openCopy opens what a keeper sealed, as far as its key is on this machine.
func openCopy[T any](ctx context.Context, c *Keepers, o manifest.Owner, of sealed.Of, place keyring.Place,
	open func(keeper, []byte) (T, error)) (opened T, err error) {
	k, err := c.keeperOf(o)
	if err != nil {
		return opened, err
	}
	copies, err := sealed.Copies(ctx, c.cfg.Store, of, o.Name)
	switch {
	case err != nil:
		return opened, fmt.Errorf("read what it sealed: %w", err)
	case len(copies) == 0:
		return opened, fmt.Errorf("the store holds no sealed %s of it: %w",
			map[keyring.Purpose]string{keyring.PurposeSeed: "seed",
				keyring.PurposeMesh: "mesh CA key"}[place.Purpose], store.ErrNotFound)
	}
	id, _ := k.box.KeyID(ctx, place) // why there is none, opening says
	opened, _, err = tryCopies(ctx, k, id, copies, func(data []byte) (T, error) { return open(k, data) })
	if err != nil && len(copies) > 1 {
		err = fmt.Errorf("it is sealed under key %s: %w", idText(sealed.IDs(copies)), err)
	}
	return opened, err
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
