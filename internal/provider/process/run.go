package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/logging"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/provider"
)

// RunConfig is what [Provider.Run] needs.
type RunConfig struct {
	// Listener is where shards are served. Required.
	Listener net.Listener

	// Metrics is where metrics and probes are served, over plain HTTP. Nil: nowhere.
	Metrics net.Listener

	// Source is who the provider is, and Follow follows what that is made of until its context
	// ends. Nil serves without TLS, on a loopback address alone.
	Source credential.Source
	Follow func(ctx context.Context) error

	// Marks and Authority are those of [provider.Config].
	Marks     fence.Marks
	Authority fence.Authority

	// Counts is what is counted. Required.
	Counts *Counts

	// Output is the stream that the log goes to. Nil: what becomes of the log is not known.
	Output *logging.Writer

	// Service tells systemd of the provider. Nil: nobody asked.
	Service *sdnotify.Notifier
}

// rewriteEvery is how often marks that could not be saved are written anew: the disk may have
// room again.
const rewriteEvery = 5 * time.Second

// kept are marks on a disk, which can be written anew when that failed.
type kept interface {
	Status() durable.LedgerStatus
	Rewrite(ctx context.Context) error
}

// Counts are the metrics of a provider.
type Counts struct {
	registry *prometheus.Registry
	refused  *prometheus.CounterVec
	away     *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	machines *prometheus.GaugeVec
}

// NewCounts returns metrics that nothing was counted for, with those of the stream that the log goes to.
func NewCounts(output *logging.Writer) *Counts {
	c := &Counts{
		registry: prometheus.NewRegistry(),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_provider_refused_total",
			Help: "Attempts and promises that the fence refused, by reason. Those that are stale, moved, clone " +
				"or owner are of a shard that is not in charge, and incidents.",
		}, []string{"reason"}),
		away: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_provider_turned_away_total",
			Help: "Callers that were not served, by reason: handshake for those that proved nothing, no_certificate, " +
				"not_a_shard for a certificate of another kind or of nobody, busy for too many calls at once.",
		}, []string{"reason"}),
		machines: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fealty_provider_machines",
			Help: "Machines, by their state.",
		}, []string{"state"}),
		reloads: enterprise.NewFailures(),
	}
	c.registry.MustRegister(c.refused, c.away, c.machines, c.reloads)
	c.registry.MustRegister(output.Collectors()...)
	for _, reason := range []string{awayHandshake, awayNoCertificate, awayNotAShard, awayBusy} {
		c.away.WithLabelValues(reason) // a rate begins at zero
	}
	return c
}

// Metrics describes all that is counted, for the documentation.
func Metrics() (prometheus.Collector, error) { return NewCounts(nil).registry, nil }

// ReloadFailed counts a change of the files that was refused.
func (c *Counts) ReloadFailed(reason credential.Reason) {
	c.reloads.WithLabelValues(string(reason)).Inc()
}

// The reasons for which callers are not served, by which they are counted.
const (
	awayHandshake     = "handshake"
	awayNoCertificate = "no_certificate"
	awayNotAShard     = "not_a_shard"
	awayBusy          = "busy"
)

// turnedAway counts a caller that was not served.
func (c *Counts) turnedAway(err error) {
	_, handshake := errors.AsType[*mesh.HandshakeError](err)
	_, full := errors.AsType[*mesh.FullError](err)
	reason := awayNotAShard
	switch code := status.Code(err); {
	case handshake:
		reason = awayHandshake
	case full, code == codes.ResourceExhausted:
		reason = awayBusy
	case code == codes.Unauthenticated:
		reason = awayNoCertificate
	}
	c.away.WithLabelValues(reason).Inc()
}

// Run serves the provider until ctx ends, and returns nil then, or what ended it before.
func (p *Provider) Run(ctx context.Context, cfg RunConfig) error {
	g, ctx := errgroup.WithContext(ctx)
	serving := provider.Config{Machines: p, Marks: cfg.Marks, Authority: cfg.Authority, Insecure: cfg.Source == nil,
		Refused: func(err error) { p.refused(cfg.Counts, err) }, TurnedAway: cfg.Counts.turnedAway, Log: p.cfg.Log}
	if cfg.Source != nil {
		serving.Source = cfg.Source
		g.Go(func() error { return untilEnd(ctx, cfg.Follow(ctx)) })
	}
	whole := func() bool {
		marks, ok := cfg.Marks.(kept)
		return !ok || marks.Status().Broken == nil
	}
	if cfg.Metrics != nil {
		server := &http.Server{Handler: p.handler(cfg.Counts, whole, cfg.Output), ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:  10 * time.Second,
			WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		g.Go(func() error {
			if err := server.Serve(cfg.Metrics); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("process: serve metrics on %s: %w", cfg.Metrics.Addr(), err)
			}
			return nil
		})
	}
	if marks, ok := cfg.Marks.(kept); ok {
		g.Go(func() error { p.keepMarks(ctx, marks); return nil })
	}
	cfg.Service.Watch(func() sdnotify.Health { return p.health(ctx, whole()) })
	g.Go(func() error {
		p.cfg.Log.Info("serving", "address", cfg.Listener.Addr().String(), "tls", cfg.Source != nil)
		return provider.Serve(ctx, cfg.Listener, serving)
	})
	return g.Wait()
}

// health is what systemd is told. The lock of the machines is taken, so a provider that is stuck hangs here. Marks that the
// disk does not take are written anew, and a restart mends nothing.
func (p *Provider) health(ctx context.Context, whole bool) sdnotify.Health {
	machines, _ := p.List(ctx) // never fails
	h := sdnotify.Health{Serves: true, Status: fmt.Sprintf("serves %d machines", len(machines))}
	if !whole {
		h.Status = "obeys no shard: the marks of the fence cannot be saved"
	}
	return h
}

// keepMarks writes marks anew that the disk did not take: no shard is obeyed before that.
func (p *Provider) keepMarks(ctx context.Context, marks kept) {
	again := time.NewTicker(rewriteEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		broken := marks.Status().Broken
		if broken == nil {
			continue
		}
		if err := marks.Rewrite(ctx); err != nil {
			p.cfg.Log.Error("the marks of the fence cannot be saved, and no shard is obeyed", "cause", broken,
				"err", err)
			continue
		}
		p.cfg.Log.Info("the marks of the fence were saved anew, and shards are obeyed again")
	}
}

// untilEnd returns nil for what ended because its context did.
func untilEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// refused tells of what the fence refused: a shard that is not in charge is an incident, and
// two that act as one are an alarm.
func (p *Provider) refused(counts *Counts, err error) {
	var reason fence.Reason
	attrs := []any{"err", err}
	if at, ok := errors.AsType[*fence.RefusedError](err); ok {
		reason = at.Reason
		attrs = append(attrs, "holder", at.Holder, "machine", at.Resource)
	} else if at, ok := errors.AsType[*fence.PromiseError](err); ok {
		reason = at.Reason
		attrs = append(attrs, "holder", at.Assignment.Holder, "domain", at.Assignment.Domain)
	}
	counts.refused.WithLabelValues(string(reason)).Inc()
	attrs = append(attrs, "reason", string(reason), "alarm", reason.Alarm())
	level := slog.LevelWarn
	if reason.Fenced() {
		level = slog.LevelError
	}
	p.cfg.Log.Log(context.Background(), level, "the fence refused a shard", attrs...)
}

// handler serves metrics and probes, which carry no authority. The provider is ready as soon
// as it serves, and while its marks can be saved: it needs nothing of anybody.
func (p *Provider) handler(counts *Counts, whole func() bool, output *logging.Writer) http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(counts.registry, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		machines, _ := p.List(r.Context()) // never fails
		counts.machines.Reset()
		for _, m := range machines {
			counts.machines.WithLabelValues(string(m.State)).Inc()
		}
		metrics.ServeHTTP(w, r)
	})
	mux.Handle("GET /probe/liveness", platformmetrics.ProbeHandler(func() bool { return true }, nil))
	mux.Handle("GET /probe/readiness", platformmetrics.ProbeHandler(whole, output.Detail))
	return mux
}
