package member_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/snapshot"
)

// The person who bans a member is told what that ended at each coordinator: also at another
// one than the one that was asked. A number that one of them does not say is unknown, and
// not 0.
func TestBanTellsWhereItEnded(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	b, gone := coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*coordinatortest.Fleet{b, gone} {
		r.Start()
		r.AwaitHead(f)
		coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	}
	coordinatortest.AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" })
	open := func(name string, at *coordinatortest.Fleet) {
		t.Helper()
		n := f.Member(name)
		n.Fleet = at // it is connected there
		stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(at.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		coordinatortest.Until(t, stream, snapshot.ScopeNodeBootstrap)
	}
	ban := func(name string) []string {
		t.Helper()
		resp, err := f.Local().Member.BanMember(f.Context(),
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
	gone.Kill()
	if got, want := ban("node-c"), []string{"coordinator-1 true 1", "coordinator-2 true 0",
		"coordinator-3 false 0"}; !slices.Equal(got, want) {
		t.Errorf("the ban of a member that was connected here tells %q, want %q", got, want)
	}
	if got, want := ban("nobody"), []string{"coordinator-1 true 0", "coordinator-2 true 0",
		"coordinator-3 false 0"}; !slices.Equal(got, want) {
		t.Errorf("the ban of nobody tells %q, want %q", got, want)
	}

	// An answer under an older bundle than the one that bans is none, and members get none.
	live := coordinatortest.Served[fealtyv1.LiveServiceServer](b.C.Parts().Membership.RegisterServices)
	ahead := &fealtyv1.GetEndedRequest{Member: "data/node-a", AuthorityEpoch: b.C.Parts().Bundle.View().Epoch,
		ConfigVersion: b.C.Parts().Bundle.View().Version + 1}
	if resp, err := live.GetEnded(f.Context(), ahead); err == nil {
		t.Errorf("a coordinator that has not heard of the ban answered %v", resp)
	}
	n := f.Member("node-d")
	_, err := fealtyv1.NewLiveServiceClient(n.Conn()).GetEnded(f.Context(),
		&fealtyv1.GetEndedRequest{Member: "data/node-a"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a member asked, and got %v", err)
	}
}
