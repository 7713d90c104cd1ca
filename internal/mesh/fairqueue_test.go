package mesh_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/mesh"
)

func has(turn chan struct{}) bool {
	select {
	case <-turn:
		return true
	default:
		return false
	}
}

// As many have a turn as there are, and the next one has it when somebody gives it back.
func TestAllTurnsAreGiven(t *testing.T) {
	for n := range 4 {
		all := mesh.NewFairQueue(n)
		for i := range n {
			if !has(all.Ask("a")) {
				t.Errorf("of %d turns, number %d is not given", n, i+1)
			}
		}
		next := all.Ask("a")
		if has(next) {
			t.Errorf("of %d turns, one more was given", n)
		}
		all.GiveBack()
		if !has(next) {
			t.Errorf("of %d turns, one that came back was not given to who waits", n)
		}
	}
}

// Who waits in a network that has many waits for one of each other network, and within its own
// for those who came before.
func TestNetworksTakeTurns(t *testing.T) {
	all := mesh.NewFairQueue(1)
	all.Ask("first")
	waiting := make(map[string]chan struct{})
	for _, name := range strings.Fields("a1 a2 a3 b1 c1 b2") {
		waiting[name] = all.Ask(name[:1])
	}
	var got []string
	for range len(waiting) {
		all.GiveBack()
		for name, turn := range waiting {
			if has(turn) && !slices.Contains(got, name) {
				got = append(got, name)
			}
		}
	}
	if order := strings.Join(got, " "); order != "a1 b1 c1 a2 b2 a3" {
		t.Errorf("in the order %s", order)
	}
}

// Who withdraws holds up nobody, whether it still waits or its turn came meanwhile.
func TestWithdraw(t *testing.T) {
	all := mesh.NewFairQueue(1)
	first := all.Ask("a")
	gone, next, last := all.Ask("b"), all.Ask("c"), all.Ask("d")
	all.Withdraw("b", gone)
	all.Withdraw("a", first) // it had it: as if it gave it back
	if has(gone) || !has(next) || has(last) {
		t.Errorf("the one that withdrew has it: %v, the next: %v, the last: %v", has(gone), has(next), has(last))
	}
	all.Withdraw("c", next)
	if !has(last) {
		t.Error("a turn that came while its owner withdrew is lost")
	}
	all.GiveBack()
	if !has(all.Ask("e")) {
		t.Error("the turn is lost")
	}
}

// Whatever is asked, given back and withdrawn: no more have a turn than there are, nobody waits
// while one is free, and a network that waits is passed over by none that got one since.
func TestTurns(t *testing.T) {
	type asked struct {
		network string
		turn    chan struct{}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(t, "turns")
		all := mesh.NewFairQueue(n)
		var out []asked // who asked and did not end, in the order in which they came
		split := func() (having, waiting []asked) {
			for _, a := range out {
				if has(a.turn) {
					having = append(having, a)
				} else {
					waiting = append(waiting, a)
				}
			}
			return having, waiting
		}
		remove := func(a asked) {
			out = slices.DeleteFunc(out, func(o asked) bool { return o.turn == a.turn })
		}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				network := fmt.Sprint("n", rapid.IntRange(0, 3).Draw(t, "network"))
				out = append(out, asked{network, all.Ask(network)})
			},
			"give back": func(t *rapid.T) {
				having, before := split()
				if len(having) == 0 {
					t.Skip("nobody has one")
				}
				remove(rapid.SampledFrom(having).Draw(t, "who"))
				all.GiveBack()
				_, after := split()
				if len(before) == 0 {
					return
				}
				if len(after) != len(before)-1 {
					t.Fatalf("%d waited, and %d do", len(before), len(after))
				}
				for _, a := range before {
					if !slices.Contains(after, a) { // a has it now
						for _, b := range before {
							if b.network == a.network && b != a && slices.Index(before, b) < slices.Index(before, a) {
								t.Fatalf("in %s one was passed over that came before", a.network)
							}
						}
					}
				}
			},
			"withdraw": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("nobody asked")
				}
				who := rapid.SampledFrom(out).Draw(t, "who")
				remove(who)
				all.Withdraw(who.network, who.turn)
			},
			"": func(t *rapid.T) {
				having, waiting := split()
				if len(having) > n || len(having) < n && len(waiting) > 0 {
					t.Fatalf("of %d turns %d are given, and %d wait", n, len(having), len(waiting))
				}
			},
		})
	})
}
