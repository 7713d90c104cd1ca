package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

func benchStore(b *testing.B) store.Store {
	return openAt(b, filepath.Join(b.TempDir(), "store.db"), sqlite.Options{})
}

func BenchmarkCommit(b *testing.B) { storetest.BenchmarkCommit(b, benchStore) }

func BenchmarkGroupCommit(b *testing.B) { storetest.BenchmarkGroupCommit(b, benchStore(b)) }

// BenchmarkSync is what the disk allows: an append of 256 bytes, synced.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	record := make([]byte, 256)
	b.ResetTimer()
	for range b.N {
		if _, err := f.Write(record); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
}

func BenchmarkGet(b *testing.B) { storetest.BenchmarkGet(b, benchStore(b)) }
