package status_test

import (
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
)

// A token that one coordinator made, and what a new member is told, lead to the others
// too; not to one that was not heard of for long.
func TestTokensNameAllCoordinators(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" })
	coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	for _, made := range []struct{ at, other *coordinatortest.Fleet }{{f, r}, {r, f}} {
		tok := made.at.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		if !slices.Equal(tok.Addresses, []string{made.at.Addr, made.other.Addr}) {
			t.Errorf("a token made at %s leads to %v", made.at.Addr, tok.Addresses)
		}
	}
	for changed := f.C.Parts().Publication.Changed(); !slices.Equal(f.C.Parts().Peers.KnownAddresses(),
		[]string{f.Addr, r.Addr}); changed = f.C.Parts().Publication.Changed() {
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond): // it changed before the wait was taken
		case <-f.Context().Done():
			t.Fatalf("new members are told of %v", f.C.Parts().Peers.KnownAddresses())
		}
	}
	f.Advance(status.HeardLately + time.Minute)
	if tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}); !slices.Equal(tok.Addresses, []string{f.Addr}) {
		t.Errorf("a token leads to %v, of which one may be gone for long", tok.Addresses)
	}
}
