package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/testlane"
)

// The comparison with peers (make bench-compare) is a module of its own, which the build, the tests and the checks of
// the product leave out. Here it is vetted, its own tests run, and it does as little work as there can be, of each kind. The quick
// lane has nothing of it: nobody builds on it, and its peers are a hundred modules to compile.
func TestCompareRuns(t *testing.T) {
	testlane.Nightly(t)
	programs := t.TempDir() + string(filepath.Separator)
	for _, args := range [][]string{{"vet", "./..."}, {"test", "-count=1", "./..."}, {"build", "-o", programs, ".", "./xds"}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = "compare"
		cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	etcd := os.Getenv("FEALTY_ETCD_BIN")
	if etcd == "" {
		etcd = filepath.Join("..", "bin", "tools", "etcd") // tools/etcd.sh built it
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "compare"), "-xds", filepath.Join(programs, "xds"), "-etcd", etcd,
		"-few", "-rounds", "2", "-streams", "4").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), " | better |\n") + strings.Count(string(out), " | worse |\n") + strings.Count(string(out), " | level |\n"); n < 10 {
		t.Errorf("the table has %d rows:\n%s", n, out)
	}
}
