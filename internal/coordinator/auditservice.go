package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/auditstore"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store"
)

// auditReaders bounds the readers of the audit log at once, those who follow it among them.
const auditReaders = 16

// auditServer serves AuditService.
type auditServer struct {
	fealtyv1.UnimplementedAuditServiceServer
	c *AuditTrail
}

// registerServices registers the service that reads the audit log.
func (c *AuditTrail) registerServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterAuditServiceServer(to, auditServer{c: c})
}

// auditFilter is what somebody wants of the audit log.
type auditFilter struct {
	since, until   time.Time
	member, action string
}

func newAuditFilter(req *fealtyv1.GetAuditRequest) (f auditFilter, err error) {
	for _, t := range []struct {
		field string
		of    *timestamppb.Timestamp
		to    *time.Time
	}{{"since", req.GetSince(), &f.since}, {"until", req.GetUntil(), &f.until}} {
		if t.of == nil {
			continue
		}
		if err := t.of.CheckValid(); err != nil || t.of.GetSeconds() < 0 {
			return f, explain.New(explain.RequestField, "field", t.field, "problem", "it is no time since 1970")
		}
		*t.to = t.of.AsTime()
	}
	f.member, f.action = req.GetMember(), req.GetAction()
	for _, t := range []struct{ field, text string }{{"member", f.member}, {"action", f.action}} {
		if len(t.text) > record.MaxReasonBytes {
			return f, explain.New(explain.RequestField, "field", t.field, "problem",
				fmt.Sprintf("it has %d bytes, above %d", len(t.text), record.MaxReasonBytes))
		}
	}
	if req.GetExact() && (f != auditFilter{} || req.GetFollow() || req.GetOnlyNew()) {
		return f, explain.New(explain.RequestField, "field", "exact", "problem", "what is to be verified is all of the log: give no other field with it")
	}
	return f, nil
}

// wants reports whether e is asked for.
func (f *auditFilter) wants(e *record.AuditEntry) bool {
	named := func(s string) bool { return s == f.member || strings.HasSuffix(s, "/"+f.member) }
	return !e.At.Before(f.since) && (f.until.IsZero() || e.At.Before(f.until)) &&
		(f.member == "" || named(e.Actor) || named(e.Target)) &&
		(f.action == "" || e.Action == f.action || strings.HasPrefix(e.Action, f.action+"."))
}

// GetAudit sends the log. It holds what is behind one checkpoint at a time.
func (a auditServer) GetAudit(req *fealtyv1.GetAuditRequest, stream fealtyv1.AuditService_GetAuditServer) error {
	c, ctx := a.c, stream.Context()
	filter, err := newAuditFilter(req)
	if err != nil {
		return err
	}
	s, err := c.head.ready()
	if err != nil {
		return err
	}
	select {
	case c.auditReading <- struct{}{}:
		defer func() { <-c.auditReading }()
	default:
		return explain.New(explain.RateLimited, "what", "readers of the audit log", "limit", fmt.Sprintf("%d at once", auditReaders))
	}
	head := &fealtyv1.AuditHead{ClusterId: s.Manifest.Cluster}
	if t := c.bundle.trust.Load(); t != nil && req.GetExact() {
		head.TrustBundle, head.ConfigRootKey = t.Signed, s.Bundle.PublicRoot()
	}
	if err := stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Head{Head: head}}); err != nil {
		return err
	}
	if req.GetExact() {
		_, err := auditstore.Read(ctx, c.store, time.Time{}, c.now(), func(i auditstore.Item) error {
			return stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Record{Record: &fealtyv1.AuditRecord{Key: i.Key, Value: i.Value}}})
		})
		return c.auditError(err)
	}
	out := &auditPage{stream: stream, filter: filter}
	var read store.Revision
	if req.GetOnlyNew() {
		l, err := c.store.List(ctx, auditlog.LastKey)
		if err != nil {
			return c.auditError(err)
		}
		read = l.Revision
	} else if read, err = auditstore.Read(ctx, c.store, filter.since, c.now(), out.add); err != nil {
		return c.auditError(err)
	}
	if err := out.flush(); err != nil || !req.GetFollow() {
		return err
	}
	if err := stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Following{Following: &fealtyv1.AuditFollowing{}}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the call
		select {
		case <-c.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	for change, err := range c.store.Changes(ctx, auditPrefix, read) {
		if err != nil {
			return c.auditError(err)
		}
		for _, e := range change.Put {
			if err := out.add(auditstore.Item{Key: e.Key, Value: e.Value}); err != nil {
				return err
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
	return nil
}

// auditError words why the log was not read to its end.
func (c *AuditTrail) auditError(err error) error {
	if err == nil || errors.Is(err, store.ErrClosed) {
		return err
	}
	return c.head.storeError("read the audit log", err)
}

// auditPage sends entries in the order of their times, those of one checkpoint after those of
// the one before.
type auditPage struct {
	stream     fealtyv1.AuditService_GetAuditServer
	filter     auditFilter
	checkpoint uint64
	entries    []*fealtyv1.AuditEntry
	bytes      int
}

// maxAuditPage bounds the entries that are put in order, and maxAuditPageBytes their bytes.
// More of them can only be behind no checkpoint, or of a release before chains.
const (
	maxAuditPage      = 4096
	maxAuditPageBytes = 4 << 20
)

// add takes one record of the log.
func (p *auditPage) add(i auditstore.Item) error {
	if i.Checkpoint != p.checkpoint || len(p.entries) >= maxAuditPage || p.bytes >= maxAuditPageBytes {
		if err := p.flush(); err != nil {
			return err
		}
		p.checkpoint = i.Checkpoint
	}
	if !strings.HasPrefix(i.Key, auditPrefix) {
		return nil // a checkpoint
	}
	e, err := auditlog.Decode(i.Key, i.Value)
	if err != nil {
		// It is shown as what it is: that it is wrong, verify tells.
		e = &record.AuditEntry{Action: "audit.unreadable", Target: i.Key, Reason: err.Error()}
		if chain, number, ok := auditlog.ParseKey(i.Key); ok {
			e.Chain, e.Number = chain, number
		}
	}
	if !p.filter.wants(e) {
		return nil
	}
	m := &fealtyv1.AuditEntry{
		Actor: text(e.Actor), Action: text(e.Action), Target: text(e.Target), Reason: text(e.Reason), Chain: e.Chain, Number: e.Number, Checkpoint: i.Checkpoint,
	}
	if !e.At.IsZero() {
		m.At = timestamppb.New(e.At)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Fields)) {
		m.Fields = append(m.Fields, &fealtyv1.AuditField{Name: text(k), Value: text(e.Fields[k])})
	}
	p.entries, p.bytes = append(p.entries, m), p.bytes+len(i.Value)
	return nil
}

// text returns s as a message takes it: whoever can write to the store can write what is no
// UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func (p *auditPage) flush() error {
	slices.SortStableFunc(p.entries, func(a, b *fealtyv1.AuditEntry) int { return a.GetAt().AsTime().Compare(b.GetAt().AsTime()) })
	for _, e := range p.entries {
		if err := p.stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Entry{Entry: e}}); err != nil {
			return err
		}
	}
	p.entries, p.bytes = nil, 0
	return nil
}

// auditMetrics are what AuditTrail counts.
type auditMetrics struct {
	breaks prometheus.Counter
}

func newAuditMetrics(reg prometheus.Registerer) *auditMetrics {
	m := &auditMetrics{
		breaks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_audit_breaks_total",
			Help: "Places at which the audit log is not what was written.",
		}),
	}
	reg.MustRegister(m.breaks)
	return m
}

// registerMetrics registers what it counts.
func (c *AuditTrail) registerMetrics(reg prometheus.Registerer) {
	c.metrics = newAuditMetrics(reg)
}
