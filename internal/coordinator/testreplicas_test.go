package coordinator_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// newReplica returns one more coordinator on the store of f, with a data directory,
// listeners, faults and a link to the store of its own; signer, clock and config
// are those of f. It has its enrolment key, so that f.manifest admits it, as
// coordinator-2 and so on, and is not running:
//
//	r := newReplica(t, f)
//	f.set(f.manifest(""))
//	r.start()
//	r.await(phaseReady)
func newReplica(t testing.TB, f *fleet) *fleet {
	t.Helper()
	if f.first != nil {
		f = f.first
	}
	name := fmt.Sprintf("replica-%d", len(f.replicas)+2)
	r := &fleet{
		t: t, dir: filepath.Join(f.dir, name), addr: "127.0.0.1:0", faults: new(fault.Points), signer: f.signer,
		config: f.config,
		first:  f, link: new(storeLink), open: f.open, stopC: func() {},
	}
	files, folder := durable.OS(), filepath.Join(r.dir, "coordinator")
	if err := files.MkdirAll(folder); err != nil {
		t.Fatal(err)
	}
	key, err := authority.LoadEnrolmentKey(files, folder)
	if err != nil {
		t.Fatal(err)
	}
	public, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	r.enrolment, r.key = public.String(), key
	f.replicas = append(f.replicas, r)
	t.Cleanup(func() { r.stop() })
	return r
}

// errKilled is what the store answers to a coordinator that was killed.
var errKilled = errors.New("the process was killed")

// kill ends the coordinator without a chance to write or hand over anything: what
// it does from now on reaches no store. start brings it back.
func (f *fleet) kill() {
	f.t.Helper()
	f.link.cut(errKilled)
	f.stop()
	f.link.cut(nil)
}

// await waits until the coordinator is in phase p.
func (f *fleet) await(p authority.Phase) {
	f.t.Helper()
	f.awaitState("phase "+p.String(), func(s *authority.State) bool { return s.Phase == p })
}

// awaitHead waits until the coordinator is ready at the head that g is ready at.
func (f *fleet) awaitHead(g *fleet) {
	f.t.Helper()
	want := g.c.Rooms().Head.State().Head
	f.awaitState(fmt.Sprintf("head %d", want.Index),
		func(s *authority.State) bool { return s.Phase == authority.Ready && s.Head.Hash == want.Hash })
}

// awaitSameHead waits until both are ready at one head, whichever that is, and returns
// the state of the first.
func awaitSameHead(t testing.TB, a, b *fleet) *authority.State {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		newsA, newsB := a.c.Rooms().Head.Changed(), b.c.Rooms().Head.Changed()
		x, y := a.c.Rooms().Head.State(), b.c.Rooms().Head.State()
		if x.Phase == authority.Ready && y.Phase == authority.Ready && x.Head.Hash == y.Head.Hash {
			return x
		}
		select {
		case <-newsA:
		case <-newsB:
		case <-deadline.C:
			t.Fatalf("they do not meet: one is in phase %s at index %d, the other in phase %s at index %d", x.Phase,
				x.Head.Index, y.Phase, y.Head.Index)
		}
	}
}

func (f *fleet) awaitState(what string, want func(*authority.State) bool) {
	f.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		changed := f.c.Rooms().Head.Changed()
		s := f.c.Rooms().Head.State()
		if want(s) {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			f.t.Fatalf("%s did not come: the coordinator is in phase %s at index %d: %s", what, s.Phase, s.Head.Index,
				s.Reason)
		}
	}
}

// storeLink is the way of one coordinator to the store: it can be cut, and what
// comes over it can be altered, for this coordinator alone. The zero value does
// neither.
type storeLink struct {
	deaf atomic.Bool

	mu   sync.Mutex
	down error                         // guarded by mu
	get  func(store.Entry) store.Entry // guarded by mu
	way  func(store.Tx) error          // guarded by mu
	lost lostAnswer                    // of the next swap of the head; guarded by mu
	news chan struct{}                 // closed when down is set; guarded by mu
}

// linked is a store over a link.
type linked struct {
	store.Store
	link *storeLink
}

func (l *storeLink) to(s store.Store) store.Store { return linked{s, l} }

// cut makes every call fail with err, those that wait too; nil mends the link.
func (l *storeLink) cut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
	if err != nil && l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// deafen makes watches tell nothing, or lets them tell again.
func (l *storeLink) deafen(deaf bool) { l.deaf.Store(deaf) }

// hold calls f with every commit before it goes on its way, for as long as f likes;
// an error of f is what comes back instead. Nil ends that for what comes then.
func (l *storeLink) hold(f func(store.Tx) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.way = f
}

func (l *storeLink) held() func(store.Tx) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.way
}

// lie passes what is read through f, until it is given nil.
func (l *storeLink) lie(f func(store.Entry) store.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.get = f
}

// lose makes the answer of the next swap of the head get lost. With lostForGood and
// lostForGoodN the link is cut too, so that reading does not settle what happened.
func (l *storeLink) lose(how lostAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = how
}

// takeLost returns what happens to a swap, once.
func (l *storeLink) takeLost() lostAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := l.lost
	l.lost = answered
	return how
}

func (l *storeLink) state() (lie func(store.Entry) store.Entry, cut <-chan struct{}, down error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return l.get, l.news, l.down
}

func (l linked) Get(ctx context.Context, key string) (store.Entry, error) {
	lie, _, down := l.link.state()
	if down != nil {
		return store.Entry{}, down
	}
	e, err := l.Store.Get(ctx, key)
	if err == nil && lie != nil {
		if e = lie(e); e.Value == nil {
			return store.Entry{}, store.ErrNotFound
		}
	}
	return e, err
}

func (l linked) List(ctx context.Context, prefix string) (store.Listing, error) {
	lie, _, down := l.link.state()
	if down != nil {
		return store.Listing{}, down
	}
	all, err := l.Store.List(ctx, prefix)
	if err == nil && lie != nil {
		kept := all.Entries[:0]
		for _, e := range all.Entries {
			if e = lie(e); e.Value != nil {
				kept = append(kept, e)
			}
		}
		all.Entries = kept
	}
	return all, err
}

func (l linked) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision,
	error) {
	if _, _, down := l.link.state(); down != nil {
		return 0, down
	}
	if key != history.HeadKey {
		return l.Store.CompareAndSwap(ctx, key, old, value)
	}
	how := l.link.takeLost()
	var version store.Revision
	var err error
	if how == answered || how == lostApplied || how == lostForGood {
		version, err = l.Store.CompareAndSwap(ctx, key, old, value)
	}
	switch {
	case how == answered:
		return version, err
	case how == lostForGood, how == lostForGoodN:
		l.link.cut(errKilled)
	}
	return 0, fmt.Errorf("%w: the answer was lost", store.ErrUnknownOutcome)
}

func (l linked) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if _, _, down := l.link.state(); down != nil {
		return 0, down
	}
	if hold := l.link.held(); hold != nil {
		if err := hold(tx); err != nil {
			return 0, err
		}
	}
	return l.Store.Commit(ctx, tx)
}

func (l linked) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if _, _, down := l.link.state(); down != nil {
		return 0, down
	}
	return l.Store.Outcome(ctx, id)
}

func (l linked) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return overLink(ctx, l.link,
		func(ctx context.Context) iter.Seq2[store.Entry, error] { return l.Store.Watch(ctx, key) })
}

func (l linked) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return overLink(ctx, l.link,
		func(ctx context.Context) iter.Seq2[store.Change, error] { return l.Store.Changes(ctx, prefix, after) })
}

// overLink ends what watches when the link is cut.
func overLink[T any](ctx context.Context, link *storeLink,
	watch func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		_, cut, down := link.state()
		if down != nil {
			var none T
			yield(none, down)
			return
		}
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-cut:
				_, _, down := link.state()
				cancel(down)
			case <-stop:
			}
		}()
		for v, err := range watch(ctx) {
			if err == nil && link.deaf.Load() {
				continue
			}
			if err != nil && context.Cause(ctx) != nil {
				err = context.Cause(ctx)
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// Close is the fleet's business: the store is others' too.
func (l linked) Close() error { return nil }
