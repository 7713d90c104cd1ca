package agent

import (
	"context"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
)

// What tests reach for: the parts of an agent, and the steps that its loops take.

func (a *Agent) Node() *accept.Node           { return a.node }
func (a *Agent) Contact() *fetch.Coordinators { return a.contact }
func (a *Agent) Fetcher() *fetch.Fetcher      { return a.fetcher }
func (a *Agent) Renewal() *renewal            { return a.renewal }
func (a *Agent) Counters() *metrics           { return a.metrics }
func (a *Agent) Operator() *credential.Files  { return a.operator }
func (a *Agent) Unready() string              { return a.unready() }
func (a *Agent) NodeServer() nodeServer       { return nodeServer{a: a} }

// Serve has a serve on these paths; blank: not at all.
func (a *Agent) Serve(socket, configSocket string) { a.socket, a.configSocket = socket, configSocket }

// ServeMetrics has a serve metrics on l.
func (a *Agent) ServeMetrics(l net.Listener) { a.listeners.metrics = l }

// Admit lets consumers use the socket for local services.
func (a *Agent) Admit(list []Consumer) { a.consumers = list }

// BoundHooks bounds one run of the program for changes.
func (a *Agent) BoundHooks(timeout time.Duration) { a.hooks.timeout = timeout }

func (a *Agent) Socket() string       { return a.socket }
func (a *Agent) ConfigSocket() string { return a.configSocket }
func (a *Agent) Held() []*fealtyv1.HeldSnapshot {
	return accept.HeldBy(a.node.TrustState(), a.node.Now())
}

func (r *renewal) Present(ctx context.Context, s dir.SVID, m *credential.Material) error {
	return r.present(ctx, s, m)
}
func (r *renewal) Renew(ctx context.Context) error  { return r.renew(ctx) }
func (r *renewal) Rejoin(ctx context.Context) error { return r.rejoin(ctx) }
func (r *renewal) NextKey() (dir.KeyPair, error)    { return r.nextKey() }
func (r *renewal) Next() *state.PendingKey          { return r.next }
func (r *renewal) Unsaved() bool                    { return r.unsaved }
func (r *renewal) Asks() chan chan<- error          { return r.renewAsk }
func (e *againError) Until() time.Time              { return e.until }
func (m *metrics) Registry() *prometheus.Registry   { return m.registry }
func (m *metrics) Rejected() *prometheus.CounterVec { return m.rejected }
func (m *metrics) Received() *prometheus.CounterVec { return m.received }
func (m *metrics) Asked() *prometheus.CounterVec    { return m.asked }
func (m *metrics) Mirrors() *prometheus.CounterVec  { return m.mirrors }
func (m *metrics) Shared() *prometheus.CounterVec   { return m.shared }
func (m *metrics) HookRuns() *prometheus.CounterVec { return m.hookRuns }
func (m *metrics) Reloads() *prometheus.CounterVec  { return m.reloads }
func (m *metrics) Entries() prometheus.Counter      { return m.entries }

// AgainError says that the key was not changed although the node is certified anew.
type AgainError = againError

// Times of the loops.
const (
	ClockLook    = clockLook
	DemandSpread = demandSpread
	OutagePause  = outagePause
	BundleSpread = bundleSpread
	MoveSpread   = moveSpread
	MaxMoveLead  = maxMoveLead
)

var (
	ConfigServices = configServices

	MoveLead = moveLead
	Left     = left
)
