package coordinator

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
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
// What members report is kept in memory by the coordinator that hears it. While a
// rotation runs each coordinator notes at rollout/<coordinator> whom it has heard
// say so, for the others and for itself after a restart.
const rolloutPrefix = "rollout/"

// Limits and times of rotations.
const (
	rotationDeadline    = 72 * time.Hour
	minRotationDeadline = time.Second
	maxRotationDeadline = 90 * 24 * time.Hour
	// maxNamedMembers bounds the members that an answer about trust names.
	maxNamedMembers = 64
)

// rotation is a config signing key on its way to replace the others.
type rotation struct {
	Number uint32 `json:"number"`
	// Epoch and After bound the bundles that cannot list it: up to version After of
	// Epoch.
	Epoch     uint64    `json:"epoch"`
	After     uint64    `json:"after"`
	StartedAt time.Time `json:"started_at"`
	Deadline  time.Time `json:"deadline"`
	By        string    `json:"by"`
	Reason    string    `json:"reason,omitempty"`
}

// rotated is how a rotation ended.
type rotated struct {
	rotation
	EndedAt time.Time `json:"ended_at"`
	// How is one of the ways below.
	How string `json:"how"`
	// Missing are the members that had not confirmed, or the first of them, and Count
	// how many those were.
	Missing []string `json:"missing,omitempty"`
	Count   int      `json:"count,omitempty"`
}

// Ways in which a rotation ends.
const (
	endedConfirmed   = "confirmed"   // every member holds everything under the new key
	endedDeadline    = "deadline"    // some do not
	endedCompromised = "compromised" // a key was revoked meanwhile
)

// rolloutRecord is what one coordinator heard during a rotation.
type rolloutRecord struct {
	Number    uint32 `json:"number"`    // the key that it is about
	Confirmed []byte `json:"confirmed"` // 8 bytes of each member's path hash, ascending
}

func (c *Coordinator) rolloutKey() string {
	h := sha256.Sum256(c.enrolment.Public().(ed25519.PublicKey))
	return rolloutPrefix + hex.EncodeToString(h[:16])
}

// pathSum stands for a member in a rolloutRecord. Two that share one would delay
// nothing and skip one report: 64 bits are enough of a name that admins give.
func pathSum(path string) uint64 {
	h := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(h[:])
}

func (r rolloutRecord) sums(into map[uint64]bool) {
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

// signing reports whether the key may sign at now.
func (k configKey) signing(now time.Time) bool {
	return k.RevokedAt.IsZero() && !now.Before(k.NotBefore) && now.Before(k.NotAfter)
}

// introduce adds the next key to the state, and returns its number.
func (t *trustState) introduce(now time.Time, room banRoom) (uint32, error) {
	keys := slices.DeleteFunc(slices.Clone(t.ConfigKeys), func(k configKey) bool {
		return !k.RevokedAt.IsZero() && !now.Before(k.NotAfter) // a bundle may leave it out now
	})
	if limit := room.of(snapshot.MaxConfigKeys); len(keys) >= limit {
		return 0, explain.New(explain.TrustFull, "what", "config signing keys, revoked ones among them", "limit", fmt.Sprint(limit))
	}
	for _, k := range keys {
		t.LastConfigKey = max(t.LastConfigKey, k.Number)
	}
	t.LastConfigKey++
	t.ConfigKeys = append(keys, configKey{Number: t.LastConfigKey, NotBefore: now.Add(-10 * time.Minute), NotAfter: now.Add(configKeyLife)})
	return t.LastConfigKey, nil
}

// rotate begins a rotation. was is the version that the state was read at.
func (t *trustState) rotate(s *state, was store.Revision, r rotation) error {
	if t.Rotation != nil {
		return explain.New(explain.TrustRotating, "key", s.configKeyID(t.Rotation.Number), "deadline", t.Rotation.Deadline)
	}
	n, err := t.introduce(r.StartedAt, roomForOthers)
	if err != nil {
		return err
	}
	r.Number, r.Epoch, r.After = n, s.head.AuthorityEpoch, uint64(was)
	t.Rotation = &r
	return nil
}

// end ends the rotation: no key but the new one is left to sign.
func (t *trustState) end(how string, missing []string, now time.Time) {
	t.Rotated = &rotated{rotation: *t.Rotation, EndedAt: now, How: how, Missing: missing[:min(len(missing), maxNamedMembers)], Count: len(missing)}
	number := t.Rotation.Number
	t.Rotation = nil
	t.ConfigKeys = slices.DeleteFunc(slices.Clone(t.ConfigKeys), func(k configKey) bool { return k.RevokedAt.IsZero() && k.Number != number })
}

// revokeKey revokes a config signing key at once. If none is left, another one is
// introduced, which signs alone. It reports false for a key that was revoked before.
func (t *trustState) revokeKey(s *state, is func(key ed25519.PublicKey) bool, now time.Time, by, reason string, room banRoom) (bool, error) {
	keys := slices.Clone(t.ConfigKeys)
	i := slices.IndexFunc(keys, func(k configKey) bool { return is(s.configKey(k.Number)) })
	switch {
	case i < 0:
		return false, errNoSuchKey
	case !keys[i].RevokedAt.IsZero():
		return false, nil
	}
	keys[i].RevokedAt, keys[i].RevokedBy, keys[i].Reason = now, by, reason
	t.ConfigKeys = keys
	if t.Rotation != nil {
		// Of two one is left, be it the old or the new one: it signs alone.
		t.Rotated = &rotated{rotation: *t.Rotation, EndedAt: now, How: endedCompromised}
		t.Rotation = nil
	}
	if !slices.ContainsFunc(keys, func(k configKey) bool { return k.signing(now) }) {
		if _, err := t.introduce(now, room); err != nil {
			return false, err
		}
	}
	return true, nil
}

// errNoSuchKey is matched when no config signing key is the named one.
var errNoSuchKey = errors.New("no such config signing key")

// newest returns the key that signs at now: of two, the one that stays.
func (t *trustState) newest(now time.Time) (configKey, bool) {
	for _, k := range slices.Backward(t.ConfigKeys) {
		if k.signing(now) {
			return k, true
		}
	}
	return configKey{}, false
}

func (s *state) configKeyID(n uint32) string { return snapshot.KeyIDOf(s.configKey(n)) }

// rollout is how far a rotation is.
type rollout struct {
	members   int      // that have to confirm
	missing   []string // those that did not, by path
	unsettled bool     // the members were not read yet
}

// mustConfirm reports whether a rotation waits for the member: it may be at work now.
// One whose certificate ended comes back by a proof, and is told everything anew.
func mustConfirm(rec record.Member, now time.Time) bool {
	return rec.Held() && !sessionKind(rec.Kind) && rec.Kind != identity.Coordinator && now.Before(rec.NotAfter)
}

// lookAtRollout returns how far r is, by what all coordinators heard. own is what
// this one had noted.
func (c *Coordinator) lookAtRollout(ctx context.Context, s *state, r *rotation) (out rollout,
	own record.Versioned[rolloutRecord], now map[uint64]bool, err error) {
	l, err := c.store.List(ctx, rolloutPrefix)
	if err != nil {
		return out, own, nil, err
	}
	all, now := make(map[uint64]bool), make(map[uint64]bool)
	for _, e := range l.Entries {
		rec, err := record.Open[rolloutRecord](s.records, e)
		if err != nil {
			// A rotation waits longer without it, and nothing else.
			if err := c.forgedUnder(ctx, s, suspect{e.Key, err}); err != nil {
				return out, own, nil, err
			}
			rec = record.Versioned[rolloutRecord]{Version: e.Version}
		}
		if rec.Value.Number == r.Number {
			rec.Value.sums(all)
		}
		if e.Key == c.rolloutKey() {
			if own = rec; rec.Value.Number == r.Number {
				rec.Value.sums(now)
			}
		}
	}
	for _, path := range c.live.confirmed(r, s.configKeyID(r.Number)) {
		all[pathSum(path)], now[pathSum(path)] = true, true
	}
	at := c.now()
	paths, seen := c.members.pathsAt()
	out.unsettled = seen == 0
	for _, path := range paths {
		if rec, ok := c.members.get(path); ok && mustConfirm(rec, at) {
			out.members++
			if !all[pathSum(path)] {
				out.missing = append(out.missing, path)
			}
		}
	}
	return out, own, now, nil
}

// followRotation notes who confirmed, and ends the rotation when it is over and this
// coordinator leads. An error that matches store.ErrConflict means that somebody was
// first.
func (c *Coordinator) followRotation(ctx context.Context, s *state) error {
	t := c.trust.Load()
	if t == nil || t.rotation == nil || t.epoch != s.head.AuthorityEpoch {
		return nil
	}
	r := t.rotation
	progress, own, confirmed, err := c.lookAtRollout(ctx, s, r)
	if err != nil {
		return err
	}
	if packed := packSums(confirmed); own.Value.Number != r.Number || string(packed) != string(own.Value.Confirmed) {
		ch := s.records.NewChange(s.headVersion)
		ch.Require(trustStateKey, store.Revision(t.version)) // the rotation may be over
		ch.Put(c.rolloutKey(), own.Version, rolloutRecord{Number: r.Number, Confirmed: packed})
		if _, err := ch.Commit(ctx); err != nil {
			return err
		}
	}
	how, now := "", c.now().UTC().Truncate(time.Second)
	switch {
	case !progress.unsettled && len(progress.missing) == 0:
		how = endedConfirmed
	case !now.Before(r.Deadline):
		how = endedDeadline
	default:
		return nil
	}
	if _, _, ok := c.leading(); !ok {
		return nil
	}
	if err := c.faults.Hit("rotate.before-end"); err != nil {
		return err
	}
	ch := c.newLeaderChange(s)
	err = c.touchTrust(ctx, s, ch, trustDelta{edit: func(st *trustState, _ store.Revision) error {
		if st.Rotation == nil || st.Rotation.Number != r.Number {
			return store.ErrConflict
		}
		st.end(how, progress.missing, now)
		return nil
	}}, roomForBans)
	if err != nil {
		return err
	}
	if err := c.dropRollout(ctx, ch); err != nil {
		return err
	}
	ch.Audit(c.now(), record.AuditEntry{Actor: r.By, Action: "trust.rotate.end", Target: s.configKeyID(r.Number),
		Reason: r.Reason,
		Fields: map[string]string{"how": how, "members": fmt.Sprint(progress.members), "missing": fmt.Sprint(len(progress.missing))}})
	if _, err := ch.Commit(ctx); err != nil {
		return err
	}
	if err := c.faults.Hit("rotate.after-end"); err != nil {
		return err
	}
	level := slog.LevelInfo
	if len(progress.missing) > 0 {
		level = slog.LevelWarn
	}
	c.log.LogAttrs(ctx, level, "a config signing key was replaced", slog.String("key", s.configKeyID(r.Number)), slog.String("how", how),
		slog.Int("members", progress.members), slog.Int("missing", len(progress.missing)),
		slog.String("missing_members", strings.Join(progress.missing[:min(len(progress.missing), maxNamedMembers)], " ")))
	return c.refreshTrust(ctx, s, false)
}

// dropRollout removes what coordinators noted during a rotation.
func (c *Coordinator) dropRollout(ctx context.Context, ch *record.Change) error {
	l, err := c.store.List(ctx, rolloutPrefix)
	if err != nil {
		return err
	}
	for _, e := range l.Entries {
		ch.Drop(e.Key)
	}
	return nil
}
