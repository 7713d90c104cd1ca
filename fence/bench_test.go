package fence_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
)

// BenchmarkAdmit measures what the check of a ledger costs with so many pairs of holder and
// resource in it, and the memory that it takes for each, beside the names. With 1,000,000 of
// them it waits for memory, so that the ratio to a plain map of Go with the same names is
// measured in turns with it.
func BenchmarkAdmit(b *testing.B) {
	for _, pairs := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("pairs=%d", pairs), func(b *testing.B) { benchmarkAdmit(b, pairs) })
	}
}

func benchmarkAdmit(b *testing.B, pairs int) {
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
	taken := float64(after.HeapAlloc-before.HeapAlloc)/float64(pairs) - names
	plain := make(map[string]*fence.Mark, pairs)
	for _, r := range resources {
		plain[r] = new(fence.Mark)
	}
	b.ReportAllocs()
	sequence := fence.SequenceFrom(1)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c := claim
		for pb.Next() {
			n, _ := sequence.Next()
			c.Resource, c.Token.Sequence = resources[n*7919%uint64(pairs)], n
			_ = l.Admit(c) // another goroutine may have been there with a higher number
		}
	})
	b.StopTimer()
	each := float64(b.Elapsed()) / float64(b.N)
	began := time.Now()
	for n := range uint64(max(b.N, 1)) {
		plain[resources[n*7919%uint64(pairs)]].Sequence = n
	}
	b.ReportMetric(each/(float64(time.Since(began))/float64(max(b.N, 1))), "of-a-map")
	b.ReportMetric(taken, "B/pair-beside-keys")
}
