package keyring

import (
	"crypto/subtle"
	"runtime"
	"sync"
)

// locked is 32 bytes of a secret on a page that is not swapped out and in no core
// dump, where the system lets us. Outside of the heap, the garbage collector does
// not see who uses the bytes: whoever takes them keeps the locked alive until it
// is done (runtime.KeepAlive).
//
// A wiped one keeps its place, full of zeros, until nothing points to it: a use
// after the wipe finds zeros, and never another secret or an unmapped page.
type locked struct{ b []byte }

// newLocked returns zeros, to be filled.
func newLocked() *locked { return pages.take() }

// lockedFrom copies secret, which the caller wipes.
func lockedFrom(secret []byte) *locked {
	l := newLocked()
	copy(l.b, secret)
	return l
}

func (l *locked) wipe() {
	clear(l.b)
	runtime.KeepAlive(l)
}

func (l *locked) isZero() bool {
	var zero [lockedBytes]byte
	defer runtime.KeepAlive(l)
	return subtle.ConstantTimeCompare(l.b, zero[:]) == 1
}

func (l *locked) equal(o *locked) bool {
	defer runtime.KeepAlive(l)
	defer runtime.KeepAlive(o)
	return subtle.ConstantTimeCompare(l.b, o.b) == 1
}

const lockedBytes = 32 // SeedBytes, and the length of HKDF's key

// arena hands out places of lockedBytes on locked pages.
type arena struct {
	// mapPage returns a page and why it is not locked, if it is not; or no page.
	mapPage func() (page []byte, problem error)

	mu      sync.Mutex
	free    [][]byte // zeros; guarded by mu
	memory  Memory   // guarded by mu
	refused bool     // there are no pages, and no use in asking again; guarded by mu
}

// pages is of the process, as are the limit and the locks of the system. No call
// depends on what is in it.
var pages = &arena{mapPage: mapLockedPage}

// Memory says where this process holds seeds, shares and what derives from them.
type Memory struct {
	Locked   int   // bytes of pages that are locked: neither swapped out nor in a core dump
	Unlocked int   // bytes of pages that could not be locked
	Heap     int   // secrets that had to go to the heap, since the start
	Problem  error // the first reason for Unlocked or Heap; nil if there are none
}

// LockedMemory reports on the memory for secrets, and gets the first page of it.
func LockedMemory() Memory {
	l := newLocked()
	defer runtime.KeepAlive(l)
	pages.mu.Lock()
	defer pages.mu.Unlock()
	return pages.memory
}

func (a *arena) take() *locked {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 && !a.refused {
		a.grow()
	}
	if len(a.free) == 0 {
		a.memory.Heap++
		return &locked{make([]byte, lockedBytes)}
	}
	last := len(a.free) - 1
	l := &locked{a.free[last]}
	a.free = a.free[:last]
	runtime.AddCleanup(l, a.giveBack, l.b)
	return l
}

// giveBack gets the place of a locked that nothing points to any more.
func (a *arena) giveBack(place []byte) {
	Wipe(place)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, place)
}

// grow adds a page. The caller holds mu.
func (a *arena) grow() {
	page, problem := a.mapPage()
	if problem != nil && a.memory.Problem == nil {
		a.memory.Problem = problem
	}
	switch {
	case page == nil:
		a.refused = true
	case problem == nil:
		a.memory.Locked += len(page)
	default:
		a.memory.Unlocked += len(page)
	}
	for ; len(page) >= lockedBytes; page = page[lockedBytes:] {
		a.free = append(a.free, page[:lockedBytes:lockedBytes])
	}
}
