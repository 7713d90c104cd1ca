package sharing

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/snapshot"
)

// server serves SharedService.
type server struct {
	fealtyv1.UnimplementedSharedServiceServer
	cfg     Config
	bounds  *bounds
	sampler *ratelimit.LogSampler
	writers ratelimit.Readers // that wait for callers to take what is sent
}

// call is one call under way.
type call struct {
	s      *server
	member string
	ctx    context.Context
	end    func()
	held   []*state.ActiveSnapshot // what the caller may be given
	links  [][]byte
	group  snapshot.Subject // zero: it showed none
}

// begin keeps the bounds, asks the guard, and looks what the caller of ctx may be given.
func (s *server) begin(ctx context.Context, runtime []byte) (begun *call, err error) {
	id := identity.FromContext(ctx).ID
	member := string(id.Kind()) + "/" + id.Name()
	end, err := s.bounds.begin(member, s.cfg.Node.Now())
	if err != nil {
		s.cfg.Answered(Limited)
		return nil, err
	}
	defer func() {
		if begun == nil { // refused, or a panic: the place is not the caller's for ever
			end()
		}
	}()
	c := &call{s: s, member: member, ctx: ctx, end: end}
	if len(runtime) > maxShown {
		s.cfg.Answered(Malformed)
		return nil, errcode.New(errcode.RequestField, "field", "node_runtime", "problem",
			fmt.Sprintf("it has %d bytes, limit %d", len(runtime), maxShown))
	}
	// The caller is judged by the bans and roles that this node knows of, and by nobody else.
	if err := s.cfg.Node.Autonomy.Permit(guard.ValidatePeers); err != nil {
		s.cfg.Answered(Withheld)
		return nil, errcode.Of(err)
	}
	b, now := s.cfg.Node.TrustState(), s.cfg.Node.Now()
	c.group, err = groupOf(b, s.cfg.Node.Autonomy.Facts().PolicyAt(now).Max, id, runtime, now)
	if err != nil {
		s.sampler.Log(ctx, s.cfg.Log, slog.LevelInfo, "a member did not show in which group it is",
			slog.String("member", member), slog.String("reason", state.OneLine(err)))
	}
	c.held, c.links = shared(b, c.group, now), linksOf(b)
	return c, nil
}

// send gives the caller bytes of a list within ctx, by do, and in the time that these bytes may take.
func (c *call) send(ctx context.Context, bytes int, do func() error) error {
	if err := c.s.bounds.give(c.member, bytes, c.s.cfg.Node.Now()); err != nil {
		return err
	}
	return within(ctx, &c.s.writers, ratelimit.TransferTime(int64(bytes)), do)
}

// within has a caller take what do sends in the time that there is for it.
func within(ctx context.Context, writers *ratelimit.Readers, most time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return writers.Do(ctx, do)
}

// answered counts how a call ended.
func (c *call) answered(err error, otherwise string) {
	outcome := otherwise
	if code := errcode.CodeOf(err); code == string(errcode.RateLimited) {
		outcome = Limited
	} else if err != nil {
		outcome = Broken
		if c.ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			c.s.bounds.untaken.Charge(c.member, c.s.cfg.Node.Now(), 1)
		}
	}
	c.s.cfg.Answered(outcome)
}

// listTime bounds a list, whatever is in it, and stallTime each piece of a content: a caller that
// reads nothing holds its place for no longer.
const (
	listTime  = time.Minute
	stallTime = 15 * time.Second
)

func (s *server) ListShared(req *fealtyv1.ListSharedRequest, stream fealtyv1.SharedService_ListSharedServer) error {
	c, err := s.begin(stream.Context(), req.GetNodeRuntime())
	if err != nil {
		return err
	}
	defer c.end()
	err = c.list(req.GetHeld(), stream)
	outcome := Given
	if c.group.IsZero() {
		outcome = TrustOnly
	}
	c.answered(err, outcome)
	return err
}

func (c *call) list(has []*fealtyv1.HeldSnapshot, stream fealtyv1.SharedService_ListSharedServer) error {
	ctx, cancel := context.WithTimeout(c.ctx, listTime)
	defer cancel()
	said := make(map[string]*fealtyv1.HeldSnapshot)
	for _, h := range has[:min(len(has), len(state.Scopes))] {
		said[h.GetScope()] = h
	}
	for _, h := range c.held {
		scope := h.Verified.Header().ScopeType
		if !news(h, said[string(scope)], c.s.cfg.Node.Now()) {
			continue
		}
		raw, err := bare(h)
		if err != nil {
			return errcode.Wrap(err, errcode.Internal, "what", string(scope))
		}
		if scope == snapshot.ScopeTrustBundle {
			if err := c.sendLinks(ctx, stream); err != nil {
				return err
			}
		}
		if err := c.send(ctx, len(raw), func() error {
			return stream.Send(&fealtyv1.ListSharedResponse{News: &fealtyv1.ListSharedResponse_Snapshot{
				Snapshot: &fealtyv1.SignedSnapshot{Scope: string(scope), Envelope: raw}}})
		}); err != nil {
			return err
		}
	}
	return nil
}

// sendLinks sends links of the history: the caller may know an older head than that of the
// bundle which follows.
func (c *call) sendLinks(ctx context.Context, stream fealtyv1.SharedService_ListSharedServer) error {
	size := 0
	for _, l := range c.links {
		size += len(l)
	}
	if size == 0 {
		return nil
	}
	return c.send(ctx, size, func() error {
		return stream.Send(&fealtyv1.ListSharedResponse{News: &fealtyv1.ListSharedResponse_HistoryLinks{
			HistoryLinks: &fealtyv1.HistoryLinks{Links: c.links}}})
	})
}

// bare returns h as it travels: what is signed by itself whole, the others without their
// content.
func bare(h *state.ActiveSnapshot) ([]byte, error) {
	if _, ok := h.Verified.Record(); !ok {
		return h.Raw, nil
	}
	signed, err := snapshot.Unmarshal(h.Raw)
	if err != nil {
		return nil, err
	}
	return signed.With(nil).Marshal()
}

func (s *server) GetShared(req *fealtyv1.GetSharedRequest, stream fealtyv1.SharedService_GetSharedServer) error {
	c, err := s.begin(stream.Context(), req.GetNodeRuntime())
	if err != nil {
		return err
	}
	defer c.end()
	if n := len(req.GetContentHash()); n != sha256.Size {
		s.cfg.Answered(Malformed)
		return errcode.New(errcode.RequestField, "field", "content_hash", "problem",
			fmt.Sprintf("it has %d bytes, a SHA-256 has %d", n, sha256.Size))
	}
	hash := snapshot.Digest(req.GetContentHash())
	i := slices.IndexFunc(c.held, func(h *state.ActiveSnapshot) bool { return h.Verified.Header().ContentHash == hash })
	if i < 0 {
		// The same for what others have and for what nobody has.
		s.cfg.Answered(Absent)
		return errcode.New(errcode.NotFound, "what", "content", "name", hash.String())
	}
	err = c.sendContent(c.held[i].Verified.ContentJSON(), stream)
	c.answered(err, Given)
	return err
}

// sendContent copies no more of a content than one message holds: callers that read slowly are many.
func (c *call) sendContent(content string, stream fealtyv1.SharedService_GetSharedServer) error {
	if err := c.s.bounds.give(c.member, len(content), c.s.cfg.Node.Now()); err != nil {
		return err
	}
	return inPieces(c.ctx, &c.s.writers, content, func(piece []byte) error {
		return stream.Send(&fealtyv1.GetSharedResponse{Chunk: piece})
	})
}

// inPieces sends content piece by piece: each in stallTime, and all of them in the time that so many
// bytes may take.
func inPieces(ctx context.Context, writers *ratelimit.Readers, content string, send func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, ratelimit.TransferTime(int64(len(content))))
	defer cancel()
	for len(content) > 0 {
		piece := []byte(content[:min(len(content), chunkBytes)])
		if err := within(ctx, writers, stallTime, func() error { return send(piece) }); err != nil {
			return err
		}
		content = content[len(piece):]
	}
	return nil
}

// recovered keeps a handler that panics from ending the agent.
func (s *server) recovered(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ratelimit.Panicked(stream.Context(), s.cfg.Log, info.FullMethod, p)
		}
	}()
	return handler(srv, stream)
}
