// Package execute carries out what was decided about machines, and reports the outcome.
//
// A [Pool] has a bounded number of calls under way, and at most one for each machine. A call that
// was refused because this process is no longer in charge ends the pool for good, as nothing that
// it knows is current any more: it is an incident, and never retried. A machine whose call failed
// otherwise is left alone for a while, and decided anew after it.
//
// The [Journal] keeps on disk what the shard decided, and what became of it. Each decision is an entry
// of a chain, in the form of the audit log (package auditlog): it names the hash of the entry before
// it, so that an entry which was altered, taken out or put in shows. A process begins a chain of its
// own, whose first entry names the last one of the process before. An entry that [Journal.Append]
// counted survives a power cut. An action that is to be executed is there before it begins ([Begun])
// and again with its outcome: one that has begun and no outcome was under way when the process ended.
// The journal is bounded: it drops the oldest segment when there is one too many, and the first entry
// that is kept then follows one that is gone.
package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// How a pool works.
const (
	defaultConcurrency = 32
	maxConcurrency     = 1024

	callTimeout = 10 * time.Second // of one call
	// budget is how long after its start [Pool.Execute] begins calls: what is left is decided
	// anew in the next cycle.
	budget = 5 * time.Second

	// A machine is left alone for firstPause after a call for it failed; each failure after
	// that doubles it, up to lastPause.
	firstPause = time.Second
	lastPause  = time.Minute
)

// The errors of a [Provider]. Any other error counts as internal.
var (
	// ErrNotFound: the provider has no such machine.
	ErrNotFound = errors.New("no such machine")
	// ErrUnavailable: the provider did not answer; whether it did it is not known.
	ErrUnavailable = errors.New("provider unavailable")
	// ErrRejected: the provider will not do it, or its fence does not let this attempt pass, as
	// it wants a grant or a promise. Nothing was changed.
	ErrRejected = errors.New("rejected by the provider")
)

// Order is what a provider is asked to do with one of its machines.
type Order struct {
	Machine   scheduler.MachineKey
	Profile   string
	Domain    string
	Tenant    string // of Configure
	Priority  int32  // of Configure
	Operation string // names the operation: once more with it is the same one
}

// Provider changes machines. Each method returns once the operation was accepted, which
// takes effect later; it stamps each attempt with a token of its own, and returns when its
// context ends. A refusal by the fence matches [fence.ErrFenced].
type Provider interface {
	Create(ctx context.Context, o Order) error
	Configure(ctx context.Context, o Order) error
	Drain(ctx context.Context, o Order) error
	Delete(ctx context.Context, o Order) error
}

// Outcome is what became of an action. It is a metric label.
type Outcome string

// The outcomes.
const (
	Executed    Outcome = "executed"
	Fenced      Outcome = "fenced"      // this process is no longer in charge: nothing more is done
	Moved       Outcome = "moved"       // the domain belongs to somebody else: nothing more is done in it
	NotFound    Outcome = "not-found"   // the next listing tells what is there
	Unavailable Outcome = "unavailable" // whether it was done is not known
	Rejected    Outcome = "rejected"
	Internal    Outcome = "internal" // whether it was done is not known
	PutOff      Outcome = "put-off"  // it was not begun: there was no time, or the pool has ended
)

// Classify says what the error of a call means. The fence comes first: its refusal is
// final, whatever else the error says.
func Classify(err error) Outcome {
	switch {
	case err == nil:
		return Executed
	case errors.Is(err, fence.ErrEnded):
		return Fenced
	case errors.Is(err, fence.ErrFenced):
		return Moved
	case errors.Is(err, fence.ErrRefused) && !errors.Is(err, ErrRejected):
		// This process is in charge, and the attempt may have been obeyed before.
		return Unavailable
	case errors.Is(err, ErrNotFound):
		return NotFound
	case errors.Is(err, ErrRejected):
		return Rejected
	case errors.Is(err, ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unavailable
	default:
		return Internal
	}
}

// unknown reports whether the provider may have accepted the operation all the same.
func (o Outcome) unknown() bool { return o == Unavailable || o == Internal }

// Result is what became of one action.
type Result struct {
	Action  scheduler.Action
	Outcome Outcome
	Err     error // nil of Executed
}

// Options say how a pool works.
type Options struct {
	// Concurrency is how many calls are under way at once, 1 to 1,024. Zero means 32.
	Concurrency int
	// Now is the clock of the pauses and of the budget. Nil: time.Now.
	Now func() time.Time
}

// Pool carries out actions. It may be used by several goroutines.
type Pool struct {
	options Options
	over    chan struct{} // closed when fenced

	mu        sync.Mutex
	providers map[string]Provider               // never changed, but replaced; guarded by mu
	busy      map[scheduler.MachineKey]struct{} // calls under way; guarded by mu
	failed    map[scheduler.MachineKey]failure  // guarded by mu
	moved     map[string]error                  // domains that belong to somebody else; guarded by mu
	fenced    error                             // guarded by mu
}

// failure is what is known of a machine whose last call failed.
type failure struct {
	action scheduler.Action
	doubt  bool // the provider may have accepted it
	pause  time.Duration
	until  time.Time
}

// NewPool returns a pool that acts through providers, by their names.
func NewPool(providers map[string]Provider, o Options) (*Pool, error) {
	o.Concurrency = cmp.Or(o.Concurrency, defaultConcurrency)
	if o.Concurrency < 1 || o.Concurrency > maxConcurrency {
		return nil, fmt.Errorf("execute: Options.Concurrency is %d, want 1 to %d", o.Concurrency, maxConcurrency)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Pool{options: o, providers: maps.Clone(providers), over: make(chan struct{}),
		busy: make(map[scheduler.MachineKey]struct{}), failed: make(map[scheduler.MachineKey]failure),
		moved: make(map[string]error)}, nil
}

// Use says which providers there are from now on, by their names.
func (p *Pool) Use(providers map[string]Provider) {
	providers = maps.Clone(providers)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.providers = providers
}

func (p *Pool) provider(name string) Provider {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.providers[name]
}

// Execute carries out actions, and returns what became of each, in their order. It returns
// when no call of it is under way any more. Nothing is begun after ctx ended.
func (p *Pool) Execute(ctx context.Context, actions []scheduler.Action) []Result {
	results := make([]Result, len(actions))
	end := p.options.Now().Add(budget)
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(p.options.Concurrency, len(actions)) {
		workers.Go(func() {
			for i := range next {
				results[i] = p.one(ctx, actions[i], end)
			}
		})
	}
	for i := range actions {
		next <- i
	}
	close(next)
	workers.Wait()
	return results
}

// one carries out one action.
func (p *Pool) one(ctx context.Context, a scheduler.Action, end time.Time) Result {
	putOff := func(err error) Result { return Result{a, PutOff, err} }
	provider := p.provider(a.Machine.Provider)
	switch {
	case provider == nil:
		return Result{a, Rejected, fmt.Errorf("execute: %v: there is no provider %q here: %w", a.Machine,
			a.Machine.Provider, ErrRejected)}
	case ctx.Err() != nil:
		return putOff(context.Cause(ctx))
	case p.options.Now().After(end):
		return putOff(fmt.Errorf("execute: %v: the %v of this cycle are over, and the next one decides it anew",
			a.Machine, budget))
	}
	if err := p.begin(a); err != nil {
		return putOff(err)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	err := send(call, provider, a)
	cancel()
	r := Result{a, Classify(err), err}
	p.end(r)
	return r
}

func send(ctx context.Context, p Provider, a scheduler.Action) error {
	o := Order{Machine: a.Machine, Profile: a.Profile, Domain: a.Domain, Operation: a.Operation}
	switch a.Kind {
	case scheduler.Assign:
		o.Tenant, o.Priority = a.Tenant, a.Priority
		return p.Configure(ctx, o)
	case scheduler.Create:
		return p.Create(ctx, o)
	case scheduler.Preempt, scheduler.Reclaim:
		return p.Drain(ctx, o)
	case scheduler.Release:
		return p.Delete(ctx, o)
	}
	return fmt.Errorf("execute: %v: nobody knows how to %q it: %w", a.Machine, a.Kind, ErrRejected)
}

// begin notes that a call for a machine is under way, or says why there may be none.
func (p *Pool) begin(a scheduler.Action) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fenced != nil {
		return p.fenced
	}
	if err := p.moved[a.Domain]; err != nil {
		return err
	}
	if _, busy := p.busy[a.Machine]; busy {
		return fmt.Errorf("execute: %v: a call for it is under way", a.Machine)
	}
	p.busy[a.Machine] = struct{}{}
	return nil
}

func (p *Pool) end(r Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, r.Action.Machine)
	switch r.Outcome {
	case Executed:
		delete(p.failed, r.Action.Machine)
		return
	case Fenced:
		p.fenceLocked(r.Err)
		return
	case Moved:
		if r.Action.Domain != "" {
			p.moved[r.Action.Domain] = fmt.Errorf("execute: domain %q moved on, and nothing is done in it any "+
				"more: %w",
				r.Action.Domain, r.Err)
		}
	}
	pause := min(max(2*p.failed[r.Action.Machine].pause, firstPause), lastPause)
	p.failed[r.Action.Machine] = failure{r.Action, r.Outcome.unknown(), pause, p.options.Now().Add(pause)}
}

// Hold is a machine that is left alone for now.
type Hold struct {
	Action scheduler.Action // whose call failed
	Doubt  bool             // the provider may have accepted it all the same
}

// Holds returns the machines that are left alone at a time, because a call for them failed
// or is under way.
func (p *Pool) Holds(now time.Time) map[scheduler.MachineKey]Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[scheduler.MachineKey]Hold)
	for k, f := range p.failed {
		if now.Before(f.until) {
			out[k] = Hold{f.action, f.doubt}
		}
	}
	for k := range p.busy {
		if _, known := out[k]; !known {
			out[k] = Hold{}
		}
	}
	return out
}

// Retain forgets the failures of machines that are gone.
func (p *Pool) Retain(there func(scheduler.MachineKey) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.failed, func(k scheduler.MachineKey, _ failure) bool { return !there(k) })
}

// Own says that a domain is this holder's again, under an ownership that its receivers
// promised.
func (p *Pool) Own(domain string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.moved, domain)
}

// Moved reports whether a domain belongs to somebody else, as a provider said.
func (p *Pool) Moved(domain string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved[domain] != nil
}

// Fence ends the acting of this process, as somebody else than a provider refused it for good.
// err matches [fence.ErrEnded].
func (p *Pool) Fence(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fenceLocked(err)
}

// fenceLocked is Fence. The caller holds p.mu.
func (p *Pool) fenceLocked(err error) {
	if p.fenced == nil {
		p.fenced = fmt.Errorf("execute: this process was fenced and acts no more: look for another process with "+
			"its identity before it is started again: %w", err)
		close(p.over)
	}
}

// Fenced is closed when this process was fenced: the moment to raise an incident.
func (p *Pool) Fenced() <-chan struct{} { return p.over }

// Err returns what fenced this process; nil while nothing did. It matches [fence.ErrEnded].
func (p *Pool) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fenced
}
