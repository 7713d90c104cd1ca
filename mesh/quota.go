package mesh

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/mesh"
)

// Calls that a client gives up, in a second and at once. Each costs it next to nothing,
// and a server the beginning and the end of a call. One that is answered early counts
// too, if its client had more to say.
const (
	memberResets       = 100
	memberResetBurst   = 1000
	strangerResets     = 10
	strangerResetBurst = 100
)

var (
	errResets  = errors.New("mesh: the client gives up too many calls")
	errTooMuch = errors.New("mesh: the client sends more than a client without a certificate may")
)

// quota is what the client of one connection that came through a gate may send.
type quota struct {
	frames mesh.FrameCounter // owned by who reads
	resets *rate.Limiter     // calls that it gives up

	// Of a client without a certificate.
	slot      *mesh.Slot     // nil: it has one
	allowance atomic.Int64   // bytes that it may have sent of calls that are open
	ends      mesh.EndFinder // owned by who writes

	mu   sync.Mutex
	sent int64            // bytes that it did send of them; guarded by mu
	of   map[uint32]int64 // sent, by call; guarded by mu
}

// memberQuota is of a client with a certificate.
func memberQuota() *quota {
	return &quota{resets: rate.NewLimiter(memberResets, memberResetBurst)}
}

// strangerQuota is of a client without one.
func strangerQuota(slot *mesh.Slot, bytes int64) *quota {
	q := &quota{resets: rate.NewLimiter(strangerResets, strangerResetBurst), slot: slot, of: make(map[uint32]int64)}
	q.frames.Held = q.of
	q.allowance.Store(bytes)
	return q
}

// count counts what was read. It returns why the connection is to end.
func (q *quota) count(p []byte) error {
	held, resets, all := q.read(p)
	if resets > 0 && !q.resets.AllowN(time.Now(), resets) {
		return errResets
	}
	if q.slot == nil || held == 0 {
		return nil
	}
	if all > q.allowance.Load() || !q.slot.Hold(held) {
		return errTooMuch
	}
	return nil
}

// read notes what was read: how much of it is held, how many calls were given up, and how much is held of
// all calls that are open.
func (q *quota) read(p []byte) (held int64, resets int, all int64) {
	if q.slot == nil {
		held, resets = q.frames.Read(p)
		return held, resets, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	held, resets = q.frames.Read(p)
	q.sent += held
	return held, resets, q.sent
}

// wrote gives back what was sent of calls that end with p, which is about to be written: their handlers have returned.
// Without that a client that makes calls all the time, a few at once, would use its allowance up with those that
// were answered long ago.
func (q *quota) wrote(p []byte) {
	if q.slot == nil {
		return
	}
	var back int64
	q.mu.Lock()
	q.ends.Write(p, func(stream uint32) {
		back += q.of[stream]
		delete(q.of, stream)
	})
	q.sent -= back
	q.mu.Unlock()
	if back > 0 {
		q.slot.Hold(-back)
	}
}

// rested gives back what was sent, once no call is open.
func (q *quota) rested() {
	if q.slot == nil {
		return
	}
	q.mu.Lock()
	back := q.sent
	q.sent = 0
	clear(q.of)
	q.mu.Unlock()
	q.slot.Hold(-back)
}
