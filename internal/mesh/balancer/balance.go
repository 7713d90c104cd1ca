package balancer

import (
	"errors"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

// Policy is the name of the balancing policy under which gRPC knows it: calls go in turn to the
// endpoints that are ready. One that fails is skipped, and tried again with gRPC's backoff; it
// counts as failing until it is ready (gRFC A62), so that no call waits for it while another one
// could serve it. Calls fail when each endpoint has failed since it was last ready.
const Policy = "mesh_ready"

// ServiceConfig asks gRPC for the policy.
const ServiceConfig = `{"loadBalancingConfig":[{"` + Policy + `":{}}]}`

func init() { balancer.Register(policy{}) } // in init, as gRPC demands

// Owner is the client whose endpoints are balanced. Its transport credentials are one.
type Owner interface {
	// Resolved is told which addresses the set has from now on, and which are not used.
	Resolved(addresses []string, left []LeftOut)

	// Mark returns a comparable value: when it changes, calls take fresh connections, and those
	// that run end on the ones of before. changed is closed then; nil: it never does.
	Mark() (mark any, changed <-chan struct{})
}

// nobody owns a client with other credentials.
type nobody struct{}

func (nobody) Resolved([]string, []LeftOut) {}
func (nobody) Mark() (any, <-chan struct{}) { return nil, nil }

type policy struct{}

func (policy) Name() string { return Policy }

func (policy) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	cc = draining{cc}
	b := &balance{cc: cc, owner: nobody{}, closed: make(chan struct{}),
		child: endpointsharding.NewBalancer(cc, opts, balancer.Get(pickfirst.Name).Build, endpointsharding.Options{})}
	if owner, ok := opts.DialCreds.(Owner); ok {
		b.owner = owner
	}
	var changed <-chan struct{}
	if b.mark, changed = b.owner.Mark(); changed != nil {
		go b.follow(changed)
	}
	return b
}

// balance is the policy of one client.
type balance struct {
	cc     balancer.ClientConn
	owner  Owner
	closed chan struct{}

	// mu serializes calls of child, which gRPC does too, but for those that follow makes.
	mu    sync.Mutex
	child balancer.Balancer
	last  *balancer.ClientConnState // what was resolved last; nil: nothing, or closed; guarded by mu
	mark  any                       // guarded by mu
}

// follow renews the connections when the owner's mark changes, until the balancer is closed.
func (b *balance) follow(changed <-chan struct{}) {
	for changed != nil {
		select {
		case <-b.closed:
			return
		case <-changed:
		}
		var mark any
		mark, changed = b.owner.Mark()
		b.mu.Lock()
		if mark != b.mark {
			if b.mark = mark; b.last != nil {
				_ = b.update() // a set of none, which was reported when it came
			}
		}
		b.mu.Unlock()
	}
}

var errNone = errors.New("no endpoint is left: none was resolved, or each advertises that it speaks no TLS")

// UpdateClientConnState is told what was resolved.
func (b *balance) UpdateClientConnState(s balancer.ClientConnState) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = &s
	return b.update()
}

// update hands to child what it is to use. The caller holds mu.
func (b *balance) update() error {
	s := *b.last
	use, addresses, left := Choose(s.ResolverState.Endpoints)
	b.owner.Resolved(addresses, left)
	if b.mark != nil {
		for i, e := range use {
			fresh := make([]resolver.Address, len(e.Addresses))
			for k, a := range e.Addresses {
				a.Attributes = a.Attributes.WithValue(markKey{}, b.mark)
				fresh[k] = a
			}
			use[i].Addresses = fresh
		}
	}
	s.BalancerConfig = nil // of this policy, and not of child's
	s.ResolverState.Addresses, s.ResolverState.Endpoints = nil, use
	err := b.child.UpdateClientConnState(s)
	if len(use) == 0 {
		b.fail(errNone)
	}
	return err
}

// fail has calls fail with err.
func (b *balance) fail(err error) {
	b.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure,
		Picker: base.NewErrPicker(err)})
}

// markKey is the attribute by which gRPC tells an address with another mark from the one of
// before: it takes a fresh connection to it.
type markKey struct{}

// ResolverError is told that nothing could be resolved; what was resolved before stays.
func (b *balance) ResolverError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.child.ResolverError(err)
	if b.last == nil {
		b.fail(err)
	}
}

// UpdateSubConnState is not called: each connection has a listener.
func (b *balance) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle has child connect.
func (b *balance) ExitIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.child.ExitIdle()
}

// Close ends the policy.
func (b *balance) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.closed)
	b.last = nil
	b.child.Close()
}
