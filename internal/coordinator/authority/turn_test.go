package authority_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

func never() bool { return false }

func degraded(_ string, err error) error { return err }

// Nobody else has it before it is released, whichever way it was taken.
func TestOneAtATime(t *testing.T) {
	one := authority.NewTurn(never, degraded)
	for what, take := range map[string]func() (func(), error){
		"take":           func() (func(), error) { return one.Take(t.Context()) },
		"take for owner": func() (func(), error) { return one.TakeForOwner(t.Context()) },
		"await":          func() (func(), error) { return one.Await(t.Context()) },
		"try": func() (func(), error) {
			release, ok := one.Try()
			if !ok {
				return nil, errors.New("somebody has it")
			}
			return release, nil
		},
	} {
		release, err := take()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, ok := one.Try(); ok {
			t.Errorf("%s: another one has it too", what)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for other, take := range map[string]func(context.Context) (func(), error){"take": one.Take,
			"take for owner": one.TakeForOwner, "await": one.Await} {
			if _, err := take(over); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, then %s: %v", what, other, err)
			}
		}
		release()
	}
}

// The context of a question is over with it: a search goes on for as long as the
// coordinator is in recovery mode, and must not gather a context for each step.
func TestAskingEnds(t *testing.T) {
	asking, asked := authority.NewTurn(never, degraded).Asking(t.Context())
	if asking.Err() != nil {
		t.Fatal("it ended before an owner came")
	}
	asked()
	if asking.Err() == nil {
		t.Error("what was asked under goes on after it")
	}
}

// An owner that waits ends what is asked, and what would be asked next; once its turn has
// come nothing ends any more. Anybody else who waits ends nothing.
func TestOwnersAreNotKeptWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := authority.NewTurn(never, degraded)
		release, _ := one.Try()
		asking, asked := one.Asking(t.Context())
		gone, hangUp := context.WithCancel(t.Context())
		go func() { _, _ = one.Take(gone) }()
		synctest.Wait()
		if asking.Err() != nil {
			t.Error("the turn was taken from the search by somebody who proved nothing")
		}
		hangUp()
		synctest.Wait()
		came := make(chan func())
		go func() {
			release, err := one.TakeForOwner(t.Context())
			if err != nil {
				t.Error(err)
			}
			came <- release
		}()
		synctest.Wait()
		if asking.Err() == nil {
			t.Error("the search goes on while an owner waits")
		}
		asked()
		again, asked := one.Asking(t.Context())
		if again.Err() == nil {
			t.Error("the search asks the next one while an owner waits")
		}
		asked()
		release()
		release = <-came
		if again, asked := one.Asking(t.Context()); again.Err() != nil {
			t.Error("an owner whose turn has come still ends what is asked")
		} else {
			asked()
		}
		release()
	})
}

// The wait for another change while the store is silent is one for the store: it is
// bounded by the patience that the call has left, and taken from it. While the store
// answers there is no such bound.
func TestPatienceIsSpent(t *testing.T) {
	for silent, want := range map[bool]time.Duration{true: 3 * time.Second, false: time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			one := authority.NewTurn(func() bool { return silent }, degraded)
			release, _ := one.Try()
			defer release()
			ctx, cancel := context.WithTimeout(timeout.Grant(t.Context(), 3*time.Second), time.Hour)
			defer cancel()
			began := time.Now()
			_, err := one.Take(ctx)
			if took := time.Since(began); err == nil || took != want || errors.Is(err, timeout.ErrOver) != silent {
				t.Errorf("silent is %v: %v after %v, want it after %v", silent, err, took, want)
			}
		})
	}
}
