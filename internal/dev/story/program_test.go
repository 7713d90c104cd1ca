package story

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var programDir string // made by who needs it first

// program returns the path of fealty as it is built for use, for what has to be a process of its
// own. FEALTY_TEST_PROGRAM names one that was built already.
var program = sync.OnceValues(func() (string, error) {
	if made := os.Getenv("FEALTY_TEST_PROGRAM"); made != "" {
		return made, nil
	}
	var err error
	if programDir, err = os.MkdirTemp("", "fealty-program"); err != nil {
		return "", err
	}
	path := filepath.Join(programDir, "fealty")
	// With the flags of the other tests that build it, so that Go's build cache has all of it.
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", path,
		"github.com/fealty-io/fealty/cmd/fealty")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, said)
	}
	return path, nil
})

// mustProgram is program for a test.
func mustProgram(t *testing.T) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
