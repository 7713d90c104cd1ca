package scheduler_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

func inventoryMachine(id string, state scheduler.State) scheduler.Machine {
	m := scheduler.Machine{MachineKey: scheduler.MachineKey{Provider: "p", ID: id}, Profile: "small", State: state, Price: 1}
	if state == scheduler.Configuring || state == scheduler.Configured || state == scheduler.Draining {
		m.Tenant = "red"
	}
	return m
}

func TestStates(t *testing.T) {
	for _, s := range scheduler.States() {
		m := inventoryMachine("m", s)
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// Each way in which a machine cannot be, and the field that is to blame.
func TestCheck(t *testing.T) {
	type change func(*scheduler.Machine)
	for _, tt := range []struct {
		name  string
		field string // "": it is right
		state scheduler.State
		change
	}{
		{"right", "", scheduler.Idle, func(*scheduler.Machine) {}},
		{"failed with a tenant", "", scheduler.Failed, func(m *scheduler.Machine) { m.Tenant = "red" }},
		{"failed without one", "", scheduler.Failed, func(*scheduler.Machine) {}},
		{"free of charge and sure to go", "", scheduler.Idle, func(m *scheduler.Machine) { m.Price, m.Interruption = 0, 1 }},
		{"no id", "id", scheduler.Idle, func(m *scheduler.Machine) { m.ID = "" }},
		{"a long id", "id", scheduler.Idle, func(m *scheduler.Machine) { m.ID = strings.Repeat("x", 129) }},
		{"a blank in the id", "id", scheduler.Idle, func(m *scheduler.Machine) { m.ID = "a b" }},
		{"a control character", "id", scheduler.Idle, func(m *scheduler.Machine) { m.ID = "a\n" }},
		{"no ASCII", "profile", scheduler.Idle, func(m *scheduler.Machine) { m.Profile = "größe" }},
		{"no profile", "profile", scheduler.Idle, func(m *scheduler.Machine) { m.Profile = "" }},
		{"a long domain", "domain", scheduler.Idle, func(m *scheduler.Machine) { m.Domain = strings.Repeat("x", 129) }},
		{"a long operation", "operation", scheduler.Idle, func(m *scheduler.Machine) { m.Operation = strings.Repeat("x", 129) }},
		{"no state", "state", "", func(*scheduler.Machine) {}},
		{"an unknown state", "state", "broken", func(*scheduler.Machine) {}},
		{"configured for nobody", "tenant", scheduler.Configured, func(m *scheduler.Machine) { m.Tenant = "" }},
		{"configuring for nobody", "tenant", scheduler.Configuring, func(m *scheduler.Machine) { m.Tenant = "" }},
		{"draining of nobody", "tenant", scheduler.Draining, func(m *scheduler.Machine) { m.Tenant = "" }},
		{"idle of somebody", "tenant", scheduler.Idle, func(m *scheduler.Machine) { m.Tenant = "red" }},
		{"speculative of somebody", "tenant", scheduler.Speculative, func(m *scheduler.Machine) { m.Tenant = "red" }},
		{"a bad tenant", "tenant", scheduler.Configured, func(m *scheduler.Machine) { m.Tenant = "r\x00d" }},
		{"a price that is no number", "price", scheduler.Idle, func(m *scheduler.Machine) { m.Price = math.NaN() }},
		{"an infinite price", "price", scheduler.Idle, func(m *scheduler.Machine) { m.Price = math.Inf(1) }},
		{"a negative price", "price", scheduler.Idle, func(m *scheduler.Machine) { m.Price = -0.01 }},
		{"a probability above 1", "interruption", scheduler.Idle, func(m *scheduler.Machine) { m.Interruption = 1.01 }},
		{"a negative one", "interruption", scheduler.Idle, func(m *scheduler.Machine) { m.Interruption = -1 }},
		{"one that is no number", "interruption", scheduler.Idle, func(m *scheduler.Machine) { m.Interruption = math.NaN() }},
		{"a long error", "last error", scheduler.Failed, func(m *scheduler.Machine) { m.LastError = strings.Repeat("x", 1025) }},
	} {
		m := inventoryMachine("m", tt.state)
		tt.change(&m)
		wanted(t, tt.name, m.Check(), tt.field)
	}
}

// wanted fails unless err blames a field; "" wants none.
func wanted(t *testing.T, name string, err error, field string) {
	t.Helper()
	var invalid *scheduler.InvalidError
	switch {
	case field == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case field != "" && (!errors.As(err, &invalid) || !errors.Is(err, scheduler.ErrInvalid) || invalid.Field != field):
		t.Errorf("%s: %v, want one about the %s", name, err, field)
	}
}

// A listing is taken whole or not at all.
func TestListingsThatCannotBe(t *testing.T) {
	idle := func(ids ...string) (out []scheduler.Machine) {
		for _, id := range ids {
			out = append(out, inventoryMachine(id, scheduler.Idle))
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		listing scheduler.Listing
		field   string
	}{
		{"an id twice", scheduler.Listing{Full: true, Machines: idle("a", "b", "a")}, "id"},
		{"gone and there", scheduler.Listing{Machines: idle("a"), Removed: []string{"a"}}, "id"},
		{"gone twice", scheduler.Listing{Removed: []string{"a", "a"}}, "id"},
		{"gone without a name", scheduler.Listing{Removed: []string{""}}, "id"},
		{"all, and some gone", scheduler.Listing{Full: true, Removed: []string{"a"}}, "machines"},
		{"one that cannot be", scheduler.Listing{Full: true, Machines: append(idle("b"), inventoryMachine("c", "broken"))}, "state"},
		{"of another provider", scheduler.Listing{Full: true, Machines: []scheduler.Machine{{MachineKey: scheduler.MachineKey{Provider: "q", ID: "b"}, Profile: "small", State: scheduler.Idle}}}, "provider"},
		{"a long revision", scheduler.Listing{Full: true, Revision: strings.Repeat("x", 1025)}, "revision"},
		{"too many", scheduler.Listing{Full: true, Machines: make([]scheduler.Machine, scheduler.MaxMachines+1)}, "machines"},
	} {
		var v scheduler.Inventory
		if _, err := v.Reconcile("p", scheduler.Listing{Full: true, Revision: "1", Machines: idle("a")}); err != nil {
			t.Fatal(err)
		}
		v.Begin()
		_, err := v.Reconcile("p", tt.listing)
		wanted(t, tt.name, err, tt.field)
		if _, silent := v.Silent()["p"]; !silent {
			t.Errorf("%s: the provider counts as heard", tt.name)
		}
		if got := slices.Collect(v.All()); len(got) != 1 || got[0].ID != "a" || v.Len() != 1 {
			t.Errorf("%s: %v are known afterwards", tt.name, got)
		}
		if v.Revision("p") != "" {
			t.Errorf("%s: the next question goes on from what was not taken", tt.name)
		}
	}
	var v scheduler.Inventory
	_, err := v.Reconcile("p", scheduler.Listing{Machines: idle("a")})
	wanted(t, "an increment to nothing", err, "machines")
	_, err = v.Reconcile("a b", scheduler.Listing{Full: true})
	wanted(t, "no name", err, "provider")
}

// A provider that lists nothing by mistake has to say so three times.
func TestListingThatDropsAlmostEverything(t *testing.T) {
	var all []scheduler.Machine
	for i := range 20 {
		all = append(all, inventoryMachine(fmt.Sprint(i), scheduler.Configured))
	}
	v := scheduler.Inventory{Quarantine: true}
	full := func(n int) error {
		v.Begin()
		_, err := v.Reconcile("p", scheduler.Listing{Full: true, Revision: "r", Machines: slices.Clone(all[:n])})
		return err
	}
	for i, step := range []struct {
		list, known int
		held        bool
	}{{20, 20, false}, {0, 20, true}, {1, 20, true}, {20, 20, false}, {0, 20, true}, {0, 20, true}, {0, 0, false}, {20, 20, false}, {2, 2, false}} {
		err := full(step.list)
		if errors.Is(err, scheduler.ErrHeld) != step.held || v.Len() != step.known {
			t.Fatalf("step %d: %d listed: %v, and %d are known, want %d", i, step.list, err, v.Len(), step.known)
		}
		if _, silent := v.Silent()["p"]; silent != step.held {
			t.Fatalf("step %d: silent: %v", i, silent)
		}
	}
}

// After any listings, in whole or by increments, the inventory is what a plain map of the
// listings has.
func TestReconcileIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v scheduler.Inventory
		model := make(map[scheduler.MachineKey]scheduler.Machine)
		heard := make(map[string]bool)
		drawn := func(t *rapid.T, provider string) (out []scheduler.Machine) {
			for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 8, rapid.ID[int]).Draw(t, "ids") {
				m := inventoryMachine(fmt.Sprint(id), rapid.SampledFrom(scheduler.States()).Draw(t, "state"))
				m.Provider = provider
				out = append(out, m)
			}
			return out
		}
		providers := rapid.SampledFrom([]string{"p", "q"})
		t.Repeat(map[string]func(*rapid.T){
			"full": func(t *rapid.T) {
				p := providers.Draw(t, "provider")
				machines := drawn(t, p)
				if _, err := v.Reconcile(p, scheduler.Listing{Full: true, Machines: slices.Clone(machines)}); err != nil {
					t.Fatal(err)
				}
				heard[p] = true
				maps.DeleteFunc(model, func(k scheduler.MachineKey, _ scheduler.Machine) bool { return k.Provider == p })
				for _, m := range machines {
					model[m.MachineKey] = m
				}
			},
			"increment": func(t *rapid.T) {
				p := providers.Draw(t, "provider")
				l := scheduler.Listing{Machines: drawn(t, p)}
				for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 3, rapid.ID[int]).Draw(t, "gone") {
					if !slices.ContainsFunc(l.Machines, func(m scheduler.Machine) bool { return m.ID == fmt.Sprint(id) }) {
						l.Removed = append(l.Removed, fmt.Sprint(id))
					}
				}
				was := maps.Clone(model)
				changes, err := v.Reconcile(p, scheduler.Listing{Machines: slices.Clone(l.Machines), Removed: l.Removed})
				if !heard[p] {
					if err == nil {
						t.Fatal("an increment to nothing was taken")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range l.Machines {
					model[m.MachineKey] = m
				}
				gone := 0
				for _, id := range l.Removed {
					if _, there := was[scheduler.MachineKey{Provider: p, ID: id}]; there {
						gone++
					}
					delete(model, scheduler.MachineKey{Provider: p, ID: id})
				}
				if len(changes.Vanished) != gone || len(model) != len(was)+changes.Added-gone {
					t.Fatalf("%+v, and %d became %d", changes, len(was), len(model))
				}
			},
			"": func(t *rapid.T) {
				got := make(map[scheduler.MachineKey]scheduler.Machine)
				last := scheduler.MachineKey{}
				for m := range v.All() {
					if m.MachineKey.Compare(last) <= 0 || v.Get(m.MachineKey) != m {
						t.Fatalf("%v after %v", m.MachineKey, last)
					}
					last = m.MachineKey
					got[m.MachineKey] = *m
				}
				if !maps.Equal(got, model) || v.Len() != len(model) {
					t.Fatalf("known are %v, want %v", got, model)
				}
			},
		})
	})
}

// An increment that drops almost everything is held as a listing is, and full ones confirm
// it: a provider whose own list fails without an error tells of it as machines that are gone.
func TestIncrementIsHeld(t *testing.T) {
	t.Parallel()
	var all []scheduler.Machine
	var gone []string
	for i := range 20 {
		id := fmt.Sprint("m", i)
		all = append(all, scheduler.Machine{MachineKey: scheduler.MachineKey{ID: id}, Profile: "web", State: scheduler.Idle})
		gone = append(gone, id)
	}
	v := scheduler.Inventory{Quarantine: true}
	for i, step := range []struct {
		l     scheduler.Listing
		known int
		held  bool
	}{
		{scheduler.Listing{Full: true, Revision: "1", Machines: slices.Clone(all)}, 20, false},
		{scheduler.Listing{Revision: "2", Removed: gone[:1]}, 19, false},
		{scheduler.Listing{Revision: "3", Removed: gone[1:]}, 19, true},
		{scheduler.Listing{Full: true, Revision: "4"}, 19, true},
		{scheduler.Listing{Full: true, Revision: "5"}, 0, false},
	} {
		v.Begin()
		_, err := v.Reconcile("p", step.l)
		if errors.Is(err, scheduler.ErrHeld) != step.held || v.Len() != step.known || (v.Revision("p") == "") != step.held {
			t.Errorf("step %d: %v, %d machines, revision %q; want held %v and %d", i, err, v.Len(), v.Revision("p"), step.held,
				step.known)
		}
	}
}

// Another provider under a name confirms nothing of what the one before said, and is asked for all.
func TestRelist(t *testing.T) {
	t.Parallel()
	v := scheduler.Inventory{Quarantine: true}
	all := scheduler.Listing{Full: true, Revision: "1"}
	for i := range 20 {
		all.Machines = append(all.Machines, scheduler.Machine{MachineKey: scheduler.MachineKey{ID: fmt.Sprint("m", i)}, Profile: "small",
			State: scheduler.Idle})
	}
	if _, err := v.Reconcile("p", all); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := v.Reconcile("p", scheduler.Listing{Full: true}); !errors.Is(err, scheduler.ErrHeld) {
			t.Fatal(err)
		}
	}
	v.Relist("p")
	v.Relist("nobody")
	if v.Revision("p") != "" {
		t.Errorf("it is asked for what changed since %q", v.Revision("p"))
	}
	if _, err := v.Reconcile("p", scheduler.Listing{Full: true}); !errors.Is(err, scheduler.ErrHeld) || v.Len() != 20 {
		t.Errorf("what the one before said confirms it: %v, %d machines", err, v.Len())
	}
}
