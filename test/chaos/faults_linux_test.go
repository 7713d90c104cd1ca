package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A fault is something that is done to a fleet, and undone after a while.
type fault struct {
	name    string
	targets []string // what it is done to: two faults at once share none
	do      func() (undo func() error, err error)
}

// deck returns each kind of fault once, with targets and an order of chance.
func (f *fleet) deck(r *rand.Rand) []fault {
	var faults []fault
	coord, other := f.coords[r.IntN(len(f.coords))], f.coords[r.IntN(len(f.coords))]
	way := r.IntN(len(f.coords))
	some := f.nodes[:1+r.IntN(len(f.nodes))]
	add := func(name string, targets []string, do func() (func() error, error)) {
		faults = append(faults, fault{name, targets, do})
	}
	add("kill -9 "+coord.m.name, []string{coord.m.name}, func() (func() error, error) { return f.killed(coord), nil })
	if len(f.coords) > 1 {
		add("kill -9 all coordinators", names(f.coords), func() (func() error, error) { return f.killed(f.coords...), nil })
	}
	add("end and start "+other.m.name, []string{other.m.name}, func() (func() error, error) {
		up := f.down(other.m.name)
		err := other.stop()
		return func() error { f.start(other); up(); return nil }, err
	})
	add("stop "+other.m.name, []string{other.m.name}, func() (func() error, error) { return f.stopped(other) })
	add(fmt.Sprintf("kill -9 %d nodes", len(some)), names(some), func() (func() error, error) { return f.killed(some...), nil })
	add(fmt.Sprintf("stop %d nodes", len(some)), names(some), func() (func() error, error) { return f.stopped(some...) })
	if f.store.kill != nil {
		store := []string{"store"}
		add("kill the store", store, f.storeAway(f.store.kill, f.store.start))
		add("pause the store", store, f.storeAway(f.store.pause, f.store.resume))
		add("cut "+f.coords[way].m.name+" off from the store", []string{wayOf(f.coords[way])}, func() (func() error, error) { return f.cutOff(way), nil })
		add("cut all off from the store", []string{"store"}, func() (func() error, error) {
			var ways []int
			for i := range f.coords {
				ways = append(ways, i)
			}
			return f.cutOff(ways...), nil
		})
	}
	if f.store.readOnly != nil {
		add("have the store refuse writes", []string{"store"}, f.storeAway(func() error { return f.store.readOnly(true) }, func() error { return f.store.readOnly(false) }))
	}
	if coord.m.holder != nil {
		add("fill the disk of "+coord.m.name, []string{"disk of " + coord.m.name}, f.full(coord, true))
		// A node has to stay certified meanwhile.
		add("fill the disks of all nodes", []string{"disks of nodes"}, func() (func() error, error) {
			var free []func() error
			for _, p := range f.nodes {
				one, err := f.full(p, false)()
				if err != nil {
					return nil, err
				}
				free = append(free, one)
			}
			return func() error { return all(free...) }, nil
		})
	}
	everything := append(append(names(f.coords), names(f.nodes)...), "store")
	add("everything asleep", everything, f.asleep)
	r.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	return faults
}

func names(ps []*process) (all []string) {
	for _, p := range ps {
		all = append(all, p.m.name)
	}
	return all
}

func wayOf(p *process) string { return "way of " + p.m.name }

func (f *fleet) killed(ps ...*process) (undo func() error) {
	up := f.down(names(ps)...)
	for _, p := range ps {
		p.kill()
	}
	return func() error {
		for _, p := range ps {
			f.start(p)
		}
		up()
		return nil
	}
}

func (f *fleet) stopped(ps ...*process) (undo func() error, err error) {
	up := f.down(names(ps)...)
	for _, p := range ps {
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, p := range ps {
			if err := p.signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
		up()
		return nil
	}, nil
}

func (f *fleet) storeAway(do, undo func() error) func() (func() error, error) {
	return func() (func() error, error) {
		up := f.down("store")
		return func() error { defer up(); return undo() }, do()
	}
}

func (f *fleet) cutOff(ways ...int) (undo func() error) {
	var of []string
	for _, i := range ways {
		of = append(of, wayOf(f.coords[i]))
	}
	up := f.down(of...)
	for _, i := range ways {
		f.store.ways[i].BlackHole()
	}
	return func() error {
		for _, i := range ways {
			f.store.ways[i].Heal()
		}
		up()
		return nil
	}
}

func (f *fleet) full(p *process, down bool) func() (func() error, error) {
	return func() (func() error, error) {
		up := func() {}
		if down {
			up = f.down(p.m.name)
		}
		free, err := p.m.full()
		return func() error { defer up(); return free() }, err
	}
}

// asleep stops every process, those of the store too, as a machine does on which all of
// them are.
func (f *fleet) asleep() (undo func() error, err error) {
	wake, err := f.stopped(append(slices.Clone(f.nodes), f.coords...)...)
	if err != nil || f.store.pause == nil {
		return wake, err
	}
	store, err := f.storeAway(f.store.pause, f.store.resume)()
	return func() error { return all(store, wake) }, err
}

// hurt does one fault after the other, some at once, until a time.
func (f *fleet) hurt(r *rand.Rand, until time.Time) {
	f.t.Helper()
	var deck []fault
	draw := func() fault {
		if len(deck) == 0 {
			deck = f.deck(r)
		}
		one := deck[0]
		deck = deck[1:]
		return one
	}
	pause := func(least, most time.Duration) {
		d := least + time.Duration(r.Int64N(int64(most-least)))
		for end := time.Now().Add(min(d, time.Until(until))); time.Now().Before(end); {
			time.Sleep(min(200*time.Millisecond, time.Until(end))) // it is what is done, no wait for something
			f.supervise()
		}
	}
	long := time.Until(until) > 2*time.Minute
	for time.Now().Before(until) {
		now := []fault{draw()}
		if r.IntN(3) == 0 {
			if more := draw(); !slices.ContainsFunc(more.targets, func(t string) bool { return slices.Contains(now[0].targets, t) }) {
				now = append(now, more)
			} else {
				deck = append(deck, more)
			}
		}
		var told []string
		var undo []func() error
		began := time.Now()
		for _, one := range now {
			told = append(told, one.name)
			back, err := one.do()
			if err != nil {
				f.t.Fatalf("%s: %v", one.name, err)
			}
			undo = append(undo, back)
			pause(10*time.Millisecond, time.Second)
		}
		switch d := r.IntN(10); {
		case d < 6:
			pause(200*time.Millisecond, 3*time.Second)
		case d < 9 || !long:
			pause(3*time.Second, 9*time.Second)
		default:
			pause(9*time.Second, 25*time.Second)
		}
		if r.IntN(2) == 0 {
			slices.Reverse(undo)
		}
		for _, back := range undo {
			if err := back(); err != nil {
				f.t.Fatalf("undo %s: %v", strings.Join(told, " and "), err)
			}
		}
		f.t.Logf("%s: %s, for %v", began.Format("15:04:05.000"), strings.Join(told, " and "), time.Since(began).Round(time.Millisecond))
		if r.IntN(4) == 0 {
			pause(11*time.Second, 14*time.Second) // long enough for everybody to renew who has to
		} else {
			pause(300*time.Millisecond, 4*time.Second)
		}
	}
}
