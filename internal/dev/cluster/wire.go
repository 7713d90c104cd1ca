package cluster

import (
	"context"
	"errors"
	"iter"
	"net"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

// errKilled is what a coordinator that was killed gets for whatever it still tries.
// Nobody outside hears of it.
var errKilled = errors.New("this coordinator was killed")

// wire is all that a coordinator reaches of the world outside its memory: the
// connections of its listener, and its way to the store that all share. Cutting it is
// what makes the end of a value in this process as sudden as the end of a process.
type wire struct {
	net.Listener
	store store.Store
	gone  chan struct{} // closed when it was cut

	mu    sync.Mutex
	conns map[*wiredConn]struct{} // open ones; nil after the cut; guarded by mu
	trap  *trap                   // for a commit; nil: none is set; guarded by mu
}

var (
	_ store.Store  = (*wire)(nil)
	_ net.Listener = (*wire)(nil)
)

func newWire(l net.Listener, st store.Store) *wire {
	return &wire{Listener: l, store: st, gone: make(chan struct{}), conns: make(map[*wiredConn]struct{})}
}

// cut ends every connection without a word, and lets nothing through any more.
func (w *wire) cut() {
	w.mu.Lock()
	conns := w.conns
	if w.conns != nil {
		w.conns = nil
		close(w.gone)
	}
	w.mu.Unlock()
	_ = w.Listener.Close()
	for conn := range conns {
		if tcp, ok := conn.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as from a kernel that knows of no such process
		}
		_ = conn.Conn.Close()
	}
}

// isCut is false for a nil wire: that of a member.
func (w *wire) isCut() bool {
	if w == nil {
		return false
	}
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// Accept notes the connections, so that they can be cut.
func (w *wire) Accept() (net.Conn, error) {
	raw, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &wiredConn{raw, w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		raw.Close()
		return nil, net.ErrClosed
	}
	w.conns[conn] = struct{}{}
	return conn, nil
}

type wiredConn struct {
	net.Conn
	wire *wire
}

func (c *wiredConn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// through calls f, unless the wire was cut. Requests under way go on: they were handed
// over before.
func through[T any](w *wire, f func() (T, error)) (T, error) {
	if w.isCut() {
		var none T
		return none, errKilled
	}
	return f()
}

func (w *wire) Get(ctx context.Context, key string) (store.Entry, error) {
	return through(w, func() (store.Entry, error) { return w.store.Get(ctx, key) })
}

func (w *wire) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return through(w, func() (store.Revision, error) { return w.store.CompareAndSwap(ctx, key, old, value) })
}

func (w *wire) List(ctx context.Context, prefix string) (store.Listing, error) {
	return through(w, func() (store.Listing, error) { return w.store.List(ctx, prefix) })
}

func (w *wire) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	return through(w, func() (store.Revision, error) {
		if t := w.trapped(tx); t != nil {
			return t.act(ctx, tx)
		}
		return w.store.Commit(ctx, tx)
	})
}

func (w *wire) Outcome(ctx context.Context, txID string) (store.Revision, error) {
	return through(w, func() (store.Revision, error) { return w.store.Outcome(ctx, txID) })
}

func (w *wire) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return w.store.Watch(ctx, key)
}

func (w *wire) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return w.store.Changes(ctx, prefix, after)
}

// Close of the listener; the store belongs to the cluster.
func (w *wire) Close() error { return w.Listener.Close() }
