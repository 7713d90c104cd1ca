package operator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
	"github.com/fealty-io/fealty/internal/shard/session/sessiontest"
	"github.com/fealty-io/fealty/operator"
	"github.com/fealty-io/fealty/test/wait"
)

// heard is what an operator was told.
type heard struct {
	mu       sync.Mutex
	shards   []operator.Shard
	capacity []operator.Capacity // the newest
	notices  []operator.Notice
}

func (h *heard) look(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// running is an operator that runs until the test ends.
type running struct {
	*operator.Operator
	*heard
	over chan error // holds what Run returned
}

// run runs an operator of red at a shard without TLS.
func run(t *testing.T, addr string, edit func(*operator.Config)) *running {
	t.Helper()
	r := &running{heard: new(heard), over: make(chan error, 1)}
	cfg := operator.Config{Target: addr, Insecure: true, Tenant: "red", Log: slog.New(slog.DiscardHandler),
		Connected: func(_ context.Context, s operator.Shard) { r.look(func() { r.shards = append(r.shards, s) }) },
		Capacity:  func(_ context.Context, c []operator.Capacity) { r.look(func() { r.capacity = c }) },
		Notice:    func(_ context.Context, n operator.Notice) { r.look(func() { r.notices = append(r.notices, n) }) }}
	if edit != nil {
		edit(&cfg)
	}
	if cfg.RunNumber == 0 && cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	o, err := operator.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Operator = o
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.over <- o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// desk serves a desk until the test ends.
func desk(t *testing.T, at string) (d *sessiontest.Desk, addr string, stop func()) {
	t.Helper()
	d = sessiontest.NewDesk()
	addr, stop = serveDesk(t, d, at)
	return d, addr, stop
}

// serveDesk is desk of one that is there.
func serveDesk(t *testing.T, d *sessiontest.Desk, at string) (addr string, stop func()) {
	t.Helper()
	addr, stop, err := sessiontest.Serve(d, at)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	t.Cleanup(d.Loop())
	return addr, stop
}

func set(t *testing.T, o *running, rows ...operator.Row) {
	t.Helper()
	if err := o.Set(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
}

func stands(d *sessiontest.Desk, tenant string) []scheduler.DemandRow {
	rows, _ := d.Of(tenant)
	return rows
}

// Demand is stated whole, and what the tenant has and is about to lose is told: each notice is acknowledged, however
// many there are, and a machine that is released goes.
func TestSession(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	o := run(t, addr, nil)
	set(t, o, operator.Row{Profile: "web", Priority: 5, Count: 3}, operator.Row{Profile: "batch", Count: 1})
	set(t, o, operator.Row{Profile: "web", Priority: -2, Count: 2})
	if rows := stands(d, "red"); !slices.Equal(rows, []scheduler.DemandRow{{Profile: "web", Priority: -2, Count: 2}}) {
		t.Errorf("what stands: %v", rows)
	}
	d.Cycle(func() {
		d.Tallies["red"] = []*scheduler.Tally{{Profile: "web", Configured: 1, Configuring: 2, Draining: 3, Failed: 4}}
	})
	want := operator.Capacity{Profile: "web", Wanted: 2, Configuring: 2, Configured: 1, Draining: 3, Failed: 4, Quota: -1}
	wait.Until(t, "what it has", func() (ok bool) {
		o.look(func() { ok = slices.Equal(o.capacity, []operator.Capacity{want}) })
		return ok
	})
	var all []scheduler.Action
	for i := range session.MaxUnacknowledged + 3 {
		all = append(all, scheduler.Action{Kind: scheduler.Preempt, Tenant: "red", Profile: "web",
			Machine: scheduler.MachineKey{Provider: "p", ID: fmt.Sprint(i)}})
	}
	now := time.Now()
	d.Cycle(func() { d.Board.Due(all, now) })
	var first operator.Notice
	wait.Until(t, "all notices", func() (ok bool) {
		o.look(func() {
			if ok = len(o.notices) == len(all); ok {
				first = o.notices[0]
			}
		})
		return ok
	})
	if first.Provider != "p" || first.Machine == "" || first.Profile != "web" || !first.Preempted || first.Until.Sub(now.Add(time.Hour)).Abs() > time.Millisecond {
		t.Errorf("a notice: %v", first)
	}
	if err := o.Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	<-d.Released
	gone := 0
	for _, due := range d.Board.Due(all, now) {
		if due {
			gone++
		}
	}
	if gone != 1 {
		t.Errorf("%d machines go", gone)
	}
	d.Cycle(func() { d.Board.Due(all[1:], now) })
	wait.Until(t, "a notice that is over", func() (ok bool) {
		o.look(func() { ok = len(o.notices) == len(all)+1 && o.notices[len(all)].Until.IsZero() })
		return ok
	})
}

// What a shard took is stated again to one that does not know it, in a session that begins with what is out.
func TestStatedAgain(t *testing.T) {
	t.Parallel()
	_, addr, stop := desk(t, "")
	o := run(t, addr, nil)
	set(t, o, operator.Row{Profile: "web", Count: 3})
	stop()
	next, _, _ := desk(t, addr)
	wait.Until(t, "the demand at the new one", func() bool {
		return slices.Equal(stands(next, "red"), []scheduler.DemandRow{{Profile: "web", Count: 3}})
	})
	set(t, o, operator.Row{Profile: "web", Count: 4})
	o.look(func() {
		if len(o.shards) < 2 || o.shards[0] != (operator.Shard{Name: "eu-1", Term: 7}) {
			t.Errorf("sessions: %v", o.shards)
		}
	})
}

// A shard that does not know yet what the tenant has is asked again until it does.
func TestUnready(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	d.Cycle(func() { d.Unready = true })
	o := run(t, addr, nil)
	ctx, cancel := context.WithCancel(t.Context())
	set := make(chan error, 1)
	go func() { set <- o.Set(ctx, []operator.Row{{Profile: "web", Count: 1}}) }()
	wait.Until(t, "a session", func() (ok bool) { o.look(func() { ok = len(o.shards) > 0 }); return ok })
	select {
	case err := <-set:
		t.Fatalf("it was answered: %v", err)
	default:
	}
	// The shard answered it more than once by the time that another tenant's cycles went by.
	other := run(t, addr, func(cfg *operator.Config) { cfg.Tenant = "blue" })
	d.Cycle(func() { d.Unready = false })
	if err := other.Set(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	d.Cycle(func() { d.Unready = true })
	go func() { set <- o.Set(ctx, nil) }()
	wait.Until(t, "an answer", func() bool {
		// A second one that gives up tells what the first one hears.
		short, end := context.WithCancel(t.Context())
		end()
		return errors.Is(o.Set(short, nil), operator.ErrUnready)
	})
	cancel()
	if err := <-set; !errors.Is(err, operator.ErrUnready) || !errors.Is(err, context.Canceled) {
		t.Errorf("it gave up with %v", err)
	}
}

// Demand that drops almost everything is held, and who means it states it three times.
func TestHeld(t *testing.T) {
	t.Parallel()
	d, addr, stop := desk(t, "")
	o := run(t, addr, nil)
	set(t, o, operator.Row{Profile: "web", Count: 100})
	for range 2 {
		err := o.Set(t.Context(), nil)
		held, ok := errors.AsType[*operator.DemandError](err)
		if !errors.Is(err, operator.ErrHeld) || !ok || held.Shard != "eu-1" || held.Tenant != "red" || !strings.Contains(err.Error(), "state it again") {
			t.Fatalf("an empty one: %v", err)
		}
		if rows := stands(d, "red"); len(rows) != 1 {
			t.Fatalf("what stands: %v", rows)
		}
	}
	set(t, o)
	if rows := stands(d, "red"); len(rows) != 0 {
		t.Errorf("what stands: %v", rows)
	}
	// One that was taken is meant: a shard that holds it when it is stated again is told so, with no word of the program.
	stop()
	next := sessiontest.NewDesk()
	if _, err := next.DemandBook.Report(scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1},
		Rows: []scheduler.DemandRow{{Profile: "web", Count: 100}}}, nil); err != nil {
		t.Fatal(err)
	}
	serveDesk(t, next, addr)
	wait.Until(t, "it to be believed", func() bool { return len(stands(next, "red")) == 0 })
	o.look(func() {
		if len(o.shards) != 2 {
			t.Errorf("that took %d sessions", len(o.shards))
		}
	})
}

// Of two processes the one that was started later is believed, whichever connects last, and the other one ends.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	older := run(t, addr, func(cfg *operator.Config) { cfg.RunNumber = 7 })
	set(t, older, operator.Row{Profile: "web", Count: 1})
	newer := run(t, addr, func(cfg *operator.Config) { cfg.RunNumber = 8 })
	set(t, newer, operator.Row{Profile: "web", Count: 2})
	// It connects again, ends the other one's session by that, and hears that it was overtaken.
	if err := <-older.over; !errors.Is(err, operator.ErrOvertaken) {
		t.Errorf("the older one ended with %v", err)
	}
	if err := older.Set(t.Context(), nil); !errors.Is(err, operator.ErrOvertaken) {
		t.Errorf("it states demand: %v", err)
	}
	if err := older.Release(t.Context(), operator.Notice{}); !errors.Is(err, operator.ErrOvertaken) {
		t.Errorf("it releases: %v", err)
	}
	set(t, newer, operator.Row{Profile: "web", Count: 3})
	if rows := stands(d, "red"); len(rows) != 1 || rows[0].Count != 3 {
		t.Errorf("what stands: %v", rows)
	}
	// Two of one number were copied, and the second one does not count under the number of the first.
	twin := run(t, addr, func(cfg *operator.Config) { cfg.RunNumber = 8 })
	if err := twin.Set(t.Context(), []operator.Row{{Profile: "web", Count: 9}}); !errors.Is(err, operator.ErrRefused) && !errors.Is(err, operator.ErrOvertaken) {
		t.Errorf("a copy: %v", err)
	}
}

// Demand that cannot be is not sent, and nobody has to be reached for that.
func TestInvalid(t *testing.T) {
	t.Parallel()
	o, err := operator.Open(operator.Config{Target: "127.0.0.1:1", Insecure: true, Tenant: "red"})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for name, tt := range map[string]struct {
		rows  []operator.Row
		row   int
		field string
	}{
		"no machines":       {[]operator.Row{{Profile: "a", Count: 1}, {Profile: "web"}}, 1, "count"},
		"less than none":    {[]operator.Row{{Profile: "web", Count: -1}}, 0, "count"},
		"too many":          {[]operator.Row{{Profile: "web", Count: operator.MaxMachines}, {Profile: "x", Count: 1}}, 1, "count"},
		"no profile":        {[]operator.Row{{Count: 1}}, 0, "profile"},
		"a blank":           {[]operator.Row{{Profile: "two words", Count: 1}}, 0, "profile"},
		"one profile twice": {[]operator.Row{{Profile: "web", Count: 1}, {Profile: "web", Count: 2}}, -1, "demand"},
		"too many rows":     {make([]operator.Row, operator.MaxRows+1), -1, "demand"},
	} {
		err := o.Set(t.Context(), tt.rows)
		wrong, ok := errors.AsType[*operator.InvalidError](err)
		if !ok || !errors.Is(err, operator.ErrInvalid) || wrong.Row != tt.row || wrong.Field != tt.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cfg := range map[string]operator.Config{
		"no target":             {Insecure: true, Tenant: "red"},
		"no identity":           {Target: "127.0.0.1:1"},
		"no tenant":             {Target: "127.0.0.1:1", Insecure: true},
		"elsewhere without TLS": {Target: "192.0.2.1:1", Insecure: true, Tenant: "red"},
		"two runs":              {Target: "127.0.0.1:1", Insecure: true, Tenant: "red", Dir: "d", RunNumber: 1},
		"attempts":              {Target: "127.0.0.1:1", Insecure: true, Tenant: "red", Attempts: -1},
	} {
		if o, err := operator.Open(cfg); err == nil {
			t.Errorf("%s: %v was opened", name, o)
		}
	}
	if err := o.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Config.Dir") {
		t.Errorf("a run without a number: %v", err)
	}
}

// scripted is a shard that says what a test has it say, after it heard a hello.
type scripted struct {
	fealtyv1.UnimplementedShardServiceServer
	says []*fealtyv1.SessionResponse
	view *fealtyv1.WatchDemandResponse
	err  error // in place of both
}

func (s *scripted) Session(stream fealtyv1.ShardService_SessionServer) error {
	if _, err := stream.Recv(); err != nil || s.err != nil {
		return errors.Join(err, s.err)
	}
	for _, m := range s.says {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (s *scripted) WatchDemand(_ *fealtyv1.WatchDemandRequest, stream fealtyv1.ShardService_WatchDemandServer) error {
	if s.err != nil {
		return s.err
	}
	return stream.Send(s.view)
}

// serve serves a shard until the test ends.
func serve(t *testing.T, s fealtyv1.ShardServiceServer) string {
	t.Helper()
	l, err := sessiontest.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	if s != nil {
		fealtyv1.RegisterShardServiceServer(server, s)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func welcome(name string) *fealtyv1.SessionResponse {
	return &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Welcome{Welcome: &fealtyv1.SessionWelcome{Shard: name}}}
}

func answer(number uint64, outcome fealtyv1.RollUpOutcome) *fealtyv1.SessionResponse {
	return &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_RollUp{RollUp: &fealtyv1.RollUpAnswer{Number: number, Outcome: outcome}}}
}

func notice(number uint64, machine string) *fealtyv1.SessionResponse {
	return &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Notice{Notice: &fealtyv1.MachineNotice{Number: number,
		Provider: "p", Machine: machine, Profile: "web"}}}
}

func profile(name string) *fealtyv1.SessionResponse {
	return &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Capacity{Capacity: &fealtyv1.TenantCapacity{
		Profiles: []*fealtyv1.ProfileCapacity{{Profile: name}}}}}
}

// A shard that breaks the protocol ends Run, and so does one that does not serve the caller; the program is told neither
// of what such a shard says.
func TestBadShard(t *testing.T) {
	t.Parallel()
	taken := fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN
	flood := []*fealtyv1.SessionResponse{welcome("eu-1")}
	for n := range uint64(session.MaxUnacknowledged + 2) {
		flood = append(flood, notice(n+1, "m"))
	}
	for name, tt := range map[string]struct {
		shard *scripted
		want  error
	}{
		"no welcome":            {&scripted{says: []*fealtyv1.SessionResponse{profile("web")}}, operator.ErrProtocol},
		"a name with an escape": {&scripted{says: []*fealtyv1.SessionResponse{welcome("\x1b[2J")}}, operator.ErrProtocol},
		"a second welcome":      {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), welcome("b")}}, operator.ErrProtocol},
		"an answer to nothing":  {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), answer(9, taken)}}, operator.ErrProtocol},
		"two answers": {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), answer(9, taken), answer(9, taken)}},
			operator.ErrProtocol},
		"a notice with a gap":    {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), notice(2, "m")}}, operator.ErrProtocol},
		"a machine without name": {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), notice(1, "")}}, operator.ErrProtocol},
		"a profile of two words": {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), profile("a b")}}, operator.ErrProtocol},
		"an empty message":       {&scripted{says: []*fealtyv1.SessionResponse{welcome("a"), {}}}, operator.ErrProtocol},
		"too many notices":       {&scripted{says: flood}, operator.ErrProtocol},
		"no shard":               {nil, operator.ErrProtocol},
		"another tenant's":       {&scripted{err: status.Error(codes.PermissionDenied, "no")}, operator.ErrDenied},
		"a hello that is none":   {&scripted{err: status.Error(codes.InvalidArgument, "no")}, operator.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var shard fealtyv1.ShardServiceServer
			if tt.shard != nil {
				shard = tt.shard
			}
			o := run(t, serve(t, shard), func(cfg *operator.Config) {
				// A program that does not come back from a notice.
				cfg.Notice = func(ctx context.Context, _ operator.Notice) { <-ctx.Done() }
			})
			err := <-o.over
			told, ok := errors.AsType[*operator.SessionError](err)
			if !errors.Is(err, tt.want) || !ok || told.Tenant != "red" {
				t.Errorf("it ended with %v, want %v", err, tt.want)
			}
			if err := o.Set(t.Context(), nil); !errors.Is(err, tt.want) {
				t.Errorf("Set: %v", err)
			}
		})
	}
}

// Nobody is reached: Run ends after its attempts, with what it met, and so does a watch.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	addr := serve(t, &scripted{err: status.Error(codes.Unavailable, "on its way")})
	o := run(t, addr, func(cfg *operator.Config) { cfg.Attempts = 2 })
	if err := o.Set(t.Context(), nil); !errors.Is(err, operator.ErrUnreachable) || !strings.Contains(err.Error(), "on its way") {
		t.Errorf("Set: %v", err)
	}
	if err := <-o.over; !errors.Is(err, operator.ErrUnreachable) {
		t.Errorf("Run: %v", err)
	}
	for _, err := range o.Watch(t.Context()) {
		if !errors.Is(err, operator.ErrUnreachable) {
			t.Errorf("Watch: %v", err)
		}
	}
	if err := o.Run(t.Context()); err == nil {
		t.Error("it is run twice")
	}
	replaced := run(t, serve(t, &scripted{err: status.Error(codes.Aborted, "newer")}), func(cfg *operator.Config) { cfg.Attempts = 1 })
	if err := <-replaced.over; !errors.Is(err, operator.ErrReplaced) {
		t.Errorf("another session: %v", err)
	}
	// One that goes on trying: who waits and gives up is told why.
	trying := run(t, addr, nil)
	wait.Until(t, "it to have tried", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := trying.Set(ctx, nil)
		return errors.Is(err, context.Canceled) && errors.Is(err, operator.ErrUnreachable)
	})
	if err := trying.Close(); err != nil {
		t.Error(err)
	}
	if err := <-trying.over; !errors.Is(err, operator.ErrClosed) {
		t.Errorf("one that was closed: %v", err)
	}
	if err := trying.Set(t.Context(), nil); !errors.Is(err, operator.ErrClosed) {
		t.Errorf("Set of one that was closed: %v", err)
	}
}

// A program may state demand, and release machines, from where it is told.
func TestFromACall(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	errs := make(chan error, 2)
	var o *running
	ready := make(chan struct{})
	o = run(t, addr, func(cfg *operator.Config) {
		cfg.Notice = func(ctx context.Context, n operator.Notice) {
			<-ready
			if !n.Until.IsZero() {
				errs <- errors.Join(o.Set(ctx, []operator.Row{{Profile: "web", Count: 1}}), o.Release(ctx, n))
			}
		}
	})
	close(ready)
	machine := scheduler.Action{Kind: scheduler.Reclaim, Tenant: "red", Profile: "web", Machine: scheduler.MachineKey{Provider: "p", ID: "m"}}
	d.Cycle(func() { d.Board.Due([]scheduler.Action{machine}, time.Now()) })
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	<-d.Released
	if rows := stands(d, "red"); len(rows) != 1 {
		t.Errorf("what stands: %v", rows)
	}
}

// A view is what counts now, and then each change of it. Of a shard that shows what cannot be nothing is shown.
func TestWatch(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	o := run(t, addr, nil)
	set(t, o, operator.Row{Profile: "web", Priority: 3, Count: 2}, operator.Row{Profile: "batch", Count: 1})
	d.Cycle(func() {
		d.Tallies["red"] = []*scheduler.Tally{{Profile: "web", Configured: 2}}
		d.Quotas[scheduler.Quota{Tenant: "red", Profile: "web"}] = 2
	})
	changed := false
	for v, err := range o.Watch(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			if len(v.Notices) == 0 {
				continue // of the change of before
			}
			if n := v.Notices[0]; n.Machine != "m" || n.Until.IsZero() || n.Preempted || v.More != 0 {
				t.Errorf("a notice: %v, and %d more", n, v.More)
			}
			break
		}
		rows := []operator.Row{{Profile: "batch", Count: 1}, {Profile: "web", Priority: 3, Count: 2}}
		if v.Shard != (operator.Shard{Name: "eu-1", Term: 7}) || !v.Known || !v.Session || v.Held || v.Run == 0 || v.Number != 1 || !slices.Equal(v.Demand, rows) {
			t.Errorf("what counts: %+v", v)
		}
		if len(v.Capacity) != 2 || v.Capacity[0].Quota != -1 || v.Capacity[1] != (operator.Capacity{Profile: "web", Wanted: 2, Configured: 2, Quota: 2}) {
			t.Errorf("what it has: %+v", v.Capacity)
		}
		changed = true
		machine := scheduler.Action{Kind: scheduler.Reclaim, Tenant: "red", Profile: "web", Machine: scheduler.MachineKey{Provider: "p", ID: "m"}}
		d.Cycle(func() { d.Board.Due([]scheduler.Action{machine}, time.Now()) })
	}
	many := &fealtyv1.WatchDemandResponse{Shard: "a"}
	for range session.MaxWatchNotices + 1 {
		many.Notices = append(many.Notices, notice(0, "m").GetNotice())
	}
	for name, view := range map[string]*fealtyv1.WatchDemandResponse{
		"no shard":         {},
		"a row of nothing": {Shard: "a", Rows: []*fealtyv1.DemandRow{{Profile: "web"}}},
		"no profile":       {Shard: "a", Profiles: []*fealtyv1.ProfileCapacity{{}}},
		"a machine":        {Shard: "a", Notices: []*fealtyv1.MachineNotice{{Provider: "p", Profile: "web", Machine: "\n"}}},
		"too many":         many,
		"an end":           {Shard: "a"},
	} {
		bad := run(t, serve(t, &scripted{view: view}), nil)
		var last error
		for _, err := range bad.Watch(t.Context()) {
			last = err
		}
		if !errors.Is(last, operator.ErrProtocol) {
			t.Errorf("%s: %v", name, last)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range o.Watch(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a watch that nobody wants: %v", err)
		}
	}
}

// Runs are counted in a folder: each is greater than those of before, also when the clock went back. A folder without
// one begins with the clock. One that is in use, or holds what is no run, is left as it is.
func TestRuns(t *testing.T) {
	t.Parallel()
	d, addr, _ := desk(t, "")
	dir := t.TempDir()
	clock := time.UnixMilli(5000)
	number := func() uint64 {
		t.Helper()
		o := run(t, addr, func(cfg *operator.Config) { cfg.Dir, cfg.Now = dir, func() time.Time { return clock } })
		set(t, o)
		second := run(t, addr, func(cfg *operator.Config) { cfg.Dir = dir })
		if err := <-second.over; err == nil || !strings.Contains(err.Error(), "a folder of its own") {
			t.Errorf("a second one in the folder: %v", err)
		}
		o.Close()
		<-o.over
		return d.Standing("red").Key.Run
	}
	if n := number(); n != 5000 {
		t.Errorf("the first run is %d", n)
	}
	clock = time.UnixMilli(-100)
	if n := number(); n != 5001 {
		t.Errorf("the second run is %d", n)
	}
	clock = time.UnixMilli(9000)
	if n := number(); n != 9000 {
		t.Errorf("the third run is %d", n)
	}
	file := filepath.Join(dir, "operator-run")
	for _, text := range []string{"", "somebody's secret", "run of an operator, form 1: x\n{\"run\":1}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := run(t, addr, func(cfg *operator.Config) { cfg.Dir = dir })
		if err := <-o.over; err == nil || !strings.Contains(err.Error(), "move it away") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
}
