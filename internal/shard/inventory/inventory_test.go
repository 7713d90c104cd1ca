package inventory_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/inventory"
)

func machine(id string, state inventory.State) inventory.Machine {
	m := inventory.Machine{Key: inventory.Key{Provider: "p", ID: id}, Profile: "small", State: state, Price: 1}
	if state == inventory.Configuring || state == inventory.Configured || state == inventory.Draining {
		m.Tenant = "red"
	}
	return m
}

func TestStates(t *testing.T) {
	for _, s := range inventory.States() {
		m := machine("m", s)
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// Each way in which a machine cannot be, and the field that is to blame.
func TestCheck(t *testing.T) {
	type change func(*inventory.Machine)
	for _, tt := range []struct {
		name  string
		field string // "": it is right
		state inventory.State
		change
	}{
		{"right", "", inventory.Idle, func(*inventory.Machine) {}},
		{"failed with a tenant", "", inventory.Failed, func(m *inventory.Machine) { m.Tenant = "red" }},
		{"failed without one", "", inventory.Failed, func(*inventory.Machine) {}},
		{"free of charge and sure to go", "", inventory.Idle, func(m *inventory.Machine) { m.Price, m.Interruption = 0, 1 }},
		{"no id", "id", inventory.Idle, func(m *inventory.Machine) { m.ID = "" }},
		{"a long id", "id", inventory.Idle, func(m *inventory.Machine) { m.ID = strings.Repeat("x", 129) }},
		{"a blank in the id", "id", inventory.Idle, func(m *inventory.Machine) { m.ID = "a b" }},
		{"a control character", "id", inventory.Idle, func(m *inventory.Machine) { m.ID = "a\n" }},
		{"no ASCII", "profile", inventory.Idle, func(m *inventory.Machine) { m.Profile = "größe" }},
		{"no profile", "profile", inventory.Idle, func(m *inventory.Machine) { m.Profile = "" }},
		{"a long domain", "domain", inventory.Idle, func(m *inventory.Machine) { m.Domain = strings.Repeat("x", 129) }},
		{"a long operation", "operation", inventory.Idle, func(m *inventory.Machine) { m.Operation = strings.Repeat("x", 129) }},
		{"no state", "state", "", func(*inventory.Machine) {}},
		{"an unknown state", "state", "broken", func(*inventory.Machine) {}},
		{"configured for nobody", "tenant", inventory.Configured, func(m *inventory.Machine) { m.Tenant = "" }},
		{"configuring for nobody", "tenant", inventory.Configuring, func(m *inventory.Machine) { m.Tenant = "" }},
		{"draining of nobody", "tenant", inventory.Draining, func(m *inventory.Machine) { m.Tenant = "" }},
		{"idle of somebody", "tenant", inventory.Idle, func(m *inventory.Machine) { m.Tenant = "red" }},
		{"speculative of somebody", "tenant", inventory.Speculative, func(m *inventory.Machine) { m.Tenant = "red" }},
		{"a bad tenant", "tenant", inventory.Configured, func(m *inventory.Machine) { m.Tenant = "r\x00d" }},
		{"a price that is no number", "price", inventory.Idle, func(m *inventory.Machine) { m.Price = math.NaN() }},
		{"an infinite price", "price", inventory.Idle, func(m *inventory.Machine) { m.Price = math.Inf(1) }},
		{"a negative price", "price", inventory.Idle, func(m *inventory.Machine) { m.Price = -0.01 }},
		{"a probability above 1", "interruption", inventory.Idle, func(m *inventory.Machine) { m.Interruption = 1.01 }},
		{"a negative one", "interruption", inventory.Idle, func(m *inventory.Machine) { m.Interruption = -1 }},
		{"one that is no number", "interruption", inventory.Idle, func(m *inventory.Machine) { m.Interruption = math.NaN() }},
		{"a long error", "last error", inventory.Failed, func(m *inventory.Machine) { m.LastError = strings.Repeat("x", 1025) }},
	} {
		m := machine("m", tt.state)
		tt.change(&m)
		wanted(t, tt.name, m.Check(), tt.field)
	}
}

// wanted fails unless err blames a field; "" wants none.
func wanted(t *testing.T, name string, err error, field string) {
	t.Helper()
	var invalid *inventory.InvalidError
	switch {
	case field == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case field != "" && (!errors.As(err, &invalid) || !errors.Is(err, inventory.ErrInvalid) || invalid.Field != field):
		t.Errorf("%s: %v, want one about the %s", name, err, field)
	}
}

// A listing is taken whole or not at all.
func TestListingsThatCannotBe(t *testing.T) {
	idle := func(ids ...string) (out []inventory.Machine) {
		for _, id := range ids {
			out = append(out, machine(id, inventory.Idle))
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		listing inventory.Listing
		field   string
	}{
		{"an id twice", inventory.Listing{Full: true, Machines: idle("a", "b", "a")}, "id"},
		{"gone and there", inventory.Listing{Machines: idle("a"), Removed: []string{"a"}}, "id"},
		{"gone twice", inventory.Listing{Removed: []string{"a", "a"}}, "id"},
		{"gone without a name", inventory.Listing{Removed: []string{""}}, "id"},
		{"all, and some gone", inventory.Listing{Full: true, Removed: []string{"a"}}, "machines"},
		{"one that cannot be", inventory.Listing{Full: true, Machines: append(idle("b"), machine("c", "broken"))}, "state"},
		{"of another provider", inventory.Listing{Full: true, Machines: []inventory.Machine{{Key: inventory.Key{Provider: "q", ID: "b"}, Profile: "small", State: inventory.Idle}}}, "provider"},
		{"a long revision", inventory.Listing{Full: true, Revision: strings.Repeat("x", 1025)}, "revision"},
		{"too many", inventory.Listing{Full: true, Machines: make([]inventory.Machine, inventory.MaxMachines+1)}, "machines"},
	} {
		var v inventory.Inventory
		if _, err := v.Reconcile("p", inventory.Listing{Full: true, Revision: "1", Machines: idle("a")}); err != nil {
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
	var v inventory.Inventory
	_, err := v.Reconcile("p", inventory.Listing{Machines: idle("a")})
	wanted(t, "an increment to nothing", err, "machines")
	_, err = v.Reconcile("a b", inventory.Listing{Full: true})
	wanted(t, "no name", err, "provider")
}

// A provider that lists nothing by mistake has to say so three times.
func TestListingThatDropsAlmostEverything(t *testing.T) {
	var all []inventory.Machine
	for i := range 20 {
		all = append(all, machine(fmt.Sprint(i), inventory.Configured))
	}
	v := inventory.Inventory{Quarantine: true}
	full := func(n int) error {
		v.Begin()
		_, err := v.Reconcile("p", inventory.Listing{Full: true, Revision: "r", Machines: slices.Clone(all[:n])})
		return err
	}
	for i, step := range []struct {
		list, known int
		held        bool
	}{{20, 20, false}, {0, 20, true}, {1, 20, true}, {20, 20, false}, {0, 20, true}, {0, 20, true}, {0, 0, false}, {20, 20, false}, {2, 2, false}} {
		err := full(step.list)
		if errors.Is(err, inventory.ErrHeld) != step.held || v.Len() != step.known {
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
		var v inventory.Inventory
		model := make(map[inventory.Key]inventory.Machine)
		heard := make(map[string]bool)
		drawn := func(t *rapid.T, provider string) (out []inventory.Machine) {
			for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 8, rapid.ID[int]).Draw(t, "ids") {
				m := machine(fmt.Sprint(id), rapid.SampledFrom(inventory.States()).Draw(t, "state"))
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
				if _, err := v.Reconcile(p, inventory.Listing{Full: true, Machines: slices.Clone(machines)}); err != nil {
					t.Fatal(err)
				}
				heard[p] = true
				maps.DeleteFunc(model, func(k inventory.Key, _ inventory.Machine) bool { return k.Provider == p })
				for _, m := range machines {
					model[m.Key] = m
				}
			},
			"increment": func(t *rapid.T) {
				p := providers.Draw(t, "provider")
				l := inventory.Listing{Machines: drawn(t, p)}
				for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, 8), 0, 3, rapid.ID[int]).Draw(t, "gone") {
					if !slices.ContainsFunc(l.Machines, func(m inventory.Machine) bool { return m.ID == fmt.Sprint(id) }) {
						l.Removed = append(l.Removed, fmt.Sprint(id))
					}
				}
				was := maps.Clone(model)
				changes, err := v.Reconcile(p, inventory.Listing{Machines: slices.Clone(l.Machines), Removed: l.Removed})
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
					model[m.Key] = m
				}
				gone := 0
				for _, id := range l.Removed {
					if _, there := was[inventory.Key{Provider: p, ID: id}]; there {
						gone++
					}
					delete(model, inventory.Key{Provider: p, ID: id})
				}
				if len(changes.Vanished) != gone || len(model) != len(was)+changes.Added-gone {
					t.Fatalf("%+v, and %d became %d", changes, len(was), len(model))
				}
			},
			"": func(t *rapid.T) {
				got := make(map[inventory.Key]inventory.Machine)
				last := inventory.Key{}
				for m := range v.All() {
					if m.Key.Compare(last) <= 0 || v.Get(m.Key) != m {
						t.Fatalf("%v after %v", m.Key, last)
					}
					last = m.Key
					got[m.Key] = *m
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
	var all []inventory.Machine
	var gone []string
	for i := range 20 {
		id := fmt.Sprint("m", i)
		all = append(all, inventory.Machine{Key: inventory.Key{ID: id}, Profile: "web", State: inventory.Idle})
		gone = append(gone, id)
	}
	v := inventory.Inventory{Quarantine: true}
	for i, step := range []struct {
		l     inventory.Listing
		known int
		held  bool
	}{
		{inventory.Listing{Full: true, Revision: "1", Machines: slices.Clone(all)}, 20, false},
		{inventory.Listing{Revision: "2", Removed: gone[:1]}, 19, false},
		{inventory.Listing{Revision: "3", Removed: gone[1:]}, 19, true},
		{inventory.Listing{Full: true, Revision: "4"}, 19, true},
		{inventory.Listing{Full: true, Revision: "5"}, 0, false},
	} {
		v.Begin()
		_, err := v.Reconcile("p", step.l)
		if errors.Is(err, inventory.ErrHeld) != step.held || v.Len() != step.known || (v.Revision("p") == "") != step.held {
			t.Errorf("step %d: %v, %d machines, revision %q; want held %v and %d", i, err, v.Len(), v.Revision("p"), step.held,
				step.known)
		}
	}
}

// Another provider under a name confirms nothing of what the one before said, and is asked for all.
func TestRelist(t *testing.T) {
	t.Parallel()
	v := inventory.Inventory{Quarantine: true}
	all := inventory.Listing{Full: true, Revision: "1"}
	for i := range 20 {
		all.Machines = append(all.Machines, inventory.Machine{Key: inventory.Key{ID: fmt.Sprint("m", i)}, Profile: "small",
			State: inventory.Idle})
	}
	if _, err := v.Reconcile("p", all); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := v.Reconcile("p", inventory.Listing{Full: true}); !errors.Is(err, inventory.ErrHeld) {
			t.Fatal(err)
		}
	}
	v.Relist("p")
	v.Relist("nobody")
	if v.Revision("p") != "" {
		t.Errorf("it is asked for what changed since %q", v.Revision("p"))
	}
	if _, err := v.Reconcile("p", inventory.Listing{Full: true}); !errors.Is(err, inventory.ErrHeld) || v.Len() != 20 {
		t.Errorf("what the one before said confirms it: %v, %d machines", err, v.Len())
	}
}
