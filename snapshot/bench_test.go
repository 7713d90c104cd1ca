package snapshot

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
	"strings"
	"testing"
	"time"
)

// sized returns a valid node bootstrap whose content has some size bytes, in the
// tree of a publication of a thousand.
func (f *fleet) sized(tb testing.TB, size int) *Signed {
	tb.Helper()
	h, b := f.bootstrapHeader(), f.bootstrapContent()
	b.Members = nil
	base := len(must(encode(b)))
	b.Members = members(max(1, (size-base)/len(`{"id":"spiffe://prod.example/data/node-of-the-edge-pool-000000","state":"active"},`)))
	return f.publishAmong(must(Compose(h, b)), 1000)
}

// publishAmong signs d in a tree of n headers.
func (f *fleet) publishAmong(d *Draft, n int) *Signed {
	leaves := make([]Digest, n)
	for i := range leaves {
		leaves[i] = DigestOf(fmt.Append(nil, i))
	}
	at := n * 7 / 10
	leaves[at] = d.Leaf()
	tree := NewTree(leaves)
	r := f.record()
	r.Root, r.TreeSize = tree.Root(), tree.Size()
	return &Signed{Header: d.HeaderBytes(), Content: d.ContentBytes(), Publication: must(r.Sign(f.keys[0])), Proof: must(tree.Proof(at))}
}

// BenchmarkVerify compares Verify, from received bytes to typed content, with
// what nothing can do without: one signature and one hash of the same content.
// The three alternate, and the fastest of each counts, so that whatever else the
// machine does falls on all of them alike.
func BenchmarkVerify(b *testing.B) {
	f := newFleet(b)
	type verified struct {
		name   string
		signed *Signed
		trust  Trust
	}
	cases := []verified{
		{"node_runtime", f.publishAmong(must(Compose(f.bootstrapHeader(), f.runtimeContent())), 1000), f.trust()},
		{"node_bootstrap/4KiB", f.sized(b, 4<<10), f.trust()},
		{"node_bootstrap/64KiB", f.sized(b, 64<<10), f.trust()},
	}
	for _, s := range f.samples(b) {
		if !ruleOf(s.content.scope()).increments {
			continue
		}
		for _, size := range []int{4 << 10, 64 << 10} {
			large := sample{s.name, s.roles, large(b, s, size)}
			signed := f.publishAmong(must(Compose(f.headerOf(large), large.content)), 1000)
			cases = append(cases, verified{fmt.Sprintf("%s/%dKiB", strings.ReplaceAll(s.name, " ", "_"), size>>10), signed, f.trustOf(s)})
		}
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			s, trust := c.signed, c.trust
			message := snapshot.PAE(snapshot.TypePublication, testCluster, s.Publication.Record)
			what := []struct {
				name string
				run  func() bool
				best time.Duration
			}{
				{"floor", func() bool {
					return ed25519.Verify(public(f.keys[0]), message, s.Publication.Signatures[0].Bytes) && sha256.Sum256(s.Content) != [32]byte{}
				}, time.Hour},
				// All but the decoding of the content: checks 1 to 9.
				{"envelope", func() bool {
					_, err := verify(checks[:firstOfContent+1], &verification{signed: s, trust: trust, now: f.now})
					return err == nil
				}, time.Hour},
				{"verify", func() bool { _, err := Verify(s, trust, Marks{}, f.now); return err == nil }, time.Hour},
			}
			for b.Loop() {
				for i := range what {
					start := time.Now()
					if !what[i].run() {
						b.Fatal(what[i].name)
					}
					what[i].best = min(what[i].best, time.Since(start))
				}
			}
			for _, w := range what {
				b.ReportMetric(float64(w.best.Nanoseconds()), w.name+"-ns")
				b.ReportMetric(float64(w.best)/float64(what[0].best), w.name+"/floor")
			}
		})
	}
}

// BenchmarkContent is what Verify does with a content of 64 KiB after its hash: reading, and checks 10 to 12.
func BenchmarkContent(b *testing.B) {
	f := newFleet(b)
	for _, s := range f.samples(b) {
		if !ruleOf(s.content.scope()).increments {
			continue
		}
		b.Run(strings.ReplaceAll(s.name, " ", "_"), func(b *testing.B) {
			large := sample{s.name, s.roles, large(b, s, 64<<10)}
			signed := f.publishAmong(must(Compose(f.headerOf(large), large.content)), 1000)
			v := verification{signed: signed, trust: f.trustOf(s), now: f.now, raw: signed.Content}
			if err := v.run(checks[:firstOfContent+1]); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(signed.Content)))
			b.ReportAllocs()
			for b.Loop() {
				rest := v
				if _, err := rest.complete(checks[firstOfContent+1:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// large is a content as that of s with so many records that it has some size bytes:
// its records again and again, under other names. One without records stays as it is.
func large(tb testing.TB, s sample, size int) Content {
	tb.Helper()
	rule := ruleOf(s.content.scope())
	if !rule.increments {
		return s.content
	}
	parts := partsOf(tb, rule.scope, must(encode(s.content)))
	out, n := slices.Clone(parts), 0
	for i := 0; n < size; i++ {
		p := parts[i%len(parts)]
		if !rule.sections[p.section].records {
			continue
		}
		p.record = fmt.Sprintf("%s-%05d", p.record, i)
		out, n = append(out, p), n+len(p.record)+len(p.value)+4
	}
	slices.SortFunc(out, part.compare)
	c := rule.content()
	must(decode(string(contentOf(rule, out)), c))
	return c
}

// BenchmarkIncrement makes a patch of one record of 64 KiB, and verifies it as a node
// does that holds the base, and compares with signature and hash of the whole.
func BenchmarkIncrement(b *testing.B) {
	f := newFleet(b)
	for _, s := range f.samples(b) {
		if !ruleOf(s.content.scope()).increments {
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			scope, trust := s.content.scope(), f.trustOf(s)
			l := f.line(s)
			base := l.publish(large(b, s, 64<<10))
			active := f.mustVerify(b, base, trust)
			parts := partsOf(b, scope, base.Content)
			less := ruleOf(scope).content()
			must(decode(string(contentOf(ruleOf(scope), slices.Delete(parts, 1, 2))), less))
			whole := l.publish(less)
			sent := asPatch(b, scope, whole, base.Content)
			message := snapshot.PAE(snapshot.TypePublication, testCluster, whole.Publication.Record)
			what := []struct {
				name string
				run  func() bool
				best time.Duration
			}{
				{"floor", func() bool {
					return ed25519.Verify(public(f.keys[0]), message, whole.Publication.Signatures[0].Bytes) && sha256.Sum256(whole.Content) != [32]byte{}
				}, time.Hour},
				{"diff", func() bool { _, ok := Diff(scope, base.Content, whole.Content); return ok }, time.Hour},
				{"apply", func() bool {
					_, msg := ruleOf(scope).applied(active.text, sent.Patch, len(whole.Content))
					return msg == ""
				}, time.Hour},
				{"verify", func() bool {
					c, err := VerifyHeader(sent, trust, Marks{}, f.now)
					if err == nil {
						_, _, err = c.CompletePatch(active, sent.Patch)
					}
					return err == nil
				}, time.Hour},
			}
			for b.Loop() {
				for i := range what {
					start := time.Now()
					if !what[i].run() {
						b.Fatal(what[i].name)
					}
					what[i].best = min(what[i].best, time.Since(start))
				}
			}
			for _, w := range what {
				b.ReportMetric(float64(w.best.Nanoseconds()), w.name+"-ns")
			}
			b.ReportMetric(float64(what[3].best)/float64(what[0].best), "verify/floor")
			b.ReportMetric(float64(len(whole.Content))/float64(len(sent.Patch)), "whole/patch-bytes")
		})
	}
}

// BenchmarkPublish signs 100,000 headers by one record, with every proof, and
// compares with a signature for each: of those it makes a hundredth in each round.
func BenchmarkPublish(b *testing.B) {
	f := newFleet(b)
	header := must(Compose(f.bootstrapHeader(), f.runtimeContent())).HeaderBytes()
	const n, sample = 100_000, 1000
	tree, each := time.Hour, time.Hour
	for b.Loop() {
		start := time.Now()
		leaves := make([]Digest, n)
		for i := range leaves {
			leaves[i] = LeafOf(testCluster, header)
		}
		t := NewTree(leaves)
		r := f.record()
		r.Root, r.TreeSize = t.Root(), t.Size()
		must(r.Sign(f.keys[0]))
		var proof []Digest
		for i := range leaves {
			proof = must(t.AppendProof(proof[:0], i))
		}
		tree = min(tree, time.Since(start))
		start = time.Now()
		for range sample {
			must(signAll(snapshot.PAE(snapshot.TypeSnapshot, testCluster, header), snapshot.AlgorithmEd25519, signersOf(f.keys[0])))
		}
		each = min(each, time.Since(start)*n/sample)
	}
	b.ReportMetric(float64(tree.Nanoseconds())/n, "tree-ns/snapshot")
	b.ReportMetric(float64(each.Nanoseconds())/n, "each-ns/snapshot")
	b.ReportMetric(float64(each)/float64(tree), "each/tree")
}
