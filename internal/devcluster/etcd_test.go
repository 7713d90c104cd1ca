package devcluster

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
)

// TestStoryOnEtcd: whatever coordinators do works on this engine too.
func TestStoryOnEtcd(t *testing.T) {
	server := etcdtest.New(t, etcdtest.Options{})
	testStory(t, server.URL("/fealty"))
}

// TestStartAgainOnEtcd: the cluster is in the servers, not in the process.
func TestStartAgainOnEtcd(t *testing.T) {
	server := etcdtest.New(t, etcdtest.Options{})
	testStartAgain(t, server.URL("/fealty"))
}
