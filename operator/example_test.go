package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session/sessiontest"
	"github.com/fealty-io/fealty/operator"
)

// exampleShard is a shard that answers, and takes machine web-1 from the tenant when it is told to.
func exampleShard() (addr string, take func(), stop func()) {
	desk := sessiontest.NewDesk()
	addr, end, err := sessiontest.Serve(desk, "")
	if err != nil {
		panic(err)
	}
	over := desk.Loop()
	desk.Cycle(func() { desk.Tallies["acme"] = []*scheduler.Tally{{Profile: "web", Configured: 2}} })
	return addr, func() {
		desk.Cycle(func() {
			desk.Board.Due([]scheduler.Action{{Kind: scheduler.Preempt, Tenant: "acme", Profile: "web",
				Machine: scheduler.MachineKey{Provider: "rack-1", ID: "web-1"}}}, time.Now())
		})
	}, func() { end(); over() }
}

// quiet is a log that says nothing.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A tenant wants two machines, and is told before it loses one: it finishes what runs there, and lets it go.
func Example() {
	addr, take, stop := exampleShard()
	defer stop()
	dir, err := os.MkdirTemp("", "operator")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	notices := make(chan operator.Notice)
	o, err := operator.Open(operator.Config{Target: addr, Dir: dir,
		Insecure: true, Tenant: "acme", // to try it out; else Source, such as credential.NewFiles makes of three files
		Notice: func(_ context.Context, n operator.Notice) { notices <- n }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()
	ctx, end := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- o.Run(ctx) }()

	fmt.Println(o.Tenant(), o.Set(ctx, []operator.Row{{Profile: "web", Priority: 5, Count: 2}}))
	take() // somebody more urgent needs a machine
	n := <-notices
	fmt.Println(n.Machine, "of", n.Provider, "goes; preempted:", n.Preempted)
	fmt.Println(o.Release(ctx, n)) // before n.Until
	end()
	fmt.Println(<-over)
	// Output:
	// acme <nil>
	// web-1 of rack-1 goes; preempted: true
	// <nil>
	// <nil>
}

// What a program can do about an error depends on its kind.
func ExampleOperator_Set() {
	addr, _, stop := exampleShard()
	defer stop()
	o, err := operator.Open(operator.Config{Target: addr, Insecure: true, Tenant: "acme", RunNumber: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()
	ctx, end := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- o.Run(ctx) }()
	for _, count := range []int{100, 0, -5} {
		rows := []operator.Row{{Profile: "web", Count: count}}
		if count == 0 {
			rows = nil
		}
		err := o.Set(ctx, rows)
		switch {
		case errors.Is(err, operator.ErrInvalid):
			wrong, _ := errors.AsType[*operator.InvalidError](err)
			fmt.Println("it cannot be, and was not sent:", wrong.Field, wrong.Problem)
		case errors.Is(err, operator.ErrHeld):
			held, _ := errors.AsType[*operator.DemandError](err)
			fmt.Println("is it meant? what was stated before stands at", held.Shard)
		case errors.Is(err, operator.ErrRefused):
			fmt.Println("never like that:", err)
		case errors.Is(err, operator.ErrUnready):
			fmt.Println("the context ended before the shard knew what it has:", err)
		case errors.Is(err, operator.ErrOvertaken):
			fmt.Println("another process is in charge: this one ends")
		default:
			fmt.Println(count, "are wanted:", err)
		}
	}
	end()
	<-over
	// Output:
	// 100 are wanted: <nil>
	// is it meant? what was stated before stands at eu-1
	// it cannot be, and was not sent: count is -5, want 1 to 1000000
}

// Run goes on over failures that pass, unless it was given a number of attempts.
func ExampleOperator_Run() {
	addr, _, stop := exampleShard()
	stop() // nobody is there
	o, err := operator.Open(operator.Config{Target: addr, Insecure: true, Tenant: "acme", RunNumber: 1, Attempts: 1, Log: quiet()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()
	err = o.Run(context.Background())
	switch {
	case errors.Is(err, operator.ErrOvertaken), errors.Is(err, operator.ErrReplaced):
		fmt.Println("another process speaks for the tenant")
	case errors.Is(err, operator.ErrDenied):
		fmt.Println("the certificate is that of somebody else")
	case errors.Is(err, operator.ErrProtocol):
		fmt.Println("what listens there is no shard of a release that this one knows")
	case errors.Is(err, operator.ErrUnreachable):
		failed, _ := errors.AsType[*operator.SessionError](err)
		fmt.Println("no session for", failed.Tenant)
	case errors.Is(err, operator.ErrClosed):
		fmt.Println("this program closed it")
	}
	// Output:
	// no session for acme
}

// A view shows what counts, and takes nobody's session.
func ExampleOperator_Watch() {
	addr, _, stop := exampleShard()
	defer stop()
	var connected []operator.Shard
	o, err := operator.Open(operator.Config{Target: addr, Insecure: true, Tenant: "acme",
		Connected: func(_ context.Context, s operator.Shard) { connected = append(connected, s) }}) // of Run alone
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()
	var now operator.View
	now, err = o.View(context.Background())
	fmt.Println(now.Shard.Name, now.Known, err, len(connected))
	for now, err := range o.Watch(context.Background()) { // with each change, until the loop is left
		if err != nil || len(now.Capacity) == 0 {
			fmt.Println(err)
			continue
		}
		has := now.Capacity[0]
		fmt.Println(has.Profile, has.Configured)
		break
	}
	// Output:
	// eu-1 false <nil> 0
	// web 2
}

// A demand is checked before anybody is connected.
func ExampleCheck() {
	fmt.Println(operator.Check([]operator.Row{{Profile: "web", Count: operator.MaxMachines + 1}}))
	fmt.Println(errors.Is(operator.Check(make([]operator.Row, operator.MaxRows+1)), operator.ErrInvalid))
	// Output:
	// operator: the demand was not sent: its count in row 0 is 1000001, want 1 to 1000000
	// true
}
