package conformance_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/provider/conformance"
	"github.com/fealty-io/fealty/internal/signed"
)

// defect is what is wrong with a provider of the tests.
type defect string

const (
	none              defect = "none"
	markPerHolder     defect = "one mark for each sender"
	markAfterEffect   defect = "the mark moves after the effect"
	answerBeforeFence defect = "a repetition is answered before the fence"
	volatileMark      defect = "the mark is gone after a restart"
	equalAccepted     defect = "an equal token is accepted"
	// More than the contract's five.
	existenceFirst defect = "the machine is looked up before the fence"
	markPerMachine defect = "epochs are compared by machines alone"
	cloneAccepted  defect = "the incarnation is not looked at"
	newOperation   defect = "a repetition is a new operation"
	noTenant       defect = "the tenant of a machine is not told"
	listTwice      defect = "a page has a machine twice"
	infinitePrice  defect = "a price is infinite"
	everyRevision  defect = "every revision is believed"
	tokenOptional  defect = "an attempt without a token is obeyed"
	refusedMoves   defect = "a refusal moves the mark"
)

// other is a provider that shares no code with package provider: as one in another language
// would, it follows the proto alone. It is kept in memory, and does everything at once.
type other struct {
	fealtyv1.UnimplementedProviderServiceServer
	defect defect
	// repeated answers a repetition of an attempt; nil: as the contract has it.
	repeated func() error

	mu       sync.Mutex
	machines map[string]*fealtyv1.ProviderMachine
	changed  map[string]int
	changes  int
	marks    map[string]fence.Token // by machine
	process  fence.Token            // the newest of the one sender
}

func newOther(d defect) *other {
	o := &other{defect: d, machines: make(map[string]*fealtyv1.ProviderMachine), changed: make(map[string]int),
		marks: make(map[string]fence.Token)}
	for n := range 40 {
		id := "m-" + strconv.Itoa(n)
		o.machines[id] = &fealtyv1.ProviderMachine{Id: id, Profile: "p", State: fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE}
		o.changes++
		o.changed[id] = o.changes
	}
	if d == infinitePrice {
		o.machines["m-39"].PricePerHour = math.Inf(1)
	}
	return o
}

func refusal(reason fence.Reason) error {
	s, _ := status.New(codes.FailedPrecondition, string(reason)).WithDetails(&errdetails.ErrorInfo{
		Domain: signed.ErrorDomain, Reason: string(reason)})
	return s.Err()
}

// admit is the fence. It returns what notes the attempt.
func (o *other) admit(ctx context.Context, machine string) (note func(), err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var c fence.Claim
	if err := c.Read(fence.Authority{}, md.Get(signed.TokenKey), md.Get(signed.LineageKey), nil); err != nil {
		if o.defect == tokenOptional && len(md.Get(signed.TokenKey)) == 0 {
			return func() {}, nil
		}
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	t, key := c.Token, machine
	if o.defect == markPerHolder {
		key = ""
	}
	mark, process := o.marks[key], o.process
	if o.defect == markPerMachine {
		process = mark
	}
	note = func() {
		o.marks[key] = t
		if t.Epoch >= o.process.Epoch {
			o.process = t
		}
	}
	refuse := func(reason fence.Reason) (func(), error) {
		if o.defect == refusedMoves && reason == fence.ReasonClone {
			o.marks[key] = t
		}
		return nil, refusal(reason)
	}
	switch {
	case t.Epoch < process.Epoch:
		return refuse(fence.ReasonStale)
	case t.Epoch == process.Epoch && t.Incarnation != process.Incarnation && o.defect != cloneAccepted:
		return refuse(fence.ReasonClone)
	case t.Epoch != mark.Epoch:
	case t.Sequence < mark.Sequence:
		return refuse(fence.ReasonStale)
	case t.Sequence == mark.Sequence && o.defect == equalAccepted:
	case t.Sequence == mark.Sequence && t.Digest == mark.Digest && o.repeated != nil:
		return nil, o.repeated()
	case t.Sequence == mark.Sequence && t.Digest == mark.Digest:
		return refuse(fence.ReasonDuplicate)
	case t.Sequence == mark.Sequence:
		return refuse(fence.ReasonClone)
	}
	return note, nil
}

func (o *other) mutate(ctx context.Context, verb, id, tenant string, from, to fealtyv1.MachineState) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id == "" || len(id) > 253 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", status.Error(codes.InvalidArgument, "no name")
	}
	m, there := o.machines[id]
	target := verb + "/" + tenant + "/"
	repeats := there && m.GetState() == to && strings.HasPrefix(m.GetOperation(), target)
	if o.defect == answerBeforeFence && repeats {
		return m.GetOperation(), nil
	}
	if o.defect == existenceFirst && !there {
		return "", status.Error(codes.NotFound, id)
	}
	note, err := o.admit(ctx, id)
	if err != nil {
		return "", err
	}
	if o.defect != markAfterEffect {
		note()
	}
	switch {
	case !there:
		return "", status.Error(codes.NotFound, id)
	case repeats && o.defect != newOperation:
		note()
		return m.GetOperation(), nil
	case repeats:
	case m.GetState() != from, verb == "configure" && tenant == "":
		return "", status.Error(codes.InvalidArgument, m.GetState().String())
	}
	note()
	o.changes++
	o.changed[id] = o.changes
	m.State, m.Tenant, m.Operation = to, tenant, target+strconv.Itoa(o.changes)
	if o.defect == noTenant {
		m.Tenant = ""
	}
	return m.GetOperation(), nil
}

const (
	speculative = fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE
	idle        = fealtyv1.MachineState_MACHINE_STATE_IDLE
	configured  = fealtyv1.MachineState_MACHINE_STATE_CONFIGURED
)

func (o *other) CreateMachine(ctx context.Context, r *fealtyv1.CreateMachineRequest) (*fealtyv1.CreateMachineResponse, error) {
	operation, err := o.mutate(ctx, "create", r.GetMachine(), "", speculative, idle)
	return &fealtyv1.CreateMachineResponse{Operation: operation}, err
}

func (o *other) ConfigureMachine(ctx context.Context, r *fealtyv1.ConfigureMachineRequest) (
	*fealtyv1.ConfigureMachineResponse, error) {
	operation, err := o.mutate(ctx, "configure", r.GetMachine(), r.GetTenant(), idle, configured)
	return &fealtyv1.ConfigureMachineResponse{Operation: operation}, err
}

func (o *other) DrainMachine(ctx context.Context, r *fealtyv1.DrainMachineRequest) (*fealtyv1.DrainMachineResponse, error) {
	operation, err := o.mutate(ctx, "drain", r.GetMachine(), "", configured, idle)
	return &fealtyv1.DrainMachineResponse{Operation: operation}, err
}

func (o *other) DeleteMachine(ctx context.Context, r *fealtyv1.DeleteMachineRequest) (*fealtyv1.DeleteMachineResponse, error) {
	operation, err := o.mutate(ctx, "delete", r.GetMachine(), "", idle, speculative)
	return &fealtyv1.DeleteMachineResponse{Operation: operation}, err
}

func (o *other) GetMachine(_ context.Context, r *fealtyv1.GetMachineRequest) (*fealtyv1.GetMachineResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m, ok := o.machines[r.GetMachine()]
	if !ok {
		return nil, status.Error(codes.NotFound, r.GetMachine())
	}
	return &fealtyv1.GetMachineResponse{Machine: proto.CloneOf(m)}, nil
}

func (o *other) ListMachines(_ context.Context, r *fealtyv1.ListMachinesRequest) (*fealtyv1.ListMachinesResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since := 0
	if r.GetRevision() != "" {
		var err error
		if since, err = strconv.Atoi(r.GetRevision()); err != nil && o.defect != everyRevision {
			s, _ := status.New(codes.OutOfRange, "").WithDetails(&errdetails.ErrorInfo{Domain: "provider.fealty.io", Reason: "list-anew"})
			return nil, s.Err()
		}
	}
	resp := &fealtyv1.ListMachinesResponse{Revision: strconv.Itoa(o.changes)}
	limit := int(r.GetLimit())
	if limit == 0 || limit > 1000 {
		limit = 1000
	}
	for _, id := range slices.SortedFunc(maps.Keys(o.machines), func(a, b string) int { return o.changed[a] - o.changed[b] }) {
		switch {
		case o.changed[id] <= since:
		case len(resp.GetMachines()) == limit:
			resp.More = true
			return resp, nil
		default:
			resp.Machines = append(resp.Machines, proto.CloneOf(o.machines[id]))
			resp.Revision = strconv.Itoa(o.changed[id])
		}
	}
	if o.defect == listTwice && limit == 1000 && len(resp.GetMachines()) > 0 {
		resp.Machines = append(resp.Machines, resp.GetMachines()[0])
	}
	return resp, nil
}

func (o *other) restart(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.defect == volatileMark {
		o.marks, o.process = make(map[string]fence.Token), fence.Token{}
	}
	return nil
}

// serve serves a provider without TLS, and returns a connection to it.
func serve(t *testing.T, p fealtyv1.ProviderServiceServer) grpc.ClientConnInterface {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	fealtyv1.RegisterProviderServiceServer(server, p)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return conn
}

// check returns the cases that were broken, each with what was seen, and those not run.
func check(t *testing.T, target conformance.Target) (broken map[string]string, notRun []string) {
	t.Helper()
	broken = make(map[string]string)
	err := conformance.Check(t.Context(), target, func(r conformance.Result) {
		switch r.Outcome {
		case conformance.Broken:
			broken[r.Case] = r.Why
		case conformance.NotRun:
			notRun = append(notRun, r.Case)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return broken, notRun
}

// Each defect is found by the case that names it, and by no other. A provider without one
// passes, though it shares no code with ours.
func TestDefects(t *testing.T) {
	t.Parallel()
	for defect, want := range map[defect][]string{
		none:              {},
		markPerHolder:     {"one-live-sender"},
		markAfterEffect:   {"used-up-by-failure"},
		answerBeforeFence: {"fence-before-idempotency"},
		volatileMark:      {"marks-outlive-restart"},
		equalAccepted:     {"equal-token"},
		existenceFirst:    {"fence-before-existence"},
		markPerMachine:    {"stale-epoch-elsewhere"},
		cloneAccepted:     {"clone"},
		newOperation:      {"repeated"},
		noTenant:          {"states"},
		listTwice:         {"list"},
		infinitePrice:     {"list"},
		everyRevision:     {"increments"},
		tokenOptional:     {"malformed-token"},
		refusedMoves:      {"refusal-moves-nothing"},
	} {
		t.Run(string(defect), func(t *testing.T) {
			t.Parallel()
			o := newOther(defect)
			broken, _ := check(t, conformance.Target{Conn: serve(t, o), Holder: "somebody", Restart: o.restart})
			if got := slices.Sorted(maps.Keys(broken)); !slices.Equal(got, want) {
				t.Errorf("broken: %v, want %v", broken, want)
			}
			for name, why := range broken {
				t.Logf("%s: %s", name, why)
			}
		})
	}
}

// A provider need give no reason; one of the fence's has to be right. What is in the details of
// another domain is not the fence's, whatever it is called.
func TestReasonsAreOfTheFence(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, domain string
		reason       fence.Reason
		right        bool
	}{
		{"the reason", signed.ErrorDomain, fence.ReasonDuplicate, true},
		{"another reason", signed.ErrorDomain, fence.ReasonStale, false},
		{"none", "", "", true},
		{"another reason of another domain", "provider.example", fence.ReasonStale, true},
		{"another reason of a domain that looks like it", signed.ErrorDomain + ".example", fence.ReasonStale, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := newOther(none)
			o.repeated = func() error {
				s := status.New(codes.FailedPrecondition, "seen before")
				if tc.domain != "" {
					s, _ = s.WithDetails(&errdetails.ErrorInfo{Domain: tc.domain, Reason: string(tc.reason)})
				}
				return s.Err()
			}
			broken, _ := check(t, conformance.Target{Conn: serve(t, o), Holder: "somebody", Restart: o.restart})
			if (len(broken) == 0) != tc.right {
				t.Errorf("broken: %v, want none: %v", broken, tc.right)
			}
		})
	}
}

// A target that has not what a case needs is told so, and no case is kept by not being run.
func TestNotRun(t *testing.T) {
	t.Parallel()
	_, notRun := check(t, conformance.Target{Conn: serve(t, newOther(none)), Holder: "somebody"})
	if want := []string{"marks-outlive-restart", "promise", "unpromised", "unsigned-promise"}; !slices.Equal(notRun, want) {
		t.Errorf("not run: %v, want %v", notRun, want)
	}
	few := newOther(none)
	few.machines = map[string]*fealtyv1.ProviderMachine{"m-0": few.machines["m-0"]}
	in := newOther(none)
	for _, m := range in.machines {
		m.Domain = "rack-1"
	}
	for want, o := range map[error]*other{conformance.ErrTooFew: few, conformance.ErrDomains: in} {
		err := conformance.Check(t.Context(), conformance.Target{Conn: serve(t, o), Holder: "somebody"}, func(r conformance.Result) {
			t.Errorf("case %s was run", r.Case)
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// Every case has a name and a rule of its own.
func TestCases(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, c := range conformance.Cases() {
		if c.Name == "" || c.Rule == "" || seen[c.Name] || seen[c.Rule] {
			t.Errorf("case %q, %q stands twice, or says too little", c.Name, c.Rule)
		}
		seen[c.Name], seen[c.Rule] = true, true
	}
}
