package part

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Agents are the ends of streams of one system.
type Agents interface {
	// Prepare makes what n of them need to connect.
	Prepare(ctx context.Context, o Order) error

	// Open opens the stream of agent i, and returns once it has its first state, with what waits for the next change.
	Open(ctx context.Context, i int) (next func() error, close func(), err error)
}

// Listeners are agents that hold a stream each.
type Listeners struct {
	agents Agents
	cancel context.CancelFunc
	ended  sync.WaitGroup
	closes []func()

	open  int // how many are
	round atomic.Int64
	seen  []atomic.Int64 // the round in which each last heard of a change
	left  atomic.Int64   // who has not heard in this round
	done  chan struct{}  // all have
	lost  chan error     // a stream that ended
}

// NewListeners returns a part that is agents.
func NewListeners(a Agents) *Listeners {
	return &Listeners{agents: a, done: make(chan struct{}, 1), lost: make(chan error, 1)}
}

// Do carries out an order: prepare N agents, open N streams, expect a change, or wait until all have heard of it.
func (l *Listeners) Do(ctx context.Context, o Order) (Answer, error) {
	switch o.Do {
	case "prepare":
		if l.open > 0 {
			return Answer{}, errors.New("who listens is prepared before the first stream is opened")
		}
		l.closes = append(l.closes, make([]func(), o.N)...)
		l.seen = make([]atomic.Int64, len(l.closes))
		return Answer{}, l.agents.Prepare(ctx, o)
	case "open":
		return Answer{}, l.openMore(ctx, o.N)
	case "expect":
		l.left.Store(int64(l.open))
		l.round.Add(1)
		return Answer{}, nil
	case "wait":
		select {
		case <-l.done:
			return Answer{}, nil
		case err := <-l.lost:
			return Answer{}, fmt.Errorf("a stream ended: %w", err)
		case <-time.After(2 * time.Minute):
			return Answer{}, fmt.Errorf("%d of %d were not told", l.left.Load(), l.open)
		}
	}
	return Answer{}, fmt.Errorf("agents cannot %q", o.Do)
}

// openMore opens n more streams, eight at once.
func (l *Listeners) openMore(ctx context.Context, n int) error {
	if l.cancel == nil {
		ctx, l.cancel = context.WithCancel(ctx)
	}
	var next atomic.Int64
	next.Store(int64(l.open))
	until := l.open + n
	var opening sync.WaitGroup
	failed := make(chan error, 8)
	for range cap(failed) {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < until; i = int(next.Add(1)) - 1 {
				told, end, err := l.agents.Open(ctx, i)
				if err != nil {
					failed <- fmt.Errorf("agent %d: %w", i, err)
					return
				}
				l.closes[i] = end
				l.ended.Go(func() { l.listen(i, told) })
			}
		})
	}
	opening.Wait()
	l.open = until
	close(failed)
	return <-failed
}

func (l *Listeners) listen(i int, told func() error) {
	for {
		if err := told(); err != nil {
			select {
			case l.lost <- err:
			default:
			}
			return
		}
		round := l.round.Load()
		if l.seen[i].Swap(round) != round && l.left.Add(-1) == 0 {
			l.done <- struct{}{}
		}
	}
}

// Close ends the streams.
func (l *Listeners) Close() error {
	if l.cancel != nil {
		l.cancel()
	}
	for _, end := range l.closes {
		if end != nil {
			end()
		}
	}
	l.ended.Wait()
	return nil
}
