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
	d := must(Compose(h, b))
	leaves := make([]Digest, 1000)
	for i := range leaves {
		leaves[i] = DigestOf(fmt.Append(nil, i))
	}
	leaves[700] = d.Leaf()
	tree := NewTree(leaves)
	r := f.record()
	r.Root, r.TreeSize = tree.Root(), tree.Size()
	return &Signed{Header: d.HeaderBytes(), Content: d.ContentBytes(), Publication: must(r.Sign(f.keys[0])), Proof: must(tree.Proof(700))}
}

// BenchmarkVerify compares Verify, from received bytes to typed content, with
// what nothing can do without: one signature and one hash of the same content.
// The three alternate, and the fastest of each counts, so that whatever else the
// machine does falls on all of them alike.
func BenchmarkVerify(b *testing.B) {
	f := newFleet(b)
	for _, size := range []int{4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s, trust := f.sized(b, size), f.trust()
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
// compares with a signature for each.
func BenchmarkPublish(b *testing.B) {
	f := newFleet(b)
	header := must(Compose(f.bootstrapHeader(), f.bootstrapContent())).HeaderBytes()
	const n = 100_000
	b.Run("tree", func(b *testing.B) {
		for b.Loop() {
			leaves := make([]Digest, n)
			for i := range leaves {
				leaves[i] = LeafOf(testCluster, header)
			}
			tree := NewTree(leaves)
			r := f.record()
			r.Root, r.TreeSize = tree.Root(), tree.Size()
			must(r.Sign(f.keys[0]))
			var proof []Digest
			for i := range leaves {
				proof = must(tree.AppendProof(proof[:0], i))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/snapshot")
	})
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			must(signAll(PAE(TypeSnapshot, testCluster, header), AlgorithmEd25519, signersOf(f.keys[0])))
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/snapshot")
	})
}
