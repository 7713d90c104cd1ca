package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// A node hears on its stream what is news. If it hears nothing until what it holds is
// about to be stale, the stream may be dead on its other side, or its coordinator cut
// off: then the node asks, one source after the other, over connections of their own.

// Times of asking.
const (
	// refreshPart is the part of a snapshot's freshness in which the node asks, at a
	// random moment, so that a fleet does not ask as one.
	refreshPart = 0.1
	// refreshLook bounds for how long a change of what is fresh goes unseen.
	refreshLook = time.Minute
	// refreshGrace is what a stream gets at the start before anybody else is asked.
	refreshGrace = 30 * time.Second
	// refreshPause is after a round without news, and doubles up to maxRefreshPause.
	refreshPause    = 30 * time.Second
	maxRefreshPause = 5 * time.Minute
	// newsTime bounds what one source takes to say what it has.
	newsTime = time.Minute
)

// refresh asks sources whenever the stream brought no news in time, until ctx ends.
func (a *Agent) refresh(ctx context.Context) error {
	if err := sleep(ctx, around(refreshGrace, 0.5), nil); err != nil {
		return err
	}
	pause, at, of := refreshPause, time.Time{}, time.Time{}
	for {
		since, until := a.node.Beliefs().FreshSpan()
		if !until.Equal(of) {
			lead := time.Duration(refreshPart * rand.Float64() * float64(until.Sub(since)))
			of, at, pause = until, until.Add(-lead), refreshPause
		}
		if wait := at.Sub(a.node.Now()); wait > 0 {
			if err := sleep(ctx, min(wait, refreshLook), nil); err != nil {
				return err
			}
			continue
		}
		a.inquire(ctx)
		if _, now := a.node.Beliefs().FreshSpan(); now.After(until) {
			continue
		}
		if err := sleep(ctx, around(pause, 0.5), nil); err != nil {
			return err
		}
		pause = min(2*pause, maxRefreshPause)
	}
}

// inquire asks all sources; see inquireOf.
func (a *Agent) inquire(ctx context.Context) { a.inquireOf(ctx, a.sources()) }

// inquireOf asks sources, one after the other, until what the node lives by is fresh for
// longer than it was, and it has all that it is to hold. What one of them cannot or will
// not say another may. It closes them.
func (a *Agent) inquireOf(ctx context.Context, all []source) {
	ctx, cancel := context.WithTimeout(ctx, cycleTime)
	defer cancel()
	_, before := a.node.Beliefs().FreshSpan()
	defer closeAll(all)
	if !a.presentable(ctx) { // a mirror does not ask who reads it
		all = slices.DeleteFunc(all, func(s source) bool { return s.From() == state.ByCoordinator })
	}
	left := maxCycleBytes
	for i, s := range all {
		if ctx.Err() != nil {
			return
		}
		others := func() []source { return slices.Concat(all[i:], all[:i]) }
		outcome := "none"
		if err := a.inquireAt(ctx, s, others, &left); err != nil {
			outcome = "error"
			a.log.LogAttrs(ctx, slog.LevelDebug, "no news from a source", slog.String("source", s.Name()), slog.String("reason", state.OneLine(err)))
		}
		b := a.node.Beliefs()
		_, until := b.FreshSpan()
		news := until.After(before) && until.After(a.node.Now()) && len(b.Lacks()) == 0
		if news {
			outcome = "news"
		}
		a.metrics.asked.WithLabelValues(string(s.From()), outcome).Inc()
		if news {
			a.log.LogAttrs(ctx, slog.LevelInfo, "news from a source that was asked", slog.String("source", s.Name()))
			if a.node.Status().View().Connected {
				state.Poke(a.leaveStream) // it brought nothing of this
			}
			return
		}
	}
}

// inquireAt takes in what one source has.
func (a *Agent) inquireAt(ctx context.Context, s source, others func() []source, left *int) error {
	c, more := s.(continued)
	missed, err := a.inquireOnce(ctx, s, others, left)
	for err == nil && more && c.More() {
		var again bool
		again, err = a.inquireOnce(ctx, s, others, left)
		missed = missed || again
	}
	if err == nil && more && !missed {
		c.Done()
	}
	return err
}

// continued is a source that has more to say once what it said was taken in.
type continued interface {
	// More reports whether it is to be asked once more.
	More() bool
	// Done says that all that it said was taken in.
	Done()
}

// inquireOnce takes in what a source says at once. It reports whether a content was not
// got.
func (a *Agent) inquireOnce(ctx context.Context, s source, others func() []source, left *int) (missed bool, err error) {
	asking, cancel := context.WithTimeout(ctx, newsTime)
	notices, err := s.News(asking, a.have())
	cancel()
	if err != nil {
		return false, err
	}
	if len(notices) > maxNotices {
		return false, fmt.Errorf("%d notices at once, limit %d", len(notices), maxNotices)
	}
	slices.SortStableFunc(notices, func(x, y notice) int { return state.OrderOf(x.scope) - state.OrderOf(y.scope) })
	in := &intake{a: a, from: s.From(), sources: others, left: left}
	for _, n := range notices {
		if *left -= len(n.raw); *left < 0 {
			return false, fmt.Errorf("more than %d bytes in a round", maxCycleBytes)
		}
		if err := in.take(ctx, n); err != nil {
			return false, err
		}
	}
	return in.missed, nil
}

// have names what is in use, without what is to come whole.
func (a *Agent) have() []*fealtyv1.HeldSnapshot {
	due := a.resyncs.due()
	return slices.DeleteFunc(a.held(), func(h *fealtyv1.HeldSnapshot) bool { return slices.Contains(due, h.GetScope()) })
}

// sources returns whom to ask, in their order: coordinators at random, then mirrors.
func (a *Agent) sources() []source {
	var out []source
	for _, address := range a.addresses() {
		out = append(out, &coordinatorSource{a: a, address: address})
	}
	return append(out, a.mirrorSources()...)
}

// sourcesAfter returns first, and then the others.
func (a *Agent) sourcesAfter(first source) []source {
	rest := slices.DeleteFunc(a.sources(), func(s source) bool { return s.Name() == first.Name() })
	return append([]source{first}, rest...)
}

// coordinatorSource is a coordinator that is asked, over a connection of its own that
// is made when it is needed, or over that of a stream.
type coordinatorSource struct {
	a       *Agent
	address string
	conn    grpc.ClientConnInterface // nil: not connected yet
	own     *mesh.Conn               // conn, if it is to be closed
}

func (s *coordinatorSource) Name() string       { return "coordinator " + s.address }
func (s *coordinatorSource) From() state.Origin { return state.ByCoordinator }

func (s *coordinatorSource) client() (fealtyv1.SnapshotServiceClient, error) {
	if s.conn == nil {
		conn, err := mesh.Dial(enroll.Target(s.address), s.a.node.Source(), credential.AnyOfKind(identity.Coordinator), s.a.meshOptions())
		if err != nil {
			return nil, err
		}
		s.conn, s.own = conn, conn
	}
	return fealtyv1.NewSnapshotServiceClient(s.conn), nil
}

// Close ends the connection if it is its own.
func (s *coordinatorSource) Close() error {
	if s.own == nil {
		return nil
	}
	own := s.own
	s.conn, s.own = nil, nil
	return own.Close()
}

func (s *coordinatorSource) News(ctx context.Context, have []*fealtyv1.HeldSnapshot) ([]notice, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Poll(ctx, &fealtyv1.PollRequest{Name: s.a.node.Me().ID.Name(), Held: have, Interval: durationpb.New(maxRefreshPause)})
	if err != nil {
		return nil, err
	}
	var out []notice
	size := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		switch news := m.GetNews().(type) {
		case *fealtyv1.PollResponse_Snapshot:
			n := notice{news.Snapshot.GetScope(), news.Snapshot.GetEnvelope()}
			if size += len(n.raw); len(out) == maxNotices || size > maxCycleBytes {
				return nil, fmt.Errorf("more than %d notices or %d bytes", maxNotices, maxCycleBytes)
			}
			out = append(out, n)
		case *fealtyv1.PollResponse_RenewNow:
			s.a.hearRenew(news.RenewNow)
		case *fealtyv1.PollResponse_RootChanges:
			s.a.hearRoots(ctx, news.RootChanges)
		case *fealtyv1.PollResponse_HistoryLinks:
			s.a.node.HearLinks(ctx, news.HistoryLinks.GetLinks())
		}
	}
}

// maxChunkBytes bounds one message of a content.
const maxChunkBytes = 1 << 20

func (s *coordinatorSource) Content(ctx context.Context, _ snapshot.Scope, hash snapshot.Digest, _ int) (io.ReadCloser, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.GetContent(ctx, &fealtyv1.GetContentRequest{Name: s.a.node.Me().ID.Name(), ContentHash: hash[:]}, grpc.MaxCallRecvMsgSize(maxChunkBytes))
	if err != nil {
		cancel()
		return nil, err
	}
	return &chunks{stream: stream, cancel: cancel}, nil
}

// chunks are the messages of a content, as one.
type chunks struct {
	stream grpc.ServerStreamingClient[fealtyv1.GetContentResponse]
	cancel context.CancelFunc
	rest   []byte
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		m, err := c.stream.Recv()
		if err != nil {
			return 0, err // io.EOF at the end
		}
		if c.rest = m.GetChunk(); len(c.rest) == 0 {
			return 0, errors.New("a part without bytes")
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *chunks) Close() error {
	c.cancel()
	return nil
}
