package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// Where the state of the trust bundle is, and with what its key and those of bans begin.
const (
	Prefix   = "trust/"
	StateKey = "trust/state"
)

// SweepPause is how often the bans of keys are looked at that may be over.
const SweepPause = time.Hour

// Input is everything that a bundle is compiled from, read at one revision.
type Input struct {
	State      record.Versioned[State]
	BannedIDs  []identity.ID // by a person or by the signers, until a person lifts it
	BannedKeys []KeyBan      // those that are over among them; see [Input.Listed]

	revision store.Revision                          // that it was read at
	digest   health.Digest                           // of the state, as the store has it
	bans     map[string]record.Versioned[record.Ban] // of BannedIDs, by "<kind>/<name>"
	unbans   map[string]uint64                       // the counter of each ban that was lifted, likewise
	lifted   map[string]uint64                       // the authority epoch in which it was lifted, likewise
}

// KeyBan is a banned key, and when the last certificate over it has ended.
type KeyBan struct {
	Key     identity.KeyID
	CertEnd time.Time
	Until   time.Time      // as in its record
	Version store.Revision // of its record
}

// Sum returns the sum of the ban records that in was read from.
func (in Input) Sum() BanSum {
	keys := make([]string, 0, len(in.BannedIDs)+len(in.BannedKeys))
	for _, id := range in.BannedIDs {
		keys = append(keys, record.BanIDKey(id.Kind(), id.Name()))
	}
	for _, b := range in.BannedKeys {
		keys = append(keys, record.BanKeyKey(b.Key))
	}
	slices.Sort(keys)
	h := sha256.Sum256([]byte(strings.Join(keys, "\n")))
	return BanSum{len(keys), hex.EncodeToString(h[:])}
}

// Listed returns the banned keys that the bundle names: those over which a
// certificate could be valid at the state's own time.
func (in Input) Listed() []identity.KeyID {
	var keys []identity.KeyID
	for _, b := range in.BannedKeys {
		if in.State.Value.AsOf.Before(b.CertEnd) {
			keys = append(keys, b.Key)
		}
	}
	return keys
}

// outlived reports whether the time that bans are compared with should move: it
// lies ahead, because a clock was wrong, or some banned keys have not needed to be
// listed for a while.
func (in Input) outlived(now time.Time) bool {
	asOf := in.State.Value.AsOf
	if asOf.After(now.Add(snapshot.ClockTolerance)) {
		return true
	}
	return now.Sub(asOf) >= SweepPause && slices.ContainsFunc(in.BannedKeys, func(b KeyBan) bool {
		return asOf.Before(b.CertEnd) && !now.Before(b.CertEnd)
	})
}

// Delta is what a transaction changes of the inputs of the trust bundle.
type Delta struct {
	Ban, Unban []identity.ID
	Keys       []KeyBan // banned, or banned for longer
	Forget     []identity.KeyID
	// Write adds to the change what says under which counter it is made. Nil: nothing does.
	Write func(counter uint64)
	// Edit changes the state itself, which was read at version was. Nil: it does not.
	Edit func(t *State, was store.Revision) error
}

// With returns in as it is after d, under state next. Its version is a stand-in:
// the transaction's own is not known yet.
func (in Input) With(d Delta, next State) Input {
	out := Input{State: record.Versioned[State]{Value: next, Version: max(in.State.Version, 1)}}
	for _, id := range append(slices.Clone(in.BannedIDs), d.Ban...) {
		if !slices.Contains(d.Unban, id) {
			out.BannedIDs = append(out.BannedIDs, id)
		}
	}
	slices.SortFunc(out.BannedIDs, identity.ID.Compare)
	out.BannedIDs = slices.Compact(out.BannedIDs)
	again := make(map[identity.KeyID]bool, len(d.Keys)+len(d.Forget))
	for _, key := range d.Forget {
		again[key] = true
	}
	for _, b := range d.Keys {
		again[b.Key] = true
	}
	for _, b := range in.BannedKeys {
		if !again[b.Key] {
			out.BannedKeys = append(out.BannedKeys, b)
		}
	}
	out.BannedKeys = append(out.BannedKeys, d.Keys...)
	return out
}

// LiftedAfter reports whether a person lifted a ban of id in an authority epoch after this
// one, and so knew more than whoever signed something in it.
func (in Input) LiftedAfter(id identity.ID, epoch uint64) bool {
	return in.lifted[string(id.Kind())+"/"+id.Name()] > epoch
}

// Seen is what in shows of the store, for who compares it.
func (in Input) Seen(restored uint64) health.Seen {
	t := in.State.Value
	out := &health.Trust{
		Counter: t.Change, Version: uint64(in.State.Version), Digest: in.digest, UnbansFrom: uint64(t.UnbansFrom),
		Bans: make(map[string]uint64, len(in.BannedIDs)), Keys: make(map[string]time.Time, len(in.BannedKeys)),
		Unbans: in.unbans,
	}
	for _, id := range in.BannedIDs {
		path := string(id.Kind()) + "/" + id.Name()
		out.Bans[path] = in.bans[path].Value.Counter
	}
	for _, b := range in.BannedKeys {
		out.Keys[b.Key.String()] = b.Until
	}
	return health.Seen{Restored: restored, Revision: uint64(in.revision), Trust: out}
}

// Read reads what the trust bundle of a cluster is compiled from. It may be of another
// time than it says, and bans may be missing: see [Input.Whole].
//
// The error of a record that fails its MAC matches [store.ErrForged], and so does that of
// bans or members without a state: then somebody took the state away. Of none of them a bundle is
// made without it: it would lift a ban, or trust a key for longer.
func Read(ctx context.Context, r record.Records, cluster string) (Input, error) {
	in, bad, err := Look(ctx, r, cluster)
	if err == nil && len(bad) > 0 {
		err = bad[0].Err
	}
	if err != nil || in.State.Exists() {
		return in, err
	}
	members, err := r.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return in, err
	}
	if n := len(in.BannedIDs) + len(in.BannedKeys) + len(members.Entries); n > 0 {
		return in, fmt.Errorf("there is no trust state, and %d bans and members: %w", n, store.ErrForged)
	}
	return in, nil
}

// Altered is a record that is not genuine.
type Altered struct {
	Key     string
	Version store.Revision // that it was read at
	Err     error          // matches [store.ErrForged], or says that it does not decode
}

// IDBans are the bans of identities as one reading of the store showed them, by "<kind>/<name>". They are not to be
// changed: several may look at them.
type IDBans struct {
	State   store.Revision // of the trust state that they go with: whoever bans or lifts a ban writes it; 0: there is none
	Bans    map[string]record.Versioned[record.Ban]
	Altered map[string]store.Revision // those that are not genuine, with the version that was read
}

// IDBans are the bans of identities in what was read; bad is what was left out then.
func (in Input) IDBans(bad []Altered) *IDBans {
	out := &IDBans{State: in.State.Version, Bans: in.bans, Altered: make(map[string]store.Revision)}
	for _, one := range bad {
		if path, ok := strings.CutPrefix(one.Key, record.BanIDPrefix); ok {
			out.Altered[path] = one.Version
		}
	}
	return out
}

// Look is Read for who shows what there is and makes nothing of it: records that are not genuine are
// left out, and apart, sorted by key.
func Look(ctx context.Context, r record.Records, cluster string) (in Input, bad []Altered, err error) {
	l, err := r.Store.List(ctx, Prefix)
	if err != nil {
		return Input{}, nil, err
	}
	in = Input{revision: l.Revision, bans: make(map[string]record.Versioned[record.Ban]), unbans: make(map[string]uint64),
		lifted: make(map[string]uint64)}
	for _, e := range l.Entries {
		var opening error
		switch {
		case e.Key == StateKey:
			if in.State, opening = record.Open[State](r, e); opening != nil {
				break
			}
			plain, err := r.Open(e.Key, e.Value)
			if err != nil {
				return in, bad, err
			}
			in.digest = sha256.Sum256(plain)
		case strings.HasPrefix(e.Key, record.UnbanPrefix):
			var unban record.Versioned[record.Unban]
			if unban, opening = record.Open[record.Unban](r, e); opening != nil {
				break
			}
			in.unbans[e.Key[len(record.UnbanPrefix):]] = unban.Value.Counter
			in.lifted[e.Key[len(record.UnbanPrefix):]] = unban.Value.AuthorityEpoch
		case strings.HasPrefix(e.Key, record.BanIDPrefix):
			var ban record.Versioned[record.Ban]
			if ban, opening = record.Open[record.Ban](r, e); opening != nil {
				break
			}
			in.bans[e.Key[len(record.BanIDPrefix):]] = ban
			kind, name, _ := strings.Cut(e.Key[len(record.BanIDPrefix):], "/")
			id, err := identity.New(cluster, identity.Kind(kind), name)
			if err != nil {
				return in, bad, fmt.Errorf("the ban %s names no identity: %w", e.Key, err)
			}
			in.BannedIDs = append(in.BannedIDs, id)
		case strings.HasPrefix(e.Key, record.BanKeyPrefix):
			var ban record.Versioned[record.Ban]
			if ban, opening = record.Open[record.Ban](r, e); opening != nil {
				break
			}
			key, err := identity.ParseKeyID(e.Key[len(record.BanKeyPrefix):])
			if err != nil {
				return in, bad, fmt.Errorf("the ban %s names no key: %w", e.Key, err)
			}
			in.BannedKeys = append(in.BannedKeys, KeyBan{key, ban.Value.CertEnd, ban.Value.Until, ban.Version})
		}
		if opening != nil {
			bad = append(bad, Altered{e.Key, e.Version, opening})
		}
	}
	return in, bad, nil
}

// Whole returns an error that matches [store.ErrForged] unless the bans of in are those
// that its state says there are.
func (in Input) Whole() error {
	if want, got := in.State.Value.Bans, in.Sum(); in.State.Exists() && got != want {
		return fmt.Errorf("the trust state says %d bans, and %d others are there: %w", want.Count, got.Count,
			store.ErrForged)
	}
	return nil
}
