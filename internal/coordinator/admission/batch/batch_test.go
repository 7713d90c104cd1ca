package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/internal/coordinator/admission/batch"
)

type calls = []*batch.Call[int]

func items(c calls) (out []int) {
	for _, call := range c {
		out = append(out, call.Item)
	}
	slices.Sort(out)
	return out
}

// serve runs a desk of batches of at most so many, and first makes a batch of 0 wait
// until all of n calls are there. It returns the batches after that one, sorted each.
func serve(t *testing.T, most, n int, work func(calls) (calls, bool)) (batches [][]int, answers map[int]error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		answers = make(map[int]error)
		var mu sync.Mutex
		var all sync.WaitGroup
		all.Add(1)
		first := make(chan struct{})
		desk := batch.New(most, all.Go, func(_ context.Context, _ string, c calls) (calls, bool) {
			if c[0].Item == 0 {
				<-first
				c[0].Answer(nil)
				return nil, false
			}
			batches = append(batches, items(c))
			return work(c)
		})
		do := func(i int) {
			all.Go(func() {
				err := desk.Do(t.Context(), "line", i)
				mu.Lock()
				defer mu.Unlock()
				answers[i] = err
			})
		}
		do(0)
		synctest.Wait()
		for i := range n {
			do(i + 1)
			synctest.Wait() // in their order
		}
		if got := desk.Waiting("line"); got != n {
			t.Errorf("%d wait, want %d", got, n)
		}
		close(first)
		all.Done()
		all.Wait()
		if got := desk.Waiting("line"); got != 0 {
			t.Errorf("%d still wait", got)
		}
	})
	return batches, answers
}

func answer(c calls) (calls, bool) {
	for _, call := range c {
		call.Answer(nil)
	}
	return nil, false
}

// Those that come while a batch is done are the next, up to what a batch holds, in the
// order in which they came.
func TestThoseThatGatherGoTogether(t *testing.T) {
	got, answers := serve(t, 4, 10, answer)
	if want := [][]int{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("batches %v, want %v", got, want)
	}
	if len(answers) != 11 {
		t.Errorf("%d answers", len(answers))
	}
}

// Those that are returned come first in the next batch.
func TestReturnedCallsComeFirst(t *testing.T) {
	got, _ := serve(t, 4, 6, func(c calls) (calls, bool) {
		n := min(len(c), 3)
		answer(c[:n])
		return c[n:], false
	})
	if want := [][]int{{1, 2, 3, 4}, {4, 5, 6}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("batches %v, want %v", got, want)
	}
}

// One call that spoils every batch, and that nobody can name, is found by halves, and
// all the others are done.
func TestOneThatSpoilsIsFoundByHalves(t *testing.T) {
	bad := errors.New("it is the one")
	for spoils := 1; spoils <= 16; spoils++ {
		got, answers := serve(t, 16, 16, func(c calls) (calls, bool) {
			at := slices.IndexFunc(c, func(call *batch.Call[int]) bool { return call.Item == spoils })
			switch {
			case at < 0:
				return answer(c)
			case len(c) == 1:
				c[0].Answer(bad)
				return nil, false
			}
			return c, true
		})
		for i := 1; i <= 16; i++ {
			if want := i == spoils; errors.Is(answers[i], bad) != want || !want && answers[i] != nil {
				t.Errorf("call %d spoils, and %d is told %v", spoils, i, answers[i])
			}
		}
		if len(got) > 16 {
			t.Errorf("call %d spoils: %d batches: %v", spoils, len(got), got)
		}
	}
}

// A call whose caller has gone is in no batch, one that goes while it is done is told so,
// and the batch goes on for as long as anybody waits for it.
func TestCallersThatGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		var seen [][]int
		first := make(chan struct{})
		desk := batch.New(8, all.Go, func(ctx context.Context, _ string, c calls) (calls, bool) {
			seen = append(seen, items(c))
			if c[0].Item == 0 {
				<-first
			} else {
				<-ctx.Done()
			}
			return answer(c)
		})
		errs := make([]error, 4)
		var stops []context.CancelFunc
		for i := range errs {
			ctx, stop := context.WithCancel(t.Context())
			stops = append(stops, stop)
			all.Go(func() { errs[i] = desk.Do(ctx, "line", i) })
			synctest.Wait()
		}
		stops[1]() // it waits yet
		synctest.Wait()
		if !errors.Is(errs[1], context.Canceled) || errors.Is(errs[1], batch.ErrUnderWay) {
			t.Errorf("one that waits is told %v", errs[1])
		}
		close(first)
		synctest.Wait()
		stops[2]() // it is being done
		synctest.Wait()
		if !errors.Is(errs[2], batch.ErrUnderWay) {
			t.Errorf("one that is being done is told %v", errs[2])
		}
		stops[3]()
		all.Wait()
		stops[0]()
		if want := [][]int{{0}, {2, 3}}; !slices.EqualFunc(seen, want, slices.Equal) {
			t.Errorf("batches %v, want %v", seen, want)
		}
	})
}

// Lines do not wait for one another, and nobody is left without an answer.
func TestLinesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		held := make(chan struct{})
		desk := batch.New(8, all.Go, func(_ context.Context, line string, _ calls) (calls, bool) {
			if line == "held" {
				<-held
			}
			return nil, false
		})
		all.Go(func() {
			if err := desk.Do(t.Context(), "held", 1); !errors.Is(err, batch.ErrUndone) {
				t.Errorf("told %v", err)
			}
		})
		synctest.Wait()
		if err := desk.Do(t.Context(), "other", 1); !errors.Is(err, batch.ErrUndone) {
			t.Errorf("told %v", err)
		}
		close(held)
		all.Wait()
	})
}

// The size of a batch falls to one by halves, and grows back.
func TestSize(t *testing.T) {
	s := batch.NewSize(12)
	var got []int
	for _, spoiled := range []bool{true, true, true, true, false, false, false, false, false} {
		s = s.After(s.Next(), spoiled)
		got = append(got, s.Next())
	}
	if want := []int{6, 3, 1, 1, 2, 4, 8, 12, 12}; !slices.Equal(got, want) {
		t.Errorf("sizes %v, want %v", got, want)
	}
	if got := batch.NewSize(12).After(4, true).Next(); got != 2 {
		t.Errorf("after four that were spoiled: %d, want 2", got)
	}
}

// A room holds so many operations, and each key once.
func TestRoom(t *testing.T) {
	r := batch.NewRoom(10)
	for i, c := range []struct {
		ops  int
		keys []string
		want bool
	}{{4, []string{"a", "b"}, true}, {2, []string{"c", "b"}, false}, {2, []string{"c"}, true}, {5, []string{"d"}, false}, {4, nil, true}, {1, nil, false}} {
		if got := r.Take(i, c.ops, c.keys); got != c.want {
			t.Errorf("%d operations on %v: %v, want %v", c.ops, c.keys, got, c.want)
		}
	}
	for key, want := range map[string]string{"a": "0 true", "b": "0 true", "c": "2 true", "d": "0 false"} {
		who, ok := r.Owner(key)
		if got := fmt.Sprint(who, ok); got != want {
			t.Errorf("%s is of %s, want %s", key, got, want)
		}
	}
}
