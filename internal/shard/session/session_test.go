package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
	"github.com/fealty-io/fealty/internal/shard/session/sessiontest"
	"github.com/fealty-io/fealty/test/logs"
)

const cluster = "test.example"

// serve serves sessions at a desk to whom peer says, with the authorization of the API
// before them or without.
type serve struct {
	t        *testing.T
	desk     *sessiontest.Desk
	sessions *session.Server
	log      *logs.Text
	conn     *grpc.ClientConn

	mu   sync.Mutex
	peer identity.Peer
}

type asPeer struct {
	grpc.ServerStream
	ctx context.Context
}

func (s asPeer) Context() context.Context { return s.ctx }

func start(t *testing.T, authorized bool) *serve {
	t.Helper()
	return startWith(t, authorized, session.Config{})
}

func startWith(t *testing.T, authorized bool, cfg session.Config) *serve {
	t.Helper()
	s := &serve{t: t, desk: sessiontest.NewDesk(), log: new(logs.Text)}
	s.as(identity.Operator, "red")
	log := s.log.Logger(slog.LevelInfo)
	cfg.Name, cfg.Shard, cfg.Term, cfg.Log = "s1", s.desk, func() int64 { return 7 }, log
	sessions, err := session.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.sessions = sessions
	chain := []grpc.StreamServerInterceptor{func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		s.mu.Lock()
		ctx := identity.NewContext(stream.Context(), s.peer)
		s.mu.Unlock()
		return next(srv, asPeer{stream, ctx})
	}}
	if authorized {
		services, err := authz.Services(fealtyv1.ShardService_ServiceDesc.ServiceName)
		if err != nil {
			t.Fatal(err)
		}
		table, err := authz.NewTable(services...)
		if err != nil {
			t.Fatal(err)
		}
		guard, err := authz.New(table, authz.Options{ClusterID: func() string { return cluster }, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, guard.Stream())
	}
	server := grpc.NewServer(grpc.ChainStreamInterceptor(chain...), grpc.WaitForHandlers(true))
	fealtyv1.RegisterShardServiceServer(server, sessions)
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.conn, err = grpc.NewClient("passthrough:bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
		sessions.Wait()
		if sessions.Open() != 0 {
			t.Errorf("%d sessions are left", sessions.Open())
		}
	})
	return s
}

func (s *serve) as(kind identity.Kind, name string) {
	id, err := identity.New(cluster, kind, name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = identity.Peer{ID: id}
}

// line is an operator's end of a session.
type line struct {
	t      *testing.T
	stream fealtyv1.ShardService_SessionClient
}

func (s *serve) dial() *line {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute) // for who waits for nothing
	s.t.Cleanup(cancel)
	stream, err := fealtyv1.NewShardServiceClient(s.conn).Session(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return &line{s.t, stream}
}

// session opens one for tenant red, and takes what it begins with.
func (s *serve) session() *line {
	s.t.Helper()
	l := s.dial()
	l.say(hello(1))
	if w := l.hear().GetWelcome(); w.GetShard() != "s1" || w.GetTerm() != 7 {
		s.t.Fatalf("welcome: %v", w)
	}
	if l.hear().GetCapacity() == nil {
		s.t.Fatal("no capacity after the welcome")
	}
	return l
}

func (l *line) say(req *fealtyv1.SessionRequest) {
	l.t.Helper()
	if req.GetTenant() == "" {
		req.Tenant = "red"
	}
	if err := l.stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		l.t.Fatal(err)
	}
}

func (l *line) hear() *fealtyv1.SessionResponse {
	l.t.Helper()
	got, err := l.stream.Recv()
	if err != nil {
		l.t.Fatal(err)
	}
	return got
}

// ends fails unless the session ends with a code, after whatever it says.
func (l *line) ends(name string, want codes.Code) {
	l.t.Helper()
	for {
		if _, err := l.stream.Recv(); err != nil {
			if status.Code(err) != want {
				l.t.Errorf("%s: %v, want %v", name, err, want)
			}
			return
		}
	}
}

func hello(run uint64) *fealtyv1.SessionRequest {
	return &fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Hello{Hello: &fealtyv1.SessionHello{Run: run}}}
}

func rollUp(number uint64, rows ...*fealtyv1.DemandRow) *fealtyv1.SessionRequest {
	return &fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_RollUp{RollUp: &fealtyv1.DemandRollUp{Number: number, Rows: rows}}}
}

func row(profile string, count uint32) *fealtyv1.DemandRow {
	return &fealtyv1.DemandRow{Profile: profile, Priority: 5, Count: count}
}

func acknowledge(number uint64) *fealtyv1.SessionRequest {
	return &fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Acknowledgement{
		Acknowledgement: &fealtyv1.SessionAcknowledgement{Number: number}}}
}

func release(machine string) *fealtyv1.SessionRequest {
	return &fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Release{
		Release: &fealtyv1.MachineRelease{Provider: "p", Machine: machine}}}
}

// A caller that speaks for a tenant that is not its own is refused, in the first message and in
// any later one, with the authorization of the API before the server and without; it is
// logged, and counted.
func TestForged(t *testing.T) {
	forged := func(req *fealtyv1.SessionRequest) *fealtyv1.SessionRequest { req.Tenant = "blue"; return req }
	for name, tt := range map[string]struct {
		kind identity.Kind
		name string
		says []*fealtyv1.SessionRequest
	}{
		"another tenant":              {identity.Operator, "red", []*fealtyv1.SessionRequest{forged(hello(1))}},
		"another tenant later":        {identity.Operator, "red", []*fealtyv1.SessionRequest{hello(1), forged(rollUp(1))}},
		"another tenant's notice":     {identity.Operator, "red", []*fealtyv1.SessionRequest{hello(1), forged(acknowledge(1))}},
		"another tenant's machine":    {identity.Operator, "red", []*fealtyv1.SessionRequest{hello(1), forged(release("m"))}},
		"no operator":                 {identity.Data, "red", []*fealtyv1.SessionRequest{hello(1)}},
		"an admin is none":            {identity.Admin, "red", []*fealtyv1.SessionRequest{hello(1)}},
		"a provider of the same name": {identity.Provider, "red", []*fealtyv1.SessionRequest{hello(1)}},
	} {
		for _, authorized := range []bool{true, false} {
			s := start(t, authorized)
			s.as(tt.kind, tt.name)
			l := s.dial()
			for _, req := range tt.says {
				l.say(req)
			}
			l.ends(name, codes.PermissionDenied)
			if refused := s.sessions.Refused(); !authorized && (refused != 1 || !s.log.Has("somebody spoke for a tenant")) ||
				authorized && (refused != 0 || !s.log.Has("level=WARN") && !s.log.Has("level=ERROR")) {
				t.Errorf("%s: %d are counted, with authorization: %v", name, refused, authorized)
			}
			if rows := s.desk.Rows(); len(rows) != 0 {
				t.Errorf("%s: it counts: %v", name, rows)
			}
		}
	}
	s := start(t, false)
	s.mu.Lock()
	s.peer = identity.Peer{}
	s.mu.Unlock()
	l := s.dial()
	l.say(hello(1))
	l.ends("nobody", codes.PermissionDenied)
}

// A stream that is no session ends, and says why.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		says []*fealtyv1.SessionRequest
		want codes.Code
	}{
		"no hello":              {[]*fealtyv1.SessionRequest{rollUp(1)}, codes.InvalidArgument},
		"no run":                {[]*fealtyv1.SessionRequest{hello(0)}, codes.InvalidArgument},
		"a second hello":        {[]*fealtyv1.SessionRequest{hello(1), hello(2)}, codes.InvalidArgument},
		"nothing":               {[]*fealtyv1.SessionRequest{hello(1), {}}, codes.InvalidArgument},
		"none to acknowledge":   {[]*fealtyv1.SessionRequest{hello(1), acknowledge(1)}, codes.InvalidArgument},
		"acknowledging nothing": {[]*fealtyv1.SessionRequest{hello(1), acknowledge(0)}, codes.InvalidArgument},
	} {
		l := start(t, true).dial()
		for _, req := range tt.says {
			l.say(req)
		}
		l.ends(name, tt.want)
	}
	s := start(t, true)
	l := s.session()
	close(s.desk.Stop)
	l.ends("fenced", codes.Unavailable)
}

// Demand is taken, one roll-up in a cycle, and what became of it is told.
func TestRollUps(t *testing.T) {
	s := start(t, true)
	l := s.session()
	many := make([]*fealtyv1.DemandRow, scheduler.MaxRows+1)
	for i := range many {
		many[i] = row(fmt.Sprint(i), 1)
	}
	for _, tt := range []struct {
		name string
		say  *fealtyv1.SessionRequest
		want fealtyv1.RollUpOutcome
	}{
		{"the first", rollUp(1, row("small", 100)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN},
		{"again", rollUp(1, row("small", 100)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REPEATED},
		{"another under its number", rollUp(1, row("small", 99)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED},
		{"the third", rollUp(3, row("small", 50)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN},
		{"the second", rollUp(2, row("small", 10)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_OVERTAKEN},
		{"an empty one", rollUp(4), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_HELD},
		{"too many rows", rollUp(5, many...), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED},
		{"no count", rollUp(6, row("small", 0)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED},
		{"a huge count", rollUp(7, row("small", 1<<32-1)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED},
		{"no number", rollUp(0, row("small", 1)), fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED},
	} {
		l.say(tt.say)
		answer := l.hear().GetRollUp()
		if answer.GetOutcome() != tt.want || answer.GetNumber() != tt.say.GetRollUp().GetNumber() {
			t.Errorf("%s: %v, want %v", tt.name, answer, tt.want)
		}
		refused := tt.want == fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED
		if (answer.GetProblem() != "") != refused {
			t.Errorf("%s: the problem is %q", tt.name, answer.GetProblem())
		}
		s.desk.Cycle(nil)
		if tt.want == fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN {
			if c := l.hear().GetCapacity(); len(c.GetProfiles()) != 1 || c.GetProfiles()[0].GetWanted() != tt.say.GetRollUp().GetRows()[0].GetCount() {
				t.Errorf("%s: %v", tt.name, c)
			}
		}
	}
	s.desk.Cycle(func() { s.desk.Unready = true })
	l.say(rollUp(8))
	if answer := l.hear().GetRollUp(); answer.GetOutcome() != fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_UNREADY {
		t.Errorf("%v", answer)
	}
	if rows := s.desk.Rows(); len(rows) != 1 || rows["red"][0].Count != 50 {
		t.Errorf("%v stands", rows)
	}
}

// A second roll-up waits for the next cycle: three in a row take three cycles.
func TestOneRollUpInACycle(t *testing.T) {
	s := start(t, true)
	l := s.session()
	for n := range uint64(4) {
		l.say(rollUp(n+1, row("small", uint32(n+1))))
	}
	for n := range uint64(4) {
		if got := l.hear().GetRollUp().GetNumber(); got != n+1 {
			t.Fatalf("roll-up %d is answered, want %d", got, n+1)
		}
		if rows := s.desk.Rows()["red"]; len(rows) != 1 || rows[0].Count != int(n+1) {
			t.Errorf("after %d cycles %v stands", n, rows)
		}
		s.desk.Cycle(nil)
		l.hear() // capacity
	}
}

// So it does where a cycle ends just when a roll-up comes.
func TestOneRollUpInEachOfManyCycles(t *testing.T) {
	const rollUps = 2000
	s := start(t, true)
	l := s.session()
	var others sync.WaitGroup
	others.Go(func() {
		for n := range uint64(rollUps) {
			l.say(rollUp(n+1, row("small", uint32(n%5+1))))
		}
	})
	answered := make(chan struct{})
	others.Go(func() {
		defer close(answered)
		for n := range uint64(rollUps) {
			got := l.hear()
			for got.GetRollUp() == nil { // what it has
				got = l.hear()
			}
			if got.GetRollUp().GetNumber() != n+1 {
				t.Errorf("roll-up %d is answered, want %d", got.GetRollUp().GetNumber(), n+1)
			}
		}
	})
	for over := false; !over; {
		select {
		case <-answered:
			over = true
		default:
			s.desk.Cycle(nil)
			runtime.Gosched()
		}
	}
	others.Wait()
	if most := s.desk.Most(); most != 1 {
		t.Errorf("%d roll-ups were taken in one cycle", most)
	}
}

// A tenant is told what it has, when that changes, and what it is about to lose; notices are
// acknowledged in their order.
func TestTold(t *testing.T) {
	s := start(t, true)
	l := s.session()
	s.desk.Cycle(nil) // nothing is new
	s.desk.Cycle(func() {
		s.desk.Tallies["red"] = []*scheduler.Tally{{Profile: "big", Configured: 1, Configuring: 2, Draining: 3, Failed: 4}}
		s.desk.Tallies["blue"] = []*scheduler.Tally{{Profile: "big", Configured: 9}}
	})
	c := l.hear().GetCapacity().GetProfiles()
	if len(c) != 1 || c[0].GetProfile() != "big" || c[0].GetConfigured() != 1 || c[0].GetConfiguring() != 2 || c[0].GetDraining() != 3 || c[0].GetFailed() != 4 {
		t.Errorf("%v", c)
	}
	now := time.Now()
	take := func(kind scheduler.Kind, tenant, id string) scheduler.Action {
		return scheduler.Action{Kind: kind, Tenant: tenant, Profile: "big", Machine: scheduler.MachineKey{Provider: "p", ID: id}}
	}
	a, b, other := take(scheduler.Reclaim, "red", "a"), take(scheduler.Preempt, "red", "b"), take(scheduler.Reclaim, "blue", "c")
	s.desk.Cycle(func() { s.desk.Board.Due([]scheduler.Action{a, b, other}, now) })
	for i, want := range []string{"a", "b"} {
		n := l.hear().GetNotice()
		if n.GetNumber() != uint64(i+1) || n.GetMachine() != want || n.GetPreempted() != (want == "b") ||
			n.GetUntil().AsTime().Sub(now.Add(time.Hour)).Abs() > time.Millisecond {
			t.Errorf("notice %d: %v", i, n)
		}
	}
	l.say(acknowledge(1))
	l.say(release("a"))
	l.say(release("c")) // not its own: it changes nothing
	l.say(acknowledge(2))
	l.say(rollUp(1, row("big", 1)))
	l.hear() // the answer: what came before it was taken
	due := s.desk.Board.Due([]scheduler.Action{a, b, other}, now)
	if !due[0] || due[1] || due[2] {
		t.Errorf("released are %v", due)
	}
	s.desk.Cycle(func() { s.desk.Board.Due([]scheduler.Action{a}, now) })
	l.hear() // capacity
	if n := l.hear().GetNotice(); n.GetNumber() != 3 || n.GetMachine() != "b" || n.GetUntil() != nil {
		t.Errorf("a notice that is over: %v", n)
	}
	for n := range 2 { // and that once
		s.desk.Cycle(func() { s.desk.Tallies["red"] = []*scheduler.Tally{{Profile: "small", Configured: n}} })
		if got := l.hear(); got.GetCapacity() == nil {
			t.Errorf("it is told again: %v", got)
		}
	}
	l.say(acknowledge(4))
	l.ends("out of order", codes.InvalidArgument)
}

// An operator that acknowledges nothing is told no more than so many, and the rest when it does.
func TestUnacknowledged(t *testing.T) {
	s := start(t, true)
	l := s.session()
	var all []scheduler.Action
	for i := range session.MaxUnacknowledged + 3 {
		all = append(all, scheduler.Action{Kind: scheduler.Reclaim, Tenant: "red", Machine: scheduler.MachineKey{Provider: "p", ID: fmt.Sprint(i)}})
	}
	now := time.Now()
	s.desk.Cycle(func() { s.desk.Board.Due(all, now) })
	for n := range uint64(session.MaxUnacknowledged) {
		if got := l.hear().GetNotice().GetNumber(); got != n+1 {
			t.Fatalf("notice %d, want %d", got, n+1)
		}
	}
	s.desk.Cycle(func() { s.desk.Tallies["red"] = []*scheduler.Tally{{Profile: "small", Configured: 1}} })
	if l.hear().GetCapacity() == nil {
		t.Error("one more notice is told")
	}
	l.say(acknowledge(1))
	l.say(rollUp(1, row("small", 1)))
	l.hear() // the answer
	s.desk.Cycle(nil)
	l.hear() // capacity
	if got := l.hear().GetNotice().GetNumber(); got != session.MaxUnacknowledged+1 {
		t.Errorf("notice %d is told", got)
	}
}

// An operator that sends more than a shard takes in a cycle waits for the next one.
func TestMessagesInACycle(t *testing.T) {
	s := start(t, true)
	l := s.session()
	for range session.MaxMessages {
		l.say(release("m"))
	}
	l.say(rollUp(1, row("small", 1)))
	l.say(rollUp(2, row("small", 2)))
	for range session.MaxMessages {
		<-s.desk.Released
	}
	for n := range uint64(2) {
		if rows, known := s.desk.Of("red"); known != (n > 0) {
			t.Errorf("before cycle %d: %v", n, rows)
		}
		s.desk.Cycle(func() { s.desk.Tallies["red"] = []*scheduler.Tally{{Profile: "small", Configured: int(n + 1)}} })
		for answered := uint64(0); answered != n+1; {
			answered = l.hear().GetRollUp().GetNumber()
		}
	}
}

// Of two sessions of a tenant the newer one stays, even if the other does not read.
func TestNewerSession(t *testing.T) {
	s := start(t, true)
	first := s.session()
	second := s.session()
	first.ends("the older one", codes.Aborted)
	second.say(rollUp(1, row("small", 1)))
	if got := second.hear().GetRollUp().GetOutcome(); got != fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN {
		t.Errorf("the newer one: %v", got)
	}
	s.as(identity.Operator, "blue")
	third := s.dial()
	h := hello(1)
	h.Tenant = "blue"
	third.say(h)
	if third.hear().GetWelcome() == nil || s.sessions.Open() != 2 {
		t.Errorf("%d sessions are open", s.sessions.Open())
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []session.Config{{}, {Name: "s"}, {Shard: sessiontest.NewDesk()}} {
		if _, err := session.New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

// Without TLS, where only this machine reaches it, a session is of the tenant that its hello names,
// and of no other.
func TestInsecure(t *testing.T) {
	forged := func(req *fealtyv1.SessionRequest, tenant string) *fealtyv1.SessionRequest {
		req.Tenant = tenant
		return req
	}
	s := startWith(t, false, session.Config{Insecure: true})
	s.mu.Lock()
	s.peer = identity.Peer{}
	s.mu.Unlock()
	l := s.dial()
	l.say(hello(1))
	l.say(forged(rollUp(1), "blue"))
	l.ends("another tenant", codes.PermissionDenied)
	own := s.dial()
	own.say(hello(2))
	own.hear() // the welcome
	own.say(rollUp(1, row("small", 1)))
	answer := own.hear()
	for n := 0; answer.GetRollUp() == nil && n < 10; n++ {
		answer = own.hear() // what the tenant has comes between
	}
	if got := answer.GetRollUp().GetOutcome(); got != fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN {
		t.Errorf("the tenant's own: %v", got)
	}
	if rows := s.desk.Rows(); len(rows["blue"]) != 0 {
		t.Errorf("what counts: %v", rows)
	}
	for _, name := range []string{"two words", strings.Repeat("x", scheduler.MaxNameBytes+1)} {
		l := s.dial()
		l.say(forged(hello(2), name))
		l.ends("the tenant "+name, codes.PermissionDenied)
	}
}

// watch opens a watch of a tenant's demand.
func (s *serve) watch(tenant string) fealtyv1.ShardService_WatchDemandClient {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	stream, err := fealtyv1.NewShardServiceClient(s.conn).WatchDemand(ctx, &fealtyv1.WatchDemandRequest{Tenant: tenant})
	if err != nil {
		s.t.Fatal(err)
	}
	return stream
}

// A watch tells what counts, what a tenant has and may have, and what it is about to lose: at once, and when that changed.
func TestWatch(t *testing.T) {
	s := start(t, true)
	w := s.watch("red")
	var last *fealtyv1.WatchDemandResponse
	// next returns the next news of which this is true. What happens in between may be told in steps, and nothing is told twice.
	next := func(wanted func(v *fealtyv1.WatchDemandResponse) bool) *fealtyv1.WatchDemandResponse {
		t.Helper()
		for {
			v, err := w.Recv()
			if err != nil {
				t.Fatalf("%v, after %v", err, last)
			}
			if proto.Equal(v, last) {
				t.Errorf("told twice: %v", v)
			}
			if last = v; wanted(v) {
				return v
			}
		}
	}
	anything := func(*fealtyv1.WatchDemandResponse) bool { return true }
	if v := next(anything); v.GetShard() != "s1" || v.GetTerm() != 7 || v.GetKnown() || v.GetSession() || v.GetRun() != 0 || len(v.GetProfiles()) != 0 {
		t.Errorf("at first: %v", v)
	}
	s.desk.Cycle(nil) // nothing is new
	l := s.session()
	l.say(rollUp(3, row("big", 20), row("small", 2)))
	l.hear() // the answer
	s.desk.Cycle(func() {
		s.desk.Tallies["red"] = []*scheduler.Tally{{Profile: "big", Configured: 1, Configuring: 2, Draining: 3, Failed: 4}}
		s.desk.Tallies["blue"] = []*scheduler.Tally{{Profile: "other", Configured: 9}}
		s.desk.Quotas[scheduler.Quota{Tenant: "red", Profile: "big"}] = 0
		s.desk.Quotas[scheduler.Quota{Tenant: "blue", Profile: "small"}] = 5
	})
	v := next(func(v *fealtyv1.WatchDemandResponse) bool {
		return len(v.GetProfiles()) > 0 && v.GetProfiles()[0].Quota != nil
	})
	if !v.GetKnown() || !v.GetSession() || v.GetHeld() || v.GetRun() != 1 || v.GetNumber() != 3 || len(v.GetRows()) != 2 ||
		v.GetRows()[0].GetProfile() != "big" || v.GetRows()[0].GetCount() != 20 || v.GetRows()[0].GetPriority() != 5 {
		t.Errorf("what counts: %v", v)
	}
	if p := v.GetProfiles(); len(p) != 2 || p[0].GetWanted() != 20 || p[0].GetConfigured() != 1 || p[0].GetFailed() != 4 ||
		p[0].Quota == nil || p[0].GetQuota() != 0 || p[1].Quota != nil {
		t.Errorf("what it has: %v", p)
	}
	l.say(rollUp(4))
	for answer := (*fealtyv1.RollUpAnswer)(nil); answer == nil; {
		answer = l.hear().GetRollUp()
	}
	actions := make([]scheduler.Action, session.MaxWatchNotices+2)
	for i := range actions {
		actions[i] = scheduler.Action{Kind: scheduler.Preempt, Tenant: "red", Profile: "big", Machine: scheduler.MachineKey{Provider: "p", ID: fmt.Sprint(i)}}
	}
	actions[0].Tenant = "blue"
	now := time.Now()
	s.desk.Cycle(func() { s.desk.Board.Due(actions, now) })
	v = next(func(v *fealtyv1.WatchDemandResponse) bool { return len(v.GetNotices()) > 0 })
	if !v.GetHeld() || v.GetNumber() != 4 || len(v.GetRows()) != 2 {
		t.Errorf("one that is held: %v", v)
	}
	if n := v.GetNotices(); len(n) != session.MaxWatchNotices || v.GetMoreNotices() != 1 || n[0].GetMachine() != "1" || !n[0].GetPreempted() ||
		n[0].GetNumber() != 0 || n[0].GetUntil() == nil {
		t.Errorf("%d notices and %d more", len(n), v.GetMoreNotices())
	}
	close(s.desk.Stop)
	var err error
	for err == nil {
		_, err = w.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("of one that was fenced: %v", err)
	}
}

// A tenant is watched by its own operator alone, with the authorization of the API before the server and without, and
// by so many at once.
func TestWatchIsTheTenants(t *testing.T) {
	for _, authorized := range []bool{true, false} {
		for _, peer := range []struct {
			kind identity.Kind
			name string
		}{{identity.Operator, "blue"}, {identity.Data, "red"}, {identity.Admin, "red"}, {identity.Shard, "red"}} {
			s := start(t, authorized)
			s.as(peer.kind, peer.name)
			if v, err := s.watch("red").Recv(); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s/%s, %v: %v, %v", peer.kind, peer.name, authorized, v, err)
			}
		}
	}
	s := start(t, true)
	for range session.MaxWatches {
		if _, err := s.watch("red").Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.watch("red").Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	s.as(identity.Operator, "blue")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	blue, err := fealtyv1.NewShardServiceClient(s.conn).WatchDemand(ctx, &fealtyv1.WatchDemandRequest{Tenant: "blue"})
	if err == nil {
		_, err = blue.Recv()
	}
	if err != nil {
		t.Errorf("another tenant's: %v", err)
	}
}
