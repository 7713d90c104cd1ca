package snapshot

import (
	"bytes"
	"crypto"
	"errors"
	"testing"
)

// Unmarshal takes only what Marshal makes.
func FuzzUnmarshal(f *testing.F) {
	fleet := newFleet(f)
	f.Add(must(fleet.signedBundle(f).Marshal()))
	f.Add(must(fleet.signedBootstrap(f).Marshal()))
	f.Add([]byte(signedMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Unmarshal(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if again, err := s.Marshal(); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("encodes again as %x, %v", again, err)
		}
	})
}

// Verify survives any header, record and content that a trusted key signed, and
// what it accepts is canonical.
func FuzzVerify(f *testing.F) {
	fleet := newFleet(f)
	boot, bundle := fleet.signedBootstrap(f), fleet.signedBundle(f)
	f.Add(boot.Header, boot.Content, []byte(nil), false)
	f.Add(boot.Header, boot.Content, boot.Publication.Record, false)
	f.Add(bundle.Header, bundle.Content, []byte(nil), true)
	runtime := must(Compose(fleet.bootstrapHeader(), fleet.runtimeContent()))
	f.Add(runtime.HeaderBytes(), runtime.ContentBytes(), []byte(nil), false)
	trust := fleet.trust()
	f.Fuzz(func(t *testing.T, header, content, record []byte, byRoot bool) {
		g := &forge{record: fleet.record(), cluster: testCluster, root: byRoot, keys: []crypto.Signer{fleet.keys[0]}}
		trust := trust
		if byRoot {
			// The root CA of a fuzz run's other processes is another one.
			trust.Bundle = nil
			g.keys = []crypto.Signer{fleet.root}
		}
		s := g.signBytes(header, content)
		if len(record) > 0 && !byRoot {
			s.Publication.Record = record
			s.Publication.Signatures = must(signAll(PAE(TypePublication, testCluster, record), AlgorithmTree, g.keys))
		}
		v, err := Verify(s, trust, Marks{}, fleet.now)
		if err != nil {
			if !errors.Is(err, ErrRejected) {
				t.Fatal(err)
			}
			return
		}
		h := v.Header()
		if again, err := encode(&h); err != nil || !bytes.Equal(again, header) {
			t.Fatalf("header %q was accepted as %q, %v", header, again, err)
		}
		if again, err := encode(v.content); err != nil || !bytes.Equal(again, content) {
			t.Fatalf("content %q was accepted as %q, %v", content, again, err)
		}
	})
}

// The decoders alone, without the cost of a signature: what is read writes the
// same bytes again.
func FuzzDecode(f *testing.F) {
	fleet := newFleet(f)
	news := []func() walker{
		func() walker { return new(Header) }, func() walker { return new(Record) }, func() walker { return new(TrustBundle) },
		func() walker { return new(NodeBootstrap) }, func() walker { return new(RootStatement) }, func() walker { return new(marksFile) },
		func() walker { return new(NodeRuntime) },
	}
	h, r := fleet.bootstrapHeader(), fleet.record()
	st := RootStatement{ClusterID: testCluster, ConfigRoot: public(fleet.root), SeedEpoch: 1, IssuedAt: fleet.now}
	marks := mustAccept(f, Marks{}, fleet.bundle)
	for i, w := range []walker{&h, &r, fleet.bundleContent(), fleet.bootstrapContent(), &st, &marksFile{marks.All()}, fleet.runtimeContent()} {
		f.Add(uint8(i), string(must(encode(w))))
	}
	f.Fuzz(func(t *testing.T, which uint8, in string) {
		w := news[int(which)%len(news)]()
		if _, err := decode(in, w); err != nil {
			return
		}
		if again, err := encode(w); err != nil || string(again) != in {
			t.Fatalf("%q was read as %q, %v", in, again, err)
		}
	})
}

func FuzzParseSubject(f *testing.F) {
	fleet := newFleet(f)
	f.Add(NodeSubject(fleet.me, fleet.incarnation).String())
	f.Add(GroupSubject([]string{"ingress"}, nil).String())
	f.Fuzz(func(t *testing.T, in string) {
		if s, err := ParseSubject(in); err == nil && s.String() != in {
			t.Fatalf("%q was read as %q", in, s)
		}
	})
}

func FuzzUnmarshalRoot(f *testing.F) {
	fleet := newFleet(f)
	st := RootStatement{ClusterID: testCluster, ConfigRoot: public(fleet.root), SeedEpoch: 1, IssuedAt: fleet.now}
	f.Add(must(must(st.Sign(fleet.ca.Root().Key)).Marshal()))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := UnmarshalRoot(data)
		if err != nil {
			return
		}
		if again, err := s.Marshal(); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("encodes again as %x, %v", again, err)
		}
	})
}
