package trust

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
)

// A rotation replaces the config signing key. The trust state says how far it is, so
// that it survives every coordinator:
//
//  1. The next key is in the bundle, which the config root key signs as ever. From the
//     same commit on every record carries the signatures of both keys: who has the
//     bundle of before verifies the one, who has the new bundle either.
//  2. Each member reports which keys it trusts over what it holds. Once all of them
//     hold everything under the new key, or at the deadline, the old key leaves the
//     bundle and signs no more.
//
// A member that is away all the time comes back with a bundle that does not know the
// new key. It gets the newer bundle first, on the word of the config root key, and
// then what is signed by the new key alone.
//
// The coordinator that hears members' reports keeps them in memory. While a
// rotation runs each coordinator notes at rollout/<coordinator> whom it has heard
// say so, for the others and for itself after a restart.
//
// RolloutPrefix is the family of those notes.
const RolloutPrefix = "rollout/"

// Limits and times of rotations.
const (
	rotationDeadline    = 72 * time.Hour
	minRotationDeadline = time.Second
	maxRotationDeadline = 90 * 24 * time.Hour
)

// RolloutRecord is what one coordinator heard during a rotation.
type RolloutRecord struct {
	Number    uint32 `json:"number"`    // the key that it is about
	Confirmed []byte `json:"confirmed"` // 8 bytes of each member's path hash, ascending
}

// RolloutKey returns where this coordinator notes whom it heard.
func (c *Trust) RolloutKey() string {
	h := sha256.Sum256(c.cfg.Self.PrivateKey().Public().(ed25519.PublicKey))
	return RolloutPrefix + hex.EncodeToString(h[:16])
}

// pathSum stands for a member in a RolloutRecord. Two that share one would delay
// nothing and skip one report: 64 bits are enough of a name that admins give.
func pathSum(path string) uint64 {
	h := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(h[:])
}

func (r RolloutRecord) sums(into map[uint64]bool) {
	for b := range slices.Chunk(r.Confirmed, 8) {
		if len(b) == 8 {
			into[binary.BigEndian.Uint64(b)] = true
		}
	}
}

func packSums(sums map[uint64]bool) []byte {
	sorted := make([]uint64, 0, len(sums))
	for s := range sums {
		sorted = append(sorted, s)
	}
	slices.Sort(sorted)
	out := make([]byte, 0, 8*len(sorted))
	for _, s := range sorted {
		out = binary.BigEndian.AppendUint64(out, s)
	}
	return out
}

// rollout is how far a rotation is.
type rollout struct {
	members   int      // that have to confirm
	missing   []string // those that did not, by path
	unsettled bool     // the members were not read yet
}

// mustConfirm reports whether a rotation waits for the member: it may be at work now.
// One whose certificate ended comes back by a proof, and is told everything anew.
func mustConfirm(rec record.Member, now time.Time) bool {
	return rec.Held() && !record.IsSession(rec.Kind) && rec.Kind != identity.Coordinator && now.Before(rec.NotAfter)
}

// Progress returns how far r is, by what all coordinators heard. own is what
// this one had noted.
func (c *Trust) Progress(ctx context.Context, s *authority.State, r *bundle.Rotation) (out rollout,
	own record.Versioned[RolloutRecord], now map[uint64]bool, err error) {
	l, err := c.cfg.Store.List(ctx, RolloutPrefix)
	if err != nil {
		return out, own, nil, err
	}
	all, now := make(map[uint64]bool), make(map[uint64]bool)
	for _, e := range l.Entries {
		rec, err := record.Open[RolloutRecord](s.Records, e)
		if err != nil {
			// A rotation waits longer without it, and nothing else.
			if err := c.cfg.Head.ForgedUnder(ctx, s, authority.Suspect{What: e.Key, Err: err}); err != nil {
				return out, own, nil, err
			}
			rec = record.Versioned[RolloutRecord]{Version: e.Version}
		}
		if rec.Value.Number == r.Number {
			rec.Value.sums(all)
		}
		if e.Key == c.RolloutKey() {
			if own = rec; rec.Value.Number == r.Number {
				rec.Value.sums(now)
			}
		}
	}
	for _, path := range c.cfg.Membership.Live().Confirmed(r, s.Bundle.KeyID(r.Number)) {
		all[pathSum(path)], now[pathSum(path)] = true, true
	}
	at := c.cfg.Now()
	paths, seen := c.cfg.Membership.Roster().PathsAt()
	out.unsettled = seen == 0
	for _, path := range paths {
		if rec, ok := c.cfg.Membership.Roster().Find(path); ok && mustConfirm(rec, at) {
			out.members++
			if !all[pathSum(path)] {
				out.missing = append(out.missing, path)
			}
		}
	}
	return out, own, now, nil
}

// FollowRotation notes who confirmed, and ends the rotation when it is over and this
// coordinator leads. An error that matches store.ErrConflict means that somebody was
// first.
func (c *Trust) FollowRotation(ctx context.Context, s *authority.State) error {
	t := c.cfg.Bundle.View()
	if t == nil || t.Rotation == nil || t.Epoch != s.Head.AuthorityEpoch {
		return nil
	}
	r := t.Rotation
	progress, own, confirmed, err := c.Progress(ctx, s, r)
	if err != nil {
		return err
	}
	if packed := packSums(confirmed); own.Value.Number != r.Number || string(packed) != string(own.Value.Confirmed) {
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Require(bundle.StateKey, store.Revision(t.Version)) // the rotation may be over
		ch.Put(c.RolloutKey(), own.Version, RolloutRecord{Number: r.Number, Confirmed: packed})
		if _, err := ch.Commit(ctx); err != nil {
			return err
		}
	}
	how, now := "", c.cfg.Now().UTC().Truncate(time.Second)
	switch {
	case !progress.unsettled && len(progress.missing) == 0:
		how = bundle.EndedConfirmed
	case !now.Before(r.Deadline):
		how = bundle.EndedDeadline
	default:
		return nil
	}
	if _, _, ok := c.cfg.Election.Leading(); !ok {
		return nil
	}
	if err := c.cfg.Faults.Hit("rotate.before-end"); err != nil {
		return err
	}
	ch := c.cfg.Election.NewChange(s)
	err = c.cfg.Bundle.Touch(ctx, s, ch, bundle.Delta{Edit: func(st *bundle.State, _ store.Revision) error {
		if st.Rotation == nil || st.Rotation.Number != r.Number {
			return store.ErrConflict
		}
		st.End(how, progress.missing, now)
		return nil
	}}, bundle.ForBans)
	if err != nil {
		return err
	}
	if err := c.dropRollout(ctx, ch); err != nil {
		return err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: r.By, Action: "trust.rotate.end", Target: s.Bundle.KeyID(r.Number),
		Reason: r.Reason,
		Fields: map[string]string{"how": how, "members": fmt.Sprint(progress.members),
			"missing": fmt.Sprint(len(progress.missing))}})
	if _, err := ch.Commit(ctx); err != nil {
		return err
	}
	if err := c.cfg.Faults.Hit("rotate.after-end"); err != nil {
		return err
	}
	level := slog.LevelInfo
	if len(progress.missing) > 0 {
		level = slog.LevelWarn
	}
	c.cfg.Log.LogAttrs(ctx, level, "a config signing key was replaced", slog.String("key", s.Bundle.KeyID(r.Number)),
		slog.String("how", how),
		slog.Int("members", progress.members), slog.Int("missing", len(progress.missing)),
		slog.String("missing_members",
			strings.Join(progress.missing[:min(len(progress.missing), bundle.MaxNamedMembers)], " ")))
	return c.cfg.Bundle.Refresh(ctx, s, false)
}

// dropRollout removes what coordinators noted during a rotation.
func (c *Trust) dropRollout(ctx context.Context, ch *record.Change) error {
	l, err := c.cfg.Store.List(ctx, RolloutPrefix)
	if err != nil {
		return err
	}
	for _, e := range l.Entries {
		ch.Drop(e.Key)
	}
	return nil
}
