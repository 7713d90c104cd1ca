// Package alivetest checks that a watchdog's method waits for the lock that it watches.
package alivetest

import (
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// Waits fails t unless alive waits while any one of the locks of owner, a pointer, is held, and ends
// once it is free. A lock is named by its fields: "mu", or "calls.mu". In is part of the name of the
// function that waits, as a stack shows it: "(*Queue).Alive".
func Waits(t *testing.T, in string, alive func(), owner any, locks ...string) {
	t.Helper()
	for _, name := range locks {
		l := lock(t, owner, name)
		done := make(chan struct{})
		l.Lock()
		go func() { defer close(done); alive() }()
		for stacks := make([]byte, 1<<20); ; runtime.Gosched() {
			select {
			case <-done:
				t.Fatalf("it is alive while %s is held", name)
			default:
			}
			waits := func(stack string) bool {
				return strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, in)
			}
			n := runtime.Stack(stacks, true)
			if slices.ContainsFunc(strings.Split(string(stacks[:n]), "\n\n"), waits) {
				break
			}
			if n == len(stacks) { // more goroutines run than there is room for
				stacks = make([]byte, 2*n)
			}
		}
		l.Unlock()
		<-done
	}
}

// lock returns a lock of owner. It is nobody's but the owner's, so it is reached past the rules of the
// language: a test that stood inside would make all that its package's tests use be compiled anew.
func lock(t *testing.T, owner any, name string) sync.Locker {
	t.Helper()
	v := reflect.ValueOf(owner).Elem()
	for field := range strings.SplitSeq(name, ".") {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v = v.FieldByName(field); !v.IsValid() {
			t.Fatalf("%T has no %s", owner, name)
		}
	}
	l, ok := reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Interface().(sync.Locker)
	if !ok {
		t.Fatalf("%s of %T is no lock", name, owner)
	}
	return l
}
