package durabletest

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a program that the test will run. No other test of this process starts one meanwhile: it would
// have this file open for writing until it runs its own program, and the kernel would refuse to run this one ("text
// file busy").
func WriteProgram(tb testing.TB, path string, program []byte) {
	tb.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, program, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		tb.Fatal(err)
	}
}
