package snapshot

import (
	"bytes"
	"crypto"
	"errors"
	"github.com/fealty-io/fealty/internal/snapshot"
	"testing"
)

// Unmarshal takes only what Marshal makes.
func FuzzUnmarshal(f *testing.F) {
	fleet := newFleet(f)
	f.Add(must(fleet.signedBundle(f).Marshal()))
	f.Add(must(fleet.signedBootstrap(f).Marshal()))
	f.Add([]byte(signedMagic))
	whole := fleet.signedBootstrap(f)
	whole.Content = nil
	f.Add(must(whole.Marshal()))
	whole.Patch = []byte(`{"routes/a":null}`)
	f.Add(must(whole.Marshal()))
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
	for _, s := range fleet.samples(f) {
		d := must(Compose(fleet.headerOf(s), s.content))
		f.Add(d.HeaderBytes(), d.ContentBytes(), []byte(nil), false)
	}
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
			s.Publication.Signatures = must(signAll(snapshot.PAE(snapshot.TypePublication, testCluster, record), snapshot.AlgorithmTree, g.keys))
		}
		// A node of the roles that the header is for, as far as there is such a node.
		if c, err := s.Claims(); err == nil && !byRoot {
			trust.Roles = c.Header.Roles
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
	for _, s := range fleet.samples(f) {
		news = append(news, func() walker { return ruleOf(s.content.scope()).content() })
		f.Add(uint8(len(news)-1), string(must(encode(s.content))))
	}
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

// The outcome of any base and any patch is not larger than it may be; and the
// patch that Diff makes of two contents leads from the one to the other.
func FuzzPatch(f *testing.F) {
	fleet := newFleet(f)
	var rules []*scopeRule
	for _, s := range fleet.samples(f) {
		rule := ruleOf(s.content.scope())
		if !rule.increments {
			continue
		}
		rules = append(rules, rule)
		content := must(encode(s.content))
		parts := partsOf(f, rule.scope, content)
		less := contentOf(rule, parts[1:])
		f.Add(uint8(len(rules)-1), content, less, uint16(len(content)))
		for _, pair := range [][2][]byte{{content, less}, {less, content}} {
			if patch, ok := Diff(rule.scope, pair[0], pair[1]); ok {
				f.Add(uint8(len(rules)-1), pair[0], patch, uint16(len(pair[1])))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, base, other []byte, size uint16) {
		rule := rules[int(which)%len(rules)]
		if out, msg := rule.applied(string(base), other, int(size)); msg == "" && len(out) > int(size) || msg != "" && out != nil {
			t.Fatalf("%d bytes where %d are allowed, %q", len(out), size, msg)
		}
		patch, ok := Diff(rule.scope, base, other)
		if !ok {
			return
		}
		out, msg := rule.applied(string(base), patch, len(other))
		if !bytes.Equal(out, other) {
			t.Fatalf("%q on %q gives %q, %s; want %q", patch, base, out, msg, other)
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
	f.Add(must(st.Sign(fleet.ca.Root().Key)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := unmarshalRoot(data)
		if err != nil {
			return
		}
		if again, err := s.marshal(); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("encodes again as %x, %v", again, err)
		}
	})
}
