package coordinator

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/mesh"
)

// endedLately is for how long a coordinator tells what a ban ended: it may have heard of
// the ban from the store before it is asked.
const endedLately = 10 * time.Second

// endedEverywhere returns what the ban of id, which is in force here, ended at each
// coordinator: here after mark, and elsewhere as each says. Nobody knows what one that
// does not answer in time, or is gone, has ended; one stopped in order has no connections.
func (c *Membership) endedEverywhere(ctx context.Context, s *authority.State, id identity.ID,
	mark uint64) []*fealtyv1.EndedConnections {
	member := string(id.Kind()) + "/" + id.Name()
	own := &fealtyv1.EndedConnections{Coordinator: c.cfg.Self.NameIn(s.Manifest), Answered: true,
		Connections: c.ended.After(member, mark)}
	out := []*fealtyv1.EndedConnections{own}
	req := &fealtyv1.GetEndedRequest{Member: member}
	if t := c.cfg.Bundle.View(); t != nil {
		req.AuthorityEpoch, req.ConfigVersion = t.Epoch, t.Version
	}
	ctx, cancel := context.WithTimeout(ctx, askOthers)
	defer cancel()
	all, conns, err := c.others.connect(ctx, c, s)
	if err != nil {
		// Nobody says who runs; the manifest says who may.
		for _, e := range s.Manifest.Admit {
			if e.Kind == identity.Coordinator && e.Name != own.Coordinator {
				out = append(out, &fealtyv1.EndedConnections{Coordinator: e.Name})
			}
		}
		return out
	}
	var asked sync.WaitGroup
	for i, r := range all {
		there := &fealtyv1.EndedConnections{Coordinator: r.Name}
		out = append(out, there)
		if c.presence.Gone(r.Key, c.cfg.Elapsed()) {
			continue
		}
		asked.Go(func() {
			resp, err := firstAnswer(ctx, conns[i],
				func(ctx context.Context, conn *mesh.Conn) (*fealtyv1.GetEndedResponse, error) {
					return fealtyv1.NewLiveServiceClient(conn).GetEnded(ctx, req)
				})
			if err == nil {
				there.Answered, there.Connections = true, resp.GetConnections()
			}
		})
	}
	asked.Wait()
	slices.SortStableFunc(out,
		func(a, b *fealtyv1.EndedConnections) int { return strings.Compare(a.Coordinator, b.Coordinator) })
	return out
}

// GetEnded brings the bans in force here up to those of the store, and counts what ended.
func (l liveServer) GetEnded(ctx context.Context, req *fealtyv1.GetEndedRequest) (*fealtyv1.GetEndedResponse, error) {
	c := l.c
	if err := c.cfg.Bundle.Apply(ctx); err != nil {
		return nil, err
	}
	asked := &bundle.View{Epoch: req.GetAuthorityEpoch(), Version: req.GetConfigVersion()}
	if t := c.cfg.Bundle.View(); t == nil || asked.Newer(t) {
		return nil, record.Busy("trust bundle")
	}
	c.cfg.Guard.Sweep(ctx) // another one may have brought the bundle, and be about to
	return &fealtyv1.GetEndedResponse{Connections: c.ended.Since(req.GetMember(), c.cfg.Now().Add(-endedLately))}, nil
}
