// Package lately has the material of a source as calls need it: asked now and then, and at once after
// a change that the source tells of.
package lately

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
)

// askAgain is how long an answer of a source counts for calls while the source tells of no change.
// Files are looked at only when their source is asked, which costs system calls: much for one call
// and nothing for those of a few milliseconds. A timer ends it, which is late where the processor is busy.
const askAgain = 5 * time.Millisecond

// Material is the material of a source, for each call. Handshakes ask the source itself. It may be
// used by several goroutines.
type Material struct {
	Source credential.Source // required

	answer atomic.Pointer[answer] // nil: none that counts
}

// answer is what the source said.
type answer struct {
	material *credential.Material
	changed  <-chan struct{} // closed when it is known to hold no more
}

// Get returns what the source has now, or, if it tells of changes, had a moment ago and told of none.
// An error is not kept. Of two that ask at once the one with the older answer may come second: then
// the source has told already that it holds no more.
func (l *Material) Get(ctx context.Context) (*credential.Material, error) {
	if a := l.answer.Load(); a != nil {
		select {
		case <-a.changed:
		default:
			return a.material, nil
		}
	}
	a, asked := &answer{changed: l.Source.Changed()}, time.Now() // before the source is asked
	var err error
	if a.material, err = l.Source.Current(ctx); err != nil {
		return nil, err
	}
	if left := askAgain - time.Since(asked); a.changed != nil && left > 0 {
		l.answer.Store(a)
		// A timer ends it, so that a call that finds it looks at no clock.
		time.AfterFunc(left, func() { l.answer.CompareAndSwap(a, nil) })
	}
	return a.material, nil
}
