// Package shares keeps the shares of the seed in the store, each encrypted to its owner, and
// removes shares, sealed copies and ledgers of reseeds that belong to no seed or mesh CA key in use
// any more.
package shares

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
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// Config is what Shares are made of.
type Config struct {
	Head   *authority.Head
	Store  store.Store
	Faults *failpoint.Points
	// LeaderChange begins a change that only who leads can commit.
	LeaderChange func(s *authority.State) *record.Change
}

// Shares are those in the store.
type Shares struct{ cfg Config }

// New returns Shares. It reads nothing yet.
func New(cfg Config) *Shares { return &Shares{cfg: cfg} }

// SetRecord says which shares a transition made. It is under the record MAC,
// so that shares which were exchanged in the store are not handed out.
type SetRecord struct {
	Set    string            `json:"set"`    // hex
	Shares map[string]string `json:"shares"` // SHA-256 of each file, in hex, by owner
}

// Where the shares of a seed are, and which of them were made together.
const (
	SetPrefix = "seed/set/"
	Prefix    = "seed/share/"
)

func setKey(made history.Hash) string { return SetPrefix + made.String() }

// ofSeed is where the shares of a seed are, of every set.
func ofSeed(epoch uint64, salt history.Salt) string {
	return fmt.Sprintf("%s%d/%x/", Prefix, epoch, salt[:])
}

func shareKey(epoch uint64, salt history.Salt, set, owner string) string {
	return ofSeed(epoch, salt) + set + "/" + owner
}

// Write writes the shares that the move made, before its head: whoever sees
// the head finds them. Their names are new with each split, so that no attempt
// overwrites another one's.
func (x *Shares) Write(ctx context.Context, mv *transition.Move) error {
	if len(mv.Shares.Shares) == 0 {
		return nil
	}
	auth, err := mv.Secrets.Records()
	if err != nil {
		return err
	}
	rec := SetRecord{Set: hex.EncodeToString(mv.Shares.ID[:]), Shares: make(map[string]string)}
	for _, one := range mv.Shares.Shares {
		sum := sha256.Sum256(one.File)
		rec.Shares[one.Owner] = hex.EncodeToString(sum[:])
		if _, err := x.cfg.Head.Overwrite(ctx, shareKey(mv.Link.SeedEpoch, mv.Link.Salt, rec.Set, one.Owner),
			one.File); err != nil {
			return err
		}
		if err := x.cfg.Faults.Hit("set.after-share"); err != nil {
			return err
		}
	}
	w, err := record.Records{Store: x.cfg.Store, Auth: auth}.Seal(setKey(mv.Link.Hash), rec)
	if err != nil {
		return err
	}
	if _, err := x.cfg.Head.Overwrite(ctx, w.Key, w.Value); err != nil {
		return err
	}
	return x.cfg.Faults.Hit("set.after-shares")
}

// InForce returns the shares that the owners of the manifest of s should hold.
func (x *Shares) InForce(ctx context.Context, s *authority.State) (*fealtyv1.GetSeedSharesResponse, error) {
	made := s.SharesMade()
	out := &fealtyv1.GetSeedSharesResponse{Transition: transition.Message(made)}
	people := s.Manifest.Seed.People()
	if len(people) == 0 {
		return out, nil
	}
	rec, err := record.Get[SetRecord](ctx, s.Records, setKey(made.Hash))
	if err != nil {
		return nil, x.cfg.Head.StoreError("read which shares of the seed there are", err)
	}
	for _, o := range people {
		file, err := x.readShare(ctx, made, rec.Value, o)
		if err != nil {
			return nil, err
		}
		out.Shares = append(out.Shares, &fealtyv1.SeedShare{Owner: o.Name, File: file})
	}
	return out, nil
}

// Claimed returns the shares of the head that the store claims. Which ones
// they are is under the record MAC, which takes the seed to check, so that nothing
// of it is verified here. An owner's tool compares each share with a history that
// it verifies itself, and nobody else can open one.
func (x *Shares) Claimed(ctx context.Context) (*fealtyv1.GetSeedSharesResponse, error) {
	_, links, m, err := x.cfg.Head.ClaimedHistory(ctx)
	if err != nil {
		return nil, err
	}
	made := authority.SharesMade(links)
	out := &fealtyv1.GetSeedSharesResponse{Transition: transition.Message(made), Unverified: true}
	people := m.Seed.People()
	if len(people) == 0 {
		return out, nil
	}
	l, err := x.cfg.Store.List(ctx, ofSeed(made.SeedEpoch, made.Salt))
	if err != nil {
		return nil, x.cfg.Head.StoreError("list the shares of the seed", err)
	}
	set, err := x.claimedSet(ctx, made, l.Entries)
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
func (x *Shares) claimedSet(ctx context.Context, made history.Link, shares []store.Entry) (string, error) {
	e, err := x.cfg.Store.Get(ctx, setKey(made.Hash))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", x.cfg.Head.StoreError("read which shares of the seed there are", err)
	}
	var rec SetRecord
	if err == nil && len(e.Value) > store.SealBytes && json.Unmarshal(e.Value[store.SealBytes:], &rec) == nil &&
		rec.Set != "" {
		return rec.Set, nil
	}
	var newest store.Entry
	for _, e := range shares {
		if e.Version > newest.Version {
			newest = e
		}
	}
	set, _, _ := strings.Cut(strings.TrimPrefix(newest.Key, ofSeed(made.SeedEpoch, made.Salt)), "/")
	return set, nil
}

// readShare reads the share of o from the store, and compares it with what was
// written.
func (x *Shares) readShare(ctx context.Context, made history.Link, rec SetRecord, o manifest.Owner) ([]byte,
	error) {
	const what = "read a share of the seed"
	e, err := x.cfg.Store.Get(ctx, shareKey(made.SeedEpoch, made.Salt, rec.Set, o.Name))
	if err != nil {
		return nil, x.cfg.Head.StoreError(what, err)
	}
	if sum := sha256.Sum256(e.Value); hex.EncodeToString(sum[:]) != rec.Shares[o.Name] {
		return nil, x.cfg.Head.StoreError(what, fmt.Errorf("the share of %s is not the one that was written: %w",
			o.Name, store.ErrForged))
	}
	return e.Value, nil
}

// Drop removes what the store holds of the seed for nobody: sealed copies of
// keepers, and shares, that are older than the head and that the manifest in force
// does not name. A newer one belongs to a move that is under way.
func (x *Shares) Drop(ctx context.Context, s *authority.State) error {
	over, err := x.goneSealed(ctx, s)
	if err != nil {
		return err
	}
	keep := make(map[string]bool)
	if people := s.Manifest.Seed.People(); len(people) > 0 {
		made := s.SharesMade()
		rec, err := record.Get[SetRecord](ctx, s.Records, setKey(made.Hash))
		if err != nil || !rec.Exists() {
			return err
		}
		keep[setKey(made.Hash)] = true
		for _, o := range people {
			keep[shareKey(made.SeedEpoch, made.Salt, rec.Value.Set, o.Name)] = true
		}
	}
	for _, prefix := range []string{ofSeed(s.Head.SeedEpoch, s.Head.Salt), SetPrefix} {
		l, err := x.cfg.Store.List(ctx, prefix)
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
		ch := x.cfg.LeaderChange(s)
		ch.Delete(e.Key, e.Version)
		if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
			return err
		}
	}
	return nil
}

// goneSealed returns what keepers sealed and nobody may need any more.
func (x *Shares) goneSealed(ctx context.Context, s *authority.State) ([]store.Entry, error) {
	l, err := x.cfg.Store.List(ctx, sealed.Prefix)
	if err != nil {
		return nil, err
	}
	var keepers []string
	for _, o := range s.Manifest.Seed.Keepers() {
		keepers = append(keepers, o.Name)
	}
	return sealed.Gone(l.Entries, &s.Head, s.HeadVersion, keepers), nil
}

// Sweep removes what a move leaves behind: ledgers, what is sealed of seeds and
// mesh CA keys that were replaced, and for keepers that were dismissed, and shares of
// seeds of before. Others may hold them; they are not ours to keep.
//
// It runs after the head has moved, whoever moved it, and again at each start: a crash
// in between leaves them to the next one.
func (x *Shares) Sweep(ctx context.Context, s *authority.State) error {
	gone, err := x.goneSealed(ctx, s)
	if err != nil {
		return err
	}
	former := make(map[string]bool) // share sets of seeds that are gone
	prefixes := []string{reseal.LedgerPrefix}
	for i, links := 0, s.Chain.Links(); links[i].SeedEpoch < s.Head.SeedEpoch; i++ {
		l := links[i]
		former[setKey(l.Hash)] = true
		if i == 0 || l.Salt != links[i-1].Salt {
			prefixes = append(prefixes, ofSeed(l.SeedEpoch, l.Salt))
		}
	}
	if s.Head.SeedEpoch > 1 {
		prefixes = append(prefixes, SetPrefix)
	}
	for _, prefix := range prefixes {
		l, err := x.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range l.Entries {
			if prefix != SetPrefix || former[e.Key] {
				gone = append(gone, e)
			}
		}
	}
	for batch := range store.Cut(gone, s.Records.NewChange(s.HeadVersion).Tx, store.DeleteCost) {
		ch := s.Records.NewChange(s.HeadVersion)
		for _, e := range batch {
			ch.Delete(e.Key, e.Version)
		}
		// A faster one is another coordinator at the same work.
		if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
			return err
		}
	}
	return nil
}
