package coordinator

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/gauge"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/snapshot"
)

// liveMembers is what this coordinator hears of members. It is memory only, and
// decides nothing.
type liveMembers struct {
	elapsed func() time.Duration // a clock that only goes forward; nil: nobody polls

	mu      sync.Mutex
	members map[identity.ID]*liveMember // guarded by mu
	used    map[identity.ID]keyUse      // the recorded key of each, since it was seen here; guarded by mu
}

// keyUse is a key that a member presented.
type keyUse struct {
	key   identity.KeyID
	since time.Time
}

// openStream is a stream of a member.
type openStream struct {
	run  string        // the process that opened it; "": it did not say
	gone chan struct{} // closed when a newer stream takes its place
}

type liveMember struct {
	lastReport  time.Time
	streams     int
	newest      *openStream // of those that say which process they are; nil: none
	release     string
	held        []*fealtyv1.HeldVersion
	bundle      bundleVersion // the trust bundle that it holds
	under       []string      // the config keys that it trusts over all that it holds
	bare        bool          // it holds nothing that config keys sign
	lastRefusal string
	svidEnd     *timestamppb.Timestamp // as it said; nil: it did not
	aloneUntil  *timestamppb.Timestamp // as it said; nil: it did not
	aloneLimit  string
	staleSince  time.Time                  // since when it says of a scope that it is not fresh; zero: all are
	clockBehind time.Duration              // as it said; 0: it is right
	degraded    []*fealtyv1.DegradedPeriod // as it said
	// polled is until when it counts as heard because it asked; by elapsed.
	polled time.Duration
	// nextBootstrap is when the next node_bootstrap may be made for it.
	nextBootstrap time.Time
}

// Bounds on what a report may hold.
const (
	maxHeldReported  = 16
	maxReleaseBytes  = 64
	maxDetailBytes   = 512
	maxPeriods       = 16 // of degraded mode
	maxTallies       = 32 // of one of them
	maxPollInterval  = 5 * time.Minute
	bootstrapPause   = 10 * time.Second
	maxBootstrapWait = time.Minute
)

// opened notes a stream of a member, which takes the place of the one before.
func (l *liveMembers) opened(id identity.ID, run string) *openStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		m = &liveMember{}
		l.members[id] = m
	}
	m.streams++
	s := &openStream{run: run, gone: make(chan struct{})}
	if run == "" {
		return s // of an earlier release: nothing tells a copy from a machine that comes back
	}
	if m.newest != nil {
		close(m.newest.gone)
	}
	m.newest = s
	return s
}

// polls notes that a member asked, and will again after interval: it counts as heard for
// twice as long.
func (l *liveMembers) polls(id identity.ID, interval time.Duration) {
	if interval <= 0 {
		return // of an earlier release: it does not say
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		m = &liveMember{}
		l.members[id] = m
	}
	m.polled = l.elapsed() + 2*min(interval, maxPollInterval)
}

// heardLocked reports whether m holds a stream here, or asked lately.
func (l *liveMembers) heardLocked(m *liveMember) bool {
	return m.streams > 0 || m.polled > 0 && l.elapsed() < m.polled
}

// openedElsewhere notes that the process run opened a stream of a member at another
// coordinator: another process's stream here gives way.
func (l *liveMembers) openedElsewhere(id identity.ID, run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil && m.newest != nil && m.newest.run != run {
		close(m.newest.gone)
		m.newest = nil
	}
}

// uses notes at now that a member presented the key that its record says.
func (l *liveMembers) uses(id identity.ID, key identity.KeyID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used == nil {
		l.used = make(map[identity.ID]keyUse)
	}
	if l.used[id].key != key {
		l.used[id] = keyUse{key, now}
	}
}

// usedFor returns for how long the key of a member is known to be in use at now.
func (l *liveMembers) usedFor(id identity.ID, key identity.KeyID, now time.Time) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.used[id]
	return now.Sub(u.since), u.key == key
}

// bootstrapWait takes the next turn of id to be sent a node_bootstrap, and
// returns how long it is to wait for it: each costs a write. Who has too many
// turns ahead is refused.
func (l *liveMembers) bootstrapWait(id identity.ID, now time.Time) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		return bootstrapPause, nil
	}
	switch wait := m.nextBootstrap.Sub(now); {
	case wait <= 0, wait > maxBootstrapWait+bootstrapPause: // no turn was so far ahead: the clock went back
		m.nextBootstrap = now.Add(bootstrapPause)
		return 0, nil
	case wait <= maxBootstrapWait:
		m.nextBootstrap = m.nextBootstrap.Add(bootstrapPause)
		return wait, nil
	}
	return 0, explain.New(explain.RateLimited, "what", "bootstraps of "+id.String(),
		"limit", "one in "+bootstrapPause.String())
}

// closed ends a stream of id. What is known of it is kept if it still is a member.
func (l *liveMembers) closed(id identity.ID, s *openStream, member bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil {
		m.streams--
		if m.newest == s {
			m.newest = nil
		}
		if m.streams == 0 && !member {
			delete(l.members, id)
		}
	}
}

// reported notes what a member said, and reports whether it stands on another trust
// bundle or under other keys than before.
func (l *liveMembers) reported(id identity.ID, r *fealtyv1.ConnectRequest, now time.Time) (moved bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		return false // its stream is gone
	}
	m.lastReport = now
	m.release = flowcontrol.Clip(r.GetRelease(), maxReleaseBytes)
	m.svidEnd, m.aloneUntil, m.aloneLimit = timeOf(r.GetSvidNotAfter()), timeOf(r.GetAutonomousUntil()), flowcontrol.Clip(r.GetAutonomyLimit(), maxReleaseBytes)
	if m.aloneUntil == nil {
		m.aloneLimit = ""
	}
	bundle, under := m.bundle, m.under
	m.bundle, m.under, m.bare = standsOn(r.GetHeld())
	moved = m.bundle != bundle || !slices.Equal(m.under, under)
	m.degraded = periodsOf(r.GetDegradedPeriods())
	if d := r.GetClockBehind(); d.CheckValid() == nil && d.AsDuration() > 0 {
		m.clockBehind = d.AsDuration()
	} else {
		m.clockBehind = 0
	}
	m.held = m.held[:0:0]
	for i, h := range r.GetHeld() {
		if i == maxHeldReported {
			break
		}
		m.held = append(m.held, &fealtyv1.HeldVersion{Scope: flowcontrol.Clip(h.GetScope(), maxReleaseBytes),
			AuthorityEpoch: h.GetAuthorityEpoch(), ConfigVersion: h.GetConfigVersion(),
			Generation: h.GetGeneration(), Freshness: flowcontrol.Clip(h.GetFreshness(), maxReleaseBytes)})
	}
	switch stale := slices.ContainsFunc(m.held, notFresh); {
	case !stale:
		m.staleSince = time.Time{}
	case m.staleSince.IsZero():
		m.staleSince = now
	}
	if n := len(r.GetRefusals()); n > 0 {
		f := r.GetRefusals()[n-1]
		m.lastRefusal = flowcontrol.Clip(f.GetScope(), maxReleaseBytes) + ": " + flowcontrol.Clip(f.GetReason(),
			maxReleaseBytes) + ": " + flowcontrol.Clip(f.GetDetail(), maxDetailBytes)
	}
	return moved
}

// notFresh reports whether a member says so of what it holds. A version that is new to it
// and has no state counts as fresh.
func notFresh(h *fealtyv1.HeldVersion) bool {
	return h.GetFreshness() != "" && h.GetFreshness() != string(snapshot.Fresh)
}

// bundleVersion names a trust bundle.
type bundleVersion struct{ epoch, version uint64 }

// standsOn returns which trust bundle a member says that it holds, and the keys that
// everything else stands on. A node_bootstrap counts until a node_runtime takes its
// place.
func standsOn(held []*fealtyv1.HeldSnapshot) (bundle bundleVersion, under []string, bare bool) {
	held = held[:min(len(held), maxHeldReported)]
	overtaken := slices.ContainsFunc(held,
		func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == string(snapshot.ScopeNodeRuntime) })
	bare = true
	for _, h := range held {
		switch snapshot.Scope(h.GetScope()) {
		case snapshot.ScopeTrustBundle:
			bundle = bundleVersion{h.GetAuthorityEpoch(), h.GetConfigVersion()}
			continue
		case snapshot.ScopeNodeBootstrap:
			if overtaken {
				continue
			}
		}
		signers := h.GetSigners()[:min(len(h.GetSigners()), snapshot.MaxSignatures)]
		if bare {
			bare = false
			for _, id := range signers {
				under = append(under, flowcontrol.Clip(id, maxReleaseBytes))
			}
			continue
		}
		under = slices.DeleteFunc(under, func(id string) bool { return !slices.Contains(signers, id) })
	}
	return bundle, under, bare
}

// message returns what is known of id, or nil.
func (l *liveMembers) message(id identity.ID) *fealtyv1.Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		return nil
	}
	out := &fealtyv1.Live{Connected: l.heardLocked(m), Release: m.release, Held: slices.Clone(m.held),
		LastRefusal:  m.lastRefusal,
		SvidNotAfter: m.svidEnd, AutonomousUntil: m.aloneUntil, AutonomyLimit: m.aloneLimit}
	if !m.lastReport.IsZero() {
		out.LastReport = timestamppb.New(m.lastReport)
	}
	if !m.staleSince.IsZero() {
		out.StaleSince = timestamppb.New(m.staleSince)
	}
	if m.clockBehind > 0 {
		out.ClockBehind = durationpb.New(m.clockBehind)
	}
	return out
}

// degradedPeriods returns when id was in degraded mode, by its own word.
func (l *liveMembers) degradedPeriods(id identity.ID) []*fealtyv1.DegradedPeriod {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil {
		return slices.Clone(m.degraded)
	}
	return nil
}

// all returns who is known of.
func (l *liveMembers) all() []identity.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.members))
}

// dataConnected counts the data members that are heard here.
func (l *liveMembers) dataConnected() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for id, m := range l.members {
		if id.Kind() == identity.Data && l.heardLocked(m) {
			n++
		}
	}
	return n
}

func (l *liveMembers) connected() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, m := range l.members {
		if m.streams > 0 {
			n++
		}
	}
	return n
}

// forget drops what is known of an identity that is no longer a member.
func (l *liveMembers) forget(id identity.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, id)
	if m := l.members[id]; m != nil && m.streams == 0 {
		delete(l.members, id)
	}
}

// timeOf returns the time that a member said, without whatever else its message
// holds, or nil.
func timeOf(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t.CheckValid() != nil {
		return nil
	}
	return timestamppb.New(t.AsTime())
}

// periodsOf returns the newest periods that a member said, within bounds, without
// whatever else its messages hold.
func periodsOf(reported []*fealtyv1.DegradedPeriod) []*fealtyv1.DegradedPeriod {
	var out []*fealtyv1.DegradedPeriod
	for _, p := range reported[max(0, len(reported)-maxPeriods):] {
		c := &fealtyv1.DegradedPeriod{Since: timeOf(p.GetSince()), Until: timeOf(p.GetUntil()),
			OverAt: timeOf(p.GetOverAt()), Limit: flowcontrol.Clip(p.GetLimit(), maxReleaseBytes)}
		for _, t := range p.GetActions()[:min(len(p.GetActions()), maxTallies)] {
			c.Actions = append(c.Actions,
				&fealtyv1.ActionTally{Action: flowcontrol.Clip(t.GetAction(), maxReleaseBytes),
					Permitted: t.GetPermitted(), Refused: t.GetRefused()})
		}
		out = append(out, c)
	}
	return out
}

// heldOf returns, by scope, what the member said that it holds, of what it can be
// sent. It is kept for as long as a stream, and of its message nothing else.
func heldOf(reported []*fealtyv1.HeldSnapshot) map[string]*fealtyv1.HeldSnapshot {
	held := make(map[string]*fealtyv1.HeldSnapshot)
	for _, h := range reported[:min(len(reported), maxHeldReported)] {
		if slices.Contains(snapshot.Scopes(), snapshot.Scope(h.GetScope())) && len(h.GetContentHash()) <= sha256.Size {
			held[h.GetScope()] = &fealtyv1.HeldSnapshot{AuthorityEpoch: h.GetAuthorityEpoch(),
				ConfigVersion: h.GetConfigVersion(),
				ContentHash:   h.GetContentHash(), Generation: h.GetGeneration(), Freshness: string(freshnessOf(h.GetFreshness()))}
		}
	}
	return held
}

// freshnessOf returns the state that a member names, or "".
func freshnessOf(word string) snapshot.Freshness {
	for _, f := range []snapshot.Freshness{snapshot.Fresh, snapshot.Stale, snapshot.Degraded, snapshot.Expired} {
		if word == string(f) {
			return f
		}
	}
	return ""
}

// memberIndex is a view of the membership in memory, by "<kind>/<name>": what a
// node_bootstrap shows of the others and what counts are made of. It follows the
// store and decides nothing.
type memberIndex struct {
	mu       sync.Mutex
	members  map[string]indexed    // guarded by mu
	sorted   []string              // the keys of members; guarded by mu
	active   map[identity.Kind]int // active members; guarded by mu
	followed store.Revision        // what the store held until here was seen; guarded by mu
	// waiting is closed when the state of the member may have changed, by its path;
	// guarded by mu.
	waiting map[string]chan struct{}
	touched map[string]bool // put or removed since takeTouched, by path; guarded by mu

	changed chan struct{} // poked when touched grows; capacity 1
}

func newMemberIndex() memberIndex {
	return memberIndex{
		members: make(map[string]indexed), active: make(map[identity.Kind]int), waiting: make(map[string]chan struct{}),
		touched: make(map[string]bool), changed: make(chan struct{}, 1),
	}
}

func (x *memberIndex) touchLocked(path string) {
	x.touched[path] = true
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// takeTouched returns the paths that were put or removed since the last call.
func (x *memberIndex) takeTouched() map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.touched
	x.touched = make(map[string]bool)
	return out
}

// at returns a member with the version of its record; version 0: there is none.
func (x *memberIndex) at(path string) indexed {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.members[path]
}

// recorded is at as a record that was read.
func (x *memberIndex) recorded(path string) record.Versioned[record.Member] {
	m := x.at(path)
	return record.Versioned[record.Member]{Value: m.record, Version: m.version}
}

// pathsAt returns all members, sorted, and until where the store was seen.
func (x *memberIndex) pathsAt() ([]string, store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.sorted), x.followed
}

// paths returns all members, sorted.
func (x *memberIndex) paths() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.sorted)
}

// wait returns a channel that is closed when the state of a member may have
// changed. Take it before looking.
func (x *memberIndex) wait(path string) <-chan struct{} {
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
func (x *memberIndex) tellLocked(path string) {
	if ch := x.waiting[path]; ch != nil {
		close(ch)
		delete(x.waiting, path)
	}
}

type indexed struct {
	record  record.Member
	version store.Revision
}

// fill replaces the view by a listing.
func (x *memberIndex) fill(recs []record.Versioned[record.Member], at store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for path := range x.members {
		x.touchLocked(path)
	}
	x.members = make(map[string]indexed, len(recs))
	x.sorted = x.sorted[:0]
	clear(x.active)
	for _, r := range recs {
		x.members[r.Value.Path()] = indexed{r.Value, r.Version}
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

func (x *memberIndex) tallyLocked(r record.Member, by int) {
	if r.State == record.Active {
		x.active[r.Kind] += by
	}
}

// put enters a record that the store held at version. One that is older than
// what the view has seen is ignored, so notices may come late and twice, and
// one that comes after the removal of its member does not bring it back.
func (x *memberIndex) put(r record.Member, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	path := r.Path()
	old, ok := x.members[path]
	if ok && old.version >= version || !ok && version <= x.followed {
		return
	}
	if ok {
		x.tallyLocked(old.record, -1)
	}
	x.tallyLocked(r, 1)
	if !ok {
		i, _ := slices.BinarySearch(x.sorted, path)
		x.sorted = slices.Insert(x.sorted, i, path)
	}
	x.members[path] = indexed{r, version}
	if !ok || old.record.State != r.State {
		x.tellLocked(path)
	}
	x.touchLocked(path)
}

// remove drops a member whose record was deleted at version.
func (x *memberIndex) remove(path string, version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, ok := x.members[path]
	if !ok || old.version > version {
		return
	}
	delete(x.members, path)
	x.tellLocked(path)
	x.touchLocked(path)
	x.tallyLocked(old.record, -1)
	if i, ok := slices.BinarySearch(x.sorted, path); ok {
		x.sorted = slices.Delete(x.sorted, i, i+1)
	}
}

// all returns the records of all members, sorted by path.
func (x *memberIndex) all() []record.Member {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]record.Member, 0, len(x.sorted))
	for _, path := range x.sorted {
		out = append(out, x.members[path].record)
	}
	return out
}

// holds reports whether the view holds everything that the store held at version.
func (x *memberIndex) holds(version store.Revision) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.followed >= version
}

// page returns up to limit members below prefix that come after path after, sorted, of
// those that keep takes, and whether there are more. Nil keeps all.
func (x *memberIndex) page(prefix, after string, limit int, keep func(record.Member) bool) (out []record.Member,
	more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i, found := slices.BinarySearch(x.sorted, max(prefix, after))
	if found && after != "" {
		i++
	}
	for ; i < len(x.sorted) && strings.HasPrefix(x.sorted[i], prefix); i++ {
		r := x.members[x.sorted[i]].record
		if keep != nil && !keep(r) {
			continue
		}
		if len(out) == limit {
			return out, true
		}
		out = append(out, r)
	}
	return out, false
}

// versions returns the versions of all records, by path.
func (x *memberIndex) versions() map[string]store.Revision {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make(map[string]store.Revision, len(x.members))
	for path, m := range x.members {
		out[path] = m.version
	}
	return out
}

// catchUp brings the view to what the store held at revision at: listed are the paths
// that it held, and recs those of their records that the view did not have. A view that
// is ahead of it stays ahead.
func (x *memberIndex) catchUp(listed map[string]bool, recs []record.Versioned[record.Member], at store.Revision) {
	for _, r := range recs {
		x.put(r.Value, r.Version)
	}
	for _, path := range x.paths() {
		if !listed[path] {
			x.remove(path, at) // unless it came after at
		}
	}
	x.seen(at)
}

func (x *memberIndex) get(path string) (record.Member, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m, ok := x.members[path]
	return m.record, ok
}

// visible returns up to limit members of the fleet that self may see: those that
// share an organization with it, where it has any, and otherwise those that have
// none. It takes those that follow self by kind and name, around the end, so that
// no member is shown to everybody, and looks at no more than maxVisibleScan.
// People's sessions are not part of the fleet.
func (x *memberIndex) visible(self record.Member, limit int) []record.Member {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []record.Member
	start, _ := slices.BinarySearch(x.sorted, self.Path())
	for i := range min(len(x.sorted), maxVisibleScan) {
		m := x.members[x.sorted[(start+i)%len(x.sorted)]].record
		if record.IsSession(m.Kind) || !m.Held() || !sharesOrganization(self, m) {
			continue
		}
		if out = append(out, m); len(out) == limit {
			break
		}
	}
	return out
}

// maxVisibleScan bounds the members that one join looks at.
const maxVisibleScan = 4096

func sharesOrganization(a, b record.Member) bool {
	if a.Outsider() || b.Outsider() {
		return a.Path() == b.Path()
	}
	if len(a.Organizations) == 0 || len(b.Organizations) == 0 {
		return len(a.Organizations) == len(b.Organizations)
	}
	return slices.ContainsFunc(a.Organizations, func(o string) bool { return slices.Contains(b.Organizations, o) })
}

// count returns the number of active members of kind.
func (x *memberIndex) count(kind identity.Kind) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.active[kind]
}

// seen says that the view holds everything that the store held at version.
func (x *memberIndex) seen(version store.Revision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.followed = max(x.followed, version)
}

// forgetLive drops what is known of a member that is none any more.
func (c *Membership) forgetLive(s *authority.State, path string) {
	kind, name, _ := strings.Cut(path, "/")
	if id, err := identity.New(s.Manifest.Cluster, identity.Kind(kind), name); err == nil {
		c.live.forget(id)
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
		c.members.fill(recs, l.Revision)
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
				c.members.put(r.Value, r.Version)
			}
			for _, k := range ch.Delete {
				path := k[len(record.MemberPrefix):]
				c.members.remove(path, ch.Revision)
				c.forgetLive(s, path)
			}
			c.members.seen(ch.Revision)
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
			func() float64 { return float64(c.live.connected()) }),
		gauge.Of("fealty_data_members_connected",
			"Data members that hold a stream to this coordinator, or asked it lately. The sum over "+
				"coordinators is what the baseline counts, but for those that drain.",
			func() float64 { return float64(c.live.dataConnected()) }),
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
			c.members.fill(recs, l.Revision)
			return nil
		},
	}, nil
}

// listen begins to hear members and coordinators anew: from a start on, or from the end of
// recovery mode, silence says nothing until everybody had the time to be heard.
func (c *Membership) listen() {
	c.hears.Store(c.cfg.Now().UnixNano())
	c.presence.Listen(c.cfg.Elapsed())
}
