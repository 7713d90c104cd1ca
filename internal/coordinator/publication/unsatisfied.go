package publication

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// unsatisfiedRecord is something that a record of the config asks for and that nobody, or
// not everybody whom it names, is given.
type unsatisfiedRecord struct {
	scope  snapshot.Scope
	record config.Key
	reason compile.Reason
}

// unsatisfied is what a compile could not do.
type unsatisfied struct {
	// failed are the subjects whose content or header could not be made, by the path
	// of a member or group/<hex>, and why.
	failed map[string]string
	// removed is what the config asks for and nobody is given, by whom it was compiled
	// for, as in failed; "" is for what is for nobody.
	removed  map[string][]compile.Removed
	reported map[unsatisfiedRecord]bool // that was logged and counted
	news     bool                       // failed or removed changed since the last report
}

// compileReport is what the last compile could not do. It is immutable.
type compileReport struct {
	removed []compile.Removed // one of each, sorted
	failed  []string          // subjects, sorted, of which each is in why
	why     map[string]string
	kept    map[string]string // members that keep services, and why
}

// setRemoved notes what was left out for a subject.
func (b *Publisher) setRemoved(name string, removed []compile.Removed) {
	if len(removed) == 0 && len(b.found.removed[name]) == 0 {
		return
	}
	b.found.news = true
	if len(removed) == 0 {
		delete(b.found.removed, name)
		return
	}
	b.found.removed[name] = removed
}

// forget drops what is noted of a subject.
func (b *Publisher) forget(name string) {
	b.setRemoved(name, nil)
	if _, ok := b.found.failed[name]; ok {
		delete(b.found.failed, name)
		b.found.news = true
	}
}

// report says what the compile could not do, and logs and counts what of it is new.
func (c *Publication) report(ctx context.Context, b *Publisher) {
	c.metrics.uncompiled.Set(float64(len(b.found.failed)))
	if !b.found.news && !b.withheld.news {
		return
	}
	b.found.news = false
	found := make(map[unsatisfiedRecord]compile.Removed)
	for _, name := range slices.Sorted(maps.Keys(b.found.removed)) {
		for _, r := range b.found.removed[name] {
			g := unsatisfiedRecord{r.Scope, r.Record, r.Reason}
			if _, ok := found[g]; !ok {
				found[g] = r
			}
		}
	}
	r := &compileReport{failed: slices.Sorted(maps.Keys(b.found.failed)), why: maps.Clone(b.found.failed),
		kept: b.withheld.report()}
	for g, removed := range found {
		r.removed = append(r.removed, removed)
		if !b.found.reported[g] {
			c.metrics.removed.WithLabelValues(string(g.scope), string(g.reason)).Inc()
			c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "something that the config asks for is not given",
				slog.String("scope", string(g.scope)), slog.String("record", g.record.String()), slog.String("reason",
					string(g.reason)), slog.String("detail", removed.Detail))
		}
	}
	for g := range b.found.reported {
		if _, ok := found[g]; !ok {
			delete(b.found.reported, g) // it is news when it comes again
		}
	}
	for g := range found {
		b.found.reported[g] = true
	}
	slices.SortStableFunc(r.removed, func(a, b compile.Removed) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Reason, b.Reason), a.Record.Compare(b.Record))
	})
	c.compileReport.Store(r)
}

// unreport forgets what the last compile could not do: another coordinator compiles.
func (c *Publication) unreport(b *Publisher) {
	if b.term == 0 {
		return
	}
	*b = *NewPublisher()
	c.metrics.uncompiled.Set(0)
	c.compileReport.Store(nil)
}

// compileFindings says what the last compile could not do, for the status: what has
// one reason in one scope is one finding if there is much of it.
func (c *Publication) compileFindings() []*fealtyv1.Finding {
	r := c.compileReport.Load()
	if r == nil {
		return nil
	}
	var out []*fealtyv1.Finding
	if len(r.failed) > 0 {
		first := r.failed[0]
		out = append(out, finding.New(errcode.SnapshotUncompiled, "subjects", named(r.failed), "problem",
			first+": "+r.why[first]))
	}
	if members := slices.Sorted(maps.Keys(r.kept)); len(members) > 0 {
		out = append(out, finding.New(errcode.AssignmentHeld, "members", named(members), "problem",
			members[0]+": "+r.kept[members[0]]))
	}
	for i := 0; i < len(r.removed); {
		first, n := r.removed[i], 1
		for i+n < len(r.removed) && r.removed[i+n].Scope == first.Scope && r.removed[i+n].Reason == first.Reason {
			n++
		}
		same := r.removed[i : i+n]
		i += n
		if n > finding.FoldAbove {
			var records []string
			for _, g := range same {
				records = append(records, g.Record.String())
			}
			out = append(out, finding.New(errcode.ConfigNotGiven, "record", named(records), "scope",
				string(first.Scope),
				"problem", "of the first, "+first.Detail, "remedy", first.Do()))
			continue
		}
		for _, g := range same {
			out = append(out, finding.New(errcode.ConfigNotGiven, "record", g.Record.String(), "scope",
				string(g.Scope), "problem", g.Detail, "remedy", g.Do()))
		}
	}
	return out
}

// named lists a few names, and how many more there are.
func named(names []string) string {
	if len(names) <= finding.FoldAbove {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:finding.FoldAbove], ", ") + fmt.Sprintf(" and %d more", len(names)-finding.FoldAbove)
}
