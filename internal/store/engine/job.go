package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/store"
)

// job is one call that only the writer can serve.
type job struct {
	kind   kind
	tx     store.Tx       // of commit; its own copy, because the caller may be gone
	id     string         // of outcome
	digest []byte         // of a commit with an ID
	floor  store.Revision // of raise
	over   bool           // of raise: over what the store holds

	// waiting, then taken by the writer when it is about to be written, or abandoned by
	// the caller; waiting again if nothing was written.
	state atomic.Int32

	// Written by the writer before done is closed.
	done     chan struct{}
	revision store.Revision
	err      error
}

type kind int

const (
	commit kind = iota
	outcome
	raise
)

const (
	waiting int32 = iota
	taken
	abandoned
)

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	j, err := commitJob(tx)
	if err != nil {
		return 0, err
	}
	return s.hand(ctx, j)
}

func commitJob(tx store.Tx) (*job, error) {
	if err := tx.Validate(); err != nil {
		return nil, err
	}
	j := &job{kind: commit, tx: tx.Clone(), done: make(chan struct{})}
	if tx.ID != "" {
		digest := tx.Digest()
		j.digest = digest[:]
	}
	return j, nil
}

// CompareAndSwap implements [store.KV].
func (s *Store) CompareAndSwap(
	ctx context.Context, key string, old store.Revision, value []byte,
) (store.Revision, error) {
	return s.Commit(ctx, store.SwapTx(key, old, value))
}

// Outcome implements [store.Store]. It passes through the queue and is decided like a
// commit, so that whatever was handed over before is decided when it answers.
func (s *Store) Outcome(ctx context.Context, txID string) (store.Revision, error) {
	if err := store.CheckTxID(txID); err != nil {
		return 0, err
	}
	return s.hand(ctx, &job{kind: outcome, id: txID, done: make(chan struct{})})
}

// Raise implements [store.Raiser].
func (s *Store) Raise(ctx context.Context, floor store.Revision) error {
	return s.raise(ctx, floor, false)
}

// Lift implements [store.Lifter].
func (s *Store) Lift(ctx context.Context, floor store.Revision) error {
	return s.raise(ctx, floor, true)
}

func (s *Store) raise(ctx context.Context, floor store.Revision, over bool) error {
	if floor > store.MaxRevision/2 {
		return fmt.Errorf("store: raise to %d: %w: at most %d, so that there is room to go on",
			floor, store.ErrInvalid, store.MaxRevision/2)
	}
	_, err := s.hand(ctx, &job{kind: raise, floor: floor, over: over, done: make(chan struct{})})
	return err
}

// hand gives j to the writer and waits for its answer.
func (s *Store) hand(ctx context.Context, j *job) (store.Revision, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return 0, notBegun(err)
	}
	select {
	case s.queue <- j:
	case <-ctx.Done():
		return 0, notBegun(ctx.Err())
	}
	select {
	case <-j.done:
		return j.revision, j.err
	case <-ctx.Done():
	}
	if j.state.CompareAndSwap(waiting, abandoned) {
		return 0, notBegun(ctx.Err())
	}
	select {
	case <-j.done: // the answer is there, so there is no reason to forget it
		return j.revision, j.err
	default:
		return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

func notBegun(err error) error {
	return fmt.Errorf("store: not begun, nothing was written: %w", err)
}
