package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// processOf opens streams of a machine's process, one after the other, as an agent does:
// a stream that was ended for another process comes back after a while.
type processOf struct {
	d      *coordinatortest.Desk
	run    string
	ctx    context.Context
	ended  chan error
	listen *listening
}

func process(ctx context.Context, d *coordinatortest.Desk, m *coordinatortest.Machine, n int) *processOf {
	p := &processOf{d: d, run: fmt.Sprintf("%032x", n), ended: make(chan error, 1)}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(ctx)
	_ = cancel // it ends with ctx
	p.listen = &listening{
		ctx: identity.NewContext(p.ctx, identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf),
			Addr: fmt.Sprintf("192.0.2.%d:4711", n)}),
		hello: &fealtyv1.ConnectRequest{Name: m.ID.Name(), Run: p.run, Held: []*fealtyv1.HeldSnapshot{
			{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: d.State().Head.AuthorityEpoch},
		}},
	}
	return p
}

func (p *processOf) connect(streams *sync.WaitGroup, at *coordinator.Coordinator) *processOf {
	streams.Go(func() {
		p.ended <- coordinatortest.Served[fealtyv1.AgentServiceServer](at.Parts().Delivery.RegisterServices).Connect(
			p.listen)
	})
	return p
}

func alarms(d *coordinatortest.Desk) int {
	return int(coordinatortest.CounterOf(d.C.Registry(), "fealty_clone_alarms_total"))
}

// copyDesk runs fn with a desk in a bubble, one member a, and the streams that it opens.
func copyDesk(t *testing.T, fn func(t *testing.T, d *coordinatortest.Desk, ctx context.Context,
	streams *sync.WaitGroup, a *coordinatortest.Machine)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.NewDesk(t)
		d.Mu.Lock()
		d.Now = time.Time{}
		d.Mu.Unlock()
		coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries))
		d.C.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter))
		stop := runs(d, t)
		ctx, cancel := context.WithCancel(t.Context())
		var streams sync.WaitGroup
		defer func() { cancel(); streams.Wait(); stop(); coordinatortest.WantOnlyNil(t, d.C.Close()) }()
		fn(t, d, ctx, &streams, d.Joined("a"))
	})
}

// Two machines with one folder take the place of each other: within a minute that is an
// alarm, in status too, and the member is served all the while.
func TestCopiedFolderAlarms(t *testing.T) {
	copyDesk(t, func(t *testing.T, d *coordinatortest.Desk, ctx context.Context, streams *sync.WaitGroup,
		a *coordinatortest.Machine) {
		began := time.Now()
		serving := process(ctx, d, a, 1).connect(streams, d.C)
		for n := 2; alarms(d) == 0; n++ {
			if time.Since(began) > time.Minute {
				t.Fatal("no alarm within a minute")
			}
			synctest.Wait()
			next := process(ctx, d, a, 1+(n+1)%2).connect(streams, d.C)
			synctest.Wait()
			select {
			case err := <-serving.ended:
				if !errors.Is(err, errcode.StreamReplaced) {
					t.Fatalf("the stream before ended with %v", err)
				}
			default:
				t.Fatal("two streams of one member stand")
			}
			serving = next
			time.Sleep(15 * time.Second)
		}
		select {
		case err := <-serving.ended:
			t.Errorf("the member is served no more: %v", err)
		default:
		}
		found := coordinatortest.FindingsAt(d, t, errcode.MemberCopied)
		if len(found) != 1 || !strings.Contains(found[0].GetSummary(), "data/a") ||
			!strings.Contains(found[0].GetSummary(), "192.0.2.1:4711") ||
			!strings.Contains(found[0].GetSummary(), "192.0.2.2:4711") {
			t.Errorf("findings %v", found)
		}
		// The audit log has it once, however long the two go on.
		for n := range 4 {
			process(ctx, d, a, 1+n%2).connect(streams, d.C)
			time.Sleep(15 * time.Second)
		}
		synctest.Wait()
		if n := alarms(d); n < 4 {
			t.Errorf("%d alarms", n)
		}
		entries := coordinatortest.AuditedIn(t, d.Store, "member.copied")
		if len(entries) != 1 || entries[0].Target != "data/a" || !strings.Contains(entries[0].Fields["from"], "192.0.2.1:4711") ||
			!strings.Contains(entries[0].Fields["from"], "192.0.2.2:4711") ||
			!strings.HasSuffix(entries[0].Actor, "/coordinator/coordinator-1") {
			t.Errorf("the audit log has %+v", entries)
		}
		time.Sleep(15 * time.Minute)
		if found := coordinatortest.FindingsAt(d, t, errcode.MemberCopied); len(found) != 0 {
			t.Errorf("told for ever: %v", found)
		}
	})
}

// One machine that comes back, rotates its key, restarts and goes to another coordinator
// is not taken for two.
func TestOneMachineIsNoCopy(t *testing.T) {
	copyDesk(t, func(t *testing.T, d *coordinatortest.Desk, ctx context.Context, streams *sync.WaitGroup,
		_ *coordinatortest.Machine) {
		// With certificates of an hour it may renew every other minute.
		coordinatortest.WantOnlyNil(t,
			d.Set("  - {name: pool, kind: data, match: [\"token:pool\"], svid_ttl: 1h}\ndegraded: {max: 10m}\n"))
		a := d.Joined("hourly")
		run, connects := 1, testlane.Rounds(100, 1000)
		for n := range connects {
			switch {
			case n%7 == 3:
				run++ // its process was restarted
			case n%10 == 5:
				time.Sleep(2 * time.Minute)
				coordinatortest.WantOnlyNil(t, a.Renew())
			case n%11 == 6: // what another coordinator tells of it
				_, err := coordinatortest.Served[fealtyv1.LiveServiceServer](
					d.C.Parts().Membership.RegisterServices).NoteStreams(
					ctx,
					&fealtyv1.NoteStreamsRequest{Streams: []*fealtyv1.OpenedStream{{Member: "data/hourly",
						Run: fmt.Sprintf("%032x", run)}}})
				coordinatortest.WantOnlyNil(t, err)
			}
			p := process(ctx, d, a, run).connect(streams, d.C)
			synctest.Wait()
			select {
			case err := <-p.ended:
				t.Fatalf("stream %d ended with %v", n, err)
			default:
			}
			time.Sleep(time.Duration(n%5) * time.Second)
		}
		if n := alarms(d); n != 0 || len(coordinatortest.FindingsAt(d, t, errcode.MemberCopied)) != 0 {
			t.Errorf("%d alarms of one machine", n)
		}
	})
}

// A copy from before renewals is refused once the newer key was in use, and raises the
// alarm: by a stream and by a poll. The key before the newest may be on its way.
func TestOlderKeyIsRefused(t *testing.T) {
	copyDesk(t, func(t *testing.T, d *coordinatortest.Desk, ctx context.Context, streams *sync.WaitGroup,
		a *coordinatortest.Machine) {
		presents := func(m *coordinatortest.Machine) error {
			return d.C.Parts().Membership.Presents(ctx,
				identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
		}
		first := *a
		coordinatortest.WantOnlyNil(t, presents(a))
		time.Sleep(30 * time.Minute)
		coordinatortest.WantOnlyNil(t, a.Renew())
		// Nobody has seen the newer key: its answer may be lost.
		coordinatortest.WantOnlyNil(t, presents(&first))
		coordinatortest.WantOnlyNil(t, presents(a))
		coordinatortest.WantOnlyNil(t, presents(&first)) // it was on its way
		if alarms(d) != 0 {
			t.Fatal("an alarm of a renewal")
		}
		time.Sleep(member.NewKeySettles)
		p := process(ctx, d, &first, 9).connect(streams, d.C)
		if err := <-p.ended; !errors.Is(err, errcode.RenewOlderKey) || alarms(d) != 1 {
			t.Fatalf("the stream of a copy: %v, %d alarms", err, alarms(d))
		}
		coordinatortest.WantOnlyNil(t, presents(a))

		// Two renewals behind, at a coordinator that never saw the newer keys in use.
		time.Sleep(30 * time.Minute)
		coordinatortest.WantOnlyNil(t, a.Renew())
		d.C.Parts().Membership.Live().Forget(a.ID)
		if err := presents(&first); !errors.Is(err, errcode.RenewOlderKey) || alarms(d) != 2 {
			t.Errorf("a key two renewals behind: %v, %d alarms", err, alarms(d))
		}

		// An outage finds nothing out: a key that this coordinator never heard of passes.
		stranger := *a
		stranger.Leaf = first.Leaf
		d.Store.SetDown(coordinatortest.ErrDown)
		rec, _ := d.C.Parts().Membership.Roster().Find("data/a")
		rec.Key, rec.Older = identity.KeyID{1}, nil
		d.C.Parts().Membership.Roster().Put(rec, 1<<40)
		coordinatortest.WantOnlyNil(t, presents(&stranger))
		d.Store.SetDown(nil)
	})
}

// A stream gives way to one of another process at another coordinator, and to none of its
// own.
func TestStreamsGiveWayElsewhere(t *testing.T) {
	copyDesk(t, func(t *testing.T, d *coordinatortest.Desk, ctx context.Context, streams *sync.WaitGroup,
		a *coordinatortest.Machine) {
		note := func(member, run string) {
			t.Helper()
			_, err := coordinatortest.Served[fealtyv1.LiveServiceServer](
				d.C.Parts().Membership.RegisterServices).NoteStreams(
				ctx,
				&fealtyv1.NoteStreamsRequest{Streams: []*fealtyv1.OpenedStream{{Member: member, Run: run}}})
			coordinatortest.WantOnlyNil(t, err)
			synctest.Wait()
		}
		p := process(ctx, d, a, 1).connect(streams, d.C)
		synctest.Wait()
		note("data/a", p.run)
		note("data/a", "not a process")
		note("data/none", fmt.Sprintf("%032x", 2))
		select {
		case err := <-p.ended:
			t.Fatalf("it ended with %v", err)
		default:
		}
		note("data/a", fmt.Sprintf("%032x", 2))
		if err := <-p.ended; !errors.Is(err, errcode.StreamReplaced) {
			t.Errorf("it ended with %v", err)
		}
		if _, err := (coordinatortest.Served[fealtyv1.LiveServiceServer](
			d.C.Parts().Membership.RegisterServices)).NoteStreams(ctx,
			&fealtyv1.NoteStreamsRequest{Streams: make([]*fealtyv1.OpenedStream,
				member.OpeningsPage+1)}); !errors.Is(err,
			errcode.RequestField) {
			t.Errorf("too many at once: %v", err)
		}
	})
}
