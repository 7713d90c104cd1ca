package bundle_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "test.example"

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func testKey(n int) identity.KeyID { return sha256.Sum256(fmt.Appendf(nil, "key %d", n)) }

// authority returns one whose members hold certificates for ttl, under an epoch, a mesh CA
// key and the keys of a seed of its own.
func authority(t *testing.T, ttl time.Duration, epoch uint64, key int) (*bundle.Authority, keyring.Keys) {
	t.Helper()
	signer, err := manifest.NewKey(ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(fmt.Appendf(nil, `cluster: %s
seed:
  threshold: 1
  owners: [{name: host, keeper: "file:/keeper/key"}]
signers:
  threshold: 1
  keys: [{name: alice, key: "%s"}]
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%s"]}
  - {name: pool, kind: data, match: ["token:pool"], svid_ttl: %s}
degraded: {max: 10m}
`, cluster, signer, signer, ttl))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.NewSeed().Derive(make([]byte, keyring.SaltBytes))
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.Root(keys.RootCA(), cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	a := &bundle.Authority{
		Manifest: m, MeshKey: testKey(key), Root: root,
		ConfigRoot: keys.ConfigRoot, ConfigKey: keys.ConfigSigning,
	}
	a.Head.AuthorityEpoch, a.Head.Hash = epoch, history.Hash(testKey(1000*int(epoch)+key))
	return a, keys
}

// of returns the input of a state that was written at version 1.
func of(st bundle.State) bundle.Input {
	return bundle.Input{State: record.Versioned[bundle.State]{Value: st, Version: 1}}
}

// A mesh CA key is accepted from the moment it signs until the last SVID that it
// can have signed ends, and no longer.
func TestMeshKeysAreAcceptedAsLongAsNeeded(t *testing.T) {
	one, _ := authority(t, 26*time.Hour, 1, 1)
	now := start
	st, changed := one.Next(bundle.Input{}, now)
	if !changed || len(st.MeshKeys) != 1 || st.MeshKeys[0].Key != one.MeshKey {
		t.Fatalf("the first state is %+v", st)
	}
	if _, changed := one.Next(of(st), now.Add(time.Hour)); changed {
		t.Fatal("nothing happened, and the state changed")
	}
	// The same key under a manifest with longer SVIDs, and then with shorter ones.
	for _, ttl := range []time.Duration{50 * time.Hour, 26 * time.Hour} {
		next, _ := authority(t, ttl, 1, 1)
		next.Root = one.Root
		st, _ = next.Next(of(st), now)
	}
	now = now.Add(time.Hour)
	two, _ := authority(t, 26*time.Hour, 2, 2)
	two.Root = one.Root
	st, _ = two.Next(of(st), now)
	if len(st.MeshKeys) != 2 || st.MeshKeys[0].Key != two.MeshKey {
		t.Fatalf("after a change of authority: %+v", st.MeshKeys)
	}
	if want := now.Add(50 * time.Hour); !st.MeshKeys[1].AcceptUntil.Equal(want) {
		t.Fatalf("the old key is accepted until %v, want %v: its longest SVID", st.MeshKeys[1].AcceptUntil, want)
	}
	if got, changed := two.Next(of(st), now.Add(50*time.Hour-time.Second)); changed || len(got.MeshKeys) != 2 {
		t.Fatal("the old key was dropped before its last SVID ended")
	}
	got, changed := two.Next(of(st), now.Add(50*time.Hour))
	if !changed || len(got.MeshKeys) != 1 || got.MeshKeys[0].Key != two.MeshKey {
		t.Fatalf("after the last SVID ended: %+v", got.MeshKeys)
	}
	if got.Change != st.Change+1 {
		t.Fatalf("change %d after %d", got.Change, st.Change)
	}
}

// A root that another took the place of is retired until the last SVID under it
// ended.
func TestRootsAreRetiredAsLongAsNeeded(t *testing.T) {
	one, _ := authority(t, 26*time.Hour, 1, 1)
	st, _ := one.Next(bundle.Input{}, start)
	two, _ := authority(t, 26*time.Hour, 2, 2)
	two.Root = &x509.Certificate{Raw: []byte("another root")}
	now := start.Add(time.Hour)
	st, changed := two.Next(of(st), now)
	if !changed || len(st.Roots) != 2 || string(st.Roots[0].DER) != "another root" ||
		!st.Roots[0].AcceptUntil.IsZero() {
		t.Fatalf("after a reseed: %+v", st.Roots)
	}
	end := now.Add(26 * time.Hour)
	if !st.Roots[1].AcceptUntil.Equal(end) || !st.MeshKeys[1].AcceptUntil.Equal(end) {
		t.Fatalf("the old root is accepted until %v, want %v: the end of its last SVID", st.Roots[1].AcceptUntil, end)
	}
	if got, changed := two.Next(of(st), end.Add(-time.Second)); changed || len(got.Roots) != 2 {
		t.Fatal("the old root was dropped before the last SVID under it ended")
	}
	got, changed := two.Next(of(st), end)
	if !changed || len(got.Roots) != 1 || string(got.Roots[0].DER) != "another root" {
		t.Fatalf("after the last SVID ended: %+v", got.Roots)
	}
}

// Bans of keys leave the bundle some time after their certificates ended, and
// come back if the clock that said so was wrong.
func TestBannedKeysAreListedAsLongAsNeeded(t *testing.T) {
	a, _ := authority(t, 26*time.Hour, 1, 1)
	st, _ := a.Next(bundle.Input{}, start)
	in := of(st)
	in.BannedKeys = []bundle.KeyBan{
		{Key: testKey(1), CertEnd: start.Add(30 * time.Minute)},
		{Key: testKey(2), CertEnd: start.Add(9 * time.Hour)},
	}
	step := func(now time.Time, wantChange bool, wantListed int) {
		t.Helper()
		next, changed := a.Next(in, now)
		if changed != wantChange {
			t.Fatalf("at %v changed is %v, want %v", now, changed, wantChange)
		}
		in.State.Value = next
		if n := len(in.Listed()); n != wantListed {
			t.Fatalf("at %v %d keys are listed, want %d", now, n, wantListed)
		}
	}
	in.State.Value, _ = a.Next(in, start)
	step(start.Add(40*time.Minute), false, 2) // at most once an hour
	step(start.Add(bundle.SweepPause), true, 1)
	step(start.Add(bundle.SweepPause), false, 1)
	step(start.Add(365*24*time.Hour), true, 0) // a clock that jumps ahead
	step(start.Add(2*bundle.SweepPause), true, 1)
	step(start.Add(2*bundle.SweepPause), false, 1)
}

// During a rotation the two newest keys that are in date sign.
func TestSigners(t *testing.T) {
	a, _ := authority(t, time.Hour, 1, 1)
	key := func(n uint32, from, until time.Duration) bundle.ConfigKey {
		return bundle.ConfigKey{Number: n, NotBefore: start.Add(from), NotAfter: start.Add(until)}
	}
	gone := key(2, -time.Hour, time.Hour)
	gone.RevokedAt = start
	for _, tt := range []struct {
		name string
		keys []bundle.ConfigKey
		want []uint32
	}{
		{"one", []bundle.ConfigKey{key(1, -time.Hour, time.Hour)}, []uint32{1}},
		{"rotation", []bundle.ConfigKey{key(1, -time.Hour, time.Hour), key(2, -time.Minute, time.Hour)},
			[]uint32{2, 1}},
		{"not yet", []bundle.ConfigKey{key(1, -time.Hour, time.Hour), key(2, time.Second, time.Hour)}, []uint32{1}},
		{"over", []bundle.ConfigKey{key(1, -time.Hour, 0), key(2, 0, time.Hour)}, []uint32{2}},
		{"revoked", []bundle.ConfigKey{key(1, -time.Hour, time.Hour), gone}, []uint32{1}},
		{"three", []bundle.ConfigKey{key(1, -time.Hour, time.Hour), key(2, -time.Hour, time.Hour),
			key(3, -time.Hour, time.Hour)}, []uint32{3, 2}},
	} {
		view := &bundle.View{ConfigKeys: tt.keys}
		var got, want []string
		for _, k := range view.Signers(a, start) {
			got = append(got, internalsnapshot.KeyIDOf(k.Public().(ed25519.PublicKey)))
		}
		for _, n := range tt.want {
			want = append(want, a.KeyID(n))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
}

// Verifiers are told of a key before it signs, and until what it signed has ended; of a revoked one
// never.
func TestVerifierKeys(t *testing.T) {
	a, keys := authority(t, time.Hour, 1, 1)
	a.TokenKey = keys.TokenSigning
	st, _ := a.Next(of(bundle.State{}), start)
	want := func(when time.Duration, numbers ...uint32) (until time.Time) {
		t.Helper()
		now := start.Add(when)
		got, until, err := st.VerifierKeys(a, now)
		if err != nil {
			t.Fatal(err)
		}
		var ids, wanted []string
		for _, k := range got {
			ids = append(ids, k.ID)
		}
		for _, n := range numbers {
			der, err := x509.MarshalPKIXPublicKey(a.TokenKey(n).Public())
			if err != nil {
				t.Fatal(err)
			}
			wanted = append(wanted, jwtsvid.IDOf(der))
		}
		if !slices.Equal(ids, wanted) {
			t.Errorf("after %v: %v, want %v, of %v", when, ids, wanted, numbers)
		}
		return until
	}
	rotate := func(when time.Duration) {
		t.Helper()
		if err := st.Rotate(a, 1, bundle.Rotation{StartedAt: start.Add(when)}); err != nil {
			t.Fatal(err)
		}
	}
	revoke := func(when time.Duration, number uint32) error {
		_, err := st.RevokeKey(a, func(key ed25519.PublicKey) bool { return key.Equal(a.PublicKey(number)) },
			start.Add(when), "admin/alice", "stolen", bundle.ForBans)
		return err
	}
	if until := want(0, 1, 2); !until.IsZero() {
		t.Errorf("until %v", until)
	}
	rotate(time.Minute)
	want(time.Minute, 1, 2, 3)
	st.End(bundle.EndedConfirmed, nil, start.Add(2*time.Minute))
	if until := want(2*time.Minute, 1, 2, 3); !until.Equal(start.Add(2*time.Minute + bundle.LeftFor)) {
		t.Errorf("until %v", until)
	}
	rotate(3 * time.Minute)
	st.End(bundle.EndedDeadline, nil, start.Add(4*time.Minute))
	want(4*time.Minute, 1, 2, 3, 4)
	want(2*time.Minute+bundle.LeftFor-1, 1, 2, 3, 4)
	if until := want(2*time.Minute+bundle.LeftFor, 2, 3, 4); !until.Equal(start.Add(4*time.Minute + bundle.LeftFor)) {
		t.Errorf("until %v", until)
	}
	if err := revoke(5*time.Minute, 1); err != nil {
		t.Error(err)
	}
	want(5*time.Minute, 2, 3, 4)
	if err := revoke(5*time.Minute, 1); !errors.Is(err, bundle.ErrNoSuchKey) {
		t.Error(err)
	}
	if err := revoke(6*time.Minute, 3); err != nil {
		t.Fatal(err)
	}
	want(6*time.Minute, 2, 4, 5)
	a.Head.SeedEpoch = 7
	st.SeedEpoch = 6
	st, _ = a.Next(of(st), start.Add(7*time.Minute))
	want(7*time.Minute, 4, 5)
	// However often the key is rotated, what is told stays bounded.
	for range 100 {
		rotate(8 * time.Minute)
		st.End(bundle.EndedConfirmed, nil, start.Add(8*time.Minute))
	}
	if got, _, err := st.VerifierKeys(a, start.Add(9*time.Minute)); err != nil || len(got) != 18 {
		t.Errorf("%d keys, %v", len(got), err)
	}
}

// An authority opens again what it signed, and no other one does; two coordinators compile
// equal bytes, in whatever order they read the bans.
func TestSign(t *testing.T) {
	a, _ := authority(t, 26*time.Hour, 3, 1)
	st, _ := a.Next(bundle.Input{}, start)
	in := of(st)
	in.BannedKeys = []bundle.KeyBan{
		{Key: testKey(7), CertEnd: start.Add(time.Hour)}, {Key: testKey(8), CertEnd: start.Add(time.Hour)},
	}
	turned := in
	turned.BannedKeys = slices.Clone(in.BannedKeys)
	slices.Reverse(turned.BannedKeys)
	var signed [][]byte
	for _, in := range []bundle.Input{in, turned} {
		view, err := a.Sign(in, start)
		if err != nil {
			t.Fatal(err)
		}
		if view.Version != 1 || view.Epoch != 3 || !view.IssuedAt.Equal(start) {
			t.Errorf("version %d of epoch %d, issued at %v", view.Version, view.Epoch, view.IssuedAt)
		}
		signed = append(signed, view.Signed)
	}
	if !bytes.Equal(signed[0], signed[1]) {
		t.Error("two coordinators made two bundles of the same")
	}
	content, header, err := a.Open(signed[0])
	if err != nil || header.ConfigVersion != 1 || len(content.BannedKeys) != 2 {
		t.Fatalf("it opens as version %d with %d banned keys: %v", header.ConfigVersion, len(content.BannedKeys), err)
	}
	again, err := a.Reopen(signed[0])
	if err != nil || again.Version != 1 || again.Epoch != 3 || again.Revocations == (snapshot.Digest{}) {
		t.Errorf("it is reopened as %+v: %v", again, err)
	}
	other, _ := authority(t, 26*time.Hour, 3, 1)
	if _, _, err := other.Open(signed[0]); !errors.Is(err, snapshot.ErrRejected) {
		t.Errorf("under another seed it opens: %v", err)
	}
}

// Bans that are gone from the store are noticed; where there is no state there is nothing
// to compare.
func TestWhole(t *testing.T) {
	a, _ := authority(t, time.Hour, 1, 1)
	in := of(bundle.State{})
	in.BannedKeys = []bundle.KeyBan{{Key: testKey(1), CertEnd: start}}
	in.State.Value, _ = a.Next(in, start)
	if err := in.Whole(); err != nil {
		t.Errorf("with every ban: %v", err)
	}
	in.BannedKeys[0].Key = testKey(2)
	if err := in.Whole(); !errors.Is(err, store.ErrForged) {
		t.Errorf("with another ban: %v", err)
	}
	in.BannedKeys = nil
	if err := in.Whole(); !errors.Is(err, store.ErrForged) {
		t.Errorf("without it: %v", err)
	}
	if err := (bundle.Input{}).Whole(); err != nil {
		t.Errorf("without a state: %v", err)
	}
}

// The handles of an authority sign, and show nothing; they end with the keys.
func TestHandles(t *testing.T) {
	a, keys := authority(t, time.Hour, 1, 1)
	for _, signer := range []keyring.Signer{a.ConfigRoot(), a.ConfigKey(1)} {
		if shown := fmt.Sprintf("%v %+v %#v %x", signer, signer, signer, signer); strings.Count(shown, "hidden") != 4 {
			t.Errorf("a handle shows %s", shown)
		}
	}
	keys.Wipe()
	for name, use := range map[string]func(){
		"config root": func() { a.ConfigRoot() }, "config key": func() { a.ConfigKey(1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("the %s key is used after it was wiped", name)
				}
			}()
			use()
		}()
	}
}
