package health

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Keeper keeps what one coordinator saw of its store, and whether something of it is
// known to be lost. It is for concurrent use; its zero value has seen nothing.
//
// A reader of the store takes [Keeper.Begin] before, and gives what it read to
// [Keeper.Read] with that: of two reads at once the later one may be told first.
// [Keeper.Lose] keeps their findings, once nothing else explains it.
type Keeper struct {
	revision atomic.Uint64
	lost     atomic.Pointer[Loss]

	mu       sync.Mutex
	restored uint64        // guarded by mu
	trust    *Trust        // guarded by mu
	bundle   []byte        // guarded by mu
	news     chan struct{} // closed when something is lost, or found again by a restore; guarded by mu
}

// Resume has k go on from what was kept.
func (k *Keeper) Resume(r Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restored, k.trust, k.bundle = r.Seen.Restored, r.Seen.Trust, r.Bundle
	k.revision.Store(r.Seen.Revision)
	k.lost.Store(r.Lost)
}

// Record returns what is to be kept.
func (k *Keeper) Record() Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Record{Seen: k.seenLocked(), Lost: k.lost.Load(), Bundle: k.bundle}
}

func (k *Keeper) seenLocked() Seen { return Seen{k.restored, k.revision.Load(), k.trust} }

// Revision returns the newest revision that was seen.
func (k *Keeper) Revision() uint64 { return k.revision.Load() }

// Lost returns what is known to be lost; nil if nothing is.
func (k *Keeper) Lost() *Loss { return k.lost.Load() }

// Begin returns what was seen before a read.
func (k *Keeper) Begin() Seen {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seenLocked()
}

// AtRevision notes that the store showed a revision to a call that began when it was at
// began, and returns what it lost; nil if nothing.
func (k *Keeper) AtRevision(began, revision uint64, at time.Time) *Loss {
	for {
		have := k.revision.Load()
		if revision < began && have >= began { // else a restore came in between
			return &Loss{Kind: Revision, Was: began, Is: revision, At: at}
		}
		if revision <= have || k.revision.CompareAndSwap(have, revision) {
			return nil
		}
	}
}

// Read notes what the store showed to a read that began when began was seen, and
// returns what it lost; nil if nothing. A read of before a restore shows nothing of
// what is after it.
func (k *Keeper) Read(began, now Seen, at time.Time) *Loss {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Restored != k.restored || began.Restored != k.restored {
		return nil
	}
	loss := began.Lost(now, at)
	if loss == nil && k.trust != nil && now.Trust != nil {
		loss = k.trust.beside(now.Trust, at)
	}
	if loss == nil {
		after := k.seenLocked().After(now)
		k.trust = after.Trust
		if now.Trust != nil && now.Trust.Counter > 0 { // only this cluster can have written it
			k.AtRevision(0, after.Revision, at)
		}
	}
	return loss
}

// beside returns what says that t and now, which were read in whatever order, are not of one
// store that went on; nil if they can be. A read that took long may be told after the store
// went back and another read of what it shows since then.
func (t *Trust) beside(now *Trust, at time.Time) *Loss {
	if now.Counter < t.Counter { // it was there first
		if now.Version < t.Version {
			return nil
		}
		return &Loss{Kind: Counter, Was: t.Counter, Is: now.Counter, At: at}
	}
	first := *t
	first.Keys = nil // how long keys are banned is left to reads that began after that was seen
	return first.lost(now, at)
}

// Lose notes that something is lost. It keeps the first loss: what comes after it may
// follow from it.
func (k *Keeper) Lose(loss *Loss) {
	if k.lost.CompareAndSwap(nil, loss) {
		k.tell()
	}
}

// Restored has what is seen count from a restore of an authority epoch on, if that is a
// newer one: nothing is lost then. It reports whether it is.
func (k *Keeper) Restored(epoch uint64) bool {
	k.mu.Lock()
	if epoch <= k.restored {
		k.mu.Unlock()
		return false
	}
	k.restored, k.trust, k.bundle = epoch, nil, nil
	k.revision.Store(0)
	k.lost.Store(nil)
	k.mu.Unlock()
	k.tell()
	return true
}

// SawBundle keeps the newest trust bundle.
func (k *Keeper) SawBundle(raw []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bundle = raw
}

// Bundle returns the newest trust bundle that was kept; nil if there is none.
func (k *Keeper) Bundle() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bundle
}

// Changed returns a channel that is closed when something is lost, or nothing any more.
func (k *Keeper) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.news == nil {
		k.news = make(chan struct{})
	}
	return k.news
}

func (k *Keeper) tell() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.news != nil {
		close(k.news)
		k.news = nil
	}
}
