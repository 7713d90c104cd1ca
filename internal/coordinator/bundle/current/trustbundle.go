// Package current keeps the trust bundle that is in force at this coordinator and the certificates
// that it presents with it, and says which changes still fit (I11). Package bundle makes bundles.
package current

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// Config is what a Current is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	StoreGuard *storeguard.Guard
	Guard      *mesh.Guard
	Source     *credential.Issued // what our listener presents and believes
	Log        *slog.Logger
	Now        func() time.Time

	MaxListed int // banned keys in a bundle
	// Begin adds to a change what config begins with beside the trust state in.
	Begin func(ctx context.Context, ch *record.Change, in bundle.State) error
}

// Current keeps the trust bundle that is in force here (I11).
type Current struct {
	cfg Config

	trustMu       sync.Mutex // orders what trust and source are set to; no I/O under it
	trust         atomic.Pointer[bundle.View]
	bundleChanged watch.Signal
	trustDue      watch.Signal     // the trust state is to be looked at now
	refreshing    *ratelimit.Locks // held by who refreshes the trust bundle
	withdrawn     withdrawals
}

// New returns one that has no bundle yet.
func New(cfg Config) *Current {
	return &Current{cfg: cfg, refreshing: ratelimit.NewLocks()}
}

// View is the bundle in force; nil before the first.
func (b *Current) View() *bundle.View { return b.trust.Load() }

// StatementSigner returns the key that signs what package fence reads. While the key is
// rotated that is the older one, as it is the one that a receiver knows that has not heard of
// the rotation yet. With no key that may sign now the error is an [errcode.StatementUnsigned].
func (b *Current) StatementSigner(s *authority.State) (crypto.Signer, error) {
	if view := b.View(); view != nil {
		if keys := view.Signers(s.Bundle, b.cfg.Now()); len(keys) > 0 {
			return keys[len(keys)-1], nil
		}
	}
	return nil, errcode.New(errcode.StatementUnsigned)
}

// SignTerm returns the signed statement that a leader's term has begun; "" of term 0, which is
// nobody's. The error is that of [Current.StatementSigner].
func (b *Current) SignTerm(s *authority.State, term uint64) (string, error) {
	key, err := b.StatementSigner(s)
	if err != nil || term == 0 {
		return "", err
	}
	text, err := fence.TermStatement{Cluster: s.Manifest.Cluster, Term: int64(term),
		AuthorityEpoch: s.Head.AuthorityEpoch}.Sign(key)
	if err != nil {
		return "", fmt.Errorf("sign the term %d: %w", term, err)
	}
	return text, nil
}

// Changed returns a channel that is closed when another bundle is in force.
func (b *Current) Changed() <-chan struct{} { return b.bundleChanged.Wait() }

// LookAgain has the trust state looked at now.
func (b *Current) LookAgain() { b.trustDue.Notify() }

// Due returns a channel that is closed when the trust state is to be looked at.
func (b *Current) Due() <-chan struct{} { return b.trustDue.Wait() }

// Source is what this coordinator presents and believes.
func (b *Current) Source() *credential.Issued { return b.cfg.Source }

// MaxListed is how many banned keys a bundle has at most.
func (b *Current) MaxListed() int { return b.cfg.MaxListed }

// Alive returns once nobody holds its locks: a watchdog sees that none is held for good.
func (b *Current) Alive() {
	b.trustMu.Lock()
	defer b.trustMu.Unlock()
	b.withdrawn.has("")
}

// Read reads the inputs of the trust bundle. If the bans are not those that
// the trust state says there are, or the trust state is gone, the error matches
// [store.ErrForged]: no bundle is made of what somebody else left.
func (b *Current) Read(ctx context.Context, s *authority.State) (bundle.Input, error) {
	began := b.cfg.StoreGuard.Begin()
	in, err := bundle.Read(ctx, s.Records, s.Manifest.Cluster)
	if err != nil {
		return in, err
	}
	// First whether all of it is of before: whoever put it back put back the sum too.
	if err := b.cfg.StoreGuard.Compare(ctx, s.StoredHead(), began, in.Seen(s.RestoredEpoch())); err != nil {
		return in, err
	}
	return in, in.Whole()
}

// Shown is what people are shown of the trust state and its bans.
type Shown struct {
	Bans int // those that there are, also those that cannot be read
	IDs  *bundle.IDBans
	// Findings name what of them was altered in the store or is missing there.
	Findings []*fealtyv1.Finding
}

// noneNew is what it comes to that no trust bundle can be made.
const noneNew = "and until it is as it was nobody else can be banned, no ban can be lifted, and no coordinator that " +
	"starts is ready"

// Look reads them for who looks. What was altered hides nothing else. The error is that of
// [authority.Head.StoreError].
func (b *Current) Look(ctx context.Context, s *authority.State) (out Shown, err error) {
	in, bad, err := bundle.Look(ctx, s.Records, s.Manifest.Cluster)
	if err != nil {
		return out, b.cfg.Head.StoreError("read the trust state", err)
	}
	var suspects []authority.Suspect
	var state, bans, others []string
	out.IDs = in.IDBans(bad)
	out.Bans = len(in.BannedIDs) + len(in.BannedKeys)
	for _, one := range bad {
		suspects = append(suspects, authority.Suspect{What: one.Key, Err: one.Err})
		switch {
		case one.Key == bundle.StateKey:
			state = append(state, one.Key)
		case strings.HasPrefix(one.Key, record.BanIDPrefix):
			bans, out.Bans = append(bans, one.Key), out.Bans+1
		case strings.HasPrefix(one.Key, record.BanKeyPrefix):
			others, out.Bans = append(others, one.Key), out.Bans+1
		default:
			others = append(others, one.Key)
		}
	}
	suspects = suspects[:min(len(suspects), authority.MaxForgedLogged)]
	if err := b.cfg.Head.ForgedUnder(ctx, s, suspects...); err != nil {
		return out, b.cfg.Head.StoreError("read the trust state", err)
	}
	out.Findings = slices.Concat(
		finding.Altered("every ban in force stays, "+noneNew, state),
		finding.Altered("who it is of stays banned if the bundle in force bans them, "+noneNew, bans),
		finding.Altered("who is banned stays banned, "+noneNew, others))
	if len(bad) > 0 {
		return out, nil
	}
	if !in.State.Exists() {
		out.Findings = append(out.Findings, finding.NewCritical(errcode.StoreForged, "problem", "it is gone", "what",
			bundle.StateKey, "effect", "every ban in force stays, "+noneNew))
	} else if in.Whole() != nil {
		out.Findings = append(out.Findings, finding.NewCritical(errcode.StoreForged, "problem", fmt.Sprintf("%s says that "+
			"there should be %s, and others or fewer are there", bundle.StateKey,
			humanize.Plural(in.State.Value.Bans.Count, "ban", "bans")), "what",
			"the records below "+bundle.Prefix+"ban/", "effect", "who is banned stays banned, "+noneNew))
	}
	return out, nil
}

// keptTrust is the trust bundle that goes on in force while the store cannot say which
// is: the one in memory or, after a restart, on disk.
func (b *Current) keptTrust(s *authority.State) (*bundle.View, error) {
	if have := b.trust.Load(); have != nil && have.Epoch == s.Head.AuthorityEpoch {
		return have, nil
	}
	raw := b.cfg.StoreGuard.Bundle()
	if raw == nil {
		return nil, errors.New("no trust bundle is kept here")
	}
	t, err := s.Bundle.Reopen(raw)
	if err != nil {
		return nil, fmt.Errorf("the trust bundle that is kept here: %w", err)
	}
	if t.Epoch != s.Head.AuthorityEpoch {
		return nil, fmt.Errorf("the trust bundle that is kept here is of authority epoch %d, not %d", t.Epoch,
			s.Head.AuthorityEpoch)
	}
	return t, nil
}

// Ensure makes the trust state name the mesh CA key of s, as after a first
// set or a change of authority, and returns the inputs that are then in force. A
// crash between the head's swap and this is healed by the next start.
func (b *Current) Ensure(ctx context.Context, s *authority.State) (bundle.Input, error) {
	for range record.CommitTries {
		in, err := b.Read(ctx, s)
		if err != nil {
			if errors.Is(err, store.ErrForged) {
				if moved := b.cfg.Head.ForgedUnder(ctx, s, authority.Suspect{What: "the trust state and the bans",
					Err: err}); moved != nil {
					return in, moved
				}
			}
			return in, err
		}
		now := b.cfg.Now().UTC().Truncate(time.Second)
		next, changed := s.Bundle.Next(in, now)
		if !changed {
			return in, nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(bundle.StateKey, in.State.Version, next)
		if err := b.cfg.Begin(ctx, ch, in.State.Value); err != nil {
			return in, err
		}
		_, err = ch.Commit(ctx)
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && conflict.Key == history.HeadKey:
			return in, err // another head is in force: this state is over
		case err != nil && !errors.Is(err, store.ErrConflict):
			return in, err
		}
	}
	return bundle.Input{}, record.Busy("the trust state")
}

// Touch adds to ch a new version of the trust state, so that the bundle
// that ch leads to has a version of its own. A change that no bundle could
// be made of is refused here, with an error that matches [bundle.ErrFull]: once committed it would
// stop every later ban.
func (b *Current) Touch(ctx context.Context, s *authority.State, ch *record.Change, d bundle.Delta,
	room bundle.Room) error {
	in, err := b.Read(ctx, s)
	if err != nil {
		return b.cfg.Head.StoreError("read the trust state", err)
	}
	was := in.State.Version
	next, changed := s.Bundle.Next(in, b.cfg.Now().UTC().Truncate(time.Second))
	if !changed {
		next.Change++
	}
	if d.Edit != nil {
		if err := d.Edit(&next, was); err != nil {
			return err
		}
	}
	in = in.With(d, next)
	next.Bans = in.Sum()
	limit := room.Of(b.cfg.MaxListed)
	if n := len(in.Listed()); n > limit && len(d.Keys) > 0 {
		return fmt.Errorf("%d banned keys would be listed, the limit is %d: %w", n, limit, bundle.ErrFull)
	}
	t, err := s.Bundle.Sign(in, b.cfg.Now())
	if err != nil {
		return fmt.Errorf("%w: %w", bundle.ErrFull, err)
	}
	if have := b.trust.Load(); t.Size > snapshot.DefaultContent-bundle.Reserve &&
		have != nil && t.Size > have.Size {
		return fmt.Errorf("%d bytes, of which %d are kept for the next manifest: %w", t.Size, bundle.Reserve,
			bundle.ErrFull)
	}
	ch.Put(bundle.StateKey, was, next)
	if d.Write != nil {
		d.Write(next.Change)
	}
	return nil
}

// WordFull words [bundle.ErrFull] for who asked.
func WordFull(what string, err error) error {
	if !errors.Is(err, bundle.ErrFull) {
		return err
	}
	return errcode.Wrap(err, errcode.RateLimited, "what", what,
		"limit", fmt.Sprintf("%d banned keys whose certificates are still valid", snapshot.MaxBans))
}

// Apply makes what was just committed true here: our own connections
// first, then the members'.
func (b *Current) Apply(ctx context.Context) error {
	s, err := b.cfg.Head.Ready()
	if err != nil {
		return err
	}
	if err := b.Refresh(ctx, s, false); err != nil {
		// It is durable, and the trust loop goes on trying.
		b.trustDue.Notify()
		return b.cfg.Head.StoreError("read the trust state", err)
	}
	return nil
}

// Refresh compiles the bundle if its inputs or, with renew, its age ask for
// it, and puts it into force.
func (b *Current) Refresh(ctx context.Context, s *authority.State, renew bool) (err error) {
	release, err := b.refreshing.Lock(ctx, "trust")
	if err != nil {
		return err
	}
	defer release()
	withdrawn := b.withdrawn.settled()
	in, err := b.Ensure(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			b.withdrawn.forget(withdrawn...) // the bundle bans them, or nothing came of it
		}
	}()
	now := b.cfg.Now()
	have := b.trust.Load()
	if have != nil && have.Epoch == s.Head.AuthorityEpoch && have.Version >= uint64(in.State.Version) {
		age := now.Sub(have.IssuedAt)
		fresh := age > -snapshot.ClockTolerance && age < min(bundle.RefreshPause, bundle.Life(s.Manifest)/4)
		if fresh || !renew {
			return nil
		}
	}
	t, err := s.Bundle.Sign(in, now)
	if err != nil {
		return err
	}
	if err := b.PutInForce(t); err != nil {
		return err
	}
	b.cfg.Guard.Sweep(ctx)
	b.bundleChanged.Notify()
	b.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "trust bundle in force", slog.Uint64("config_version", t.Version),
		slog.Uint64("authority_epoch", t.Epoch),
		slog.Int("banned", len(in.BannedIDs)), slog.Int("banned_keys", len(in.BannedKeys)), slog.Int("mesh_keys",
			len(in.State.Value.MeshKeys)))
	return nil
}

// PutInForce puts t into force here, unless a newer one is already.
func (b *Current) PutInForce(t *bundle.View) error {
	b.trustMu.Lock()
	defer b.trustMu.Unlock()
	if have := b.trust.Load(); have != nil && have.Newer(t) {
		return nil
	}
	if err := b.cfg.Source.Trust(t.Bundle); err != nil {
		return fmt.Errorf("put the new trust bundle into force: %w", err)
	}
	b.trust.Store(t)
	b.cfg.StoreGuard.SawBundle(t.Signed)
	return nil
}

// RegisterMetrics registers which bundle is in force.
func (b *Current) RegisterMetrics(reg prometheus.Registerer) {
	reg.MustRegister(
		metrics.GaugeOf("fealty_trust_bundle_version",
			"Config version of the trust bundle that is served.",
			func() float64 {
				if t := b.trust.Load(); t != nil {
					return float64(t.Version)
				}
				return 0
			}),
	)
}

// Fits reports whether a trust bundle can be made under after.
func (b *Current) Fits(ctx context.Context, from, after *authority.State) (err error) {
	var in bundle.Input
	if from != nil {
		if in, err = b.Read(ctx, from); err != nil {
			return b.cfg.Head.StoreError("read the trust state", err)
		}
	}
	next, _ := after.Bundle.Next(in, b.cfg.Now().UTC().Truncate(time.Second))
	if n := len(next.MeshKeys); n > snapshot.MaxMeshKeys {
		return errcode.New(errcode.RateLimited, "what", "the set, which makes a new mesh CA key,",
			"limit", fmt.Sprintf("%d mesh CA keys whose certificates are still valid", snapshot.MaxMeshKeys))
	}
	if _, err := after.Bundle.Sign(in.With(bundle.Delta{}, next), b.cfg.Now()); err != nil {
		return errcode.Wrap(err, errcode.RequestField,
			"field", "manifest", "problem", "no trust bundle can be made of it: "+err.Error())
	}
	return nil
}

// Bans reports whether the bundle in force bans id or key, whatever the
// store says now: who can delete records lifts no ban here.
func (b *Current) Bans(id identity.ID, key identity.KeyID) bool {
	return b.trust.Load().Bundle.Banned(id, key)
}

// identityPause is how often it is looked whether the own certificate is to be renewed.
const identityPause = 5 * time.Second

// Prune forgets banned keys whose time was over at now, each by a change that begin returns. One
// that the bundle lists is never among them.
func (b *Current) Prune(ctx context.Context, s *authority.State, now time.Time, begin func() *record.Change) error {
	for {
		in, err := b.Read(ctx, s)
		if err != nil {
			return err
		}
		ch := begin()
		var d bundle.Delta
		room := store.RoomBeside(ch.Tx)
		room.Take(2, 0) // the trust state, which is written along
		for _, k := range in.BannedKeys {
			if !now.After(k.Until) || in.State.Value.AsOf.Before(k.CertEnd) {
				continue
			}
			key := record.BanKeyKey(k.Key)
			if !room.Take(store.DeleteCost(store.Entry{Key: key})) {
				break
			}
			ch.Delete(key, k.Version)
			d.Forget = append(d.Forget, k.Key)
		}
		if len(d.Forget) == 0 {
			return nil
		}
		if err := b.Touch(ctx, s, ch, d, bundle.ForBans); err != nil {
			return err
		}
		if _, err := ch.Commit(ctx); err != nil {
			return record.IgnoreConflict(err)
		}
		b.LookAgain()
	}
}
