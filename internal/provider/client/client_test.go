package client_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/fence"
	providerclient "github.com/fealty-io/fealty/internal/provider/client"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/provider"
)

// shelf is a provider whose machines are there at once.
type shelf struct {
	mu       sync.Mutex
	machines map[string]provider.Machine // guarded by mu
}

func (s *shelf) Get(_ context.Context, id string) (provider.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[id]
	if !ok {
		return m, provider.ErrNotFound
	}
	return m, nil
}

func (s *shelf) List(context.Context) ([]provider.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.machines)), nil
}

func (s *shelf) set(o provider.Order, state provider.State, tenant string, priority int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[o.Machine]
	m.State, m.Operation, m.Tenant, m.Priority = state, o.Operation, tenant, priority
	s.machines[o.Machine] = m
	return nil
}

func (s *shelf) Create(_ context.Context, o provider.Order) error {
	return s.set(o, provider.Idle, "", 0)
}
func (s *shelf) Configure(_ context.Context, o provider.Order) error {
	return s.set(o, provider.Configured, o.Tenant, o.Priority)
}
func (s *shelf) Drain(_ context.Context, o provider.Order) error {
	return s.set(o, provider.Idle, "", 0)
}
func (s *shelf) Delete(_ context.Context, o provider.Order) error {
	return s.set(o, provider.Speculative, "", 0)
}

// A shard sees its provider's machines, has them changed, and is told apart what became of an
// order: the fence first.
func TestProvider(t *testing.T) {
	t.Parallel()
	s := &shelf{machines: map[string]provider.Machine{
		"a": {ID: "a", Profile: "web", State: provider.Speculative, PricePerHour: 2, InterruptionProbability: 0.5},
		"b": {ID: "b", Profile: "web", State: provider.Failed, LastError: "it burned"},
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- provider.Serve(ctx, l, provider.Config{Machines: s, Insecure: true,
			Marks: fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true}))})
	}()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	priced := func(life uint32, price *float64) *providerclient.Provider {
		sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(life, 1), Incarnation: fence.NewIncarnation()})
		if err != nil {
			t.Fatal(err)
		}
		client, err := provider.Dial(provider.ClientConfig{Target: l.Addr().String(), Sender: sender, Insecure: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return providerclient.New(client, price)
	}
	at := func(life uint32) *providerclient.Provider { return priced(life, nil) }
	cents := 0.25
	if l, err := priced(1, &cents).List(t.Context(), ""); err != nil || len(l.Machines) != 2 ||
		l.Machines[0].Price != 0.25 || l.Machines[1].Price != 0.25 {
		t.Errorf("at a price of the shard's own: %+v, %v", l, err)
	}
	p := at(1)
	all, err := p.List(t.Context(), "")
	if err != nil || !all.Full || len(all.Machines) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	a, b := all.Machines[0], all.Machines[1]
	if a.ID != "a" || a.Profile != "web" || a.State != scheduler.Speculative || a.Price != 2 ||
		math.Abs(a.Interruption-(1-math.Pow(0.5, 24))) > 1e-12 || b.State != scheduler.Failed || b.LastError != "it burned" {
		t.Errorf("%+v", all.Machines)
	}
	for _, m := range all.Machines {
		m.Provider = "p"
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
	order := execute.Order{Machine: scheduler.MachineKey{Provider: "p", ID: "a"}, Tenant: "acme", Priority: 7}
	if err := p.Create(t.Context(), order); err != nil {
		t.Error(err)
	}
	if err := p.Configure(t.Context(), order); err != nil {
		t.Error(err)
	}
	some, err := p.List(t.Context(), all.Revision)
	if err != nil || some.Full || len(some.Machines) != 1 || some.Machines[0].Tenant != "acme" ||
		some.Machines[0].Priority != 7 || some.Machines[0].State != scheduler.Configured {
		t.Errorf("what changed: %+v, %v", some, err)
	}
	if again, err := p.List(t.Context(), "of somebody else"); err != nil || !again.Full || len(again.Machines) != 2 {
		t.Errorf("with a revision that it does not know: %+v, %v", again, err)
	}
	if err := p.Delete(t.Context(), order); execute.Classify(err) != execute.Rejected {
		t.Errorf("delete a machine at work: %v", err)
	}
	unknown := execute.Order{Machine: scheduler.MachineKey{Provider: "p", ID: "x"}}
	if err := p.Create(t.Context(), unknown); execute.Classify(err) != execute.NotFound {
		t.Errorf("create a machine that is none: %v", err)
	}
	if err := at(2).Drain(t.Context(), order); err != nil {
		t.Error(err)
	}
	if err := p.Configure(t.Context(), order); execute.Classify(err) != execute.Fenced || !errors.Is(err, fence.ErrEnded) {
		t.Errorf("of a process that was overtaken: %v", err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	served <- nil
	if err := at(3).Drain(t.Context(), order); execute.Classify(err) != execute.Unavailable {
		t.Errorf("of a provider that is gone: %v", err)
	}
}

// An order that a provider's fence refuses of a process that is in charge was not done:
// another machine is to meet the demand.
func TestRefusedIsNotDone(t *testing.T) {
	t.Parallel()
	s := &shelf{machines: map[string]provider.Machine{"a": {ID: "a", Profile: "web", State: provider.Speculative}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- provider.Serve(ctx, l, provider.Config{Machines: s, Insecure: true,
			Marks: fence.InMemory(fence.NewLedger(fence.LedgerOptions{}))}) // which wants grants
	}()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()})
	if err != nil {
		t.Fatal(err)
	}
	client, err := provider.Dial(provider.ClientConfig{Target: l.Addr().String(), Sender: sender, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = providerclient.New(client, nil).Create(t.Context(), execute.Order{Machine: scheduler.MachineKey{Provider: "p", ID: "a"}})
	if execute.Classify(err) != execute.Rejected || !errors.Is(err, fence.ErrRefused) {
		t.Errorf("without a grant: %v is %v", err, execute.Classify(err))
	}
}

// serve serves machines until the test ends, at the address that it returns.
func serve(t *testing.T, s *shelf) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- provider.Serve(ctx, l, provider.Config{Machines: s, Insecure: true,
			Marks: fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true}))})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// A read is not fenced, so that a zombie reads too, and late: what it decides on that is
// refused when it acts, whatever the machine is by then.
func TestDecidedOnAnOldListing(t *testing.T) {
	t.Parallel()
	s := &shelf{machines: make(map[string]provider.Machine)}
	for _, id := range []string{"a", "b", "c", "d"} {
		s.machines[id] = provider.Machine{ID: id, Profile: "web", State: provider.Idle}
	}
	addr := serve(t, s)
	at := func(life uint32) *providerclient.Provider {
		sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(life, 1), Incarnation: fence.NewIncarnation()})
		if err != nil {
			t.Fatal(err)
		}
		client, err := provider.Dial(provider.ClientConfig{Target: addr, Sender: sender, Insecure: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return providerclient.New(client, nil)
	}
	order := func(id, tenant string) execute.Order {
		return execute.Order{Machine: scheduler.MachineKey{Provider: "p", ID: id}, Tenant: tenant, Priority: 1}
	}
	successor := at(2)
	// Each process has read once, before its successor acts, and acts afterwards: on a machine that
	// is another one's by then, on one that was given back, and on one as it was.
	zombies := make(map[string]func(*providerclient.Provider) error)
	zombies["a"] = func(p *providerclient.Provider) error { return p.Configure(t.Context(), order("a", "blue")) }
	zombies["b"] = func(p *providerclient.Provider) error { return p.Delete(t.Context(), order("b", "")) }
	zombies["c"] = func(p *providerclient.Provider) error { return p.Configure(t.Context(), order("c", "blue")) }
	zombies["d"] = func(p *providerclient.Provider) error { return p.Drain(t.Context(), order("d", "")) }
	processes := make(map[string]*providerclient.Provider)
	for id := range zombies {
		processes[id] = at(1)
		if l, err := processes[id].List(t.Context(), ""); err != nil || len(l.Machines) != 4 ||
			l.Machines[0].State != scheduler.Idle {
			t.Fatalf("%+v, %v", l, err)
		}
	}
	for _, err := range []error{
		successor.Configure(t.Context(), order("a", "red")), successor.Configure(t.Context(), order("b", "red")),
		successor.Drain(t.Context(), order("b", "")), successor.Configure(t.Context(), order("d", "red")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	before, err := successor.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for id, act := range zombies {
		if err := act(processes[id]); execute.Classify(err) != execute.Fenced {
			t.Errorf("%s: %v", id, err)
		}
		if _, err := processes[id].List(t.Context(), ""); err != nil {
			t.Errorf("it may not read any more: %v", err)
		}
	}
	if after, err := successor.List(t.Context(), ""); err != nil || !slices.Equal(after.Machines, before.Machines) {
		t.Errorf("the machines are %+v, and were %+v (%v)", after.Machines, before.Machines, err)
	}
}
