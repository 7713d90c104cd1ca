package status

import (
	"context"
	"slices"
	"strings"
	"sync"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/mesh"
)

// Ended returns what the ban of a member, which is in force here, ended at each coordinator:
// own is what it ended here, and the others say what it ended there. Nobody knows what one
// that does not answer in time, or is gone, has ended; one stopped in order has no connections.
func (p *Peers) Ended(ctx context.Context, s *authority.State, member string,
	own *fealtyv1.EndedConnections) []*fealtyv1.EndedConnections {
	out := []*fealtyv1.EndedConnections{own}
	req := &fealtyv1.GetEndedRequest{Member: member}
	if t := p.cfg.Bundle.View(); t != nil {
		req.AuthorityEpoch, req.ConfigVersion = t.Epoch, t.Version
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	all, conns, err := p.connect(ctx, s)
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
		if p.presence.Gone(r.Key, p.cfg.Elapsed()) {
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
