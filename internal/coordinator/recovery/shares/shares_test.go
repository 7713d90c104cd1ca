package shares_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

func newOwners(t testing.TB, names ...string) []coordinatortest.Person {
	t.Helper()
	var out []coordinatortest.Person
	for _, n := range names {
		key, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, coordinatortest.Person{Name: n, Key: key})
	}
	return out
}

// openShares decrypts the shares that were handed out, each by its owner and by nobody
// else, and compares each with its commitment in the head.
func openShares(d *coordinatortest.Desk, t testing.TB, people []coordinatortest.Person,
	shares []*fealtyv1.SeedShare) []keyring.Share {
	t.Helper()
	s := d.State()
	if len(shares) != len(people) || len(s.Head.ShareCommitments) != len(people) {
		t.Fatalf("%d shares and %d commitments for %d people", len(shares), len(s.Head.ShareCommitments), len(people))
	}
	var out []keyring.Share
	for i, p := range people {
		if shares[i].GetOwner() != p.Name || s.Head.ShareCommitments[i].Owner != p.Name {
			t.Fatalf("share %d is of %s, committed to for %s, want %s", i+1, shares[i].GetOwner(),
				s.Head.ShareCommitments[i].Owner, p.Name)
		}
		for _, other := range people {
			f, err := keyring.OpenShare([]age.Identity{other.Key}, shares[i].GetFile())
			if other.Name != p.Name {
				if err == nil {
					t.Fatalf("%s opens the share of %s", other.Name, p.Name)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.Cluster != coordinatortest.Cluster || f.Owner != p.Name || f.SeedEpoch != s.Head.SeedEpoch ||
				f.Threshold != s.Manifest.Seed.Threshold ||
				!f.TransactionKey.Equal(s.Secrets.Transaction().Public()) || f.RootPin != s.RootPin ||
				f.Share.Index() != i+1 {
				t.Fatalf("the share file of %s says %+v", p.Name, f)
			}
			if f.Share.Commitment(coordinatortest.Cluster, f.SeedEpoch) != s.Head.ShareCommitments[i].Hash {
				t.Fatalf("the share of %s is not the one that the head commits to", p.Name)
			}
			out = append(out, f.Share)
		}
	}
	return out
}

// wantShares checks that any threshold of the shares bring back the seed that is in
// force, and one less does not.
func wantShares(d *coordinatortest.Desk, t testing.TB, people []coordinatortest.Person,
	shares []*fealtyv1.SeedShare) []keyring.Share {
	t.Helper()
	opened := openShares(d, t, people, shares)
	k := d.State().Manifest.Seed.Threshold
	for i := range opened {
		some := slices.Concat(opened[i:], opened[:i])[:k]
		seed, err := keyring.Combine(k, some)
		if err != nil || !seed.Equal(coordinatortest.Steal(d.State()).Seed) {
			t.Fatalf("%d shares from %s on do not give the seed: %v", k, people[i].Name, err)
		}
		if _, err := keyring.Combine(k, some[1:]); err == nil {
			t.Fatalf("%d shares are enough, the threshold is %d", k-1, k)
		}
	}
	return opened
}

func storedShares(d *coordinatortest.Desk, t testing.TB) []*fealtyv1.SeedShare {
	t.Helper()
	resp, err := coordinatortest.Served[fealtyv1.ManifestServiceServer](
		d.C.Parts().Moves.Manifests.RegisterServices).GetSeedShares(
		context.Background(), &fealtyv1.GetSeedSharesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetShares()
}

// A first manifest with people: each gets a share that they alone can open, in the
// answer and from the store, and a dry run gives nobody anything.
func TestFirstSetWithPeople(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		threshold, people int
		keepers           []string
	}{{1, 1, nil}, {2, 3, nil}, {3, 3, []string{"host"}}, {1, 2, []string{"host", "other"}}} {
		t.Run(fmt.Sprintf("%d of %d and %d keepers", tc.threshold, tc.people, len(tc.keepers)), func(t *testing.T) {
			d := coordinatortest.NewDesk(t)
			people := newOwners(t, []string{"alice", "bob", "carol"}[:tc.people]...)
			d.Seed = coordinatortest.SeedOf(tc.threshold, people, tc.keepers...)
			req := d.Request(d.Manifest(coordinatortest.PoolEntries))
			req.DryRun = true
			if resp, err := d.C.Parts().Moves.Manifests.Set(t.Context(), req,
				true); err != nil || len(resp.GetShares()) > 0 || len(d.Store.Keys("")) > 0 {
				t.Fatalf("a dry run: %v, %d shares, and %v in the store", err, len(resp.GetShares()), d.Store.Keys(""))
			}
			req.DryRun = false
			resp, err := d.C.Parts().Moves.Manifests.Set(t.Context(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			wantShares(d, t, people, resp.GetShares())
			wantShares(d, t, people, storedShares(d, t))
			d.Joined("node-a")
			if n := len(d.Store.Keys(sealed.Prefix + "seed/")); n != len(tc.keepers) {
				t.Errorf("%d sealed seeds for %d keepers", n, len(tc.keepers))
			}
			// Another manifest of the same owners keeps the shares.
			if err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 2)); err != nil {
				t.Fatal(err)
			}
			wantShares(d, t, people, resp.GetShares())
			wantShares(d, t, people, storedShares(d, t))
			d.Restart()
			if len(tc.keepers) > 0 {
				coordinatortest.WantPhase(d, "ready", "")
				wantShares(d, t, people, storedShares(d, t))
			} else {
				coordinatortest.WantPhase(d, "recovery", "nobody who opens it without owners")
			}
		})
	}
}

// The answer of a set that moves the mesh CA key is lost, and no keeper could open
// it again: the process still holds it, and goes on.
func TestLostAnswerWithoutAKeeper(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		for n := range 12 {
			for _, how := range coordinatortest.Losses() {
				t.Run(fmt.Sprintf("first %v, write %d, %d", first, n, how), func(t *testing.T) {
					d := coordinatortest.NewDesk(t)
					people := newOwners(t, "alice", "bob")
					d.Seed = coordinatortest.SeedOf(2, people)
					if !first {
						coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
					}
					lost := slices.Repeat([]coordinatortest.LostAnswer{coordinatortest.Answered}, n)
					d.Store.Lose(append(lost, how)...)
					err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 2))
					d.Store.Lose()
					d.C.Parts().Moves.Succession.Look(t.Context())
					if phase, reason := d.C.Phase(); phase == "recovery" || err == nil && phase != "ready" {
						t.Fatalf("the set: %v; then %s: %s", err, phase, reason)
					}
					if d.State().Phase == authority.Ready {
						wantShares(d, t, people, storedShares(d, t))
						d.Joined("after")
					}
					if d.C.Parts().Secrets.Keys.Undecided() > 0 {
						t.Errorf("%d moves are kept as if they were undecided", d.C.Parts().Secrets.Keys.Undecided())
					}
				})
			}
		}
	}
}

// Shares that were exchanged in the store are not handed out.
func TestForgedShares(t *testing.T) {
	people := newOwners(t, "alice", "bob")
	for name, harm := range map[string]func(d *coordinatortest.Desk){
		"another file": func(d *coordinatortest.Desk) {
			d.Store.Alter(d.Store.Keys(shares.Prefix)[0], func(b []byte) []byte { return append(b, '\n') })
		},
		"another's": func(d *coordinatortest.Desk) {
			k := d.Store.Keys(shares.Prefix)
			e := d.Store.Snapshot()[k[1]].Value
			d.Store.Alter(k[0], func([]byte) []byte { return e })
		},
		"another index": func(d *coordinatortest.Desk) {
			d.Store.Alter(d.Store.Keys(shares.SetPrefix)[0],
				func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.NewDesk(t)
			d.Seed = coordinatortest.SeedOf(2, people)
			coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
			harm(d)
			_, err := coordinatortest.Served[fealtyv1.ManifestServiceServer](
				d.C.Parts().Moves.Manifests.RegisterServices).GetSeedShares(t.Context(),
				&fealtyv1.GetSeedSharesRequest{})
			coordinatortest.WantCode(t, err, errcode.StoreForged)
		})
	}
}
