package coordinator_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// wantPhase fails unless the coordinator is in the phase, for a reason that holds
// the text.
func (d *desk) wantPhase(phase, reason string) {
	d.t.Helper()
	got, why := d.c.Phase()
	if got != phase || !strings.Contains(why, reason) {
		d.t.Fatalf("phase %s (%s), want %s (… %s …)", got, why, phase, reason)
	}
}

// coordinatorEntry is an entry for another coordinator: setting it moves authority.
func coordinatorEntry(t rapidTB, n int) string {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := manifest.NewKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [\"key:%s\"]}\n", n, key)
}

func TestRestartWithKeeper(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
	before := d.state()
	version := d.c.Rooms().Bundle.View().Version
	d.restart()
	d.wantPhase("ready", "")
	after := d.state()
	if after.Head.Hash != before.Head.Hash || after.Head.AuthorityEpoch != 2 || after.RootPin != before.RootPin ||
		after.MeshKey != before.MeshKey {
		t.Fatalf("head %v, epoch %d, root %v, mesh CA %v; before %v, %d, %v, %v", after.Head.Hash,
			after.Head.AuthorityEpoch, after.RootPin, after.MeshKey,
			before.Head.Hash, before.Head.AuthorityEpoch, before.RootPin, before.MeshKey)
	}
	if got := d.c.Rooms().Bundle.View().Version; got != version {
		t.Fatalf("a restart moved the trust bundle from version %d to %d", version, got)
	}
	// Its SVID is of the epoch before.
	wantOnly(t, "renew", m.renew(), "")
}

// What stands between a coordinator and its keys or its history is recovery mode
// with a reason. It serves nothing then, and goes on by itself when it is mended.
func TestWhatKeepsACoordinatorFromItsState(t *testing.T) {
	t.Parallel()
	key := func(d *desk, prefix string) string {
		t.Helper()
		keys := d.store.keys(prefix)
		if len(keys) == 0 {
			t.Fatalf("no key below %s", prefix)
		}
		return keys[len(keys)-1]
	}
	flip := func(at int) func([]byte) []byte {
		return func(v []byte) []byte { v[(at+len(v))%len(v)] ^= 1; return v }
	}
	gone := func([]byte) []byte { return nil }
	for _, tc := range []struct {
		name   string
		spoil  func(d *desk)
		reason string
	}{
		{"keeper's key file missing", func(d *desk) { wantOnly(t, "remove", d.disk.FS().Remove("/keeper/key"), "") },
			"/keeper/key is missing"},
		{"keeper's key file readable by others", func(d *desk) { d.disk.Chmod("/keeper/key", 0o644) }, "keeper"},
		{"keeper's key file of another key", func(d *desk) {
			d.disk.Put("/keeper/key", []byte("fealty-keeper-key-v1 "+strings.Repeat("A", 43)+"=\n"))
		}, "sealed under"},
		{"keeper's key file garbage", func(d *desk) { d.disk.Put("/keeper/key", []byte("garbage")) }, "no key file"},
		{"sealed seed altered", func(d *desk) { d.store.alter(key(d, sealed.Prefix+"seed/"), flip(-5)) },
			"keeper host"},
		{"sealed seed missing", func(d *desk) { d.store.alter(key(d, sealed.Prefix+"seed/"), gone) }, "keeper host"},
		{"sealed mesh CA key altered",
			func(d *desk) { d.store.alter(key(d, sealed.Mesh(d.state().Head.Hash).Under()), flip(-5)) }, "keeper host"},
		{"sealed mesh CA key of another head", func(d *desk) {
			old := key(d, sealed.Prefix+"mesh/")
			e, err := d.store.Get(t.Context(), old)
			wantOnly(t, "get", err, "")
			wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
			d.store.alter(key(d, sealed.Mesh(d.state().Head.Hash).Under()), func([]byte) []byte { return e.Value })
		}, "sealed for head"},
		{"sealed mesh CA key missing",
			func(d *desk) { d.store.alter(key(d, sealed.Mesh(d.state().Head.Hash).Under()), gone) },
			"sealed mesh CA key"},
		{"root certificate altered", func(d *desk) { d.store.alter(key(d, sealed.Prefix+"root/"), flip(-1)) },
			"root certificate"},
		{"root certificate missing", func(d *desk) { d.store.alter(key(d, sealed.Prefix+"root/"), gone) },
			"root certificate"},
		{"root certificate of another cluster", func(d *desk) {
			other := readyDesk(t, poolEntries)
			d.store.alter(key(d, sealed.Prefix+"root/"), func([]byte) []byte { return other.state().Root.Raw })
		}, "root certificate is not that of the seed"},
		{"head record altered", func(d *desk) { d.store.alter(history.HeadKey, flip(-3)) }, "malformed"},
		{"head record missing", func(d *desk) { d.store.alter(history.HeadKey, gone) },
			"another store, or it was emptied"},
		{"head record of another cluster", func(d *desk) {
			other := readyDesk(t, poolEntries)
			for _, k := range append(other.store.keys("history/blob/"), history.HeadKey) {
				e, err := other.store.Get(t.Context(), k)
				wantOnly(t, "get", err, "")
				if !d.store.alter(k, func([]byte) []byte { return e.Value }) {
					_, err = d.store.CompareAndSwap(t.Context(), k, 0, e.Value)
					wantOnly(t, "put", err, "")
				}
			}
		}, "keeper"},
		{"transition altered", func(d *desk) { d.store.alter(history.BlobKey(d.state().Head.Hash), flip(20)) },
			"was altered"},
		{"transition missing", func(d *desk) { d.store.alter(history.BlobKey(d.state().Head.Hash), gone) },
			"is missing"},
		{"manifest altered", func(d *desk) { d.store.alter(history.BlobKey(d.state().Manifest.Hash()), flip(20)) },
			"was altered"},
		{"trust state altered", func(d *desk) { d.store.alter(bundle.StateKey, flip(-1)) }, "trust state"},
		{"a ban altered", func(d *desk) { d.store.alter(key(d, record.BanIDPrefix), flip(-1)) }, "trust state"},
		{"its memory of the head altered",
			func(d *desk) { d.disk.Put("/coordinator/"+authority.MarkFile, []byte("{")) }, authority.MarkFile},
		{"store rolled back by one set", func(d *desk) {
			before := d.store.snapshot()
			wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
			d.store.revert(before)
		}, "history went back"},
		{"store forked", func(d *desk) {
			before := d.store.snapshot()
			wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
			d.store.revert(before)
			// The same disk, less its memory of the head, makes another child.
			seen, err := d.disk.FS().ReadFile("/coordinator/"+authority.MarkFile, authority.MaxMarkFile)
			wantOnly(t, "read", err, "")
			d.forgets(authority.MarkFile, storeguard.StoreSeenFile, storeguard.TrustSeenFile)
			wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 3)), "")
			d.disk.Put("/coordinator/"+authority.MarkFile, seen)
		}, "history was forked"},
		{"its own enrolment key lost", func(d *desk) {
			wantOnly(t, "remove", d.disk.FS().Remove("/coordinator/"+authority.EnrolmentKeyFile), "")
		}, "does not admit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := testDesk(t)
			m := d.joined("a")
			d.ban(t, identity.Data, "z")
			tok := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
			good := d.store.snapshot()
			tc.spoil(d)
			spoiled := d.store.snapshot()
			d.restart()
			d.wantPhase("recovery", tc.reason)
			wantOnly(t, "join", d.machine().join(identity.Data, proof.NewTokenProver(tok)), explain.RecoveryMode)
			next, _ := newKey()
			_, err := renewOver(t.Context(), d.c, identity.Peer{ID: m.id, Leaf: m.leaf, Key: keyOf(t, m.key)},
				mustCSR(t, next))
			wantOnly(t, "renew", err, explain.RecoveryMode)
			if s := explain.Of(err); strings.Contains(s.Error(), "/keeper") || strings.Contains(s.Error(), tc.reason) {
				t.Errorf("a caller is told of our files: %v", s)
			}
			_, err = d.c.Rooms().Authority.Set(t.Context(),
				&fealtyv1.SetManifestRequest{Manifest: d.manifest(poolEntries)},
				true)
			if !errors.Is(err, explain.RecoveryMode) && !errors.Is(err, explain.ManifestLeavesOut) {
				t.Errorf("a set in recovery mode: %v", err)
			}
			if strings.HasPrefix(tc.name, "sealed mesh") {
				// The seed opens, and nobody else is there to have the key: a new one is made.
				head := d.state().Ready()
				d.lookAgain()
				d.wantPhase("ready", "")
				if s := d.state(); head != nil || s.Head.Kind != history.KindRekey || s.Head.AuthorityEpoch < 2 {
					t.Errorf("it came back at %+v", s.Head)
				}
				wantOneKeyPerEpoch(t, d)
				wantOnly(t, "renew afterwards", m.renew(), "")
				d.restart()
				d.wantPhase("ready", "")
				return
			}
			// Trying again does not change the answer, and writes nothing.
			d.lookAgain()
			d.wantPhase("recovery", tc.reason)
			for k, e := range d.store.snapshot() {
				if e.Version != spoiled[k].Version {
					t.Errorf("%s was written in recovery mode", k)
				}
			}
			if strings.Contains(tc.name, "store") || strings.Contains(tc.name, "its ") {
				return // nothing that a repair of single records mends
			}
			d.store.revert(good)
			if strings.HasPrefix(tc.name, "keeper") {
				return
			}
			d.lookAgain()
			d.wantPhase("ready", "")
			wantOnly(t, "renew afterwards", m.renew(), "")
		})
	}
}

// The same harm to a store under a coordinator that runs: it is noticed, and what
// it still holds in memory brings it back when the store is mended.
func TestHarmToTheStoreOfARunningCoordinator(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(d *desk)
	}{
		{"head vanishes", func(d *desk) { d.store.alter(history.HeadKey, func([]byte) []byte { return nil }) }},
		{"head altered in place",
			func(d *desk) { d.store.alter(history.HeadKey, func(v []byte) []byte { v[len(v)-3] ^= 1; return v }) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := testDesk(t)
			m := d.joined("a")
			good := d.store.snapshot()
			tc.spoil(d)
			d.c.Rooms().Authority.Look(t.Context())
			d.wantPhase("recovery", "")
			wantOnly(t, "renew", m.renew(), explain.RecoveryMode)
			// The keeper is gone too: what is in memory is enough.
			wantOnly(t, "remove", d.disk.FS().Remove("/keeper/key"), "")
			d.store.revert(good)
			d.c.Rooms().Authority.Look(t.Context())
			d.wantPhase("ready", "")
			wantOnly(t, "renew", m.renew(), "")
		})
	}
	// A coordinator that runs stays at its head, of which it may hold the only mesh CA
	// key: that a store shows an older one may be a notice that is late, or a copy that
	// lags. Nothing is decided meanwhile. Who starts at such a store does not believe it.
	t.Run("rolled back", func(t *testing.T) {
		d := testDesk(t)
		m := d.joined("a")
		old := d.store.snapshot()
		wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
		now, good := d.state(), d.store.snapshot()
		d.store.revert(old)
		for range 2 {
			d.lookAgain()
			if d.state() != now {
				t.Fatal("an older head in the store changed the state")
			}
			wantOnly(t, "renew", m.renew(), explain.HistoryInvalid)
			_, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			wantOnly(t, "token", err, explain.HistoryInvalid)
		}
		if err := d.set(poolEntries + coordinatorEntry(t, 3)); err == nil {
			t.Error("a set after a head that the store does not show was made")
		}
		d.store.revert(good)
		d.lookAgain()
		if d.state() != now {
			t.Error("the state is another one")
		}
		wantOnly(t, "renew", m.renew(), "")
		d.store.revert(old)
		d.restart()
		d.wantPhase("recovery", "history went back")
	})
}

// A set that dies anywhere leaves the old head or the new one, and a coordinator
// that comes up ready with the mesh CA key of that head.
func TestSetDiesAnywhere(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	points := []string{"set.after-seed", "set.before-swap", "set.after-swap", "adopt.begin", "adopt.before-identity"}
	for _, first := range []bool{true, false} {
		for _, point := range points {
			if !first && point == "set.after-seed" {
				continue
			}
			t.Run(fmt.Sprintf("first %v, at %s", first, point), func(t *testing.T) {
				d := newDesk(t)
				if !first {
					wantOnly(t, "first set", d.set(poolEntries), "")
				}
				d.faults.FailNext(point, 1, crash)
				err := d.set(poolEntries + coordinatorEntry(t, 2))
				if moved := strings.HasPrefix(point, "adopt") || point == "set.after-swap"; !moved &&
					!errors.Is(err, crash) {
					t.Fatalf("the set: %v", err)
				}
				d.afterCrash(t, first, strings.HasPrefix(point, "adopt") || point == "set.after-swap")
			})
		}
		// Every write of the set, lost in each way.
		for n := range 12 {
			for _, how := range losses(n) {
				t.Run(fmt.Sprintf("first %v, write %d, %d", first, n, how), func(t *testing.T) {
					d := newDesk(t)
					if !first {
						wantOnly(t, "first set", d.set(poolEntries), "")
					}
					before := d.state().Head.Hash
					lost := slices.Repeat([]lostAnswer{answered}, n)
					d.store.lose(append(lost, how)...)
					err := d.set(poolEntries + coordinatorEntry(t, 2))
					d.store.lose()
					d.c.Rooms().Authority.Look(t.Context())
					if err == nil && (d.state().Phase != authority.Ready || d.state().Head.Hash == before) {
						t.Fatal("a set was acknowledged and is not in force")
					}
					head, _, headErr := d.c.Rooms().Head.History().Head(t.Context())
					d.afterCrash(t, first, headErr == nil && head.Hash != before)
				})
			}
		}
		// The store dies for good before each write.
		for n := 0; n < 12; n += everyNth(3) {
			t.Run(fmt.Sprintf("first %v, store gone at write %d", first, n), func(t *testing.T) {
				d := newDesk(t)
				if !first {
					wantOnly(t, "first set", d.set(poolEntries), "")
				}
				before := d.state().Head.Hash
				count := 0
				d.store.intercept(func(store.Tx) {
					if count++; count > n {
						d.store.setDown(crash)
					}
				})
				err := d.set(poolEntries + coordinatorEntry(t, 2))
				d.store.intercept(nil)
				d.store.setDown(nil)
				head, _, headErr := d.c.Rooms().Head.History().Head(t.Context())
				moved := headErr == nil && head.Hash != before
				if err == nil && !moved {
					t.Fatal("a set was acknowledged and did not happen")
				}
				d.afterCrash(t, first, moved)
			})
		}
	}
}

// afterCrash restarts d, and checks that it is at the old or the new head.
func (d *desk) afterCrash(t *testing.T, first, moved bool) {
	t.Helper()
	d.restart()
	switch {
	case first && !moved:
		d.wantPhase("uninitialized", "")
		wantOnly(t, "another first set", d.set(poolEntries), "")
		d.restart()
	case moved && !first && d.state().Head.Index != 2, moved && first && d.state().Head.Index != 1, !moved && !first &&
		d.state().Head.Index != 1:
		t.Fatalf("the head is at index %d (first %v, moved %v)", d.state().Head.Index, first, moved)
	}
	d.wantPhase("ready", "")
	if s := d.state(); s.MeshCA().KeyID() != s.Head.MeshCAKey || s.Head.AuthorityEpoch != s.Head.Index {
		t.Fatalf("mesh CA %v under head %d of epoch %d", s.MeshCA().KeyID(), s.Head.Index, s.Head.AuthorityEpoch)
	}
	if !slices.Contains(d.c.Rooms().Bundle.View().Bundle.MeshKeys(), d.state().MeshKey) {
		t.Fatal("the bundle does not accept the mesh CA key in force")
	}
	m := d.joined("after")
	wantOnly(t, "renew", m.renew(), "")
	// I9: each mesh CA key under one epoch.
	epochs := make(map[identity.KeyID]uint64)
	for _, k := range d.state().Chain.MeshCAKeys() {
		if e, ok := epochs[k.Key]; ok && e != k.AuthorityEpoch {
			t.Fatalf("mesh CA key %v signs under epochs %d and %d", k.Key, e, k.AuthorityEpoch)
		}
		epochs[k.Key] = k.AuthorityEpoch
	}
}

// Two replicas set the first manifest at once. One of them wins, and the seed that
// it sealed is the one that is found after a restart: the other one's never
// overwrites it, whatever the order of their writes.
func TestTwoFirstSets(t *testing.T) {
	t.Parallel()
	for stop := range 6 {
		t.Run(fmt.Sprintf("the other comes after write %d", stop), func(t *testing.T) {
			d := newDesk(t)
			other, err := d.another("other")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			req := d.request(d.manifest(poolEntries +
				fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
					other.Rooms().Self.EnrolmentKey())))
			writes := 0
			d.store.intercept(func(store.Tx) {
				if writes++; writes == stop+1 {
					d.store.intercept(nil)
					if _, err := other.Rooms().Authority.Set(context.Background(), req, true); err != nil {
						t.Errorf("the other's set: %v", err)
					}
				}
			})
			_, err = d.c.Rooms().Authority.Set(t.Context(), req, true)
			d.store.intercept(nil)
			if writes > stop && err == nil && stop < 5 {
				t.Fatal("both won")
			}
			d.c.Rooms().Authority.Look(t.Context())
			other.Rooms().Authority.Look(t.Context())
			for name, c := range map[string]*coordinator.Coordinator{"this": d.c, "the other": other} {
				if phase, reason := c.Phase(); phase != "ready" {
					t.Fatalf("%s is in %s: %s", name, phase, reason)
				}
			}
			if a, b := d.state(), other.Rooms().Head.State(); a.Head.Hash != b.Head.Hash || a.RootPin != b.RootPin ||
				a.MeshKey != b.MeshKey {
				t.Fatal("the two replicas serve different clusters")
			}
			d.restart()
			d.wantPhase("ready", "")
		})
	}
}

// Two replicas on one store: what one does holds at the other.
func TestTwoReplicas(t *testing.T) {
	d := newDesk(t)
	other, err := d.another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	entries := poolEntries + fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
		other.Rooms().Self.EnrolmentKey())
	wantOnly(t, "set", d.set(entries), "")
	other.Rooms().Authority.Look(t.Context())
	if phase, reason := other.Phase(); phase != "ready" {
		t.Fatalf("the other replica is in %s: %s", phase, reason)
	}
	m := d.joined("a")
	here := d.c
	at := func(c *coordinator.Coordinator, f func() error) error {
		d.c = c
		defer func() { d.c = here }()
		return f()
	}
	wantOnly(t, "renew at the other", at(other, m.renew), "")

	// A replica that lags does not decide under its old manifest: it catches up
	// first, and then refuses.
	wantOnly(t, "set", d.set(entriesOf(false)+entries[len(poolEntries):]), "")
	wantOnly(t, "renew at the one that lags", at(other, m.renew), explain.RenewEntryGone)
	if other.Rooms().Head.State().Head.Hash != d.state().Head.Hash {
		t.Fatal("the other replica did not catch up")
	}
	wantOnly(t, "set", d.set(entries), "")
	other.Rooms().Authority.Look(t.Context())

	// A ban at one is a ban at the other, even before its loop looks.
	d.ban(t, identity.Data, "a")
	next, _ := newKey()
	_, err = renewOver(t.Context(), other, identity.Peer{ID: m.id, Key: keyOf(t, m.key)}, mustCSR(t, next))
	wantOnly(t, "renew at the other after a ban here", err, explain.JoinBanned)
	if err := other.Rooms().Bundle.Refresh(t.Context(), other.Rooms().Head.State(), true); err != nil {
		t.Fatal(err)
	}
	if !other.Rooms().Bundle.View().Bundle.Banned(m.id, keyOf(t, m.key)) {
		t.Fatal("the other replica does not believe the ban")
	}
	// Both compile one content for one version.
	a, b := d.c.Rooms().Bundle.View(), other.Rooms().Bundle.View()
	if a.Version != b.Version || a.ContentHash != b.ContentHash {
		t.Fatalf("versions %d and %d, content %v and %v", a.Version, b.Version, a.ContentHash, b.ContentHash)
	}
}

// A bundle that was compiled before a newer one came into force does not replace
// it, and a renewal of our own certificate takes back no ban.
func TestOlderBundleDoesNotReplaceANewerOne(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	old := d.c.Rooms().Bundle.View()
	d.ban(t, identity.Data, "a")
	if err := d.c.Rooms().Bundle.Believe(old); err != nil {
		t.Fatal(err)
	}
	d.advance(20 * time.Hour)
	if err := d.c.Rooms().Bundle.RenewIdentity(t.Context(), d.state()); err != nil {
		t.Fatal(err)
	}
	material, err := d.c.Rooms().Bundle.Source().Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*identity.Bundle{"the bundle served": d.c.Rooms().Bundle.View().Bundle,
		"the bundle of our listener": material.Bundle()} {
		if !b.Banned(m.id, keyOf(t, m.key)) {
			t.Errorf("%s does not know of the ban", name)
		}
	}
	if got := material.NotAfter(); !got.After(d.clock().Add(24 * time.Hour)) {
		t.Errorf("our own certificate ends at %v", got)
	}
}

func TestSetsThatWouldStopTheCluster(t *testing.T) {
	t.Run("renaming this coordinator", func(t *testing.T) {
		d := testDesk(t)
		m := strings.Replace(string(d.manifest(poolEntries)), "{name: coordinator-1,", "{name: renamed,", 1)
		_, err := d.c.Rooms().Authority.Set(t.Context(), d.request([]byte(m)), false)
		wantOnly(t, "set", err, explain.RequestField)
	})
	t.Run("more mesh CA keys than a bundle holds", func(t *testing.T) {
		d := testDesk(t)
		rec, err := record.Get[bundle.State](t.Context(), d.state().Records, bundle.StateKey)
		if err != nil {
			t.Fatal(err)
		}
		for i := range identity.MaxMeshKeys - 1 {
			rec.Value.MeshKeys = append(rec.Value.MeshKeys,
				bundle.MeshKey{Key: testKey(i), AuthorityEpoch: 1, AcceptUntil: d.clock().Add(time.Hour)})
		}
		rec.Value.Change++
		ch := d.state().Records.NewChange(d.state().HeadVersion)
		ch.Put(bundle.StateKey, rec.Version, rec.Value)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantOnly(t, "a set that moves authority", d.set(poolEntries+coordinatorEntry(t, 2)), explain.RateLimited)
		wantOnly(t, "a set that does not", d.set(entriesOf(false)), "")
		d.advance(time.Hour)
		wantOnly(t, "an hour later", d.set(poolEntries+coordinatorEntry(t, 2)), "")
	})
}

// After the clock jumped ahead and back the coordinator is what it was: bans are
// listed, the bundle is in date, and its own certificate too.
func TestClockThatJumps(t *testing.T) {
	for _, bans := range []bool{true, false} {
		t.Run(fmt.Sprintf("bans %v", bans), func(t *testing.T) { testClockThatJumps(t, bans) })
	}
}

func testClockThatJumps(t *testing.T, bans bool) {
	d := testDesk(t)
	var gone []*machine
	if bans {
		gone = []*machine{d.joined("a"), d.joined("b")}
		d.ban(t, identity.Data, "a")
		d.remove(t, identity.Data, "b")
	}
	for _, jump := range []time.Duration{400 * 24 * time.Hour, -400 * 24 * time.Hour} {
		d.advance(jump)
		wantOnly(t, "trust", d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true), "")
		wantOnly(t, "identity", d.c.Rooms().Bundle.RenewIdentity(t.Context(), d.state()), "")
		v := d.c.Rooms().Bundle.View()
		if age := d.clock().Sub(v.IssuedAt); age.Abs() > bundle.RefreshPause {
			t.Fatalf("after a jump of %v the bundle was issued %v ago", jump, age)
		}
		material, err := d.c.Rooms().Bundle.Source().Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if leaf := material.Chain()[0]; d.clock().Before(leaf.NotBefore) || !d.clock().Before(leaf.NotAfter) {
			t.Fatalf("after a jump of %v our certificate is valid from %v to %v, and it is %v", jump, leaf.NotBefore,
				leaf.NotAfter, d.clock())
		}
		d.joined(fmt.Sprintf("after-%d", int(jump.Hours())))
	}
	for _, m := range gone {
		if !d.c.Rooms().Bundle.View().Bundle.Banned(m.id, keyOf(t, m.key)) {
			t.Errorf("%v is not banned any more", m.id)
		}
	}
}

// A full disk under the data directory stops no set.
func TestFullDataDirectory(t *testing.T) {
	d := testDesk(t)
	d.disk.FailAt(1, os.ErrPermission)
	if err := d.set(entriesOf(false)); err != nil {
		t.Fatal(err)
	}
	d.wantPhase("ready", "")
}
