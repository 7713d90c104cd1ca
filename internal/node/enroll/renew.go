package enroll

import (
	"time"

	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	defaultRenewEvery = 30 * time.Minute
)

// RenewEvery is the interval that the node is told, by its node_runtime or, until
// there is one, its node_bootstrap.
func RenewEvery(b *state.TrustState) time.Duration {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		if runtime, ok := h.Verified.NodeRuntime(); ok {
			return runtime.RenewEvery
		}
	}
	if boot, ok := b.Bootstrap(); ok && boot.RenewEvery > 0 {
		return boot.RenewEvery
	}
	return defaultRenewEvery
}
