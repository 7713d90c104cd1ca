package member

import (
	"context"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// liveServer serves LiveService.
type liveServer struct {
	fealtyv1.UnimplementedLiveServiceServer
	c *Membership
}

func (l liveServer) ListLive(req *fealtyv1.ListLiveRequest, stream fealtyv1.LiveService_ListLiveServer) error {
	s, err := l.c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	if path := req.GetMember(); path != "" {
		kind, name, _ := strings.Cut(path, "/")
		id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
		if err != nil {
			return errcode.New(errcode.RequestField, "field", "member", "problem", "it is not <kind>/<name>")
		}
		live := l.c.live.Whole(id)
		if live == nil {
			return nil
		}
		return stream.Send(&fealtyv1.ListLiveResponse{Members: []*fealtyv1.LiveMember{{Member: path, Live: live}}})
	}
	for page := range slices.Chunk(l.c.live.All(), status.LivePage) {
		out := &fealtyv1.ListLiveResponse{}
		for _, id := range page {
			if live := l.c.live.Message(id); live != nil {
				out.Members = append(out.Members,
					&fealtyv1.LiveMember{Member: string(id.Kind()) + "/" + id.Name(), Live: live})
			}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}

// foundHere is what this coordinator tells the others: they cannot find it themselves.
func (m *Membership) foundHere(s *authority.State) []*fealtyv1.Finding {
	out := append(m.cfg.Found(s), m.OlderKeyFindings()...)
	return out[:min(len(out), status.MaxFindings)]
}

// endedLately is for how long a coordinator tells what a ban ended: it may have heard of
// the ban from the store before it is asked.
const endedLately = 10 * time.Second

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

func (l liveServer) GetSeen(_ context.Context, req *fealtyv1.GetSeenRequest) (*fealtyv1.GetSeenResponse, error) {
	c := l.c
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.GetSeenResponse{Restored: s.RestoredEpoch(), Revision: c.cfg.StoreGuard.Revision(),
		Lost: c.cfg.StoreGuard.Lost() != nil, Findings: c.foundHere(s)}
	if t := c.cfg.Bundle.View(); t != nil && t.Newer(&bundle.View{Epoch: req.GetAuthorityEpoch(),
		Version: req.GetConfigVersion()}) {
		out.TrustBundle = t.Message()
	}
	return out, nil
}

// NoteStreams has streams here give way to newer ones elsewhere.
func (l liveServer) NoteStreams(_ context.Context, req *fealtyv1.NoteStreamsRequest) (*fealtyv1.NoteStreamsResponse,
	error) {
	c := l.c
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	if n := len(req.GetStreams()); n > OpeningsPage {
		return nil, errcode.New(errcode.RequestField, "field", "streams", "problem", "it names more than 1,000 streams")
	}
	for _, o := range req.GetStreams() {
		rec, ok := c.members.Find(o.GetMember())
		run := RunOf(o.GetRun())
		if !ok || run == "" {
			continue
		}
		if id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name); err == nil {
			c.copies.Opened(o.GetMember(), run, o.GetFrom(), c.cfg.Now()) // who serves it raises the alarm
			c.live.OpenedElsewhere(id, run)
		}
	}
	return &fealtyv1.NoteStreamsResponse{}, nil
}
