package mesh_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/mesh"
)

// enter takes a slot whose loss is noted in lost.
func enter(t *testing.T, l *mesh.Limiter, address, name string, lost *[]string) *mesh.Slot {
	t.Helper()
	p, ok := l.Enter(address, func() { *lost = append(*lost, name) })
	if !ok {
		t.Fatalf("%s finds no room", name)
	}
	return p
}

func wantLost(t *testing.T, lost *[]string, want ...string) {
	t.Helper()
	if fmt.Sprint(*lost) != fmt.Sprint(want) {
		t.Fatalf("%v gave way, want %v", *lost, want)
	}
	*lost = nil
}

func TestWhoGivesWay(t *testing.T) {
	var lost []string
	l := mesh.NewLimiter(mesh.Limits{Slots: 4})
	first := enter(t, l, "10.0.0.1", "first", &lost)
	first.Spoke()
	enter(t, l, "10.0.0.2", "neighbour", &lost)
	enter(t, l, "10.0.0.1", "second", &lost)
	enter(t, l, "10.9.0.1", "elsewhere", &lost)
	wantLost(t, &lost)

	enter(t, l, "10.8.0.1", "newcomer", &lost)
	wantLost(t, &lost, "second") // of the largest network and its largest address, who said nothing
	enter(t, l, "10.7.0.1", "next", &lost)
	wantLost(t, &lost, "neighbour")
	enter(t, l, "10.6.0.1", "one of each", &lost)
	wantLost(t, &lost, "elsewhere") // all are alike: the oldest who said nothing
	first.Leave()
	first.Leave()
	enter(t, l, "10.5.0.1", "instead of first", &lost)
	wantLost(t, &lost)
}

func TestWhoIsKeptGivesNoWay(t *testing.T) {
	var lost []string
	l := mesh.NewLimiter(mesh.Limits{Slots: 2, Kept: 2})
	a, b := enter(t, l, "10.0.0.1", "a", &lost), enter(t, l, "10.0.0.1", "b", &lost)
	if !a.Keep() || !b.Keep() || !b.Keep() {
		t.Fatal("not kept")
	}
	if _, ok := l.Enter("10.1.0.1", func() { t.Error("it never had a slot") }); ok {
		t.Fatal("there is room where nobody gives way")
	}
	a.Release()
	c := enter(t, l, "10.1.0.1", "c", &lost)
	wantLost(t, &lost, "a")
	if a.Keep() {
		t.Error("kept after it gave way")
	}
	b.Leave()
	if !c.Keep() {
		t.Error("a slot of who left is not given to another")
	}
}

func TestWhoHoldsTheMostGivesWay(t *testing.T) {
	var lost []string
	l := mesh.NewLimiter(mesh.Limits{Slots: 9, Bytes: 100})
	large, small := enter(t, l, "10.0.0.1", "large", &lost), enter(t, l, "10.0.0.2", "small", &lost)
	other := enter(t, l, "10.1.0.1", "other", &lost)
	if !large.Hold(30) || !small.Hold(25) || !other.Hold(45) {
		t.Fatal("too much was counted")
	}
	if !other.Hold(1) {
		t.Error("it gave way for a network that holds more")
	}
	wantLost(t, &lost, "large")
	if large.Hold(1) {
		t.Error("it stands after it gave way")
	}
	if other.Hold(60) {
		t.Error("it stands, and holds the most")
	}
	wantLost(t, &lost)
	if n, bytes := l.Len(); n != 1 || bytes != 25 {
		t.Errorf("%d slots hold %d bytes, want 1 and 25", n, bytes)
	}
}

func TestTheNewestGivesWayWhereAllWaitForATurn(t *testing.T) {
	var lost []string
	l := mesh.NewLimiter(mesh.Limits{Slots: 2, Newest: true})
	enter(t, l, "10.0.0.1", "a", &lost)
	enter(t, l, "10.0.0.1", "b", &lost)
	if _, ok := l.Enter("10.0.0.1", func() {}); ok {
		t.Error("the newest found room")
	}
	enter(t, l, "10.1.0.1", "elsewhere", &lost)
	wantLost(t, &lost, "b")
}

// However many come and go: no limiter has more slots than it may, nothing is counted that is
// not there, and a network that has fewer slots than another loses none to a newcomer.
func TestLimiterKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 6).Draw(t, "most")
		l := mesh.NewLimiter(mesh.Limits{Slots: most, Bytes: 50, Newest: rapid.Bool().Draw(t, "newest")})
		network := map[*mesh.Slot]int{}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				n := rapid.IntRange(0, 3).Draw(t, "network")
				count := map[int]int{n: 1}
				for _, of := range network {
					count[of]++
				}
				var p *mesh.Slot
				out := -1
				full := len(network) == most
				var victims []*mesh.Slot
				before := make(map[*mesh.Slot]int, len(network))
				for q, of := range network {
					before[q] = of
				}
				p, ok := l.Enter(fmt.Sprintf("10.%d.0.1", n), func() { out = 1 })
				if ok {
					network[p] = n
				}
				for q := range before {
					if !q.Hold(0) {
						victims = append(victims, q)
					}
				}
				for _, q := range victims {
					for _, c := range count {
						if c > count[before[q]] {
							t.Fatalf("one of a network with %d gave way, and another has %d", count[before[q]], c)
						}
					}
					delete(network, q)
				}
				if out == 1 {
					t.Fatal("the newcomer gave way to itself")
				}
				if gone := len(victims); full && ok && gone != 1 || !full && gone != 0 {
					t.Fatalf("%d gave way", gone)
				}
			},
			"leave": func(t *rapid.T) {
				for p := range network {
					p.Leave()
					delete(network, p)
					break
				}
			},
			"": func(t *rapid.T) {
				if n, bytes := l.Len(); n != len(network) || n > most || bytes != 0 {
					t.Fatalf("%d slots with %d bytes, want %d", n, bytes, len(network))
				}
			},
		})
		for p := range network {
			p.Leave()
		}
		if n, _ := l.Len(); n != 0 {
			t.Fatalf("%d slots of nobody", n)
		}
	})
}

func TestAddressesAndNetworks(t *testing.T) {
	for remote, want := range map[string][2]string{
		"10.1.2.3:7":               {"10.1.2.3", "10.1.2.0/24"},
		"[::ffff:10.1.2.3]:7":      {"10.1.2.3", "10.1.2.0/24"},
		"[2001:db8:1:2:3:4:5:6]:7": {"2001:db8:1:2::/64", "2001:db8:1::/48"},
		"[fe80::1%eth0]:7":         {"fe80::/64", "fe80::/48"},
		"2001:db8:1:2:3:4:5:6":     {"2001:db8:1:2::/64", "2001:db8:1::/48"},
		"@":                        {"@", "@"},
	} {
		if a := mesh.Address(remote); a != want[0] || mesh.Network(a) != want[1] {
			t.Errorf("%s is of %s in %s, want %v", remote, a, mesh.Network(a), want)
		}
	}
}
