package coordinator

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
	"github.com/fealty-io/fealty/internal/regress"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// trustInput is everything that a bundle is compiled from, read at one revision.
type trustInput struct {
	state   record.Versioned[trustState]
	bannedI []identity.ID
	bannedK []keyBan

	revision store.Revision    // that it was read at
	digest   regress.Digest    // of the state, as the store has it
	since    map[string]uint64 // the counter under which each of bannedI was banned, by "<kind>/<name>"
	unbans   map[string]uint64 // the counter of each ban that was lifted, likewise
}

// keyBan is a banned key, and when the last certificate over it has ended.
type keyBan struct {
	key     identity.KeyID
	certEnd time.Time
	until   time.Time      // as in its record
	version store.Revision // of its record
}

// sum returns the sum of the ban records that in was read from.
func (in trustInput) sum() banSum {
	keys := make([]string, 0, len(in.bannedI)+len(in.bannedK))
	for _, id := range in.bannedI {
		keys = append(keys, record.BanIDKey(id.Kind(), id.Name()))
	}
	for _, b := range in.bannedK {
		keys = append(keys, record.BanKeyKey(b.key))
	}
	slices.Sort(keys)
	h := sha256.Sum256([]byte(strings.Join(keys, "\n")))
	return banSum{len(keys), hex.EncodeToString(h[:])}
}

// listed returns the banned keys that the bundle names: those over which a
// certificate could be valid at the state's own time.
func (in trustInput) listed() []identity.KeyID {
	var keys []identity.KeyID
	for _, b := range in.bannedK {
		if in.state.Value.AsOf.Before(b.certEnd) {
			keys = append(keys, b.key)
		}
	}
	return keys
}

// outlived reports whether the time that bans are compared with should move: it
// lies ahead, because a clock was wrong, or some banned keys have not needed to be
// listed for a while.
func (in trustInput) outlived(now time.Time) bool {
	asOf := in.state.Value.AsOf
	if asOf.After(now.Add(snapshot.ClockTolerance)) {
		return true
	}
	return now.Sub(asOf) >= sweepPause && slices.ContainsFunc(in.bannedK, func(b keyBan) bool {
		return asOf.Before(b.certEnd) && !now.Before(b.certEnd)
	})
}

// trustDelta is what a transaction changes of the inputs of the trust bundle.
type trustDelta struct {
	ban, unban []identity.ID
	keys       []keyBan // banned, or banned for longer
	forget     []identity.KeyID
	// write adds to the change what says under which counter it is made. Nil: nothing does.
	write func(counter uint64)
	// edit changes the state itself, which was read at version was. Nil: it does not.
	edit func(t *trustState, was store.Revision) error
}

// with returns in as it is after d, under state next. Its version is a stand-in:
// the transaction's own is not known yet.
func (in trustInput) with(d trustDelta, next trustState) trustInput {
	out := trustInput{state: record.Versioned[trustState]{Value: next, Version: max(in.state.Version, 1)}}
	for _, id := range append(slices.Clone(in.bannedI), d.ban...) {
		if !slices.Contains(d.unban, id) {
			out.bannedI = append(out.bannedI, id)
		}
	}
	slices.SortFunc(out.bannedI, identity.ID.Compare)
	out.bannedI = slices.Compact(out.bannedI)
	again := make(map[identity.KeyID]bool, len(d.keys)+len(d.forget))
	for _, key := range d.forget {
		again[key] = true
	}
	for _, b := range d.keys {
		again[b.key] = true
	}
	for _, b := range in.bannedK {
		if !again[b.key] {
			out.bannedK = append(out.bannedK, b)
		}
	}
	out.bannedK = append(out.bannedK, d.keys...)
	return out
}

// seen is what in shows of the store, for who compares it.
func (in trustInput) seen(restored uint64) regress.Seen {
	t := in.state.Value
	out := &regress.Trust{
		Counter: t.Change, Version: uint64(in.state.Version), Digest: in.digest, UnbansFrom: uint64(t.UnbansFrom),
		Bans: make(map[string]uint64, len(in.bannedI)), Keys: make(map[string]time.Time, len(in.bannedK)),
		Unbans: in.unbans,
	}
	for _, id := range in.bannedI {
		path := string(id.Kind()) + "/" + id.Name()
		out.Bans[path] = in.since[path]
	}
	for _, b := range in.bannedK {
		out.Keys[b.key.String()] = b.until
	}
	return regress.Seen{Restored: restored, Revision: uint64(in.revision), Trust: out}
}

// readInput reads the inputs of the trust bundle of a cluster. Whether they are whole is
// not asked yet: see whole and nothingKept. A record that fails its MAC is an error that
// matches [store.ErrForged].
func readInput(ctx context.Context, r record.Records, cluster string) (trustInput, error) {
	l, err := r.Store.List(ctx, trustPrefix)
	if err != nil {
		return trustInput{}, err
	}
	in := trustInput{revision: l.Revision, since: make(map[string]uint64), unbans: make(map[string]uint64)}
	for _, e := range l.Entries {
		switch {
		case e.Key == trustStateKey:
			if in.state, err = record.Open[trustState](r, e); err != nil {
				return in, err
			}
			plain, err := r.Open(e.Key, e.Value)
			if err != nil {
				return in, err
			}
			in.digest = sha256.Sum256(plain)
		case strings.HasPrefix(e.Key, record.UnbanPrefix):
			unban, err := record.Open[record.Unban](r, e)
			if err != nil {
				return in, err
			}
			in.unbans[e.Key[len(record.UnbanPrefix):]] = unban.Value.Counter
		case strings.HasPrefix(e.Key, record.BanIDPrefix):
			ban, err := record.Open[record.Ban](r, e)
			if err != nil {
				return in, err
			}
			in.since[e.Key[len(record.BanIDPrefix):]] = ban.Value.Counter
			kind, name, _ := strings.Cut(e.Key[len(record.BanIDPrefix):], "/")
			id, err := identity.New(cluster, identity.Kind(kind), name)
			if err != nil {
				return in, fmt.Errorf("the ban %s names no identity: %w", e.Key, err)
			}
			in.bannedI = append(in.bannedI, id)
		case strings.HasPrefix(e.Key, record.BanKeyPrefix):
			ban, err := record.Open[record.Ban](r, e)
			if err != nil {
				return in, err
			}
			key, err := identity.ParseKeyID(e.Key[len(record.BanKeyPrefix):])
			if err != nil {
				return in, fmt.Errorf("the ban %s names no key: %w", e.Key, err)
			}
			in.bannedK = append(in.bannedK, keyBan{key, ban.Value.CertEnd, ban.Value.Until, ban.Version})
		}
	}
	return in, nil
}

// whole returns an error that matches [store.ErrForged] unless the bans of in are those
// that its state says there are.
func (in trustInput) whole() error {
	if want, got := in.state.Value.Bans, in.sum(); got != want {
		return fmt.Errorf("the trust state says %d bans, and %d others are there: %w", want.Count, got.Count,
			store.ErrForged)
	}
	return nil
}

// nothingKept returns an error that matches [store.ErrForged] if in, which has no state,
// has bans, or there are members: then there was a state, and somebody took it away.
func nothingKept(ctx context.Context, r record.Records, in trustInput) error {
	members, err := r.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return err
	}
	if n := len(in.bannedI) + len(in.bannedK) + len(members.Entries); n > 0 {
		return fmt.Errorf("there is no trust state, and %d bans and members: %w", n, store.ErrForged)
	}
	return nil
}
