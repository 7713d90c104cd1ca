package transition

import (
	"fmt"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
)

// A ShareSet is one split of the seed among the people of a manifest, each share
// encrypted to its owner. The zero shareSet is none.
type ShareSet struct {
	ID     [keyring.ShareSetBytes]byte
	Shares []OwnerShare // in the order of the manifest
}

// OwnerShare is the share of one owner, encrypted to it.
type OwnerShare struct {
	Owner string
	File  []byte // age, armored
}

// Message returns the shares as the API carries them.
func (s ShareSet) Message() []*fealtyv1.SeedShare {
	var out []*fealtyv1.SeedShare
	for _, x := range s.Shares {
		out = append(out, &fealtyv1.SeedShare{Owner: x.Owner, File: x.File})
	}
	return out
}

// SplitSeed splits the seed of the move among the people of its manifest, and
// commits t to the shares. A keeper has none: it holds all of the seed.
func (mv *Move) SplitSeed(t *history.Transition) error {
	people := mv.Manifest.Seed.People()
	t.ShareCommitments = nil
	if len(people) == 0 {
		return nil
	}
	shares, err := mv.Secrets.Split(t.Threshold, len(people))
	if err != nil {
		return fmt.Errorf("split the seed: %w", err)
	}
	defer func() {
		for _, s := range shares {
			s.Wipe()
		}
	}()
	mv.Shares = ShareSet{ID: shares[0].Set()}
	for i, o := range people {
		t.ShareCommitments = append(t.ShareCommitments,
			history.ShareCommitment{Owner: o.Name, Hash: shares[i].Commitment(mv.Manifest.Cluster, t.SeedEpoch)})
		file, err := keyring.SealShare(o.Recipient, keyring.ShareFile{
			Cluster: mv.Manifest.Cluster, Owner: o.Name, SeedEpoch: t.SeedEpoch, Threshold: t.Threshold,
			TransactionKey: mv.Secrets.TransactionKey(), RootPin: identity.KeyOf(mv.Root), Share: shares[i],
		})
		if err != nil {
			return errcode.Wrap(err, errcode.RequestField, "field", "seed.owners",
				"problem", fmt.Sprintf("the share of %s cannot be encrypted: %v", o.Name, err))
		}
		mv.Shares.Shares = append(mv.Shares.Shares, OwnerShare{o.Name, file})
	}
	return nil
}
