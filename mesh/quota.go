package mesh

import (
	"errors"
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
	slot      *mesh.Slot   // nil: it has one
	allowance atomic.Int64 // bytes that it may have sent of calls that are open
	sent      atomic.Int64 // bytes that it did send of them
}

// memberQuota is of a client with a certificate.
func memberQuota() *quota {
	return &quota{resets: rate.NewLimiter(memberResets, memberResetBurst)}
}

// strangerQuota is of a client without one.
func strangerQuota(slot *mesh.Slot, bytes int64) *quota {
	q := &quota{resets: rate.NewLimiter(strangerResets, strangerResetBurst), slot: slot}
	q.allowance.Store(bytes)
	return q
}

// count counts what was read. It returns why the connection is to end.
func (q *quota) count(p []byte) error {
	held, resets := q.frames.Read(p)
	if resets > 0 && !q.resets.AllowN(time.Now(), resets) {
		return errResets
	}
	if q.slot == nil || held == 0 {
		return nil
	}
	if q.sent.Add(held) > q.allowance.Load() || !q.slot.Hold(held) {
		return errTooMuch
	}
	return nil
}

// rested gives back what was sent, once no call is open.
func (q *quota) rested() {
	if q.slot != nil {
		q.slot.Hold(-q.sent.Swap(0))
	}
}
