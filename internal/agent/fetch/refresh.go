package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	pausepkg "github.com/fealty-io/fealty/internal/platform/clock"
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
	// NewsTime bounds what one source takes to say what it has.
	NewsTime = time.Minute
)

// Refresh asks sources whenever the stream brought no news in time, until ctx ends.
func (f *Fetcher) Refresh(ctx context.Context) error {
	if err := pausepkg.Sleep(ctx, pausepkg.Around(refreshGrace, 0.5), nil); err != nil {
		return err
	}
	pause, at, of := refreshPause, time.Time{}, time.Time{}
	for {
		since, until := f.Node.TrustState().FreshSpan()
		if !until.Equal(of) {
			lead := time.Duration(refreshPart * rand.Float64() * float64(until.Sub(since)))
			of, at, pause = until, until.Add(-lead), refreshPause
		}
		if wait := at.Sub(f.Node.Now()); wait > 0 {
			if err := pausepkg.Sleep(ctx, min(wait, refreshLook), nil); err != nil {
				return err
			}
			continue
		}
		f.Inquire(ctx)
		if _, now := f.Node.TrustState().FreshSpan(); now.After(until) {
			continue
		}
		if err := pausepkg.Sleep(ctx, pausepkg.Around(pause, 0.5), nil); err != nil {
			return err
		}
		pause = min(2*pause, maxRefreshPause)
	}
}

// Inquire asks all sources, and peers if none of the others has what the node lives by; see
// [Fetcher.InquireOf].
func (f *Fetcher) Inquire(ctx context.Context) {
	if !f.InquireOf(ctx, f.sources()) && ctx.Err() == nil {
		f.InquireOf(ctx, f.peerSources())
	}
}

// InquireOf asks sources, one after the other, until what the node lives by is fresh for
// longer than it was, and it has all that it is to hold; it reports whether that is so.
// Another may say what one of them cannot or will not. It closes them.
func (f *Fetcher) InquireOf(ctx context.Context, all []Source) bool {
	ctx, cancel := context.WithTimeout(ctx, CycleTime)
	defer cancel()
	_, before := f.Node.TrustState().FreshSpan()
	defer closeAll(all)
	if !f.Contact.Presentable(ctx) { // a mirror does not ask who reads it
		all = slices.DeleteFunc(all, func(s Source) bool { return s.From() != byMirror })
	}
	left := maxCycleBytes
	for i, s := range all {
		if ctx.Err() != nil {
			return false
		}
		others := func() []Source { return slices.Concat(all[i:], all[:i]) }
		held, outcome := f.Node.TrustState().Active, "none"
		if err := f.inquireAt(ctx, s, others, &left); err != nil {
			outcome = "error"
			level := slog.LevelDebug
			if s.From() == byPeer { // few are asked, and seldom; another one may be asked next
				level = slog.LevelInfo
			}
			f.Log.LogAttrs(ctx, level, "no news from a source", slog.String("source", s.Name()),
				slog.String("reason", state.OneLine(err)))
		}
		b := f.Node.TrustState()
		_, until := b.FreshSpan()
		news := until.After(before) && until.After(f.Node.Now()) && len(b.Lacks()) == 0
		// A peer has no news of what the node is, so that what it brought is never all.
		some := news || s.From() == byPeer && !maps.Equal(held, b.Active)
		if some {
			outcome = "news"
			f.Log.LogAttrs(ctx, slog.LevelInfo, "news from a source that was asked", slog.String("source", s.Name()))
		}
		f.Count.Asked(string(s.From()), outcome)
		if news {
			if f.Node.Status().View().Connected {
				state.Notify(f.LeaveStream) // it brought nothing of this
			}
			return true
		}
	}
	return false
}

// inquireAt takes in what one source has.
func (f *Fetcher) inquireAt(ctx context.Context, s Source, others func() []Source, left *int) error {
	c, more := s.(continued)
	missed, err := f.inquireOnce(ctx, s, others, left)
	for err == nil && more && c.More() {
		var again bool
		again, err = f.inquireOnce(ctx, s, others, left)
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
func (f *Fetcher) inquireOnce(ctx context.Context, s Source, others func() []Source, left *int) (missed bool,
	err error) {
	asking, cancel := context.WithTimeout(ctx, NewsTime)
	notices, err := s.News(asking, f.have())
	cancel()
	if err != nil {
		return false, err
	}
	if len(notices) > maxNotices {
		return false, fmt.Errorf("%d notices at once, limit %d", len(notices), maxNotices)
	}
	slices.SortStableFunc(notices, func(x, y Notice) int { return state.OrderOf(x.Scope) - state.OrderOf(y.Scope) })
	in := &SourceFetcher{F: f, From: s.From(), Giver: s.Name(), Sources: others, left: left}
	for _, n := range notices {
		if *left -= len(n.Raw); *left < 0 {
			return false, fmt.Errorf("more than %d bytes in a round", maxCycleBytes)
		}
		if err := in.Take(ctx, n); err != nil {
			return false, err
		}
	}
	return in.missed, nil
}

// have names what is in use, without what is to come whole.
func (f *Fetcher) have() []*fealtyv1.HeldSnapshot {
	due := f.Resyncs.Due()
	return slices.DeleteFunc(accept.HeldBy(f.Node.TrustState(), f.Node.Now()),
		func(h *fealtyv1.HeldSnapshot) bool { return slices.Contains(due, h.GetScope()) })
}

// Over is the coordinator at address, over a connection that somebody else closes.
func (f *Fetcher) Over(address string, conn grpc.ClientConnInterface) Source {
	return &coordinatorSource{f: f, address: address, conn: conn}
}

// SourceFetcher returns one that has pull get the contents that are lacking.
func (f *Fetcher) SourceFetcher(of Source, pull func(lacking)) *SourceFetcher {
	return &SourceFetcher{F: f, From: of.From(), Giver: of.Name(), pull: pull}
}

// sources returns whom to ask, in their order: coordinators at random, then mirrors.
func (f *Fetcher) sources() []Source {
	var out []Source
	for _, address := range f.Contact.Addresses() {
		out = append(out, &coordinatorSource{f: f, address: address})
	}
	return append(out, f.mirrorSources()...)
}

// SourcesAfter returns first, and then the others.
func (f *Fetcher) SourcesAfter(first Source) []Source {
	rest := slices.DeleteFunc(f.sources(), func(s Source) bool { return s.Name() == first.Name() })
	return append([]Source{first}, rest...)
}

// coordinatorSource is a coordinator that is asked, over a connection of its own that
// is made when it is needed, or over that of a stream.
type coordinatorSource struct {
	f       *Fetcher
	address string
	conn    grpc.ClientConnInterface // nil: not connected yet
	own     *mesh.Conn               // conn, if it is to be closed
}

func (s *coordinatorSource) Name() string       { return "coordinator " + s.address }
func (s *coordinatorSource) From() state.Origin { return state.ByCoordinator }

func (s *coordinatorSource) client() (fealtyv1.SnapshotServiceClient, error) {
	if s.conn == nil {
		conn, err := s.f.pool.Dial(enroll.Target(s.address), s.f.Node.Source(),
			credential.AnyOfKind(identity.Coordinator))
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

func (s *coordinatorSource) News(ctx context.Context, have []*fealtyv1.HeldSnapshot) ([]Notice, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Poll(ctx, &fealtyv1.PollRequest{Name: s.f.Node.Me().ID.Name(), Held: have,
		Interval: durationpb.New(maxRefreshPause)})
	if err != nil {
		return nil, err
	}
	var out []Notice
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
			n := Notice{news.Snapshot.GetScope(), news.Snapshot.GetEnvelope()}
			if size += len(n.Raw); len(out) == maxNotices || size > maxCycleBytes {
				return nil, fmt.Errorf("more than %d notices or %d bytes", maxNotices, maxCycleBytes)
			}
			out = append(out, n)
		case *fealtyv1.PollResponse_RenewNow:
			s.f.HearRenew(news.RenewNow)
		case *fealtyv1.PollResponse_RootChanges:
			s.f.HearRoots(ctx, news.RootChanges)
		case *fealtyv1.PollResponse_HistoryLinks:
			s.f.Node.HearLinks(ctx, news.HistoryLinks.GetLinks())
		}
	}
}

// maxChunkBytes bounds one message of a content.
const maxChunkBytes = 1 << 20

func (s *coordinatorSource) Content(ctx context.Context, _ snapshot.Scope, hash snapshot.Digest, _ int) (io.ReadCloser,
	error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.GetContent(ctx, &fealtyv1.GetContentRequest{Name: s.f.Node.Me().ID.Name(),
		ContentHash: hash[:]}, grpc.MaxCallRecvMsgSize(maxChunkBytes))
	if err != nil {
		cancel()
		return nil, err
	}
	return &chunks{cancel: cancel, next: func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk(), err
	}}, nil
}

// chunks are the messages of a content, as one.
type chunks struct {
	next   func() ([]byte, error) // io.EOF at the end
	cancel context.CancelFunc
	rest   []byte
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		var err error
		if c.rest, err = c.next(); err != nil {
			return 0, err
		}
		if len(c.rest) == 0 {
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

// HearRoots has the node follow another root, if the signers authorized one.
func (f *Fetcher) HearRoots(ctx context.Context, m *fealtyv1.RootChanges) {
	if f.Node.HearChanges(ctx, m.GetChanges()) {
		f.Demand("the cluster has another root")
	}
}

// HearRenew has the node renew, as a coordinator asks.
func (f *Fetcher) HearRenew(m *fealtyv1.RenewNow) {
	f.Demand(state.Clip(m.GetReason(), state.MaxDetailBytes))
}
