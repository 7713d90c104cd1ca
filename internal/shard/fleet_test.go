package shard_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// provider has machines in memory, behind a fence. An operation takes effect with the
// next tick, as with a real one that takes its time.
type provider struct {
	gate *fence.Gate

	mu       sync.Mutex
	machines map[string]scheduler.Machine
	changed  map[string]int // revision of the last change
	revision int
	asked    []string // "drain m1", in their order
	lists    []string // the revisions that were asked for
	// These go wrong.
	listing   func(scheduler.Listing) (scheduler.Listing, error)
	answering func(call string, o execute.Order) error // instead of doing it
	lost      func(call string, o execute.Order) error // after doing it
}

func newProvider() *provider {
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	return &provider{gate: fence.NewGate(fence.InMemory(ledger), 0), machines: make(map[string]scheduler.Machine),
		changed: make(map[string]int)}
}

// with adds n machines of profile small in a state, and returns the provider.
func (p *provider) with(n int, state scheduler.State, tenant string, priority int32) *provider {
	for range n {
		id := fmt.Sprint("m", len(p.machines))
		p.set(scheduler.Machine{MachineKey: scheduler.MachineKey{ID: id}, Profile: "small", State: state, Tenant: tenant,
			Priority: priority, Price: 1})
	}
	return p
}

func (p *provider) set(m scheduler.Machine) {
	p.revision++
	p.machines[m.ID], p.changed[m.ID] = m, p.revision
}

// tick lets what was accepted take effect.
func (p *provider) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.machines)) {
		m := p.machines[id]
		switch m.State {
		case scheduler.Creating:
			m.State = scheduler.Idle
		case scheduler.Configuring:
			m.State = scheduler.Configured
		case scheduler.Draining:
			m.State, m.Tenant, m.Priority = scheduler.Idle, "", 0
		case scheduler.Deleting:
			m.State = scheduler.Speculative
		default:
			continue
		}
		p.set(m)
	}
}

// counts returns how many machines are in each state, and of whom.
func (p *provider) count(state scheduler.State, tenant string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.machines {
		if m.State == state && m.Tenant == tenant {
			n++
		}
	}
	return n
}

// calls returns what was asked since the last time.
func (p *provider) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.asked
	p.asked = nil
	return out
}

// cycles returns how often the machines were listed.
func (p *provider) cycles() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lists)
}

// as is the provider as one life of a shard reaches it.
func (p *provider) as(life uint32) shard.Provider {
	var lineage fence.Lineage
	for n := uint32(1); n < life; n++ {
		lineage = append(lineage, fence.Incarnation{byte(n)})
	}
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, life),
		Incarnation: fence.Incarnation{byte(life)}, Lineage: lineage})
	if err != nil {
		panic(err)
	}
	return &reached{p, sender}
}

type reached struct {
	*provider
	sender *fence.Sender
}

func (r *reached) List(_ context.Context, since string) (scheduler.Listing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists = append(r.lists, since)
	from, err := strconv.Atoi(since)
	l := scheduler.Listing{Full: err != nil, Revision: strconv.Itoa(r.revision)}
	for _, id := range slices.Sorted(maps.Keys(r.machines)) {
		if l.Full || r.changed[id] > from {
			l.Machines = append(l.Machines, r.machines[id])
		}
	}
	if r.listing != nil {
		return r.listing(l)
	}
	return l, nil
}

func (r *reached) send(ctx context.Context, call string, o execute.Order, to scheduler.State) error {
	token, err := r.sender.Next(0, []byte(call+o.Operation))
	if err != nil {
		return err
	}
	life := r.sender.Life()
	claim := fence.Claim{Holder: "shard/s1", Resource: o.Machine.ID, Token: token, Lineage: life.Lineage}
	return r.sender.Heard(r.gate.Do(ctx, claim, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, call+" "+o.Machine.ID)
		if r.answering != nil {
			if err := r.answering(call, o); err != nil {
				return err
			}
		}
		m, there := r.machines[o.Machine.ID]
		switch {
		case !there:
			return execute.ErrNotFound
		case m.State.Transitional():
			return fmt.Errorf("%s is %s: %w", m.ID, m.State, execute.ErrRejected)
		}
		m.State, m.Operation = to, o.Operation
		if to == scheduler.Configuring {
			m.Tenant, m.Priority = o.Tenant, o.Priority
		}
		r.set(m)
		if r.lost != nil {
			return r.lost(call, o)
		}
		return nil
	}))
}

func (r *reached) Create(ctx context.Context, o execute.Order) error {
	return r.send(ctx, "create", o, scheduler.Creating)
}
func (r *reached) Configure(ctx context.Context, o execute.Order) error {
	return r.send(ctx, "configure", o, scheduler.Configuring)
}
func (r *reached) Drain(ctx context.Context, o execute.Order) error {
	return r.send(ctx, "drain", o, scheduler.Draining)
}
func (r *reached) Delete(ctx context.Context, o execute.Order) error {
	return r.send(ctx, "delete", o, scheduler.Deleting)
}

// world is a shard and its providers.
type world struct {
	t testing.TB
	*shard.Shard
	disk *durabletest.Disk
	p    *provider
	key  scheduler.DemandKey
}

// only has one provider, and it is p.
func only(p shard.Provider) func() map[string]shard.Provider {
	return func() map[string]shard.Provider { return map[string]shard.Provider{"p": p} }
}

// both are the providers of a config, and this one.
func both(c *shard.Config, name string, p shard.Provider) func() map[string]shard.Provider {
	all := maps.Clone(c.Providers())
	all[name] = p
	return func() map[string]shard.Provider { return all }
}

// run returns a shard on provider p, and others. edit changes its config.
func run(t testing.TB, p *provider, edit func(*shard.Config)) *world {
	t.Helper()
	w := &world{t: t, p: p, disk: durabletest.NewDisk(), key: scheduler.DemandKey{Run: 1}}
	j, err := execute.OpenJournal(execute.JournalOptions{Files: w.disk.FS(), Dir: "j", Actor: "shard/s1", Writer: "0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := shard.Config{Providers: only(p.as(1)), Rails: scheduler.Default(), Journal: j}
	if edit != nil {
		edit(&cfg)
	}
	if w.Shard, err = shard.New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// step does one cycle, and lets what it did take effect.
func (w *world) step() shard.Report {
	w.t.Helper()
	r, err := w.Step(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.p.tick()
	return r
}

// report reports that a tenant wants so many machines of profile small; 0 is a roll-up
// without rows.
func (w *world) report(tenant string, priority int32, n int) scheduler.Outcome {
	w.t.Helper()
	w.key.Number++
	r := scheduler.RollUp{Tenant: tenant, Key: w.key}
	if n > 0 {
		r.Rows = []scheduler.DemandRow{{Profile: "small", Priority: priority, Count: n}}
	}
	out, err := w.Report(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// said returns what the journal says, counted by kind, outcome and reason.
func (w *world) said() map[string]int {
	w.t.Helper()
	out := make(map[string]int)
	for e, err := range execute.Replay(execute.Export(w.disk.FS(), "j")) {
		if err != nil {
			w.t.Fatal(err)
		}
		name := e.Kind + " " + e.Outcome
		if e.Reason != "" {
			name += " " + e.Reason
		}
		out[name] += max(1, e.Count)
	}
	return out
}
