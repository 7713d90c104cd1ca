package publication

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/quarantine"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// WithholdEvery is how often a look at the config counts against a member's assignment: what is
// withheld is given with the third look, so that people have twice this time.
const WithholdEvery = time.Minute

// withholding is what is withheld, and from whom.
type withholding struct {
	members map[string]*withheld      // that keep their assignment for now, by path
	judged  map[string]store.Revision // the config by which a member was given its assignment
	news    bool                      // the first changed since the last report
}

func newWithholding() withholding {
	return withholding{members: make(map[string]*withheld), judged: make(map[string]store.Revision)}
}

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
func (x *compilation) withholds(path string, t target, m compile.Member, removed []compile.Removed) bool {
	of := &x.b.withheld
	w := of.members[path]
	if w == nil && of.judged[path] == x.b.configVersion {
		return false // a record that is gone is another version of the config
	}
	had, kept := x.assigned(t, m, removed)
	if !quarantine.Drops(had, kept) {
		of.release(path)
		of.judged[path] = x.b.configVersion
		return false
	}
	news := w == nil
	if news {
		w = &withheld{}
		of.members[path] = w
	}
	if !w.believed && (news || x.now.Sub(w.at).Abs() >= WithholdEvery) {
		w.at = x.now
		if w.believed = w.guard.Judge(true); w.believed {
			of.news = true
			x.c.cfg.Log.LogAttrs(x.ctx, slog.LevelWarn, "a member loses almost all services, as the config still has "+
				"no records of them", slog.String("member", path), slog.Int("had", had), slog.Int("kept", kept))
		}
	}
	if w.believed {
		return false
	}
	w.text = fmt.Sprintf("the config has the records of %d of its %d services", kept, had)
	if news {
		of.news = true
		x.c.cfg.Log.LogAttrs(x.ctx, slog.LevelWarn, "a member keeps its services for now, as the config lost the "+
			"records of almost all of them", slog.String("member", path), slog.Int("had", had), slog.Int("kept", kept))
	}
	return true
}

// assigned counts the services that a member has, and those of them of which the config has the
// record; zero where what it has is not to be kept.
func (x *compilation) assigned(t target, m compile.Member, removed []compile.Removed) (had, kept int) {
	old := x.last(t.HeaderPath)
	revoked := func(r compile.Removed) bool { return r.Reason == compile.Revoked }
	if old == nil || x.b.trust.bans[m.ID] || slices.ContainsFunc(removed, revoked) ||
		old.Header.Subject != t.subject.String() || old.Header.Group != t.gets() {
		return 0, 0
	}
	var has snapshot.ServiceAssignment
	content := x.p.Content(old.Header.Content)
	if err := snapshot.Decode(snapshot.ScopeServiceAssignment, content, &has); err != nil {
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
func (w *withholding) release(path string) {
	delete(w.judged, path)
	if w.members[path] != nil {
		delete(w.members, path)
		w.news = true
	}
}

// due are the members to look at again.
func (w *withholding) due(now time.Time) (paths []string) {
	for path, of := range w.members {
		if now.Sub(of.at).Abs() >= WithholdEvery {
			paths = append(paths, path)
		}
	}
	return paths
}

// report says from whom something is withheld and why, by path.
func (w *withholding) report() map[string]string {
	w.news = false
	out := make(map[string]string)
	for path, of := range w.members {
		if !of.believed {
			out[path] = of.text
		}
	}
	return out
}
