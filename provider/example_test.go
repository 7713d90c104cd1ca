package provider_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
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
	var machines provider.Machines // yours
	source, err := credential.NewFiles(credential.FilesConfig{
		Paths: credential.FilePaths{Cert: "tls.crt", Key: "tls.key", CA: "ca.crt"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// EnrolLedger, once, when the provider is made.
	marks, err := durable.OpenLedger("/var/lib/provider/fence", fence.LedgerOptions{Cluster: "prod.example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer marks.Close()
	l, err := net.Listen("tcp", ":7460")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = provider.Serve(context.Background(), l, provider.Config{
		Machines: machines, Marks: marks, Source: source,
		Refused: func(err error) {
			if errors.Is(err, fence.ErrFenced) {
				slog.Error("a zombie was refused", "err", err)
			}
		},
	})
	fmt.Println(err)
}

// A shard stops when it is fenced: it raises an incident, and sends nothing any more.
func ExampleClient() {
	var source credential.Source // such as what an agent was issued
	epoch, err := durable.OpenEpoch("/var/lib/shard/epoch", durable.EpochOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer epoch.Close()
	client, err := provider.Dial(provider.ClientConfig{Target: "p1.example:7460", Sender: epoch.Sender(),
		Source: source, Expect: credential.AnyOfKind(identity.Provider)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	operation, err := client.Configure(context.Background(), provider.Order{Machine: "web-1", Tenant: "acme"})
	switch {
	case errors.Is(err, provider.ErrFenced):
		slog.Error("somebody else is in charge: this process acts no more", "err", err)
	case errors.Is(err, provider.ErrUnavailable):
		// Again in a while: that is safe.
	case err == nil:
		fmt.Println("accepted as", operation)
	}
}
