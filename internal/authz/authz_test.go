package authz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// methods returns every method of the API with its rule.
func methods(t *testing.T, table *Table) map[protoreflect.MethodDescriptor]Rule {
	t.Helper()
	services, err := Services(APIServices()...)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[protoreflect.MethodDescriptor]Rule)
	for _, s := range services {
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			rule, ok := table.rule("/" + string(s.FullName()) + "/" + string(m.Name()))
			if !ok {
				t.Fatalf("%s has no rule", m.FullName())
			}
			all[m] = rule
		}
	}
	return all
}

// request returns a request of m in which the bound field, if any, holds name.
func request(t testing.TB, m protoreflect.MethodDescriptor, rule Rule, name string) proto.Message {
	msg := message(t, m.Input())
	if rule.Bind != "" {
		r := msg.ProtoReflect()
		r.Set(r.Descriptor().Fields().ByName(protoreflect.Name(rule.Bind)), protoreflect.ValueOfString(name))
	}
	return msg
}

// codeOf is the code of the registry that a reason is told with.
// statusOf is the gRPC status that a refused caller is told: Unauthenticated if it showed no identity and could.
func statusOf(r Reason) codes.Code {
	if r == Unauthenticated {
		return codes.Unauthenticated
	}
	return codes.PermissionDenied
}

func codeOf(r Reason) errcode.Code {
	switch r {
	case Unauthenticated:
		return errcode.Unauthenticated
	case Unidentified:
		return errcode.CallerNoIdentity
	case NotItsName:
		return errcode.CallerMismatch
	}
	return errcode.Denied
}

// Every RPC × every kind × every standing × right, wrong and no name, against a
// running server: no cell is left out.
func TestEveryCellOfTheTable(t *testing.T) {
	h := newHarness(t)
	type series struct {
		method string
		reason Reason
	}
	cells, counted := 0, make(map[series]float64)
	for m, rule := range methods(t, h.authz.Table()) {
		for _, kind := range identity.Kinds() {
			for _, s := range situations(t, kind) {
				names := []string{"node-c"}
				if rule.Bind != "" {
					names = append(names, "node-d", "")
				}
				for _, asserted := range names {
					cells++
					want := expected(rule, Self{Cluster: cluster, UID: ownUID}, kind, s, asserted)
					s.peer.Addr = "192.0.2.7:4711"
					got := h.call(m, s.peer, request(t, m, rule, asserted))
					cell := fmt.Sprintf("%s by %s, %s, asserting %q", rule.Method, kind, s.name, asserted)
					if want == "" {
						if got.err != nil || got.received != 1 || got.logged != "" {
							t.Errorf("%s: want it served, got %+v", cell, got)
						}
						continue
					}
					if got.received != 0 {
						t.Errorf("%s: %d messages reached the handler", cell, got.received)
					}
					e, ok := errcode.FromStatus(got.err)
					if status.Code(got.err) != statusOf(want) || !ok || e.Code != codeOf(want) || e.Fields["denied"] != string(want) {
						t.Errorf("%s: told %v, want reason %q", cell, got.err, want)
					}
					counted[series{rule.Method, want}]++
					said := asserted // a stream's first message is not read for a caller without access
					if rule.Bind == "" || (m.IsStreamingClient() || m.IsStreamingServer()) && want != NotItsName {
						said = ""
					}
					checkLog(t, cell, got.logged, rule.Method, want, s.peer, said)
				}
			}
		}
	}
	for k, want := range counted {
		if n := h.denied(k.method, k.reason); n != want {
			t.Errorf("%s, %s: counted %v, want %v", k.method, k.reason, n, want)
		}
	}
	if want := len(h.authz.Table().Rows()) * len(identity.Kinds()) * len(situations(t, identity.Data)); cells < want {
		t.Errorf("%d cells, want at least %d", cells, want)
	}
	t.Logf("%d cells", cells)
}

// checkLog wants one line that says what an operator asks for.
func checkLog(t *testing.T, cell, logged, method string, reason Reason, peer identity.Peer, asserted string) {
	t.Helper()
	var line struct {
		Method, Reason, Asserted string
		Peer                     struct{ Addr, ID, Standing string }
	}
	if err := json.Unmarshal([]byte(logged), &line); err != nil {
		t.Errorf("%s: logged %q: %v", cell, logged, err)
		return
	}
	if line.Method != method || line.Reason != string(reason) || line.Asserted != asserted ||
		line.Peer.Addr != peer.Addr || line.Peer.ID != peer.ID.String() || line.Peer.Standing != peer.LogValue().Group()[0].Value.String() {
		t.Errorf("%s: logged %s", cell, logged)
	}
}

// connect returns the one method that is a bound stream, and a caller for it.
func connect(t *testing.T, h *harness, kind identity.Kind) (protoreflect.MethodDescriptor, identity.Peer) {
	t.Helper()
	for m, rule := range methods(t, h.authz.Table()) {
		if rule.Method == fealtyv1.AgentService_Connect_FullMethodName {
			return m, identity.Peer{ID: mustID(t, cluster, kind, "node-c")}
		}
	}
	t.Fatal("no Connect")
	return nil, identity.Peer{}
}

// serve makes peer the caller, and f the handler of streams; nil counts.
func (h *harness) serve(peer identity.Peer, f func(s grpc.ServerStream, in func() any) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peer, h.stream = peer, f
}

func TestEveryMessageOfAStreamIsBound(t *testing.T) {
	h := newHarness(t)
	m, peer := connect(t, h, identity.Data)
	for _, tt := range []struct {
		names []string
		got   int // messages that reach the handler
		ok    bool
	}{
		{[]string{}, 0, true},
		{[]string{"node-c"}, 1, true},
		{[]string{"node-c", "node-c", "node-c"}, 3, true},
		{[]string{"node-d"}, 0, false},
		{[]string{""}, 0, false},
		{[]string{"node-c", "node-d"}, 1, false},
		{[]string{"node-c", "node-c", ""}, 2, false},
		{[]string{"node-c", "node-d", "node-c"}, 1, false},
	} {
		t.Run(strings.Join(tt.names, ","), func(t *testing.T) {
			h.serve(peer, nil)
			h.mu.Lock()
			h.received = 0
			h.mu.Unlock()
			s, err := h.open(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range tt.names {
				if err := s.SendMsg(&fealtyv1.ConnectRequest{Name: n}); err != nil && err != io.EOF {
					t.Fatal(err)
				}
			}
			s.CloseSend()
			for err = nil; err == nil; {
				err = s.RecvMsg(&fealtyv1.ConnectResponse{})
			}
			if tt.ok != (err == io.EOF) || !tt.ok && status.Code(err) != codes.PermissionDenied {
				t.Errorf("the stream ended with %v", err)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.received != tt.got {
				t.Errorf("%d messages reached the handler, want %d", h.received, tt.got)
			}
		})
	}
}

// The handler may do with the refusal as it likes: the stream is over.
func TestRefusalOfAMessageIsFinal(t *testing.T) {
	h := newHarness(t)
	m, peer := connect(t, h, identity.Shard)
	trouble := make(chan string, 10)
	h.serve(peer, func(s grpc.ServerStream, in func() any) error {
		first := in().(*fealtyv1.ConnectRequest)
		if err := s.RecvMsg(first); err != nil || first.GetName() != "node-c" {
			trouble <- fmt.Sprintf("the first message: %v, %v", first, err)
		}
		if err := s.SendMsg(&fealtyv1.ConnectResponse{}); err != nil {
			trouble <- fmt.Sprintf("an answer to the named caller: %v", err)
		}
		second := in().(*fealtyv1.ConnectRequest)
		if err := s.RecvMsg(second); status.Code(err) != codes.PermissionDenied {
			trouble <- fmt.Sprintf("the second message: %v", err)
		}
		if second.GetName() != "" || second.GetRelease() != "" {
			trouble <- fmt.Sprintf("the handler got %v", second)
		}
		if s.Context().Err() == nil {
			trouble <- "the stream's context goes on"
		}
		third := in().(*fealtyv1.ConnectRequest)
		if err := s.RecvMsg(third); status.Code(err) != codes.PermissionDenied || third.GetName() != "" {
			trouble <- fmt.Sprintf("the third message: %v, %v", third, err)
		}
		if err := s.SendMsg(&fealtyv1.ConnectResponse{}); status.Code(err) != codes.PermissionDenied {
			trouble <- fmt.Sprintf("an answer after the refusal: %v", err)
		}
		return nil // as if nothing had happened
	})
	s, err := h.open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"node-c", "node-d", "node-c"} {
		if err := s.SendMsg(&fealtyv1.ConnectRequest{Name: n, Release: "1"}); err != nil && err != io.EOF {
			t.Fatal(err)
		}
	}
	answers := 0
	for err = nil; err == nil; answers++ {
		err = s.RecvMsg(&fealtyv1.ConnectResponse{})
	}
	if answers != 2 || status.Code(err) != codes.PermissionDenied {
		t.Errorf("%d answers, then %v; want one, then the refusal", answers-1, err)
	}
	close(trouble)
	for s := range trouble {
		t.Error(s)
	}
}

func TestNoAnswerBeforeTheCallerIsNamed(t *testing.T) {
	h := newHarness(t)
	m, peer := connect(t, h, identity.Data)
	h.serve(peer, func(s grpc.ServerStream, _ func() any) error { return s.SendMsg(&fealtyv1.ConnectResponse{}) })
	s, err := h.open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&fealtyv1.ConnectResponse{}); status.Code(err) != codes.Internal {
		t.Errorf("RecvMsg = %v", err)
	}
}

// Methods that nobody serves are refused to everybody, and do not become time
// series.
func TestUnknownMethods(t *testing.T) {
	h := newHarness(t)
	h.peer = identity.Peer{ID: mustID(t, cluster, identity.Admin, "alice")}
	for i, method := range []string{"/fealty.v1.TokenService/Steal", "/fealty.v1.NoSuchService/Get", "/fealty.v1.TokenService/" + strings.Repeat("x", 2000)} {
		err := h.conn.Invoke(t.Context(), method, &fealtyv1.GetStatusRequest{}, &fealtyv1.GetStatusResponse{})
		e, ok := errcode.FromStatus(err)
		if !ok || e.Code != errcode.Denied || e.Fields["denied"] != string(UnknownMethod) || status.Code(err) != codes.PermissionDenied {
			t.Errorf("%.40s: %v", method, err)
		}
		if n := h.denied("unknown", UnknownMethod); n != float64(i+1) {
			t.Errorf("%.40s: counted %v", method, n)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.log.Len() > 3000 {
		t.Errorf("a caller made %d bytes of log", h.log.Len())
	}
}

// A method that is served and has no rule, as after a registration that
// CheckServer did not see.
func TestMethodWithoutARuleIsRefused(t *testing.T) {
	table, err := NewTable(service(t, &fealtyv1.Authorization{Open: true, Why: "because"}))
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(table, Options{ClusterID: func() string { return cluster }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := identity.NewContext(t.Context(), identity.Peer{ID: mustID(t, cluster, identity.Admin, "alice"), Local: &identity.Local{}})
	_, err = a.Unary()(ctx, &fealtyv1.GetStatusRequest{}, &grpc.UnaryServerInfo{FullMethod: fealtyv1.StatusService_GetStatus_FullMethodName}, func(context.Context, any) (any, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("unary: %v", err)
	}
	err = a.Stream()(nil, peerStream{nil, ctx}, &grpc.StreamServerInfo{FullMethod: fealtyv1.AgentService_Connect_FullMethodName}, func(any, grpc.ServerStream) error {
		t.Error("the handler ran")
		return nil
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("stream: %v", err)
	}
}

// A message of another type than the rule was checked for has no name to bind.
func TestMessageOfAnotherTypeIsRefused(t *testing.T) {
	h := newHarness(t)
	ctx := identity.NewContext(t.Context(), identity.Peer{ID: mustID(t, cluster, identity.Data, "node-c")})
	for _, m := range []any{&fealtyv1.LeaveRequest{Name: "node-c"}, &fealtyv1.GetStatusRequest{}, "node-c", nil} {
		_, err := h.authz.Unary()(ctx, m, &grpc.UnaryServerInfo{FullMethod: fealtyv1.AdmissionService_Renew_FullMethodName}, func(context.Context, any) (any, error) {
			t.Errorf("the handler ran with %T", m)
			return nil, nil
		})
		if !errors.Is(err, errcode.Internal) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

// While a coordinator has no cluster yet, an identity of any cluster is foreign.
func TestClusterIsAskedOnEveryCall(t *testing.T) {
	h := newHarness(t)
	client := fealtyv1.NewStatusServiceClient(h.conn)
	h.peer = identity.Peer{ID: mustID(t, cluster, identity.Admin, "alice")}
	for _, c := range []struct {
		cluster string
		want    codes.Code
	}{{"", codes.PermissionDenied}, {cluster, codes.OK}, {"dev.example", codes.PermissionDenied}} {
		h.mu.Lock()
		h.cluster = c.cluster
		h.mu.Unlock()
		if _, err := client.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{}); status.Code(err) != c.want {
			t.Errorf("cluster %q: %v, want %v", c.cluster, err, c.want)
		}
	}
}

// A refused caller is told only of what it showed itself.
func TestRefusalTellsNothing(t *testing.T) {
	h := newHarness(t)
	m, peer := connect(t, h, identity.Data)
	huge := strings.Repeat("x", 100<<10)
	got := h.call(m, peer, &fealtyv1.ConnectRequest{Name: huge})
	if status.Code(got.err) != codes.PermissionDenied || len(got.err.Error()) > 2000 || len(got.logged) > 2000 {
		t.Errorf("a long name makes an error of %d bytes and a log of %d", len(got.err.Error()), len(got.logged))
	}
	// The same words, whether or not the other one exists, and whoever it is.
	a := h.call(m, peer, &fealtyv1.ConnectRequest{Name: "node-d"})
	b := h.call(m, peer, &fealtyv1.ConnectRequest{Name: "node-e"})
	if strings.ReplaceAll(a.err.Error(), "node-d", "node-e") != b.err.Error() {
		t.Errorf("%v\n%v", a.err, b.err)
	}
}

// Strangers who knock all day must not fill the log, nor keep others out of it.
func TestLoggingIsLimited(t *testing.T) {
	table, err := NewTable(service(t, &fealtyv1.Authorization{Kinds: []string{"admin"}, Why: "because"}))
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	now := time.Unix(1800000000, 0)
	reg := prometheus.NewRegistry()
	a, err := New(table, Options{
		ClusterID:  func() string { return cluster },
		Logger:     slog.New(slog.NewJSONHandler(&log, nil)),
		Registerer: reg,
		Now:        func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	knock := func(p identity.Peer) {
		_, err := a.Unary()(identity.NewContext(t.Context(), p), nil, &grpc.UnaryServerInfo{FullMethod: "/test.Service/M0"}, nil)
		if err == nil {
			t.Fatal("admitted")
		}
	}
	for range 10 * logBurst {
		knock(identity.Peer{})
	}
	if n := strings.Count(log.String(), "\n"); n != logBurst {
		t.Errorf("%d lines, want %d", n, logBurst)
	}
	knock(identity.Peer{ID: mustID(t, cluster, identity.Data, "node-c")})
	if !strings.Contains(log.String(), "node-c") {
		t.Error("the flood hides another reason")
	}
	log.Reset()
	now = now.Add(time.Minute)
	knock(identity.Peer{})
	if want := fmt.Sprintf(`"not_logged":%d`, 9*logBurst); !strings.Contains(log.String(), want) {
		t.Errorf("the next line does not say %s: %s", want, log.String())
	}
	h := &harness{t: t, reg: reg}
	if n := h.denied("/test.Service/M0", Unauthenticated); n != 10*logBurst+1 {
		t.Errorf("counted %v", n)
	}
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	table, err := NewTable(service(t, &fealtyv1.Authorization{Open: true, Why: "because"}))
	if err != nil {
		t.Fatal(err)
	}
	empty, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	id := func() string { return cluster }
	reg := prometheus.NewRegistry()
	for name, tt := range map[string]struct {
		table *Table
		opts  Options
		ok    bool
	}{
		"no table":    {nil, Options{ClusterID: id}, false},
		"empty table": {empty, Options{ClusterID: id}, false},
		"no cluster":  {table, Options{}, false},
		"no metrics":  {table, Options{ClusterID: id}, true},
		"one":         {table, Options{ClusterID: id, Registerer: reg}, true},
		"another":     {table, Options{ClusterID: id, Registerer: reg}, true},
	} {
		if _, err := New(tt.table, tt.opts); (err == nil) != tt.ok {
			t.Errorf("%s: New = %v", name, err)
		}
	}
	taken := prometheus.NewRegistry()
	taken.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "fealty_authz_denied_total", Help: "x"}))
	if _, err := New(table, Options{ClusterID: id, Registerer: taken}); err == nil {
		t.Error("New took a name that is taken")
	}
	if len((*Table)(nil).Rows()) != 0 {
		t.Error("a nil table has rows")
	}
}
