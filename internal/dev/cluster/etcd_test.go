package cluster

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// TestStoryOnEtcd: whatever coordinators do works on this engine too.
func TestStoryOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	server := etcdtest.New(t, etcdtest.Options{})
	testStory(t, Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")}, func(see func(string, []byte)) {
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
	testRestore(t, Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")})
}

// TestStartAgainOnEtcd: the cluster is in the servers, not in the process.
func TestStartAgainOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	testStartAgain(t, server.URL("/fealty"))
}
