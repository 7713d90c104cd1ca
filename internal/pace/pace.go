// Package pace gives up transfers that crawl: who sends must not hold up who receives
// for as long as it likes, nor the other way round.
//
// A transfer has to be over after [Grace] and the time that its bytes take at [Rate].
// It comes in lumps: each [Window] has to bring half of that.
//
// It also bounds how fast strangers fill a log ([LogSampler], [NoiseSampler]).
package pace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// How slow a transfer may be.
const (
	Grace  = 5 * time.Second
	Rate   = 8 << 10 // bytes in a second
	Window = 10 * time.Second
)

// ErrSlow is why a transfer was given up.
var ErrSlow = fmt.Errorf("less than %d KiB a second", Rate>>10)

// Time is how long the transfer of size bytes may take.
func Time(size int64) time.Duration {
	return Grace + time.Duration(size)*time.Second/Rate
}

// Transfer is one that is under way. It belongs to one goroutine.
type Transfer struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	deadline *time.Timer
	came     atomic.Int64

	mu    sync.Mutex
	timer *time.Timer // of the window; nil: none is looked at; guarded by mu
	seen  int64       // when the window began; guarded by mu
}

// Begin begins the transfer of size bytes, at the most, under the context that it
// returns: that ends when the transfer is too slow. End it.
func Begin(ctx context.Context, size int64) (context.Context, *Transfer) {
	t := &Transfer{}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.deadline = time.AfterFunc(Time(size), func() { t.cancel(ErrSlow) })
	return t.ctx, t
}

// Reader returns r, whose bytes count from now on.
func (t *Transfer) Reader(r io.Reader) io.Reader {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(Window, t.look)
	return reader{t, r}
}

// Slow reports whether the transfer was given up.
func (t *Transfer) Slow() bool { return errors.Is(context.Cause(t.ctx), ErrSlow) }

// End ends it.
func (t *Transfer) End() {
	t.cancel(nil)
	t.deadline.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// look is called at the end of each window.
func (t *Transfer) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	came := t.came.Load()
	switch {
	case t.timer == nil:
	case came-t.seen < int64(Rate*Window/time.Second/2):
		t.cancel(ErrSlow)
	default:
		t.seen = came
		t.timer.Reset(Window)
	}
}

type reader struct {
	t *Transfer
	r io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.t.came.Add(int64(n))
	return n, err
}
