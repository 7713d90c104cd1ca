package authority_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// headOver returns a Head in phase Ready whose records are in st, at the version of its head there.
func headOver(t testing.TB, st store.Store) *authority.Head {
	t.Helper()
	auth, err := store.NewAuthenticator(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	version, err := st.CompareAndSwap(t.Context(), history.HeadKey, 0, []byte("a head"))
	if err != nil {
		e, err := st.Get(t.Context(), history.HeadKey)
		if err != nil {
			t.Fatal(err)
		}
		version = e.Version
	}
	h := authority.NewHead(authority.HeadConfig{Store: st, StoreGuard: storeguard.New(storeguard.Config{Now: time.Now}),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Elapsed: func() time.Duration { return 0 }})
	h.Put(&authority.State{Phase: authority.Ready, HeadVersion: version,
		Records: record.Records{Store: st, Auth: auth}}, time.Time{})
	return h
}

type counted struct{ N int }

// add raises the counter that is under key, by the version at which it was read.
func add(ctx context.Context, h *authority.Head, key string) error {
	return h.Transact(ctx, "the counter", func(s *authority.State) error {
		was, err := record.Get[counted](ctx, s.Records, key)
		if err != nil {
			return h.StoreError("read the counter", err)
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(key, was.Version, counted{N: was.Value.N + 1})
		if _, err := ch.Commit(ctx); err != nil {
			return h.CommitError("raise the counter", err)
		}
		return nil
	})
}

// A decision on an old version is made again, so no raise of many coordinators is lost, and none of those
// that were refused is there.
func TestTransactLosesNothing(t *testing.T) {
	st := storetest.NewMemory(0).Open()
	const coordinators, each = 8, 25
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0 // guarded by mu
	for range coordinators {
		h := headOver(t, st)
		wg.Go(func() {
			for range each {
				err := add(t.Context(), h, "counter")
				if err != nil && !errors.Is(err, errcode.StoreBusy) {
					t.Error(err)
				}
				mu.Lock()
				if err == nil {
					made++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	h := headOver(t, st)
	got, err := record.Get[counted](t.Context(), h.State().Records, "counter")
	if err != nil || got.Value.N != made || made == 0 {
		t.Fatalf("%d raises were made, and the counter is %+v (%v)", made, got.Value, err)
	}
}

// Each way in which a decision can end.
func TestTransactEnds(t *testing.T) {
	conflict := &store.ConflictError{Key: "busy"}
	unknown := store.ErrUnknownOutcome
	failed := errcode.New(errcode.MemberOwnsDomains, "member", "data/a", "domains", "1 domain")
	for name, tt := range map[string]struct {
		errs  []error // of the tries in turn; the last one of all that follow
		again func() bool
		tries int
		want  error
	}{
		"made at once":             {errs: []error{nil}, tries: 1},
		"made after a conflict":    {errs: []error{conflict, nil}, tries: 2},
		"made after one of no key": {errs: []error{store.ErrConflict, store.ErrConflict, nil}, tries: 3},
		"always in conflict":       {errs: []error{conflict}, tries: record.CommitTries, want: errcode.StoreBusy},
		"refused":                  {errs: []error{failed}, tries: 1, want: errcode.MemberOwnsDomains},
		"refused after a conflict": {errs: []error{conflict, failed}, tries: 2, want: errcode.MemberOwnsDomains},
		"the owner says no":        {errs: []error{conflict, nil}, again: no, tries: 1, want: errcode.StoreBusy},
		"the owner says yes":       {errs: []error{conflict, nil}, again: yes, tries: 2},
		"an outcome that is lost":  {errs: []error{unknown, nil}, tries: 1, want: errcode.StoreOutcomeUnknown},
		"a store out of reach":     {errs: []error{errors.New("cut"), nil}, tries: 1, want: errcode.StoreUnreachable},
		"a caller that went away":  {errs: []error{context.Canceled, nil}, tries: 1, want: context.Canceled},
		"lost, and late": {errs: []error{errors.Join(unknown, context.DeadlineExceeded), nil}, tries: 1,
			want: errcode.StoreOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := headOver(t, storetest.NewMemory(0).Open())
			if tt.again != nil {
				h.OnConflict("busy", func(_ context.Context, err *store.ConflictError) bool {
					if err != conflict {
						t.Errorf("the owner is told of %v", err)
					}
					return tt.again()
				})
			}
			tries := 0
			err := h.Transact(t.Context(), "the change", func(s *authority.State) error {
				if s != h.State() {
					t.Error("it is decided under another state than the one in force")
				}
				err := tt.errs[min(tries, len(tt.errs)-1)]
				if tries++; err == nil {
					return nil
				}
				return h.CommitError("make the change", err)
			})
			if tries != tt.tries || !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Fatalf("%d tries ended in %v; want %d and %v", tries, err, tt.tries, tt.want)
			}
		})
	}
}

func yes() bool { return true }
func no() bool  { return false }

// Nothing is decided in recovery mode, nor once the caller went away, nor under a state that is over.
func TestTransactWantsAStateInForce(t *testing.T) {
	h := headOver(t, storetest.NewMemory(0).Open())
	never := func(*authority.State) error {
		t.Error("it was decided")
		return nil
	}
	ready := h.State()
	h.Put(&authority.State{Phase: authority.Recovery}, time.Time{})
	if err := h.Transact(t.Context(), "the change", never); !errors.Is(err, errcode.RecoveryMode) {
		t.Errorf("in recovery mode: %v", err)
	}
	h.Put(ready, time.Time{})
	h.FallBehind(ready)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Transact(gone, "the change", never); !errors.Is(err, context.Canceled) {
		t.Errorf("behind the store, for a caller that went away: %v", err)
	}
	// For a caller that goes away during a conflict nothing is decided again.
	h.CaughtUp(ready)
	going, leave := context.WithCancel(t.Context())
	tries := 0
	err := h.Transact(going, "the change", func(*authority.State) error {
		tries++
		leave()
		return store.ErrConflict
	})
	if tries != 1 || !errors.Is(err, errcode.StoreBusy) {
		t.Errorf("%d tries for a caller that went away: %v", tries, err)
	}
}
