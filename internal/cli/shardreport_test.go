package cli_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
)

// shows answers with shards, a page of one each.
type shows struct {
	fealtyv1.UnimplementedShardReportServiceServer
	shards []*fealtyv1.Shard
}

func (s shows) ListShards(_ context.Context, req *fealtyv1.ListShardsRequest) (*fealtyv1.ListShardsResponse, error) {
	at := len(req.GetPageToken())
	out := &fealtyv1.ListShardsResponse{Shards: s.shards[at : at+1], Unanswered: []string{"coordinator-2"}}
	if at+1 < len(s.shards) {
		out.NextPageToken = strings.Repeat("x", at+1)
	}
	return out, nil
}

func (s shows) GetShard(_ context.Context, req *fealtyv1.GetShardRequest) (*fealtyv1.GetShardResponse, error) {
	for _, one := range s.shards {
		if one.GetMember().GetName() == req.GetName() {
			return &fealtyv1.GetShardResponse{Shard: one, Unknown: []string{"whether a process of it was fenced"}}, nil
		}
	}
	return nil, context.Canceled
}

// Who looks at shards sees how each stands, how old that is, and what it said; of one that said nothing nothing is made up.
func TestShardReports(t *testing.T) {
	now := clitest.Now
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	dur := durationpb.New
	reported := &fealtyv1.Process{Incarnation: strings.Repeat("0f", 16), Epoch: 3<<32 | 2, LastCall: at(-time.Second),
		ReportAge: dur(4 * time.Second),
		Report: &fealtyv1.ShardReport{Number: 9, MadeAt: at(-5 * time.Second), Every: dur(5 * time.Second), PausedByFlag: true,
			PausedByInstruction: true, PausedFor: dur(time.Minute), Machines: 7, Working: 5, Tenants: 2, Wanted: 9, Short: 2,
			ShortFor: dur(time.Hour), ShortOf: "2 machines of profile web for acme", Held: 1, HeldFor: dur(time.Minute), HeldOf: "beta",
			Cycle: &fealtyv1.ShardCycle{Ago: dur(2 * time.Second), Took: dur(3 * time.Millisecond), Problem: "the disk is full",
				Outcomes: []*fealtyv1.ShardTally{{What: "executed", Count: 4}, {What: "unavailable", Count: 1}},
				HeldBack: []*fealtyv1.ShardTally{{What: "capped by blast-radius", Count: 3}},
				Unlisted: []*fealtyv1.UnlistedProvider{{Provider: "far", Problem: "it does not answer"}}},
			Profiles: []*fealtyv1.ShardMachines{{Profile: "web", Configured: 4, Configuring: 1, Idle: 2}}, MoreProfiles: 5,
			Demand: []*fealtyv1.ShardDemand{{Tenant: "acme", Profile: "web", Wanted: 6, Quota: new(uint32(8)), Configured: 3,
				Configuring: 1, Short: 2, ShortFor: dur(time.Hour)}, {Tenant: "gone", Profile: "web", Configured: 1, Unknown: true}},
			HeldRollUps: []*fealtyv1.HeldRollUp{{Tenant: "beta", HeldFor: dur(time.Minute)}},
		}}
	srv := shows{shards: []*fealtyv1.Shard{
		{Member: &fealtyv1.Member{SpiffeId: "spiffe://prod.example/shard/eu-1", Kind: "shard", Name: "eu-1",
			Live: &fealtyv1.Live{Process: reported}}, Standing: "paused",
			Fenced: []*fealtyv1.FencedProcess{{Incarnation: strings.Repeat("0a", 16), Epoch: 3<<32 | 1, From: "10.0.0.7:4711",
				HeardAt: at(-2 * time.Minute)}},
			Domains: []*fealtyv1.Domain{{Name: "eu", Owner: "shard/eu-1"}, {Name: "us", Owner: "shard/eu-1", Moving: true, Next: "shard/us-1"}}},
		{Member: &fealtyv1.Member{SpiffeId: "spiffe://prod.example/shard/eu-2", Kind: "shard", Name: "eu-2"}, Standing: "unknown"},
	}}
	c := &clitest.Answering{}
	socket := c.Listen(t, func(s *grpc.Server) { fealtyv1.RegisterShardReportServiceServer(s, srv) })
	list := clitest.Run(t, "shard", "list", "--socket", socket).Want(t, 0)
	for _, want := range []string{"▲ paused eu-1 4s old 7 5 9 2 1 ▲ 6s ago, failed", "? unknown eu-2 none - -"} {
		if got := strings.Join(strings.Fields(list.Stdout), " "); !strings.Contains(got, want) {
			t.Errorf("listed is\n%s\nwithout %q", list.Stdout, want)
		}
	}
	if !strings.Contains(list.Stderr, "coordinator-2 did not answer") {
		t.Errorf("said is %s", list.Stderr)
	}
	wide := clitest.Run(t, "shard", "list", "--socket", socket, "-o", "wide").Want(t, 0).Stdout
	if got := strings.Join(strings.Fields(wide), " "); !strings.Contains(got, "3 capped by blast-radius far 0 3.2 2 machines of profile web for acme beta") {
		t.Errorf("wide is\n%s", wide)
	}
	if names := clitest.Run(t, "shard", "list", "--socket", socket, "-o", "name").Want(t, 0).Stdout; names != "eu-1\neu-2\n" {
		t.Errorf("the names are %q", names)
	}
	for _, name := range []string{"eu-1", "shard/eu-1"} {
		shown := clitest.Run(t, "shard", "show", name, "--socket", socket).Want(t, 0)
		got := strings.Join(strings.Fields(shown.Stdout), " ")
		for _, want := range []string{
			"standing ▲ paused: it decides, and does nothing",
			"process epoch 3.2, incarnation " + strings.Repeat("0f", 16),
			"fenced a process of it acts no more, as another one with its identity is in charge: epoch 3.1, incarnation " +
				strings.Repeat("0a", 16) + ", from 10.0.0.7:4711, told so 2m ago",
			"domain eu", "domain us, goes to shard/us-1 when it let go",
			"report 4s old, made at ", "paused by --actuation-paused and by an instruction, for 1m 4s",
			"last cycle ▲ 6s ago, failed, took 3ms: 4 executed, 1 unavailable: the disk is full",
			"held back 3 capped by blast-radius", "left alone machines of provider far: it does not answer",
			"machines 7, of which 5 work", "wanted 9, by 2 tenants", "short 2: 2 machines of profile web for acme",
			"held the demand of beta, since 1m 4s ago", "left out 5 more profiles",
			"web 4 1 2 0 0 0 0 0", "acme web 6 8 3 1 0 0 2 1h ago", "gone web unknown - 1 0 0 0 0 -",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: shown is\n%s\nwithout %q", name, shown.Stdout, want)
			}
		}
		if !strings.Contains(shown.Stderr, "not known: whether a process of it was fenced") {
			t.Errorf("said is %s", shown.Stderr)
		}
	}
	silent := clitest.Run(t, "shard", "show", "eu-2", "--socket", socket).Want(t, 0).Stdout
	if got := strings.Join(strings.Fields(silent), " "); !strings.Contains(got, "standing ? unknown: a coordinator that may have heard a newer report did not say") ||
		!strings.HasSuffix(got, "report none") {
		t.Errorf("of one that said nothing shown is\n%s", silent)
	}
}
