package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/provider"
	"github.com/fealty-io/fealty/test/wait"
)

// rack is a provider of the tests: orders are done at once, and answers can be spoiled.
type rack struct {
	mu       sync.Mutex
	machines map[string]provider.Machine // guarded by mu
	orders   []string                    // guarded by mu
	fail     error                       // of every order; guarded by mu
	wait     chan struct{}               // that an order waits for; guarded by mu
	twice    bool                        // the list has its first machine again; guarded by mu
}

func newRack(n int) *rack {
	r := &rack{machines: make(map[string]provider.Machine)}
	for i := range n {
		id := fmt.Sprintf("m-%02d", i)
		r.machines[id] = provider.Machine{ID: id, Profile: "p", State: provider.Speculative}
	}
	return r
}

func (r *rack) Get(_ context.Context, id string) (provider.Machine, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.machines[id]
	if !ok {
		return m, provider.ErrNotFound
	}
	return m, nil
}

func (r *rack) List(context.Context) ([]provider.Machine, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.machines))
	if r.twice {
		all = append(all, all[0])
	}
	return all, nil
}

func (r *rack) set(id string, f func(*provider.Machine)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.machines[id]
	f(&m)
	r.machines[id] = m
}

func (r *rack) order(ctx context.Context, o provider.Order, to provider.State) error {
	r.mu.Lock()
	wait, err := r.wait, r.fail
	r.orders = append(r.orders, string(to)+" "+o.Machine)
	r.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	r.set(o.Machine, func(m *provider.Machine) { m.State, m.Operation, m.Tenant = to, o.Operation, o.Tenant })
	return nil
}

func (r *rack) Create(ctx context.Context, o provider.Order) error {
	return r.order(ctx, o, provider.Idle)
}
func (r *rack) Configure(ctx context.Context, o provider.Order) error {
	return r.order(ctx, o, provider.Configured)
}
func (r *rack) Drain(ctx context.Context, o provider.Order) error {
	return r.order(ctx, o, provider.Idle)
}
func (r *rack) Delete(ctx context.Context, o provider.Order) error {
	return r.order(ctx, o, provider.Speculative)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func inMemory() fence.Marks {
	return fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true}))
}

// serve serves a rack on loopback, and returns its address.
func serve(t *testing.T, m provider.Machines) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- provider.Serve(ctx, l, provider.Config{Machines: m, Marks: inMemory(), Insecure: true, Log: quiet()})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, addr string, life fence.Life) *provider.Client {
	t.Helper()
	sender, err := fence.NewSender(life)
	if err != nil {
		t.Fatal(err)
	}
	c, err := provider.Dial(provider.ClientConfig{Target: addr, Sender: sender, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func first() fence.Life {
	return fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
}

// A wrong declaration is refused, by whatever end sees it first.
func TestValidate(t *testing.T) {
	t.Parallel()
	good := provider.Machine{ID: "m", Profile: "p", State: provider.Idle, PricePerHour: 0.5, InterruptionProbability: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for field, bad := range map[string][]func(*provider.Machine){
		"id": {func(m *provider.Machine) { m.ID = "" }, func(m *provider.Machine) { m.ID = "a b" },
			func(m *provider.Machine) { m.ID = strings.Repeat("a", internalprovider.MaxName+1) },
			func(m *provider.Machine) { m.ID = "ü" }},
		"profile": {func(m *provider.Machine) { m.Profile = "" }},
		"domain":  {func(m *provider.Machine) { m.Domain = "a\n" }},
		"state": {func(m *provider.Machine) { m.State = "" }, func(m *provider.Machine) { m.State = "resting" },
			func(m *provider.Machine) { m.State = "MACHINE_STATE_IDLE" }},
		"tenant": {func(m *provider.Machine) { m.Tenant = "t" },
			func(m *provider.Machine) { m.State = provider.Configured },
			func(m *provider.Machine) { m.State, m.Tenant = provider.Draining, "a b" }},
		"operation": {func(m *provider.Machine) { m.Operation = strings.Repeat("a", internalprovider.MaxOperation+1) }},
		"last error": {func(m *provider.Machine) { m.LastError = "why" }, func(m *provider.Machine) {
			m.State, m.LastError = provider.Failed, strings.Repeat("a", internalprovider.MaxLastError+1)
		}, func(m *provider.Machine) { m.State, m.LastError = provider.Failed, "\xff" }},
		"price": {func(m *provider.Machine) { m.PricePerHour = -0.01 },
			func(m *provider.Machine) { m.PricePerHour = math.NaN() },
			func(m *provider.Machine) { m.PricePerHour = math.Inf(1) },
			func(m *provider.Machine) { m.PricePerHour = math.Inf(-1) }},
		"interruption probability": {func(m *provider.Machine) { m.InterruptionProbability = -0.01 },
			func(m *provider.Machine) { m.InterruptionProbability = math.NaN() },
			func(m *provider.Machine) { m.InterruptionProbability = math.Inf(1) },
			func(m *provider.Machine) { m.InterruptionProbability = 1.01 }},
	} {
		for i, spoil := range bad {
			m := good
			spoil(&m)
			invalid, ok := errors.AsType[*provider.InvalidError](m.Validate())
			if !ok || invalid.Field != field || !errors.Is(invalid, provider.ErrInvalid) {
				t.Errorf("%s, %d: %v, want an InvalidError of this field", field, i, invalid)
			}
		}
	}
}

// A provider whose own list is wrong tells nobody of any of it, at its start and later.
func TestServeIngests(t *testing.T) {
	t.Parallel()
	r := newRack(2)
	addr := serve(t, r)
	c := dial(t, addr, first())
	if _, err := c.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r.set("m-00", func(m *provider.Machine) { m.PricePerHour = math.NaN() })
	if _, err := c.List(t.Context(), ""); !errors.Is(err, provider.ErrInternal) {
		t.Errorf("a list with a price that is none: %v, want ErrInternal", err)
	}
	if _, err := c.Get(t.Context(), "m-00"); !errors.Is(err, provider.ErrInternal) {
		t.Errorf("a machine with a price that is none: %v, want ErrInternal", err)
	}
	if _, err := c.Create(t.Context(), provider.Order{Machine: "m-00"}); !errors.Is(err, provider.ErrInternal) {
		t.Errorf("an order for it: %v, want ErrInternal", err)
	}
	r.set("m-00", func(m *provider.Machine) { m.PricePerHour = 0 })
	r.mu.Lock()
	r.twice = true
	r.mu.Unlock()
	if _, err := c.List(t.Context(), ""); !errors.Is(err, provider.ErrInternal) {
		t.Errorf("a list with a machine twice: %v, want ErrInternal", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = provider.Serve(t.Context(), l, provider.Config{Machines: r, Marks: inMemory(), Insecure: true, Log: quiet()})
	if !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("served with a machine twice: %v, want ErrInvalid", err)
	}
}

// liar is a provider in another language that declares what it wants.
type liar struct {
	fealtyv1.UnimplementedProviderServiceServer
	list *fealtyv1.ListMachinesResponse
	err  error
}

func (l *liar) ListMachines(context.Context, *fealtyv1.ListMachinesRequest) (*fealtyv1.ListMachinesResponse, error) {
	return l.list, l.err
}

func (l *liar) CreateMachine(context.Context, *fealtyv1.CreateMachineRequest) (*fealtyv1.CreateMachineResponse, error) {
	return &fealtyv1.CreateMachineResponse{Operation: "o"}, l.err
}

func (l *liar) PromiseDomain(context.Context, *fealtyv1.PromiseDomainRequest) (*fealtyv1.PromiseDomainResponse, error) {
	return &fealtyv1.PromiseDomainResponse{}, l.err
}

func lie(t *testing.T, l *liar) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	fealtyv1.RegisterProviderServiceServer(server, l)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// A client takes nothing of a list in which anything is wrong.
func TestClientIngests(t *testing.T) {
	t.Parallel()
	machine := func(id string, state fealtyv1.MachineState) *fealtyv1.ProviderMachine {
		return &fealtyv1.ProviderMachine{Id: id, Profile: "p", State: state}
	}
	const idle = fealtyv1.MachineState_MACHINE_STATE_IDLE
	dear := machine("c", idle)
	dear.PricePerHour = math.Inf(1)
	var many []*fealtyv1.ProviderMachine
	for n := range internalprovider.MaxPage + 1 {
		many = append(many, machine(fmt.Sprint(n), idle))
	}
	for name, list := range map[string]*fealtyv1.ListMachinesResponse{
		"no state":            {Machines: []*fealtyv1.ProviderMachine{machine("a", idle), machine("b", 0)}},
		"a state of later":    {Machines: []*fealtyv1.ProviderMachine{machine("a", 99)}},
		"one id twice":        {Machines: []*fealtyv1.ProviderMachine{machine("a", idle), machine("a", idle)}},
		"an infinite price":   {Machines: []*fealtyv1.ProviderMachine{dear}},
		"a page that is long": {Machines: many},
		"a long revision":     {Revision: strings.Repeat("r", internalprovider.MaxOperation+1)},
	} {
		c := dial(t, lie(t, &liar{list: list}), first())
		if l, err := c.List(t.Context(), ""); !errors.Is(err, provider.ErrInvalid) || len(l.Machines) > 0 {
			t.Errorf("%s: %v, %v, want ErrInvalid", name, l, err)
		}
	}
	c := dial(t, lie(t, &liar{list: &fealtyv1.ListMachinesResponse{More: true}}), first())
	if _, err := c.List(t.Context(), ""); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("pages without an end: %v, want ErrUnavailable", err)
	}
}

// Errors are told apart by their type, and being fenced comes first whatever else they say.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]error{
		codes.FailedPrecondition: provider.ErrFenced, codes.NotFound: provider.ErrNotFound,
		codes.Unavailable: provider.ErrUnavailable, codes.DeadlineExceeded: provider.ErrUnavailable,
		codes.ResourceExhausted: provider.ErrUnavailable, codes.Aborted: provider.ErrUnavailable,
		codes.InvalidArgument: provider.ErrRejected, codes.PermissionDenied: provider.ErrRejected,
		codes.Unauthenticated: provider.ErrRejected, codes.Unimplemented: provider.ErrRejected,
		codes.Internal: provider.ErrInternal, codes.Unknown: provider.ErrInternal, codes.DataLoss: provider.ErrInternal,
	} {
		addr := lie(t, &liar{err: status.Error(code, "not found, unavailable, rejected")})
		c := dial(t, addr, first())
		_, err := c.Create(t.Context(), provider.Order{Machine: "m"})
		matched := 0
		for _, outcome := range []error{provider.ErrFenced, provider.ErrNotFound, provider.ErrUnavailable,
			provider.ErrRejected,
			provider.ErrInternal} {
			if errors.Is(err, outcome) {
				matched++
			}
		}
		if !errors.Is(err, want) || matched != 1 || status.Code(err) != code {
			t.Errorf("%v: %v, want %v alone, and the status in the chain", code, err, want)
		}
		if code == codes.FailedPrecondition {
			// It is final: nothing is sent any more.
			if _, err := c.Create(t.Context(), provider.Order{Machine: "other"}); !errors.Is(err, provider.ErrFenced) {
				t.Errorf("after it was fenced: %v, want ErrFenced", err)
			}
			if err := dial(t, addr, first()).Promise(t.Context(), "text"); !errors.Is(err, provider.ErrFenced) {
				t.Errorf("a promise: %v, want ErrFenced", err)
			}
		}
	}
}

// Where there are no domains, whoever names one is mistaken.
func TestNoSuchDomain(t *testing.T) {
	t.Parallel()
	r := newRack(1)
	c := dial(t, serve(t, r), first())
	if _, err := c.Create(t.Context(), provider.Order{Machine: "m-00", Domain: "rack-1"}); !errors.Is(err, provider.ErrRejected) {
		t.Errorf("a machine that is in no domain: %v, want ErrRejected", err)
	}
	if len(r.orders) > 0 {
		t.Errorf("orders that were given: %v", r.orders)
	}
}

// The failure of an implementation is told by its kind, and its own words only where they
// are for the caller.
func TestImplementationFails(t *testing.T) {
	t.Parallel()
	r := newRack(1)
	c := dial(t, serve(t, r), first())
	for _, tt := range []struct {
		fail, want error
		words      string
		told       bool
	}{
		{fmt.Errorf("quota: %w", provider.ErrRejected), provider.ErrRejected, "quota", true},
		{fmt.Errorf("busy: %w", provider.ErrUnavailable), provider.ErrUnavailable, "busy", true},
		{fmt.Errorf("gone: %w", provider.ErrNotFound), provider.ErrNotFound, "gone", true},
		{errors.New("password hunter2 was refused"), provider.ErrInternal, "hunter2", false},
		{status.Error(codes.FailedPrecondition, "elsewhere"), provider.ErrInternal, "elsewhere", false},
	} {
		r.mu.Lock()
		r.fail = tt.fail
		r.mu.Unlock()
		_, err := c.Create(t.Context(), provider.Order{Machine: "m-00"})
		if !errors.Is(err, tt.want) || strings.Contains(err.Error(), tt.words) != tt.told {
			t.Errorf("%v: %v, want %v", tt.fail, err, tt.want)
		}
	}
}

// One live sender acts on many machines at once, and on each one after the other, and is
// never fenced.
func TestOneLiveSender(t *testing.T) {
	t.Parallel()
	r := newRack(32)
	c := dial(t, serve(t, r), first())
	var wg sync.WaitGroup
	for _, id := range slices.Collect(maps.Keys(r.machines)) {
		for range 4 {
			wg.Go(func() {
				o := provider.Order{Machine: id, Tenant: "t"}
				for _, do := range []func(context.Context, provider.Order) (string, error){c.Create, c.Configure,
					c.Drain, c.Delete} {
					if _, err := do(t.Context(), o); err != nil && !errors.Is(err, provider.ErrRejected) {
						t.Errorf("%s: %v", id, err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// The marks of a machine go with it, and those of one that is there stay.
func TestMarksGoWithTheirMachines(t *testing.T) {
	t.Parallel()
	r := newRack(2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- provider.Serve(ctx, l, provider.Config{Machines: r, Marks: fence.InMemory(ledger), Insecure: true,
			Log: quiet()})
	}()
	c := dial(t, l.Addr().String(), first())
	o := func(id string) provider.Order { return provider.Order{Machine: id} }
	for _, id := range []string{"m-00", "m-01"} {
		if _, err := c.Create(t.Context(), o(id)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Delete(t.Context(), o(id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Create(t.Context(), o("nobody")); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("a machine that is not there: %v", err)
	}
	r.mu.Lock()
	delete(r.machines, "m-00")
	r.mu.Unlock()
	list, err := c.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := c.List(t.Context(), list.Revision); err != nil || len(list.Machines) > 0 {
		t.Errorf("what changed since a moment ago: %+v, %v", list, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for id, want := range map[string]bool{"m-00": false, "m-01": true, "nobody": false} {
		if got := ledger.Mark(fence.Pair{Holder: internalprovider.InsecureHolder,
			Resource: id}); (got != fence.Mark{}) != want {
			t.Errorf("mark of %s: %+v", id, got)
		}
	}
}

// An order that was admitted is carried through though its caller is gone: a machine is never
// half way into it.
func TestCallerGoesAway(t *testing.T) {
	t.Parallel()
	r := newRack(1)
	r.wait = make(chan struct{})
	c := dial(t, serve(t, r), first())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Create(ctx, provider.Order{Machine: "m-00"})
		done <- err
	}()
	wait.Until(t, "the order is there", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.orders) > 0
	})
	cancel()
	if err := <-done; !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable: nobody knows what became of it", err)
	}
	// A call on the same connection comes after the news that the caller is gone.
	if _, err := c.Get(t.Context(), "m-00"); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	close(r.wait)
	r.wait = nil
	r.mu.Unlock()
	// The same order again waits for the one under way, and is answered with its operation.
	operation, err := c.Create(t.Context(), provider.Order{Machine: "m-00"})
	m, _ := r.Get(t.Context(), "m-00")
	if err != nil || operation != m.Operation || len(r.orders) != 1 {
		t.Errorf("%s, %v, want the operation %s, and one order: %v", operation, err, m.Operation, r.orders)
	}
}

// elsewhere is a listener that others reach.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7460} }

// A provider that is stopped as it starts has not failed, wherever it was: before it listed its machines, or as its
// gate and it heard of the end at once.
func TestStoppedAsItStarts(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]credential.Source{"without TLS": nil,
		"over TLS": exampleSource(pkitest.NewAuthority(t, "prod.example"), identity.Provider, "p")} {
		for _, when := range []string{"before", "in List", "in Accept"} {
			for range 20 { // what a select takes is a matter of luck
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				at := &stops{rack: newRack(1), Listener: l}
				switch when {
				case "before":
					stop()
				case "in List":
					at.list = stop
				case "in Accept":
					at.accept = stop
				}
				if err := provider.Serve(ctx, at, provider.Config{Machines: at, Marks: inMemory(), Source: source,
					Insecure: source == nil, Log: quiet()}); err != nil {
					t.Fatalf("%s, stopped %s: %v", name, when, err)
				}
				stop()
			}
		}
	}
}

// stops are machines and a listener whose provider is stopped as it asks them.
type stops struct {
	*rack
	net.Listener
	list, accept func()
}

func (s *stops) List(ctx context.Context) ([]provider.Machine, error) {
	if s.list != nil {
		s.list()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.rack.List(ctx)
}

func (s *stops) Accept() (net.Conn, error) {
	if s.accept != nil {
		s.accept()
	}
	return s.Listener.Accept()
}

// Without TLS nobody is served from elsewhere, and nobody dials elsewhere.
func TestInsecureIsLocal(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := provider.Config{Machines: newRack(1), Marks: inMemory(), Insecure: true, Log: quiet()}
	if err := provider.Serve(t.Context(), elsewhere{l}, cfg); !errors.Is(err, internalprovider.ErrNotLoopback) {
		t.Errorf("served on 192.0.2.1: %v, want ErrNotLoopback", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is still open")
	}
	sender, err := fence.NewSender(first())
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"192.0.2.1:1", "p.example:1", "localhost:1", ":1", ""} {
		if _, err := provider.Dial(provider.ClientConfig{Target: target, Sender: sender,
			Insecure: true}); !errors.Is(err, internalprovider.ErrNotLoopback) {
			t.Errorf("dialed %q: %v, want ErrNotLoopback", target, err)
		}
	}
	for name, cfg := range map[string]provider.ClientConfig{"no sender": {Target: "127.0.0.1:1", Insecure: true},
		"neither": {Target: "127.0.0.1:1", Sender: sender}} {
		if _, err := provider.Dial(cfg); err == nil {
			t.Errorf("dialed with %s", name)
		}
	}
}

// Requests are bounded, and what no rule names is refused.
func TestLimits(t *testing.T) {
	t.Parallel()
	addr := serve(t, newRack(1))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	calls := fealtyv1.NewProviderServiceClient(conn)
	_, err = calls.GetMachine(t.Context(), &fealtyv1.GetMachineRequest{Machine: strings.Repeat("a", 32<<10)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of 32 KiB: %v, want RESOURCE_EXHAUSTED", err)
	}
	if _, err := calls.GetMachine(t.Context(),
		&fealtyv1.GetMachineRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a machine without a name: %v, want INVALID_ARGUMENT", err)
	}
	if _, err := calls.PromiseDomain(t.Context(),
		&fealtyv1.PromiseDomainRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a promise where there is no authority: %v, want INVALID_ARGUMENT", err)
	}
}

// Serve lets in whom the API says.
func TestWhoMayCall(t *testing.T) {
	t.Parallel()
	services, err := authz.Services(fealtyv1.ProviderService_ServiceDesc.ServiceName)
	if err != nil {
		t.Fatal(err)
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table.Rows() {
		if !slices.Equal(row.Kinds, []identity.Kind{identity.Shard}) || row.Open || row.Local {
			t.Errorf("%s is for %v: Serve admits shards alone, to all methods", row.Method, row.Kinds)
		}
	}
}
