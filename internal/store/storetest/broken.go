package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
)

// persistent goes on where nothing was written or read: what is left in doubt is
// what the server left in doubt.
type persistent struct {
	store.Store
	committed chan<- struct{}
}

func (p persistent) again(ctx context.Context, err error) bool {
	if answered(err) || ctx.Err() != nil {
		return false
	}
	time.Sleep(5 * time.Millisecond) // the server is down, and comes back
	return true
}

// answered reports whether err says what became of a call.
func answered(err error) bool {
	return err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnknownOutcome) ||
		errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrVoided)
}

func (p persistent) Get(ctx context.Context, key string) (store.Entry, error) {
	for {
		if e, err := p.Store.Get(ctx, key); !p.again(ctx, err) {
			return e, err
		}
	}
}

func (p persistent) List(ctx context.Context, prefix string) (store.Listing, error) {
	for {
		if l, err := p.Store.List(ctx, prefix); !p.again(ctx, err) {
			return l, err
		}
	}
}

func (p persistent) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	for {
		r, err := p.Store.Commit(ctx, tx)
		select {
		case p.committed <- struct{}{}:
		default: // whoever breaks the server is at it
		}
		if p.again(ctx, err) {
			continue
		}
		if !answered(err) {
			// The caller's time was over while the server was away, and nothing was written.
			err = errors.Join(ctx.Err(), err)
		}
		return r, err
	}
}

func (p persistent) Outcome(ctx context.Context, id string) (store.Revision, error) {
	for {
		if r, err := p.Store.Outcome(ctx, id); !p.again(ctx, err) {
			return r, err
		}
	}
}

const (
	// maxBreaks bounds how often a server is broken, so that a slow machine gets its
	// work done in the end.
	maxBreaks = 10
	// breakAfter is how many commits are tried before the server is broken again.
	breakAfter = 20
)

// LinearizableWhileBroken is the case Linearizable over real connections, while
// what serves the handles is broken and mended again and again: by breaks, which
// gets how often it was called before. Calls that it leaves without an answer are
// in doubt, and count as such.
func LinearizableWhileBroken(t *testing.T, open func(testing.TB) store.Store, breaks func(time int) error) {
	var breaker sync.WaitGroup
	done, begun, committed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	broken, opened := 0, 0
	var failed error
	breaker.Go(func() {
		select {
		case <-begun:
		case <-done:
			return
		}
		for broken < maxBreaks {
			for range breakAfter {
				select {
				case <-done:
					return
				case <-committed:
				}
			}
			if failed = breaks(broken); failed != nil {
				return
			}
			broken++
		}
	})
	func() {
		defer breaker.Wait()
		defer close(done)
		testLinearizable(t, Engine{New: func(t testing.TB, _ int) conformance.Database {
			return conformance.Database{Shared: true, Open: func() (store.Store, error) {
				s := open(t)
				if opened++; opened == linearClients {
					close(begun)
				}
				return persistent{s, committed}, nil
			}}
		}})
	}()
	if failed != nil {
		t.Fatal(failed)
	}
	if broken == 0 {
		t.Fatal("nothing was broken meanwhile")
	}
	t.Logf("broken %d times", broken)
}
