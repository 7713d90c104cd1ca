package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Engine{New: func(t testing.TB, retain int) storetest.Database {
		path := filepath.Join(t.TempDir(), "store.db")
		return storetest.Database{
			Open: func(t testing.TB) store.Store {
				t.Helper()
				s, err := sqlite.Open(context.Background(), path, sqlite.Options{RetainCommits: retain})
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
		}
	}})
}
