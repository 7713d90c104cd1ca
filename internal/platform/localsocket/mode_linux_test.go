package localsocket_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/localsocket"
)

// Nobody can open a socket before its mode is set, whatever the umask of the process is. It is no parallel test: the
// umask is the process's.
func TestModeFromTheBeginning(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	for _, mode := range []fs.FileMode{0o600, 0o666} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := localsocket.BindAt(path, mode)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("it begins with mode %v (%v), want %v", info.Mode().Perm(), err, mode)
		}
		l.Close()
	}
}
