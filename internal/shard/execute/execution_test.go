package execute_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

func refused(r fence.Reason) error { return &fence.RefusedError{Reason: r} }

// The fence comes before whatever else an error says.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want execute.Outcome
	}{
		{"nothing", nil, execute.Executed},
		{"stale", refused(fence.ReasonStale), execute.Fenced},
		{"clone", refused(fence.ReasonClone), execute.Fenced},
		{"owner", refused(fence.ReasonOwner), execute.Fenced},
		{"stale and not found", fmt.Errorf("%w: %w", execute.ErrNotFound, refused(fence.ReasonStale)), execute.Fenced},
		{"stale and rejected", fmt.Errorf("%w: %w", execute.ErrRejected, refused(fence.ReasonStale)), execute.Fenced},
		{"stale and unavailable", fmt.Errorf("%w: %w", execute.ErrUnavailable, refused(fence.ReasonStale)), execute.Fenced},
		{"stale and late", fmt.Errorf("%w: %w", context.DeadlineExceeded, refused(fence.ReasonStale)), execute.Fenced},
		{"moved and rejected", fmt.Errorf("%w: %w", execute.ErrRejected, refused(fence.ReasonMoved)), execute.Moved},
		{"moved and stale", errors.Join(refused(fence.ReasonMoved), refused(fence.ReasonStale)), execute.Fenced},
		{"moved", refused(fence.ReasonMoved), execute.Moved},
		{"duplicate", refused(fence.ReasonDuplicate), execute.Unavailable},
		{"late", refused(fence.ReasonLate), execute.Unavailable},
		{"ungranted", refused(fence.ReasonUngranted), execute.Unavailable},
		{"unpromised", refused(fence.ReasonUnpromised), execute.Unavailable},
		{"not found", fmt.Errorf("p: %w", execute.ErrNotFound), execute.NotFound},
		{"rejected", fmt.Errorf("p: %w", execute.ErrRejected), execute.Rejected},
		{"unavailable", fmt.Errorf("p: %w", execute.ErrUnavailable), execute.Unavailable},
		{"deadline", context.DeadlineExceeded, execute.Unavailable},
		{"canceled", context.Canceled, execute.Unavailable},
		{"anything else", errors.New("what"), execute.Internal},
	} {
		if got := execute.Classify(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// scripted is a provider that does what do says, and notes what it was asked.
type scripted struct {
	do func(ctx context.Context, call string, o execute.Order) error

	mu    sync.Mutex
	calls []string
}

func (s *scripted) call(ctx context.Context, name string, o execute.Order) error {
	s.mu.Lock()
	s.calls = append(s.calls, name+" "+o.Machine.ID)
	s.mu.Unlock()
	return s.do(ctx, name, o)
}

func (s *scripted) Create(ctx context.Context, o execute.Order) error {
	return s.call(ctx, "create", o)
}
func (s *scripted) Configure(ctx context.Context, o execute.Order) error {
	return s.call(ctx, "configure", o)
}
func (s *scripted) Drain(ctx context.Context, o execute.Order) error {
	return s.call(ctx, "drain", o)
}
func (s *scripted) Delete(ctx context.Context, o execute.Order) error {
	return s.call(ctx, "delete", o)
}

func (s *scripted) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func action(kind scheduler.Kind, id string) scheduler.Action {
	return scheduler.Action{Kind: kind, Machine: scheduler.MachineKey{Provider: "p", ID: id}, Domain: "d-" + id, Tenant: "red", Priority: 5, Operation: "op-" + id}
}

func pool(t *testing.T, p execute.Provider, o execute.Options) *execute.Pool {
	t.Helper()
	out, err := execute.NewPool(map[string]execute.Provider{"p": p}, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Each kind is one call, and says for whom alone where that counts.
func TestOrders(t *testing.T) {
	var got []string
	p := &scripted{do: func(_ context.Context, call string, o execute.Order) error {
		got = append(got, fmt.Sprint(call, " ", o.Machine, " ", o.Tenant, " ", o.Priority, " ", o.Operation))
		return nil
	}}
	var all []scheduler.Action
	for _, kind := range scheduler.Kinds() {
		all = append(all, action(kind, string(kind)))
	}
	all = append(all, action("dance", "x"), scheduler.Action{Kind: scheduler.Release, Machine: scheduler.MachineKey{Provider: "q", ID: "y"}})
	results := pool(t, p, execute.Options{Concurrency: 1}).Execute(t.Context(), all)
	want := []string{"configure p/assign red 5 op-assign", "create p/create  0 op-create", "drain p/preempt  0 op-preempt",
		"drain p/reclaim  0 op-reclaim", "delete p/release  0 op-release"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("asked for\n%q, want\n%q", got, want)
	}
	for i, r := range results {
		outcome := execute.Executed
		if i >= len(want) {
			outcome = execute.Rejected
		}
		if r.Outcome != outcome || r.Action != all[i] {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []execute.Options{{Concurrency: -1}, {Concurrency: 1025}} {
		if _, err := execute.NewPool(nil, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// No more calls are under way than may be, and no time is lost below that.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		p := &scripted{do: func(context.Context, string, execute.Order) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}}
		var all []scheduler.Action
		for i := range 12 {
			all = append(all, action(scheduler.Assign, fmt.Sprint(i)))
		}
		start := time.Now()
		pool(t, p, execute.Options{Concurrency: 4}).Execute(t.Context(), all)
		if took := time.Since(start); most != 4 || took != 3*time.Second {
			t.Errorf("%d calls at once, over after %v", most, took)
		}
	})
}

// A call that is not begun in time is put off, and one that is begun has its own time.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &scripted{do: func(ctx context.Context, _ string, o execute.Order) error {
			if o.Machine.ID == "a" {
				time.Sleep(4 * time.Second)
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		x := pool(t, p, execute.Options{Concurrency: 1})
		start := time.Now()
		got := ""
		for _, r := range x.Execute(t.Context(), []scheduler.Action{action(scheduler.Assign, "a"), action(scheduler.Assign, "b"), action(scheduler.Assign, "c")}) {
			got += string(r.Outcome) + " "
		}
		if took := time.Since(start); got != "executed unavailable put-off " || took != 14*time.Second {
			t.Errorf("%s after %v", got, took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if r := x.Execute(ended, []scheduler.Action{action(scheduler.Assign, "d")}); r[0].Outcome != execute.PutOff || p.asked() != 2 {
			t.Errorf("after the context ended: %+v", r)
		}
	})
}

// A machine whose call failed is left alone, for twice as long each time, and for its first
// pause again after a call succeeded.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := execute.ErrUnavailable
		p := &scripted{do: func(context.Context, string, execute.Order) error { return answer }}
		x := pool(t, p, execute.Options{})
		a := action(scheduler.Assign, "a")
		held := func() bool { _, held := x.Holds(time.Now())[a.Machine]; return held }
		fail := func(pause time.Duration) {
			t.Helper()
			x.Execute(t.Context(), []scheduler.Action{a})
			time.Sleep(pause - 1)
			if !held() {
				t.Errorf("not left alone for %v", pause)
			}
			time.Sleep(time.Nanosecond)
			if held() {
				t.Errorf("left alone for longer than %v", pause)
			}
		}
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			fail(pause * time.Second)
		}
		answer = nil
		x.Execute(t.Context(), []scheduler.Action{a})
		if held() {
			t.Error("left alone after it succeeded")
		}
		answer = execute.ErrRejected
		fail(time.Second)
		fail(2 * time.Second)
		x.Retain(func(scheduler.MachineKey) bool { return false })
		fail(time.Second)
	})
}

// An action that may have been done counts as done until somebody knows.
func TestDoubt(t *testing.T) {
	for err, doubt := range map[error]bool{execute.ErrUnavailable: true, errors.New("what"): true, execute.ErrRejected: false, execute.ErrNotFound: false} {
		x := pool(t, &scripted{do: func(context.Context, string, execute.Order) error { return err }}, execute.Options{})
		a := action(scheduler.Assign, "a")
		x.Execute(t.Context(), []scheduler.Action{a})
		if hold, ok := x.Holds(time.Now())[a.Machine]; !ok || hold.Doubt != doubt || hold.Action != a {
			t.Errorf("%v: %+v, %v", err, hold, ok)
		}
	}
}

// A domain that moved is left alone, and others are not.
func TestMoved(t *testing.T) {
	p := &scripted{do: func(_ context.Context, _ string, o execute.Order) error {
		if o.Machine.ID == "a" {
			return refused(fence.ReasonMoved)
		}
		return nil
	}}
	x := pool(t, p, execute.Options{Concurrency: 1})
	a, b, c := action(scheduler.Assign, "a"), action(scheduler.Assign, "b"), action(scheduler.Assign, "c")
	b.Domain = a.Domain
	got := ""
	for _, r := range x.Execute(t.Context(), []scheduler.Action{a, b, c}) {
		got += string(r.Outcome) + " "
	}
	if got != "moved put-off executed " || !x.Moved(a.Domain) || x.Moved(c.Domain) || x.Err() != nil {
		t.Errorf("%s, %v", got, x.Err())
	}
	x.Own(a.Domain)
	if r := x.Execute(t.Context(), []scheduler.Action{b}); r[0].Outcome != execute.Executed {
		t.Errorf("after it is owned again: %+v", r)
	}
}

// A pool that is fenced begins nothing more, in this cycle or any later one.
func TestFenced(t *testing.T) {
	p := &scripted{do: func(context.Context, string, execute.Order) error {
		return fmt.Errorf("%w: %w", execute.ErrUnavailable, refused(fence.ReasonStale))
	}}
	x := pool(t, p, execute.Options{Concurrency: 1})
	all := []scheduler.Action{action(scheduler.Assign, "a"), action(scheduler.Assign, "b")}
	first, second := x.Execute(t.Context(), all), x.Execute(t.Context(), all)
	if first[0].Outcome != execute.Fenced || first[1].Outcome != execute.PutOff || second[0].Outcome != execute.PutOff || p.asked() != 1 {
		t.Errorf("%+v, then %+v, after %d calls", first, second, p.asked())
	}
	select {
	case <-x.Fenced():
	default:
		t.Error("nobody is told")
	}
	if !errors.Is(x.Err(), fence.ErrEnded) || !errors.Is(second[0].Err, fence.ErrEnded) {
		t.Errorf("%v", x.Err())
	}
}
