package agent_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// A folder that a newer release wrote is refused by name and left as it is.
func TestNewerFormat(t *testing.T) {
	f := nodetest.New(t)
	n := joinedNode(f)
	data, err := dir.Seal(dir.StoreFile{Format: dir.StoreFormat + 1, Release: "v9.1.0"})
	f.Must(err)
	n.Disk.Put(n.Path(dir.StoreName), data)
	n.Disk.FailAt(1<<30, nil)
	_, err = n.open()
	if !errors.Is(err, errcode.NodeStateNewer) || !strings.Contains(err.Error(), "v9.1.0") {
		t.Errorf("opened: %v", err)
	}
	if _, err := n.Join(enroll.ByToken(f.Token())); !errors.Is(err, errcode.NodeStateNewer) {
		t.Errorf("joined: %v", err)
	}
	if n.Disk.Calls() != 0 || !bytes.Equal(n.Read(dir.StoreName), data) {
		t.Errorf("%d changes were made", n.Disk.Calls())
	}
	// Its own form, damaged or not, is no reason.
	for _, data := range [][]byte{nil, []byte("x"), n.Read(dir.MarksAName)} {
		n.Disk.Put(n.Path(dir.StoreName), data)
		n.mustOpen().Close()
		var got dir.StoreFile
		if err := dir.Unseal(n.Read(dir.StoreName), &got); err != nil ||
			got != (dir.StoreFile{Format: dir.StoreFormat, Release: "v0.1.0"}) {
			t.Errorf("over %q: %v, %v", data, got, err)
		}
	}
}

// The files that others read are made from what is in use, and never read back: whatever is
// written there, the node is the same, and the files are right again.
func TestDerivedIsNoAuthority(t *testing.T) {
	f := nodetest.New(t)
	n, _ := companionNode(f)
	a := n.mustOpen()
	was := inUse(a)
	n.wellKept(t, a)
	var told state.StateFile
	f.Must(dir.Unseal(n.Read(dir.StateName), &told))
	if len(told.Scopes) != len(state.Scopes) || told.Release != "v0.1.0" ||
		bytes.Contains(n.Read(dir.StateName), []byte("PRIVATE")) {
		t.Errorf("the state is %+v", told)
	}
	for _, s := range told.Scopes {
		want := state.ByCoordinator
		if s.Scope == snapshot.ScopeTrustBundle || s.Scope == snapshot.ScopeNodeBootstrap {
			want = state.FromDisk // of the join
		}
		if s.ConfigVersion != was[s.Scope] || s.Source != want || s.VerifiedAt.IsZero() || len(s.SignerKeyIDs) == 0 {
			t.Errorf("%s: %+v", s.Scope, s)
		}
	}
	a.Close()
	for _, name := range []string{dir.CurrentName(snapshot.ScopeQoSPolicy), dir.CurrentName(snapshot.ScopeRoutePolicy),
		dir.StateName} {
		for _, data := range [][]byte{nil, []byte("{}"), n.Read(dir.CurrentName(snapshot.ScopeTrustBundle)),
			bytes.Repeat([]byte("x"), internalsnapshot.MaxContent+1)} {
			n.Disk.Put(n.Path(name), data)
			a := n.mustOpen()
			if got := inUse(a); !maps.Equal(got, was) {
				t.Errorf("with another %s: %v", name, got)
			}
			n.wellKept(t, a)
			a.Close()
		}
	}
}

// The content of a snapshot that ended is not there to read.
func TestDerivedEnds(t *testing.T) {
	f := nodetest.New(t)
	f.BundleLife = 60 * 24 * time.Hour
	n, _ := companionNode(f)
	a := n.mustOpen()
	defer a.Close()
	f.Shift.Store(int64(31 * 24 * time.Hour))
	if _, err := a.Node().Trials.EndTrials(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, scope := range nodetest.AllCompanions {
		if n.Has(dir.CurrentName(scope)) {
			t.Errorf("%s ended and can be read", scope)
		}
	}
	if !n.Has(dir.CurrentName(snapshot.ScopeTrustBundle)) {
		t.Error("what did not end cannot be read")
	}
}

// Every file of the node's store, cut anywhere or with a bit turned, leaves the node with
// nothing that it did not accept, and with all of it again when a coordinator sends it.
func TestEveryFileDamaged(t *testing.T) {
	f := nodetest.New(t)
	joined, m := companionNode(f)
	a := joined.mustOpen()
	was := inUse(a)
	accepted := make(map[snapshot.Scope]map[uint64]bool)
	var again []state.Offer
	for _, scope := range state.Scopes {
		h := a.Node().TrustState().Active[scope]
		accepted[scope] = map[uint64]bool{was[scope]: true, 0: true}
		again = append(again, state.Offer{Scope: string(scope), Raw: h.Raw})
		if data, err := a.Node().Store().Read(dir.SnapshotName(scope, dir.Previous), internalsnapshot.MaxSigned); err == nil {
			s, err := snapshot.Unmarshal(data)
			f.Must(err)
			accepted[scope][versionOf(t, s)] = true
		}
	}
	a.Close()
	_ = m
	names := []string{dir.MarksAName, dir.MarksBName, dir.ClockName, dir.StoreName, dir.StateName, dir.RefusalsName,
		dir.DegradedName, dir.BehindName, dir.EmergencyAName, dir.EmergencyBName}
	for _, scope := range state.Scopes {
		names = append(names, dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous),
			dir.SnapshotName(scope, dir.Pending), dir.SnapshotName(scope, dir.Refused), dir.CurrentName(scope))
	}
	for _, name := range names {
		if !joined.Has(name) {
			continue
		}
		n := joined.clone()
		data := joined.Read(name)
		damages(data, func(what string, damaged []byte) {
			n := n.clone()
			n.Disk.Put(n.Path(name), damaged)
			a, err := n.open()
			if err != nil {
				t.Fatalf("%s, %s: %v", name, what, err)
			}
			defer a.Close()
			for scope, version := range inUse(a) {
				if !accepted[scope][version] {
					t.Fatalf("%s, %s: version %d of %s is in use", name, what, version, scope)
				}
			}
			f.Must(a.Contact().Take(t.Context(), state.ByCoordinator, again...))
			if got := inUse(a); !maps.Equal(got, was) {
				t.Fatalf("%s, %s: sent again, in use are %v, want %v; %v", name, what, got, was,
					a.Node().Status().Refusals())
			}
		})
	}
}

// A copy of the folder is of no use to another node: with that one's identity it is
// refused as the wrong node, and its snapshots verify for nobody else.
func TestCopiedFolder(t *testing.T) {
	f := nodetest.New(t)
	one, _ := companionNode(f)
	two := joinedNode(f)
	n := one.clone()
	n.Disk.Put(n.Path(dir.SVIDName), two.Read(dir.SVIDName))
	if _, err := n.open(); !errors.Is(err, errcode.NodeWrong) {
		t.Errorf("with the certificate of another node: %v", err)
	}
	// All but the identity of one, under that of the other.
	n = one.clone()
	for _, name := range []string{dir.SVIDName, dir.AnchorName} {
		n.Disk.Put(n.Path(name), two.Read(name))
	}
	a := n.mustOpen()
	defer a.Close()
	for scope := range inUse(a) {
		if scope != snapshot.ScopeTrustBundle { // which is everybody's
			t.Errorf("%s of another node is in use", scope)
		}
	}
}

// realNode returns n's state in a folder of the operating system.
func (n *node) realDir() string {
	n.Fleet.TB.Helper()
	folder := n.Fleet.TB.TempDir()
	names := append([]string{}, nodetest.Files...)
	for _, scope := range state.Scopes {
		names = append(names, dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous))
	}
	for _, name := range names {
		if n.Has(name) {
			n.Fleet.Must(os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700))
			n.Fleet.Must(os.WriteFile(filepath.Join(folder, name), n.Read(name), 0o600))
		}
	}
	return folder
}

// hookNode opens an agent whose program for changes is script; it runs until the test
// ends. One run of it takes timeout at most; 0: as long as outside tests.
func hookNode(t *testing.T, n *node, folder, script string, timeout time.Duration) *agent.Agent {
	t.Helper()
	a, err := agent.Open(t.Context(), agent.Config{
		DataDir: folder, FS: durable.OS(), Now: n.Fleet.Clock, Log: nodetest.Quiet(), Dial: n.Fleet.Dial,
		OnChange: []string{"/bin/sh", "-c", script, "hook"},
	})
	n.Fleet.Must(err)
	if timeout > 0 {
		a.BoundHooks(timeout)
	}
	a.Serve("", "")
	return a
}

// The program for changes runs once for each content, with what changed in its
// environment, also for what changed while the agent was down.
func TestHook(t *testing.T) {
	f := nodetest.New(t)
	n, m := companionNode(f)
	folder, log := n.realDir(), filepath.Join(t.TempDir(), "log")
	script := `cmp -s "$FEALTY_FILE" "$FEALTY_FILE" || test $FEALTY_EVENT = dropped && echo $FEALTY_EVENT $FEALTY_SCOPE $FEALTY_CONFIG_VERSION >> ` + log
	lines := func(scope snapshot.Scope) []string {
		data, _ := os.ReadFile(log)
		var out []string
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, " "+string(scope)) {
				out = append(out, strings.Fields(line)[0])
			}
		}
		return out
	}
	a := hookNode(t, n, folder, script, 0)
	stop := n.run(a)
	all := func() bool {
		for _, scope := range state.Scopes {
			if len(lines(scope)) == 0 {
				return false
			}
		}
		return true
	}
	wait.Until(t, "it ran for each scope", all)
	var next []*fealtyv1.SignedSnapshot
	f.Do(func() {
		next = append(next, f.OfGroup(&m, signedtest.QoS(7)), f.Gives(&m, []snapshot.Scope{snapshot.ScopeQoSPolicy}))
	})
	f.Must(a.Contact().Take(t.Context(), state.ByCoordinator, offers(next...)...))
	wait.Until(t, "it ran for what changed and what was dropped", func() bool {
		l := lines(snapshot.ScopeRoutePolicy)
		return len(lines(snapshot.ScopeQoSPolicy)) == 2 && len(l) == 2 && l[1] == "dropped"
	})
	wait.Until(t, "what it succeeded with is written down", func() bool {
		data, err := os.ReadFile(filepath.Join(folder, dir.StateName))
		var s state.StateFile
		if err != nil || dir.Unseal(data, &s) != nil {
			return false
		}
		for _, scope := range s.Scopes {
			if scope.Applied != scope.ContentHash {
				return false
			}
		}
		return len(s.Scopes) == len(state.Foundations)+1
	})
	_ = stop()
	before := len(lines(""))
	a = hookNode(t, n, folder, script, 0)
	stop = n.run(a)
	f.Do(func() { next = []*fealtyv1.SignedSnapshot{f.OfGroup(&m, signedtest.QoS(8))} })
	f.Must(a.Contact().Take(t.Context(), state.ByCoordinator, offers(next...)...))
	wait.Until(t, "it runs for the next change",
		func() bool { return len(lines(snapshot.ScopeQoSPolicy)) == 3 })
	if got := len(lines("")); got != before+1 {
		t.Errorf("after a restart it ran %d times, want once", got-before)
	}
	_ = stop()
}

// The exit status of the program is the verdict of a trial; one that hangs is ended and
// has failed.
func TestHookVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
	}{
		{"fails", `test $FEALTY_SCOPE != qos_policy || ! grep -q '"priority":2' "$FEALTY_FILE"`, 0},
		{"hangs", `test $FEALTY_SCOPE != qos_policy || ! grep -q '"priority":2' "$FEALTY_FILE" || exec sleep 600`,
			10 * time.Second}, // the others end in time, on a busy machine too
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newTrialWorld(t, false)
			w.a.Close()
			a := hookNode(t, w.n, w.n.realDir(), c.script, c.timeout)
			w.n.run(a)
			wait.Until(t, "the version before is in use",
				func() bool { return inUse(a)[snapshot.ScopeQoSPolicy] == w.good })
			wait.Until(t, "it ran for that again", func() bool {
				return testutil.ToFloat64(a.Counters().HookRuns().WithLabelValues("qos_policy", "ok")) >= 1
			})
			if got := testutil.ToFloat64(a.Counters().HookRuns().WithLabelValues("qos_policy", "error")); got != 1 {
				t.Errorf("it failed %v times", got)
			}
			if got := testutil.ToFloat64(a.Counters().Rejected().WithLabelValues("qos_policy",
				state.ReasonQuarantined)); got != 1 {
				t.Errorf("counted %v", got)
			}
		})
	}
}
