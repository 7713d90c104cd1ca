package state_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// watch is what a machine's clocks say.
type watch struct {
	wall  time.Time
	boot  string
	since time.Duration
}

func (w *watch) clock() *state.Clock {
	return state.NewClock(func() time.Time { return w.wall }, func() (string, time.Duration) { return w.boot, w.since })
}

// pass lets time pass by both clocks.
func (w *watch) pass(d time.Duration) { w.wall, w.since = w.wall.Add(d), w.since+d }

// marksAt are the marks of a node to which something was signed at this time, in this epoch.
func marksAt(t testing.TB, m *machine, epoch uint64, at time.Time) snapshot.Marks {
	t.Helper()
	was := m.Shift.Load()
	defer m.Shift.Store(was)
	m.Shift.Store(int64(time.Until(at)))
	l := m.mustLoad()
	b := l.TrustState
	if epoch > 1 {
		m.Epoch = epoch - 1
		b = m.nextEpoch(l.Me, b)
		m.Epoch = 1
	}
	return b.Marks
}

// The node's time is the machine's, and never before what was signed.
func TestClockFloor(t *testing.T) {
	m := newMachine(t)
	signed := m.mustLoad().TrustState.Marks
	at := signed.SignedTime()
	const much = time.Hour
	for _, tc := range []struct {
		name   string
		do     func(w *watch, c *state.Clock)
		now    time.Duration // after what was signed
		behind time.Duration
	}{
		{"a clock that is right", func(w *watch, c *state.Clock) { w.wall = at.Add(much); c.Learn(signed) }, much, 0},
		{"a clock that is set back", func(w *watch, c *state.Clock) {
			w.wall = at.Add(time.Minute)
			c.Learn(signed)
			w.wall = at.Add(-much)
		}, 0, much},
		{"set back, and time passes", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall = at.Add(-much)
			w.pass(time.Minute)
		}, time.Minute, much},
		{"set back a little", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall = at.Add(-internalsnapshot.ClockTolerance)
		}, 0, 0},
		{"set back a little more", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall = at.Add(-internalsnapshot.ClockTolerance - 1)
		}, 0, internalsnapshot.ClockTolerance + 1},
		{"set forward", func(w *watch, c *state.Clock) { w.wall = at; c.Learn(signed); w.wall = at.Add(much) }, much, 0},
		{"set forward and right again", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall = at.Add(much)
			c.Now()
			w.wall = at.Add(time.Minute)
		}, time.Minute, 0},
		{"what was signed ahead of the clock does not push the floor", func(w *watch, c *state.Clock) {
			w.wall = at.Add(-time.Minute)
			c.Learn(signed)
		}, -time.Minute, 0},
		{"the other clock stands still, or begins anew", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall, w.boot, w.since = at.Add(-much), "another", 0
		}, 0, much},
		{"the machine started again, and time passes since", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall, w.boot, w.since = at.Add(-much), "another", 7*time.Hour
			c.Now() // of before the start nothing is known
			w.pass(time.Minute)
		}, time.Minute, much},
		{"the other clock cannot be read", func(w *watch, c *state.Clock) {
			w.boot = ""
			w.wall = at
			c.Learn(signed)
			w.wall = at.Add(-much)
			w.pass(time.Minute)
		}, 0, much - time.Minute},
		{"the other clock goes back", func(w *watch, c *state.Clock) {
			w.wall = at
			c.Learn(signed)
			w.wall, w.since = at.Add(-much), 0
		}, 0, much},
		{"nothing was signed", func(w *watch, c *state.Clock) { w.wall = at.Add(-much); c.Learn(snapshot.Marks{}) }, -much, 0},
	} {
		w := &watch{boot: "boot", since: time.Hour}
		c := w.clock()
		tc.do(w, c)
		if got := c.Now().Sub(at); got != tc.now {
			t.Errorf("%s: the time is %v after what was signed, want %v", tc.name, got, tc.now)
		}
		if got := c.Behind(); got != tc.behind {
			t.Errorf("%s: the machine is %v behind, want %v", tc.name, got, tc.behind)
		}
	}
}

// What is written down is the floor as it is by now; and without any clocks given those of the machine
// are read.
func TestClockFile(t *testing.T) {
	m := newMachine(t)
	signed := m.mustLoad().TrustState.Marks
	at := signed.SignedTime()
	w := &watch{wall: at, boot: "boot", since: time.Hour}
	c := w.clock()
	if f := c.File(); !f.Floor.IsZero() || f.AuthorityEpoch != 0 {
		t.Errorf("before anything was signed: %+v", f)
	}
	c.Learn(signed)
	w.pass(time.Minute)
	if f := c.File(); !f.Floor.Equal(at.Add(time.Minute)) || f.AuthorityEpoch != 1 || f.Boot != "boot" || f.Since != time.Hour+time.Minute {
		t.Errorf("%+v, signed at %v", f, at)
	}
	before := time.Now()
	if now := state.NewClock(nil, nil).Now(); now.Before(before) {
		t.Errorf("the machine's clock says %v, and before that it said %v", now, before)
	}
}

// A new authority epoch starts the floor anew, for a cluster that signed the future, and an old
// one does not.
func TestClockEpochs(t *testing.T) {
	m := newMachine(t)
	at := m.Ago(0)
	one, two := marksAt(t, m, 1, at), marksAt(t, m, 2, at.Add(-time.Hour))
	w := &watch{wall: at.Add(time.Hour), boot: "b"}
	c := w.clock()
	if c.Learn(one) {
		t.Error("the first epoch starts nothing anew")
	}
	w.wall = at.Add(-2 * time.Hour)
	if c.Now() != one.SignedTime() {
		t.Fatalf("the floor is %v, want %v", c.Now(), one.SignedTime())
	}
	if !c.Learn(two) {
		t.Error("a new epoch is not told")
	}
	if got := c.Now(); !got.Equal(w.wall) {
		t.Errorf("after a new epoch that was signed ahead of the machine's clock it is %v, want that clock: %v", got, w.wall)
	}
	if c.Learn(two) {
		t.Error("the same epoch again starts it anew")
	}
	w.wall = at.Add(3 * time.Hour)
	if c.Learn(one) {
		t.Error("an old epoch starts it anew")
	}
	w.wall = at.Add(-3 * time.Hour)
	if got := c.Now(); got.Equal(one.SignedTime()) {
		t.Error("an old epoch raises the floor")
	}
	if got := state.NewestEpoch(two); got != 2 {
		t.Errorf("the newest epoch is %d", got)
	}
	if got := state.NewestEpoch(snapshot.Marks{}); got != 0 {
		t.Errorf("the newest epoch of nothing is %d", got)
	}
}

// The floor outlives the process: by the file, with what passed since by the clock that nobody can
// set, or by the marks alone.
func TestClockResumes(t *testing.T) {
	for _, tc := range []struct {
		name string
		file func(f *dir.ClockFile) bool // false: there is none
		wall time.Duration               // after what was signed last
		want time.Duration
	}{
		{"the file and time that passed", func(f *dir.ClockFile) bool { f.Since -= time.Hour; return true }, -9 * time.Hour, 3 * time.Hour},
		{"the file of another start of the machine", func(f *dir.ClockFile) bool { f.Boot, f.Since = "other", 0; return true }, -9 * time.Hour, 2 * time.Hour},
		{"the file of a start without a name", func(f *dir.ClockFile) bool { f.Boot, f.Since = "", 0; return true }, -9 * time.Hour, 2 * time.Hour},
		{"the file of what is to come", func(f *dir.ClockFile) bool { f.Since += time.Hour; return true }, -9 * time.Hour, 2 * time.Hour},
		{"no file", func(*dir.ClockFile) bool { return false }, -9 * time.Hour, 0},
		{"no file, and a clock that is right", func(*dir.ClockFile) bool { return false }, time.Hour, time.Hour},
		{"a file older than what was signed", func(f *dir.ClockFile) bool { f.Floor = f.Floor.Add(-9 * time.Hour); return true }, -9 * time.Hour,
			-internalsnapshot.ClockTolerance},
		{"a file of an older epoch", func(f *dir.ClockFile) bool { f.AuthorityEpoch = 0; return true }, -9 * time.Hour, 0},
		{"a file of a newer epoch", func(f *dir.ClockFile) bool {
			f.AuthorityEpoch, f.Floor = 2, f.Floor.Add(-9*time.Hour)
			return true
		}, -99 * time.Hour, -7 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			s := m.open()
			l := m.lockedLoad(s)
			at := l.TrustState.Marks.SignedTime()
			f := dir.ClockFile{AuthorityEpoch: 1, Floor: at.Add(2 * time.Hour), Boot: "boot", Since: 5 * time.Hour}
			if tc.file(&f) {
				m.Must(s.WriteSealed(dir.ClockName, f))
			}
			// Its certificate is of a time that nobody doubts: the clock is compared by what it tells alone.
			w := &watch{wall: at.Add(tc.wall), boot: "boot", since: 5 * time.Hour}
			c := w.clock()
			_, _ = s.Load(c)
			if got := c.Now().Sub(at); got != tc.want {
				t.Errorf("the time is %v after what was signed, want %v", got, tc.want)
			}
		})
	}
}

// Two starts whose other clock cannot be read are not one start: nothing is known of the time between them.
func TestClockResumesWithoutAnother(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	at := m.lockedLoad(s).TrustState.Marks.SignedTime()
	m.Must(s.WriteSealed(dir.ClockName, dir.ClockFile{AuthorityEpoch: 1, Floor: at.Add(2 * time.Hour)}))
	w := &watch{wall: at.Add(-9 * time.Hour), since: 5 * time.Hour}
	c := w.clock()
	_, _ = s.Load(c)
	if got := c.Now().Sub(at); got != 2*time.Hour {
		t.Errorf("the time is %v after what was signed, want what was written down", got)
	}
}

// Whatever becomes of the machine's clock, of its starts and of what is signed in an epoch: the
// time never goes back below what it was by the clock that nobody can set, and is at most what
// the machine says, or said when something was signed, with what passed since.
func TestClockNeverGoesBack(t *testing.T) {
	m := newMachine(t)
	base := m.mustLoad().TrustState.Marks
	at := base.SignedTime()
	rapid.Check(t, func(t *rapid.T) {
		w := &watch{wall: at, boot: "boot", since: time.Hour}
		c := w.clock()
		learned := false
		floor := time.Time{} // of what may be said
		t.Repeat(map[string]func(*rapid.T){
			"learn": func(*rapid.T) {
				if w.wall.Before(at) && !learned {
					return // a floor below what was signed: it counts for no more than the clock
				}
				c.Learn(base)
				learned = true
				if floor.Before(at) {
					floor = at
				}
			},
			"pass": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(0, 7200).Draw(t, "seconds")) * time.Second
				c.Now()
				w.pass(d)
				if !floor.IsZero() {
					floor = floor.Add(d)
				}
			},
			"set the clock": func(t *rapid.T) {
				w.wall = at.Add(time.Duration(rapid.IntRange(-9999, 9999).Draw(t, "to")) * time.Second)
			},
			"": func(t *rapid.T) {
				now := c.Now()
				if learned && now.Before(floor) {
					t.Fatalf("the time is %v, and was to be %v at least", now, floor)
				}
				if now.Before(w.wall) {
					t.Fatalf("the time is %v, before the machine's, %v", now, w.wall)
				}
				if now.After(w.wall) && now.After(floor) {
					t.Fatalf("the time is %v, after the machine's, %v, and what was signed, %v", now, w.wall, floor)
				}
				if f := c.File(); learned && f.Floor.Before(floor) {
					t.Fatalf("on disk is %v", f.Floor)
				}
			},
		})
	})
}
