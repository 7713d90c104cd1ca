package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/test/wait"
)

// Programs that hold a seed are in no core dump, and their own user cannot read
// their memory: the kernel gives what it shows of such a process to root.
func TestProgramsWithSecretsAreHardened(t *testing.T) {
	for _, args := range [][]string{
		{"coordinator", "--data", "DIR/data", "--listen", "127.0.0.1:0"},
		{"dev", "--data", "DIR/data"},
	} {
		t.Run(args[0], func(t *testing.T) {
			dir := t.TempDir()
			fealty := filepath.Join(dir, "fealty")
			exe, err := program()
			if err != nil {
				t.Fatal(err)
			}
			original, err := os.Open(exe)
			if err != nil {
				t.Fatal(err)
			}
			defer original.Close()
			copied, err := os.OpenFile(fealty, os.O_CREATE|os.O_WRONLY, 0o755)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(copied, original); err != nil {
				t.Fatal(err)
			}
			if err := copied.Close(); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			cmd := exec.Command(fealty, strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "DIR", dir), "\n")...)
			cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
			cmd.Stdout, cmd.Stderr = &said, &said
			uid := os.Getuid()
			if uid == 0 {
				// Of root's own processes nothing shows: be somebody else.
				uid = 65534
				if err := errors.Join(os.Chown(dir, uid, uid), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
					t.Fatal(err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				cmd.Process.Signal(os.Interrupt)
				cmd.Wait()
				if t.Failed() {
					t.Logf("it said:\n%s", &said)
				}
			}()
			proc := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
			noCore := regexp.MustCompile(`(?m)^Max core file size +0 +0 `)
			wait.UntilNil(t, "it is hardened", func() error {
				limits, err := os.ReadFile(proc + "limits")
				if err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(proc + "mem")
				if err != nil {
					t.Fatal(err)
				}
				status, err := os.ReadFile(proc + "status")
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case !noCore.Match(limits):
					return errors.New("core dumps are on")
				case info.Sys().(*syscall.Stat_t).Uid != 0:
					return errors.New("its user can read its memory")
				case !regexp.MustCompile(`(?m)^VmLck:\s+[1-9]`).Match(status):
					return errors.New("no page is locked")
				case !bytes.Contains(status, fmt.Appendf(nil, "Uid:\t%d\t", uid)):
					t.Fatal("it runs as another user than was meant")
				}
				return nil
			})
		})
	}
}
