// Package keepers tells the keepers of the seed (files and programs on this machine) to encrypt it when the head moves
// and to decrypt it at a start, and checks in between that they can.
//
// A copy that was sealed under another key than the one that is here is never overwritten: whoever
// holds that key may be the last. See docs/explanation/recovery.md.
package keepers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// Config is what Keepers are made of.
type Config struct {
	Self     *authority.Enrolment
	Head     *authority.Head
	Replicas *peer.Directory
	Store    store.Store
	FS       durable.FS
	Failures *ratelimit.LogSampler
	Log      *slog.Logger
	Now      func() time.Time
}

// Keepers seals the seed with the keepers whose keys are on this machine, and opens it.
type Keepers struct {
	cfg Config

	keeperViews    atomic.Pointer[keeperViews] // of this machine; nil: it did not look yet
	keepersChanged watch.Signal                // they changed
	told           chan chan<- struct{}        // has all of them looked at; what it takes is closed after the look; capacity 1
	looked         chan<- struct{}             // taken from told, and not closed yet; of [Keepers.Follow] alone; nil: there is none

	failedMu sync.Mutex
	failed   map[string]string // keepers that did not seal, and why; guarded by failedMu
}

// New returns a [Keepers] that looked at nothing yet.
func New(cfg Config) *Keepers { return &Keepers{cfg: cfg, told: make(chan chan<- struct{}, 1)} }

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
		return keeper{}, errcode.Wrap(err, errcode.KeeperUnusable, "keeper", o.Name, "problem", err.Error())
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

// Usable reports whether each keeper of m can be used by this build and machine at all.
func (c *Keepers) Usable(m *manifest.Manifest) error {
	_, err := c.keepers(m)
	return err
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
