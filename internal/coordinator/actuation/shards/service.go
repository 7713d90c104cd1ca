package shards

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/signed"
)

type server struct {
	fealtyv1.UnimplementedShardReportServiceServer
	s *Shards
}

// ReportShard keeps what the process of a shard says of itself.
func (r server) ReportShard(ctx context.Context, req *fealtyv1.ReportShardRequest) (*fealtyv1.ReportShardResponse,
	error) {
	if bad, ok := check(req.GetReport()); !ok {
		return nil, errcode.New(errcode.RequestField, "field", bad.field, "problem", bad.text)
	}
	if _, err := r.s.cfg.Asking.Allow(ctx); err != nil {
		return nil, err
	}
	s, err := r.s.cfg.Head.InForce(ctx)
	if err != nil {
		return nil, err
	}
	served, err := r.s.cfg.Grants.Serve(ctx, s)
	switch {
	case err != nil:
		return nil, err
	case served.Incarnation == "":
		return nil, errcode.New(errcode.RequestField, "field", signed.TokenKey,
			"problem", "a report is that of one process, and the call does not say of which")
	}
	r.s.cfg.Asking.Membership.Live().ShardReported(identity.FromContext(ctx).ID, served.Epoch, served.Incarnation,
		req.GetReport())
	return &fealtyv1.ReportShardResponse{}, nil
}

// ListShards shows all shards.
func (r server) ListShards(ctx context.Context, req *fealtyv1.ListShardsRequest) (*fealtyv1.ListShardsResponse, error) {
	members := r.s.cfg.Asking.Membership
	s, err := r.s.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	from, err := member.ReadPage(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	const prefix = string(identity.Shard) + "/"
	page, next, since, err := members.List(ctx, s, prefix, from, nil)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.ListShardsResponse{NextPageToken: next, KnownAt: since, Unanswered: r.s.unanswered()}
	asking, cancel := r.s.cfg.Head.Patience(ctx)
	defer cancel()
	var fenced map[string][]*fealtyv1.FencedProcess
	if since == nil {
		fenced, err = r.s.cfg.Incidents.Of(asking, s)
	}
	if since != nil || err != nil {
		out.Unknown = append(out.Unknown, "whether processes of them were fenced")
	}
	for _, m := range page {
		out.Shards = append(out.Shards, &fealtyv1.Shard{Member: m, Standing: r.s.standing(m),
			Fenced: fenced[m.GetKind()+"/"+m.GetName()]})
	}
	if from.First() {
		for _, path := range members.Roster().Forged() {
			if strings.HasPrefix(path, prefix) {
				out.Altered = record.AddAltered(out.Altered, path)
			}
		}
	}
	return out, nil
}

// GetShard shows one shard.
func (r server) GetShard(ctx context.Context, req *fealtyv1.GetShardRequest) (*fealtyv1.GetShardResponse, error) {
	got, err := r.s.cfg.Asking.Membership.Get(ctx, string(identity.Shard), req.GetName())
	if err != nil {
		return nil, err
	}
	return &fealtyv1.GetShardResponse{KnownAt: got.GetKnownAt(), Unknown: got.GetUnknown(), Unanswered: r.s.unanswered(),
		Shard: &fealtyv1.Shard{Member: got.GetMember(), Standing: r.s.standing(got.GetMember()), Fenced: got.GetFenced(),
			Domains: got.GetDomains()}}, nil
}

// unanswered names the coordinators that did not say what they heard, when they were asked last.
func (s *Shards) unanswered() (names []string) {
	silent, _ := s.cfg.Peers.Unanswered()
	for _, r := range silent {
		names = append(names, r.Name)
	}
	return names
}

// standing looks at a shard now.
func (s *Shards) standing(m *fealtyv1.Member) string {
	members := s.cfg.Asking.Membership
	return StandingOf(m, members.AllAnswered(), s.cfg.Now().Sub(members.ListensSince()) >= peer.SilentAfter)
}

// The standings of a shard.
const (
	Acts    = "acts"
	Paused  = "paused"
	Late    = "late"    // its last report is older than three times the pause between two
	Silent  = "silent"  // nobody heard a report of it
	Unknown = "unknown" // nobody who answered heard one, or a new one
	Banned  = record.Banned
)

// StandingOf says how a shard stands by what was heard of it. answered says that every coordinator said what it heard, and
// listened that a shard had the time to report since this one is ready. What was not heard is never well.
func StandingOf(m *fealtyv1.Member, answered, listened bool) string {
	process := m.GetLive().GetProcess()
	report := process.GetReport()
	switch {
	case m.GetBanned():
		return Banned
	case report == nil && answered && listened:
		return Silent
	case report == nil:
		return Unknown
	case process.GetReportAge().AsDuration() <= LateAfter(report.GetEvery()):
		if report.GetPausedFor() != nil {
			return Paused
		}
		return Acts
	case answered:
		return Late
	}
	return Unknown
}

// LateAfter is how old a report is that is late, if the next one comes after every.
func LateAfter(every *durationpb.Duration) time.Duration { return 3 * every.AsDuration() }
