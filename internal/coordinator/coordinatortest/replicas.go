package coordinatortest

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// NewReplica returns one more coordinator on the store of f, with a data directory,
// listeners, faults and a link to the store of its own; signer, clock and config
// are those of f. It has its enrolment key, so that [Fleet.Manifest] admits it, as
// coordinator-2 and so on, and is not running:
//
//	r := NewReplica(t, f)
//	f.Set(f.Manifest(""))
//	r.Start()
//	r.Await(authority.Ready)
func NewReplica(t testing.TB, f *Fleet) *Fleet {
	t.Helper()
	if f.First != nil {
		f = f.First
	}
	name := fmt.Sprintf("replica-%d", len(f.Replicas)+2)
	r := &Fleet{
		T: t, Dir: filepath.Join(f.Dir, name), Faults: new(failpoint.Points), Signer: f.Signer,
		Config: f.Config, Net: f.Net,
		First: f, Link: new(StoreLink), open: f.open, StopC: func() {},
	}
	if f.Net != nil {
		r.Disk = durabletest.NewDisk()
	}
	files, folder := r.files(), r.folder()
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
	r.Enrolment, r.Key = public.String(), key
	f.Replicas = append(f.Replicas, r)
	t.Cleanup(func() { r.Stop() })
	return r
}

// ErrKilled is what the store answers to a coordinator that was killed.
var ErrKilled = errors.New("the process was killed")

// Kill ends the coordinator without a chance to write or hand over anything: what
// it does from now on reaches no store. [Fleet.Start] brings it back.
func (f *Fleet) Kill() {
	f.T.Helper()
	f.Link.Cut(ErrKilled)
	f.Stop()
	f.Link.Cut(nil)
}

// Await waits until the coordinator is in phase p.
func (f *Fleet) Await(p authority.Phase) {
	f.T.Helper()
	f.AwaitState("phase "+p.String(), func(s *authority.State) bool { return s.Phase == p })
}

// AwaitHead waits until the coordinator is ready at the head that g is ready at.
func (f *Fleet) AwaitHead(g *Fleet) {
	f.T.Helper()
	want := g.State().Head
	f.AwaitState(fmt.Sprintf("head %d", want.Index),
		func(s *authority.State) bool { return s.Phase == authority.Ready && s.Head.Hash == want.Hash })
}

// AwaitSameHead waits until both are ready at one head, whichever that is, and returns
// the state of the first.
func AwaitSameHead(t testing.TB, a, b *Fleet) *authority.State {
	t.Helper()
	deadline := time.NewTimer(LeadPatience)
	defer deadline.Stop()
	for {
		newsA, newsB := a.C.Parts().Head.Changed(), b.C.Parts().Head.Changed()
		x, y := a.State(), b.State()
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

// AwaitState waits until the coordinator is in a state that want takes.
func (f *Fleet) AwaitState(what string, want func(*authority.State) bool) {
	f.T.Helper()
	deadline := time.NewTimer(LeadPatience)
	defer deadline.Stop()
	for {
		changed := f.C.Parts().Head.Changed()
		s := f.State()
		if want(s) {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			f.T.Fatalf("%s did not come: the coordinator is in phase %s at index %d: %s", what, s.Phase, s.Head.Index,
				s.Reason)
		}
	}
}

// StoreLink is the way of one coordinator to the store: it can be cut, and what
// comes over it can be altered, for this coordinator alone. The zero value does
// neither.
type StoreLink struct {
	deaf atomic.Bool

	mu   sync.Mutex
	down error                         // guarded by mu
	get  func(store.Entry) store.Entry // guarded by mu
	way  func(store.Tx) error          // guarded by mu
	lost LostAnswer                    // of the next swap of the head; guarded by mu
	news chan struct{}                 // closed when down is set; guarded by mu
}

// linked is a store over a link.
type linked struct {
	store.Store
	link *StoreLink
}

func (l *StoreLink) to(s store.Store) store.Store { return linked{s, l} }

// Cut makes every call fail with err, those that wait too; nil mends the link.
func (l *StoreLink) Cut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
	if err != nil && l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// Deafen makes watches tell nothing, or lets them tell again.
func (l *StoreLink) Deafen(deaf bool) { l.deaf.Store(deaf) }

// Hold calls f with every commit before it goes on its way, for as long as f likes;
// an error of f is what comes back instead. Nil ends that for what comes then.
func (l *StoreLink) Hold(f func(store.Tx) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.way = f
}

func (l *StoreLink) held() func(store.Tx) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.way
}

// Lie passes what is read through f, until it is given nil.
func (l *StoreLink) Lie(f func(store.Entry) store.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.get = f
}

// Lose makes the answer of the next swap of the head get lost. With LostForGood and
// LostForGoodN the link is cut too, so that reading does not settle what happened.
func (l *StoreLink) Lose(how LostAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = how
}

// takeLost returns what happens to a swap, once.
func (l *StoreLink) takeLost() LostAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := l.lost
	l.lost = Answered
	return how
}

func (l *StoreLink) state() (lie func(store.Entry) store.Entry, cut <-chan struct{}, down error) {
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
	if how == Answered || how == LostApplied || how == LostForGood {
		version, err = l.Store.CompareAndSwap(ctx, key, old, value)
	}
	switch {
	case how == Answered:
		return version, err
	case how == LostForGood, how == LostForGoodN:
		l.link.Cut(ErrKilled)
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
func overLink[T any](ctx context.Context, link *StoreLink,
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

// DirectoryOf reads what coordinators say of themselves in st.
func DirectoryOf(st store.Store, now func() time.Time) *peer.Directory {
	return &peer.Directory{Store: st, Failures: ratelimit.NewLogSampler(), Log: slog.New(slog.DiscardHandler),
		Now: now}
}
