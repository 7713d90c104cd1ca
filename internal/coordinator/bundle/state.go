package bundle

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// State is what the trust bundle is compiled from, besides bans and the
// history. Every transaction that changes an input of the bundle writes it, so
// that its version orders bundles.
type State struct {
	// Change numbers the writes, so that each makes a new value. It is the counter that
	// coordinators remember: a lower one is of a store that went back.
	Change uint64 `json:"change"`
	// MeshKeys are the mesh CA keys that verifiers still accept, newest first.
	MeshKeys []MeshKey `json:"mesh_keys"`
	// Roots are the roots that verifiers still accept, newest first: the one in
	// force, and those that it took the place of.
	Roots []Root `json:"roots"`
	// ConfigKeys are the config signing keys, by their number, with those that are
	// revoked and not over.
	ConfigKeys []ConfigKey `json:"config_keys"`
	// LastConfigKey is the highest number that was ever used: none is used again.
	LastConfigKey uint32 `json:"last_config_key,omitempty"`
	// Rotation is the one that runs, and Rotated how the last one ended; see [State.Rotate].
	Rotation *Rotation    `json:"rotation,omitempty"`
	Rotated  *RotationEnd `json:"rotated,omitempty"`
	// Revoked is what is revoked by its name, sorted. It only grows.
	Revoked []Revocation `json:"revoked,omitempty"`
	// Emergencies are the statements of the signers that were applied under this seed.
	Emergencies []Emergency `json:"emergencies,omitempty"`
	// SeedEpoch is that of the seed which the config keys derive from.
	SeedEpoch uint64 `json:"seed_epoch,omitempty"`
	// Head is the transition that the state was last fitted to.
	Head history.Hash `json:"head"`
	// Config says that config/state exists: a record that is absent has no MAC.
	Config bool `json:"config,omitempty"`
	// UnbansFrom is the version from which on a ban that ended has a record which says so;
	// 0: an earlier release, which keeps none, wrote this.
	UnbansFrom store.Revision `json:"unbans_from,omitempty"`
	// Bans are the bans that there are: a record that is absent has no MAC.
	Bans BanSum `json:"bans"`
	// AsOf is the time that bans of keys are compared with, so that what a version
	// lists does not depend on when it is compiled.
	AsOf time.Time `json:"as_of"`
	// Left are the config signing keys that left not long ago: tokens that were signed by the keys
	// beside them are in use still. Earlier releases drop it.
	Left []LeftKey `json:"left,omitempty"`
}

// MeshKey is one mesh CA key under one authority epoch (I9).
type MeshKey struct {
	Key identity.KeyID `json:"key"`
	// AuthorityEpoch is 0 where it is not known: of a key of between a backup and the
	// restore, which only a trust bundle of then names.
	AuthorityEpoch uint64 `json:"authority_epoch"`
	// AcceptUntil is set when a newer key takes over: the end of the last SVID
	// that this one can have signed.
	AcceptUntil time.Time `json:"accept_until,omitzero"`
	// LongestTTL is the longest svid_ttl of any manifest in force while this key
	// signed, so that AcceptUntil cuts no SVID short.
	LongestTTL time.Duration `json:"longest_ttl"`
}

// Root is one root CA certificate.
type Root struct {
	DER []byte `json:"der"`
	// AcceptUntil is set when another root takes over: the end of the last SVID
	// under this one.
	AcceptUntil time.Time `json:"accept_until,omitzero"`
}

// ConfigKey is one config signing key: number n derives from the seed.
type ConfigKey struct {
	Number    uint32    `json:"number"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// RevokedAt is set when somebody else may hold the key.
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

// configKeyLife is how long a config signing key signs. Its rotation comes
// before; a cluster whose key ended would lose its config.
const configKeyLife = 10 * 365 * 24 * time.Hour

// newConfigKey returns the key of a number, which signs from now on. A clock that is a
// little behind verifies under it too.
func newConfigKey(number uint32, now time.Time) ConfigKey {
	return ConfigKey{Number: number, NotBefore: now.Add(-10 * time.Minute), NotAfter: now.Add(configKeyLife)}
}

func (k ConfigKey) revoked() bool { return !k.RevokedAt.IsZero() }

// Signing reports whether the key may sign at now.
func (k ConfigKey) Signing(now time.Time) bool {
	return !k.revoked() && !now.Before(k.NotBefore) && now.Before(k.NotAfter)
}

// BanSum says which ban records exist, so that a deleted one is noticed.
type BanSum struct {
	Count  int    `json:"count"`
	Digest string `json:"digest"` // SHA-256 over their keys, in hex
}

// Rotation is a config signing key on its way to replace the others.
type Rotation struct {
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

// RotationEnd is how a rotation ended.
type RotationEnd struct {
	Rotation
	EndedAt time.Time `json:"ended_at"`
	// How is one of the ways below.
	How string `json:"how"`
	// Missing are the members that had not confirmed, or the first of them, and Count
	// how many those were.
	Missing []string `json:"missing,omitempty"`
	Count   int      `json:"count,omitempty"`
}

// MaxNamedMembers bounds the members that the end of a rotation names, and with it every
// answer about trust.
const MaxNamedMembers = 64

// Ways in which a rotation ends.
const (
	EndedConfirmed   = "confirmed"   // every member holds everything under the new key
	EndedDeadline    = "deadline"    // some do not
	endedCompromised = "compromised" // a key was revoked meanwhile
)

// Revocation is something that is revoked by its name, for good.
type Revocation struct {
	Kind   string    `json:"kind"`
	Name   string    `json:"name"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

func (r Revocation) thing() snapshot.Revoked { return snapshot.Revoked{Kind: r.Kind, Name: r.Name} }

// Emergency is a statement of the signers that is in the bundle.
type Emergency struct {
	Number uint64          `json:"number"`
	Digest snapshot.Digest `json:"digest"`
	At     time.Time       `json:"at"`
	By     string          `json:"by"` // who handed it in
	Reason string          `json:"reason"`
}

// Room says how much of the bundle's room for banned keys a change may use.
// Removals and replacements, which can wait, leave a quarter of it for bans. In the same
// way what an admin revokes, which nothing lifts, leaves a quarter for the signers.
type Room bool

const (
	ForBans   Room = true
	ForOthers Room = false
)

// Of returns how much of limit a change may use.
func (r Room) Of(limit int) int {
	if r == ForOthers {
		return limit - limit/4
	}
	return limit
}

// introduce adds the next key to the state, and returns its number.
func (t *State) introduce(now time.Time, room Room) (uint32, error) {
	keys := slices.DeleteFunc(slices.Clone(t.ConfigKeys), func(k ConfigKey) bool {
		return k.revoked() && !now.Before(k.NotAfter) // a bundle may leave it out now
	})
	if limit := room.Of(internalsnapshot.MaxConfigKeys); len(keys) >= limit {
		return 0, errcode.New(errcode.TrustFull, "what", "config signing keys, revoked ones among them",
			"limit", fmt.Sprint(limit))
	}
	for _, k := range keys {
		t.LastConfigKey = max(t.LastConfigKey, k.Number)
	}
	t.LastConfigKey++
	t.ConfigKeys = append(keys, newConfigKey(t.LastConfigKey, now))
	return t.LastConfigKey, nil
}

// Newest returns the key that signs at now: of two, the one that stays.
func (t *State) Newest(now time.Time) (ConfigKey, bool) {
	for _, k := range slices.Backward(t.ConfigKeys) {
		if k.Signing(now) {
			return k, true
		}
	}
	return ConfigKey{}, false
}

// Rotate begins a rotation. was is the version that the state was read at.
func (t *State) Rotate(a *Authority, was store.Revision, r Rotation) error {
	if t.Rotation != nil {
		return errcode.New(errcode.TrustRotating, "key", a.KeyID(t.Rotation.Number), "deadline", t.Rotation.Deadline)
	}
	n, err := t.introduce(r.StartedAt, ForOthers)
	if err != nil {
		return err
	}
	r.Number, r.Epoch, r.After = n, a.Head.AuthorityEpoch, uint64(was)
	t.Rotation = &r
	return nil
}

// End ends the rotation: no key but the new one is left to sign.
func (t *State) End(how string, missing []string, now time.Time) {
	t.Rotated = &RotationEnd{
		Rotation: *t.Rotation, EndedAt: now, How: how,
		Missing: missing[:min(len(missing), MaxNamedMembers)], Count: len(missing),
	}
	number := t.Rotation.Number
	t.Rotation = nil
	leaves := func(k ConfigKey) bool { return !k.revoked() && k.Number != number }
	t.leave(slices.DeleteFunc(slices.Clone(t.ConfigKeys), func(k ConfigKey) bool { return !leaves(k) }), now)
	t.ConfigKeys = slices.DeleteFunc(slices.Clone(t.ConfigKeys), leaves)
}

// RevokeKey revokes a config signing key at once. If none is left, another one is
// introduced, which signs alone. It reports false for a key that was revoked before, and true for
// one that left in a rotation and was told to verifiers of tokens still: it is not any more.
func (t *State) RevokeKey(a *Authority, is func(key ed25519.PublicKey) bool, now time.Time,
	by, reason string, room Room) (bool, error) {
	told := len(t.Left)
	t.Left = slices.DeleteFunc(slices.Clone(t.Left), func(k LeftKey) bool { return is(a.PublicKey(k.Number)) })
	keys := slices.Clone(t.ConfigKeys)
	i := slices.IndexFunc(keys, func(k ConfigKey) bool { return is(a.PublicKey(k.Number)) })
	switch {
	case i < 0 && len(t.Left) < told:
		return true, nil
	case i < 0:
		return false, ErrNoSuchKey
	case keys[i].revoked():
		return false, nil
	}
	keys[i].RevokedAt, keys[i].RevokedBy, keys[i].Reason = now, by, reason
	t.ConfigKeys = keys
	if t.Rotation != nil {
		// Of two one is left, be it the old or the new one: it signs alone.
		t.Rotated = &RotationEnd{Rotation: *t.Rotation, EndedAt: now, How: endedCompromised}
		t.Rotation = nil
	}
	if !slices.ContainsFunc(keys, func(k ConfigKey) bool { return k.Signing(now) }) {
		if _, err := t.introduce(now, room); err != nil {
			return false, err
		}
	}
	return true, nil
}

// ErrNoSuchKey is matched when no config signing key is the named one.
var ErrNoSuchKey = errors.New("no such config signing key")

// Revoke adds things to the state, each at most once, and reports whether one was new.
func (t *State) Revoke(now time.Time, by, reason string, room Room,
	things ...snapshot.Revoked) (bool, error) {
	out := slices.Clone(t.Revoked)
	for _, r := range things {
		i, found := slices.BinarySearchFunc(out, r, func(a Revocation, b snapshot.Revoked) int {
			return a.thing().Compare(b)
		})
		if !found {
			out = slices.Insert(out, i, Revocation{r.Kind, r.Name, now, by, reason})
		}
	}
	changed := len(out) != len(t.Revoked)
	if limit := room.Of(internalsnapshot.MaxRevoked); changed && len(out) > limit {
		return false, errcode.New(errcode.TrustFull, "what", "things that are revoked by name",
			"limit", fmt.Sprint(limit))
	}
	t.Revoked = out
	return changed, nil
}

// IsNews reports whether a statement is not in force yet.
func (t State) IsNews(signed *trust.SignedEmergency, e *trust.Emergency) (bool, error) {
	for _, a := range t.Emergencies {
		switch {
		case a.Digest == signed.Digest():
			return false, nil
		case a.Number == e.Number:
			return false, fmt.Errorf("number %d is taken by another statement, which was applied at %s",
				e.Number, a.At.Format(time.RFC3339))
		}
	}
	if len(t.Emergencies) >= internalsnapshot.MaxEmergencies {
		return false, fmt.Errorf("%d statements are in force, which is the limit: a reseed starts anew",
			len(t.Emergencies))
	}
	return true, nil
}

// configKeysAhead is how many numbers of config keys are looked for that were used after
// a backup.
const configKeysAhead = 256

// CatchUp adds what a trust bundle with header h revokes, and the mesh CA keys that signed
// SVIDs which are still valid, and passes over the config keys that were used. It returns
// how many revocations were news.
func (t *State) CatchUp(a *Authority, of *snapshot.TrustBundle, h snapshot.Header, now time.Time,
	by string) (news int, err error) {
	before := len(t.Revoked)
	if _, err = t.Revoke(now, by, "in force before the restore", ForBans, of.Revoked...); err != nil {
		return 0, err
	}
	news = len(t.Revoked) - before
	keys := make(map[string]uint32) // their numbers
	for number := range t.LastConfigKey + configKeysAhead {
		keys[string(a.PublicKey(number+1))] = number + 1
	}
	for _, k := range of.ConfigKeys {
		t.LastConfigKey = max(t.LastConfigKey, keys[string(k.Key)])
	}
	for _, k := range of.ConfigKeys {
		if !k.Revoked {
			continue
		}
		revoked, err := t.RevokeKey(a, func(key ed25519.PublicKey) bool { return string(key) == string(k.Key) },
			now, by, "revoked before the restore", ForBans)
		if err != nil && !errors.Is(err, ErrNoSuchKey) { // one that is not listed signs nothing
			return news, err
		}
		if revoked {
			news++
		}
	}
	mesh := slices.Clone(t.MeshKeys)
	// A bundle lists its mesh CA keys in order of their hashes and without their epochs:
	// only of a single one is it known that it is of the bundle's own.
	epoch := uint64(0)
	if len(of.MeshKeys) == 1 {
		epoch = h.AuthorityEpoch
	}
	for _, key := range of.MeshKeys {
		known := slices.ContainsFunc(mesh, func(k MeshKey) bool { return k.Key == key })
		if known || slices.Contains(of.BannedKeys, key) {
			continue
		}
		// The last that it signed ends no later than this.
		ttl := a.Manifest.LongestSVIDTTL()
		mesh = append(mesh, MeshKey{Key: key, AuthorityEpoch: epoch, AcceptUntil: now.Add(ttl), LongestTTL: ttl})
	}
	t.MeshKeys = mesh
	return news, nil
}
