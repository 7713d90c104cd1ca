package execute_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// receiver is a provider behind a fence. It notes which epochs acted on each machine, in
// their order.
type receiver struct {
	gate *fence.Gate

	mu      sync.Mutex
	applied map[string][]fence.Epoch
}

func newReceiver() *receiver {
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	return &receiver{gate: fence.NewGate(fence.InMemory(ledger), 0), applied: make(map[string][]fence.Epoch)}
}

// process is one life of a shard, which reaches the receiver by a network that delays what
// it likes.
type process struct {
	to     *receiver
	sender *fence.Sender
}

func lives(to *receiver, n int) (out []*process) {
	var lineage fence.Lineage
	for i := range n {
		life := fence.Life{Epoch: fence.NewEpoch(0, uint32(i+1)), Incarnation: fence.Incarnation{byte(i + 1)}, Lineage: lineage}
		sender, err := fence.NewSender(life)
		if err != nil {
			panic(err)
		}
		out = append(out, &process{to, sender})
		lineage = append(lineage[:len(lineage):len(lineage)], life.Incarnation)
	}
	return out
}

func (p *process) send(ctx context.Context, call string, o execute.Order) error {
	token, err := p.sender.Next(0, []byte(call+o.Machine.ID+o.Operation))
	if err != nil {
		return err
	}
	life := p.sender.Life()
	for range token.Sequence % 7 { // others overtake it
		runtime.Gosched()
	}
	claim := fence.Claim{Holder: "shard", Resource: o.Machine.ID, Token: token, Lineage: life.Lineage}
	return p.sender.Heard(p.to.gate.Do(ctx, claim, func(context.Context) error {
		p.to.mu.Lock()
		defer p.to.mu.Unlock()
		p.to.applied[o.Machine.ID] = append(p.to.applied[o.Machine.ID], life.Epoch)
		return nil
	}))
}

func (p *process) Create(ctx context.Context, o execute.Order) error {
	return p.send(ctx, "create", o)
}
func (p *process) Configure(ctx context.Context, o execute.Order) error {
	return p.send(ctx, "configure", o)
}
func (p *process) Drain(ctx context.Context, o execute.Order) error { return p.send(ctx, "drain", o) }
func (p *process) Delete(ctx context.Context, o execute.Order) error {
	return p.send(ctx, "delete", o)
}

func all(kind scheduler.Kind, n int) (out []scheduler.Action) {
	for i := range n {
		out = append(out, scheduler.Action{Kind: kind, Machine: scheduler.MachineKey{Provider: "p", ID: fmt.Sprint("m", i)}, Operation: string(kind)})
	}
	return out
}

// One live shard is never fenced, however many calls it has under way, in whatever order
// they arrive: not by itself in another cycle that runs beside this one either.
func TestOneLiveShardIsNeverFenced(t *testing.T) {
	const machines = 1000
	to := newReceiver()
	x := pool(t, lives(to, 1)[0], execute.Options{Concurrency: 32})
	executed := make(map[execute.Outcome]int)
	var mu sync.Mutex
	for _, kind := range []scheduler.Kind{scheduler.Create, scheduler.Assign, scheduler.Reclaim, scheduler.Release} {
		var beside sync.WaitGroup
		for range 2 {
			beside.Go(func() {
				for _, r := range x.Execute(t.Context(), all(kind, machines)) {
					mu.Lock()
					executed[r.Outcome]++
					mu.Unlock()
				}
			})
		}
		beside.Wait()
	}
	if x.Err() != nil || executed[execute.Executed]+executed[execute.PutOff] != 8*machines || executed[execute.Executed] < 4*machines {
		t.Errorf("%v, %v", executed, x.Err())
	}
	if len(to.applied) != machines {
		t.Errorf("%d machines were acted on", len(to.applied))
	}
}

// A zombie that goes on beside its successor changes no machine after the successor first
// did, ends at its first refusal, and sends nothing after it.
func TestZombieBesideItsSuccessor(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		machines := rapid.IntRange(1, 60).Draw(rt, "machines")
		concurrency := rapid.IntRange(1, 32).Draw(rt, "concurrency")
		afterAll := rapid.Bool().Draw(rt, "the successor waits for the zombie")
		to := newReceiver()
		both := lives(to, 2)
		zombie := pool(t, both[0], execute.Options{Concurrency: concurrency})
		successor := pool(t, both[1], execute.Options{Concurrency: concurrency})
		var running sync.WaitGroup
		running.Go(func() { zombie.Execute(t.Context(), all(scheduler.Create, machines)) })
		if afterAll {
			running.Wait()
		}
		running.Go(func() {
			for _, r := range successor.Execute(t.Context(), all(scheduler.Assign, machines)) {
				if r.Outcome != execute.Executed {
					rt.Errorf("the successor: %+v", r)
				}
			}
		})
		running.Wait()
		zombie.Execute(t.Context(), all(scheduler.Reclaim, machines))
		again := zombie.Execute(t.Context(), all(scheduler.Reclaim, machines))
		if zombie.Err() == nil || successor.Err() != nil {
			rt.Fatalf("the zombie: %v, the successor: %v", zombie.Err(), successor.Err())
		}
		for _, r := range again {
			if r.Outcome != execute.PutOff {
				rt.Fatalf("after it was fenced: %+v", r)
			}
		}
		for id, epochs := range to.applied {
			for i := 1; i < len(epochs); i++ {
				if epochs[i] < epochs[i-1] {
					rt.Fatalf("%s was acted on by %v", id, epochs)
				}
			}
			if epochs[len(epochs)-1] != both[1].sender.Life().Epoch {
				rt.Fatalf("%s was acted on by %v: the zombie came last", id, epochs)
			}
		}
	})
}
