package process // inside: it looks at what the system says of one pid

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/test/wait"
)

// A process is gone when it ended, waited for or not, and when another one has its pid; one
// that nobody can look at is not taken for gone.
func TestLook(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "read -r line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	is, err := look(cmd.Process.Pid)
	if err != nil || !alive(is) {
		t.Fatalf("a process that runs: %+v, %v", is, err)
	}
	other := is
	other.Start++
	if alive(other) {
		t.Error("another process with its pid is taken for it")
	}
	in.Close()
	wait.Until(t, "a process that ended, and that nobody waited for, is not alive", func() bool { return !alive(is) })
	if _, err := look(is.PID); !errors.Is(err, errGone) {
		t.Errorf("a zombie of the system: %v", err)
	}
	_ = cmd.Wait() // it was told to end
	if _, err := look(is.PID); err == nil || alive(is) {
		t.Errorf("a pid that nobody has: %v", err)
	}
	if alive(running{}) {
		t.Error("no process is alive")
	}
}

// A command that puts something else in the place of its output has nothing cut but its own.
func TestCutLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, MaxOutput+1))
	}
	if err := long(victim); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(output, kept string) error{
		"no output":                func(string, string) error { return nil },
		"a link as output":         func(output, _ string) error { return os.Symlink(victim, output) },
		"a queue as output":        func(output, _ string) error { return syscall.Mkfifo(output, 0o600) },
		"a folder as output":       func(output, _ string) error { return os.Mkdir(output, 0o700) },
		"a link as what is kept":   func(output, kept string) error { return errors.Join(long(output), os.Symlink(victim, kept)) },
		"a queue as what is kept":  func(output, kept string) error { return errors.Join(long(output), syscall.Mkfifo(kept, 0o600)) },
		"a folder as what is kept": func(output, kept string) error { return errors.Join(long(output), os.Mkdir(kept, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := put(filepath.Join(dir, outputFile), filepath.Join(dir, keptFile)); err != nil {
				t.Fatal(err)
			}
			err := cutOutput(dir)
			if info, statErr := os.Stat(victim); statErr != nil || info.Size() != MaxOutput+1 {
				t.Errorf("the other file: %v, %v", info, statErr)
			}
			if err == nil && name != "a queue as output" {
				t.Error("nothing is said")
			}
		})
	}
}
