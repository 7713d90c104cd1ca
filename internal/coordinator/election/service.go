package election

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// NobodyAfter is how long nobody may lead before that is worth a look: a change
// of the leader takes less.
const NobodyAfter = 10 * time.Second

// leaderServer serves LeaderService.
type leaderServer struct {
	fealtyv1.UnimplementedLeaderServiceServer
	c *Election
}

// RegisterServices registers the service that tells who leads, and changes it.
func (e *Election) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterLeaderServiceServer(to, leaderServer{c: e})
}

func (l leaderServer) GetLeader(context.Context, *fealtyv1.GetLeaderRequest) (*fealtyv1.GetLeaderResponse, error) {
	if _, err := l.c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	return &fealtyv1.GetLeaderResponse{Leader: l.c.Message()}, nil
}

// Message says who leads, as far as this coordinator can tell, or for how long nobody did.
func (e *Election) Message() *fealtyv1.Leader {
	r, term, nobody := e.leader()
	if term == 0 {
		return &fealtyv1.Leader{NobodyFor: durationpb.New(nobody)}
	}
	return &fealtyv1.Leader{
		Name: r.Name, EnrolmentKey: r.Replica, Term: term, Since: timestamppb.New(r.Since),
		Self: r.Replica == e.cfg.Self.EnrolmentKey(),
	}
}

// Findings says when nobody leads. It is critical where that is because nothing can be changed
// at all; else joins, renewals and changes of config are served, and take effect later.
func (e *Election) Findings() []*fealtyv1.Finding {
	_, term, nobody := e.leader()
	if term != 0 || nobody < NobodyAfter {
		return nil
	}
	since := nobody.Round(time.Second).String()
	switch guard := e.cfg.StoreGuard; {
	case guard.Lost() != nil:
		return []*fealtyv1.Finding{finding.NewCritical(errcode.NobodyLeads, "since", since,
			"problem", "the store went back, and nobody leads before the signers restore it",
			"remedy", "restore the store: that is a finding of its own")}
	case guard.Writes().Reason != 0:
		_, refuses := guard.Refusing()
		f := finding.New(errcode.NobodyLeads, "since", since, "problem", refuses,
			"remedy", "have the store take writes again: that is a finding of its own")
		if guard.Writes().Blocks() {
			f.Severity = finding.Critical
		}
		return []*fealtyv1.Finding{f}
	case e.lead.view.Load().low:
		return []*fealtyv1.Finding{finding.NewCritical(errcode.NobodyLeads, "since", since,
			"problem", "the store gives terms that are not above those of before: it went back, or was restored and "+
				"its revisions were not raised",
			"remedy", "restore it with fealty backup restore; what went back a little leads again by itself, once its "+
				"revisions are above those of before")}
	}
	f := finding.New(errcode.NobodyLeads, "since", since)
	if e.cfg.Now().Sub(e.cfg.StoreGuard.SilentAt()) < NobodyAfter {
		f.Severity = finding.Critical // the store does not answer: nothing is decided at all
	}
	return []*fealtyv1.Finding{f}
}

// TransferLeader writes that the entry in force is handed over. That ends the term in
// the store, whatever its leader does; so any coordinator can do it.
func (l leaderServer) TransferLeader(ctx context.Context,
	req *fealtyv1.TransferLeaderRequest) (*fealtyv1.TransferLeaderResponse, error) {
	c := l.c
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	var out *fealtyv1.TransferLeaderResponse
	var done store.Revision
	err := c.cfg.Head.Transact(ctx, "the handover", func(s *authority.State) (err error) {
		out, done, err = c.transferLeader(ctx, s, req)
		return err
	})
	if err == nil && done != 0 {
		out.Leader = c.awaitLeaderAfter(ctx, done)
	}
	return out, err
}

// transferLeader hands over once, and returns the revision at which it did; 0 if there
// was nothing to do.
func (e *Election) transferLeader(ctx context.Context, s *authority.State,
	req *fealtyv1.TransferLeaderRequest) (*fealtyv1.TransferLeaderResponse, store.Revision, error) {
	const what = "hand over leadership"
	now, err := record.Get[Record](ctx, s.Records, TermKey)
	if err != nil {
		return nil, 0, e.cfg.Head.StoreError(what, err)
	}
	if !now.Exists() || now.Value.HandedOver {
		return nil, 0, errcode.New(errcode.LeaderUnfit,
			"problem", "nobody leads now: whoever is ready takes over by itself")
	}
	was := now.Value
	out := &fealtyv1.TransferLeaderResponse{To: req.GetTo(), Before: &fealtyv1.Leader{
		Name: was.Name, EnrolmentKey: was.Replica, Term: uint64(now.Version), Since: timestamppb.New(was.Since),
		Self: was.Replica == e.cfg.Self.EnrolmentKey(),
	}}
	out.Leader = out.Before
	if to := req.GetTo(); to != "" && to == was.Name {
		return out, 0, nil
	}
	heir, err := e.heir(ctx, s, was.Replica, req.GetTo())
	if err != nil || req.GetDryRun() {
		return out, 0, err
	}
	next := was
	next.HandedOver, next.For = true, heir
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(TermKey, now.Version, next)
	ch.Audit(e.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "leader.transfer", Target: was.Name,
		Reason: req.GetReason(),
		Fields: map[string]string{"term": fmt.Sprint(now.Version), "to": req.GetTo()}})
	if err := e.cfg.Faults.Hit("lead.transfer"); err != nil {
		return nil, 0, err
	}
	done, err := ch.Commit(ctx)
	if err != nil {
		return nil, 0, e.cfg.Head.CommitError(what, err)
	}
	e.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the leader was asked to hand over", slog.String("from", was.Name),
		slog.String("to", req.GetTo()), slog.String("by", record.Actor(ctx)))
	e.lead.due.Notify()
	return out, done, nil
}

// heir returns the key of the coordinator named to that can lead after who has the
// key from; empty for anyone, where there is one.
func (e *Election) heir(ctx context.Context, s *authority.State, from, to string) (key string, err error) {
	all, err := e.cfg.Replicas.Newest(ctx, s.Manifest)
	if err != nil {
		return "", e.cfg.Head.StoreError("read the coordinators", err)
	}
	problem := "no other coordinator is ready"
	if to != "" {
		problem = "no coordinator has that name, or it never said a word"
	}
	for _, r := range all {
		switch {
		case r.Key == from || to != "" && r.Name != to:
		case r.Stopped:
			if to != "" {
				problem = "it was stopped"
			}
		case r.Phase != authority.Ready.String():
			if to != "" {
				problem = "it is in phase " + r.Phase
			}
		case e.cfg.Now().Sub(r.At) > 3*peer.Pause:
			if to != "" {
				problem = "it was not heard of since " + r.At.UTC().Format(time.RFC3339)
			}
		case to == "":
			return "", nil
		default:
			return r.Key, nil
		}
	}
	return "", errcode.New(errcode.LeaderUnfit, "name", to, "problem", problem)
}

// awaitLeaderAfter waits until somebody leads whose term began after a revision, for
// a little longer than it takes if who was asked does not.
func (e *Election) awaitLeaderAfter(ctx context.Context, after store.Revision) *fealtyv1.Leader {
	ctx, cancel := context.WithTimeout(ctx, min(2*e.cfg.Lease, 10*time.Second))
	defer cancel()
	for {
		seen := e.lead.seen.Wait()
		if m := e.Message(); m.GetTerm() > uint64(after) {
			return m
		}
		select {
		case <-seen:
		case <-ctx.Done():
			return &fealtyv1.Leader{NobodyFor: e.Message().GetNobodyFor()}
		}
	}
}
