package snapshot

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fealty-io/fealty/identity"
)

func TestSignAndVerify(t *testing.T) {
	f := newFleet(t)

	s := f.signedBundle(t)
	v := f.mustVerify(t, s, Trust{Me: f.me, Incarnation: f.incarnation, ConfigRoot: public(f.root)})
	bundle, ok := v.TrustBundle()
	if !ok {
		t.Fatal("a verified trust bundle has no TrustBundle")
	}
	if diff := cmp.Diff(*f.bundleContent(), bundle, cmpopts.EquateComparable(identity.ID{})); diff != "" {
		t.Fatal(diff)
	}
	if _, ok := v.NodeBootstrap(); ok {
		t.Fatal("a trust bundle is a node bootstrap too")
	}
	if _, ok := v.Record(); ok {
		t.Fatal("a trust bundle has a record")
	}
	chain, _ := f.ca.Issue(t, f.me)
	ids, err := bundle.Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ids.Verify(chain, f.now); err != nil {
		t.Fatal(err)
	}

	v = f.mustVerify(t, f.signedBootstrap(t), f.trust())
	boot, ok := v.NodeBootstrap()
	if !ok {
		t.Fatal("a verified node bootstrap has no NodeBootstrap")
	}
	if diff := cmp.Diff(*f.bootstrapContent(), boot, cmpopts.EquateComparable(identity.ID{})); diff != "" {
		t.Fatal(diff)
	}
	if r, ok := v.Record(); !ok || r.Generation != 11 || !r.FreshUntil.After(f.now) {
		t.Fatalf("record %v, %v", r, ok)
	}
}

// The codec writes what RFC 8785 makes of a content, as another implementation
// sees it.
func TestCanonical(t *testing.T) {
	f := newFleet(t)
	record := f.record()
	statement := RootStatement{ClusterID: testCluster, ConfigRoot: public(f.root), SeedEpoch: 1, IssuedAt: f.now}
	full, increment := f.bootstrapHeader(), f.bootstrapHeader()
	increment.Base = &Base{ConfigVersion: 3, ContentHash: Digest{1}}
	odd := f.bootstrapContent()
	odd.Entry = "é\u2028\"\\\n\x01😀<&>"
	marks := mustAccept(t, Marks{}, f.bundle)
	for name, w := range map[string]walker{
		"header": &full, "increment": &increment, "bundle": f.bundleContent(), "bootstrap": f.bootstrapContent(), "odd string": odd,
		"record": &record, "root": &statement, "revocations": revocations{f.bundleContent()}, "marks": &marksFile{marks.All()},
	} {
		got, err := encode(w)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := jsontext.Value(append([]byte(nil), got...))
		if err := want.Canonicalize(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(want) != string(got) {
			t.Errorf("%s is not canonical:\n got %s\nwant %s", name, got, want)
		}
		if name == "revocations" {
			continue
		}
		if _, err := decode(string(got), w); err != nil {
			t.Errorf("%s: own bytes refused: %v", name, err)
		}
		if again, err := encode(w); err != nil || string(again) != string(got) {
			t.Errorf("%s: encoded again: %s, %v", name, again, err)
		}
	}
}
