package provider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Order is what is to be done with one machine.
type Order struct {
	Machine string

	// Domain is where the sender takes the machine to be; "": in no domain.
	Domain string

	// Tenant is the tenant of a Configure; "" for other orders.
	Tenant string

	// Priority of a Configure is kept with the tenant, and shown with the machine: a shard that
	// is started again reads there how urgent the demand is that the machine meets.
	Priority int32

	// Operation is what the order is known by from now on. [Serve] gives it; a [Client]
	// leaves it empty, and returns it.
	Operation string
}

// Machines is what a provider implements; [Serve] calls it. Its methods may be called
// concurrently, those that change a machine one at a time for each.
//
// Create, Configure, Drain and Delete accept an order: they return soon, when the machine
// has its next state and the order's Operation, and a restart would not forget either. The
// work goes on after that, and ends in the state behind it, or in [Failed]. Orders come in
// states that allow them alone, so that an implementation need not look: Create of a
// machine that is Speculative, Configure of one that is Idle, Drain of one that is
// Configuring or Configured, Delete of one that is Idle or Failed, and each of one that
// Failed in the same.
//
// Errors match [ErrNotFound], [ErrUnavailable] or [ErrRejected], and then their text is
// shown to the caller; any other is logged, and shown as [ErrInternal]. With an error the
// machine is as it was.
type Machines interface {
	// Get returns one machine, or an error that matches [ErrNotFound].
	Get(ctx context.Context, id string) (Machine, error)

	// List returns all machines, the speculative ones included, in any order; at most
	// 100,000.
	List(ctx context.Context) ([]Machine, error)

	Create(ctx context.Context, o Order) error    // to Creating, then Idle
	Configure(ctx context.Context, o Order) error // to Configuring, then Configured for o.Tenant
	Drain(ctx context.Context, o Order) error     // to Draining, then Idle
	Delete(ctx context.Context, o Order) error    // to Deleting, then Speculative, or gone
}

// verb is one kind of mutation.
type verb struct {
	name   string
	from   []State // from which it may begin
	within []State // in which it is under way, or done
	act    func(Machines, context.Context, Order) error
}

var (
	create    = verb{"create", []State{Speculative}, []State{Creating, Idle}, Machines.Create}
	configure = verb{"configure", []State{Idle}, []State{Configuring, Configured}, Machines.Configure}
	drain     = verb{"drain", []State{Configuring, Configured}, []State{Draining, Idle}, Machines.Drain}
	remove    = verb{"delete", []State{Idle}, []State{Deleting, Speculative}, Machines.Delete}
)

// target is what an operation is for. It stands in the operation's id, which the machine
// keeps: so a repetition is known for one after any restart, and nothing else has to be
// remembered.
func (v verb) target(o Order) string {
	sum := sha256.Sum256([]byte(v.name + "\n" + o.Machine + "\n" + o.Tenant))
	return v.name + "-" + hex.EncodeToString(sum[:8]) + "-"
}

// decide says what an order comes to: the operation that it repeats, or "" if it is new and
// may begin; otherwise the error matches [ErrRejected].
func (v verb) decide(m Machine, o Order) (repeats string, err error) {
	if slices.Contains(v.within, m.State) && strings.HasPrefix(m.Operation, v.target(o)) {
		return m.Operation, nil
	}
	if slices.Contains(v.from, m.State) || m.State == Failed && v.mends(m.Operation) {
		return "", nil
	}
	return "",
		fmt.Errorf("provider: %s of machine %s, which is %s: it can begin where that is %s, or failed in the same: %w",
			v.name, m.ID, m.State, oneOf(v.from), ErrRejected)
}

// mends reports whether v may begin at a machine that failed in an operation: every one can
// be tried again, what failed on the way to a tenant can be drained, and all can be deleted.
func (v verb) mends(operation string) bool {
	failed, _, _ := strings.Cut(operation, "-")
	return v.name == remove.name || v.name == failed || v.name == drain.name && failed == configure.name
}

func oneOf(states []State) string {
	words := make([]string, len(states))
	for i, s := range states {
		words[i] = string(s)
	}
	return strings.Join(words, " or ")
}
