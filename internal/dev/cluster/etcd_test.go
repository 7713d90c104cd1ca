package cluster

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// TestStartAgainOnEtcd: the cluster is in the servers, not in the process.
func TestStartAgainOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	testStartAgain(t, server.URL("/fealty"))
}
