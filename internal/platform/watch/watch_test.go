package watch_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Everybody who waited is woken, and nobody who began to wait after.
func TestSignal(t *testing.T) {
	var s watch.Signal
	s.Notify() // nobody waits
	first, second := s.Wait(), s.Wait()
	if closed(first) || closed(second) {
		t.Fatal("woken by a change of before")
	}
	s.Notify()
	if !closed(first) || !closed(second) {
		t.Error("not woken")
	}
	if closed(s.Wait()) {
		t.Error("woken by a change of before")
	}
}

// No change is missed by whoever takes the channel first, however many notify at once.
func TestSignalAtOnce(t *testing.T) {
	var s watch.Signal
	var all sync.WaitGroup
	for range 8 {
		ch := s.Wait()
		all.Go(func() { <-ch })
		all.Go(s.Notify)
	}
	all.Wait()
}

func TestWait(t *testing.T) {
	const never, given, none = "never", "given", "nil"
	for name, tc := range map[string]struct {
		events []string
		ends   bool
		given  bool
	}{
		"time":           {[]string{never, none}, false, false},
		"first event":    {[]string{given}, false, true},
		"last event":     {[]string{none, none, none, none, never, given}, false, true},
		"end":            {nil, true, true},
		"event and end":  {[]string{given}, true, true},
		"nothing at all": {nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if tc.ends {
					end()
				}
				events := make([]<-chan struct{}, len(tc.events))
				for i, event := range tc.events {
					ch := make(chan struct{})
					switch event {
					case given:
						close(ch)
						fallthrough
					case never:
						events[i] = ch
					}
				}
				began := time.Now()
				got, err := watch.Wait(ctx, time.Hour, events...)
				if errors.Is(err, context.Canceled) != tc.ends || err == nil && got != tc.given {
					t.Errorf("Wait: %v, %v", got, err)
				}
				if waited := time.Since(began) == time.Hour; waited == tc.given {
					t.Errorf("it waited for %v", time.Since(began))
				}
			})
		})
	}
}

// keyed is a store with one key, whose watch ends after each change that it shows.
type keyed struct{ changes chan error }

func (k keyed) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if key != "k" || !yield(store.Entry{Key: key}, nil) {
			return
		}
		select {
		case err := <-k.changes:
			yield(store.Entry{Key: key}, err)
		case <-ctx.Done():
			yield(store.Entry{}, ctx.Err())
		}
	}
}

// A loop looks at first, after each change of its key, each signal, and the time that it
// set; a watch that ended begins again, and tells what was missed.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		k := keyed{make(chan error)}
		var one, two watch.Signal
		var looks atomic.Int64
		done := make(chan error)
		go func() {
			done <- watch.Follow(ctx, k, "k", time.Hour, func(context.Context) error { looks.Add(1); return nil }, &one, &two)
		}()
		want := func(what string, n int) {
			t.Helper()
			synctest.Wait()
			got := int(looks.Swap(0))
			if got < 1 || got > n {
				t.Errorf("%s: %d looks, want at least one and at most %d", what, got, n)
			}
		}
		want("at first", 2) // once by itself, once as the watch shows the key
		one.Notify()
		want("after the first signal", 1)
		two.Notify()
		want("after the second signal", 1)
		k.changes <- nil
		want("after a change", 1)
		time.Sleep(2 * time.Second)
		want("after the watch began again", 1)
		k.changes <- errors.New("the connection is gone")
		time.Sleep(2 * time.Second)
		want("after a watch that failed", 1)
		time.Sleep(time.Hour)
		want("after the time", 1)
		end()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Follow: %v", err)
		}
	})
}

// A change while the loop looks has it look again, without a wait.
func TestFollowMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var signal watch.Signal
		enough := errors.New("enough")
		looks, began := 0, time.Now()
		never := keyed{make(chan error)}
		err := watch.Follow(t.Context(), never, "another key", time.Hour, func(context.Context) error {
			if looks++; looks == 3 {
				return enough
			}
			signal.Notify()
			return nil
		}, &signal)
		if waited := time.Since(began); !errors.Is(err, enough) || waited != 0 {
			t.Errorf("Follow: %v after %d looks and %v", err, looks, waited)
		}
	})
}

// An error of the look ends the loop, and the watch with it.
func TestFollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if the watch goes on
		failed := errors.New("failed")
		err := watch.Follow(t.Context(), keyed{make(chan error)}, "k", time.Hour, func(context.Context) error { return failed })
		if !errors.Is(err, failed) {
			t.Errorf("Follow: %v", err)
		}
	})
}

// A loop that fails starts again, a pause later, and ends with its context alone.
func TestForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var said bytes.Buffer
		runs, began := 0, time.Now()
		err := watch.Forever(ctx, slog.New(slog.NewTextHandler(&said, nil)), "the loop", func() error {
			if runs++; runs == 3 {
				cancel()
				return nil
			}
			return errors.New("the store is away")
		})
		if !errors.Is(err, context.Canceled) || runs != 3 || time.Since(began) != 2*watch.RetryPause {
			t.Errorf("%d runs in %v: %v", runs, time.Since(began), err)
		}
		if n := strings.Count(said.String(), `loop="the loop" err="the store is away"`); n != 2 {
			t.Errorf("%d failures are logged:\n%s", n, said.String())
		}
	})
}
