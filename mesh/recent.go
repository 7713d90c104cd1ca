package mesh

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

// recentMaterial keeps what a source gave for a few milliseconds, so that calls do not ask the source each time.
// A change that the source tells of ends it at once. Handshakes ask the source itself. It may be used by several
// goroutines.
type recentMaterial struct {
	source credential.Source // required

	answer atomic.Pointer[recentAnswer] // nil: none that counts
}

// recentAnswer is what the source said.
type recentAnswer struct {
	material *credential.Material
	changed  <-chan struct{} // closed when it is known to hold no more
}

// get returns what the source has now, or, if it tells of changes, had a moment ago and told of none.
// An error is not kept. Of two that ask at once the one with the older answer may come second: then
// the source has told already that it holds no more.
func (r *recentMaterial) get(ctx context.Context) (*credential.Material, error) {
	if a := r.answer.Load(); a != nil {
		select {
		case <-a.changed:
		default:
			return a.material, nil
		}
	}
	a, asked := &recentAnswer{changed: r.source.Changed()}, time.Now() // before the source is asked
	var err error
	if a.material, err = r.source.Current(ctx); err != nil {
		return nil, err
	}
	if left := askAgain - time.Since(asked); a.changed != nil && left > 0 {
		r.answer.Store(a)
		// A timer ends it, so that a call that finds it looks at no clock.
		time.AfterFunc(left, func() { r.answer.CompareAndSwap(a, nil) })
	}
	return a.material, nil
}
