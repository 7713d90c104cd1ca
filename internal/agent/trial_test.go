package agent_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// trialWorld is a node that tries its QoS policies for an hour. It holds one, and
// another version of it, with content 2, is on trial.
type trialWorld struct {
	t    *testing.T
	f    *nodetest.Fleet
	n    *node
	m    signedtest.Member
	a    *agent.Agent
	good uint64 // the version before
	bad  *fealtyv1.SignedSnapshot
}

func newTrialWorld(t *testing.T, contact bool) *trialWorld {
	t.Helper()
	f := nodetest.New(t)
	w := &trialWorld{t: t, f: f, n: newNode(f)}
	id := w.n.MustJoin().ID
	w.m = f.Member(id)
	w.a = w.n.mustOpen()
	t.Cleanup(func() { w.a.Close() })
	if contact {
		w.a.Node().Status().Opened(signedtest.Coordinator)
	}
	f.Do(func() {
		f.Must(w.n.take(w.a, f.Gives(&w.m, []snapshot.Scope{snapshot.ScopeDegradedModePolicy,
			snapshot.ScopeQoSPolicy})))
		f.Must(w.n.take(w.a, f.OfGroup(&w.m, &snapshot.DegradedModePolicy{Trials: []snapshot.Trial{
			{Scope: snapshot.ScopeNodeRuntime, Duration: time.Hour},
			{Scope: snapshot.ScopeQoSPolicy, Duration: time.Hour},
			{Scope: snapshot.ScopeTrustBundle, Duration: time.Hour},
		}})))
		f.Must(w.n.take(w.a, f.OfGroup(&w.m, signedtest.QoS(1))))
	})
	w.end() // the first has nothing before it
	w.good = w.version()
	w.bad = w.send(2)
	if w.version() == w.good || !w.onTrial() {
		t.Fatalf("version %d is in use, on trial: %v; %v", w.version(), w.onTrial(), w.a.Node().Status().Refusals())
	}
	return w
}

func (w *trialWorld) send(n int, edits ...func(*snapshot.Header, *snapshot.Record)) (s *fealtyv1.SignedSnapshot) {
	w.t.Helper()
	w.f.Do(func() { s = w.f.OfGroup(&w.m, signedtest.QoS(n), edits...) })
	w.f.Must(w.n.take(w.a, s))
	return s
}

func (w *trialWorld) version() uint64 { return inUse(w.a)[snapshot.ScopeQoSPolicy] }

func (w *trialWorld) onTrial() bool {
	_, on := w.a.Node().TrustState().OnTrial(snapshot.ScopeQoSPolicy)
	return on
}

// end lets the time of the trial pass.
func (w *trialWorld) end() {
	w.t.Helper()
	w.a.Node().Trials.Since[snapshot.ScopeQoSPolicy] = time.Now().Add(-2 * time.Hour)
	_, err := w.a.Node().Trials.EndTrials(w.t.Context())
	w.f.Must(err)
}

func (w *trialWorld) restart() {
	w.t.Helper()
	w.a.Close()
	w.n.Disk.Restart(durabletest.Synced)
	w.a = w.n.mustOpen()
}

func (w *trialWorld) reject() {
	w.t.Helper()
	w.f.Must(w.a.Node().Trials.Verdict(w.t.Context(), snapshot.ScopeQoSPolicy, 0, false, "it does not work"))
}

// fellBack checks that the version before is in use, and that everybody is told.
func (w *trialWorld) fellBack(when string) {
	w.t.Helper()
	if w.version() != w.good || w.onTrial() {
		w.t.Errorf("%s: version %d is in use, want %d; on trial: %v", when, w.version(), w.good, w.onTrial())
	}
	mark, _ := w.a.Node().TrustState().Marks.Get(snapshot.ScopeQoSPolicy,
		snapshot.GroupSubject(signedtest.GroupRoles, signedtest.GroupOrganizations))
	if mark.ConfigVersion <= w.good {
		w.t.Errorf("%s: the mark went back to %d", when, mark.ConfigVersion)
	}
	if got := w.a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != state.ReasonQuarantined ||
		got[0].Scope != string(snapshot.ScopeQoSPolicy) {
		w.t.Errorf("%s: it is reported as %v", when, got)
	}
	resp, err := w.a.NodeServer().GetNode(w.t.Context(), nil)
	w.f.Must(err)
	if len(resp.GetRefusals()) != 1 || resp.GetRefusals()[0].GetReason() != state.ReasonQuarantined {
		w.t.Errorf("%s: the node tells of %v", when, resp.GetRefusals())
	}
	if q, ok := w.a.Node().TrustState().Quarantined(snapshot.ScopeQoSPolicy); !ok || q.Kept {
		w.t.Errorf("%s: quarantined: %v, %+v", when, ok, q)
	}
	w.n.wellKept(w.t, w.a)
}

// A snapshot on trial that is bad is used no more; what was before is, over restarts,
// until a higher version with another content comes.
func TestTrial(t *testing.T) {
	for _, c := range []struct {
		name    string
		contact bool
		do      func(w *trialWorld)
		bad     bool // it falls back
	}{
		{"its time passes", true, (*trialWorld).end, false},
		{"its time passes, and there was no contact before", false, (*trialWorld).end, false},
		{"a good verdict, and its time passes", true, func(w *trialWorld) {
			w.f.Must(w.a.Node().Trials.Verdict(w.t.Context(), snapshot.ScopeQoSPolicy, 0, true, ""))
			w.end()
		}, false},
		{"a bad verdict", true, (*trialWorld).reject, true},
		{"a good and then a bad verdict", true, func(w *trialWorld) {
			w.f.Must(w.a.Node().Trials.Verdict(w.t.Context(), snapshot.ScopeQoSPolicy, w.version(), true, ""))
			w.reject()
		}, true},
		{"contact lost", true, func(w *trialWorld) {
			w.a.Node().Status().Closed(errors.New("gone"))
			w.end()
		}, true},
		{"contact lost and back", true, func(w *trialWorld) {
			w.a.Node().Status().Closed(errors.New("gone"))
			w.a.Node().Status().Opened(signedtest.Coordinator)
			w.end()
		}, false},
		{"contact lost over a restart", true, func(w *trialWorld) { w.restart(); w.end() }, true},
		{"starts that end again and again", true, func(w *trialWorld) {
			for range state.MaxAttempts - 1 {
				w.restart()
				if w.version() == w.good {
					w.t.Error("an attempt too few")
				}
			}
			w.restart()
		}, true},
		{"an attempt that is not written down", true, func(w *trialWorld) {
			w.a.Close()
			w.n.Disk.Restart(durabletest.Synced)
			for call := 1; ; call++ {
				c := w.n.clone()
				c.Disk.FailAt(call, syscall.ENOSPC)
				a, err := c.open()
				if !c.Disk.Failed() {
					w.t.Fatal("no failed write keeps it from being used")
				}
				if err != nil {
					continue
				}
				version := inUse(a)[snapshot.ScopeQoSPolicy]
				a.Close()
				if version == w.good {
					break // the count is what failed
				}
			}
			w.a = w.n.mustOpen()
			w.restart()
			w.reject()
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTrialWorld(t, c.contact)
			c.do(w)
			if !c.bad {
				if w.version() == w.good || w.onTrial() || len(w.a.Node().Status().Refusals()) != 0 {
					t.Errorf("version %d is in use, on trial: %v; %v", w.version(), w.onTrial(),
						w.a.Node().Status().Refusals())
				}
				w.restart()
				if w.version() == w.good || w.onTrial() {
					t.Errorf("after a restart version %d is in use, on trial: %v", w.version(), w.onTrial())
				}
				return
			}
			w.fellBack("at once")
			w.restart()
			w.fellBack("after a restart")
			f := w.f
			f.Must(w.n.take(w.a, w.bad))
			w.fellBack("sent again")
			w.send(2) // a higher version of what failed
			w.fellBack("the same content as a higher version")
			w.restart()
			w.fellBack("and a restart")
			w.send(3, func(h *snapshot.Header, _ *snapshot.Record) { h.ConfigVersion = w.good })
			if w.version() != w.good || w.a.Node().Status().Refusals()[0].Reason == state.ReasonQuarantined {
				t.Errorf("an older version was accepted: %v", w.a.Node().Status().Refusals())
			}
			w.send(4)
			if w.version() == w.good || !w.onTrial() || len(w.a.Node().Status().Refusals()) != 0 {
				t.Fatalf("the fix: version %d is in use, on trial: %v; %v", w.version(), w.onTrial(),
					w.a.Node().Status().Refusals())
			}
			w.reject() // two in a row: the good one is still known
			w.fellBack("a second bad one")
			w.send(5)
			w.restart()
			if w.version() == w.good {
				t.Error("the second fix is not in use after a restart")
			}
			w.end()
		})
	}
}

// A scope that says whom to believe or what is allowed is never on trial.
func TestNoTrialOfTrust(t *testing.T) {
	w := newTrialWorld(t, true)
	f := w.f
	f.TrustChanged(func() {})
	f.Must(w.n.take(w.a, f.TrustBundle()))
	f.Do(func() {
		f.Must(w.n.take(w.a, f.Gives(&w.m, []snapshot.Scope{snapshot.ScopeDegradedModePolicy,
			snapshot.ScopeQoSPolicy})))
	})
	for _, scope := range state.Scopes {
		if _, on := w.a.Node().TrustState().OnTrial(scope); on != (scope == snapshot.ScopeQoSPolicy) {
			t.Errorf("%s is on trial: %v", scope, on)
		}
		if scope == snapshot.ScopeQoSPolicy {
			continue
		}
		if err := w.a.Node().Trials.Verdict(t.Context(), scope, 0, false, ""); !errors.Is(err, state.ErrNoTrial) {
			t.Errorf("a verdict of %s: %v", scope, err)
		}
	}
	if err := w.a.Node().Trials.Verdict(t.Context(), snapshot.ScopeQoSPolicy, w.good, false, ""); !errors.Is(err,
		state.ErrNoTrial) || w.version() == w.good {
		t.Errorf("a verdict of the version before: %v", err)
	}
	// A newer record over what is on trial changes nothing of it.
	old := w.a.Node().TrustState().Active[snapshot.ScopeQoSPolicy].Verified.Header()
	w.send(2, func(h *snapshot.Header, _ *snapshot.Record) { *h = old })
	if !w.onTrial() {
		t.Error("a renewal ended the trial")
	}
	// Nor does a new version of the same content, when it is over.
	w.end()
	w.send(2)
	if w.onTrial() {
		t.Error("the same content is on trial again")
	}
	if got := testutil.ToFloat64(w.a.Counters().Rejected().WithLabelValues("qos_policy",
		state.ReasonQuarantined)); got != 0 {
		t.Errorf("counted %v", got)
	}
}

// Without anything before that may be used, what failed stays in use, and is told.
func TestTrialWithoutPrevious(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *trialWorld)
	}{
		{"damaged", func(w *trialWorld) {
			w.n.Disk.Put(w.n.Path(dir.SnapshotName(snapshot.ScopeQoSPolicy, dir.Previous)), []byte("x"))
		}},
		{"of another content that was never accepted", func(w *trialWorld) {
			w.n.Disk.Put(w.n.Path(dir.SnapshotName(snapshot.ScopeQoSPolicy, dir.Previous)),
				w.f.OfGroup(&w.m, signedtest.QoS(7)).GetEnvelope())
		}},
		{"of an older epoch", func(w *trialWorld) {
			f := w.f
			f.TrustChanged(func() { f.Epoch = 2 })
			f.Must(w.n.take(w.a, f.TrustBundle()))
			w.send(3)
			if !w.onTrial() {
				w.t.Fatal("not on trial", w.a.Node().Status().Refusals())
			}
		}},
		{"its signer revoked", func(w *trialWorld) {
			f := w.f
			old := f.ConfigKey
			f.Do(func() { f.ConfigKey = newConfigKey() })
			f.TrustChanged(func() {})
			f.Must(w.n.take(w.a, f.TrustBundle()))
			w.send(3)
			if !w.onTrial() || bytes.Equal(old, f.ConfigKey) {
				w.t.Fatal("not on trial", w.a.Node().Status().Refusals())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTrialWorld(t, true)
			c.do(w)
			was := w.version()
			w.reject()
			look := func(when string) {
				t.Helper()
				q, ok := w.a.Node().TrustState().Quarantined(snapshot.ScopeQoSPolicy)
				if w.version() != was || w.onTrial() || !ok || !q.Kept {
					t.Errorf("%s: version %d is in use, want %d; on trial: %v; told: %v, %+v", when, w.version(), was,
						w.onTrial(), ok, q)
				}
				if got := w.a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != state.ReasonQuarantined {
					t.Errorf("%s: %v", when, got)
				}
			}
			look("at once")
		})
	}
}

// A power cut at any call of a fall back leaves the one or the other, counted.
func TestFallBackCrash(t *testing.T) {
	w := newTrialWorld(t, true)
	base := w.n.clone()
	bad := w.version()
	var n *node
	nodetest.Crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
		n = base.clone()
		a := n.mustOpen()
		return n.Disk, func() error {
			if err := a.Node().Trials.Verdict(t.Context(), snapshot.ScopeQoSPolicy, 0, false, "bad"); err != nil {
				return err
			}
			if got := inUse(a)[snapshot.ScopeQoSPolicy]; got != w.good {
				t.Errorf("version %d is in use although the disk failed", got)
			}
			return a.Node().KeepLedger()
		}
	}, func(t *testing.T, done bool) {
		a, err := n.open()
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Close()
		got := inUse(a)[snapshot.ScopeQoSPolicy]
		trial, on := a.Node().TrustState().OnTrial(snapshot.ScopeQoSPolicy)
		if got != w.good && (got != bad || done || !on || trial.Attempts != 3) {
			t.Errorf("version %d is in use, trial %+v", got, trial)
		}
	})
}

func newConfigKey() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

// The list of what failed is bounded, and the newest are in it.
func TestQuarantineIsBounded(t *testing.T) {
	w := newTrialWorld(t, true)
	w.reject()
	for i := range 3 * state.MaxQuarantined {
		w.send(100 + i)
		w.reject()
	}
	if got := len(w.a.Node().TrustState().Quarantine); got != state.MaxQuarantined {
		t.Errorf("%d entries", got)
	}
	w.fellBack("after many")
	w.send(100 + 3*state.MaxQuarantined - 1)
	w.fellBack("the last again")
}
