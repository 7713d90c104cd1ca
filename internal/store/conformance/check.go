package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// ErrOccupied: the store holds something, and nothing was done to it.
var ErrOccupied = errors.New("the store is not empty")

// Result is what came of one case.
type Result struct {
	Name    string
	Promise string
	Kept    bool
	Took    time.Duration
	Log     []string // what the case said; of one that was not kept
}

// Target is a live store.
type Target struct {
	// Open opens a handle that keeps the changes of about retain commits; 0 means the
	// engine's default.
	Open func(ctx context.Context, retain int) (store.Store, error)

	// Shared means that several handles may be open at a time.
	Shared bool
}

// Check runs the cases, but for those that kill, on a live store, which has to be empty: [ErrOccupied]. It
// deletes what they wrote, and nothing else. The store's revision has grown then, and
// the changes and transaction IDs of the cases are forgotten in their time.
//
// tell is called after each case; the rest is not run once ctx ended.
func Check(ctx context.Context, target Target, tell func(Result)) error {
	s, err := target.Open(ctx, 0)
	if err != nil {
		return err
	}
	l, err := s.List(ctx, "")
	if err == nil && len(l.Entries) > 0 {
		err = ErrOccupied
	}
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	for _, c := range Cases() {
		if c.Kills || c.Fills {
			continue // the servers are somebody's
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		w := &written{keys: map[string]struct{}{}}
		begun := time.Now()
		kept, log := run(func(t T) {
			c.Run(t, Engine{New: func(_ T, retain int) Database {
				return Database{Shared: target.Shared, Open: func() (store.Store, error) {
					s, err := target.Open(ctx, retain)
					if err != nil {
						return nil, err
					}
					return w.of(s), nil
				}}
			}})
		})
		r := Result{Name: c.Name, Promise: c.Promise, Kept: kept, Took: time.Since(begun)}
		if !kept {
			r.Log = log
		}
		tell(r)
		if err := w.delete(ctx, target); err != nil {
			return fmt.Errorf("what the case %s wrote could not be deleted: %w", c.Name, err)
		}
	}
	return nil
}

// written is the keys that a case may have written.
type written struct {
	mu   sync.Mutex
	keys map[string]struct{} // guarded by mu
}

// of returns s, whose writes are noted.
func (w *written) of(s store.Store) store.Store {
	n := noting{s, w}
	if l, ok := s.(store.Lifter); ok {
		return struct {
			noting
			store.Lifter
		}{n, l}
	}
	if r, ok := s.(store.Raiser); ok {
		return struct {
			noting
			store.Raiser
		}{n, r}
	}
	return n
}

// delete deletes what is there of the keys.
func (w *written) delete(ctx context.Context, target Target) error {
	s, err := target.Open(ctx, 0)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.List(ctx, "")
	if err != nil {
		return err
	}
	var keys []string
	for _, e := range l.Entries {
		if _, ours := w.keys[e.Key]; ours {
			keys = append(keys, e.Key)
		}
	}
	for part := range slices.Chunk(keys, store.MaxTxOps) {
		if _, err := s.Commit(ctx, store.Tx{ID: store.NewTxID(), Delete: part}); err != nil {
			return err
		}
	}
	return s.Close()
}

// noting is a store whose writes are noted before they are made.
type noting struct {
	store.Store
	w *written
}

func (n noting) note(keys ...string) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	for _, k := range keys {
		n.w.keys[k] = struct{}{}
	}
}

func (n noting) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	n.note(key)
	return n.Store.CompareAndSwap(ctx, key, old, value)
}

func (n noting) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	for _, p := range tx.Put {
		n.note(p.Key)
	}
	return n.Store.Commit(ctx, tx)
}

// probe runs a case without package testing.
type probe struct {
	name   string
	parent *probe // nil of a whole case

	mu       sync.Mutex
	failed   bool     // guarded by mu
	log      []string // guarded by mu; of a whole case
	cleanups []func() // guarded by mu
}

// maxLog bounds what is kept of what a case says.
const maxLog = 20

// run runs f to its end, wherever that is.
func run(f func(T)) (kept bool, log []string) {
	p := &probe{}
	p.do(f)
	return !p.Failed(), p.log
}

// do runs f in a goroutine of its own, which Fatal ends, and then what it left to
// clean up.
func (p *probe) do(f func(T)) {
	for _, step := range []func(){func() { f(p) }, p.clean} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			step()
		}()
		<-done
	}
}

func (p *probe) clean() {
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			p.mu.Unlock()
			return
		}
		f := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		f()
	}
}

func (p *probe) say(text string) {
	if p.parent != nil {
		p.parent.say(p.name + ": " + text)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.log) < maxLog {
		p.log = append(p.log, text)
	}
}

func (p *probe) fail() {
	for ; p != nil; p = p.parent {
		p.mu.Lock()
		p.failed = true
		p.mu.Unlock()
	}
}

func (p *probe) Helper()                      {}
func (p *probe) Log(args ...any)              { p.say(fmt.Sprint(args...)) }
func (p *probe) Logf(form string, arg ...any) { p.say(fmt.Sprintf(form, arg...)) }

// Seed is another one each time: who asks about a server of his own wants to know more by asking again.
func (p *probe) Seed() uint64 {
	seed := rand.Uint64()
	p.Logf("seed %d", seed)
	return seed
}

func (p *probe) Error(args ...any) { p.Log(args...); p.fail() }
func (p *probe) Errorf(form string, arg ...any) {
	p.Logf(form, arg...)
	p.fail()
}
func (p *probe) Fatal(args ...any) { p.Error(args...); runtime.Goexit() }
func (p *probe) Fatalf(form string, arg ...any) {
	p.Errorf(form, arg...)
	runtime.Goexit()
}

func (p *probe) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *probe) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *probe) Run(name string, f func(T)) bool {
	child := &probe{name: name, parent: p}
	child.do(f)
	return !child.Failed()
}
