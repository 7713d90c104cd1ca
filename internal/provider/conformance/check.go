package conformance

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/provider"
)

// LeastMachines is how many speculative machines the cases need.
const LeastMachines = 2

// mostMachines bounds those that one case acts on at once.
const mostMachines = 32

var (
	// ErrTooFew: there are not enough speculative machines, and nothing was done.
	ErrTooFew = errors.New("too few speculative machines")

	// ErrDomains: the machines are in domains, and nobody can promise them without the
	// authority's key.
	ErrDomains = errors.New("the machines are in domains: the authority's key is needed")
)

// Target is a live provider.
type Target struct {
	// Conn is a connection to it that stamps nothing. Required.
	Conn grpc.ClientConnInterface

	// Holder is what the provider takes the caller for: its SPIFFE id. Required.
	Holder string

	// Key signs grants and assignments of Cluster. Nil: the cases that need one are not run.
	Key     ed25519.PrivateKey
	Cluster string

	// Restart ends the provider, and starts it again on what it kept. Nil: the cases that
	// need it are not run.
	Restart func(ctx context.Context) error

	// Settle bounds how long one operation takes to its end. Zero means 30 s.
	Settle time.Duration
}

// Outcome is what came of a case.
type Outcome string

// The outcomes.
const (
	Kept   Outcome = "kept"
	Broken Outcome = "broken"
	NotRun Outcome = "not run"
)

// Result is what came of one case.
type Result struct {
	Case    string
	Rule    string
	Outcome Outcome
	Why     string // what was seen of a rule that is broken, or what a case needs that was not run
	Took    time.Duration
}

// Case is one rule.
type Case struct {
	Name, Rule string

	needs []string // cases without which it says nothing: one defect, one finding
	want  need
	run   func(*check)
}

// need is what a case needs of a target.
type need struct{ key, restart, domain bool }

// Cases returns the cases, in the order in which they are run.
func Cases() []Case { return slices.Clone(cases) }

// Check runs the cases. tell is called after each; the rest is not run once ctx ended.
//
// An error says that the cases could not begin, or go on: [ErrTooFew], [ErrDomains], or that
// a list could not be had.
func Check(ctx context.Context, target Target, tell func(Result)) error {
	if target.Settle <= 0 {
		target.Settle = 30 * time.Second
	}
	s := &suite{target: target, calls: fealtyv1.NewProviderServiceClient(target.Conn)}
	if err := s.begin(ctx); err != nil {
		return err
	}
	broken := make(map[string]bool)
	for _, c := range cases {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := Result{Case: c.Name, Rule: c.Rule, Outcome: NotRun, Why: s.missing(c.want)}
		for _, name := range c.needs {
			// A case that has not been run yet is a mistake in the order of the cases.
			if was, run := broken[name]; was || !run {
				r.Why = "case " + name + " is broken, and this one rests on it"
			}
		}
		if r.Why == "" {
			begun := time.Now()
			r.Outcome, r.Why = s.run(ctx, c)
			r.Took = time.Since(begun)
		}
		broken[c.Name] = r.Outcome != Kept
		tell(r)
	}
	return nil
}

// missing says what of a need there is not, or "".
func (s *suite) missing(n need) string {
	switch {
	case n.key && s.target.Key == nil:
		return "it needs the authority's key"
	case n.restart && s.target.Restart == nil:
		return "it needs a command that restarts the provider"
	case n.domain && s.domain == "":
		return "it needs a machine that is in a domain"
	}
	return ""
}

// stop ends a case.
type stop struct{}

// check is one run of a case.
type check struct {
	*suite
	ctx     context.Context
	why     string
	p       *process // the newest life
	touched []string // machines to be put back
}

// run runs a case to its end, and puts back what it acted on.
func (s *suite) run(ctx context.Context, c Case) (Outcome, string) {
	// A case that hangs is broken too.
	limited, cancel := context.WithTimeout(ctx, 10*s.target.Settle)
	defer cancel()
	k := &check{suite: s, ctx: limited}
	k.attempt(func() {
		k.p = s.live()
		k.claim()
		c.run(k)
	})
	seen := k.why
	k.attempt(k.putBack)
	switch {
	case seen != "":
		return Broken, seen
	case k.why != "":
		return Broken, "after the case: " + k.why
	}
	return Kept, ""
}

func (k *check) attempt(f func()) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(stop); !ok {
				panic(v)
			}
		}
	}()
	f()
}

// fail ends the case with what was seen.
func (k *check) fail(form string, args ...any) {
	if k.why == "" {
		k.why = fmt.Sprintf(form, args...)
	}
	panic(stop{})
}

// speculative returns n machines that the provider could make, or ends the case.
func (k *check) speculative(n int) []string {
	machines := k.some(n)
	if len(machines) < n {
		k.fail("%d of its machines are speculative, and %d are needed: those of earlier cases did not come back",
			len(machines), n)
	}
	k.touched = append(k.touched, machines...)
	return machines
}

// some returns up to n speculative machines of the domain that the cases act in.
func (k *check) some(n int) []string {
	all, err := k.list(k.ctx, 0)
	if err != nil {
		k.fail("ListMachines: %v", err)
	}
	var ids []string
	for _, m := range all {
		free := m.GetState() == fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE && m.GetDomain() == k.domain
		if free && len(ids) < n {
			ids = append(ids, m.GetId())
		}
	}
	return ids
}

// putBack makes the machines of the case speculative again, with the newest life.
func (k *check) putBack() {
	k.p = k.suite.live()
	k.claim()
	for _, id := range slices.Compact(slices.Sorted(slices.Values(k.touched))) {
		end := time.Now().Add(3 * k.target.Settle)
		for {
			if time.Now().After(end) {
				k.fail("machine %s does not become speculative again", id)
			}
			m, a := k.get(id)
			if a.code == notFound {
				break
			}
			state := k.stateOf(m, a)
			if state == provider.Speculative {
				break
			}
			switch state {
			case provider.Idle:
				k.accepted(k.p.next(), remove(id))
			case provider.Configured:
				k.accepted(k.p.next(), drain(id))
			case provider.Failed:
				k.accepted(k.p.next(), remove(id))
			}
			k.pause()
		}
	}
}
