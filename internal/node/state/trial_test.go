package state_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	qosScope      = snapshot.ScopeQoSPolicy
	degradedScope = snapshot.ScopeDegradedModePolicy
)

// tester is a machine whose qos_policy is on trial for a while after each change.
type tester struct {
	*machine
	me state.Self
	s  *state.Store
	b  *state.TrustState
}

func newTester(t *testing.T) *tester {
	t.Helper()
	m := newMachine(t)
	x := &tester{machine: m, s: m.open()}
	l := m.lockedLoad(x.s)
	x.me, x.b = l.Me, l.TrustState
	x.b = m.keep(x.s, x.me, x.b, m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope}))
	x.b = m.keep(x.s, x.me, x.b, m.OfGroup(m.member, &snapshot.DegradedModePolicy{Max: time.Hour,
		Trials: []snapshot.Trial{{Scope: qosScope, Duration: time.Minute}}}))
	return x
}

// try takes a snapshot as an agent does, with or without contact.
func (x *tester) try(came *fealtyv1.SignedSnapshot, contact bool) state.Decision {
	x.t.Helper()
	d, err := state.Decide(x.me, x.b, x.signed(came), x.Clock())
	x.Must(err)
	d = d.Probation(x.b, contact, x.Clock())
	x.Must(x.s.WriteLedger(d.Ledger))
	if !d.Barred {
		var old []byte
		if h := x.b.Active[qosScope]; h != nil {
			old = h.Raw
		}
		x.Must(x.s.Place(qosScope, came.GetEnvelope(), old))
	}
	x.b = d.After(x.b, came.GetEnvelope())
	return d
}

func (x *tester) qos(n int, edits ...func(*header, *record)) *fealtyv1.SignedSnapshot {
	return x.OfGroup(x.member, signedtest.QoS(n), edits...)
}

// priority is that of the qos_policy in use; 0 without one.
func (x *tester) priority(b *state.TrustState) int {
	h := b.Active[qosScope]
	if h == nil {
		return 0
	}
	content, _ := h.Verified.QoSPolicy()
	return content.Classes[0].Priority
}

// A snapshot with another content is on trial, what renews it goes on with that, and a scope
// without a time for it never is.
func TestProbation(t *testing.T) {
	x := newTester(t)
	if got := x.b.TrialOf(qosScope); got != time.Minute {
		t.Errorf("the trial is of %v", got)
	}
	for _, scope := range []snapshot.Scope{snapshot.ScopeRoutePolicy, bundleScope, runtimeScope} {
		if got := x.b.TrialOf(scope); got != 0 {
			t.Errorf("one of %s is on trial for %v", scope, got)
		}
	}
	for _, contact := range []bool{true, false} {
		d := x.try(x.qos(1+len(x.b.Trials)), contact)
		is, on := d.Ledger.OnTrial(qosScope)
		if !on || is.Header != d.V.HeaderDigest().String() || is.Attempts != 1 || is.Contact != contact || x.b.Tries(is) == nil {
			t.Fatalf("contact %v: on trial %v: %+v", contact, on, is)
		}
	}
	was, _ := x.b.OnTrial(qosScope)
	// The same content under another version: the trial goes on under its header.
	d := x.try(x.qos(2), false)
	if is, on := d.Ledger.OnTrial(qosScope); !on || is.Header == was.Header || is.Attempts != 1 || x.b.Tries(is) == nil || x.b.Tries(was) != nil {
		t.Errorf("renewed: on trial %v: %+v", on, is)
	}
	if got := x.b.WithLedger(x.b.Ledger.WithoutTrial(qosScope)); len(got.Trials) != 0 || len(x.b.Trials) != 1 {
		t.Errorf("without it: %v, and before %v", got.Trials, x.b.Trials)
	}
	// Of two scopes on trial each has its own.
	both := x.b.Ledger
	second := both.Trials[0]
	second.Scope, second.Attempts = snapshot.ScopeRoutePolicy, 2
	both.Trials = append(slices.Clone(both.Trials), second)
	if is, on := both.OnTrial(snapshot.ScopeRoutePolicy); !on || is.Attempts != 2 {
		t.Errorf("of the second scope on trial %v: %+v", on, is)
	}
	if left := both.WithoutTrial(qosScope).Trials; len(left) != 1 || left[0].Scope != snapshot.ScopeRoutePolicy {
		t.Errorf("when one ends %+v are left", left)
	}
	// The same content when it passed: it is on trial no more.
	x.b = x.b.WithLedger(x.b.Ledger.WithoutTrial(qosScope))
	if d := x.try(x.qos(2), true); len(d.Ledger.Trials) != 0 {
		t.Errorf("what passed its trial is on trial again: %+v", d.Ledger.Trials)
	}
	// A policy without trials ends those to come.
	x.b = x.keep(x.s, x.me, x.b, x.OfGroup(x.member, &snapshot.DegradedModePolicy{Max: time.Hour}))
	if d := x.try(x.qos(3), true); len(d.Ledger.Trials) != 0 {
		t.Errorf("on trial without a time for it: %+v", d.Ledger.Trials)
	}
}

// What failed its trial is not used again, whatever its version; what was before is in use, and the
// marks stay. Another content is tried anew.
func TestFailedTrial(t *testing.T) {
	x := newTester(t)
	x.b = x.b.WithLedger(x.b.Ledger)
	x.try(x.qos(1), true)
	x.b = x.b.WithLedger(x.b.Ledger.WithoutTrial(qosScope)) // it passed
	x.try(x.qos(2), true)
	bad := x.b.Active[qosScope].Verified.Header()
	next, old := x.s.Fail(x.b, x.me, qosScope, state.FailedVerdict, strings.Repeat("x", 2*state.MaxDetailBytes), x.Clock())
	if old == nil || x.priority(next) != 1 || len(next.Trials) != 0 {
		t.Fatalf("in use is %d, and on trial %v", x.priority(next), next.Trials)
	}
	q, is := next.Quarantined(qosScope)
	if !is || q.Kept || q.Reason != state.FailedVerdict || len(q.Detail) != state.MaxDetailBytes || q.ConfigVersion != bad.ConfigVersion {
		t.Errorf("%v, %+v", is, q)
	}
	if q, is := next.Without(qosScope).Quarantined(qosScope); !is || q.Kept {
		t.Errorf("with nothing in use: %+v", q)
	}
	if r := q.Refusal(); !strings.Contains(r.Detail, "(verdict): xxx") || r.Scope != string(qosScope) || r.Reason != state.ReasonQuarantined || len(r.Detail) > state.MaxDetailBytes {
		t.Errorf("%+v", r)
	}
	if _, is := next.Barred(qosScope, bad.ContentHash); !is {
		t.Error("its content is not barred")
	}
	if _, is := next.Barred(snapshot.ScopeRoutePolicy, bad.ContentHash); is {
		t.Error("its content is barred in another scope")
	}
	mark, _ := next.Marks.Get(qosScope, bad.Subject)
	if mark.ConfigVersion != bad.ConfigVersion {
		t.Errorf("the marks went down to %d", mark.ConfigVersion)
	}
	x.b = next
	x.Must(x.s.WriteLedger(next.Ledger))
	// It is so after a start, with the files as they were when the power was cut.
	again := x.lockedLoad(x.s).TrustState
	if got := x.priority(again); got != 1 {
		t.Errorf("after a start %d is in use", got)
	}
	// The same content in a higher version is accepted, and not used.
	d := x.try(x.qos(2), true)
	if !d.Barred || x.priority(x.b) != 1 {
		t.Errorf("barred %v, in use is %d", d.Barred, x.priority(x.b))
	}
	if q, _ := x.b.Quarantined(qosScope); q.ConfigVersion <= bad.ConfigVersion {
		t.Errorf("version %d is told, and a higher one is accepted", q.ConfigVersion)
	}
	// Another one is tried, and then nothing is quarantined any more.
	if d := x.try(x.qos(3), true); d.Barred || x.priority(x.b) != 3 {
		t.Errorf("the fix: barred %v, in use is %d", d.Barred, x.priority(x.b))
	}
	if q, is := x.b.Quarantined(qosScope); is {
		t.Errorf("after the fix: %+v", q)
	}
}

// Without one before that may be used, what failed stays in use, and that is told.
func TestFailedWithoutOneBefore(t *testing.T) {
	x := newTester(t)
	x.try(x.qos(1), true)
	next, old := x.s.Fail(x.b, x.me, qosScope, state.FailedHook, "", x.Clock())
	q, is := next.Quarantined(qosScope)
	if old != nil || x.priority(next) != 1 || !is || !q.Kept {
		t.Fatalf("fell back to %v, %+v", old, q)
	}
	if r := q.Refusal(); !strings.Contains(r.Detail, "it stays in use") || strings.Contains(r.Detail, ": ;") {
		t.Errorf("%+v", r)
	}
	// It fails again: it is remembered once, as it was the last time.
	if again, _ := x.s.Fail(next, x.me, qosScope, state.FailedVerdict, "again", x.Clock()); len(again.Quarantine) != 1 || again.Quarantine[0].Detail != "again" {
		t.Errorf("after it failed twice: %+v", again.Quarantine)
	}
	if _, is := next.Barred(qosScope, next.Active[qosScope].Verified.Header().ContentHash); is {
		t.Error("what stays in use is barred")
	}
	if len(next.Lacks()) != 0 {
		t.Errorf("it lacks %v", next.Lacks())
	}
}

// So many failed contents are remembered of each scope; the oldest goes first, and a content that
// failed twice is there once.
func TestQuarantineIsBounded(t *testing.T) {
	x := newTester(t)
	x.try(x.qos(1000), true)
	x.b = x.b.WithLedger(x.b.Ledger.WithoutTrial(qosScope))
	fail := func(n int) snapshot.Digest {
		x.try(x.qos(n), true)
		content := x.b.Active[qosScope].Verified.Header().ContentHash
		x.b, _ = x.s.Fail(x.b, x.me, qosScope, state.FailedVerdict, fmt.Sprint(n), x.Clock())
		return content
	}
	// One of another scope, with the same content, is neither counted nor replaced.
	other := fail(1)
	l := x.b.Ledger
	l.Quarantine = slices.Clone(l.Quarantine)
	l.Quarantine[0].Scope = snapshot.ScopeRoutePolicy
	x.b = x.b.WithLedger(l)
	var contents []snapshot.Digest
	for n := 1; n <= state.MaxQuarantined+1; n++ {
		contents = append(contents, fail(n))
	}
	if _, barred := x.b.Barred(snapshot.ScopeRoutePolicy, other); !barred {
		t.Error("what failed in another scope is forgotten")
	}
	if n := len(x.b.Quarantine); n != state.MaxQuarantined+1 {
		t.Errorf("%d are remembered", n)
	}
	for i, content := range contents {
		if _, barred := x.b.Barred(qosScope, content); barred != (i > 0) {
			t.Errorf("number %d is barred: %v", i+1, barred)
		}
	}
}

// A start counts the trials that go on before anything is used. After so many attempts the snapshot
// failed; one that cannot be counted is not used this time; and one of what is not in use is over.
func TestResumeTrials(t *testing.T) {
	x := newTester(t)
	x.try(x.qos(1), true)
	x.b = x.b.WithLedger(x.b.Ledger.WithoutTrial(qosScope))
	x.Must(x.s.WriteLedger(x.b.Ledger))
	if got, err := x.s.ResumeTrials(x.b, x.me, x.Clock()); got != x.b || err != nil {
		t.Errorf("nothing is on trial: %v", err)
	}
	x.try(x.qos(2), true)
	first := x.b
	for n := 2; n <= state.MaxAttempts; n++ {
		next, err := x.s.ResumeTrials(x.lockedLoad(x.s).TrustState, x.me, x.Clock())
		x.Must(err)
		if is, on := next.OnTrial(qosScope); !on || is.Attempts != n || x.priority(next) != 2 {
			t.Fatalf("start %d: on trial %v: %+v, in use %d", n, on, is, x.priority(next))
		}
		if is, _ := x.lockedLoad(x.s).TrustState.OnTrial(qosScope); is.Attempts != n {
			t.Fatalf("start %d: attempt %d is on disk", n, is.Attempts)
		}
	}
	next, err := x.s.ResumeTrials(x.lockedLoad(x.s).TrustState, x.me, x.Clock())
	x.Must(err)
	if q, is := next.Quarantined(qosScope); !is || q.Reason != "attempts" || x.priority(next) != 1 || len(next.Trials) != 0 {
		t.Errorf("after all attempts: %+v, in use %d", q, x.priority(next))
	}
	// The disk is full: the one before is used, and nothing is decided for good.
	x.disk.Refuse(syscall.ENOSPC)
	next, err = x.s.ResumeTrials(first, x.me, x.Clock())
	x.disk.Refuse(nil)
	if _, on := next.OnTrial(qosScope); !errors.Is(err, syscall.ENOSPC) || x.priority(next) != 1 || !on {
		t.Errorf("a full disk: %v, in use %d, on trial %v", err, x.priority(next), on)
	}
	if _, is := next.Quarantined(qosScope); is {
		t.Error("a full disk puts it in quarantine")
	}
	for name, b := range map[string]*state.TrustState{
		"it is not in use any more":            first.Without(qosScope),
		"there is no time for trials any more": first.Without(degradedScope),
	} {
		next, err := x.s.ResumeTrials(b, x.me, x.Clock())
		x.Must(err)
		if len(next.Trials) != 0 || len(next.Quarantine) != 0 {
			t.Errorf("%s: on trial %v, failed %v", name, next.Trials, next.Quarantine)
		}
	}
}

// Settle writes only what is not there.
func TestSettle(t *testing.T) {
	x := newTester(t)
	x.try(x.qos(1), true)
	raw := x.b.Active[qosScope].Raw
	x.disk.FailAt(1, syscall.ENOSPC)
	if err := x.s.Settle(qosScope, raw); err != nil || x.disk.Failed() {
		t.Errorf("what is there is written again: %v", err)
	}
	if err := x.s.Settle(qosScope, append(raw, 'x')); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("another one is not written: %v", err)
	}
	x.Must(x.s.Settle(qosScope, append(raw, 'x')))
	if got := x.read(dir.SnapshotName(qosScope, dir.Active)); len(got) != len(raw)+1 {
		t.Error("another one is not written")
	}
}
