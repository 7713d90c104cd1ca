package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/manifest"
)

// ground is a site where all is well, for tests to spoil.
type ground struct {
	site
	st  *fealtyv1.GetStatusResponse
	nd  *fealtyv1.GetNodeResponse
	err error // what both answer

	report    serverReport
	serverErr error
	lock      io.Closer // of the store's file
}

func goodGround(t *testing.T) *ground {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := touch(t, filepath.Join(dir, "fealty.db"))
	lock, err := durable.OS().Lock(file + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(d)) }
	g := &ground{
		st: &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Now: at(0), Store: "sqlite:" + file, HeadConfirmedAt: at(-5 * time.Second), MeshCaNotAfter: at(50 * time.Hour), RootNotAfter: at(36500 * time.Hour),
			Baseline: &fealtyv1.Baseline{DataMembers: 3, Needed: 3, Met: true}, BansLimit: 1000, StoreLatency: durationpb.New(time.Millisecond)},
		nd: &fealtyv1.GetNodeResponse{SpiffeId: "spiffe://c/data/a", SvidNotAfter: at(20 * time.Hour), Connected: true, Coordinator: "c1:7443", AutonomousUntil: at(20 * time.Hour), AutonomyLimit: "svid",
			Held: []*fealtyv1.HeldSnapshot{{Scope: "trust_bundle"}, {Scope: "node_bootstrap"}}},
	}
	g.site = site{now: testNow, data: dir, listen: "127.0.0.1:0", store: "postgres://u:p@db.example/fealty",
		free: func(string) (uint64, error) { return 1 << 40, nil }, limit: func(string) (uint64, error) { return 1 << 20, nil }, dial: func(string) error { return nil }}
	g.lock = lock
	g.fileSystem = func(string) error { return nil }
	g.report = serverReport{Name: "postgres://db.example:5432/fealty", Schema: "0002", Known: "0002"}
	g.server = func() (serverReport, error) { return g.report, g.serverErr }
	g.keepers = keepersAt("file:"+filepath.Join(dir, "seed.key"), "exec:"+program(t, filepath.Join(dir, "keeper"), 0o755))
	g.status = func() (*fealtyv1.GetStatusResponse, error) { return g.st, g.err }
	g.node = func() (*fealtyv1.GetNodeResponse, error) { return g.nd, g.err }
	return g
}

// spoils says how each check comes to another outcome than ok.
var spoils = []struct {
	id, name string
	spoil    func(t *testing.T, g *ground)
	want     outcome
}{
	{"pre.data", "a file", func(t *testing.T, g *ground) { g.data = touch(t, filepath.Join(g.data, "f")) }, checkFailed},
	{"pre.data", "below a file", func(t *testing.T, g *ground) { g.data = filepath.Join(touch(t, filepath.Join(g.data, "f")), "x") }, checkFailed},
	{"pre.data", "others can read it", func(t *testing.T, g *ground) {
		if err := os.Chmod(g.data, 0o755); err != nil {
			t.Fatal(err)
		}
	}, checkWarning},
	{"pre.data", "none given", func(_ *testing.T, g *ground) { g.data = "" }, checkNotAsked},
	{"pre.space", "little", func(_ *testing.T, g *ground) { g.free = func(string) (uint64, error) { return freeLow - 1, nil } }, checkWarning},
	{"pre.space", "none", func(_ *testing.T, g *ground) { g.free = func(string) (uint64, error) { return freeNone - 1, nil } }, checkFailed},
	{"pre.space", "not told", func(_ *testing.T, g *ground) {
		g.free = func(string) (uint64, error) { return 0, errors.New("no such system call") }
	}, checkUnknown},
	{"pre.address", "taken", func(t *testing.T, g *ground) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		g.listen = l.Addr().String()
	}, checkFailed},
	{"pre.address", "none given", func(_ *testing.T, g *ground) { g.listen = "" }, checkNotAsked},
	{"pre.files", "few", func(_ *testing.T, g *ground) { g.limit = func(string) (uint64, error) { return filesLow - 1, nil } }, checkWarning},
	{"pre.memlock", "none", func(_ *testing.T, g *ground) { g.limit = func(string) (uint64, error) { return 0, nil } }, checkWarning},
	{"pre.store", "nobody listens", func(_ *testing.T, g *ground) { g.dial = func(string) error { return errors.New("refused") } }, checkFailed},
	{"pre.store", "another sort", func(_ *testing.T, g *ground) { g.store = "mysql://h/d" }, checkFailed},
	{"pre.store", "a folder that is none", func(t *testing.T, g *ground) {
		g.store = "sqlite:" + filepath.Join(touch(t, filepath.Join(g.data, "f")), "x.db")
	}, checkFailed},
	{"pre.store", "a folder that is not there", func(_ *testing.T, g *ground) { g.store = "sqlite:" + filepath.Join(g.data, "no", "x.db") }, checkWarning},
	{"pre.store", "etcd", func(_ *testing.T, g *ground) { g.store = "etcd://a:1,b:2/x" }, checkOK},
	{"pre.store", "a member of etcd is down", func(_ *testing.T, g *ground) {
		g.store, g.dial = "etcd://a:1,b:2/x", func(at string) error {
			if at == "a:1" {
				return errors.New("refused")
			}
			return nil
		}
	}, checkWarning},
	{"pre.store", "no member of etcd is up", func(_ *testing.T, g *ground) {
		g.store, g.dial = "etcd://a:1,b:2/x", func(string) error { return errors.New("refused") }
	}, checkFailed},
	{"pre.store", "over a socket", func(_ *testing.T, g *ground) { g.store = "postgres:///fealty?host=/run/postgresql" }, checkNotAsked},
	{"pre.store", "none given", func(_ *testing.T, g *ground) { g.store = "" }, checkNotAsked},
	{"pre.keepers", "no manifest given", func(_ *testing.T, g *ground) {
		g.keepers = func() ([]manifest.Owner, error) { return nil, errNotAsked }
	}, checkNotAsked},
	{"pre.keepers", "a manifest that is not there", func(_ *testing.T, g *ground) {
		g.keepers = func() ([]manifest.Owner, error) { return nil, explain.New(explain.FileMissing) }
	}, checkFailed},
	{"pre.keepers", "a relative path", func(_ *testing.T, g *ground) { g.keepers = keepersAt("file:seed.key") }, checkFailed},
	{"pre.keepers", "a folder that is not there", func(_ *testing.T, g *ground) { g.keepers = keepersAt("file:" + g.data + "/no/seed.key") }, checkWarning},
	{"pre.keepers", "a folder that others write", func(t *testing.T, g *ground) {
		if err := os.Chmod(g.data, 0o770); err != nil {
			t.Fatal(err)
		}
		g.keepers = keepersAt("file:" + g.data + "/seed.key")
	}, checkWarning},
	{"pre.keepers", "a key file with something else", func(t *testing.T, g *ground) {
		g.keepers = keepersAt("file:" + touch(t, filepath.Join(g.data, "seed.key")))
	}, checkFailed},
	{"pre.keepers", "a program that is not there, after a folder that is not", func(_ *testing.T, g *ground) {
		g.keepers = keepersAt("file:"+g.data+"/no/seed.key", "exec:"+g.data+"/none")
	}, checkFailed},
	{"pre.keepers", "a program that others write", func(t *testing.T, g *ground) {
		g.keepers = keepersAt("exec:" + program(t, filepath.Join(g.data, "p"), 0o777))
	}, checkFailed},
	{"pre.clock", "wrong", func(_ *testing.T, g *ground) { g.now = g.now.Add(clockNone) }, checkFailed},
	{"pre.clock", "nobody to ask", func(_ *testing.T, g *ground) { g.err = errNotAsked }, checkNotAsked},
	{"node.clock", "behind", func(_ *testing.T, g *ground) { g.now = g.now.Add(-clockLow) }, checkWarning},

	{"node.agent", "gone", func(_ *testing.T, g *ground) { g.err = explain.New(explain.Unreachable) }, checkFailed},
	{"node.agent", "of another user", func(_ *testing.T, g *ground) { g.err = explain.New(explain.Denied) }, checkUnknown},
	{"node.agent", "none given", func(_ *testing.T, g *ground) { g.err = errNotAsked }, checkNotAsked},
	{"node.identity", "expired", func(_ *testing.T, g *ground) { g.nd.SvidNotAfter = timestamppb.New(testNow) }, checkFailed},
	{"node.snapshots", "no bundle", func(_ *testing.T, g *ground) { g.nd.Held = g.nd.Held[1:] }, checkFailed},
	{"node.snapshots", "a refusal", func(_ *testing.T, g *ground) { g.nd.Refusals = []*fealtyv1.Refusal{{Scope: "s", Reason: "r"}} }, checkWarning},
	{"node.contact", "alone", func(_ *testing.T, g *ground) { g.nd.Connected, g.nd.LastError = false, "FE-X101: nothing listens" }, checkWarning},
	{"node.autonomy", "little", func(_ *testing.T, g *ground) { g.nd.AutonomousUntil = timestamppb.New(testNow.Add(aloneLow - 1)) }, checkWarning},
	{"node.autonomy", "over", func(_ *testing.T, g *ground) { g.nd.Connected, g.nd.AutonomousUntil = false, timestamppb.New(testNow) }, checkFailed},
	{"node.autonomy", "an old agent", func(_ *testing.T, g *ground) { g.nd.AutonomousUntil = nil }, checkUnknown},

	{"coordinator.reach", "gone", func(_ *testing.T, g *ground) { g.err = explain.New(explain.Unreachable) }, checkFailed},
	{"coordinator.reach", "not for this caller", func(_ *testing.T, g *ground) { g.err = explain.New(explain.Denied) }, checkUnknown},
	{"coordinator.reach", "none named", func(_ *testing.T, g *ground) { g.err = errNotAsked }, checkNotAsked},
	{"coordinator.phase", "in recovery", func(_ *testing.T, g *ground) { g.st.Phase = "recovery" }, checkFailed},
	{"coordinator.phase", "no cluster", func(_ *testing.T, g *ground) { g.st.Phase = "uninitialized" }, checkFailed},
	{"coordinator.head", "not confirmed lately", func(_ *testing.T, g *ground) {
		g.st.HeadConfirmedAt = timestamppb.New(testNow.Add(-headLow - time.Second))
	}, checkWarning},
	{"coordinator.head", "not confirmed for long", func(_ *testing.T, g *ground) {
		g.st.HeadConfirmedAt = timestamppb.New(testNow.Add(-headNone - time.Second))
	}, checkFailed},
	{"coordinator.head", "an old coordinator", func(_ *testing.T, g *ground) { g.st.HeadConfirmedAt = nil }, checkUnknown},
	{"coordinator.keepers", "one did not seal", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.KeeperUnusable), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.root", "ends soon", func(_ *testing.T, g *ground) { g.st.RootNotAfter = timestamppb.New(testNow.Add(rootLow - 1)) }, checkWarning},
	{"coordinator.root", "ended", func(_ *testing.T, g *ground) { g.st.RootNotAfter = timestamppb.New(testNow) }, checkFailed},
	{"coordinator.mesh-ca", "ends soon", func(_ *testing.T, g *ground) { g.st.MeshCaNotAfter = timestamppb.New(testNow.Add(meshLow - 1)) }, checkWarning},
	{"coordinator.baseline", "not met", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.MemberBaseline), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.members", "one is silent", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.MemberSilent), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.members", "one has expired", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.MemberExpired), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.leader", "nobody leads", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.NobodyLeads), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.peers", "one is not heard", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.CoordinatorUnheard), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.peers", "one is in recovery mode", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.CoordinatorRecovering), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.findings", "one that no other check looks for", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.ManifestOutdated), Remedy: "do it"}}
	}, checkWarning},
	{"store.writes", "it went back", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(explain.StoreWentBack), Remedy: "do it"}}
	}, checkWarning},
	{"coordinator.bans", "half full", func(_ *testing.T, g *ground) { g.st.Bans = 500 }, checkWarning},
	{"coordinator.bans", "full", func(_ *testing.T, g *ground) { g.st.Bans = 1000 }, checkFailed},
	{"store.server", "a replica", func(_ *testing.T, g *ground) {
		g.serverErr = &postgres.OpenError{Name: "db", Err: &postgres.ServerError{Problem: "is a replica", Do: "name the primary"}}
	}, checkFailed},
	{"store.server", "a wrong password", func(_ *testing.T, g *ground) {
		g.serverErr = &postgres.OpenError{Name: "db", Err: &postgres.LoginError{Problem: "no"}}
	}, checkFailed},
	{"store.server", "nobody listens", func(_ *testing.T, g *ground) {
		g.serverErr = &postgres.OpenError{Name: "db", Err: errors.New("refused")}
	}, checkFailed},
	{"store.server", "another sort of store", func(_ *testing.T, g *ground) { g.serverErr = errNotAsked }, checkNotAsked},
	{"store.settings", "one that loses commits", func(_ *testing.T, g *ground) {
		g.report.Problems = []serverProblem{{Loses: true, What: "fsync is off", Do: "set it"}, {What: "w", Do: "d"}}
	}, checkFailed},
	{"store.settings", "one that does not", func(_ *testing.T, g *ground) { g.report.Problems = []serverProblem{{What: "w", Do: "d"}} }, checkWarning},
	{"store.schema", "older", func(_ *testing.T, g *ground) { g.report.Schema = "0001" }, checkWarning},
	{"store.lock", "nobody holds it", func(_ *testing.T, g *ground) { g.lock.Close() }, checkFailed},
	{"store.lock", "held, and no coordinator", func(_ *testing.T, g *ground) { g.store, g.st.Store = g.st.Store, "" }, checkWarning},
	{"store.lock", "elsewhere", func(_ *testing.T, g *ground) { g.st.Store = "postgres://h/d" }, checkNotAsked},
	{"store.file-system", "over the network", func(_ *testing.T, g *ground) {
		g.fileSystem = func(dir string) error { return &sqlite.FilesystemError{Path: dir, Type: "nfs"} }
	}, checkFailed},
	{"store.latency", "slow", func(_ *testing.T, g *ground) { g.st.StoreLatency = durationpb.New(latencyLow) }, checkWarning},
	{"store.latency", "very slow", func(_ *testing.T, g *ground) { g.st.StoreLatency = durationpb.New(latencyNone) }, checkFailed},
	{"store.space", "none", func(_ *testing.T, g *ground) { g.free = func(string) (uint64, error) { return 0, nil } }, checkFailed},
	{"store.space", "elsewhere", func(_ *testing.T, g *ground) { g.st.Store = "postgres://h/d" }, checkNotAsked},
}

// A coordinator that could not read its store says nothing of members and bans:
// that is not health, and not their failure.
func TestChecksOfAnUnreadStore(t *testing.T) {
	g := goodGround(t)
	g.st.StoreLatency, g.st.Baseline, g.st.BansLimit = nil, nil, 0
	results := runChecks(checks(), []string{"coordinator", "store"}, &g.site)
	for id, want := range map[string]outcome{"coordinator.baseline": checkUnknown, "coordinator.members": checkUnknown,
		"coordinator.bans": checkUnknown, "store.latency": checkFailed, "coordinator.root": checkOK} {
		if r := resultOf(t, results, id); r.outcome != want || want != checkOK && r.do == "" {
			t.Errorf("%s is %s: %s, want %s", id, r.outcome, r.text, want)
		}
	}
}

// keepersAt are keepers as a manifest names them.
func keepersAt(keepers ...string) func() ([]manifest.Owner, error) {
	var all []manifest.Owner
	for i, k := range keepers {
		all = append(all, manifest.Owner{Name: "host-" + strconv.Itoa(i), Keeper: k})
	}
	return func() ([]manifest.Owner, error) { return all, nil }
}

func program(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.Chmod(touch(t, path), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// A schema of a newer release fails the check of the schema, and no other.
func TestCheckOfANewerSchema(t *testing.T) {
	g := goodGround(t)
	g.serverErr = fmt.Errorf("%w: %w", errSchema, &postgres.OpenError{Name: "db", Err: &postgres.SchemaError{Database: "db", Found: "0099", Known: "0002"}})
	results := runChecks(checks(), []string{"store"}, &g.site)
	for id, want := range map[string]outcome{"store.server": checkOK, "store.settings": checkUnknown, "store.schema": checkFailed} {
		if r := resultOf(t, results, id); r.outcome != want {
			t.Errorf("%s is %s: %s, want %s", id, r.outcome, r.text, want)
		}
	}
}

func touch(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func resultOf(t *testing.T, results []lookedAt, id string) lookedAt {
	t.Helper()
	i := slices.IndexFunc(results, func(r lookedAt) bool { return r.id == id })
	if i < 0 {
		t.Fatalf("%s was not made", id)
	}
	return results[i]
}

// Every check is ok where all is well, and is shown to come out otherwise.
func TestEveryCheckCanFail(t *testing.T) {
	well := runChecks(checks(), checkGroups(), &goodGround(t).site)
	if exit := checkExit(well); exit != explain.ExitOK {
		t.Errorf("where all is well the exit is %d", exit)
	}
	for _, k := range checks() {
		if r := resultOf(t, well, k.id); r.outcome != checkOK || r.text == "" || r.do != "" {
			t.Errorf("where all is well %s is %s: %s (%s)", k.id, r.outcome, r.text, r.do)
		}
		bad := 0
		for _, x := range spoils {
			if x.id == k.id && x.want != checkNotAsked && x.want != checkUnknown {
				bad++
			}
		}
		if bad == 0 {
			t.Errorf("%s is never shown to warn or fail", k.id)
		}
	}
	for _, x := range spoils {
		g := goodGround(t)
		x.spoil(t, g)
		results := runChecks(checks(), []string{strings.Split(x.id, ".")[0]}, &g.site)
		r := resultOf(t, results, x.id)
		if r.outcome != x.want {
			t.Errorf("%s, %s: %s (%s), want %s", x.id, x.name, r.outcome, r.text, x.want)
		}
		if (x.want == checkFailed || x.want == checkWarning) && r.do == "" {
			t.Errorf("%s, %s: it says nothing of what to do", x.id, x.name)
		}
		// What depends on it has no failure of its own.
		for _, o := range results {
			if slices.Contains(o.needs, x.id) && x.want != checkWarning && (o.outcome != checkNotChecked || o.root == "" || o.do != "") {
				t.Errorf("%s, %s: %s, which needs it, is %s: %s", x.id, x.name, o.id, o.outcome, o.text)
			}
		}
		want := explain.ExitOK
		switch x.want {
		case checkFailed:
			want = explain.ExitUnhealthy
		case checkWarning, checkUnknown:
			want = explain.ExitDegraded
		}
		if exit := checkExit(results); exit != want {
			t.Errorf("%s, %s: exit %d, want %d", x.id, x.name, exit, want)
		}
	}
}

func TestChecksTable(t *testing.T) {
	id := regexp.MustCompile(`^(pre|node|coordinator|store)\.[a-z-]+$`)
	var before []string
	for _, k := range checks() {
		if !id.MatchString(k.id) || slices.Contains(before, k.id) || k.title == "" || !strings.HasSuffix(k.about, ".") {
			t.Errorf("check %s: its id is bad or taken, or it says too little", k.id)
		}
		for _, n := range k.needs {
			if !slices.Contains(before, n) {
				t.Errorf("check %s needs %s, which does not come before it", k.id, n)
			}
		}
		before = append(before, k.id)
		run(t, "explain", "check."+k.id).want(t, 0)
	}
	run(t, "explain", "check").want(t, 0)
	run(t, "explain", "check.node.contcat").want(t, int(explain.ExitNotFound), "FE-U108")
}

// The root of what was not made is named, not what is in between.
func TestDependentsNameTheRoot(t *testing.T) {
	g := goodGround(t)
	g.err = explain.New(explain.Unreachable)
	for _, id := range []string{"store.latency", "coordinator.bans"} {
		if r := resultOf(t, runChecks(checks(), []string{"store", "coordinator"}, &g.site), id); r.root != "coordinator.reach" || r.outcome != checkNotChecked {
			t.Errorf("%s is %s and depends on %s", id, r.outcome, r.root)
		}
	}
	// A group brings along what it needs, and nothing else.
	for _, r := range runChecks(checks(), []string{"store"}, &g.site) {
		if r.group() != "store" && r.id != "coordinator.reach" && r.id != "coordinator.phase" {
			t.Errorf("the checks of the store include %s", r.id)
		}
	}
}

func TestCheckCommand(t *testing.T) {
	g := goodGround(t)
	c := &answering{status: g.st, node: g.nd}
	socket := c.listen(t)
	r := run(t, "check", "coordinator", "--socket", socket).want(t, 0)
	if !strings.Contains(r.stdout, "● ok    coordinator.phase     cluster prod.example") || strings.Contains(r.stdout, "what to do") {
		t.Errorf("\n%s", r.stdout)
	}
	g.st.Phase, g.st.PhaseReason = "recovery", "no seed"
	r = run(t, "check", "coordinator", "--socket", socket, "-o", "json").want(t, int(explain.ExitUnhealthy))
	for _, want := range []string{`"schema": "fealty.cli/v1"`, `"id": "coordinator.phase"`, `"result": "failed"`, `"depends_on": "coordinator.phase"`, `"exit": 10`} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %s in\n%s", want, r.stdout)
		}
	}
	run(t, "check", "cordinator", "--socket", socket).want(t, int(explain.ExitUsage), "FE-U103")
}
