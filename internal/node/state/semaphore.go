package state

import "context"

// Semaphore admits one holder at a time; unlike a mutex it may be held over I/O.
type Semaphore chan struct{}

// NewSemaphore returns one that nobody holds.
func NewSemaphore() Semaphore { return make(Semaphore, 1) }

// Acquire waits until nobody holds s. The error is that of ctx.
func (s Semaphore) Acquire(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		<-s
		return nil, err
	}
	return func() { <-s }, nil
}

// Notify wakes who reads ch, of capacity 1, now or later; it never waits.
func Notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
