package coordinator_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A data directory belongs to one process: a second coordinator on it does not
// start, and the first goes on.
func TestSecondCoordinatorOnOneDirectory(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = coordinator.New(context.Background(), coordinator.Config{DataDir: filepath.Join(f.Dir, "coordinator"),
		Store:    f.Store,
		Listener: l})
	if !errors.Is(err, errcode.StoreLocked) {
		t.Fatalf("a second coordinator: %v, want %s", err, errcode.StoreLocked)
	}
	f.Member("node-a")
}
