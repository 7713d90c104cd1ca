package keyring_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// mountedAt is the variable that makes a process of this test the coordinator of a pod, which looks at its key.
const mountedAt = "FEALTY_TEST_MOUNTED_KEY"

// TestMountedKey reads the key of a keeper as Kubernetes mounts a Secret: a link to a link to a file of root's, which
// the group of the pod (fsGroup) may read. What more people could read, or put another key into, is refused, with
// what can be done about it on a mount.
func TestMountedKey(t *testing.T) {
	if at := os.Getenv(mountedAt); at != "" {
		err := keyring.Examine(keyring.Owner{Name: "kms", Keeper: "file:" + at})
		fmt.Printf("exposed %v: %v\n", errors.Is(err, durable.ErrExposed), err)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root makes files of root's that others read")
	}
	const uid, fsGroup = 65532, 65531
	dir, err := os.MkdirTemp("", "fealty-mount-") // others have to get there, unlike to t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(dir, "keyring.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(self, program, 0o755), os.Chmod(self, 0o755)); err != nil {
		t.Fatal(err)
	}
	line := "fealty-keeper-key-v1 " + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"
	for i, c := range []struct {
		name       string
		owner      int
		group      int
		mode       fs.FileMode
		groups     []uint32 // of the process, beside its first
		as         uint32
		says       string // empty: it is taken
		unreadable bool
	}{
		{name: "defaultMode 0400", group: fsGroup, mode: 0o440, groups: []uint32{fsGroup}, as: uid},
		{name: "its first group", group: uid, mode: 0o440, as: uid},
		{name: "its own file", owner: uid, group: uid, mode: 0o400, as: uid},
		{name: "its own file, and the group reads", owner: uid, group: fsGroup, mode: 0o440, groups: []uint32{fsGroup}, as: uid, says: "chmod 600"},
		{name: "defaultMode 0644", group: fsGroup, mode: 0o644, groups: []uint32{fsGroup}, as: uid, says: "defaultMode 0400"},
		{name: "the group may write", group: fsGroup, mode: 0o460, groups: []uint32{fsGroup}, as: uid, says: "defaultMode 0400"},
		{name: "another user's, given to the group", owner: 65530, group: fsGroup, mode: 0o440, groups: []uint32{fsGroup}, as: uid, says: "defaultMode 0400"},
		{name: "a group of others", group: fsGroup, mode: 0o444, as: uid, says: "defaultMode 0400"},
		{name: "without fsGroup", group: 0, mode: 0o400, as: uid, says: "permission denied", unreadable: true},
		{name: "run as root", group: fsGroup, mode: 0o440, groups: []uint32{fsGroup}, as: 0, says: "as another user than root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// As the kubelet lays it out: see AtomicWriter of k8s.io/kubernetes/pkg/volume/util.
			mount := filepath.Join(dir, fmt.Sprint("mount", i))
			data := filepath.Join(mount, "..2026_11_29_12_00_00.1234567890")
			key := filepath.Join(data, "seed.key")
			if err := errors.Join(os.Mkdir(mount, 0o755), os.Mkdir(data, 0o755), os.WriteFile(key, []byte(line), 0o400),
				os.Chown(key, c.owner, c.group), os.Chmod(key, c.mode), os.Chmod(data, 0o755),
				os.Symlink(filepath.Base(data), filepath.Join(mount, "..data")),
				os.Symlink("..data/seed.key", filepath.Join(mount, "seed.key")),
				os.Chown(mount, 0, fsGroup), os.Chmod(mount, 0o777|fs.ModeSetgid|fs.ModeSticky)); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self, "-test.run=^TestMountedKey$", "-test.v")
			cmd.Dir, cmd.Env = dir, []string{mountedAt + "=" + filepath.Join(mount, "seed.key")}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.as, Gid: c.as, Groups: c.groups}}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want := "exposed false: <nil>\n"
			if c.says != "" {
				want = fmt.Sprintf("exposed %v: ", !c.unreadable)
			}
			if !strings.Contains(string(out), want) || !strings.Contains(string(out), c.says) || strings.Contains(string(out), "AAAA") {
				t.Errorf("it says\n%s", out)
			}
		})
	}
}
