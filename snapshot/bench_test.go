package snapshot

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
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
	for _, c := range []struct {
		name   string
		signed *Signed
	}{
		{"node_runtime", f.publishAmong(must(Compose(f.bootstrapHeader(), f.runtimeContent())), 1000)},
		{"4KiB", f.sized(b, 4<<10)},
		{"64KiB", f.sized(b, 64<<10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, trust := c.signed, f.trust()
			message := PAE(TypePublication, testCluster, s.Publication.Record)
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
					_, err := verify(checks[:len(checks)-3], &verification{signed: s, trust: trust, now: f.now})
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
			must(signAll(PAE(TypeSnapshot, testCluster, header), AlgorithmEd25519, signersOf(f.keys[0])))
		}
		each = min(each, time.Since(start)*n/sample)
	}
	b.ReportMetric(float64(tree.Nanoseconds())/n, "tree-ns/snapshot")
	b.ReportMetric(float64(each.Nanoseconds())/n, "each-ns/snapshot")
	b.ReportMetric(float64(each)/float64(tree), "each/tree")
}
