//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package durable

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A process that is being started has every descriptor of this one until it runs its program: a lock that was
// released is free all the same.
func TestReleasedWhileAProcessIsStarted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	var locks Locks
	lock, err := lockFile(name, &locks)
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(lock.(*flock).fd)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if len(locks.all) != 0 {
		t.Error("it is looked after still")
	}
	again, err := lockFile(name, nil)
	if err != nil {
		t.Fatalf("after it was released: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
