package storeguard_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// mountWithInodes mounts a disk of 1 MiB that holds so many files and folders, in a mount namespace of
// its own, and returns the path by which this process reaches it. It skips the test where the system
// lets no user do that.
func mountWithInodes(t *testing.T, inodes int) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		fmt.Sprintf(`mount -t tmpfs -o size=1m,nr_inodes=%d,mode=0700 none "$0" && echo ready && exec cat >/dev/null`, inodes), dir)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Skipf("no unshare(1) to mount a disk with: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // that it ended is enough
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Skip("this system lets no user mount a disk")
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", cmd.Process.Pid), dir)
}

// A disk that has room but no inode left takes no new file. The guard says so in the log and as a finding,
// and writes what it saw as soon as some are free.
func TestDiskWithoutInodes(t *testing.T) {
	root := mountWithInodes(t, 32)
	d := newDeskOn(t, durable.OS(), filepath.Join(root, "data"))
	d.looks()
	d.SawBundle([]byte("signed"))
	var others []string
	for i := 0; ; i++ {
		name := filepath.Join(root, fmt.Sprint("other-", i))
		if err := os.WriteFile(name, nil, 0o600); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil || i > 64 {
			t.Fatalf("file %d: %v", i, err)
		}
		others = append(others, name)
	}
	if err := os.WriteFile(others[0], make([]byte, 64<<10), 0o600); err != nil {
		t.Fatalf("the disk has no room, and the test is about one that has: %v", err)
	}
	d.Keep(t.Context())
	found := d.UnkeptFindings()
	if len(found) != 1 || found[0].GetCode() != string(errcode.StoreUnrecorded) ||
		!strings.Contains(found[0].GetSummary(), syscall.ENOSPC.Error()) {
		t.Errorf("findings: %v", found)
	}
	if !strings.Contains(d.log.String(), "would not be noticed after a restart") {
		t.Errorf("the log: %s", &d.log)
	}
	for _, name := range others {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	d.Keep(t.Context())
	if found := d.UnkeptFindings(); len(found) != 0 {
		t.Errorf("with inodes free, findings: %v", found)
	}
	if d.start(); d.Revision() != 100 || string(d.Bundle()) != "signed" {
		t.Errorf("after a restart it saw revision %d and %q", d.Revision(), d.Bundle())
	}
}
