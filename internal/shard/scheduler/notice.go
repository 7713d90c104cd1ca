package scheduler

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Notice says which machine a tenant is about to lose.
type Notice struct {
	Machine MachineKey
	Profile string
	Tenant  string
	Kind    Kind      // Preempt or Reclaim
	Until   time.Time // when it is drained, if the tenant says nothing
}

// Board has the notices that are out. It may be used by several goroutines.
type Board struct {
	grace time.Duration

	mu  sync.Mutex
	out map[MachineKey]*posted // guarded by mu
}

type posted struct {
	Notice
	released bool // the tenant said that it may go
}

// NewBoard returns a board without notices. A grace of 0 gives none.
func NewBoard(grace time.Duration) *Board {
	return &Board{grace: grace, out: make(map[MachineKey]*posted)}
}

// Due takes all actions of a cycle that are to be executed, and says of each whether it may
// be at now. One that takes a machine from a tenant may not before the tenant had its time;
// everything else may at once. Notices of machines that no action takes any more are
// withdrawn.
func (b *Board) Due(actions []Action, now time.Time) []bool {
	due := make([]bool, len(actions))
	b.mu.Lock()
	defer b.mu.Unlock()
	next := make(map[MachineKey]*posted)
	for i, a := range actions {
		if b.grace <= 0 || a.Kind != Preempt && a.Kind != Reclaim {
			due[i] = true
			continue
		}
		// Another reason is no other loss: the tenant was told of this machine.
		p := b.out[a.Machine]
		if p == nil || p.Tenant != a.Tenant {
			p = &posted{Notice: Notice{Machine: a.Machine, Profile: a.Profile, Tenant: a.Tenant,
				Until: now.Add(b.grace)}}
		}
		p.Kind = a.Kind
		next[a.Machine] = p
		due[i] = p.released || !now.Before(p.Until)
	}
	b.out = next
	return due
}

// Release says that a tenant does not need a machine any more of which it was told, and
// reports whether it was.
func (b *Board) Release(tenant string, machine MachineKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.out[machine]
	if p == nil || p.Tenant != tenant {
		return false
	}
	p.released = true
	return true
}

// Of returns the notices of a tenant, in the order in which they end.
func (b *Board) Of(tenant string) (out []Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.out {
		if p.Tenant == tenant {
			out = append(out, p.Notice)
		}
	}
	slices.SortFunc(out, func(a, b Notice) int {
		return cmp.Or(a.Until.Compare(b.Until),
			a.Machine.Compare(b.Machine))
	})
	return out
}
