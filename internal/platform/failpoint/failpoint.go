// Package failpoint has named points at which a test can make the real code fail or wait.
//
// Code under test owns a *Points, nil outside tests, and calls Hit where another outcome matters:
// between two steps whose order is the argument, before an answer is sent, after a write. Hit on a
// nil *Points does nothing, so production code needs no condition.
package failpoint

import (
	"maps"
	"slices"
	"sync"
)

// Points is a set of points, armed by name. The zero value is ready for use, as
// is nil for code that only hits. All methods may be called concurrently.
type Points struct {
	mu    sync.Mutex
	armed map[string]func() error // guarded by mu
	hits  map[string]int          // guarded by mu
	watch func(name string)       // guarded by mu
}

// Hit marks that execution passed the point. It returns what the armed function
// returns, after as long as that takes, or nil if the point is not armed.
func (p *Points) Hit(name string) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if p.hits == nil {
		p.hits = map[string]int{}
	}
	p.hits[name]++
	act, watch := p.armed[name], p.watch
	p.mu.Unlock()
	if watch != nil {
		watch(name)
	}
	if act == nil {
		return nil
	}
	return act() // outside the lock: it may block, hit or arm points
}

// Arm makes every Hit of the point call act, in place of what was armed before.
func (p *Points) Arm(name string, act func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == nil {
		p.armed = map[string]func() error{}
	}
	p.armed[name] = act
}

// Fail makes every Hit of the point return err.
func (p *Points) Fail(name string, err error) {
	p.Arm(name, func() error { return err })
}

// FailNext makes the next count hits of the point return err, and no other.
func (p *Points) FailNext(name string, count int, err error) {
	var mu sync.Mutex
	p.Arm(name, func() error {
		mu.Lock()
		defer mu.Unlock()
		if count <= 0 {
			return nil
		}
		count--
		return err
	})
}

// Block makes hits of the point wait. The channel reached is closed when the
// first one waits; release lets all of them, and later ones, go on. Calling
// release again does nothing.
func (p *Points) Block(name string) (reached <-chan struct{}, release func()) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	var first, last sync.Once
	p.Arm(name, func() error {
		first.Do(func() { close(arrived) })
		<-gone
		return nil
	})
	return arrived, func() { last.Do(func() { close(gone) }) }
}

// Disarm makes hits of the point do nothing. Hits that wait already go on
// waiting: release them.
func (p *Points) Disarm(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.armed, name)
}

// Watch makes every Hit call f with its name first, outside of any lock and in the
// goroutine that hits, so that a test can write down in which order points are passed.
// Nil ends that.
func (p *Points) Watch(f func(name string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = f
}

// Hits counts how often the point was hit, armed or not.
func (p *Points) Hits(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits[name]
}

// Names returns the sorted names of all points hit so far, so that a test can
// walk them.
func (p *Points) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.hits))
}
