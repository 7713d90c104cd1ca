package coordinator

import (
	"context"
	"crypto/ed25519"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
)

// seedShareKey is where the share of an owner is kept, encrypted to that owner. It
// names the set, which is new with every split: no set overwrites another.
func seedShareKey(epoch uint64, salt history.Salt, set [keyring.ShareSetBytes]byte, owner string) string {
	return fmt.Sprintf("seed/share/%d/%x/%x/%s", epoch, salt[:], set[:], owner)
}

// sealedShare is one owner's share, encrypted to that owner.
type sealedShare struct {
	key  string // in the store
	file []byte
}

// split gives each person among the owners a share of the seed of mv: the
// commitments stand in t, the shares are encrypted to their owners.
func (mv *move) split(t *history.Transition) error {
	m := mv.manifest
	t.ShareCommitments = nil
	people := 0
	for _, o := range m.Seed.Owners {
		if o.Keeper == "" {
			people++
		}
	}
	if people == 0 {
		return nil
	}
	shares, err := keyring.Split(mv.secrets.seed, m.Seed.Threshold, people)
	if err != nil {
		return explain.Wrap(err, explain.RequestField, "field", "seed.threshold", "problem", err.Error())
	}
	next := 0
	for _, o := range m.Seed.Owners {
		if o.Keeper != "" {
			continue
		}
		share := shares[next]
		next++
		file, err := keyring.SealShare(o.Recipient, keyring.ShareFile{
			Cluster: m.Cluster, Owner: o.Name, SeedEpoch: t.SeedEpoch, Threshold: m.Seed.Threshold,
			TransactionKey: mv.secrets.keys.Transaction().Public().(ed25519.PublicKey), RootPin: identity.KeyOf(mv.root), Share: share,
		})
		if err != nil {
			return explain.Wrap(err, explain.RequestField, "field", "seed.owners", "problem", err.Error())
		}
		t.ShareCommitments = append(t.ShareCommitments, history.ShareCommitment{Owner: o.Name, Hash: share.Commitment(m.Cluster, t.SeedEpoch)})
		mv.shares = append(mv.shares, sealedShare{seedShareKey(t.SeedEpoch, t.Salt, share.Set(), o.Name), file})
		share.Wipe()
	}
	return nil
}

// writeShares writes the shares of the move, before the head moves.
func (c *Coordinator) writeShares(ctx context.Context, mv *move) error {
	for _, s := range mv.shares {
		if err := c.writeSealed(ctx, s.key, s.file); err != nil {
			return err
		}
	}
	return nil
}
