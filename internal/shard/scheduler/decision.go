// Package scheduler decides what is done with the machines of a shard: who gets one, who loses one,
// which are made and which are given back.
//
// [Decide] is a function: equal inputs, in whatever order, give equal actions, and when demand is
// met it decides nothing. Each profile is decided for itself:
//
//  1. The machines of a tenant serve its rows, the highest priority first; what is left over is
//     excess.
//  2. Rows without a machine get one by priority, and within a priority the tenant first that has
//     the fewest: an idle machine, the cheapest first; else one that is about to become idle is
//     waited for; else one is made, the cheapest first; else one is taken from the lowest priority
//     below theirs.
//  3. Excess is reclaimed, and idle machines that nobody waits for are given back if the policy
//     says so.
//
// A machine gets one action at most, and none while an operation is under way with it. Of a tenant
// that did not report, no demand is in the input, and its machines are reclaimed, which [Rails]
// hold back. So others do not wait for these machines, and nobody takes them by priority: what they
// are worth is not known.
//
// What goes into a decision is kept here too. The [Inventory] has the machines as providers list
// them. A provider is another program: its listing is checked before any of it counts, and taken
// whole or not at all. A provider that did not answer, or whose listing was refused, is
// [Inventory.Silent]: what was known of it stands, and nothing is decided about its machines until
// it is heard again. The [DemandBook] has how many machines each tenant wants. A tenant's operator
// reports its complete demand each time, a [RollUp], which replaces the one before; their
// [DemandKey] grows, so that a report that was overtaken on its way changes nothing. A tenant that
// was not heard since the process started has an unknown demand, which is another thing than none.
//
// [Rails] bound what a wrong decision can do. They stand between decision and execution, so that
// the decision stays a function of what is there and what is wanted. They know no reason why a
// decision may be right: a machine that is let go a few seconds later than it could be costs
// little, and a tenant that loses all of its machines at once is an outage.
//
// A [Board] gives tenants notice before they lose a machine, and a grace period to move what works
// there. The machine is drained when that is over, or as soon as the tenant says that it may go: a
// tenant that says nothing delays nothing for ever. If what was decided is decided no longer, the
// notice is withdrawn.
//
// The package does no I/O, and knows no clock.
package scheduler

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"maps"
	"slices"
)

// Kind is what is done with a machine, and why.
type Kind string

// The kinds.
const (
	Assign  Kind = "assign"  // an idle machine is configured for a tenant
	Create  Kind = "create"  // a speculative machine is made, as demand waits for one
	Preempt Kind = "preempt" // a machine is drained, as a higher priority waits for it
	Reclaim Kind = "reclaim" // a machine is drained, as its tenant does not want it
	Release Kind = "release" // an idle machine is deleted, as nobody waits for one
)

// Kinds returns all kinds, in the order in which their actions are returned.
func Kinds() []Kind { return []Kind{Assign, Create, Preempt, Reclaim, Release} }

// Action is one thing to be done with one machine.
type Action struct {
	Kind    Kind
	Machine MachineKey
	Profile string
	Domain  string
	// Tenant gets the machine, of an Assign; waits for one, of a Create; loses it, of a
	// Preempt or a Reclaim. "" of a Release.
	Tenant string
	// Priority is that of the row that gets, waits or loses. Of a Reclaim it is the one that
	// the machine was configured for.
	Priority int32
	// For is the tenant that a Preempt is for.
	For string
	// Operation is the id of the operation: the same for the same action on the same machine
	// until the provider accepted an operation on it.
	Operation string
}

// Quota names what a quota limits: the machines of one profile that a tenant has.
type Quota struct{ Tenant, Profile string }

// Policy is what whoever runs a shard chooses.
type Policy struct {
	// Release has idle machines deleted that nobody waits for, but Spare of each profile.
	Release bool
	Spare   int
}

// Input is all that is decided about.
type Input struct {
	// Machines are in any order, and each key is there once, as an inventory has them.
	Machines []*Machine
	// Demand are the rows of each tenant that reported, as DemandBook returns them.
	Demand map[string][]DemandRow
	// Quotas limit machines that are configured, about to be, or not drained yet. Without one
	// there is no limit.
	Quotas map[Quota]int
	// Held are machines that get no action now, and Silent are providers none of whose
	// machines does. They serve on where they serve.
	Held   map[MachineKey]struct{}
	Silent map[string]struct{}
	Policy Policy
}

// Decide returns what is done, of each machine one thing at most: the actions of a kind
// stand together, in the order of [Kinds]. Those that give machines stand in the order of
// the priorities that get them; reclaims in the order in which machines are let go, the
// lowest priority first, and within a profile the most expensive.
func Decide(in Input) []Action {
	profiles := make(map[string]*profile)
	of := func(name string) *profile {
		p := profiles[name]
		if p == nil {
			p = &profile{in: &in, tenants: make(map[string]*tenant)}
			profiles[name] = p
		}
		return p
	}
	for _, m := range in.Machines {
		of(m.Profile).add(m)
	}
	for name, rows := range in.Demand {
		for _, row := range rows {
			t := of(row.Profile).tenant(name)
			t.rows = append(t.rows, row)
		}
	}
	var actions [5][]Action
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		p := profiles[name]
		p.decide()
		for i, kind := range Kinds() {
			actions[i] = append(actions[i], p.actions[kind]...)
		}
	}
	// By priority over all profiles: what there is no time for is put off from the end.
	for i := range actions[:2] {
		slices.SortStableFunc(actions[i], func(a, b Action) int { return cmp.Compare(b.Priority, a.Priority) })
	}
	slices.SortStableFunc(actions[3], func(a, b Action) int { return cmp.Compare(a.Priority, b.Priority) })
	return slices.Concat(actions[:]...)
}

// profile is what is decided of one.
type profile struct {
	in      *Input
	tenants map[string]*tenant
	idle    []*Machine // that may get an action
	made    []*Machine // speculative, that may get an action
	coming  int        // machines that become idle without a decision
	actions map[Kind][]Action
}

// tenant is one within a profile.
type tenant struct {
	name     string
	rows     []DemandRow // the highest priority first
	reported bool
	serving  []*Machine // configured or about to be
	leaving  int        // draining
}

// need is machines that a row waits for.
type need struct {
	tenant   *tenant
	priority int32
	count    int
	has      int // machines that the tenant has, and got
}

func (p *profile) tenant(name string) *tenant {
	t := p.tenants[name]
	if t == nil {
		_, reported := p.in.Demand[name]
		t = &tenant{name: name, reported: reported}
		p.tenants[name] = t
	}
	return t
}

// free reports whether a machine may get an action.
func (p *profile) free(m *Machine) bool {
	if _, held := p.in.Held[m.MachineKey]; held {
		return false
	}
	_, silent := p.in.Silent[m.Provider]
	return !silent
}

func (p *profile) add(m *Machine) {
	switch m.State {
	case Speculative:
		if p.free(m) {
			p.made = append(p.made, m)
		}
	case Creating:
		p.coming++
	case Idle:
		if p.free(m) {
			p.idle = append(p.idle, m)
		}
	case Configuring, Configured:
		t := p.tenant(m.Tenant)
		t.serving = append(t.serving, m)
	case Draining:
		p.tenant(m.Tenant).leaving++
		p.coming++
	case Deleting, Failed:
		// One that failed is left to people: nobody knows what works on it.
	}
}

// cheapest orders machines by what they cost, then by how likely they are to go.
func cheapest(a, b *Machine) int {
	return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Interruption, b.Interruption), a.MachineKey.Compare(b.MachineKey))
}

// mostWorthKeeping orders the machines of a tenant: what is reclaimed is taken from the
// end. One that works is kept before one that is about to; "configured" sorts first.
func mostWorthKeeping(a, b *Machine) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.State, b.State), cheapest(a, b))
}

func (p *profile) decide() {
	p.actions = make(map[Kind][]Action)
	var needs []*need
	var victims []victim
	var excess []*Machine
	blocked := 0 // machines that are needed and cannot be given yet
	for _, name := range slices.Sorted(maps.Keys(p.tenants)) {
		t := p.tenants[name]
		n, wait := p.serve(t, &victims, &excess)
		needs = append(needs, n...)
		blocked += wait
	}
	slices.SortFunc(excess, func(a, b *Machine) int { return mostWorthKeeping(b, a) })
	for _, m := range excess {
		p.act(Reclaim, m, m.Tenant, m.Priority, "")
		if p.tenants[m.Tenant].reported {
			p.coming++
		}
	}
	p.give(needs, victims, blocked)
}

// victim is a machine that a higher priority may take.
type victim struct {
	machine  *Machine
	priority int32 // of the row that it serves
}

// serve has the machines of a tenant serve its rows. It returns what is missing, and how
// many of those that are missing cannot be given before others are drained.
func (p *profile) serve(t *tenant, victims *[]victim, excess *[]*Machine) (needs []*need, blocked int) {
	slices.SortFunc(t.serving, mostWorthKeeping)
	limit := MaxCount
	quota, limited := p.in.Quotas[Quota{t.name, p.profileName(t)}]
	if limited {
		limit = max(0, quota)
	}
	served, wanted := 0, 0
	for _, row := range t.rows {
		count := min(row.Count, limit-wanted)
		wanted += count
		for ; count > 0 && served < len(t.serving); count-- {
			m := t.serving[served]
			if served++; m.State == Configured && p.free(m) {
				*victims = append(*victims, victim{m, row.Priority})
			}
		}
		if limited {
			// A machine is the tenant's until it is drained.
			room := max(0, limit-len(t.serving)-t.leaving-needed(needs))
			blocked += max(0, count-room)
			count = min(count, room)
		}
		if count > 0 {
			needs = append(needs, &need{tenant: t, priority: row.Priority, count: count, has: len(t.serving)})
		}
	}
	for _, m := range t.serving[served:] {
		if m.State == Configured && p.free(m) {
			*excess = append(*excess, m)
		}
	}
	return needs, blocked
}

func needed(needs []*need) (n int) {
	for _, need := range needs {
		n += need.count
	}
	return n
}

func (p *profile) profileName(t *tenant) string {
	if len(t.rows) > 0 {
		return t.rows[0].Profile
	}
	if len(t.serving) > 0 {
		return t.serving[0].Profile
	}
	return ""
}

// give gives machines to those that need one, by priority.
func (p *profile) give(needs []*need, victims []victim, blocked int) {
	slices.SortFunc(p.idle, cheapest)
	slices.SortFunc(p.made, cheapest)
	slices.SortFunc(victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cheapest(b.machine, a.machine))
	})
	slices.SortFunc(needs, func(a, b *need) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.tenant.name, b.tenant.name))
	})
	idle, made, coming := p.idle, p.made, p.coming
	for len(needs) > 0 {
		n := 1 // needs of one priority
		for n < len(needs) && needs[n].priority == needs[0].priority {
			n++
		}
		for next := range takeTurns(needs[:n]) {
			switch t := next.tenant; {
			case len(idle) > 0:
				p.act(Assign, idle[0], t.name, next.priority, "")
				idle = idle[1:]
			case coming > 0:
				coming--
			case len(made) > 0:
				p.act(Create, made[0], t.name, next.priority, "")
				made = made[1:]
			case len(victims) > 0 && victims[0].priority < next.priority:
				m := victims[0].machine
				p.act(Preempt, m, m.Tenant, victims[0].priority, t.name)
				victims = victims[1:]
			default:
				// Nothing is left for those of lower priority either: their victims are fewer.
				return
			}
		}
		needs = needs[n:]
	}
	if policy := p.in.Policy; policy.Release {
		for i := len(idle) - 1; i >= max(0, policy.Spare)+blocked; i-- {
			p.act(Release, idle[i], "", 0, "")
		}
	}
}

// takeTurns yields the needs of one priority, one machine at a time: the tenant with the
// fewest machines first.
func takeTurns(needs []*need) func(yield func(*need) bool) {
	return func(yield func(*need) bool) {
		queue := turns(slices.Clone(needs))
		heap.Init(&queue)
		for len(queue) > 0 {
			next := queue[0]
			if !yield(next) {
				return
			}
			next.has++
			if next.count--; next.count == 0 {
				heap.Pop(&queue)
			} else {
				heap.Fix(&queue, 0)
			}
		}
	}
}

// turns is a heap of needs.
type turns []*need

func (q turns) Len() int { return len(q) }
func (q turns) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].has, q[j].has), cmp.Compare(q[i].tenant.name, q[j].tenant.name)) < 0
}
func (q turns) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *turns) Push(x any)   { *q = append(*q, x.(*need)) }
func (q *turns) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func (p *profile) act(kind Kind, m *Machine, tenant string, priority int32, forTenant string) {
	p.actions[kind] = append(p.actions[kind], Action{Kind: kind, Machine: m.MachineKey, Profile: m.Profile, Domain: m.Domain,
		Tenant: tenant, Priority: priority, For: forTenant, Operation: operation(kind, m, tenant, priority)})
}

// operation names what is done with a machine in the state in which its last operation left
// it. An attempt that is made again has the same name; after the provider accepted it, the same thing
// once more is another operation.
func operation(kind Kind, m *Machine, tenant string, priority int32) string {
	h := sha256.New()
	for _, part := range []string{"fealty/operation/v1", m.Operation, string(target(kind)), m.Provider, m.ID, tenant} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		_, _ = io.WriteString(h, part)
	}
	if kind == Assign {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(priority))
		h.Write(n[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// target is the state that an action leads to, on its way.
func target(kind Kind) State {
	switch kind {
	case Assign:
		return Configuring
	case Create:
		return Creating
	case Preempt, Reclaim:
		return Draining
	default:
		return Deleting
	}
}

// From is the state that an action of a kind starts from.
func (k Kind) From() State {
	switch k {
	case Create:
		return Speculative
	case Assign, Release:
		return Idle
	default:
		return Configured
	}
}

// After returns the machine as it is once the provider accepted the action: what is taken to
// be so while nobody knows whether it did.
func (a Action) After(m Machine) Machine {
	m.State = target(a.Kind)
	switch a.Kind {
	case Assign:
		m.Tenant, m.Priority = a.Tenant, a.Priority
	case Create, Release:
		m.Tenant, m.Priority = "", 0
	}
	return m
}
