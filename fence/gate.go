package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Marks is what a [Gate] asks: [Ledger], or a ledger that is on disk when Admit and
// Promise return nil.
type Marks interface {
	// Check is [Ledger.Check], and changes nothing: what it refuses need not wait for its
	// turn to be refused.
	Check(c Claim) error

	// Admit is [Ledger.Admit]. An error that is no [*RefusedError] means that nothing was
	// decided, or that the mark could not be saved: the attempt is not made, and its token
	// may be used up.
	Admit(ctx context.Context, c Claim) error

	// Promise is [Ledger.Promise], in the same way.
	Promise(ctx context.Context, a Verified[Assignment]) error

	// DomainOf is [Ledger.DomainOf].
	DomainOf(resource string) string

	// Forget is [Ledger.Forget]. An error means that the resource may be remembered still.
	Forget(ctx context.Context, resource string) error
}

// InMemory makes [Marks] of a ledger that forgets with its process.
func InMemory(l *Ledger) Marks { return memory{l} }

type memory struct{ *Ledger }

func (m memory) Check(c Claim) error {
	_, err := m.Ledger.Check(c)
	return err
}

func (m memory) Forget(_ context.Context, resource string) error {
	m.Ledger.Forget(resource)
	return nil
}

func (m memory) Admit(_ context.Context, c Claim) error                  { return m.Ledger.Admit(c) }
func (m memory) Promise(_ context.Context, a Verified[Assignment]) error { return m.Ledger.Promise(a) }

// defaultWaiting is how many attempts wait for one that is under way for their resource.
const defaultWaiting = 16

// ErrBusy is matched where more attempts wait for one resource than may.
var ErrBusy = errors.New("too many attempts wait for this resource")

// Gate makes checking, saving and acting one step for each resource, so that no attempt
// acts while another does and none acts on a mark that has moved. Use one Gate for all
// that acts on the same resources.
type Gate struct {
	marks   Marks
	waiting int

	mu        sync.Mutex
	resources map[string]*queue                // those under way or waited for; guarded by mu
	domains   map[string]map[*attempt]struct{} // attempts under way, by domain; guarded by mu
}

// queue is whose turn it is for one resource.
type queue struct {
	turn chan struct{} // holds one value while somebody has the turn
	n    int           // who has it, and who waits; guarded by Gate.mu
}

// attempt is one that is under way.
type attempt struct{ done chan struct{} }

// NewGate returns a gate before marks. waiting bounds who waits for one resource, and
// zero, or less, means 16.
func NewGate(marks Marks, waiting int) *Gate {
	if waiting <= 0 {
		waiting = defaultWaiting
	}
	return &Gate{marks: marks, waiting: waiting, resources: make(map[string]*queue),
		domains: make(map[string]map[*attempt]struct{})}
}

// Do admits the claim and then acts, while no other attempt for its resource does. The
// mark is saved before act begins, and stays moved whatever act returns.
//
// act returns when its effect is there, or can no longer come: what goes on after it is
// waited for by no promise. It calls neither Do for the same resource nor Promise for its
// domain, which would wait for it.
//
// Errors: a [*RefusedError], or one of the marks, and act was not called; one that matches
// [ErrBusy], or the context's if it ended while others had the turn, and act was not
// called and no mark moved; otherwise what act returned.
func (g *Gate) Do(ctx context.Context, c Claim, act func(context.Context) error) error {
	// A zombie takes no place in the queue.
	if err := g.marks.Check(c); err != nil {
		return err
	}
	leave, err := g.enter(ctx, c.Resource)
	if err != nil {
		return err
	}
	defer leave()
	// Under way in its domain before the mark is asked: a promise that this attempt does
	// not see any more waits for it.
	domain := g.marks.DomainOf(c.Resource)
	if domain == "" {
		domain = c.Domain
	}
	defer g.begin(domain)()
	if err := g.marks.Admit(ctx, c); err != nil {
		return err
	}
	return act(ctx)
}

// Remove is Do of an attempt after which the resource is gone for good: when act returned
// nil the resource is forgotten, before anybody else has its turn.
func (g *Gate) Remove(ctx context.Context, c Claim, act func(context.Context) error) error {
	return g.Do(ctx, c, func(ctx context.Context) error {
		if err := act(ctx); err != nil {
			return err
		}
		return g.marks.Forget(ctx, c.Resource)
	})
}

// Promise remembers an assignment, and returns when no attempt under an older one is
// under way any more: its holder may act then, and not before.
//
// When the context ends first, the promise is made all the same, and the error says that
// the holder has to wait: call Promise again. A [*PromiseError] changed nothing.
func (g *Gate) Promise(ctx context.Context, a Verified[Assignment]) error {
	if err := g.marks.Promise(ctx, a); err != nil {
		return err
	}
	assignment, _ := a.Get()
	g.mu.Lock()
	before := make([]*attempt, 0, len(g.domains[assignment.Domain]))
	for at := range g.domains[assignment.Domain] {
		before = append(before, at)
	}
	g.mu.Unlock()
	for i, at := range before {
		select {
		case <-at.done:
		case <-ctx.Done():
			return fmt.Errorf("fence: domain %.80q is promised, and %d attempts that were admitted before are "+
				"still under way: promise it again, and act when that is answered: %w",
				assignment.Domain, len(before)-i, context.Cause(ctx))
		}
	}
	return nil
}

// enter waits for the turn of a resource.
func (g *Gate) enter(ctx context.Context, resource string) (leave func(), err error) {
	g.mu.Lock()
	q := g.resources[resource]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1)}
		g.resources[resource] = q
	} else if q.n > g.waiting {
		g.mu.Unlock()
		return nil, fmt.Errorf("fence: %d attempts wait for %.80q already: send one at a time: %w", g.waiting,
			resource, ErrBusy)
	}
	q.n++
	g.mu.Unlock()
	gone := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if q.n--; q.n == 0 {
			delete(g.resources, resource)
		}
	}
	select {
	case q.turn <- struct{}{}:
		if ctx.Err() == nil {
			return func() { <-q.turn; gone() }, nil
		}
		<-q.turn // both were ready
	case <-ctx.Done():
	}
	gone()
	return nil, fmt.Errorf("fence: the attempt for %.80q waited for another one, and was given up: %w", resource,
		context.Cause(ctx))
}

// begin notes an attempt under way in a domain, until the function that it returns is
// called. Of no domain there is nothing to note.
func (g *Gate) begin(domain string) (end func()) {
	if domain == "" {
		return func() {}
	}
	at := &attempt{done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.domains[domain] == nil {
		g.domains[domain] = make(map[*attempt]struct{})
	}
	g.domains[domain][at] = struct{}{}
	return func() {
		close(at.done)
		g.mu.Lock()
		defer g.mu.Unlock()
		if delete(g.domains[domain], at); len(g.domains[domain]) == 0 {
			delete(g.domains, domain)
		}
	}
}
