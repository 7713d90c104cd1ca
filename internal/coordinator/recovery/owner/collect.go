package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Owners may reach different replicas. Each replica that was asked has an attempt of
// its own, with a key in its memory, and says so in the store under its enrolment
// key. A coordinator that takes a share encrypts it to the other open attempts of
// that head as well, so that each of them has all shares, whoever took them; the
// first that has enough writes the rekey, and the others recover from it.
//
// An owner sends a share to a coordinator that the manifest of the head admits, and
// so does a replica: it reads nothing but the attempts of the enrolment keys in the
// very manifest that the owner verified, and those must have signed them. However
// much is written to the store, there are no more of them than coordinators.

// openPrefix is where replicas say that they have an attempt open, each under the id
// of its enrolment key. An attempt's id is hex and never "open".
const openPrefix = Prefix + "open/"

// lookPause is how often an open attempt looks for shares that others took; news of
// the store come at once, where it tells any.
const lookPause = 2 * time.Second

// openKey is the place of the coordinator with an enrolment key, "ed25519:<base64>".
func openKey(claim string) (string, error) {
	key, err := proof.ParseKeyClaim(claim)
	if err != nil {
		return "", err
	}
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return "", err
	}
	return openPrefix + id.String(), nil
}

// tellAttempt says in the store that g is open, and until when. It is called by who
// made g, and then by who has the turn.
func (c *OwnerRecovery) tellAttempt(ctx context.Context, g *Attempt) error {
	c.recoveries.mu.Lock()
	ends := g.shares.Ends()
	c.recoveries.mu.Unlock()
	if g.toldAt != 0 && ends.Equal(g.toldEnd) {
		return nil
	}
	key, err := openKey(c.cfg.Self.EnrolmentKey())
	if err != nil {
		return err
	}
	raw, err := recovery.Open{Attempt: g.ID, Cluster: g.head.Cluster, Head: g.head.Hash,
		Recipient: g.recipient.Public(), Ends: ends}.Sign(c.cfg.Self.PrivateKey(), c.cfg.Self.Vouch)
	if err != nil {
		return err
	}
	if err := c.cfg.Faults.Hit("recover.before-tell"); err != nil {
		return err
	}
	version, err := c.cfg.Head.Overwrite(ctx, key, raw)
	if err != nil {
		return err
	}
	g.toldAt, g.toldEnd = version, ends
	return c.cfg.Faults.Hit("recover.after-tell")
}

// collect looks at what is in for g, passes on what it holds, and makes the seed of
// the shares if there are enough. The caller has the turn.
func (c *OwnerRecovery) collect(ctx context.Context, g *Attempt) (*fealtyv1.RecoveryProgress, error) {
	owners, shares, err := c.gathered(ctx, g)
	defer func() {
		for _, s := range shares {
			s.Wipe()
		}
	}()
	if err != nil {
		return nil, err
	}
	c.recoveries.mu.Lock()
	g.shares.Gathered(c.cfg.Now(), owners)
	progress, enough := progressOf(g.shares), g.shares.Enough()
	c.recoveries.mu.Unlock()
	if err := c.tellAttempt(ctx, g); err != nil {
		return nil, err
	}
	// First, so that the others can go on if this one ends right here. A step that
	// fails is tried again with the next look.
	if err := c.forward(ctx, g, owners, shares); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"shares were not passed on to the other recovering coordinators; that is tried again", slog.Any("err", err))
	}
	if !enough || len(shares) < g.head.Threshold {
		return progress, nil
	}
	s, err := c.recoverSeed(ctx, g, owners, shares)
	if err != nil {
		return nil, err
	}
	progress.Recovered, progress.AuthorityEpoch, progress.Head = true, s.Head.AuthorityEpoch, s.Head.Hash[:]
	return progress, nil
}

// forward encrypts the shares of owners to every other open attempt at the head of g
// that lacks them.
func (c *OwnerRecovery) forward(ctx context.Context, g *Attempt, owners []string, shares []keyring.Share) error {
	var failed []error
	keys, err := c.mayCollect(ctx, g.manifest)
	if err != nil {
		failed = append(failed, err)
	}
	for _, key := range keys {
		if key == c.cfg.Self.EnrolmentKey() || len(shares) == 0 {
			continue
		}
		open, err := c.openAttemptOf(ctx, g, key)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for i := 0; open != nil && i < len(owners); i++ {
			if err := c.forwardOne(ctx, open, owners[i], shares[i]); err != nil {
				failed = append(failed, err)
				break
			}
		}
	}
	return errors.Join(failed...)
}

// mayCollect returns the enrolment keys of those that may have an attempt open: what m
// names, and who showed in its replica record a certificate that m admits. The records
// only say where to look: each attempt proves itself.
func (c *OwnerRecovery) mayCollect(ctx context.Context, m *manifest.Manifest) ([]string, error) {
	keys := recovery.Coordinators(m)
	known, err := c.cfg.Replicas.Newest(ctx, m)
	for _, r := range known {
		if !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	return keys, err
}

// openAttemptOf returns the attempt that the coordinator with an enrolment key has
// open at the head of g; nil if it has none that may be believed.
func (c *OwnerRecovery) openAttemptOf(ctx context.Context, g *Attempt, key string) (*recovery.Open, error) {
	at, err := openKey(key)
	if err != nil {
		return nil, err
	}
	e, err := c.cfg.Store.Get(ctx, at)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the open attempt of %s: %w", key, err)
	}
	open, err := recovery.ReadOpen(e.Value, recovery.Claimed{Head: g.head, Manifest: g.manifest}, key, c.cfg.Now())
	if err != nil {
		c.notOpen(ctx, at, err)
		return nil, nil
	}
	return open, nil
}

// notOpen says that a record under openPrefix is not believed. One that is over, or
// of before the head moved, is nothing to tell of.
func (c *OwnerRecovery) notOpen(ctx context.Context, key string, err error) {
	if e, ok := errors.AsType[*recovery.OpenError](err); ok && (e.Rule == "ends" || e.Rule == "head") {
		return
	}
	c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn,
		"what the store shows as an open recovery attempt is none, and got no share", slog.String("key", key),
		slog.Any("err", err))
}

// forwardOne encrypts one share to an open attempt. A share that is there already stays: the
// attempt itself removes what is not what the head commits to.
func (c *OwnerRecovery) forwardOne(ctx context.Context, open *recovery.Open, owner string, share keyring.Share) error {
	key := recoveryKey(open.Attempt, owner)
	switch _, err := c.cfg.Store.Get(ctx, key); {
	case err == nil:
		return nil
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	sent, err := keyring.SendShare(open.Recipient,
		keyring.Attempt{ID: open.Attempt.String(), Cluster: open.Cluster, Owner: owner}, share)
	if err != nil {
		return err
	}
	if err := c.cfg.Faults.Hit("recover.before-pass-on"); err != nil {
		return err
	}
	if _, err := c.cfg.Store.CompareAndSwap(ctx, key, 0, sent); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo,
		"a share of the seed was passed on to another recovering coordinator", slog.String("owner", owner),
		slog.String("attempt", open.Attempt.String()), slog.String("key", open.Key))
	return c.cfg.Faults.Hit("recover.after-pass-on")
}

// Follow goes on with the attempt that is open whenever others may have
// taken a share for it, until ctx ends.
func (c *OwnerRecovery) Follow(ctx context.Context) error {
	for {
		opened, due := c.recoveries.changed.Wait(), c.due.Wait()
		if err := c.Look(ctx); err != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the recovery attempt did not get on", slog.Any("err", err))
		}
		if c.recoveries.current() == nil {
			if err := watch.Event(ctx, opened); err != nil {
				return err
			}
			continue
		}
		if _, err := watch.Wait(ctx, lookPause, opened, due); err != nil {
			return err
		}
	}
}

// Watch has Follow look as soon as something comes in.
func (c *OwnerRecovery) Watch(ctx context.Context) error {
	for {
		opened := c.recoveries.changed.Wait()
		g := c.recoveries.current()
		if g == nil {
			if err := watch.Event(ctx, opened); err != nil {
				return err
			}
			continue
		}
		for _, err := range c.cfg.Store.Changes(ctx, Prefix, g.openedAt) {
			if err != nil || c.recoveries.current() != g {
				break
			}
			c.due.Notify()
		}
		// Followed from the start again: what was seen already costs a look.
		if err := watch.Sleep(ctx, watch.RetryPause); err != nil {
			return err
		}
	}
}

// Look looks once at the attempt that is open.
func (c *OwnerRecovery) Look(ctx context.Context) error {
	release, err := c.cfg.Turn.Await(ctx)
	if err != nil {
		return nil
	}
	defer release()
	g := c.recoveries.current()
	if g == nil || c.recoverable() != nil {
		return nil
	}
	c.recoveries.mu.Lock()
	over := g.shares.Over(c.cfg.Now())
	c.recoveries.mu.Unlock()
	if over {
		c.recoveries.end(g)
		c.dropShares(ctx, g)
		return nil
	}
	before := g.shares.Brought() // only who has the turn changes it
	progress, err := c.collect(ctx, g)
	switch {
	case errors.Is(err, errcode.RecoveryOver):
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a recovery attempt ended", slog.Any("reason", err))
		return nil
	case err != nil:
		return err
	}
	if len(progress.GetBrought()) > len(before) {
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo,
			"another coordinator passed a share of the seed on to this one", slog.Any("brought", progress.GetBrought()),
			slog.Uint64("needed", uint64(progress.GetNeeded())), slog.Bool("recovered", progress.GetRecovered()))
	}
	return nil
}

// dropShares removes what was gathered for g. It is of no use to anybody once the
// attempt's key is gone, so failing is no harm.
func (c *OwnerRecovery) dropShares(ctx context.Context, g *Attempt) {
	var keys []string
	for _, owner := range g.head.Owners() {
		if e, err := c.cfg.Store.Get(ctx, recoveryKey(g.ID, owner)); err == nil {
			keys = append(keys, e.Key)
		}
	}
	if key, err := openKey(c.cfg.Self.EnrolmentKey()); err == nil {
		if e, err := c.cfg.Store.Get(ctx, key); err == nil && e.Version == g.toldAt {
			keys = append(keys, e.Key)
		}
	}
	for batch := range store.Cut(keys, store.Tx{}, func(key string) (ops, bytes int) { return 1, len(key) }) {
		if _, err := c.cfg.Store.Commit(ctx, store.Tx{ID: store.NewTxID(), Delete: batch}); err != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "gathered shares, which nobody can open any more, were not removed",
				slog.Any("err", err))
			return
		}
	}
}

// Drop removes what attempts left that ended: all but those that other
// coordinators have open at the head of s. Nobody can open what is removed.
func (c *OwnerRecovery) Drop(ctx context.Context, s *authority.State) error {
	_, leads, ok := c.cfg.Election.Leading()
	if !ok {
		return nil
	}
	l, err := c.cfg.Store.List(ctx, Prefix)
	if err != nil {
		return err
	}
	entries := make(map[string]store.Entry, len(l.Entries))
	for _, e := range l.Entries {
		entries[e.Key] = e
	}
	want := recovery.Claimed{Head: recovery.NewHead(s.Chain.Links(), s.Manifest), Manifest: s.Manifest}
	keep := make(map[string]bool) // by the prefix of an attempt's shares, or key
	keys, err := c.mayCollect(ctx, s.Manifest)
	if err != nil {
		return err
	}
	for _, key := range keys {
		at, err := openKey(key)
		if err != nil || key == c.cfg.Self.EnrolmentKey() {
			continue // a coordinator that is ready has none open
		}
		if open, err := recovery.ReadOpen(entries[at].Value, want, key, c.cfg.Now()); err == nil {
			keep[at], keep[Prefix+open.Attempt.String()+"/"] = true, true
		}
	}
	gone := slices.DeleteFunc(l.Entries, func(e store.Entry) bool {
		slash := strings.LastIndexByte(e.Key, '/')
		return keep[e.Key] || keep[e.Key[:slash+1]]
	})
	every := []store.Condition{leads, {Key: history.HeadKey, Version: s.HeadVersion}}
	for batch := range store.Cut(gone, store.Tx{If: every}, store.DeleteCost) {
		tx := store.Tx{ID: store.NewTxID(), If: slices.Clone(every)}
		for _, e := range batch {
			// A share that came after the look belongs to an attempt that did so too.
			tx.If = append(tx.If, store.Condition{Key: e.Key, Version: e.Version})
			tx.Delete = append(tx.Delete, e.Key)
		}
		if _, err := c.cfg.Store.Commit(ctx, tx); record.IgnoreConflict(err) != nil {
			return err
		}
	}
	return nil
}
