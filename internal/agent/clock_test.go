package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// machine has the two clocks of a computer: one that anybody can set, and one that
// nobody can.
type machine struct {
	wall  time.Time
	boot  string
	since time.Duration
}

func (m *machine) now() time.Time                   { return m.wall }
func (m *machine) elapsed() (string, time.Duration) { return m.boot, m.since }
func (m *machine) pass(d time.Duration)             { m.wall, m.since = m.wall.Add(d), m.since+d }
func (m *machine) set(d time.Duration)              { m.wall = m.wall.Add(d) }
func (m *machine) reboot(boot string, d time.Duration) {
	m.boot, m.since, m.wall = boot, d, m.wall.Add(d)
}

// openAt opens n on a machine.
func (n *node) openAt(m *machine, files durable.FS) *agent.Agent {
	n.Fleet.TB.Helper()
	a, err := agent.Open(n.Fleet.TB.Context(), agent.Config{DataDir: n.Dir, FS: files, Now: m.now, Elapsed: m.elapsed,
		Log: nodetest.Quiet(), Dial: n.Fleet.Dial, Release: "v0.1.0"})
	n.Fleet.Must(err)
	a.Serve("", "")
	return a
}

// The node's time is the machine's, and never less than what was signed and what
// passed since, whatever is done to the machine's clock.
func TestClock(t *testing.T) {
	const hour, year = time.Hour, 200 * 24 * time.Hour
	type world struct {
		*machine
		n    *node
		a    *agent.Agent
		sign func() // a trust bundle of now
		next func() // the next authority epoch
	}
	restart := func(w *world) {
		w.a.Node().Clock.Keep(w.n.Fleet.TB.Context())
		w.a.Close()
		w.a = w.n.openAt(w.machine, w.n.Disk.FS())
	}
	for _, c := range []struct {
		name   string
		do     func(w *world)
		now    time.Duration // since the beginning
		behind time.Duration
	}{
		{"right", func(w *world) { w.pass(hour) }, hour, 0},
		{"a little back", func(w *world) { w.set(-time.Minute) }, 0, 0},
		{"back", func(w *world) { w.pass(hour); w.set(-year) }, hour, year},
		{"back, and time passes", func(w *world) { w.set(-year); w.pass(3 * hour) }, 3 * hour, year},
		{"back, a restart of the agent", func(w *world) { w.set(-year); w.pass(hour); restart(w); w.pass(hour) },
			2 * hour, year},
		{"back, time passes while the agent is down", func(w *world) {
			w.a.Node().Clock.Keep(w.n.Fleet.TB.Context())
			w.a.Close()
			w.set(-year)
			w.pass(5 * hour)
			w.a = w.n.openAt(w.machine, w.n.Disk.FS())
		}, 5 * hour, year},
		{"back, a restart of the machine: what it was off does not count", func(w *world) {
			w.pass(hour)
			w.a.Node().Clock.Keep(w.n.Fleet.TB.Context())
			w.reboot("second", 0)
			w.set(-year)
			w.a.Close()
			w.a = w.n.openAt(w.machine, w.n.Disk.FS())
			w.pass(hour)
		}, 2 * hour, year},
		{"back, and the floor on disk lost: what was signed", func(w *world) {
			w.pass(hour)
			w.sign()
			w.pass(hour)
			w.set(-year)
			w.a.Close()
			w.n.Disk.Put(w.n.Path(dir.ClockName), []byte("gone"))
			w.a = w.n.openAt(w.machine, w.n.Disk.FS())
		}, hour, year - hour},
		{"ahead decides nothing for good", func(w *world) { w.set(year); w.a.Node().Now(); restart(w); w.set(-year) }, 0,
			0},
		{"ahead while something was signed",
			func(w *world) { w.set(20 * hour); w.sign(); w.set(-20 * hour); w.pass(hour) }, hour, 0},
		{"the future signed, and a new epoch", func(w *world) {
			w.n.Fleet.Shift.Add(int64(year))
			w.set(year)
			w.sign()
			w.n.Fleet.Shift.Add(-int64(year))
			w.set(-year)
			if w.a.Node().Clock.Behind() == 0 {
				w.n.Fleet.TB.Error("the test shows nothing")
			}
			w.next()
		}, 0, 0},
		{"the future signed, and a new epoch, a restart", func(w *world) {
			w.n.Fleet.Shift.Add(int64(year))
			w.set(year)
			w.sign()
			w.n.Fleet.Shift.Add(-int64(year))
			w.set(-year)
			restart(w)
			w.next()
			restart(w)
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // what is signed meanwhile is signed at the time of the beginning
				f := nodetest.New(t)
				f.BundleLife = 300 * 24 * time.Hour
				n := newNode(f)
				n.MustJoin()
				begin := f.Clock().Truncate(time.Second)
				w := &world{machine: &machine{wall: begin, boot: "first", since: time.Minute}, n: n}
				w.a = n.openAt(w.machine, n.Disk.FS())
				defer func() { w.a.Close() }()
				w.sign = func() {
					t.Helper()
					f.Do(func() { f.Version++ })
					h := f.TrustHeader()
					if c.name != "ahead while something was signed" {
						h.IssuedAt = w.wall.UTC()
					}
					f.Must(n.take(w.a, f.SignTrust(h, f.Content())))
					if got := w.a.Node().Status().Refusals(); len(got) != 0 {
						t.Fatal(got)
					}
				}
				w.next = func() { f.Do(func() { f.Epoch++ }); w.sign() }
				w.sign()
				c.do(w)
				near := func(got, want time.Duration) bool { return (got - want).Abs() <= 2*time.Second }
				if got := w.a.Node().Now().Sub(begin); !near(got, c.now) {
					t.Errorf("it is %v after the beginning, want %v", got, c.now)
				}
				if got := w.a.Node().Clock.Behind(); !near(got, c.behind) {
					t.Errorf("the clock is %v behind, want %v", got, c.behind)
				}
				resp, err := w.a.NodeServer().GetNode(t.Context(), nil)
				f.Must(err)
				if got := resp.GetClockBehind().AsDuration(); !near(got, c.behind) {
					t.Errorf("it tells that it is %v behind", got)
				}
				count, err := testutil.GatherAndCount(w.a.Counters().Registry(), "fealty_agent_clock_behind_seconds")
				if err != nil || count != 1 {
					t.Errorf("%d series, %v", count, err)
				}
			})
		})
	}
}

// A holder of a signing key cannot push the floor on by signing ahead again and again.
func TestFloorIsNotPushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		m := &machine{wall: f.Clock(), boot: "first"}
		a := n.openAt(m, n.Disk.FS())
		defer a.Close()
		for range 20 {
			f.Do(func() { f.Version++ })
			h := f.TrustHeader()
			h.IssuedAt = a.Node().Now().Add(internalsnapshot.ClockTolerance).UTC().Truncate(time.Second)
			f.Must(n.take(a, f.SignTrust(h, f.Content())))
		}
		if trustVersion(a) != 30 {
			t.Fatalf("version %d is in use: %v", trustVersion(a), a.Node().Status().Refusals())
		}
		if d := a.Node().Now().Sub(m.wall); d > time.Second {
			t.Errorf("the node is %v ahead of its machine", d)
		}
	})
}

// Everything that ends does so by the node's time: a clock that is set back does not extend it.
func TestClockBackExtendsNothing(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	m := &machine{wall: f.Clock(), boot: "first"}
	a := n.openAt(m, n.Disk.FS())
	defer a.Close()
	if reason := a.Unready(); reason != "" {
		t.Fatal(reason)
	}
	end := a.Node().TrustState().Active[snapshot.ScopeTrustBundle].Verified.Header().ExpiresAt
	life := end.Sub(m.wall)
	m.pass(life - time.Minute)
	m.set(-life)
	if state := a.Node().TrustState().Freshness(snapshot.ScopeTrustBundle, a.Node().Now()); state == snapshot.Expired {
		t.Errorf("it is %s before its end", state)
	}
	m.pass(2 * time.Minute)
	if state := a.Node().TrustState().Freshness(snapshot.ScopeTrustBundle, a.Node().Now()); state != snapshot.Expired {
		t.Errorf("with a clock that was set back it is %s after its end", state)
	}
	if a.Unready() == "" {
		t.Error("and the node is ready")
	}
}
