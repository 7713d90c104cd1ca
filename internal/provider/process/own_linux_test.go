package process // inside: it looks at what the system says of one pid

import (
	"errors"
	"os/exec"
	"testing"
	"time"
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
	for end := time.Now().Add(time.Minute); alive(is); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a process that ended, and that nobody waited for, is alive")
		}
	}
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
