package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/explain"
)

// enterFrom takes a place for a call from addr, which must be given.
func enterFrom(t testing.TB, p *places, addr string) *visit {
	t.Helper()
	v, err := p.enter(context.Background(), addr, epoch0)
	if err != nil {
		t.Fatalf("no place for %s: %v", addr, err)
	}
	return v
}

func wantHeld(t testing.TB, v *visit, what string) {
	t.Helper()
	if err := v.ctx.Err(); err != nil {
		t.Errorf("%s lost its place: %v", what, context.Cause(v.ctx))
	}
}

// A stranger that does not get on loses its place, and one that does keeps it.
func TestStrangersHaveToGetOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(placeLimits{what: "calls", most: 4, perSource: 4, patience: 10 * time.Second, perHolder: 1})
		idle, busy, owner := enterFrom(t, p, "192.0.2.1"), enterFrom(t, p, "192.0.2.2"), enterFrom(t, p, "192.0.2.3")
		wantOnly(t, "prove", owner.proves("alice"), "")
		for range 10 {
			time.Sleep(9 * time.Second)
			busy.moves()
			idle.worded(nil)
		}
		synctest.Wait()
		wantHeld(t, busy, "who gets on")
		wantHeld(t, owner, "who has proven itself")
		if err := idle.worded(idle.ctx.Err()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who did nothing was told %v", err)
		}
		if err := idle.proves("bob"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who proves itself too late was told %v", err)
		}
		for _, v := range []*visit{idle, busy, owner} {
			v.leave()
			v.leave() // once more is no harm
		}
		if len(p.strangers)+len(p.crowds)+len(p.holders) != 0 {
			t.Errorf("what is left: %+v", p)
		}
	})
}

// Who gives way when all places are taken.
func TestWhoGivesWay(t *testing.T) {
	for _, tc := range []struct {
		name     string
		sources  []string // that hold the places, in order
		newcomer string
		want     int // the index of who gives way
	}{
		{"the oldest of as many addresses as places", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.4.0.1", 0},
		{"the oldest of the address with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.1"}, "10.4.0.1", 1},
		{"one of the network with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.2"}, "10.4.0.1", 1},
		{"of that network, one of the address with the most", []string{"10.1.0.1", "10.2.0.1", "10.2.0.2", "10.2.0.2"}, "10.4.0.1", 2},
		{"one of the newcomer's own network", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.2.0.9", 1},
		{"one of the newcomer itself", []string{"10.1.0.1", "10.2.0.1", "10.3.0.1"}, "10.3.0.1", 2},
		{"an IPv6 /64 is one address", []string{"2001:db8:1::1", "2001:db8:2::1", "2001:db8:2::2"}, "2001:db8:9::1", 1},
		{"an IPv6 /48 is one network", []string{"2001:db8:1::1", "2001:db8:2:1::1", "2001:db8:2:2::1"}, "2001:db8:9::1", 1},
		{"an IPv4 address in IPv6 form is that address", []string{"10.1.0.1", "10.2.0.1", "::ffff:10.2.0.1"}, "10.4.0.1", 1},
	} {
		p := newPlaces(placeLimits{what: "calls", most: len(tc.sources), perSource: 3, patience: time.Hour, perHolder: 1})
		var held []*visit
		for _, s := range tc.sources {
			held = append(held, enterFrom(t, p, s))
		}
		held = append(held, enterFrom(t, p, tc.newcomer))
		for i, v := range held {
			if gone := v.ctx.Err() != nil; gone != (i == tc.want) {
				t.Errorf("%s: the call %d from %s: gone is %v", tc.name, i, append(tc.sources, tc.newcomer)[i], gone)
			}
		}
		wantCode(t, held[tc.want].worded(held[tc.want].ctx.Err()), explain.RateLimited)
		wantCode(t, held[tc.want].proves("late"), explain.RateLimited)
		for _, v := range held {
			v.leave()
		}
	}
}

// Places are bounded for one address and for one who has proven itself; who has does not
// compete with strangers.
func TestPlacesAreBounded(t *testing.T) {
	p := newPlaces(placeLimits{what: "calls", perSecond: 1, burst: 5, most: 3, perSource: 2, patience: time.Hour, perHolder: 2})
	defer func() {
		for _, v := range slices.Clone(p.strangers) {
			v.leave()
		}
	}()
	enterFrom(t, p, "10.0.0.1")
	a := enterFrom(t, p, "10.0.0.1")
	_, err := p.enter(t.Context(), "10.0.0.1", epoch0)
	wantCode(t, err, explain.RateLimited)
	a.leave()
	// Its places are its own from the proof on.
	first, second := enterFrom(t, p, "10.0.0.1"), enterFrom(t, p, "10.0.0.2")
	wantOnly(t, "prove", first.proves("alice"), "")
	wantOnly(t, "prove", second.proves("alice"), "")
	third := enterFrom(t, p, "10.0.0.2")
	wantCode(t, third.proves("alice"), explain.RateLimited)
	wantOnly(t, "prove", third.proves("bob"), "")
	for i := range 20 {
		enterFrom(t, p, fmt.Sprintf("10.1.%d.1", i))
	}
	for i, v := range []*visit{first, second, third} {
		wantHeld(t, v, fmt.Sprintf("proven %d", i))
	}
	// More often than an address may.
	enterFrom(t, p, "10.0.0.1")
	_, err = p.enter(t.Context(), "10.0.0.1", epoch0)
	wantCode(t, err, explain.RateLimited)
	first.leave()
	fourth := enterFrom(t, p, "10.0.0.2")
	wantOnly(t, "prove", fourth.proves("alice"), "")
	for _, v := range []*visit{second, third, fourth} {
		v.leave()
	}
}

// Whatever strangers do, the bounds hold, nothing is counted that is gone, and who is
// alone in its network keeps its place while another network has more.
func TestPlacesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := placeLimits{what: "calls", most: rapid.IntRange(1, 6).Draw(t, "most"), perSource: rapid.IntRange(1, 4).Draw(t, "perSource"), patience: time.Hour, perHolder: 2}
		p := newPlaces(limits)
		addr := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("10.%d.0.%d", rapid.IntRange(0, 4).Draw(t, "network"), rapid.IntRange(0, 2).Draw(t, "host"))
		})
		network := func(v *visit) string { return v.network.name }
		var in []*visit
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
				v, err := p.enter(context.Background(), a, epoch0)
				if (err != nil) != (own >= limits.perSource) {
					t.Fatalf("%s with %d places: %v", a, own, err)
				}
				if err != nil {
					return
				}
				in = append(in, v)
				for _, b := range before {
					for _, n := range of {
						if b.ctx.Err() != nil && of[network(b)] < n {
							t.Fatalf("a call of %s gave way, which has %d places; another network has %d", network(b), of[network(b)], n)
						}
					}
				}
				if v.ctx.Err() != nil {
					t.Fatal("the newcomer was not let in")
				}
			},
			"prove": func(t *rapid.T) {
				if len(in) == 0 {
					return
				}
				v := in[rapid.IntRange(0, len(in)-1).Draw(t, "who")]
				if v.holder == "" && !v.left {
					_ = v.proves(rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "holder"))
				}
			},
			"leave": func(t *rapid.T) {
				if len(in) == 0 {
					return
				}
				i := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				in[i].leave()
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
						if v.ctx.Err() != nil {
							t.Fatal("who has proven itself lost its place")
						}
					}
				}
				if len(p.strangers) > limits.most || len(p.crowds) != len(crowds) || len(p.holders) != len(holders) {
					t.Fatalf("%d strangers, crowds %v for %v, holders %v for %v", len(p.strangers), p.crowds, crowds, p.holders, holders)
				}
				for name, c := range p.crowds {
					if c.n != crowds[name] {
						t.Fatalf("%s is counted %d times, and has %d", name, c.n, crowds[name])
					}
				}
				for name, n := range p.holders {
					if n != holders[name] || n > limits.perHolder {
						t.Fatalf("%s is counted %d times, and has %d", name, n, holders[name])
					}
				}
			},
		})
		for _, v := range in {
			v.leave()
		}
	})
}
