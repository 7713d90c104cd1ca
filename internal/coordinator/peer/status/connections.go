package status

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/mesh"
)

// place is where a coordinator is to be. Another one that is found there, as behind an
// address that several share, has not said what this one hears.
type place struct{ name, addr string }

// connect returns the other coordinators that there are to be, as the store names them,
// each with the connections to its addresses. One that said that it stops is left out.
func (p *Peers) connect(ctx context.Context, s *authority.State) (all []peer.Record,
	conns [][]*mesh.Conn,
	err error) {
	all, err = p.cfg.Replicas.Newest(ctx, s.Manifest)
	if err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(all, func(r peer.Record) bool { return r.Key == p.cfg.Self.EnrolmentKey() })
	p.presence.Expect(expected(all), p.cfg.Elapsed())
	all = slices.DeleteFunc(all, func(r peer.Record) bool { return r.Stopped })
	return all, p.connectTo(s, all), nil
}

// connectTo returns the connections to the addresses of each of all. Connections that
// nobody needs any more are closed.
func (p *Peers) connectTo(s *authority.State, all []peer.Record) [][]*mesh.Conn {
	conns, unused := p.connectedTo(s, all)
	for _, conn := range unused {
		conn.Close() // without the lock: it may wait for a peer that reads nothing
	}
	return conns
}

// connectedTo is connectTo, with the connections that are to be closed.
func (p *Peers) connectedTo(s *authority.State, all []peer.Record) (conns [][]*mesh.Conn, unused []*mesh.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = all
	conns = make([][]*mesh.Conn, len(all))
	used := make(map[place]bool)
	for i, r := range all {
		for _, addr := range r.Addresses {
			at := place{r.Name, addr}
			if conn := p.connLocked(s, at); conn != nil {
				used[at] = true
				conns[i] = append(conns[i], conn)
			}
		}
	}
	for at, conn := range p.conns {
		if !used[at] {
			unused = append(unused, conn)
			delete(p.conns, at)
		}
	}
	return conns, unused
}

// connLocked returns the connection to a coordinator, which has to prove that it is this
// one. It does not wait for it.
func (p *Peers) connLocked(s *authority.State, at place) *mesh.Conn {
	if conn := p.conns[at]; conn != nil {
		return conn
	}
	id, err := identity.New(s.Manifest.Cluster, identity.Coordinator, at.name)
	if err != nil {
		return nil
	}
	conn, err := p.pool.Dial("passthrough:///"+at.addr, p.cfg.Bundle.Source(), credential.ExactID(id))
	if err != nil {
		return nil
	}
	p.conns[at] = conn
	return conn
}

// connections returns those that there are.
func (p *Peers) connections() []*mesh.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.conns))
}

// Each calls tell for each other coordinator that is not gone, all at once, with the
// connections to its addresses.
func (p *Peers) Each(ctx context.Context, s *authority.State, tell func(context.Context, []*mesh.Conn)) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, conns, err := p.connect(ctx, s)
	if err != nil {
		return
	}
	var told sync.WaitGroup
	for i := range all {
		if !p.presence.Gone(all[i].Key, p.cfg.Elapsed()) {
			told.Go(func() { tell(ctx, conns[i]) })
		}
	}
	told.Wait()
}

// Close ends the connections, when nobody asks any more.
func (p *Peers) Close() {
	p.mu.Lock()
	clear(p.conns)
	p.mu.Unlock()
	_ = p.pool.Close() // what becomes of a connection that nobody uses is no news
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
