package coordinator_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/succession"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// listening is a member's stream that counts when it was asked to renew.
type listening struct {
	fealtyv1.AgentService_ConnectServer
	ctx   context.Context
	hello *fealtyv1.ConnectRequest

	mu    sync.Mutex
	asked []time.Time // guarded by mu
	ended error       // guarded by mu: how the stream ended; nil while it is open
}

func (l *listening) Context() context.Context { return l.ctx }

func (l *listening) Recv() (*fealtyv1.ConnectRequest, error) {
	l.mu.Lock()
	hello := l.hello
	l.hello = nil
	l.mu.Unlock()
	if hello != nil {
		return hello, nil
	}
	<-l.ctx.Done()
	return nil, io.EOF
}

func (l *listening) SendMsg(m any) error {
	if news, ok := m.(interface{ GetRenewNow() *fealtyv1.RenewNow }); ok && news.GetRenewNow() != nil {
		l.mu.Lock()
		l.asked = append(l.asked, time.Now())
		l.mu.Unlock()
	}
	return nil
}

func (l *listening) times() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

// end is how the stream ended; nil while it is open.
func (l *listening) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// listens opens a stream of the member with a certificate, until the test ends.
func listens(ctx context.Context, d *coordinatortest.Desk, streams *sync.WaitGroup, m *coordinatortest.Machine,
	leaf *x509.Certificate) *listening {
	l := &listening{
		ctx: identity.NewContext(ctx, identity.Peer{ID: m.ID, Leaf: leaf, Key: identity.KeyOf(leaf)}),
		hello: &fealtyv1.ConnectRequest{Name: m.ID.Name(), Held: []*fealtyv1.HeldSnapshot{
			{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: d.State().Head.AuthorityEpoch},
		}},
	}
	streams.Go(func() {
		err := coordinatortest.Served[fealtyv1.AgentServiceServer](d.C.Parts().Delivery.RegisterServices).Connect(l)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = err
	})
	return l
}

// Members that were certified while the store took nothing are asked to renew once it is
// whole again, and nobody else, at a bounded rate, until a record has their certificate.
func TestMembersAreAskedBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		begin, end func(*coordinatortest.MemStore)
		code       errcode.Code
	}{
		"down": {func(m *coordinatortest.MemStore) { m.SetDown(coordinatortest.ErrDown) },
			func(m *coordinatortest.MemStore) { m.SetDown(nil) },
			errcode.StoreUnreachable},
		"full": {func(m *coordinatortest.MemStore) { m.SetFull(true) },
			func(m *coordinatortest.MemStore) { m.SetFull(false) }, errcode.StoreFull},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := coordinatortest.NewDesk(t)
				d.Mu.Lock()
				d.Now = time.Time{} // the bubble's
				d.Mu.Unlock()
				coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries))
				d.C.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter))
				stop := runs(d, t)
				ctx, cancel := context.WithCancel(t.Context())
				var streams sync.WaitGroup
				streams.Go(func() { _ = d.C.Parts().Admission.FollowRecalls(ctx) })
				defer func() { cancel(); streams.Wait(); stop(); coordinatortest.WantOnlyNil(t, d.C.Close()) }()
				var waiting []*coordinatortest.Machine
				for _, name := range []string{"a", "b", "c"} {
					waiting = append(waiting, d.Joined(name))
				}
				other := d.Joined("other")
				time.Sleep(time.Minute)

				o.begin(d.Store)
				time.Sleep(time.Minute)
				var all []*listening
				for _, m := range waiting {
					coordinatortest.WantOutage(t, "a new key", m.Renew(), o.code)
					coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(m))
					all = append(all, listens(ctx, d, &streams, m, m.Leaf))
				}
				calm := listens(ctx, d, &streams, other, other.Leaf)
				time.Sleep(5 * time.Minute)
				for i, l := range all {
					if l.times() != 0 {
						t.Errorf("%s was asked in the outage", waiting[i].ID.Name())
					}
				}
				o.end(d.Store)
				time.Sleep(2*succession.PollPause + 2*admission.RecallPause)
				for i, l := range all {
					if l.times() != 1 {
						t.Errorf("%s was asked %d times right after the outage; its stream ended: %v",
							waiting[i].ID.Name(), l.times(), l.end())
					}
				}
				coordinatortest.WantOnlyNil(t, errors.Join(waiting[0].Renew(), coordinatortest.RenewRecorded(waiting[1])))
				time.Sleep(3*admission.RecallAgain + time.Second)
				if a, b, c := all[0].times(), all[1].times(), all[2].times(); a != 1 || b != 1 || c < 3 || c > 4 {
					t.Errorf("asked %d and %d times after they renewed, and %d times who did not", a, b, c)
				}
				if calm.times() != 0 {
					t.Errorf("who waits for nothing was asked %d times", calm.times())
				}
			})
		})
	}
}

// A call to a store that does not answer waits long once, and then not again until
// it answers.
func TestPatienceEndsWithTheFirstThatWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.NewDesk(t)
		d.Mu.Lock()
		d.Now = time.Time{}
		d.Mu.Unlock()
		coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries))
		d.C.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter))
		stop := runs(d, t)
		defer func() { stop(); coordinatortest.WantOnlyNil(t, d.C.Close()) }()
		m := d.Joined("a")
		time.Sleep(time.Minute)
		d.Store.SetHanging(true)
		d.Store.SetDown(coordinatortest.ErrDown)
		var waits []time.Duration
		for range 3 {
			began := time.Now()
			coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(m))
			waits = append(waits, time.Since(began))
		}
		if waits[0] > authority.StorePatience || waits[1] > authority.StoreImpatience ||
			waits[2] > authority.StoreImpatience {
			t.Errorf("it waited %v", waits)
		}
		d.Store.SetHanging(false)
		d.Store.SetDown(nil)
		time.Sleep(authority.StorePatience + 2*succession.PollPause)
		if !d.C.Parts().Head.StoreAnswers() {
			t.Error("it is impatient although the store answers")
		}
	})
}
