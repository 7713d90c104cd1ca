package delivery

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/errcode"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/snapshot"
)

// Limits on what members pull.
const (
	// pullsPerSecond and PullBurst bound the pulls and polls of one member: a member
	// that comes back pulls each of its scopes once.
	pullsPerSecond = 1
	PullBurst      = 32
	// PullsAtOnce bounds those of one member that are under way.
	PullsAtOnce = 4
	// chunkBytes is how much of a content one message holds: little, so that who reads
	// slowly sees that it comes.
	chunkBytes = 16 << 10
	// maxPullers bounds the members whose rate is remembered.
	maxPullers = 1 << 14
)

// pullLimiter bounds what members pull, for each of them.
type pullLimiter struct {
	rates *ratelimit.PerKey

	mu       sync.Mutex
	underWay map[string]int // by member, those with any; guarded by mu
}

func newPullLimiter() *pullLimiter {
	return &pullLimiter{rates: ratelimit.NewPerKey(pullsPerSecond, PullBurst, maxPullers),
		underWay: make(map[string]int)}
}

// count returns how many members have pulls under way.
func (l *pullLimiter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.underWay)
}

// start begins a pull of the member, and returns what ends it.
func (l *pullLimiter) start(member string, now time.Time) (end func(), err error) {
	if !l.rates.Allow(member, now) {
		return nil, errcode.New(errcode.RateLimited, "what", "pulls of "+member,
			"limit", fmt.Sprintf("%d per second, %d at once", pullsPerSecond, PullBurst))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay[member] == PullsAtOnce {
		return nil, errcode.New(errcode.RateLimited, "what", "pulls of "+member,
			"limit", fmt.Sprintf("%d under way", PullsAtOnce))
	}
	l.underWay[member]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.underWay[member]--; l.underWay[member] == 0 {
			delete(l.underWay, member)
		}
	}, nil
}

// snapshotServer serves SnapshotService.
type snapshotServer struct {
	fealtyv1.UnimplementedSnapshotServiceServer
	c *Delivery
}

func (s snapshotServer) GetContent(req *fealtyv1.GetContentRequest,
	stream fealtyv1.SnapshotService_GetContentServer) error {
	c := s.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return err
	}
	id := identity.FromContext(stream.Context()).ID
	member := string(id.Kind()) + "/" + id.Name()
	var hash snapshot.Digest
	if len(req.GetContentHash()) != sha256.Size {
		return errcode.New(errcode.RequestField,
			"field", "content_hash", "problem", fmt.Sprintf("it has %d bytes, a SHA-256 has %d",
				len(req.GetContentHash()), sha256.Size))
	}
	copy(hash[:], req.GetContentHash())
	end, err := c.pulls.start(member, c.cfg.Now())
	if err != nil {
		return err
	}
	defer end()
	content := c.cfg.Publication.View().ContentFor(id, hash)
	if content == nil {
		// The same for what others have and for what nobody has.
		return errcode.New(errcode.NotFound, "what", "content", "name", hash.String())
	}
	ctx, cancel := context.WithTimeout(stream.Context(), ratelimit.TransferTime(int64(len(content))))
	defer cancel()
	for chunk := range slices.Chunk(content, chunkBytes) {
		if err := c.cfg.Readers.Do(ctx,
			func() error { return stream.Send(&fealtyv1.GetContentResponse{Chunk: chunk}) }); err != nil {
			return err
		}
	}
	return nil
}

// maxPollTime bounds a poll, whatever its answer.
const maxPollTime = time.Minute

func (s snapshotServer) Poll(req *fealtyv1.PollRequest, stream fealtyv1.SnapshotService_PollServer) error {
	c := s.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return err
	}
	id := identity.FromContext(stream.Context()).ID
	end, err := c.pulls.start(string(id.Kind())+"/"+id.Name(), c.cfg.Now())
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(stream.Context(), maxPollTime)
	defer cancel()
	if err := c.cfg.Membership.Presents(ctx, identity.FromContext(ctx)); err != nil {
		return err
	}
	if _, ok := c.cfg.Membership.Roster().Find(string(id.Kind()) + "/" + id.Name()); ok &&
		req.GetInterval().CheckValid() == nil {
		c.cfg.Membership.Live().Polls(id, req.GetInterval().AsDuration())
	}
	d := c.NewSender(poller{c, ctx, stream}, id, req.GetHeld())
	if err := d.SendTrust(); err != nil {
		return err
	}
	return d.SendPublished(ctx)
}

// poller is who polls, as a listener. It is told for no longer than its context
// lasts.
type poller struct {
	c      *Delivery
	ctx    context.Context
	stream fealtyv1.SnapshotService_PollServer
}

func (p poller) Context() context.Context { return p.ctx }

func (p poller) Send(m *News) error {
	out := &fealtyv1.PollResponse{}
	switch news := m.GetNews().(type) {
	case *fealtyv1.ConnectResponse_Snapshot:
		out.News = &fealtyv1.PollResponse_Snapshot{Snapshot: news.Snapshot}
	case *fealtyv1.ConnectResponse_RenewNow:
		out.News = &fealtyv1.PollResponse_RenewNow{RenewNow: news.RenewNow}
	case *fealtyv1.ConnectResponse_RootChanges:
		out.News = &fealtyv1.PollResponse_RootChanges{RootChanges: news.RootChanges}
	case *fealtyv1.ConnectResponse_HistoryLinks:
		out.News = &fealtyv1.PollResponse_HistoryLinks{HistoryLinks: news.HistoryLinks}
	default:
		return nil // of no use to who does not listen
	}
	return p.c.cfg.Readers.Do(p.ctx, func() error { return p.stream.Send(out) })
}

func (s snapshotServer) GetSnapshot(_ context.Context, req *fealtyv1.GetSnapshotRequest) (*fealtyv1.GetSnapshotResponse,
	error) {
	c := s.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	scope := snapshot.Scope(req.GetScope())
	if !slices.Contains(snapshot.Scopes(), scope) {
		return nil, errcode.New(errcode.NotFound, "what", "scope", "name",
			ratelimit.Clip(req.GetScope(), live.MaxReleaseBytes))
	}
	if scope == snapshot.ScopeTrustBundle {
		if t := c.cfg.Bundle.View(); t != nil {
			return &fealtyv1.GetSnapshotResponse{Snapshot: t.Message()}, nil
		}
	}
	if p := c.cfg.Publication.View(); p.Serves() {
		for _, i := range p.Of(identity.Kind(req.GetKind()), req.GetName()) {
			if p.Header(i).Scope != scope {
				continue
			}
			m, err := p.Message(i)
			if err != nil {
				return nil, err
			}
			return &fealtyv1.GetSnapshotResponse{Snapshot: m}, nil
		}
	}
	return nil, errcode.New(errcode.NotFound, "what", string(scope)+" of", "name",
		ratelimit.Clip(req.GetKind()+"/"+req.GetName(), internalidentity.MaxIDBytes))
}
