package provider_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/provider"
)

// A process hangs and is replaced; its order that comes late changes no machine.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- provider.Serve(ctx, l, provider.Config{Machines: new(oneMachine), Insecure: true, // to try it out
			Marks: fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true}))})
	}()
	dial := func(life fence.Life) *provider.Client {
		sender, err := fence.NewSender(life)
		if err != nil {
			panic(err)
		}
		client, err := provider.Dial(provider.ClientConfig{Target: l.Addr().String(), Sender: sender, Insecure: true})
		if err != nil {
			panic(err)
		}
		return client
	}
	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie := dial(first)
	defer zombie.Close()
	successor := dial(fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(),
		Lineage: fence.Lineage{first.Incarnation}})
	defer successor.Close()

	_, err = successor.Configure(ctx, provider.Order{Machine: "web-1", Tenant: "acme"})
	fmt.Println(err)
	_, err = zombie.Drain(ctx, provider.Order{Machine: "web-1"})
	fmt.Println(errors.Is(err, provider.ErrFenced))
	m, err := successor.Get(ctx, "web-1")
	fmt.Println(m.State, m.Tenant, err)
	stop()
	fmt.Println(<-served)
	// Output:
	// <nil>
	// true
	// configured acme <nil>
	// <nil>
}

// oneMachine is a provider of one machine, which does at once what it is told. A real one
// keeps on disk what it accepted.
type oneMachine struct {
	mu  sync.Mutex
	now provider.Machine // guarded by mu
}

func (p *oneMachine) machine() provider.Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.ID == "" {
		p.now = provider.Machine{ID: "web-1", Profile: "small", State: provider.Idle}
	}
	return p.now
}

func (p *oneMachine) Get(context.Context, string) (provider.Machine, error) { return p.machine(), nil }

func (p *oneMachine) List(context.Context) ([]provider.Machine, error) {
	return []provider.Machine{p.machine()}, nil
}

func (p *oneMachine) become(state provider.State, o provider.Order) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.State, p.now.Tenant, p.now.Priority, p.now.Operation = state, o.Tenant, o.Priority, o.Operation
	return nil
}

func (p *oneMachine) Create(_ context.Context, o provider.Order) error {
	return p.become(provider.Idle, o)
}
func (p *oneMachine) Configure(_ context.Context, o provider.Order) error {
	return p.become(provider.Configured, o)
}
func (p *oneMachine) Drain(_ context.Context, o provider.Order) error {
	return p.become(provider.Idle, o)
}
func (p *oneMachine) Delete(_ context.Context, o provider.Order) error {
	return p.become(provider.Speculative, o)
}

// A provider implements Machines; Serve does the rest. The marks are on disk: without them a
// provider that is started again obeys a zombie.
func ExampleServe() {
	dir, err := os.MkdirTemp("", "provider")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	source := exampleSource(authority, identity.Provider, "p1") // such as credential.NewFiles

	// It is EnrolLedger once, when the provider is made, and OpenLedger at each start. Without
	// an authority that grants epochs they are believed.
	marks, err := durable.EnrolLedger(dir, durable.LedgerOptions{BelieveEpochs: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer marks.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- provider.Serve(ctx, l, provider.Config{Machines: new(oneMachine), Marks: marks, Source: source,
			Refused: func(err error) { fmt.Println("a zombie:", errors.Is(err, fence.ErrFenced)) }})
	}()
	client := exampleClient(authority, l.Addr().String(), fence.NewEpoch(0, 2))
	_, err = client.Configure(ctx, provider.Order{Machine: "web-1", Tenant: "acme"})
	fmt.Println(err, client.Close())
	client = exampleClient(authority, l.Addr().String(), fence.NewEpoch(0, 1))
	_, err = client.Drain(ctx, provider.Order{Machine: "web-1"})
	fmt.Println(errors.Is(err, provider.ErrFenced), client.Close())
	stop()
	fmt.Println(<-served)
	// Output:
	// <nil> <nil>
	// a zombie: true
	// true <nil>
	// <nil>
}

// A shard stops when it is fenced: it raises an incident, and sends nothing any more.
func ExampleClient() {
	dir, err := os.MkdirTemp("", "shard")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	addr, stop := exampleProvider(authority)
	defer stop()

	// It is EnrolEpoch once, when the shard is made, and OpenEpoch at each start.
	epoch, err := durable.EnrolEpoch(dir, durable.EpochOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer epoch.Close()
	client, err := provider.Dial(provider.ClientConfig{Target: addr, Sender: epoch.Sender(),
		Source: exampleSource(authority, identity.Shard, "eu-1"), Expect: credential.AnyOfKind(identity.Provider)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	for _, tenant := range []string{"acme", "umbrella"} {
		operation, err := client.Configure(context.Background(), provider.Order{Machine: "web-1", Tenant: tenant})
		switch {
		case errors.Is(err, provider.ErrFenced):
			<-epoch.Sender().Fenced()
			fmt.Println("somebody else is in charge: this process acts no more")
		case errors.Is(err, provider.ErrUnavailable):
			fmt.Println("again in a while: that is safe")
		case err != nil:
			fmt.Println("never like that:", err)
		default:
			fmt.Println("accepted:", operation != "")
		}
		// Meanwhile this process hangs, and is replaced.
		exampleSuccessor(authority, addr, epoch.Life())
	}
	// Output:
	// accepted: true
	// somebody else is in charge: this process acts no more
}

// A listing is whole, or what changed since one: with a revision that the provider does not know
// any more, such as one of before its restart, it is asked anew.
func ExampleClient_List() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	addr, stop := exampleProvider(authority)
	defer stop()
	client := exampleClient(authority, addr, fence.NewEpoch(0, 1))
	defer client.Close()
	ctx := context.Background()
	known := make(map[string]provider.Machine)
	revision := "of a life before"
	look := func() error {
		changes, err := client.List(ctx, revision)
		if errors.Is(err, provider.ErrListAnew) {
			clear(known)
			changes, err = client.List(ctx, "")
		}
		if err != nil {
			return err
		}
		for _, m := range changes.Machines {
			known[m.ID] = m
		}
		for _, id := range changes.Gone {
			delete(known, id)
		}
		revision = changes.Revision
		return nil
	}
	fmt.Println(look(), known["web-1"].State)
	_, err := client.Configure(ctx, provider.Order{Machine: "web-1", Tenant: "acme"})
	fmt.Println(err, look(), known["web-1"].State, known["web-1"].Tenant)
	// Output:
	// <nil> idle
	// <nil> <nil> configured acme
}

// A machine that is declared wrongly is told to nobody, so a provider checks what it makes of
// what it is told.
func ExampleMachine_Validate() {
	m := provider.Machine{ID: "web-1", Profile: "small", State: provider.Failed, LastError: "no route to the host"}
	fmt.Println(m.Validate())
	m.PricePerHour = math.NaN()
	err := m.Validate()
	if wrong, ok := errors.AsType[*provider.InvalidError](err); ok {
		fmt.Println(wrong.Machine, wrong.Field, errors.Is(err, provider.ErrInvalid))
	}
	// Output:
	// <nil>
	// web-1 price true
}

// An implementation says by the kind of an error what a shard may do about it. The text of those
// reaches the shard; of any other error it learns that there was one.
func ExampleMachines() {
	ctx := context.Background()
	for _, failure := range []error{
		fmt.Errorf("the account is out of credit: %w", provider.ErrRejected),
		fmt.Errorf("the cloud is overloaded: %w", provider.ErrUnavailable),
		errors.New("token s3cr3t is not valid"),
	} {
		client, stop := exampleInsecure(failing{new(oneMachine), failure})
		_, err := client.Configure(ctx, provider.Order{Machine: "web-1", Tenant: "acme"})
		switch {
		case errors.Is(err, provider.ErrRejected):
			fmt.Print("the same again does not help")
		case errors.Is(err, provider.ErrUnavailable):
			fmt.Print("again in a while")
		case errors.Is(err, provider.ErrInternal):
			fmt.Print("ask who runs the provider")
		}
		fmt.Println(", and the text came too:", strings.Contains(err.Error(), failure.Error()))
		stop()
	}
	// Output:
	// the same again does not help, and the text came too: true
	// again in a while, and the text came too: true
	// ask who runs the provider, and the text came too: false
}

// failing is a provider that cannot do what it is told.
type failing struct {
	provider.Machines
	failure error
}

func (p failing) Configure(context.Context, provider.Order) error { return p.failure }
