package status_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	peerstatus "github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// Whichever coordinator is asked shows what all of them hear, does not take a member
// for silent that talks to another one, and lets nobody remove it for that. A member
// that one of them does not name counts as not known.
func TestOthersAreHeard(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 2)
	f, r := x.all[0], x.all[1]
	n := f.Member("node-a")
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	period := &fealtyv1.DegradedPeriod{Since: timestamppb.New(f.Clock()), Limit: "svid"}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a",
		Release: "its own", DegradedPeriods: []*fealtyv1.DegradedPeriod{period}}); err != nil {
		t.Fatal(err)
	}
	coordinatortest.Until(t, stream, snapshot.ScopeNodeBootstrap)
	f.C.Parts().Membership.Listens(time.Unix(0, 0))
	r.C.Parts().Membership.Listens(time.Unix(0, 0)) // both have been ready for long

	for name, asked := range map[string]*coordinatortest.Fleet{"the one that hears": f, "the other one": r} {
		eventually(t, name, func() error {
			_, err := asked.Local().Member.RemoveMember(asked.Context(),
				&fealtyv1.RemoveMemberRequest{Kind: "data", Name: "node-a"})
			e := errcode.Of(err)
			if !errors.Is(e, errcode.MemberInContact) {
				t.Fatalf("%s: a removal of a member that is connected: %v", name, err)
			}
			st := coordinatortest.GetStatus(asked)
			for _, finding := range st.GetFindings() {
				if finding.GetCode() == string(errcode.MemberSilent) {
					t.Fatalf("%s finds %v", name, finding)
				}
			}
			i := slices.IndexFunc(st.GetMembers(), func(m *fealtyv1.Member) bool { return m.GetName() == "node-a" })
			if i < 0 || !st.GetMembers()[i].GetLive().GetConnected() ||
				st.GetMembers()[i].GetLive().GetRelease() != "its own" {
				return fmt.Errorf("it shows %v", st.GetMembers())
			}
			m, err := asked.Local().Member.GetMember(asked.Context(), &fealtyv1.GetMemberRequest{Kind: "data",
				Name: "node-a"})
			if err != nil || len(m.GetMember().GetLive().GetDegradedPeriods()) != 1 {
				return fmt.Errorf("it shows %v, %v", m, err)
			}
			if !strings.Contains(e.Error(), "it is connected") {
				return fmt.Errorf("a removal of a member that is connected: %w", e)
			}
			return nil
		})
	}

	// The one that hears is gone, and may be back with the member connected to it.
	cancel()
	f.Kill()
	time.Sleep(peerstatus.Fresh)
	_, err = r.Local().Member.RemoveMember(r.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "node-a"})
	if e := errcode.Of(err); !errors.Is(e, errcode.MemberInContact) || !strings.Contains(e.Error(), "coordinator-1") {
		t.Errorf("a removal while a coordinator does not answer: %v", err)
	}
	r.Advance(peer.SilentAfter + time.Second) // and now it is not coming back
	x.pass(peer.SilentAfter)
	time.Sleep(peerstatus.Fresh)
	if _, err = r.Local().Member.RemoveMember(r.Context(),
		&fealtyv1.RemoveMemberRequest{Kind: "data", Name: "node-a"}); err != nil {
		t.Errorf("a removal long after: %v", err)
	}
}

// A coordinator has more than one address, and at the first nobody ever answers.
func TestOthersAreHeardAtAnyAddress(t *testing.T) {
	t.Parallel()
	hole, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	r.Config = func(cfg *coordinator.Config) {
		cfg.Advertise = []string{hole.Addr().String(), cfg.Listener.Addr().String()}
	}
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	eventually(t, "the one that asks", func() error {
		f.C.Parts().Peers.Hear(f.Context(), f.State())
		if quiet, lost := f.C.Parts().Peers.Unanswered(); lost || len(quiet) > 0 {
			return fmt.Errorf("%v did not say what it hears", quiet)
		}
		return nil
	})
}

// Two coordinators advertise one address, where only one of them answers: what the
// other one hears is not known.
func TestOthersAreHeardThemselves(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r, shared := coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	shared.Config = func(cfg *coordinator.Config) { cfg.Advertise = []string{r.C.Addr()} }
	shared.Start()
	shared.AwaitHead(f)
	for _, r := range []*coordinatortest.Fleet{r, shared} {
		coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	}
	eventually(t, "the one that asks", func() error {
		f.C.Parts().Peers.Hear(f.Context(), f.State())
		quiet, _ := f.C.Parts().Peers.MayHear()
		if !slices.Contains(quiet, "coordinator-3") {
			t.Fatalf("%v did not say what it hears, want coordinator-3 among them", quiet)
		}
		if len(quiet) != 1 {
			return fmt.Errorf("%v did not say what it hears, want coordinator-3", quiet)
		}
		return nil
	})
}

// eventually tries check anew until it is content: on a busy machine one that is asked may not
// answer in the second that it has. At each try nothing that was said before is fresh.
func eventually(t *testing.T, who string, check func() error) {
	t.Helper()
	wait.UntilNil(t, who+" hears it", func() error {
		time.Sleep(peerstatus.Fresh)
		return check()
	})
}

// Nobody is removed while nobody can say which coordinators there are.
func TestOthersAreNotKnown(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.C.Parts().Membership.Listens(time.Unix(0, 0))
	removal := func() error {
		_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: string(a.ID.Kind()),
			Name: a.ID.Name(), DryRun: true})
		return err
	}
	if err := removal(); err != nil {
		t.Fatalf("a member that is away: %v", err)
	}
	time.Sleep(peerstatus.Fresh)
	d.Store.SetUnread(peer.Prefix)
	if err := removal(); !errors.Is(err, errcode.MemberInContact) ||
		!strings.Contains(err.Error(), "may be connected") {
		t.Errorf("while the others are not known it can be removed: %v", err)
	}
	d.Store.SetUnread("")
	if err := removal(); err != nil {
		t.Errorf("once they are known again: %v", err)
	}
}

// Members are not told of one another by a coordinator.
func TestLiveIsForCoordinators(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	stream, err := fealtyv1.NewLiveServiceClient(n.Conn()).ListLive(f.Context(), &fealtyv1.ListLiveRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a member asked, and got %v", err)
	}
}
