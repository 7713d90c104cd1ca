// The tests are inside: they sign what no function of the package makes.
package trust

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

func (f *fleet) emergency() Emergency {
	return Emergency{
		ClusterID: testCluster, Root: f.ca.Root().KeyID(), Number: 1, IssuedAt: f.now, Reason: "c1 was stolen",
		ConfigKeys: []snapshot.Digest{snapshot.DigestOf(public(f.keys[0]))}, Keys: []identity.KeyID{{7}},
		Nodes: []identity.ID{mustID(identity.New(testCluster, identity.Data, "stolen"))}, Revoked: []snapshot.Revoked{{Kind: internalsnapshot.RevokedService, Name: "web"}},
	}
}

// council is a bundle whose manifest takes two of three signers.
func (f *fleet) council(tb testing.TB) snapshot.TrustBundle {
	tb.Helper()
	b, _ := f.bundleOf(tb, func(b *snapshot.TrustBundle) {
		b.Signers = snapshot.Signers{Threshold: 2}
		for _, name := range []string{"alice", "bob", "carol"} {
			b.Signers.Keys = append(b.Signers.Keys, snapshot.SignerKey{Name: name, Key: public(keyOf(name))})
		}
		slices.SortFunc(b.Signers.Keys, func(x, y snapshot.SignerKey) int { return bytes.Compare(x.Key, y.Key) })
	}).TrustBundle()
	return b
}

// signEmergency signs e, also what Encode refuses, with the keys of these names.
func signEmergency(tb testing.TB, e Emergency, signers ...string) *SignedEmergency {
	tb.Helper()
	s := &SignedEmergency{Statement: must(encode(e.walk))}
	for _, name := range signers {
		key := keyOf(name)
		sig := SignerSignature{[32]byte(public(key)), [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeEmergency, e.ClusterID, s.Statement)))}
		if err := s.add(sig); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// emergencyAttacks are statements that no node may act on.
var emergencyAttacks = []struct {
	name   string
	reason snapshot.Reason
	make   func(t *testing.T, f *fleet) *SignedEmergency
}{
	{"nobody signed", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency { return signEmergency(t, f.emergency()) }},
	{"below the threshold", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency { return signEmergency(t, f.emergency(), "alice") }},
	{"one signer twice", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		s := signEmergency(t, f.emergency(), "alice")
		s.Signatures = append(s.Signatures, s.Signatures[0])
		return s
	}},
	{"a foreign signer", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		return signEmergency(t, f.emergency(), "alice", "mallory")
	}},
	{"foreign signers alone", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		return signEmergency(t, f.emergency(), "mallory", "eve", "trudy")
	}},
	{"a signature of another statement", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Number = 2
		s := signEmergency(t, f.emergency(), "alice")
		_ = s.add(signEmergency(t, e, "bob").Signatures[0])
		return s
	}},
	{"signed as something else", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		s := signEmergency(t, f.emergency())
		for _, name := range []string{"alice", "bob"} {
			key := keyOf(name)
			_ = s.add(SignerSignature{[32]byte(public(key)), [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeRootChange, testCluster, s.Statement)))})
		}
		return s
	}},
	{"of another cluster", internalsnapshot.ReasonSignature, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.ClusterID, e.Nodes = "test.example", nil
		return signEmergency(t, e, "alice", "bob")
	}},
	{"of another cluster, signed for this one", internalsnapshot.ReasonCluster, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.ClusterID, e.Nodes = "test.example", nil
		s := &SignedEmergency{Statement: must(encode(e.walk))}
		for _, name := range []string{"alice", "bob"} {
			key := keyOf(name)
			_ = s.add(SignerSignature{[32]byte(public(key)), [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeEmergency, testCluster, s.Statement)))})
		}
		return s
	}},
	{"for a root that a reseed replaced", internalsnapshot.ReasonEpoch, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Root = identity.KeyID{3}
		return signEmergency(t, e, "alice", "bob")
	}},
	{"of a node of another cluster", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Nodes = []identity.ID{mustID(identity.New("test.example", identity.Data, "x"))}
		return signEmergency(t, e, "alice", "bob")
	}},
	{"of a coordinator", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Nodes = []identity.ID{mustID(identity.New(testCluster, identity.Coordinator, "c1"))}
		return signEmergency(t, e, "alice", "bob")
	}},
	{"of the root", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Keys = []identity.KeyID{e.Root}
		return signEmergency(t, e, "alice", "bob")
	}},
	{"of nothing", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.ConfigKeys, e.Keys, e.Nodes, e.Revoked = nil, nil, nil, nil
		return signEmergency(t, e, "alice", "bob")
	}},
	{"without a reason", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Reason = ""
		return signEmergency(t, e, "alice", "bob")
	}},
	{"that writes to the terminal", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Reason = "\x1b[2Jnothing to see"
		return signEmergency(t, e, "alice", "bob")
	}},
	{"without a number", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Number = 0
		return signEmergency(t, e, "alice", "bob")
	}},
	{"with a list out of order", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		e := f.emergency()
		e.Keys = []identity.KeyID{{8}, {7}}
		return signEmergency(t, e, "alice", "bob")
	}},
	{"with an unknown field", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		return resigned(bytes.Replace(must(encode(ptr(f.emergency()).walk)), []byte(`"config_keys":`), []byte(`"comment":"x","config_keys":`), 1))
	}},
	{"in another spelling", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		return resigned(bytes.Replace(must(encode(ptr(f.emergency()).walk)), []byte(`{"cluster_id":`), []byte(`{ "cluster_id":`), 1))
	}},
	{"of a newer schema", internalsnapshot.ReasonSchema, func(t *testing.T, f *fleet) *SignedEmergency {
		return resigned(bytes.Replace(must(encode(ptr(f.emergency()).walk)), []byte(`"schema_version":1`), []byte(`"schema_version":2`), 1))
	}},
	{"too large", internalsnapshot.ReasonLimits, func(t *testing.T, f *fleet) *SignedEmergency {
		return resigned(make([]byte, internalsnapshot.MaxEmergency+1))
	}},
	{"empty", internalsnapshot.ReasonLimits, func(t *testing.T, f *fleet) *SignedEmergency { return resigned(nil) }},
	{"with too many signatures", internalsnapshot.ReasonLimits, func(t *testing.T, f *fleet) *SignedEmergency {
		s := signEmergency(t, f.emergency(), "alice", "bob")
		s.Signatures = append(s.Signatures, make([]SignerSignature, internalsnapshot.MaxSigners)...)
		return s
	}},
	{"none", internalsnapshot.ReasonLimits, func(*testing.T, *fleet) *SignedEmergency { return nil }},
}

func ptr[T any](v T) *T { return &v }

// resigned is what two signers sign unread.
func resigned(statement []byte) *SignedEmergency {
	s := &SignedEmergency{Statement: statement}
	for _, name := range []string{"alice", "bob"} {
		key := keyOf(name)
		_ = s.add(SignerSignature{[32]byte(public(key)), [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeEmergency, testCluster, statement)))})
	}
	return s
}

func TestEmergencyAttacks(t *testing.T) {
	f := newFleet(t)
	b := f.council(t)
	for _, a := range emergencyAttacks {
		t.Run(a.name, func(t *testing.T) {
			_, err := a.make(t, f).Verify(b)
			r, ok := errors.AsType[*snapshot.RejectedError](err)
			if !ok || r.Reason != a.reason || !errors.Is(err, snapshot.ErrRejected) {
				t.Fatalf("%v, want it refused for %s", err, a.reason)
			}
		})
	}
}

func TestEmergency(t *testing.T) {
	f := newFleet(t)
	b := f.council(t)
	e := f.emergency()
	e.Keys = []identity.KeyID{{9}, {7}} // Encode sorts
	e.IssuedAt = e.IssuedAt.UTC()
	s := &SignedEmergency{Statement: must(e.Encode())}
	apart := &SignedEmergency{Statement: bytes.Clone(s.Statement)}
	for _, err := range []error{s.Sign(keyOf("alice")), s.Sign(keyOf("alice")), apart.Sign(keyOf("carol")), s.Merge(apart)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Signatures) != 2 {
		t.Fatalf("%d signatures of two signers", len(s.Signatures))
	}
	got, err := s.Verify(b)
	if err != nil {
		t.Fatal(err)
	}
	e.Keys = []identity.KeyID{{7}, {9}}
	if !bytes.Equal(must(encode(got.walk)), must(encode(e.walk))) {
		t.Errorf("%+v, want %+v", got, e)
	}
	back := must(UnmarshalEmergency(must(s.Marshal())))
	if !bytes.Equal(must(back.Marshal()), must(s.Marshal())) || back.Digest() != s.Digest() {
		t.Error("it does not come back from its file")
	}
	// A statement whose signer leaves after it was signed stays in force: who reads a kept one needs no signers.
	if _, err := DecodeEmergency(s.Statement); err != nil {
		t.Error(err)
	}
	other := f.emergency()
	other.Number = 2
	if err := s.Merge(&SignedEmergency{Statement: must(other.Encode())}); err == nil {
		t.Error("signatures of another statement were merged")
	}
	if err := (&SignedEmergency{Statement: []byte("{}")}).Sign(keyOf("alice")); err == nil {
		t.Error("a signer signed what is no statement")
	}
	long := f.emergency()
	for i := range internalsnapshot.MaxEmergencyParts {
		long.Revoked = append(long.Revoked, snapshot.Revoked{Kind: internalsnapshot.RevokedStorage, Name: fmt.Sprintf("https://%s.example/%d", strings.Repeat("x", 230), i)})
	}
	if _, err := long.Encode(); err == nil {
		t.Error("a statement above its size")
	}
}

// Any bit that is turned makes another file, which is refused.
func TestEmergencyFlips(t *testing.T) {
	f := newFleet(t)
	b := f.council(t)
	raw := must(signEmergency(t, f.emergency(), "alice", "bob").Marshal())
	for i := range raw {
		for bit := range 8 {
			bent := bytes.Clone(raw)
			bent[i] ^= 1 << bit
			s, err := UnmarshalEmergency(bent)
			if err == nil {
				_, err = s.Verify(b)
			}
			if !errors.Is(err, snapshot.ErrMalformed) && !errors.Is(err, snapshot.ErrRejected) {
				t.Fatalf("byte %d, bit %d: %v", i, bit, err)
			}
		}
	}
	for n := range raw {
		if _, err := UnmarshalEmergency(raw[:n]); !errors.Is(err, snapshot.ErrMalformed) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	if _, err := UnmarshalEmergency(append(raw, 0)); !errors.Is(err, snapshot.ErrMalformed) {
		t.Error("a byte after the end")
	}
}

// Statements add up in whatever order they come, and none takes another's place.
func TestAddEmergency(t *testing.T) {
	f := newFleet(t)
	at := func(n uint64, reason string) *Emergency {
		e := f.emergency()
		e.Number, e.Reason = n, reason
		return &e
	}
	var in []*Emergency
	for _, step := range []struct {
		name string
		e    *Emergency
		news bool
		bad  snapshot.Reason
		want int
	}{
		{"the second first", at(2, "b"), true, "", 1},
		{"then the first", at(1, "a"), true, "", 2},
		{"replayed", at(2, "b"), false, "", 2},
		{"an old one, replayed", at(1, "a"), false, "", 2},
		{"another of the same number", at(1, "c"), false, snapshot.ReasonEquivocation, 2},
		{"a later one", at(9, "d"), true, "", 3},
	} {
		out, news, err := AddEmergency(in, step.e)
		r, _ := errors.AsType[*snapshot.RejectedError](err)
		if news != step.news || len(out) != step.want || (err != nil) != (step.bad != "") || err != nil && r.Reason != step.bad {
			t.Fatalf("%s: %d in force, news %v, %v", step.name, len(out), news, err)
		}
		in = out
	}
	for n := uint64(10); len(in) < internalsnapshot.MaxEmergencies; n++ {
		in, _, _ = AddEmergency(in, at(n, "x"))
	}
	if _, _, err := AddEmergency(in, at(1000, "x")); !errors.Is(err, snapshot.ErrRejected) {
		t.Errorf("one above the limit: %v", err)
	}
	if _, news, err := AddEmergency(in, at(9, "d")); news || err != nil {
		t.Errorf("a full list refuses what is in force: %v", err)
	}
}

func FuzzEmergency(f *testing.F) {
	fl := newFleet(f)
	b := fl.council(f)
	good := signEmergency(f, fl.emergency(), "alice", "bob")
	f.Add(must(good.Marshal()))
	f.Add(must(signEmergency(f, fl.emergency(), "alice").Marshal()))
	f.Add([]byte(internalsnapshot.EmergencyMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := UnmarshalEmergency(data)
		if err != nil {
			if !errors.Is(err, snapshot.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(must(s.Marshal()), data) {
			t.Fatal("one value has two encodings")
		}
		if e, err := DecodeEmergency(s.Statement); err == nil {
			if again, err := e.Encode(); err != nil || !bytes.Equal(again, s.Statement) {
				t.Fatalf("one statement has two forms (%v)", err)
			}
		}
		if _, err := s.Verify(b); err == nil && s.Digest() != good.Digest() {
			t.Fatal("a statement that nobody signed is believed")
		}
	})
}
