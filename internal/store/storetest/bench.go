package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
)

// commitFrom makes n durable commits of 256 bytes from so many writers.
func commitFrom(b *testing.B, s store.Store, writers, n int) {
	value := make([]byte, 256)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				tx := store.Tx{Put: []store.Write{{Key: fmt.Sprintf("k/%08d", i*7919%100_000), Value: value}}}
				if _, err := s.Commit(b.Context(), tx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkCommit measures commits of one writer and of 64, each in a store that open makes.
func BenchmarkCommit(b *testing.B, open func(*testing.B) store.Store) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := open(b)
			b.ReportAllocs()
			b.ResetTimer()
			commitFrom(b, s, writers, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// BenchmarkGroupCommit reports how many times more commits 64 writers get than
// one, each measured in the same run.
func BenchmarkGroupCommit(b *testing.B, s store.Store) {
	measure := func(writers, n int) float64 {
		from := b.Elapsed()
		commitFrom(b, s, writers, n)
		return float64(n) / (b.Elapsed() - from).Seconds()
	}
	b.ResetTimer()
	one := measure(1, b.N)
	many := measure(64, 8*b.N)
	b.ReportMetric(many/one, "ratio")
	b.ReportMetric(one, "single/s")
	b.ReportMetric(many, "grouped/s")
}

// BenchmarkGet measures reads of one key among 10,000.
func BenchmarkGet(b *testing.B, s store.Store) {
	commitFrom(b, s, 64, 10_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := s.Get(b.Context(), fmt.Sprintf("k/%08d", i%10_000*7919%100_000)); err != nil {
			b.Fatal(err)
		}
	}
}
