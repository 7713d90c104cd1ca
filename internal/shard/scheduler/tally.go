package scheduler

import (
	"cmp"
	"slices"
)

// Tally is what a tenant has of one profile.
type Tally struct {
	Profile                                   string
	Configuring, Configured, Draining, Failed int
	// Working are those that are configured or about to be, by the priority that they were
	// configured for.
	Working map[int32]int
}

// Tallies counts machines by tenant and profile.
type Tallies struct {
	of map[profileOf]*Tally
}

type profileOf struct{ tenant, profile string }

// NewTallies returns tallies of nothing.
func NewTallies() *Tallies { return &Tallies{of: make(map[profileOf]*Tally)} }

// Add counts a machine; one that is nobody's does not count.
func (t *Tallies) Add(m *Machine) {
	if m.Tenant == "" {
		return
	}
	k := profileOf{m.Tenant, m.Profile}
	of := t.of[k]
	if of == nil {
		of = &Tally{Profile: m.Profile, Working: make(map[int32]int)}
		t.of[k] = of
	}
	switch m.State {
	case Configuring:
		of.Configuring++
		of.Working[m.Priority]++
	case Configured:
		of.Configured++
		of.Working[m.Priority]++
	case Draining:
		of.Draining++
	case Failed:
		of.Failed++
	}
}

// ByTenant returns the tallies of each tenant, by the profiles' names.
func (t *Tallies) ByTenant() map[string][]*Tally {
	out := make(map[string][]*Tally)
	for k, of := range t.of {
		out[k.tenant] = append(out[k.tenant], of)
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b *Tally) int { return cmp.Compare(a.Profile, b.Profile) })
	}
	return out
}
