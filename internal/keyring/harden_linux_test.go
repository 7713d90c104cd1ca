package keyring

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// The memory of a process that called Harden is in no core dump, and nobody of
// the same user can trace it. It is another process, since there is no way back.
func TestHarden(t *testing.T) {
	if os.Getenv("FEALTY_TEST_HARDEN") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHarden$")
		cmd.Env = append(os.Environ(), "FEALTY_TEST_HARDEN=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := Harden(); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || n != 0 {
		t.Errorf("dumpable is %d, %v", n, err)
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core.Cur != 0 || core.Max != 0 {
		t.Errorf("the limit of core dumps is %+v, %v", core, err)
	}
}
