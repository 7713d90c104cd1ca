package balancer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"google.golang.org/grpc/resolver"
	"pgregory.net/rapid"
)

func at(addrs ...string) resolver.Endpoint {
	var e resolver.Endpoint
	for _, a := range addrs {
		e.Addresses = append(e.Addresses, resolver.Address{Addr: a})
	}
	return e
}

// However large a set is and whatever it says of TLS, what is used is bounded and not plain, keeps
// its order, and with what is left out makes up the set.
func TestChoose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{0, 1, 3, balancer.MaxEndpoints, balancer.MaxEndpoints + 200}).Draw(t, "size")
		says := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 7).Draw(t, "says")
		each := rapid.IntRange(1, 3).Draw(t, "addresses of each")
		var set []resolver.Endpoint
		plain := make(map[string]bool)
		for i := range size {
			var addrs []string
			for k := range each {
				addrs = append(addrs, fmt.Sprintf("%05d.%d", i, k))
				plain[addrs[k]] = says[i%len(says)] == 0
			}
			e := at(addrs...)
			if say := says[i%len(says)]; say < 2 {
				e = balancer.MarkSecure(e, say == 1)
			}
			set = append(set, e)
		}
		use, addresses, left := balancer.Choose(set)
		var used []string
		for _, e := range use {
			for _, a := range e.Addresses {
				used = append(used, a.Addr)
			}
		}
		if !slices.IsSorted(used) || !slices.Equal(used, addresses) || len(used) > balancer.MaxEndpoints || len(left) > balancer.MaxEndpoints {
			t.Fatalf("%d used, %d named, %d left out", len(used), len(addresses), len(left))
		}
		for _, a := range used {
			if plain[a] {
				t.Fatalf("%s is used", a)
			}
		}
		for _, l := range left {
			if want := map[bool]string{true: balancer.Plain, false: balancer.Beyond}[plain[l.Address]]; l.Why != want {
				t.Fatalf("%s is left out because %s", l.Address, l.Why)
			}
		}
		if total := size * each; len(used)+len(left) != total && len(left) < balancer.MaxEndpoints {
			t.Fatalf("%d used and %d left out of %d", len(used), len(left), total)
		}
		if room := balancer.MaxEndpoints - len(used); room >= each {
			for _, l := range left {
				if l.Why == balancer.Beyond {
					t.Fatalf("%s is left out with room for %d", l.Address, room)
				}
			}
		}
	})
}

// However often endpoints fail and heal, lines are limited, no line repeats the last one about its
// endpoint, and once all is quiet each endpoint's last line says how it is.
func TestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		j := balancer.NewJournal(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})))
		const n = 200
		name := func(i int) string { return fmt.Sprintf("e%03d", i) }
		for round := range 10 {
			for i := range n {
				if (round+i)%3 == 0 {
					j.Healed(name(i))
				} else {
					j.Rejected(name(i), "Expired", "expected", "somebody")
				}
			}
		}
		if got := strings.Count(out.String(), "\n"); got != balancer.LinesAtOnce {
			t.Fatalf("%d lines at once, want %d", got, balancer.LinesAtOnce)
		}
		for range 3 * n { // as attempts go on
			time.Sleep(balancer.LinePause)
			for i := range n {
				if i%2 == 0 {
					j.Rejected(name(i), "Expired", "expected", "somebody")
				} else {
					j.Healed(name(i))
				}
			}
		}
		last := make(map[string]string)
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, "endpoint=")
			e, _, _ := strings.Cut(rest, " ")
			if last[e] == line {
				t.Fatalf("twice: %s", line)
			}
			last[e] = line
		}
		for i := range n {
			line, bad := last[name(i)], i%2 == 0
			if bad && !strings.Contains(line, "rejected") || !bad && line != "" && !strings.Contains(line, "healed") {
				t.Errorf("of %s the last line is %q", name(i), line)
			}
		}
		before := out.Len()
		j.Resolved([]string{name(0)}, nil) // all others are gone
		j.Healed(name(2))
		if out.Len() != before {
			t.Errorf("about an endpoint that is no part of the set: %s", out.String()[before:])
		}
		left := []balancer.LeftOut{{Address: "p", Why: balancer.Plain}}
		for range 3 {
			time.Sleep(balancer.LinePause)
			j.Resolved([]string{name(0)}, left)
		}
		if got := strings.Count(out.String()[before:], "left out"); got != 1 {
			t.Errorf("%d lines about what is left out, want one: %s", got, out.String()[before:])
		}
		(*balancer.Journal)(nil).Rejected("e", "r")
	})
}

// Each endpoint has its turn, one that failed rests for longer each time, up to a bound, and is
// tried all the same when there is no other.
func TestOrder(t *testing.T) {
	var o balancer.Order
	set := []string{"a", "b", "c"}
	now := time.Now()
	first := make(map[string]int)
	for range 9 {
		got := o.Of(set, now)
		if sorted := slices.Sorted(slices.Values(got)); !slices.Equal(sorted, set) {
			t.Fatalf("%v is not the set", got)
		}
		first[got[0]]++
	}
	if first["a"] != 3 || first["b"] != 3 || first["c"] != 3 {
		t.Errorf("first in turn: %v", first)
	}
	pause := time.Second
	for range 10 {
		o.Failed("b", now)
		for range 3 {
			if got := o.Of(set, now.Add(pause-1)); got[2] != "b" {
				t.Fatalf("%v after it failed: %v", pause, got)
			}
		}
		rested := false
		for range 3 {
			rested = rested || o.Of(set, now.Add(pause))[0] == "b"
		}
		if !rested {
			t.Fatalf("it rests for longer than %v", pause)
		}
		pause = min(2*pause, balancer.MaxPause)
	}
	if got := o.Of([]string{"b"}, now); !slices.Equal(got, []string{"b"}) {
		t.Errorf("alone: %v", got)
	}
	o.Good("b")
	rested := false
	for range 3 {
		rested = rested || o.Of(set, now)[0] == "b"
	}
	if !rested {
		t.Error("it rests although it is good")
	}
}

// A record is bounded, whatever discovery says.
func TestRecordIsBounded(t *testing.T) {
	var r balancer.Record
	for i := range 3 * balancer.MaxEndpoints {
		r.Ended(fmt.Sprint(i), errors.New("down"))
		if n := len(r.Failures()); n > balancer.MaxEndpoints {
			t.Fatalf("%d are remembered", n)
		}
	}
	r = balancer.Record{}
	for i := range balancer.MaxEndpoints {
		r.Ended(fmt.Sprint(i), errors.New("down"))
	}
	r.Ended("0", errors.New("down again"))
	if n := len(r.Failures()); n != balancer.MaxEndpoints {
		t.Errorf("%d are remembered after one of them failed again", n)
	}
	r.Keep([]string{"7"})
	if n := len(r.Failures()); n != 1 {
		t.Errorf("%d are remembered of a set of one", n)
	}
}

// An address is one endpoint and a name is several.
func TestLookup(t *testing.T) {
	for addr, want := range map[string]string{"192.0.2.1:443": "192.0.2.1:443", "[2001:db8::1]:443": "[2001:db8::1]:443"} {
		if got, err := balancer.Lookup(t.Context(), addr); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	got, err := balancer.Lookup(t.Context(), "localhost:443")
	if err != nil || !slices.ContainsFunc(got, func(a string) bool { return a == "127.0.0.1:443" || a == "[::1]:443" }) {
		t.Errorf("localhost: %v, %v", got, err)
	}
	if _, err := balancer.Lookup(t.Context(), "no port"); err == nil {
		t.Error("without a port it has endpoints")
	}
}

// No endpoint is tried twice for one request, in however many dials.
func TestAttempt(t *testing.T) {
	var o balancer.Order
	a, ctx := balancer.NewAttempt(t.Context())
	tried := make(map[string]int)
	good := ""
	dial := func() (net.Conn, map[string]error) {
		return o.Connect(ctx, []string{"a", "b", "c"}, time.Now, func(_ context.Context, e string) (net.Conn, error) {
			tried[e]++
			if e == good {
				c, _ := net.Pipe()
				return c, nil
			}
			return nil, errors.New("down")
		})
	}
	good = "b"
	if conn, _ := dial(); conn == nil {
		t.Fatal("no connection to the one that is good")
	}
	if !a.First("b", errors.New("it refused")) || a.First("b", errors.New("it refused")) {
		t.Error("that b refused is not told from what was known")
	}
	if conn, failed := dial(); conn != nil || len(failed) != 3 {
		t.Errorf("%v, %v after all failed", conn, failed)
	}
	if tried["a"] != 1 || tried["b"] != 1 || tried["c"] != 1 {
		t.Errorf("they were tried %v times", tried)
	}
}
