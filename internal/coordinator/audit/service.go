package audit

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

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// MaxReaders bounds the readers of the audit log at once, those who follow it among them.
const MaxReaders = 16

// server serves AuditService.
type server struct {
	fealtyv1.UnimplementedAuditServiceServer
	t *Trail
}

// RegisterServices registers the service that reads the audit log.
func (t *Trail) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterAuditServiceServer(to, server{t: t})
}

// filter is what somebody wants of the audit log.
type filter struct {
	since, until   time.Time
	member, action string
}

func newFilter(req *fealtyv1.GetAuditRequest) (f filter, err error) {
	for _, t := range []struct {
		field string
		of    *timestamppb.Timestamp
		to    *time.Time
	}{{"since", req.GetSince(), &f.since}, {"until", req.GetUntil(), &f.until}} {
		if t.of == nil {
			continue
		}
		if err := t.of.CheckValid(); err != nil || t.of.GetSeconds() < 0 {
			return f, errcode.New(errcode.RequestField, "field", t.field, "problem", "it is no time since 1970")
		}
		*t.to = t.of.AsTime()
	}
	f.member, f.action = req.GetMember(), req.GetAction()
	for _, t := range []struct{ field, text string }{{"member", f.member}, {"action", f.action}} {
		if len(t.text) > record.MaxReasonBytes {
			return f, errcode.New(errcode.RequestField, "field", t.field, "problem",
				fmt.Sprintf("it has %d bytes, above %d", len(t.text), record.MaxReasonBytes))
		}
	}
	if req.GetExact() && (f != filter{} || req.GetFollow() || req.GetOnlyNew()) {
		return f, errcode.New(errcode.RequestField, "field", "exact", "problem",
			"what is to be verified is all of the log: give no other field with it")
	}
	return f, nil
}

// wants reports whether e is asked for.
func (f *filter) wants(e *record.AuditEntry) bool {
	named := func(s string) bool { return s == f.member || strings.HasSuffix(s, "/"+f.member) }
	return !e.At.Before(f.since) && (f.until.IsZero() || e.At.Before(f.until)) &&
		(f.member == "" || named(e.Actor) || named(e.Target)) &&
		(f.action == "" || e.Action == f.action || strings.HasPrefix(e.Action, f.action+"."))
}

// GetAudit sends the log. It holds what is behind one checkpoint at a time.
func (a server) GetAudit(req *fealtyv1.GetAuditRequest, stream fealtyv1.AuditService_GetAuditServer) error {
	t, ctx := a.t, stream.Context()
	filter, err := newFilter(req)
	if err != nil {
		return err
	}
	s, err := t.cfg.Authority.Ready()
	if err != nil {
		return err
	}
	select {
	case t.readers <- struct{}{}:
		defer func() { <-t.readers }()
	default:
		return errcode.New(errcode.RateLimited, "what", "readers of the audit log", "limit",
			fmt.Sprintf("%d at once", MaxReaders))
	}
	head := &fealtyv1.AuditHead{ClusterId: s.Manifest.Cluster}
	if view := t.cfg.Trust.View(); view != nil && req.GetExact() {
		head.TrustBundle, head.ConfigRootKey = view.Signed, s.Bundle.PublicRoot()
	}
	if err := stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Head{Head: head}}); err != nil {
		return err
	}
	if req.GetExact() {
		_, err := auditlogstore.Read(ctx, t.cfg.Store, time.Time{}, t.cfg.Now(), func(i auditlogstore.Item) error {
			return stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Record{
				Record: &fealtyv1.AuditRecord{Key: i.Key, Value: i.Value}}})
		})
		return t.readError(err)
	}
	out := &page{stream: stream, filter: filter}
	var read store.Revision
	if req.GetOnlyNew() {
		l, err := t.cfg.Store.List(ctx, auditlog.LastKey)
		if err != nil {
			return t.readError(err)
		}
		read = l.Revision
	} else if read, err = auditlogstore.Read(ctx, t.cfg.Store, filter.since, t.cfg.Now(), out.add); err != nil {
		return t.readError(err)
	}
	if err := out.flush(); err != nil || !req.GetFollow() {
		return err
	}
	err = stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Following{
		Following: &fealtyv1.AuditFollowing{}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the call
		select {
		case <-t.cfg.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	for change, err := range t.cfg.Store.Changes(ctx, auditlog.Prefix, read) {
		if err != nil {
			return t.readError(err)
		}
		for _, e := range change.Put {
			if err := out.add(auditlogstore.Item{Key: e.Key, Value: e.Value}); err != nil {
				return err
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
	return nil
}

// readError words why the log was not read to its end.
func (t *Trail) readError(err error) error {
	if err == nil || errors.Is(err, store.ErrClosed) {
		return err
	}
	return t.cfg.Authority.StoreError("read the audit log", err)
}

// page sends entries in the order of their times, those of one checkpoint after those of
// the one before.
type page struct {
	stream     fealtyv1.AuditService_GetAuditServer
	filter     filter
	checkpoint uint64
	entries    []*fealtyv1.AuditEntry
	bytes      int
}

// maxPageEntries bounds the entries that are put in order, and maxPageBytes their bytes.
// More of them can only be behind no checkpoint, or of a release before chains.
const (
	maxPageEntries = 4096
	maxPageBytes   = 4 << 20
)

// add takes one record of the log.
func (p *page) add(i auditlogstore.Item) error {
	if i.Checkpoint != p.checkpoint || len(p.entries) >= maxPageEntries || p.bytes >= maxPageBytes {
		if err := p.flush(); err != nil {
			return err
		}
		p.checkpoint = i.Checkpoint
	}
	if !strings.HasPrefix(i.Key, auditlog.Prefix) {
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
		Actor: text(e.Actor), Action: text(e.Action), Target: text(e.Target), Reason: text(e.Reason),
		Chain: e.Chain, Number: e.Number, Checkpoint: i.Checkpoint,
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

func (p *page) flush() error {
	slices.SortStableFunc(p.entries, func(a, b *fealtyv1.AuditEntry) int {
		return a.GetAt().AsTime().Compare(b.GetAt().AsTime())
	})
	for _, e := range p.entries {
		err := p.stream.Send(&fealtyv1.GetAuditResponse{Part: &fealtyv1.GetAuditResponse_Entry{Entry: e}})
		if err != nil {
			return err
		}
	}
	p.entries, p.bytes = nil, 0
	return nil
}
