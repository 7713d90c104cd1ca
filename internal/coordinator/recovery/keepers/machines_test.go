package keepers_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// machineFS is the disk of one machine: what the manifest calls /machine/… is a folder of
// its own.
type machineFS struct {
	durable.FS
	dir string
}

// machineOf is that of the coordinator with this data directory.
func machineOf(dataDir string) machineFS {
	return machineFS{durable.OS(), filepath.Join(filepath.Dir(dataDir), "machine")}
}

// ownMachine gives each coordinator of a fleet a machine of its own.
func ownMachine(cfg *coordinator.Config) {
	cfg.Machine.FS = machineOf(cfg.DataDir)
	cfg.Timing.SelfHealAfter = 100 * time.Millisecond
}

func (m machineFS) at(name string) string {
	if rest, ok := strings.CutPrefix(name, "/machine"); ok {
		return m.dir + rest
	}
	return name
}

func (m machineFS) ReadFile(name string, limit int64) ([]byte, error) {
	return m.FS.ReadFile(m.at(name), limit)
}
func (m machineFS) ReadSecret(name string, limit int64) ([]byte, error) {
	return m.FS.ReadSecret(m.at(name), limit)
}
func (m machineFS) WriteFile(name string, data []byte) error {
	return m.FS.WriteFile(m.at(name), data)
}
func (m machineFS) Remove(name string) error             { return m.FS.Remove(m.at(name)) }
func (m machineFS) MkdirAll(dir string) error            { return m.FS.MkdirAll(m.at(dir)) }
func (m machineFS) ReadDir(dir string) ([]string, error) { return m.FS.ReadDir(m.at(dir)) }
func (m machineFS) Lock(name string) (io.Closer, error)  { return m.FS.Lock(m.at(name)) }
func (m machineFS) Settle(dir string) error              { return m.FS.Settle(m.at(dir)) }
func (m machineFS) keyFile() string                      { return m.at("/machine/seed.key") }
func keyFile(f *coordinatortest.Fleet) string {
	return machineOf(filepath.Join(f.Dir,
		"coordinator")).keyFile()
}
func ownKeeper(f *coordinatortest.Fleet) string {
	return "seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"file:/machine/seed.key\"}]\n"
}
func machineManifest(f *coordinatortest.Fleet, extra string) []byte {
	return coordinatortest.WithSeed(f.Manifest(extra), ownKeeper(f))
}

// twoMachines returns two ready coordinators on one store, each with a disk of its own,
// and one keeper in the manifest that the first one sealed with.
func twoMachines(t *testing.T) (f, r *coordinatortest.Fleet) {
	t.Helper()
	f = coordinatortest.NewFleet(t, ownMachine)
	r = coordinatortest.NewReplica(t, f)
	coordinatortest.WantOnly(t, "first set", f.Set(machineManifest(f, "")), "")
	r.Start()
	r.AwaitHead(f)
	return f, r
}

// readKeyFile returns what the key file of f's machine holds.
func readKeyFile(f *coordinatortest.Fleet) []byte {
	f.T.Helper()
	key, err := os.ReadFile(keyFile(f))
	if err != nil {
		f.T.Fatal(err)
	}
	return key
}

// putKeyFile puts a key file back.
func putKeyFile(f *coordinatortest.Fleet, key []byte) {
	f.T.Helper()
	m := machineOf(filepath.Join(f.Dir, "coordinator"))
	if err := errors.Join(m.MkdirAll("/machine"), m.WriteFile("/machine/seed.key", key)); err != nil {
		f.T.Fatal(err)
	}
}

const someEntry = "  - {name: more, kind: data, match: [\"token:more\"]}\n"

// The key file of the first machine was backed up. A manifest that is set on the second,
// which has none, makes no other one, and the backup is worth what it was.
func TestSetOnAMachineWithoutTheKeyFile(t *testing.T) {
	t.Parallel()
	f, r := twoMachines(t)
	key := readKeyFile(f)
	coordinatortest.WantOnly(t, "set on the second machine", r.Set(machineManifest(r, someEntry)), "")
	f.AwaitHead(r)
	r.Kill()
	f.Stop()
	if _, err := os.Stat(keyFile(r)); err == nil {
		t.Error("the second machine has a key file, which nobody was told of")
	}
	coordinatortest.WantOnly(t, "the first machine's disk", os.Remove(keyFile(f)), "")
	putKeyFile(f, key)
	f.Start()
	f.Await(authority.Ready)
}

// A key file that was away while a manifest was set, and is restored from its backup,
// opens the seed as before.
func TestKeyFileAwayWhileAManifestIsSet(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, ownMachine)
	coordinatortest.WantOnly(t, "first set", f.Set(machineManifest(f, "")), "")
	key := readKeyFile(f)
	coordinatortest.WantOnly(t, "remove", os.Remove(keyFile(f)), "")
	coordinatortest.WantOnly(t, "set", f.Set(machineManifest(f, someEntry)), "")
	f.Stop()
	putKeyFile(f, key)
	f.Start()
	f.Await(authority.Ready)
}
