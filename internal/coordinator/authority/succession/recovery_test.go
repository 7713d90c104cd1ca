package succession_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

func TestRestartWithKeeper(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	before := d.State()
	version := d.C.Parts().Bundle.View().Version
	d.Restart()
	coordinatortest.WantPhase(d, "ready", "")
	after := d.State()
	if after.Head.Hash != before.Head.Hash || after.Head.AuthorityEpoch != 2 || after.RootPin != before.RootPin ||
		after.MeshKey != before.MeshKey {
		t.Fatalf("head %v, epoch %d, root %v, mesh CA %v; before %v, %d, %v, %v", after.Head.Hash,
			after.Head.AuthorityEpoch, after.RootPin, after.MeshKey,
			before.Head.Hash, before.Head.AuthorityEpoch, before.RootPin, before.MeshKey)
	}
	if got := d.C.Parts().Bundle.View().Version; got != version {
		t.Fatalf("a restart moved the trust bundle from version %d to %d", version, got)
	}
	// Its SVID is of the epoch before.
	coordinatortest.WantOnly(t, "renew", m.Renew(), "")
}

// An obstacle between a coordinator and its keys or its history is recovery mode
// with a reason. It serves nothing then, and goes on by itself when it is mended.
func TestWhatKeepsACoordinatorFromItsState(t *testing.T) {
	t.Parallel()
	key := func(d *coordinatortest.Desk, prefix string) string {
		t.Helper()
		keys := d.Store.Keys(prefix)
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
		spoil  func(d *coordinatortest.Desk)
		reason string
	}{
		{"keeper's key file missing", func(d *coordinatortest.Desk) {
			coordinatortest.WantOnly(t, "remove",
				d.Disk.FS().Remove("/keeper/key"), "")
		},
			"/keeper/key is missing"},
		{"keeper's key file readable by others", func(d *coordinatortest.Desk) { d.Disk.Chmod("/keeper/key", 0o644) },
			"keeper"},
		{"keeper's key file of another key", func(d *coordinatortest.Desk) {
			d.Disk.Put("/keeper/key", []byte("fealty-keeper-key-v1 "+strings.Repeat("A", 43)+"=\n"))
		}, "sealed under"},
		{"keeper's key file garbage", func(d *coordinatortest.Desk) { d.Disk.Put("/keeper/key", []byte("garbage")) },
			"no key file"},
		{"sealed seed altered", func(d *coordinatortest.Desk) {
			d.Store.Alter(key(d, sealed.Prefix+"seed/"),
				flip(-5))
		},
			"keeper host"},
		{"sealed seed missing", func(d *coordinatortest.Desk) { d.Store.Alter(key(d, sealed.Prefix+"seed/"), gone) },
			"keeper host"},
		{"sealed mesh CA key altered",
			func(d *coordinatortest.Desk) {
				d.Store.Alter(key(d, sealed.Mesh(d.State().Head.Hash).Under()), flip(-5))
			}, "keeper host"},
		{"sealed mesh CA key of another head", func(d *coordinatortest.Desk) {
			old := key(d, sealed.Prefix+"mesh/")
			e, err := d.Store.Get(t.Context(), old)
			coordinatortest.WantOnly(t, "get", err, "")
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t,
				2)), "")
			d.Store.Alter(key(d, sealed.Mesh(d.State().Head.Hash).Under()), func([]byte) []byte { return e.Value })
		}, "sealed for head"},
		{"sealed mesh CA key missing",
			func(d *coordinatortest.Desk) { d.Store.Alter(key(d, sealed.Mesh(d.State().Head.Hash).Under()), gone) },
			"sealed mesh CA key"},
		{"root certificate altered", func(d *coordinatortest.Desk) {
			d.Store.Alter(key(d, sealed.Prefix+"root/"),
				flip(-1))
		},
			"root certificate"},
		{"root certificate missing", func(d *coordinatortest.Desk) {
			d.Store.Alter(key(d, sealed.Prefix+"root/"),
				gone)
		},
			"root certificate"},
		{"root certificate of another cluster", func(d *coordinatortest.Desk) {
			other := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
			d.Store.Alter(key(d, sealed.Prefix+"root/"), func([]byte) []byte { return other.State().Root.Raw })
		}, "root certificate is not that of the seed"},
		{"head record altered", func(d *coordinatortest.Desk) { d.Store.Alter(history.HeadKey, flip(-3)) },
			"malformed"},
		{"head record missing", func(d *coordinatortest.Desk) { d.Store.Alter(history.HeadKey, gone) },
			"another store, or it was emptied"},
		{"head record of another cluster", func(d *coordinatortest.Desk) {
			other := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
			for _, k := range append(other.Store.Keys("history/blob/"), history.HeadKey) {
				e, err := other.Store.Get(t.Context(), k)
				coordinatortest.WantOnly(t, "get", err, "")
				if !d.Store.Alter(k, func([]byte) []byte { return e.Value }) {
					_, err = d.Store.CompareAndSwap(t.Context(), k, 0, e.Value)
					coordinatortest.WantOnly(t, "put", err, "")
				}
			}
		}, "keeper"},
		{"transition altered", func(d *coordinatortest.Desk) {
			d.Store.Alter(history.BlobKey(d.State().Head.Hash),
				flip(20))
		},
			"was altered"},
		{"transition missing", func(d *coordinatortest.Desk) {
			d.Store.Alter(history.BlobKey(d.State().Head.Hash),
				gone)
		},
			"is missing"},
		{"manifest altered", func(d *coordinatortest.Desk) {
			d.Store.Alter(history.BlobKey(d.State().Manifest.Hash()),
				flip(20))
		},
			"was altered"},
		{"trust state altered", func(d *coordinatortest.Desk) { d.Store.Alter(bundle.StateKey, flip(-1)) },
			"trust state"},
		{"a ban altered", func(d *coordinatortest.Desk) { d.Store.Alter(key(d, record.BanIDPrefix), flip(-1)) },
			"trust state"},
		{"its memory of the head altered",
			func(d *coordinatortest.Desk) {
				d.Disk.Put("/coordinator/"+authority.MarkFile,
					[]byte("{"))
			}, authority.MarkFile},
		{"store rolled back by one set", func(d *coordinatortest.Desk) {
			before := d.Store.Snapshot()
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t,
				2)), "")
			d.Store.Revert(before)
		}, "history went back"},
		{"store forked", func(d *coordinatortest.Desk) {
			before := d.Store.Snapshot()
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t,
				2)), "")
			d.Store.Revert(before)
			// The same disk, less its memory of the head, makes another child.
			seen, err := d.Disk.FS().ReadFile("/coordinator/"+authority.MarkFile, authority.MaxMarkFile)
			coordinatortest.WantOnly(t, "read", err, "")
			coordinatortest.Forgets(d, authority.MarkFile, storeguard.StoreSeenFile, storeguard.TrustSeenFile)
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t,
				3)), "")
			d.Disk.Put("/coordinator/"+authority.MarkFile, seen)
		}, "history was forked"},
		{"its own enrolment key lost", func(d *coordinatortest.Desk) {
			coordinatortest.WantOnly(t, "remove", d.Disk.FS().Remove("/coordinator/"+authority.EnrolmentKeyFile), "")
		}, "does not admit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m := d.Joined("a")
			coordinatortest.BanAt(d, t, identity.Data, "z")
			tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
			good := d.Store.Snapshot()
			tc.spoil(d)
			spoiled := d.Store.Snapshot()
			d.Restart()
			coordinatortest.WantPhase(d, "recovery", tc.reason)
			coordinatortest.WantOnly(t, "join", d.Machine().Join(identity.Data, proof.NewTokenProver(tok)),
				errcode.RecoveryMode)
			next, _ := coordinatortest.NewKey()
			_, err := coordinatortest.RenewOver(t.Context(), d.C, identity.Peer{ID: m.ID, Leaf: m.Leaf,
				Key: coordinatortest.KeyOf(t, m.Key)},
				coordinatortest.MustCSR(t, next))
			coordinatortest.WantOnly(t, "renew", err, errcode.RecoveryMode)
			if s := errcode.Of(err); strings.Contains(s.Error(), "/keeper") || strings.Contains(s.Error(), tc.reason) {
				t.Errorf("a caller is told of our files: %v", s)
			}
			_, err = d.C.Parts().Moves.Manifests.Set(t.Context(),
				&fealtyv1.SetManifestRequest{Manifest: d.Manifest(coordinatortest.PoolEntries)},
				true)
			if !errors.Is(err, errcode.RecoveryMode) && !errors.Is(err, errcode.ManifestLeavesOut) {
				t.Errorf("a set in recovery mode: %v", err)
			}
			if strings.HasPrefix(tc.name, "sealed mesh") {
				// The seed opens, and nobody else is there to have the key: a new one is made.
				head := d.State().Ready()
				d.LookAgain()
				coordinatortest.WantPhase(d, "ready", "")
				if s := d.State(); head != nil || s.Head.Kind != history.KindRekey || s.Head.AuthorityEpoch < 2 {
					t.Errorf("it came back at %+v", s.Head)
				}
				coordinatortest.WantOneKeyPerEpoch(t, d)
				coordinatortest.WantOnly(t, "renew afterwards", m.Renew(), "")
				d.Restart()
				coordinatortest.WantPhase(d, "ready", "")
				return
			}
			// Trying again does not change the answer, and writes nothing.
			d.LookAgain()
			coordinatortest.WantPhase(d, "recovery", tc.reason)
			for k, e := range d.Store.Snapshot() {
				if e.Version != spoiled[k].Version {
					t.Errorf("%s was written in recovery mode", k)
				}
			}
			if strings.Contains(tc.name, "store") || strings.Contains(tc.name, "its ") {
				return // nothing that a repair of single records mends
			}
			d.Store.Revert(good)
			if strings.HasPrefix(tc.name, "keeper") {
				return
			}
			d.LookAgain()
			coordinatortest.WantPhase(d, "ready", "")
			coordinatortest.WantOnly(t, "renew afterwards", m.Renew(), "")
		})
	}
}

// The same harm to a store under a coordinator that runs: it is noticed, and what
// it still holds in memory brings it back when the store is mended.
func TestHarmToTheStoreOfARunningCoordinator(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(d *coordinatortest.Desk)
	}{
		{"head vanishes", func(d *coordinatortest.Desk) {
			d.Store.Alter(history.HeadKey,
				func([]byte) []byte { return nil })
		}},
		{"head altered in place",
			func(d *coordinatortest.Desk) {
				d.Store.Alter(history.HeadKey, func(v []byte) []byte { v[len(v)-3] ^= 1; return v })
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m := d.Joined("a")
			good := d.Store.Snapshot()
			tc.spoil(d)
			d.C.Parts().Moves.Succession.Look(t.Context())
			coordinatortest.WantPhase(d, "recovery", "")
			coordinatortest.WantOnly(t, "renew", m.Renew(), errcode.RecoveryMode)
			// The keeper is gone too: what is in memory is enough.
			coordinatortest.WantOnly(t, "remove", d.Disk.FS().Remove("/keeper/key"), "")
			d.Store.Revert(good)
			d.C.Parts().Moves.Succession.Look(t.Context())
			coordinatortest.WantPhase(d, "ready", "")
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
		})
	}
	// A coordinator that runs stays at its head, of which it may hold the only mesh CA
	// key: that a store shows an older one may be a notice that is late, or a copy that
	// lags. Nothing is decided meanwhile. A coordinator that starts at such a store does
	// not believe it.
	t.Run("rolled back", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		m := d.Joined("a")
		old := d.Store.Snapshot()
		coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)),
			"")
		now, good := d.State(), d.Store.Snapshot()
		d.Store.Revert(old)
		for range 2 {
			d.LookAgain()
			if d.State() != now {
				t.Fatal("an older head in the store changed the state")
			}
			coordinatortest.WantOnly(t, "renew", m.Renew(), errcode.HistoryInvalid)
			_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
				d.C.Parts().Admission.RegisterServices).CreateToken(
				t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			coordinatortest.WantOnly(t, "token", err, errcode.HistoryInvalid)
		}
		if err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 3)); err == nil {
			t.Error("a set after a head that the store does not show was made")
		}
		d.Store.Revert(good)
		d.LookAgain()
		if d.State() != now {
			t.Error("the state is another one")
		}
		coordinatortest.WantOnly(t, "renew", m.Renew(), "")
		d.Store.Revert(old)
		d.Restart()
		coordinatortest.WantPhase(d, "recovery", "history went back")
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
				d := coordinatortest.NewDesk(t)
				if !first {
					coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
				}
				d.Faults.FailNext(point, 1, crash)
				err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 2))
				if moved := strings.HasPrefix(point, "adopt") || point == "set.after-swap"; !moved &&
					!errors.Is(err, crash) {
					t.Fatalf("the set: %v", err)
				}
				afterCrash(d, t, first, strings.HasPrefix(point, "adopt") || point == "set.after-swap")
			})
		}
		// Every write of the set, lost in each way.
		for n := range 12 {
			for _, how := range coordinatortest.Losses() {
				t.Run(fmt.Sprintf("first %v, write %d, %d", first, n, how), func(t *testing.T) {
					d := coordinatortest.NewDesk(t)
					if !first {
						coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
					}
					before := d.State().Head.Hash
					lost := slices.Repeat([]coordinatortest.LostAnswer{coordinatortest.Answered}, n)
					d.Store.Lose(append(lost, how)...)
					err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 2))
					d.Store.Lose()
					d.C.Parts().Moves.Succession.Look(t.Context())
					if err == nil && (d.State().Phase != authority.Ready || d.State().Head.Hash == before) {
						t.Fatal("a set was acknowledged and is not in force")
					}
					head, _, headErr := d.C.Parts().Head.History().Head(t.Context())
					afterCrash(d, t, first, headErr == nil && head.Hash != before)
				})
			}
		}
		// The store dies for good before each write.
		for n := range 12 {
			t.Run(fmt.Sprintf("first %v, store gone at write %d", first, n), func(t *testing.T) {
				d := coordinatortest.NewDesk(t)
				if !first {
					coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
				}
				before := d.State().Head.Hash
				count := 0
				d.Store.Intercept(func(store.Tx) {
					if count++; count > n {
						d.Store.SetDown(crash)
					}
				})
				err := d.Set(coordinatortest.PoolEntries + coordinatortest.CoordinatorEntry(t, 2))
				d.Store.Intercept(nil)
				d.Store.SetDown(nil)
				head, _, headErr := d.C.Parts().Head.History().Head(t.Context())
				moved := headErr == nil && head.Hash != before
				if err == nil && !moved {
					t.Fatal("a set was acknowledged and did not happen")
				}
				afterCrash(d, t, first, moved)
			})
		}
	}
}

// afterCrash restarts d, and checks that it is at the old or the new head.
func afterCrash(d *coordinatortest.Desk, t *testing.T, first, moved bool) {
	t.Helper()
	d.Restart()
	switch {
	case first && !moved:
		coordinatortest.WantPhase(d, "uninitialized", "")
		coordinatortest.WantOnly(t, "another first set", d.Set(coordinatortest.PoolEntries), "")
		d.Restart()
	case moved && !first && d.State().Head.Index != 2, moved && first && d.State().Head.Index != 1, !moved && !first &&
		d.State().Head.Index != 1:
		t.Fatalf("the head is at index %d (first %v, moved %v)", d.State().Head.Index, first, moved)
	}
	coordinatortest.WantPhase(d, "ready", "")
	if s := d.State(); s.MeshCA().KeyID() != s.Head.MeshCAKey || s.Head.AuthorityEpoch != s.Head.Index {
		t.Fatalf("mesh CA %v under head %d of epoch %d", s.MeshCA().KeyID(), s.Head.Index, s.Head.AuthorityEpoch)
	}
	if !slices.Contains(d.C.Parts().Bundle.View().Bundle.MeshKeys(), d.State().MeshKey) {
		t.Fatal("the bundle does not accept the mesh CA key in force")
	}
	m := d.Joined("after")
	coordinatortest.WantOnly(t, "renew", m.Renew(), "")
	// I9: each mesh CA key under one epoch.
	epochs := make(map[identity.KeyID]uint64)
	for _, k := range d.State().Chain.MeshCAKeys() {
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
			d := coordinatortest.NewDesk(t)
			other, err := d.Another("other")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			req := d.Request(d.Manifest(coordinatortest.PoolEntries +
				fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
					other.Parts().Self.EnrolmentKey())))
			writes := 0
			d.Store.Intercept(func(store.Tx) {
				if writes++; writes == stop+1 {
					d.Store.Intercept(nil)
					if _, err := other.Parts().Moves.Manifests.Set(context.Background(), req, true); err != nil {
						t.Errorf("the other's set: %v", err)
					}
				}
			})
			_, err = d.C.Parts().Moves.Manifests.Set(t.Context(), req, true)
			d.Store.Intercept(nil)
			if writes > stop && err == nil && stop < 5 {
				t.Fatal("both won")
			}
			d.C.Parts().Moves.Succession.Look(t.Context())
			other.Parts().Moves.Succession.Look(t.Context())
			for name, c := range map[string]*coordinator.Coordinator{"this": d.C, "the other": other} {
				if phase, reason := c.Phase(); phase != "ready" {
					t.Fatalf("%s is in %s: %s", name, phase, reason)
				}
			}
			if a, b := d.State(), other.Parts().Head.State(); a.Head.Hash != b.Head.Hash || a.RootPin != b.RootPin ||
				a.MeshKey != b.MeshKey {
				t.Fatal("the two replicas serve different clusters")
			}
			d.Restart()
			coordinatortest.WantPhase(d, "ready", "")
		})
	}
}

// A full disk under the data directory stops no set.
func TestFullDataDirectory(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Disk.FailAt(1, os.ErrPermission)
	if err := d.Set(coordinatortest.EntriesOf(false)); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantPhase(d, "ready", "")
}
