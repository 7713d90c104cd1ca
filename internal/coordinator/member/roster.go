package member

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
)

// Roster is a view of the membership in memory, by "<kind>/<name>": what a
// node_bootstrap shows of the others and what counts are made of. It follows the
// store and decides nothing.
type Roster struct {
	mu       sync.Mutex
	members  map[string]*Entry     // guarded by mu; what is there is not changed, but replaced
	sorted   []string              // the keys of members; guarded by mu
	active   map[identity.Kind]int // active members; guarded by mu
	followed store.Revision        // what the store held until here was seen; guarded by mu
	// waiting is closed when the state of the member may have changed, by its path;
	// guarded by mu.
	waiting map[string]chan struct{}
	touched map[string]bool // changed or removed since TakeTouched, by path; guarded by mu
	// awaited are the members of which any change is told, by path, with the version that is known to who
	// waits; guarded by mu.
	awaited map[string]store.Revision
	// forged are the members whose records were altered in the store, by path, with the version
	// that was read; guarded by mu. What was known of them before stays, and is not shown.
	forged map[string]store.Revision

	grew chan struct{} // notified when touched grows; capacity 1
}

// An Entry is what the view has of a member.
type Entry struct {
	record.Versioned[record.Member]
	path string
	id   identity.ID // as [Roster.Entries] was asked for it; the zero one before
}

// ID is the identity of the member in the cluster that [Roster.Entries] was asked for.
func (e *Entry) ID() identity.ID { return e.id }

// NewRoster returns an empty one.
func NewRoster() *Roster {
	return &Roster{
		members: make(map[string]*Entry), active: make(map[identity.Kind]int),
		waiting: make(map[string]chan struct{}),
		touched: make(map[string]bool), grew: make(chan struct{}, 1), awaited: make(map[string]store.Revision),
		forged: make(map[string]store.Revision),
	}
}

func (x *Roster) touchLocked(path string) {
	x.touched[path] = true
	delete(x.awaited, path)
	select {
	case x.grew <- struct{}{}:
	default:
	}
}

// Changed returns a channel that says that [Roster.TakeTouched] has something to return, to one who
// receives from it.
func (x *Roster) Changed() <-chan struct{} { return x.grew }

// Alive returns once nobody holds its lock: a watchdog sees that it is not held for good.
func (x *Roster) Alive() {
	x.mu.Lock()
	defer x.mu.Unlock()
}

// TakeTouched returns the paths of members that were removed since the last call, or of whom something else
// changed than their keys: what others are told of a member says nothing of those, and most
// changes are renewals.
func (x *Roster) TakeTouched() map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.touched
	x.touched = make(map[string]bool)
	return out
}

// Await has [Roster.TakeTouched] return a member as soon as its record has another version than this one,
// whatever changed: for who found that the store has another.
func (x *Roster) Await(path string, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.awaited[path] = version; x.atLocked(path).Version != version {
		x.touchLocked(path)
	}
}

// Recorded returns the record of a member for a decision whose transaction holds only if that is its version
// in the store; version 0: there is none, or it was altered there, and only the store tells.
func (x *Roster) Recorded(path string) record.Versioned[record.Member] {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, altered := x.forged[path]; altered {
		return record.Versioned[record.Member]{}
	}
	return x.atLocked(path)
}

// atLocked is the record at path; version 0: there is none.
func (x *Roster) atLocked(path string) record.Versioned[record.Member] {
	if e := x.members[path]; e != nil {
		return e.Versioned
	}
	return record.Versioned[record.Member]{}
}

// Has reports whether the view holds the record that the store held at version, so that there is no need to read it
// again.
func (x *Roster) Has(path string, version store.Revision) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, altered := x.forged[path]
	return !altered && version != 0 && x.atLocked(path).Version == version
}

// Get returns the record of a member; version 0: there is none.
func (x *Roster) Get(path string) record.Versioned[record.Member] {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.atLocked(path)
}

// PathsAt returns all members, sorted, and until where the store was seen.
func (x *Roster) PathsAt() ([]string, store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.sorted), x.followed
}

// Paths returns all members, sorted.
func (x *Roster) Paths() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.sorted)
}

// Wait returns a channel that is closed when the state of a member may have
// changed. Take it before looking.
func (x *Roster) Wait(path string) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	ch := x.waiting[path]
	if ch == nil {
		ch = make(chan struct{})
		x.waiting[path] = ch
	}
	return ch
}

// tellLocked wakes who waits for the member at path.
func (x *Roster) tellLocked(path string) {
	if ch := x.waiting[path]; ch != nil {
		close(ch)
		delete(x.waiting, path)
	}
}

// Fill replaces the view by a listing.
func (x *Roster) Fill(recs []record.Versioned[record.Member], at store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for path := range x.members {
		x.touchLocked(path)
	}
	x.members = make(map[string]*Entry, len(recs))
	x.sorted = x.sorted[:0]
	clear(x.active)
	clear(x.forged)
	for _, r := range recs {
		x.members[r.Value.Path()] = &Entry{Versioned: r, path: r.Value.Path()}
		x.sorted = append(x.sorted, r.Value.Path())
		x.tallyLocked(r.Value, 1)
		x.touchLocked(r.Value.Path())
	}
	slices.Sort(x.sorted)
	x.followed = at
	for path := range x.waiting {
		x.tellLocked(path)
	}
}

func (x *Roster) tallyLocked(r record.Member, by int) {
	if r.State == record.Active {
		x.active[r.Kind] += by
	}
}

// Put enters a record that the store held at version. One that is older than
// what the view has seen is ignored, so notices may come late and twice, and
// one that comes after the removal of its member does not bring it back.
func (x *Roster) Put(r record.Member, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	path := r.Path()
	old, ok := x.members[path]
	forged, altered := x.forged[path]
	if altered && forged <= version {
		delete(x.forged, path)
	}
	if ok && old.Version >= version || !ok && version <= x.followed && !altered {
		return
	}
	if ok {
		x.tallyLocked(old.Value, -1)
	}
	x.tallyLocked(r, 1)
	if !ok {
		i, _ := slices.BinarySearch(x.sorted, path)
		x.sorted = slices.Insert(x.sorted, i, path)
	}
	next := &Entry{Versioned: record.Versioned[record.Member]{Value: r, Version: version}, path: path}
	if ok {
		next.id = old.id
	}
	x.members[path] = next
	if !ok || old.Value.State != r.State {
		x.tellLocked(path)
	}
	if _, awaited := x.awaited[path]; !ok || altered || awaited || !r.EqualButKeys(old.Value) {
		x.touchLocked(path)
	}
}

// Remove drops a member whose record was deleted at version.
func (x *Roster) Remove(path string, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, ok := x.members[path]
	if x.forged[path] <= version {
		delete(x.forged, path)
	}
	if !ok || old.Version > version {
		return
	}
	delete(x.members, path)
	x.tellLocked(path)
	x.touchLocked(path)
	x.tallyLocked(old.Value, -1)
	if i, ok := slices.BinarySearch(x.sorted, path); ok {
		x.sorted = slices.Delete(x.sorted, i, i+1)
	}
}

// Forge notes that the record of a member was altered in the store: it held that at version.
func (x *Roster) Forge(path string, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.atLocked(path).Version <= version {
		x.forged[path] = version
	}
}

// Forged returns the members whose records were altered in the store, sorted.
func (x *Roster) Forged() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.forged))
}

// All returns the records of all members but those that were altered in the store, sorted by
// path.
func (x *Roster) All() []record.Member {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]record.Member, 0, len(x.sorted))
	for _, path := range x.sorted {
		if _, altered := x.forged[path]; !altered {
			out = append(out, x.members[path].Value)
		}
	}
	return out
}

// Holds reports whether the view holds everything that the store held at version.
func (x *Roster) Holds(version store.Revision) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.followed >= version
}

// Page returns up to limit members below prefix that come after path after, sorted, of
// those that keep takes, and whether there are more. Nil keeps all. Those whose records were
// altered in the store are left out.
func (x *Roster) Page(prefix, after string, limit int, keep func(record.Member) bool) (out []record.Member,
	more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i, found := slices.BinarySearch(x.sorted, max(prefix, after))
	if found && after != "" {
		i++
	}
	for ; i < len(x.sorted) && strings.HasPrefix(x.sorted[i], prefix); i++ {
		r := x.members[x.sorted[i]].Value
		if _, altered := x.forged[x.sorted[i]]; altered || keep != nil && !keep(r) {
			continue
		}
		if len(out) == limit {
			return out, true
		}
		out = append(out, r)
	}
	return out, false
}

// Entries returns what the view has of all members but those whose records were altered in the store, sorted by path. id
// makes the identity of a member, once for each.
func (x *Roster) Entries(id func(record.Member) identity.ID) []*Entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*Entry, 0, len(x.sorted))
	for _, path := range x.sorted {
		if _, altered := x.forged[path]; altered {
			continue
		}
		e := x.members[path]
		if e.id.IsZero() {
			e.id = id(e.Value) // nobody was given it yet
		}
		out = append(out, e)
	}
	return out
}

// Versions returns the versions of the records of the members at paths, in their order; 0 for who is not there.
func (x *Roster) Versions(paths []string) []store.Revision {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]store.Revision, len(paths))
	for i, path := range paths {
		out[i] = x.atLocked(path).Version
	}
	return out
}

// CatchUp brings the view to what the store held at revision at: listed are the paths
// that it held, sorted, recs those of their records that the view did not have, and forged the versions
// of those that were altered in the store. A view that is ahead of it stays ahead.
func (x *Roster) CatchUp(listed []string, recs []record.Versioned[record.Member],
	forged map[string]store.Revision, at store.Revision) {
	for _, r := range recs {
		x.Put(r.Value, r.Version)
	}
	x.mu.Lock()
	maps.DeleteFunc(x.forged, func(path string, version store.Revision) bool {
		_, still := forged[path]
		return !still && version <= at
	})
	x.mu.Unlock()
	for path, version := range forged {
		x.Forge(path, version)
	}
	for _, path := range x.missing(listed) {
		x.Remove(path, at) // unless it came after at
	}
	x.Seen(at)
}

// missing returns the members that are not among those at these paths, which are sorted.
func (x *Roster) missing(listed []string) (out []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, path := range x.sorted {
		for len(listed) > 0 && listed[0] < path {
			listed = listed[1:]
		}
		if len(listed) == 0 || listed[0] != path {
			out = append(out, path)
		}
	}
	return out
}

// Find returns the record of a member, and whether there is one.
func (x *Roster) Find(path string) (record.Member, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.members[path]
	return x.atLocked(path).Value, ok
}

// Visible is what one member is shown of another.
type Visible struct {
	Kind  identity.Kind
	Name  string
	State string
}

// Path is "<kind>/<name>".
func (v Visible) Path() string { return string(v.Kind) + "/" + v.Name }

// VisibleTo returns up to limit members of the fleet that self may see: those that
// share an organization with it, where it has any, and otherwise those that have
// none. It takes those that follow self by kind and name, around the end, so that
// no member is shown to everybody, and looks at no more than maxVisibleScan.
// People's sessions are not part of the fleet.
func (x *Roster) VisibleTo(self record.Member, limit int) []Visible {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]Visible, 0, min(limit, len(x.sorted)))
	start, _ := slices.BinarySearch(x.sorted, self.Path())
	for i := range min(len(x.sorted), maxVisibleScan) {
		m := x.members[x.sorted[(start+i)%len(x.sorted)]]
		if r := &m.Value; record.IsSession(r.Kind) || !r.Held() || !sharesOrganization(&self, r) {
			continue
		}
		if out = append(out, Visible{m.Value.Kind, m.Value.Name, m.Value.State}); len(out) == limit {
			break
		}
	}
	return out
}

// maxVisibleScan bounds the members that one join looks at.
const maxVisibleScan = 4096

func sharesOrganization(a, b *record.Member) bool {
	if a.Outsider() || b.Outsider() {
		return a.Path() == b.Path()
	}
	if len(a.Organizations) == 0 || len(b.Organizations) == 0 {
		return len(a.Organizations) == len(b.Organizations)
	}
	return slices.ContainsFunc(a.Organizations, func(o string) bool { return slices.Contains(b.Organizations, o) })
}

// Count returns the number of active members of kind.
func (x *Roster) Count(kind identity.Kind) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.active[kind]
}

// Seen says that the view holds everything that the store held at version.
func (x *Roster) Seen(version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.followed = max(x.followed, version)
}
