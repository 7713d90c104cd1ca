package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/leader"
)

// One coordinator leads: it compiles what members are told, ends rotations, and
// prunes. Package leader decides who; this file reads and writes for it.
//
// Two entries, both under the record MAC, and both written by who leads or takes
// over. The term is the revision of the first, which is why the beat has a place of
// its own: every write of a leader is conditional on leader/term, and a beat between
// a decision and its commit must not make that fail.
//
//	leader/term  who leads; written when that changes, and at no other time
//	leader/beat  that it lives
const (
	Prefix  = "leader/"
	TermKey = "leader/term"
	BeatKey = "leader/beat"
)

// Times of leadership. None of them is what makes a leader's write right.
const (
	// DefaultLease and DefaultBeat are those of [Config] where it names none.
	DefaultLease = 1200 * time.Millisecond
	DefaultBeat  = 300 * time.Millisecond
	// leadCallTime bounds one call of the store, if that is less than half the lease in force: one
	// that hangs must not cost the lease, nor hold up who stops.
	leadCallTime = time.Second
	// leadFailurePause is how often it is said that the store does not tell who leads: it
	// is asked with every beat.
	leadFailurePause = 10 * time.Second
	// handOverTime bounds how long a coordinator that stops tries to hand over.
	handOverTime = time.Second
)

// Record is leader/term.
type Record struct {
	Replica string    `json:"replica"` // the enrolment key
	Name    string    `json:"name"`    // in the manifest, then
	Nonce   string    `json:"nonce"`   // of the takeover
	Lease   int64     `json:"lease_ms"`
	Since   time.Time `json:"since"` // by its own clock; for people
	// HandedOver: it leads no more. For is the key of who is to be next; empty: anyone.
	HandedOver bool   `json:"handed_over,omitempty"`
	For        string `json:"for,omitempty"`
}

// Beat is leader/beat.
type Beat struct {
	Nonce  string `json:"nonce"` // of the takeover that it is of
	Number uint64 `json:"number"`
	// Lease that begins with it. An earlier release names none: it is that of leader/term.
	Lease int64 `json:"lease_ms,omitempty"`
}

// lead is a coordinator's part in leadership. The core and what is below it belong to
// the loop that runs it.
type lead struct {
	c      *Election
	origin time.Duration // of the core's clock

	view    atomic.Pointer[leadView] // what the loop knows; never nil
	over    atomic.Uint64            // a term of which the store said that it is over
	changed watch.Signal             // this coordinator leads, or does no more
	seen    watch.Signal             // somebody else does, or nobody
	due     watch.Signal             // the store is to be looked at now

	core     *leader.Core
	state    *authority.State // that the core knows of
	lost     bool             // that the store lost something, as the core knows
	record   Record           // as it was read or written last
	renewal  leader.Renew
	renewTx  store.Tx       // of renewal
	reported store.Revision // what was reported as forged last
	quiet    time.Duration  // until then no failure of the store is reported
}

// leadView is what can be known of leadership. It is immutable.
type leadView struct {
	term  uint64        // under which this coordinator leads; 0: it does not
	until time.Duration // and how long

	// seen is the entry of the store, and seenTerm its revision. Somebody may lead
	// until ledUntil.
	seen     Record
	seenTerm uint64
	ledUntil time.Duration
	low      bool // terms are not above those of before: nobody may lead
}

func newLead(c *Election) (*lead, error) {
	core, err := leader.New(leader.Config{Replica: c.cfg.Self.EnrolmentKey(), Lease: c.cfg.Lease,
		Beat: c.cfg.Beat, Nonce: record.NewID})
	if err != nil {
		return nil, err
	}
	l := &lead{c: c, origin: c.cfg.Elapsed(), core: core}
	l.view.Store(&leadView{})
	return l, nil
}

func (l *lead) now() time.Duration { return l.c.cfg.Elapsed() - l.origin }

// Leading returns the term under which this coordinator leads, and the condition
// that every write of it as the leader has. It reports false if it does not lead.
//
// That it does is a guess, by its own clock; the condition is what decides (I4).
func (e *Election) Leading() (term uint64, condition store.Condition, ok bool) {
	v := e.lead.view.Load()
	if v.term == 0 || e.cfg.StoreGuard.Lost() != nil || e.lead.now() >= v.until ||
		e.lead.over.Load() == v.term || e.cfg.Head.State().Phase != authority.Ready {
		return 0, store.Condition{}, false
	}
	return v.term, store.Condition{Key: TermKey, Version: store.Revision(v.term)}, true
}

// leader returns the entry and the term of who leads, as far as this coordinator can
// tell; if nobody does, how long that has been so.
func (e *Election) leader() (l Record, term uint64, nobodyFor time.Duration) {
	v, now := e.lead.view.Load(), e.lead.now()
	if _, _, ok := e.Leading(); ok {
		return v.seen, v.term, 0
	}
	if now < v.ledUntil && v.seen.Replica != e.cfg.Self.EnrolmentKey() {
		return v.seen, v.seenTerm, 0
	}
	return Record{}, 0, max(now-v.ledUntil, 0)
}

// ErrNotLeading is the error of a leader's change at a coordinator that does not
// lead. It matches store.ErrConflict: somebody else does what was to be done.
var ErrNotLeading = fmt.Errorf("this coordinator does not lead: %w", store.ErrConflict)

// NewChange is [record.Records.NewChange] for what only the leader writes.
func (e *Election) NewChange(s *authority.State) *record.Change {
	ch := s.Records.NewChange(s.HeadVersion)
	_, condition, ok := e.Leading()
	if !ok {
		ch.Err = ErrNotLeading
		return ch
	}
	ch.Tx.If = append(ch.Tx.If, condition)
	return ch
}

// Deposed notes what the store said of a term: that it is over. It stays so.
func (e *Election) Deposed(term store.Revision) {
	e.lead.over.Store(uint64(term))
	e.lead.due.Notify()
}

// Changed returns a channel that is closed when this coordinator leads, or does no more.
func (e *Election) Changed() <-chan struct{} { return e.lead.changed.Wait() }

// LookAgain has the store asked now who leads.
func (e *Election) LookAgain() { e.lead.due.Notify() }

// Run leads when nobody else does, until ctx ends. Then it hands over.
func (e *Election) Run(ctx context.Context) error {
	l := e.lead
	told, stop := watch.Key(ctx, e.cfg.Store, TermKey)
	defer stop()
	for noticed := false; ; {
		// Taken before the store is read: what is told meanwhile may be newer than the answer.
		changed, due := e.cfg.Head.Changed(), l.due.Wait()
		if noticed {
			l.run(ctx, leader.Noticed{})
		}
		e.Step(ctx)
		wake := time.NewTimer(l.core.Next(l.now()) - l.now())
		noticed = false
		select {
		case <-wake.C:
		case <-changed:
		case <-told:
			noticed = true
		case <-due:
		case <-ctx.Done():
		}
		select {
		case <-due: // also if something else happened at once
			noticed = true
		default:
		}
		wake.Stop()
		if ctx.Err() != nil {
			l.stop(ctx)
			return ctx.Err()
		}
	}
}

// Step looks whether this coordinator can lead, and does what is due. It is what
// [Election.Run] does each time, and nobody else may while that runs.
func (e *Election) Step(ctx context.Context) {
	e.lead.fit(ctx)
	e.lead.run(ctx, leader.Tick{})
}

// stop hands over, if it leads, within handOverTime.
func (l *lead) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverTime)
	defer cancel()
	for l.run(ctx, leader.Stop{}); ctx.Err() == nil; l.run(ctx, leader.Tick{}) {
		pause := l.core.Next(l.now()) - l.now()
		if pause > handOverTime || watch.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// fit tells the core whether this coordinator can lead.
func (l *lead) fit(ctx context.Context) {
	s, lost := l.c.cfg.Head.State(), l.c.cfg.StoreGuard.Lost() != nil
	if s == l.state && lost == l.lost {
		return
	}
	l.state, l.lost = s, lost
	if s.Phase != authority.Ready || lost {
		l.run(ctx, leader.Unfit{})
		return
	}
	// A restore takes an authority epoch above all terms of before.
	l.run(ctx, leader.Fit{Floor: s.Head.AuthorityEpoch})
}

// run steps the core, and does what it asks for.
func (l *lead) run(ctx context.Context, e leader.Event) {
	for {
		effect := l.core.Step(l.now(), e)
		l.publish(ctx)
		if effect == nil {
			return
		}
		// Not ended with ctx: who stops needs the answer before it hands over, and a
		// connection that is cut off needs longer.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(l.core.Lease()/2, leadCallTime))
		switch effect := effect.(type) {
		case leader.ReadEntry:
			e = l.read(call)
		case leader.TakeOver:
			e = l.takeOver(call, effect)
		case leader.Renew:
			e = l.renew(call, effect)
		case leader.StepDown:
			e = l.stepDown(call, effect)
		}
		cancel()
	}
}

// publish makes known what the core says, and what of it is news.
func (l *lead) publish(ctx context.Context) {
	now, was := l.now(), l.view.Load()
	v := &leadView{low: l.core.BelowFloor()}
	v.term, v.until, _ = l.core.Leading(now)
	var seen leader.Entry
	seen, _, v.ledUntil = l.core.Seen(now)
	if v.seenTerm = seen.Term; seen.Believed {
		v.seen = l.record
	}
	l.view.Store(v)
	if v.seen.Nonce != was.seen.Nonce && v.seen.Nonce != "" && !v.seen.HandedOver {
		l.c.metrics.transitions.Inc()
	}
	if v.seenTerm != was.seenTerm {
		l.seen.Notify()
	}
	if v.low && !was.low {
		l.c.cfg.Log.LogAttrs(ctx, slog.LevelError,
			"this coordinator does not lead: the store gives terms that are not above those of before, as one does "+
				"that went back, or was restored and not raised",
			slog.Uint64("term", seen.Term), slog.Uint64("floor", l.state.Head.AuthorityEpoch))
	}
	if v.term == was.term {
		if v.term != 0 && now >= was.until {
			l.changed.Notify() // the beat came late: who looked meanwhile took it for over
		}
		return
	}
	switch {
	case v.term != 0:
		l.c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "this coordinator leads", slog.Uint64("term", v.term))
	default:
		l.c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "this coordinator leads no more", slog.Uint64("term", was.term),
			slog.Bool("in_time", now < was.until), slog.Duration("lease", l.core.Lease()))
	}
	l.changed.Notify()
}

// failed words the failure of a call for the core.
func (l *lead) failed(ctx context.Context, what string, err error) leader.Event {
	var conflict *store.ConflictError
	switch {
	case errors.As(err, &conflict):
		switch conflict.Key {
		case TermKey:
			return leader.Conflict{Key: leader.KeyTerm}
		case BeatKey:
			return leader.Conflict{Key: leader.KeyBeat}
		case history.HeadKey:
			l.c.cfg.Head.LookAgain()
		case record.LockKey:
			l.c.cfg.LookAtLock(ctx) // it may be that nobody else writes
		}
		return leader.Conflict{}
	case errors.Is(err, store.ErrConflict):
		return leader.Conflict{}
	}
	if now := l.now(); now >= l.quiet {
		l.quiet = now + leadFailurePause
		l.c.cfg.Failures.Log(ctx, l.c.cfg.Log, slog.LevelWarn, "the store did not take or tell who leads",
			slog.String("what", what), slog.Any("err", err))
	}
	if errors.Is(err, store.ErrUnknownOutcome) {
		return leader.Unknown{}
	}
	return leader.Failed{}
}

// read reads entry and beat.
func (l *lead) read(ctx context.Context) leader.Event {
	s := l.c.cfg.Head.State()
	if s.Phase != authority.Ready {
		return leader.ReadFailed{}
	}
	found, err := l.c.cfg.Store.List(ctx, Prefix)
	if err != nil {
		l.failed(ctx, "read", err)
		return leader.ReadFailed{}
	}
	var e leader.Entry
	var written record.Versioned[Record]
	var beat record.Versioned[Beat]
	for _, at := range found.Entries {
		var err error
		switch at.Key {
		case TermKey:
			e.Term = uint64(at.Version)
			written, err = record.Open[Record](s.Records, at)
		case BeatKey:
			e.Beat = uint64(at.Version)
			beat, err = record.Open[Beat](s.Records, at)
		}
		if err == nil {
			continue
		}
		// Under another head there may be another seed, and so another key.
		if !l.c.cfg.Head.HeadHolds(ctx) {
			l.c.cfg.Head.LookAgain()
			return leader.ReadFailed{}
		}
		if at.Version > l.reported {
			l.reported = at.Version
			l.c.cfg.Head.Forged(ctx, at.Key, err)
		}
	}
	l.record = written.Value
	if r := written.Value; r.Nonce != "" && r.Replica != "" {
		e.Believed, e.Replica, e.Nonce, e.HandedOver, e.For = true, r.Replica, r.Nonce, r.HandedOver, r.For
		b := beat.Value
		e.Lease = leader.LeaseOf(l.c.cfg.Lease, leaseOf(r.Lease), leaseOf(b.Lease), b.Nonce == r.Nonce)
		if b.Nonce == r.Nonce {
			e.Number = beat.Value.Number
		}
	}
	return leader.Read{Entry: e}
}

// leaseOf reads a lease of a record; 0: there is none.
func leaseOf(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), int64(leader.MaxLease/time.Millisecond))) * time.Millisecond
}

// change begins a write of leadership: it holds at entry and beat as they were, unless
// the records are locked. They come first, so that a conflict names them.
func (l *lead) change(r record.Records, term uint64, keys ...store.Condition) *record.Change {
	ch := r.Part()
	ch.Require(TermKey, store.Revision(term))
	ch.Tx.If = append(ch.Tx.If, keys...)
	ch.Require(record.LockKey, 0)
	return ch
}

// takeOver writes an entry of this coordinator, and the beat.
func (l *lead) takeOver(ctx context.Context, e leader.TakeOver) leader.Event {
	s := l.c.cfg.Head.State()
	if s.Phase != authority.Ready {
		return leader.Failed{}
	}
	entry, err := l.c.cfg.Self.Admits(s.Manifest)
	if err != nil {
		return leader.Failed{}
	}
	written := Record{Replica: l.c.cfg.Self.EnrolmentKey(), Name: entry.Name, Nonce: e.Nonce,
		Lease: e.Lease.Milliseconds(), Since: l.c.cfg.Now().UTC()}
	ch := l.change(s.Records, e.IfTerm, store.Condition{Key: BeatKey, Version: store.Revision(e.IfBeat)})
	ch.Require(history.HeadKey, s.HeadVersion)
	ch.Write(TermKey, written)
	ch.Write(BeatKey, Beat{Nonce: e.Nonce, Lease: e.Lease.Milliseconds()})
	return l.commit(ctx, "take over", ch, func() { l.record = written })
}

// renew writes the beat.
func (l *lead) renew(ctx context.Context, e leader.Renew) leader.Event {
	if e != l.renewal {
		s := l.c.cfg.Head.State()
		if s.Phase != authority.Ready {
			return leader.Failed{}
		}
		ch := l.change(s.Records, e.IfTerm, store.Condition{Key: BeatKey, Version: store.Revision(e.IfBeat)})
		ch.Require(history.HeadKey, s.HeadVersion)
		ch.Write(BeatKey, Beat{Nonce: e.Nonce, Number: e.Number, Lease: e.Lease.Milliseconds()})
		if ch.Err != nil {
			return l.failed(ctx, "beat", ch.Err)
		}
		ch.Tx.ID = store.NewTxID()
		l.renewal, l.renewTx = e, ch.Tx
	}
	if err := l.c.cfg.Faults.Hit("lead.beat"); err != nil {
		return leader.Unknown{}
	}
	version, err := l.c.cfg.Store.Commit(ctx, l.renewTx)
	if err != nil {
		return l.failed(ctx, "beat", err)
	}
	return leader.Written{Version: uint64(version)}
}

// stepDown hands over. It is not conditional on the head: who does not know the head
// any more has to hand over too. Its records are under the key of the seed that it
// knows, and while a reseed changes that nothing is written.
func (l *lead) stepDown(ctx context.Context, e leader.StepDown) leader.Event {
	s := l.c.cfg.Head.State().Ready()
	if s == nil {
		return leader.Failed{}
	}
	written := l.record
	written.Nonce, written.HandedOver, written.For = e.Nonce, true, ""
	ch := l.change(s.Records, e.IfTerm)
	ch.Write(TermKey, written)
	return l.commit(ctx, "hand over", ch, func() { l.record = written })
}

func (l *lead) commit(ctx context.Context, what string, ch *record.Change, done func()) leader.Event {
	if ch.Err != nil {
		return l.failed(ctx, what, ch.Err)
	}
	if err := l.c.cfg.Faults.Hit("lead." + what); err != nil {
		return leader.Failed{}
	}
	version, err := l.c.cfg.Store.Commit(ctx, ch.Tx)
	if err != nil {
		return l.failed(ctx, what, err)
	}
	done()
	return leader.Written{Version: uint64(version)}
}

// electionMetrics are what Election counts.
type electionMetrics struct {
	transitions prometheus.Counter
}

func newElectionMetrics(reg prometheus.Registerer) *electionMetrics {
	m := &electionMetrics{
		transitions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_leader_transitions_total",
			Help: "Changes of the leader that this coordinator has seen.",
		}),
	}
	reg.MustRegister(m.transitions)
	return m
}

// RegisterMetrics registers what it counts, and who leads.
func (e *Election) RegisterMetrics(reg prometheus.Registerer) {
	e.metrics = newElectionMetrics(reg)
	reg.MustRegister(
		metrics.GaugeIf("fealty_leader",
			"1 while this coordinator leads.",
			func() bool {
				_, _, ok := e.Leading()
				return ok
			}),
		metrics.GaugeOf("fealty_leader_term",
			"Term of who leads, as far as this coordinator can tell; 0 if nobody does.",
			func() float64 {
				_, term, _ := e.leader()
				return float64(term)
			}),
	)
}
