package scheduler

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/fealty-io/fealty/internal/quarantine"
)

// MaxProviders bounds the providers of a shard.
const MaxProviders = 1024

// Listing is what a provider answers: all of its machines, or what changed since a
// revision that it gave before.
type Listing struct {
	// Full: Machines are all there are, and what is not among them is gone.
	Full bool
	// Revision is what the next question names; the provider alone knows what it means.
	Revision string
	// Machines are those there are, or those that are new or changed. Their Provider is "" or
	// that of the question.
	Machines []Machine
	// Removed are the ids of machines that are gone, of an increment alone.
	Removed []string
}

// Changes is what a listing changed.
type Changes struct {
	Added, Changed int
	Vanished       []MachineKey // sorted
}

// ErrHeld is matched by the refusal of a full listing that keeps less than a tenth of the
// machines that are known, until three in a row say so: a provider that answers with
// nothing by mistake would otherwise have the whole fleet bought again.
var ErrHeld = errors.New("held until it is confirmed")

// Inventory is what is known of the machines of all providers. It belongs to one
// goroutine. The zero value knows nothing.
type Inventory struct {
	// Quarantine holds full listings that drop almost everything: see [ErrHeld].
	Quarantine bool

	providers map[string]*provider
	count     int
}

type provider struct {
	machines map[string]*Machine
	revision string
	guard    quarantine.Guard
	heard    bool // in this cycle
	sorted   []*Machine
}

// Revision returns what the next question to a provider names; "" asks for all.
func (v *Inventory) Revision(name string) string {
	if p := v.providers[name]; p != nil {
		return p.revision
	}
	return ""
}

// Relist says that another provider has the name of one. The next question asks it for all
// machines; what is known stands, and what the one before said so far confirms nothing.
func (v *Inventory) Relist(name string) {
	if p := v.providers[name]; p != nil {
		p.revision, p.guard = "", quarantine.Guard{}
	}
}

// Retain forgets the providers that keep does not name, with their machines.
func (v *Inventory) Retain(keep func(name string) bool) {
	for name, p := range v.providers {
		if !keep(name) {
			v.count -= len(p.machines)
			delete(v.providers, name)
		}
	}
}

// Begin begins a cycle: every provider is silent until its listing is taken.
func (v *Inventory) Begin() {
	for _, p := range v.providers {
		p.heard = false
	}
}

// Silent returns the providers that were not heard since [Inventory.Begin].
func (v *Inventory) Silent() map[string]struct{} {
	out := make(map[string]struct{})
	for name, p := range v.providers {
		if !p.heard {
			out[name] = struct{}{}
		}
	}
	return out
}

// Reconcile takes the listing of a provider, whole or not at all. The listing belongs to
// the inventory afterwards.
//
// Errors: an [*InvalidError], or one that matches [ErrHeld], and nothing of it was taken:
// the provider stays silent. After either the next question asks for all machines.
func (v *Inventory) Reconcile(name string, l Listing) (Changes, error) {
	p := v.providers[name]
	if err := check(name, &l, p, len(v.providers)); err != nil {
		if p != nil {
			p.revision = ""
		}
		return Changes{}, err
	}
	known := p
	if p == nil {
		p = &provider{machines: make(map[string]*Machine)}
	}
	var changes Changes
	kept := 0
	if l.Full {
		there := make(map[string]struct{}, len(l.Machines))
		for i := range l.Machines {
			there[l.Machines[i].ID] = struct{}{}
			if p.machines[l.Machines[i].ID] != nil {
				kept++
			}
		}
		for id := range p.machines {
			if _, ok := there[id]; !ok {
				changes.Vanished = append(changes.Vanished, MachineKey{name, id})
			}
		}
	}
	for _, id := range l.Removed {
		if p.machines[id] != nil {
			changes.Vanished = append(changes.Vanished, MachineKey{name, id})
		}
	}
	slices.SortFunc(changes.Vanished, MachineKey.Compare)
	if !l.Full {
		kept = len(p.machines) - len(changes.Vanished)
	}
	// A provider whose list fails without an error tells of it as machines that are gone, too.
	if (l.Full || len(changes.Vanished) > 0) && v.Quarantine &&
		!p.guard.Judge(quarantine.Drops(len(p.machines), kept)) {
		p.revision = ""
		return Changes{}, fmt.Errorf("scheduler: provider %q lists %d of the %d machines that are known: it "+
			"has to say so %d times in a row (%d so far), and nothing is decided about them until then: %w", name,
			kept, len(p.machines), quarantine.Confirmations, p.guard.Held(), ErrHeld)
	}
	if known == nil {
		if v.providers == nil {
			v.providers = make(map[string]*provider)
		}
		v.providers[name] = p
	}
	for _, k := range changes.Vanished {
		delete(p.machines, k.ID)
		v.count--
	}
	for i := range l.Machines {
		m := &l.Machines[i]
		switch was := p.machines[m.ID]; {
		case was == nil:
			changes.Added++
			v.count++
		case *was != *m:
			changes.Changed++
		default:
			continue
		}
		p.machines[m.ID] = m
	}
	if changes.Added+changes.Changed+len(changes.Vanished) > 0 {
		p.sorted = nil
	}
	p.revision, p.heard = l.Revision, true
	return changes, nil
}

// check says what of a listing cannot be, and names the provider in its machines.
func check(name string, l *Listing, p *provider, providers int) error {
	wrong := func(id, field, problem string, args ...any) error {
		return &InvalidError{MachineKey{name, id}, field, fmt.Sprintf(problem, args...)}
	}
	switch {
	case !ValidName(name):
		return wrong("", "provider", "is %.40q, want 1 to %d bytes of printable ASCII without blanks", name,
			MaxNameBytes)
	case p == nil && providers >= MaxProviders:
		return wrong("", "provider", "is one more than %d", MaxProviders)
	case len(l.Machines) > MaxMachines || len(l.Removed) > MaxMachines:
		return wrong("", "machines", "are %d, and %d that are gone, above %d", len(l.Machines), len(l.Removed),
			MaxMachines)
	case len(l.Revision) > MaxRevisionBytes:
		return wrong("", "revision", "has %d bytes, above %d", len(l.Revision), MaxRevisionBytes)
	case l.Full && len(l.Removed) > 0:
		return wrong("", "machines", "are said to be all, and %d are said to be gone", len(l.Removed))
	case !l.Full && p == nil:
		return wrong("", "machines", "are what changed, and nothing was known of it")
	}
	seen := make(map[string]struct{}, len(l.Machines)+len(l.Removed))
	added := 0
	for i := range l.Machines {
		m := &l.Machines[i]
		if m.Provider == "" {
			m.Provider = name
		}
		if m.Provider != name {
			return wrong(m.ID, "provider", "is %.40q, another one than was asked", m.Provider)
		}
		if err := m.Check(); err != nil {
			return err
		}
		if _, twice := seen[m.ID]; twice {
			return wrong(m.ID, "id", "is there twice")
		}
		seen[m.ID] = struct{}{}
		if p != nil && p.machines[m.ID] == nil {
			added++
		}
	}
	for _, id := range l.Removed {
		if _, twice := seen[id]; twice || !ValidName(id) {
			return wrong(id, "id", "is said to be gone, and is there too, or is no id")
		}
		seen[id] = struct{}{}
	}
	// Bounded as if nothing went: an increment that removes as many is the rare case.
	if p != nil && !l.Full && len(p.machines)+added > MaxMachines {
		return wrong("", "machines", "are %d with those that are known, above %d", len(p.machines)+added, MaxMachines)
	}
	return nil
}

func byKey(a, b *Machine) int { return a.MachineKey.Compare(b.MachineKey) }

// Len returns how many machines are known.
func (v *Inventory) Len() int { return v.count }

// Get returns a machine that is known, or nil.
func (v *Inventory) Get(k MachineKey) *Machine {
	if p := v.providers[k.Provider]; p != nil {
		return p.machines[k.ID]
	}
	return nil
}

// All yields the machines in the order of their keys.
func (v *Inventory) All() iter.Seq[*Machine] {
	return func(yield func(*Machine) bool) {
		for _, name := range slices.Sorted(maps.Keys(v.providers)) {
			p := v.providers[name]
			if p.sorted == nil {
				p.sorted = slices.SortedFunc(maps.Values(p.machines), byKey)
			}
			for _, m := range p.sorted {
				if !yield(m) {
					return
				}
			}
		}
	}
}
