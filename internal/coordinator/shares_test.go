package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/sealed"
)

// person is a seed share owner with a key.
type person struct {
	name string
	key  *age.X25519Identity
}

func newOwners(t testing.TB, names ...string) []person {
	t.Helper()
	var out []person
	for _, n := range names {
		key, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, person{n, key})
	}
	return out
}

// seedOf returns the seed section of a manifest, with these keepers by name.
func seedOf(threshold int, people []person, keepers ...string) string {
	var owners []string
	for _, p := range people {
		owners = append(owners, fmt.Sprintf("{name: %s, recipient: %s}", p.name, p.key.Recipient()))
	}
	for _, k := range keepers {
		owners = append(owners, fmt.Sprintf("{name: %s, keeper: \"file:/%s/key\"}", k, k))
	}
	return fmt.Sprintf("seed: {threshold: %d, owners: [%s]}\n", threshold, strings.Join(owners, ", "))
}

// open decrypts the shares that were handed out, each by its owner and by nobody
// else, and compares each with its commitment in the head.
func (d *desk) openShares(t testing.TB, people []person, shares []*fealtyv1.SeedShare) []keyring.Share {
	t.Helper()
	s := d.state()
	if len(shares) != len(people) || len(s.Head.ShareCommitments) != len(people) {
		t.Fatalf("%d shares and %d commitments for %d people", len(shares), len(s.Head.ShareCommitments), len(people))
	}
	var out []keyring.Share
	for i, p := range people {
		if shares[i].GetOwner() != p.name || s.Head.ShareCommitments[i].Owner != p.name {
			t.Fatalf("share %d is of %s, committed to for %s, want %s", i+1, shares[i].GetOwner(),
				s.Head.ShareCommitments[i].Owner, p.name)
		}
		for _, other := range people {
			f, err := keyring.OpenShare([]age.Identity{other.key}, shares[i].GetFile())
			if other.name != p.name {
				if err == nil {
					t.Fatalf("%s opens the share of %s", other.name, p.name)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.Cluster != testCluster || f.Owner != p.name || f.SeedEpoch != s.Head.SeedEpoch ||
				f.Threshold != s.Manifest.Seed.Threshold ||
				!f.TransactionKey.Equal(s.Secrets.Transaction().Public()) || f.RootPin != s.RootPin ||
				f.Share.Index() != i+1 {
				t.Fatalf("the share file of %s says %+v", p.name, f)
			}
			if f.Share.Commitment(testCluster, f.SeedEpoch) != s.Head.ShareCommitments[i].Hash {
				t.Fatalf("the share of %s is not the one that the head commits to", p.name)
			}
			out = append(out, f.Share)
		}
	}
	return out
}

// wantShares checks that any threshold of the shares bring back the seed that is in
// force, and one less does not.
func (d *desk) wantShares(t testing.TB, people []person, shares []*fealtyv1.SeedShare) []keyring.Share {
	t.Helper()
	opened := d.openShares(t, people, shares)
	k := d.state().Manifest.Seed.Threshold
	for i := range opened {
		some := slices.Concat(opened[i:], opened[:i])[:k]
		seed, err := keyring.Combine(k, some)
		if err != nil || !seed.Equal(steal(d.state()).Seed) {
			t.Fatalf("%d shares from %s on do not give the seed: %v", k, people[i].name, err)
		}
		if _, err := keyring.Combine(k, some[1:]); err == nil {
			t.Fatalf("%d shares are enough, the threshold is %d", k-1, k)
		}
	}
	return opened
}

func (d *desk) storedShares(t testing.TB) []*fealtyv1.SeedShare {
	t.Helper()
	resp, err := served[fealtyv1.ManifestServiceServer](d.c.Rooms().Authority.RegisterServices).GetSeedShares(
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
			d := newDesk(t)
			people := newOwners(t, []string{"alice", "bob", "carol"}[:tc.people]...)
			d.seed = seedOf(tc.threshold, people, tc.keepers...)
			req := d.request(d.manifest(poolEntries))
			req.DryRun = true
			if resp, err := d.c.Rooms().Authority.Set(t.Context(), req,
				true); err != nil || len(resp.GetShares()) > 0 || len(d.store.keys("")) > 0 {
				t.Fatalf("a dry run: %v, %d shares, and %v in the store", err, len(resp.GetShares()), d.store.keys(""))
			}
			req.DryRun = false
			resp, err := d.c.Rooms().Authority.Set(t.Context(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			d.wantShares(t, people, resp.GetShares())
			d.wantShares(t, people, d.storedShares(t))
			d.joined("node-a")
			if n := len(d.store.keys(sealed.Prefix + "seed/")); n != len(tc.keepers) {
				t.Errorf("%d sealed seeds for %d keepers", n, len(tc.keepers))
			}
			// Another manifest of the same owners keeps the shares.
			if err := d.set(poolEntries + coordinatorEntry(t, 2)); err != nil {
				t.Fatal(err)
			}
			d.wantShares(t, people, resp.GetShares())
			d.wantShares(t, people, d.storedShares(t))
			d.restart()
			if len(tc.keepers) > 0 {
				d.wantPhase("ready", "")
				d.wantShares(t, people, d.storedShares(t))
			} else {
				d.wantPhase("recovery", "nobody who opens it without owners")
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
			for _, how := range losses(n) {
				t.Run(fmt.Sprintf("first %v, write %d, %d", first, n, how), func(t *testing.T) {
					d := newDesk(t)
					people := newOwners(t, "alice", "bob")
					d.seed = seedOf(2, people)
					if !first {
						wantOnly(t, "first set", d.set(poolEntries), "")
					}
					lost := slices.Repeat([]lostAnswer{answered}, n)
					d.store.lose(append(lost, how)...)
					err := d.set(poolEntries + coordinatorEntry(t, 2))
					d.store.lose()
					d.c.Rooms().Authority.Look(t.Context())
					if phase, reason := d.c.Phase(); phase == "recovery" || err == nil && phase != "ready" {
						t.Fatalf("the set: %v; then %s: %s", err, phase, reason)
					}
					if d.state().Phase == authority.Ready {
						d.wantShares(t, people, d.storedShares(t))
						d.joined("after")
					}
					if d.c.Rooms().Keys.Undecided() > 0 {
						t.Errorf("%d moves are kept as if they were undecided", d.c.Rooms().Keys.Undecided())
					}
				})
			}
		}
	}
}

// Shares that were exchanged in the store are not handed out.
func TestForgedShares(t *testing.T) {
	people := newOwners(t, "alice", "bob")
	for name, harm := range map[string]func(d *desk){
		"another file": func(d *desk) {
			d.store.alter(d.store.keys(coordinator.SharePrefix)[0], func(b []byte) []byte { return append(b, '\n') })
		},
		"another's": func(d *desk) {
			k := d.store.keys(coordinator.SharePrefix)
			e := d.store.snapshot()[k[1]].Value
			d.store.alter(k[0], func([]byte) []byte { return e })
		},
		"another index": func(d *desk) {
			d.store.alter(d.store.keys(coordinator.ShareSetPrefix)[0], func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.seed = seedOf(2, people)
			wantOnly(t, "first set", d.set(poolEntries), "")
			harm(d)
			_, err := served[fealtyv1.ManifestServiceServer](d.c.Rooms().Authority.RegisterServices).GetSeedShares(t.Context(),
				&fealtyv1.GetSeedSharesRequest{})
			wantCode(t, err, explain.StoreForged)
		})
	}
}
