// Inside the package: what its tests reach for has no other door yet.
package coordinator

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/instant"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
)

type (
	Frozen         = frozen
	Health         = health
	Ledger         = ledger
	ProbeAnswer    = probeAnswer
	ShareSetRecord = shareSetRecord
	Yields         = yields
)

const (
	AuditRetention      = auditRetention
	DefaultMaxHeadAge   = defaultMaxHeadAge
	FreezeLimit         = freezeLimit
	HeadPollPause       = headPollPause
	LastLook            = lastLook
	LedgerPrefix        = ledgerPrefix
	MaxRecipients       = maxRecipients
	MaxStrangerBytes    = maxStrangerBytes
	OpenPrefix          = openPrefix
	PreparedLife        = preparedLife
	RecoveriesAtOnce    = recoveriesAtOnce
	RecoveriesPerSource = recoveriesPerSource
	RecoveryBurst       = recoveryBurst
	RecoveryPrefix      = recoveryPrefix
	RequestTimeout      = requestTimeout
	ReseedPrefix        = reseedPrefix
	SharePrefix         = sharePrefix
	ShareSetPrefix      = shareSetPrefix
	StaleAfter          = staleAfter
	StuckAfter          = stuckAfter
	VerifiersPerSource  = verifiersPerSource
	VerifyBurst         = verifyBurst
)

var (
	Ed25519Public = ed25519Public
	Findings      = findings
	Lost          = lost
	OpenKey       = openKey
	RecoveryKey   = recoveryKey
	SendHistory   = sendHistory
	SinceNow      = sinceNow
	Unguarded     = unguarded
	Unreadable    = unreadable
)

// StatusOf is the service that c registers.
func StatusOf(c *Coordinator) fealtyv1.StatusServiceServer { return statusServer{c: c} }

// BackupOf is the service that c registers.
func BackupOf(c *Coordinator) fealtyv1.BackupServiceServer { return backupServer{c: c} }

// Assemble makes a coordinator that opened nothing.
func Assemble(cfg Config, key ed25519.PrivateKey, source *credential.Issued) (*Coordinator, error) {
	return assemble(cfg.withDefaults(), own{key: key, source: source})
}

// Restores reports whether it leads through a restore that is not finished.
func (w *way) Restores() bool { return w.restore != nil }

// ReadRequest reads the one request of a stream, and returns once nothing is left running.
func ReadRequest(s grpc.ServerStream, into any, settle func()) error {
	c := &Coordinator{readers: new(flowcontrol.Readers)}
	err := oneRequest{s, c}.RecvMsg(into)
	settle()
	c.readers.Wait()
	return err
}

// Places are those of owners that bring their shares.
func (c *OwnerRecovery) Places() *flowcontrol.Limiter { return c.recoveries.owners }

// SetPlaces exchanges them.
func (c *OwnerRecovery) SetPlaces(l *flowcontrol.Limiter) { c.recoveries.owners = l }

// Limit sets limits that no operator sets; 0 is the usual one.
func (c *Config) Limit(listed, joins, sourceJoins int) {
	c.knobs = knobs{maxListed: listed, maxJoins: joins, maxSourceJoins: sourceJoins}
}

// LimitPeers sets how many coordinators may ask at once before they proved that they are.
func (c *Config) LimitPeers(n int) { c.knobs.maxAsking = n }

// Earlier plays a release that reads no later field of a manifest.
func (c *Config) Earlier(release string) { c.Release, c.knobs.earlier = release, true }

// Coordinators reads what coordinators say of themselves.
func (c *Coordinator) Coordinators() *replicas.Directory {
	return &replicas.Directory{Store: c.store, Failures: c.failures, Log: c.log, Now: c.now}
}

// SetNow exchanges the clock of what the coordinator itself does.
func (c *Coordinator) SetNow(now func() time.Time) { c.now = now }

// SetVerifiers exchanges the places of those that verify.
func (c *Coordinator) SetVerifiers(g *flowcontrol.Limiter) { c.verifiers = g }

func (x *Coordinator) Addresses() []string { return x.addresses() }

func (x *Coordinator) BackupHead(s *authority.State, l store.Listing, owners []string) (*fealtyv1.BackupHead,
	[]store.Entry, error) {
	return x.backupHead(s, l, owners)
}

func (x *Coordinator) CheckSelf() { x.checkSelf() }

func (x *Coordinator) DropAudit(ctx context.Context, s *authority.State, now time.Time) error {
	return x.dropAudit(ctx, s, now)
}

func (x *Coordinator) FollowState(ctx context.Context) error { return x.followState(ctx) }

func (x *Coordinator) GrpcServer(gate *authz.Authorizer, opts ...grpc.ServerOption) (*grpc.Server, error) {
	return x.grpcServer(gate, opts...)
}

func (x *Coordinator) Health() health { return x.health() }

func (x *Coordinator) Locks() []sync.Locker { return x.locks() }

func (x *Coordinator) MetricsHandler(reg *prometheus.Registry) http.Handler {
	return x.metricsHandler(reg)
}

func (x *Coordinator) PruneOnce(ctx context.Context, s *authority.State, now time.Time) error {
	return x.pruneOnce(ctx, s, now)
}

func (x *Coordinator) PruneWhileLeading(ctx context.Context, s *authority.State, ended <-chan struct{}) error {
	return x.pruneWhileLeading(ctx, s, ended)
}

func (x *Coordinator) Pulse(ctx context.Context) error { return x.pulse(ctx) }

func (x *Coordinator) ShowHistory(ctx context.Context) (*shown, error) { return x.showHistory(ctx) }

func (x *Coordinator) VerifyClaim(ctx context.Context, nonce []byte, binding []byte) (*fealtyv1.VerifyClaim,
	*history.History, error) {
	return x.verifyClaim(ctx, nonce, binding)
}

func (x *Coordinator) Word(ctx context.Context, method string, err error) error {
	return x.word(ctx, method, err)
}

func (x *Coordinator) WordStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return x.wordStream(srv, stream, info, handler)
}

func (x *Coordinator) BackingUp() chan struct{} { return x.backingUp }

func (x *Coordinator) Cfg() *Config { return &x.cfg }

func (x *Coordinator) Failures() *flowcontrol.LogSampler { return x.failures }

func (x *Coordinator) Faults() *fault.Points { return x.faults }

func (x *Coordinator) Log() *slog.Logger { return x.log }

func (x *Coordinator) Now() func() time.Time { return x.now }

func (x *Coordinator) Pulsed() *instant.Last { return &x.pulsed }

func (x *Coordinator) Readers() *flowcontrol.Readers { return x.readers }

func (x *Coordinator) Serving() *atomic.Bool { return &x.serving }

func (x *Coordinator) Shown() *shown { return x.shown }

func (x *Coordinator) Stopping() chan struct{} { return x.stopping }

func (x *Coordinator) Store() store.Store { return x.store }

func (x *Coordinator) Verifiers() *flowcontrol.Limiter { return x.verifiers }

func (x health) Liveness() probeAnswer { return x.liveness() }

func (x health) Readiness() probeAnswer { return x.readiness() }

func (x health) Startup() probeAnswer { return x.startup() }

func (x *Authority) Adopt(ctx context.Context, s *authority.State) error { return x.adopt(ctx, s) }

func (x *Authority) DropSecrets(ctx context.Context, s *authority.State) error {
	return x.dropSecrets(ctx, s)
}

func (x *Authority) FollowHead(ctx context.Context) error { return x.followHead(ctx) }

func (x *Authority) Freeze(ctx context.Context, s *authority.State, salt history.Salt) (frozen, func(), error) {
	return x.freeze(ctx, s, salt)
}

func (x *Authority) GoOn(ctx context.Context, w *way) (*authority.State, error) {
	return x.goOn(ctx, w)
}

func (x *Authority) LookAtKeepers(ctx context.Context, mv *transition.Move) error {
	return x.lookAtKeepers(ctx, mv)
}

func (x *Authority) Memory() keychain.Memory { return x.memory() }

func (x *Authority) MoveRecords(ctx context.Context, s *authority.State) error {
	return x.moveRecords(ctx, s)
}

func (x *Authority) Read(ctx context.Context, last *authority.State) (*way, *authority.State, error) {
	return x.read(ctx, last)
}

func (x *Authority) Rekey(ctx context.Context, before *authority.State, reason string, by string,
	received map[string]string) (*authority.State, error) {
	return x.rekey(ctx, before, reason, by, received)
}

func (x *Authority) Set(ctx context.Context, req *fealtyv1.SetManifestRequest,
	first bool) (*fealtyv1.SetManifestResponse, error) {
	return x.set(ctx, req, first)
}

func (x *Authority) SettingTurn(ctx context.Context) (func(), error) { return x.settingTurn(ctx) }

func (x *Authority) StateBefore(ctx context.Context, v *history.Verified,
	secrets *authority.Secrets) (*authority.State, error) {
	return x.stateBefore(ctx, v, secrets)
}

func (x *Authority) Swap(ctx context.Context, mv *transition.Move) (bool, error) {
	return x.swap(ctx, mv)
}

func (x *Authority) VerifiedHistory(ctx context.Context, s *authority.State) (*history.Verified, *history.History,
	error) {
	return x.verifiedHistory(ctx, s)
}

func (x *Authority) WriteSecrets(ctx context.Context, mv *transition.Move) error {
	return x.writeSecrets(ctx, mv)
}

func (x *Authority) Cfg() *authorityConfig { return &x.cfg }

func (x *Authority) Pushed() *atomic.Bool { return &x.pushed }

func (x *Authority) Unsettled() *atomic.Bool { return &x.unsettled }

func (x *yields) Begin(ctx context.Context) (context.Context, context.CancelFunc) {
	return x.begin(ctx)
}

func (x *OwnerRecovery) Bring(ctx context.Context, req *fealtyv1.RecoverRequest,
	proves func(owner string) error) (*fealtyv1.RecoveryProgress, error) {
	return x.bring(ctx, req, proves)
}

func (x *OwnerRecovery) DropGathered(ctx context.Context, s *authority.State) error {
	return x.dropGathered(ctx, s)
}

func (x *OwnerRecovery) Gathered(ctx context.Context, g *gathering) ([]string, []keyring.Share, error) {
	return x.gathered(ctx, g)
}

func (x *OwnerRecovery) GoOnGathering(ctx context.Context) error { return x.goOnGathering(ctx) }

func (x *OwnerRecovery) OpenGathering(ctx context.Context) (*gathering, error) {
	return x.openGathering(ctx)
}

func (x *OwnerRecovery) RecoveryText(s *authority.State) string { return x.recoveryText(s) }

func (x *OwnerRecovery) Recoveries() *recoveries { return x.recoveries }

func (x *recoveries) Current() *gathering { return x.current() }

func (x *recoveries) Progress() (*fealtyv1.RecoveryProgress, []string) { return x.progress() }

func (x *gathering) Open(owner string, data []byte) (keyring.Share, error) {
	return x.open(owner, data)
}
