package publication

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/compiler"
	"github.com/fealty-io/fealty/internal/quarantine"
	"github.com/fealty-io/fealty/snapshot"
)

// WithholdEvery is how often a look at the config counts against a member's assignment: what is
// withheld is given with the third look, so that people have twice this time.
const WithholdEvery = time.Minute

// withheld is an assignment that is not given yet.
type withheld struct {
	guard    quarantine.Guard
	at       time.Time // of the last look that counted
	believed bool      // it is given, once a commit brings it
	text     string    // for people
}

// withholds reports whether a member keeps the assignment that it has for now, as the config lost
// the records of almost all of its services: somebody whose list is empty by mistake deletes what
// runs. It is believed when it says so for long enough.
//
// Of services that are placed elsewhere, or revoked, or that the member may not have any more the
// config still has the records. They are taken away at once, and so is all of a member that was
// revoked something, or is somebody else now.
func (x *compilation) withholds(path string, t target, m compiler.Member, removed []compiler.Removed) bool {
	w := x.b.withheld[path]
	if w == nil && x.b.judged[path] == x.b.configVersion {
		return false // a record that is gone is another version of the config
	}
	had, kept := x.assigned(t, m, removed)
	if !quarantine.Drops(had, kept) {
		x.b.release(path)
		x.b.judged[path] = x.b.configVersion
		return false
	}
	news := w == nil
	if news {
		w = &withheld{}
		x.b.withheld[path] = w
	}
	if !w.believed && (news || x.now.Sub(w.at).Abs() >= WithholdEvery) {
		w.at = x.now
		if w.believed = w.guard.Judge(true); w.believed {
			x.b.found.news = true
			x.c.cfg.Log.LogAttrs(x.ctx, slog.LevelWarn, "a member loses almost all services, as the config still has "+
				"no records of them", slog.String("member", path), slog.Int("had", had), slog.Int("kept", kept))
		}
	}
	if w.believed {
		return false
	}
	w.text = fmt.Sprintf("the config has the records of %d of its %d services", kept, had)
	if news {
		x.b.found.news = true
		x.c.cfg.Log.LogAttrs(x.ctx, slog.LevelWarn, "a member keeps its services for now, as the config lost the "+
			"records of almost all of them", slog.String("member", path), slog.Int("had", had), slog.Int("kept", kept))
	}
	return true
}

// assigned counts the services that a member has, and those of them of which the config has the
// record; zero where what it has is not to be kept.
func (x *compilation) assigned(t target, m compiler.Member, removed []compiler.Removed) (had, kept int) {
	old := x.last(t.HeaderPath)
	revoked := func(r compiler.Removed) bool { return r.Reason == compiler.Revoked }
	if old == nil || x.b.trust.bans[m.ID] || slices.ContainsFunc(removed, revoked) ||
		old.Header.Subject != t.subject.String() || old.Header.Group != t.gets() {
		return 0, 0
	}
	has, err := snapshot.ReadAssignment(x.p.Contents[old.Header.Content])
	if err != nil {
		return 0, 0 // it was lost, or another release wrote it: the new one takes its place
	}
	for _, s := range has.Services {
		if x.b.compiler.HasService(s.Name) {
			kept++
		}
	}
	return len(has.Services), kept
}

// release forgets that something was withheld from a member, and what it was judged by.
func (b *Publisher) release(path string) {
	delete(b.judged, path)
	if b.withheld[path] != nil {
		delete(b.withheld, path)
		b.found.news = true
	}
}

// due adds the members to look at again of whom something is withheld.
func (b *Publisher) due(now time.Time) {
	for path, w := range b.withheld {
		if now.Sub(w.at).Abs() >= WithholdEvery {
			b.pending[path] = true
		}
	}
}

// kept says of whom something is withheld, for the report.
func (b *Publisher) kept() (out []keptMember) {
	for _, path := range slices.Sorted(maps.Keys(b.withheld)) {
		if w := b.withheld[path]; !w.believed {
			out = append(out, keptMember{path, w.text})
		}
	}
	return out
}

// keptMember is a member that keeps its services.
type keptMember struct{ path, text string }
