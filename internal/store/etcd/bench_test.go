//go:build linux

package etcd_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

func benchStore(b *testing.B) store.Store {
	return openAt(b, server.URL(server.Prefix()), etcd.Options{})
}

func BenchmarkCommit(b *testing.B) { storetest.BenchmarkCommit(b, benchStore) }

func BenchmarkGroupCommit(b *testing.B) { storetest.BenchmarkGroupCommit(b, benchStore(b)) }

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

func BenchmarkGet(b *testing.B) { storetest.BenchmarkGet(b, benchStore(b)) }
