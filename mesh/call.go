package mesh

import (
	"context"
	"sync/atomic"
	"time"
)

// call is the context of one call on a connection of a guard's. It carries the peer, and ends
// when the connection is cut, with the [*CutError] as its cause.
//
// Most handlers return before anybody waits for that, so what waits is made when it is asked for
// first: until then a call costs this struct and a count.
type call struct {
	context.Context // of gRPC or net/http
	info            *Info
	unary           bool                     // it has one answer, which is yet to come
	over            bool                     // guarded by info.conn.mu
	own             atomic.Pointer[canceled] // set once, under info.conn.mu; nil: nobody asked
}

// canceled is a context that a cut ends.
type canceled struct {
	context.Context
	cancel context.CancelCauseFunc
}

func (c *call) Done() <-chan struct{} { return c.waited().Done() }
func (c *call) Err() error            { return c.known().Err() }

func (c *call) Value(key any) any {
	if v := c.info.carried.Value(key); v != nil {
		return v
	}
	return c.known().Value(key) // context.Cause asks for it too
}

// known is the context that says whether the call has ended, and why.
func (c *call) known() context.Context {
	if c.own.Load() == nil && c.info.conn.cut.Load() == nil {
		return c.Context
	}
	return c.waited()
}

// waited is the context that ends with the connection.
func (c *call) waited() context.Context {
	if own := c.own.Load(); own != nil {
		return own
	}
	// Before the lock: the call may run in another one on the same connection, which takes it too.
	own := new(canceled)
	own.Context, own.cancel = context.WithCancelCause(c.Context)
	conn := c.info.conn
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if first := c.own.Load(); first != nil {
		own.cancel(nil)
		return first
	}
	c.own.Store(own)
	switch cut := conn.cut.Load(); {
	case c.over:
		own.cancel(nil)
	case cut != nil:
		own.cancel(cut)
	default:
		if conn.calls.waited == nil {
			conn.calls.waited = make(map[*call]struct{})
		}
		conn.calls.waited[c] = struct{}{}
	}
	return own
}

// calls are those that run on one connection.
type calls struct {
	all, unary int
	waited     map[*call]struct{} // of them those whose end somebody waits for
	rested     time.Time          // when the last one ended
}
