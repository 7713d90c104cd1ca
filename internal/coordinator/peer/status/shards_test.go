package status_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/shards"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/proof"
)

// What a shard reported to one coordinator is shown by the other too, with its rows and its age; and once the one that
// heard it is gone, what was heard of the shard is unknown. A shard reports about itself alone.
func TestShardsOfOthersAreShown(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 2)
	f, r := x.all[0], x.all[1]
	const entries = "  - {name: shards, kind: shard, match: [\"token:shards\"]}\n"
	if err := f.Set(f.Manifest(entries)); err != nil {
		t.Fatal(err)
	}
	r.AwaitHead(f)
	n := f.Node()
	if err := n.Join(identity.Shard, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	incarnation := fence.NewIncarnation()
	granted, err := fealtyv1.NewGrantServiceClient(n.Conn()).Grant(f.Context(), &fealtyv1.GrantRequest{Name: "eu-1",
		Incarnation: incarnation.String()})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := fence.NewSender(fence.Life{Incarnation: incarnation, Epoch: fence.NewEpoch(granted.GetNumber(), 1),
		Grant: granted.GetGrant()})
	if err != nil {
		t.Fatal(err)
	}
	process := client.NewFenced(n.Conn())
	process.Begin(sender)
	report := func(name string, number uint64) error {
		_, err := fealtyv1.NewShardReportServiceClient(process).ReportShard(f.Context(), &fealtyv1.ReportShardRequest{Name: name,
			Report: &fealtyv1.ShardReport{Number: number, Every: durationpb.New(5 * time.Second), Machines: 3,
				Profiles: []*fealtyv1.ShardMachines{{Profile: "web", Configured: 3}}}})
		return err
	}
	if err := report("eu-2", 1); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a report of another shard: %v", err)
	}
	if err := report("eu-1", 1); err != nil {
		t.Fatal(err)
	}
	for name, asked := range map[string]*coordinatortest.Fleet{"the one that heard it": f, "the other one": r} {
		eventually(t, name, func() error {
			got, err := fealtyv1.NewShardReportServiceClient(asked.LocalConn()).GetShard(asked.Context(),
				&fealtyv1.GetShardRequest{Name: "eu-1"})
			said := got.GetShard().GetMember().GetLive().GetProcess()
			if err != nil || said.GetReport().GetNumber() != 1 || len(said.GetReport().GetProfiles()) != 1 ||
				got.GetShard().GetStanding() != shards.Acts || said.GetReportAge() == nil {
				return fmt.Errorf("it shows %v, %v", got, err)
			}
			all, err := fealtyv1.NewShardReportServiceClient(asked.LocalConn()).ListShards(asked.Context(),
				&fealtyv1.ListShardsRequest{})
			if err != nil || len(all.GetShards()) != 1 ||
				all.GetShards()[0].GetMember().GetLive().GetProcess().GetReport().GetMachines() != 3 {
				return fmt.Errorf("it lists %v, %v", all, err)
			}
			return nil
		})
	}
	f.Kill()
	eventually(t, "the one that is left", func() error {
		got, err := fealtyv1.NewShardReportServiceClient(r.LocalConn()).GetShard(r.Context(),
			&fealtyv1.GetShardRequest{Name: "eu-1"})
		if err != nil || got.GetShard().GetStanding() != shards.Unknown ||
			!slices.Contains(got.GetUnanswered(), "coordinator-1") {
			return fmt.Errorf("it shows %v, %v", got, err)
		}
		return nil
	})
}
