// Package status asks the other coordinators every few seconds what only they can see: which
// members they hear, what they saw of the store and what they find.
//
// Package peer decides from their answers which coordinators are missing. What they say can only make this
// coordinator more careful, unless the cluster signed it. Each coordinator also announces itself in the
// store: where it is, what it is doing and what it can read. That is a signed [peer.Record], which
// decides nothing (I20).
package status

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// Times and bounds of asking the others.
const (
	// patience bounds how long the others are waited for while somebody waits for the answer.
	patience = time.Second
	// endPatience is that of a ban: they first have to hear of it, and connections end within 5 s.
	endPatience = 3 * time.Second
	// Fresh is for how long what they heard of members is not asked again.
	Fresh = 250 * time.Millisecond
	// hearPause is from one question of what they saw and find to the next, and hearTimeout
	// how long an answer is waited for.
	hearPause   = 2500 * time.Millisecond
	hearTimeout = 2 * time.Second
	// LivePage is how many members one message tells of, and maxLivePages how many messages
	// of one coordinator are read.
	LivePage     = 500
	maxLivePages = 2000
	// MaxFindings bounds the findings that one coordinator tells, and maxFindingText each of
	// their texts.
	MaxFindings    = 64
	maxFindingText = 2 << 10
)

// Config is what a [Peers] is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *peer.Directory
	Bundle     *current.Current
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *failpoint.Points
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration // a clock that only goes forward

	Addresses []string                                                 // of this coordinator; shared
	Dial      func(ctx context.Context, addr string) (net.Conn, error) // to another coordinator; nil: TCP
	// Published are the addresses of coordinators that members are told, by enrolment key.
	Published func() map[string][]string
	// Proven counts a trust bundle that somebody showed as seen, if this cluster signed it.
	Proven func(ctx context.Context, from string, raw []byte) error
}

// Peers is the other coordinators, as they answered when they were asked last. It is memory
// only. Its methods may be called by several goroutines at once.
type Peers struct {
	cfg      Config
	presence peer.PresenceWatch // which of them are heard
	pool     *mesh.Pool         // of conns

	asking  chan struct{} // held by whoever asks what they hear of members; capacity 1
	hearing chan struct{} // held by whoever asks what they saw and find; capacity 1

	mu         sync.Mutex
	at         time.Time                 // of the last answers on members, monotonic; guarded by mu
	live       map[string]*fealtyv1.Live // by "<kind>/<name>"; guarded by mu
	silent     []peer.Record             // coordinators that did not answer, sorted; guarded by mu
	lost       bool                      // nobody could say which others there are; guarded by mu
	known      []peer.Record             // as the store named them last; guarded by mu
	conns      map[place]*mesh.Conn      // guarded by mu
	statements map[string]statement      // what each said of the store and finds, by its key; guarded by mu
}

// New returns a [Peers] that heard nobody yet.
func New(cfg Config) *Peers {
	return &Peers{
		cfg:    cfg,
		asking: make(chan struct{}, 1), hearing: make(chan struct{}, 1),
		conns: make(map[place]*mesh.Conn),
		pool:  &mesh.Pool{Options: mesh.Options{Dialer: cfg.Dial, Now: cfg.Now, Log: cfg.Log}},
	}
}

// Alive returns once nobody holds its lock: a watchdog sees that it is not held for good.
func (p *Peers) Alive() {
	p.mu.Lock()
	defer p.mu.Unlock()
}

// Silent returns for how long the coordinator with the key was not heard, and whether it is
// expected.
func (p *Peers) Silent(key string) (since time.Duration, expected bool) {
	return p.presence.Silent(key, p.cfg.Elapsed())
}

// Listen begins to hear the others anew: from a start on, or from the end of recovery mode,
// silence says nothing until everybody had the time to be heard.
func (p *Peers) Listen() { p.presence.Listen(p.cfg.Elapsed()) }

// NotHeard returns the names of the coordinators that are to be there and that this one does
// not hear, and in how long it has listened for long enough to miss them; 0 if it has.
func (p *Peers) NotHeard() (names []string, settles time.Duration) {
	now := p.cfg.Elapsed()
	return p.presence.NotHeard(now), p.presence.SettlesIn(now)
}

// RegisterServices registers the service over the other coordinators.
func (p *Peers) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterCoordinatorServiceServer(to, coordinatorServer{p: p})
}

// RegisterMetrics registers how many of them are missed.
func (p *Peers) RegisterMetrics(reg prometheus.Registerer) {
	reg.MustRegister(metrics.GaugeOf("fealty_coordinators_unheard",
		"Other coordinators that this one misses: they did not stop in order, and have not answered "+
			"for ten seconds.",
		func() float64 { return float64(len(p.presence.Missed(p.cfg.Elapsed()))) }))
}
