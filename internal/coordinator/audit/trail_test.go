package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// shelf is a store that is read, and that tests fill.
type shelf struct {
	store.Store
	entries map[string]store.Entry
	rev     store.Revision
	down    atomic.Pointer[error]
	commits []store.Tx
	changes chan store.Change
}

func (s *shelf) put(key string, value []byte) {
	s.rev++
	s.entries[key] = store.Entry{Key: key, Value: value, Version: s.rev}
}

// fails is what every call returns.
func (s *shelf) fails() error {
	if err := s.down.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *shelf) Get(_ context.Context, key string) (store.Entry, error) {
	e, ok := s.entries[key]
	if !ok && s.fails() == nil {
		return e, store.ErrNotFound
	}
	return e, s.fails()
}

func (s *shelf) List(_ context.Context, prefix string) (store.Listing, error) {
	l := store.Listing{Revision: s.rev}
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		if strings.HasPrefix(key, prefix) {
			l.Entries = append(l.Entries, s.entries[key])
		}
	}
	return l, s.fails()
}

func (s *shelf) Commit(_ context.Context, tx store.Tx) (store.Revision, error) {
	s.commits = append(s.commits, tx)
	return 0, s.fails()
}

func (s *shelf) Changes(ctx context.Context, _ string, _ store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		for {
			select {
			case c := <-s.changes:
				if !yield(c, nil) {
					return
				}
			case <-ctx.Done():
				yield(store.Change{}, ctx.Err())
				return
			}
		}
	}
}

// desk is a trail, and what it is told.
type desk struct {
	t        *testing.T
	store    *shelf
	now      time.Time
	log      bytes.Buffer
	state    *authority.State
	ready    error
	loss     *health.Loss
	leads    bool
	views    int // how often it was asked for the trust bundle
	stopping chan struct{}
	metrics  *prometheus.Registry
	*audit.Trail
}

func newDesk(t *testing.T) *desk {
	d := &desk{
		t: t, now: time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC), stopping: make(chan struct{}),
		store:   &shelf{entries: make(map[string]store.Entry), changes: make(chan store.Change)},
		state:   &authority.State{Phase: authority.Ready, Manifest: &manifest.Manifest{Cluster: "prod.example"}},
		metrics: prometheus.NewRegistry(),
	}
	d.Trail = audit.New(audit.Config{
		Store: d.store, Losses: losses{d}, Authority: head{d}, Trust: trust{d}, Lead: lead{d}, Stopping: d.stopping,
		Now: func() time.Time { return d.now }, Log: slog.New(slog.NewTextHandler(&d.log, nil)),
		Failures: ratelimit.NewLogSampler(),
	})
	d.RegisterMetrics(d.metrics)
	return d
}

type (
	losses struct{ d *desk }
	head   struct{ d *desk }
	trust  struct{ d *desk }
	lead   struct{ d *desk }
)

func (l losses) Lost() *health.Loss             { return l.d.loss }
func (h head) Ready() (*authority.State, error) { return h.d.state, h.d.ready }
func (h head) StoreError(what string, err error) error {
	return errcode.Wrap(err, errcode.StoreUnreachable, "what", what, "cause", "the log says how", "do", "wait")
}
func (t trust) View() *bundle.View {
	t.d.views++
	return nil
}
func (trust) Changed() <-chan struct{}  { return nil }
func (l lead) Changed() <-chan struct{} { return nil }
func (l lead) Leading() (term uint64, c store.Condition, ok bool) {
	return 5, store.Condition{Key: "leader/term", Version: 5}, l.d.leads
}

// shows puts the note of the last checkpoint.
func (d *desk) shows(number int, hash string) {
	d.store.put(auditlog.LastKey, fmt.Appendf(nil, `{"number":%d,"hash":%q}`, number, strings.Repeat(hash, 32)))
}

// looks looks at the checkpoints, and returns how many breaks were told of so far.
func (d *desk) looks() int {
	d.t.Helper()
	if err := d.Look(d.t.Context(), d.state); err != nil {
		d.t.Fatal(err)
	}
	families, err := d.metrics.Gather()
	if err != nil || len(families) != 1 {
		d.t.Fatalf("%d metrics, %v", len(families), err)
	}
	n := int(families[0].GetMetric()[0].GetCounter().GetValue())
	if logged := strings.Count(d.log.String(), "the audit log was altered"); logged != n {
		d.t.Errorf("%d breaks are logged, and %d counted", logged, n)
	}
	return n
}

// Checkpoints grow: one that is older than what was seen, or another one under its number, is
// told, and is a finding for a week.
func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(d *desk)
		want int
	}{
		{"the same", func(d *desk) {}, 0},
		{"a later one", func(d *desk) { d.shows(8, "cd") }, 0},
		{"an older one", func(d *desk) { d.shows(6, "cd") }, 1},
		{"another one", func(d *desk) { d.shows(7, "cd") }, 1},
		{"none", func(d *desk) { delete(d.store.entries, auditlog.LastKey) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			d.shows(7, "ab")
			if d.looks() != 0 || d.Last(d.state).Number != 7 || d.Findings() != nil {
				t.Fatalf("of the first: %v, it saw %v", d.Findings(), d.Last(d.state))
			}
			tt.then(d)
			if got := d.looks(); got != tt.want || len(d.Findings()) != tt.want {
				t.Errorf("%d breaks are told: %v", got, d.Findings())
			}
			if tt.want == 0 {
				return
			}
			f := d.Findings()[0]
			if f.GetCode() != string(errcode.AuditBroken) || strings.Contains(f.GetSummary(), "{") {
				t.Errorf("it finds %v", f)
			}
			d.now = d.now.Add(7 * 24 * time.Hour)
			if len(d.Findings()) != 1 {
				t.Error("after a week it is no finding")
			}
			if d.now = d.now.Add(time.Second); d.Findings() != nil {
				t.Error("after more than a week it is one")
			}
		})
	}
}

// A break that another coordinator found and wrote down is a finding here too.
func TestBreakOfOthers(t *testing.T) {
	d := newDesk(t)
	d.store.put(auditlog.LastKey, fmt.Appendf(nil,
		`{"number":7,"hash":%q,"broken":{"problem":"entry 3 is gone"},"found":"2026-02-28T09:00:00Z"}`,
		strings.Repeat("ab", 32)))
	if n := d.looks(); n != 0 {
		t.Errorf("it tells %d breaks of its own", n)
	}
	if f := d.Findings(); len(f) != 1 || !strings.Contains(f[0].GetSummary(), "entry 3 is gone") {
		t.Errorf("it finds %v", f)
	}
}

// Nothing is vouched for where this coordinator does not lead or has not read the keys, nor
// before a head moves that is not in force, or while the store lost something.
func TestVouchesForNothing(t *testing.T) {
	d := newDesk(t)
	d.store.put(auditlog.Key("chain/0123456789abcdef/01772355600000000000-0888548b", 1), []byte("{}"))
	for _, leads := range []bool{false, true} {
		d.leads = leads
		if err := d.Checkpoint(t.Context(), d.state, 0); err != nil || d.views > 0 != leads {
			t.Errorf("it leads: %v, %v, and it asked for the keys %d times", leads, err, d.views)
		}
	}
	d.views = 0
	d.BeforeMove(t.Context(), d.state)
	if d.views != 1 {
		t.Errorf("before a head moves it asked for the keys %d times", d.views)
	}
	d.BeforeMove(t.Context(), nil)
	d.BeforeMove(t.Context(), &authority.State{Phase: authority.Recovery})
	d.loss = &health.Loss{}
	d.BeforeMove(t.Context(), d.state)
	if d.views != 1 || len(d.store.commits) != 0 || d.log.Len() > 0 {
		t.Errorf("it asked for the keys %d times and wrote %v; the log: %s", d.views, d.store.commits, &d.log)
	}
}

// A loop looks at once, and then each minute; a store that fails ends it.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.shows(7, "ab")
		ended := make(chan error, 1)
		go func() { ended <- d.Run(t.Context(), d.state) }()
		synctest.Wait()
		if got := d.Last(d.state).Number; got != 7 {
			t.Errorf("it saw checkpoint %d", got)
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
		}
		down := errors.New("down")
		d.store.down.Store(&down)
		time.Sleep(audit.CheckpointPause)
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, down) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("it did not look again")
		}
	})
}

// listener takes what is sent to who reads the log.
type listener struct {
	grpc.ServerStream
	ctx  context.Context
	sent []*fealtyv1.GetAuditResponse
	wake chan struct{}
}

func (l *listener) Context() context.Context { return l.ctx }

func (l *listener) Send(m *fealtyv1.GetAuditResponse) error {
	l.sent = append(l.sent, m)
	if m.GetFollowing() != nil {
		close(l.wake)
	}
	return nil
}

// targets are those of the entries that came, in their order.
func (l *listener) targets() (out []string) {
	for _, m := range l.sent {
		if e := m.GetEntry(); e != nil {
			out = append(out, e.GetTarget())
		}
	}
	return out
}

// service is what d registers.
func (d *desk) service() fealtyv1.AuditServiceServer {
	var r registrar
	d.RegisterServices(&r)
	return r.service
}

type registrar struct{ service fealtyv1.AuditServiceServer }

func (r *registrar) RegisterService(_ *grpc.ServiceDesc, impl any) {
	r.service = impl.(fealtyv1.AuditServiceServer)
}

// read reads the log.
func (d *desk) read(ctx context.Context, req *fealtyv1.GetAuditRequest) (*listener, error) {
	l := &listener{ctx: ctx, wake: make(chan struct{})}
	return l, d.service().GetAudit(req, l)
}

// old puts an entry as a release before chains wrote them.
func (d *desk) old(at time.Time, actor, action, target string) {
	d.store.put(fmt.Sprintf("%s%020d-0011aabb", auditlog.Prefix, at.UnixNano()), fmt.Appendf(nil,
		`{"at":%q,"actor":%q,"action":%q,"target":%q}`, at.Format(time.RFC3339), actor, action, target))
}

// A reader names what it wants, or gets all, in the order of the times.
func TestRead(t *testing.T) {
	d := newDesk(t)
	d.old(d.now.Add(-time.Hour), "operator/ann", "token.create", "one")
	d.old(d.now.Add(-3*time.Hour), "operator/ann", "member.ban", "data/two")
	d.old(d.now.Add(-2*time.Hour), "operator/bob", "member.ban.key", "three")
	for _, tt := range []struct {
		name string
		req  *fealtyv1.GetAuditRequest
		want []string
	}{
		{"all", &fealtyv1.GetAuditRequest{}, []string{"data/two", "three", "one"}},
		{"an action and what is below it", &fealtyv1.GetAuditRequest{Action: "member.ban"},
			[]string{"data/two", "three"}},
		{"no action that only begins so", &fealtyv1.GetAuditRequest{Action: "member.b"}, nil},
		{"a member that did it", &fealtyv1.GetAuditRequest{Member: "ann"}, []string{"data/two", "one"}},
		{"a member to whom it was done", &fealtyv1.GetAuditRequest{Member: "two"}, []string{"data/two"}},
		{"since", &fealtyv1.GetAuditRequest{Since: timestamppb.New(d.now.Add(-2 * time.Hour))},
			[]string{"three", "one"}},
		{"until", &fealtyv1.GetAuditRequest{Until: timestamppb.New(d.now.Add(-2 * time.Hour))}, []string{"data/two"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := d.read(t.Context(), tt.req)
			if err != nil || !slices.Equal(l.targets(), tt.want) {
				t.Errorf("%v, %v, want %v", l.targets(), err, tt.want)
			}
			if head := l.sent[0].GetHead(); head.GetClusterId() != "prod.example" {
				t.Errorf("it begins with %v", l.sent[0])
			}
		})
	}
	t.Run("exactly", func(t *testing.T) {
		l, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{Exact: true})
		if err != nil || len(l.sent) != 4 || len(l.sent[1].GetRecord().GetValue()) == 0 {
			t.Errorf("%v, %v", l.sent, err)
		}
	})
	t.Run("what is no text", func(t *testing.T) {
		d := newDesk(t)
		d.store.put(fmt.Sprintf("%s%020d-0011aabb", auditlog.Prefix, d.now.UnixNano()), []byte("{\xff"))
		l, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{})
		if err != nil || len(l.sent) != 2 || l.sent[1].GetEntry().GetAction() != "audit.unreadable" {
			t.Errorf("%v, %v", l.sent, err)
		}
	})
}

// A filter that nobody can mean is refused by its field, and nothing is sent.
func TestReadRefuses(t *testing.T) {
	d := newDesk(t)
	for name, req := range map[string]*fealtyv1.GetAuditRequest{
		"a time before 1970":  {Since: &timestamppb.Timestamp{Seconds: -1}},
		"no time":             {Until: &timestamppb.Timestamp{Nanos: -1}},
		"a long name":         {Member: strings.Repeat("x", 1<<10)},
		"a long action":       {Action: strings.Repeat("x", 1<<10)},
		"exactly some of it":  {Exact: true, Action: "member"},
		"exactly what comes":  {Exact: true, Follow: true},
		"exactly what is new": {Exact: true, OnlyNew: true},
	} {
		if l, err := d.read(t.Context(), req); !errors.Is(err, errcode.RequestField) || len(l.sent) > 0 {
			t.Errorf("%s: %v, sent %v", name, err, l.sent)
		}
	}
	d.ready = errcode.New(errcode.HistoryUninitialized)
	if _, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{}); !errors.Is(err, errcode.HistoryUninitialized) {
		t.Errorf("without a head: %v", err)
	}
	d.ready = nil
	d.store.down.Store(&io.ErrUnexpectedEOF)
	if _, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{}); !errors.Is(err, errcode.StoreUnreachable) {
		t.Errorf("without a store: %v", err)
	}
}

// A follower gets what comes, until the coordinator stops; there is a bound on them.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.old(d.now, "ann", "token.create", "before")
		ends := make(chan error, audit.MaxReaders)
		var all []*listener
		for range audit.MaxReaders {
			l := &listener{ctx: t.Context(), wake: make(chan struct{})}
			all = append(all, l)
			go func() { ends <- d.service().GetAudit(&fealtyv1.GetAuditRequest{Follow: true, OnlyNew: true}, l) }()
			<-l.wake
		}
		_, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{})
		if !errors.Is(err, errcode.RateLimited) {
			t.Errorf("one more: %v", err)
		}
		key := fmt.Sprintf("%s%020d-0011aabb", auditlog.Prefix, d.now.UnixNano())
		for range all {
			d.store.changes <- store.Change{Put: []store.Entry{{Key: key, Value: []byte(`{"target":"after"}`)}}}
			synctest.Wait()
		}
		close(d.stopping)
		for range all {
			<-ends
		}
		got := 0
		for _, l := range all {
			got += len(l.targets())
			if slices.Contains(l.targets(), "before") {
				t.Error("what was there before is sent to who wants what is new")
			}
		}
		if got != len(all) {
			t.Errorf("%d entries came, want %d", got, len(all))
		}
		if _, err := d.read(t.Context(), &fealtyv1.GetAuditRequest{}); err != nil {
			t.Errorf("after them: %v", err)
		}
	})
}

// Its one metric is there from the start.
func TestMetrics(t *testing.T) {
	d := newDesk(t)
	if n, err := testutil.GatherAndCount(d.metrics, "fealty_audit_breaks_total"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
