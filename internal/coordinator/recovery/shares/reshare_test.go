package shares_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// committed reports whether the head commits to share.
func committed(d *coordinatortest.Desk, share keyring.Share) bool {
	got := share.Commitment(coordinatortest.Cluster, d.State().Head.SeedEpoch)
	return slices.ContainsFunc(d.State().Head.ShareCommitments,
		func(c history.ShareCommitment) bool { return c.Hash == got })
}

// Other people, another threshold and another keeper of the same seed.
func TestReshare(t *testing.T) {
	t.Parallel()
	d := coordinatortest.NewDesk(t)
	before, after := newOwners(t, "alice", "bob"), newOwners(t, "carol", "alice", "dave")
	after[1] = before[0]
	d.Seed = coordinatortest.SeedOf(2, before, "host", "stays")
	resp, err := d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request(d.Manifest(coordinatortest.PoolEntries)), true)
	if err != nil {
		t.Fatal(err)
	}
	d.Extra = coordinatortest.PoolEntries
	old, seed := wantShares(d, t, before, resp.GetShares()), d.State().Secrets
	node := d.Joined("node-a")

	resp, err = coordinatortest.Reshare(d, coordinatortest.SeedOf(2, after, "stays", "new"))
	if err != nil {
		t.Fatal(err)
	}
	s := d.State()
	if s.Head.Kind != history.KindReshare || s.Head.AuthorityEpoch != 2 || s.Head.SeedEpoch != 1 ||
		!s.Secrets.Same(seed) {
		t.Fatalf("%s, epoch %d, seed epoch %d: want another epoch of the same seed", s.Head.Kind,
			s.Head.AuthorityEpoch, s.Head.SeedEpoch)
	}
	wantShares(d, t, after, resp.GetShares())
	wantShares(d, t, after, storedShares(d, t))
	for _, share := range old {
		if committed(d, share) {
			t.Error("the head commits to a share of before")
		}
	}
	coordinatortest.WantOnly(t, "renew", node.Renew(), "")
	d.Lead(d.C)
	if err := d.C.Parts().Secrets.Shares.Drop(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for _, k := range d.Store.Keys("") {
		if strings.HasSuffix(k, "/host") || strings.HasSuffix(k, "/bob") {
			t.Errorf("%s is still in the store", k)
		}
	}
	// One who needs nobody, and one who was there before.
	for _, keeper := range []string{"stays", "new"} {
		e := d.Store.Snapshot()
		for _, k := range d.Store.Keys(sealed.Prefix) {
			if strings.HasSuffix(k, "/stays") || strings.HasSuffix(k, "/new") {
				if !strings.HasSuffix(k, "/"+keeper) {
					d.Store.Alter(k, func([]byte) []byte { return nil })
				}
			}
		}
		d.Restart()
		coordinatortest.WantPhase(d, "ready", "")
		wantShares(d, t, after, storedShares(d, t))
		d.Store.Revert(e)
	}

	// The same owners once more: new shares, and nothing else.
	resp, err = coordinatortest.Reshare(d, d.Seed)
	if err != nil {
		t.Fatal(err)
	}
	if d.State().Head.AuthorityEpoch != 2 {
		t.Errorf("the epoch is %d", d.State().Head.AuthorityEpoch)
	}
	wantShares(d, t, after, resp.GetShares())
	// Keepers alone, and back.
	if _, err := coordinatortest.Reshare(d, coordinatortest.SeedOf(1, nil, "stays")); err != nil ||
		len(storedShares(d, t)) > 0 {
		t.Fatalf("keepers alone: %v, %d shares", err, len(storedShares(d, t)))
	}
	if resp, err = coordinatortest.Reshare(d, coordinatortest.SeedOf(1, before, "stays")); err != nil {
		t.Fatal(err)
	}
	wantShares(d, t, before, resp.GetShares())
}

// A reshare changes nothing else, and a set no shares; and the consent to one is not
// the consent to the other.
func TestReshareAndSetAreTwoThings(t *testing.T) {
	people := newOwners(t, "alice", "bob")
	for name, tc := range map[string]struct {
		kind, signedAs history.Kind
		seed, extra    string
		want           errcode.Code
	}{
		"a set of other owners": {history.KindSet, history.KindSet, coordinatortest.SeedOf(1, people, "host"),
			coordinatortest.PoolEntries,
			errcode.ManifestOtherKind},
		"a reshare with an entry more": {history.KindReshare, history.KindReshare, coordinatortest.SeedOf(1, people, "host"),
			coordinatortest.PoolEntries + "  - {name: more, kind: data, match: [\"token:more\"]}\n",
			errcode.ManifestOtherKind},
		"a reshare of nothing": {history.KindReshare, history.KindReshare, coordinatortest.SeedOf(1, nil, "host"),
			coordinatortest.PoolEntries, errcode.ManifestOtherKind},
		"another keeper of the same name": {history.KindReshare, history.KindReshare,
			strings.Replace(coordinatortest.SeedOf(1, people, "host"), "/host/key", "/else/key",
				1), coordinatortest.PoolEntries, errcode.ManifestOtherKind},
		"a reshare signed as a set": {history.KindReshare, history.KindSet, coordinatortest.SeedOf(1, people, "host"),
			coordinatortest.PoolEntries, errcode.ManifestMissigned},
		"a set signed as a reshare": {history.KindSet, history.KindReshare, coordinatortest.SeedOf(1, nil, "host"),
			coordinatortest.PoolEntries,
			errcode.ManifestMissigned},
		"a kind that cannot be asked for": {history.KindRekey, history.KindRekey, coordinatortest.SeedOf(1, nil, "host"),
			coordinatortest.PoolEntries,
			errcode.RequestField},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.NewDesk(t)
			d.Seed = coordinatortest.SeedOf(1, nil, "host")
			coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
			keys := d.Store.Keys("")
			d.Seed = tc.seed
			_, err := d.C.Parts().Moves.Manifests.Set(t.Context(), coordinatortest.SignedChange(d, tc.kind, tc.signedAs,
				d.Manifest(tc.extra)),
				false)
			coordinatortest.WantCode(t, err, tc.want)
			if now := d.Store.Keys(""); !slices.Equal(now, keys) {
				t.Errorf("it left %v", now)
			}
		})
	}
	d := coordinatortest.NewDesk(t)
	d.Seed = coordinatortest.SeedOf(1, people)
	req := d.Request(d.Manifest(coordinatortest.PoolEntries))
	req.Kind = string(history.KindReshare)
	_, err := d.C.Parts().Moves.Manifests.Set(t.Context(), req, true)
	coordinatortest.WantCode(t, err, errcode.HistoryUninitialized)
}

// A reshare that dies anywhere leaves the old owners or the new ones, each with
// shares that fit, and a keeper that brings the seed back.
func TestReshareDiesAnywhere(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	before, after := newOwners(t, "alice", "bob"), newOwners(t, "bob", "carol", "dave")
	start := func(t *testing.T) (d *coordinatortest.Desk, from history.Hash) {
		d = coordinatortest.NewDesk(t)
		d.Seed = coordinatortest.SeedOf(2, before, "host", "gone")
		coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
		return d, d.State().Head.Hash
	}
	settled := func(t *testing.T, d *coordinatortest.Desk, from history.Hash, failed error) {
		t.Helper()
		d.C.Parts().Moves.Succession.Look(t.Context())
		d.Restart()
		coordinatortest.WantPhase(d, "ready", "")
		moved := d.State().Head.Hash != from
		if failed == nil && !moved {
			t.Fatal("a reshare was acknowledged and did not happen")
		}
		d.Lead(d.C)
		if err := d.C.Parts().Secrets.Shares.Drop(t.Context(), d.State()); err != nil {
			t.Fatal(err)
		}
		people := before
		if moved {
			people = after
		}
		wantShares(d, t, people, storedShares(d, t))
		// And on: a reshare after it finds its way.
		if !moved {
			d.Seed = coordinatortest.SeedOf(2, before, "host", "gone")
		}
		d.Restart()
		coordinatortest.WantPhase(d, "ready", "")
		if _, err := coordinatortest.Reshare(d, coordinatortest.SeedOf(3, after, "host", "last")); err != nil {
			t.Fatal(err)
		}
		wantShares(d, t, after, storedShares(d, t))
		d.Restart()
		coordinatortest.WantPhase(d, "ready", "")
		d.Joined("after")
	}
	for _, point := range []string{"set.after-share", "set.after-shares", "set.before-swap", "set.after-swap",
		"adopt.begin", "adopt.before-identity"} {
		t.Run("at "+point, func(t *testing.T) {
			d, from := start(t)
			d.Faults.FailNext(point, 1, crash)
			_, err := coordinatortest.Reshare(d, coordinatortest.SeedOf(2, after, "host", "new"))
			settled(t, d, from, err)
		})
	}
	// Each answer is lost in one of two ways for now, and in one for good: sets lose each in all.
	ways := [][]coordinatortest.LostAnswer{{coordinatortest.LostApplied, coordinatortest.LostForGoodN},
		{coordinatortest.LostDropped, coordinatortest.LostForGood}}
	for n := range 14 {
		for _, how := range ways[n%2] {
			t.Run(fmt.Sprintf("write %d, %d", n, how), func(t *testing.T) {
				d, from := start(t)
				d.Store.Lose(append(slices.Repeat([]coordinatortest.LostAnswer{coordinatortest.Answered}, n), how)...)
				_, err := coordinatortest.Reshare(d, coordinatortest.SeedOf(2, after, "host", "new"))
				d.Store.Lose()
				settled(t, d, from, err)
			})
		}
	}
}

// Of a set and a reshare for one head, one wins.
func TestSetAndReshareHaveOneWinner(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	people := newOwners(t, "alice", "bob")
	d.Seed = coordinatortest.SeedOf(1, people[:1], "host")
	coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
	set := coordinatortest.SignedChange(d, history.KindSet, history.KindSet,
		d.Manifest(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)))
	d.Seed = coordinatortest.SeedOf(2, people, "host")
	share := coordinatortest.SignedChange(d, history.KindReshare, history.KindReshare,
		d.Manifest(coordinatortest.PoolEntries))
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, req := range []*fealtyv1.SetManifestRequest{set, share} {
		wg.Go(func() { _, errs[i] = d.C.Parts().Moves.Manifests.Set(t.Context(), req, false) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("the set: %v; the reshare: %v", errs[0], errs[1])
	}
	for _, err := range errs {
		if err != nil {
			coordinatortest.WantCode(t, err, errcode.ManifestStale)
		}
	}
	if d.State().Head.Index != 2 {
		t.Errorf("the head is at index %d", d.State().Head.Index)
	}
	wantShares(d, t, people[:d.State().Manifest.Seed.Threshold], storedShares(d, t))
}
