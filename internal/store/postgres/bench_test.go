package postgres_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

func benchStore(b *testing.B) store.Store {
	return openAt(b, server.URL(server.Database(b)), postgres.Options{})
}

func BenchmarkCommit(b *testing.B) { storetest.BenchmarkCommit(b, benchStore) }

func BenchmarkGet(b *testing.B) { storetest.BenchmarkGet(b, benchStore(b)) }
