// Inside: that nothing is counted which is gone, and what is counted of each source and network,
// shows in no name from outside.

package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/errcode"
)

// enterFrom takes a slot for a call from addr, which must be given.
func enterFrom(t testing.TB, p *Limiter, addr string) *Slot {
	t.Helper()
	v, err := p.Enter(context.Background(), addr, epoch)
	if err != nil {
		t.Fatalf("no slot for %s: %v", addr, err)
	}
	return v
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func mustProve(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("Prove: %v", err)
	}
}

func wantCode(t testing.TB, err error, want errcode.Code) {
	t.Helper()
	if got := errcode.CodeOf(err); got != string(want) {
		t.Fatalf("%v, want %s", err, want)
	}
}

func wantHeld(t testing.TB, v *Slot, what string) {
	t.Helper()
	if err := v.Context().Err(); err != nil {
		t.Errorf("%s lost its slot: %v", what, context.Cause(v.Context()))
	}
}

// A stranger that does not get on loses its slot, and one that does keeps it.
func TestStrangersHaveToGetOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{What: "calls", Most: 4, PerSource: 4, Patience: 10 * time.Second, PerHolder: 1})
		idle, busy, owner := enterFrom(t, p, "192.0.2.1"), enterFrom(t, p, "192.0.2.2"), enterFrom(t, p, "192.0.2.3")
		mustProve(t, owner.Prove("alice"))
		for range 10 {
			time.Sleep(9 * time.Second)
			busy.Progress()
			idle.Reason(nil)
		}
		synctest.Wait()
		wantHeld(t, busy, "who gets on")
		wantHeld(t, owner, "who has proven itself")
		if err := idle.Reason(idle.Context().Err()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who did nothing was told %v", err)
		}
		if err := idle.Prove("bob"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who proves itself too late was told %v", err)
		}
		for _, v := range []*Slot{idle, busy, owner} {
			v.Leave()
			v.Leave() // once more is no harm
		}
		if len(p.strangers)+len(p.groups)+len(p.holders) != 0 {
			t.Errorf("what is left: %+v", p)
		}
	})
}

// If all slots are taken, a stranger gives way.
func TestWhoGivesWay(t *testing.T) {
	for _, tc := range []struct {
		name     string
		sources  []string // that hold the slots, in order
		newcomer string
		want     int // the index of who gives way
	}{
		{"the oldest of as many addresses as slots", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.4.0.1", 0},
		{"the oldest of the address with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.1"}, "10.4.0.1", 1},
		{"one of the network with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.2"}, "10.4.0.1", 1},
		{"of that network, one of the address with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.2", "10.2.0.2"}, "10.4.0.1", 2},
		{"one of the newcomer's own network", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.2.0.9", 1},
		{"one of the newcomer itself", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.3.0.1", 2},
		{"an IPv6 /64 is one address", []string{"2001:db8:1::1", "2001:db8:2::1", "2001:db8:2::2"}, "2001:db8:9::1", 1},
		{"an IPv6 /48 is one network", []string{"2001:db8:1::1", "2001:db8:2:1::1", "2001:db8:2:2::1"}, "2001:db8:9::1", 1},
		{"an IPv4 address in IPv6 form is that address", []string{"10.1.0.1", "10.2.0.1", "::ffff:10.2.0.1"}, "10.4.0.1", 1},
	} {
		p := New(Limits{What: "calls", Most: len(tc.sources), PerSource: 3, Patience: time.Hour, PerHolder: 1})
		var held []*Slot
		for _, s := range tc.sources {
			held = append(held, enterFrom(t, p, s))
		}
		held = append(held, enterFrom(t, p, tc.newcomer))
		for i, v := range held {
			if gone := v.Context().Err() != nil; gone != (i == tc.want) {
				t.Errorf("%s: the call %d from %s: gone is %v", tc.name, i, append(tc.sources, tc.newcomer)[i], gone)
			}
		}
		wantCode(t, held[tc.want].Reason(held[tc.want].Context().Err()), errcode.RateLimited)
		wantCode(t, held[tc.want].Prove("late"), errcode.RateLimited)
		for _, v := range held {
			v.Leave()
		}
	}
}

// Slots are bounded for one address and for one who has proven itself; who has does not
// compete with strangers.
func TestSlotsAreBounded(t *testing.T) {
	p := New(Limits{What: "calls", PerSecond: 1, Burst: 5, Most: 3, PerSource: 2, Patience: time.Hour, PerHolder: 2})
	defer func() {
		for _, v := range slices.Clone(p.strangers) {
			v.Leave()
		}
	}()
	enterFrom(t, p, "10.0.0.1")
	a := enterFrom(t, p, "10.0.0.1")
	_, err := p.Enter(t.Context(), "10.0.0.1", epoch)
	wantCode(t, err, errcode.RateLimited)
	a.Leave()
	// Its slots are its own from the proof on.
	first, second := enterFrom(t, p, "10.0.0.1"), enterFrom(t, p, "10.0.0.2")
	mustProve(t, first.Prove("alice"))
	mustProve(t, second.Prove("alice"))
	third := enterFrom(t, p, "10.0.0.2")
	wantCode(t, third.Prove("alice"), errcode.RateLimited)
	mustProve(t, third.Prove("bob"))
	for i := range 20 {
		enterFrom(t, p, fmt.Sprintf("10.1.%d.1", i))
	}
	for i, v := range []*Slot{first, second, third} {
		wantHeld(t, v, fmt.Sprintf("proven %d", i))
	}
	// More often than an address may.
	enterFrom(t, p, "10.0.0.1")
	_, err = p.Enter(t.Context(), "10.0.0.1", epoch)
	wantCode(t, err, errcode.RateLimited)
	first.Leave()
	fourth := enterFrom(t, p, "10.0.0.2")
	mustProve(t, fourth.Prove("alice"))
	for _, v := range []*Slot{second, third, fourth} {
		v.Leave()
	}
}

// For all that strangers do, the bounds hold, nothing is counted that is gone, and a
// client that is alone in its network keeps its slot while another network has more.
func TestLimiterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{What: "calls", Most: rapid.IntRange(1, 6).Draw(t, "most"), PerSource: rapid.IntRange(1, 4).Draw(t, "perSource"), Patience: time.Hour, PerHolder: 2}
		p := New(limits)
		addr := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("10.%d.0.%d", rapid.IntRange(0, 4).Draw(t, "network"), rapid.IntRange(0, 2).Draw(t, "host"))
		})
		network := func(v *Slot) string { return v.network.name }
		var in []*Slot
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				a := addr.Draw(t, "addr")
				before := slices.Clone(p.strangers)
				own := 0
				of := map[string]int{"network " + networkOf(a): 1}
				for _, v := range before {
					of[network(v)]++
					if v.source.name == a {
						own++
					}
				}
				v, err := p.Enter(context.Background(), a, epoch)
				if (err != nil) != (own >= limits.PerSource) {
					t.Fatalf("%s with %d slots: %v", a, own, err)
				}
				if err != nil {
					return
				}
				in = append(in, v)
				for _, b := range before {
					for _, n := range of {
						if b.Context().Err() != nil && of[network(b)] < n {
							t.Fatalf("a call of %s gave way, which has %d slots; another network has %d", network(b), of[network(b)], n)
						}
					}
				}
				if v.Context().Err() != nil {
					t.Fatal("the newcomer was not let in")
				}
			},
			"prove": func(t *rapid.T) {
				if len(in) == 0 {
					return
				}
				v := in[rapid.IntRange(0, len(in)-1).Draw(t, "who")]
				if v.holder == "" && !v.left {
					_ = v.Prove(rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "holder"))
				}
			},
			"leave": func(t *rapid.T) {
				if len(in) == 0 {
					return
				}
				i := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				in[i].Leave()
				in = slices.Delete(in, i, i+1)
			},
			"": func(t *rapid.T) {
				crowds, holders := make(map[string]int), make(map[string]int)
				for _, v := range p.strangers {
					crowds[v.source.name]++
					crowds[network(v)]++
				}
				for _, v := range in {
					if v.holder != "" {
						holders[v.holder]++
						if v.Context().Err() != nil {
							t.Fatal("who has proven itself lost its slot")
						}
					}
				}
				if len(p.strangers) > limits.Most || len(p.groups) != len(crowds) || len(p.holders) != len(holders) {
					t.Fatalf("%d strangers, crowds %v for %v, holders %v for %v", len(p.strangers), p.groups, crowds, p.holders, holders)
				}
				for name, c := range p.groups {
					if c.n != crowds[name] {
						t.Fatalf("%s is counted %d times, and has %d", name, c.n, crowds[name])
					}
				}
				for name, n := range p.holders {
					if n != holders[name] || n > limits.PerHolder {
						t.Fatalf("%s is counted %d times, and has %d", name, n, holders[name])
					}
				}
			},
		})
		for _, v := range in {
			v.Leave()
		}
	})
}
