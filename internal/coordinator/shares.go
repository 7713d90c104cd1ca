package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// shareSetRecord says which shares a transition made. It is under the record MAC,
// so that shares which were exchanged in the store are not handed out.
type shareSetRecord struct {
	Set    string            `json:"set"`    // hex
	Shares map[string]string `json:"shares"` // SHA-256 of each file, in hex, by owner
}

// Where the shares of a seed are, and which of them were made together.
const (
	shareSetPrefix = "seed/set/"
	sharePrefix    = "seed/share/"
)

func shareSetKey(made history.Hash) string { return shareSetPrefix + made.String() }

// sharesPrefix is where the shares of a seed are, of every set.
func sharesPrefix(epoch uint64, salt history.Salt) string {
	return fmt.Sprintf("%s%d/%x/", sharePrefix, epoch, salt[:])
}

func shareKey(epoch uint64, salt history.Salt, set, owner string) string {
	return sharesPrefix(epoch, salt) + set + "/" + owner
}

// writeShares writes the shares that the move made, before its head: whoever sees
// the head finds them. Their names are new with each split, so that no attempt
// overwrites another one's.
func (c *Authority) writeShares(ctx context.Context, mv *transition.Move) error {
	if len(mv.Shares.Shares) == 0 {
		return nil
	}
	auth, err := mv.Secrets.Records()
	if err != nil {
		return err
	}
	rec := shareSetRecord{Set: hex.EncodeToString(mv.Shares.ID[:]), Shares: make(map[string]string)}
	for _, x := range mv.Shares.Shares {
		sum := sha256.Sum256(x.File)
		rec.Shares[x.Owner] = hex.EncodeToString(sum[:])
		if _, err := c.cfg.Head.Overwrite(ctx, shareKey(mv.Link.SeedEpoch, mv.Link.Salt, rec.Set, x.Owner),
			x.File); err != nil {
			return err
		}
		if err := c.cfg.Faults.Hit("set.after-share"); err != nil {
			return err
		}
	}
	w, err := record.Records{Store: c.cfg.Store, Auth: auth}.Seal(shareSetKey(mv.Link.Hash), rec)
	if err != nil {
		return err
	}
	if _, err := c.cfg.Head.Overwrite(ctx, w.Key, w.Value); err != nil {
		return err
	}
	return c.cfg.Faults.Hit("set.after-shares")
}

// GetSeedShares returns the shares that the owners of the manifest in force should
// hold. In recovery mode it is served to this machine alone.
func (m manifestServer) GetSeedShares(ctx context.Context,
	_ *fealtyv1.GetSeedSharesRequest) (*fealtyv1.GetSeedSharesResponse, error) {
	if m.c.cfg.Head.State().Phase == authority.Recovery && identity.FromContext(ctx).Local != nil {
		return m.c.claimedShares(ctx)
	}
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	made := s.SharesMade()
	out := &fealtyv1.GetSeedSharesResponse{Transition: transitionMessage(made)}
	people := s.Manifest.Seed.People()
	if len(people) == 0 {
		return out, nil
	}
	rec, err := record.Get[shareSetRecord](ctx, s.Records, shareSetKey(made.Hash))
	if err != nil {
		return nil, m.c.cfg.Head.StoreError("read which shares of the seed there are", err)
	}
	for _, o := range people {
		file, err := m.c.readShare(ctx, made, rec.Value, o)
		if err != nil {
			return nil, err
		}
		out.Shares = append(out.Shares, &fealtyv1.SeedShare{Owner: o.Name, File: file})
	}
	return out, nil
}

// claimedShares returns the shares of the head that the store claims. Which ones
// they are is under the record MAC, which takes the seed to check, so that nothing
// of it is verified here. An owner's tool compares each share with a history that
// it verifies itself, and nobody else can open one.
func (c *Authority) claimedShares(ctx context.Context) (*fealtyv1.GetSeedSharesResponse, error) {
	_, links, m, err := c.cfg.Head.ClaimedHistory(ctx)
	if err != nil {
		return nil, err
	}
	made := authority.SharesMade(links)
	out := &fealtyv1.GetSeedSharesResponse{Transition: transitionMessage(made), Unverified: true}
	people := m.Seed.People()
	if len(people) == 0 {
		return out, nil
	}
	l, err := c.cfg.Store.List(ctx, sharesPrefix(made.SeedEpoch, made.Salt))
	if err != nil {
		return nil, c.cfg.Head.StoreError("list the shares of the seed", err)
	}
	set, err := c.claimedSet(ctx, made, l.Entries)
	if err != nil {
		return nil, err
	}
	for _, o := range people {
		key := shareKey(made.SeedEpoch, made.Salt, set, o.Name)
		i := slices.IndexFunc(l.Entries,
			func(e store.Entry) bool { return e.Key == key && len(e.Value) <= keyring.MaxShareFileBytes })
		if i < 0 {
			// One that is lost is no reason to keep back the others.
			out.Missing = append(out.Missing, o.Name)
			continue
		}
		out.Shares = append(out.Shares, &fealtyv1.SeedShare{Owner: o.Name, File: l.Entries[i].Value})
	}
	return out, nil
}

// claimedSet returns the set of shares that made is said to have made: what a set
// that failed left may be there as well. Without a record of it, it is the newest.
func (c *Authority) claimedSet(ctx context.Context, made history.Link, shares []store.Entry) (string, error) {
	e, err := c.cfg.Store.Get(ctx, shareSetKey(made.Hash))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", c.cfg.Head.StoreError("read which shares of the seed there are", err)
	}
	var rec shareSetRecord
	if err == nil && len(e.Value) > store.SealBytes && json.Unmarshal(e.Value[store.SealBytes:], &rec) == nil &&
		rec.Set != "" {
		return rec.Set, nil
	}
	var newest store.Entry
	for _, x := range shares {
		if x.Version > newest.Version {
			newest = x
		}
	}
	set, _, _ := strings.Cut(strings.TrimPrefix(newest.Key, sharesPrefix(made.SeedEpoch, made.Salt)), "/")
	return set, nil
}

// readShare reads the share of o from the store, and compares it with what was
// written.
func (c *Authority) readShare(ctx context.Context, made history.Link, rec shareSetRecord, o manifest.Owner) ([]byte,
	error) {
	const what = "read a share of the seed"
	e, err := c.cfg.Store.Get(ctx, shareKey(made.SeedEpoch, made.Salt, rec.Set, o.Name))
	if err != nil {
		return nil, c.cfg.Head.StoreError(what, err)
	}
	if sum := sha256.Sum256(e.Value); hex.EncodeToString(sum[:]) != rec.Shares[o.Name] {
		return nil, c.cfg.Head.StoreError(what, fmt.Errorf("the share of %s is not the one that was written: %w",
			o.Name, store.ErrForged))
	}
	return e.Value, nil
}

// dropSecrets removes what the store holds of the seed for nobody: sealed copies of
// keepers, and shares, that are older than the head and that the manifest in force
// does not name. What is newer belongs to a move that is under way.
func (c *Authority) dropSecrets(ctx context.Context, s *authority.State) error {
	over, err := c.goneSealed(ctx, s)
	if err != nil {
		return err
	}
	keep := make(map[string]bool)
	if people := s.Manifest.Seed.People(); len(people) > 0 {
		made := s.SharesMade()
		rec, err := record.Get[shareSetRecord](ctx, s.Records, shareSetKey(made.Hash))
		if err != nil || !rec.Exists() {
			return err
		}
		keep[shareSetKey(made.Hash)] = true
		for _, o := range people {
			keep[shareKey(made.SeedEpoch, made.Salt, rec.Value.Set, o.Name)] = true
		}
	}
	for _, prefix := range []string{sharesPrefix(s.Head.SeedEpoch, s.Head.Salt), shareSetPrefix} {
		l, err := c.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range l.Entries {
			if !keep[e.Key] && e.Version < s.HeadVersion {
				over = append(over, e)
			}
		}
	}
	for _, e := range over {
		ch := c.cfg.LeaderChange(s)
		ch.Delete(e.Key, e.Version)
		if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
			return err
		}
	}
	return nil
}

// goneSealed returns what keepers sealed and nobody may need any more.
func (c *Authority) goneSealed(ctx context.Context, s *authority.State) ([]store.Entry, error) {
	l, err := c.cfg.Store.List(ctx, sealed.Prefix)
	if err != nil {
		return nil, err
	}
	var keepers []string
	for _, o := range s.Manifest.Seed.Keepers() {
		keepers = append(keepers, o.Name)
	}
	return sealed.Gone(l.Entries, &s.Head, s.HeadVersion, keepers), nil
}
