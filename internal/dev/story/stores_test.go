package story

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// TestStoryOnPostgres: whatever a coordinator does works on both engines.
func TestStoryOnPostgres(t *testing.T) {
	testlane.Nightly(t)
	server := pgtest.New(t)
	databases := []string{server.Database(t), server.Database(t)}
	for _, name := range databases {
		// Long values are not to be compressed where the scan looks at every byte.
		st, err := postgres.Open(t.Context(), server.URL(name), postgres.Options{})
		if err == nil {
			err = st.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		server.Exec(t, name, "alter table fealty_kv alter column value set storage external", "alter table fealty_log alter column value set storage external")
	}
	testStory(t, cluster.Options{Store: server.URL(databases[0]), EmptyStore: server.URL(databases[1])}, func(see func(string, []byte)) {
		for _, name := range databases {
			see("dump "+name, server.Dump(t, name, "--inserts"))
		}
		// Tables with the rows that are gone, and the log of writes.
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		seeDisk(t, server.Data(), see)
	}, "dump")
}

// seeDisk has every file of a server seen.
func seeDisk(t *testing.T, dir string, see func(where string, data []byte)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		see("disk "+path, bytes.TrimRight(raw, "\x00"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestoreOnPostgres: a restore goes into an empty database.
func TestRestoreOnPostgres(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	testRestore(t, cluster.Options{Store: server.URL(server.Database(t)), EmptyStore: server.URL(server.Database(t))})
}

// TestStoryOnEtcd: whatever coordinators do works on this engine too.
func TestStoryOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	server := etcdtest.New(t, etcdtest.Options{})
	testStory(t, cluster.Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")}, func(see func(string, []byte)) {
		// Its database has every revision of every key, and its log every request.
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		seeDisk(t, server.Members[0].Data(), see)
	})
}

// TestRestoreOnEtcd: a restore goes under an empty prefix.
func TestRestoreOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	testRestore(t, cluster.Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")})
}
