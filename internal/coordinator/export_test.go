// What tests outside of the package reach for, and no program does.
package coordinator

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	"github.com/fealty-io/fealty/internal/store"
)

type (
	Health      = health
	ProbeAnswer = probeAnswer
)

const (
	AuditRetention    = auditRetention
	DefaultMaxHeadAge = defaultMaxHeadAge
	MaxStrangerBytes  = maxStrangerBytes
	RequestTimeout    = requestTimeout
	StaleAfter        = staleAfter
	StuckAfter        = stuckAfter
)

var (
	Findings   = findings
	SinceNow   = sinceNow
	Unguarded  = unguarded
	Unreadable = unreadable
)

// Assemble makes a coordinator that opened nothing.
func Assemble(cfg Config, key ed25519.PrivateKey, source *credential.Issued) (*Coordinator, error) {
	return assemble(cfg.withDefaults(), own{key: key, source: source})
}

// ReadRequest reads the one request of a stream, and returns once nothing is left running.
func ReadRequest(s grpc.ServerStream, into any, settle func()) error {
	c := &Coordinator{readers: new(ratelimit.Readers)}
	err := oneRequest{s, c}.RecvMsg(into)
	settle()
	c.readers.Wait()
	return err
}

// Limit sets limits that no operator sets; 0 is the usual one.
func (c *Config) Limit(listed, joins, sourceJoins int) {
	c.knobs.maxListed, c.knobs.maxJoins, c.knobs.maxSourceJoins = listed, joins, sourceJoins
}

// LimitOwners sets how many streams of owners may have brought no share yet.
func (c *Config) LimitOwners(n int) { c.knobs.maxBringing = n }

// ParseBy sets what reads a manifest that is to be set: that of an earlier release.
func (c *Config) ParseBy(parse func([]byte) (*manifest.Manifest, error)) { c.knobs.parse = parse }

// LimitPeers sets how many coordinators may ask at once before they proved that they are.
func (c *Config) LimitPeers(n int) { c.knobs.maxAsking = n }

// Earlier plays a release that reads no later field of a manifest.
func (c *Config) Earlier(release string, reads ...string) {
	c.Release, c.knobs.reads = release, append([]string{}, reads...)
}

// SetNow exchanges the clock of what the coordinator itself does.
func (c *Coordinator) SetNow(now func() time.Time) { c.now = now }

func (x *Coordinator) CheckSelf() { x.checkSelf() }

func (x *Coordinator) DropAudit(ctx context.Context, s *authority.State, now time.Time) error {
	return x.dropAudit(ctx, s, now)
}

func (x *Coordinator) FollowState(ctx context.Context) error { return x.followState(ctx) }

func (x *Coordinator) GrpcServer(gate *authz.Authorizer, opts ...grpc.ServerOption) (*grpc.Server, error) {
	return x.grpcServer(gate, opts...)
}

func (x *Coordinator) Health() health { return x.health() }

// WatchOver has the self-check call alive too.
func (c *Coordinator) WatchOver(alive func()) { c.alive = append(c.alive, alive) }

func (x *Coordinator) MetricsHandler(reg *prometheus.Registry) http.Handler {
	return x.metricsHandler(reg)
}

func (x *Coordinator) PruneOnce(ctx context.Context, s *authority.State, now time.Time) error {
	return x.pruneOnce(ctx, s, now)
}

func (x *Coordinator) PruneWhileLeading(ctx context.Context, s *authority.State, ended <-chan struct{}) error {
	return x.pruneWhileLeading(ctx, s, ended)
}

func (x *Coordinator) Watchdog(ctx context.Context) error { return x.watchdog(ctx) }

func (x *Coordinator) Word(ctx context.Context, method string, err error) error {
	return x.word(ctx, method, err)
}

func (x *Coordinator) WordStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return x.wordStream(srv, stream, info, handler)
}

func (x *Coordinator) Cfg() *Config { return &x.cfg }

func (x *Coordinator) Failures() *ratelimit.LogSampler { return x.failures }

func (x *Coordinator) Log() *slog.Logger { return x.log }

func (x *Coordinator) Now() func() time.Time { return x.now }

func (x *Coordinator) SelfChecked() *clock.Last { return &x.selfChecked }

func (x *Coordinator) Readers() *ratelimit.Readers { return x.readers }

func (x *Coordinator) Serving() *atomic.Bool { return &x.serving }

func (x *Coordinator) Stopping() chan struct{} { return x.stopping }

func (x *Coordinator) Store() store.Store { return x.store }

func (x health) Liveness() probeAnswer { return x.liveness() }

func (x health) Readiness() probeAnswer { return x.readiness() }

func (x health) Service() sdnotify.Health { return x.service() }

func (x health) Startup() probeAnswer { return x.startup() }

// FoundOf is what a look finds of members if a message is made of each of them, whether it is well or not.
func FoundOf(ctx context.Context, c *Coordinator, st *fealtyv1.GetStatusResponse, all []*fealtyv1.Member) (
	found []*fealtyv1.Finding, b *fealtyv1.Baseline, contacts *fealtyv1.Contacts, err error) {
	s, of := c.parts.Head.State(), &member.Roll{Said: all}
	found = findings(st, all, c.joinBy(s.Manifest), c.now(), c.parts.Membership.ListensSince())
	claims, err := c.parts.Membership.Claims(ctx, s, all)
	return append(found, claims...), baseline(s.Manifest, of), of.Contacts(), err
}
