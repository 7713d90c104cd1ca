// Package watch wakes loops when something changed: within a process by a [Signal], and in a store
// by the watch of a [Key].
//
// A wake does not carry what changed. A loop first takes the channels, then reads everything that
// it depends on, and then waits. So it misses no change, and several changes during one read cause
// one more read. A notice from a store can get lost on the way: a caller that depends on a key also
// reads it every few seconds.
package watch

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// Signal tells any number of waiters that something changed. Waiting takes no lock, as
// after a change a whole fleet of streams waits again. The zero value is ready to use. A
// Signal must not be copied after its first use.
type Signal struct {
	ch atomic.Pointer[chan struct{}] // closed at the next change; nil before the first wait
}

// Wait returns a channel that is closed at the next change. Take it before looking at
// what may change.
func (s *Signal) Wait() <-chan struct{} {
	for {
		if ch := s.ch.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if s.ch.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// Notify wakes everybody who waits. It never blocks.
func (s *Signal) Notify() {
	ch := make(chan struct{})
	if old := s.ch.Swap(&ch); old != nil {
		close(*old)
	}
}

// maxEvents bounds the events that one call of [Wait] waits for.
const maxEvents = 6

// Wait waits until one of up to six events is given, for d, or until ctx ends. A nil event is
// never given; a d of zero or less has passed. It reports whether an event was given: if
// several things happened at once, either may be told, but for the end of ctx, which
// is always an error.
func Wait(ctx context.Context, d time.Duration, events ...<-chan struct{}) (given bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	return wait(ctx, t.C, events)
}

// Event is [Wait] without a limit.
func Event(ctx context.Context, events ...<-chan struct{}) error {
	_, err := wait(ctx, nil, events)
	return err
}

// Sleep waits for d, or until ctx ends, which is an error.
func Sleep(ctx context.Context, d time.Duration) error {
	_, err := Wait(ctx, d)
	return err
}

func wait(ctx context.Context, limit <-chan time.Time, events []<-chan struct{}) (given bool, err error) {
	var e [maxEvents]<-chan struct{}
	if len(events) > len(e) {
		panic("watch: too many events")
	}
	copy(e[:], events)
	given = true
	select {
	case <-e[0]:
	case <-e[1]:
	case <-e[2]:
	case <-e[3]:
	case <-e[4]:
	case <-e[5]:
	case <-limit:
		given = false
	case <-ctx.Done():
	}
	return given, ctx.Err() // several may be ready
}

// Watcher is what Key needs of a store.
type Watcher interface {
	// Watch yields the entry at key as it is, and again after each change, until ctx
	// ends or an error is yielded.
	Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error]
}

// RetryPause is the pause before a watch that ended, or a loop that failed, begins again.
const RetryPause = time.Second

// Key returns a channel that holds one token after any number of changes of a key in st,
// and at first, and a function that ends the watch and waits for its end. It is a hint:
// while the store cannot be reached nothing is told, and what changed meanwhile is told
// when it can.
func Key(ctx context.Context, st Watcher, key string) (changed <-chan struct{}, stop func()) {
	tokens := make(chan struct{}, 1)
	watch, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with watch, and is waited for by stop
		defer close(done)
		for {
			for _, err := range st.Watch(watch, key) {
				if err != nil {
					break // meanwhile the poll goes on
				}
				select {
				case tokens <- struct{}{}:
				default:
				}
			}
			if Sleep(watch, RetryPause) != nil {
				return
			}
		}
	}()
	return tokens, func() { cancel(); <-done }
}

// Follow calls look at once, and again after each change of key in st, after each
// notice of one of up to five signals, and when every has passed since the last look. It
// returns the error that look ends with, or that of ctx.
func Follow(
	ctx context.Context, st Watcher, key string, every time.Duration, look func(context.Context) error, on ...*Signal,
) error {
	changed, stop := Key(ctx, st, key)
	defer stop()
	events := make([]<-chan struct{}, 1+len(on))
	events[0] = changed
	for {
		for i, s := range on {
			events[1+i] = s.Wait()
		}
		if err := look(ctx); err != nil {
			return err
		}
		if _, err := Wait(ctx, every, events...); err != nil {
			return err
		}
	}
}
