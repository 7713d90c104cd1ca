package ratelimit

import (
	"context"
	"sync"
)

// Readers are the goroutines that wait for what a peer sends, or for it to take what is sent:
// neither ends with the patience of who asked, so that they are counted, and waited for at
// the end. The zero value is ready; a Readers must not be copied.
type Readers struct{ running sync.WaitGroup }

// Go runs f in a goroutine of its own.
func (r *Readers) Go(f func()) { r.running.Go(f) }

// Wait waits until all of them ended. Nobody may begin one at the time.
func (r *Readers) Wait() { r.running.Wait() }

// Receive waits for one message, for no longer than ctx lasts; then its error is that of ctx.
// The goroutine that receives ends with the stream, which ends when its handler returns.
func Receive[T any](ctx context.Context, r *Readers, recv func() (T, error)) (T, error) {
	type result struct {
		msg T
		err error
	}
	got := make(chan result, 1)
	r.Go(func() {
		msg, err := recv()
		got <- result{msg, err}
	})
	select {
	case r := <-got:
		return r.msg, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Do does what may block on a peer, for no longer than ctx lasts: see [Receive].
func (r *Readers) Do(ctx context.Context, do func() error) error {
	_, err := Receive(ctx, r, func() (struct{}, error) { return struct{}{}, do() })
	return err
}
