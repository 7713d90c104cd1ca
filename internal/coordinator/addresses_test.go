package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/peers"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// A token that one coordinator made, and what a new member is told, lead to the others
// too; not to one that was not heard of for long.
func TestTokensNameAllCoordinators(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	r := newReplica(t, f)
	if err := f.set(f.manifest("")); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.awaitHead(f)
	f.awaitReplica(func(r replicas.Record) bool { return r.Phase == "ready" })
	r.awaitReplica(func(r replicas.Record) bool { return r.Phase == "ready" })
	for _, made := range []struct{ at, other *fleet }{{f, r}, {r, f}} {
		tok := made.at.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		if !slices.Equal(tok.Addresses, []string{made.at.addr, made.other.addr}) {
			t.Errorf("a token made at %s leads to %v", made.at.addr, tok.Addresses)
		}
	}
	for changed := f.c.Rooms().Publication.Changed(); !slices.Equal(f.c.Rooms().Peers.KnownAddresses(),
		[]string{f.addr, r.addr}); changed = f.c.Rooms().Publication.Changed() {
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond): // it changed before the wait was taken
		case <-f.ctx().Done():
			t.Fatalf("new members are told of %v", f.c.Rooms().Peers.KnownAddresses())
		}
	}
	f.advance(peers.HeardLately + time.Minute)
	if tok := f.token(&fealtyv1.CreateTokenRequest{Entry: "pool"}); !slices.Equal(tok.Addresses, []string{f.addr}) {
		t.Errorf("a token leads to %v, of which one may be gone for long", tok.Addresses)
	}
}

// A coordinator that is not ready any more sends its members to the others. One that
// is ready again in time keeps them.
func TestStreamsLeaveWhoIsNotReady(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	n := f.member("node-a")
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel()
	stream, err := newClients(n.conn()).agent.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	until(t, stream, snapshot.ScopeNodeBootstrap)

	ready := f.c.Rooms().Head.State()
	leave := func() {
		f.c.Rooms().Head.Put(authority.Recovering(ready, errors.New("a test says so")), time.Time{})
		f.c.Rooms().Head.Put(f.c.Rooms().Head.State(), time.Time{})
	}
	leave()
	f.c.Rooms().Head.Put(ready, time.Time{})
	f.c.Rooms().Head.Put(f.c.Rooms().Head.State(), time.Time{})
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
	f.faults.Fail("adopt.begin", errors.New("a test says so")) // nor does it come back
	leave()
	select {
	case err := <-ended:
		if e, ok := explain.FromStatus(err); !ok || !errors.Is(e, explain.RecoveryMode) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the stream stays at a coordinator that is not ready")
	}
}
