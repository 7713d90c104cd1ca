package shard

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// Summary is what a shard has and does as of its last cycle, for people. It decides nothing. Its parts
// are shared with the cycle, and nobody changes them.
type Summary struct {
	Last Report // zero before the first cycle

	// PausedFor is for how long it has been paused, since this process started; 0 while it is not.
	PausedFor time.Duration

	// Demand is what tenants want and have, by tenant and profile.
	Demand []Need

	// Held are the roll-ups that are held, by tenant, and for how long each is.
	Held map[string]time.Duration
}

// Need is what a tenant wants of a profile, and has.
type Need struct {
	Tenant, Profile string
	Wanted          int
	// Quota is how many it may have, if Bounded.
	Quota   int
	Bounded bool
	// Known: demand of the tenant was taken since the process started.
	Known bool
	// Has counts what it has; without Working, if it has nothing.
	Has scheduler.Tally
	// ShortFor is for how long it has lacked a machine; 0 while it lacks none.
	ShortFor time.Duration
}

// Short is how many machines it wants, may have and lacks. One that is configured or about to be is
// there; one that failed is not.
func (n *Need) Short() int { return short(n.Wanted, n.Quota, n.Bounded, &n.Has) }

func short(wanted, quota int, bounded bool, has *scheduler.Tally) int {
	if bounded {
		wanted = min(wanted, quota)
	}
	return max(0, wanted-has.Configuring-has.Configured)
}

// since is when things began that last, such as a lack. Each cycle makes a new one, so that who reads
// the one of before is not disturbed.
type since[K comparable] map[K]time.Time

// still returns when each of those began that there are now: those of before go on.
func (s since[K]) still(now time.Time, there []K) since[K] {
	next := make(since[K], len(there))
	for _, k := range there {
		if at, known := s[k]; known {
			next[k] = at
		} else {
			next[k] = now
		}
	}
	return next
}

// noteLocked keeps what [Shard.Summary] tells of a cycle. While not every provider was listed nobody knows
// what a tenant lacks. The lock is held.
func (s *Shard) noteLocked(now time.Time, in *scheduler.Input, tallies map[string][]*scheduler.Tally, ready bool) {
	s.demand, s.tallies, s.ready, s.quotas = in.Demand, tallies, ready, in.Quotas
	var lacks []scheduler.Quota
	if ready {
		for tenant, rows := range in.Demand {
			for _, n := range needsOf(tenant, rows, true, tallies[tenant], in.Quotas) {
				if n.Short() > 0 {
					lacks = append(lacks, scheduler.Quota{Tenant: n.Tenant, Profile: n.Profile})
				}
			}
		}
	}
	s.lacking = s.lacking.still(now, lacks)
	s.held = s.held.still(now, s.book.Holding())
}

// needsOf returns what a tenant wants and has, by profile.
func needsOf(tenant string, rows []scheduler.DemandRow, known bool, has []*scheduler.Tally,
	quotas map[scheduler.Quota]int) []Need {
	of := make(map[string]*Need)
	need := func(profile string) *Need {
		n := of[profile]
		if n == nil {
			n = &Need{Tenant: tenant, Profile: profile, Known: known, Has: scheduler.Tally{Profile: profile}}
			n.Quota, n.Bounded = quotas[scheduler.Quota{Tenant: tenant, Profile: profile}]
			of[profile] = n
		}
		return n
	}
	for _, row := range rows {
		need(row.Profile).Wanted += row.Count
	}
	for _, t := range has {
		need(t.Profile).Has = *t
	}
	var out []Need
	for _, profile := range slices.Sorted(maps.Keys(of)) {
		out = append(out, *of[profile])
	}
	return out
}

// Summary returns what the shard has and does at now.
func (s *Shard) Summary(now time.Time) Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	lasts := func(since time.Time) time.Duration { return max(1, now.Sub(since)) }
	out := Summary{Last: s.last, Held: make(map[string]time.Duration, len(s.held))}
	if !s.pausedAt.IsZero() {
		out.PausedFor = lasts(s.pausedAt)
	}
	for tenant, at := range s.held {
		out.Held[tenant] = lasts(at)
	}
	tenants := make(map[string]struct{}, len(s.demand))
	for tenant := range s.demand {
		tenants[tenant] = struct{}{}
	}
	for tenant := range s.tallies {
		tenants[tenant] = struct{}{}
	}
	for tenant := range tenants {
		_, known := s.demand[tenant]
		for _, n := range needsOf(tenant, s.demand[tenant], known, s.tallies[tenant], s.quotas) {
			if at, lacks := s.lacking[scheduler.Quota{Tenant: n.Tenant, Profile: n.Profile}]; lacks {
				n.ShortFor = lasts(at)
			}
			out.Demand = append(out.Demand, n)
		}
	}
	slices.SortFunc(out.Demand, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Profile, b.Profile))
	})
	return out
}
