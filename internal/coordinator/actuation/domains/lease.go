package domains

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

// Times of leases.
const (
	// MinLease is the shortest lease of an owner, that of a cluster whose nodes may do nothing
	// out of reach.
	MinLease = time.Minute
	// LookEvery is how often the leader looks for leases that are over.
	LookEvery = 10 * time.Second
)

// leaseOf is how long an owner acts on without a coordinator: as long as nodes may go on at all.
func leaseOf(m *manifest.Manifest) time.Duration { return max(m.Degraded.Max, MinLease) }

// lease is that of the owner. A record that a release before leases wrote has none, and may have
// lost the one that its owner was told.
func (r Record) lease(m *manifest.Manifest) time.Duration { return cmp.Or(r.Lease, leaseOf(m)) }

// Wait is how long the leader waits for the end of a lease. Each of two clocks may go 5% wrong,
// the owner's too slow and the leader's too fast: 1.05 / 0.95 is below 9/8.
func Wait(lease time.Duration) time.Duration { return max(lease, MinLease) / 8 * 9 }

// letGo passes a domain on by a decision, and to nobody if the next owner cannot own it any
// more: the owner of now does not act all the same. A word that was said before, or of an
// ownership that is over, changes nothing.
func (d *Domains) letGo(ctx context.Context, c change) (bool, error) {
	decide := c.decide
	pass := func(toNobody bool) (bool, error) {
		c.decide = func(have Domain, authorityEpoch uint64, gone string) (Domain, error) {
			owned := have
			if toNobody {
				owned.Next = ""
			}
			next, err := decide(owned, authorityEpoch, gone)
			if errors.Is(err, ErrNotOwner) {
				return have, nil
			}
			return next, err
		}
		_, changed, err := d.apply(ctx, c)
		return changed, err
	}
	changed, err := pass(false)
	if errors.Is(err, errcode.DomainUnfit) || errors.Is(err, errcode.DomainKind) || errors.Is(err, errcode.NotFound) ||
		errors.Is(err, errcode.DomainTooMany) {
		changed, err = pass(true)
	}
	return changed, err
}

// Leases are those whose end this coordinator waits for, while it leads. One that leads anew
// waits anew: it was not there when the owner was asked, and believes no clock but its own.
type Leases struct {
	d     *Domains
	asked map[string]asked // by the domain's name
}

// asked says since when the owner of a domain was seen to be asked to let go.
type asked struct {
	ownership uint64
	since     time.Duration
}

// NewLeases returns Leases of which none is waited for.
func (d *Domains) NewLeases() *Leases { return &Leases{d: d, asked: make(map[string]asked)} }

// Look passes on the domains whose owners were asked to let go, and did not before their lease
// was over. A record that was altered in the store holds up no other domain here. What is left then that needs
// somebody is for metrics.
func (l *Leases) Look(ctx context.Context, s *authority.State) error {
	all, _, err := authority.ListGenuine[Record](ctx, l.d.cfg.Head, s, Prefix)
	if err != nil {
		return l.d.cfg.Head.StoreError("list the domains", err)
	}
	moving, passed := make(map[string]asked), false
	for _, v := range all {
		r := v.Value
		if !r.Moving {
			continue
		}
		// Now, and not before the list was read: it was asked by then.
		now := l.d.cfg.Elapsed()
		a := asked{r.Ownership, now}
		if known, ok := l.asked[r.Name]; ok && known.ownership == r.Ownership {
			a.since = known.since
		}
		moving[r.Name] = a
		reason := "its owner " + r.Owner + " did not let go before its lease was over"
		if now-a.since < Wait(r.lease(s.Manifest)) {
			// A ban is somebody's decision; the end of a certificate is a clock's that somebody sets,
			// and so an admin's to act on, and not the leader's.
			banned, err := l.d.banned(ctx, s, r.Owner)
			if err != nil && !errors.Is(err, errcode.StoreForged) {
				return err
			}
			if !banned {
				continue
			}
			reason = "its owner " + r.Owner + " is banned"
		}
		changed, err := l.d.letGo(ctx, change{name: r.Name, action: "domain.lapse", by: "the leader", reason: reason,
			decide: func(d Domain, authorityEpoch uint64, _ string) (Domain, error) {
				return d.Lapse(a.ownership, authorityEpoch)
			}})
		if err != nil && !errors.Is(err, errcode.StoreForged) {
			return err
		}
		passed = passed || changed
	}
	l.asked = moving
	if passed {
		if all, _, err = authority.ListGenuine[Record](ctx, l.d.cfg.Head, s, Prefix); err != nil {
			return l.d.cfg.Head.StoreError("list the domains", err)
		}
	}
	l.d.note(ctx, s, all)
	return nil
}

// FollowLeases looks while this coordinator leads, until ctx ends.
func (d *Domains) FollowLeases(ctx context.Context, s *authority.State) error {
	for {
		led := d.cfg.Election.Changed()
		if _, _, ok := d.cfg.Election.Leading(); !ok {
			if err := watch.Event(ctx, led); err != nil {
				return err
			}
			continue
		}
		for leases, over := d.NewLeases(), false; !over; {
			if err := leases.Look(ctx, s); err != nil {
				return err
			}
			var err error
			if over, err = watch.Wait(ctx, LookEvery, led); err != nil {
				return err
			}
		}
	}
}

// banned reports whether the owner at a path is banned.
func (d *Domains) banned(ctx context.Context, s *authority.State, path string) (bool, error) {
	kind, name, _ := strings.Cut(path, "/")
	ban, err := record.Get[record.Ban](ctx, s.Records, record.BanIDKey(identity.Kind(kind), name))
	if err != nil {
		return false, d.cfg.Head.StoreError("read the ban", err)
	}
	return ban.Exists(), nil
}
