package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/mesh"
)

// Times and bounds of asking other coordinators.
const (
	// askOthers bounds how long the others are waited for: people wait meanwhile.
	askOthers = time.Second
	// othersFresh is for how long what they said is not asked again.
	othersFresh = 250 * time.Millisecond
	// livePage is how many members one message tells of, and maxLivePages how many
	// messages of one coordinator are read.
	livePage     = 500
	maxLivePages = 2000
)

// others is what other coordinators hear of members, as they said when they were
// asked last. It is memory only, and decides nothing but to be careful.
type others struct {
	asking chan struct{} // held by who asks; capacity 1

	mu     sync.Mutex
	at     time.Time                 // of the last answers, monotonic; guarded by mu
	live   map[string]*fealtyv1.Live // by "<kind>/<name>"; guarded by mu
	silent []replicas.Record         // coordinators that did not answer, sorted; guarded by mu
	lost   bool                      // nobody could say which others there are; guarded by mu
	known  []replicas.Record         // as the store named them last; guarded by mu
	conns  map[place]*mesh.Conn      // guarded by mu
	told   map[string]told           // what each said of the store and finds, by its key; guarded by mu

	hearing chan struct{} // held by who asks for that; capacity 1
}

// place is where a coordinator is to be. Another one that is found there, as behind an
// address that several share, has not said what this one hears.
type place struct{ name, addr string }

func newOthers() *others {
	return &others{asking: make(chan struct{}, 1), hearing: make(chan struct{}, 1), conns: make(map[place]*mesh.Conn)}
}

// close ends the connections, when nobody asks any more.
func (e *others) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, conn := range e.conns {
		conn.Close()
	}
	clear(e.conns)
}

// of returns what the others hear of a member; nil if nothing.
func (e *others) of(path string) *fealtyv1.Live {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[path]
}

// quiet returns the coordinators that did not say what they hear, and whether nobody
// could tell who they are.
func (e *others) quiet() (silent []replicas.Record, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.silent, e.lost
}

// lose notes that nobody could say which others there are.
func (e *others) lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.live, e.lost = time.Time{}, nil, true
}

func (e *others) fresh() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.at.IsZero() && time.Since(e.at) < othersFresh
}

// hearOthers asks the other coordinators what they hear of members, unless they just
// said. One that does not answer in time is left out, and one that is gone is not waited for.
func (c *Membership) hearOthers(ctx context.Context, s *authority.State) {
	e := c.others
	if e.fresh() {
		return
	}
	select {
	case e.asking <- struct{}{}:
		defer func() { <-e.asking }()
	case <-ctx.Done():
		return
	}
	if e.fresh() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askOthers)
	defer cancel()
	all, conns, err := e.connect(ctx, c, s)
	if err != nil {
		e.lose()
		return
	}
	answers := make([]map[string]*fealtyv1.Live, len(all))
	var asked sync.WaitGroup
	for i := range all {
		if !c.presence.Gone(all[i].Key, c.cfg.Elapsed()) {
			asked.Go(func() { answers[i] = askAny(ctx, conns[i]) })
		}
	}
	asked.Wait()
	live, silent := make(map[string]*fealtyv1.Live), []replicas.Record(nil)
	for i, answer := range answers {
		if answer == nil {
			silent = append(silent, all[i])
		} else {
			c.presence.Heard(all[i].Key, c.cfg.Elapsed())
		}
		for path, l := range answer {
			live[path] = newerLive(l, live[path])
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.live, e.silent, e.lost = time.Now(), live, silent, false
}

// withOthers calls tell for each other coordinator that is not gone, all at once, with the
// connections to its addresses.
func (c *Membership) withOthers(ctx context.Context, s *authority.State, tell func(context.Context, []*mesh.Conn)) {
	ctx, cancel := context.WithTimeout(ctx, askOthers)
	defer cancel()
	all, conns, err := c.others.connect(ctx, c, s)
	if err != nil {
		return
	}
	var told sync.WaitGroup
	for i := range all {
		if !c.presence.Gone(all[i].Key, c.cfg.Elapsed()) {
			told.Go(func() { tell(ctx, conns[i]) })
		}
	}
	told.Wait()
}

// connect returns the other coordinators that there are to be, as the store names them,
// each with the connections to its addresses. One that said that it stops is left out.
func (e *others) connect(ctx context.Context, c *Membership, s *authority.State) (all []replicas.Record,
	conns [][]*mesh.Conn,
	err error) {
	all, err = c.cfg.Replicas.Newest(ctx, s.Manifest)
	if err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(all, func(r replicas.Record) bool { return r.Key == c.cfg.Self.EnrolmentKey() })
	c.presence.Expect(expected(all), c.cfg.Elapsed())
	all = slices.DeleteFunc(all, func(r replicas.Record) bool { return r.Stopped })
	return all, e.connectTo(c, s, all), nil
}

// connectTo returns the connections to the addresses of each of all. Connections that
// nobody needs any more are closed.
func (e *others) connectTo(c *Membership, s *authority.State, all []replicas.Record) [][]*mesh.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known = all
	conns := make([][]*mesh.Conn, len(all))
	used := make(map[place]bool)
	for i, r := range all {
		for _, addr := range r.Addresses {
			at := place{r.Name, addr}
			if conn := e.connLocked(c, s, at); conn != nil {
				used[at] = true
				conns[i] = append(conns[i], conn)
			}
		}
	}
	for at, conn := range e.conns {
		if !used[at] {
			conn.Close()
			delete(e.conns, at)
		}
	}
	return conns
}

// connLocked returns the connection to a coordinator, which has to prove that it is this
// one. It does not wait for it.
func (e *others) connLocked(c *Membership, s *authority.State, at place) *mesh.Conn {
	if conn := e.conns[at]; conn != nil {
		return conn
	}
	id, err := identity.New(s.Manifest.Cluster, identity.Coordinator, at.name)
	if err != nil {
		return nil
	}
	conn, err := mesh.Dial("passthrough:///"+at.addr, c.cfg.Bundle.Source(), credential.ExactID(id),
		mesh.Options{Dialer: c.cfg.Dial, Now: c.cfg.Now})
	if err != nil {
		return nil
	}
	e.conns[at] = conn
	return conn
}

// askAny asks one coordinator what it hears. Nil: it does not say.
func askAny(ctx context.Context, conns []*mesh.Conn) map[string]*fealtyv1.Live {
	live, err := firstAnswer(ctx, conns, func(ctx context.Context, conn *mesh.Conn) (map[string]*fealtyv1.Live, error) {
		return askLive(ctx, conn, "")
	})
	if err != nil {
		return nil
	}
	return live
}

// connections returns those that there are.
func (e *others) connections() []*mesh.Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.conns))
}

// firstAnswer asks one coordinator at all of its addresses at once, and returns the first
// answer: one where nobody answers must not cost the time of the others.
func firstAnswer[T any](ctx context.Context, conns []*mesh.Conn, ask func(context.Context, *mesh.Conn) (T, error)) (T,
	error) {
	var asked sync.WaitGroup
	defer asked.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		said T
		err  error
	}
	answers := make(chan answer, len(conns))
	for _, conn := range conns {
		asked.Go(func() {
			said, err := ask(ctx, conn)
			answers <- answer{said, err}
		})
	}
	last := answer{err: errNoAddress}
	for range conns {
		if last = <-answers; last.err == nil {
			break
		}
	}
	return last.said, last.err
}

var errNoAddress = errors.New("it says no address")

// askLive asks one coordinator what it hears: of one member, or of all.
func askLive(ctx context.Context, conn *mesh.Conn, member string) (map[string]*fealtyv1.Live, error) {
	stream, err := fealtyv1.NewLiveServiceClient(conn).ListLive(ctx, &fealtyv1.ListLiveRequest{Member: member})
	if err != nil {
		return nil, err
	}
	out := make(map[string]*fealtyv1.Live)
	for range maxLivePages {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for _, m := range page.GetMembers() {
			out[m.GetMember()] = m.GetLive()
		}
	}
	return nil, fmt.Errorf("more than %d messages", maxLivePages)
}

// newerLive returns that one of two which says more of a member; either may be nil.
func newerLive(a, b *fealtyv1.Live) *fealtyv1.Live {
	switch {
	case a == nil || b == nil:
		if a == nil {
			return b
		}
		return a
	case a.GetConnected() != b.GetConnected():
		if a.GetConnected() {
			return a
		}
		return b
	case a.GetLastReport().AsTime().Before(b.GetLastReport().AsTime()):
		return b
	}
	return a
}

// degradedPeriods returns when a member was in degraded mode, as the coordinator says
// that hears of it.
func (c *Membership) degradedPeriods(ctx context.Context, s *authority.State,
	id identity.ID) []*fealtyv1.DegradedPeriod {
	path := string(id.Kind()) + "/" + id.Name()
	own, other := c.live.Message(id), c.others.of(path)
	if other == nil || newerLive(own, other) == own {
		return c.live.DegradedPeriods(id)
	}
	conns := c.others.connections()
	ctx, cancel := context.WithTimeout(ctx, askOthers)
	defer cancel()
	best := other
	var asked sync.WaitGroup
	answers := make(chan map[string]*fealtyv1.Live, len(conns))
	for _, conn := range conns {
		asked.Go(func() {
			if live, err := askLive(ctx, conn, path); err == nil {
				answers <- live
			}
		})
	}
	asked.Wait()
	close(answers)
	for live := range answers {
		best = newerLive(live[path], best)
	}
	return best.GetDegradedPeriods()
}

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
			return explain.New(explain.RequestField, "field", "member", "problem", "it is not <kind>/<name>")
		}
		live := l.c.live.Message(id)
		if live == nil {
			return nil
		}
		live.DegradedPeriods = l.c.live.DegradedPeriods(id)
		return stream.Send(&fealtyv1.ListLiveResponse{Members: []*fealtyv1.LiveMember{{Member: path, Live: live}}})
	}
	for page := range slices.Chunk(l.c.live.All(), livePage) {
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
