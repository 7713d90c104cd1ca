package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/mesh"
)

// replica is one coordinator of the cluster through all its lives. It is a value in
// this process: it shares the opened store with the others, and nothing else.
type replica struct {
	name string

	// Cluster.mu guards the following.
	addr    string   // where it serves, or served last
	former  []string // where it was before
	metrics string   // where it shows its metrics
	run     *part    // nil: it does not run
}

// maxFormer bounds the addresses that are remembered of one coordinator.
const maxFormer = 16

// coordinatorNames returns the names of n coordinators. They are those of their
// entries in the manifest too.
func coordinatorNames(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("coordinator-%d", i+1))
	}
	return out
}

// CoordinatorNames are the names of the cluster's coordinators, in order.
func (c *Cluster) CoordinatorNames() []string {
	var out []string
	for _, r := range c.coordinators {
		out = append(out, r.name)
	}
	return out
}

func (c *Cluster) replica(name string) (*replica, error) {
	for _, r := range c.coordinators {
		if r.name == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("the cluster has no coordinator %s: it has %s", name, strings.Join(c.CoordinatorNames(), ", "))
}

// running returns the coordinators that run, in order.
func (c *Cluster) running() []*replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*replica
	for _, r := range c.coordinators {
		if r.run != nil {
			out = append(out, r)
		}
	}
	return out
}

// RunningCoordinators are the names of the coordinators that run, in order.
func (c *Cluster) RunningCoordinators() (out []string) {
	for _, r := range c.running() {
		out = append(out, r.name)
	}
	return out
}

// CoordinatorMetrics are where the coordinators that run show their metrics.
func (c *Cluster) CoordinatorMetrics() (out []string) {
	for _, r := range c.running() {
		out = append(out, r.metrics)
	}
	return out
}

// serving returns the first coordinator that is ready, else the first that runs, else
// the first.
func (c *Cluster) serving() *replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := c.coordinators[0]
	for _, r := range c.coordinators {
		if r.run == nil {
			continue
		}
		if best.run == nil {
			best = r
		}
		if phase, _ := r.run.coordinator.Phase(); phase == "ready" {
			return r
		}
	}
	return best
}

// Address is where a coordinator serves: one that is ready, if any is.
func (c *Cluster) Address() string { return c.addressOf(c.serving()) }

// Addresses are where all coordinators serve, or served last.
func (c *Cluster) Addresses() []string {
	var out []string
	for _, r := range c.coordinators {
		out = append(out, c.addressOf(r))
	}
	return out
}

// AddressOf is where the named coordinator serves, or served last.
func (c *Cluster) AddressOf(name string) (string, error) {
	r, err := c.replica(name)
	if err != nil {
		return "", err
	}
	return c.addressOf(r), nil
}

func (c *Cluster) addressOf(r *replica) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.addr
}

// CoordinatorAt names the coordinator that has an address, or had it; "" for none.
func (c *Cluster) CoordinatorAt(addr string) string {
	if r := c.at(addr); r != nil {
		return r.name
	}
	return ""
}

// at returns the coordinator that has an address, or had it.
func (c *Cluster) at(addr string) *replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.coordinators {
		if r.addr == addr {
			return r
		}
	}
	for _, r := range c.coordinators {
		if slices.Contains(r.former, addr) {
			return r
		}
	}
	return nil
}

// CoordinatorDir is the folder of the named coordinator.
func (c *Cluster) CoordinatorDir(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) coordinatorDir(r *replica) string { return c.CoordinatorDir(r.name) }

func (c *Cluster) socketOf(r *replica) string {
	return filepath.Join(c.coordinatorDir(r), "admin.sock")
}

// AdminSocket is the local socket of a coordinator: of one that is ready, if any is.
func (c *Cluster) AdminSocket() string { return c.socketOf(c.serving()) }

// StartCoordinators starts those that do not run, and waits until they serve.
func (c *Cluster) StartCoordinators(ctx context.Context) error {
	g, starting := errgroup.WithContext(ctx)
	for _, r := range c.coordinators {
		c.mu.Lock()
		runs := r.run != nil
		c.mu.Unlock()
		if !runs {
			g.Go(func() error { return c.StartCoordinator(starting, r.name) })
		}
	}
	return g.Wait()
}

// StartCoordinator runs the named coordinator, at the address of before if that is
// free, and waits until it serves. It may not be ready then.
func (c *Cluster) StartCoordinator(ctx context.Context, name string) error {
	r, err := c.replica(name)
	if err != nil {
		return err
	}
	l, err := c.listen(r)
	if err != nil {
		return err
	}
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, l.Close())
	}
	w := newWire(l, c.store)
	publish := ""
	if c.opts.Published != "" {
		publish = filepath.Join(c.opts.Published, name)
	}
	co, err := coordinator.New(ctx, coordinator.Config{
		DataDir: c.coordinatorDir(r), Store: w, StoreName: c.storeName, Listener: w,
		Monitoring: coordinator.Monitoring{Listener: metrics}, Machine: coordinator.Machine{Now: c.clockOf(name).now, Locks: c.opts.Locks},
		Log: c.opts.Log.With("part", name), Release: c.opts.Release, Rates: c.opts.Rates,
		Publishing: coordinator.Publishing{Dir: publish},
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", name, err), l.Close(), metrics.Close())
	}
	p := &part{coordinator: co, wire: w}
	c.run(p, co.Run)
	c.mu.Lock()
	r.run, r.metrics = p, metrics.Addr().String()
	c.mu.Unlock()
	return c.Await(ctx, name+" to serve", func(ctx context.Context) (bool, error) {
		_, err := c.StatusOf(ctx, name)
		return err == nil, err
	})
}

// AwaitReady waits until the named coordinators are ready; all of them, if none is
// named.
func (c *Cluster) AwaitReady(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		names = c.CoordinatorNames()
	}
	return c.Await(ctx, "coordinators to be ready", func(ctx context.Context) (bool, error) {
		for _, name := range names {
			st, err := c.StatusOf(ctx, name)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			if st.GetPhase() != "ready" {
				return false, fmt.Errorf("%s is %s: %s", name, st.GetPhase(), st.GetPhaseReason())
			}
		}
		return true, nil
	})
}

// StopCoordinators ends all coordinators that run.
func (c *Cluster) StopCoordinators() error {
	var errs []error
	var g errgroup.Group
	running := c.running()
	errs = make([]error, len(running))
	for i, r := range running {
		g.Go(func() error { errs[i] = c.StopCoordinator(r.name); return nil })
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// StopCoordinator ends the named coordinator as its operator would: it takes leave.
func (c *Cluster) StopCoordinator(name string) error {
	p, err := c.take(name)
	if err != nil {
		return err
	}
	c.means.Note(name, "stopped in process")
	return p.stop()
}

// KillCoordinator ends the named coordinator as kill -9 would: from here on it says
// nothing to anybody, writes nothing, and what it had in memory is gone. A write
// that it had handed to the store before may arrive there later.
func (c *Cluster) KillCoordinator(name string) error {
	p, err := c.take(name)
	if err != nil {
		return err
	}
	c.means.Note(name, "cut in process, its memory dropped")
	p.wire.cut()
	return p.stop()
}

// take makes the named coordinator one that does not run, and returns what ran.
func (c *Cluster) take(name string) (*part, error) {
	r, err := c.replica(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := r.run
	if p == nil {
		return nil, fmt.Errorf("%s does not run", name)
	}
	r.run = nil
	return p, nil
}

// openStore opens the cluster's store, and returns its name for people.
func (c *Cluster) openStore(ctx context.Context) (store.Store, string, error) {
	if c.opts.Store != "" {
		if strings.HasPrefix(c.opts.Store, "etcd:") {
			// There is one server, with no other member to go to, and this machine may be busy.
			opts := etcd.Options{Log: c.opts.Log.With("part", "store"), Timeout: AwaitLimit}
			st, err := etcd.Open(ctx, c.opts.Store, opts)
			if err != nil {
				return nil, "", err
			}
			return st, st.Name(), nil
		}
		st, err := postgres.Open(ctx, c.opts.Store, postgres.Options{Log: c.opts.Log.With("part", "store")})
		if err != nil {
			return nil, "", err
		}
		return st, st.Name(), nil
	}
	file := filepath.Join(c.dir, storeFile)
	st, err := sqlite.Open(ctx, file, sqlite.Options{Locks: c.opts.Locks})
	if err != nil {
		return nil, "", err
	}
	return st, "sqlite:" + file, nil
}

// listen takes the address that is kept with the coordinator, so that members find it
// after a restart; another one if that is taken.
func (c *Cluster) listen(r *replica) (net.Listener, error) {
	if err := durable.OS().MkdirAll(c.coordinatorDir(r)); err != nil {
		return nil, fmt.Errorf("make %s: %w", c.coordinatorDir(r), err)
	}
	file := filepath.Join(c.coordinatorDir(r), AddressFile)
	var known []string // the last one first
	if raw, err := durable.OS().ReadFile(file, 4<<10); err == nil {
		known = strings.Fields(string(raw))
	}
	want := "127.0.0.1:0"
	if len(known) > 0 {
		if host, _, err := net.SplitHostPort(known[0]); err == nil && host == "127.0.0.1" {
			want = known[0]
		}
	}
	l, err := net.Listen("tcp", want)
	if err != nil {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("listen on loopback: %w", err)
		}
	}
	addr := l.Addr().String()
	former := slices.DeleteFunc(known, func(a string) bool { return a == addr })
	former = former[:min(len(former), maxFormer)]
	c.mu.Lock()
	r.addr, r.former = addr, former
	c.mu.Unlock()
	if err := durable.OS().WriteFile(file, []byte(strings.Join(append([]string{addr}, former...), "\n")+"\n")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// oldLayout refuses a folder of a release whose dev cluster had one coordinator.
func (c *Cluster) oldLayout() error {
	switch _, err := os.Stat(filepath.Join(c.dir, "coordinator")); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return errcode.New(errcode.BadValue, "name", "--data", "value", c.dir,
		"problem", "it holds the dev cluster of an older release, which had one coordinator", "want", "another folder, or this one removed: rm -r "+c.dir)
}

// WithAdmin calls f with a connection to the local socket of a coordinator: of one that
// is ready, if any is.
func (c *Cluster) WithAdmin(f func(*grpc.ClientConn) error) error {
	return c.Tell(withSocket(c.AdminSocket(), f))
}

// WithAdminOf is [Cluster.WithAdmin] with the named coordinator.
func (c *Cluster) WithAdminOf(name string, f func(*grpc.ClientConn) error) error {
	return withSocket(filepath.Join(c.CoordinatorDir(name), "admin.sock"), f)
}

func withSocket(path string, f func(*grpc.ClientConn) error) error {
	conn, err := mesh.DialLocal(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(conn)
}

// StatusOf asks the named coordinator over its local socket.
func (c *Cluster) StatusOf(ctx context.Context, name string) (st *fealtyv1.GetStatusResponse, err error) {
	r, err := c.replica(name)
	if err != nil {
		return nil, err
	}
	err = withSocket(c.socketOf(r), func(conn *grpc.ClientConn) error {
		st, err = fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
		return err
	})
	return st, c.Tell(err)
}

// Status is that of a coordinator which is ready, if any is.
func (c *Cluster) Status(ctx context.Context) (*fealtyv1.GetStatusResponse, error) {
	return c.StatusOf(ctx, c.serving().name)
}

// Leader returns the coordinator that leads, and its term.
func (c *Cluster) Leader(ctx context.Context) (name string, term uint64, err error) {
	err = c.Await(ctx, "a coordinator to lead", func(context.Context) (bool, error) {
		name, term = "", 0
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range c.coordinators {
			if r.run == nil {
				continue
			}
			// Of two that believe so the later one does.
			if at, ok := r.run.coordinator.Leading(); ok && at > term {
				name, term = r.name, at
			}
		}
		return name != "", errors.New("none does")
	})
	return name, term, err
}
