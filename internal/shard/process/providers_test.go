// These tests are inside the package: what is dialed, and what is closed, shows at no edge of it.
package process

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/provider"
)

// registered is a shard's providers, and what it was told.
type registered struct {
	*providers
	state   quota.FollowerState
	dials   []string
	changed []string
	log     strings.Builder
}

func newRegistered(t *testing.T, flags ...quota.Provider) *registered {
	t.Helper()
	r := &registered{}
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()})
	if err != nil {
		t.Fatal(err)
	}
	r.providers = &providers{log: slog.New(slog.NewTextHandler(&r.log, nil)), told: func() quota.FollowerState { return r.state },
		flags: make(map[string]quota.Provider),
		changed: func(name string) {
			r.receiving() // nothing is held meanwhile
			r.changed = append(r.changed, name)
		},
		dial: func(p quota.Provider) (*provider.Client, error) {
			r.dials = append(r.dials, p.Name+"="+p.Address)
			return provider.Dial(provider.ClientConfig{Target: p.Address, Sender: sender, Insecure: true})
		}}
	for _, f := range flags {
		r.flags[f.Name] = f
	}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// tell says what the newest plan is, and returns the names that the shard acts at then.
func (r *registered) tell(version uint64, all ...quota.Provider) []string {
	r.state = quota.FollowerState{Known: true, Version: version, Plan: quota.Plan{Providers: all}}
	now := slices.Sorted(maps.Keys(r.now()))
	if promised := slices.Sorted(maps.Keys(r.receiving())); !slices.Equal(now, promised) {
		return append(now, promised...)
	}
	return now
}

func at(name, address string) quota.Provider {
	return quota.Provider{Name: name, Address: address}
}

// Nothing is acted at before the plan is known, not at the providers of the flags either: its quotas
// are bounds. Then the flags and the plan are, and where both name one the flag.
func TestProvidersOfFlagsAndPlan(t *testing.T) {
	r := newRegistered(t, at("a", "127.0.0.1:1"))
	if got := r.now(); len(got) != 0 {
		t.Errorf("before the plan is known: %v", got)
	}
	if got := r.tell(0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("a plan of nothing: %v", got)
	}
	if got := r.tell(1, at("a", "127.0.0.1:9"), at("b", "127.0.0.1:2")); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v", got)
	}
	if want := []string{"a=127.0.0.1:1", "b=127.0.0.1:2"}; !slices.Equal(r.dials, want) {
		t.Errorf("dialed %v, want %v", r.dials, want)
	}
	if !strings.Contains(r.log.String(), "the flag of this shard counts") {
		t.Error("nobody is told that the registered one does not count")
	}
	for version := range uint64(3) {
		r.tell(2+version, at("a", "127.0.0.1:9"), at("b", "127.0.0.1:2"))
	}
	if n := strings.Count(r.log.String(), "the flag of this shard counts"); n != 1 {
		t.Errorf("people are told so %d times", n)
	}
	if got := r.tell(9); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after b is not registered any more: %v", got)
	}
}

// A provider that stays as it is keeps its connection; one that changed, in its address or its
// price, is another one, and the promises of the one before are forgotten. The connection of what
// is gone is closed when the next cycle begins, and not before.
func TestProvidersChange(t *testing.T) {
	r := newRegistered(t)
	price := 2.5
	priced := quota.Provider{Name: "c", Address: "127.0.0.1:3", Price: &price}
	r.tell(1, at("a", "127.0.0.1:1"), at("b", "127.0.0.1:2"), at("c", "127.0.0.1:3"))
	before := r.now()
	closed := r.dialed["b"].client
	if r.state.Version = 2; before["a"] != r.now()["a"] {
		t.Error("a version that changes nothing makes another provider")
	}
	r.state.Plan = quota.Plan{}
	if _, err := closed.List(t.Context(), ""); isClosed(err) {
		t.Error("it is closed before the cycle begins")
	}
	if got := r.tell(3, at("a", "127.0.0.1:1"), at("b", "127.0.0.1:20"), priced); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%v", got)
	}
	after := r.now()
	if after["a"] != before["a"] || after["b"] == before["b"] || after["c"] == before["c"] {
		t.Error("the one that stays is another one, or one that changed is the same")
	}
	slices.Sort(r.changed)
	if !slices.Equal(r.changed, []string{"b", "c"}) {
		t.Errorf("forgotten: %v", r.changed)
	}
	if _, err := closed.List(t.Context(), ""); !isClosed(err) {
		t.Errorf("the one that is gone is not closed: %v", err)
	}
	if r.changed = nil; len(r.tell(4)) != 0 || len(r.changed) != 3 {
		t.Errorf("after all are gone: forgotten %v", r.changed)
	}
}

func isClosed(err error) bool { return err != nil && strings.Contains(err.Error(), "closing") }

// A registered provider that cannot be used takes no other one along, and is told of. One of the
// flags ends the start.
func TestProviderCannotBeUsed(t *testing.T) {
	r := newRegistered(t)
	if got := r.tell(1, at("a", "10.0.0.1:1"), at("b", "127.0.0.1:2")); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v", got)
	}
	if !strings.Contains(r.log.String(), "provider=a") {
		t.Error("nobody is told")
	}
	for i := range maxFlags + 1 {
		r.flags[fmt.Sprint("p", i)] = at("p", "127.0.0.1:1")
	}
	if err := r.open(); err == nil || !strings.Contains(err.Error(), "limit 824") {
		t.Errorf("a start with %d providers: %v", len(r.flags), err)
	}
	clear(r.flags)
	r.flags["a"] = at("a", "10.0.0.1:1")
	if err := r.open(); !errors.Is(err, internalprovider.ErrNotLoopback) {
		t.Errorf("a start with such a flag: %v", err)
	}
}

// A cycle goes by one plan: its quotas are those of the plan that its providers are of.
func TestOnePlanForACycle(t *testing.T) {
	r := newRegistered(t)
	with := func(version uint64, machines int) {
		r.state = quota.FollowerState{Known: true, Version: version, Plan: quota.Plan{
			Quotas: []quota.Quota{{Tenant: "acme", Profile: "web", Machines: machines}}}}
	}
	with(1, 3)
	r.now()
	with(2, 9)
	if got := r.plan(); len(got.Quotas) != 1 || got.Quotas[0].Machines != 3 {
		t.Errorf("in the middle of a cycle: %+v", got)
	}
	r.now()
	if got := r.plan(); got.Quotas[0].Machines != 9 {
		t.Errorf("in the next one: %+v", got)
	}
}

// Of two quotas of one name the lower one counts, whichever side says it.
func TestQuotasOfFlagsAndPlan(t *testing.T) {
	of := func(profile string) scheduler.Quota { return scheduler.Quota{Tenant: "acme", Profile: profile} }
	flags := map[scheduler.Quota]int{of("a"): 5, of("b"): 5, of("c"): 5}
	got := quotas(flags, quota.Plan{Quotas: []quota.Quota{{Tenant: "acme", Profile: "b", Machines: 0},
		{Tenant: "acme", Profile: "c", Machines: 9}, {Tenant: "acme", Profile: "d", Machines: 7}}})
	if want := map[scheduler.Quota]int{of("a"): 5, of("b"): 0, of("c"): 5, of("d"): 7}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if len(flags) != 3 || flags[of("b")] != 5 {
		t.Errorf("what the flags say was changed: %v", flags)
	}
}

func TestPlanAge(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		heard time.Time
		want  float64
	}{{time.Time{}, -1}, {now.Add(-3 * time.Second), 3}, {now.Add(time.Hour), 0}} {
		if got := told(func() quota.FollowerState { return quota.FollowerState{Heard: tc.heard} }).age(now); got != tc.want {
			t.Errorf("heard %v: %v, want %v", tc.heard, got, tc.want)
		}
	}
}
