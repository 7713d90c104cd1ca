// Package ratelimit bounds how much one caller may ask of a server, so that none can keep the others
// out: how often ([PerKey], [Sources]), how many calls of strangers are under way at once
// ([Limiter]), who waits for whom ([Locks]), how large what it sends is ([ReceiveParts]), how slow a
// transfer may be ([Transfer]), how many lines a stranger can add to a log ([LogSampler],
// [NoiseSampler]), and how much of what it sent a line repeats ([Clip]).
//
// Everything that is remembered of callers is bounded too, by numbers that the caller of this
// package chooses, or that stand here.
//
// A [Transfer] has to end within [TransferGrace] plus the time that its bytes take at
// [TransferRate]. Bytes may arrive in bursts: each [Window] has to bring half of that rate. So
// neither the sender nor the receiver can hold up the other for as long as it likes.
package ratelimit

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
	TransferGrace = 5 * time.Second
	TransferRate  = 8 << 10 // bytes in a second
	Window        = 10 * time.Second
)

// ErrSlowTransfer is why a transfer was given up.
var ErrSlowTransfer = fmt.Errorf("less than %d KiB a second", TransferRate>>10)

// TransferTime is how long the transfer of size bytes may take.
func TransferTime(size int64) time.Duration {
	return TransferGrace + time.Duration(size)*time.Second/TransferRate
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

// BeginTransfer begins the transfer of size bytes, at the most, under the context that it
// returns: that ends when the transfer is too slow. End it.
func BeginTransfer(ctx context.Context, size int64) (context.Context, *Transfer) {
	t := &Transfer{}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.deadline = time.AfterFunc(TransferTime(size), func() { t.cancel(ErrSlowTransfer) })
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
func (t *Transfer) Slow() bool { return errors.Is(context.Cause(t.ctx), ErrSlowTransfer) }

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
	case came-t.seen < int64(TransferRate*Window/time.Second/2):
		t.cancel(ErrSlowTransfer)
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
