package coordinator_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/proof"
)

// A coordinator on the way to another head decides nothing under the one before meanwhile,
// however long its peers take to answer; and it proves no authority to anybody who verifies
// it. It serves reads for as long as a call waits for the head, and is in recovery mode from
// then on.
func TestOnTheWayNothingIsDecided(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	var later atomic.Int64
	config, sinceStart := f.Config, coordinator.SinceNow()
	r.Config = func(cfg *coordinator.Config) {
		if config != nil {
			config(cfg)
		}
		cfg.Machine.Elapsed = func() time.Duration { return sinceStart() + time.Duration(later.Load()) }
		cfg.Timing.SelfHealAfter = time.Hour
	}
	r.Start()
	r.AwaitHead(f)
	before := r.State()
	seen, err := coordinatortest.VerifyAt(t, r.Addr, recovery.Expected{Manifest: before.Manifest})
	coordinatortest.WantOnly(t, "verify", err, "")
	asked, answer := make(chan struct{}, 64), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(goOn)
	f.Faults.Arm("peer.before-reread", func() error {
		asked <- struct{}{}
		<-answer
		return coordinatortest.ErrCrash
	})
	r.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it is not prepared

	// As long as it cannot even look, it says that it is behind to who verifies it.
	release, err := r.C.Parts().Moves.Turn.Take(r.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	coordinatortest.WantOnly(t, "set", coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)), "")
	if s := r.State(); s != before {
		t.Fatalf("it is at index %d", s.Head.Index)
	}
	want := recovery.Expected{Manifest: f.State().Manifest, Seen: seen.Mark()}
	_, err = coordinatortest.VerifyAt(t, r.Addr, want)
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)
	if claim, _, err := r.C.Parts().Shown.Verification.Claim(r.Context(), make([]byte, proof.NonceBytes), make([]byte,
		32)); err != nil ||
		claim.GetReady() || len(claim.GetMeshCa()) > 0 {
		t.Errorf("behind the head it claims %v, %v", claim, err)
	}
	release()

	<-asked
	if s := r.State(); s != before {
		t.Errorf("while it asks its peers it is in phase %s: %s", s.Phase, s.Reason)
	}
	short, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
	defer cancel()
	if s, err := r.C.Parts().Head.InForce(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call is decided on %v, %v", s, err)
	}
	later.Store(int64(authority.FollowPatience))
	goOn()
	r.Await(authority.Recovery)
	if _, err := r.C.Parts().Head.Ready(); !errors.Is(err, errcode.RecoveryMode) {
		t.Errorf("a call is decided on %v", err)
	}
	if ok, phase := r.C.Health().Readiness().OK, r.C.Health().Phase; ok || phase != authority.Recovery {
		t.Error("it says that it is ready")
	}
	f.Faults.Disarm("peer.before-reread")
	r.AwaitHead(f)
}
