//go:build linux

package etcd_test

import (
	"fmt"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
)

// commitFrom makes n durable commits of 256 bytes from so many writers.
func commitFrom(b *testing.B, s *etcd.Store, writers, n int) {
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

func benchStore(b *testing.B) *etcd.Store {
	return openAt(b, server.URL(server.Prefix()), etcd.Options{})
}

func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := benchStore(b)
			b.ReportAllocs()
			b.ResetTimer()
			commitFrom(b, s, writers, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// BenchmarkGroupCommit reports how many times more commits 64 writers get than
// one, each measured in the same run.
func BenchmarkGroupCommit(b *testing.B) {
	s := benchStore(b)
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

// BenchmarkSync is what the server allows: a put of 256 bytes, one after the other.
func BenchmarkSync(b *testing.B) {
	kv := pb.NewKVClient(server.Conn(b))
	record := make([]byte, 256)
	b.ResetTimer()
	for range b.N {
		if _, err := kv.Put(b.Context(), &pb.PutRequest{Key: []byte("/sync"), Value: record}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	commitFrom(b, s, 64, 10_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := s.Get(b.Context(), fmt.Sprintf("k/%08d", i%10_000*7919%100_000)); err != nil {
			b.Fatal(err)
		}
	}
}
