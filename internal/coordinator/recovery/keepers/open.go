package keepers

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

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

// OpenSeedOf opens the seed that t names with one keeper.
func (c *Keepers) OpenSeedOf(ctx context.Context, cluster string, t *history.Transition,
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

// OpenMeshOf opens the mesh CA key of the head of v with one keeper, under the root.
func (c *Keepers) OpenMeshOf(ctx context.Context, v *history.Verified, root *x509.Certificate,
	o manifest.Owner) (*pki.MeshCA, error) {
	head := v.Current()
	place := keyring.Place{Cluster: v.Manifest().Cluster, Purpose: keyring.PurposeMesh, Owner: o.Name,
		SeedEpoch: head.SeedEpoch, Head: head.Hash}
	return openCopy(ctx, c, o, sealed.Mesh(head.Hash), place, func(k keeper, data []byte) (*pki.MeshCA, error) {
		key, cert, err := authority.OpenMesh(ctx, k.box, place, data)
		if err != nil {
			return nil, err
		}
		return key.Load(root, cert, place.Cluster, head.AuthorityEpoch)
	})
}
