package delivery_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// A header that somebody alters in the store leaves the members that are connected to a coordinator that does not lead with
// their news. Whoever asks for status is told, at the leader as well; and all is as
// before once another coordinator leads.
func TestAlteredHeaderEndsNoDelivery(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	leader, term, others := coordinatortest.AwaitLeader(t, f, r)
	follower := others[0]
	n := f.Member("node-a")
	f.Member("node-b")
	coordinatortest.AwaitTold(follower, "data/node-a")
	coordinatortest.AwaitTold(follower, "data/node-b")
	n.Fleet = follower // it is connected there
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	told := func(state snapshot.MemberState) {
		t.Helper()
		m, _ := coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
		signed, err := snapshot.Unmarshal(m.GetEnvelope())
		var got snapshot.NodeRuntime
		if err == nil {
			err = snapshot.Decode(snapshot.ScopeNodeRuntime, signed.Content, &got)
		}
		if err != nil || got.State != state {
			t.Fatalf("it is told that it is %s, %v, want %s", got.State, err, state)
		}
	}
	told(snapshot.MemberActive)

	key := publication.PackedKey(publication.RuntimePath("data/node-b"))
	e, err := f.Store.Get(f.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	altered := slices.Clone(e.Value)
	altered[len(altered)-1] ^= 1
	if _, err := f.Store.CompareAndSwap(f.Context(), key, e.Version, altered); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Local().Member.DrainMember(f.Context(), &fealtyv1.DrainMemberRequest{Kind: "data", Name: "node-a",
		Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	told(snapshot.MemberDraining)
	finds := func(at *coordinatortest.Fleet) bool {
		return slices.ContainsFunc(coordinatortest.GetStatus(at).GetFindings(), func(x *fealtyv1.Finding) bool {
			return x.GetCode() == string(errcode.StoreForged) && strings.Contains(x.GetSummary(), key) &&
				strings.Contains(x.GetRemedy(), "fealty leader transfer")
		})
	}
	if !finds(follower) {
		t.Error("status does not say so")
	}
	wait.Until(t, "the leader's status says what the other found", func() bool { return finds(leader) })
	if _, err := f.Local().Member.UndrainMember(f.Context(), &fealtyv1.UndrainMemberRequest{Kind: "data", Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	told(snapshot.MemberActive)

	if _, err := coordinatortest.LeaderClient(leader).TransferLeader(f.Context(),
		&fealtyv1.TransferLeaderRequest{Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	coordinatortest.AwaitAgreed(t, term, f, r)
	wait.UntilNil(t, "it is made again", func() error {
		e, err := f.Store.Get(f.Context(), key)
		if err != nil {
			return err
		}
		if _, err := f.State().Records.Open(key, e.Value); err != nil {
			return err
		}
		for _, at := range []*coordinatortest.Fleet{f, r} {
			if !at.C.Parts().Publication.View().Serves() || finds(at) {
				return fmt.Errorf("%s finds it still", at.Addr)
			}
		}
		return nil
	})
}
