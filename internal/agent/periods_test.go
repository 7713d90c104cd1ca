package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// allAllowed edits a node_runtime to allow all that a policy can.
func allAllowed(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
	c.Degraded.Allow = nil
	for _, p := range manifest.Permissions() {
		c.Degraded.Allow = append(c.Degraded.Allow, string(p))
	}
	slices.Sort(c.Degraded.Allow)
}

// policyNode is a node whose runtime allows all that a policy can.
func policyNode(f *nodetest.Fleet) (*node, signedtest.Member) {
	f.TB.Helper()
	n := newNode(f)
	m := f.Member(n.MustJoin().ID)
	a := n.mustOpen()
	defer a.Close()
	var s *fealtyv1.SignedSnapshot
	f.Do(func() { s = f.Runtime(&m, allAllowed) })
	f.Must(n.take(a, s))
	if refused := a.Node().Status().Refusals(); len(refused) != 0 {
		f.TB.Fatalf("refused: %v", refused)
	}
	return n, m
}

// With its coordinators gone a node goes on by its policy, refuses by name what is
// forbidden, stops when the time is over, and reports all of it when they are back.
func TestAloneAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.BundleLife = 300 * time.Hour
		f.SVIDTTL, f.RenewEvery = 8*time.Hour, 10*time.Minute // and so a third of the time alone
		n, m := policyNode(f)
		a := n.mustOpen()
		stop := n.run(a)
		defer func() { _ = stop() }()
		time.Sleep(time.Minute)
		for _, r := range guard.ActionRules() {
			if err := a.Node().Autonomy.Permit(r.Action); err != nil {
				t.Errorf("in contact: %v", err)
			}
		}
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Cut()
		time.Sleep(freshFor + guard.StaleFor)
		for _, r := range guard.ActionRules() {
			err := a.Node().Autonomy.Permit(r.Action)
			refused, _ := errors.AsType[*guard.RefusedError](err)
			switch {
			case r.Class == guard.ByPolicy && r.Action != guard.PreserveRoutes && err != nil:
				t.Errorf("%s: %v", r.Action, err)
			case r.Class != guard.ByPolicy && (refused == nil || refused.Action != r.Action):
				t.Errorf("%s: %v", r.Action, err)
			}
		}
		resp, err := a.NodeServer().GetNode(t.Context(), nil)
		f.Must(err)
		if resp.GetFreshness() != string(snapshot.Degraded) || resp.GetPartition() != string(guard.RecordStale) ||
			len(resp.GetDegradedPeriods()) != 1 || len(resp.GetPermissions()) != len(guard.ActionRules()) {
			t.Errorf("it says %s, %s, %v", resp.GetFreshness(), resp.GetPartition(), resp.GetDegradedPeriods())
		}
		if got := testutil.ToFloat64(a.Counters().Entries()); got != 1 {
			t.Errorf("entered %v times", got)
		}
		until, limit := a.Node().Autonomy.DegradedUntil()
		time.Sleep(until.Sub(a.Node().Now()) + time.Minute)
		if err := a.Node().Autonomy.Permit(guard.ContinueServices); !errors.Is(err, errcode.ActionBoundOver) {
			t.Errorf("after its time it continues services: %v", err)
		}
		if err := a.Node().Autonomy.Permit(guard.ReconnectPeers); err != nil {
			t.Errorf("after its time it does not look for its way back: %v", err)
		}
		// A restart in between forgets nothing.
		_ = stop()
		a = n.mustOpen()
		stop = n.run(a)
		f.Do(func() {
			f.Faults.Down["all"] = false
			f.Extra = append(f.Extra, nodetest.News(f.Runtime(&m, allAllowed)))
			f.Seen.Reports = nil
		})
		time.Sleep(20 * time.Minute)
		if err := a.Node().Autonomy.Permit(guard.ContinueServices); err != nil {
			t.Errorf("back: %v", err)
		}
		var last []*fealtyv1.DegradedPeriod
		f.Do(func() { last = f.Seen.Reports[len(f.Seen.Reports)-1].GetDegradedPeriods() })
		if len(last) != 1 {
			t.Fatalf("it reports %v", last)
		}
		p := last[0]
		refusals := make(map[string]uint64)
		for _, c := range p.GetActions() {
			refusals[c.GetAction()] = c.GetRefused()
		}
		if p.GetUntil() == nil || p.GetOverAt() == nil || p.GetLimit() != limit ||
			refusals["issue_certificates"] != 1 || refusals["promote_partition"] != 1 {
			t.Errorf("it reports %v", p)
		}
	})
}

// The period is there after a crash at any point of writing it, or it is begun anew;
// the bounds are the same in any case, for they count from what was signed.
func TestPeriodsCrash(t *testing.T) {
	f := nodetest.New(t)
	joined, _ := policyNode(f)
	f.Shift.Store(int64(2 * time.Hour))
	var bound time.Time
	var n *node
	nodetest.Crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
		n = joined.clone()
		a := n.mustOpen()
		bound = a.Node().Autonomy.Facts().End(guard.MaxBound)
		return n.Disk, func() error { a.Node().Autonomy.LookDegraded(t.Context()); return nil }
	}, func(t *testing.T, done bool) {
		a, err := n.open()
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Close()
		if got := a.Node().Autonomy.Degraded.All(); len(got) > 1 || len(got) == 0 && done ||
			!a.Node().Autonomy.Facts().End(guard.MaxBound).Equal(bound) {
			t.Errorf("%v, until %v", got, a.Node().Autonomy.Facts().End(guard.MaxBound))
		}
	})
	for call := 1; ; call++ {
		n := joined.clone()
		a := n.mustOpen()
		n.Disk.FailAt(call, syscall.EIO)
		a.Node().Autonomy.LookDegraded(t.Context())
		failed := n.Disk.Failed()
		n.Disk.Restart(durabletest.Synced)
		a = n.mustOpen()
		a.Node().Autonomy.LookDegraded(t.Context())
		if got := a.Node().Autonomy.Degraded.All(); len(got) != 1 ||
			!a.Node().Autonomy.Facts().End(guard.MaxBound).Equal(bound) {
			t.Fatalf("at call %d: %v, until %v", call, got, a.Node().Autonomy.Facts().End(guard.MaxBound))
		}
		a.Close()
		if !failed {
			break
		}
	}
}

// A file of periods that is damaged or made up is told, and changes no bound.
func TestPeriodsDamaged(t *testing.T) {
	f := nodetest.New(t)
	joined, _ := policyNode(f)
	f.Shift.Store(int64(2 * time.Hour))
	a := joined.mustOpen()
	a.Node().Autonomy.LookDegraded(t.Context())
	_ = a.Node().Autonomy.Permit(guard.IssueCertificates)
	a.Node().Autonomy.KeepPeriods(t.Context())
	bound := a.Node().Autonomy.Facts().End(guard.MaxBound)
	a.Close()
	good := joined.Read(dir.DegradedName)
	n := joined.clone()
	check := func(what string, data []byte) {
		n.Disk.Put(n.Path(dir.DegradedName), data)
		a, err := n.open()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer a.Close()
		if got := a.Node().Autonomy.Facts().End(guard.MaxBound); !got.Equal(bound) {
			t.Fatalf("%s: the bound is %v, want %v", what, got, bound)
		}
		a.Node().Autonomy.LookDegraded(t.Context())
		if got := a.Node().Autonomy.Degraded.All(); len(got) != 1 {
			t.Fatalf("%s: %v", what, got)
		}
	}
	damages(good, check)
	now := f.Clock()
	many := make([]guard.Period, 100)
	for i := range many {
		many[i] = guard.Period{From: now, Actions: map[string]*guard.Tally{"made up": {Permitted: 1, Refused: 1},
			"issue_certificates": nil}}
	}
	for _, made := range [][]guard.Period{{{From: now.Add(1000 * time.Hour)}}, {{From: now.Add(-1000 * time.Hour)}},
		{{}}, many} {
		data, err := dir.Seal(made)
		f.Must(err)
		check("made up", data)
	}
}

// A node whose marks are lost believes nothing that it holds: its time alone was over when
// it began, which it says once.
func TestNoTimeAlone(t *testing.T) {
	f := nodetest.New(t)
	n, _ := policyNode(f)
	n.Disk.Put(n.Path(dir.MarksAName), []byte("x"))
	n.Disk.Put(n.Path(dir.MarksBName), []byte("x"))
	a := n.mustOpen()
	defer a.Close()
	a.Node().Autonomy.NoteDegraded()
	all := a.Node().Autonomy.Degraded.All()
	if len(all) != 1 || !all[0].Over.Equal(all[0].From) || all[0].From.IsZero() {
		t.Fatalf("the period is %+v, want one that was over when it began", all)
	}
	if a.Node().Autonomy.Degraded.Over(f.Clock(), "again") {
		t.Error("that its time is over is said again")
	}
}

// Nothing outlives its bound under any sequence of restarts, waits, and settings of
// the clock: what was refused for being over stays refused until there is news.
func TestNothingOutlivesItsBound(t *testing.T) {
	f := nodetest.New(t)
	f.BundleLife = 40 * time.Hour
	joined, _ := policyNode(f)
	begin := f.Clock()
	rapid.Check(t, func(t *rapid.T) {
		n := joined.clone()
		m := &machine{wall: begin, boot: "1", since: time.Minute}
		a := n.openAt(m, n.Disk.FS())
		defer func() { a.Close() }()
		passed := time.Duration(0) // in truth, of what the node can know: the machine ran
		// The time for which the machine is off is known by a clock that is right alone.
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1:
				d := time.Duration(rapid.IntRange(1, 300).Draw(t, "minutes")) * time.Minute
				m.pass(d)
				passed += d
				a.Node().Autonomy.LookDegraded(context.Background())
				a.Node().Clock.Keep(context.Background()) // as it does every minute
			case 2:
				m.set(-time.Duration(rapid.IntRange(1, 400*24).Draw(t, "hours back")) * time.Hour)
			case 3:
				a.Close()
				a = n.openAt(m, n.Disk.FS())
			case 4:
				a.Close()
				m.reboot(rapid.StringMatching("[a-z]{8}").Draw(t, "boot"), 0)
				a = n.openAt(m, n.Disk.FS())
			case 5:
				a.Close()
				n.Disk.Put(n.Path(dir.DegradedName), []byte("lost"))
				a = n.openAt(m, n.Disk.FS())
			}
			f := a.Node().Autonomy.Facts()
			truth := begin.Add(passed)
			for _, r := range guard.ActionRules() {
				over := r.Bound != guard.NoBound && guard.Rank(f.Overall(truth)) >= guard.Rank(snapshot.Degraded) &&
					!truth.Before(f.End(r.Bound).Add(time.Second))
				for _, scope := range r.Needs {
					if s, ok := f.Active[scope]; ok && !truth.Before(s.Expires.Add(time.Second)) {
						over = true
					}
				}
				if err := a.Node().Autonomy.Permit(r.Action); over && err == nil {
					t.Fatalf("%s is permitted %v after the beginning; its bound was %v", r.Action, passed,
						f.End(r.Bound).Sub(begin))
				}
			}
		}
	})
}

// A degraded_mode_policy narrows what the node_runtime allows. Where it is to be
// there and is not, the ways back alone are left; what is revoked is not allowed.
func TestPolicyOfANode(t *testing.T) {
	f := nodetest.New(t)
	n, m := policyNode(f)
	a := n.mustOpen()
	defer a.Close()
	take := func(s *fealtyv1.SignedSnapshot) {
		t.Helper()
		f.Must(n.take(a, s))
		if refused := a.Node().Status().Refusals(); len(refused) != 0 {
			t.Fatalf("refused: %v", refused)
		}
	}
	look := func(what string, wantUntil bool, max time.Duration, allow ...string) {
		t.Helper()
		p, until := a.Node().TrustState().Policy()
		if !slices.Equal(p.Allow, allow) || p.Max != max || until.IsZero() == wantUntil {
			t.Errorf("%s: %+v until %v", what, p, until)
		}
	}
	all := []string{"continue_services", "preserve_routes", "reconnect_peers", "report_later", "use_storage_endpoints",
		"validate_peers"}
	ceiling := a.Node().TrustState().Degraded().Max
	look("by the ceiling alone", false, ceiling, all...)
	listed := func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
		c.Companions = []snapshot.Scope{snapshot.ScopeDegradedModePolicy}
	}
	f.Do(func() { take(f.Runtime(&m, allAllowed, listed)) })
	look("listed, and not there", false, 0, "reconnect_peers", "report_later")
	wide := &snapshot.DegradedModePolicy{Allow: []string{"become_root", "continue_services", "issue_certificates",
		"preserve_routes"}, Max: 1000 * time.Hour, RouteTTL: 1000 * time.Hour, SessionTTL: time.Minute}
	f.Do(func() { take(f.Companion(&m, snapshot.ScopeDegradedModePolicy, wide)) })
	look("wider than the ceiling", true, ceiling, "continue_services", "preserve_routes")
	if p, _ := a.Node().TrustState().Policy(); p.SessionTTL != time.Minute || p.RouteTTL != time.Minute {
		t.Errorf("routes for %v, sessions for %v", p.RouteTTL, p.SessionTTL)
	}
	revoke := f.Content()
	revoke.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedPermission, Name: "continue_services"}}
	h := f.TrustHeader()
	h.ConfigVersion++
	take(f.SignTrust(h, revoke))
	look("revoked", true, ceiling, "preserve_routes")
	f.Do(func() { take(f.Runtime(&m, allAllowed)) })
	look("not listed any more: only the ceiling, without what is revoked", false, ceiling, all[1:]...)
	// The record is the newest word, and it names revocations that the bundle lacks.
	if f := a.Node().Autonomy.Facts(); !f.Missing {
		t.Error("a record that names other revocations does not show")
	}
	if err := a.Node().Autonomy.Permit(guard.ValidatePeers); !errors.Is(err, errcode.ActionNeedsContact) {
		t.Errorf("peers are judged without the newest revocations: %v", err)
	}
}

// News may come before the node looked at the clock again, as to a machine that slept.
// The time before them is told as it was, whatever they are.
func TestNewsAfterASleep(t *testing.T) {
	// longer than the policy lets it work alone, and its certificate is good
	const slept = 24*time.Hour + 30*time.Minute
	type world struct {
		f *nodetest.Fleet
		n *node
		a *agent.Agent
		m signedtest.Member
	}
	for _, tc := range []struct {
		name string
		news func(t *testing.T, w world)
	}{
		{"its certificate is renewed", func(t *testing.T, w world) { w.f.Must(w.a.Renewal().Renew(t.Context())) }},
		{"the key that it holds is certified again", func(t *testing.T, w world) {
			key := w.a.Node().SVID().Key
			var ders [][]byte
			for _, c := range w.f.Issue(key.Signer().Public(), w.a.Node().Me().ID, w.f.SVIDTTL) {
				ders = append(ders, c.Raw)
			}
			w.f.Must(w.a.Node().Renew(t.Context(), key, ders, w.a.Renewal().Present))
		}},
		{"it joins again", func(t *testing.T, w world) { w.f.Must(w.a.Renewal().Rejoin(t.Context())) }},
		{"a trust bundle", func(t *testing.T, w world) {
			w.f.Must(w.n.take(w.a, w.f.BundleWith(func(*snapshot.TrustBundle) {})))
		}},
		{"a node_runtime", func(t *testing.T, w world) { w.f.Must(w.n.take(w.a, w.f.Runtime(&w.m, allAllowed))) }},
		{"a newer authority epoch shows", func(t *testing.T, w world) {
			w.f.Epoch++
			w.f.Must(w.n.take(w.a, w.f.Runtime(&w.m)))
			w.f.Epoch--
			if !w.a.Node().Autonomy.Facts().Behind {
				t.Fatal("it does not know that it is behind")
			}
		}},
		{"the next of three news", func(t *testing.T, w world) {
			w.f.Must(w.a.Renewal().Renew(t.Context()))
			w.a.Node().Autonomy.LookDegraded(t.Context())
			w.f.Must(w.n.take(w.a, w.f.BundleWith(func(*snapshot.TrustBundle) {})))
			w.a.Node().Autonomy.LookDegraded(t.Context())
			w.f.Must(w.n.take(w.a, w.f.Runtime(&w.m, allAllowed)))
		}},
		{"news before a restart", func(t *testing.T, w world) {
			w.f.Must(w.a.Renewal().Renew(t.Context()))
			w.a.Node().Autonomy.KeepPeriods(t.Context())
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := nodetest.New(t)
			f.BundleLife = 300 * time.Hour
			n, m := policyNode(f)
			a := n.mustOpen()
			a.Node().Autonomy.LookDegraded(t.Context())
			entry := a.Node().Autonomy.Facts().Entry(guard.Terms())
			until, limit := a.Node().Autonomy.DegradedUntil()
			f.Shift.Store(int64(slept))
			tc.news(t, world{f, n, a, m})
			if !strings.Contains(tc.name, "restart") {
				a.Node().Autonomy.LookDegraded(t.Context())
			} else {
				f.Must(a.Close())
				a = n.mustOpen()
			}
			defer a.Close()
			got := a.Node().Autonomy.Degraded.All()
			if len(got) != 1 || !got[0].From.Equal(entry) || !got[0].Over.Equal(until) || got[0].Limit != limit {
				t.Fatalf("it remembers %+v, want one from %v on, over at %v by %s", got, entry, until, limit)
			}
			fresh := a.Node().Autonomy.Facts().Overall(a.Node().Now()) == snapshot.Fresh
			if ended := !got[0].To.IsZero(); ended != fresh {
				t.Errorf("it ended: %v, the node is fresh: %v", ended, fresh)
			}
		})
	}
}

// The facts that the guard decides by changed: who waits for that looks at once, not a minute
// later.
func TestEveryChangeOfFactsIsTold(t *testing.T) {
	f := nodetest.New(t)
	n, m := policyNode(f)
	a := n.mustOpen()
	defer a.Close()
	for _, tc := range []struct {
		name string
		do   func() error
	}{
		{"another certificate", func() error { return a.Renewal().Renew(t.Context()) }},
		{"a newer authority epoch", func() error {
			f.Epoch++
			defer func() { f.Epoch-- }()
			return n.take(a, f.Runtime(&m))
		}},
		{"another trust bundle", func() error { return n.take(a, f.BundleWith(func(*snapshot.TrustBundle) {})) }},
	} {
		rang := a.Node().Autonomy.Changed.Wait()
		f.Must(tc.do())
		select {
		case <-rang:
		default:
			t.Errorf("%s: nobody is told", tc.name)
		}
	}
}

// A moment between two snapshots that came together is no time in degraded mode, unless
// something was asked in it.
func TestMomentsAreNoPeriods(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	var p guard.Periods
	p.Began(at)
	p.Over(at, "node_runtime")
	if p.Ended(at) == nil || len(p.All()) != 0 {
		t.Errorf("of a moment is kept %+v", p.All())
	}
	p.Began(at)
	p.Count(guard.Action("continue_services"), false)
	if p.Ended(at); len(p.All()) != 1 {
		t.Error("what was refused is not kept")
	}
	p.Began(at)
	if p.Ended(at.Add(time.Minute)); len(p.All()) != 2 {
		t.Error("a minute is not kept")
	}
}
