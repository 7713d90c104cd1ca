package agent

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// A trust bundle that may not be used any more keeps out whom it bans; it vouches
// for nothing, because a key that it lists may be revoked since.
func TestStaleBundleVouchesForNothing(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	n.mustJoin()
	a := n.mustOpen()
	defer a.Close()
	b := a.beliefs.Load()
	bootstrap, err := snapshot.Unmarshal(b.held[snapshot.ScopeNodeBootstrap].raw)
	f.must(err)
	stale := &beliefs{
		held:   map[snapshot.Scope]*held{},
		stale:  b.held[snapshot.ScopeTrustBundle].v,
		ledger: b.ledger, contact: b.contact,
	}
	_, err = decide(a.me, stale, bootstrap, f.clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshotform.ReasonSigner {
		t.Errorf("under a stale bundle: %v, want it refused for its signer", err)
	}
	stale.marks = snapshot.Marks{}
	_, err = decide(a.me, stale, bootstrap, f.clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshotform.ReasonSigner {
		t.Errorf("under a stale bundle, new: %v, want it refused for its signer", err)
	}
	stale.held[snapshot.ScopeTrustBundle] = b.held[snapshot.ScopeTrustBundle]
	if _, err := decide(a.me, stale, bootstrap, f.clock()); err != nil {
		t.Errorf("under a bundle in use: %v", err)
	}
}
