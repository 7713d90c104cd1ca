package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/snapshot"
)

// MaxBatch is how many workloads one call may be about.
const MaxBatch = 64

// WorkloadsConfig is what Workloads are made of.
type WorkloadsConfig struct {
	Head        *authority.Head
	Bundle      *current.Current
	Publication *publication.Publication
	Asking      member.Asking
	Log         *slog.Logger
	Now         func() time.Time
}

// Workloads serve WorkloadService. Make them with [NewWorkloads].
type Workloads struct {
	cfg      WorkloadsConfig
	outcomes *prometheus.CounterVec
}

// NewWorkloads returns Workloads that certified none yet.
func NewWorkloads(cfg WorkloadsConfig) *Workloads {
	return &Workloads{cfg: cfg, outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_workload_certificates_total",
		Help: "Certificates and tokens that members asked for in the name of workloads, by what was asked for " +
			"and the outcome.",
	}, []string{"what", "outcome"})}
}

// RegisterMetrics registers what they count.
func (w *Workloads) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(w.outcomes) }

// RegisterServices registers the service that certifies workloads.
func (w *Workloads) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterWorkloadServiceServer(to, server{w: w})
}

type server struct {
	fealtyv1.UnimplementedWorkloadServiceServer
	w *Workloads
}

// CertifyWorkloads certifies keys for workloads of the caller.
func (r server) CertifyWorkloads(ctx context.Context,
	req *fealtyv1.CertifyWorkloadsRequest) (*fealtyv1.CertifyWorkloadsResponse, error) {
	w, peer := r.w, identity.FromContext(ctx)
	if _, err := w.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := bounded(len(req.GetWorkloads()), "workloads"); err != nil {
		return nil, err
	}
	v, err := w.vouching(ctx, peer)
	if err != nil {
		return nil, err
	}
	out := new(fealtyv1.CertifyWorkloadsResponse)
	for _, one := range req.GetWorkloads() {
		chain, err := w.certify(v, peer, one)
		if err != nil {
			w.refused(ctx, peer, "certificate", one.GetWorkload(), err)
			out.Certificates = append(out.Certificates, &fealtyv1.WorkloadCertificate{Refusal: err.Error()})
			continue
		}
		w.outcomes.WithLabelValues("certificate", "given").Inc()
		out.Certificates = append(out.Certificates, &fealtyv1.WorkloadCertificate{Chain: chain})
	}
	return out, nil
}

func bounded(n int, field string) error {
	if n == 0 || n > MaxBatch {
		return errcode.New(errcode.RequestField, "field", field, "problem",
			fmt.Sprintf("it has %d entries, want 1 to %d", n, MaxBatch))
	}
	return nil
}

func (w *Workloads) refused(ctx context.Context, peer identity.Peer, what, name string, err error) {
	w.outcomes.WithLabelValues(what, "refused").Inc()
	w.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a workload is not vouched for", slog.String("member", peer.ID.String()),
		slog.String("what", what), slog.String("workload", clip(name)), slog.String("reason", err.Error()))
}

func clip(s string) string { return s[:min(len(s), 128)] }

// vouching is what a member may vouch for now, under the head in force.
type vouching struct {
	state      *authority.State
	registered map[string]workload.Registration // by the name of the workload
}

var errSilent = errors.New("the store does not answer")

// vouching returns what peer may vouch for. It asks the store nothing: what is published is in
// memory, and a coordinator that was not shown the head for too long certifies nobody.
func (w *Workloads) vouching(ctx context.Context, peer identity.Peer) (*vouching, error) {
	s, err := w.cfg.Head.DegradedState("what workloads are given", errSilent)
	if err != nil {
		return nil, err
	}
	if !w.cfg.Head.Acts(s) {
		return nil, errcode.New(errcode.HeadNotFollowed)
	}
	if _, err := w.cfg.Asking.Allow(ctx); err != nil {
		return nil, err
	}
	if w.cfg.Bundle.Bans(peer.ID, peer.Key) || w.cfg.Bundle.Withdrawn(record.PathOf(peer.ID)) {
		return nil, errcode.New(errcode.JoinBanned, "identity", peer.ID.String())
	}
	v := &vouching{state: s, registered: make(map[string]workload.Registration)}
	services, err := w.assigned(peer.ID)
	if err != nil {
		return nil, err
	}
	view := w.cfg.Bundle.View()
	registrations, _ := workload.Registrations(s.Manifest.Cluster, services)
	for _, r := range registrations {
		if view != nil && view.Revoked.Revokes(internalsnapshot.RevokedService, r.Service) {
			continue
		}
		if have, ok := v.registered[r.ID.Name()]; ok {
			r.TTL = min(r.TTL, have.TTL)
		}
		v.registered[r.ID.Name()] = r
	}
	return v, nil
}

// assigned returns the services of a member as they are published.
func (w *Workloads) assigned(id identity.ID) ([]snapshot.Service, error) {
	p := w.cfg.Publication.View()
	if !p.Serves() || p.Behind() && !w.cfg.Now().Before(p.State.Value.FreshUntil) {
		return nil, nil // what was assigned once, and nobody can say it still is, certifies nobody
	}
	for _, i := range p.Of(id.Kind(), id.Name()) {
		if p.Header(i).Scope != snapshot.ScopeServiceAssignment {
			continue
		}
		var a snapshot.ServiceAssignment
		content := p.Content(p.Header(i).Header.Content)
		if err := snapshot.Decode(snapshot.ScopeServiceAssignment, content, &a); err != nil {
			return nil, fmt.Errorf("read what is published for %s: %w", id, errors.Unwrap(err)) // this says what Decode says around it
		}
		return a.Services, nil
	}
	return nil, nil
}

// errUnassigned says the same of a workload that there is not and of one that is another's.
var errUnassigned = errors.New("no service that is assigned to this member registers it: check the workload " +
	"field of the service's record, and on which members it runs")

func (w *Workloads) certify(v *vouching, peer identity.Peer, one *fealtyv1.WorkloadRequest) ([][]byte, error) {
	r, ok := v.registered[one.GetWorkload()]
	if !ok {
		return nil, errUnassigned
	}
	key, err := pki.ParseCSR(one.GetCsr())
	if err != nil {
		return nil, err
	}
	keyID, err := identity.KeyOfPublic(key)
	if err != nil {
		return nil, err
	}
	if w.cfg.Bundle.Bans(r.ID, keyID) {
		return nil, errors.New("the workload or its key is banned")
	}
	now := w.cfg.Now()
	until := now.Add(min(r.TTL, v.state.Manifest.LongestSVIDTTL()))
	if last := peer.Leaf.NotAfter; last.Before(until) {
		until = last
	}
	until = until.Truncate(time.Second)
	if until.Sub(now) < time.Second {
		return nil, errors.New("the certificate of the member ends: it has to be renewed first")
	}
	return v.state.IssueWorkload(key, r.ID, internalidentity.VoucherName(record.PathOf(peer.ID), peer.Key.String()),
		until, now)
}
