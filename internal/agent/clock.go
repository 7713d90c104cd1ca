package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/boottime"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// clockKeepEvery is how often the floor is written down: what a power cut can take
// from the time that passed.
const clockKeepEvery = time.Minute

// Elapsed reads a clock that nobody can set: how long it is since the machine
// started, time in suspend included, and which start that was. Readings under another
// name, or a blank one, cannot be compared.
type Elapsed func() (boot string, since time.Duration)

// clock tells the node's time: what the machine says, and never less than the floor
// under it. The floor is the latest time that somebody signed, plus what passed since
// by the clock that nobody can set. It rises only so: a machine whose clock was once
// in the future is right again when its clock is. A new authority epoch starts it
// anew, for a cluster that signed the future.
type clock struct {
	wall    func() time.Time
	elapsed Elapsed

	mu    sync.Mutex
	epoch uint64        // under which the floor was signed; guarded by mu
	floor time.Time     // zero: there is none; guarded by mu
	boot  string        // when floor was right; guarded by mu
	since time.Duration // when floor was right; guarded by mu
}

// clockFile is the floor on disk.
type clockFile struct {
	AuthorityEpoch uint64        `json:"authority_epoch"`
	Floor          time.Time     `json:"floor"`
	Boot           string        `json:"boot"`
	Since          time.Duration `json:"since_boot"`
}

func newClock(wall func() time.Time, elapsed Elapsed) *clock {
	if wall == nil {
		wall = time.Now
	}
	if elapsed == nil {
		elapsed = Elapsed(boottime.System())
	}
	return &clock{wall: wall, elapsed: elapsed}
}

// now returns the node's time.
func (c *clock) now() time.Time {
	wall := c.wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.advance(); c.floor.After(wall) {
		return c.floor
	}
	return wall
}

// behind returns how far the machine's clock is behind what was signed, if that is
// more than clocks may differ; else 0.
func (c *clock) behind() time.Duration {
	wall := c.wall()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	if d := c.floor.Sub(wall); !c.floor.IsZero() && d > snapshotform.ClockTolerance {
		return d
	}
	return 0
}

// advance adds to the floor what passed. The caller holds mu.
func (c *clock) advance() {
	boot, since := c.elapsed()
	if !c.floor.IsZero() && boot != "" && boot == c.boot && since > c.since {
		c.floor = c.floor.Add(since - c.since)
	}
	c.boot, c.since = boot, since
}

// learn raises the floor to what the marks know that somebody signed, and reports
// whether a new authority epoch started it anew. What is signed ahead of the node's
// time, within what clocks may differ, does not count for more than that time: else
// whoever holds a signing key could push the floor on and on.
func (c *clock) learn(marks snapshot.Marks) (anew bool) {
	epoch, signed := newestEpoch(marks), marks.SignedTime()
	if signed.IsZero() {
		return false
	}
	wall := c.wall()
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
func (c *clock) resume(kept *clockFile, marks snapshot.Marks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot, c.since = c.elapsed()
	if kept != nil {
		c.epoch, c.floor = kept.AuthorityEpoch, kept.Floor
		if kept.Boot != "" && kept.Boot == c.boot && c.since > kept.Since {
			c.floor = c.floor.Add(c.since - kept.Since)
		}
	}
	epoch, signed := newestEpoch(marks), marks.SignedTime()
	switch {
	case signed.IsZero() || epoch < c.epoch:
	case kept == nil || epoch > c.epoch:
		c.epoch, c.floor = epoch, signed
	default:
		// Accepted after the floor was written down. It may have been signed a little
		// ahead, and does not get more for that by a restart.
		if signed = signed.Add(-snapshotform.ClockTolerance); signed.After(c.floor) {
			c.floor = signed
		}
	}
}

// file returns the floor for disk.
func (c *clock) file() clockFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	return clockFile{c.epoch, c.floor.UTC(), c.boot, c.since}
}

// newestEpoch returns the highest authority epoch of which something was accepted.
func newestEpoch(marks snapshot.Marks) uint64 {
	var epoch uint64
	for _, m := range marks.All() {
		epoch = max(epoch, m.AuthorityEpoch)
	}
	return epoch
}

// readClock returns the floor on disk, or nil. Without it the signed time in the
// marks is the floor, so that damage is told and no more.
func (s *localStore) readClock() (*clockFile, error) {
	data, err := s.read(clockName, maxClockBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f clockFile
	if err == nil {
		err = unseal(data, &f)
	}
	if err != nil {
		return nil, s.corrupt(clockName, err)
	}
	return &f, nil
}

// trustedNow is the time that every end, bound and age of the node is compared with.
func (a *Agent) trustedNow() time.Time { return a.clock.now() }

// keepClock makes the floor durable. Losing it costs the time since the last one that
// was signed, so that a failure is logged and no more.
func (a *Agent) keepClock(ctx context.Context) {
	if err := a.store.writeSealed(clockName, a.clock.file()); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "the time is not kept", slog.Any("err", err))
	}
}

// watchClock writes the floor down now and then, and says when the machine's clock
// falls behind it or comes back.
func (a *Agent) watchClock(ctx context.Context) error {
	t := time.NewTicker(clockKeepEvery)
	defer t.Stop()
	wrong := false
	for {
		if d := a.clock.behind(); d > 0 != wrong {
			wrong = !wrong
			if wrong {
				a.log.LogAttrs(ctx, slog.LevelError, "the machine's clock is behind what was signed, going by that", slog.Duration("behind", d.Round(time.Second)), slog.Time("now", a.trustedNow()))
			} else {
				a.log.LogAttrs(ctx, slog.LevelInfo, "the machine's clock is right again")
			}
		}
		a.keepClock(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
