package session

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// WatchDemand tells the operator of a tenant what that wants and has, now and with each cycle that
// changed it.
func (s *Server) WatchDemand(req *fealtyv1.WatchDemandRequest, stream fealtyv1.ShardService_WatchDemandServer) error {
	ctx := stream.Context()
	if err := s.speaks(ctx, "", req); err != nil {
		return err
	}
	tenant := req.GetTenant()
	over, err := s.watch(tenant)
	if err != nil {
		return err
	}
	defer over()
	for told := (*fealtyv1.WatchDemandResponse)(nil); ; {
		// Asked for before the state is looked at, so that no change is missed.
		changed := s.cfg.Shard.Changed()
		if now := s.view(tenant); told == nil || !proto.Equal(told, now) {
			if err := stream.Send(now); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Shard.Fenced():
			return errFenced
		case <-changed:
		}
	}
}

// watch counts one more of a tenant, unless there are enough.
func (s *Server) watch(tenant string) (over func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[tenant] >= MaxWatches {
		return nil, status.Errorf(codes.ResourceExhausted, "session: tenant %.128q is watched by %d already: end one of them",
			tenant, MaxWatches)
	}
	s.watches[tenant]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[tenant]--; s.watches[tenant] == 0 {
			delete(s.watches, tenant)
		}
	}, nil
}

// view is what a tenant wants and has.
func (s *Server) view(tenant string) *fealtyv1.WatchDemandResponse {
	shard := s.cfg.Shard
	standing, notices := shard.Standing(tenant), shard.Notices(tenant)
	s.mu.Lock()
	session := s.sessions[tenant] != nil
	s.mu.Unlock()
	v := &fealtyv1.WatchDemandResponse{Shard: s.cfg.Name, Term: s.cfg.Term(), Known: standing.Known, Run: standing.Key.Run,
		Number: standing.Key.Number, Held: standing.Held, Session: session,
		Profiles: capacity(standing.Rows, shard.Capacity(tenant)).GetProfiles()}
	for _, row := range standing.Rows {
		v.Rows = append(v.Rows, &fealtyv1.DemandRow{Profile: row.Profile, Priority: row.Priority, Count: uint32(row.Count)})
	}
	for _, p := range v.GetProfiles() {
		if machines, bounded := shard.Quota(tenant, p.GetProfile()); bounded {
			p.Quota = proto.Uint32(uint32(machines))
		}
	}
	if more := len(notices) - MaxWatchNotices; more > 0 {
		notices, v.MoreNotices = notices[:MaxWatchNotices], uint32(more)
	}
	for _, n := range notices {
		v.Notices = append(v.Notices, &fealtyv1.MachineNotice{Provider: n.Machine.Provider, Machine: n.Machine.ID,
			Profile: n.Profile, Until: timestamppb.New(n.Until.Round(time.Millisecond)), Preempted: n.Kind == scheduler.Preempt})
	}
	return v
}
