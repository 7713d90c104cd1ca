package domains

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
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
	if now.Sub(record.Later(listens, last)) <= replicas.SilentAfter || !members.AllAnswered() {
		return owner{}
	}
	if last.Before(listens) {
		return owner{since: listens.UTC().Format(time.RFC3339) + ", when this coordinator was ready"}
	}
	return owner{since: last.UTC().Format(time.RFC3339)}
}

// Findings says which owners of domains are gone or not heard, and which domains wait for their
// owners to let go. Others report records that cannot be read.
func (d *Domains) Findings(ctx context.Context, s *authority.State) []*fealtyv1.Finding {
	all, err := record.List[Record](ctx, s.Records, Prefix)
	if err != nil {
		return nil
	}
	owned := make(map[string][]string)
	var moving []finding.Case
	for _, v := range all {
		r := v.Value
		if r.Owner != "" {
			owned[r.Owner] = append(owned[r.Owner], r.Name)
		}
		if r.Moving && d.cfg.Now().Sub(r.At) > moveTakes {
			moving = append(moving, finding.Case{Member: r.Name, Value: fmt.Sprintf("until %s at the latest: its owner %s "+
				"was asked to let it go, and the lease that it was given is over then",
				d.message(r).GetWaitsUntil().AsTime().UTC().Format(time.RFC3339), r.Owner)})
		}
	}
	var gone, silent []finding.Case
	for path, names := range owned {
		slices.Sort(names)
		text := strings.Join(names[:min(len(names), maxNamed)], ", ")
		if more := len(names) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		switch o := d.ownerAt(s, path); {
		case o.gone != "":
			gone = append(gone, finding.Case{Member: path, Value: o.gone + ", and owns " + text})
		case o.since != "":
			silent = append(silent, finding.Case{Member: path, Value: o.since + ", and it owns " + text})
		}
	}
	byMember := func(a, b finding.Case) int { return strings.Compare(a.Member, b.Member) }
	slices.SortFunc(gone, byMember)
	slices.SortFunc(silent, byMember)
	return slices.Concat(finding.Fold(explain.DomainOwnerGone, "problem", gone),
		finding.Fold(explain.DomainOwnerSilent, "since", silent), finding.Fold(explain.DomainMoving, "until", moving))
}
