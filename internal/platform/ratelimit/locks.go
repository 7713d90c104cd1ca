package ratelimit

import (
	"context"
	"hash/maphash"
)

// Locks are locks by name that may be held over I/O, because waiting for one ends with the
// context. There are 64 in all: two names may share one, so that nobody may hold two. They
// keep callers that would conflict in the store from doing so over and over; the
// store's conditions, not these, decide who wins.
type Locks struct {
	seed  maphash.Seed
	locks [64]chan struct{}
}

// NewLocks returns locks that nobody holds.
func NewLocks() *Locks {
	s := &Locks{seed: maphash.MakeSeed()}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

// Lock waits for the lock of name and returns its release. The error is that of ctx.
func (s *Locks) Lock(ctx context.Context, name string) (release func(), err error) {
	l := s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
