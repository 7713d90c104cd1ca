package coordinator

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/gauge"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

// forgetLive drops what is known of a member that is none any more.
func (c *Membership) forgetLive(s *authority.State, path string) {
	kind, name, _ := strings.Cut(path, "/")
	if id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name); err == nil {
		c.live.Forget(id)
	}
	c.copies.Forget(path)
}

// openMembers opens records of members under s. One that was altered from outside is left
// out, and reported. It is a [store.ConflictError] on the head if s does not open all of
// them because the head moved on.
func (c *Membership) openMembers(ctx context.Context, s *authority.State,
	entries []store.Entry) ([]record.Versioned[record.Member], error) {
	recs := make([]record.Versioned[record.Member], 0, len(entries))
	var bad []authority.Suspect
	for _, e := range entries {
		if r, err := record.Open[record.Member](s.Records, e); err == nil {
			recs = append(recs, r)
		} else {
			bad = append(bad, authority.Suspect{What: e.Key, Err: err})
		}
	}
	return recs, c.cfg.Head.ForgedUnder(ctx, s, bad...)
}

// followMembers keeps the index up with the store until ctx ends.
func (c *Membership) followMembers(ctx context.Context, s *authority.State) error {
	for {
		l, err := c.cfg.Store.List(ctx, record.MemberPrefix)
		if err != nil {
			return err
		}
		if err := c.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		recs, err := c.openMembers(ctx, s, l.Entries)
		if err != nil {
			return err
		}
		c.members.Fill(recs, l.Revision)
		for ch, err := range c.cfg.Store.Changes(ctx, record.MemberPrefix, l.Revision) {
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				break // compacted or disconnected: list again
			}
			recs, err := c.openMembers(ctx, s, ch.Put)
			if err != nil {
				return err
			}
			for _, r := range recs {
				c.members.Put(r.Value, r.Version)
			}
			for _, k := range ch.Delete {
				path := k[len(record.MemberPrefix):]
				c.members.Remove(path, ch.Revision)
				c.forgetLive(s, path)
			}
			c.members.Seen(ch.Revision)
		}
		if err := watch.Sleep(ctx, watch.RetryPause); err != nil {
			return err
		}
	}
}

// membershipMetrics are what Membership counts.
type membershipMetrics struct {
	clones prometheus.Counter
}

func newMembershipMetrics(reg prometheus.Registerer) *membershipMetrics {
	m := &membershipMetrics{
		clones: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_clone_alarms_total",
			Help: "Uses of an earlier key of a member: two machines hold one identity.",
		}),
	}
	reg.MustRegister(m.clones)
	return m
}

// registerMetrics registers what it counts, and who is connected.
func (c *Membership) registerMetrics(reg prometheus.Registerer) {
	c.metrics = newMembershipMetrics(reg)
	reg.MustRegister(
		gauge.Of("fealty_coordinators_unheard",
			"Other coordinators that this one misses: they did not stop in order, and have not answered "+
				"for ten seconds.",
			func() float64 { return float64(len(c.presence.Missed(c.cfg.Elapsed()))) }),
		gauge.Of("fealty_agents_connected",
			"Members that hold a stream to this coordinator.",
			func() float64 { return float64(c.live.Connected()) }),
		gauge.Of("fealty_data_members_connected",
			"Data members that hold a stream to this coordinator, or asked it lately. The sum over "+
				"coordinators is what the baseline counts, but for those that drain.",
			func() float64 { return float64(c.live.DataConnected()) }),
	)
}

// follow fills the index with the members of next.
func (c *Membership) follow(ctx context.Context, next *authority.State) (authority.Adoption, error) {
	l, err := c.cfg.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return authority.Adoption{}, fmt.Errorf("read the members: %w", err)
	}
	recs, err := c.openMembers(ctx, next, l.Entries)
	if err != nil {
		return authority.Adoption{}, err
	}
	return authority.Adoption{
		Present: func() error {
			c.members.Fill(recs, l.Revision)
			return nil
		},
	}, nil
}

// listen begins to hear members and coordinators anew: from a start on, or from the end of
// recovery mode, silence says nothing until everybody had the time to be heard.
func (c *Membership) listen() {
	c.Listens(c.cfg.Now())
	c.presence.Listen(c.cfg.Elapsed())
}
