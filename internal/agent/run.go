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
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/workload/host"
)

// Config says where an agent lives, and what it is given.
type Config struct {
	// DataDir is the folder that enroll.Join filled. Required.
	DataDir string
	// Sockets are where processes of this machine are served.
	Sockets Sockets
	// Local serves the local API in place of a unix socket in DataDir, and LocalConfig config
	// in place of the one of Sockets, for agents whose folder is in memory. Run closes them.
	// Nil outside tests.
	Local, LocalConfig net.Listener
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
	// Reload takes what the agent reads again when somebody says so. Nil: nobody does.
	Reload *reload.Parts
	// Release is the program's release, for reports.
	Release string

	// OnChange is a program with its arguments that runs after the content in use of a
	// scope changed; see the documentation of the node's store. Empty: none. One run of it
	// takes 30 seconds at most.
	OnChange []string

	// FS holds the state. Nil means the operating system's.
	FS durable.FS

	// Locks are those of the process, of the folder and the sockets. Nil: nobody looks after them.
	Locks *durable.Locks
	// Now is the machine's clock. Nil means time.Now. Dates are compared with it, and
	// with the time that was signed if that is later.
	Now func() time.Time
	// Elapsed is a clock that nobody can set. Nil means the operating system's.
	Elapsed state.Elapsed
	// Log is where the agent says what it does. Nil means slog.Default().
	Log *slog.Logger
	// Output is the stream that the log goes to. Nil: what becomes of the log is not known.
	Output *logging.Writer
	// Dial opens a connection to a coordinator. Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Faults are for tests. Nil: none.
	Faults *failpoint.Points
}

// Sockets are where an agent serves the processes of its machine, which need a folder that they can
// enter, and other members. A unix socket's path is short: see localsocket.CheckPath.
type Sockets struct {
	// Config is where config is served to local services. Blank means ConfigSocketName in
	// DataDir, whose folder only the agent's own user and root can enter.
	Config string
	// Workloads is where the SPIFFE Workload API and Envoy's SDS are served. Blank: nowhere.
	Workloads string
	// Peers serves other members what is signed for them as well: see package sharing. Nil: they
	// are served nothing. Run closes it.
	Peers net.Listener
}

// Agent is a member's process. Make it with [Open], and call [Agent.Run] once.
type Agent struct {
	node     *accept.Node
	log      *slog.Logger
	output   *logging.Writer
	release  string
	contact  *fetch.Coordinators
	renewal  *renewal
	fetcher  *fetch.Fetcher
	follower *follower

	socket       string // blank: not served
	configSocket string // likewise
	consumers    consumers
	listeners    listeners
	sockets      sockets
	serves       atomic.Bool // all sockets do
	locks        *durable.Locks
	operator     *credential.Files // of an operator's PKI; nil: there are none
	metrics      *metrics

	hooks     *hooks
	workloads *host.Host

	leaveAsk  chan chan<- error // a person wants to leave
	leaveSent bool              // a request to leave may have been served; owned by live
	stopped   chan struct{}     // closed when the loops end
}

// listeners are those that an agent was given. Nil: it was given none.
type listeners struct {
	metrics     net.Listener
	local       net.Listener // served in place of Agent.socket
	localConfig net.Listener // likewise
	peers       net.Listener
}

// Open reads and verifies the state in cfg.DataDir and holds its lock until
// [Agent.Run] returns, or [Agent.Close]. It starts nothing.
//
// Errors carry a code: those of the files of TLS; NodeNotJoined without an identity;
// NodeStateCorrupt or NodeWrong for one that is of no use; NodeLocked. An identity
// that expired is no error: Run gets it back. Snapshots that are damaged or out of date are none
// either: they are not used, and fetched anew.
func Open(ctx context.Context, cfg Config) (*Agent, error) {
	if cfg.FS == nil {
		cfg.FS = cfg.Locks.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.OpenMirror == nil {
		cfg.OpenMirror = func(url string) (mirror.Source,
			error) {
			return mirror.NewHTTPS(mirror.HTTPSConfig{URL: url})
		}
	}
	if cfg.MirrorEvery == 0 {
		cfg.MirrorEvery = fetch.DefaultMirrorEvery
	}
	if every := cfg.MirrorEvery; every < fetch.MinMirrorEvery || every > fetch.MaxMirrorEvery {
		return nil, errcode.New(errcode.BadValue, "name", "snapshot_source_every", "value", every.String(), "want",
			fmt.Sprintf("%v to %v", fetch.MinMirrorEvery, fetch.MaxMirrorEvery))
	}
	if n := len(cfg.Mirrors); n > fetch.MaxMirrors {
		return nil, errcode.New(errcode.BadValue, "name", "snapshot_source", "value", fmt.Sprintf("%d mirrors", n),
			"problem", "a node asks no more than 16", "want", "fewer of them")
	}
	if n := len(cfg.Consumers); n > maxConsumers {
		return nil, errcode.New(errcode.BadValue, "name", "the consumers of config", "value",
			strconv.Itoa(n)+" of them", "want", "at most "+strconv.Itoa(maxConsumers))
	}
	// First of all: a flag that was forgotten is told whatever else there is.
	var operator *credential.Files
	reloads := enterprise.NewFailures()
	if !cfg.TLS.IsZero() {
		var err error
		// A member does not need them until it was away for long: files that it started with
		// under an earlier release keep it from nothing.
		operator, err = enterprise.Reopen(credential.FilesConfig{
			Paths: cfg.TLS, Now: cfg.Now, Log: cfg.Log,
			OnFailure: func(r credential.Reason) { reloads.WithLabelValues(string(r)).Inc() },
		}, state.Joined(cfg.FS, cfg.DataDir))
		if err != nil {
			return nil, err
		}
		cfg.Reload.Add(enterprise.Part(operator))
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

func open(ctx context.Context, cfg Config, store *state.Store, operator *credential.Files,
	reloads *prometheus.CounterVec) (*Agent, error) {
	clock := state.NewClock(cfg.Now, cfg.Elapsed)
	l, err := store.Load(clock)
	if errors.Is(err, state.ErrNoMember) {
		return nil, store.NotJoined()
	}
	if err != nil {
		return nil, err
	}
	a := &Agent{
		log:      cfg.Log.With(slog.String("cluster", l.Me.Cluster), slog.String("member", l.Me.ID.String())),
		operator: operator, output: cfg.Output, release: cfg.Release,
		socket: filepath.Join(cfg.DataDir, dir.SocketName),
		listeners: listeners{metrics: cfg.Metrics, local: cfg.Local, localConfig: cfg.LocalConfig,
			peers: cfg.Sockets.Peers},
		leaveAsk: make(chan chan<- error), stopped: make(chan struct{}), locks: cfg.Locks,
		hooks: newHooks(cfg.OnChange),
	}
	a.configSocket, a.consumers = configSocketOf(cfg), cfg.Consumers
	a.node, err = accept.New(accept.Config{
		Store: store, Clock: clock, Release: cfg.Release, Faults: cfg.Faults, Reports: a.reports(),
		Log: a.log,
	}, l)
	if err != nil {
		return nil, err
	}
	a.contact = fetch.NewCoordinators(fetch.Coordinators{
		Node: a.node, Log: a.log, Dial: cfg.Dial,
		Handshake: func(reason string) { a.metrics.handshakes.WithLabelValues(reason).Inc() },
	})
	a.renewal = &renewal{
		node: a.node, log: a.log, contact: a.contact, operator: operator, next: l.Next,
		ended:    func(action, outcome string) { a.metrics.renewals.WithLabelValues(action, outcome).Inc() },
		renewAsk: make(chan chan<- error), renewNow: make(chan string, 1), renewNotify: make(chan struct{}, 1),
		rejected: make(chan struct{}, 1), strange: make(chan struct{}, 1),
	}
	a.fetcher = fetch.New(fetch.Config{
		Node: a.node, Log: a.log, Contact: a.contact, Demand: a.renewal.demand,
		Mirrors: cfg.Mirrors, OpenMirror: cfg.OpenMirror, MirrorEvery: cfg.MirrorEvery,
		Count: fetch.Counts{
			Received: func(scope, form string) { a.metrics.received.WithLabelValues(scope, form).Inc() },
			Asked:    func(source, outcome string) { a.metrics.asked.WithLabelValues(source, outcome).Inc() },
			Mirrors:  func(outcome string) { a.metrics.mirrors.WithLabelValues(outcome).Inc() },
		},
	})
	a.follower = &follower{
		node: a.node, log: a.log, contact: a.contact, renewal: a.renewal, fetcher: a.fetcher,
		release: cfg.Release, run: newRun(), output: cfg.Output, reportNotify: make(chan struct{}, 1),
	}
	a.metrics = newMetrics(a, reloads)
	if a.workloads, err = hostOf(a, cfg); err != nil {
		return nil, err
	}
	if path := cfg.Sockets.Workloads; path != "" {
		a.sockets.add(path, a.workloads.LostSocket)
	}
	a.node.Resume(ctx, l)
	svid := a.node.SVID()
	a.log.LogAttrs(ctx, slog.LevelInfo, "agent opened", slog.String("key", svid.Key.ID.String()),
		slog.Time("svid_not_after", svid.Leaf().NotAfter), slog.String("unready", a.unready()))
	return a, nil
}

// reports is how the agent hears what becomes of its node.
func (a *Agent) reports() accept.Reports {
	return accept.Reports{
		Rejected: func(scope, reason string) { a.metrics.rejected.WithLabelValues(scope, reason).Inc() },
		Refused:  func(action, reason string) { a.metrics.refused.WithLabelValues(action, reason).Inc() },
		Entered:  func() { a.metrics.entries.Inc() },
		Report:   func() { a.follower.notifyReport() }, Renew: func() { a.renewal.notifyRenewal() },
		Changed: a.changed, Applied: a.hooks.applied, AppliedTo: a.hooks.appliedTo,
	}
}

// Close gives the data directory back, for an agent that is not run.
func (a *Agent) Close() error { return errors.Join(a.closePools(), a.node.Store().Close()) }

func (a *Agent) closePools() error { return errors.Join(a.fetcher.Close(), a.contact.Close()) }

// Source is the node's identity as it is renewed, for other parts of the process.
func (a *Agent) Source() credential.Source { return a.node.Source() }

// errLeft ends Run: the node left the cluster.
var errLeft = errors.New("the node left its cluster")

// Run keeps the node certified and up to date, and serves the local API, until ctx
// ends or a listener fails. It returns nil once the node left its cluster, else
// ctx's error or that of the listener. No failure of a coordinator, and no refusal,
// ends it. Every goroutine of the agent starts here and is gone when Run returns.
func (a *Agent) Run(ctx context.Context) error {
	defer a.node.Store().Close()
	defer a.closePools()
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
	a.servePeers(ctx, g)
	a.serves.Store(true)
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
	g.Go(func() error { return a.follower.follow(loops) })
	g.Go(func() error { return a.renewal.keepCertified(loops) })
	g.Go(func() error { return a.fetcher.Refresh(loops) })
	g.Go(func() error { return a.fetcher.WatchMirrors(loops) })
	g.Go(func() error { return a.node.Clock.Watch(loops) })
	g.Go(func() error { return a.node.Autonomy.WatchDegraded(loops) })
	g.Go(func() error { return a.node.Trials.WatchTrials(loops) })
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
			if err := a.forget(); err != nil {
				r <- err
				return err
			}
			r <- nil
			return errLeft
		}
	}
}

func (r *renewal) notifyRenewal() { state.Notify(r.renewNotify) }
func (w *follower) notifyReport() { state.Notify(w.reportNotify) }

// newRun names this process.
func newRun() string {
	id := make([]byte, 16)
	rand.Read(id)
	return hex.EncodeToString(id)
}
