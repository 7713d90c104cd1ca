package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/tlsfiles"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/snapshot"
)

// Config says where an agent lives, and what it is given.
type Config struct {
	// DataDir is the folder that enroll.Join filled. Required.
	DataDir string
	// Socket is where the local API is served. Blank means SocketName in DataDir. A
	// unix socket's path is short: see mesh.CheckSocketPath.
	Socket string
	// ConfigSocket is where config is served to local services. Blank means
	// ConfigSocketName in DataDir, whose folder only the agent's own user and root can
	// enter.
	ConfigSocket string
	// Local serves the local API in place of a unix socket at Socket, and LocalConfig config
	// in place of one at ConfigSocket, for whole agents in memory. Run closes them. Nil
	// outside tests.
	Local, LocalConfig net.Listener
	// WorkloadSocket is where the SPIFFE Workload API is served to the processes of this
	// machine, which need a folder that they can enter. Blank: it is not served.
	WorkloadSocket string
	// LocalWorkloads serves it in place of a unix socket there. Run closes it. Nil outside
	// tests.
	LocalWorkloads net.Listener
	// Consumers are the users and groups that may use it beside the agent's own user and
	// root; at most 64. Nil: nobody.
	Consumers []Consumer
	// Metrics serves metrics and probes over plain HTTP. Nil: they are not served.
	// Run closes it.
	Metrics net.Listener
	// TLS are the files of a certificate of an operator's PKI. The agent follows them, and
	// comes back by what they hold when its own identity ended for longer than the
	// cluster's rejoin_grace. Zero: there are none, and that takes a person.
	TLS credential.FilePaths
	// Mirrors have what coordinators publish, for while none is in reach: at most
	// MaxMirrors. Nothing that they have is trusted.
	Mirrors []mirror.Source
	// OpenMirror returns the source at the URL of a storage endpoint. Nil: over HTTPS,
	// with the roots of the system.
	OpenMirror func(url string) (mirror.Source, error)
	// MirrorEvery is how often mirrors are looked at while no coordinator is heard, from
	// MinMirrorEvery to MaxMirrorEvery. Zero means DefaultMirrorEvery.
	MirrorEvery time.Duration
	// Release is the program's release, for reports.
	Release string

	// OnChange is a program with its arguments that runs after the content in use of a
	// scope changed; see the documentation of the node's store. Empty: none.
	OnChange []string
	// OnChangeTimeout bounds one run of it. Zero means 30 seconds.
	OnChangeTimeout time.Duration

	// FS holds the state. Nil means the operating system's.
	FS durable.FS
	// Now is the machine's clock. Nil means time.Now. Dates are compared with it, and
	// with the time that was signed if that is later.
	Now func() time.Time
	// Elapsed is a clock that nobody can set. Nil means the operating system's.
	Elapsed state.Elapsed
	// Log is where the agent says what it does. Nil means slog.Default().
	Log *slog.Logger
	// Dial opens a connection to a coordinator. Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Faults are for tests. Nil: none.
	Faults *fault.Points
}

// Agent is a member's process. Make it with [Open], and call [Agent.Run] once.
type Agent struct {
	me              state.Self // as it was opened; what an enrolment or another root changes is in enrolled
	release         string
	run             string // which process this is: see ConnectRequest.run
	socket          string // blank: not served
	configSocket    string // likewise
	consumers       consumers
	metricsListener net.Listener
	local           net.Listener // served in place of socket; nil: socket is
	localConfig     net.Listener // likewise
	store           *state.Store
	clock           *state.Clock
	now             func() time.Time // trustedNow
	log             *slog.Logger
	dial            func(ctx context.Context, addr string) (net.Conn, error)
	faults          *fault.Points

	operator *credential.Files // of an operator's PKI; nil: there are none
	source   *credential.Issued
	enrolled atomic.Pointer[state.Self]          // stored under activation
	moved    atomic.Pointer[snapshot.RootChange] // the change of root that is to be followed; nil: none
	svid     state.Decisive[dir.SVID]
	beliefs  state.Decisive[state.Beliefs]
	behind   state.Decisive[bool]                 // a trusted key signed under a newer authority epoch than the trust bundle's
	news     state.Bell                           // rings when the guard may decide otherwise than before
	known    atomic.Pointer[state.FactsOfBeliefs] // of the beliefs that were asked for last
	status   state.Condition
	degraded guard.Periods
	metrics  *metrics

	workloads *host.Host
	hooks     *hooks
	trialKick chan struct{} // the trials changed

	receipts   map[snapshot.Scope]state.Receipt    // of what is in use; guarded by activation
	derived    map[snapshot.Scope]*snapshot.Digest // contents for others to read; nil: no file; missing: not known; guarded by activation
	stated     []byte                              // the state for others to read, as written last; guarded by activation
	dropping   []snapshot.Scope                    // whose files are to be removed; guarded by activation
	trialSince map[snapshot.Scope]time.Time        // monotonic; guarded by activation

	activation state.Semaphore        // held by who changes beliefs or source
	lost       bool                   // a trust bundle waits for links of the history; guarded by activation
	overtaken  *state.Held            // a trust bundle to be shown to who has an older one; guarded by activation
	marksDirty bool                   // the marks in memory are not known to be durable; guarded by activation
	early      map[string]state.Early // by scope: what may verify under what comes next; guarded by activation
	next       *state.PendingKey      // the key that may be certified without our knowing, or in use and not on disk otherwise; owned by keepCertified
	unkept     error                  // why the disk took no key, or no certificate, of late; nil: it did; owned by keepCertified
	unsaved    bool                   // the certificate in use is not on disk, and its key is; owned by keepCertified

	renewAsk    chan chan<- error // a person asks for a renewal
	renewNow    chan string       // a coordinator does
	renewKick   chan struct{}     // something changed that may make a failed one succeed
	rejected    chan struct{}     // a coordinator does not accept our certificate
	strange     chan struct{}     // no coordinator is under a root that we know
	reportKick  chan struct{}     // there is something to report
	leaveStream chan struct{}     // there is news that the stream did not bring
	mirrors     []mirror.Source
	openMirror  func(url string) (mirror.Source, error)
	mirrorEvery time.Duration
	heard       heardChanges
	resyncs     resyncs
	leaveAsk    chan chan<- error // a person wants to leave
	leaveSent   bool              // a request to leave may have been served; owned by live
	stopped     chan struct{}     // closed when the loops end
}

// Open reads and verifies the state in cfg.DataDir and holds its lock until
// [Agent.Run] returns, or [Agent.Close]. It starts nothing.
//
// Errors carry a code: those of [TLSFiles]; NodeNotJoined without an identity;
// NodeStateCorrupt or NodeWrong for one that is of no use; NodeLocked. An identity
// that expired is no error: Run gets it back. Snapshots that are damaged or out of date are none
// either: they are not used, and fetched anew.
func Open(ctx context.Context, cfg Config) (*Agent, error) {
	if cfg.FS == nil {
		cfg.FS = durable.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.OpenMirror == nil {
		cfg.OpenMirror = func(url string) (mirror.Source, error) { return mirror.NewHTTPS(mirror.HTTPSConfig{URL: url}) }
	}
	if cfg.MirrorEvery == 0 {
		cfg.MirrorEvery = DefaultMirrorEvery
	}
	if every := cfg.MirrorEvery; every < MinMirrorEvery || every > MaxMirrorEvery {
		return nil, explain.New(explain.BadValue, "name", "snapshot_source_every", "value", every.String(), "want", fmt.Sprintf("%v to %v", MinMirrorEvery, MaxMirrorEvery))
	}
	if n := len(cfg.Mirrors); n > MaxMirrors {
		return nil, explain.New(explain.BadValue, "name", "snapshot_source", "value", fmt.Sprintf("%d mirrors", n), "problem", "a node asks no more than 16", "want", "fewer of them")
	}
	if n := len(cfg.Consumers); n > maxConsumers {
		return nil, explain.New(explain.BadValue, "name", "the consumers of config", "value", strconv.Itoa(n)+" of them", "want", "at most "+strconv.Itoa(maxConsumers))
	}
	// First of all: a flag that was forgotten is told whatever else there is.
	var operator *credential.Files
	reloads := tlsfiles.NewFailures()
	if !cfg.TLS.IsZero() {
		var err error
		// A member does not need them until it was away for long: files that it started with
		// under an earlier release keep it from nothing.
		operator, err = tlsfiles.Open(credential.FilesConfig{
			Paths: cfg.TLS, Now: cfg.Now, Log: cfg.Log, Accepted: state.Joined(cfg.FS, cfg.DataDir),
			OnFailure: func(r credential.Reason) { reloads.WithLabelValues(string(r)).Inc() },
		})
		if err != nil {
			return nil, err
		}
	}
	if !state.Joined(cfg.FS, cfg.DataDir) {
		return nil, (&state.Store{FS: cfg.FS, Dir: cfg.DataDir}).NotJoined()
	}
	store, err := state.OpenStore(cfg.FS, cfg.DataDir)
	if err != nil {
		return nil, err
	}
	a, err := open(ctx, cfg, store, operator, reloads)
	if err != nil {
		store.Close()
		return nil, err
	}
	return a, nil
}

func open(ctx context.Context, cfg Config, store *state.Store, operator *credential.Files, reloads *prometheus.CounterVec) (*Agent, error) {
	clock := state.NewClock(cfg.Now, cfg.Elapsed)
	l, err := store.Load(clock)
	if errors.Is(err, state.ErrNoMember) {
		return nil, store.NotJoined()
	}
	if err != nil {
		return nil, err
	}
	a := &Agent{
		me: l.Me, operator: operator, release: cfg.Release, run: newRun(), socket: cfg.Socket, metricsListener: cfg.Metrics, store: store,
		clock: clock, now: clock.Now, dial: cfg.Dial, faults: cfg.Faults, mirrors: cfg.Mirrors, openMirror: cfg.OpenMirror, mirrorEvery: cfg.MirrorEvery,
		log:        cfg.Log.With(slog.String("cluster", l.Me.Cluster), slog.String("member", l.Me.ID.String())),
		activation: state.NewSemaphore(),
		renewAsk:   make(chan chan<- error), renewNow: make(chan string, 1), renewKick: make(chan struct{}, 1), reportKick: make(chan struct{}, 1), leaveStream: make(chan struct{}, 1), rejected: make(chan struct{}, 1), strange: make(chan struct{}, 1),
		leaveAsk: make(chan chan<- error), stopped: make(chan struct{}),
		hooks: newHooks(cfg.OnChange, cfg.OnChangeTimeout), trialKick: make(chan struct{}, 1),
		receipts: make(map[snapshot.Scope]state.Receipt), derived: make(map[snapshot.Scope]*snapshot.Digest), trialSince: make(map[snapshot.Scope]time.Time),
	}
	a.status.Now, a.resyncs.now = clock.Now, clock.Now
	a.configSocket, a.consumers = configSocketOf(cfg), cfg.Consumers
	a.local, a.localConfig = cfg.Local, cfg.LocalConfig
	if a.socket == "" {
		a.socket = filepath.Join(cfg.DataDir, dir.SocketName)
	}
	a.enrolled.Store(&l.Me)
	a.svid.Store(&l.SVID)
	believed, uncounted := store.ResumeTrials(l.Beliefs, l.Me, clock.Now())
	a.beliefs.Store(believed)
	behind, err := store.ReadBehind(believed)
	if err != nil {
		l.Notes = append(l.Notes, err)
	}
	a.behind.Store(&behind)
	if l.Next != nil && l.Next.Key.ID == l.SVID.Key.ID {
		// The renewal was finished, and its last step cut off.
		if err := store.Remove(dir.NextName); err != nil {
			return nil, err
		}
		l.Next = nil
	}
	a.next, a.marksDirty = l.Next, l.Lost
	if a.source, err = firstSource(l, clock.Now); err != nil {
		return nil, err
	}
	a.metrics = newMetrics(a, reloads)
	if a.workloads, err = hostOf(a, cfg); err != nil {
		return nil, err
	}
	kept, err := store.ReadPeriods()
	if err != nil {
		l.Notes = append(l.Notes, err)
	}
	a.degraded.Resume(kept)
	// From here on, what takes the place of another is news.
	a.svid.Tend(a.noteDegraded, a.news.Ring)
	a.beliefs.Tend(a.noteDegraded, a.news.Ring)
	a.behind.Tend(a.noteDegraded, a.news.Ring)
	if err := store.Stamp(cfg.Release); err != nil {
		l.Notes = append(l.Notes, err)
	}
	if uncounted != nil {
		l.Notes = append(l.Notes, fmt.Errorf("what is on trial is not used this time: %w", uncounted))
	}
	a.resume(ctx, l)
	return a, nil
}

// firstSource returns what the node presents at its start: its identity, or nothing
// but trust where that is out of date.
func firstSource(l *state.Loaded, now func() time.Time) (*credential.Issued, error) {
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: l.SVID.Chain, Key: l.SVID.Key.Signer(), Bundle: l.Beliefs.Contact, Now: now})
	if err == nil {
		return credential.NewIssued(m), nil
	}
	// Out of date, banned, or of a mesh CA that is gone: whatever it is, a coordinator
	// decides. The node comes back by proof of its key.
	m, err = credential.NewMaterial(credential.MaterialConfig{Bundle: l.Beliefs.Contact, Now: now})
	if err != nil {
		return nil, err
	}
	return credential.NewIssued(m), nil
}

// resume tells what was found on disk, and finishes what was cut off.
func (a *Agent) resume(ctx context.Context, l *state.Loaded) {
	for _, r := range l.Earlier {
		if a.beliefs.Load().Concerns(snapshot.Scope(r.Scope)) {
			a.status.Refused(r)
		}
	}
	for _, err := range l.Notes {
		a.log.LogAttrs(ctx, slog.LevelError, "damage in the data directory, going on without", slog.String("code", explain.CodeOf(err)), slog.String("reason", state.OneLine(err)))
	}
	for _, r := range l.Refused {
		a.metrics.rejected.WithLabelValues(r.Scope, r.Reason).Inc()
		a.status.Refused(r)
		a.log.LogAttrs(ctx, slog.LevelError, "snapshot on disk not used", slog.String("scope", r.Scope), slog.String("reason", r.Reason), slog.String("detail", r.Detail))
	}
	if len(l.Refused) > 0 {
		a.keepRefusals(ctx)
	}
	for _, scope := range state.Scopes {
		old, ok := l.Unsaved[scope]
		if !ok {
			continue
		}
		// What the disk does not take now stays pending, and is found by the next start.
		h := a.beliefs.Load().Held[scope]
		if h == nil || h != l.Beliefs.Held[scope] {
			continue // it failed its trial meanwhile
		}
		if err := a.store.Place(scope, h.Raw, old); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "an activation that was cut off is not finished on disk yet", slog.String("scope", string(scope)), slog.Any("err", err))
		}
	}
	if err := a.store.Remove(l.Dropped...); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "what the node may not hold any more is still on disk; it is not used", slog.Any("err", err))
	}
	b := a.beliefs.Load()
	for _, scope := range state.Scopes {
		q, ok := b.Quarantined(scope)
		if !ok {
			continue
		}
		a.tellQuarantine(ctx, b, scope)
		if h := b.Held[scope]; h != nil && !q.Kept {
			if err := a.store.Settle(scope, h.Raw); err != nil {
				a.log.LogAttrs(ctx, slog.LevelWarn, "the file of the snapshot in use is still the one that failed", slog.String("scope", string(scope)), slog.Any("err", err))
			}
		}
	}
	if err := a.readState(a.now()); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "how the snapshots came is not known any more", slog.Any("err", err))
	}
	a.findDerived()
	a.derive(ctx)
	a.changed(state.Scopes[:]...) // those that the program succeeded with are passed over
	svid := a.svid.Load()
	a.log.LogAttrs(ctx, slog.LevelInfo, "agent opened", slog.String("key", svid.Key.ID.String()), slog.Time("svid_not_after", svid.Leaf().NotAfter), slog.String("unready", a.unready()))
}

// Close gives the data directory back, for an agent that is not run.
func (a *Agent) Close() error { return a.store.Close() }

// self is who the node is, in its present incarnation.
func (a *Agent) self() state.Self { return *a.enrolled.Load() }

// Socket is the path of the local API.
func (a *Agent) Socket() string { return a.socket }

// Source is the node's identity as it is renewed, for other parts of the process.
func (a *Agent) Source() credential.Source { return a.source }

// errLeft ends Run: the node left the cluster.
var errLeft = errors.New("the node left its cluster")

// Run keeps the node certified and up to date, and serves the local API, until ctx
// ends or a listener fails. It returns nil once the node left its cluster, else
// ctx's error or that of the listener. No failure of a coordinator, and no refusal,
// ends it. Every goroutine of the agent starts here and is gone when Run returns.
func (a *Agent) Run(ctx context.Context) error {
	defer a.store.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	if err := a.serve(ctx, g); err != nil {
		cancel()
		return errors.Join(err, g.Wait())
	}
	if err := a.serveConfig(ctx, g); err != nil {
		cancel()
		return errors.Join(err, g.Wait())
	}
	if a.operator != nil {
		g.Go(func() error { return a.operator.Run(ctx) })
	}
	g.Go(func() error { return a.live(ctx) })
	if err := g.Wait(); !errors.Is(err, errLeft) {
		return err
	}
	return nil
}

// live runs the loops, and ends the membership when a person wishes so.
func (a *Agent) live(ctx context.Context) error {
	loops, halt := context.WithCancel(ctx)
	defer halt()
	g, loops := errgroup.WithContext(loops)
	g.Go(func() error { return a.follow(loops) })
	g.Go(func() error { return a.keepCertified(loops) })
	g.Go(func() error { return a.refresh(loops) })
	g.Go(func() error { return a.watchMirrors(loops) })
	g.Go(func() error { return a.watchClock(loops) })
	g.Go(func() error { return a.watchDegraded(loops) })
	g.Go(func() error { return a.watchTrials(loops) })
	g.Go(func() error { return a.runHooks(loops) })
	g.Go(func() error { return a.workloads.Run(loops) })
	defer close(a.stopped)
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-loops.Done():
			return g.Wait()
		case r := <-a.leaveAsk:
			// Not the caller's context: who hangs up has asked all the same.
			leaving, cancel := context.WithTimeout(ctx, leaveTimeout)
			err := a.leave(leaving)
			cancel()
			if err != nil {
				r <- err
				continue
			}
			// Nobody writes any more when the files go.
			halt()
			_ = g.Wait() // they were cancelled
			if err := a.store.Wipe(); err != nil {
				err = fmt.Errorf("the node left its cluster, and its identity is not removed yet: %w", err)
				r <- err
				return err
			}
			r <- nil
			return errLeft
		}
	}
}

func (a *Agent) kickRenewal() { state.Poke(a.renewKick) }
func (a *Agent) kickReport()  { state.Poke(a.reportKick) }

// newRun names this process.
func newRun() string {
	id := make([]byte, 16)
	rand.Read(id)
	return hex.EncodeToString(id)
}
