// Package process runs a shard as a process: it connects providers over the API, serves the
// sessions of operators, opens the journal, and gets the epoch that the shard acts under.
//
// [Handover] gives the journal to the audit log of the cluster. The journal on the shard's disk
// comes first: nothing waits for a coordinator. Whenever one can be reached it is given what it
// does not have yet, in its order, and answers how far it has each chain. So nothing has to be
// remembered here: a process that starts asks, and an answer that was lost is asked for again. A
// store that was restored from a backup is given again what it lost, as far as the journal still
// has it.
//
// A [Holder] keeps the domains that the shard owns: it hears of them, has the receivers promise each
// before the shard acts, lets go when it is asked to, and fences itself when it was told nothing for
// as long as its lease. A shard owns nothing before it was told (I7). An assignment is kept on disk
// with the end of its lease by a clock that goes on in suspend and that nobody sets: a process that
// starts while no coordinator answers goes on where the one before it stood, and after a start of the
// machine, when that clock begins anew, it waits until it is told. See docs/explanation/fencing.md.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	epochs "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/instruction"
	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/provider"
)

// Bounds of what operators send, and how long calls have when the shard stops.
const (
	maxRequest = 1 << 20 // bytes: a roll-up of 4,096 rows
	maxHeader  = 16 << 10
	maxStreams = 16 // of one connection
	stopAfter  = 5 * time.Second

	planTimeout = 3 * time.Second // a start's wait for the newest plan
)

// Config is what a shard is run with.
type Config struct {
	// Dir is its folder: the epoch and the journal. It is made if it is missing, and belongs to
	// one process. Required.
	Dir string

	// Listener serves operators over TLS. Required.
	Listener net.Listener

	// Source is who this shard is, and ID its identity there. Without a Source everything is
	// without TLS, on loopback addresses alone: operators are who they say, and a provider takes
	// this shard for [provider.InsecureHolder]. That is for trying things out. ID is required.
	Source credential.Source
	ID     identity.ID

	// Providers are where they are, by the names in their certificates: that of local is
	// spiffe://CLUSTER/provider/local. Those that the coordinators registered are added.
	Providers map[string]string

	// Grant is the signed grant under which it acts, as it travels; "": none. Authority is whose
	// grants count, and Mend says that the grant is new: see durable.EpochOptions in package
	// fence/durable.
	Grant     string
	Authority fence.Authority
	Mend      bool

	// Coordinators are asked for a grant at the start, and then for the domains that this shard
	// owns, and for quotas and providers; it acts in those domains alone. Grant is "" then. Nil:
	// nobody is asked, and the shard acts in all domains.
	Coordinators grpc.ClientConnInterface

	// Enrol says that this shard never had an epoch: the first start of a name, and no other.
	Enrol bool

	// Quotas bound how many machines of a profile a tenant has, and so do those of the
	// coordinators: of two of one name the lower counts. Those that are not named are not bounded.
	Quotas map[scheduler.Quota]int

	// Paused is the kill switch: everything is decided, and nothing executed.
	Paused bool

	// Policy says whether machines that nobody waits for are deleted, and how many stay.
	Policy scheduler.Policy

	// Grace, Every and Concurrency are those of package shard; zero means its defaults.
	Grace, Every time.Duration
	Concurrency  int

	// Metrics serves metrics and probes over plain HTTP. Nil: nobody does.
	Metrics net.Listener

	// Locks are those of the process, of which that of Dir is one. Nil: nobody looks after it.
	Locks *durable.Locks

	Log *slog.Logger // required

	// Output is the stream that the log goes to. Nil: what becomes of the log is not known.
	Output *logging.Writer

	// Service tells systemd of the shard. Nil: nobody asked.
	Service *sdnotify.Notifier
}

// FencedError says that another process is in charge, for whoever asks after the shard ended.
type FencedError struct{ err error }

func (e *FencedError) Error() string { return e.err.Error() }
func (e *FencedError) Unwrap() error { return e.err }

// running is a shard with all that it holds.
type running struct {
	cfg          Config
	shard        *shard.Shard
	sessions     *session.Server
	domains      *domains              // nil without coordinators
	planned      *quota.Follower       // nil without coordinators
	executor     *instruction.Executor // nil without coordinators
	handover     *Handover             // nil without coordinators
	pauses       pauses
	coordinators *client.Fenced // the calls of this life; nil without coordinators
	sender       *fence.Sender
	sites        *providers
	registry     *prometheus.Registry
	closers      []func() error

	handshakes *prometheus.CounterVec // that failed
	noise      ratelimit.NoiseSampler // of what those log
}

// newHandshakes counts handshakes of operators that failed.
func newHandshakes() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_mesh_handshake_failures_total",
		Help: "Handshakes that failed, by reason. Plain network failures are none.",
	}, []string{"reason"})
}

// Run works until ctx ends, and returns nil then; a [*FencedError] if the shard was fenced
// meanwhile. A shard that is fenced acts no more, and stays so that people can look at it.
//
// An error before anything is done: of the folder, the epoch or the config.
func Run(ctx context.Context, cfg Config) (err error) {
	r := &running{cfg: cfg, registry: prometheus.NewRegistry(), handshakes: newHandshakes()}
	r.pauses.flag = cfg.Paused
	r.registry.MustRegister(r.handshakes)
	defer func() {
		for i := len(r.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, r.closers[i]())
		}
	}()
	defer cfg.Listener.Close()
	if err := r.open(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		return err // also if ctx ended meanwhile: what is wrong with the folder has to be told
	}
	cfg.Service.Watch(r.health)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.work(ctx) })
	g.Go(func() error { return r.serve(ctx) })
	if r.domains != nil {
		// Until it is fenced: a process that was fenced polls nothing, does nothing that it is told,
		// lets nothing go and gives no journal. It reports its incident, and nothing else.
		charge, fenced := context.WithCancel(ctx)
		g.Go(func() error {
			defer fenced()
			select {
			case <-r.shard.Fenced():
			case <-ctx.Done():
			}
			return nil
		})
		g.Go(func() error { return untilEnd(charge, r.domains.holder.Run(charge)) })
		g.Go(func() error { return untilEnd(charge, r.executor.Run(charge)) })
		g.Go(func() error { return untilEnd(charge, r.planned.Run(charge)) })
		g.Go(func() error { r.handover.Run(charge); return nil })
		reports := &reporter{name: cfg.ID.Name(), conn: r.coordinators, now: time.Now, log: cfg.Log, pauses: &r.pauses,
			shard: r.shard}
		g.Go(func() error { reports.run(charge); return nil })
	}
	if cfg.Metrics != nil {
		g.Go(func() error { return r.serveMetrics(ctx) })
	}
	return g.Wait()
}

// untilEnd is nil for what ended with ctx.
func untilEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open takes the folder, begins an epoch and makes the shard. Nothing is sent yet. Where it waits
// for a coordinator, it waits no longer than ctx.
func (r *running) open(ctx context.Context) error {
	cfg := r.cfg
	if addr, err := netip.ParseAddrPort(cfg.Listener.Addr().String()); cfg.Source == nil &&
		(err != nil || !addr.Addr().Unmap().IsLoopback()) {
		return fmt.Errorf("serve operators on %s: %w", cfg.Listener.Addr(), internalprovider.ErrNotLoopback)
	}
	j, err := execute.OpenJournal(execute.JournalOptions{Files: cfg.Locks.OS(), Dir: filepath.Join(cfg.Dir, "journal"),
		Actor: cfg.ID.String(), Writer: auditlog.WriterOf(cfg.ID.String())})
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	r.closers = append(r.closers, j.Close)
	if problem := j.Problem(); problem != "" {
		cfg.Log.Error("the journal of before cannot be read, and stays as it is", "problem", problem)
	}
	if cfg.Coordinators != nil {
		r.coordinators = client.NewFenced(cfg.Coordinators)
		r.handover = NewHandover(HandoverConfig{Conn: r.coordinators, Source: j.Reader(), Log: cfg.Log})
	}
	if err := r.openDomains(); err != nil {
		return err
	}
	if err := r.openPlan(); err != nil {
		return err
	}
	hold := scheduler.Default()
	if hold.Paused, err = r.openInstructions(); err != nil {
		return err
	}
	// A life is counted last: one that is begun by starts which cannot work is used up too. And
	// an enrolment that is interrupted before is made again.
	sender, err := r.begin(ctx)
	if err != nil {
		return err
	}
	r.askPlan(ctx)
	if err := r.openProviders(sender); err != nil {
		return err
	}
	bounds := func() map[scheduler.Quota]int { return quotas(cfg.Quotas, r.sites.plan()) }
	r.shard, err = shard.New(shard.Config{Providers: r.sites.now, Quotas: bounds, Rails: hold, Grace: cfg.Grace,
		Every: cfg.Every, Owns: r.domains.owns(),
		Concurrency: cfg.Concurrency, Policy: cfg.Policy, Journal: j, Log: cfg.Log})
	if err != nil {
		return err
	}
	r.domains.acts(r.shard)
	r.sessions, err = session.New(session.Config{Name: cfg.ID.Name(), Shard: r.shard, Term: r.domains.term(),
		Insecure: cfg.Source == nil,
		Log:      cfg.Log})
	return err
}

// openProviders reaches the providers of the flags, and gets ready for those of the plan.
func (r *running) openProviders(sender *fence.Sender) error {
	cfg := r.cfg
	r.sites = &providers{log: cfg.Log, told: flagsAlone, flags: make(map[string]quota.Provider),
		changed: r.domains.forget, dial: func(p quota.Provider) (*provider.Client, error) {
			// This very one: another provider could end the shard with one refusal.
			id, err := identity.New(cfg.ID.Cluster(), identity.Provider, p.Name)
			if err != nil {
				return nil, err
			}
			dial := provider.ClientConfig{Target: p.Address, Sender: sender, Insecure: true}
			if cfg.Source != nil {
				// With the scheme, or the address could be read as another one.
				dial = provider.ClientConfig{Target: "dns:///" + p.Address, Sender: sender, Source: cfg.Source,
					Expect: credential.ExactID(id), Ownership: r.domains.ownership(p.Name)}
			}
			return provider.Dial(dial)
		}}
	if r.planned != nil {
		r.sites.told = r.planned.State
	}
	for name, target := range cfg.Providers {
		r.sites.flags[name] = quota.Provider{Name: name, Address: target}
	}
	r.domains.promisedBy(r.sites)
	r.closers = append(r.closers, r.sites.close)
	if err := r.sites.open(); err != nil {
		return err
	}
	r.sites.now() // domains are promised before the first cycle is over
	return nil
}

// openPlan reads what this shard was told of quotas and providers.
func (r *running) openPlan() (err error) {
	if r.domains == nil {
		return nil
	}
	dir := filepath.Join(r.cfg.Dir, "plan")
	if err := durable.OS().MkdirAll(dir); err != nil {
		return fmt.Errorf("make the shard's folder: %w", err)
	}
	r.planned, err = quota.OpenFollower(quota.FollowerConfig{ID: r.cfg.ID, Conn: r.coordinators, Authority: r.cfg.Authority,
		Files: durable.OS(), Dir: dir, Now: time.Now, Log: r.cfg.Log})
	return err
}

// askPlan asks for the newest plan, so that the first cycle goes by it, if somebody tells it: a
// provider that comes later holds up nobody. It is the first call of a life.
func (r *running) askPlan(ctx context.Context) {
	if r.planned == nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	r.planned.Step(asking)
}

// begin begins a life: the first one if somebody said so, and otherwise the next one. A
// folder that lost its epoch is none to enrol, and nothing here can tell it from a new one.
func (r *running) begin(ctx context.Context) (*fence.Sender, error) {
	dir := filepath.Join(r.cfg.Dir, "epoch")
	if err := durable.OS().MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("make the shard's folder: %w", err)
	}
	o := epochs.EpochOptions{Grant: r.cfg.Grant, Authority: r.cfg.Authority}
	if r.cfg.Coordinators != nil {
		o.Ask = func(newest string, incarnation fence.Incarnation) (string, error) {
			return r.askGrant(ctx, newest, incarnation)
		}
	}
	if o.Grant != "" || o.Ask != nil {
		o.Holder = r.cfg.ID.String()
	}
	begin := epochs.OpenEpoch
	switch {
	case r.cfg.Enrol:
		begin = epochs.EnrolEpoch
	case r.cfg.Mend:
		begin = epochs.MendEpoch
	}
	epoch, err := begin(dir, o)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, epoch.Close)
	life := epoch.Life()
	r.cfg.Log.Info("the shard begins a life", "id", r.cfg.ID.String(), "epoch", life.Epoch.String(),
		"incarnation", life.Incarnation.String())
	r.sender = epoch.Sender()
	if r.coordinators != nil {
		r.coordinators.Begin(r.sender)
	}
	return r.sender, nil
}

// work runs the cycles, and raises the incident when the shard is fenced.
func (r *running) work(ctx context.Context) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		select {
		case <-r.sender.Fenced(): // by a provider or a coordinator
			r.shard.Fence(r.sender.Err())
			r.cfg.Log.Error("this shard was fenced, and acts no more: another process with its identity is in charge; "+
				"look for it before this one is started again", "id", r.cfg.ID.String(), "incident", true)
			if r.cfg.Coordinators != nil {
				tellFenced(ctx, r.cfg.Coordinators, r.cfg.ID.Name(), r.sender, r.cfg.Log)
			}
		case <-ctx.Done():
		}
	})
	err := r.shard.Run(ctx)
	if errors.Is(err, fence.ErrEnded) {
		return &FencedError{err}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve serves operators.
func (r *running) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeader), grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(internalmesh.HandshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true})}
	listener, check := r.cfg.Listener, func(*grpc.Server) error { return nil }
	if r.cfg.Source != nil {
		more, members, ended, table, err := r.guard(ctx)
		if err != nil {
			return err
		}
		defer func() { cancel(); ended() }()
		options, listener, check = append(more, options...), members,
			func(s *grpc.Server) error { return table.CheckServer(s) }
	} else {
		r.cfg.Log.Warn("operators are believed whoever they say they are: this is for trying things out")
	}
	server := grpc.NewServer(options...)
	fealtyv1.RegisterShardServiceServer(server, r.sessions)
	if err := check(server); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	r.cfg.Log.Info("the shard serves operators", "address", r.cfg.Listener.Addr().String())
	select {
	case err := <-served:
		if ctx.Err() == nil {
			server.Stop()
			r.sessions.Wait()
			return fmt.Errorf("serve operators on %s: %w", r.cfg.Listener.Addr(), err)
		}
		served <- nil // the gate heard first that ctx ended, and closed the listener
	case <-ctx.Done():
	}
	server.Stop() // sessions have no end of their own
	<-served
	r.sessions.Wait()
	return nil
}

// guard returns what the server stands behind: who calls is known, and may call, and what a
// client costs before that is bounded. ended returns once all of it did, after ctx.
func (r *running) guard(ctx context.Context) (options []grpc.ServerOption, members net.Listener, ended func(),
	table *authz.Table, err error) {
	services, err := authz.Services(fealtyv1.ShardService_ServiceDesc.ServiceName)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	if table, err = authz.NewTable(services...); err != nil {
		return nil, nil, nil, nil, err
	}
	gate, err := authz.New(table, authz.Options{Logger: r.cfg.Log, Registerer: r.registry,
		ClusterID: func() string { return r.cfg.ID.Cluster() }})
	if err != nil {
		return nil, nil, nil, nil, err
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: r.cfg.Source, OnFailure: func(err *mesh.HandshakeError) {
		r.handshakes.WithLabelValues(string(err.Reason)).Inc()
		r.noise.Log(context.Background(), r.cfg.Log, string(err.Reason), slog.LevelWarn, "a handshake failed",
			slog.Any("err", err))
	}})
	if err != nil {
		return nil, nil, nil, nil, err
	}
	members, wait, err := guard.ListenMembers(ctx, r.cfg.Listener, mesh.GateConfig{})
	if err != nil {
		return nil, nil, nil, nil, err
	}
	var guarded sync.WaitGroup
	guarded.Go(func() { _ = wait() }) // what it failed with ends the server too
	return append(guard.ServerOptions(), grpc.ChainStreamInterceptor(gate.Stream()),
			grpc.ChainUnaryInterceptor(gate.Unary()), grpc.UnknownServiceHandler(gate.UnknownService)), members,
		guarded.Wait, table, nil
}

// Metrics describes all that is counted, for the documentation.
func Metrics() (prometheus.Collector, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newHandshakes())
	register(registry, gauges{}, nil)
	NewHandover(HandoverConfig{}).RegisterMetrics(registry)
	return registry, nil
}

// gauges are asked when metrics are collected.
type gauges struct {
	fenced, paused, sessions, refused func() float64
	providers, quotas, planAge        func() float64
}

func register(registry *prometheus.Registry, g gauges, output *logging.Writer) {
	registry.MustRegister(output.Collectors()...)
	none := func(f func() float64) func() float64 {
		if f == nil {
			return func() float64 { return 0 }
		}
		return f
	}
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_fenced",
			Help: "1 once another process is in charge: an incident."}, none(g.fenced)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_paused",
			Help: "1 while nothing is executed."}, none(g.paused)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_sessions",
			Help: "Sessions of operators."}, none(g.sessions)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_providers",
			Help: "Providers that the shard acts at."}, none(g.providers)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_quotas",
			Help: "Quotas that the shard keeps to."}, none(g.quotas)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fealty_shard_plan_age_seconds",
			Help: "Since a coordinator said last that the quotas and providers are the newest; -1 if none did since " +
				"the start, or the shard has no coordinators."}, none(g.planAge)),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fealty_shard_foreign_tenants_total",
			Help: "Messages for another tenant than that of the caller's certificate."}, none(g.refused)),
	)
}

func (r *running) serveMetrics(ctx context.Context) error {
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	register(r.registry, gauges{
		fenced:    func() float64 { return one(r.fenced()) },
		paused:    func() float64 { return one(r.shard.Last().Paused) },
		sessions:  func() float64 { return float64(r.sessions.Open()) },
		refused:   func() float64 { return float64(r.sessions.Refused()) },
		providers: func() float64 { return float64(len(r.sites.receiving())) },
		quotas:    func() float64 { return float64(len(quotas(r.cfg.Quotas, r.sites.plan()))) },
		planAge:   func() float64 { return r.sites.told.age(time.Now()) },
	}, r.cfg.Output)
	if r.handover != nil {
		r.handover.RegisterMetrics(r.registry)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{}))
	// One that is fenced lives, and is not ready: nobody is to ask it for anything.
	mux.Handle("GET /probe/liveness", metrics.ProbeHandler(func() bool { return true }, nil))
	mux.Handle("GET /probe/readiness", metrics.ProbeHandler(func() bool { return !r.fenced() }, r.cfg.Output.Detail))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: stopAfter, ReadTimeout: 2 * stopAfter,
		WriteTimeout: 30 * time.Second, MaxHeaderBytes: maxHeader}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(r.cfg.Metrics); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", r.cfg.Metrics.Addr(), err)
	}
	return nil
}

// health is what systemd is told. A shard that is fenced stays, so that people can look at it: a restart would not bring
// it back. The locks of cycles and sessions are taken, so one that is stuck hangs here.
func (r *running) health() sdnotify.Health {
	last, open := r.shard.Last(), r.sessions.Open()
	h := sdnotify.Health{Serves: true, Status: fmt.Sprintf("decides, with %d sessions of operators", open)}
	switch {
	case r.fenced():
		h.Status = "fenced: another process acts as this shard"
	case last.Paused:
		h.Status = fmt.Sprintf("paused, with %d sessions of operators", open)
	}
	return h
}

func (r *running) fenced() bool {
	select {
	case <-r.shard.Fenced():
		return true
	default:
		return false
	}
}
