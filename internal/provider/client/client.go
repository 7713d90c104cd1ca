// Package client lets a shard call a provider over the API, behind the provider's fence.
//
// Shard and provider have types of their own, as a provider is another program. A value of one that
// the other has no meaning for is an error here.
package client

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/provider"
)

// Provider is one, as a client reaches it.
type Provider struct {
	client *provider.Client
	price  *float64
}

// New returns the provider that a client reaches. price is what each of its machines costs in an
// hour, whatever it says; nil: what it says.
func New(client *provider.Client, price *float64) *Provider { return &Provider{client, price} }

// List returns all machines, or what changed since a revision. When the provider cannot tell
// what changed, all are asked for.
func (p *Provider) List(ctx context.Context, since string) (scheduler.Listing, error) {
	l, err := p.client.List(ctx, since)
	if errors.Is(err, provider.ErrListAnew) && since != "" {
		since = ""
		l, err = p.client.List(ctx, "")
	}
	if err != nil {
		return scheduler.Listing{}, err
	}
	out := scheduler.Listing{Full: since == "", Revision: l.Revision, Removed: l.Gone}
	for _, m := range l.Machines {
		listed := machine(m)
		if p.price != nil {
			listed.Price = *p.price
		}
		out.Machines = append(out.Machines, listed)
	}
	return out, nil
}

func machine(m provider.Machine) scheduler.Machine {
	return scheduler.Machine{
		MachineKey: scheduler.MachineKey{ID: m.ID}, Profile: m.Profile, Domain: m.Domain, State: scheduler.State(m.State),
		Tenant: m.Tenant, Priority: m.Priority, Price: m.PricePerHour,
		Interruption: daily(m.InterruptionProbability), Operation: m.Operation, LastError: m.LastError,
	}
}

// daily is the probability that something happens within a day which happens within an hour
// with this one.
func daily(hourly float64) float64 { return 1 - math.Pow(1-hourly, 24) }

// Create has a machine made.
func (p *Provider) Create(ctx context.Context, o execute.Order) error {
	return outcome(p.client.Create(ctx, order(o)))
}

// Configure gives a machine to a tenant.
func (p *Provider) Configure(ctx context.Context, o execute.Order) error {
	named := order(o)
	named.Tenant, named.Priority = o.Tenant, o.Priority
	return outcome(p.client.Configure(ctx, named))
}

// Drain takes a machine back from its tenant.
func (p *Provider) Drain(ctx context.Context, o execute.Order) error {
	return outcome(p.client.Drain(ctx, order(o)))
}

// Delete ends a machine.
func (p *Provider) Delete(ctx context.Context, o execute.Order) error {
	return outcome(p.client.Delete(ctx, order(o)))
}

func order(o execute.Order) provider.Order {
	return provider.Order{Machine: o.Machine.ID, Domain: o.Domain}
}

// outcome is what became of an order, as execution tells it apart. A refusal of the fence
// stays as it is: it comes first there, whatever else it matches.
func outcome(_ string, err error) error {
	at, ok := errors.AsType[*fencegrpc.RefusedError](err)
	if ok && !at.Reason.Fenced() && at.Reason != fence.ReasonDuplicate {
		// Nothing was done: what needs this machine is to be met by another one.
		return fmt.Errorf("%w: %w", execute.ErrRejected, err)
	}
	for from, to := range map[error]error{
		provider.ErrNotFound: execute.ErrNotFound, provider.ErrUnavailable: execute.ErrUnavailable,
		provider.ErrRejected: execute.ErrRejected,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}
