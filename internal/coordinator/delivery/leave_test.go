package delivery_test

import (
	"context"
	"errors"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// A coordinator that is not ready any more sends its members to the others. One that
// is ready again in time keeps them.
func TestStreamsLeaveWhoIsNotReady(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	coordinatortest.Until(t, stream, snapshot.ScopeNodeBootstrap)

	ready := f.State()
	leave := func() {
		f.C.Parts().Head.Put(authority.Recovering(ready, errors.New("a test says so")), time.Time{})
		f.C.Parts().Head.Put(f.State(), time.Time{})
	}
	leave()
	f.C.Parts().Head.Put(ready, time.Time{})
	f.C.Parts().Head.Put(f.State(), time.Time{})
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		t.Fatalf("a moment cost the stream: %v", err)
	case <-time.After(2*delivery.LeaveAfter + delivery.LeaveAfter/2):
	}
	f.Faults.Fail("adopt.begin", errors.New("a test says so")) // nor does it come back
	leave()
	select {
	case err := <-ended:
		if e, ok := errcode.FromStatus(err); !ok || !errors.Is(e, errcode.RecoveryMode) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the stream stays at a coordinator that is not ready")
	}
}
