package doctor_test

import (
	"errors"
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
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// ground is a site where all is well, for tests to spoil.
type ground struct {
	doctor.Environment
	st  *fealtyv1.GetStatusResponse
	nd  *fealtyv1.GetNodeResponse
	err error // what both answer

	report    engine.Report
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
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	g := &ground{
		st: &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Now: at(0), Store: "sqlite:" + file,
			HeadConfirmedAt: at(-5 * time.Second), MeshCaNotAfter: at(50 * time.Hour), RootNotAfter: at(36500 * time.Hour),
			Baseline: &fealtyv1.Baseline{DataMembers: 3, Needed: 3,
				Met: true}, BansLimit: 1000, StoreLatency: durationpb.New(time.Millisecond)},
		nd: &fealtyv1.GetNodeResponse{SpiffeId: "spiffe://c/data/a", SvidNotAfter: at(20 * time.Hour), Connected: true,
			Coordinator: "c1:7443", AutonomousUntil: at(20 * time.Hour), AutonomyLimit: "svid",
			Held: []*fealtyv1.HeldSnapshot{{Scope: "trust_bundle"}, {Scope: "node_bootstrap"}}},
	}
	g.Environment = doctor.Environment{Now: now, Data: dir, Listen: "127.0.0.1:0",
		Store: "postgres://u:p@db.example/fealty",
		Free:  func(string) (uint64, error) { return 1 << 40, nil }, Limit: func(string) (uint64,
			error) {
			return 1 << 20, nil
		}, Dial: func(string) error { return nil }}
	g.lock = lock
	g.FileSystem = func(string) error { return nil }
	g.report = engine.Report{Name: "postgres://db.example:5432/fealty", Schema: "0002", Known: "0002"}
	g.Server = func() (engine.Report, error) { return g.report, g.serverErr }
	g.Keepers = keepersAt("file:"+filepath.Join(dir, "seed.key"), "exec:"+program(t, filepath.Join(dir, "keeper"),
		0o755))
	g.Status = func() (*fealtyv1.GetStatusResponse, error) { return g.st, g.err }
	g.Node = func() (*fealtyv1.GetNodeResponse, error) { return g.nd, g.err }
	return g
}

// spoils says how each check comes to another outcome than ok.
var spoils = []struct {
	id, name string
	spoil    func(t *testing.T, g *ground)
	want     doctor.Outcome
}{
	{"pre.data", "a file", func(t *testing.T, g *ground) { g.Data = touch(t, filepath.Join(g.Data, "f")) },
		doctor.Failed},
	{"pre.data", "below a file", func(t *testing.T, g *ground) {
		g.Data = filepath.Join(touch(t, filepath.Join(g.Data,
			"f")), "x")
	}, doctor.Failed},
	{"pre.data", "others can read it", func(t *testing.T, g *ground) {
		if err := os.Chmod(g.Data, 0o755); err != nil {
			t.Fatal(err)
		}
	}, doctor.Warning},
	{"pre.data", "none given", func(_ *testing.T, g *ground) { g.Data = "" }, doctor.NotAsked},
	{"pre.space", "little", func(_ *testing.T, g *ground) {
		g.Free = func(string) (uint64, error) {
			return 1<<30 - 1,
				nil
		}
	}, doctor.Warning},
	{"pre.space", "none", func(_ *testing.T, g *ground) {
		g.Free = func(string) (uint64, error) {
			return 128<<20 - 1,
				nil
		}
	}, doctor.Failed},
	{"pre.space", "not told", func(_ *testing.T, g *ground) {
		g.Free = func(string) (uint64, error) { return 0, errors.New("no such system call") }
	}, doctor.Unknown},
	{"pre.address", "taken", func(t *testing.T, g *ground) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		g.Listen = l.Addr().String()
	}, doctor.Failed},
	{"pre.address", "none given", func(_ *testing.T, g *ground) { g.Listen = "" }, doctor.NotAsked},
	{"pre.files", "few", func(_ *testing.T, g *ground) {
		g.Limit = func(string) (uint64, error) {
			return 4096 - 1,
				nil
		}
	}, doctor.Warning},
	{"pre.memlock", "none", func(_ *testing.T, g *ground) { g.Limit = func(string) (uint64, error) { return 0, nil } },
		doctor.Warning},
	{"pre.store", "nobody listens", func(_ *testing.T,
		g *ground) {
		g.Dial = func(string) error { return errors.New("refused") }
	}, doctor.Failed},
	{"pre.store", "another sort", func(_ *testing.T, g *ground) { g.Store = "mysql://h/d" }, doctor.Failed},
	{"pre.store", "a folder that is none", func(t *testing.T, g *ground) {
		g.Store = "sqlite:" + filepath.Join(touch(t, filepath.Join(g.Data, "f")), "x.db")
	}, doctor.Failed},
	{"pre.store", "a folder that is not there", func(_ *testing.T, g *ground) {
		g.Store = "sqlite:" +
			filepath.Join(g.Data, "no", "x.db")
	}, doctor.Warning},
	{"pre.store", "etcd", func(_ *testing.T, g *ground) { g.Store = "etcd://a:1,b:2/x" }, doctor.OK},
	{"pre.store", "a member of etcd is down", func(_ *testing.T, g *ground) {
		g.Store, g.Dial = "etcd://a:1,b:2/x", func(at string) error {
			if at == "a:1" {
				return errors.New("refused")
			}
			return nil
		}
	}, doctor.Warning},
	{"pre.store", "no member of etcd is up", func(_ *testing.T, g *ground) {
		g.Store, g.Dial = "etcd://a:1,b:2/x", func(string) error { return errors.New("refused") }
	}, doctor.Failed},
	{"pre.store", "embedded", func(t *testing.T, g *ground) {
		g.Store, g.StoreProgram = "embedded", program(t, filepath.Join(g.Data, "program"), 0o700)
	}, doctor.OK},
	{"pre.store", "embedded, and no program", func(t *testing.T, g *ground) {
		g.Store, g.StoreProgram = "embedded", filepath.Join(g.Data, "fealty-store")
	}, doctor.Failed},
	{"pre.store", "embedded in a folder", func(t *testing.T, g *ground) {
		g.Store, g.StoreProgram = "embedded:"+filepath.Join(g.Data, "store"), program(t, filepath.Join(g.Data, "program"), 0o700)
	}, doctor.OK},
	{"pre.store", "embedded below what is no folder", func(t *testing.T, g *ground) {
		g.Store, g.StoreProgram = "embedded:"+filepath.Join(touch(t, filepath.Join(g.Data, "f")), "store"), program(t, filepath.Join(g.Data, "program"), 0o700)
	}, doctor.Failed},
	{"pre.store", "over a socket", func(_ *testing.T,
		g *ground) {
		g.Store = "postgres:///fealty?host=/run/postgresql"
	}, doctor.NotAsked},
	{"pre.store", "none given", func(_ *testing.T, g *ground) { g.Store = "" }, doctor.NotAsked},
	{"pre.keepers", "no manifest given", func(_ *testing.T, g *ground) {
		g.Keepers = func() ([]manifest.Owner, error) { return nil, doctor.ErrNotAsked }
	}, doctor.NotAsked},
	{"pre.keepers", "a manifest that is not there", func(_ *testing.T, g *ground) {
		g.Keepers = func() ([]manifest.Owner, error) { return nil, errcode.New(errcode.FileMissing) }
	}, doctor.Failed},
	{"pre.keepers", "a relative path", func(_ *testing.T, g *ground) { g.Keepers = keepersAt("file:seed.key") },
		doctor.Failed},
	{"pre.keepers", "a folder that is not there", func(_ *testing.T, g *ground) {
		g.Keepers = keepersAt("file:" +
			g.Data + "/no/seed.key")
	}, doctor.Warning},
	{"pre.keepers", "a folder that others write", func(t *testing.T, g *ground) {
		if err := os.Chmod(g.Data, 0o770); err != nil {
			t.Fatal(err)
		}
		g.Keepers = keepersAt("file:" + g.Data + "/seed.key")
	}, doctor.Warning},
	{"pre.keepers", "a key file with something else", func(t *testing.T, g *ground) {
		g.Keepers = keepersAt("file:" + touch(t, filepath.Join(g.Data, "seed.key")))
	}, doctor.Failed},
	{"pre.keepers", "a program that is not there, after a folder that is not", func(_ *testing.T, g *ground) {
		g.Keepers = keepersAt("file:"+g.Data+"/no/seed.key", "exec:"+g.Data+"/none")
	}, doctor.Failed},
	{"pre.keepers", "a program that others write", func(t *testing.T, g *ground) {
		g.Keepers = keepersAt("exec:" + program(t, filepath.Join(g.Data, "p"), 0o777))
	}, doctor.Failed},
	{"pre.clock", "wrong", func(_ *testing.T, g *ground) { g.Now = g.Now.Add(30 * time.Second) }, doctor.Failed},
	{"pre.clock", "nobody to ask", func(_ *testing.T, g *ground) { g.err = doctor.ErrNotAsked }, doctor.NotAsked},
	{"node.clock", "behind", func(_ *testing.T, g *ground) { g.Now = g.Now.Add(-5 * time.Second) }, doctor.Warning},

	{"pre.clock", "no coordinator answers", func(_ *testing.T, g *ground) { g.err = errcode.New(errcode.Unreachable) },
		doctor.Unknown},

	{"node.agent", "gone", func(_ *testing.T, g *ground) { g.err = errcode.New(errcode.Unreachable) }, doctor.Failed},
	{"node.agent", "of another user", func(_ *testing.T, g *ground) { g.err = errcode.New(errcode.Denied) },
		doctor.Unknown},
	{"node.agent", "none given", func(_ *testing.T, g *ground) { g.err = doctor.ErrNotAsked }, doctor.NotAsked},
	{"node.agent", "another serves at its socket", func(_ *testing.T, g *ground) {
		g.nd.LostSockets = []string{"/run/w.sock: process 7 serves there"}
	}, doctor.Failed},
	{"node.identity", "expired", func(_ *testing.T, g *ground) { g.nd.SvidNotAfter = timestamppb.New(now) },
		doctor.Failed},
	{"node.log", "nobody reads it", func(_ *testing.T, g *ground) { g.nd.LogProblem = "nobody reads it any more" }, doctor.Warning},
	{"node.snapshots", "no bundle", func(_ *testing.T, g *ground) { g.nd.Held = g.nd.Held[1:] }, doctor.Failed},
	{"node.snapshots", "a refusal", func(_ *testing.T, g *ground) {
		g.nd.Refusals = []*fealtyv1.Refusal{{Scope: "s",
			Reason: "r"}}
	}, doctor.Warning},
	{"node.contact", "alone", func(_ *testing.T, g *ground) {
		g.nd.Connected, g.nd.LastError = false,
			"FE-X101: nothing listens"
	}, doctor.Warning},
	{"node.autonomy", "little", func(_ *testing.T,
		g *ground) {
		g.nd.AutonomousUntil = timestamppb.New(now.Add(time.Hour - 1))
	}, doctor.Warning},
	{"node.autonomy", "over", func(_ *testing.T, g *ground) {
		g.nd.Connected, g.nd.AutonomousUntil = false,
			timestamppb.New(now)
	}, doctor.Failed},
	{"node.autonomy", "an old agent", func(_ *testing.T, g *ground) { g.nd.AutonomousUntil = nil }, doctor.Unknown},

	{"coordinator.reach", "gone", func(_ *testing.T, g *ground) { g.err = errcode.New(errcode.Unreachable) },
		doctor.Failed},
	{"coordinator.reach", "not for this caller", func(_ *testing.T, g *ground) { g.err = errcode.New(errcode.Denied) },
		doctor.Unknown},
	{"coordinator.reach", "none named", func(_ *testing.T, g *ground) { g.err = doctor.ErrNotAsked }, doctor.NotAsked},
	{"coordinator.phase", "in recovery", func(_ *testing.T, g *ground) { g.st.Phase = "recovery" }, doctor.Failed},
	{"coordinator.phase", "no cluster", func(_ *testing.T, g *ground) { g.st.Phase = "uninitialized" }, doctor.Failed},
	{"coordinator.head", "not confirmed lately", func(_ *testing.T, g *ground) {
		g.st.HeadConfirmedAt = timestamppb.New(now.Add(-31 * time.Second))
	}, doctor.Warning},
	{"coordinator.head", "not confirmed for long", func(_ *testing.T, g *ground) {
		g.st.HeadConfirmedAt = timestamppb.New(now.Add(-time.Hour - time.Second))
	}, doctor.Failed},
	{"coordinator.head", "an old coordinator", func(_ *testing.T, g *ground) { g.st.HeadConfirmedAt = nil },
		doctor.Unknown},
	{"coordinator.keepers", "one did not seal", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.KeeperUnusable), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.root", "ends soon", func(_ *testing.T,
		g *ground) {
		g.st.RootNotAfter = timestamppb.New(now.Add(90*24*time.Hour - 1))
	}, doctor.Warning},
	{"coordinator.root", "ended", func(_ *testing.T, g *ground) { g.st.RootNotAfter = timestamppb.New(now) },
		doctor.Failed},
	{"coordinator.mesh-ca", "ends soon", func(_ *testing.T,
		g *ground) {
		g.st.MeshCaNotAfter = timestamppb.New(now.Add(time.Hour - 1))
	}, doctor.Warning},
	{"coordinator.baseline", "not met", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.MemberBaseline), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.members", "one is silent", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.MemberSilent), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.members", "one has expired", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.MemberExpired), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.leader", "nobody leads", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.NobodyLeads), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.peers", "one is not heard", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.CoordinatorUnheard), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.peers", "one is in recovery mode", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.CoordinatorRecovering), Remedy: "do it"}}
	}, doctor.Warning},
	{"coordinator.findings", "one that no other check looks for", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.ManifestOutdated), Remedy: "do it"}}
	}, doctor.Warning},
	{"store.writes", "it went back", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.StoreWentBack), Remedy: "do it"}}
	}, doctor.Warning},
	{"store.writes", "it went back, as a coordinator of this release says", func(_ *testing.T, g *ground) {
		g.st.Findings = []*fealtyv1.Finding{{Code: string(errcode.StoreWentBack), Severity: "critical", Remedy: "do it"}}
	}, doctor.Failed},
	{"coordinator.bans", "half full", func(_ *testing.T, g *ground) { g.st.Bans = 500 }, doctor.Warning},
	{"coordinator.bans", "full", func(_ *testing.T, g *ground) { g.st.Bans = 1000 }, doctor.Failed},
	{"store.server", "a replica", func(_ *testing.T, g *ground) {
		g.serverErr = &engine.OpenError{Name: "db", Err: &engine.ServerError{Problem: "is a replica",
			Do: "name the primary"}}
	}, doctor.Failed},
	{"store.server", "a wrong password", func(_ *testing.T, g *ground) {
		g.serverErr = &engine.OpenError{Name: "db", Err: &engine.LoginError{Problem: "no"}}
	}, doctor.Failed},
	{"store.server", "nobody listens", func(_ *testing.T, g *ground) {
		g.serverErr = &engine.OpenError{Name: "db", Err: errors.New("refused")}
	}, doctor.Failed},
	{"store.server", "another sort of store", func(_ *testing.T, g *ground) { g.serverErr = doctor.ErrNotAsked },
		doctor.NotAsked},
	{"store.settings", "one that loses commits", func(_ *testing.T, g *ground) {
		g.report.Problems = []engine.Problem{{Loses: true, What: "fsync is off", Do: "set it"}, {What: "w",
			Do: "d"}}
	}, doctor.Failed},
	{"store.settings", "one that does not", func(_ *testing.T,
		g *ground) {
		g.report.Problems = []engine.Problem{{What: "w", Do: "d"}}
	}, doctor.Warning},
	{"store.schema", "older", func(_ *testing.T, g *ground) { g.report.Schema = "0001" }, doctor.Warning},
	{"store.lock", "nobody holds it", func(_ *testing.T, g *ground) { g.lock.Close() }, doctor.Failed},
	{"store.lock", "held, and no coordinator", func(_ *testing.T, g *ground) { g.Store, g.st.Store = g.st.Store, "" },
		doctor.Warning},
	{"store.lock", "elsewhere", func(_ *testing.T, g *ground) { g.st.Store = "postgres://h/d" }, doctor.NotAsked},
	{"store.file-system", "over the network", func(_ *testing.T, g *ground) {
		g.FileSystem = func(dir string) error { return &sqlite.FilesystemError{Path: dir, Type: "nfs"} }
	}, doctor.Failed},
	{"store.latency", "slow", func(_ *testing.T,
		g *ground) {
		g.st.StoreLatency = durationpb.New(100 * time.Millisecond)
	}, doctor.Warning},
	{"store.latency", "very slow", func(_ *testing.T,
		g *ground) {
		g.st.StoreLatency = durationpb.New(2 * time.Second)
	}, doctor.Failed},
	{"store.space", "none", func(_ *testing.T, g *ground) { g.Free = func(string) (uint64, error) { return 0, nil } },
		doctor.Failed},
	{"store.space", "elsewhere", func(_ *testing.T, g *ground) { g.st.Store = "postgres://h/d" }, doctor.NotAsked},
}

// A coordinator that could not read its store says nothing of members and bans:
// that is not health, and not their failure.
func TestChecksOfAnUnreadStore(t *testing.T) {
	g := goodGround(t)
	g.st.StoreLatency, g.st.Baseline, g.st.BansLimit = nil, nil, 0
	results := doctor.Run(doctor.All(), []string{"coordinator", "store"}, &g.Environment)
	for id, want := range map[string]doctor.Outcome{"coordinator.baseline": doctor.Unknown,
		"coordinator.members": doctor.Unknown,
		"coordinator.bans":    doctor.Unknown, "store.latency": doctor.Failed, "coordinator.root": doctor.OK} {
		if r := resultOf(t, results, id); r.Outcome != want || want != doctor.OK && r.Do == "" {
			t.Errorf("%s is %s: %s, want %s", id, r.Outcome, r.Text, want)
		}
	}
}

// While no coordinator answers nothing is known of the clock of a node, which is no failure of
// it: node.contact says who is missing.
func TestClockIsNotJudgedWithoutACoordinator(t *testing.T) {
	g := goodGround(t)
	g.Status = func() (*fealtyv1.GetStatusResponse, error) { return nil, errcode.New(errcode.Unreachable) }
	g.nd.Connected, g.nd.LastError = false, "FE-X101: nothing listens"
	results := doctor.Run(doctor.All(), []string{"node"}, &g.Environment)
	if r := resultOf(t, results, "node.clock"); r.Outcome != doctor.NotChecked ||
		!strings.HasPrefix(r.Text, "no coordinator answers to compare with: FE-X101") {
		t.Errorf("it is %s: %s", r.Outcome, r.Text)
	}
	if r := resultOf(t, results, "node.contact"); r.Outcome != doctor.Warning {
		t.Errorf("the contact is %s: %s", r.Outcome, r.Text)
	}
	if exit := doctor.Exit(results); exit != errcode.ExitDegraded {
		t.Errorf("exit %d", exit)
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
	g.serverErr = &engine.OpenError{Name: "db", Err: &engine.SchemaError{Store: "db", Found: "0099", Known: "0002"}}
	results := doctor.Run(doctor.All(), []string{"store"}, &g.Environment)
	for id, want := range map[string]doctor.Outcome{"store.server": doctor.OK, "store.settings": doctor.Unknown,
		"store.schema": doctor.Failed} {
		if r := resultOf(t, results, id); r.Outcome != want {
			t.Errorf("%s is %s: %s, want %s", id, r.Outcome, r.Text, want)
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

func resultOf(t *testing.T, results []doctor.Checked, id string) doctor.Checked {
	t.Helper()
	i := slices.IndexFunc(results, func(r doctor.Checked) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("%s was not made", id)
	}
	return results[i]
}

// Every check is ok where all is well, and is shown to come out otherwise.
func TestEveryCheckCanFail(t *testing.T) {
	well := doctor.Run(doctor.All(), doctor.Groups(), &goodGround(t).Environment)
	if exit := doctor.Exit(well); exit != errcode.ExitOK {
		t.Errorf("where all is well the exit is %d", exit)
	}
	for _, k := range doctor.All() {
		if r := resultOf(t, well, k.ID); r.Outcome != doctor.OK || r.Text == "" || r.Do != "" {
			t.Errorf("where all is well %s is %s: %s (%s)", k.ID, r.Outcome, r.Text, r.Do)
		}
		bad := 0
		for _, x := range spoils {
			if x.id == k.ID && x.want != doctor.NotAsked && x.want != doctor.Unknown {
				bad++
			}
		}
		if bad == 0 {
			t.Errorf("%s is never shown to warn or fail", k.ID)
		}
	}
	for _, x := range spoils {
		g := goodGround(t)
		x.spoil(t, g)
		results := doctor.Run(doctor.All(), []string{strings.Split(x.id, ".")[0]}, &g.Environment)
		r := resultOf(t, results, x.id)
		if r.Outcome != x.want {
			t.Errorf("%s, %s: %s (%s), want %s", x.id, x.name, r.Outcome, r.Text, x.want)
		}
		if (x.want == doctor.Failed || x.want == doctor.Warning) && r.Do == "" {
			t.Errorf("%s, %s: it says nothing of what to do", x.id, x.name)
		}
		// Checks that depend on it have no failure of their own.
		for _, o := range results {
			if slices.Contains(o.Needs, x.id) && x.want != doctor.Warning && (o.Outcome != doctor.NotChecked ||
				o.Root == "" || o.Do != "") {
				t.Errorf("%s, %s: %s, which needs it, is %s: %s", x.id, x.name, o.ID, o.Outcome, o.Text)
			}
		}
		want := errcode.ExitOK
		switch x.want {
		case doctor.Failed:
			want = errcode.ExitUnhealthy
		case doctor.Warning, doctor.Unknown:
			want = errcode.ExitDegraded
		}
		if exit := doctor.Exit(results); exit != want {
			t.Errorf("%s, %s: exit %d, want %d", x.id, x.name, exit, want)
		}
	}
}

func TestChecksTable(t *testing.T) {
	id := regexp.MustCompile(`^(pre|node|coordinator|store)\.[a-z-]+$`)
	var before []string
	for _, k := range doctor.All() {
		if !id.MatchString(k.ID) || slices.Contains(before, k.ID) || k.Title == "" || !strings.HasSuffix(k.About, ".") {
			t.Errorf("check %s: its id is bad or taken, or it says too little", k.ID)
		}
		for _, n := range k.Needs {
			if !slices.Contains(before, n) {
				t.Errorf("check %s needs %s, which does not come before it", k.ID, n)
			}
		}
		before = append(before, k.ID)
	}
}

// The root of what was not made is named, not what is in between.
func TestDependentsNameTheRoot(t *testing.T) {
	g := goodGround(t)
	g.err = errcode.New(errcode.Unreachable)
	for _, id := range []string{"store.latency", "coordinator.bans"} {
		if r := resultOf(t, doctor.Run(doctor.All(), []string{"store", "coordinator"}, &g.Environment),
			id); r.Root != "coordinator.reach" || r.Outcome != doctor.NotChecked {
			t.Errorf("%s is %s and depends on %s", id, r.Outcome, r.Root)
		}
	}
	// A group brings along what it needs, and nothing else.
	for _, r := range doctor.Run(doctor.All(), []string{"store"}, &g.Environment) {
		if r.Group() != "store" && r.ID != "coordinator.reach" && r.ID != "coordinator.phase" {
			t.Errorf("the checks of the store include %s", r.ID)
		}
	}
}
