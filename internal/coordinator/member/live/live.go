// Package live keeps in memory which members have a stream to this coordinator and what each
// reported last. It decides nothing.
package live

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Members is what this coordinator hears of members. It is memory only, and
// decides nothing.
type Members struct {
	elapsed func() time.Duration // a clock that only goes forward; nil: nobody polls

	mu      sync.Mutex
	members map[identity.ID]*liveMember // guarded by mu
	used    map[identity.ID]keyUse      // the recorded key of each, since it was seen here; guarded by mu

	processes map[identity.ID]*fealtyv1.Process // the newest of each that called; guarded by mu
	reports   map[identity.ID]shardReport       // of those of them that are shards and said so; guarded by mu
}

// shardReport is what the process of a shard said last that it has and does.
type shardReport struct {
	whole *fealtyv1.ShardReport
	brief *fealtyv1.ShardReport // the same without rows
	heard time.Duration         // by elapsed
}

// keyUse is a key that a member presented.
type keyUse struct {
	key   identity.KeyID
	since time.Time
}

// Stream is a stream of a member.
type Stream struct {
	run  string        // the process that opened it; "": it did not say
	over chan struct{} // closed when a newer stream takes its place
}

// Run is the process that opened it; "": it did not say.
func (s *Stream) Run() string { return s.run }

// Gone returns a channel that is closed when a newer stream takes its place.
func (s *Stream) Gone() <-chan struct{} { return s.over }

type liveMember struct {
	lastReport  time.Time
	streams     int
	newest      *Stream // of those that say which process they are; nil: none
	release     string
	held        []*fealtyv1.HeldVersion
	bundle      bundleVersion // the trust bundle that it holds
	under       []string      // the config keys that it trusts over all that it holds
	unsigned    bool          // it holds nothing that config keys sign
	lastRefusal string
	svidEnd     *timestamppb.Timestamp // as it said; nil: it did not
	aloneUntil  *timestamppb.Timestamp // as it said; nil: it did not
	aloneLimit  string
	staleSince  time.Time                  // since when it says of a scope that it is not fresh; zero: all are
	clockBehind time.Duration              // as it said; 0: it is right
	degraded    []*fealtyv1.DegradedPeriod // as it said
	// Why its log is lost, as it said, since when, and how many lines; "": it is not, or its
	// release does not say.
	logProblem string
	logSince   *timestamppb.Timestamp
	logDropped uint64
	// polled is until when it counts as heard because it asked; by elapsed.
	polled time.Duration
	// nextBootstrap is when the next node_bootstrap may be made for it.
	nextBootstrap time.Time
}

// Bounds on what a report may hold.
const (
	MaxHeldReported  = 16
	MaxReleaseBytes  = 64
	MaxDetailBytes   = 512
	maxPeriods       = 16 // of degraded mode
	maxTallies       = 32 // of one of them
	maxPollInterval  = 5 * time.Minute
	BootstrapPause   = 10 * time.Second
	MaxBootstrapWait = time.Minute
)

// New returns one that heard nobody. elapsed is a clock that only goes forward;
// nil: nobody polls.
func New(elapsed func() time.Duration) *Members {
	return &Members{elapsed: elapsed, members: make(map[identity.ID]*liveMember),
		processes: make(map[identity.ID]*fealtyv1.Process), reports: make(map[identity.ID]shardReport)}
}

// Alive returns once nobody holds its lock: a watchdog sees that it is not held for good.
func (l *Members) Alive() {
	l.mu.Lock()
	defer l.mu.Unlock()
}

// Opened notes a stream of a member, which takes the place of the one before.
func (l *Members) Opened(id identity.ID, run string) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		m = &liveMember{}
		l.members[id] = m
	}
	m.streams++
	s := &Stream{run: run, over: make(chan struct{})}
	if run == "" {
		return s // of an earlier release: nothing tells a copy from a machine that comes back
	}
	if m.newest != nil {
		close(m.newest.over)
	}
	m.newest = s
	return s
}

// Polls notes that a member asked, and will again after interval: it counts as heard for
// twice as long.
func (l *Members) Polls(id identity.ID, interval time.Duration) {
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
func (l *Members) heardLocked(m *liveMember) bool {
	return m.streams > 0 || m.polled > 0 && l.elapsed() < m.polled
}

// OpenedElsewhere notes that the process run opened a stream of a member at another
// coordinator: another process's stream here gives way.
func (l *Members) OpenedElsewhere(id identity.ID, run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.members[id]; m != nil && m.newest != nil && m.newest.run != run {
		close(m.newest.over)
		m.newest = nil
	}
}

// Uses notes at now that a member presented the key that its record says.
func (l *Members) Uses(id identity.ID, key identity.KeyID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used == nil {
		l.used = make(map[identity.ID]keyUse)
	}
	if l.used[id].key != key {
		l.used[id] = keyUse{key, now}
	}
}

// UsedFor returns for how long the key of a member is known to be in use at now.
func (l *Members) UsedFor(id identity.ID, key identity.KeyID, now time.Time) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.used[id]
	return now.Sub(u.since), u.key == key
}

// BootstrapWait takes the next turn of id to be sent a node_bootstrap, and
// returns how long it is to wait for it: each costs a write. A member that has
// too many turns ahead is refused.
func (l *Members) BootstrapWait(id identity.ID, now time.Time) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		return BootstrapPause, nil
	}
	switch wait := m.nextBootstrap.Sub(now); {
	case wait <= 0, wait > MaxBootstrapWait+BootstrapPause: // no turn was so far ahead: the clock went back
		m.nextBootstrap = now.Add(BootstrapPause)
		return 0, nil
	case wait <= MaxBootstrapWait:
		m.nextBootstrap = m.nextBootstrap.Add(BootstrapPause)
		return wait, nil
	}
	return 0, errcode.New(errcode.RateLimited, "what", "bootstraps of "+id.String(),
		"limit", "one in "+BootstrapPause.String())
}

// Closed ends a stream of id. The rest that is known of it is kept if it still is a member.
func (l *Members) Closed(id identity.ID, s *Stream, member bool) {
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

// Reported notes what a member said, and reports whether it stands on another trust
// bundle or under other keys than before.
func (l *Members) Reported(id identity.ID, r *fealtyv1.ConnectRequest, now time.Time) (moved bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil {
		return false // its stream is gone
	}
	m.lastReport = now
	m.release = ratelimit.Clip(r.GetRelease(), MaxReleaseBytes)
	m.svidEnd, m.aloneUntil = timeOf(r.GetSvidNotAfter()), timeOf(r.GetAutonomousUntil())
	m.aloneLimit = ratelimit.Clip(r.GetAutonomyLimit(), MaxReleaseBytes)
	if m.aloneUntil == nil {
		m.aloneLimit = ""
	}
	bundle, under := m.bundle, m.under
	m.bundle, m.under, m.unsigned = standsOn(r.GetHeld())
	moved = m.bundle != bundle || !slices.Equal(m.under, under)
	m.degraded = periodsOf(r.GetDegradedPeriods())
	if d := r.GetClockBehind(); d.CheckValid() == nil && d.AsDuration() > 0 {
		m.clockBehind = d.AsDuration()
	} else {
		m.clockBehind = 0
	}
	m.logProblem, m.logSince, m.logDropped = ratelimit.Clip(r.GetLogProblem(), MaxDetailBytes), nil, 0
	if m.logProblem != "" {
		m.logSince, m.logDropped = timeOf(r.GetLogProblemSince()), r.GetLogDropped()
	}
	m.held = m.held[:0:0]
	for i, h := range r.GetHeld() {
		if i == MaxHeldReported {
			break
		}
		m.held = append(m.held, &fealtyv1.HeldVersion{Scope: ratelimit.Clip(h.GetScope(), MaxReleaseBytes),
			AuthorityEpoch: h.GetAuthorityEpoch(), ConfigVersion: h.GetConfigVersion(),
			Generation: h.GetGeneration(), Freshness: ratelimit.Clip(h.GetFreshness(), MaxReleaseBytes)})
	}
	switch stale := slices.ContainsFunc(m.held, notFresh); {
	case !stale:
		m.staleSince = time.Time{}
	case m.staleSince.IsZero():
		m.staleSince = now
	}
	if n := len(r.GetRefusals()); n > 0 {
		f := r.GetRefusals()[n-1]
		m.lastRefusal = ratelimit.Clip(f.GetScope(), MaxReleaseBytes) + ": " + ratelimit.Clip(f.GetReason(),
			MaxReleaseBytes) + ": " + ratelimit.Clip(f.GetDetail(), MaxDetailBytes)
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
func standsOn(held []*fealtyv1.HeldSnapshot) (bundle bundleVersion, under []string, unsigned bool) {
	held = held[:min(len(held), MaxHeldReported)]
	overtaken := slices.ContainsFunc(held,
		func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == string(snapshot.ScopeNodeRuntime) })
	unsigned = true
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
		signers := h.GetSigners()[:min(len(h.GetSigners()), internalsnapshot.MaxSignatures)]
		if unsigned {
			unsigned = false
			for _, id := range signers {
				under = append(under, ratelimit.Clip(id, MaxReleaseBytes))
			}
			continue
		}
		under = slices.DeleteFunc(under, func(id string) bool { return !slices.Contains(signers, id) })
	}
	return bundle, under, unsigned
}

// overtaken is for how long after a process called one with a lower epoch is not believed to have taken its place: its
// call was on its way.
const overtaken = time.Minute

// Called notes at now that a process of a member was served: the newest of it, or one that does not
// say which it is.
func (l *Members) Called(id identity.ID, epoch fence.Epoch, incarnation string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[id]
	if incarnation != "" && uint64(epoch) < p.GetEpoch() && now.Sub(p.GetLastCall().AsTime()) < overtaken {
		return
	}
	if p == nil || p.GetIncarnation() != incarnation || p.GetEpoch() != uint64(epoch) {
		p = &fealtyv1.Process{Incarnation: incarnation, Epoch: uint64(epoch)} // it says itself whether it is paused
		delete(l.reports, id)
	}
	l.processes[id] = &fealtyv1.Process{Incarnation: p.GetIncarnation(), Epoch: p.GetEpoch(), Paused: p.GetPaused(),
		LastCall: timestamppb.New(now)}
}

// SaysPaused notes whether the process of a member that called last says that it is paused.
func (l *Members) SaysPaused(id identity.ID, paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.processes[id]; p != nil {
		l.processes[id] = &fealtyv1.Process{Incarnation: p.GetIncarnation(), Epoch: p.GetEpoch(), Paused: paused,
			LastCall: p.GetLastCall()}
	}
}

// ShardReported keeps what the process of a shard said that it has and does, which is not to be changed any more. It
// reports whether that is news: what was overtaken on its way, by a newer report or by a newer process, changes nothing.
func (l *Members) ShardReported(id identity.ID, epoch fence.Epoch, incarnation string, r *fealtyv1.ShardReport) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[id]
	if p.GetIncarnation() != incarnation || p.GetEpoch() != uint64(epoch) ||
		r.GetNumber() <= l.reports[id].whole.GetNumber() {
		return false
	}
	l.reports[id] = shardReport{whole: r, brief: briefOf(r), heard: l.since(0)}
	return true
}

// What of a cycle is told of many shards at once: with it each has at most 2 KiB in a message that tells of hundreds of members.
const (
	briefTallies  = 4
	briefUnlisted = 3
	briefProblem  = 128 // bytes
)

// briefOf is what is told of the report of one of many shards.
func briefOf(r *fealtyv1.ShardReport) *fealtyv1.ShardReport {
	out := &fealtyv1.ShardReport{Number: r.GetNumber(), MadeAt: r.GetMadeAt(), Every: r.GetEvery(),
		PausedByFlag: r.GetPausedByFlag(), PausedByInstruction: r.GetPausedByInstruction(), PausedFor: r.GetPausedFor(),
		Machines: r.GetMachines(), Working: r.GetWorking(), Tenants: r.GetTenants(), Wanted: r.GetWanted(),
		Short: r.GetShort(), ShortFor: r.GetShortFor(), Held: r.GetHeld(), HeldFor: r.GetHeldFor(), ShortOf: r.GetShortOf(),
		HeldOf: r.GetHeldOf()}
	if c := r.GetCycle(); c != nil {
		out.Cycle = &fealtyv1.ShardCycle{Ago: c.GetAgo(), Took: c.GetTook(), Problem: ratelimit.Clip(c.GetProblem(), briefProblem),
			Outcomes: c.GetOutcomes()[:min(len(c.GetOutcomes()), briefTallies)],
			HeldBack: c.GetHeldBack()[:min(len(c.GetHeldBack()), briefTallies)]}
		for _, u := range c.GetUnlisted()[:min(len(c.GetUnlisted()), briefUnlisted)] {
			out.Cycle.Unlisted = append(out.Cycle.Unlisted, &fealtyv1.UnlistedProvider{Provider: u.GetProvider()})
		}
	}
	return out
}

// since is how long ago a time by elapsed was.
func (l *Members) since(at time.Duration) time.Duration {
	if l.elapsed == nil {
		return 0
	}
	return l.elapsed() - at
}

// processLocked is what is known of the process of a member, with what a shard said of itself: of that its rows, if whole.
func (l *Members) processLocked(id identity.ID, whole bool) *fealtyv1.Process {
	p := l.processes[id]
	said, ok := l.reports[id]
	if !ok {
		return p
	}
	report := said.brief
	if whole {
		report = said.whole
	}
	return &fealtyv1.Process{Incarnation: p.GetIncarnation(), Epoch: p.GetEpoch(), Paused: p.GetPaused(),
		LastCall: p.GetLastCall(), Report: report, ReportAge: durationpb.New(l.since(said.heard))}
}

// Shards sums up what shards said here of themselves within a time.
type Shards struct{ Reporting, Short, Held int }

// Shards sums up what those shards said that reported here for no longer ago than within.
func (l *Members) Shards(within time.Duration) (out Shards) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, said := range l.reports {
		if l.since(said.heard) <= within {
			out.Reporting++
			out.Short += int(said.brief.GetShort())
			out.Held += int(said.brief.GetHeld())
		}
	}
	return out
}

// Paused counts the members whose processes said so here, and were heard since a time.
func (l *Members) Paused(since time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.processes {
		if p.GetPaused() && p.GetLastCall().AsTime().After(since) {
			n++
		}
	}
	return n
}

// Message returns what is known of id, or nil.
func (l *Members) Message(id identity.ID) *fealtyv1.Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.messageLocked(id, false)
}

// Whole is [Members.Message] with what only who asks for one member is told: when it was in degraded mode, and the
// rows of what a shard reported.
func (l *Members) Whole(id identity.ID) *fealtyv1.Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.messageLocked(id, true)
	if m := l.members[id]; m != nil {
		out.DegradedPeriods = slices.Clone(m.degraded)
	}
	return out
}

func (l *Members) messageLocked(id identity.ID, whole bool) *fealtyv1.Live {
	m, process := l.members[id], l.processLocked(id, whole)
	switch {
	case m == nil && process == nil:
		return nil
	case m == nil:
		return &fealtyv1.Live{Process: process}
	}
	out := &fealtyv1.Live{Connected: l.heardLocked(m), Release: m.release, Held: slices.Clone(m.held),
		LastRefusal:  m.lastRefusal,
		SvidNotAfter: m.svidEnd, AutonomousUntil: m.aloneUntil, AutonomyLimit: m.aloneLimit, Process: process,
		LogProblem: m.logProblem, LogProblemSince: m.logSince, LogDropped: m.logDropped}
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

// A Glance is what little of what is heard of a member tells whether there is more to see.
type Glance struct {
	Connected  bool
	AloneUntil *timestamppb.Timestamp // as it said; nil: it did not
	AloneLimit string

	process bool // its process says that it is paused, or reports: there may be something for somebody to look at
	quiet   bool // of what it holds, of its clock and of its log there is nothing for somebody to look at
}

// Glances adds to out what [Members.Message] tells of the members with these ids, at a glance; above says of what one
// holds whether it is more than the store can have given it.
func (l *Members) Glances(out []Glance, ids []identity.ID, above func(*fealtyv1.HeldVersion) bool) []Glance {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		m, process := l.members[id], l.processes[id].GetPaused() || l.reports[id].whole != nil
		if m == nil {
			out = append(out, Glance{process: process})
			continue
		}
		out = append(out, Glance{
			Connected: l.heardLocked(m), AloneUntil: m.aloneUntil, AloneLimit: m.aloneLimit, process: process,
			quiet: m.staleSince.IsZero() && m.clockBehind == 0 && m.logProblem == "" && plain(m.held, above),
		})
	}
	return out
}

// glanceOf glances at what somebody else hears of a member.
func glanceOf(l *fealtyv1.Live, above func(*fealtyv1.HeldVersion) bool) Glance {
	return Glance{
		Connected: l.GetConnected(), AloneUntil: l.GetAutonomousUntil(), AloneLimit: l.GetAutonomyLimit(),
		process: l.GetProcess().GetPaused() || l.GetProcess().GetReport() != nil,
		quiet: l.GetStaleSince() == nil && l.GetClockBehind() == nil && l.GetLogProblem() == "" &&
			plain(l.GetHeld(), above),
	}
}

// Well reports whether a member is connected and there is nothing for somebody to look at, and what is heard of it then:
// what [Newer] makes of what is heard of it here and what is heard elsewhere, which may be nil. Of one that several hear
// it is not said: it is moving from one coordinator to another.
func (g Glance) Well(elsewhere *fealtyv1.Live, above func(*fealtyv1.HeldVersion) bool) (Glance, bool) {
	other := glanceOf(elsewhere, above)
	switch {
	case g.Connected == other.Connected, g.process, other.process:
		return Glance{}, false
	case g.Connected:
		return g, g.quiet
	}
	return other, other.quiet
}

// plain reports whether there is nothing to say of what a member holds.
func plain(held []*fealtyv1.HeldVersion, above func(*fealtyv1.HeldVersion) bool) bool {
	return !slices.ContainsFunc(held, func(h *fealtyv1.HeldVersion) bool { return notFresh(h) || above(h) })
}

// All returns who is known of.
func (l *Members) All() []identity.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Collect(maps.Keys(l.members))
	for id := range l.processes {
		if l.members[id] == nil {
			out = append(out, id)
		}
	}
	return out
}

// LogsLost counts the members that are heard here and say that their log is lost.
func (l *Members) LogsLost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, m := range l.members {
		if m.logProblem != "" && l.heardLocked(m) {
			n++
		}
	}
	return n
}

// DataConnected counts the data members that are heard here.
func (l *Members) DataConnected() int {
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

// Connected is how many members have a stream here.
func (l *Members) Connected() int {
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

// Forget drops what is known of an identity that is no longer a member.
func (l *Members) Forget(id identity.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, id)
	delete(l.processes, id)
	delete(l.reports, id)
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
			OverAt: timeOf(p.GetOverAt()), Limit: ratelimit.Clip(p.GetLimit(), MaxReleaseBytes)}
		for _, t := range p.GetActions()[:min(len(p.GetActions()), maxTallies)] {
			c.Actions = append(c.Actions,
				&fealtyv1.ActionTally{Action: ratelimit.Clip(t.GetAction(), MaxReleaseBytes),
					Permitted: t.GetPermitted(), Refused: t.GetRefused()})
		}
		out = append(out, c)
	}
	return out
}

// HeldOf returns, by scope, what the member said that it holds, of what it can be
// sent. It is kept for as long as a stream, and of its message nothing else.
func HeldOf(reported []*fealtyv1.HeldSnapshot) map[string]*fealtyv1.HeldSnapshot {
	held := make(map[string]*fealtyv1.HeldSnapshot)
	for _, h := range reported[:min(len(reported), MaxHeldReported)] {
		if slices.Contains(snapshot.Scopes(), snapshot.Scope(h.GetScope())) && len(h.GetContentHash()) <= sha256.Size {
			held[h.GetScope()] = &fealtyv1.HeldSnapshot{AuthorityEpoch: h.GetAuthorityEpoch(),
				ConfigVersion: h.GetConfigVersion(),
				ContentHash:   h.GetContentHash(), Generation: h.GetGeneration(),
				Freshness: string(freshnessOf(h.GetFreshness()))}
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

// Confirmed returns the members that hold everything under the key of r, which has
// this id, by path.
func (l *Members) Confirmed(r *bundle.Rotation, keyID string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for id, m := range l.members {
		knows := m.bundle.epoch > r.Epoch || m.bundle.epoch == r.Epoch && m.bundle.version > r.After
		if knows && (m.unsigned || slices.Contains(m.under, keyID)) {
			out = append(out, string(id.Kind())+"/"+id.Name())
		}
	}
	return out
}

// Rollout returns which connected members hold the bundle t.
func (l *Members) Rollout(t *bundle.View) *fealtyv1.TrustRollout {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &fealtyv1.TrustRollout{}
	for id, m := range l.members {
		if m.streams == 0 {
			continue
		}
		out.Connected++
		if m.bundle.epoch > t.Epoch || m.bundle.epoch == t.Epoch && m.bundle.version >= t.Version {
			out.Holding++
		} else {
			out.Lagging = append(out.Lagging, string(id.Kind())+"/"+id.Name())
		}
	}
	slices.Sort(out.Lagging)
	out.Lagging = out.Lagging[:min(len(out.Lagging), bundle.MaxNamedMembers)]
	return out
}

// Newer returns that one of two messages which says more of a member, with the process that either
// heard last and what that one reported last; either may be nil. A member's agent and its process may talk to two
// coordinators.
func Newer(a, b *fealtyv1.Live) *fealtyv1.Live {
	out, process := newer(a, b), newerProcess(a.GetProcess(), b.GetProcess())
	if out.GetProcess() != process {
		out = proto.CloneOf(out) // others may read it
		out.Process = process
	}
	return out
}

// newerProcess returns the process that either heard last, with the newest report of it that either heard.
func newerProcess(a, b *fealtyv1.Process) *fealtyv1.Process {
	process, other := a, b
	if a.GetLastCall().AsTime().Before(b.GetLastCall().AsTime()) {
		process, other = b, a
	}
	mine, theirs := process.GetReport(), other.GetReport()
	same := process.GetIncarnation() == other.GetIncarnation() && process.GetEpoch() == other.GetEpoch()
	if !same || theirs == nil || theirs.GetNumber() < mine.GetNumber() ||
		theirs.GetNumber() == mine.GetNumber() && process == a {
		return process
	}
	return &fealtyv1.Process{Incarnation: process.GetIncarnation(), Epoch: process.GetEpoch(), Paused: process.GetPaused(),
		LastCall: process.GetLastCall(), Report: theirs, ReportAge: other.GetReportAge()}
}

func newer(a, b *fealtyv1.Live) *fealtyv1.Live {
	switch {
	case a == nil || b == nil:
		if a == nil {
			return b
		}
		return a
	case a.GetConnected() != b.GetConnected():
		if a.GetConnected() {
			return a
		}
		return b
	case a.GetLastReport().AsTime().Before(b.GetLastReport().AsTime()):
		return b
	}
	return a
}
