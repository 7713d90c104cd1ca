package domains

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/metrics"
)

const (
	// moveTakes is how long an owner that is there takes to let go, with all that is under way.
	moveTakes = 30 * time.Second
	// maxNamed is how many domains of an owner are named.
	maxNamed = 3
)

// owner is what is known of the owner of a domain, without a look at the store.
type owner struct {
	gone  string // why nobody hears it; blank: it may be heard
	since string // when a process of it was heard last, if that is too long ago; blank: it is heard
}

func (o owner) problem() string {
	if o.gone == "" && o.since != "" {
		return "no process of it was heard since " + o.since
	}
	return o.gone
}

// ownerAt looks at the member at a path: at its record as this coordinator has it, at the bans in
// force, and at what coordinators hear of its processes.
func (d *Domains) ownerAt(s *authority.State, path string) owner {
	members := d.cfg.Asking.Membership
	kind, name, _ := strings.Cut(path, "/")
	id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name)
	if path == "" || err != nil {
		return owner{}
	}
	now := d.cfg.Now()
	rec, known := members.Roster().Find(path)
	switch {
	case !known:
		return owner{} // it joined just now: who owns something is not removed
	case d.cfg.Bundle.Bans(id, rec.Key):
		return owner{gone: "it is banned"}
	case !now.Before(rec.CertifiedUntil()):
		return owner{gone: "its certificate ended at " + rec.CertifiedUntil().UTC().Format(time.RFC3339)}
	}
	listens := members.ListensSince()
	last := members.ProcessOf(id).GetLastCall().AsTime()
	if now.Sub(record.Later(listens, last)) <= peer.SilentAfter || !members.AllAnswered() {
		return owner{}
	}
	if last.Before(listens) {
		return owner{since: listens.UTC().Format(time.RFC3339) + ", when this coordinator was ready"}
	}
	return owner{since: last.UTC().Format(time.RFC3339)}
}

// Findings says which owners of domains are gone or not heard, which domains wait for their
// owners to let go, and which records of domains were altered in the store. The error is that of
// [authority.Head.StoreError].
func (d *Domains) Findings(ctx context.Context, s *authority.State) ([]*fealtyv1.Finding, error) {
	all, altered, err := authority.ListGenuine[Record](ctx, d.cfg.Head, s, Prefix)
	if err != nil {
		return nil, d.cfg.Head.StoreError("list the domains", err)
	}
	seen := d.look(s, all)
	return slices.Concat(finding.Altered("its owner is told nothing of any of its domains, and the domain passes on to "+
		"nobody, until it is as it was", altered), finding.Fold(errcode.DomainOwnerGone, "problem", seen.gone),
		finding.Fold(errcode.DomainOwnerSilent, "since", seen.silent),
		finding.Fold(errcode.DomainMoving, "until", seen.moving)), nil
}

// attention is what of domains needs somebody.
type attention struct {
	gone, silent []finding.Case // owners, by their paths
	moving       []finding.Case // domains
	until        time.Time      // when the last of those passes on at the latest
}

// look finds it in all records of domains.
func (d *Domains) look(s *authority.State, all []record.Versioned[Record]) (out attention) {
	owned := make(map[string][]string)
	for _, v := range all {
		r := v.Value
		if r.Owner != "" {
			owned[r.Owner] = append(owned[r.Owner], r.Name)
		}
		if r.Moving && d.cfg.Now().Sub(r.At) > moveTakes {
			until := d.message(r).GetWaitsUntil().AsTime()
			out.until = record.Later(out.until, until)
			out.moving = append(out.moving, finding.Case{Member: r.Name, Value: fmt.Sprintf("until %s at the latest: its "+
				"owner %s was asked to let it go, and the lease that it was given is over then",
				until.UTC().Format(time.RFC3339), r.Owner)})
		}
	}
	for path, names := range owned {
		slices.Sort(names)
		text := strings.Join(names[:min(len(names), maxNamed)], ", ")
		if more := len(names) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		switch o := d.ownerAt(s, path); {
		case o.gone != "":
			out.gone = append(out.gone, finding.Case{Member: path, Value: o.gone + ", and owns " + text})
		case o.since != "":
			out.silent = append(out.silent, finding.Case{Member: path, Value: o.since + ", and it owns " + text})
		}
	}
	byMember := func(a, b finding.Case) int { return strings.Compare(a.Member, b.Member) }
	slices.SortFunc(out.gone, byMember)
	slices.SortFunc(out.silent, byMember)
	return out
}

// note keeps for those who collect metrics what of all domains needs somebody. Whether an owner is
// heard is known once the other coordinators were asked.
func (d *Domains) note(ctx context.Context, s *authority.State, all []record.Versioned[Record]) {
	if len(all) > 0 {
		d.cfg.Asking.Membership.Hear(ctx, s)
	}
	seen := d.look(s, all)
	d.noted.Store(&seen)
}

// RegisterMetrics registers what of domains needs somebody.
func (d *Domains) RegisterMetrics(reg prometheus.Registerer) {
	of := func(value func(*attention) float64) func() float64 {
		return func() float64 {
			noted := d.noted.Load()
			if _, _, leads := d.cfg.Election.Leading(); !leads || noted == nil {
				return 0
			}
			return value(noted)
		}
	}
	reg.MustRegister(
		metrics.GaugeOf("fealty_domain_owners_gone",
			"Members that own domains and that nobody hears any more, because they are banned or their certificate ended, "+
				"as the leader saw it last; 0 at other coordinators.",
			of(func(a *attention) float64 { return float64(len(a.gone)) })),
		metrics.GaugeOf("fealty_domain_owners_silent",
			"Members that own domains and of which no process was heard for two minutes, as the leader saw it last; 0 at "+
				"other coordinators.",
			of(func(a *attention) float64 { return float64(len(a.silent)) })),
		metrics.GaugeOf("fealty_domains_moving",
			"Domains whose owners were asked to let them go more than half a minute ago, and did not, as the leader saw it "+
				"last; 0 at other coordinators.",
			of(func(a *attention) float64 { return float64(len(a.moving)) })),
		metrics.GaugeOf("fealty_domains_moving_until_seconds", "When the last of the domains that wait for their owners passes on "+
			"at the latest, in seconds since 1970; 0 if none waits, and at coordinators that do not lead.",
			of(func(a *attention) float64 {
				if a.until.IsZero() {
					return 0
				}
				return float64(a.until.Unix())
			})),
	)
}
