// Package coordinator is a replica of the control plane: it admits members, keeps
// them certified, and signs what they believe.
//
// The promises:
//
//   - Nobody is certified without a record in the store that says by which proof,
//     under which entry of the manifest in force, and over which key (I1). The
//     record is durable before the certificate is signed.
//   - Every transaction is conditional on the head of the history that its
//     decision was made under, and on every record that it was made from.
//   - Seed, mesh CA key and what derives from them are in this process's memory
//     and nowhere else, except encrypted by the manifest's keepers (I8).
//   - A refusal changes nothing, is logged, counted, and worded.
//
// Its parts, packages below it, each keep one promise (docs/architecture.md): they are wired and
// served here. State is one immutable value behind an atomic pointer: a call works on the value that
// it started with.
package coordinator

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/coordinator/web"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// Files of the data directory.
const (
	lockFile           = "lock"
	adminSocketDefault = "admin.sock"
)

// Bounds of self_heal_after. Sooner than that no peer was asked twice.
const (
	MinSelfHealAfter = time.Second
	MaxSelfHealAfter = time.Hour
)

// Config is what a coordinator is made of.
type Config struct {
	// DataDir holds the enrolment key, the setup token and the admin socket. It is
	// made with mode 0700, and belongs to one process. Required.
	DataDir string

	// Store is the cluster's durable truth. The caller closes it. Required.
	Store store.Store

	// StoreName is how status names the store, such as "sqlite:/var/lib/fealty/db".
	StoreName string

	// StoreProcess is that of an embedded store, which runs beside this coordinator. The caller ends it. Nil: there is none.
	StoreProcess storeguard.Process

	// Listener serves members, people and joins over TLS. Required.
	Listener net.Listener

	// Peers are where other coordinators are: "HOST:PORT", or "dns:NAME:PORT" for all
	// addresses of NAME. They are asked for the secrets of the head beside those that
	// the store tells of, and have to prove themselves like those. At most 64.
	Peers []string

	// TLS are the files of a certificate of the operator's PKI, by which it proves itself
	// beside its enrolment key. It follows them. Empty: it has none.
	TLS credential.FilePaths

	// Pin is the root key that the cluster must have. Zero means any: then the store
	// says which cluster this is.
	Pin identity.KeyID

	// Advertise are the addresses that members and tokens are told. Empty means
	// the listener's own.
	Advertise []string

	// AdminSocket is the path of the local admin socket. Empty means admin.sock
	// in DataDir.
	AdminSocket string

	// Local serves the local operator in place of a unix socket at AdminSocket, for whole
	// coordinators in memory. Nil outside tests.
	Local net.Listener

	// Publishing is what others may read who prove nothing.
	Publishing Publishing

	// Rates limit joins and renewals. Its zero fields mean defaults.
	Rates Rates

	// Gate bounds what connections to Listener cost before anybody proved anything.
	// Its zero fields mean defaults.
	Gate mesh.GateConfig

	// Log is where it says what happens. Nil means slog.Default().
	Log *slog.Logger

	// Reload takes what the coordinator reads again when somebody says so. Nil: nobody does.
	Reload *reload.Parts

	// Timing is how long it waits for what. Its zero fields mean defaults.
	Timing Timing

	// Monitoring is how others see whether it is well.
	Monitoring Monitoring

	// Machine is what it uses of the machine that it runs on. Its zero fields mean that
	// machine's.
	Machine Machine

	// Faults are points at which a test makes it fail. Nil outside tests.
	Faults *failpoint.Points

	// Release is the release that it reports.
	Release string

	knobs knobs // of tests
}

// Publishing is what others may read of a coordinator who prove nothing.
type Publishing struct {
	// Dir is a directory that what is published is written to, for others to serve; see
	// package mirror. Empty means none.
	Dir string

	// Operations bounds those of the transaction that one generation is. 0 means as many as the store takes.
	Operations int

	// BinsFrom is from how many headers on their leaves lie in bins of the tree. 0 means 1,024.
	BinsFrom int

	// Web serves over HTTPS what verifiers of tokens need; see package web. Nil means
	// that it does not.
	Web net.Listener

	// WebCert and WebKey are the files of its certificate and key, in PEM. It follows
	// them. Required with Web.
	WebCert, WebKey string
}

// Timing is how long a coordinator waits for what.
type Timing struct {
	// MaxHeadAge is how long after the store last showed the head of the history this
	// coordinator is ready, and serves what needs no new fact: from a minute to four
	// hours. Zero means an hour.
	MaxHeadAge time.Duration

	// SelfHealAfter is how long it looks for another coordinator that has the mesh CA
	// key of the head, before it makes a new one with the seed that it holds. Zero
	// means 10 seconds.
	SelfHealAfter time.Duration

	// Lease is how long this coordinator leads without being able to say so to the
	// store, and Beat the pause in which it does, at most a third of Lease. Zero means
	// [election.DefaultLease] and [election.DefaultBeat].
	Lease, Beat time.Duration
}

// Monitoring is how others see whether a coordinator is well.
type Monitoring struct {
	// Listener serves metrics and probes over plain HTTP. Nil means none.
	Listener net.Listener

	// Registry takes its metrics. Nil means one of its own.
	Registry *prometheus.Registry

	// Output is the stream that the log goes to. Nil: what becomes of the log is not known.
	Output *logging.Writer

	// LivenessStore makes the liveness probe fail while a recovered coordinator cannot
	// read the store. If it is restarted then, its copy of the seed is lost: it is for
	// clusters with a keeper.
	LivenessStore bool
}

// Machine is what a coordinator uses of the machine that it runs on.
type Machine struct {
	// Now is its clock for expiry. Nil means time.Now.
	Now func() time.Time

	// Elapsed is its clock that only goes forward, at the pace of real time: by it leases
	// end, and it judges whether others are heard. Nil means that of the machine.
	Elapsed func() time.Duration

	// FS is its file system. Nil means the operating system's.
	FS durable.FS

	// Locks are those of the process, of the folder and the socket. Nil: nobody looks after them.
	Locks *durable.Locks

	// LookupHost resolves the names of [Config.Peers]. Nil means net.DefaultResolver.
	LookupHost func(ctx context.Context, name string) ([]string, error)

	// Dial opens a connection to another coordinator, at "HOST:PORT". Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// knobs make limits small enough for a test to reach them, and play earlier releases. Zero is the limit that
// there is, and this release.
type knobs struct {
	maxListed int // banned keys in a trust bundle
	maxJoins  int // that wait for their candidate's answer
	// maxSourceJoins is how many of those may come from one address.
	maxSourceJoins int
	maxBringing    int // owners that have brought no share yet
	// parse reads a manifest that is to be set. Nil: manifest.Parse.
	parse     func([]byte) (*manifest.Manifest, error)
	maxAsking int // coordinators that ask for secrets, and have proven nothing yet
	// reads are the later fields of manifests that it reads. Nil: all that this release does.
	reads []string
}

// Coordinator is one replica. Make it with [New], run it with [Coordinator.Run].
type Coordinator struct {
	cfg         Config
	log         *slog.Logger
	now         func() time.Time
	store       store.Store
	fs          durable.FS
	startedAt   time.Time
	metrics     *metrics
	registry    *prometheus.Registry
	elapsed     func() time.Duration // on a clock that only goes forward
	selfChecked clock.Last           // the last self-check that came through
	verdicts    verdicts             // since when the cluster is as it is
	serving     atomic.Bool
	guard       *mesh.Guard
	limiter     *ratelimit.Sources
	noise       ratelimit.NoiseSampler // of connections that come to nothing
	refusals    *ratelimit.LogSampler  // of the other log lines that strangers can cause
	failures    *ratelimit.LogSampler  // of failures and clone alarms, which strangers must not drown
	readers     *ratelimit.Readers
	lock        io.Closer     // of the data directory
	stopping    chan struct{} // closed when Run's context ended
	alive       []func()      // each returns once locks that calls of one part take were free

	parts Parts
}

// New prepares a coordinator: it takes the data directory, makes or reads the
// enrolment key, and loads what the store holds. It starts nothing.
//
// Errors: a data directory that another process holds, an enrolment key that
// cannot be read, a store that cannot be read ([errcode.StoreUnreachable]). A history
// that cannot be brought back is no error here: the coordinator is then in recovery
// mode, and says why.
func New(ctx context.Context, cfg Config) (*Coordinator, error) {
	switch {
	case cfg.DataDir == "":
		return nil, errors.New("coordinator: Config.DataDir is empty: name the directory for its keys")
	case cfg.Store == nil:
		return nil, errors.New("coordinator: Config.Store is nil: open a store first")
	case cfg.Listener == nil:
		return nil, errors.New("coordinator: Config.Listener is nil: listen first")
	}
	if cfg.Timing.MaxHeadAge == 0 {
		cfg.Timing.MaxHeadAge = defaultMaxHeadAge
	}
	if cfg.Timing.MaxHeadAge < MinMaxHeadAge || cfg.Timing.MaxHeadAge > MaxMaxHeadAge {
		return nil, fmt.Errorf("coordinator: Config.Timing.MaxHeadAge is %v, want from %v to %v", cfg.Timing.MaxHeadAge,
			MinMaxHeadAge, MaxMaxHeadAge)
	}
	if cfg.Timing.SelfHealAfter < 0 || cfg.Timing.SelfHealAfter > MaxSelfHealAfter {
		return nil, fmt.Errorf("coordinator: Config.Timing.SelfHealAfter is %v, want at most %v",
			cfg.Timing.SelfHealAfter,
			MaxSelfHealAfter)
	}
	if len(cfg.Peers) > peer.MaxPeers {
		return nil, fmt.Errorf("coordinator: Config.Peers has %d elements, at most %d are asked", len(cfg.Peers),
			peer.MaxPeers)
	}
	for _, p := range cfg.Peers {
		if problem := peer.CheckPeer(p); problem != "" {
			return nil, fmt.Errorf("coordinator: Config.Peers: %q: %s", p, problem)
		}
	}
	o := own{outside: cfg.Machine.FS}
	if cfg.Machine.FS == nil {
		o.outside = durable.Shared()
	}
	cfg = cfg.withDefaults()
	reloads := enterprise.NewFailures()
	if !cfg.TLS.IsZero() { // first: a flag that was forgotten is told whatever else there is
		files, err := enterprise.Open(credential.FilesConfig{Paths: cfg.TLS, Now: cfg.Machine.Now, Log: cfg.Log,
			OnFailure: func(r credential.Reason) {
				reloads.WithLabelValues(string(r)).Inc()
			}})
		if err != nil {
			return nil, err
		}
		if o.certificate, err = enterprise.NewCertificate(ctx, files); err != nil {
			return nil, err
		}
		cfg.Reload.Add(enterprise.Part(files))
	}
	if cfg.Publishing.Web != nil {
		var err error
		o.pair, err = web.OpenPair(web.PairConfig{Cert: cfg.Publishing.WebCert, Key: cfg.Publishing.WebKey,
			Now: cfg.Machine.Now, Log: cfg.Log,
			OnFailure: func(r credential.Reason) { reloads.WithLabelValues(string(r)).Inc() }})
		if err != nil {
			return nil, err
		}
		cfg.Reload.Add(o.pair.Part())
	}
	if err := cfg.Machine.FS.MkdirAll(cfg.DataDir); err != nil {
		return nil, folderUnusable(cfg.DataDir, err)
	}
	lock, err := cfg.Machine.FS.Lock(cfg.DataDir + "/" + lockFile)
	if err != nil {
		var held *durable.LockedError
		if errors.As(err, &held) {
			return nil, errcode.Wrap(err, errcode.StoreLocked, "path", cfg.DataDir, "pid", fmt.Sprint(held.PID))
		}
		return nil, folderUnusable(cfg.DataDir, err)
	}
	c, err := open(ctx, cfg, o, reloads)
	if err != nil {
		lock.Close()
		return nil, err
	}
	c.lock = lock
	return c, nil
}

// CheckPeer says what is wrong with an element of [Config.Peers], or "".
func CheckPeer(text string) string { return peer.CheckPeer(text) }

// withDefaults returns it with what it leaves open; the file system of what others read is
// [own.outside].
func (cfg Config) withDefaults() Config {
	cfg.Advertise = slices.Clone(cfg.Advertise) // parts share it
	if cfg.Machine.LookupHost == nil {
		cfg.Machine.LookupHost = net.DefaultResolver.LookupHost
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Machine.Now == nil {
		cfg.Machine.Now = time.Now
	}
	if cfg.Machine.Elapsed == nil {
		cfg.Machine.Elapsed = sinceNow()
	}
	if cfg.Machine.FS == nil {
		cfg.Machine.FS = cfg.Machine.Locks.OS()
	}
	if cfg.Timing.Lease == 0 && cfg.Timing.Beat == 0 {
		cfg.Timing.Lease, cfg.Timing.Beat = election.DefaultLease, election.DefaultBeat
	}
	if cfg.knobs.maxListed == 0 {
		cfg.knobs.maxListed = snapshot.MaxBans
	}
	if cfg.knobs.reads == nil {
		cfg.knobs.reads = append(manifest.LaterFields(), publication.ReadsParts, publication.ReadsPacked,
			publication.ReadsBins)
	}
	if cfg.knobs.parse == nil {
		cfg.knobs.parse = manifest.Parse
	}
	if cfg.Monitoring.Registry == nil {
		cfg.Monitoring.Registry = prometheus.NewRegistry()
	}
	return cfg
}

// assemble makes a coordinator with its parts, and opens nothing.
func assemble(cfg Config, o own) (*Coordinator, error) {
	c := &Coordinator{
		cfg: cfg, log: cfg.Log, now: cfg.Machine.Now, fs: cfg.Machine.FS,
		startedAt: cfg.Machine.Now(), elapsed: cfg.Machine.Elapsed,
		registry: cfg.Monitoring.Registry,
		readers:  new(ratelimit.Readers),
		limiter:  cfg.Rates.perSource(),
		refusals: ratelimit.NewLogSampler(),
		failures: ratelimit.NewLogSampler(),
		stopping: make(chan struct{}),
	}
	var err error
	c.guard, err = mesh.NewGuard(mesh.GuardConfig{
		Source: o.source, SendRoot: true, Local: localsocket.OwnUser, Now: c.now,
		OnFailure: c.handshakeFailed, OnRefused: c.connectionRefused, OnCut: c.connectionCut,
	})
	if err != nil {
		return nil, fmt.Errorf("guard the listeners: %w", err)
	}
	return c, c.wire(o)
}

// open is the part of New that must give the lock back if it fails.
func open(ctx context.Context, cfg Config, o own, reloads prometheus.Collector) (*Coordinator, error) {
	var err error
	if o.key, err = authority.LoadEnrolmentKey(cfg.Machine.FS, cfg.DataDir); err != nil {
		return nil, err
	}
	ephemeral, err := credential.NewEphemeral(cfg.Machine.Now)
	if err != nil {
		return nil, fmt.Errorf("make the ephemeral certificate: %w", err)
	}
	o.source = credential.NewIssued(ephemeral)
	c, err := assemble(cfg, o)
	if err != nil {
		return nil, err
	}
	public := identity.KeyID(sha256.Sum256(o.key.Public().(ed25519.PublicKey)))
	if err = c.parts.Auditing.Open(public.String()[:16]); err != nil {
		return nil, err
	}
	c.selfChecked.Set(cfg.Machine.Now())
	c.registerMetrics(cfg.Monitoring.Registry, reloads)
	c.parts.StoreGuard.Load()
	s, err := c.parts.Moves.Succession.Load(ctx)
	if err != nil {
		return nil, unreadable(ctx, err)
	}
	if s.Phase == authority.Uninitialized {
		if err := c.parts.Self.OfferSetup(ephemeral.Pin()); err != nil {
			return nil, err
		}
	}
	_ = c.parts.Moves.Succession.Adopt(ctx, s) // a failure is logged, and is the state then
	return c, ctx.Err()
}

// folderUnusable words why nothing can be kept in the coordinator's folder.
func folderUnusable(dir string, err error) error {
	cause := err.Error()
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Path + ": " + p.Err.Error()
	}
	return errcode.Wrap(err, errcode.FolderUnusable, "dir", dir, "cause", cause)
}

// unreadable words that the store was opened, and does not give what the start needs.
func unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil || errcode.CodeOf(err) != "" {
		return err
	}
	return errcode.Wrap(err, errcode.StoreUnreachable, "what", "reading the state of the cluster", "cause", err.Error(),
		"do", errcode.StartWhenStoreAnswers)
}

// Parts are what it is made of, for tests of them.
func (c *Coordinator) Parts() *Parts { return &c.parts }

// Registry takes its metrics: [Monitoring.Registry], or its own.
func (c *Coordinator) Registry() *prometheus.Registry { return c.registry }

// Serves reports whether all of its ports take connections.
func (c *Coordinator) Serves() bool { return c.serving.Load() }

// Close gives back what [New] took, for a coordinator that was never run.
func (c *Coordinator) Close() error {
	c.parts.StoreGuard.Keep(context.Background())
	c.wipe()
	return c.lock.Close()
}

// wipe overwrites the secrets, when nobody uses them any more.
func (c *Coordinator) wipe() {
	c.parts.Secrets.OwnerRecovery.End()
	c.parts.Moves.Manifests.Wipe()
	c.parts.Secrets.Keys.Wipe(c.parts.Head.State())
	if s := c.parts.Head.State().Ready(); s != nil {
		s.Secrets.Wipe()
	}
}

// Run serves until ctx ends or a part fails; the first failure ends the others.
// Every goroutine starts below here, and is gone when Run returns.
func (c *Coordinator) Run(ctx context.Context) error {
	defer c.lock.Close()
	// The server closes its listeners, but not if it was never started.
	defer c.cfg.Listener.Close()
	if c.cfg.Monitoring.Listener != nil {
		defer c.cfg.Monitoring.Listener.Close()
	}
	if c.cfg.Publishing.Web != nil {
		defer c.cfg.Publishing.Web.Close()
	}
	stop := ctx // ends when it is to stop, and not when a part fails
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.followState(ctx) })
	// Also without a manifest: another replica may set the first.
	g.Go(func() error {
		return watch.Forever(ctx, c.log, "head", func() error { return c.parts.Moves.Succession.Follow(ctx) })
	})
	if files := c.parts.Self.Certificate().Files(); files != nil {
		g.Go(func() error { return files.Run(ctx) })
		g.Go(func() error { return c.parts.Moves.Succession.FollowCertificate(ctx) })
	}
	g.Go(func() error { return c.parts.Election.Run(ctx) })
	g.Go(func() error {
		return watch.Forever(ctx, c.log, "replica", func() error { return c.parts.Announcement.Follow(ctx, stop) })
	})
	g.Go(func() error {
		return watch.Forever(ctx, c.log, "keepers", func() error { return c.parts.Secrets.Keepers.Follow(ctx) })
	})
	g.Go(func() error { return c.watchdog(ctx) })
	g.Go(func() error { return c.followVerdict(ctx) })
	g.Go(func() error { return c.parts.Auditing.Run(ctx) })
	g.Go(func() error { return c.parts.Admission.FollowRecalls(ctx) })
	g.Go(func() error { return c.parts.Membership.FollowOpenings(ctx) })
	g.Go(func() error { return c.parts.StoreGuard.Run(ctx) })
	if err := c.serve(ctx, g); err != nil {
		g.Go(func() error { return err })
	}
	err := g.Wait()
	c.readers.Wait()
	c.parts.Peers.Close()
	c.wipe()
	return err
}

// Phase says whether it is ready, and if not, why.
func (c *Coordinator) Phase() (phase, reason string) {
	s := c.parts.Head.State()
	return s.Phase.String(), s.Reason
}

// Leading returns the term under which it leads, and false if it does not. It is what
// it believes; the store decides on its writes.
func (c *Coordinator) Leading() (term uint64, ok bool) {
	term, _, ok = c.parts.Election.Leading()
	return term, ok
}

// EnrolmentKey is the public key that a manifest names to admit this
// coordinator, as "ed25519:<base64>".
func (c *Coordinator) EnrolmentKey() string { return c.parts.Self.EnrolmentKey() }

// Addr is the address of its listener.
func (c *Coordinator) Addr() string {
	if c.cfg.Listener == nil {
		return "" // it was assembled to be looked at
	}
	return c.cfg.Listener.Addr().String()
}

// AdminSocket is the path of its admin socket.
func (c *Coordinator) AdminSocket() string {
	if c.cfg.AdminSocket != "" {
		return c.cfg.AdminSocket
	}
	return c.parts.Self.Path(adminSocketDefault)
}

// addresses are where it tells others that it is. Its parts share them: none may change
// what it was given.
func (c *Coordinator) addresses() []string {
	if len(c.cfg.Advertise) > 0 {
		return slices.Clip(c.cfg.Advertise)
	}
	return []string{c.Addr()}
}

// handshakeFailed counts a handshake that failed, and says so.
func (c *Coordinator) handshakeFailed(err *mesh.HandshakeError) {
	c.metrics.handshakes.WithLabelValues(string(err.Reason)).Inc()
	c.noise.Log(context.Background(), c.log, string(err.Reason), slog.LevelInfo, "a handshake failed",
		slog.String("reason", string(err.Reason)), slog.String("remote", err.Endpoint))
}

// connectionRefused counts a connection that was refused for want of a place, or
// on the local socket for its user, and says so.
func (c *Coordinator) connectionRefused(err error) {
	c.metrics.refused.Inc()
	c.noise.Log(context.Background(), c.log, "refused", slog.LevelWarn, "a connection was refused", slog.Any("err", err))
}

// connectionCut counts a connection that ended because its peer's certificate
// expired or was banned.
func (c *Coordinator) connectionCut(p identity.Peer, err *mesh.CutError) {
	c.parts.Membership.Cut(p.ID, err.Reason == mesh.PeerBanned)
	c.metrics.cuts.WithLabelValues(string(err.Reason)).Inc()
	c.log.Warn("a connection was cut", "reason", string(err.Reason), "peer", p)
}

// followState runs what belongs to one state for as long as it is the state.
func (c *Coordinator) followState(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.parts.Head.Changed()
		s := c.parts.Head.State()
		run, cancel := context.WithCancel(ctx)
		g, run := errgroup.WithContext(run)
		loop := func(what string, f func() error) {
			g.Go(func() error { return watch.Forever(run, c.log, what, f) })
		}
		if s.Phase == authority.Ready {
			loop("members", func() error { return c.parts.Membership.FollowMembers(run, s) })
			loop("config", func() error { return c.parts.Desired.Run(run, s) })
			loop("trust", func() error { return c.parts.Trust.Follow(run, s) })
			loop("publication", func() error { return c.parts.Publication.Follow(run, s) })
			loop("identity", func() error { return c.parts.Bundle.KeepIdentity(run, s) })
			loop("pruning", func() error { return c.prune(run, s) })
			loop("leases of domains", func() error { return c.parts.Fencing.Domains.FollowLeases(run, s) })
			loop("instructions", func() error { return c.parts.Fencing.Instructions.Follow(run, s) })
			loop("other coordinators", func() error { return c.parts.Peers.Follow(run, s) })
			loop("audit checkpoints", func() error { return c.parts.Audit.Run(run, s) })
			if c.cfg.Publishing.Dir != "" {
				g.Go(func() error { return c.parts.Publication.FollowMirror(run, s) })
			}
		}
		if s.Phase == authority.Recovery {
			loop("peers", func() error { return c.parts.Moves.Succession.WatchPeers(run) })
			loop("recovery", func() error { return c.parts.Secrets.OwnerRecovery.Follow(run) })
			loop("gathered shares", func() error { return c.parts.Secrets.OwnerRecovery.Watch(run) })
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		cancel()
		_ = g.Wait() // watch.Forever ends with its context alone
	}
	return ctx.Err()
}

// sinceNow returns a clock that only goes forward, whatever is done to the wall's.
func sinceNow() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
