// The tests are inside: they sign what no function of the package makes.
package trust

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// change is a change of root that follows the fleet's active bundle.
func (f *fleet) change() RootChange {
	return RootChange{
		ClusterID: testCluster, Index: 5, Previous: snapshot.Digest{4}, Manifest: snapshot.Digest{5}, AuthorityEpoch: 4, SeedEpoch: 2,
		PreviousRoot: f.ca.Root().KeyID(), Root: identity.KeyID{2}, ConfigRoot: public(keyOf("config root 2")), TransactionKey: public(keyOf("transaction 2")),
	}
}

// signChange signs r with the keys of these names.
func signChange(tb testing.TB, r RootChange, signers ...string) *SignedRootChange {
	tb.Helper()
	change, err := encode(r.walk) // also what Encode refuses
	if err != nil {
		tb.Fatal(err)
	}
	s := &SignedRootChange{Change: change}
	for _, name := range signers {
		key := keyOf(name)
		s.Signatures = append(s.Signatures, SignerSignature{[32]byte(public(key)), [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeRootChange, r.ClusterID, change)))})
	}
	return s
}

func TestVerifyRootChanges(t *testing.T) {
	f := newFleet(t)
	pin := f.ca.Root().KeyID()
	two := f.bundleOf(t, func(b *snapshot.TrustBundle) {
		b.Signers = snapshot.Signers{Threshold: 2, Keys: []snapshot.SignerKey{{Name: "alice", Key: public(keyOf("alice"))}, {Name: "bob", Key: public(keyOf("bob"))}}}
		slices.SortFunc(b.Signers.Keys, func(x, y snapshot.SignerKey) int { return bytes.Compare(x.Key, y.Key) })
	})
	first := f.change()
	second := first
	second.Index, second.Previous, second.AuthorityEpoch, second.SeedEpoch = 9, snapshot.Digest{8}, 6, 3
	second.PreviousRoot, second.Root = first.Root, identity.KeyID{3}
	with := func(edit func(*RootChange)) RootChange { r := first; edit(&r); return r }
	altered := signChange(t, first, "alice")
	altered.Change = bytes.Replace(altered.Change, []byte(`"index":"5"`), []byte(`"index":"6"`), 1)
	forOther := signChange(t, with(func(r *RootChange) { r.ClusterID = "other.example" }), "alice")
	for _, tc := range []struct {
		name    string
		bundle  *snapshot.Verified
		changes []*SignedRootChange
		want    identity.KeyID // zero: refused
	}{
		{"one", f.bundle, []*SignedRootChange{signChange(t, first, "alice")}, first.Root},
		{"two in a row", f.bundle, []*SignedRootChange{signChange(t, first, "alice"), signChange(t, second, "alice")}, second.Root},
		{"after one that others signed, of before", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.PreviousRoot = identity.KeyID{9} }), "carol"), signChange(t, first, "alice")}, first.Root},
		{"the second not signed", f.bundle, []*SignedRootChange{signChange(t, first, "alice"), signChange(t, second)}, first.Root},
		{"with a stranger's signature besides", f.bundle, []*SignedRootChange{signChange(t, first, "mallory", "alice")}, first.Root},
		{"both of two", two, []*SignedRootChange{signChange(t, first, "bob", "alice")}, first.Root},

		{"none", f.bundle, nil, identity.KeyID{}},
		{"nobody signed", f.bundle, []*SignedRootChange{signChange(t, first)}, identity.KeyID{}},
		{"a stranger signed", f.bundle, []*SignedRootChange{signChange(t, first, "mallory")}, identity.KeyID{}},
		{"the config root key signed", f.bundle, []*SignedRootChange{signChange(t, first, "config root")}, identity.KeyID{}},
		{"one of two", two, []*SignedRootChange{signChange(t, first, "alice")}, identity.KeyID{}},
		{"one of two, twice", two, []*SignedRootChange{signChange(t, first, "alice", "alice")}, identity.KeyID{}},
		{"altered", f.bundle, []*SignedRootChange{altered}, identity.KeyID{}},
		{"of another cluster", f.bundle, []*SignedRootChange{forOther}, identity.KeyID{}},
		{"of another cluster, signed for this one", f.bundle, []*SignedRootChange{{Change: forOther.Change, Signatures: []SignerSignature{{
			[32]byte(public(keyOf("alice"))), [64]byte(ed25519.Sign(keyOf("alice"), internalsnapshot.PAE(internalsnapshot.TypeRootChange, testCluster, forOther.Change)))}}}}, identity.KeyID{}},
		{"from another root", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.PreviousRoot = identity.KeyID{9} }), "alice")}, identity.KeyID{}},
		{"to the same root", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.Root = r.PreviousRoot }), "alice")}, identity.KeyID{}},
		{"signed and never made: its place is taken", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.Index = 4 }), "alice")}, identity.KeyID{}},
		{"after another transition", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.Previous = snapshot.Digest{44} }), "alice")}, identity.KeyID{}},
		{"of an epoch that was", f.bundle, []*SignedRootChange{signChange(t, with(func(r *RootChange) { r.AuthorityEpoch = 3 }), "alice")}, identity.KeyID{}},
		{"backwards", f.bundle, []*SignedRootChange{signChange(t, second, "alice"), signChange(t, first)}, identity.KeyID{}},
		{"the second of the same seed", f.bundle, []*SignedRootChange{signChange(t, first, "alice"), signChange(t, func() RootChange { r := second; r.SeedEpoch = 2; return r }(), "alice")}, identity.KeyID{}},
		{"nil", f.bundle, []*SignedRootChange{nil}, identity.KeyID{}},
		{"too many", f.bundle, slices.Repeat([]*SignedRootChange{signChange(t, first, "alice")}, internalsnapshot.MaxRootChanges+1), identity.KeyID{}},
		{"endless", f.bundle, []*SignedRootChange{{Change: make([]byte, internalsnapshot.MaxRecord+1)}}, identity.KeyID{}},
	} {
		r, err := VerifyRootChanges(tc.changes, tc.bundle, pin)
		switch {
		case tc.want.IsZero() && (!errors.Is(err, snapshot.ErrRejected) || !r.Root.IsZero()):
			t.Errorf("%s: %+v, %v, want it refused", tc.name, r, err)
		case !tc.want.IsZero() && (err != nil || r.Root != tc.want):
			t.Errorf("%s: %s, %v, want %s", tc.name, r.Root, err, tc.want)
		}
	}
}

func FuzzUnmarshalRootChange(f *testing.F) {
	fleet := newFleet(f)
	good, err := signChange(f, fleet.change(), "alice", "bob").Marshal()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, good[:len(good)-1], good[:12], []byte(internalsnapshot.ChangeMagic), nil, append(bytes.Clone(good), 0)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := UnmarshalRootChange(data)
		if err != nil {
			if !errors.Is(err, snapshot.ErrMalformed) {
				t.Fatalf("%v does not match snapshot.ErrMalformed", err)
			}
			return
		}
		again, err := s.Marshal()
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%x became %x, %v", data, again, err)
		}
		r, err := VerifyRootChanges([]*SignedRootChange{s}, fleet.bundle, fleet.ca.Root().KeyID())
		if err == nil && !bytes.Equal(data, good) && r.Root != fleet.change().Root {
			t.Fatalf("%x leads to %s", data, r.Root)
		}
		if d, err := DecodeRootChange(s.Change); err == nil {
			if encoded, err := d.Encode(); err != nil || !bytes.Equal(encoded, s.Change) {
				t.Fatalf("%s became %s, %v", s.Change, encoded, err)
			}
		}
	})
}
