package operator

import (
	"context"
	"sync"

	"github.com/fealty-io/fealty/internal/shard/session"
)

// acknowledged is a notice that the program dealt with.
type acknowledged struct{ session, number uint64 }

// events are those of the session of now that the program was not told of yet. Of what it has the newest counts, and
// notices are bounded by how many a shard sends unacknowledged.
type events struct {
	more chan struct{} // holds one value when there is one

	mu      sync.Mutex
	session uint64      // guarded by mu
	shard   *Shard      // guarded by mu
	has     *[]Capacity // guarded by mu
	notices []numbered  // guarded by mu
	out     int         // notices that were taken and not acknowledged; guarded by mu
}

type numbered struct {
	Notice
	number uint64
}

// begin drops what an earlier session told: the new one tells it again.
func (e *events) begin(session uint64, shard Shard) {
	e.mu.Lock()
	e.session, e.shard, e.has, e.notices, e.out = session, &shard, nil, nil, 0
	e.mu.Unlock()
	e.wake()
}

func (e *events) capacity(session uint64, has []Capacity) {
	e.mu.Lock()
	if e.session == session {
		e.has = &has
	}
	e.mu.Unlock()
	e.wake()
}

// notice takes a notice, unless there are too many.
func (e *events) notice(of, number uint64, n Notice) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == of {
		if e.out >= session.MaxUnacknowledged {
			return false
		}
		e.out++
		e.notices = append(e.notices, numbered{n, number})
	}
	e.wake()
	return true
}

func (e *events) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// take returns what is next.
func (e *events) take() (session uint64, shard *Shard, has *[]Capacity, next *numbered) {
	e.mu.Lock()
	defer e.mu.Unlock()
	session = e.session
	switch {
	case e.shard != nil:
		shard, e.shard = e.shard, nil
	case e.has != nil:
		has, e.has = e.has, nil
	case len(e.notices) > 0:
		next = &e.notices[0]
		e.notices = e.notices[1:]
	}
	return session, shard, has, next
}

// acknowledge counts a notice of a session that was dealt with.
func (e *events) acknowledge(session uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == session {
		e.out--
	}
}

// tell calls the program until ctx ends.
func (o *Operator) tell(ctx context.Context) {
	for ctx.Err() == nil {
		session, shard, has, next := o.events.take()
		switch {
		case shard != nil:
			if o.cfg.Connected != nil {
				o.cfg.Connected(ctx, *shard)
			}
		case has != nil:
			if o.cfg.Capacity != nil {
				o.cfg.Capacity(ctx, *has)
			}
		case next != nil:
			if o.cfg.Notice != nil {
				o.cfg.Notice(ctx, next.Notice)
			}
			o.events.acknowledge(session) // before the shard hears of it, and sends more
			select {
			case o.acked <- acknowledged{session, next.number}:
			case <-ctx.Done():
			}
		default:
			select {
			case <-o.events.more:
			case <-ctx.Done():
			}
		}
	}
}
