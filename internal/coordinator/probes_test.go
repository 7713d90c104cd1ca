package coordinator_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	"github.com/fealty-io/fealty/test/wait"
)

func TestHealth(t *testing.T) {
	well := coordinator.Health{Serving: true, Tried: true, Phase: authority.Ready, MaxHeadAge: time.Hour}
	with := func(f func(*coordinator.Health)) coordinator.Health {
		h := well
		f(&h)
		return h
	}
	uninitialized := with(func(h *coordinator.Health) {
		h.Phase, h.Reason = authority.Uninitialized,
			"no manifest was set yet"
	})
	recovery := with(func(h *coordinator.Health) { h.Phase, h.Reason = authority.Recovery, "no peer answers" })
	for _, tt := range []struct {
		name  string
		probe func(coordinator.Health) coordinator.ProbeAnswer
		of    coordinator.Health
		want  coordinator.ProbeAnswer
	}{
		{"serves", coordinator.Health.Startup, well, coordinator.ProbeAnswer{OK: true, Phase: "ready"}},
		{"a port does not serve", coordinator.Health.Startup, with(func(h *coordinator.Health) { h.Serving = false }),
			coordinator.ProbeAnswer{Phase: "ready", Reason: "the listeners do not serve yet"}},
		{"peers were not asked", coordinator.Health.Startup, with(func(h *coordinator.Health) {
			h.Phase,
				h.Tried = authority.Recovery, false
		}),
			coordinator.ProbeAnswer{Phase: "recovery", Reason: "it has not asked its peers for the keys yet"}},
		{"started in recovery mode", coordinator.Health.Startup, recovery,
			coordinator.ProbeAnswer{OK: true, Phase: "recovery"}},
		{"started without a manifest", coordinator.Health.Startup, uninitialized,
			coordinator.ProbeAnswer{OK: true, Phase: "uninitialized"}},
		{"started without a store", coordinator.Health.Startup,
			with(func(h *coordinator.Health) { h.HeadAge = 2 * time.Hour }),
			coordinator.ProbeAnswer{OK: true, Phase: "ready"}},

		{"ready", coordinator.Health.Readiness, well, coordinator.ProbeAnswer{OK: true, Phase: "ready", Store: "ok"}},
		{"ready, the last look a while ago", coordinator.Health.Readiness,
			with(func(h *coordinator.Health) { h.HeadAge = authority.DegradedAfter }), coordinator.ProbeAnswer{OK: true,
				Phase: "ready", Store: "ok"}},
		{"the store is out of reach", coordinator.Health.Readiness,
			with(func(h *coordinator.Health) { h.HeadAge = 10 * time.Minute }),
			coordinator.ProbeAnswer{OK: true,
				Phase: "ready", Store: "degraded", Changes: "refused", Reason: "the head of the history was last confirmed 10m0s ago"}},
		{"for just as long as allowed", coordinator.Health.Readiness,
			with(func(h *coordinator.Health) { h.HeadAge = time.Hour }),
			coordinator.ProbeAnswer{OK: true,
				Phase: "ready", Store: "degraded", Changes: "refused", Reason: "the head of the history was last confirmed 1h0m0s ago"}},
		{"for too long", coordinator.Health.Readiness,
			with(func(h *coordinator.Health) { h.HeadAge = time.Hour + time.Second }),
			coordinator.ProbeAnswer{Phase: "ready", Store: "degraded", Changes: "refused",
				Reason: "the head of the history was last confirmed 1h0m1s ago"}},
		{"not ready in recovery mode", coordinator.Health.Readiness, recovery,
			coordinator.ProbeAnswer{Phase: "recovery", Reason: "no peer answers"}},
		{"not ready without a manifest", coordinator.Health.Readiness, uninitialized,
			coordinator.ProbeAnswer{Phase: "uninitialized", Reason: "no manifest was set yet"}},
		{"not ready and nobody knows why", coordinator.Health.Readiness,
			with(func(h *coordinator.Health) { h.Phase = authority.Recovery }),
			coordinator.ProbeAnswer{Phase: "recovery"}},

		{"alive", coordinator.Health.Liveness, well, coordinator.ProbeAnswer{OK: true, Phase: "ready"}},
		{"alive in recovery mode", coordinator.Health.Liveness, recovery,
			coordinator.ProbeAnswer{OK: true, Phase: "recovery"}},
		{"alive without a manifest", coordinator.Health.Liveness, uninitialized,
			coordinator.ProbeAnswer{OK: true, Phase: "uninitialized"}},
		{"alive without a store, however long", coordinator.Health.Liveness,
			with(func(h *coordinator.Health) { h.HeadAge = 100 * time.Hour }),
			coordinator.ProbeAnswer{OK: true, Phase: "ready"}},
		{"alive after a short wait for a lock", coordinator.Health.Liveness,
			with(func(h *coordinator.Health) { h.WatchdogAge = coordinator.StuckAfter }),
			coordinator.ProbeAnswer{OK: true, Phase: "ready"}},
		{"stuck", coordinator.Health.Liveness, with(
			func(h *coordinator.Health) { h.WatchdogAge = coordinator.StuckAfter + time.Second }),
			coordinator.ProbeAnswer{Phase: "ready",
				Reason: "it is stuck: a lock that every call takes was not free for 31s"}},
		{"stuck in recovery mode", coordinator.Health.Liveness,
			with(func(h *coordinator.Health) { h.Phase, h.WatchdogAge = authority.Recovery, time.Hour }),
			coordinator.ProbeAnswer{Phase: "recovery",
				Reason: "it is stuck: a lock that every call takes was not free for 1h0m0s"}},

		{"strict, with a store", coordinator.Health.Liveness, with(func(h *coordinator.Health) { h.Strict = true }),
			coordinator.ProbeAnswer{OK: true, Phase: "ready"}},
		{"strict, without a store", coordinator.Health.Liveness, with(func(h *coordinator.Health) {
			h.Strict,
				h.HeadAge = true, time.Minute
		}),
			coordinator.ProbeAnswer{Phase: "ready",
				Reason: "the store was last read 1m0s ago, and --liveness-store is set"}},
		{"strict, in recovery mode without a store", coordinator.Health.Liveness,
			with(func(h *coordinator.Health) { h.Phase, h.Strict, h.HeadAge = authority.Recovery, true, time.Hour }),
			coordinator.ProbeAnswer{OK: true, Phase: "recovery"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.probe(tt.of); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// systemd starts a coordinator again that is stuck or does not serve, and none that waits for a person or a store.
func TestServiceHealth(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   coordinator.Health
		want sdnotify.Health
	}{
		{"well", coordinator.Health{Serving: true, Phase: authority.Ready, MaxHeadAge: time.Hour}, sdnotify.Health{Serves: true, Status: "ready"}},
		{"a port does not serve", coordinator.Health{Phase: authority.Ready, MaxHeadAge: time.Hour}, sdnotify.Health{Status: "ready"}},
		{"no manifest", coordinator.Health{Serving: true, Phase: authority.Uninitialized, Reason: "no manifest was set yet"},
			sdnotify.Health{Serves: true, Status: "uninitialized: no manifest was set yet"}},
		{"in recovery mode", coordinator.Health{Serving: true, Phase: authority.Recovery, Reason: "no peer answers"},
			sdnotify.Health{Serves: true, Status: "recovery: no peer answers"}},
		{"without a store for too long", coordinator.Health{Serving: true, Phase: authority.Ready, HeadAge: 2 * time.Hour, MaxHeadAge: time.Hour},
			sdnotify.Health{Serves: true, Status: "ready: the head of the history was last confirmed 2h0m0s ago"}},
		{"stuck", coordinator.Health{Serving: true, Phase: authority.Ready, WatchdogAge: time.Minute},
			sdnotify.Health{Status: "it is stuck: a lock that every call takes was not free for 1m0s"}},
	} {
		if got := tt.of.Service(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// The probes of a coordinator, over HTTP, in each of its conditions.
func TestProbes(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	ask := func(path string) (int, coordinator.ProbeAnswer) {
		t.Helper()
		w := httptest.NewRecorder()
		d.C.MetricsHandler(d.C.Registry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var a coordinator.ProbeAnswer
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatalf("%s: %v: %s", path, err, w.Body)
		}
		if want := map[bool]int{true: 200, false: 503}[a.OK]; w.Code != want {
			t.Errorf("%s: %d with %+v", path, w.Code, a)
		}
		return w.Code, a
	}
	want := func(when string, startup, readiness, liveness int, mode float64) {
		t.Helper()
		for path, code := range map[string]int{"/probe/startup": startup, "/probe/readiness": readiness,
			"/probe/liveness": liveness} {
			if got, a := ask(path); got != code {
				t.Errorf("%s: %s is %d: %+v", when, path, got, a)
			}
		}
		if err := testutil.GatherAndCompare(d.C.Registry(),
			strings.NewReader("# HELP fealty_coordinator_recovery_mode 1 while the state in memory is not the head of "+
				"the persisted history.\n"+
				"# TYPE fealty_coordinator_recovery_mode gauge\nfealty_coordinator_recovery_mode "+
				""+map[float64]string{0: "0", 1: "1"}[mode]+"\n"), "fealty_coordinator_recovery_mode"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	want("before it serves", 503, 503, 200, 0)
	d.C.Serving().Store(true)
	want("without a manifest", 200, 503, 200, 0)
	if err := d.Set(""); err != nil {
		t.Fatal(err)
	}
	want("with a manifest", 200, 200, 200, 0)
	d.Store.SetDown(errors.New("down"))
	d.Advance(coordinator.DefaultMaxHeadAge)
	d.C.SelfChecked().Set(d.Clock())
	d.C.Parts().Moves.Succession.Look(t.Context())
	want("in an outage of the store", 200, 200, 200, 0)
	if _, a := ask("/probe/readiness"); a.Store != "degraded" || a.Reason == "" {
		t.Errorf("readiness in an outage: %+v", a)
	}
	d.C.Cfg().Monitoring.LivenessStore = true
	want("in an outage, strict", 200, 200, 503, 0)
	d.C.Cfg().Monitoring.LivenessStore = false
	d.Advance(time.Second)
	want("in an outage that is too long", 200, 503, 200, 0)
	d.Store.SetDown(nil)
	d.C.Parts().Moves.Succession.Look(t.Context())
	want("after the outage", 200, 200, 200, 0)
	d.Advance(coordinator.StuckAfter + time.Second)
	d.C.Parts().Moves.Succession.Look(t.Context())
	want("stuck", 200, 200, 503, 0)

	// A keeper that is gone.
	if err := d.Disk.FS().Remove("/keeper/key"); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	d.C.Serving().Store(true)
	want("before anybody was asked for the keys", 503, 503, 200, 1)
	d.C.Parts().Moves.Succession.Look(t.Context())
	want("in recovery mode", 200, 503, 200, 1)
	if _, a := ask("/probe/readiness"); a.Phase != "recovery" || a.Reason == "" {
		t.Errorf("readiness in recovery mode: %+v", a)
	}
}

// Liveness fails while a lock that calls need is held, and only then. Each part has a test of the locks that
// it looks at.
func TestStuck(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, "")
	alive := func() bool { return d.C.Health().Liveness().OK }
	var l sync.Mutex
	d.C.WatchOver(func() {
		l.Lock()
		defer l.Unlock()
	})
	d.C.CheckSelf()
	l.Lock()
	done := make(chan struct{})
	go func() { defer close(done); d.C.CheckSelf() }()
	d.Advance(coordinator.StuckAfter)
	if !alive() {
		t.Error("dead after a short wait for a lock")
	}
	d.Advance(time.Second)
	if alive() {
		t.Error("alive while a lock is held")
	}
	l.Unlock()
	<-done
	if !alive() {
		t.Error("dead after the lock was free")
	}
}

// A coordinator that runs checks itself.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	for range 2 {
		before := f.C.SelfChecked().Get()
		wait.Until(t, "a self-check comes through", func() bool {
			return !f.C.SelfChecked().Get().Equal(before)
		})
	}
}

// The probes that the manifests for Kubernetes name are served, and no others are.
func TestKubernetesProbesAreServed(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/kubernetes/coordinator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`httpGet: \{path: ([^,]+), port: metrics\}`).FindAllStringSubmatch(string(raw), -1)
	if len(named) != 3 || strings.Count(string(raw), "httpGet") != 3 {
		t.Fatalf("the manifest names %v", named)
	}
	d := coordinatortest.PoolDesk(t)
	d.C.Serving().Store(true)
	serves := func(path string) int {
		w := httptest.NewRecorder()
		d.C.MetricsHandler(d.C.Registry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	for _, n := range named {
		if code := serves(n[1]); code != http.StatusOK {
			t.Errorf("%s of a coordinator that is ready: %d", n[1], code)
		}
	}
	if code := serves("/probe/other"); code != http.StatusNotFound {
		t.Errorf("another path: %d", code)
	}
}

// Before the first share has come, and without a keeper, it says whose shares it waits for,
// and blames no keeper.
func TestRecoveryNamesOwners(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewFleet(t, nil), coordinatortest.NewPeople(t, "alice", "bob", "carol")
	if err := f.Set(coordinatortest.WithSeed(f.Manifest(""), p.Seed(2, ""))); err != nil {
		t.Fatal(err)
	}
	f.Stop()
	f.Start()
	for what, text := range map[string]string{"status": f.C.Parts().Secrets.OwnerRecovery.Text(
		f.State()),
		"readiness": f.C.Health().Readiness().Reason} {
		if !strings.HasPrefix(text, "it waits for 2 shares of the seed, of alice, bob, carol; without them: ") ||
			strings.Contains(text, "keeper") || strings.Contains(text, "FE-K") {
			t.Errorf("%s says %q", what, text)
		}
	}
	if _, err := f.Bring(p.ShareFile(f.Store, "bob"), recovery.Options{}); err != nil {
		t.Fatal(err)
	}
	if text := f.C.Parts().Secrets.OwnerRecovery.Text(f.State()); !strings.HasPrefix(text,
		"it has the share of bob, and waits for 1 more, of alice, carol; without them: ") {
		t.Errorf("with one share it says %q", text)
	}
}
