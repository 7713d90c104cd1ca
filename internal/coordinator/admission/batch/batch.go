// Package batch combines calls that wait for the same work: calls that arrive while one batch is
// being done wait, and are done together as the next batch.
package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrUnderWay is the answer to a call whose context ended while it was being done:
// it may have been done.
var ErrUnderWay = errors.New("the call ended while it was being done together with others")

// ErrUndone is the answer to a call that nobody answered.
var ErrUndone = errors.New("the call was given no answer by the batch that it was in")

// A Call is one that waits.
type Call[T any] struct {
	Item T

	ctx  context.Context
	done chan error
	once sync.Once
	// taken says that a batch has it; guarded by the desk's mu.
	taken bool
}

// Answer ends the call. The first answer counts.
func (c *Call[T]) Answer(err error) { c.once.Do(func() { c.done <- err }) }

// Over reports whether nobody waits for the answer any more.
func (c *Call[T]) Over() bool { return c.ctx.Err() != nil }

// A Desk does calls in batches, one batch of a line at a time. Lines do not wait for
// one another.
type Desk[K comparable, T any] struct {
	most  int
	work  Work[K, T]
	spawn func(func())

	mu    sync.Mutex
	lines map[K]*line[T] // that have somebody; guarded by mu
}

// Work does a batch of a line. It answers calls, or returns them: they come first in
// the next batch. Halve says that one of those it returned spoils what is done with it,
// and that nobody knows which: the next batches are smaller, down to one, until that
// one is found. A batch that returns a call that was alone, again and again, never ends.
//
// The context ends when nobody of the batch waits any more.
type Work[K comparable, T any] func(ctx context.Context, key K, calls []*Call[T]) (again []*Call[T], halve bool)

// New returns a desk whose batches have at most so many calls. It does its work in
// goroutines that spawn starts: whoever owns the desk waits for them.
func New[K comparable, T any](most int, spawn func(func()), work Work[K, T]) *Desk[K, T] {
	return &Desk[K, T]{most: most, work: work, spawn: spawn, lines: make(map[K]*line[T])}
}

// line is of calls of one key.
type line[T any] struct {
	waiting []*Call[T]
	size    Size
}

// Do has item done in a line, and returns the answer. How many may wait is for the
// caller to bound.
func (d *Desk[K, T]) Do(ctx context.Context, key K, item T) error {
	call := &Call[T]{Item: item, ctx: ctx, done: make(chan error, 1)}
	d.mu.Lock()
	l, ok := d.lines[key]
	if !ok {
		l = &line[T]{size: NewSize(d.most)}
		d.lines[key] = l
	}
	l.waiting = append(l.waiting, call)
	d.mu.Unlock()
	if !ok {
		d.spawn(func() { d.serve(key, l) })
	}
	select {
	case err := <-call.done:
		return err
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case err := <-call.done:
		return err // it came first
	default:
	}
	if call.taken {
		return errors.Join(ErrUnderWay, ctx.Err())
	}
	return ctx.Err() // serve lets it go
}

// Waiting returns how many calls of a line are in no batch yet.
func (d *Desk[K, T]) Waiting(key K) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, ok := d.lines[key]; ok {
		return len(l.waiting)
	}
	return 0
}

// serve does the batches of a line until nobody is in it.
func (d *Desk[K, T]) serve(key K, l *line[T]) {
	for {
		calls, ok := d.take(key, l)
		if !ok {
			return
		}
		again, halve := d.do(key, calls)
		d.mu.Lock()
		l.size = l.size.After(len(calls), halve)
		for _, call := range again {
			call.taken = false
		}
		l.waiting = append(again, l.waiting...)
		d.mu.Unlock()
	}
}

// take takes the next batch, without those whose callers have gone. Without any the
// line ends.
func (d *Desk[K, T]) take(key K, l *line[T]) ([]*Call[T], bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var calls []*Call[T]
	for len(l.waiting) > 0 && len(calls) < l.size.Next() {
		call := l.waiting[0]
		l.waiting = l.waiting[1:]
		if call.Over() {
			call.Answer(call.ctx.Err())
			continue
		}
		call.taken = true
		calls = append(calls, call)
	}
	if len(calls) == 0 {
		delete(d.lines, key)
	}
	return calls, len(calls) > 0
}

// do does one batch.
func (d *Desk[K, T]) do(key K, calls []*Call[T]) (again []*Call[T], halve bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wait atomic.Int64
	wait.Store(int64(len(calls)))
	for _, call := range calls {
		stop := context.AfterFunc(call.ctx, func() {
			if wait.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	left := make(map[*Call[T]]bool, len(calls))
	for _, call := range calls {
		left[call] = true
	}
	defer func() { // also if the work panics
		for _, call := range again {
			delete(left, call)
		}
		for call := range left {
			call.Answer(ErrUndone)
		}
	}()
	return d.work(ctx, key, calls)
}
