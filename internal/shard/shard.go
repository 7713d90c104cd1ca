// Package shard turns the demand of tenants into machines.
//
// It works in cycles: it has its providers list their machines, decides what to do about them,
// holds back what its safety limits do not let through, writes the rest into its journal, does it,
// and writes down the outcome. Each of these steps is a package below this one with a promise of
// its own; here they are put in their order.
//
// A shard goes on as long as its providers answer. It asks no coordinator: what it needs of one,
// such as quotas, is handed to it, and what it knew last counts.
package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

const (
	defaultEvery = time.Second
	listTimeout  = 5 * time.Second // of a provider, for its machines
)

// Provider is one that has machines. It is comparable, as a pointer is.
type Provider interface {
	execute.Provider

	// List returns all machines, or what changed since a revision that it returned before; ""
	// asks for all. It reads, and carries no token. It returns when ctx ends.
	List(ctx context.Context, since string) (scheduler.Listing, error)
}

// Journal keeps what was decided: [execute.Journal].
type Journal interface {
	Cycle([]execute.Entry) []execute.Entry
	Append([]execute.Entry) (written int, err error)
}

// Config is what a shard is made of.
type Config struct {
	// Providers returns those that have the machines now, by their names: valid ones by
	// [scheduler.ValidName], and at most [scheduler.MaxProviders]. It is asked when a cycle begins;
	// what it returned before is used no more then. One of another value than before, under the
	// same name, is asked for all machines. While there is none nothing is decided. Required.
	Providers func() map[string]Provider

	// Quotas returns the quotas in force. Nil: there are none.
	Quotas func() map[scheduler.Quota]int

	// Owns reports whether this shard may act in a domain at a provider now. Machines where it
	// may not are left alone, and count as they are. Nil: it may act everywhere.
	Owns func(provider, domain string) bool

	// Policy is what is chosen for the decision.
	Policy scheduler.Policy

	// Rails are those that hold. The zero value has none: programs take scheduler.Default.
	Rails scheduler.Rails

	// Grace is the time that a tenant has before a machine that it is told of is drained. Zero
	// means none: it is drained at once.
	Grace time.Duration

	// Concurrency is how many calls of providers are under way at once: see [execute.Options].
	Concurrency int

	// Journal takes what was decided. Required: nothing is done that is not written down.
	Journal Journal

	// Every is the time from one cycle to the next. Zero means 1 second.
	Every time.Duration

	// Now is the clock of cycles and pauses. Nil: time.Now.
	Now func() time.Time

	// Log gets what needs somebody's attention. Nil: nobody does.
	Log *slog.Logger
}

// Shard decides about machines. [Shard.Run] has it work; its other methods may be called by
// several goroutines, but Step by one.
type Shard struct {
	cfg     Config
	book    *scheduler.DemandBook
	pool    *execute.Pool
	notices *scheduler.Board
	paused  atomic.Bool

	inventory scheduler.Inventory // owned by Step
	providers map[string]Provider // of this cycle; owned by Step
	listed    map[string]bool     // of them, since they are known; owned by Step
	complete  bool                // all of them were listed at some time; owned by Step
	owed      []execute.Entry     // outcomes that could not be written yet; owned by Step
	unknown   map[string]bool     // profiles of quotas that no machine has, told already; owned by Step

	mu      sync.Mutex
	ready   bool                          // the tallies are of all providers; guarded by mu
	tallies map[string][]*scheduler.Tally // of each tenant; guarded by mu
	quotas  map[scheduler.Quota]int       // of the last cycle, never changed; guarded by mu
	last    Report                        // guarded by mu

	demand   map[string][]scheduler.DemandRow // of the last cycle, never changed; guarded by mu
	lacking  since[scheduler.Quota]           // tenants and profiles that lack machines; never changed; guarded by mu
	held     since[string]                    // tenants whose roll-ups are held; never changed; guarded by mu
	pausedAt time.Time                        // zero: it is not; guarded by mu

	changed chan struct{} // closed when the next cycle is over; guarded by mu
}

// New returns a shard. It starts nothing.
func New(cfg Config) (*Shard, error) {
	switch {
	case cfg.Providers == nil:
		return nil, errors.New("shard: Config.Providers is missing, and nobody has machines")
	case cfg.Journal == nil:
		return nil, errors.New("shard: Config.Journal is missing, and nothing is done that is not written down")
	case cfg.Every < 0 || cfg.Grace < 0:
		return nil, fmt.Errorf("shard: Config.Every is %v and Grace %v, and none may be negative", cfg.Every, cfg.Grace)
	}
	cfg.Every = cmp.Or(cfg.Every, defaultEvery)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	pool, err := execute.NewPool(nil, execute.Options{Concurrency: cfg.Concurrency, Now: cfg.Now})
	if err != nil {
		return nil, err
	}
	s := &Shard{cfg: cfg, pool: pool, notices: scheduler.NewBoard(cfg.Grace), changed: make(chan struct{}),
		book:      scheduler.NewDemandBook(scheduler.DemandOptions{Quarantine: cfg.Rails.Quarantine}),
		inventory: scheduler.Inventory{Quarantine: cfg.Rails.Quarantine}, listed: make(map[string]bool)}
	s.paused.Store(cfg.Rails.Paused)
	return s, nil
}

// Run works until ctx ends, and returns its error. A cycle that fails is logged, and the
// next one tries again. Once the process was fenced there is no next one, and Run waits for
// ctx so that people can look at it; its error matches fence.ErrEnded then.
func (s *Shard) Run(ctx context.Context) error {
	every := time.NewTicker(s.cfg.Every)
	defer every.Stop()
	for {
		if _, err := s.Step(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.ErrorContext(ctx, "a cycle of the shard failed", "err", err)
		}
		select {
		case <-s.pool.Fenced():
			<-ctx.Done()
			return s.pool.Err()
		case <-ctx.Done():
			return cmp.Or(s.pool.Err(), context.Cause(ctx)) // it may have been fenced at the same time
		case <-every.C:
		}
	}
}

// Report takes the demand of a tenant. See [scheduler.DemandBook.Report].
//
// While a provider was not listed since the start nobody knows what a tenant has, so that a
// roll-up which drops all of it looks like any other: the error matches
// [scheduler.ErrUnready], and the operator sends it again.
func (s *Shard) Report(r scheduler.RollUp) (scheduler.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return "", fmt.Errorf("shard: not every provider was listed yet: the roll-up of tenant %.80q: %w: send it "+
			"again in a moment",
			r.Tenant, scheduler.ErrUnready)
	}
	var running []scheduler.DemandRow
	for _, t := range s.tallies[r.Tenant] {
		for priority, n := range t.Working {
			running = append(running, scheduler.DemandRow{Profile: t.Profile, Priority: priority, Count: n})
		}
	}
	return s.book.Report(r, running)
}

// Capacity returns what a tenant has, as of the last cycle: one tally for each profile of
// which it has a machine, by the profile's name. Nobody changes what is returned.
func (s *Shard) Capacity(tenant string) []*scheduler.Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tallies[tenant]
}

// Wanted returns what a tenant wants, as far as it was taken.
func (s *Shard) Wanted(tenant string) []scheduler.DemandRow {
	rows, _ := s.book.Of(tenant)
	return rows
}

// Standing returns what is known of a tenant's demand.
func (s *Shard) Standing(tenant string) scheduler.Standing { return s.book.Standing(tenant) }

// Quota returns how many machines of a profile a tenant may have, as of the last cycle; false if
// nothing bounds it.
func (s *Shard) Quota(tenant, profile string) (machines int, bounded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	machines, bounded = s.quotas[scheduler.Quota{Tenant: tenant, Profile: profile}]
	return machines, bounded
}

// Notices returns the machines that a tenant is about to lose, in the order in which it
// does.
func (s *Shard) Notices(tenant string) []scheduler.Notice { return s.notices.Of(tenant) }

// Release says that a tenant does not need a machine any more of which it was told, and
// reports whether it was: it is drained with the next cycle.
func (s *Shard) Release(tenant string, machine scheduler.MachineKey) bool {
	return s.notices.Release(tenant, machine)
}

// Changed returns a channel that is closed when the next cycle is over.
func (s *Shard) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Pause says whether nothing is executed from the next cycle on: the kill switch. It needs
// nobody but this process.
func (s *Shard) Pause(paused bool) { s.paused.Store(paused) }

// owns reports whether the shard may act on a machine.
func (s *Shard) owns(m *scheduler.Machine) bool {
	return m.Domain == "" || !s.pool.Moved(m.Domain) && (s.cfg.Owns == nil || s.cfg.Owns(m.MachineKey.Provider, m.Domain))
}

// Own says that a domain is this shard's again, under an ownership that its receivers
// promised.
func (s *Shard) Own(domain string) { s.pool.Own(domain) }

// Fence has the shard act no more: a coordinator said that another process with its identity is in
// charge. err matches fence.ErrEnded.
func (s *Shard) Fence(err error) { s.pool.Fence(err) }

// Fenced is closed when this process was fenced: the moment to raise an incident.
func (s *Shard) Fenced() <-chan struct{} { return s.pool.Fenced() }

// Last returns the report of the last cycle; the zero Report before the first. Its
// parts are shared, and nobody changes them.
func (s *Shard) Last() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Report is what happened in one cycle.
type Report struct {
	At       time.Time
	Took     time.Duration
	Problem  error // why it was not gone through with; nil: it was
	Machines map[scheduler.State]int
	// Profiles counts the machines of each profile.
	Profiles map[string]map[scheduler.State]int
	// Providers are those whose machines were left alone, and why.
	Providers map[string]error
	Paused    bool
	Rulings   []scheduler.Ruling
	Results   []execute.Result // of the rulings that were to be executed, in their order
}

// sorted returns the keys of a set in order.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
