package election_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/leader"
	"github.com/fealty-io/fealty/test/wait"
)

// TestLeadership runs three coordinators on a store of each engine.
func TestLeadership(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		run  func(t *testing.T, open func() store.Store)
	}{
		{"another leads after a kill", testAnotherLeadsAfterAKill},
		{"the late write of a paused leader fails in the store", testLateWriteOfAPausedLeader},
		{"transfer, and a leader that stops", testTransfer},
		{"outage", testNobodyLeadsInAnOutage},
	}
	for _, engine := range []string{"sqlite", "postgres", "etcd"} {
		t.Run(engine, func(t *testing.T) {
			database := coordinatortest.OpenOn(t, engine)
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) { test.run(t, database(t)) })
			}
		})
	}
}

// longLease is for what must not wait for the end of a lease: within leadPatience no
// lease ends.
func longLease(cfg *coordinator.Config) {
	cfg.Timing.Lease, cfg.Timing.Beat = leader.MaxLease, election.DefaultBeat/2
}

// A beat arrives after the lease of the one before: who found meanwhile that nobody leads
// here, and waits for news, hears that it does. And an outage of the store is told now and
// then, not with every beat.
func TestLateBeatIsNews(t *testing.T) {
	t.Parallel()
	d := coordinatortest.UnopenedDesk(t)
	var log bytes.Buffer
	d.Alter = func(c *coordinator.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }
	d.Open()
	if err := d.Set(coordinatortest.PoolEntries); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	term, _, ok := d.C.Parts().Election.Leading()
	if !ok {
		t.Fatal("it does not lead")
	}
	d.Store.SetDown(coordinatortest.ErrDown)
	for ok {
		d.Pass(10 * time.Millisecond)
		d.C.Parts().Election.Step(ctx)
		_, _, ok = d.C.Parts().Election.Leading()
	}
	if n := strings.Count(log.String(), "did not take or tell"); n != 1 {
		t.Errorf("the log says %d times that the store does not answer: %s", n, log.String())
	}
	d.Store.SetDown(nil)
	d.Lead(d.C)
	var news <-chan struct{} // of who looked while the beat was on its way
	d.Store.Intercept(func(tx store.Tx) {
		if news != nil || len(tx.Put) == 0 || tx.Put[0].Key != election.BeatKey {
			return
		}
		d.Lapse()
		if _, _, ok := d.C.Parts().Election.Leading(); ok {
			t.Error("it leads beyond its lease")
		}
		news = d.C.Parts().Election.Changed()
	})
	d.Pass(election.DefaultBeat)
	for range 3 {
		d.C.Parts().Election.Step(ctx)
		d.Pass(election.DefaultBeat)
	}
	d.Store.Intercept(nil)
	if again, _, ok := d.C.Parts().Election.Leading(); !ok || again != term {
		t.Fatalf("it leads under %d: %v, want %d", again, ok, term)
	}
	select {
	case <-news:
	default:
		t.Error("nobody hears that it leads again")
	}
}

// seenReads is a store that calls read for each read below a prefix, before its answer.
type seenReads struct {
	store.Store
	prefix string
	read   func()
}

func (s seenReads) List(ctx context.Context, prefix string) (store.Listing, error) {
	l, err := s.Store.List(ctx, prefix)
	if prefix == s.prefix {
		s.read() // l may be old by now
	}
	return l, err
}

// A notice to look at who leads is followed at once, whatever the loop does just then: it
// reads the store for an earlier one, or has another state to look at as well.
func TestNoticeWhileTheLoopIsBusy(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		busy string
		want int64 // reads for what was told
	}{{"reads", 2}, {"beats", 1}} {
		t.Run(tc.busy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int64
				var next atomic.Pointer[string] // what the loop is to be told at; nil: nothing
				d := coordinatortest.UnopenedDesk(t)
				at := func(what string) (told bool) {
					if p := next.Load(); p == nil || *p != what {
						return false
					}
					next.Store(nil)
					d.C.Parts().Election.LookAgain()
					return true
				}
				d.Alter = func(c *coordinator.Config) {
					start := time.Now()
					c.Machine.Elapsed = func() time.Duration { return time.Since(start) }
					c.Store = seenReads{c.Store, election.Prefix, func() { reads.Add(1); at("reads") }}
				}
				d.Open()
				coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries))
				d.Store.Intercept(func(tx store.Tx) {
					if tx.Put[0].Key == election.BeatKey && at("beats") {
						d.C.Parts().Head.Put(d.State(), time.Time{})
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- d.C.Parts().Election.Run(ctx) }()
				defer func() {
					cancel()
					if err := <-ended; !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					coordinatortest.WantOnlyNil(t, d.C.Close())
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				for range 20 { // what a select takes is a matter of luck
					reads.Store(0)
					next.Store(&tc.busy)
					if tc.busy == "reads" {
						d.C.Parts().Election.LookAgain()
					} else {
						time.Sleep(3 * election.DefaultBeat)
					}
					synctest.Wait()
					if n := reads.Load(); n != tc.want {
						t.Fatalf("who leads was read %d times, want %d", n, tc.want)
					}
				}
			})
		})
	}
}

// Nobody waits for a lease where there was no leader, nor for the one of an earlier life.
func TestFirstStartAndRestartLeadAtOnce(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, longLease)
	_, first, _ := coordinatortest.AwaitLeader(t, f)
	for _, how := range []struct {
		name string
		end  func()
	}{{"stopped", f.Stop}, {"killed", f.Kill}} {
		how.end()
		f.Start()
		_, term, _ := coordinatortest.AwaitLeader(t, f)
		if term <= first {
			t.Errorf("%s: term %d comes after %d", how.name, term, first)
		}
		first = term
	}
}

// The leader publishes, the others follow, and after a kill the next one goes on,
// while joins are served all the time.
func testAnotherLeadsAfterAKill(t *testing.T, open func() store.Store) {
	all := coordinatortest.Coordinators(t, open)
	all[0].Member("n1")
	for _, f := range all {
		coordinatortest.AwaitTold(f, "data/n1")
	}
	// On a busy machine a lease may run out at any time, this one between here and the kill too.
	leader, term, others := coordinatortest.AwaitLeader(t, all...)
	led := coordinatortest.AwaitSeen(leader, func(l *fealtyv1.Leader) bool { return l.GetTerm() >= term && l.GetSince() != nil })
	leader.Kill()
	others[0].Member("n2") // nobody has to lead for that
	coordinatortest.AwaitAgreed(t, term, others...)
	for _, f := range others {
		coordinatortest.AwaitTold(f, "data/n2")
		// A lease that ran out on a busy machine has nobody lead for a while.
		l := coordinatortest.AwaitSeen(f, func(l *fealtyv1.Leader) bool { return l.GetTerm() > term && l.GetSince() != nil })
		before, since := led.GetSince().AsTime(), l.GetSince().AsTime()
		if l.GetTerm() > led.GetTerm() && !since.After(before) || since.After(time.Now()) {
			t.Errorf("somebody leads since %v, and the one of before since %v", since, before)
		}
	}
	leader.Start()
	leader.Await(authority.Ready)
	coordinatortest.AwaitTold(leader, "data/n2")
	coordinatortest.AwaitAgreed(t, term, all...)
	coordinatortest.WantOneLeader(t, all...)
	// Members are told of all of them, wherever they are told.
	for _, f := range all {
		if told := f.C.Parts().Publication.View().State.Value.Addresses(); len(told) != 3 ||
			!slices.Contains(told, leader.Addr) {
			t.Errorf("members are told of %v", told)
		}
	}
}

// A leader that stops hands over: nobody waits for its lease, which is a long one.
func wantStoppedLeaderHandsOverAtOnce(t *testing.T, all []*coordinatortest.Fleet) {
	t.Helper()
	leader, term, others := coordinatortest.AwaitLeader(t, all...)
	ended := make(chan struct{})
	go func() { leader.Stop(); close(ended) }()
	_, next, _ := coordinatortest.AwaitLeader(t, others...)
	if next <= term {
		t.Errorf("term %d comes after %d", next, term)
	}
	<-ended
}

// The write of a leader that was paused, and whose process knows nothing of it, fails
// in the store.
func testLateWriteOfAPausedLeader(t *testing.T, open func() store.Store) {
	all := coordinatortest.Coordinators(t, open)
	_, _, others := coordinatortest.AwaitLeader(t, all...)
	type write struct {
		of *coordinatortest.Fleet
		tx store.Tx
	}
	caught, release := make(chan write, 1), make(chan struct{})
	// The first publisher is paused: on a busy machine that is another one at times.
	var paused atomic.Pointer[coordinatortest.Fleet]
	for _, f := range all {
		f.Link.Hold(func(tx store.Tx) error {
			publishes := slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == publication.StateKey })
			switch {
			case publishes && paused.CompareAndSwap(nil, f):
				caught <- write{f, tx}
				<-release // late, on its way to the store
			case paused.Load() == f && !publishes:
				return store.ErrUnknownOutcome // it does not beat any more
			}
			return nil
		})
	}
	others[0].Member("late")
	var leader *coordinatortest.Fleet
	var late store.Tx
	select {
	case w := <-caught:
		leader, late = w.of, w.tx
	case <-time.After(coordinatortest.LeadPatience):
		t.Fatal("the leader published nothing")
	}
	others = slices.DeleteFunc(slices.Clone(all), func(f *coordinatortest.Fleet) bool { return f == leader })
	i := slices.IndexFunc(late.If, func(c store.Condition) bool { return c.Key == election.TermKey && c.Version != 0 })
	if i < 0 {
		t.Fatalf("the conditions of a publication are %v", late.If)
	}
	term := uint64(late.If[i].Version)
	_, next, _ := coordinatortest.AwaitLeader(t, others...)
	if next <= term {
		t.Fatalf("term %d comes after %d", next, term)
	}
	// Everything else it stands on is as it was: the term alone refuses it.
	late.If = []store.Condition{{Key: election.TermKey, Version: store.Revision(term)}}
	late.ID = store.NewTxID()
	_, err := leader.Store.Commit(context.Background(), late)
	if conflict, ok := errors.AsType[*store.ConflictError](err); !ok || conflict.Key != election.TermKey {
		t.Errorf("the late write: %v, want a conflict with the term", err)
	}
	close(release)
	leader.Link.Hold(nil)
	coordinatortest.AwaitSeen(leader, func(l *fealtyv1.Leader) bool { return l.GetTerm() >= next })
	coordinatortest.AwaitTold(leader, "data/late")
}

// Every write that only a leader makes is on the condition that it leads.
func TestLeaderWritesNeedTheTerm(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
	d.Joined("n1")
	coordinatortest.FollowMembers(d, d.C)
	s := d.State()
	term, condition, ok := d.C.Parts().Election.Leading()
	if !ok || condition != (store.Condition{Key: election.TermKey, Version: store.Revision(term)}) {
		t.Fatalf("it leads: %t, under %d, on %v", ok, term, condition)
	}
	gather := func() { d.Store.Write(owner.Prefix+"a/b", []byte("share")) }
	writes := map[string]func(ctx context.Context) error{
		"publication": func(ctx context.Context) error {
			_, err := d.C.Parts().Publication.Publish(ctx, s, publication.NewPublisher())
			return err
		},
		"end of a rotation": func(ctx context.Context) error { return d.C.Parts().Trust.FollowRotation(ctx, s) },
		"gathered shares": func(ctx context.Context) error {
			gather()
			return d.C.Parts().Secrets.OwnerRecovery.Drop(ctx,
				s)
		},
	}
	coordinatortest.WantOnly(t, "rotate", func() error { coordinatortest.Rotate(d, time.Hour); return nil }(), "")
	coordinatortest.FollowMembers(d, d.C)
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			seen := 0
			d.Store.Intercept(func(tx store.Tx) {
				rollout := slices.ContainsFunc(tx.Put,
					func(w store.Write) bool { return strings.HasPrefix(w.Key, trust.RolloutPrefix) })
				if rollout {
					return // what it heard itself
				}
				if seen++; !slices.Contains(tx.If, condition) {
					t.Errorf("it is written on %v", tx.If)
				}
			})
			defer d.Store.Intercept(nil)
			if err := write(t.Context()); err != nil && !errors.Is(err, store.ErrConflict) {
				t.Fatal(err)
			}
			if name != "end of a rotation" && seen == 0 {
				t.Error("nothing was written")
			}
		})
	}
	// A former leader writes nothing of the kind.
	d.C.Parts().Election.Deposed(store.Revision(term))
	for name, write := range writes {
		d.Store.Intercept(func(tx store.Tx) {
			if !slices.ContainsFunc(tx.Put,
				func(w store.Write) bool { return strings.HasPrefix(w.Key, trust.RolloutPrefix) }) {
				t.Errorf("%s: it wrote %v", name, tx.Put)
			}
		})
		if err := write(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		d.Store.Intercept(nil)
	}
	for name, ch := range map[string]*record.Change{"pruning": d.C.Parts().Election.NewChange(s)} {
		if _, err := ch.Commit(t.Context()); !errors.Is(err, election.ErrNotLeading) {
			t.Errorf("%s: %v, want that it does not lead", name, err)
		}
	}
}

func testTransfer(t *testing.T, open func() store.Store) {
	all := coordinatortest.CoordinatorsWith(t, open, longLease)
	leader, term, others := coordinatortest.AwaitLeader(t, all...)
	asked, heir := others[0], others[1]
	name := func(f *coordinatortest.Fleet) string {
		entry, err := f.C.Parts().Self.Admits(f.State().Manifest)
		if err != nil {
			t.Fatal(err)
		}
		return entry.Name
	}
	for _, f := range all {
		coordinatortest.AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" })
	}
	// A dry run changes nothing.
	resp, err := coordinatortest.LeaderClient(asked).TransferLeader(t.Context(),
		&fealtyv1.TransferLeaderRequest{To: name(heir), DryRun: true})
	if err != nil || resp.GetBefore().GetTerm() != term || resp.GetLeader().GetTerm() != term ||
		resp.GetTo() != name(heir) {
		t.Fatalf("dry run: %v, %v", resp, err)
	}
	// A coordinator that does not lead can be asked too.
	resp, err = coordinatortest.LeaderClient(asked).TransferLeader(t.Context(),
		&fealtyv1.TransferLeaderRequest{To: name(heir), Reason: "maintenance"})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetBefore().GetName() != name(leader) || resp.GetLeader().GetName() != name(heir) ||
		resp.GetLeader().GetTerm() <= term {
		t.Errorf("after the transfer: %v", resp)
	}
	coordinatortest.AwaitAgreed(t, term, all...) // who led learns of it a moment later
	now, _, _ := coordinatortest.AwaitLeader(t, all...)
	if now != heir {
		t.Errorf("%s leads", name(now))
	}
	coordinatortest.AwaitSeen(leader, func(l *fealtyv1.Leader) bool { return l.GetName() == name(heir) })
	l, err := heir.Store.List(t.Context(), auditlog.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(l.Entries, func(e store.Entry) bool {
		var a record.AuditEntry
		return json.Unmarshal(e.Value, &a) == nil && a.Action == "leader.transfer" && a.Target == name(leader) &&
			a.Reason == "maintenance" &&
			a.Fields["to"] == name(heir) && a.Fields["term"] == fmt.Sprint(term) && a.Actor != ""
	}) {
		t.Error("the audit log does not tell of the transfer")
	}
	// To anyone: not to the one that led.
	if resp, err = coordinatortest.LeaderClient(heir).TransferLeader(t.Context(), &fealtyv1.TransferLeaderRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := resp.GetLeader().GetName(); got == "" || got == name(heir) {
		t.Errorf("%q leads after %s handed over to anyone", got, name(heir))
	}
	for _, c := range []struct {
		to   string
		code errcode.Code
	}{{"nobody", errcode.LeaderUnfit}} {
		_, err = coordinatortest.LeaderClient(asked).TransferLeader(t.Context(), &fealtyv1.TransferLeaderRequest{To: c.to})
		coordinatortest.WantCode(t, err, c.code)
	}
	coordinatortest.AwaitAgreed(t, term, all...)
	wantStoppedLeaderHandsOverAtOnce(t, all)
}

// While no coordinator reaches the store nobody leads; later exactly one does.
func testNobodyLeadsInAnOutage(t *testing.T, open func() store.Store) {
	all := coordinatortest.Coordinators(t, open)
	_, term, _ := coordinatortest.AwaitLeader(t, all...)
	for _, f := range all {
		f.Link.Cut(errors.New("no route to the store"))
	}
	for _, f := range all {
		wait.Until(t, "it leads no longer", func() bool {
			_, _, ok := f.C.Parts().Election.Leading()
			return !ok
		})
		coordinatortest.AwaitSeen(f, func(l *fealtyv1.Leader) bool { return l.GetTerm() == 0 })
	}
	for _, f := range all {
		f.Link.Cut(nil)
	}
	leader, next, _ := coordinatortest.AwaitLeader(t, all...)
	if next < term {
		t.Errorf("term %d comes after %d", next, term)
	}
	leader.Member("after")
	for _, f := range all {
		coordinatortest.AwaitTold(f, "data/after")
	}
	coordinatortest.WantOneLeader(t, all...)
}

// Somebody who writes the store makes no leader, and keeps nobody from leading.
func TestForgedLeader(t *testing.T) {
	t.Parallel()
	all := coordinatortest.Coordinators(t, nil)
	leader, term, _ := coordinatortest.AwaitLeader(t, all...)
	old, err := leader.Store.Get(t.Context(), election.TermKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		tx     store.Tx
		forged bool
	}{
		{"another leader", store.Tx{Put: []store.Write{{Key: election.TermKey,
			Value: []byte(`{"replica":"me","nonce":"x"}`)}}}, true},
		{"another beat", store.Tx{Put: []store.Write{{Key: election.BeatKey, Value: []byte("x")}}}, true},
		{"no leader", store.Tx{Delete: []string{election.TermKey, election.BeatKey}}, false},
		{"the leader of before", store.Tx{Put: []store.Write{{Key: election.TermKey, Value: old.Value}}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			forged := func() (n float64) {
				for _, f := range all {
					n += coordinatortest.ForgedRecords(f.C)
				}
				return n
			}
			before := forged()
			at, err := leader.Store.Commit(t.Context(), c.tx)
			if err != nil {
				t.Fatal(err)
			}
			next := uint64(0)
			wait.Until(t, "one leads under a later term", func() bool {
				_, next, _ = coordinatortest.AwaitLeader(t, all...)
				return next > uint64(at)
			})
			if next <= term {
				t.Errorf("term %d comes after %d", next, term)
			}
			term = next
			if got := forged() - before; (got > 0) != c.forged {
				t.Errorf("%v forged records were reported, want some: %t", got, c.forged)
			}
		})
	}
}

// Wall clocks make no leader and end no term: not that of the leader, which is set on and
// back, nor those of the others, which are days apart. A kill is noticed all the same.
func TestWallClocksElectNobody(t *testing.T) {
	t.Parallel()
	// On a busy machine a beat takes longer than the shortest lease; a clock jumps over any.
	all := coordinatortest.CoordinatorsWith(t, nil,
		func(cfg *coordinator.Config) {
			cfg.Timing.Lease, cfg.Timing.Beat = 10*election.DefaultLease, election.DefaultBeat
		})
	leader, term, others := coordinatortest.AwaitLeader(t, all...)
	stands := func(when string) {
		t.Helper()
		for end := time.Now().Add(election.DefaultLease); time.Now().Before(end); time.Sleep(
			election.DefaultBeat / 10) {
			if now, _, ok := leader.C.Parts().Election.Leading(); !ok || now != term {
				t.Fatalf("%s: it leads under %d (%v), after %d", when, now, ok, term)
			}
			for _, f := range others {
				if _, _, ok := f.C.Parts().Election.Leading(); ok {
					t.Fatalf("%s: another one leads", when)
				}
			}
		}
	}
	others[0].Advance(48 * time.Hour)
	others[1].Advance(-48 * time.Hour)
	stands("the clocks of the others jump")
	leader.Advance(48 * time.Hour)
	stands("its clock jumps ahead")
	leader.Advance(-96 * time.Hour)
	stands("its clock jumps back")
	others[0].Advance(-72 * time.Hour)
	leader.Kill()
	if _, next, _ := coordinatortest.AwaitLeader(t, others...); next <= term {
		t.Errorf("term %d comes after %d", next, term)
	}
}

// A coordinator that is not ready hands over, and one that is again may lead.
func TestLosingReadinessHandsOver(t *testing.T) {
	t.Parallel()
	all := coordinatortest.CoordinatorsWith(t, nil, longLease)
	leader, term, others := coordinatortest.AwaitLeader(t, all...)
	s := leader.State()
	unready := func() {
		leader.C.Parts().Head.Put(authority.Recovering(s, errors.New("test")), time.Time{})
		leader.C.Parts().Head.Put(leader.State(), time.Time{})
	}
	unready()
	if _, _, ok := leader.C.Parts().Election.Leading(); ok {
		t.Error("it leads in recovery mode")
	}
	// One that is ready again before it handed over leads on, so it does not come to that.
	held, release := context.WithCancel(t.Context())
	defer release()
	var kept sync.WaitGroup
	kept.Go(func() {
		for {
			select {
			case <-held.Done():
				return
			case <-time.After(time.Millisecond):
				unready()
			}
		}
	})
	_, next, _ := coordinatortest.AwaitLeader(t, others...)
	release()
	kept.Wait()
	if next <= term {
		t.Errorf("term %d comes after %d", next, term)
	}
	leader.Await(authority.Ready)
	coordinatortest.AwaitSeen(leader, func(l *fealtyv1.Leader) bool { return l.GetTerm() == next })
}

// A reseed moves the entry under the key of the new seed: who led leads on.
func TestLeaderAfterAReseed(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("n1")
	_, term, _ := coordinatortest.AwaitLeader(t, f)
	coordinatortest.ReseedIn(f)
	coordinatortest.AwaitSeen(f, func(l *fealtyv1.Leader) bool { return l.GetTerm() > term && l.GetSelf() })
	if n := coordinatortest.ForgedRecords(f.C); n != 0 {
		t.Errorf("%v forged records were reported", n)
	}
	f.Member("n2")
	coordinatortest.AwaitTold(f, "data/n2")
}

// Nobody having led for a while is worth a look, and a change of the leader is not.
func TestNobodyLeadsIsAFinding(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, "")
	c := d.C
	if got := c.Parts().Election.Findings(); got != nil {
		t.Errorf("findings while somebody leads: %v", got)
	}
	wants := func(what, want string) {
		t.Helper()
		got := c.Parts().Election.Findings()
		if len(got) == 0 != (want == "") || len(got) > 0 && (got[0].GetCode() != string(errcode.NobodyLeads) ||
			!strings.Contains(got[0].GetSummary(), want)) {
			t.Errorf("%s: %v, want %q", what, got, want)
		}
	}
	d.Store.SetDown(coordinatortest.ErrDown)
	d.Pass(election.NobodyAfter)
	c.Parts().Election.Step(t.Context())
	wants("for a short while", "")
	d.Lapse()
	c.Parts().Election.Step(t.Context())
	wants("for longer", "none that is ready can reach the store")
	d.Store.SetDown(nil)
	w, err := d.State().Records.Seal(election.TermKey, election.Record{Replica: "another", Nonce: "n", Lease: 60e3})
	coordinatortest.WantOnlyNil(t, err)
	d.Store.Write(election.TermKey, w.Value)
	for range 8 { // the store is asked again once it may be back
		d.Pass(election.DefaultLease)
		c.Parts().Election.Step(t.Context())
	}
	if l := c.Parts().Election.Message(); l.GetEnrolmentKey() != "another" {
		t.Errorf("%v leads", l)
	}
	wants("somebody leads elsewhere", "")
}
