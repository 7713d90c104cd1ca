// Package sessiontest has a shard without a loop, for tests of both ends of a session.
package sessiontest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
)

// Desk is a shard whose cycles are made by hand. It holds demand that drops almost everything, and gives an hour's notice.
type Desk struct {
	*scheduler.DemandBook
	Board    *scheduler.Board
	Stop     chan struct{} // closed by a test that fences it
	Released chan struct{} // gets one for each machine that somebody let go, as long as there is room

	mu      sync.Mutex
	changed chan struct{}
	taken   int // roll-ups in this cycle
	most    int // in one cycle

	// What a cycle may change.
	Unready bool
	Tallies map[string][]*scheduler.Tally
	Quotas  map[scheduler.Quota]int
}

// NewDesk returns a desk at which nobody has reported.
func NewDesk() *Desk {
	return &Desk{DemandBook: scheduler.NewDemandBook(scheduler.DemandOptions{Quarantine: true}),
		Board: scheduler.NewBoard(time.Hour), Stop: make(chan struct{}), Released: make(chan struct{}, 2*session.MaxMessages),
		Tallies: make(map[string][]*scheduler.Tally), Quotas: make(map[scheduler.Quota]int), changed: make(chan struct{})}
}

// Report takes demand, unless the desk is not ready.
func (d *Desk) Report(r scheduler.RollUp) (scheduler.Outcome, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Unready {
		return "", scheduler.ErrUnready
	}
	d.taken++
	d.most = max(d.most, d.taken)
	return d.DemandBook.Report(r, nil)
}

// Wanted returns what a tenant wants.
func (d *Desk) Wanted(tenant string) []scheduler.DemandRow { rows, _ := d.Of(tenant); return rows }

// Capacity returns what a tenant has.
func (d *Desk) Capacity(tenant string) []*scheduler.Tally {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Tallies[tenant]
}

// Quota returns how many machines a tenant may have.
func (d *Desk) Quota(tenant, profile string) (int, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.Quotas[scheduler.Quota{Tenant: tenant, Profile: profile}]
	return n, ok
}

// Notices returns what a tenant is about to lose.
func (d *Desk) Notices(tenant string) []scheduler.Notice { return d.Board.Of(tenant) }

// Release lets a machine go.
func (d *Desk) Release(tenant string, m scheduler.MachineKey) bool {
	released := d.Board.Release(tenant, m)
	select {
	case d.Released <- struct{}{}:
	default:
	}
	return released
}

// Changed is closed when the next cycle is over.
func (d *Desk) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Fenced is closed when the desk was stopped.
func (d *Desk) Fenced() <-chan struct{} { return d.Stop }

// Cycle ends a cycle, after a change, which may be nil.
func (d *Desk) Cycle(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if change != nil {
		change()
	}
	close(d.changed)
	d.changed, d.taken = make(chan struct{}), 0
}

// Most returns how many roll-ups were taken in one cycle at most.
func (d *Desk) Most() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most
}

// Serve serves a desk without TLS on a loopback address until stop is called. at is the address, or "" for any.
func Serve(desk *Desk, at string) (addr string, stop func(), err error) {
	sessions, err := session.New(session.Config{Name: "eu-1", Shard: desk, Insecure: true, Term: func() int64 { return 7 }})
	if err != nil {
		return "", nil, err
	}
	l, err := Listen(at)
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	fealtyv1.RegisterShardServiceServer(server, sessions)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return l.Addr().String(), func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			slog.Error("a desk was not served to its end", "err", err)
		}
		sessions.Wait()
	}, nil
}

// Listen listens at a loopback address; "" for any.
func Listen(at string) (net.Listener, error) {
	if at == "" {
		at = "127.0.0.1:0"
	}
	return new(net.ListenConfig).Listen(context.Background(), "tcp", at)
}

// Loop makes cycles, one after the other, until stop is called.
func (d *Desk) Loop() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		for ctx.Err() == nil {
			d.Cycle(d.DemandBook.Cycle)
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); loop.Wait() }
}
