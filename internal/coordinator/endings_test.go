package coordinator_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/snapshot"
)

// Whoever bans a member is told what that ended at each coordinator: also at another one
// than the one that was asked. A number that one of them does not say is unknown, and not 0.
func TestBanTellsWhereItEnded(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	b, gone := newReplica(t, f), newReplica(t, f)
	if err := f.set(f.manifest("")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*fleet{b, gone} {
		r.start()
		r.awaitHead(f)
		r.awaitReplica(func(r replicas.Record) bool { return r.Phase == "ready" })
	}
	f.awaitReplica(func(r replicas.Record) bool { return r.Phase == "ready" })
	open := func(name string, at *fleet) {
		t.Helper()
		n := f.member(name)
		n.f = at // it is connected there
		stream, err := newClients(n.conn()).agent.Connect(at.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		until(t, stream, snapshot.ScopeNodeBootstrap)
	}
	ban := func(name string) []string {
		t.Helper()
		resp, err := f.local().member.BanMember(f.ctx(),
			&fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "stolen"})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		sum := uint32(0)
		for _, at := range resp.GetEnded() {
			out = append(out, fmt.Sprintf("%s %v %d", at.GetCoordinator(), at.GetAnswered(), at.GetConnections()))
			sum += at.GetConnections()
		}
		if resp.GetConnectionsClosed() != sum {
			t.Errorf("%d connections in all, and %v", resp.GetConnectionsClosed(), out)
		}
		return out
	}
	open("node-a", b)
	open("node-b", b) // and this one stays
	if got, want := ban("node-a"), []string{"coordinator-1 true 0", "coordinator-2 true 1",
		"coordinator-3 true 0"}; !slices.Equal(got, want) {
		t.Errorf("the ban of a member that was connected to coordinator-2 tells %q, want %q", got, want)
	}
	open("node-c", f)
	gone.kill()
	if got, want := ban("node-c"), []string{"coordinator-1 true 1", "coordinator-2 true 0",
		"coordinator-3 false 0"}; !slices.Equal(got, want) {
		t.Errorf("the ban of a member that was connected here tells %q, want %q", got, want)
	}
	if got, want := ban("nobody"), []string{"coordinator-1 true 0", "coordinator-2 true 0",
		"coordinator-3 false 0"}; !slices.Equal(got, want) {
		t.Errorf("the ban of nobody tells %q, want %q", got, want)
	}

	// An answer under an older bundle than the one that bans is none, and members get none.
	live := served[fealtyv1.LiveServiceServer](b.c.Rooms().Membership.RegisterServices)
	ahead := &fealtyv1.GetEndedRequest{Member: "data/node-a", AuthorityEpoch: b.c.Rooms().Bundle.View().Epoch,
		ConfigVersion: b.c.Rooms().Bundle.View().Version + 1}
	if resp, err := live.GetEnded(f.ctx(), ahead); err == nil {
		t.Errorf("a coordinator that has not heard of the ban answered %v", resp)
	}
	n := f.member("node-d")
	_, err := fealtyv1.NewLiveServiceClient(n.conn()).GetEnded(f.ctx(),
		&fealtyv1.GetEndedRequest{Member: "data/node-a"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a member asked, and got %v", err)
	}
}
