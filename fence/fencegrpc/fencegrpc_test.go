package fencegrpc_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/signed"
)

// machines is a service of the tests: Check acts on the machine that it names, List and
// Watch change nothing.
type machines struct {
	grpc_health_v1.UnimplementedHealthServer

	mu      sync.Mutex
	effects []string
	answer  error // of the next Check
}

func (m *machines) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.effects = append(m.effects, r.GetService())
	answer := m.answer
	m.answer = nil
	return &grpc_health_v1.HealthCheckResponse{}, answer
}

func (m *machines) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return &grpc_health_v1.HealthListResponse{}, nil
}

func (m *machines) Watch(*grpc_health_v1.HealthCheckRequest, grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	return nil
}

func (m *machines) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.effects)
}

func rules() map[string]fencegrpc.Rule {
	return map[string]fencegrpc.Rule{
		grpc_health_v1.Health_Check_FullMethodName: {
			Resource: func(r any) string { return r.(*grpc_health_v1.HealthCheckRequest).GetService() }},
		grpc_health_v1.Health_List_FullMethodName: {},
	}
}

// serve serves machines behind a fence, and returns its address and what was refused.
func serve(t *testing.T, m *machines, alter func(*fencegrpc.Server)) (string, func() []fence.Reason) {
	t.Helper()
	var mu sync.Mutex
	var refused []fence.Reason
	s := &fencegrpc.Server{Gate: fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})), 0),
		Holder: func(context.Context) (string, error) { return "shard-a", nil }, Rules: rules(),
		Refused: func(_ context.Context, err *fence.RefusedError) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err.Reason)
		}}
	if alter != nil {
		alter(s)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.Unary), grpc.StreamInterceptor(s.Stream))
	grpc_health_v1.RegisterHealthServer(server, m)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return l.Addr().String(), func() []fence.Reason {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(refused)
	}
}

func dial(t *testing.T, addr string, options ...grpc.DialOption) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return grpc_health_v1.NewHealthClient(conn)
}

// holder is a client of one life.
func holder(t *testing.T, addr string, life fence.Life, options ...grpc.DialOption) (grpc_health_v1.HealthClient, *fence.Sender) {
	t.Helper()
	s, err := fence.NewSender(life)
	if err != nil {
		t.Fatal(err)
	}
	c := fencegrpc.Client{Sender: s, Rules: rules()}
	return dial(t, addr, append(c.Options(), options...)...), s
}

func machine(name string) *grpc_health_v1.HealthCheckRequest {
	return &grpc_health_v1.HealthCheckRequest{Service: name}
}

// reasonOf returns the reason in a status, as any client sees it.
func reasonOf(err error) fence.Reason {
	return fence.Reason(errorinfo.Reason(err, signed.ErrorDomain))
}

func TestZombie(t *testing.T) {
	m := new(machines)
	addr, refused := serve(t, m, nil)
	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie, sender := holder(t, addr, first)
	successor, _ := holder(t, addr, fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(), Lineage: fence.Lineage{first.Incarnation}})
	ctx := t.Context()
	for _, step := range []struct {
		by grpc_health_v1.HealthClient
		on string
	}{{zombie, "m-1"}, {zombie, "m-1"}, {successor, "m-1"}, {successor, "m-2"}} {
		if _, err := step.by.Check(ctx, machine(step.on)); err != nil {
			t.Fatal(err)
		}
	}
	before := m.seen()
	_, err := zombie.Check(ctx, machine("m-1"))
	if !errors.Is(err, fence.ErrFenced) || status.Code(err) != codes.FailedPrecondition || reasonOf(err) != fence.ReasonStale {
		t.Errorf("the zombie: %v (%s)", err, reasonOf(err))
	}
	<-sender.Fenced()
	if strings.ContainsAny(status.Convert(err).Message(), "0123456789") {
		t.Errorf("the zombie learns a number: %v", err)
	}
	// It does not call again, elsewhere either; it may read.
	if _, err := zombie.Check(ctx, machine("m-9")); !errors.Is(err, fence.ErrFenced) {
		t.Errorf("the zombie elsewhere: %v", err)
	}
	if _, err := zombie.List(ctx, &grpc_health_v1.HealthListRequest{}); err != nil {
		t.Errorf("the zombie reads: %v", err)
	}
	if after := m.seen(); !slices.Equal(before, after) {
		t.Errorf("effects %v, want %v", after, before)
	}
	if r := refused(); !slices.Equal(r, []fence.Reason{fence.ReasonStale}) {
		t.Errorf("the receiver was told of %v", r)
	}
	if _, err := successor.Check(ctx, machine("m-1")); err != nil {
		t.Errorf("the successor: %v", err)
	}
}

// A call that fails is not sent again below the stamping, and one that is made again has a
// token of its own.
func TestNothingIsSentTwice(t *testing.T) {
	m := &machines{answer: status.Error(codes.Unavailable, "try again")}
	addr, _ := serve(t, m, nil)
	retry := grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
		"initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`)
	client, sender := holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()}, retry)
	if _, err := client.Check(t.Context(), machine("m")); status.Code(err) != codes.Unavailable {
		t.Errorf("the first: %v", err)
	}
	if n := len(m.seen()); n != 1 {
		t.Errorf("it was made %d times", n)
	}
	if _, err := client.Check(t.Context(), machine("m")); err != nil || sender.Err() != nil {
		t.Errorf("again: %v, %v", err, sender.Err())
	}
}

// A method that no rule names is called by nobody, at either end.
func TestNoRule(t *testing.T) {
	m := new(machines)
	addr, _ := serve(t, m, func(s *fencegrpc.Server) { delete(s.Rules, grpc_health_v1.Health_List_FullMethodName) })
	bare := dial(t, addr)
	if _, err := bare.List(t.Context(), &grpc_health_v1.HealthListRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method without a rule: %v", err)
	}
	for name, rule := range map[string]*fencegrpc.Rule{"none": nil, "fenced": {Resource: func(any) string { return "m" }}, "reads": {}} {
		addr, _ := serve(t, m, func(s *fencegrpc.Server) {
			if rule != nil {
				s.Rules[grpc_health_v1.Health_Watch_FullMethodName] = *rule
			}
		})
		stream, err := dial(t, addr).Watch(t.Context(), machine("m"))
		if err == nil {
			_, err = stream.Recv()
		}
		if refused := status.Code(err) == codes.Unimplemented; refused == (name == "reads") {
			t.Errorf("a stream whose rule is %s: %v", name, err)
		}
	}
	s, err := fence.NewSender(fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if err != nil {
		t.Fatal(err)
	}
	c := fencegrpc.Client{Sender: s, Rules: map[string]fencegrpc.Rule{}}
	if _, err := dial(t, addr, c.Options()...).Check(t.Context(), machine("m")); !errors.Is(err, fencegrpc.ErrNoRule) {
		t.Errorf("a client without a rule: %v", err)
	}
	if n := len(m.seen()); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// A call that is no claim acts on nothing, and is known by its code.
func TestWhatIsNoClaim(t *testing.T) {
	m := new(machines)
	addr, refused := serve(t, m, nil)
	client := dial(t, addr)
	token := fence.Token{Epoch: 1, Sequence: 1, Incarnation: fence.NewIncarnation()}.String()
	for name, test := range map[string]struct {
		pairs []string
		on    string
	}{
		"no token":        {nil, "m"},
		"two tokens":      {[]string{signed.TokenKey, token, signed.TokenKey, token}, "m"},
		"a bad token":     {[]string{signed.TokenKey, token + "0"}, "m"},
		"a bad lineage":   {[]string{signed.TokenKey, token, signed.LineageKey, "x"}, "m"},
		"two lineages":    {[]string{signed.TokenKey, token, signed.LineageKey, "", signed.LineageKey, ""}, "m"},
		"two grants":      {[]string{signed.TokenKey, token, signed.GrantKey, "a", signed.GrantKey, "b"}, "m"},
		"no resource":     {[]string{signed.TokenKey, token}, ""},
		"an odd resource": {[]string{signed.TokenKey, token}, "m\n"},
		"a huge resource": {[]string{signed.TokenKey, token}, strings.Repeat("m", signed.MaxName+1)},
	} {
		_, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), test.pairs...), machine(test.on))
		if status.Code(err) != codes.InvalidArgument || reasonOf(err) != fence.ReasonMalformed {
			t.Errorf("%s: %v (%s)", name, err, reasonOf(err))
		}
	}
	if n := len(m.seen()); n != 0 || len(refused()) != 9 {
		t.Errorf("%d effects, %v", n, refused())
	}
	// The same token is good.
	if _, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), signed.TokenKey, token), machine("m")); err != nil {
		t.Error(err)
	}
}

// brokenMarks refuse for a reason, or cannot save.
type brokenMarks struct{ err error }

func (b brokenMarks) Check(fence.Claim) error                  { return nil }
func (b brokenMarks) Admit(context.Context, fence.Claim) error { return b.err }
func (b brokenMarks) Forget(context.Context, string) error     { return b.err }
func (b brokenMarks) Promise(context.Context, fence.Verified[fence.Assignment]) error {
	return b.err
}
func (b brokenMarks) DomainOf(string) string { return "" }

// Each reason has its code, and the one of fencing is for nothing else.
func TestCodes(t *testing.T) {
	for reason, code := range map[fence.Reason]codes.Code{
		fence.ReasonStale: codes.FailedPrecondition, fence.ReasonClone: codes.FailedPrecondition, fence.ReasonOwner: codes.FailedPrecondition,
		fence.ReasonDuplicate: codes.FailedPrecondition, fence.ReasonUngranted: codes.PermissionDenied, fence.ReasonUnpromised: codes.Aborted,
		fence.ReasonMoved: codes.FailedPrecondition, fence.ReasonLate: codes.Aborted, fence.ReasonDomain: codes.InvalidArgument, fence.ReasonMalformed: codes.InvalidArgument, fence.ReasonFull: codes.ResourceExhausted,
	} {
		addr, refused := serve(t, new(machines), func(s *fencegrpc.Server) {
			s.Gate = fence.NewGate(brokenMarks{&fence.RefusedError{Reason: reason}}, 0)
		})
		client, sender := holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
		_, err := client.Check(t.Context(), machine("m"))
		if status.Code(err) != code || reasonOf(err) != reason || !errors.Is(err, fence.ErrRefused) ||
			errors.Is(err, fence.ErrFenced) != reason.Fenced() || (sender.Err() != nil) != reason.Ends() {
			t.Errorf("%s: %v (%s), the sender: %v", reason, err, reasonOf(err), sender.Err())
		}
		if r := refused(); !slices.Equal(r, []fence.Reason{reason}) {
			t.Errorf("%s: the receiver was told of %v", reason, r)
		}
	}
	m := new(machines)
	addr, _ := serve(t, m, func(s *fencegrpc.Server) { s.Gate = fence.NewGate(brokenMarks{errors.New("disk full at /secret")}, 0) })
	client, sender := holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if _, err := client.Check(t.Context(), machine("m")); status.Code(err) != codes.Unavailable || sender.Err() != nil ||
		strings.Contains(err.Error(), "secret") || len(m.seen()) != 0 {
		t.Errorf("marks that cannot be saved: %v, %d effects", err, len(m.seen()))
	}
	// A service that uses the code for something else stops nobody.
	m = &machines{answer: status.Error(codes.FailedPrecondition, "not now")}
	addr, _ = serve(t, m, nil)
	client, sender = holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if _, err := client.Check(t.Context(), machine("m")); status.Code(err) != codes.Internal || sender.Err() != nil {
		t.Errorf("a service that answers FAILED_PRECONDITION: %v, %v", err, sender.Err())
	}
	// Nor does one that passes on what another fenced service told it.
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.Aborted, codes.Internal} {
		told, err := status.New(code, "told").WithDetails(&errdetails.ErrorInfo{Reason: "stale", Domain: signed.ErrorDomain},
			&errdetails.ErrorInfo{Reason: "other", Domain: "example"})
		if err != nil {
			t.Fatal(err)
		}
		addr, _ = serve(t, &machines{answer: told.Err()}, nil)
		client, sender = holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
		_, err = client.Check(t.Context(), machine("m"))
		if errors.Is(err, fence.ErrRefused) || sender.Err() != nil || reasonOf(err) != "" || len(status.Convert(err).Details()) != 1 {
			t.Errorf("a service that passes on %v: %v, %v", code, err, status.Convert(err).Details())
		}
		// A client believes a reason under its own code alone.
		addr, _ = serve(t, &machines{answer: told.Err()}, func(s *fencegrpc.Server) {
			s.Rules[grpc_health_v1.Health_Check_FullMethodName] = fencegrpc.Rule{}
		})
		client, sender = holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
		if _, err := client.Check(t.Context(), machine("m")); (sender.Err() != nil) != (code == codes.FailedPrecondition) {
			t.Errorf("told under %v: %v, %v", code, err, sender.Err())
		}
	}
	// And who answers with it, and is no server of ours, has fenced its caller.
	m = &machines{answer: status.Error(codes.FailedPrecondition, "no detail")}
	addr, _ = serve(t, m, func(s *fencegrpc.Server) { s.Rules[grpc_health_v1.Health_Check_FullMethodName] = fencegrpc.Rule{} })
	client, sender = holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if _, err := client.Check(t.Context(), machine("m")); !errors.Is(err, fence.ErrFenced) || sender.Err() == nil {
		t.Errorf("FAILED_PRECONDITION without a reason: %v, %v", err, sender.Err())
	}
}

// A service that passes on what came to itself sends its own token, and a resource is
// forgotten when its removal succeeded.
func TestPassedOnAndRemoved(t *testing.T) {
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	m := new(machines)
	addr, _ := serve(t, m, func(s *fencegrpc.Server) {
		s.Gate = fence.NewGate(fence.InMemory(ledger), 0)
		rule := s.Rules[grpc_health_v1.Health_Check_FullMethodName]
		rule.Removes = true
		s.Rules[grpc_health_v1.Health_Check_FullMethodName] = rule
	})
	client, _ := holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	ctx := metadata.AppendToOutgoingContext(t.Context(), signed.TokenKey, "another", signed.LineageKey, "another", "else", "kept")
	pair := fence.Pair{Holder: "shard-a", Resource: "m"}
	m.answer = status.Error(codes.Internal, "failed")
	if _, err := client.Check(ctx, machine("m")); status.Code(err) != codes.Internal || ledger.Mark(pair).Sequence != 1 {
		t.Errorf("a removal that failed: %v, the mark is at %d", err, ledger.Mark(pair).Sequence)
	}
	if _, err := client.Check(ctx, machine("m")); err != nil || ledger.Mark(pair).Sequence != 0 {
		t.Errorf("a removal: %v, the mark is at %d", err, ledger.Mark(pair).Sequence)
	}
}

// Somebody who is not known acts on nothing.
func TestNobody(t *testing.T) {
	m := new(machines)
	addr, _ := serve(t, m, func(s *fencegrpc.Server) {
		s.Holder = func(context.Context) (string, error) { return "", errors.New("no certificate") }
	})
	client, _ := holder(t, addr, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if _, err := client.Check(t.Context(), machine("m")); status.Code(err) != codes.Unauthenticated || len(m.seen()) != 0 {
		t.Errorf("%v, %d effects", err, len(m.seen()))
	}
}

// A grant travels with the calls, and counts if the authority signed it.
func TestGrants(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, strange, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := new(machines)
	addr, _ := serve(t, m, func(s *fencegrpc.Server) {
		s.Gate = fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{Cluster: "test.example"})), 0)
		s.Authority = fence.Authority{Cluster: "test.example", Key: func(id string) (ed25519.PublicKey, bool) {
			return public, id == fence.KeyID(public)
		}}
	})
	for _, test := range []struct {
		name   string
		holder string
		by     ed25519.PrivateKey
		want   fence.Reason
	}{
		{"no grant", "", nil, fence.ReasonUngranted},
		{"a grant of a stranger", "shard-a", strange, fence.ReasonUngranted},
		{"a grant of somebody else", "shard-b", key, fence.ReasonUngranted},
		{"its grant", "shard-a", key, ""},
		{"its grant, which was seen", "", nil, ""},
	} {
		life := fence.Life{Epoch: fence.NewEpoch(4, 1), Incarnation: fence.Incarnation{1}}
		if test.by != nil {
			if life.Grant, err = (fence.Grant{Cluster: "test.example", Holder: test.holder, Number: 4, AuthorityEpoch: 1}).Sign(test.by); err != nil {
				t.Fatal(err)
			}
		}
		client, _ := holder(t, addr, life)
		if _, err := client.Check(t.Context(), machine("m-"+strings.ReplaceAll(test.name, " ", "-"))); reasonOf(err) != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
