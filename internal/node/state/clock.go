package state

import (
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/clock"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// ClockKeepEvery is how often the floor is written down: what a power cut can take
// from the time that passed.
const ClockKeepEvery = time.Minute

// Elapsed reads a clock that nobody can set: how long it is since the machine
// started, time in suspend included, and which start that was. Readings under another
// name, or a blank one, cannot be compared.
type Elapsed func() (boot string, since time.Duration)

// Clock tells the node's time: what the machine says, and never less than the floor
// under it. The floor is the latest time that somebody signed, plus what passed since
// by the clock that nobody can set. It rises only so: a machine whose clock was once
// in the future is right again when its clock is. A new authority epoch starts it
// anew, for a cluster that signed the future.
type Clock struct {
	Wall    func() time.Time
	elapsed Elapsed

	mu    sync.Mutex
	epoch uint64        // under which the floor was signed; guarded by mu
	floor time.Time     // zero: there is none; guarded by mu
	boot  string        // when floor was right; guarded by mu
	since time.Duration // when floor was right; guarded by mu
}

// NewClock returns a clock without a floor. Nil is the machine's.
func NewClock(wall func() time.Time, elapsed Elapsed) *Clock {
	if wall == nil {
		wall = time.Now
	}
	if elapsed == nil {
		elapsed = Elapsed(clock.SystemBootClock())
	}
	return &Clock{Wall: wall, elapsed: elapsed}
}

// Now returns the node's time.
func (c *Clock) Now() time.Time {
	wall := c.Wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.advance(); c.floor.After(wall) {
		return c.floor
	}
	return wall
}

// Behind returns how far the machine's clock is behind what was signed, if that is
// more than clocks may differ; else 0.
func (c *Clock) Behind() time.Duration {
	wall := c.Wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	if d := c.floor.Sub(wall); !c.floor.IsZero() && d > internalsnapshot.ClockTolerance {
		return d
	}
	return 0
}

// advance adds to the floor what passed. The caller holds mu.
func (c *Clock) advance() {
	boot, since := c.elapsed()
	if !c.floor.IsZero() && boot != "" && boot == c.boot && since > c.since {
		c.floor = c.floor.Add(since - c.since)
	}
	c.boot, c.since = boot, since
}

// Learn raises the floor to what the marks know that somebody signed, and reports
// whether a new authority epoch started it anew. A time signed ahead of the node's,
// within what clocks may differ, does not count for more than that time: else
// whoever holds a signing key could push the floor on and on.
func (c *Clock) Learn(marks snapshot.Marks) (anew bool) {
	epoch, signed := NewestEpoch(marks), marks.SignedTime()
	if signed.IsZero() {
		return false
	}
	wall := c.Wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	if epoch > c.epoch {
		anew = c.epoch != 0
		c.epoch, c.floor = epoch, time.Time{}
	}
	most := wall
	if c.floor.After(most) {
		most = c.floor
	}
	if signed.After(most) {
		signed = most
	}
	if epoch == c.epoch && signed.After(c.floor) {
		c.floor = signed
	}
	return anew
}

// resume takes up what the last process knew. kept is nil without a file that is
// whole.
func (c *Clock) resume(kept *dir.ClockFile, marks snapshot.Marks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot, c.since = c.elapsed()
	if kept != nil {
		c.epoch, c.floor = kept.AuthorityEpoch, kept.Floor
		if kept.Boot != "" && kept.Boot == c.boot && c.since > kept.Since {
			c.floor = c.floor.Add(c.since - kept.Since)
		}
	}
	epoch, signed := NewestEpoch(marks), marks.SignedTime()
	switch {
	case signed.IsZero() || epoch < c.epoch:
	case kept == nil || epoch > c.epoch:
		c.epoch, c.floor = epoch, signed
	default:
		// Accepted after the floor was written down. It may have been signed a little
		// ahead, and does not get more for that by a restart.
		if signed = signed.Add(-internalsnapshot.ClockTolerance); signed.After(c.floor) {
			c.floor = signed
		}
	}
}

// File returns the floor for disk.
func (c *Clock) File() dir.ClockFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	return dir.ClockFile{AuthorityEpoch: c.epoch, Floor: c.floor.UTC(), Boot: c.boot, Since: c.since}
}

// NewestEpoch returns the highest authority epoch of which something was accepted.
func NewestEpoch(marks snapshot.Marks) uint64 {
	var epoch uint64
	for _, m := range marks.All() {
		epoch = max(epoch, m.AuthorityEpoch)
	}
	return epoch
}

// readClock returns the floor on disk, or nil. Without it the signed time in the
// marks is the floor, so that damage is told and no more.
func (s *Store) readClock() (*dir.ClockFile, error) {
	data, err := s.Read(dir.ClockName, dir.MaxClockBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f dir.ClockFile
	if err == nil {
		err = dir.Unseal(data, &f)
	}
	if err != nil {
		return nil, s.Corrupt(dir.ClockName, err)
	}
	return &f, nil
}
