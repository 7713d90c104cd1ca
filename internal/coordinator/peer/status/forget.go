package status

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

// coordinatorServer serves CoordinatorService.
type coordinatorServer struct {
	fealtyv1.UnimplementedCoordinatorServiceServer
	p *Peers
}

func (x coordinatorServer) ForgetCoordinator(ctx context.Context,
	req *fealtyv1.ForgetCoordinatorRequest) (*fealtyv1.ForgetCoordinatorResponse, error) {
	p := x.p
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	var out *fealtyv1.ForgetCoordinatorResponse
	err := p.cfg.Head.Transact(ctx, "coordinator "+ratelimit.Clip(req.GetName(), ratelimit.MaxShownBytes),
		func(s *authority.State) (err error) {
			out, err = p.forgetCoordinator(ctx, s, req)
			return err
		})
	return out, err
}

// forgetCoordinator removes what the coordinators of a name said of themselves that stopped
// or are not heard.
func (p *Peers) forgetCoordinator(ctx context.Context, s *authority.State,
	req *fealtyv1.ForgetCoordinatorRequest) (*fealtyv1.ForgetCoordinatorResponse, error) {
	const what = "forget a coordinator"
	name := req.GetName()
	// Those are forgotten too that are not told of any more, a bounded number at a time.
	all, err := p.cfg.Replicas.All(ctx, s.Manifest)
	if err != nil {
		return nil, p.cfg.Head.StoreError(what, err)
	}
	all = slices.DeleteFunc(all, func(r peer.Record) bool { return r.Name != name })
	all = all[:min(len(all), peer.Max)]
	if len(all) == 0 {
		return nil, errcode.New(errcode.NotFound, "what", "coordinator", "name",
			ratelimit.Clip(name, ratelimit.MaxShownBytes))
	}
	out := &fealtyv1.ForgetCoordinatorResponse{}
	ch := s.Records.NewChange(s.HeadVersion)
	now, heard := p.cfg.Elapsed(), ""
	for _, r := range all {
		switch silent, _ := p.presence.Silent(r.Key, now); {
		case r.Key == p.cfg.Self.EnrolmentKey():
			heard = "it is the one that was asked"
			continue
		case !r.Stopped && !p.presence.Gone(r.Key, now):
			heard = fmt.Sprintf("it answered %v ago, or this coordinator has listened for no longer",
				silent.Round(time.Second))
			continue
		}
		key, err := proof.ParseKeyClaim(r.Key)
		if err != nil {
			return nil, err
		}
		at, err := peer.Key(key)
		if err != nil {
			return nil, err
		}
		ch.Delete(at, r.Version)
		out.Forgotten = append(out.Forgotten, r.Message(p.cfg.Self.EnrolmentKey()))
	}
	if len(out.Forgotten) == 0 {
		return nil, errcode.New(errcode.CoordinatorHeard, "name", name, "problem", heard)
	}
	if req.GetDryRun() {
		return out, nil
	}
	ch.Audit(p.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "coordinator.forget", Target: name,
		Reason: req.GetReason()})
	if err := p.cfg.Faults.Hit("coordinator.forget"); err != nil {
		return nil, err
	}
	if _, err := ch.Commit(ctx); err != nil {
		return nil, p.cfg.Head.CommitError(what, err)
	}
	p.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a coordinator was forgotten", slog.String("name", name),
		slog.String("by", record.Actor(ctx)))
	p.askAll(ctx, s, patience) // so that the finding is gone with the answer
	return out, nil
}
