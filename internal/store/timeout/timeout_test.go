package timeout_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// slow is a store that takes its time for each call, and may never answer.
type slow struct {
	store.Store // nil: nothing else is called
	takes       time.Duration
	silent      bool
	taken       bool // a write that it does not answer may have been made
	calls       int
}

func (s *slow) wait(ctx context.Context) error {
	s.calls++
	if s.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(s.takes)
	return nil
}

func (s *slow) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := s.wait(ctx); err != nil {
		return store.Entry{}, err
	}
	return store.Entry{}, store.ErrNotFound
}

func (s *slow) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := s.wait(ctx); err != nil {
		return store.Listing{}, err
	}
	return store.Listing{}, nil
}

func (s *slow) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := s.wait(ctx); err != nil {
		if s.taken {
			err = errors.Join(store.ErrUnknownOutcome, err)
		}
		return 0, err
	}
	if len(tx.If) > 0 {
		return 0, &store.ConflictError{Key: tx.If[0].Key}
	}
	return 1, nil
}

var put = store.Tx{ID: "tx-1", Put: []store.Write{{Key: "a", Value: []byte("x")}}}

// A request waits no longer than it may, however many calls it makes, and the errors say
// that it was the store, because whoever asked still waits.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &slow{silent: true}
		st := timeout.Store(under)
		began := time.Now()
		ctx := timeout.Grant(t.Context(), 10*time.Second)
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := st.Get(short, "a"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, timeout.ErrOver) {
			t.Errorf("a call with an end of its own: %v", err)
		}
		if left, ok := timeout.Left(ctx); left != 8*time.Second || !ok {
			t.Errorf("%v is left, %v", left, ok)
		}
		_, list := st.List(ctx, "a")
		_, commit := st.Commit(ctx, put)
		_, get := st.Get(ctx, "a")
		_, swap := st.CompareAndSwap(ctx, "a", 0, nil)
		_, outcome := st.Outcome(ctx, "tx-1")
		for what, err := range map[string]error{"list": list, "commit": commit, "get": get, "swap": swap, "outcome": outcome} {
			if !errors.Is(err, timeout.ErrOver) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrUnknownOutcome) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if took := time.Since(began); took != 10*time.Second || under.calls != 2 {
			t.Errorf("it took %v and %d calls", took, under.calls)
		}
	})
}

// Nobody knows what became of a write that was under way when the patience ended.
func TestWriteUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := timeout.Store(&slow{silent: true, taken: true})
		_, err := st.Commit(timeout.Grant(t.Context(), time.Second), put)
		if !errors.Is(err, store.ErrUnknownOutcome) || !errors.Is(err, timeout.ErrOver) || errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A store that answers is waited for as often as a request needs it, also if it answers
// with a refusal.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := timeout.Store(&slow{takes: 9 * time.Second})
		ctx := timeout.Grant(t.Context(), 10*time.Second)
		for range 5 {
			if _, err := st.Get(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
				t.Fatal(err)
			}
			if _, err := st.Commit(ctx, store.SwapTx("b", 7, nil)); !errors.Is(err, store.ErrConflict) {
				t.Fatal(err)
			}
			if _, err := st.List(ctx, ""); err != nil {
				t.Fatal(err)
			}
		}
		if left, _ := timeout.Left(ctx); left != 10*time.Second {
			t.Errorf("%v is left", left)
		}
	})
}

// Work that must be done though nobody waits any more is not bound by who asked for it.
func TestBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, cancel := context.WithCancel(timeout.Grant(t.Context(), time.Second))
		timeout.Spend(asked, time.Hour)
		cancel()
		st := timeout.Store(&slow{takes: time.Minute})
		if _, err := st.Commit(timeout.Beyond(asked), put); err != nil {
			t.Error(err)
		}
		if _, ok := timeout.Left(timeout.Beyond(asked)); ok {
			t.Error("it has a grant")
		}
	})
}

// forgetful is a store that commits, and whose answers are lost once the patience is.
type forgetful struct {
	store.Store // nil: nothing else is called
	spend       func()
	outcome     error
}

func (f *forgetful) Commit(context.Context, store.Tx) (store.Revision, error) {
	f.spend()
	return 0, store.ErrUnknownOutcome
}

func (f *forgetful) Outcome(ctx context.Context, _ string) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return 7, f.outcome
}

// The outcome of a write is found out, though whoever wanted it has gone and its patience is
// spent.
func TestCommitAsksWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	silent := errors.New("no answer")
	for _, tc := range []struct {
		name           string
		outcome, wants error
		at             store.Revision
	}{
		{"it was applied", nil, nil, 7},
		{"it was not", store.ErrNotFound, store.ErrConflict, 0},
		{"nobody answers", silent, store.ErrUnknownOutcome, 0},
	} {
		ctx, cancel := context.WithCancel(timeout.Grant(t.Context(), time.Second))
		under := &forgetful{outcome: tc.outcome, spend: func() {
			timeout.Spend(ctx, time.Hour)
			cancel()
		}}
		at, err := timeout.Commit(ctx, timeout.Store(under), put)
		if at != tc.at || !errors.Is(err, tc.wants) {
			t.Errorf("%s: %d, %v", tc.name, at, err)
		}
	}
}
