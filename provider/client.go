package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of a client.
const (
	attemptTime = 30 * time.Second // of a call whose context has no deadline
	lateTries   = 4                // attempts while the fence takes them for copies of older ones
	maxResponse = 4 << 20          // bytes
	maxPages    = 4 * provider.MaxMachines / provider.MaxPage
)

// ClientConfig is what [Dial] needs.
type ClientConfig struct {
	// Target is where the provider is: a gRPC target such as host:port. Required.
	Target string

	// Sender gives every attempt its token, and ends when the process is fenced: there is one
	// in a process, such as that of durable.OpenEpoch in package fence/durable. Required.
	Sender *fence.Sender

	// Ownership returns under which ownership this process has a domain; it is asked at every
	// attempt. Nil: 0, as nobody assigns domains.
	Ownership func(domain string) uint64

	// Source is who this process is, and Expect who must be on the other end. Required, but
	// with Insecure.
	Source credential.Source
	Expect credential.Expect

	// Insecure connects without TLS, to a loopback address alone.
	Insecure bool
}

// Client is a shard's side of a provider. It may be used by several goroutines: attempts for
// one machine wait for each other, as two that raced would fence one another.
//
// Every error matches one outcome: [ErrFenced], [ErrNotFound], [ErrUnavailable],
// [ErrRejected] or [ErrInternal]; of List also [ErrListAnew] or [ErrInvalid].
type Client struct {
	cfg   ClientConfig
	conn  io.Closer
	calls fealtyv1.ProviderServiceClient

	mu    sync.Mutex
	turns map[string]*turn // of machines with attempts under way; guarded by mu
}

type turn struct {
	has chan struct{} // holds one value while somebody has it
	n   int           // who has it, and who waits; guarded by Client.mu
}

// Dial returns a client. It connects with the first call; close it when done.
func Dial(cfg ClientConfig) (*Client, error) {
	if cfg.Sender == nil {
		return nil,
			errors.New("provider: ClientConfig.Sender is missing: without tokens no provider can tell this process from a zombie")
	}
	if cfg.Insecure == (cfg.Source != nil) {
		return nil, errors.New("provider: ClientConfig needs either a Source, or Insecure")
	}
	stamp := &fencegrpc.Client{Sender: cfg.Sender, Rules: rules(), Ownership: func(_ string, request any) uint64 {
		if m, ok := request.(mutation); ok && cfg.Ownership != nil {
			return cfg.Ownership(m.GetDomain())
		}
		return 0
	}}
	options := append(stamp.Options(), grpc.WithChainUnaryInterceptor(promised),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	c := &Client{cfg: cfg, turns: make(map[string]*turn)}
	if cfg.Insecure {
		host, _, err := net.SplitHostPort(cfg.Target)
		if addr, problem := netip.ParseAddr(host); err != nil || problem != nil || !addr.IsLoopback() {
			return nil, fmt.Errorf("provider: dial %s: %w", cfg.Target, provider.ErrNotLoopback)
		}
		conn, err := grpc.NewClient("passthrough:///"+cfg.Target, append(options,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())...)
		if err != nil {
			return nil, fmt.Errorf("provider: dial %s: %w", cfg.Target, err)
		}
		c.conn, c.calls = conn, fealtyv1.NewProviderServiceClient(conn)
		return c, nil
	}
	conn, err := mesh.Dial(cfg.Target, cfg.Source, cfg.Expect, mesh.Options{GRPC: options})
	if err != nil {
		return nil, err
	}
	c.conn, c.calls = conn, fealtyv1.NewProviderServiceClient(conn)
	return c, nil
}

// Close ends all calls.
func (c *Client) Close() error { return c.conn.Close() }

// promiseError is a promise that was refused.
type promiseError struct {
	reason fence.Reason
	err    error
}

func (e *promiseError) Error() string              { return e.err.Error() }
func (e *promiseError) Unwrap() error              { return e.err }
func (e *promiseError) GRPCStatus() *status.Status { return status.Convert(e.err) }
func (e *promiseError) Is(target error) bool       { return e.reason.Matches(target) }

// promised reads why a promise was refused. Of one that does not say why the domain moved
// on: its sender does not act there.
func promised(ctx context.Context, method string, request, response any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	err := invoke(ctx, method, request, response, conn, options...)
	if method != fealtyv1.ProviderService_PromiseDomain_FullMethodName || status.Code(err) != codes.FailedPrecondition {
		return err
	}
	reason := fence.Reason(errorinfo.Reason(err, signed.ErrorDomain))
	if !reason.Fenced() {
		reason = fence.ReasonMoved
	}
	return &promiseError{reason, err}
}

// Promise shows the provider the signed assignment of a domain, as [fence.Assignment.Sign]
// made it. When it returns nil nobody else acts in the domain any more, and the holder may.
func (c *Client) Promise(ctx context.Context, assignment string) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	_, err := c.calls.PromiseDomain(ctx, &fealtyv1.PromiseDomainRequest{Assignment: assignment})
	return failed("promise", "", c.cfg.Sender.Heard(err))
}

// Create has a speculative machine made, and returns the operation's id.
func (c *Client) Create(ctx context.Context, o Order) (operation string, err error) {
	return mutate(ctx, c, create, o, c.calls.CreateMachine, &fealtyv1.CreateMachineRequest{Machine: o.Machine,
		Domain: o.Domain})
}

// Configure gives an idle machine to o.Tenant.
func (c *Client) Configure(ctx context.Context, o Order) (operation string, err error) {
	return mutate(ctx, c, configure, o, c.calls.ConfigureMachine,
		&fealtyv1.ConfigureMachineRequest{Machine: o.Machine, Domain: o.Domain, Tenant: o.Tenant,
			Priority: o.Priority})
}

// Drain takes a machine back from its tenant.
func (c *Client) Drain(ctx context.Context, o Order) (operation string, err error) {
	return mutate(ctx, c, drain, o, c.calls.DrainMachine, &fealtyv1.DrainMachineRequest{Machine: o.Machine,
		Domain: o.Domain})
}

// Delete ends an idle machine.
func (c *Client) Delete(ctx context.Context, o Order) (operation string, err error) {
	return mutate(ctx, c, remove, o, c.calls.DeleteMachine, &fealtyv1.DeleteMachineRequest{Machine: o.Machine,
		Domain: o.Domain})
}

// Get returns a machine as the provider shows it now: what decides anything is out of date
// when it arrives.
func (c *Client) Get(ctx context.Context, machine string) (Machine, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	resp, err := c.calls.GetMachine(ctx, &fealtyv1.GetMachineRequest{Machine: machine})
	if err != nil {
		return Machine{}, failed("get", machine, err)
	}
	m := fromWire(resp.GetMachine())
	if err := m.Validate(); err != nil {
		return Machine{}, err
	}
	if m.ID != machine {
		return Machine{}, &InvalidError{Machine: m.ID, Field: "id",
			Problem: fmt.Sprintf("machine %.80q was asked for", machine)}
	}
	return m, nil
}

// Listing is what a provider has, or what changed.
type Listing struct {
	Machines []Machine // by id
	Gone     []string  // by id; empty in a listing from the beginning
	Revision string    // for the next List
}

// List returns all machines with the revision "", and otherwise what changed since an
// earlier listing. An error that matches [ErrListAnew] asks for the former; one that matches
// [ErrInvalid] refuses the whole listing.
func (c *Client) List(ctx context.Context, revision string) (Listing, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	machines, gone := make(map[string]Machine), make(map[string]struct{})
	fromTheStart := revision == ""
	for range maxPages {
		resp, err := c.calls.ListMachines(ctx, &fealtyv1.ListMachinesRequest{Revision: revision})
		if err != nil {
			return Listing{}, failed("list", "", err)
		}
		if len(resp.GetMachines())+len(resp.GetGone()) > provider.MaxPage || len(resp.GetRevision()) > provider.MaxOperation {
			return Listing{}, &InvalidError{Field: "page", Problem: "it is larger than the contract allows"}
		}
		some := make([]Machine, len(resp.GetMachines()))
		for i, w := range resp.GetMachines() {
			some[i] = fromWire(w)
		}
		if err := ingest(some); err != nil {
			return Listing{}, err
		}
		for _, id := range resp.GetGone() {
			delete(machines, id)
			gone[id] = struct{}{}
		}
		for _, m := range some {
			machines[m.ID] = m
			delete(gone, m.ID)
		}
		if len(machines) > provider.MaxMachines || len(gone) > provider.MaxMachines {
			return Listing{}, &InvalidError{Field: "list", Problem: fmt.Sprintf("it has more than %d machines",
				provider.MaxMachines)}
		}
		if !resp.GetMore() {
			l := Listing{Revision: resp.GetRevision(), Gone: slices.Sorted(maps.Keys(gone))}
			if fromTheStart {
				l.Gone = nil
			}
			for _, id := range slices.Sorted(maps.Keys(machines)) {
				l.Machines = append(l.Machines, machines[id])
			}
			return l, nil
		}
		revision = resp.GetRevision()
	}
	return Listing{}, failed("list", "", status.Errorf(codes.Unavailable, "its %d pages have no end", maxPages))
}

// mutate makes attempts until one is answered, each with a token of its own.
func mutate[Q any, R interface{ GetOperation() string }](ctx context.Context, c *Client, v verb, o Order,
	call func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (string, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	leave, err := c.enter(ctx, o.Machine)
	if err != nil {
		return "", failed(v.name, o.Machine, err)
	}
	defer leave()
	for try := 1; ; try++ {
		resp, err := call(ctx, request)
		if err == nil {
			return resp.GetOperation(), nil
		}
		// An attempt for a machine after another one was deleted may look like a copy of an
		// older attempt. The next token is newer than all of them.
		if refused,
			ok := errors.AsType[*fencegrpc.RefusedError](err); ok && refused.Reason == fence.ReasonLate && try < lateTries {
			continue
		}
		return "", failed(v.name, o.Machine, err)
	}
}

// enter waits for the turn of a machine.
func (c *Client) enter(ctx context.Context, machine string) (leave func(), err error) {
	c.mu.Lock()
	t := c.turns[machine]
	if t == nil {
		t = &turn{has: make(chan struct{}, 1)}
		c.turns[machine] = t
	}
	t.n++
	c.mu.Unlock()
	gone := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.n--; t.n == 0 {
			delete(c.turns, machine)
		}
	}
	select {
	case t.has <- struct{}{}:
		return func() { <-t.has; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, attemptTime)
}

func failed(method, machine string, err error) error {
	if err == nil {
		return nil
	}
	return &callError{method: method, machine: machine, outcome: outcomeOf(err), err: err}
}
