package accept

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Reports are told what becomes of a node. Each may be called under the node's
// turn, and none of them may wait.
type Reports struct {
	// Rejected counts a snapshot that was refused, by scope and reason.
	Rejected func(scope, reason string)
	// Refused counts an action that the guard refused, by action and reason.
	Refused func(action, reason string)
	// Entered counts that degraded mode began.
	Entered func()
	// Report says that there is something to report.
	Report func()
	// Renew says that a renewal which failed may succeed now.
	Renew func()
	// Changed says that what is in use of the scopes changed.
	Changed func(of ...snapshot.Scope)
	// Applied notes with which content of a scope the program for changes succeeded, and
	// AppliedTo tells it.
	Applied   func(scope snapshot.Scope, content string)
	AppliedTo func(scope snapshot.Scope) string
}

// Node is what a member has accepted while its agent runs. It changes it in the order that
// a crash needs, one change after the other, and asks nobody.
type Node struct {
	me         state.Self // as it was opened; what an enrolment or another root changes is in enrolled
	store      *state.Store
	Clock      *Clock
	log        *slog.Logger
	Faults     *failpoint.Points
	reports    Reports
	source     *credential.Issued
	enrolled   atomic.Pointer[state.Self]       // stored under activation
	moved      atomic.Pointer[trust.RootChange] // the change of root that is to be followed; nil: none
	svid       state.Decisive[dir.SVID]
	trustState state.Decisive[state.TrustState]
	status     state.Condition

	Autonomy Autonomy
	Trials   Trials
	files    Derived

	Activation state.Semaphore // held by who changes the trust state or source
	arrival    arrival         // guarded by activation
	owed       owed            // guarded by activation
}

// arrival is what came of what was offered last.
type arrival struct {
	lost      bool                   // a trust bundle waits for links of the history
	overtaken *state.ActiveSnapshot  // a trust bundle to be shown to who has an older one
	early     map[string]state.Early // by scope: what may verify under what comes next
}

// owed is what the disk is still to do.
type owed struct {
	marksDirty bool             // the marks in memory are not known to be durable
	dropping   []snapshot.Scope // whose files are to be removed
}

// Autonomy is what a node may do by now, and what it did while it had no news.
type Autonomy struct {
	n *Node
	// a trusted key signed under a newer authority epoch than the trust bundle's
	behind   state.Decisive[bool]
	Changed  state.Notifier                   // when the guard may decide otherwise than before
	known    atomic.Pointer[state.TrustFacts] // of the trust state that was asked for last
	Degraded guard.Periods
}

// Trials are the snapshots on trial, while the agent runs.
type Trials struct {
	n       *Node
	Changed chan struct{}                // they changed
	Since   map[snapshot.Scope]time.Time // monotonic; guarded by activation
}

// Derived are the files that others read.
type Derived struct {
	n        *Node
	release  string
	receipts map[snapshot.Scope]state.Receipt    // of what is in use; guarded by activation
	contents map[snapshot.Scope]*snapshot.Digest // nil: no file; missing: not known; guarded by activation
	// whole has the snapshots whose contents are in the files with nothing left out: those are not
	// hashed again. Guarded by activation.
	whole  map[snapshot.Scope]*snapshot.Verified
	stated []byte // the state for others to read, as written last; guarded by activation
}

// Config is what a node needs. All of it is required but for Faults.
type Config struct {
	Store   *state.Store // locked; the node gives it back to nobody
	Clock   *state.Clock
	Release string // the program's, for the files that others read
	Log     *slog.Logger
	Reports Reports
	Faults  *failpoint.Points // nil outside tests
}

// New takes up what was loaded from cfg.Store: it counts the trials that go on, and
// ends a renewal that was finished but for its last step. It starts nothing; nobody is told
// of anything before resume.
func New(cfg Config, l *state.Loaded) (*Node, error) {
	n := &Node{
		me: l.Me, store: cfg.Store, Clock: &Clock{cfg.Clock, cfg.Store, cfg.Log}, log: cfg.Log, Faults: cfg.Faults,
		reports:    cfg.Reports,
		Activation: state.NewSemaphore(),
	}
	n.Autonomy.n, n.Trials.n, n.files.n = n, n, n
	n.Trials.Changed, n.Trials.Since = make(chan struct{}, 1), make(map[snapshot.Scope]time.Time)
	n.files.release, n.files.receipts = cfg.Release, make(map[snapshot.Scope]state.Receipt)
	n.files.contents = make(map[snapshot.Scope]*snapshot.Digest)
	n.files.whole = make(map[snapshot.Scope]*snapshot.Verified)
	n.status.Now = cfg.Clock.Now
	n.enrolled.Store(&l.Me)
	n.svid.Store(&l.SVID)
	believed, uncounted := cfg.Store.ResumeTrials(l.TrustState, l.Me, cfg.Clock.Now())
	n.trustState.Store(believed)
	behind, err := cfg.Store.ReadBehind(believed)
	if err != nil {
		l.Notes = append(l.Notes, err)
	}
	n.Autonomy.behind.Store(&behind)
	if l.Next != nil && l.Next.Key.ID == l.SVID.Key.ID {
		// The renewal was finished, and its last step cut off.
		if err := cfg.Store.Remove(dir.NextName); err != nil {
			return nil, err
		}
		l.Next = nil
	}
	n.owed.marksDirty = l.Lost
	if n.source, err = firstSource(l, cfg.Clock.Now); err != nil {
		return nil, err
	}
	kept, err := cfg.Store.ReadPeriods()
	if err != nil {
		l.Notes = append(l.Notes, err)
	}
	n.Autonomy.Degraded.Resume(kept)
	// From here on, what takes the place of another is news.
	n.svid.Tend(n.Autonomy.NoteDegraded, n.Autonomy.Changed.Notify)
	n.trustState.Tend(n.Autonomy.NoteDegraded, n.Autonomy.Changed.Notify)
	n.Autonomy.behind.Tend(n.Autonomy.NoteDegraded, n.Autonomy.Changed.Notify)
	if err := n.store.Stamp(cfg.Release); err != nil {
		l.Notes = append(l.Notes, err)
	}
	if uncounted != nil {
		l.Notes = append(l.Notes, fmt.Errorf("what is on trial is not used this time: %w", uncounted))
	}
	return n, nil
}

// firstSource returns what the node presents at its start: its identity, or nothing
// but trust where that is out of date.
func firstSource(l *state.Loaded, now func() time.Time) (*credential.Issued, error) {
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: l.SVID.Chain, Key: l.SVID.Key.Signer(),
		Bundle: l.TrustState.Contact, Now: now})
	if err == nil {
		return credential.NewIssued(m), nil
	}
	// Out of date, banned, or of a mesh CA that is gone: whatever it is, a coordinator
	// decides. The node comes back by proof of its key.
	m, err = credential.NewMaterial(credential.MaterialConfig{Bundle: l.TrustState.Contact, Now: now})
	if err != nil {
		return nil, err
	}
	return credential.NewIssued(m), nil
}

// Resume tells what was found on disk, and finishes what was cut off.
func (n *Node) Resume(ctx context.Context, l *state.Loaded) {
	for _, r := range l.Earlier {
		if n.trustState.Load().Concerns(snapshot.Scope(r.Scope)) {
			n.status.Refused(r)
		}
	}
	for _, err := range l.Notes {
		n.log.LogAttrs(ctx, slog.LevelError, "damage in the data directory, going on without",
			slog.String("code", errcode.CodeOf(err)), slog.String("reason", state.OneLine(err)))
	}
	for _, r := range l.Refused {
		n.reports.Rejected(r.Scope, r.Reason)
		n.status.Refused(r)
		n.log.LogAttrs(ctx, slog.LevelError, "snapshot on disk not used", slog.String("scope", r.Scope),
			slog.String("reason", r.Reason), slog.String("detail", r.Detail))
	}
	if len(l.Refused) > 0 {
		n.keepRefusals(ctx)
	}
	for _, scope := range state.Scopes {
		old, ok := l.Unsaved[scope]
		if !ok {
			continue
		}
		// A snapshot that the disk does not take now stays pending: the next start finds it.
		h := n.trustState.Load().Active[scope]
		if h == nil || h != l.TrustState.Active[scope] {
			continue // it failed its trial meanwhile
		}
		if err := n.store.Place(scope, h.Raw, old); err != nil {
			n.log.LogAttrs(ctx, slog.LevelWarn, "an activation that was cut off is not finished on disk yet",
				slog.String("scope", string(scope)), slog.Any("err", err))
		}
	}
	if err := n.store.Remove(l.Dropped...); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "what the node may not hold any more is still on disk; it is not used",
			slog.Any("err", err))
	}
	b := n.trustState.Load()
	for _, scope := range state.Scopes {
		q, ok := b.Quarantined(scope)
		if !ok {
			continue
		}
		n.tellQuarantine(ctx, b, scope)
		if h := b.Active[scope]; h != nil && !q.Kept {
			if err := n.store.Settle(scope, h.Raw); err != nil {
				n.log.LogAttrs(ctx, slog.LevelWarn, "the file of the snapshot in use is still the one that failed",
					slog.String("scope", string(scope)), slog.Any("err", err))
			}
		}
	}
	if err := n.files.readState(n.Clock.Now()); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "how the snapshots came is not known any more", slog.Any("err", err))
	}
	n.files.findDerived()
	n.files.derive(ctx)
	n.reports.Changed(state.Scopes[:]...) // those that the program succeeded with are passed over
}

// Now is the time that every end, bound and age of the node is compared with.
func (n *Node) Now() time.Time { return n.Clock.Now() }

// Me is who the node is, as it was opened.
func (n *Node) Me() state.Self { return n.me }

// TrustState are what the node holds true now.
func (n *Node) TrustState() *state.TrustState { return n.trustState.Load() }

// SVID is the identity in use.
func (n *Node) SVID() *dir.SVID { return n.svid.Load() }

// Moved is the change of root that is to be followed; nil: none.
func (n *Node) Moved() *trust.RootChange { return n.moved.Load() }

// Status is what the node tells of itself.
func (n *Node) Status() *state.Condition { return &n.status }

// Source is what the node presents and trusts, for connections that follow it.
func (n *Node) Source() *credential.Issued { return n.source }

// Store is the node's folder.
func (n *Node) Store() *state.Store { return n.store }

// Self is who the node is, in its present incarnation.
func (n *Node) Self() state.Self { return *n.enrolled.Load() }

// HeldBy names the snapshots in use of a node that believes b.
func HeldBy(b *state.TrustState, now time.Time) []*fealtyv1.HeldSnapshot {
	var out []*fealtyv1.HeldSnapshot
	for _, scope := range slices.Sorted(slices.Values(state.Scopes[:])) {
		if h := b.Active[scope]; h != nil {
			header := h.Verified.Header()
			record, _ := h.Verified.Record()
			out = append(out, &fealtyv1.HeldSnapshot{
				Scope: string(scope), AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion,
				ContentHash: header.ContentHash[:],
				Generation:  record.Generation, Freshness: string(b.Freshness(scope, now)),
				Signers: signersOf(h.Verified),
			})
		}
	}
	return out
}

// signersOf returns the ids of the config keys that v is trusted by.
func signersOf(v *snapshot.Verified) []string {
	if _, ok := v.Record(); !ok {
		return nil // the config root key signs it
	}
	return v.SignerKeyIDs()
}
