package fence_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/fealty-io/fealty/fence"
)

// BenchmarkAdmit measures what the check of a ledger costs with 1,000,000 pairs of holder
// and resource in it, and the memory that it takes for each, beside the names.
func BenchmarkAdmit(b *testing.B) {
	const pairs = 1_000_000
	resources := make([]string, pairs)
	for i := range resources {
		resources[i] = fmt.Sprintf("machine-%07d", i)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	l := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	p := process{holder: "shard-a", epoch: 1, me: incarnation('a')}
	claim := p.claim("", 0)
	for _, r := range resources {
		claim.Resource, claim.Token.Sequence = r, 1
		if err := l.Admit(claim); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	const names = 2 * 16 // a pair is two strings, whose bytes are the caller's
	taken := float64(after.HeapAlloc-before.HeapAlloc)/pairs - names
	b.ReportAllocs()
	sequence := fence.SequenceFrom(1)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c := claim
		for pb.Next() {
			n, _ := sequence.Next()
			c.Resource, c.Token.Sequence = resources[n*7919%pairs], n
			_ = l.Admit(c) // another goroutine may have been there with a higher number
		}
	})
	b.ReportMetric(taken, "B/pair-beside-keys")
}
