package localsocket_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/localsocket"
)

// A socket of a dead process gives way; somebody's file does not.
func TestListenRemovesSocketsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := localsocket.Listen(path)
	if err != nil {
		t.Fatalf("after a dead process: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v (%v), want 0600", info.Mode(), err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := localsocket.Listen(path); err == nil {
		t.Error("a file was taken for an old socket")
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "precious" {
		t.Errorf("the file is gone: %q, %v", raw, err)
	}
}

func TestOwnUser(t *testing.T) {
	me := uint32(os.Geteuid())
	for uid, want := range map[uint32]bool{0: true, me: true, me + 1: false, ^uint32(0): false} {
		if got := localsocket.OwnUser(identity.Local{UID: uid}); got != want {
			t.Errorf("OwnUser(%d) = %v", uid, got)
		}
	}
}
