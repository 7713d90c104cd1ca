package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
)

// commitFrom makes n durable commits of 256 bytes from so many writers.
func commitFrom(b *testing.B, s *postgres.Store, writers, n int) {
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

func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openAt(b, server.URL(server.Database(b)), postgres.Options{})
			b.ReportAllocs()
			b.ResetTimer()
			commitFrom(b, s, writers, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := openAt(b, server.URL(server.Database(b)), postgres.Options{})
	commitFrom(b, s, 64, 10_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := s.Get(b.Context(), fmt.Sprintf("k/%08d", i%10_000*7919%100_000)); err != nil {
			b.Fatal(err)
		}
	}
}
