package story

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/test/logs"
)

// grpcTo is where gRPC logs to, at the level that its debugging takes.
var grpcTo atomic.Pointer[logs.Text]

type grpcWriter struct{}

func (grpcWriter) Write(p []byte) (int, error) {
	if b := grpcTo.Load(); b != nil {
		return b.Write(p)
	}
	return len(p), nil
}

// logGRPC has gRPC log to b, until the function that it returns is called.
func logGRPC(b *logs.Text) (end func()) {
	grpcTo.Store(b)
	return func() { grpcTo.Store(nil) }
}

func TestMain(m *testing.M) {
	// It has to be said before anything speaks gRPC.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2WithVerbosity(grpcWriter{}, grpcWriter{}, grpcWriter{}, 2))
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// storyMeans is what steps of the story say of how they show a thing; of the others all
// is as on machines.
var storyMeans = map[string]string{
	"relay": "a relay in this process",

	"zombie-fenced":    "shards and a provider as programs, one stopped with SIGSTOP and woken with SIGCONT",
	"domain-move":      "shards and a provider as programs, one stopped with SIGSTOP and woken with SIGCONT",
	"wipe-quarantined": "shards and a provider as programs",
	"paused":           "shards and a provider as programs",
	"stale-term":       "an answer of a leader held back",

	"credential-rotation":  "providers as programs, with certificates of an operator's own PKI in files",
	"bad-endpoint-skipped": "providers as programs, with certificates of an operator's own PKI in files",
	"workload-svid":        "an agent and two processes of its machine as programs",
	"revoked-connection":   "a provider as a program beside its agent",

	"stolen-key":     "the key taken from a coordinator's memory",
	"leader-killed":  "cut in process, its memory dropped",
	"late-write":     "a commit held back in process",
	"peer-recovery":  "emptied of its files but its key; the keeper's file moved away",
	"restore":        "coordinator-1, coordinator-2, coordinator-3 stopped in process; the store given up for an empty one",
	"restart":        "coordinator-1, coordinator-2, coordinator-3 stopped in process",
	"owner-recovery": "the keeper's file removed",
	"degraded":       "clock moved on by 2 h",
	"expiry-stops":   "clock moved on by 1 h 10 min; clock moved on by 21 h",
}

// The story is a test too: every step on real listeners.
func TestStory(t *testing.T) { testStory(t, cluster.Options{}, nil) }

// testStory tells the story, and looks for secrets in all that it leaves behind: on
// the disk of the store's server too, by disk, which is called when the cluster ended.
func testStory(t *testing.T, opts cluster.Options, disk func(see func(where string, data []byte)), engine ...string) {
	watch := newSecrecy(t)
	opts.Release, opts.Published, opts.Program = watch.release(), t.TempDir(), mustProgram(t)
	opts.MadeToken, opts.Heard = watch.joinToken, watch.see
	opts.Log = slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}),
		slog.NewTextHandler(&watch.log, &slog.HandlerOptions{Level: slog.LevelDebug}),
	))
	defer logGRPC(&watch.log)()
	c, err := cluster.Prepare(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	watch.c, watch.dir, watch.published, watch.program = c, c.Dir(), opts.Published, opts.Program
	watch.look(t.Context())
	dir := c.Dir()
	seen := make(map[string]bool)
	ok := Tell(t.Context(), c, func(r Result) {
		seen[r.Step] = true
		watch.see("step "+r.Step, []byte(r.Seen+r.How))
		if want := cmp.Or(storyMeans[r.Step], cluster.OnWire); !strings.Contains(r.How, want) {
			t.Errorf("%s says that it was shown by %q, want %q", r.Step, r.How, want)
		}
		if r.Step == "first-set" {
			watch.plant(t.Context())
		}
		watch.look(t.Context())
		t.Logf("%s: %.1f s", r.Step, r.Seconds)
		if r.Step == "mesh-epoch" { // the last before the restore, which leaves the store behind
			watch.changes(t.Context())
			watch.files()
		}
		if !r.OK {
			t.Errorf("%s: expected %s; seen %s", r.Step, r.Expected, r.Seen)
		}
	})
	watch.changes(t.Context())
	watch.files()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if disk != nil {
		disk(watch.see)
	}
	watch.check(engine...)
	if !ok {
		t.Error("the story did not end well")
	}
	for _, id := range []string{"first-set", "join", "x509-join", "rejoin", "wrong-cluster", "stranger", "kind-mismatch", "name-taken", "spent-token", "relay", "renewal", "drain", "route-change", "increment", "config-key-rotation", "stolen-key", "ban", "zombie-fenced", "domain-move", "wipe-quarantined", "paused", "stale-term", "credential-rotation", "bad-endpoint-skipped", "workload-svid", "revoked-connection", "leader-killed", "late-write", "peer-recovery", "mesh-epoch", "restore", "restart", "owner-recovery", "degraded", "forbidden-in-degraded", "expiry-stops", "reconnect"} {
		if !seen[id] {
			t.Errorf("step %s is not in the story", id)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
}
