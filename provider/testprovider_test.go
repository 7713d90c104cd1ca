package provider_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/provider"
)

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// exampleSource is who a process is, as an agent has it.
func exampleSource(authority *pkitest.Authority, kind identity.Kind, name string) credential.Source {
	tb := exampleTB{}
	chain, key := authority.Issue(tb, authority.ID(tb, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		panic(err)
	}
	return credential.Static(m)
}

// exampleServe serves a provider until stop is called.
func exampleServe(cfg provider.Config) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	cfg.Marks = fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true}))
	cfg.Log = slog.New(slog.DiscardHandler)
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- provider.Serve(ctx, l, cfg) }()
	return l.Addr().String(), func() {
		end()
		if err := <-served; err != nil {
			panic(err)
		}
	}
}

// exampleProvider is provider/p1 with one machine.
func exampleProvider(authority *pkitest.Authority) (addr string, stop func()) {
	source := exampleSource(authority, identity.Provider, "p1")
	return exampleServe(provider.Config{Machines: new(oneMachine), Source: source})
}

// exampleInsecure is a client of machines, and what ends both.
func exampleInsecure(machines provider.Machines) (client *provider.Client, stop func()) {
	addr, end := exampleServe(provider.Config{Machines: machines, Insecure: true})
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()})
	if err == nil {
		client, err = provider.Dial(provider.ClientConfig{Target: addr, Sender: sender, Insecure: true})
	}
	if err != nil {
		panic(err)
	}
	return client, func() {
		client.Close()
		end()
	}
}

// exampleClient is shard/eu-1 in a life of its own.
func exampleClient(authority *pkitest.Authority, addr string, epoch fence.Epoch,
	before ...fence.Incarnation) *provider.Client {
	sender, err := fence.NewSender(fence.Life{Epoch: epoch, Incarnation: fence.NewIncarnation(), Lineage: before})
	if err != nil {
		panic(err)
	}
	client, err := provider.Dial(provider.ClientConfig{Target: addr, Sender: sender,
		Source: exampleSource(authority, identity.Shard, "eu-1"), Expect: credential.AnyOfKind(identity.Provider)})
	if err != nil {
		panic(err)
	}
	return client
}

// exampleSuccessor takes over from a life of shard/eu-1.
func exampleSuccessor(authority *pkitest.Authority, addr string, life fence.Life) {
	client := exampleClient(authority, addr, life.Epoch+1, life.Incarnation)
	defer client.Close()
	_, _ = client.Drain(context.Background(), provider.Order{Machine: "web-1"})
}
