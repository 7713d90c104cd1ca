package provider

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/signed"
)

// service is the server's side of the contract.
type service struct {
	fealtyv1.UnimplementedProviderServiceServer
	cfg  Config
	gate *fence.Gate

	noise ratelimit.NoiseSampler // of handshakes that failed

	reading chan struct{} // buffered, 1: held by who lists; of two lists the older must not come second
	gone    []string      // whose marks are to be forgotten; of who holds reading

	mu    sync.Mutex
	view  *view          // guarded by mu
	calls map[string]int // under way, by holder; guarded by mu
	all   int            // their sum; guarded by mu
}

// mutation is a request that acts on a machine.
type mutation interface {
	GetMachine() string
	GetDomain() string
}

// attempt is a mutation on its way through the fence.
type attempt struct {
	mutation
	domain string // where the machine is, as far as that is known
}

func rules() map[string]fencegrpc.Rule {
	// None removes its machine at once: marks go when the machine is gone, see refresh.
	acts := fencegrpc.Rule{
		Resource: func(r any) string { return r.(mutation).GetMachine() },
		Domain: func(r any) string {
			if at, ok := r.(attempt); ok {
				return at.domain
			}
			return r.(mutation).GetDomain()
		},
	}
	return map[string]fencegrpc.Rule{
		fealtyv1.ProviderService_PromiseDomain_FullMethodName:    {},
		fealtyv1.ProviderService_GetMachine_FullMethodName:       {},
		fealtyv1.ProviderService_ListMachines_FullMethodName:     {},
		fealtyv1.ProviderService_CreateMachine_FullMethodName:    acts,
		fealtyv1.ProviderService_ConfigureMachine_FullMethodName: acts,
		fealtyv1.ProviderService_DrainMachine_FullMethodName:     acts,
		fealtyv1.ProviderService_DeleteMachine_FullMethodName:    acts,
	}
}

// holderOf returns who calls, as the certificate says.
func (s *service) holderOf(ctx context.Context) (string, error) {
	if s.cfg.Insecure {
		return provider.InsecureHolder, nil
	}
	peer := identity.FromContext(ctx)
	switch {
	case peer.Leaf == nil:
		return "", status.Error(codes.Unauthenticated, "provider: the caller shows no certificate")
	case !peer.Identified():
		// It is known, and says not who it is: with no SPIFFE id, or several, it may do nothing.
		return "", status.Errorf(codes.PermissionDenied, "provider: the caller's certificate identifies nobody: %v",
			peer.Err)
	case peer.ID.Kind() != identity.Shard:
		return "", status.Errorf(codes.PermissionDenied, "provider: %s is no shard, and shards alone are served",
			peer.ID)
	}
	return peer.ID.String(), nil
}

// admit turns away a caller that is no shard, or that has too many calls open at once.
func (s *service) admit(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error) {
	holder, err := s.holderOf(ctx)
	if err != nil {
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "a caller was turned away: it is not a shard of the cluster",
			slog.String("method", info.FullMethod), slog.Any("peer", identity.FromContext(ctx)), slog.Any("err", err))
		s.turnedAway(err)
		return nil, err
	}
	s.mu.Lock()
	if s.all >= maxCalls || s.calls[holder] >= maxHolder {
		s.mu.Unlock()
		err := status.Errorf(codes.ResourceExhausted,
			"provider: %d calls at once are served, and %d of one caller: wait for answers", maxCalls, maxHolder)
		s.turnedAway(err)
		return nil, err
	}
	s.all++
	s.calls[holder]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.calls[holder]--; s.calls[holder] == 0 {
			delete(s.calls, holder)
		}
	}()
	return handler(ctx, request)
}

// turnedAway tells of a caller that was not served.
func (s *service) turnedAway(err error) {
	if s.cfg.TurnedAway != nil {
		s.cfg.TurnedAway(err)
	}
}

// fence lets a mutation pass that may be obeyed.
func (s *service) fence(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error) {
	m, acts := request.(mutation)
	if acts {
		domain, err := s.domainOf(ctx, m)
		if err != nil {
			return nil, err
		}
		request = attempt{m, domain}
	}
	f := fencegrpc.Server{Gate: s.gate, Holder: s.holderOf, Rules: rules(), Authority: s.cfg.Authority,
		Refused: func(_ context.Context, err *fence.RefusedError) { s.refused(err) }}
	return f.Unary(ctx, request, info, func(ctx context.Context, request any) (any, error) {
		if at, ok := request.(attempt); ok {
			request = at.mutation
		}
		return handler(ctx, request)
	})
}

// domainOf returns the domain that the fence is asked about: the machine's, which its
// provider declares and no sender can change. Nothing of it is sent to the caller, so it may come
// before the fence: a sender that names another domain than the machine's is told so by the ledger, or
// when it has passed.
func (s *service) domainOf(ctx context.Context, m mutation) (string, error) {
	if s.cfg.Authority.Key == nil || nameFault(m.GetMachine(), false) != "" {
		return "", nil // there are no domains, or the fence refuses the name
	}
	is, err := s.get(ctx, m.GetMachine())
	switch {
	case errors.Is(err, ErrNotFound):
		return m.GetDomain(), nil // and is forgotten again: see mutate
	case err != nil:
		return "", s.answer(ctx, err)
	case is.Domain != m.GetDomain():
		// Under the ownership of another domain nothing is compared with this one's. Every
		// caller can list machines, and learns nothing.
		return "", detailed(codes.InvalidArgument, "refused by the fence: "+string(fence.ReasonDomain),
			signed.ErrorDomain,
			string(fence.ReasonDomain))
	}
	return is.Domain, nil
}

func (s *service) refused(err error) {
	if s.cfg.Refused != nil {
		s.cfg.Refused(err)
	}
}

// answer is the status of an error, which is logged if its text is for nobody else.
func (s *service) answer(ctx context.Context, err error) error {
	answer, internal := statusOf(err)
	if internal {
		s.cfg.Log.ErrorContext(ctx, "the provider failed", "err", err)
	}
	return answer
}

// work returns the context of one call of [Machines] that changes something. It does not end
// with the call, whose caller may be gone: an order that was admitted is not left half accepted.
func work(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), maxWork)
}

// mutate does what an order says, in its turn and behind the fence.
func (s *service) mutate(ctx context.Context, v verb, o Order) (string, error) {
	ctx, cancel := work(ctx)
	defer cancel()
	m, err := s.get(ctx, o.Machine)
	if errors.Is(err, ErrNotFound) {
		// A machine that is not there leaves no mark: names that a sender makes up would fill
		// the ledger, and put a machine that comes later into a domain.
		if err := s.cfg.Marks.Forget(ctx, o.Machine); err != nil {
			return "", s.answer(ctx, fmt.Errorf("provider: forget machine %s, which is not there: %w", o.Machine, err))
		}
	}
	if err != nil {
		return "", s.answer(ctx, err)
	}
	if m.Domain != o.Domain {
		return "", s.answer(ctx, fmt.Errorf("provider: machine %s is in domain %q, and not in %.80q: %w", m.ID,
			m.Domain, o.Domain,
			ErrRejected))
	}
	if v.name == configure.name {
		if problem := nameFault(o.Tenant, false); problem != "" {
			return "", s.answer(ctx, fmt.Errorf("provider: configure machine %s for a tenant: %s: %w", m.ID, problem,
				ErrRejected))
		}
	}
	repeats, err := v.decide(m, o)
	if err != nil || repeats != "" {
		if err != nil {
			err = s.answer(ctx, err)
		}
		return repeats, err
	}
	var unique [12]byte
	_, _ = rand.Read(unique[:]) // never fails (crypto/rand)
	o.Operation = v.target(o) + hex.EncodeToString(unique[:])
	if err := v.act(s.cfg.Machines, ctx, o); err != nil {
		return "", s.answer(ctx, err)
	}
	return o.Operation, nil
}

// get returns a machine that was checked.
func (s *service) get(ctx context.Context, id string) (Machine, error) {
	m, err := s.cfg.Machines.Get(ctx, id)
	if err != nil {
		return Machine{}, err
	}
	m = clipped(m)
	if err := m.Validate(); err != nil {
		return Machine{}, err
	}
	if m.ID != id {
		return Machine{}, &InvalidError{Machine: m.ID, Field: "id",
			Problem: fmt.Sprintf("machine %.80q was asked for", id)}
	}
	return m, nil
}

// clipped bounds the one text that a provider has from elsewhere.
func clipped(m Machine) Machine {
	m.LastError = strings.ToValidUTF8(m.LastError[:min(len(m.LastError), provider.MaxLastError)], "")
	return m
}

// refresh looks at all machines.
func (s *service) refresh(ctx context.Context) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return fmt.Errorf("provider: another list is under way: %w", errors.Join(ErrUnavailable, ctx.Err()))
	}
	machines, err := s.cfg.Machines.List(ctx)
	if err != nil {
		return err
	}
	if len(machines) > provider.MaxMachines {
		return fmt.Errorf("provider: it has %d machines, limit %d: serve them with several providers", len(machines),
			provider.MaxMachines)
	}
	checked := make([]Machine, len(machines))
	for i, m := range machines {
		checked[i] = clipped(m)
	}
	if err := ingest(checked); err != nil {
		return err
	}
	s.mu.Lock()
	gone := s.view.update(checked)
	s.mu.Unlock()
	s.gone = append(s.gone, gone...)
	// The marks go with their machines, and not with the order that ends one: a machine that
	// becomes speculative again keeps them, and so nothing that is on its way at that moment
	// looks like a copy of something older. A mark may go at any time: what is older than it
	// is refused all the same (see [fence.Process]).
	for len(s.gone) > 0 {
		if err := s.cfg.Marks.Forget(ctx, s.gone[0]); err != nil {
			s.cfg.Log.WarnContext(ctx,
				"the marks of machines that are gone could not be forgotten, and are kept until the next list",
				"machines", len(s.gone), "err", err)
			break
		}
		s.gone = s.gone[1:]
	}
	return nil
}

func (s *service) PromiseDomain(ctx context.Context,
	r *fealtyv1.PromiseDomainRequest) (*fealtyv1.PromiseDomainResponse, error) {
	if s.cfg.Authority.Key == nil {
		return nil, status.Error(codes.InvalidArgument,
			"provider: it knows no authority whose assignments count: give it the authority's key")
	}
	assignment, err := s.cfg.Authority.OpenAssignment(r.GetAssignment())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	err = s.gate.Promise(ctx, assignment)
	if refused, ok := errors.AsType[*fence.PromiseError](err); ok {
		s.refused(refused)
		code := codes.InvalidArgument
		if refused.Reason.Fenced() {
			code = codes.FailedPrecondition
		}
		return nil, detailed(code, "refused by the fence: "+string(refused.Reason), signed.ErrorDomain,
			string(refused.Reason))
	}
	switch {
	case err == nil:
		return &fealtyv1.PromiseDomainResponse{}, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	s.cfg.Log.ErrorContext(ctx, "a promise could not be saved", "err", err)
	return nil, status.Error(codes.Unavailable, "provider: the promise was not made, as it could not be saved")
}

func (s *service) CreateMachine(ctx context.Context,
	r *fealtyv1.CreateMachineRequest) (*fealtyv1.CreateMachineResponse, error) {
	operation, err := s.mutate(ctx, create, Order{Machine: r.GetMachine(), Domain: r.GetDomain()})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.CreateMachineResponse{Operation: operation}, nil
}

func (s *service) ConfigureMachine(ctx context.Context,
	r *fealtyv1.ConfigureMachineRequest) (*fealtyv1.ConfigureMachineResponse, error) {
	operation, err := s.mutate(ctx, configure, Order{Machine: r.GetMachine(), Domain: r.GetDomain(),
		Tenant: r.GetTenant(), Priority: r.GetPriority()})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.ConfigureMachineResponse{Operation: operation}, nil
}

func (s *service) DrainMachine(ctx context.Context, r *fealtyv1.DrainMachineRequest) (*fealtyv1.DrainMachineResponse,
	error) {
	operation, err := s.mutate(ctx, drain, Order{Machine: r.GetMachine(), Domain: r.GetDomain()})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.DrainMachineResponse{Operation: operation}, nil
}

func (s *service) DeleteMachine(ctx context.Context,
	r *fealtyv1.DeleteMachineRequest) (*fealtyv1.DeleteMachineResponse, error) {
	operation, err := s.mutate(ctx, remove, Order{Machine: r.GetMachine(), Domain: r.GetDomain()})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.DeleteMachineResponse{Operation: operation}, nil
}

func (s *service) GetMachine(ctx context.Context, r *fealtyv1.GetMachineRequest) (*fealtyv1.GetMachineResponse, error) {
	if problem := nameFault(r.GetMachine(), false); problem != "" {
		return nil, status.Error(codes.InvalidArgument, "provider: the name of a machine: "+problem)
	}
	m, err := s.get(ctx, r.GetMachine())
	if err != nil {
		return nil, s.answer(ctx, err)
	}
	return &fealtyv1.GetMachineResponse{Machine: toWire(m)}, nil
}

func (s *service) ListMachines(ctx context.Context, r *fealtyv1.ListMachinesRequest) (*fealtyv1.ListMachinesResponse,
	error) {
	if err := s.refresh(ctx); err != nil {
		return nil, s.answer(ctx, err)
	}
	s.mu.Lock()
	p, err := s.view.after(r.GetRevision(), int(min(r.GetLimit(), provider.MaxPage)))
	s.mu.Unlock()
	if err != nil {
		return nil, s.answer(ctx, err)
	}
	resp := &fealtyv1.ListMachinesResponse{Gone: p.gone, Revision: p.revision, More: p.more}
	for _, m := range p.machines {
		resp.Machines = append(resp.Machines, toWire(m))
	}
	return resp, nil
}
