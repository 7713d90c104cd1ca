package agent_test

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// A trust bundle that may not be used any more keeps out whom it bans; it vouches
// for nothing, because a key that it lists may be revoked since.
func TestStaleBundleVouchesForNothing(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	b := a.Node().TrustState()
	bootstrap, err := snapshot.Unmarshal(b.Active[snapshot.ScopeNodeBootstrap].Raw)
	f.Must(err)
	stale := &state.TrustState{
		Active: map[snapshot.Scope]*state.ActiveSnapshot{},
		Stale:  b.Active[snapshot.ScopeTrustBundle].Verified,
		Ledger: b.Ledger, Contact: b.Contact,
	}
	_, err = state.Decide(a.Node().Me(), stale, bootstrap, f.Clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != internalsnapshot.ReasonSigner {
		t.Errorf("under a stale bundle: %v, want it refused for its signer", err)
	}
	stale.Marks = snapshot.Marks{}
	_, err = state.Decide(a.Node().Me(), stale, bootstrap, f.Clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != internalsnapshot.ReasonSigner {
		t.Errorf("under a stale bundle, new: %v, want it refused for its signer", err)
	}
	stale.Active[snapshot.ScopeTrustBundle] = b.Active[snapshot.ScopeTrustBundle]
	if _, err := state.Decide(a.Node().Me(), stale, bootstrap, f.Clock()); err != nil {
		t.Errorf("under a bundle in use: %v", err)
	}
}
