package backup

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
)

// A store that went back is restored in place: there is no file to read, and the cluster
// goes on from what the store holds. Nobody signed that as a backup; the signers sign it
// themselves, by the digest of its bound entries. Everything else is as after any
// restore: clocks above all that the field remembers, a new mesh CA key, a gap that
// members fill.

const inPlaceName = "fealty-restore-in-place-v1\x00"

// inPlace returns what a [Trailer] has as Digest if no backup was made: it covers what
// the store holds and the header, and no backup has it.
func (t Trailer) inPlace() [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(inPlaceName))
	h.Write(t.Bound[:])
	h.Write(t.Header[:])
	return [sha256.Size]byte(h.Sum(nil))
}

// VouchedBy reports whether what i says of the state that it goes on from is the
// cluster's own: its transaction key signed the backup. In place the signatures of
// the signers cover that state, and it is enough that i is whole.
func (i *Intent) VouchedBy(key ed25519.PublicKey) bool {
	if i.InPlace {
		return i.Trailer.Digest == i.Trailer.inPlace() && i.Trailer.of(i.Header)
	}
	return i.Trailer.SignedBy(key)
}

// Request returns what signers of m sign for i.
func (i *Intent) Request(m *manifest.Manifest) (history.RestoreRequest, error) {
	head, err := i.Head()
	if err != nil {
		return history.RestoreRequest{}, err
	}
	t := history.Transition{Previous: head.Hash, Index: i.Index, AuthorityEpoch: i.AuthorityEpoch, Backup: history.Hash(i.Trailer.Digest)}
	return history.RequestRestore(&t, m), nil
}

// ErrNoCluster: the store holds no history to go on from.
var ErrNoCluster = errors.New("the store holds no cluster")

// Standing is what a store holds that is to be restored in place.
type Standing struct {
	Intent *Intent
	// Manifest is the one in force, as the store has it. It is the head's by its hash; who
	// carries the restore out verifies both.
	Manifest *manifest.Manifest
	Head     *history.Transition
	Hash     history.Hash // of Head
	Entries  uint64
	// Begun says that the intent is in the store already, and is of what it holds now.
	Begun bool
}

// PlanInPlace returns the restore in place of st at now: the one that was begun in it, if
// the store is still as it was then. above returns the newest revision that somebody whom
// the manifest in force names saw of it, and 0 if nobody says. Errors: [ErrNoCluster], [ErrOtherRestore],
// [ErrClockBehind], [ErrVersion], [ErrAltered], those of the history and of the store.
func PlanInPlace(ctx context.Context, st store.Store, now time.Time, above func(*manifest.Manifest) (store.Revision, error), reason, release string) (*Standing, error) {
	l, err := st.List(ctx, "")
	if err != nil {
		return nil, err
	}
	s, err := standing(ctx, st, l)
	if err != nil {
		return nil, err
	}
	seen, err := above(s.Manifest)
	if err != nil {
		return nil, err
	}
	plan := &Intent{InPlace: true, Whole: true, Reason: reason, At: now.UTC().Truncate(time.Second)}
	plan.Header = s.Intent.Header
	plan.Header.CreatedAt, plan.Header.Release = plan.At, release
	// Nobody knows how much was lost. The new number passes an hour of commits of a busy
	// store in any case, and what was seen as far as a year of that.
	floor := max(uint64(max(now.Unix(), 0)), uint64(l.Revision)+inPlaceRoom, min(uint64(seen)+inPlaceRoom, uint64(l.Revision)+365*24*inPlaceRoom))
	plan.Index, plan.AuthorityEpoch = max(s.Head.Index+1, uint64(max(now.Unix(), 0))), max(s.Head.AuthorityEpoch+1, uint64(max(now.Unix(), 0)))
	plan.Floor = store.Revision(max(floor, plan.AuthorityEpoch))
	if now.Unix() < restoresSince {
		return nil, fmt.Errorf("backup: it is %s here, which no restore is of: %w", now.UTC().Format(time.RFC3339), ErrClockBehind)
	}
	if err := plan.seal(s.Intent.Trailer); err != nil {
		return nil, err
	}
	have, _, err := ReadIntent(ctx, st)
	switch {
	case err != nil:
		return nil, err
	case have != nil && !have.InPlace:
		return nil, fmt.Errorf("backup: a backup of %s was restored into it, and no coordinator went on from that yet: %w", have.Header.CreatedAt.UTC().Format(time.RFC3339), ErrOtherRestore)
	case have != nil && have.VouchedBy(nil) && have.Trailer.Bound == plan.Trailer.Bound && bytes.Equal(have.Header.Head, plan.Header.Head) && !have.Ahead(plan):
		s.Intent, s.Begun = have, true
	default:
		s.Intent = plan
	}
	return s, nil
}

const (
	// inPlaceRoom is by how much revisions are raised above those that are known of.
	inPlaceRoom = 3600 * commitRate
	// restoresSince is a time, in Unix seconds, before any restore.
	restoresSince = 1_700_000_000
)

// standing reads what l holds.
func standing(ctx context.Context, st store.Store, l store.Listing) (*Standing, error) {
	sum, s := NewSum(), &Standing{Intent: &Intent{}}
	var head []byte
	for _, e := range l.Entries {
		if Kept(e.Key) {
			s.Entries++
		}
		sum.Add(e.Key, e.Value)
		if e.Key == history.HeadKey {
			head = e.Value
		}
	}
	loaded, err := history.New(st).Load(ctx)
	if errors.Is(err, history.ErrEmpty) {
		return nil, fmt.Errorf("backup: %w", ErrNoCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("backup: the history of the store: %w", err)
	}
	if !bytes.Equal(loaded.Head, head) {
		return nil, fmt.Errorf("backup: its head moves: stop the coordinators: %w", ErrOccupied)
	}
	record, err := history.DecodeRecord(head)
	if err != nil {
		return nil, err
	}
	if s.Head, err = history.Decode(loaded.Links[len(loaded.Links)-1]); err != nil {
		return nil, err
	}
	s.Hash = record.Hash
	if s.Manifest, err = manifest.ParseAccepted(loaded.Manifests[s.Head.Manifest]); err != nil {
		return nil, fmt.Errorf("backup: the manifest in force: %w", err)
	}
	s.Intent.Header = Header{Cluster: s.Manifest.Cluster, Revision: l.Revision, Head: head, TransactionKey: make([]byte, ed25519.PublicKeySize)}
	s.Intent.Trailer = Trailer{Entries: s.Entries, Bound: sum.Digest()}
	return s, nil
}

// seal makes t the trailer of i, whose header is complete.
func (i *Intent) seal(t Trailer) error {
	raw, err := i.Header.encode()
	if err != nil {
		return err
	}
	t.Header = sha256.Sum256(raw)
	t.Digest = t.inPlace()
	i.Trailer = t
	return nil
}

// RestoreInPlace has st go on from what it holds, by the plan that [PlanInPlace] made of
// it: its revisions are raised, and it gets the intent. Where that is there already the
// signatures that it has not are added.
//
// Errors: [ErrNoFloor]; [ErrOccupied] if somebody writes to it; those of the store. After
// one of the store, planning again is right.
func RestoreInPlace(ctx context.Context, st store.Store, s *Standing, faults *failpoint.Points) error {
	w := &restoring{st: st, faults: faults, intent: s.Intent}
	have, version, err := ReadIntent(ctx, st)
	if err != nil {
		return err
	}
	w.version = version
	if s.Begun {
		if have == nil || have.Trailer != s.Intent.Trailer {
			return fmt.Errorf("backup: somebody else restores it: %w", ErrOccupied)
		}
		w.intent = have
		return w.sign(ctx, s.Intent.Signatures)
	}
	lifter, ok := st.(store.Lifter)
	if !ok {
		return fmt.Errorf("backup: its engine has no way to: %w", ErrNoFloor)
	}
	if err := lifter.Lift(ctx, s.Intent.Floor); err != nil {
		return fmt.Errorf("backup: raising the revisions: %w", err)
	}
	if err := faults.Hit("restore.after-raise"); err != nil {
		return err
	}
	l, err := st.List(ctx, "")
	if err != nil {
		return err
	}
	sum, head := NewSum(), store.Revision(0)
	for _, e := range l.Entries {
		sum.Add(e.Key, e.Value)
		if e.Key == history.HeadKey {
			head = e.Version
		}
	}
	if sum.Digest() != s.Intent.Trailer.Bound {
		return fmt.Errorf("backup: somebody writes to it: %w", ErrOccupied)
	}
	raw, err := s.Intent.Encode()
	if err != nil {
		return err
	}
	_, err = w.commit(ctx, store.Tx{
		If:  []store.Condition{{Key: IntentKey, Version: version}, {Key: history.HeadKey, Version: head}},
		Put: []store.Write{{Key: IntentKey, Value: raw}},
	})
	return err
}
